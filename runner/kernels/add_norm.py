"""h += norm(y), for models with a norm after a branch (Gemma, OLMo 2), where the next rows are made apart; and what
comes of it times a number, where a layer ends with one (Gemma 4). And norm(y) + norm(z), where a branch has two parts
that are normed apart, an MLP and experts beside it, before what they give together is normed.

The products that made y and z have summed their squares already; these sum those of what they write. A program is a
span of one row. It knows no weights.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from runner.kernels.compile import Variant
from runner.kernels.epilogues import p_rstd
from runner.kernels.values import OPTIONS, Squares, cdiv, has_pdl, next_power_of_2, pdl_option, rstd_ref


def add_normed_ref(h: Tensor, y: Tensor, squares: Squares, gain: Tensor, scale: float = 1.0) -> Tensor:
    """The new h; see add_normed."""
    return (h + y * rstd_ref(squares)[:, None] * gain) * scale


@triton.jit
def _add_normed(
    h, y, y_parts, gain, parts, K, n_spans, inverse_size, eps, scale,
    PARTS: tl.constexpr, PADDED: tl.constexpr, SPAN: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    span = tl.program_id(0)
    row = tl.program_id(1) + tl.arange(0, 1)
    k = span * SPAN + tl.arange(0, SPAN)
    at = row[:, None].to(tl.int64) * K + k[None, :]
    ok = (k < K)[None, :]
    g = tl.load(gain + k, mask=k < K, other=0.0)[None, :]
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    factor = p_rstd(y_parts, row, row >= 0, inverse_size, eps, PARTS, PADDED)[:, None]
    scaled = tl.load(y + at, mask=ok, other=0.0).to(tl.float32) * factor * g
    value = (tl.load(h + at, mask=ok, other=0.0) + scaled) * scale
    tl.store(h + at, value, mask=ok)
    tl.store(parts + row * n_spans + span, tl.sum(value * value, 1))


def add_normed(h: Tensor, y: Tensor, squares: Squares, gain: Tensor, scale: float = 1.0) -> Squares:
    """h = (h + y / rms(y) * gain) * scale in place; returns the sums of the new h's squares, with the eps of `squares`.

    h: [M, K] float32, contiguous. y: the same shape, any float type. squares: of y. gain: [K] float32.
    """
    (n_rows, k), n_parts = h.shape, squares.parts.shape[1]
    assert y.shape == h.shape
    assert h.is_contiguous()
    assert y.is_contiguous()
    assert (len(squares.parts), squares.size) == (n_rows, k)
    assert squares.parts.is_contiguous()
    n_spans, pdl = cdiv(k, _SPAN), has_pdl(h)
    parts = torch.empty(n_rows, n_spans, dtype=torch.float32, device=h.device)
    _add_normed[(n_spans, n_rows)](
        h, y, squares.parts, gain, parts, k, n_spans, 1.0 / squares.size, squares.eps, scale,
        PARTS=n_parts, PADDED=next_power_of_2(n_parts), SPAN=_SPAN, PDL=pdl,
        num_warps=_WARPS, **pdl_option(pdl), **OPTIONS,
    )  # fmt: skip
    return Squares(parts=parts, size=k, eps=squares.eps)


def sum_normed_ref(y: Tensor, of_y: Squares, y_gain: Tensor, z: Tensor, of_z: Squares, z_gain: Tensor) -> Tensor:
    """The new y; see sum_normed."""
    return y * rstd_ref(of_y)[:, None] * y_gain + z * rstd_ref(of_z)[:, None] * z_gain


@triton.jit
def _sum_normed(
    y, z, y_norm, z_norm, parts, K, n_spans, inverse_size, eps,
    PARTS: tl.constexpr, SPAN: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """y_norm, z_norm: sums of squares and gain. PARTS: how many sums each has, and a power of two for them."""
    span = tl.program_id(0)
    row = tl.program_id(1) + tl.arange(0, 1)
    k = span * SPAN + tl.arange(0, SPAN)
    at = row[:, None].to(tl.int64) * K + k[None, :]
    ok = (k < K)[None, :]
    of_y, y_gain = y_norm
    of_z, z_gain = z_norm
    g = tl.load(y_gain + k, mask=k < K, other=0.0)[None, :]
    g2 = tl.load(z_gain + k, mask=k < K, other=0.0)[None, :]
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    value = tl.load(y + at, mask=ok, other=0.0)
    value *= p_rstd(of_y, row, row >= 0, inverse_size, eps, PARTS[0], PARTS[1])[:, None] * g
    other = tl.load(z + at, mask=ok, other=0.0)
    value += other * p_rstd(of_z, row, row >= 0, inverse_size, eps, PARTS[2], PARTS[3])[:, None] * g2
    tl.store(y + at, value, mask=ok)
    tl.store(parts + row * n_spans + span, tl.sum(value * value, 1))


def sum_normed(y: Tensor, of_y: Squares, y_gain: Tensor, z: Tensor, of_z: Squares, z_gain: Tensor) -> Squares:
    """y = y / rms(y) * y_gain + z / rms(z) * z_gain in place; returns the sums of the new y's squares.

    y, z: [M, K] float32, contiguous. of_y, of_z: their squares, with one eps. y_gain, z_gain: [K] float32.
    """
    (n_rows, k), counts = y.shape, [squares.parts.shape[1] for squares in (of_y, of_z)]
    for one, squares in ((y, of_y), (z, of_z)):
        assert (one.shape, one.dtype) == ((n_rows, k), torch.float32)
        assert one.is_contiguous()
        assert (len(squares.parts), squares.size, squares.eps) == (n_rows, k, of_y.eps)
        assert squares.parts.is_contiguous()
    n_spans, pdl = cdiv(k, _SPAN), has_pdl(y)
    parts = torch.empty(n_rows, n_spans, dtype=torch.float32, device=y.device)
    _sum_normed[(n_spans, n_rows)](
        y, z, (of_y.parts, y_gain), (of_z.parts, z_gain), parts, k, n_spans, 1.0 / k, of_y.eps,
        PARTS=tuple(size for count in counts for size in (count, next_power_of_2(count))), SPAN=_SPAN, PDL=pdl,
        num_warps=_WARPS, **pdl_option(pdl), **OPTIONS,
    )  # fmt: skip
    return Squares(parts=parts, size=k, eps=of_y.eps)


_SPAN, _WARPS = 512, 2


def variants() -> Iterator[Variant]:
    yield Variant(
        name="add_normed",
        kernel=_add_normed,
        signature={
            "h": "*fp32", "y": "*fp32", "y_parts": "*fp32", "gain": "*fp32", "parts": "*fp32", "K": "i32:16",
            "n_spans": "i32", "inverse_size": "fp32", "eps": "fp32", "scale": "fp32",
        },
        constants={"PARTS": 512, "PADDED": 512, "SPAN": _SPAN},
        num_warps=_WARPS,
        has_pdl=True,
    )  # fmt: skip
    yield Variant(
        name="sum_normed",
        kernel=_sum_normed,
        signature={
            "y": "*fp32", "z": "*fp32", "y_norm": ("*fp32", "*fp32"), "z_norm": ("*fp32", "*fp32"), "parts": "*fp32",
            "K": "i32:16", "n_spans": "i32", "inverse_size": "fp32", "eps": "fp32",
        },
        constants={"PARTS": (176, 256, 176, 256), "SPAN": _SPAN},
        num_warps=_WARPS,
        has_pdl=True,
    )  # fmt: skip
