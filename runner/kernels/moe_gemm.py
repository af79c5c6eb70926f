"""Products of many rows with the experts that each takes, on tensor cores: blocks of pairs of one expert.

The pairs come sorted by expert (moe_groups.py), and programs whose block has none end at once. The rows of expert e are
those of the weights from e * N on. Packed weights are decoded to the type of the activations: those in fragments on
their way to the tensor cores, once for each block, unless experts have very many pairs; else in advance, as many
experts at a time as a block of gemm.py has room for. The references are in moe_matmul.py.
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
from runner.kernels.grids import raised_quads, scale_value, scaled_bytes, table
from runner.kernels.moe_groups import Groups, block_of
from runner.kernels.values import OPTIONS, PackedMatrix, cdiv, is_nvidia, next_power_of_2


@triton.jit
def _dense_product(left, right, K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """[BN, BM]. left: where the rows of weights begin [BN, 1], right: those of x [1, BM]."""
    acc = tl.zeros((BN, BM), tl.float32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        k_ok = (k < K) if K % BK else (k >= 0)
        rows = tl.load(right + k[:, None], mask=k_ok[:, None], other=0.0)
        weights = tl.load(left + k[None, :], mask=k_ok[None, :], other=0.0)
        acc = tl.dot(weights.to(rows.dtype), rows, acc, input_precision="ieee")
    return acc


@triton.jit
def _decoded(
    packed, high, scale, levels, tiles, p, dtype, P: tl.constexpr,
    FORMAT: tl.constexpr, NVIDIA: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Pair of groups p of tiles of fragments [BN / 16] as weights [BN, 64], whose words come in the order of memory."""
    T: tl.constexpr = BN // 16
    i = tl.arange(0, 128)[None, :]
    at = (tiles[:, None].to(tl.int64) * P + p) * 128
    unit = scale_value(tl.load(scale + at // 4 + (i // 16 * 4 + i % 4)))
    word = tl.load(packed + at + i, eviction_policy="evict_first")
    top = tl.load(high + at + i, eviction_policy="evict_first") if FORMAT == "mq6" else word
    first, second, above = raised_quads(word, top, levels, FORMAT, NVIDIA)
    zero = unit * (-32768.0 - above)
    first_evens, first_odds = scaled_bytes(first, unit, zero, NVIDIA)
    second_evens, second_odds = scaled_bytes(second, unit, zero, NVIDIA)
    evens = tl.permute(tl.join(first_evens, second_evens), (0, 1, 3, 2))
    odds = tl.permute(tl.join(first_odds, second_odds), (0, 1, 3, 2))
    weights = tl.reshape(tl.join(evens, odds).to(dtype), (T, 8, 4, 2, 2, 8))  # t, g, j, e, h
    return tl.reshape(tl.permute(weights, (0, 4, 1, 2, 3, 5)), (BN, 64))


@triton.jit
def _packed_product(
    packed, high, scale, levels, tiles, right, P: tl.constexpr,
    FORMAT: tl.constexpr, NVIDIA: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """The same of tiles of fragments [BN / 16], but for the rows' factors; right: where the rows of by_words(x) begin.

    The weights of a step are decoded in the turn before: what comes around a loop, Triton brings to shared memory.
    Decoded in their own turn they would stay in registers, which Hopper's tensor cores read in their own time, and
    Triton (3.6 to 3.9) lets the next turn write to them before that time has come.
    """
    c = tl.arange(0, 64)[:, None]
    dtype = right.dtype.element_ty
    acc = tl.zeros((BN, BM), tl.float32)
    weights = _decoded(packed, high, scale, levels, tiles, 0, dtype, P, FORMAT, NVIDIA, BN)
    for p in range(P):
        rows = tl.load(right + (p * 64 + c))
        acc = tl.dot(weights, rows, acc, input_precision="ieee")
        weights = _decoded(packed, high, scale, levels, tiles, (p + 1) % P, dtype, P, FORMAT, NVIDIA, BN)
    return acc


@triton.jit(do_not_specialize=["from_expert", "to_expert"])
def _moe_gemm(
    w, high, scale, row_scale, levels, x, order, firsts, from_expert, to_expert, E, N, sharing, n_tiles, args,
    EPILOGUE: tl.constexpr, CONFIG: tl.constexpr, PAIR: tl.constexpr, EXPERTS: tl.constexpr,
    FEW: tl.constexpr, FORMAT: tl.constexpr, NVIDIA: tl.constexpr, K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    BK: tl.constexpr,
):  # fmt: skip
    """w: the experts from `from_expert` on, before `to_expert`. sharing: pairs that have one row of x. FORMAT: "" for
    dense weights, which have no scales.

    Places without a pair, and rows beyond the last one, compute what others do, and nobody stores it.
    """
    tile = tl.program_id(0) % n_tiles
    expert, first, end = block_of(firsts, tl.program_id(0) // n_tiles, E, EXPERTS, BM, FEW)
    if (expert >= from_expert) & (expert < to_expert) & (first < end):
        place = first + tl.arange(0, BM)
        ok = place < end
        pairs = tl.load(order + place, mask=ok, other=0)
        w_row, _, n, n2, n_ok = columns(tile, N, PAIR, BN)
        row = tl.minimum(w_row, N - 1)
        right = x + (pairs // sharing)[None, :].to(tl.int64) * K
        first_row = (expert - from_expert).to(tl.int64) * N
        # Weights from the left: of these there are always enough rows for the tensor cores.
        if FORMAT == "":
            acc = _dense_product(w + first_row * K + row[:, None] * K, right, K, BM, BN, BK)
        else:
            of_tile, _, _, _, _ = columns(tile, N // 16, PAIR // 16, BN // 16)
            tiles = first_row // 16 + tl.minimum(of_tile, N // 16 - 1)
            acc = _packed_product(w, high, scale, levels, tiles, right, K // 64, FORMAT, NVIDIA, BM, BN)
            acc *= tl.load(row_scale + first_row + row)[:, None]
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
        n_pairs, n_experts = len(self.groups.order), self.groups.num_experts
        n, k = self.w.shape[0] // n_experts, self.w.shape[1]
        assert self.x.is_contiguous()
        assert self.x.shape[1] == k, (self.x.shape, self.w.shape)
        assert n_pairs % len(self.x) == 0
        assert n * k < 2**31
        mean, w, x = n_pairs / n_experts, self.w, self.x
        matrix: tuple[Tensor, ...] | None = None
        if isinstance(w, PackedMatrix) and w.layout == "fragments" and mean <= _FEW_PAIRS:
            matrix = w.packed, w.packed if w.high is None else w.high, w.scale, w.row_scale, table(x.device)
            tiles, step, form, x = _packed_tiles(mean), n_experts, w.format, by_words(x)
        else:
            tiles, form = _dense_tiles(mean), ""
            step = n_experts if isinstance(w, Tensor) else experts_at_once(n, k, x.element_size())
        n_tiles = cdiv(n_columns, tiles.columns // 2 if pair else tiles.columns)
        for first in range(0, n_experts, step):
            last = min(first + step, n_experts)
            _moe_gemm[(self.groups.num_blocks(tiles.rows) * n_tiles,)](
                *(matrix or (self._dense(first * n, last * n), x, x, x, x)),
                x, self.groups.order, self.groups.firsts, first, last, n_experts, n, n_pairs // len(x), n_tiles, args,
                EPILOGUE=epilogue, CONFIG=config, PAIR=pair, EXPERTS=next_power_of_2(n_experts),
                FEW=self.groups.are_few(tiles.rows), FORMAT=form, NVIDIA=is_nvidia(x), K=k, BM=tiles.rows,
                BN=tiles.columns, BK=_BK, num_warps=tiles.warps, num_stages=tiles.stages, **OPTIONS,
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


@triton.jit
def _by_words(x, out, K: tl.constexpr, SPAN: tl.constexpr):
    at = tl.program_id(1) * SPAN + tl.arange(0, SPAN)
    row = tl.program_id(0).to(tl.int64) * K
    j, e, half = at // 16 % 4, at // 8 % 2, at // 4 % 2
    value = tl.load(x + row + at // 64 * 64 + e * 32 + half * 16 + j * 4 + at % 4, mask=at < K)
    tl.store(out + row + at, value, mask=at < K)


def by_words(x: Tensor) -> Tensor:
    """Rows [M, K] in the order of the words of fragments: [M, K / 64, j, e, half, 4], j the place of a word."""
    n_rows, k = x.shape
    out = torch.empty_like(x)
    _by_words[(n_rows, cdiv(k, _SPAN))](x, out, K=k, SPAN=_SPAN, num_warps=4, **OPTIONS)
    return out


@dataclass(frozen=True, kw_only=True)
class _Tiles:
    rows: int
    columns: int
    warps: int
    stages: int


def _rows_of_block(mean: float, most: int) -> int:
    """Pairs of a block, where experts have so many on average: weights are read once for most, which fill one block."""
    return min(most, max(16, next_power_of_2(int(1.5 * mean))))


# H200, 128 experts of [1536, 2048], 8 a row, decoding in advance: 0.93 ms for 512 rows and 1.04 for 2048; 4 warps 1.01
# and 1.03; a fourth stage 0.90 and 1.08; columns 64 or 256 and steps of 32 are no better in both.
def _dense_tiles(mean: float) -> _Tiles:
    rows = _rows_of_block(mean, 128)
    return _Tiles(rows=rows, columns=128, warps=4 if rows <= 32 else 8, stages=3)


# H200, the same with their [2048, 768], decoding on their way, before weights went through shared memory, which costs
# 5 to 15 %: 0.29 ms for 128 rows, 0.42 for 512, 0.58 for 1024, 0.74 for 2048. Columns 128 take 0.47 for 512 and 1.04
# for 2048, 256 take 0.35 for 128; for 1536 blocks of 64 take 0.76 and of 128 0.53, for 1024 the same. Eight warps for
# blocks of 128 take 0.78 for 2048 and spill more, 16 for those of 64 take 5 % more. A fourth stage is as good, two
# are worse. Decoding in advance takes 1.30 for 2048 and 1.47 for 3072, where this takes 0.95; with 32 experts of
# [5760, 2880] and [2880, 2880] and 256 pairs an expert 1.96 for 1.48: they would meet at about 550 pairs.
def _packed_tiles(mean: float) -> _Tiles:
    rows = _rows_of_block(mean, 64 if mean <= 64 else 128)
    return _Tiles(rows=rows, columns=128 if rows <= 32 else 256, warps=16 if rows == 128 else 8, stages=3)


_BK, _FEW_PAIRS = 64, 512
_SPAN = 1024


def variants() -> Iterator[Variant]:
    for form, mean in (
        ("mq4", 100), ("mq4", 8), ("mq4", 32), ("mq4-uniform", 32), ("mq6", 100), ("", 8), ("", 100),
    ):  # fmt: skip
        tiles = _packed_tiles(mean) if form else _dense_tiles(mean)
        yield Variant(
            name=f"moe_gemm {form or 'dense'} gate, {tiles.rows} rows",
            kernel=_moe_gemm,
            signature={
                "w": "*i32" if form else "*bf16",
                "high": "*i16" if form == "mq6" else "*i32" if form else "*bf16", "scale": "*u8" if form else "*bf16",
                "row_scale": "*fp32" if form else "*bf16", "levels": "*i32" if form else "*bf16",
                "x": "*bf16", "order": "*i32", "firsts": "*i32", "from_expert": "i32", "to_expert": "i32",
                "E": "i32:16", "N": "i32:16", "sharing": "i32", "n_tiles": "i32",
                "args": moe_pairs.signature("*bf16"),
            },
            constants={
                "EPILOGUE": moe_pairs.gate_pairs, "CONFIG": (64, 64, False, 0), "PAIR": 768, "EXPERTS": 128,
                "FEW": False, "FORMAT": form, "NVIDIA": False, "K": 2048, "BM": tiles.rows, "BN": tiles.columns,
                "BK": _BK,
            },
            num_warps=tiles.warps,
            num_stages=tiles.stages,
            is_decode=False,
            is_nvidia_only=form != "",
            nvidia_constants={"NVIDIA": True},
        )  # fmt: skip
    yield Variant(
        name="moe_gemm by_words",
        kernel=_by_words,
        signature={"x": "*bf16", "out": "*bf16"},
        constants={"K": 2048, "SPAN": _SPAN},
        num_warps=4,
        is_decode=False,
    )
