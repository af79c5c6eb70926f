"""Epilogue programs of products whose rows are pairs of a row and an expert; see epilogues.py, whose form these have.

`rows` are pairs p = m * k + s: the norm is that of row m, the bias that of the pair's expert. It knows no weights.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from runner.kernels.epilogues import p_gate, p_rstd, p_store


@triton.jit
def p_scaled_pairs(lo, hi, rows, row_ok, n, n2, n_ok, norm, bias, pairs, CONFIG: tl.constexpr):
    """(lo, hi) times the rows' 1 / rms, plus the experts' biases: see epilogues.p_scaled.

    pairs: experts [M, k], k, and the length of an expert's bias.
    """
    experts, k, length = pairs
    if CONFIG[0] > 0:
        parts, inverse_size, eps = norm
        rstd = p_rstd(parts, rows // k, row_ok, inverse_size, eps, CONFIG[0], CONFIG[1])[:, None]
        lo = lo * rstd
        hi = hi * rstd
    if CONFIG[2]:
        expert = tl.load(experts + rows, mask=row_ok, other=0)
        of_expert = bias + expert[:, None].to(tl.int64) * length
        ok = row_ok[:, None] & n_ok[None, :]
        lo = lo + tl.load(of_expert + n[None, :], mask=ok, other=0.0).to(tl.float32)
        hi = hi + tl.load(of_expert + n2[None, :], mask=ok, other=0.0).to(tl.float32)
    return lo, hi


@triton.jit
def store_pairs(lo, hi, rows, row_ok, n, n2, n_ok, tile, args, CONFIG: tl.constexpr):
    """out = acc * rstd + bias. args: out, width, norm, bias, pairs. CONFIG: PARTS, PADDED, has_bias."""
    out, width, norm, bias, pairs = args
    lo, hi = p_scaled_pairs(lo, hi, rows, row_ok, n, n2, n_ok, norm, bias, pairs, CONFIG)
    p_store(out, lo, rows, row_ok, n, n_ok, width)


@triton.jit
def gate_pairs(lo, hi, rows, row_ok, n, n2, n_ok, tile, args, CONFIG: tl.constexpr):
    """out = act(gate) * up. args: as for store_pairs. CONFIG: ..., ACTIVATION."""
    out, width, norm, bias, pairs = args
    lo, hi = p_scaled_pairs(lo, hi, rows, row_ok, n, n2, n_ok, norm, bias, pairs, CONFIG)
    p_store(out, p_gate(lo, hi, CONFIG[3]), rows, row_ok, n, n_ok, width)


def signature(dtype: str) -> tuple[Any, ...]:
    """The Triton types of a program's `args` when it stores `dtype` ("*bf16")."""
    return (dtype, "i32", ("*fp32", "fp32", "fp32"), "*fp32", ("*i32", "i32", "i32"))
