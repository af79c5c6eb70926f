"""The router of a mixture of experts: the logits of up to 16 rows of the stream, one for each expert.

A program is an expert and a row, all columns at once, so it loads its weights and the norm's gain before it waits for
the row. Sums are float32, of the stream as it is. It knows neither which experts are taken nor what they are.
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
from runner.kernels.values import MOST_ROWS, OPTIONS, Squares, has_pdl, next_power_of_2, pdl_option, rstd_ref


def router_logits_ref(
    h: Tensor, w: Tensor, *, gain: Tensor | None, squares: Squares | None, bias: Tensor | None
) -> Tensor:
    """See router_logits."""
    rows = h if gain is None else h * gain
    rows = rows if squares is None else rows * rstd_ref(squares).to(h.dtype)[:, None]
    return torch.nn.functional.linear(rows, w.to(h.dtype), None if bias is None else bias.to(h.dtype))


@triton.jit
def _router_logits(
    h, w, gain, bias, parts, logits, K, E, inverse_size, eps,
    HAS_GAIN: tl.constexpr, HAS_BIAS: tl.constexpr, PARTS: tl.constexpr, PADDED: tl.constexpr, BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    expert, row = tl.program_id(0), tl.program_id(1)
    k = tl.arange(0, BLOCK)
    ok = k < K
    weights = tl.load(w + expert.to(tl.int64) * K + k, mask=ok, other=0.0).to(tl.float32)
    if HAS_GAIN:
        weights *= tl.load(gain + k, mask=ok, other=0.0)
    offset = tl.load(bias + expert).to(tl.float32) if HAS_BIAS else 0.0
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    total = tl.sum(weights * tl.load(h + row.to(tl.int64) * K + k, mask=ok, other=0.0), 0)
    if PARTS > 0:
        rows = row + tl.arange(0, 1)
        total *= tl.sum(p_rstd(parts, rows, rows >= 0, inverse_size, eps, PARTS, PADDED), 0)
    tl.store(logits + row * E + expert, total + offset)


def router_logits(h: Tensor, w: Tensor, *, gain: Tensor | None, squares: Squares | None, bias: Tensor | None) -> Tensor:
    """(h * gain) @ w.T / rms + bias, [M, E] float32, a row's bits being the same for every M.

    h: [M, K] float32, M <= 16. w: [E, K], any float type. gain: [K] float32. squares: of the rows of h. bias: [E].
    """
    (n_rows, k), n_experts = h.shape, len(w)
    assert n_rows <= MOST_ROWS
    assert h.dtype == torch.float32
    assert h.is_contiguous()
    assert w.is_contiguous()
    assert w.shape == (n_experts, k)
    assert gain is None or gain.shape == (k,)
    logits = torch.empty(n_rows, n_experts, dtype=torch.float32, device=h.device)
    pdl, n_parts = has_pdl(h), 0 if squares is None else squares.parts.shape[1]
    block = next_power_of_2(k)
    _router_logits[(n_experts, n_rows)](
        h, w, h if gain is None else gain, h if bias is None else bias, h if squares is None else squares.parts, logits,
        k, n_experts, 0.0 if squares is None else 1.0 / squares.size, 0.0 if squares is None else squares.eps,
        HAS_GAIN=gain is not None, HAS_BIAS=bias is not None,
        PARTS=n_parts, PADDED=next_power_of_2(max(1, n_parts)), BLOCK=block,
        PDL=pdl, num_warps=_warps(block), **pdl_option(pdl), **OPTIONS,
    )  # fmt: skip
    return logits


def _warps(block: int) -> int:
    """16 columns a lane, 32 of more than 4096, so that what is loaded in advance stays in registers."""
    return max(1, min(8, block // 512))


def variants() -> Iterator[Variant]:
    for form, length, has_bias in (("bf16", 2048, False), ("bf16", 8192, True)):
        yield Variant(
            name=f"moe_router {form} {length}",
            kernel=_router_logits,
            signature={
                "h": "*fp32", "w": f"*{form}", "gain": "*fp32", "bias": "*bf16", "parts": "*fp32", "logits": "*fp32",
                "K": "i32:16", "E": "i32:16", "inverse_size": "fp32", "eps": "fp32",
            },
            constants={
                "HAS_GAIN": True, "HAS_BIAS": has_bias, "PARTS": 128, "PADDED": 128, "BLOCK": length,
            },
            num_warps=_warps(length),
            has_pdl=True,
        )  # fmt: skip
