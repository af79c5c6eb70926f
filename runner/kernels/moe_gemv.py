"""Products of up to 16 rows with the few experts that each takes: one vector a pair of a row and an expert.

Which expert is read on the device. Nothing is shared between rows, so a row has the same bits in every batch. A program
of `_pairs` computes BN columns of one pair and hands them to an epilogue; one of `_sum` computes BN columns of all
slots of a row, each times its weight, and adds their sum to the residual stream or leaves it by itself. Weights and
activations are those of gemv_packed.py and gemv_dense.py, the rows of expert e from e * N on; those in fragments have
moe_fragments.py. The references are in moe_matmul.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from runner.kernels import moe_pairs
from runner.kernels.compile import Variant
from runner.kernels.epilogues import columns, p_squares, p_store, streams
from runner.kernels.grids import FORMATS, dot4, load_quads, scale_value, table, words_of_group
from runner.kernels.values import OPTIONS, Int8Rows, PackedMatrix, cdiv, has_pdl, is_nvidia, next_power_of_2, pdl_option


@triton.jit
def _dot_dense(w, x, w_row, w_ok, x_row, K, BK: tl.constexpr):
    """x[x_row] . w[w_row] [S, BN] for S rows of x, each with BN rows of w of its own."""
    w_at = w + w_row[:, :, None].to(tl.int64) * K
    x_at = x + (x_row[:, None, None].to(tl.int64) * K + tl.zeros((w_row.shape[0], w_row.shape[1], 1), tl.int64))
    acc = tl.zeros((w_row.shape[0], w_row.shape[1], BK), tl.float32)
    for first in range(0, K, BK):
        k = first + tl.arange(0, BK)[None, None, :]
        ok = w_ok[:, :, None] & (k < K)
        weights = tl.load(w_at + k, mask=ok, other=0.0).to(tl.float32)
        # Every lane reads what it multiplies by, here and below: it is in the L1 cache, and no lane waits for another.
        values = tl.load(x_at + k, mask=ok, other=0.0).to(tl.float32)
        acc = tl.fma(weights, values, acc)
    return tl.sum(acc, 2)


@triton.jit
def _add_quads(total, group, ok, levels, x_at, n_groups, j, FORMAT: tl.constexpr, NVIDIA: tl.constexpr):
    """total [S, BN, BG] plus the products of quads j and j + 4 of each group."""
    low, high = load_quads(group, n_groups, ok, levels, j, FORMAT, NVIDIA)
    total = dot4(low, tl.load(x_at + j * n_groups, mask=ok, other=0), total, NVIDIA)
    return dot4(high, tl.load(x_at + (j + 4) * n_groups, mask=ok, other=0), total, NVIDIA)


@triton.jit
def _dot_packed(
    w, x, w_row, w_ok, x_row, n_groups,
    FORMAT: tl.constexpr, WORDS: tl.constexpr, BG: tl.constexpr, NVIDIA: tl.constexpr,
):  # fmt: skip
    """The same of packed weights and int8 activations; see gemv_packed.py."""
    packed, scale, row_scale, levels = w
    x_words, x_scale = x
    acc = tl.zeros((w_row.shape[0], w_row.shape[1], BG), tl.float32)
    x_of = x_row[:, None, None] + tl.zeros((w_row.shape[0], w_row.shape[1], 1), tl.int32)
    for first in range(0, n_groups, BG):
        g = first + tl.arange(0, BG)[None, None, :]
        ok = w_ok[:, :, None] & (g < n_groups)
        group = packed + w_row[:, :, None].to(tl.int64) * (WORDS * n_groups) + g
        x_at = x_words + x_of * (8 * n_groups) + g
        total = tl.zeros((w_row.shape[0], w_row.shape[1], BG), tl.int32)
        if NVIDIA:
            for j in tl.static_range(4):
                total = _add_quads(total, group, ok, levels, x_at, n_groups, j, FORMAT, NVIDIA)
        else:  # unrolled, the portable form would need more registers than there are
            for j in range(4):
                total = _add_quads(total, group, ok, levels, x_at, n_groups, j, FORMAT, NVIDIA)
        code = tl.load(scale + w_row[:, :, None].to(tl.int64) * n_groups + g, mask=ok, other=0)
        factor = tl.load(x_scale + x_of * n_groups + g, mask=ok, other=0.0)
        acc = tl.fma(total.to(tl.float32), scale_value(code) * factor, acc)
    return tl.sum(acc, 2) * tl.load(row_scale + w_row, mask=w_ok, other=0.0)


@triton.jit
def _dot(
    w, x, w_row, w_ok, x_row, K,
    FORMAT: tl.constexpr, WORDS: tl.constexpr, BK: tl.constexpr, NVIDIA: tl.constexpr,
):  # fmt: skip
    if FORMAT == "dense":
        return _dot_dense(w[0], x[0], w_row, w_ok, x_row, K, BK)
    else:
        return _dot_packed(w, x, w_row, w_ok, x_row, K, FORMAT, WORDS, BK, NVIDIA)


@triton.jit
def _pairs(
    w, x, experts, N, K, k, args,
    EPILOGUE: tl.constexpr, CONFIG: tl.constexpr, PAIR: tl.constexpr, FORMAT: tl.constexpr, WORDS: tl.constexpr,
    BN: tl.constexpr, BK: tl.constexpr, NVIDIA: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(0)
    pair = tl.program_id(1) + tl.arange(0, 1)
    w_row, w_ok, n, n2, n_ok = columns(tile, N, PAIR, BN)
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    of_expert = tl.load(experts + pair)[:, None].to(tl.int64) * N + w_row[None, :]
    acc = _dot(w, x, of_expert, w_ok[None, :], pair // k, K, FORMAT, WORDS, BK, NVIDIA)
    lo, hi = streams(acc, PAIR, 1, BN)
    EPILOGUE(lo, hi, pair, pair >= 0, n, n2, n_ok, tile, args, CONFIG)


@triton.jit
def _sum(
    w, x, experts, weights, h, bias, parts, N, K, k, n_tiles,
    HAS_BIAS: tl.constexpr, ADDS: tl.constexpr, FORMAT: tl.constexpr, WORDS: tl.constexpr, SLOTS: tl.constexpr,
    BN: tl.constexpr, BK: tl.constexpr, NVIDIA: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(0)
    row = tl.program_id(1) + tl.arange(0, 1)
    slot = tl.arange(0, SLOTS)
    is_slot = slot < k
    pair = row * k + tl.where(is_slot, slot, 0)
    n = tile * BN + tl.arange(0, BN)
    n_ok = n < N
    # Experts were there before the product with gate and up began; from L2, since L1 may hold what was there before.
    expert = tl.load(experts + pair, cache_modifier=".cg").to(tl.int64)
    of_expert = expert[:, None] * N + n[None, :]
    ok = is_slot[:, None] & n_ok[None, :]
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    share = tl.load(weights + pair, mask=is_slot, other=0.0)[:, None]
    if ADDS:
        before = tl.load(h + row[:, None].to(tl.int64) * N + n[None, :], mask=n_ok[None, :], other=0.0)
    y = _dot(w, x, of_expert, ok, pair, K, FORMAT, WORDS, BK, NVIDIA)
    if HAS_BIAS:
        y += tl.load(bias + of_expert, mask=ok, other=0.0).to(tl.float32)
    y = y * share
    total = tl.sum(tl.where(ok, y, 0.0), 0)[None, :]
    if ADDS:
        total += before
    p_store(h, total, row, row >= 0, n, n_ok, N)
    p_squares(total, parts, row, row >= 0, n_ok, tile, n_tiles)


@dataclass(frozen=True, kw_only=True)
class Gemv:
    """Launches of the kernels. x: of the rows for `pairs`, of the pairs for `sum`. experts: int32 [M, k].

    w: the matrices of all experts, [E * N, K]; num_rows: N.
    """

    x: Tensor | Int8Rows
    w: Tensor | PackedMatrix
    experts: Tensor
    num_rows: int

    def pairs(
        self, epilogue: Callable[..., Any], args: tuple[Any, ...], config: tuple[Any, ...], pair: int, n_columns: int
    ) -> None:
        """Each pair's product [n_columns] to the epilogue. pair: see epilogues.columns."""
        k = self.experts.shape[1]
        assert self.x.shape[0] * k == self.experts.numel()
        weights, x, form, words, length = self._operands()
        width = _BN_DENSE if form == "dense" else _BN_PACKED
        grid = (cdiv(n_columns, width // 2 if pair else width), self.experts.numel())
        pdl = has_pdl(self.experts)
        _pairs[grid](
            weights, x, self.experts, self.num_rows, length, k, args,
            EPILOGUE=epilogue, CONFIG=config, PAIR=pair, FORMAT=form, WORDS=words,
            BN=width, BK=_length(form, width, length), NVIDIA=is_nvidia(self.experts), PDL=pdl,
            num_warps=_WARPS, **pdl_option(pdl), **OPTIONS,
        )  # fmt: skip

    @property
    def n_sum_tiles(self) -> int:
        return -(-self.num_rows // _BN_SUM)

    def sum(self, weights: Tensor, h: Tensor, bias: Tensor | None, parts: Tensor, *, adds: bool = True) -> None:
        """h [M, N] += the sum over slots of weight * (product + bias); parts [M, n_sum_tiles]: of the new squares.

        adds: else h holds nothing, and is that sum.
        """
        n_rows, k = self.experts.shape
        assert self.x.shape[0] == n_rows * k
        operands, x, form, words, length = self._operands()
        slots, pdl = next_power_of_2(k), has_pdl(h)
        _sum[(self.n_sum_tiles, n_rows)](
            operands, x, self.experts, weights, h, h if bias is None else bias, parts,
            self.num_rows, length, k, self.n_sum_tiles,
            HAS_BIAS=bias is not None, ADDS=adds, FORMAT=form, WORDS=words, SLOTS=slots,
            BN=_BN_SUM, BK=_length(form, slots * _BN_SUM, length), NVIDIA=is_nvidia(h), PDL=pdl,
            num_warps=_WARPS, **pdl_option(pdl), **OPTIONS,
        )  # fmt: skip

    def _operands(self) -> tuple[tuple[Any, ...], tuple[Any, ...], str, int, int]:
        """Weights and activations as the kernels take them, the format, words of a group, and the length of a row."""
        if isinstance(self.w, Tensor):
            assert isinstance(self.x, Tensor)
            assert self.x.is_contiguous()
            assert self.x.shape[1] == self.w.shape[1]
            return (self.w,), (self.x,), "dense", 0, self.w.shape[1]
        assert isinstance(self.x, Int8Rows)
        assert self.w.layout == "planes"
        assert self.x.shape[1] == self.w.shape[1]
        weights = (self.w.packed, self.w.scale, self.w.row_scale, table(self.w.packed.device))
        return weights, (self.x.words, self.x.scale), self.w.format, self.w.packed.shape[1], self.w.packed.shape[2]


# Columns of a tile: one choice whatever M is, since the order of summation follows from it.
_BN_DENSE, _BN_PACKED, _BN_SUM, _WARPS = 4, 8, 4, 4
_LARGEST_DENSE, _LARGEST_PACKED = 4096, 1024  # elements of a step: what registers hold


def _length(form: str, n_vectors: int, length: int) -> int:
    """Elements, or groups of packed weights, that a step takes of each of n_vectors rows of weights."""
    most, largest = (256, _LARGEST_DENSE) if form == "dense" else (64, _LARGEST_PACKED)
    step: int = min(most, largest // n_vectors, next_power_of_2(length))
    return max(1, step)


def variants() -> Iterator[Variant]:
    for form, dtype in (("mq4", "*i32"), ("mq6", "*i32"), ("dense", "*bf16")):
        is_dense = form == "dense"
        weights = (dtype,) if is_dense else ("*i32", "*u8", "*fp32", "*i32")
        common = {"FORMAT": form, "WORDS": 0 if is_dense else words_of_group(FORMATS[form]), "NVIDIA": False}
        operands = {"w": weights, "x": (dtype,) if is_dense else ("*i32", "*fp32"), "experts": "*i32"}
        length, width = (2048, _BN_DENSE) if is_dense else (64, _BN_PACKED)
        yield Variant(
            name=f"moe_gemv {form} gate",
            kernel=_pairs,
            signature={
                **operands, "N": "i32:16", "K": "i32:16", "k": "i32", "args": moe_pairs.signature("*bf16"),
            },
            constants={
                **common, "EPILOGUE": moe_pairs.gate_pairs, "CONFIG": (512, 512, False, 0), "PAIR": 768,
                "BN": width, "BK": _length(form, width, length),
            },
            num_warps=_WARPS,
            nvidia_constants={"NVIDIA": True},
            has_pdl=True,
        )  # fmt: skip
        yield Variant(
            name=f"moe_gemv {form} sum",
            kernel=_sum,
            signature={
                **operands, "weights": "*fp32", "h": "*fp32", "bias": "*fp32", "parts": "*fp32",
                "N": "i32:16", "K": "i32", "k": "i32", "n_tiles": "i32",
            },
            constants={
                **common, "HAS_BIAS": False, "ADDS": True, "SLOTS": 8, "BN": _BN_SUM,
                "BK": _length(form, 8 * _BN_SUM, length),
            },
            num_warps=_WARPS,
            nvidia_constants={"NVIDIA": True},
            has_pdl=True,
        )  # fmt: skip
