"""h += norm(y), for models with a norm after a branch (Gemma, OLMo 2), where the next rows are made apart; and what
comes of it times a number, where a layer ends with one (Gemma 4).

The product that made y has summed its squares already; this sums those of the new h. A program is a span of one row. It
knows no weights.
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
