"""Attention of a few rows against float64; what is not seen is not read; a row has the same bits in every batch."""

from __future__ import annotations

import pytest
import torch
from attention_cases import DEVICE, FLOATS, check_attention, filled, poison_new_tensors, random
from torch import Tensor

from runner.kernels import attention_decode
from runner.kernels.attention import attend_ref
from runner.kernels.attention_decode import attend_rows
from runner.kernels.kv_layer import LayerCache

# H, G, D, M, start, window: a split ends at 256.
SHAPES = [
    (6, 2, 18, 3, 0, None),
    (4, 4, 12, 2, 254, None),
    (3, 1, 64, 4, 300, None),
    (9, 3, 80, 1, 511, None),
    (8, 2, 128, 2, 520, 100),
    (6, 2, 18, 5, 700, 300),
    (6, 2, 18, 2, 37, 1000),
    (2, 1, 16, 5, 254, 1),
    (40, 2, 16, 2, 260, 9),
]
KINDS = [
    ("float32", "float32"),
    ("float16", "float16"),
    ("bfloat16", "bfloat16"),
    ("float32", "bfloat16"),
    ("float32", "int8"),
    ("float16", "int8"),
    ("bfloat16", "int8"),
]


@pytest.fixture(autouse=True)
def poison(monkeypatch: pytest.MonkeyPatch) -> None:
    poison_new_tensors(monkeypatch)


def at(start: int) -> Tensor:
    return torch.tensor([start], dtype=torch.int32, device=DEVICE)


def check(
    cache: LayerCache, q: Tensor, start: int, window: int | None, sinks: Tensor | None, *, sums: float = 4e-6
) -> None:
    scale = cache.head_dim**-0.5
    found = attend_rows(q, cache, at(start), window=window, sinks=sinks, scale=scale)
    # The reference multiplies what nobody sees by 0: it gets a cache without NaN.
    whole = LayerCache(
        keys=cache.keys.nan_to_num(),
        values=cache.values.nan_to_num(),
        key_scale=None if cache.key_scale is None else cache.key_scale.nan_to_num(),
        value_scale=None if cache.value_scale is None else cache.value_scale.nan_to_num(),
    )
    wanted = attend_ref(q.double(), whole, start, window=window, sinks=sinks, scale=scale)
    check_attention(found, wanted, sums=sums)


@pytest.mark.parametrize(
    ("kind", "kept", "h", "g", "d", "m", "start", "window"),
    [("float32", "float32", *shape) for shape in SHAPES] + [(*kind, *SHAPES[4]) for kind in KINDS[1:]],
)
def test_it_equals_float64_and_reads_nothing_that_is_not_seen(
    kind: str, kept: str, h: int, g: int, d: int, m: int, start: int, window: int | None
) -> None:
    first = 0 if window is None else max(0, start - window + 1)
    cache = filled(kept, g, start + m, start + m + 300, d, first=first)
    check(cache, random(m, h, d, dtype=FLOATS[kind]), start, window, None)


@pytest.mark.parametrize(
    ("kept", "start", "window"), [("float32", 0, None), ("float32", 0, 2), ("bfloat16", 300, None), ("int8", 300, 20)]
)
def test_sinks_take_part_in_the_softmax_and_have_no_value(kept: str, start: int, window: int | None) -> None:
    check(filled(kept, 2, start + 3, 320, 18), random(3, 6, 18), start, window, 3 * random(6, seed=9))


@pytest.mark.parametrize("sink", [-80.0, 80.0])
def test_a_sink_far_above_or_below_the_scores_does_no_harm(sink: float) -> None:
    check(filled("float32", 1, 4, 10, 16), random(1, 2, 16), 3, None, torch.full((2,), sink, device=DEVICE))


@pytest.mark.parametrize("is_on_tensor_cores", [False, True])
@pytest.mark.parametrize("kind", ["float32", "float16"])
@pytest.mark.parametrize(("h", "g", "d", "m", "start", "window"), [SHAPES[3], SHAPES[5]])
def test_both_ways_of_multiplying_are_right(
    monkeypatch: pytest.MonkeyPatch,
    is_on_tensor_cores: bool,
    kind: str,
    h: int,
    g: int,
    d: int,
    m: int,
    start: int,
    window: int | None,
) -> None:
    monkeypatch.setattr(attention_decode, "is_nvidia", lambda _: is_on_tensor_cores)
    check(filled(kind, g, start + m, start + m + 9, d), random(m, h, d, dtype=FLOATS[kind]), start, window, None)


def test_large_scores_do_not_overflow() -> None:
    # Their own rounding in float32 is what counts: 2^-24 of a sum of products that reaches 400.
    check(filled("float32", 2, 300, 300, 64), 40 * random(2, 4, 64), 298, None, None, sums=5e-5)


@pytest.mark.parametrize(("kind", "window"), [("float32", None), ("int8", 40)])
def test_a_row_has_the_same_bits_whatever_the_number_of_rows(kind: str, window: int | None) -> None:
    start = 250  # the rows' last positions lie in two splits
    cache, q, sinks = filled(kind, 1, start + 16, 512, 18), random(16, 3, 18), random(3)
    every = attend_rows(q, cache, at(start), window=window, sinks=sinks, scale=0.3)
    for m in (1, 2, 3, 4, 6, 7, 8, 11):
        found = attend_rows(q[:m], cache, at(start), window=window, sinks=sinks, scale=0.3)
        assert torch.equal(found, every[:m]), m
    for m in (1, 5, 6, 15):
        alone = attend_rows(q[m : m + 1], cache, at(start + m), window=window, sinks=sinks, scale=0.3)
        assert torch.equal(alone[0], every[m]), m


def test_a_row_has_the_same_bits_whatever_the_capacity() -> None:
    small = filled("float32", 2, 600, 600, 18)
    keys, values = (torch.nn.functional.pad(x, (0, 0, 0, 4000), value=float("nan")) for x in (small.keys, small.values))
    q = random(2, 4, 18)
    results = [
        attend_rows(q, cache, at(598), window=None, sinks=None, scale=0.3)
        for cache in (small, LayerCache(keys=keys, values=values))
    ]
    assert torch.equal(*results)


def test_a_row_beyond_the_capacity_reads_nothing_there_and_leaves_the_others_alone() -> None:
    around, q = filled("float32", 2, 300, 300, 16), random(4, 4, 16)
    around.keys[1], around.values[1] = float("nan"), float("nan")  # what lies behind the one head that the cache has
    cache = LayerCache(keys=around.keys[:1], values=around.values[:1])
    found = attend_rows(q, cache, at(298), window=None, sinks=None, scale=0.3)
    wanted = attend_rows(q[:2], cache, at(298), window=None, sinks=None, scale=0.3)
    assert torch.equal(found[:2], wanted)
    assert bool(found.isfinite().all())
