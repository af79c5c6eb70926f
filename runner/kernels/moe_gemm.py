"""Products of many rows with the experts that each takes, on tensor cores: blocks of pairs of one expert.

The pairs come sorted by expert (moe_groups.py). How many blocks there are follows from the counts, which are on the
device: a program finds its block in them, and those beyond the last one end at once. The rows of expert e are those of
the weights from e * N on. Packed weights are decoded first, to the type of the activations, as many experts at a time
as a block of gemm.py has room for: each is then read by all the rows that take it. The references are in moe_matmul.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from runner.kernels import moe_pairs
from runner.kernels.compile import Variant
from runner.kernels.dequantize import dequantize
from runner.kernels.epilogues import columns, streams
from runner.kernels.fragments import TILE
from runner.kernels.gemm import BLOCK_BYTES
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


@triton.jit(do_not_specialize=["from_expert", "to_expert"])
def _moe_gemm(
    w, x, order, counts, from_expert, to_expert, E, N, K, sharing, n_tiles, args,
    EPILOGUE: tl.constexpr, CONFIG: tl.constexpr, PAIR: tl.constexpr, EXPERTS: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """w: the experts from `from_expert` on, before `to_expert`. sharing: pairs that have one row of x."""
    tile = tl.program_id(0) % n_tiles
    expert, first, end = _block_of(counts, tl.program_id(0) // n_tiles, E, EXPERTS, BM)
    if (expert >= from_expert) & (expert < to_expert):
        place = first + tl.arange(0, BM)
        ok = place < end
        pairs = tl.load(order + place, mask=ok, other=0)
        w_row, w_ok, n, n2, n_ok = columns(tile, N, PAIR, BN)
        left = w + ((expert - from_expert).to(tl.int64) * N + w_row)[:, None] * K
        right = x + (pairs // sharing)[None, :].to(tl.int64) * K
        # Weights from the left: of these there are always enough rows for the tensor cores.
        acc = tl.zeros((BN, BM), tl.float32)
        for start in range(0, K, BK):
            k = start + tl.arange(0, BK)
            rows = tl.load(right + k[:, None], mask=ok[None, :] & (k < K)[:, None], other=0.0)
            weights = tl.load(left + k[None, :], mask=w_ok[:, None] & (k < K)[None, :], other=0.0)
            acc = tl.dot(weights.to(rows.dtype), rows, acc, input_precision="ieee")
        lo, hi = streams(tl.trans(acc), PAIR, BM, BN)
        EPILOGUE(lo, hi, pairs, ok, n, n2, n_ok, tile, args, CONFIG)


@dataclass(frozen=True, kw_only=True)
class Gemm:
    """A launch of the kernel. x: [M, K], rotated for packed weights; of rows, or of pairs.

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
        n, k = self.w.shape[0] // n_experts, self.w.shape[1]
        assert self.x.is_contiguous()
        assert self.x.shape[1] == k, (self.x.shape, self.w.shape)
        assert n_pairs % len(self.x) == 0
        bm = _rows_of_block(n_pairs / n_experts)
        n_blocks = n_pairs // bm + min(n_experts, n_pairs)  # an expert's last block may have few
        n_tiles = triton.cdiv(n_columns, _BN // 2 if pair else _BN)
        step = n_experts if isinstance(self.w, Tensor) else experts_at_once(n, k, self.x.element_size())
        for first in range(0, n_experts, step):
            last = min(first + step, n_experts)
            _moe_gemm[(n_blocks * n_tiles,)](
                self._dense(first * n, last * n), self.x, self.groups.order, self.groups.counts, first, last, n_experts,
                n, k, n_pairs // len(self.x), n_tiles, args,
                EPILOGUE=epilogue, CONFIG=config, PAIR=pair, EXPERTS=triton.next_power_of_2(n_experts),
                BM=bm, BN=_BN, BK=_BK, num_warps=_WARPS[bm], num_stages=_STAGES, **OPTIONS,
            )  # fmt: skip

    def _dense(self, first: int, last: int) -> Tensor:
        """Those rows of the weights, dense."""
        if isinstance(self.w, Tensor):
            return self.w[first:last]
        dense = torch.empty(last - first, self.w.shape[1], dtype=self.x.dtype, device=self.x.device)
        dequantize(self.w, dense, first=first, pair=0)
        return dense


def experts_at_once(n: int, k: int, itemsize: int) -> int:
    """How many experts' matrices [N, K] are decoded at a time; dequantize begins at multiples of its tile."""
    step = max(1, BLOCK_BYTES // (n * k * itemsize))
    return step if n % TILE == 0 else max(TILE, step // TILE * TILE)


def _rows_of_block(mean: float) -> int:
    """Pairs of a block, where experts have so many on average: weights are read once for most, which fill one block."""
    return min(_MOST_ROWS, max(16, int(triton.next_power_of_2(int(1.5 * mean)))))


# H200, 128 experts of [1536, 2048], 8 a row, decoding too: 0.93 ms for 512 rows and 1.04 for 2048; 4 warps 1.01, 1.03;
# a fourth stage 0.90, 1.08; columns 64 or 256 and steps of 32 are no better in both.
_MOST_ROWS, _BN, _BK, _STAGES = 128, 128, 64, 3
_WARPS = {16: 4, 32: 4, 64: 8, 128: 8}


def variants() -> Iterator[Variant]:
    for bm in (16, _MOST_ROWS):
        yield Variant(
            name=f"moe_gemm gate, {bm} rows",
            kernel=_moe_gemm,
            signature={
                "w": "*bf16", "x": "*bf16", "order": "*i32", "counts": "*i32", "from_expert": "i32", "to_expert": "i32",
                "E": "i32:16", "N": "i32:16", "K": "i32:16", "sharing": "i32", "n_tiles": "i32",
                "args": moe_pairs.signature("*bf16"),
            },
            constants={
                "EPILOGUE": moe_pairs.gate_pairs, "CONFIG": (64, 64, False, 0), "PAIR": 768, "EXPERTS": 128,
                "BM": bm, "BN": _BN, "BK": _BK,
            },
            num_warps=_WARPS[bm],
            num_stages=_STAGES,
            is_decode=False,
        )  # fmt: skip
