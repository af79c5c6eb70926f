"""h += the parts of a product, or its norm, and the new h as the next product reads it: rotated, in int8.

Who computes a product in parts leaves them to this kernel, which has to read h anyway; there may be none. Of a product
behind which a norm stands (Gemma, OLMo 2) it takes the squares too. The factor of the norm before the next product,
for which all of a row would have to be there, is left to that one: its squares come in one part for each span of 256
columns. A program is a span of one row, so a row has the same bits whatever its neighbours are. It knows no weights but
the block size that the next ones want.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from runner.kernels.butterflies import rotated_span, rotation_signs, signs_of_span, span_places
from runner.kernels.compile import Variant
from runner.kernels.epilogues import p_rstd
from runner.kernels.fragments import activation_rows
from runner.kernels.gates import Gate, GatedRows, gate_fragments, gated_ref
from runner.kernels.gemv_tiles import is_small
from runner.kernels.rotate import (
    SPAN,
    empty_blocks,
    empty_fragments,
    quantize_blocks_ref,
    quantize_fragments,
    quantize_fragments_ref,
    quantize_rows,
    rotate_rows,
    rotate_rows_ref,
    store_blocks,
    store_fragments,
)
from runner.kernels.splits import combine_fragments, only_split
from runner.kernels.values import (
    GROUP,
    OPTIONS,
    Int8Blocks,
    Int8Fragments,
    PackedMatrix,
    Squares,
    cdiv,
    has_pdl,
    is_nvidia,
    moved,
    next_power_of_2,
    pdl_option,
)
from runner.quant.mq.rotation import rotation_size


@dataclass(frozen=True, kw_only=True)
class Reader:
    """Who reads rows next: w [.., K] in fragments, behind a norm's gain [K] float32, or none.

    zero: see Int8Fragments. in_blocks: it reads Int8Blocks, and zero says nothing.
    """

    gain: Tensor | None
    w: PackedMatrix
    zero: int
    in_blocks: bool = False


def add_parts_ref(
    h: Tensor, parts: Tensor | None, bias: Tensor | None, reader: Reader
) -> tuple[Tensor, Tensor, Int8Fragments | Int8Blocks]:
    """The new h, the sums of its squares [M, ceil(K / 256)], and its rows for the reader; see add_parts."""
    h = h + (0 if parts is None else parts.sum(1)) + (0 if bias is None else bias.float())
    rows: Int8Fragments | Int8Blocks
    if reader.in_blocks:
        rows = quantize_blocks_ref(h, reader.gain, reader.w.rotation)
    else:
        rows = quantize_fragments_ref(h, reader.gain, reader.w.rotation, reader.zero)
    return h, functional.pad(h.square(), (0, -h.shape[1] % SPAN)).unflatten(1, (-1, SPAN)).sum(2), rows


@triton.jit
def _read(pointer, ok, WHOLE: tl.constexpr):
    """What is there, 0 where it is not ok; WHOLE: all of it is, and no zeros need be made."""
    if WHOLE:
        return tl.load(pointer)
    else:
        return tl.load(pointer, mask=ok, other=0.0)


@triton.jit
def _added(v, parts, K, ok, COUNT: tl.constexpr, WHOLE: tl.constexpr):
    """v plus COUNT parts, which lie K apart, one after the other.

    All are asked for before one is waited for, which ptxas avoids if it may, to save registers: volatile loads keep
    their order, and the first part that is added comes last.
    """
    found = ()
    for i in tl.static_range(COUNT):
        at = parts + (COUNT - 1 - i) * K
        part = tl.load(at, volatile=True) if WHOLE else tl.load(at, mask=ok, other=0.0, volatile=True)
        found = found + (part,)  # type: ignore[assignment]  # noqa: RUF005
    for i in tl.static_range(COUNT):
        v += found[COUNT - 1 - i]
    return v


@triton.jit(do_not_specialize=["n_scales"])
def _add_parts(
    h, parts, bias, norm, gain, signs, words, notes, sums, K, n_scales,
    PARTS: tl.constexpr, HAS_BIAS: tl.constexpr, NORM: tl.constexpr, HAS_GAIN: tl.constexpr, SIZE: tl.constexpr,
    ZERO: tl.constexpr, COLUMNS: tl.constexpr, WHOLE: tl.constexpr, EARLY: tl.constexpr, NVIDIA: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """norm: of the only part, its squares, 1 / size, eps and its gain, and what the new h is multiplied by. NORM: how
    many squares, and the power of 2 for them; 0: there is none. words, notes: those of Int8Fragments; or, with COLUMNS
    of 0, the levels and the scales of Int8Blocks, which has n_scales rows. WHOLE: K is a multiple of 256."""
    span, row = tl.program_id(0), tl.program_id(1)
    places = span_places()
    k = span * 256 + places
    ok = k < K
    at = row.to(tl.int64) * K + k
    # Weights and signs: there is nothing to wait for, and behind a store they would be loaded after it.
    signs_there = signs_of_span(signs, places, SIZE, NVIDIA)
    if HAS_GAIN:
        g = _read(gain + k, ok, WHOLE)
    if HAS_BIAS:
        b = _read(bias + k, ok, WHOLE).to(tl.float32)
    if NORM[0] > 0:
        squares, inverse_size, eps, after, scale = norm
        after_there = _read(after + k, ok, WHOLE)
    if PDL:
        if EARLY:  # see docs/KERNELS.md, "When the next kernel begins"
            gdc_launch_dependents()
        gdc_wait()
        if not EARLY:
            gdc_launch_dependents()
    v = _read(h + at, ok, WHOLE)
    at_parts = row.to(tl.int64) * (PARTS * K) + k
    if NORM[0] > 0:
        rows = row + tl.arange(0, 1)
        y = _read(parts + at_parts, ok, WHOLE)
        v += y * p_rstd(squares, rows, rows >= 0, inverse_size, eps, NORM[0], NORM[1])[:, None] * after_there
        v *= scale
    else:
        for first in tl.static_range(0, PARTS, 8):
            v = _added(v, parts + at_parts + first * K, K, ok, min(8, PARTS - first), WHOLE)
    if HAS_BIAS:
        v += b
    if PARTS > 0 or HAS_BIAS:
        if WHOLE:
            tl.store(h + at, v)
        else:
            tl.store(h + at, v, mask=ok)
    tl.store(sums + row * tl.num_programs(0) + span, tl.sum(tl.sum(v * v, 0), 0))
    if HAS_GAIN:
        v *= g
    v = rotated_span(v, signs, signs_there, places, SIZE, NVIDIA)
    if COLUMNS > 0:
        store_fragments(v, places, span, row, K, 1.0, words, notes, ZERO, COLUMNS)
    else:
        of_row = (row + tl.arange(0, 1)).to(tl.int64)[:, None]
        store_blocks(v, span, of_row, words, notes, n_scales, of_row >= 0, K)


def add_parts(
    h: Tensor, parts: Tensor | None, bias: Tensor | None, reader: Reader
) -> tuple[Tensor, Int8Fragments | Int8Blocks]:
    """h += parts.sum(1) + bias in place; returns the sums of the new h's squares [M, ceil(K / 256)], and its
    rows.

    h: [M, K] float32, contiguous, K a multiple of 64. parts: [M, P, K] float32, or None. bias: [K] or None.
    """
    return _launch(h, parts, bias, None, reader)


def add_normed_for(
    h: Tensor, y: Tensor, squares: Squares, gain: Tensor, reader: Reader, scale: float = 1.0
) -> tuple[Tensor, Int8Fragments | Int8Blocks]:
    """h = (h + y / rms(y) * gain) * scale in place; returns what add_parts does.

    h: as for add_parts. y: [M, K] float32. squares: of y. gain: [K] float32.
    """
    assert (len(squares.parts), squares.size) == tuple(h.shape)
    assert squares.parts.is_contiguous()
    assert gain.shape == h.shape[1:]
    return _launch(h, y[:, None], None, (squares, gain, scale), reader)


def _launch(
    h: Tensor, parts: Tensor | None, bias: Tensor | None, norm: tuple[Squares, Tensor, float] | None, reader: Reader
) -> tuple[Tensor, Int8Fragments | Int8Blocks]:
    (n_rows, k), n_parts = h.shape, 0 if parts is None else parts.shape[1]
    assert parts is None or parts.shape == (n_rows, n_parts, k)
    assert h.is_contiguous()
    assert parts is None or parts.is_contiguous()
    assert reader.w.shape[1] == k
    words, notes = (empty_blocks if reader.in_blocks else empty_fragments)(n_rows, k, h.device)
    sums = torch.empty(n_rows, cdiv(k, SPAN), dtype=torch.float32, device=h.device)
    of_norm, n_squares = (h, 0.0, 0.0, h, 1.0), 0
    if norm is not None:
        squares, after, scale = norm
        of_norm, n_squares = (squares.parts, 1.0 / squares.size, squares.eps, after, scale), squares.parts.shape[1]
    pdl = has_pdl(h)
    _add_parts[(cdiv(k, SPAN), n_rows)](
        h, h if parts is None else parts, h if bias is None else bias, of_norm,
        h if reader.gain is None else reader.gain, rotation_signs(reader.w.rotation, h.device),
        words.view(torch.int8), notes, sums, k, notes.shape[1] if reader.in_blocks else 0,
        PARTS=n_parts, HAS_BIAS=bias is not None, NORM=(n_squares, next_power_of_2(max(1, n_squares))),
        HAS_GAIN=reader.gain is not None, SIZE=reader.w.rotation, ZERO=0 if reader.in_blocks else reader.zero,
        COLUMNS=0 if reader.in_blocks else words.shape[2],
        WHOLE=k % SPAN == 0, EARLY=n_rows > 1 or is_small(*reader.w.packed.shape[:2]), NVIDIA=is_nvidia(h), PDL=pdl,
        num_warps=_WARPS, **pdl_option(pdl), **OPTIONS,
    )  # fmt: skip
    if reader.in_blocks:
        return sums, Int8Blocks(levels=words, scale=notes, num_rows=n_rows, num_columns=k)
    return sums, Int8Fragments(words=words, notes=notes, num_rows=n_rows, zero=reader.zero)


def try_rotation(rotation: int, device: torch.device) -> bool:
    """Whether rows for weights of this rotation come out right, of this kernel and of those of rotate.py, splits.py and
    gates.py.

    All count on which lane has what (butterflies.py), which a compiler decides.
    """
    random = torch.Generator().manual_seed(0)
    cpu = torch.device("cpu")  # where they are made again: what torch's own kernels take to load would take longer
    h_ref, gain_ref = (torch.randn(*shape, generator=random) for shape in ((3, 2 * SPAN), (2 * SPAN,)))
    h, gain = h_ref.to(device), gain_ref.to(device)
    matrix = torch.zeros(1, h.shape[1] // (2 * GROUP), 8, 4, 4, dtype=torch.int32, device=device)
    w = PackedMatrix(format="mq4", packed=matrix, scale=matrix, row_scale=matrix, rotation=rotation, layout="fragments")
    rows = activation_rows(quantize_fragments_ref(h_ref, gain_ref, rotation, 1))
    added = add_parts(h, torch.zeros(3, 1, 2 * SPAN, device=device), None, Reader(gain=gain, w=w, zero=1))[1]
    assert isinstance(added, Int8Fragments)
    pairs = [(activation_rows(moved(found, cpu)), rows) for found in (quantize_fragments(h, gain, rotation, 1), added)]
    combined = combine_fragments(only_split(h, SPAN), rotation, 1)
    pairs.append(
        (activation_rows(moved(combined, cpu)), activation_rows(quantize_fragments_ref(h_ref, None, rotation, 1)))
    )
    gate = Gate(values=h_ref, gain=gain_ref[:SPAN], eps=1e-6)
    gated = gate_fragments(
        GatedRows(x=h, gate=replace(gate, values=h, gain=gain[:SPAN]), dtype=torch.float32), rotation, 1
    )
    gated_rows = activation_rows(quantize_fragments_ref(gated_ref(h_ref, gate), None, rotation, 1))
    pairs.append((activation_rows(moved(gated, cpu)), gated_rows))
    # The stream, and what a product reads.
    for x, by, x_ref, by_ref in ((h, gain, h_ref, gain_ref), (h.bfloat16(), None, h_ref.bfloat16(), None)):
        wanted = rotate_rows_ref(x_ref, by_ref, rotation, torch.float32)
        dense = rotate_rows(x, by, rotation, torch.bfloat16, in_lanes=True)
        pairs.append((dense.cpu().float(), wanted))
        pairs.append((moved(quantize_rows(x, by, rotation, in_lanes=True), cpu).values(), wanted))
    return all(bool((values - wanted).norm() < 1e-2 * wanted.norm()) for values, wanted in pairs)


rotates = cache(try_rotation)


# One warp holds a span, as in rotate.py.
_WARPS = 1


def variants() -> Iterator[Variant]:
    for name, columns, parts, squares, k in (
        ("r256", 1, 28, 0, 4096),
        ("r256 M=8", 8, 0, 0, 4096),
        ("r256 normed", 1, 1, 160, 2560),
        ("r256 normed M=8", 8, 1, 160, 2560),
        ("r128 normed, half a span", 1, 1, 72, 1152),
        ("r256 in blocks", 0, 4, 0, 4096),
        ("r256 normed in blocks", 0, 1, 160, 2560),
    ):
        yield Variant(
            name=f"add_parts {name}",
            kernel=_add_parts,
            signature={
                "h": "*fp32", "parts": "*fp32", "bias": "*fp32", "norm": ("*fp32", "fp32", "fp32", "*fp32", "fp32"),
                "gain": "*fp32", "signs": "*fp32", "words": "*i8", "notes": "*fp32", "sums": "*fp32",
                "K": "i32:16", "n_scales": "i32",
            },
            constants={
                "PARTS": parts, "HAS_BIAS": False, "NORM": (squares, next_power_of_2(max(1, squares))),
                "HAS_GAIN": True, "SIZE": rotation_size(k), "ZERO": 8 * (squares > 0), "COLUMNS": columns,
                "WHOLE": k % SPAN == 0, "EARLY": columns != 1, "NVIDIA": False,
            },
            nvidia_constants={"NVIDIA": True},
            num_warps=_WARPS,
            has_pdl=True,
        )  # fmt: skip
