"""Products of many rows with the experts that each takes, on tensor cores: blocks of pairs of one expert.

The pairs come sorted by expert (moe_groups.py). How many blocks there are follows from the counts, which are on the
device: a program finds its block in them, and those beyond the last one end at once. The rows of expert e are those of
the weights from e * N on. Packed weights become the type of the activations on their way, rounded once; for these, the
activations come in planes [M, 32, K / 32], so that a step multiplies 32 slices of neighbouring groups, each slice one
element of every group. The references are in moe_matmul.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from runner.kernels import moe_pairs
from runner.kernels.compile import Variant
from runner.kernels.epilogues import columns, streams
from runner.kernels.grids import FORMATS, load_level, scale_value, table, words_of_group
from runner.kernels.moe_groups import Groups
from runner.kernels.values import OPTIONS, PackedMatrix


@triton.jit
def _block_of(counts, block, E, EXPERTS: tl.constexpr, BM: tl.constexpr):
    """The expert of a block, and which of the sorted pairs are its: from `first` on, before `end`.

    The expert of a block beyond the last one is E or more.
    """
    e = tl.arange(0, EXPERTS)
    count = tl.load(counts + e, mask=e < E, other=0)
    n_blocks = (count + BM - 1) // BM
    expert = tl.sum((tl.cumsum(n_blocks, 0) <= block).to(tl.int32), 0)
    first = tl.sum(tl.where(e < expert, count, 0), 0)
    inside = block - tl.sum(tl.where(e < expert, n_blocks, 0), 0)
    return expert, first + inside * BM, tl.sum(tl.where(e <= expert, count, 0), 0)


@triton.jit
def _dense(w, x, w_row, w_ok, rows, row_ok, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """x @ w.T [BM, BN] of dense weights."""
    acc = tl.zeros((BM, BN), tl.float32)
    for first in range(0, K, BK):
        k = first + tl.arange(0, BK)
        k_ok = k < K
        left = tl.load(x + rows[:, None].to(tl.int64) * K + k[None, :], mask=row_ok[:, None] & k_ok[None, :], other=0.0)
        right = tl.load(w + w_row[None, :] * K + k[:, None], mask=w_ok[None, :] & k_ok[:, None], other=0.0)
        acc = tl.dot(left, right.to(left.dtype), acc, input_precision="ieee")
    return acc


@triton.jit
def _packed(
    w, x, w_row, w_ok, rows, row_ok, n_groups,
    FORMAT: tl.constexpr, WORDS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BG: tl.constexpr,
):  # fmt: skip
    """x @ w.T [BM, BN] of packed weights."""
    packed, scale, row_scale, levels = w
    acc = tl.zeros((BM, BN), tl.float32)
    for first in range(0, n_groups, BG):
        g = first + tl.arange(0, BG)
        g_ok = g < n_groups
        ok = w_ok[None, :] & g_ok[:, None]
        group = packed + w_row[None, :] * (WORDS * n_groups) + g[:, None]
        factor = scale_value(tl.load(scale + w_row[None, :] * n_groups + g[:, None], mask=ok, other=0))
        x_group = x + rows[:, None].to(tl.int64) * (32 * n_groups) + g[None, :]
        for element in range(32):
            left = tl.load(x_group + element * n_groups, mask=row_ok[:, None] & g_ok[None, :], other=0.0)
            level = load_level(group, n_groups, ok, levels, element // 4, element % 4, FORMAT)
            acc = tl.dot(left, (level.to(tl.float32) * factor).to(left.dtype), acc, input_precision="ieee")
    return acc * tl.load(row_scale + w_row, mask=w_ok, other=0.0)[None, :]


@triton.jit
def _moe_gemm(
    w, x, order, counts, E, N, K, sharing, n_tiles, args,
    EPILOGUE: tl.constexpr, CONFIG: tl.constexpr, PAIR: tl.constexpr, FORMAT: tl.constexpr, WORDS: tl.constexpr,
    EXPERTS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """sharing: pairs that have one row of x."""
    tile = tl.program_id(0) % n_tiles
    expert, first, end = _block_of(counts, tl.program_id(0) // n_tiles, E, EXPERTS, BM)
    if expert < E:
        place = first + tl.arange(0, BM)
        ok = place < end
        pairs = tl.load(order + place, mask=ok, other=0)
        w_row, w_ok, n, n2, n_ok = columns(tile, N, PAIR, BN)
        of_expert = expert.to(tl.int64) * N + w_row
        if FORMAT == "dense":
            acc = _dense(w[0], x, of_expert, w_ok, pairs // sharing, ok, K, BM, BN, BK)
        else:
            acc = _packed(w, x, of_expert, w_ok, pairs // sharing, ok, K, FORMAT, WORDS, BM, BN, BK)
        lo, hi = streams(acc, PAIR, BM, BN)
        EPILOGUE(lo, hi, pairs, ok, n, n2, n_ok, tile, args, CONFIG)


@dataclass(frozen=True, kw_only=True)
class Gemm:
    """A launch of the kernel. x: [M, K], planes [M, 32, K / 32] for packed weights; of rows, or of pairs.

    w: the matrices of all experts, [E * N, K].
    """

    x: Tensor
    w: Tensor | PackedMatrix
    groups: Groups

    def pairs(
        self, epilogue: Callable[..., Any], args: tuple[Any, ...], config: tuple[Any, ...], pair: int, n_columns: int
    ) -> None:
        """Each pair's product [n_columns] to the epilogue. pair: see epilogues.columns."""
        n_pairs, n_experts = len(self.groups.order), len(self.groups.counts)
        assert self.x.is_contiguous()
        assert self.x[0].numel() == self.w.shape[1], (self.x.shape, self.w.shape)
        assert n_pairs % len(self.x) == 0
        bm = min(_BM, max(16, triton.next_power_of_2(n_pairs // n_experts)))
        n_blocks = n_pairs // bm + min(n_experts, n_pairs)  # an expert's last block may have few
        n_tiles = triton.cdiv(n_columns, _BN // 2 if pair else _BN)
        weights: tuple[Tensor, ...]
        if isinstance(self.w, Tensor):
            weights, form, words, length, step = (self.w,), "dense", 0, self.w.shape[1], _BK
        else:
            weights = (self.w.packed, self.w.scale, self.w.row_scale, table(self.x.device))
            form, words, length, step = self.w.format, self.w.packed.shape[1], self.w.packed.shape[2], _BG
        _moe_gemm[(n_blocks * n_tiles,)](
            weights, self.x, self.groups.order, self.groups.counts, n_experts, self.w.shape[0] // n_experts, length,
            n_pairs // len(self.x), n_tiles, args,
            EPILOGUE=epilogue, CONFIG=config, PAIR=pair, FORMAT=form, WORDS=words,
            EXPERTS=triton.next_power_of_2(n_experts), BM=bm, BN=_BN, BK=step,
            num_warps=_WARPS, num_stages=_STAGES, **OPTIONS,
        )  # fmt: skip


_BM, _BN, _BK, _BG, _WARPS, _STAGES = 64, 64, 32, 16, 4, 3


def variants() -> Iterator[Variant]:
    for form in ("dense", "mq4"):
        is_dense = form == "dense"
        yield Variant(
            name=f"moe_gemm {form} gate",
            kernel=_moe_gemm,
            signature={
                "w": ("*bf16",) if is_dense else ("*i32", "*u8", "*fp32", "*i32"), "x": "*bf16", "order": "*i32",
                "counts": "*i32", "E": "i32:16", "N": "i32:16", "K": "i32:16", "sharing": "i32", "n_tiles": "i32",
                "args": moe_pairs.signature("*bf16"),
            },
            constants={
                "EPILOGUE": moe_pairs.gate_pairs, "CONFIG": (64, 64, False, 0), "PAIR": 768, "FORMAT": form,
                "WORDS": 0 if is_dense else words_of_group(FORMATS[form]), "EXPERTS": 128,
                "BM": _BM, "BN": _BN, "BK": _BK if is_dense else _BG,
            },
            num_warps=_WARPS,
            num_stages=_STAGES,
            is_decode=False,
        )  # fmt: skip
