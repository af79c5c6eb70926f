"""Activations on their way to a product: times a norm's gain, rotated in blocks, rounded to int8 or a float type.

The rotation is that of quant/mq/rotation.py, by butterflies: weights are stored rotated, so their input is rotated too.
After it no element stands out, and int8 with a scale for 32 elements loses less than a tenth of what 4-bit weights do.
A program is a few blocks of one row; nothing depends on other rows. It knows no weights but the block size they want.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from runner.kernels.butterflies import rotated_span, rotation_signs, signs_of_span, span_places
from runner.kernels.compile import Variant
from runner.kernels.epilogues import p_rstd
from runner.kernels.fragments import MAGIC, activations_ref, rows_of_block
from runner.kernels.levels import level_of, magnitude, scale_of
from runner.kernels.values import (
    GROUP,
    OPTIONS,
    ROWS_OF_BLOCKS,
    Int8Blocks,
    Int8Fragments,
    Int8Rows,
    Squares,
    cdiv,
    has_pdl,
    in_block_order,
    is_nvidia,
    next_power_of_2,
    pdl_option,
    rstd_ref,
)
from runner.quant.mq.rotation import rotate

SPAN: Final = 256
"""Columns that are rotated together at most."""

_START = tl.constexpr(MAGIC)  # of sums, as Int8Fragments' notes have it


def quantize_rows_ref(x: Tensor, gain: Tensor | None, rotation: int) -> Int8Rows:
    """See quantize_rows."""
    groups = _rotated_ref(x, gain, rotation).unflatten(1, (-1, GROUP))
    scale = groups.abs().amax(2) / 127
    levels = torch.round(groups / torch.where(scale > 0, scale, 1.0)[:, :, None]).to(torch.int8)
    words = levels.unflatten(2, (8, 4)).contiguous().view(torch.int32).squeeze(-1)
    return Int8Rows(words=words.transpose(1, 2).contiguous(), scale=scale.float())


def quantize_fragments_ref(
    x: Tensor, gain: Tensor | None, rotation: int, zero: int, squares: Squares | None = None, *, apart: bool = False
) -> Int8Fragments:
    """See quantize_fragments."""
    found = activations_ref(_rotated_ref(x, gain, rotation), zero, apart=apart)
    if squares is not None:
        factor, (n_blocks, _, of_block, _) = rstd_ref(squares), found.notes.shape
        factor = torch.cat((factor, factor.new_zeros(of_block * n_blocks - len(factor))))
        found.notes[..., 0] *= factor.view(n_blocks, 1, of_block)
    return found


def quantize_blocks_ref(x: Tensor, gain: Tensor | None, rotation: int) -> Int8Blocks:
    """See quantize_blocks; rows are not filled up."""
    rotated = _rotated_ref(x, gain, rotation)
    k = rotated.shape[1]
    blocks = functional.pad(rotated, (0, -k % SPAN)).unflatten(1, (-1, SPAN))
    scale = blocks.abs().amax(2) / 127
    levels = torch.round(blocks / torch.where(scale > 0, scale, 1.0)[:, :, None]).to(torch.int8)
    levels, scale = in_block_order(levels.flatten(1)), scale.T.float().contiguous()
    return Int8Blocks(levels=levels, scale=scale, num_rows=len(levels), num_columns=k)


def rotate_rows_ref(x: Tensor, gain: Tensor | None, rotation: int, dtype: torch.dtype) -> Tensor:
    """See rotate_rows."""
    return _rotated_ref(x, gain, rotation).to(dtype)


def _rotated_ref(x: Tensor, gain: Tensor | None, rotation: int) -> Tensor:
    x = x if x.dtype == torch.float64 else x.float()
    x = x if gain is None else x * gain
    return x if rotation == 1 else rotate(x, rotation)


# --- kernels ---------------------------------------------------------------------------------------------------------


@triton.jit
def _of_pairs(v):
    """[R, 2] of the pairs of groups of halves of spans, for each of their elements [R, 128]."""
    return tl.reshape(tl.broadcast_to(v[:, :, None, None], (v.shape[0], 2, 16, 4)), (v.shape[0], 128))


@triton.jit
def _rounded(v):
    """Halves of spans v [R, 128] float32 as levels int32 [R, 128], and for each element the scale of its 64."""
    unit, grow, by, inverse = scale_of(tl.max(tl.max(tl.reshape(magnitude(v), (v.shape[0], 2, 16, 4)), 3), 2))
    return level_of(v, _of_pairs(grow), _of_pairs(by), _of_pairs(inverse)), _of_pairs(unit)


@triton.jit
def _begins_of(levels, is_first, ZERO: tl.constexpr):
    """What a group's sum begins with, less what its levels lie too high, as Int8Fragments' notes say it.

    levels: [R, 128]. is_first: whether an element asks for the first group of its pair, else for the second.
    """
    if ZERO == 0:
        return _START
    else:
        # The sums of both groups of a pair at once, the second's in the upper half: each is below 2^13.
        i = tl.arange(0, 128)[None, :]
        shifted = tl.reshape(levels << (16 * (i // 32 % 2)), (levels.shape[0], 2, 16, 4))
        both = _of_pairs(tl.sum(tl.sum(shifted, 3), 2))
        first = (both << 16) >> 16
        return (ZERO * tl.where(is_first, first, (both - first) >> 16)).to(tl.float32) + _START


@triton.jit
def store_fragments(v, places, span, row, K, factor, words, notes, ZERO: tl.constexpr, COLUMNS: tl.constexpr):
    """v [2, 128] float32, a span of 256 columns of a row, as int8 to where its four pairs of groups lie.

    places: of v (span_places). words: those of Int8Fragments, byte by byte; notes: its notes, scales times `factor`.
    """
    levels, unit = _rounded(v)
    begin = _begins_of(levels, places % 4 == 1, ZERO)
    i = tl.arange(0, 128)[None, :]  # and not of `places`: so Triton sees that a lane's four lie side by side
    p = span * 4 + 2 * tl.arange(0, 2)[:, None] + i // 64
    place = (row // COLUMNS * (K // 64) + p) * COLUMNS + row % COLUMNS
    ok = p < K // 64
    note = tl.where(i % 4 == 0, unit * factor, begin)
    tl.store(notes + place * 4 + i % 4, note, mask=ok & (i // 4 % 16 == 0))
    tl.store(words + place * 64 + i // 4 % 4 * 16 + i // 16 % 4 * 4 + i % 4, levels.to(tl.int8), mask=ok)


@triton.jit
def _of_groups(v):
    """[2, 4] of the groups of a span's halves, for each of their elements [2, 128]."""
    return tl.reshape(tl.broadcast_to(v[:, :, None, None], (2, 4, 8, 4)), (2, 128))


@triton.jit
def store_rows(v, span, row, K, factor, words, scale):
    """v [2, 128] float32, a span of 256 columns of a row, as int8 to where the words of its eight groups lie.

    words: those of Int8Rows, byte by byte; scale: its scales, times `factor`.
    """
    unit, grow, by, inverse = scale_of(tl.max(tl.max(tl.reshape(magnitude(v), (2, 4, 8, 4)), 3), 2))
    level = level_of(v, _of_groups(grow), _of_groups(by), _of_groups(inverse))
    n_groups = K // 32
    i = tl.arange(0, 128)[None, :]  # so that Triton sees that a lane's four lie side by side: see store_fragments
    g = span * 8 + 4 * tl.arange(0, 2)[:, None] + i // 32
    ok = g < n_groups
    at = (row * 8 + i // 4 % 8) * n_groups + g
    tl.store(words + at * 4 + i % 4, level.to(tl.int8), mask=ok)
    tl.store(scale + row * n_groups + g + tl.zeros_like(i), _of_groups(unit) * factor, mask=ok & (i % 32 == 0))


@triton.jit
def _quantize_rows(
    x, gain, signs, words, scale, K,
    HAS_GAIN: tl.constexpr, SIZE: tl.constexpr, NVIDIA: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    span, row = tl.program_id(0), tl.program_id(1)
    places = span_places()
    k = span * 256 + places
    signs_there = signs_of_span(signs, places, SIZE, NVIDIA)  # as weights: there is nothing to wait for
    if HAS_GAIN:
        g = tl.load(gain + k, mask=k < K, other=0.0)
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    v = tl.load(x + row.to(tl.int64) * K + k, mask=k < K, other=0.0).to(tl.float32)
    if HAS_GAIN:
        v *= g
    store_rows(rotated_span(v, signs, signs_there, places, SIZE, NVIDIA), span, row, K, 1.0, words, scale)


@triton.jit
def _quantize_fragments(
    x, gain, signs, parts, words, notes, K, inverse_size, eps,
    HAS_GAIN: tl.constexpr, PARTS: tl.constexpr, PADDED: tl.constexpr, SIZE: tl.constexpr, ZERO: tl.constexpr,
    COLUMNS: tl.constexpr, NVIDIA: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    span, row = tl.program_id(0), tl.program_id(1)
    places = span_places()
    k = span * 256 + places
    signs_there = signs_of_span(signs, places, SIZE, NVIDIA)  # as weights: there is nothing to wait for
    if HAS_GAIN:
        g = tl.load(gain + k, mask=k < K, other=0.0)
    if PDL:
        gdc_launch_dependents()  # at once: see docs/KERNELS.md, "When the next kernel begins"
        gdc_wait()
    v = tl.load(x + row.to(tl.int64) * K + k, mask=k < K, other=0.0).to(tl.float32)
    if HAS_GAIN:
        v *= g
    v = rotated_span(v, signs, signs_there, places, SIZE, NVIDIA)
    factor = 1.0
    if PARTS > 0:
        rows = row + tl.arange(0, 1)
        factor = tl.sum(p_rstd(parts, rows, rows >= 0, inverse_size, eps, PARTS, PADDED), 0)
    store_fragments(v, places, span, row, K, factor, words, notes, ZERO, COLUMNS)


@triton.jit
def store_blocks(v, span, row, levels, scale, n_scales, is_row, K):
    """v [2, 128] float32, a span of 256 columns of a row, 0 from column K on, as int8 with a scale for all of them.

    row, is_row: [1, 1], int64 and whether it is there. levels, scale: those of Int8Blocks, which has n_scales rows.
    """
    unit, grow, by, inverse = scale_of(tl.max(tl.max(magnitude(v), 1, keep_dims=True), 0, keep_dims=True))
    i = tl.arange(0, 128)[None, :]  # so that Triton sees that a lane's four lie side by side: see store_fragments
    j = 2 * tl.arange(0, 2)[:, None] + i // 64
    place = span * 256 + i // 4 % 4 * 64 + i // 16 % 4 * 16 + j * 4 + i % 4
    level = level_of(v, grow, by, inverse).to(tl.int8)
    tl.store(levels + row * (tl.cdiv(K, 256) * 256) + place, level, mask=is_row & (i >= 0))
    tl.store(scale + span * n_scales + row, unit, mask=is_row)


@triton.jit(do_not_specialize=["n_rows", "n_scales"])
def _rotate_rows(
    x, gain, signs, out, scale, n_rows, n_scales, K,
    HAS_GAIN: tl.constexpr, HAS_SCALE: tl.constexpr, SIZE: tl.constexpr, NVIDIA: tl.constexpr, ROWS: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """HAS_SCALE: out is int8, and scale [spans, n_scales] has one for each span of a row; else out is a float type."""
    places = span_places()
    span = tl.program_id(0)
    k = span * 256 + places
    signs_there = signs_of_span(signs, places, SIZE, NVIDIA)
    if HAS_GAIN:
        g = tl.load(gain + k, mask=k < K, other=0.0)
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    first = (tl.program_id(1) * ROWS + tl.arange(0, 1)).to(tl.int64)[:, None]
    loaded = ()
    for i in tl.static_range(ROWS):  # all before the first store, behind which they would wait for one another
        ok = (k < K) & (first + i < n_rows)
        loaded = loaded + (tl.load(x + (first + i) * K + k, mask=ok, other=0.0),)  # type: ignore[assignment]  # noqa: RUF005
    for i in tl.static_range(ROWS):
        row = first + i
        ok = (k < K) & (row < n_rows)
        v = tl.cast(loaded[i], tl.float32)
        if HAS_GAIN:
            v *= g
        v = rotated_span(v, signs, signs_there, places, SIZE, NVIDIA)
        if HAS_SCALE:
            store_blocks(v, span, row, out, scale, n_scales, row < n_rows, K)
        else:
            tl.store(out + row * K + k, v.to(out.dtype.element_ty), mask=ok)


# --- launchers -------------------------------------------------------------------------------------------------------


def quantize_rows(x: Tensor, gain: Tensor | None, rotation: int, *, in_lanes: bool = False) -> Int8Rows:
    """R (x * gain) as int8 with a scale for each 32 elements: max|v| / 127, 0 where all are 0; halves round to even.

    x: [M, K] float32 or 16 bits, contiguous, K a multiple of 32 and of `rotation`, the block size (1: none). gain: [K]
    float32 or None. Levels are those of the reference, bit for bit without a rotation; with one, an element at a half
    may be one level away. A group with a NaN or an infinity has it as its scale, and levels that mean nothing.
    in_lanes: the device was seen to have the lanes that butterflies.rotated_span counts on (add_parts.rotates); faster,
    with the same bits.
    """
    n_rows, k = x.shape
    _check(x, gain, rotation)
    (words, scale), pdl = empty_rows(n_rows, k, x.device), has_pdl(x)
    _quantize_rows[(cdiv(k, SPAN), n_rows)](
        x, x if gain is None else gain, rotation_signs(rotation, x.device), words.view(torch.int8), scale, k,
        HAS_GAIN=gain is not None, SIZE=rotation, NVIDIA=in_lanes and is_nvidia(x), PDL=pdl,
        num_warps=_WARPS, **pdl_option(pdl), **OPTIONS,
    )  # fmt: skip
    return Int8Rows(words=words, scale=scale)


def empty_rows(n_rows: int, k: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Room for the words and the scales of Int8Rows."""
    assert k % GROUP == 0
    shape = (n_rows, 8, k // GROUP)
    return torch.empty(shape, dtype=torch.int32, device=device), torch.empty(n_rows, k // GROUP, device=device)


def quantize_fragments(
    x: Tensor, gain: Tensor | None, rotation: int, zero: int, squares: Squares | None = None, *, apart: bool = False
) -> Int8Fragments:
    """R (x * gain) / rms as int8 in the order of tensor cores, with a scale for each 64 elements: see Int8Fragments.

    x, gain, rotation: as for quantize_rows, K a multiple of 64. squares: of the rows that x was made of, None for no
    norm: its factor goes into the scales. zero: see Int8Fragments. apart: in blocks of one row.
    """
    n_rows, k = x.shape
    _check(x, gain, rotation)
    assert k % (2 * GROUP) == 0
    (words, notes), pdl = empty_fragments(n_rows, k, x.device, apart=apart), has_pdl(x)
    n_parts = 0 if squares is None else squares.parts.shape[1]
    _quantize_fragments[(cdiv(k, SPAN), n_rows)](
        x, x if gain is None else gain, rotation_signs(rotation, x.device), notes if squares is None else squares.parts,
        words.view(torch.int8), notes, k, 0.0 if squares is None else 1.0 / squares.size,
        0.0 if squares is None else squares.eps,
        HAS_GAIN=gain is not None, PARTS=n_parts, PADDED=next_power_of_2(max(1, n_parts)), SIZE=rotation, ZERO=zero,
        COLUMNS=words.shape[2], NVIDIA=is_nvidia(x), PDL=pdl, num_warps=_WARPS, **pdl_option(pdl), **OPTIONS,
    )  # fmt: skip
    return Int8Fragments(words=words, notes=notes, num_rows=n_rows, zero=zero)


def empty_fragments(n_rows: int, k: int, device: torch.device, *, apart: bool = False) -> tuple[Tensor, Tensor]:
    """Room for the words and the notes of Int8Fragments."""
    of_block = 1 if apart else rows_of_block(n_rows)
    shape = (cdiv(n_rows, of_block), k // (2 * GROUP), of_block, 4)
    return torch.empty(*shape, 4, dtype=torch.int32, device=device), torch.empty(shape, device=device)


def quantize_blocks(x: Tensor, gain: Tensor | None, rotation: int, *, in_lanes: bool = False) -> Int8Blocks:
    """R (x * gain) as int8 with a scale for each 256 elements: see Int8Blocks.

    x, gain, rotation, in_lanes: as for quantize_rows.
    """
    n_rows, k = x.shape
    levels, scale = empty_blocks(n_rows, k, x.device)
    _launch_rotate_rows(x, gain, rotation, levels, scale, in_lanes=in_lanes)
    return Int8Blocks(levels=levels, scale=scale, num_rows=n_rows, num_columns=k)


def empty_blocks(n_rows: int, k: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Room for the levels and the scales of Int8Blocks."""
    n_filled = cdiv(n_rows, ROWS_OF_BLOCKS) * ROWS_OF_BLOCKS
    n_spans = cdiv(k, SPAN)
    levels = torch.empty(n_filled, SPAN * n_spans, dtype=torch.int8, device=device)
    return levels, torch.empty(n_spans, n_filled, device=device)


def rotate_rows(x: Tensor, gain: Tensor | None, rotation: int, dtype: torch.dtype, *, in_lanes: bool = False) -> Tensor:
    """R (x * gain) [M, K] in `dtype`.

    x, gain, rotation, in_lanes: as for quantize_rows; K may be anything without a rotation.
    """
    out = torch.empty(*x.shape, dtype=dtype, device=x.device)
    _launch_rotate_rows(x, gain, rotation, out, None, in_lanes=in_lanes)
    return out


def _launch_rotate_rows(
    x: Tensor, gain: Tensor | None, rotation: int, out: Tensor, scale: Tensor | None, *, in_lanes: bool
) -> None:
    n_rows, k = x.shape
    _check(x, gain, rotation)
    pdl = has_pdl(x)
    rows = _ROWS if cdiv(k, SPAN) * n_rows > _FEW else 1
    _rotate_rows[(cdiv(k, SPAN), cdiv(n_rows, rows))](
        x, x if gain is None else gain, rotation_signs(rotation, x.device), out, out if scale is None else scale,
        n_rows, 0 if scale is None else scale.shape[1], k,
        HAS_GAIN=gain is not None, HAS_SCALE=scale is not None, SIZE=rotation, NVIDIA=in_lanes and is_nvidia(x),
        ROWS=rows, PDL=pdl, num_warps=_WARPS, **pdl_option(pdl), **OPTIONS,
    )  # fmt: skip


# One warp holds a span of the largest block, so butterflies need no barrier. Rows of a prompt four at a time, where
# they come to more than _FEW programs: a GPU begins some 1.4 of these a nanosecond.
_WARPS, _ROWS, _FEW = 1, 4, 4096


def _check(x: Tensor, gain: Tensor | None, rotation: int) -> None:
    k = x.shape[1]
    assert x.is_contiguous()
    assert rotation & (rotation - 1) == 0
    assert rotation <= SPAN
    assert k % rotation == 0, (k, rotation)
    assert gain is None or (gain.shape == (k,) and gain.dtype == torch.float32)


def variants() -> Iterator[Variant]:
    for name, dtype, rotation, has_gain in (("fp32", "*fp32", 256, True), ("bf16", "*bf16", 64, False)):
        inputs = {"x": dtype, "gain": "*fp32" if has_gain else dtype, "signs": "*fp32"}
        yield Variant(
            name=f"quantize_rows {name} r{rotation}",
            kernel=_quantize_rows,
            signature={**inputs, "words": "*i8", "scale": "*fp32", "K": "i32:16"},
            constants={"HAS_GAIN": has_gain, "SIZE": rotation, "NVIDIA": False},
            nvidia_constants={"NVIDIA": True},
            num_warps=_WARPS,
            has_pdl=True,
        )
        yield Variant(
            name=f"quantize_fragments {name} r{rotation}",
            kernel=_quantize_fragments,
            signature={
                **inputs, "parts": "*fp32", "words": "*i8", "notes": "*fp32", "K": "i32:16", "inverse_size": "fp32",
                "eps": "fp32",
            },
            constants={
                "HAS_GAIN": has_gain, "SIZE": rotation, "PARTS": 256 if has_gain else 0, "PADDED": 256, "ZERO": 0,
                "COLUMNS": 1, "NVIDIA": False,
            },
            nvidia_constants={"NVIDIA": True},
            num_warps=_WARPS,
            has_pdl=True,
        )  # fmt: skip
        for operation, has_scale in (("rotate_rows", False), ("quantize_blocks", True)):
            outputs = {"out": "*i8", "scale": "*fp32"} if has_scale else {"out": "*bf16", "scale": "*bf16"}
            yield Variant(
                name=f"{operation} {name} r{rotation}",
                kernel=_rotate_rows,
                signature={**inputs, **outputs, "n_rows": "i32", "n_scales": "i32", "K": "i32:16"},
                constants={
                    "HAS_GAIN": has_gain, "HAS_SCALE": has_scale, "SIZE": rotation, "NVIDIA": False, "ROWS": _ROWS,
                },
                nvidia_constants={"NVIDIA": True},
                num_warps=_WARPS,
                has_pdl=True,
            )  # fmt: skip
