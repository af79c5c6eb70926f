"""Attention's splits put together, against float64; rounded to int8 by the same kernel as by that of any rows."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from attention_cases import DEVICE, check_attention, random

from runner.kernels.fragments import activation_rows
from runner.kernels.rotate import quantize_blocks, quantize_fragments
from runner.kernels.splits import (
    NO_WINDOW,
    Splits,
    combine,
    combine_blocks,
    combine_fragments,
    length_of_splits,
    n_splits_of,
    splits_of_whole_rows,
)

# H, D, M, start, window: 3, 18 and 80 fill no span of 256 columns; the windows begin in later splits, those of 300,
# 8192 and 4100 in the middle of one.
SHAPES = [
    (4, 64, 2, 0, None),
    (3, 128, 3, 1500, None),
    (2, 256, 1, 127, None),
    (8, 80, 2, 700, 300),
    (32, 18, 2, 5000, None),
    (1, 64, 2, 4094, 1),
    (1, 64, 2, 18500, None),
    (1, 64, 16, 8999, 8192),
    (1, 64, 2, 9000, 4100),
    (1, 64, 2, 18500, 9000),
]

SIZES = [(256, 64), (4096, 128), (8192, 256), (16384, 512), (1 << 30, 1024)]  # of splits that begin before
OF_WINDOWS = {1: 64, 300: 64, 4100: 128, 8192: 256}  # their splits' sizes


def begins(capacity: int, start: int, window: int | None) -> list[int]:
    """Where splits begin and, behind the last, where it ends: counted and not computed."""
    length = OF_WINDOWS.get(window or 0)
    found = [0]
    while found[-1] < capacity:
        found.append(found[-1] + (length or next(size for limit, size in SIZES if found[-1] < limit)))
    if length is None:
        return found
    assert window is not None
    first = next(i for i in range(len(found)) if found[i + 1] > start - window + 1)
    many = [*found[first:], *(found[-1] + length * (i + 1) for i in range(len(found)))]
    n_places = next(i for i in range(len(found)) if i * length >= window + 14) + 1  # for 16 rows at any start
    return many[: min(n_places, len(found) - 1) + 1]


def splits_of(h: int, d: int, m: int, start: int, window: int | None, *, sinks: bool = False) -> Splits:
    """Random ones, and NaN where a row does not see a position of a split."""
    capacity = start + m + 300
    bounds = torch.tensor(begins(capacity, start, window), device=DEVICE)
    first, end = bounds[:-1], bounds[1:]
    reach = NO_WINDOW if window is None else window
    position = start + torch.arange(m, device=DEVICE)[:, None]
    seen = ((first <= position) & (end > position - reach + 1))[:, None]  # M, 1, S

    def part(*shape: int, seed: int) -> torch.Tensor:
        values = random(m, h, len(first), *shape, seed=seed)
        return torch.where(seen if not shape else seen[..., None], values, float("nan"))

    return Splits(
        tops=4 * part(seed=1),
        totals=1 + part(seed=2).abs(),
        mixes=part(d, seed=3),
        start=torch.tensor([start], dtype=torch.int32, device=DEVICE),
        window=reach,
        length=OF_WINDOWS.get(reach, 0),
        capacity=capacity,
        sinks=3 * random(h, seed=4) if sinks else None,
        dtype=torch.float32,
    )


def exact(splits: Splits) -> torch.Tensor:
    tops = splits.tops.double().nan_to_num(nan=-torch.inf)
    weights = 2.0 ** (tops - tops.amax(2, keepdim=True))
    total = (weights * splits.totals.double().nan_to_num()).sum(2)
    if splits.sinks is not None:
        total += 2.0 ** (splits.sinks.double() / torch.log(torch.tensor(2.0)).item() - tops.amax(2))
    mixed = (weights[..., None] * splits.mixes.double().nan_to_num()).sum(2)
    return (mixed / total[..., None]).flatten(1)


def of_row(splits: Splits, m: int) -> Splits:
    """A row of them alone."""
    rows = {name: getattr(splits, name)[m : m + 1].contiguous() for name in ("tops", "totals", "mixes")}
    assert splits.start is not None
    return dataclasses.replace(splits, **rows, start=splits.start + m)


@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize(("h", "d", "m", "start", "window"), SHAPES)
def test_they_are_put_together_as_float64_does_it_and_nothing_else_is_read(
    h: int, d: int, m: int, start: int, window: int | None, sinks: bool
) -> None:
    splits = splits_of(h, d, m, start, window, sinks=sinks)
    assert splits.mixes.shape[2] == n_splits_of(splits.capacity, splits.window, splits.length)
    check_attention(combine(splits), exact(splits), sums=4e-6)


# Gemma 3 of 4B, Mistral, Phi-3, gpt-oss; and windows so long that splits grow.
@pytest.mark.parametrize(
    ("window", "num_kv_heads", "length"),
    [(1024, 4, 64), (4096, 8, 128), (2047, 32, 256), (128, 8, 64), (8192, 300, 8192), (9000, 8, 0), (NO_WINDOW, 8, 0)],
)
def test_a_window_has_as_many_splits_as_run_at_once(window: int, num_kv_heads: int, length: int) -> None:
    assert length_of_splits(window, num_kv_heads) == length


@pytest.mark.parametrize("rotation", [1, 64, 256])
@pytest.mark.parametrize(("h", "d", "m", "start", "window"), SHAPES)
def test_in_int8_they_are_what_rows_of_float32_become(
    h: int, d: int, m: int, start: int, window: int | None, rotation: int
) -> None:
    if h * d % max(rotation, 64):
        rotation = 64
    splits = splits_of(h, d, m, start, window, sinks=True)
    found, wanted = combine_fragments(splits, rotation, 8), quantize_fragments(combine(splits), None, rotation, 8)
    assert (found.num_rows, found.zero) == (wanted.num_rows, wanted.zero)
    assert torch.equal(activation_rows(found), activation_rows(wanted))
    full = m // found.notes.shape[2]  # blocks
    assert torch.equal(found.notes[:full, ..., :3], wanted.notes[:full, ..., :3])


def test_a_row_has_the_same_bits_alone() -> None:
    splits = splits_of(8, 64, 11, 250, None, sinks=True)
    together, in_int8 = combine(splits), activation_rows(combine_fragments(splits, 256, 1))
    for m in (0, 5, 6, 10):
        assert torch.equal(combine(of_row(splits, m))[0], together[m])
        assert torch.equal(activation_rows(combine_fragments(of_row(splits, m), 256, 1))[0], in_int8[m])


@pytest.mark.parametrize(
    ("h", "d", "m", "n_splits", "rotation"), [(2, 128, 3, 2, 256), (6, 18, 5, 7, 4), (4, 96, 2, 16, 128)]
)
def test_of_whole_rows_all_are_put_together(h: int, d: int, m: int, n_splits: int, rotation: int) -> None:
    seen = random(m, h, n_splits, seed=5) > 0
    seen[..., -1] = True
    seen[0, :, :-1] = False
    splits = splits_of_whole_rows(
        torch.where(seen, 4 * random(m, h, n_splits, seed=1), -torch.inf),
        torch.where(seen, 1 + random(m, h, n_splits, seed=2).abs(), 0.0),
        torch.where(seen[..., None], random(m, h, n_splits, d, seed=3), 0.0),
        torch.float32,
    )
    found = combine(splits)
    check_attention(found, exact(splits), sums=4e-6)
    blocks, wanted = combine_blocks(splits, rotation), quantize_blocks(found, None, rotation)
    assert blocks.num_rows == m
    assert torch.equal(blocks.values(), wanted.values())
    assert torch.equal(blocks.levels[:m], wanted.levels[:m])  # what fills the last block up too


def test_values_of_any_size_stay_finite() -> None:
    splits = splits_of(4, 64, 2, 700, None)
    far = dataclasses.replace(splits, tops=100 * splits.tops, sinks=torch.full((4,), -80.0, device=DEVICE))
    assert bool(combine(far).isfinite().all())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_result_has_the_dtype_of_the_model(dtype: torch.dtype) -> None:
    splits = splits_of(4, 64, 2, 300, None)
    found = combine(dataclasses.replace(splits, dtype=dtype))
    assert found.dtype == dtype
    check_attention(found, exact(splits), sums=4e-6)
