"""The rotary embeddings that depend on more than positions: longrope, partial ones, and those of sliding layers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from runner.backends.base import Backend
from runner.backends.native.rope import inverse_frequencies, rotate, rotations
from runner.model_config import Rope, RopeScaling, parse_model_config
from tests.backends.native.tiny_models import VOCAB, load, make, ready, save

IDS = [int(token) for token in np.random.default_rng(3).integers(0, VOCAB, 41)]
SCALING = RopeScaling(
    kind="longrope",
    factor=4.0,
    original_max_position_embeddings=32,
    short_factors=(1.0, 1.5),
    long_factors=(2.0, 8.0),
)


@pytest.mark.parametrize(("n_ctx", "factors"), [(16, (1.0, 1.5)), (32, (1.0, 1.5)), (33, (2.0, 8.0))])
def test_the_context_that_a_model_is_loaded_for_decides_between_the_factors(
    n_ctx: int, factors: tuple[float, ...]
) -> None:
    found = inverse_frequencies(Rope(theta=100.0, scaling=SCALING, dim=4), n_ctx)
    assert torch.allclose(found, torch.tensor([1.0, 0.1]) / torch.tensor(factors))


def test_what_is_not_turned_stays_as_it_is() -> None:
    x = torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(0))
    frequencies = inverse_frequencies(Rope(theta=100.0, scaling=None, dim=6), 64)
    cos, sin = rotations(torch.arange(5, dtype=torch.float32), frequencies, 1.0)
    turned = rotate(x, cos, sin)
    assert torch.equal(turned[..., 6:], x[..., 6:])
    assert torch.equal(turned[:, 0], x[:, 0])
    assert not torch.isclose(turned[:, 1:, :6], x[:, 1:, :6]).any(dim=-1).all()
    whole = rotate(x[..., :6].contiguous(), cos, sin)
    assert torch.equal(turned[..., :6], whole)


def logits(model: PreTrainedModel, n: int) -> torch.Tensor:
    with torch.inference_mode():
        found: torch.Tensor = model(torch.tensor([IDS[:n]])).logits[0]
    return found


def test_a_short_context_has_the_logits_of_a_short_text_and_a_long_one_those_of_a_long_text(tmp_path: Path) -> None:
    """transformers takes the factors of each text by its length, 24 tokens being where they change here."""
    model = make("phi3-long-rope", original_max_position_embeddings=24)
    directory = save(model, tmp_path)
    short, long = load(ready(directory), ctx_size=24), load(ready(directory), ctx_size=48)

    def error(backend: Backend, n: int) -> float:
        found = torch.from_numpy(np.stack([one.values for one in backend.score(IDS[:n])]))
        expected = logits(model, n)
        return float((found - expected).abs().max() / expected.abs().max())

    assert error(short, 24) < 1e-4
    assert error(long, 41) < 1e-4
    assert error(long, 24) > 1e-2  # as long texts begin, not as short ones do


def test_the_attention_factor_follows_from_the_contexts_unless_it_is_given() -> None:
    factors = {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    sizes = {"hidden_size": 64, "num_attention_heads": 8, "max_position_embeddings": 4096}
    config = {"model_type": "phi3", **sizes, "original_max_position_embeddings": 1024}
    scaling = parse_model_config({**config, "rope_scaling": {"type": "su", **factors}}).rope_scaling
    assert scaling is not None
    assert (scaling.kind, scaling.factor, scaling.original_max_position_embeddings) == ("longrope", 4.0, 1024)
    assert scaling.attention_factor == pytest.approx((1 + np.log(4) / np.log(1024)) ** 0.5)
    given = parse_model_config({**config, "rope_scaling": {"type": "longrope", "attention_factor": 1.25, **factors}})
    assert given.ropes["global"].attention_factor == 1.25
