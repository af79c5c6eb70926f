"""The gated delta rule, against its reference in float64: in passes of any length, from slot to slot."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch
from kernel_data import DEVICE, close, random
from torch import Tensor

from runner.kernels.delta_chunks import delta_prompt
from runner.kernels.delta_rule import DeltaRows, DeltaSlots, DeltaWeights, delta_rows, delta_rows_ref, delta_step
from runner.kernels.values import MOST_ROWS

SLOTS, TAPS = 5, 4
# Hk, Hv, Dk, Dv
SHAPES = [(1, 2, 16, 16), (2, 2, 32, 16), (1, 3, 16, 64)]
SHAPE = SHAPES[0]


def at(position: int) -> Tensor:
    return torch.tensor([position], dtype=torch.int32, device=DEVICE)


def weights_of(shape: tuple[int, int, int, int]) -> DeltaWeights:
    hk, hv, dk, dv = shape
    width = 2 * hk * dk + hv * dv
    return DeltaWeights(
        taps=0.5 * random(TAPS, width, seed=5), fading=-random(hv, seed=6).exp(), bias=random(hv, seed=7)
    )


def rows_of(shape: tuple[int, int, int, int], m: int, dtype: torch.dtype = torch.float32) -> DeltaRows:
    """Columns of one product, as a layer has them: others lie between."""
    hk, hv, dk, dv = shape
    width = 2 * hk * dk + hv * dv
    product = (2 * random(m, width + 48 + 2 * hv, seed=3)).to(dtype)
    b, a = product[:, width + 48 : width + 48 + hv], product[:, width + 48 + hv :]
    return DeltaRows(mixed=product[:, :width], a=a, b=b, num_key_heads=hk)


def part(rows: DeltaRows, first: int, last: int) -> DeltaRows:
    return dataclasses.replace(rows, mixed=rows.mixed[first:last], a=rows.a[first:last], b=rows.b[first:last])


def state_of(shape: tuple[int, int, int, int], dtype: torch.dtype = torch.float32) -> DeltaSlots:
    hk, hv, dk, dv = shape
    return DeltaSlots(
        states=random(SLOTS, hv, dk, dv, seed=8),
        past=random(SLOTS, TAPS - 1, 2 * hk * dk + hv * dv, seed=9).to(dtype),
    )


def empty(shape: tuple[int, int, int, int]) -> DeltaSlots:
    """Slots that nothing may read."""
    like = state_of(shape)
    return DeltaSlots(states=torch.full_like(like.states, float("nan")), past=torch.full_like(like.past, float("nan")))


def exact(state: DeltaSlots) -> DeltaSlots:
    return DeltaSlots(states=state.states.double(), past=state.past.double())


def run(rows: DeltaRows, weights: DeltaWeights, state: DeltaSlots, start: int) -> Tensor:
    """As many rows as a step has one after the other, all others by chunks."""
    if len(rows.mixed) <= MOST_ROWS:
        return delta_step(rows, weights, state, at(start))
    return delta_prompt(rows, weights, state, at(start), at(len(rows.mixed)))


def check_alike(rows: DeltaRows, weights: DeltaWeights, state: DeltaSlots, start: int, *, size: float = 5e-6) -> None:
    wanted_state, m = exact(state), len(rows.mixed)
    wide = dataclasses.replace(rows, mixed=rows.mixed.double())
    is_step = m <= MOST_ROWS
    wanted = delta_rows_ref(wide, weights, wanted_state, start, None if is_step else m)
    found = run(rows, weights, state, start)
    assert found.dtype == torch.float32
    close(found, wanted, size)
    written = [(start + n) % SLOTS for n in range(m - SLOTS + 1 if is_step else m, m + 1) if n > 0]
    close(state.states[written], wanted_state.states[written], size)
    assert torch.equal(state.past.double(), wanted_state.past)
    others = [slot for slot in range(SLOTS) if slot not in written]
    assert torch.equal(state.states[others].double(), wanted_state.states[others])


@pytest.mark.parametrize("start", [1, 3, 12])
@pytest.mark.parametrize("m", [1, 2, 3, 4, 5, 7, 16, 20, 67])
def test_it_is_the_reference_in_float64_and_writes_the_slots_of_its_rows(m: int, start: int) -> None:
    check_alike(rows_of(SHAPE, m), weights_of(SHAPE), state_of(SHAPE), start)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("m", [1, 4, 40])
def test_of_any_heads(shape: tuple[int, int, int, int], m: int) -> None:
    check_alike(rows_of(shape, m), weights_of(shape), state_of(shape), 6)


def test_of_rows_of_16_bits() -> None:
    dtype = torch.bfloat16
    for m in (1, 6, 40):
        # On a GPU products of prompts have factors of 10 bits.
        size = 4e-3 if m > MOST_ROWS and DEVICE.type == "cuda" else 5e-6
        check_alike(rows_of(SHAPE, m, dtype), weights_of(SHAPE), state_of(SHAPE, dtype), 2, size=size)


@pytest.mark.parametrize("m", [1, 2, 5, 20])
def test_the_first_row_of_a_sequence_reads_no_slot(m: int) -> None:
    rows, weights, state = rows_of(SHAPE, m), weights_of(SHAPE), empty(SHAPE)
    wanted = delta_rows_ref(dataclasses.replace(rows, mixed=rows.mixed.double()), weights, exact(empty(SHAPE)), 0)
    close(run(rows, weights, state, 0), wanted, 5e-6)
    assert bool(state.states[m % SLOTS].isfinite().all() & state.past[m % SLOTS].isfinite().all())


@pytest.mark.parametrize("operation", [delta_rows, delta_prompt])
@pytest.mark.parametrize("count", [1, 2, 5, 33, 64, 70])
def test_rows_that_fill_a_pass_up_leave_the_state_alone(count: int, operation: Callable[..., Tensor]) -> None:
    rows, weights, state = rows_of(SHAPE, 70), weights_of(SHAPE), state_of(SHAPE)
    rows.mixed[count:] = torch.inf  # whatever is in them
    found = operation(rows, weights, state, at(3), at(count))
    alone = state_of(SHAPE)
    assert torch.equal(found[:count], operation(part(rows, 0, count), weights, alone, at(3), at(count)))
    assert torch.equal(state.states, alone.states)
    assert torch.equal(state.past, alone.past)
    assert not found[count:].any()


@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, 5e-6), (torch.bfloat16, 4e-3)])
def test_keys_that_are_all_alike_and_never_fade_are_solved(dtype: torch.dtype, size: float) -> None:
    """What every row changes, all rows of a chunk after it change again."""
    rows, weights, state = rows_of(SHAPE, 64, dtype), weights_of(SHAPE), state_of(SHAPE, dtype)
    rows.mixed[:, :32] = rows.mixed[0, :32]
    rows.a[:], rows.b[:] = -3e4, 3e4
    check_alike(rows, weights, state, 2, size=size)


@pytest.mark.parametrize("cuts", [[1] * 16, [2] * 8, [4] * 4, [8, 8], [1, 15], [5, 1, 10], [3, 13]])
def test_a_row_has_the_same_bits_however_the_rows_are_cut(cuts: list[int]) -> None:
    rows, weights = rows_of(SHAPE, 16), weights_of(SHAPE)
    together, state = empty(SHAPE), empty(SHAPE)
    wanted = delta_step(rows, weights, together, at(0))
    found, first = [], 0
    for m in cuts:
        found.append(delta_step(part(rows, first, first + m), weights, state, at(first)))
        first += m
    assert torch.equal(torch.cat(found), wanted)
    assert torch.equal(state.states, together.states)
    assert torch.equal(state.past, together.past)


@pytest.mark.parametrize("cuts", [[1] * 10, [5, 5], [2, 8]])
def test_going_back_four_rows_finds_the_state_that_was_there(cuts: list[int]) -> None:
    rows, weights, state = rows_of(SHAPE, 10), weights_of(SHAPE), empty(SHAPE)
    answers, first = list[Tensor](), 0
    for m in cuts:
        answers += delta_step(part(rows, first, first + m), weights, state, at(first)).split(1)
        first += m
    for back in (1, 2, 3, 4):
        again = DeltaSlots(states=state.states.clone(), past=state.past.clone())
        for m in range(10 - back, 10):
            assert torch.equal(delta_step(part(rows, m, m + 1), weights, again, at(m)), answers[m])


def test_a_head_that_forgets_at_once_and_one_that_never_does() -> None:
    """Gates at the ends of their range: nothing overflows."""
    for m in (3, 38):
        rows, weights, state = rows_of(SHAPE, m), weights_of(SHAPE), state_of(SHAPE)
        rows.a[:, 0], rows.a[:, 1] = 3e4, -3e4
        rows.b[:, 0], rows.b[:, 1] = -3e4, 3e4
        check_alike(rows, weights, state, 2)
        assert bool(state.states[0].isfinite().all())
