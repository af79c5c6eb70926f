"""From the product with the q, k and v weights to queries, and to keys and values in their places in the cache; or to
queries alone, of a layer that sees what another one keeps.

Per head: an RMS norm where the model has one, the rotary positions, for queries what they grow by, one rounding; values
have a norm without gains, or none, and are the keys' columns where a model has none of their own (Gemma 4). What
that is for a few heads at once are functions that attention_decode.py calls too; place_heads is for prompts. A program
of it is one head of a few rows, none of which sees the others. It knows no weights and computes no angles.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from runner.kernels.compile import Variant
from runner.kernels.epilogues import p_rstd
from runner.kernels.kv_layer import LayerCache, write_ref
from runner.kernels.levels import level_of, magnitude, scale_of
from runner.kernels.values import OPTIONS, Parts, cdiv, has_pdl, next_power_of_2, pdl_option, rstd_ref

HeadNorm = Literal["none", "head", "row"]
"""What is normed together: nothing, the D elements of a head (Qwen3, Gemma 3), all heads of q or of k (OLMo 2)."""


@dataclass(frozen=True, kw_only=True)
class Heads:
    """What queries, keys and values of M rows are made of, for H query heads of D elements and G kv heads.

    qkv: [M, W], contiguous: the heads of q, of k, of v, and behind these (H + 2 G) * D columns what others read, if
    anything; place_heads takes it in parts too, but for norm "row". shares_keys: there are no heads of v, which are
    those of k as they come; has_value_norm: each of v has an RMS norm without a gain (Gemma 4). reads_cache: there are
    heads of q alone, and the cache holds what they see (Gemma 4's small models). cos, sin: [M, R/2]
    float32, R <= D even: the first R elements of each head of q and k are rotated in pairs (i, i + R/2)
    (arXiv:2104.09864); R = 0 rotates nothing. q_gain, k_gain: float32 [D] for norm "head", [H * D] and [G * D] for
    "row", None for "none". eps: the norms'. sums: for norm "row" the squares of every 16 columns of qkv, float32
    [M, W / 16], where the product left them and D is a multiple of 16; None where they are still to be made, as
    place_heads makes them in any case.
    growth: (beta, span): queries of position p are multiplied by 1 + beta * ln(1 + floor(p / span)) (Llama 4).
    """

    qkv: Tensor | Parts
    num_heads: int
    cos: Tensor
    sin: Tensor
    q_gain: Tensor | None = None
    k_gain: Tensor | None = None
    norm: HeadNorm = "none"
    eps: float = 0.0
    sums: Tensor | None = None
    growth: tuple[float, int] | None = None
    shares_keys: bool = False
    has_value_norm: bool = False
    reads_cache: bool = False

    @property
    def width(self) -> int:
        """W."""
        return (self.qkv.values if isinstance(self.qkv, Parts) else self.qkv).shape[-1]

    def check(self, cache: LayerCache, start: Tensor) -> None:
        """Assert the shapes that the kernels rely on, with this cache and the position of the first row."""
        n_rows, half = self.cos.shape
        of_keys = 0 if self.reads_cache else 1 if self.shares_keys else 2
        n_all, d = self.num_heads + of_keys * cache.num_kv_heads, cache.head_dim
        if isinstance(self.qkv, Parts):
            assert self.norm != "row"
            qkv = self.qkv.values
        else:
            qkv = self.qkv
        assert len(qkv) == n_rows, (qkv.shape, n_rows)
        assert self.width >= n_all * d, (qkv.shape, n_all, d)
        assert 2 * half <= d, (half, d)
        assert self.sin.shape == self.cos.shape
        assert start.shape == (1,)
        assert start.dtype == torch.int32
        assert all(tensor.is_contiguous() for tensor in (qkv, self.cos, self.sin))
        gains = ((self.q_gain, self.num_heads), (self.k_gain, cache.num_kv_heads))
        for gain, n in gains[:1] if self.reads_cache else gains:
            size = None if gain is None else gain.numel()
            assert size == {"none": None, "head": d, "row": n * d}[self.norm], (self.norm, size)
        if self.sums is not None:
            assert self.norm == "row"
            assert d % COLUMNS_OF_SUM == 0
            assert self.sums.shape == (n_rows, self.width // COLUMNS_OF_SUM)
            assert self.sums.is_contiguous()


COLUMNS_OF_SUM: Final = 16
"""As many as a tile of weights in fragments has."""


def place_heads_ref(heads: Heads, cache: LayerCache, start: int) -> Tensor:
    """See place_heads; computed in the dtype of qkv, and `start` is a number."""
    n_q, n_k = heads.num_heads * cache.head_dim, cache.num_kv_heads * cache.head_dim
    qkv = put_together_ref(heads.qkv) if isinstance(heads.qkv, Parts) else heads.qkv

    def turned_ref(x: Tensor, gain: Tensor | None) -> Tensor:
        return _turned_ref(_normed_ref(x, gain, heads.norm, heads.eps, cache.head_dim), heads.cos, heads.sin)

    q = turned_ref(qkv[:, :n_q], heads.q_gain)
    if heads.growth is not None:
        beta, span = heads.growth
        positions = torch.arange(start, start + len(q), device=q.device)
        q = q * (1 + beta * torch.log1p((positions // span).to(q.dtype)))[:, None, None]
    if heads.reads_cache:
        return q
    k = qkv[:, n_q : n_q + n_k]
    v = k if heads.shares_keys else qkv[:, n_q + n_k : n_q + 2 * n_k]
    k, v = turned_ref(k, heads.k_gain), v.unflatten(1, (-1, cache.head_dim))
    if heads.has_value_norm:
        v = _rms_norm(v, v.new_ones(()), heads.eps)
    write_ref(cache, start, k.transpose(0, 1), v.transpose(0, 1))
    return q


def put_together_ref(parts: Parts) -> Tensor:
    """The product [M, N]."""
    product = parts.values.sum(1)
    if parts.squares is not None:
        product = product * rstd_ref(parts.squares)[:, None]
    return (product if parts.bias is None else product + parts.bias.float()).to(parts.dtype)


def _normed_ref(x: Tensor, gain: Tensor | None, norm: HeadNorm, eps: float, head_dim: int) -> Tensor:
    """[M, N * D] -> [M, N, D]."""
    if norm == "row":
        x = _rms_norm(x, gain, eps)
    x = x.unflatten(1, (-1, head_dim))
    return _rms_norm(x, gain, eps) if norm == "head" else x


def _rms_norm(x: Tensor, gain: Tensor | None, eps: float) -> Tensor:
    assert gain is not None
    return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * gain


def _turned_ref(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [M, N, D] with its first R elements rotated in pairs (i, i + R/2) by cos and sin [M, R/2]."""
    half = cos.shape[1]
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    cos, sin = cos[:, None].to(x.dtype), sin[:, None].to(x.dtype)
    return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), dim=-1)


@triton.jit
def rstd_of_rows(
    rows, sums, ok, is_any, size: tl.constexpr, eps, NORM: tl.constexpr, HAS_SUMS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """For norm "row": 1 / rms [R] of the `size` floats that each of the pointers rows [R] points at; else 1.

    sums: pointers [R] to the squares of every 16 of them, if HAS_SUMS. is_any: 1, or 0 if no row is ok.
    """
    if NORM != "row":
        return 1.0
    else:
        at = tl.arange(0, BLOCK)[None, :]
        squares = tl.zeros((rows.shape[0], BLOCK), tl.float32)
        if HAS_SUMS:
            for first in tl.static_range(0, size // 16, BLOCK):
                squares += tl.load(sums[:, None] + first + at, mask=ok[:, None] & (first + at < size // 16), other=0.0)
        else:
            for first in range(0, is_any * size, BLOCK):
                part = tl.load(rows[:, None] + first + at, mask=ok[:, None] & (first + at < size), other=0.0)
                squares += part.to(tl.float32) * part.to(tl.float32)
        return tl.rsqrt(tl.div_rn(tl.sum(squares, 1), size * 1.0) + eps)


@triton.jit
def turns_of(cos, sin, ok, gain, gain_at, D: tl.constexpr, HALF: tl.constexpr, NORM: tl.constexpr, BLOCK: tl.constexpr):
    """What an element of a head and its partner are multiplied by [R, BLOCK]: their pair's angles times their gains.

    cos, sin: pointers [R] to the rows' angles; ok: which heads there are; gain_at: [R], where a head's gains begin.
    None of it depends on the product: a kernel asks for it before it waits for that one.
    """
    d = tl.arange(0, BLOCK)[None, :]
    of_own = 1.0
    of_partner = 0.0
    is_first = d < HALF
    partner = tl.where(is_first, d + HALF, d - HALF)
    is_turned = ok[:, None] & (d < 2 * HALF)
    if HALF > 0:
        pair = tl.where(is_first, d, partner)
        of_own = tl.load(cos[:, None] + pair, mask=is_turned, other=1.0)
        of_partner = tl.load(sin[:, None] + pair, mask=is_turned, other=0.0)
        of_partner = tl.where(is_first, -of_partner, of_partner)
    if NORM != "none":
        gains = gain + gain_at[:, None]
        of_own *= tl.load(gains + d, mask=ok[:, None] & (d < D), other=0.0)
        if HALF > 0:
            of_partner *= tl.load(gains + partner, mask=is_turned, other=0.0)
    return of_own, of_partner


@triton.jit
def grown(turns, position, beta, span):
    """turns_of queries at position [R], so that they are multiplied by what they grow by; see Heads."""
    if beta is None:
        return turns
    else:
        factor = (1.0 + beta * tl.log(1.0 + (position // span).to(tl.float32)))[:, None]
        return turns[0] * factor, turns[1] * factor


@triton.jit
def _elements(heads, d, ok, bias, factor, TYPE: tl.constexpr, PARTS: tl.constexpr, WIDTH: tl.constexpr):
    """Elements d [R, C] of heads; of a product in parts, put together and rounded. See heads_and_partners."""
    value = tl.load(heads[:, None] + d, mask=ok, other=0.0)
    if PARTS > 0:
        for i in tl.static_range(1, PARTS):
            value += tl.load(heads[:, None] + i * WIDTH + d, mask=ok, other=0.0)
        value *= factor[:, None]
        if bias is not None:
            value += tl.load(bias + d, mask=ok, other=0.0).to(tl.float32)
        value = value.to(TYPE)
    return value


@triton.jit
def heads_and_partners(
    heads, ok, D: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr,
    bias=None, factor=None, TYPE: tl.constexpr = None, PARTS: tl.constexpr = 0, WIDTH: tl.constexpr = 0,
):  # fmt: skip
    """Heads of D elements [R, BLOCK], and the other element of each one's pair. heads: pointers [R]; ok: which to read.

    The other one is read again: it is near, and no lane has to ask another one for it. PARTS: of the product, WIDTH
    apart, 0 if it is whole; else factor [R] and bias, a head's or None, are what its sum is multiplied by and what is
    added, before it is rounded to TYPE.
    """
    d = tl.arange(0, BLOCK)[None, :]
    value = _elements(heads, d, ok[:, None] & (d < D), bias, factor, TYPE, PARTS, WIDTH)
    if HALF == 0:
        return value, value
    else:
        partner = tl.where(d < HALF, d + HALF, d - HALF)
        is_paired = ok[:, None] & (d < 2 * HALF)
        return value, _elements(heads, partner, is_paired, bias, factor, TYPE, PARTS, WIDTH)


@triton.jit
def turned(loaded, turns, rstd, eps, D: tl.constexpr, HALF: tl.constexpr, NORM: tl.constexpr):
    """Heads of D elements, normed and rotated, [R, BLOCK] float32.

    loaded: see heads_and_partners; turns: turns_of; rstd: rstd_of_rows. The norm's factor comes last, since it takes
    longest.
    """
    own = loaded[0].to(tl.float32)
    value = own * turns[0]
    if HALF > 0:
        value += loaded[1].to(tl.float32) * turns[1]
    if NORM == "head":
        rstd = tl.rsqrt(tl.sum(own * own, 1) * (1.0 / D) + eps)
    if NORM != "none":
        value *= rstd[:, None]
    return value


@triton.jit
def normed_values(value, eps, D: tl.constexpr, NORMED: tl.constexpr):
    """Heads of values of D elements [R, BLOCK] float32, 0 behind them, normed if they are."""
    if NORMED:
        value *= tl.rsqrt(tl.sum(value * value, 1) * (1.0 / D) + eps)[:, None]
    return value


@triton.jit
def append(value, ok, kept, kept_scale, g, position, capacity, D: tl.constexpr, BLOCK: tl.constexpr):
    """Heads value [R, BLOCK] to their positions [R] in the cache, of kv head g; nothing is written beyond its capacity.

    ok: which of them to write.
    """
    d = tl.arange(0, BLOCK)[None, :]
    is_room = ok & (position >= 0) & (position < capacity)
    place = g.to(tl.int64) * capacity + position
    if kept_scale is not None:
        value = tl.where(d < D, value, 0.0)
        unit, grow, by, inverse = scale_of(tl.max(magnitude(value), 1))
        value = level_of(value, grow[:, None], by[:, None], inverse[:, None])
        tl.store(kept_scale + place, unit, mask=is_room)
    tl.store(kept + place[:, None] * D + d, value.to(kept.dtype.element_ty), mask=is_room[:, None] & (d < D))


@triton.jit
def _begin(norm, m, ok, NORMED: tl.constexpr, PDL: tl.constexpr):
    """Wait for the product; what it is multiplied by where it comes in parts [R]: 1 / rms of what was multiplied."""
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    if NORMED[0] > 0:
        return p_rstd(norm[0], m, ok, norm[1], norm[2], NORMED[0], NORMED[1])
    else:
        return tl.full(m.shape, 1.0, tl.float32)


@triton.jit(do_not_specialize=["n_rows", "capacity"])
def _place_heads(
    qkv, norm, bias, cos, sin, q_gain, k_gain, start, q, keys, values, key_scale, value_scale, n_rows, capacity, eps,
    beta, span,
    H: tl.constexpr, G: tl.constexpr, D: tl.constexpr, HALF: tl.constexpr, NORM: tl.constexpr, PARTS: tl.constexpr,
    NORMED: tl.constexpr, SHARES: tl.constexpr, VALUES: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
    BLOCK: tl.constexpr, BLOCK_ROW: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """PARTS: of the product, 0 if it is whole. norm: of a product in parts, the squares, 1 / size and eps, and NORMED
    how many squares, and the power of 2 for them; 0: there is none. bias: of one in parts, or None. SHARES: the heads
    of v are those of k; VALUES: they are normed. WIDTH: of a row of qkv."""
    m = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    n = tl.program_id(1)
    ok = m < n_rows
    row = qkv + m.to(tl.int64) * ((PARTS if PARTS > 0 else 1) * WIDTH)
    column = n * D
    if SHARES:
        column = tl.where(n < H + G, n, n - G) * D
    head = row + column
    if bias is not None:
        bias += column
    m_cos, m_sin = cos + m * HALF, sin + m * HALF
    position = tl.load(start) + m
    d = tl.arange(0, BLOCK)[None, :]
    TYPE: tl.constexpr = q.dtype.element_ty
    if n < H:
        gain_at = n * D + 0 * m if NORM == "row" else 0 * m
        turns = grown(turns_of(m_cos, m_sin, ok, q_gain, gain_at, D, HALF, NORM, BLOCK), position, beta, span)
        factor = _begin(norm, m, ok, NORMED, PDL)
        rstd = rstd_of_rows(row, row, ok, 1, H * D, eps, NORM, False, BLOCK_ROW)
        loaded = heads_and_partners(head, ok, D, HALF, BLOCK, bias, factor, TYPE, PARTS, WIDTH)
        value = turned(loaded, turns, rstd, eps, D, HALF, NORM)
        at = (m.to(tl.int64) * H + n)[:, None] * D + d
        tl.store(q + at, value.to(TYPE), mask=ok[:, None] & (d < D))
    elif n < H + G:
        gain_at = (n - H) * D + 0 * m if NORM == "row" else 0 * m
        turns = turns_of(m_cos, m_sin, ok, k_gain, gain_at, D, HALF, NORM, BLOCK)
        factor = _begin(norm, m, ok, NORMED, PDL)
        rstd = rstd_of_rows(row + H * D, row, ok, 1, G * D, eps, NORM, False, BLOCK_ROW)
        loaded = heads_and_partners(head, ok, D, HALF, BLOCK, bias, factor, TYPE, PARTS, WIDTH)
        value = turned(loaded, turns, rstd, eps, D, HALF, NORM)
        append(value, ok, keys, key_scale, n - H, position, capacity, D, BLOCK)
    else:
        factor = _begin(norm, m, ok, NORMED, PDL)
        value = _elements(head, d, ok[:, None] & (d < D), bias, factor, TYPE, PARTS, WIDTH).to(tl.float32)
        append(normed_values(value, eps, D, VALUES), ok, values, value_scale, n - H - G, position, capacity, D, BLOCK)


def place_heads(heads: Heads, cache: LayerCache, start: Tensor) -> Tensor:
    """Queries [M, H, D] in the dtype of qkv; keys and values, where there are such, go into the cache at start + m.

    start: int32 [1], on the device. Rows whose position lies beyond the cache's capacity leave no keys and values. All
    in float32.
    """
    heads.check(cache, start)
    (n_rows, half), d = heads.cos.shape, cache.head_dim
    pdl, dtype = has_pdl(heads.cos), heads.qkv.dtype
    n_parts, squares, bias = 0, None, None
    if isinstance(heads.qkv, Parts):
        qkv, squares, bias = heads.qkv.values, heads.qkv.squares, heads.qkv.bias
        n_parts = qkv.shape[1]
    else:
        qkv = heads.qkv
    norm, n_squares = (qkv, 0.0, 0.0), 0
    if squares is not None:
        norm, n_squares = (squares.parts, 1.0 / squares.size, squares.eps), squares.parts.shape[1]
    beta, span = heads.growth or (None, None)
    q = torch.empty(n_rows, heads.num_heads, d, dtype=dtype, device=qkv.device)
    rows = _rows(d)
    n_placed = 0 if heads.reads_cache else 2 * cache.num_kv_heads
    k_gain = heads.q_gain if heads.reads_cache else heads.k_gain  # no program reads it then
    _place_heads[(cdiv(n_rows, rows), heads.num_heads + n_placed)](
        qkv, norm, bias, heads.cos, heads.sin, heads.q_gain, k_gain, start, q,
        cache.keys, cache.values, cache.key_scale, cache.value_scale, n_rows, cache.capacity, heads.eps, beta, span,
        H=heads.num_heads, G=cache.num_kv_heads, D=d, HALF=half, NORM=heads.norm, PARTS=n_parts,
        NORMED=(n_squares, next_power_of_2(max(1, n_squares))), SHARES=heads.shares_keys,
        VALUES=heads.has_value_norm, WIDTH=heads.width, ROWS=rows, BLOCK=next_power_of_2(d), BLOCK_ROW=_BLOCK_ROW,
        PDL=pdl, num_warps=_WARPS,
        **pdl_option(pdl), **OPTIONS,
    )  # fmt: skip
    return q


# H200, 512 rows of 48 heads of 128: one row a program of one warp takes 30 us. A row of all heads is summed 128 at a
# time, as in attention_decode.py.
_BLOCK_ROW, _WARPS = 128, 4


def _rows(head_dim: int) -> int:
    """Of a program; more of heads of 512 do not fit into registers where the product comes in parts."""
    return 8 if head_dim <= 256 else 4


def variants() -> Iterator[Variant]:
    for name, norm, heads, form, n_parts in (
        ("bf16 d128", "none", (32, 8, 128, 64), "*bf16", 0),
        ("bf16 d128 in parts", "none", (32, 8, 128, 64), "*bf16", 4),
        ("bf16 d128 norm of heads", "head", (16, 8, 128, 64), "*bf16", 0),
        ("bf16 d128 norm of rows", "row", (32, 32, 128, 64), "*bf16", 0),
        ("int8 d96 partial", "none", (24, 8, 96, 36), "*i8", 0),
        ("bf16 d128 not rotated", "none", (32, 8, 128, 0), "*bf16", 0),
        ("bf16 d128 that grow", "none", (32, 8, 128, 64), "*bf16", 0),
        ("bf16 d256, values normed", "head", (32, 16, 256, 128), "*bf16", 0),
        ("bf16 d512, values normed, of keys", "head", (32, 4, 512, 256), "*bf16", 0),
        ("bf16 d512, values normed, of keys in parts", "head", (32, 4, 512, 256), "*bf16", 4),
    ):
        gain, scale = "*fp32" if norm != "none" else None, "*fp32" if form == "*i8" else None
        grows = name.endswith("that grow")
        yield Variant(
            name=f"place_heads {name}",
            kernel=_place_heads,
            signature={
                "qkv": "*fp32" if n_parts else "*bf16", "norm": ("*fp32", "fp32", "fp32"), "bias": None,
                "cos": "*fp32", "sin": "*fp32", "q_gain": gain, "k_gain": gain, "start": "*i32", "q": "*bf16",
                "keys": form, "values": form, "key_scale": scale, "value_scale": scale,
                "n_rows": "i32", "capacity": "i32", "eps": "fp32",
                "beta": "fp32" if grows else None, "span": "i32" if grows else None,
            },
            constants={
                **dict(zip(("H", "G", "D", "HALF"), heads, strict=True)), "NORM": norm, "PARTS": n_parts,
                "NORMED": (16, 16) if n_parts else (0, 1), "SHARES": "of keys" in name, "VALUES": "values" in name,
                "WIDTH": (heads[0] + (1 if "of keys" in name else 2) * heads[1]) * heads[2], "ROWS": _rows(heads[2]),
                "BLOCK": next_power_of_2(heads[2]), "BLOCK_ROW": _BLOCK_ROW,
            },
            has_pdl=True,
            num_warps=_WARPS,
        )  # fmt: skip
