"""Queries, keys and values against float64; what goes into the cache, and what must not."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from attention_cases import DEVICE, FLOATS, random
from kernel_data import close
from torch import Tensor

from runner.backends.native.blocks import RmsNorm
from runner.backends.native.rope import rotate
from runner.kernels.heads import HeadNorm, Heads, place_heads, place_heads_ref, put_together_ref
from runner.kernels.kv_layer import LayerCache, quantized_ref
from runner.kernels.values import Parts, Squares

UNTOUCHED = 77


@dataclass(frozen=True, kw_only=True)
class Case:
    """H query heads and G kv heads of D elements, R of them rotated, for M rows. behind: columns that others read."""

    h: int
    g: int
    d: int
    r: int
    m: int = 3
    norm: HeadNorm = "none"
    behind: int = 0
    growth: tuple[float, int] | None = None
    shares_keys: bool = False
    has_value_norm: bool = False
    reads_cache: bool = False

    @property
    def qkv(self) -> Tensor:
        n_kept = 0 if self.reads_cache else 1 if self.shares_keys else 2
        return random(self.m, (self.h + n_kept * self.g) * self.d + self.behind)

    @property
    def angles(self) -> tuple[Tensor, Tensor]:
        angle = 3 * random(self.m, self.r // 2, seed=1)
        return angle.cos(), angle.sin()

    @property
    def gains(self) -> tuple[Tensor | None, Tensor | None]:
        if self.norm == "none":
            return None, None
        sizes = (self.d, self.d) if self.norm == "head" else (self.h * self.d, self.g * self.d)
        return random(sizes[0], seed=2), random(sizes[1], seed=3)

    def heads(self, qkv: Tensor, rows: slice = slice(None)) -> Heads:
        (cos, sin), (q_gain, k_gain) = self.angles, self.gains
        cos, sin = cos[rows].contiguous(), sin[rows].contiguous()
        return Heads(
            qkv=qkv[rows].contiguous(),
            num_heads=self.h,
            cos=cos,
            sin=sin,
            q_gain=q_gain,
            k_gain=None if self.reads_cache else k_gain,
            norm=self.norm,
            eps=1e-5,
            growth=self.growth,
            shares_keys=self.shares_keys,
            has_value_norm=self.has_value_norm,
            reads_cache=self.reads_cache,
        )

    def run(self, cache: LayerCache, start: int, qkv: Tensor, rows: slice = slice(None)) -> Tensor:
        return place_heads(self.heads(qkv, rows), cache, torch.tensor([start], dtype=torch.int32, device=DEVICE))

    def run_ref(self, cache: LayerCache, start: int, qkv: Tensor) -> Tensor:
        """In float64, where the cache is not int8."""
        return place_heads_ref(self.heads(qkv.double()), cache, start)


CASES = [
    Case(h=6, g=2, d=18, r=18),
    Case(h=4, g=4, d=12, r=12, norm="head"),
    Case(h=3, g=1, d=64, r=32, norm="head"),
    Case(h=9, g=3, d=80, r=20),
    Case(h=9, g=3, d=128, r=128, norm="row"),
    Case(h=2, g=2, d=96, r=0, norm="row"),
    Case(h=2, g=1, d=18, r=0),
    Case(h=6, g=2, d=18, r=16, m=17, norm="head"),
    Case(h=6, g=2, d=18, r=6, norm="head", behind=108),
    Case(h=6, g=2, d=18, r=16, m=17, growth=(0.7, 4)),
    Case(h=3, g=1, d=18, r=0, norm="row", growth=(0.7, 4)),
    Case(h=6, g=2, d=18, r=18, norm="head", has_value_norm=True),
    Case(h=6, g=3, d=18, r=18, m=9, norm="head", has_value_norm=True, shares_keys=True),
    Case(h=2, g=1, d=512, r=512, m=5, norm="head", has_value_norm=True, shares_keys=True),
    Case(h=6, g=2, d=18, r=18, m=9, norm="head", has_value_norm=True, reads_cache=True),  # which is left as it is
]


def untouched(case: Case, capacity: int, dtype: torch.dtype) -> LayerCache:
    cache = LayerCache.empty(case.g, capacity, case.d, dtype=dtype, device=DEVICE)
    for tensor in (cache.keys, cache.values, cache.key_scale, cache.value_scale):
        if tensor is not None:
            tensor.fill_(UNTOUCHED)
    return cache


def check(found: Tensor, wanted: Tensor) -> None:
    """Within float32's error of a norm and a rotation, and the rounding of the dtype (the interpreter's cuts)."""
    relative = {torch.float32: 0.0, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-7}[found.dtype]
    size = wanted.abs().amax(-1, keepdim=True)
    assert found.shape == wanted.shape
    assert bool(((found.double() - wanted).abs() <= relative * wanted.abs() + 4e-7 * size).all())


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("start", [0, 5])
def test_float32_equals_float64(case: Case, start: int) -> None:
    cache, exact = (untouched(case, 23, dtype) for dtype in (torch.float32, torch.float64))
    q, q_exact = case.run(cache, start, case.qkv), case.run_ref(exact, start, case.qkv)
    check(q, q_exact)
    check(cache.keys, exact.keys)
    check(cache.values, exact.values)


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
@pytest.mark.parametrize("kept", ["float16", "bfloat16", "float32"])
def test_halves_are_computed_in_float32_and_rounded_once(kind: str, kept: str) -> None:
    case = CASES[2]
    qkv = case.qkv.to(FLOATS[kind])
    cache, exact = untouched(case, 9, FLOATS[kept]), untouched(case, 9, torch.float64)
    q = case.run(cache, 4, qkv)
    assert q.dtype == FLOATS[kind]
    check(q, case.run_ref(exact, 4, qkv))
    check(cache.keys, exact.keys)
    check(cache.values, exact.values)


@pytest.mark.parametrize("case", [CASES[0], CASES[1], CASES[2], CASES[6], CASES[12]])
@pytest.mark.parametrize("is_plain", [False, True])
def test_a_product_in_parts_is_what_it_is_when_put_together(case: Case, is_plain: bool) -> None:
    width, n_parts = case.qkv.shape[1], 3
    parts = Parts(
        values=random(case.m, n_parts, width, seed=4),
        squares=None if is_plain else Squares(parts=random(case.m, 5, seed=5).square(), size=40, eps=1e-3),
        bias=None if is_plain else random(width, seed=6).bfloat16(),
        dtype=torch.bfloat16,
    )
    product = put_together_ref(parts)
    start = torch.tensor([2], dtype=torch.int32, device=DEVICE)
    of_parts, of_whole = (untouched(case, 9, torch.float32) for _ in range(2))
    q = place_heads(replace(case.heads(case.qkv), qkv=parts), of_parts, start)
    assert q.dtype == torch.bfloat16
    # Sums in another order may be rounded otherwise.
    close(q.float(), place_heads(case.heads(product), of_whole, start).float(), 2.0**-7)
    close(of_parts.keys, of_whole.keys, 2.0**-7)
    close(of_parts.values, of_whole.values, 2.0**-7)


@pytest.mark.parametrize("case", [CASES[1], CASES[7]])
@pytest.mark.parametrize("kept", [torch.float32, torch.int8])
def test_a_product_in_parts_is_rounded_before_anything_is_made_of_it(case: Case, kept: torch.dtype) -> None:
    sixty_fourths = torch.round(2000 * random(case.m, 2, case.qkv.shape[1], seed=4)) / 64  # their sums are exact
    parts = Parts(values=sixty_fourths, squares=None, bias=None, dtype=torch.float16)
    start = torch.tensor([2], dtype=torch.int32, device=DEVICE)
    of_parts, of_whole = (untouched(case, 30, kept) for _ in range(2))
    q = place_heads(replace(case.heads(case.qkv), qkv=parts), of_parts, start)
    assert torch.equal(q, place_heads(case.heads(put_together_ref(parts)), of_whole, start))
    assert torch.equal(of_parts.keys, of_whole.keys)
    assert torch.equal(of_parts.values, of_whole.values)


def test_the_reference_norms_and_rotates_as_the_blocks_do() -> None:
    case = Case(h=3, g=1, d=64, r=64, norm="head")
    qkv, (cos, sin) = case.qkv.double(), case.angles
    cache = untouched(case, 3, torch.float64)
    q = case.run_ref(cache, 0, qkv)
    for found, heads, gain in ((q.transpose(0, 1), slice(0, 3), 0), (cache.keys, slice(3, 4), 1)):
        norm = RmsNorm(64, 1e-5).double()
        wanted_gain = case.gains[gain]
        assert wanted_gain is not None
        norm.weight.data = wanted_gain.double()
        normed = norm(qkv.unflatten(1, (-1, 64)).transpose(0, 1)[heads])
        torch.testing.assert_close(found, rotate(normed, cos, sin), rtol=1e-6, atol=1e-6)  # rotate is float32


@pytest.mark.parametrize("case", [CASES[0], CASES[4]])
def test_int8_keeps_each_heads_row_with_its_own_scale(case: Case) -> None:
    cache, exact = untouched(case, 9, torch.int8), untouched(case, 9, torch.float64)
    case.run(cache, 5, case.qkv)
    case.run_ref(exact, 5, case.qkv)
    for levels, scale, wanted in (
        (cache.keys, cache.key_scale, exact.keys),
        (cache.values, cache.value_scale, exact.values),
    ):
        assert scale is not None
        assert bool((levels[:, :5] == UNTOUCHED).all())
        assert bool((levels[:, 8:] == UNTOUCHED).all())
        assert bool((scale[:, :5] == UNTOUCHED).all())
        wanted_levels, wanted_scale = quantized_ref(wanted[:, 5:8])
        torch.testing.assert_close(scale[:, 5:8].double(), wanted_scale, rtol=4e-7, atol=0)
        # A level may differ where float64 is as good as half way between two.
        halfway = wanted[:, 5:8] / wanted_scale[..., None]
        is_tie = ((halfway - halfway.floor()) - 0.5).abs() < 1e-4
        assert bool(((levels[:, 5:8] == wanted_levels) | is_tie).all())


def test_values_that_are_keys_are_taken_as_the_product_has_them() -> None:
    """Before the norm and the rotation of keys; a norm of their own makes their mean square 1."""
    case = CASES[12]
    keys = case.qkv[:, case.h * case.d :].unflatten(1, (case.g, case.d)).transpose(0, 1)
    cache = untouched(case, 9, torch.float32)
    case.run(cache, 0, case.qkv)
    rms = keys.square().mean(-1, keepdim=True).sqrt()
    close(cache.values[:, : case.m], keys / rms, 1e-3)
    raw = untouched(case, 9, torch.float32)
    replace(case, has_value_norm=False).run(raw, 0, case.qkv)
    assert torch.equal(raw.values[:, : case.m], keys)


def test_levels_of_int8_are_rounded_half_to_even_and_zeros_have_scale_zero() -> None:
    case = Case(h=1, g=2, d=8, r=0, m=1)
    values = torch.tensor([127.0, 0.5, 1.5, 2.5, -0.5, -1.5, 126.5, -127.0], device=DEVICE)
    qkv = torch.cat((torch.zeros(24, device=DEVICE), values, torch.zeros(8, device=DEVICE)))[None]
    cache = untouched(case, 2, torch.int8)
    case.run(cache, 1, qkv)
    assert cache.value_scale is not None
    assert cache.values[:, 1].tolist() == [[127, 0, 2, 2, 0, -2, 126, -127], [0] * 8]
    assert cache.value_scale[:, 1].tolist() == [1.0, 0.0]


def test_a_number_that_is_none_stays_visible_in_an_int8_cache() -> None:
    case = Case(h=1, g=2, d=8, r=0, m=1)
    qkv = torch.ones(1, 40, device=DEVICE)
    qkv[0, 27] = float("nan")
    cache = untouched(case, 1, torch.int8)
    case.run(cache, 0, qkv)
    assert cache.value_scale is not None
    assert cache.value_scale.isnan().tolist() == [[True], [False]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8])
def test_nothing_is_written_beyond_the_capacity(dtype: torch.dtype) -> None:
    case = Case(h=2, g=2, d=18, r=18, m=4)
    whole, small = untouched(case, 12, dtype), untouched(case, 8, dtype)
    assert torch.equal(case.run(whole, 6, case.qkv), case.run(small, 6, case.qkv))
    # Position 8 of one head would be position 0 of the next.
    assert torch.equal(whole.keys[:, :8], small.keys)
    assert torch.equal(whole.values[:, :8], small.values)
    if small.key_scale is not None and whole.key_scale is not None:
        assert torch.equal(whole.key_scale[:, :8], small.key_scale)


@pytest.mark.parametrize("norm", ["head", "row"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int8])
def test_a_row_has_the_same_bits_whatever_the_number_of_rows(norm: HeadNorm, dtype: torch.dtype) -> None:
    case = Case(h=3, g=1, d=18, r=18, m=16, norm=norm)
    whole = untouched(case, 20, dtype)
    q = case.run(whole, 2, case.qkv)
    for m in (1, 2, 3, 5, 8, 11):
        cache = untouched(case, 20, dtype)
        assert torch.equal(case.run(cache, 2, case.qkv, slice(m)), q[:m])
        assert torch.equal(cache.keys[:, : 2 + m], whole.keys[:, : 2 + m])
        assert torch.equal(cache.values[:, : 2 + m], whole.values[:, : 2 + m])
