"""Rounding with error feedback, against a slow reference and against rounding each weight by itself."""

from __future__ import annotations

import pytest
import torch

from runner.quant.mq.formats import MQ4, MQ4_UNIFORM, MQ6
from runner.quant.mq.gptq import damped, round_with_feedback
from runner.quant.mq.grid import GridFormat, scale_values, unpack


def gaussian(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def second_moment(k: int, seed: int = 1) -> torch.Tensor:
    """Of inputs that depend on each other, as activations do."""
    x = gaussian(4 * k, k, seed=seed) @ (gaussian(k, k, seed=seed + 1) * 0.3 + torch.eye(k))
    return x.T @ x / len(x)


def output_error(w: torch.Tensor, q: torch.Tensor, h: torch.Tensor) -> float:
    difference = (w - q).double()
    return float(((difference @ h.double()) * difference).sum())


def directly(w: torch.Tensor, h: torch.Tensor, form: GridFormat, scale: torch.Tensor) -> torch.Tensor:
    """The optimal update after each column by its definition: with the inverse of H without the columns done."""
    rest, rounded = w.double().clone(), torch.zeros_like(w, dtype=torch.float64)
    for column in range(w.shape[1]):
        inverse = torch.linalg.inv(h.double()[column:, column:])
        step = scale[:, column // form.group_size].double()
        rounded[:, column] = form.nearest((rest[:, column] / step).float()).double() * step
        error = (rest[:, column] - rounded[:, column]) / inverse[0, 0]
        rest[:, column:] -= error[:, None] * inverse[0]
    return rounded


@pytest.mark.parametrize("form", [MQ4, MQ4_UNIFORM, MQ6], ids=lambda form: form.name)
def test_it_equals_the_update_by_its_definition(form: GridFormat) -> None:
    w, h = gaussian(6, 192), second_moment(192)
    encoded = round_with_feedback(w, h, form, damping=0.01)
    scale = scale_values(encoded.parameters["scale_exponent"], w.device)[encoded.parts["scale"].int()]
    found = form.decode(encoded, (6, 192)).double()
    wanted = directly(w, damped(h, 0.01), form, scale)
    # Equal but where float32 fell on the other side of a boundary, which changes what comes after it in the row.
    assert float((found - wanted).abs().amax(1).eq(0).float().mean()) >= 0.5
    assert output_error(w, found.float(), h) == pytest.approx(output_error(w, wanted.float(), h), rel=0.1)


@pytest.mark.parametrize("form", [MQ4, MQ4_UNIFORM, MQ6], ids=lambda form: form.name)
def test_the_output_has_less_error_than_by_plain_rounding(form: GridFormat) -> None:
    w, h = gaussian(32, 256), second_moment(256)
    plain = form.decode(form.encode(w), (32, 256))
    fed_back = form.decode(round_with_feedback(w, h, form, damping=0.01), (32, 256))
    assert output_error(w, fed_back, h) < 0.7 * output_error(w, plain, h)


def test_independent_inputs_leave_nothing_to_feed_back() -> None:
    w = gaussian(8, 128)
    encoded = round_with_feedback(w, torch.eye(128), MQ4, damping=0.0)
    step = scale_values(encoded.parameters["scale_exponent"], w.device)[encoded.parts["scale"].int()]
    nearest = MQ4.index(w / step.repeat_interleave(32, 1))
    assert torch.equal(unpack(encoded.parts["packed"], 4, 32).int(), nearest)


@pytest.mark.parametrize("form", [MQ4, MQ4_UNIFORM, MQ6], ids=lambda form: form.name)
@pytest.mark.parametrize(("weights", "inputs"), [(2.0**110, 2.0**100), (2.0**-60, 2.0**-90), (2.0**110, 2.0**-90)])
def test_sizes_do_not_matter(form: GridFormat, weights: float, inputs: float) -> None:
    """The same but for the exponent, however large the products of weights and moments are."""
    w, h = gaussian(8, 64), second_moment(64)
    usual = round_with_feedback(w, h, form, damping=0.1)
    other = round_with_feedback(w * weights, h * inputs, form, damping=0.1)
    for suffix, part in usual.parts.items():
        assert torch.equal(other.parts[suffix], part)


def test_inputs_that_were_never_seen_do_no_harm() -> None:
    w, h = gaussian(4, 64), second_moment(64)
    h[10], h[:, 10] = 0.0, 0.0
    found = MQ4.decode(round_with_feedback(w, h, MQ4, damping=0.1), (4, 64))
    assert bool(found.isfinite().all())
    zero = MQ4.decode(round_with_feedback(w, torch.zeros(64, 64), MQ4, damping=0.1), (4, 64))
    assert float((zero - w).square().mean()) < 0.02
