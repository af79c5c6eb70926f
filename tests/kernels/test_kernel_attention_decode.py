"""Attention of a few rows, and what it puts into the cache, against float64; a row has the same bits in every batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from attention_cases import DEVICE, FLOATS, check_attention, filled, random
from torch import Tensor

from runner.kernels import attention_decode
from runner.kernels.attention import attend_ref, multiplied_in
from runner.kernels.attention_decode import attend_rows
from runner.kernels.heads import COLUMNS_OF_SUM, HeadNorm, Heads, place_heads
from runner.kernels.kv_layer import LayerCache
from runner.kernels.splits import combine

# H, G, D, M, start, window: splits end at multiples of 64, from 256 on of 128, from 4096 on of 256, from 8192 on of
# 512, from 16384 on of 1024; with a window up to 8192 all are equally long.
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
    (2, 1, 16, 4, 4094, None),
    (2, 1, 16, 2, 4350, None),
    (2, 1, 16, 4, 8190, None),
    (2, 1, 16, 4, 16382, None),
    (2, 1, 16, 2, 18500, 9000),
    (2, 1, 16, 15, 18500, 130),
    (2, 1, 16, 4, 9000, 4100),
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


def at(start: int) -> Tensor:
    return torch.tensor([start], dtype=torch.int32, device=DEVICE)


@dataclass(frozen=True, kw_only=True)
class Case:
    """qkv of M rows: H query heads and G kv heads of D elements, R of them rotated; and `behind` columns of others."""

    h: int
    g: int
    d: int
    r: int
    m: int
    norm: HeadNorm = "none"
    dtype: torch.dtype = torch.float32
    has_sums: bool = False
    behind: int = 0
    growth: tuple[float, int] | None = None
    is_of_gemma4: bool = False  # values are keys, and normed

    @property
    def qkv(self) -> Tensor:
        width = (self.h + (1 if self.is_of_gemma4 else 2) * self.g) * self.d + self.behind
        return random(self.m, width, seed=11, dtype=self.dtype)

    @property
    def sums(self) -> Tensor | None:
        return self.qkv.float().square().unflatten(1, (-1, COLUMNS_OF_SUM)).sum(2) if self.has_sums else None

    @property
    def angles(self) -> tuple[Tensor, Tensor]:
        angle = 3 * random(self.m, self.r // 2, seed=12)
        return angle.cos(), angle.sin()

    @property
    def gains(self) -> dict[str, Any]:
        sizes = {"none": None, "head": (1, 1), "row": (self.h, self.g)}[self.norm]
        q, k = (None, None) if sizes is None else (random(n * self.d, seed=13 + n) for n in sizes)
        return {"q_gain": q, "k_gain": k, "norm": self.norm, "eps": 1e-5}

    def attend(
        self, cache: LayerCache, start: int, rows: slice = slice(None), *, window: int | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        return combine(attend_rows(self.heads(rows), cache, at(start), window=window, sinks=sinks, scale=0.3))

    def heads(self, rows: slice = slice(None)) -> Heads:
        cos, sin = (angles[rows].contiguous() for angles in self.angles)
        sums = None if self.sums is None else self.sums[rows].contiguous()
        qkv = self.qkv[rows].contiguous()
        of_values = dict.fromkeys(("shares_keys", "has_value_norm"), self.is_of_gemma4)
        more = {**self.gains, **of_values, "sums": sums, "growth": self.growth}
        return Heads(qkv=qkv, num_heads=self.h, cos=cos, sin=sin, **more)


def emptied(cache: LayerCache, start: int) -> LayerCache:
    """A copy in which positions from `start` on hold what must not be read."""
    copy = LayerCache(**{name: None if x is None else x.clone() for name, x in vars(cache).items()})
    for tensor in (copy.keys, copy.values, copy.key_scale, copy.value_scale):
        if tensor is not None:
            tensor[:, start:] = float("nan") if tensor.is_floating_point() else 77
    return copy


def heads_of(cache: LayerCache, q: Tensor, start: int) -> Tensor:
    """qkv of queries q [M, H, D], and of the keys and values that the cache has at their positions, 0 beyond them."""

    def rows(kept: Tensor, scale: Tensor | None) -> Tensor:
        found = torch.zeros(kept.shape[0], len(q), kept.shape[2], device=DEVICE)
        there = kept[:, start : start + len(q)].float()
        found[:, : there.shape[1]] = there if scale is None else there * scale[:, start : start + len(q), None]
        return found.transpose(0, 1).flatten(1)

    parts = (q.flatten(1).float(), rows(cache.keys, cache.key_scale), rows(cache.values, cache.value_scale))
    return torch.cat(parts, 1).to(q.dtype)


def attend(q: Tensor, cache: LayerCache, start: int, **how: Any) -> tuple[Tensor, LayerCache]:
    """Attention without norms and rotations, of what the cache held before `start` and of its next rows; and the cache
    that this leaves."""
    after = emptied(cache, start)
    angles = torch.ones(len(q), 0, device=DEVICE)
    heads = Heads(qkv=heads_of(cache, q, start), num_heads=q.shape[1], cos=angles, sin=angles)
    return combine(attend_rows(heads, after, at(start), **how)), after


def check(
    cache: LayerCache, q: Tensor, start: int, window: int | None, sinks: Tensor | None, *, sums: float = 4e-6
) -> None:
    scale = cache.head_dim**-0.5
    found, after = attend(q, cache, start, window=window, sinks=sinks, scale=scale)
    check_attention(found, exact(q, after, start, window=window, sinks=sinks, scale=scale), sums=sums)


def exact(q: Tensor, cache: LayerCache, start: int, **how: Any) -> Tensor:
    # The reference multiplies what nobody sees by 0: it gets a cache without NaN.
    whole = LayerCache(
        keys=cache.keys.nan_to_num(),
        values=cache.values.nan_to_num(),
        key_scale=None if cache.key_scale is None else cache.key_scale.nan_to_num(),
        value_scale=None if cache.value_scale is None else cache.value_scale.nan_to_num(),
    )
    return attend_ref(q.double(), whole, start, **how)


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


@pytest.mark.parametrize("is_on_tensor_cores", [False, True])
@pytest.mark.parametrize(
    ("kept", "start", "window"), [("float32", 0, None), ("bfloat16", 300, None), ("int8", 300, 20)]
)
def test_scores_stay_below_a_cap(
    kept: str, start: int, window: int | None, is_on_tensor_cores: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind_of = multiplied_in if is_on_tensor_cores else lambda *_: None
    monkeypatch.setattr(attention_decode, "_multiplied_in", kind_of)
    cache, q = filled(kept, 2, start + 3, 320, 18), random(3, 6, 18)
    found, after = attend(q, cache, start, window=window, sinks=None, scale=0.7, cap=2.0)
    capped, free = (exact(q, after, start, window=window, sinks=None, scale=0.7, cap=cap) for cap in (2.0, None))
    check_attention(found, capped, sums=4e-6)
    assert (capped - free).abs().max() > 0.1  # of these scores some are far above it


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
    kind_of = multiplied_in if is_on_tensor_cores else lambda *_: None
    monkeypatch.setattr(attention_decode, "_multiplied_in", kind_of)
    check(filled(kind, g, start + m, start + m + 9, d), random(m, h, d, dtype=FLOATS[kind]), start, window, None)


def test_large_scores_do_not_overflow() -> None:
    # Their own rounding in float32 is what counts: 2^-24 of a sum of products that reaches 400.
    check(filled("float32", 2, 300, 300, 64), 40 * random(2, 4, 64), 298, None, None, sums=5e-5)


@pytest.mark.parametrize(
    ("h", "g", "d", "r", "norm", "kept", "start", "window", "has_sums", "growth"),
    [
        (6, 2, 18, 18, "none", "float32", 5, None, False, None),
        (6, 2, 18, 18, "none", "float32", 5, None, False, (0.7, 2)),
        (4, 4, 18, 16, "row", "float32", 300, 40, False, (0.7, 43)),
        (4, 4, 12, 12, "head", "float32", 254, None, False, None),
        (3, 1, 64, 32, "head", "float32", 0, 2, False, None),
        (4, 4, 18, 18, "row", "float32", 300, 40, False, None),
        (9, 3, 80, 20, "row", "float32", 3, None, False, None),
        (9, 3, 80, 20, "row", "float32", 3, None, True, None),
        (4, 4, 16, 16, "row", "float32", 300, 40, True, None),
        (2, 1, 256, 256, "head", "float32", 254, None, False, None),
        (6, 2, 18, 16, "head", "int8", 255, None, False, None),
    ],
)
def test_it_norms_rotates_and_keeps_heads_as_place_heads_does(
    h: int, g: int, d: int, r: int, norm: HeadNorm, kept: str, start: int, window: int | None, has_sums: bool,
    growth: tuple[float, int] | None,
) -> None:  # fmt: skip
    case = Case(h=h, g=g, d=d, r=r, m=4, norm=norm, has_sums=has_sums, growth=growth)
    after, placed = (emptied(filled(kept, g, start, start + 9, d), start) for _ in range(2))
    q = place_heads(case.heads(), placed, at(start))
    found = case.attend(after, start, window=window)
    check_attention(found, exact(q, placed, start, window=window, sinks=None, scale=0.3), sums=4e-6)
    for one, other in zip(vars(after).values(), vars(placed).values(), strict=True):
        assert one is None or torch.allclose(one.float(), other.float(), rtol=1e-6, atol=2e-6, equal_nan=True)


def test_columns_behind_the_heads_change_nothing() -> None:
    """Gates of a head, of which attention reads none; the norm and the rotation of 6 elements as above."""
    wide = Case(h=6, g=2, d=18, r=6, m=4, norm="head", behind=108)
    narrow = Heads(**{**vars(wide.heads()), "qkv": wide.qkv[:, :-108].contiguous()})
    caches = [emptied(filled("float32", 2, 254, 263, 18), 254) for _ in range(2)]
    found, wanted = (
        combine(attend_rows(heads, cache, at(254), window=None, sinks=None, scale=0.3))
        for heads, cache in zip((wide.heads(), narrow), caches, strict=True)
    )
    assert torch.equal(found, wanted)
    assert torch.equal(caches[0].keys[:, :258], caches[1].keys[:, :258])
    assert torch.equal(caches[0].values[:, :258], caches[1].values[:, :258])


@pytest.mark.parametrize(("h", "g", "d", "kept"), [(6, 2, 18, "float32"), (4, 1, 512, "float32"), (6, 2, 18, "int8")])
def test_values_that_are_keys_are_kept_and_attended_as_place_heads_keeps_them(
    h: int, g: int, d: int, kept: str
) -> None:
    case = Case(h=h, g=g, d=d, r=d, m=3, norm="head", is_of_gemma4=True)
    after, placed = (emptied(filled(kept, g, 61, 70, d), 61) for _ in range(2))
    q = place_heads(case.heads(), placed, at(61))
    found = case.attend(after, 61)
    check_attention(found, exact(q, placed, 61, window=None, sinks=None, scale=0.3), sums=4e-6 if d < 512 else 1.2e-5)
    for one, other in zip(vars(after).values(), vars(placed).values(), strict=True):
        assert one is None or torch.allclose(one.float(), other.float(), rtol=1e-6, atol=2e-6, equal_nan=True)


@pytest.mark.parametrize(("g", "d", "kept", "window"), [(2, 18, "float32", None), (1, 512, "float32", 70)])
def test_queries_alone_see_what_another_put_there_and_change_nothing(
    g: int, d: int, kept: str, window: int | None
) -> None:
    case = Case(h=4, g=g, d=d, r=d, m=16, norm="head")
    cache = emptied(filled(kept, g, 58, 90, d), 58)
    case.attend(cache, 58)  # puts the keys and values of all rows there
    before = emptied(cache, 90)
    own = random(16, 4 * d, seed=21)
    alone = Heads(**{**vars(case.heads()), "qkv": own, "k_gain": None, "reads_cache": True})
    found = combine(attend_rows(alone, cache, at(58), window=window, sinks=None, scale=0.3))
    q = place_heads(alone, cache, at(58))
    tolerance = 4e-6 if d < 512 else 5e-5
    check_attention(found, exact(q, cache, 58, window=window, sinks=None, scale=0.3), sums=tolerance)
    for one, other in zip(vars(cache).values(), vars(before).values(), strict=True):
        assert one is None or torch.equal(one[:, :74], other[:, :74])
    cos, sin = (angles[9:12].contiguous() for angles in case.angles)
    some = Heads(**{**vars(alone), "qkv": own[9:12].contiguous(), "cos": cos, "sin": sin})
    again = combine(attend_rows(some, cache, at(67), window=window, sinks=None, scale=0.3))
    assert torch.equal(again, found[9:12])


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8])
def test_nothing_is_put_beyond_the_capacity(dtype: torch.dtype) -> None:
    case = Case(h=2, g=2, d=18, r=18, m=4)
    whole, small = (LayerCache.empty(2, n, 18, dtype=dtype, device=DEVICE) for n in (12, 8))
    for cache in (whole, small):
        for tensor in vars(cache).values():
            if tensor is not None:
                tensor.fill_(77)
    assert torch.equal(case.attend(whole, 6)[:2], case.attend(small, 6)[:2])
    for one, other in zip(vars(whole).values(), vars(small).values(), strict=True):
        assert one is None or torch.equal(one[:, :8], other)  # position 8 of one head would be position 0 of the next


@pytest.mark.parametrize(
    ("norm", "kept", "window", "d", "has_sums", "growth"),
    [
        ("none", "float32", None, 18, False, None),
        ("none", "bfloat16", None, 128, False, (0.7, 17)),
        ("head", "int8", 40, 18, False, None),
        ("row", "float32", None, 18, False, None),
        ("head", "bfloat16", None, 64, False, None),
        ("head", "bfloat16", None, 128, False, None),
        ("row", "bfloat16", None, 128, False, None),
        ("row", "bfloat16", None, 128, True, None),
        ("head", "int8", None, 128, False, None),
        ("head", "bfloat16", None, 512, False, None),  # as Gemma 4 has them
    ],
)
def test_a_row_has_the_same_bits_whatever_the_number_of_rows(
    norm: HeadNorm, kept: str, window: int | None, d: int, has_sums: bool, growth: tuple[float, int] | None
) -> None:
    start = 250 if d == 18 else 58  # the rows' last positions lie in two splits
    dtype = torch.float32 if d == 18 else torch.bfloat16
    form = {"has_sums": has_sums, "growth": growth, "is_of_gemma4": d == 512}
    case = Case(h=3, g=1, d=d, r=d, m=16, norm=norm, dtype=dtype, **form)
    before = emptied(filled(kept, 1, start, 512, d), start)
    sinks, after = random(3), emptied(before, start)
    every = case.attend(after, start, window=window, sinks=sinks)
    # Kernels are made for 1, 8 and 16 rows; which lanes they use then is a question for a GPU alone.
    for m in (1, 2, 3, 5, 8, 9, 15) if DEVICE.type == "cuda" else (1, 8, 9):
        cache = emptied(before, start)
        assert torch.equal(case.attend(cache, start, slice(m), window=window, sinks=sinks), every[:m]), m
        for one, other in zip(vars(cache).values(), vars(after).values(), strict=True):
            assert one is None or torch.equal(one[:, : start + m], other[:, : start + m]), m
    for m in (1, 5, 6, 15) if DEVICE.type == "cuda" else (5, 15):
        cache = emptied(after, start + m)
        alone = case.attend(cache, start + m, slice(m, m + 1), window=window, sinks=sinks)
        assert torch.equal(alone[0], every[m]), m


def test_a_row_has_the_same_bits_whatever_the_capacity() -> None:
    small = filled("float32", 2, 600, 600, 18)
    keys, values = (torch.nn.functional.pad(x, (0, 0, 0, 4000), value=float("nan")) for x in (small.keys, small.values))
    q = random(2, 4, 18)
    results = [
        attend(q, cache, 598, window=None, sinks=None, scale=0.3)[0]
        for cache in (small, LayerCache(keys=keys, values=values))
    ]
    assert torch.equal(*results)


def test_a_row_beyond_the_capacity_reads_nothing_there_and_leaves_the_others_alone() -> None:
    around, q = filled("float32", 2, 300, 300, 16), random(4, 4, 16)
    around.keys[1], around.values[1] = float("nan"), float("nan")  # what lies behind the one head that the cache has
    cache = LayerCache(keys=around.keys[:1], values=around.values[:1])
    found = attend(q, cache, 298, window=None, sinks=None, scale=0.3)[0]
    wanted = attend(q[:2], cache, 298, window=None, sinks=None, scale=0.3)[0]
    assert torch.equal(found[:2], wanted)
    assert bool(found.isfinite().all())
