"""Packed weights times one row, which the product rounds to int8 itself: small matrices in decoding, on NVIDIA.

What gemv_one_row.py computes, in its order, for matrices of up to 256 W columns, W a power of two (gemv_tiles.spans_of).
They are read in less time than the kernels take that would stand before and after them. A warp has a span of
256 columns for the whole of a program, which goes over tiles of 16 rows of weights: it loads its part of the row once,
times the norm's gain, rotates and rounds it as rotate.py does, and keeps it in registers; from then on only weights
come, DEPTH tiles ahead, the first of them before the kernel before this one has ended. The last sums, over warps, are
made once for eight tiles. The norm's factor is made of the row itself: there are no sums of squares to be left for it.

The reference is matmul.linear_ref, after quantize_fragments_ref.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from runner.kernels import epilogues
from runner.kernels.add_parts import Reader, add_parts
from runner.kernels.butterflies import rotated_spans, rotation_signs, signs_of_spans
from runner.kernels.compile import Variant
from runner.kernels.fragment_products import ZEROS, codes_in_four, half_tables_of_lanes, sum_by_halves
from runner.kernels.fragments import to_fragments
from runner.kernels.gemv_fragments import GemvFragments
from runner.kernels.gemv_steps import in_its_column, products_of_step
from runner.kernels.gemv_tiles import spans_of, tiles_of_program
from runner.kernels.grids import half_tables, table
from runner.kernels.layouts import random_matrix
from runner.kernels.rotate import begin_of, level_of, magnitude, scale_of
from runner.kernels.values import (
    OPTIONS,
    Matrix,
    PackedMatrix,
    UnroundedRow,
    cdiv,
    has_pdl,
    is_nvidia,
    moved,
    pdl_option,
    register_option,
)
from runner.quant.mq.rotation import rotation_size

# PTX: what another lane of the warp has.
_FROM_LANE = tl.constexpr("shfl.sync.idx.b32 $0, $1, $2, 31, -1;")
# PTX: the sums over the four lanes that share two rows, twice.
_SUM_OF_QUAD = tl.constexpr(
    "{ .reg .f32 a, b, c, d; "
    "shfl.sync.bfly.b32 a, $4, 2, 31, -1; add.rn.f32 a, a, $4; shfl.sync.bfly.b32 b, $5, 2, 31, -1; "
    "add.rn.f32 b, b, $5; shfl.sync.bfly.b32 c, a, 1, 31, -1; add.rn.f32 a, a, c; "
    "shfl.sync.bfly.b32 d, b, 1, 31, -1; add.rn.f32 b, b, d; "
    "mov.b32 $0, a; mov.b32 $1, b; mov.b32 $2, a; mov.b32 $3, b; }"
)


@triton.jit
def _for_pairs(v, W: tl.constexpr):
    """[W, 2] of the pairs of groups of halves of spans, for each of a half's lanes [W, 32]."""
    return tl.reshape(tl.broadcast_to(v[:, :, None], (W, 2, 16)), (W, 32))


@triton.jit
def _rounded_words(v, W: tl.constexpr):
    """The `elements` v of halves of spans, rounded: each lane's word [W, 32], and what its pair of groups has, the
    scale and the sums of the levels of both groups, the second's in the upper half."""
    largest = tl.maximum(tl.maximum(magnitude(v[0]), magnitude(v[1])), tl.maximum(magnitude(v[2]), magnitude(v[3])))
    unit, grow, by, inverse = scale_of(tl.max(tl.reshape(largest, (W, 2, 16)), 2))
    grow, by, inverse = _for_pairs(grow, W), _for_pairs(by, W), _for_pairs(inverse, W)
    word = tl.zeros((W, 32), tl.int32)
    total = tl.zeros((W, 32), tl.int32)
    for e in tl.static_range(4):
        level = level_of(v[e], grow, by, inverse)
        word |= (level & 255) << (8 * e)
        total += level
    lane = tl.arange(0, 32)[None, :]
    both = tl.sum(tl.reshape(total << (16 * (lane // 8 % 2)), (W, 2, 16)), 2)
    return word, _for_pairs(unit, W), _for_pairs(both, W)


@triton.jit
def _from_lanes(first, second, lane, is_first, W: tl.constexpr, NVIDIA: tl.constexpr):
    """[W, 128]: of two tensors [W, 32], an element a lane, what lane `lane` [W, 128] of the same warp has in one of
    them."""
    if NVIDIA:
        first = tl.reshape(tl.broadcast_to(first[:, :, None], (W, 32, 4)), (W, 128))
        second = tl.reshape(tl.broadcast_to(second[:, :, None], (W, 32, 4)), (W, 128))
        a = tl.inline_asm_elementwise(_FROM_LANE, "=r,r,r", [first, lane], dtype=first.dtype, is_pure=True, pack=1)
        b = tl.inline_asm_elementwise(_FROM_LANE, "=r,r,r", [second, lane], dtype=first.dtype, is_pure=True, pack=1)
    else:
        a, b = tl.gather(first, lane, 1), tl.gather(second, lane, 1)
    return tl.where(is_first, a, b)


@triton.jit
def _sum_of_quads(v, W: tl.constexpr, NVIDIA: tl.constexpr):
    """v [W, 128], that is (w, g, t, r), summed over t, as (w, g, any t, r % 2 twice)."""
    if NVIDIA:
        return tl.inline_asm_elementwise(
            _SUM_OF_QUAD, "=f,=f,=f,=f,f,f,f,f", [v], dtype=tl.float32, is_pure=True, pack=4
        )
    else:
        by_pair = tl.permute(tl.reshape(v, (W, 8, 4, 2, 2)), (2, 0, 1, 4, 3))
        found, _ = tl.split(tl.reshape(sum_by_halves(by_pair, 4, W * 32), (W, 8, 2, 2)))
        return tl.reshape(tl.broadcast_to(found[:, :, None, None, :], (W, 8, 4, 2, 2)), (W, 128))


@triton.jit
def sum_of_warps(v, W: tl.constexpr, R: tl.constexpr, NVIDIA: tl.constexpr):
    """[W, R] to [R], in the order of sum_by_halves: where a warp has one of W, that is the order of its exchange."""
    if NVIDIA:
        return tl.sum(v, 0)
    else:
        return sum_by_halves(v, W, R)


@triton.jit
def _loaded_tile(
    packed, high, scale, at, n_there, P: tl.constexpr, FORMAT: tl.constexpr, W: tl.constexpr, NVIDIA: tl.constexpr
):
    """Tile `at` of a program: each warp's four pairs, as gemv_steps._loaded has them; anything from n_there on, and of
    pairs that are not there, whose x is 0."""
    i = tl.arange(0, 128)[None, :]
    w = tl.arange(0, W)[:, None]
    is_there = at + 0 * (i + w) < n_there
    words = ()
    more = ()
    for t in tl.static_range(4):
        place = (at * P + 4 * w + t) * 128
        ok = is_there if P == 4 * W else is_there & (4 * w + t < P)
        a = tl.load(packed + place + i, mask=ok, eviction_policy="evict_first")
        m = a
        if FORMAT == "mq6":
            m = tl.load(high + place + (i // 4 * 4 + i % 4), mask=ok, eviction_policy="evict_first")
        words = words + (a,)  # type: ignore[assignment]
        more = more + (m,)  # type: ignore[assignment]
    of_lane = 4 * w + i // 4 % 4
    ok = is_there if P == 4 * W else is_there & (of_lane < P)
    codes = tl.load(scale + (at * P + of_lane) * 32 + i // 16 * 4 + i % 4, mask=ok)
    return words, more, codes_in_four(codes, NVIDIA)


@triton.jit
def _of_columns(pointer, k, P: tl.constexpr, W: tl.constexpr):
    """What lies at columns k, 0 where there are none."""
    if P == 4 * W:
        return tl.load(pointer + k)
    else:
        return tl.load(pointer + k, mask=k < 64 * P, other=0.0)


@triton.jit
def _kept_after(kept, found, at, W: tl.constexpr):
    """The sums of tile `at` where they belong: tile j is at t = j % 4, r // 2 = j // 4 % 2 of tensor j // 8."""
    i = tl.arange(0, 128)[None, :] + 0 * tl.arange(0, W)[:, None]
    place = i // 4 % 4 + 4 * (i % 4 // 2)
    result = ()
    for c in tl.static_range(len(kept)):
        result = result + (tl.where(place == at - 8 * c, found, kept[c]),)  # type: ignore[assignment]
    return result


@triton.jit
def _columns(first_tile, n_there, c, N, PAIR: tl.constexpr):
    """The columns of both streams of the program's tiles 8 c to 8 c + 7, and whether they exist."""
    if PAIR == 0:
        n = (first_tile + 8 * c) * 16 + tl.arange(0, 128)
        return n, n, (n < N) & (n < (first_tile + n_there) * 16)
    else:
        n = (first_tile + 8 * c) * 8 + tl.arange(0, 64)
        return n, n + PAIR, (n < PAIR) & (n < (first_tile + n_there) * 8)


@triton.jit
def _gemv_spans(
    packed, high, scale, row_scale, levels, halves, x, gain, signs, N, n_tiles, inverse_size, eps, stream, args,
    EPILOGUE: tl.constexpr, CONFIG: tl.constexpr, ADDS: tl.constexpr, HAS_NORM: tl.constexpr, HAS_GAIN: tl.constexpr,
    SIZE: tl.constexpr, PAIR: tl.constexpr, FORMAT: tl.constexpr, ZERO: tl.constexpr, P: tl.constexpr,
    W: tl.constexpr, TILES: tl.constexpr, DEPTH: tl.constexpr, NVIDIA: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    CHUNKS: tl.constexpr = (TILES + 7) // 8
    UNDER_WAY: tl.constexpr = DEPTH if DEPTH < TILES else TILES
    first_tile = tl.program_id(0) * TILES
    n_there = tl.minimum(n_tiles - first_tile, TILES)
    packed += first_tile.to(tl.int64) * (P * 128)
    high += first_tile.to(tl.int64) * (P * 128)
    scale += first_tile.to(tl.int64) * (P * 32)
    waiting = ()
    for s in tl.static_range(UNDER_WAY):
        waiting = waiting + (_loaded_tile(packed, high, scale, s, n_there, P, FORMAT, W, NVIDIA),)  # type: ignore[assignment]
    tables = half_tables_of_lanes(halves, W, FORMAT, NVIDIA)
    i = tl.arange(0, 128)[None, :]
    places = i // 4 * 4 + i % 4 + 0 * tl.arange(0, W)[:, None]
    k = tl.arange(0, W)[:, None] * 256 + places
    if HAS_GAIN:
        gain0 = _of_columns(gain, k, P, W)
        gain1 = _of_columns(gain, k + 128, P, W)
    signs_there = signs_of_spans(signs, places, SIZE, W)
    factors = ()
    for c in tl.static_range(CHUNKS):
        n, n2, n_ok = _columns(first_tile, n_there, c, N, PAIR)
        lo = 0.5 * tl.load(row_scale + n, mask=n_ok, other=0.0)
        hi = lo
        if PAIR > 0:
            hi = 0.5 * tl.load(row_scale + n2, mask=n_ok, other=0.0)
        factors = factors + ((lo, hi),)  # type: ignore[assignment]
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    first = _of_columns(x, k, P, W).to(tl.float32)
    second = _of_columns(x, k + 128, P, W).to(tl.float32)
    before = ()
    if ADDS:
        for c in tl.static_range(CHUNKS):
            n, n2, n_ok = _columns(first_tile, n_there, c, N, PAIR)
            before = before + (tl.load(stream + n, mask=n_ok, other=0.0),)  # type: ignore[assignment]
    if HAS_NORM:
        square = sum_of_warps(tl.sum(first * first + second * second, 1)[:, None], W, 1, NVIDIA)
        rstd = tl.div_rn(1.0, tl.sqrt_rn(square * inverse_size + eps))
    if HAS_GAIN:
        first *= gain0
        second *= gain1
    lows, highs = rotated_spans(first, second, signs, signs_there, SIZE, W, NVIDIA)
    word0, unit0, both0 = _rounded_words(lows, W)
    word1, unit1, both1 = _rounded_words(highs, W)
    # Word i // 4 % 4 * 4 + i % 4 of pair i // 32 of the warp, and what pair i // 4 % 4 of it has.
    of_word = places // 32 % 2 * 16 + places % 4 * 4 + places // 4 % 4
    x_words = _from_lanes(word0, word1, of_word, places < 64, W, NVIDIA)
    of_pair, is_first = places // 4 % 2 * 16, places // 4 % 4 < 2
    unit = _from_lanes(unit0, unit1, of_pair, is_first, W, NVIDIA)
    both = _from_lanes(both0, both1, of_pair, is_first, W, NVIDIA)
    x_notes = tl.where(places % 4 == 0, unit, begin_of(both, ZERO, places % 4 == 1))
    x_columns = ()
    for t in tl.static_range(4):
        x_columns = x_columns + (in_its_column(x_words, t, W, NVIDIA),)  # type: ignore[assignment]
    kept = ()
    for _ in tl.static_range(CHUNKS):
        kept = kept + (tl.zeros((W, 128), tl.float32),)  # type: ignore[assignment]
    zero = tl.zeros((W, 128), tl.float32)
    if TILES <= DEPTH:
        for s in tl.static_range(TILES):
            found = products_of_step(waiting[s], zero, levels, tables, x_columns, x_notes, FORMAT, W, NVIDIA)
            kept = _kept_after(kept, _sum_of_quads(found, W, NVIDIA), s, W)
    else:
        for at in range(0, TILES, DEPTH):
            loaded = ()
            for s in tl.static_range(DEPTH):
                later = waiting[s]  # type: ignore[var-annotated]
                if at + s < n_there:  # a branch, or ptxas gathers the loads of all behind the last one
                    found = products_of_step(waiting[s], zero, levels, tables, x_columns, x_notes, FORMAT, W, NVIDIA)
                    kept = _kept_after(kept, _sum_of_quads(found, W, NVIDIA), at + s, W)
                    later = _loaded_tile(packed, high, scale, at + s + DEPTH, n_there, P, FORMAT, W, NVIDIA)
                loaded = loaded + (later,)  # type: ignore[assignment]
            waiting = loaded
    rows = tl.arange(0, 1)
    for c in tl.static_range(CHUNKS):
        total = tl.reshape(sum_of_warps(kept[c], W, 128, NVIDIA), (8, 4, 2, 2))  # g, t, j // 4, h
        n, n2, n_ok = _columns(first_tile, n_there, c, N, PAIR)
        if PAIR == 0:
            lo = tl.reshape(tl.permute(total, (2, 1, 3, 0)), (128,))
            hi = lo
        else:
            lo, hi = tl.split(tl.reshape(tl.permute(total, (2, 1, 0, 3)), (64, 2)))
        lo *= factors[c][0]
        hi *= factors[c][1]
        if HAS_NORM:
            lo *= rstd
            hi *= rstd
        if ADDS:
            lo += before[c]
        EPILOGUE(lo[None, :], hi[None, :], rows, rows < 1, n, n2, n_ok, tl.program_id(0) * CHUNKS + c, args, CONFIG)


def rounds(w: Matrix) -> bool:
    """Whether the product of one row with w is that of this file, which takes an UnroundedRow."""
    if not isinstance(w, PackedMatrix) or w.layout != "fragments" or not spans_of(*w.packed.shape[:2]):
        return False
    return not is_nvidia(w.packed) or _agrees(w.format, w.packed.device)


def try_spans(form: str, device: torch.device) -> bool:
    """Whether a row has the bits here that it has among others: lanes are a compiler's to decide."""
    random = torch.Generator().manual_seed(0)
    h, gain = (torch.randn(*shape, generator=random).to(device) for shape in ((3, 512), (512,)))
    w = moved(to_fragments(random_matrix(form, 16, random, rotation=256)), device)
    sums, rows = add_parts(h, None, None, Reader(gain=gain, w=w, zero=ZEROS[form]))
    many, one = torch.empty(3, 48, device=device), torch.empty(1, 48, device=device)
    GemvFragments(x=rows, w=w, pair=0).run(epilogues.store, (many, 48, (sums, 1 / 512, 1e-6), many), (2, 2, False))
    row = UnroundedRow(x=h[:1], gain=gain, eps=1e-6)
    _launch(row, w, epilogues.store, (one, 48, (one, 0.0, 0.0), one), (0, 0, False))
    return torch.equal(one.cpu(), many[:1].cpu())


_agrees = cache(try_spans)


@dataclass(frozen=True, kw_only=True)
class GemvSpans:
    """A launch for programs that leave no partial results of tiles: those would be summed otherwise than of several
    rows."""

    x: UnroundedRow
    w: PackedMatrix
    pair: int

    def __post_init__(self) -> None:
        assert self.x.shape == (1, self.w.shape[1])
        assert self.x.x.is_contiguous()
        assert self.w.pair == self.pair
        assert rounds(self.w)

    @property
    def num_rows(self) -> int:
        return 1

    @property
    def n_tiles(self) -> int:
        return self.w.packed.shape[0]

    def run(self, epilogue: Callable[..., Any], args: tuple[Any, ...], config: tuple[Any, ...]) -> None:
        """epilogue: store, gate or add_stream of epilogues.py, or one like them, without a norm."""
        assert epilogue not in (epilogues.store_squares, epilogues.add_residual, epilogues.logits)
        _launch(self.x, self.w, epilogue, args, config)


def _launch(
    x: UnroundedRow,
    w: PackedMatrix,
    epilogue: Callable[..., Any],
    args: tuple[Any, ...],
    config: tuple[Any, ...],
) -> None:
    n_tiles, n_pairs = w.packed.shape[:2]
    warps, tiles = spans_of(n_tiles, n_pairs), tiles_of_program(n_tiles)
    nvidia, pdl, device = is_nvidia(w.packed), has_pdl(w.packed), w.packed.device
    stream, adds, epilogue = epilogues.stream_apart(epilogue, args, config, w.row_scale)
    _gemv_spans[(cdiv(n_tiles, tiles),)](
        w.packed, w.packed if w.high is None else w.high, w.scale, w.row_scale, table(device), half_tables(device),
        x.x, w.row_scale if x.gain is None else x.gain, rotation_signs(w.rotation, device), w.shape[0],
        n_tiles, 1.0 / w.shape[1], x.eps or 0.0, stream, args,
        EPILOGUE=epilogue, CONFIG=config, ADDS=adds, HAS_NORM=x.eps is not None, HAS_GAIN=x.gain is not None,
        SIZE=w.rotation, PAIR=w.pair, FORMAT=w.format, ZERO=ZEROS[w.format], P=n_pairs, W=warps, TILES=tiles,
        DEPTH=min(_DEPTH[w.format], tiles), NVIDIA=nvidia, PDL=pdl, num_warps=warps, num_stages=1,
        **register_option(_MOST_REGISTERS if nvidia else None), **pdl_option(pdl), **OPTIONS,
    )  # fmt: skip


# Qwen3-0.6B's matrices on an H200: all tiles of a program on their way at once.
_DEPTH = {"mq4": 3, "mq4-uniform": 3, "mq6": 1}
_MOST_REGISTERS = 128


def variants() -> Iterator[Variant]:
    for form, program, pair, n_tiles, n_pairs in (
        ("mq4", epilogues.store, 0, 256, 16),
        ("mq4", epilogues.store, 0, 96, 18),
        ("mq4", epilogues.gate, 3072, 384, 16),
        ("mq4", epilogues.add_stream, 0, 64, 32),
        ("mq4-uniform", epilogues.gate, 1024, 128, 8),
        ("mq6", epilogues.store, 0, 512, 4),
    ):
        warps = spans_of(n_tiles, n_pairs)
        has_norm, tiles = program is not epilogues.add_stream, tiles_of_program(n_tiles)
        yield Variant(
            name=f"gemv_spans {form} {program.__name__} K={64 * n_pairs}",
            kernel=_gemv_spans,
            signature={
                "packed": "*i32", "high": "*i16" if form == "mq6" else "*i32", "scale": "*u8", "row_scale": "*fp32",
                "levels": "*i32", "halves": "*i32", "x": "*fp32" if has_norm else "*bf16", "gain": "*fp32",
                "signs": "*fp32", "N": "i32:16", "n_tiles": "i32:16", "inverse_size": "fp32", "eps": "fp32",
                "stream": "*fp32", "args": epilogues.signature(program, "*bf16"),
            },
            constants={
                "EPILOGUE": program if has_norm else epilogues.store,
                "CONFIG": (0, 0, False, 0) if pair else (0, 0, False), "ADDS": not has_norm, "HAS_NORM": has_norm,
                "HAS_GAIN": has_norm, "SIZE": rotation_size(64 * n_pairs), "PAIR": pair, "FORMAT": form, "ZERO": ZEROS[form], "P": n_pairs, "W": warps,
                "TILES": tiles, "DEPTH": min(_DEPTH[form], tiles), "NVIDIA": True,
            },
            num_warps=warps,
            num_stages=1,
            has_pdl=True,
            is_nvidia_only=True,
            most_registers=_MOST_REGISTERS,
        )  # fmt: skip
