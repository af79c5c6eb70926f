"""Rows times their gate on their way to an output product: that of an attention, or of a gated delta net's heads.

An attention's rows are multiplied by sigmoid(gate); a delta net's are normed head by head and multiplied by silu(gate).
The gates are columns of the product that the layer began with. A program is a span of 256 columns of one row, as in
rotate.py: for packed weights it rotates and rounds what it has gated, which so is no kernel of its own. Where attention
comes in splits, splits.py puts them together and gates them. It knows nothing of what the rows are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from runner.kernels.butterflies import rotated_span, rotation_signs, signs_of_span, span_places
from runner.kernels.compile import Variant
from runner.kernels.rotate import SPAN, empty_blocks, empty_fragments, store_blocks, store_fragments
from runner.kernels.values import OPTIONS, Int8Blocks, Int8Fragments, cdiv, has_pdl, is_nvidia, pdl_option


@dataclass(frozen=True, kw_only=True)
class Gate:
    """What M rows of K columns are multiplied by: sigmoid(values), or silu(values) after a norm of their heads.

    values: [M, K]; its rows may lie further apart than K. gain: of the norm, float32 [D], D a power of 2 up to 256 that
    divides K; None for sigmoid and no norm. eps: the norm's.
    """

    values: Tensor
    gain: Tensor | None = None
    eps: float = 0.0

    def check(self, n_rows: int, n_columns: int) -> None:
        assert self.values.shape == (n_rows, n_columns), (self.values.shape, n_rows, n_columns)
        assert self.values.stride(1) == 1
        if self.gain is not None:
            d = len(self.gain)
            assert d & (d - 1) == 0
            assert d <= SPAN
            assert n_columns % d == 0


@dataclass(frozen=True, kw_only=True)
class GatedRows:
    """Rows x [M, K], contiguous, that are still to be gated. dtype: of the model's activations."""

    x: Tensor
    gate: Gate
    dtype: torch.dtype

    def __len__(self) -> int:
        return len(self.x)


def gated_ref(x: Tensor, gate: Gate) -> Tensor:
    """x [M, K] gated, in the dtype of x."""
    values = gate.values.to(x.dtype)
    if gate.gain is None:
        return x * values.sigmoid()
    heads = x.unflatten(1, (-1, len(gate.gain)))
    normed = heads * (heads.square().mean(2, keepdim=True) + gate.eps).rsqrt() * gate.gain.to(x.dtype)
    gated: Tensor = normed.flatten(1) * functional.silu(values)
    return gated


@triton.jit
def gate_of_span(gate, stride, row, k, is_column):
    """What a span is gated by: the gates at columns k [2, 128] of a row, float32.

    They are read before the kernel waits: from L2, since L1 may hold older ones.
    """
    at = gate + row.to(tl.int64) * stride + k
    return tl.load(at, mask=is_column, other=0.0, cache_modifier=".cg").to(tl.float32)


@triton.jit
def _normed_heads(v, gain, eps, D: tl.constexpr):
    """A span v [2, 128] of heads of D, each normed and times the gain [D]."""
    heads = tl.reshape(v, (256 // D, D))
    rstd = tl.rsqrt(tl.sum(heads * heads, 1) * (1.0 / D) + eps)
    return tl.reshape(heads * rstd[:, None], (2, 128)) * gain


@triton.jit
def _gated_span(x, gate, gain, row, k, K, gate_stride, eps, D: tl.constexpr, PDL: tl.constexpr):
    """A span of a row, gated: [2, 128] float32, 0 from column K on. D: of the heads that are normed, 0 for none."""
    is_column = k < K
    # The gates are older than the kernel before this one, which let it begin when they were there.
    gates = gate_of_span(gate, gate_stride, row, k, is_column)
    gains = 1.0
    if D > 0:
        gains = tl.load(gain + k % D)
    if PDL:
        gdc_launch_dependents()  # at once: see docs/KERNELS.md, "When the next kernel begins"
        gdc_wait()
    v = tl.load(x + row.to(tl.int64) * K + k, mask=is_column, other=0.0).to(tl.float32)
    if D > 0:
        return _normed_heads(v, gains, eps, D) * (gates * tl.sigmoid(gates))
    else:
        return v * tl.sigmoid(gates)


@triton.jit
def _gate_rows(x, gate, gain, out, K, gate_stride, eps, D: tl.constexpr, PDL: tl.constexpr):
    span, row = tl.program_id(0), tl.program_id(1)
    k = span * 256 + span_places()
    v = _gated_span(x, gate, gain, row, k, K, gate_stride, eps, D, PDL)
    tl.store(out + row.to(tl.int64) * K + k, v.to(out.dtype.element_ty), mask=k < K)


@triton.jit(do_not_specialize=["n_scales"])
def _gate_int8(
    x, gate, gain, signs, words, notes, K, gate_stride, eps, n_scales,
    D: tl.constexpr, SIZE: tl.constexpr, ZERO: tl.constexpr, COLUMNS: tl.constexpr, NVIDIA: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """words, notes: those of Int8Fragments; or, with COLUMNS of 0, the levels and the scales of Int8Blocks, which has
    n_scales rows."""
    span, row = tl.program_id(0), tl.program_id(1)
    places = span_places()
    signs_there = signs_of_span(signs, places, SIZE, NVIDIA)
    v = _gated_span(x, gate, gain, row, span * 256 + places, K, gate_stride, eps, D, PDL)
    v = rotated_span(v, signs, signs_there, places, SIZE, NVIDIA)
    if COLUMNS > 0:
        store_fragments(v, places, span, row, K, 1.0, words, notes, ZERO, COLUMNS)
    else:
        of_row = (row + tl.arange(0, 1)).to(tl.int64)[:, None]
        store_blocks(v, span, of_row, words, notes, n_scales, of_row >= 0, K)


def gate_rows(rows: GatedRows) -> Tensor:
    """The gated rows [M, K] in the model's dtype."""
    out = torch.empty(rows.x.shape, dtype=rows.dtype, device=rows.x.device)
    n_rows, k = _check(rows)
    gate, pdl = rows.gate, has_pdl(out)
    _gate_rows[(cdiv(k, SPAN), n_rows)](
        rows.x, gate.values, gate.gain, out, k, gate.values.stride(0), gate.eps,
        D=0 if gate.gain is None else len(gate.gain), PDL=pdl, num_warps=_WARPS, **pdl_option(pdl), **OPTIONS,
    )  # fmt: skip
    return out


def gate_fragments(rows: GatedRows, rotation: int, zero: int) -> Int8Fragments:
    """The same, rotated and rounded to int8 as rotate.quantize_fragments does it, without rounding to dtype before."""
    n_rows, k = _check(rows)
    words, notes = empty_fragments(n_rows, k, rows.x.device)
    _launch_int8(rows, rotation, words, notes, zero=zero, columns=words.shape[2], n_scales=0)
    return Int8Fragments(words=words, notes=notes, num_rows=n_rows, zero=zero)


def gate_blocks(rows: GatedRows, rotation: int) -> Int8Blocks:
    """The same as rotate.quantize_blocks does it."""
    n_rows, k = _check(rows)
    levels, scale = empty_blocks(n_rows, k, rows.x.device)
    _launch_int8(rows, rotation, levels, scale, zero=0, columns=0, n_scales=scale.shape[1])
    return Int8Blocks(levels=levels, scale=scale, num_rows=n_rows, num_columns=k)


def _launch_int8(
    rows: GatedRows, rotation: int, words: Tensor, notes: Tensor, *, zero: int, columns: int, n_scales: int
) -> None:
    (n_rows, k), gate, pdl = rows.x.shape, rows.gate, has_pdl(notes)
    assert k % rotation == 0, (k, rotation)
    _gate_int8[(cdiv(k, SPAN), n_rows)](
        rows.x, gate.values, gate.gain, rotation_signs(rotation, notes.device), words.view(torch.int8), notes,
        k, gate.values.stride(0), gate.eps, n_scales, D=0 if gate.gain is None else len(gate.gain),
        SIZE=rotation, ZERO=zero, COLUMNS=columns, NVIDIA=is_nvidia(notes), PDL=pdl,
        num_warps=_WARPS, **pdl_option(pdl), **OPTIONS,
    )  # fmt: skip


_WARPS = 1  # which holds a span, as in rotate.py


def _check(rows: GatedRows) -> tuple[int, int]:
    n_rows, k = rows.x.shape
    assert rows.x.is_contiguous()
    rows.gate.check(n_rows, k)
    return n_rows, k


def variants() -> Iterator[Variant]:
    rows = {"signs": "*fp32", "words": "*i8", "notes": "*fp32", "n_scales": "i32"}
    for name, kernel, d, ends, more in (
        ("gate_rows", _gate_rows, 0, {"out": "*bf16"}, {}),
        ("gate_rows normed d128", _gate_rows, 128, {"out": "*bf16"}, {}),
        ("gate_fragments", _gate_int8, 0, rows, {"ZERO": 8, "COLUMNS": 16}),
        ("gate_fragments normed d128", _gate_int8, 128, rows, {"ZERO": 0, "COLUMNS": 1}),
        ("gate_fragments normed d128 M=8", _gate_int8, 128, rows, {"ZERO": 8, "COLUMNS": 8}),
        ("gate_blocks", _gate_int8, 0, rows, {"ZERO": 0, "COLUMNS": 0}),
        ("gate_blocks normed d128", _gate_int8, 128, rows, {"ZERO": 0, "COLUMNS": 0}),
    ):
        size = {"SIZE": 256, "NVIDIA": False} if kernel is _gate_int8 else {}
        yield Variant(
            name=name,
            kernel=kernel,
            signature={
                "x": "*fp32" if d else "*bf16", "gate": "*bf16", "gain": "*fp32" if d else None, "K": "i32:16",
                "gate_stride": "i32:16", "eps": "fp32", **ends,
            },
            constants={"D": d, **size, **more},
            nvidia_constants={"NVIDIA": True} if size else {},
            num_warps=_WARPS,
            has_pdl=True,
        )  # fmt: skip
