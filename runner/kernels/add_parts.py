"""h += the parts of a product, and the new h as the next product reads it: int8 in fragments, rotated.

Who computes a product in parts leaves them to this kernel, which has to read h anyway. The norm's factor, for which all
of a row would have to be there, is left to the product that reads the rows: its squares come in one part for each span
of 256 columns. A program is a span of one row, so a row has the same bits whatever its neighbours are. It knows no
weights but the block size that the next ones want.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from runner.kernels.compile import Variant
from runner.kernels.fragments import BLOCK, rows_of_block
from runner.kernels.rotate import quantize_fragments_ref, rotated, rotation_signs, store_fragments
from runner.kernels.values import GROUP, OPTIONS, Int8Fragments, PackedMatrix, has_pdl, pdl_option

SPAN: Final = 256  # columns that are rotated together at most


@dataclass(frozen=True, kw_only=True)
class Reader:
    """Who reads rows next: w [.., K] in fragments, behind a norm's gain [K] float32, or none.

    zero: see Int8Fragments.
    """

    gain: Tensor | None
    w: PackedMatrix
    zero: int


def add_parts_ref(
    h: Tensor, parts: Tensor, bias: Tensor | None, reader: Reader
) -> tuple[Tensor, Tensor, Int8Fragments]:
    """The new h, the sums of its squares [M, K / 256], and its rows for the reader; see add_parts."""
    h = h + parts.sum(1) + (0 if bias is None else bias.float())
    rows = quantize_fragments_ref(h, reader.gain, reader.w.rotation, reader.zero)
    return h, h.square().unflatten(1, (-1, SPAN)).sum(2), rows


@triton.jit
def _add_parts(
    h, parts, bias, gain, signs, words, notes, sums, K, zero,
    PARTS: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_GAIN: tl.constexpr, SIZE: tl.constexpr, COLUMNS: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    span, row = tl.program_id(0), tl.program_id(1)
    k = span * 256 + tl.arange(0, 256)
    at = row.to(tl.int64) * K + k
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    v = tl.load(h + at)
    for part in tl.static_range(PARTS):
        v += tl.load(parts + (row.to(tl.int64) * PARTS + part) * K + k)
    if HAS_BIAS:
        v += tl.load(bias + k).to(tl.float32)
    tl.store(h + at, v)
    tl.store(sums + row * (K // 256) + span, tl.sum(v * v, 0))
    if HAS_GAIN:
        v *= tl.load(gain + k)
    p = span * 4 + tl.arange(0, 4)
    place = (row // 8 * (K // 64) + p) * COLUMNS + row % 8
    store_fragments(tl.reshape(rotated(v, signs, SIZE, 256), (4, 64)), place, p >= 0, 1.0, zero, words, notes, 4)


def reads_parts(reader: Reader) -> bool:
    """Whether rows for this reader can be made of parts."""
    return reader.w.layout == "fragments" and reader.w.shape[1] % SPAN == 0


def add_parts(h: Tensor, parts: Tensor, bias: Tensor | None, reader: Reader) -> tuple[Tensor, Int8Fragments]:
    """h += parts.sum(1) + bias in place; returns the sums of the new h's squares [M, K / 256], and its rows.

    h: [M, K] float32, contiguous, K a multiple of 256. parts: [M, P, K] float32. bias: [K] or None.
    """
    (n_rows, k), n_parts = h.shape, parts.shape[1]
    assert parts.shape == (n_rows, n_parts, k)
    assert h.is_contiguous()
    assert parts.is_contiguous()
    assert reader.w.shape[1] == k
    words, notes = empty_fragments(n_rows, k, h.device)
    sums = torch.empty(n_rows, k // SPAN, dtype=torch.float32, device=h.device)
    pdl = has_pdl(h)
    _add_parts[(k // SPAN, n_rows)](
        h, parts, h if bias is None else bias, h if reader.gain is None else reader.gain,
        rotation_signs(reader.w.rotation, h.device), words, notes, sums, k, reader.zero,
        PARTS=n_parts, HAS_BIAS=bias is not None, HAS_GAIN=reader.gain is not None, SIZE=reader.w.rotation,
        COLUMNS=words.shape[2], PDL=pdl, num_warps=_WARPS, **pdl_option(pdl), **OPTIONS,
    )  # fmt: skip
    return sums, Int8Fragments(words=words, notes=notes, num_rows=n_rows, zero=reader.zero)


def empty_fragments(n_rows: int, k: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Room for the words and the notes of Int8Fragments."""
    shape = (triton.cdiv(n_rows, BLOCK), k // (2 * GROUP), rows_of_block(n_rows), 4)
    return torch.empty(*shape, 4, dtype=torch.int32, device=device), torch.empty(shape, device=device)


# One warp holds a span, as in rotate.py.
_WARPS = 1


def variants() -> Iterator[Variant]:
    yield Variant(
        name="add_parts r256",
        kernel=_add_parts,
        signature={
            "h": "*fp32", "parts": "*fp32", "bias": "*fp32", "gain": "*fp32", "signs": "*fp32", "words": "*i32",
            "notes": "*fp32", "sums": "*fp32", "K": "i32:16", "zero": "i32",
        },
        constants={
            "PARTS": 28, "HAS_BIAS": False, "HAS_GAIN": True, "SIZE": 256, "COLUMNS": 1,
        },
        num_warps=_WARPS,
        has_pdl=True,
    )  # fmt: skip
