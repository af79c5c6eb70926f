"""Epilogue programs: what a product does with a finished tile, before anything goes to memory (after CODA).

A program is a Triton function `program(lo, hi, rows, row_ok, n, n2, n_ok, tile, args, CONFIG)`:

    lo, hi   float32 [R, C]: the tile, in two streams of columns; without pairs both are the same
    rows     [R] rows of the output, row_ok which of them exist
    n, n2    [C] columns of lo and hi, n_ok which of them exist
    tile     the number of the tile along N, for partial results
    args     the program's own tensors and numbers, CONFIG its constants (tuples)

It is passed to a product as a constant, and every product of few rows can carry every program (gemv_*.py); after a
product of the library apply_epilogue.py runs it. What they share are the primitives `p_...`. A tile's row is computed
alone: no primitive mixes rows, so a row has the same bits whatever its neighbours are. This file knows no weights and
no launches; the references of whole operations are in matmul.py.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

# A program's constants are numbers: what p_gate calls by them.
ACTIVATIONS = {"silu": 0, "gelu_tanh": 1, "clamped_swiglu": 2}

# --- primitives ------------------------------------------------------------------------------------------------------


@triton.jit
def p_parts(parts, rows, row_ok, PARTS: tl.constexpr, PADDED: tl.constexpr):
    """The sums of squares [R, PADDED] of rows that have them in parts [M, PARTS], 0 where there is none.

    PADDED: a power of two, PARTS or more. Asked for by itself where there is something to do before it is there.
    """
    j = tl.arange(0, PADDED)
    ok = row_ok[:, None] & (j < PARTS)[None, :]
    return tl.load(parts + rows[:, None] * PARTS + j[None, :], mask=ok, other=0.0)


@triton.jit
def p_rstd_of(found, inverse_size, eps):
    """1 / rms [R] of rows whose p_parts these are."""
    return tl.rsqrt(tl.sum(found, 1) * inverse_size + eps)


@triton.jit
def p_rstd(parts, rows, row_ok, inverse_size, eps, PARTS: tl.constexpr, PADDED: tl.constexpr):
    """Both of these: 1 / rms [R]."""
    return p_rstd_of(p_parts(parts, rows, row_ok, PARTS, PADDED), inverse_size, eps)


@triton.jit
def p_scaled(lo, hi, rows, row_ok, n, n2, n_ok, norm, bias, CONFIG: tl.constexpr):
    """(lo, hi) times the rows' 1 / rms, plus the bias, as far as CONFIG = (PARTS, PADDED, has_bias, ...) says.

    PARTS 0: no norm.
    """
    if CONFIG[0] > 0:
        parts, inverse_size, eps = norm
        rstd = p_rstd(parts, rows, row_ok, inverse_size, eps, CONFIG[0], CONFIG[1])[:, None]
        lo = lo * rstd
        hi = hi * rstd
    if CONFIG[2]:
        lo = lo + tl.load(bias + n, mask=n_ok, other=0.0).to(tl.float32)[None, :]
        hi = hi + tl.load(bias + n2, mask=n_ok, other=0.0).to(tl.float32)[None, :]
    return lo, hi


@triton.jit
def p_gate(gate, up, ACTIVATION: tl.constexpr):
    """act(gate) * up; see ACTIVATIONS. The last one is gpt-oss's, with limit 7 and slope 1.702."""
    if ACTIVATION == 0:
        return gate * tl.sigmoid(gate) * up
    elif ACTIVATION == 1:
        inner = 0.7978845608028654 * (gate + 0.044715 * gate * gate * gate)
        return gate * tl.sigmoid(2.0 * inner) * up  # (1 + tanh(z)) / 2 = sigmoid(2 z)
    else:
        gate = tl.minimum(gate, 7.0)
        up = tl.minimum(tl.maximum(up, -7.0), 7.0)
        return gate * tl.sigmoid(1.702 * gate) * (up + 1.0)


@triton.jit
def p_capped(value, cap):
    """cap * tanh(value / cap)."""
    return cap * (2.0 * tl.sigmoid(2.0 * value / cap) - 1.0)


@triton.jit
def p_store(pointer, value, rows, row_ok, n, n_ok, width):
    offset = rows[:, None].to(tl.int64) * width + n[None, :]
    tl.store(pointer + offset, value.to(pointer.dtype.element_ty), mask=row_ok[:, None] & n_ok[None, :])


@triton.jit
def p_sum(v, R: tl.constexpr, C: tl.constexpr):
    """The sums [R] of the rows of v [R, C].

    Up to 16 columns the first half is added to the second, and so on: one order for all layouts, since one row and
    several come from kernels that lay a tile out in their own ways. Each is a sum of two, wherever they lie: to split
    them would ask for both in one lane.
    """
    if C > 16:
        return tl.sum(v, 1)
    else:
        for i in tl.static_range(4):
            if C >> i > 1:
                v = tl.sum(tl.reshape(v, (R, 2, C >> (i + 1))), 1)
        return tl.reshape(v, (R,))


@triton.jit
def p_squares(value, parts, rows, row_ok, n_ok, tile, n_tiles):
    """The tile's sum of squares of each row goes to parts [M, n_tiles]."""
    kept = tl.where(n_ok[None, :], value, 0.0)
    tl.store(parts + rows * n_tiles + tile, p_sum(kept * kept, kept.shape[0], kept.shape[1]), mask=row_ok)


# --- programs --------------------------------------------------------------------------------------------------------


@triton.jit
def store(lo, hi, rows, row_ok, n, n2, n_ok, tile, args, CONFIG: tl.constexpr):
    """out = acc * rstd + bias. args: out, width, norm, bias. CONFIG: PARTS, PADDED, has_bias."""
    out, width, norm, bias = args
    lo, hi = p_scaled(lo, hi, rows, row_ok, n, n2, n_ok, norm, bias, CONFIG)
    p_store(out, lo, rows, row_ok, n, n_ok, width)


@triton.jit
def store_part(lo, hi, rows, row_ok, n, n2, n_ok, tile, args, CONFIG: tl.constexpr):
    """out [M, parts, width] = acc, of part number `tile`. args: out, width. CONFIG: parts."""
    out, width = args
    p_store(out, lo, rows * CONFIG[0] + tile, row_ok, n, n_ok, width)


@triton.jit
def store_squares(lo, hi, rows, row_ok, n, n2, n_ok, tile, args, CONFIG: tl.constexpr):
    """The same, and the squares of what was stored. args: ..., parts, n_tiles."""
    out, width, norm, bias, parts, n_tiles = args
    lo, hi = p_scaled(lo, hi, rows, row_ok, n, n2, n_ok, norm, bias, CONFIG)
    p_store(out, lo, rows, row_ok, n, n_ok, width)
    p_squares(lo.to(out.dtype.element_ty).to(tl.float32), parts, rows, row_ok, n_ok, tile, n_tiles)


@triton.jit
def add_residual(lo, hi, rows, row_ok, n, n2, n_ok, tile, args, CONFIG: tl.constexpr):
    """h += acc + bias, and the squares of the new h. args: h, width, norm, bias, parts, n_tiles."""
    h, width, norm, bias, parts, n_tiles = args
    lo, hi = p_scaled(lo, hi, rows, row_ok, n, n2, n_ok, norm, bias, CONFIG)
    offset = rows[:, None].to(tl.int64) * width + n[None, :]
    lo += tl.load(h + offset, mask=row_ok[:, None] & n_ok[None, :], other=0.0).to(tl.float32)
    p_store(h, lo, rows, row_ok, n, n_ok, width)
    p_squares(lo.to(h.dtype.element_ty).to(tl.float32), parts, rows, row_ok, n_ok, tile, n_tiles)


@triton.jit
def add_stream(lo, hi, rows, row_ok, n, n2, n_ok, tile, args, CONFIG: tl.constexpr):
    """h += acc + bias, and no squares: who reads h makes them. args: h, width, norm, bias."""
    h, width, norm, bias = args
    lo, hi = p_scaled(lo, hi, rows, row_ok, n, n2, n_ok, norm, bias, CONFIG)
    offset = rows[:, None].to(tl.int64) * width + n[None, :]
    lo += tl.load(h + offset, mask=row_ok[:, None] & n_ok[None, :], other=0.0)
    p_store(h, lo, rows, row_ok, n, n_ok, width)


@triton.jit
def gate(lo, hi, rows, row_ok, n, n2, n_ok, tile, args, CONFIG: tl.constexpr):
    """out = act(gate) * up for pairs of columns (gate, up). CONFIG: ..., ACTIVATION."""
    out, width, norm, bias = args
    lo, hi = p_scaled(lo, hi, rows, row_ok, n, n2, n_ok, norm, bias, CONFIG)
    p_store(out, p_gate(lo, hi, CONFIG[3]), rows, row_ok, n, n_ok, width)


@triton.jit
def gate_by(lo, hi, rows, row_ok, n, n2, n_ok, tile, args, CONFIG: tl.constexpr):
    """out = act(acc) * by, whose rows are by_width elements apart. args: ..., by, by_width. CONFIG: as of gate."""
    out, width, norm, bias, by, by_width = args
    lo, hi = p_scaled(lo, hi, rows, row_ok, n, n2, n_ok, norm, bias, CONFIG)
    at = rows[:, None].to(tl.int64) * by_width + n[None, :]
    factor = tl.load(by + at, mask=row_ok[:, None] & n_ok[None, :], other=0.0).to(tl.float32)
    p_store(out, p_gate(lo, factor, CONFIG[3]), rows, row_ok, n, n_ok, width)


@triton.jit
def logits(lo, hi, rows, row_ok, n, n2, n_ok, tile, args, CONFIG: tl.constexpr):
    """out = logits, and of each row's part in the tile: the largest z, the lowest id that has it, sum exp(z - largest).

    A NaN among them makes the largest NaN. args: out, width, norm, bias, maxima, arguments, sums, n_tiles.
    """
    out, width, norm, bias, maxima, arguments, sums, n_tiles = args
    lo, hi = p_scaled(lo, hi, rows, row_ok, n, n2, n_ok, norm, bias, CONFIG)
    _store_logits(lo, rows, row_ok, n, n_ok, tile, out, width, maxima, arguments, sums, n_tiles)


@triton.jit
def capped_logits(lo, hi, rows, row_ok, n, n2, n_ok, tile, args, CONFIG: tl.constexpr):
    """The same of cap * tanh(logits / cap) (Gemma 4). args: ..., cap."""
    out, width, norm, bias, maxima, arguments, sums, n_tiles, cap = args
    lo, hi = p_scaled(lo, hi, rows, row_ok, n, n2, n_ok, norm, bias, CONFIG)
    _store_logits(p_capped(lo, cap), rows, row_ok, n, n_ok, tile, out, width, maxima, arguments, sums, n_tiles)


@triton.jit
def _store_logits(lo, rows, row_ok, n, n_ok, tile, out, width, maxima, arguments, sums, n_tiles):
    p_store(out, lo, rows, row_ok, n, n_ok, width)
    z = tl.where(n_ok[None, :], lo, -float("inf"))
    is_nan = tl.max((z != z).to(tl.int32), 1) > 0
    largest = tl.max(z, 1)
    column = tl.where(z == largest[:, None], n[None, :], 2147483647)
    finite = tl.where(largest == -float("inf"), 0.0, largest)  # a tile of -inf sums to 0 and not to NaN
    place = rows * n_tiles + tile
    tl.store(maxima + place, tl.where(is_nan, float("nan"), largest), mask=row_ok)
    tl.store(arguments + place, tl.min(column, 1), mask=row_ok)
    tl.store(sums + place, p_sum(tl.exp(z - finite[:, None]), z.shape[0], z.shape[1]), mask=row_ok)


# --- norms apart -----------------------------------------------------------------------------------------------------

_NORMED = (store, store_squares, add_residual, gate, gate_by, logits, capped_logits)


def norm_apart(
    program: Any, args: tuple[Any, ...], config: tuple[Any, ...], unused: Tensor
) -> tuple[tuple[Any, ...], tuple[int, int], tuple[Any, ...], tuple[Any, ...]]:
    """For a product that multiplies with 1 / rms itself: the program's norm and (PARTS, PADDED), PARTS 0 for none, and
    the program's arguments and constants without one. unused: any tensor, float32."""
    none = (unused, 0.0, 0.0)
    if program not in _NORMED or not config[0]:
        return none, (0, 1), args, config
    return args[2], (config[0], config[1]), (*args[:2], none, *args[3:]), (0, 0, *config[2:])


def stream_apart(
    program: Any, args: tuple[Any, ...], config: tuple[Any, ...], unused: Tensor
) -> tuple[Tensor, bool, Any]:
    """For a product of one row that reads what it adds to while its weights come: that stream, whether there is one,
    and the program that is left. unused: any tensor, float32."""
    if program is not add_stream or config[0] or config[2]:  # a bias comes before the stream
        return unused, False, program
    return args[0], True, store


# --- columns of a tile -----------------------------------------------------------------------------------------------


@triton.jit
def columns(tile, N, PAIR: tl.constexpr, BN: tl.constexpr):
    """The rows of the weights that a tile reads [BN], those of its two streams [C], and whether they exist.

    PAIR 0: one stream, BN columns. Else the weights are pairs (n, n + PAIR), n < PAIR: the tile's first half are the
    first of BN / 2 pairs, its second half the others.
    """
    j = tl.arange(0, BN)
    if PAIR == 0:
        n = tile * BN + j
        return n, n < N, n, n, n < N
    else:
        HALF: tl.constexpr = BN // 2
        first = tile * HALF + j % HALF
        c = tile * HALF + tl.arange(0, HALF)
        return first + (j // HALF) * PAIR, first < PAIR, c, c + PAIR, c < PAIR


@triton.jit
def streams(acc, PAIR: tl.constexpr, R: tl.constexpr, BN: tl.constexpr):
    """A tile [R, BN] as its two streams."""
    if PAIR == 0:
        return acc, acc
    else:
        lo, hi = tl.split(tl.permute(tl.reshape(acc, (R, 2, BN // 2)), (0, 2, 1)))
        return lo, hi


# --- for compiling ahead of time -------------------------------------------------------------------------------------

_NORM = ("*fp32", "fp32", "fp32")


def signature(program: Any, dtype: str) -> tuple[Any, ...]:
    """The Triton types of a program's `args` when it stores `dtype` ("*bf16")."""
    if program is store_part:
        return "*fp32", "i32"
    tiles = {
        store: (),
        gate: (),
        gate_by: (dtype, "i32"),
        add_stream: (),
        store_squares: ("*fp32", "i32"),
        add_residual: ("*fp32", "i32"),
        logits: ("*fp32", "*i32", "*fp32", "i32"),
        capped_logits: ("*fp32", "*i32", "*fp32", "i32", "fp32"),
    }
    out = "*fp32" if program in (add_residual, add_stream, logits, capped_logits) else dtype
    return (out, "i32", _NORM, out, *tiles[program])
