"""Products of many rows with the experts that each takes, on tensor cores: blocks of pairs of one expert.

The pairs come sorted by expert (moe_groups.py). How many blocks there are follows from the counts, which are on the
device: a program finds its block in them, and those beyond the last one end at once. The rows of expert e are those of
the weights from e * N on. Packed weights are decoded to the type of the activations: on their way to the tensor cores,
once for each block, where experts have few pairs; in advance, as many experts at a time as a block of gemm.py has room
for, where they have many. The references are in moe_matmul.py.
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
from runner.kernels.grids import FORMATS, load_quads, raised, scale_value, table, words_of_group
from runner.kernels.moe_groups import Groups
from runner.kernels.values import OPTIONS, PackedMatrix, is_nvidia


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


_2_15 = tl.constexpr(0x47000000)
_BYTES = tl.constexpr(" ".join(f"prmt.b32 ${i}, $4, 0x47000000, 0x74{i}4;" for i in range(4)))


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
def _times(quad, unit, NVIDIA: tl.constexpr):
    """unit times each of the four levels that an int32 has as int8: evens and odds [..., 2], float32.

    A level plus 128 is the second byte of the float 2^15, which takes no conversion; all that is computed is exact.
    """
    quad = raised(quad)
    if NVIDIA:
        a, b, c, d = tl.inline_asm_elementwise(
            _BYTES, "=r,=r,=r,=r,r", [quad], dtype=(tl.int32, tl.int32, tl.int32, tl.int32), is_pure=True, pack=1
        )
    else:
        a, b = (quad & 255) << 8 | _2_15, (quad >> 8 & 255) << 8 | _2_15
        c, d = (quad >> 16 & 255) << 8 | _2_15, (quad >> 24 & 255) << 8 | _2_15
    zero = unit * -32896.0
    a = tl.fma(a.to(tl.float32, bitcast=True), unit, zero)
    b = tl.fma(b.to(tl.float32, bitcast=True), unit, zero)
    c = tl.fma(c.to(tl.float32, bitcast=True), unit, zero)
    d = tl.fma(d.to(tl.float32, bitcast=True), unit, zero)
    return tl.join(a, c), tl.join(b, d)


@triton.jit
def _packed_product(
    packed, scale, levels, row, right, K: tl.constexpr,
    FORMAT: tl.constexpr, WORDS: tl.constexpr, NVIDIA: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    GROUPS: tl.constexpr,
):  # fmt: skip
    """The same but for the rows' factors; right: where the rows of by_quads(x) begin.

    A step is quads j and j + 4 of some groups beside each other, so that words come in the order of memory.
    """
    N_GROUPS: tl.constexpr = K // 32
    SPANS: tl.constexpr = (N_GROUPS + GROUPS - 1) // GROUPS
    EVEN: tl.constexpr = N_GROUPS % GROUPS == 0
    g = tl.arange(0, GROUPS)
    c = tl.arange(0, 8 * GROUPS)
    words = packed + (row * (WORDS * N_GROUPS))[:, None] + g[None, :]
    codes = scale + (row * N_GROUPS)[:, None] + g[None, :]
    code = tl.load(codes, mask=(g < N_GROUPS)[None, :], other=0)
    acc = tl.zeros((BN, BM), tl.float32)
    for step in range(4 * SPANS):
        j, first, after = step // SPANS, step % SPANS * GROUPS, (step + 1) % SPANS * GROUPS
        g_ok = (g >= 0) if EVEN else (first + g < N_GROUPS)
        unit = scale_value(code)
        code = tl.load(codes + after, mask=((g >= 0) if EVEN else (after + g < N_GROUPS))[None, :], other=0)
        low, high = load_quads(words + first, N_GROUPS, g_ok[None, :] & (row >= 0)[:, None], levels, j, FORMAT, NVIDIA)
        k_ok = (c >= 0) if EVEN else (first + c // 8 < N_GROUPS)
        rows = tl.load(right + (j * (8 * N_GROUPS) + first * 8 + c)[:, None], mask=k_ok[:, None], other=0.0)
        low_evens, low_odds = _times(low, unit, NVIDIA)
        high_evens, high_odds = _times(high, unit, NVIDIA)
        evens = tl.permute(tl.join(low_evens, high_evens), (0, 1, 3, 2))
        odds = tl.permute(tl.join(low_odds, high_odds), (0, 1, 3, 2))
        weights = tl.reshape(tl.join(evens, odds).to(rows.dtype), (BN, 8 * GROUPS))
        acc = tl.dot(weights, rows, acc, input_precision="ieee")
    return acc


@triton.jit(do_not_specialize=["from_expert", "to_expert"])
def _moe_gemm(
    w, scale, row_scale, levels, x, order, counts, from_expert, to_expert, E, N, sharing, n_tiles, args,
    EPILOGUE: tl.constexpr, CONFIG: tl.constexpr, PAIR: tl.constexpr, EXPERTS: tl.constexpr,
    FORMAT: tl.constexpr, WORDS: tl.constexpr, NVIDIA: tl.constexpr,
    K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """w: the experts from `from_expert` on, before `to_expert`. sharing: pairs that have one row of x. FORMAT: "" for
    dense weights, which have no scales.

    Places without a pair, and rows beyond the last one, compute what others do, and nobody stores it.
    """
    tile = tl.program_id(0) % n_tiles
    expert, first, end = _block_of(counts, tl.program_id(0) // n_tiles, E, EXPERTS, BM)
    if (expert >= from_expert) & (expert < to_expert):
        place = first + tl.arange(0, BM)
        ok = place < end
        pairs = tl.load(order + place, mask=ok, other=0)
        w_row, _, n, n2, n_ok = columns(tile, N, PAIR, BN)
        row = tl.minimum(w_row, N - 1)
        right = x + (pairs // sharing)[None, :].to(tl.int64) * K
        first_row = (expert - from_expert).to(tl.int64) * N
        w += first_row * (WORDS * K // 32 if FORMAT != "" else K)
        # Weights from the left: of these there are always enough rows for the tensor cores.
        if FORMAT == "":
            acc = _dense_product(w + row[:, None] * K, right, K, BM, BN, BK)
        else:
            scale += first_row * (K // 32)
            acc = _packed_product(w, scale, levels, row, right, K, FORMAT, WORDS, NVIDIA, BM, BN, BK // 8)
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
        n_pairs, n_experts = len(self.groups.order), len(self.groups.counts)
        n, k = self.w.shape[0] // n_experts, self.w.shape[1]
        assert self.x.is_contiguous()
        assert self.x.shape[1] == k, (self.x.shape, self.w.shape)
        assert n_pairs % len(self.x) == 0
        assert n * k < 2**31
        mean, w, x = n_pairs / n_experts, self.w, self.x
        matrix: tuple[Tensor, ...] | None = None
        if isinstance(w, PackedMatrix) and mean <= _FEW_PAIRS and torch.version.hip is None:
            matrix, x, form = (w.packed, w.scale, w.row_scale, table(x.device)), by_quads(x), w.format
            tiles, step = _packed_tiles(form, mean), n_experts
        else:
            tiles, form = _dense_tiles(mean), ""
            step = n_experts if isinstance(w, Tensor) else experts_at_once(n, k, x.element_size())
        n_blocks = n_pairs // tiles.rows + min(n_experts, n_pairs)  # an expert's last block may have few
        n_tiles = triton.cdiv(n_columns, _BN // 2 if pair else _BN)
        for first in range(0, n_experts, step):
            last = min(first + step, n_experts)
            _moe_gemm[(n_blocks * n_tiles,)](
                *(matrix or (self._dense(first * n, last * n), x, x, x)),
                x, self.groups.order, self.groups.counts, first, last, n_experts, n, n_pairs // len(x), n_tiles, args,
                EPILOGUE=epilogue, CONFIG=config, PAIR=pair, EXPERTS=triton.next_power_of_2(n_experts), FORMAT=form,
                WORDS=words_of_group(FORMATS[form]) if form else 0, NVIDIA=is_nvidia(x), K=k, BM=tiles.rows, BN=_BN,
                BK=_BK, num_warps=tiles.warps, num_stages=tiles.stages, **OPTIONS,
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
def _by_quads(x, out, N_GROUPS: tl.constexpr, SPAN: tl.constexpr):
    at = tl.program_id(0) * SPAN + tl.arange(0, SPAN)
    row = tl.program_id(1).to(tl.int64) * (32 * N_GROUPS)
    j, group = at // 8 // N_GROUPS, at // 8 % N_GROUPS
    ok = at < 32 * N_GROUPS
    value = tl.load(x + row + group * 32 + at // 4 % 2 * 16 + j * 4 + at % 4, mask=ok)
    tl.store(out + row + at, value, mask=ok)


def by_quads(x: Tensor) -> Tensor:
    """Rows [M, K] with quads j and j + 4 of all groups of 32 beside each other: [M, j, K / 32, 2, 4]."""
    n_rows, k = x.shape
    out = torch.empty(n_rows, 4, k // 32, 2, 4, dtype=x.dtype, device=x.device)
    _by_quads[(triton.cdiv(k, _SPAN), n_rows)](x, out, N_GROUPS=k // 32, SPAN=_SPAN, num_warps=4, **OPTIONS)
    return out


@dataclass(frozen=True, kw_only=True)
class _Tiles:
    rows: int
    warps: int
    stages: int


def _rows_of_block(mean: float, most: int) -> int:
    """Pairs of a block, where experts have so many on average: weights are read once for most, which fill one block."""
    return min(most, max(16, int(triton.next_power_of_2(int(1.5 * mean)))))


# H200, 128 experts of [1536, 2048], 8 a row, decoding in advance: 0.93 ms for 512 rows and 1.04 for 2048; 4 warps 1.01
# and 1.03; a fourth stage 0.90 and 1.08; columns 64 or 256 and steps of 32 are no better in both.
def _dense_tiles(mean: float) -> _Tiles:
    rows = _rows_of_block(mean, 128)
    return _Tiles(rows=rows, warps=4 if rows <= 32 else 8, stages=3)


# H200, the same with their [2048, 768], decoding on their way: 0.45 ms for 512 rows, of 1024 two blocks of 64 for an
# expert 0.60 and one of 128, of which one fits on a multiprocessor, 0.70, of 2048 1.01 and 0.95. Columns 64 or 256,
# four warps, three or five stages and steps of 128 are no better in all. With 128 pairs an expert decoding in advance
# takes 1.35 for 0.95 here, and 1.46 for 1.51 where there are 32 experts of [5760, 2880] and [2880, 2880].
def _packed_tiles(form: str, mean: float) -> _Tiles:
    return _Tiles(rows=_rows_of_block(mean, 64 if mean <= 96 else 128), warps=8, stages=3 if form == "mq6" else 4)


_BN, _BK, _FEW_PAIRS = 128, 64, 128
_SPAN = 1024


def variants() -> Iterator[Variant]:
    for form, mean in (
        ("", 8), ("", 100), ("mq4", 8), ("mq4", 32), ("mq4", 100), ("mq4-uniform", 32), ("mq6", 100), ("mq8", 100),
    ):  # fmt: skip
        tiles = _packed_tiles(form, mean) if form else _dense_tiles(mean)
        yield Variant(
            name=f"moe_gemm {form or 'dense'} gate, {tiles.rows} rows",
            kernel=_moe_gemm,
            signature={
                "w": "*i32" if form else "*bf16", "scale": "*u8" if form else "*bf16",
                "row_scale": "*fp32" if form else "*bf16", "levels": "*i32" if form else "*bf16",
                "x": "*bf16", "order": "*i32", "counts": "*i32", "from_expert": "i32", "to_expert": "i32",
                "E": "i32:16", "N": "i32:16", "sharing": "i32", "n_tiles": "i32",
                "args": moe_pairs.signature("*bf16"),
            },
            constants={
                "EPILOGUE": moe_pairs.gate_pairs, "CONFIG": (64, 64, False, 0), "PAIR": 768, "EXPERTS": 128,
                "FORMAT": form, "WORDS": words_of_group(FORMATS[form]) if form else 0, "NVIDIA": False,
                "K": 2048, "BM": tiles.rows, "BN": _BN, "BK": _BK,
            },
            num_warps=tiles.warps,
            num_stages=tiles.stages,
            is_decode=False,
            is_nvidia_only=form != "",
            nvidia_constants={"NVIDIA": True},
        )  # fmt: skip
    yield Variant(
        name="moe_gemm by_quads",
        kernel=_by_quads,
        signature={"x": "*bf16", "out": "*bf16"},
        constants={"N_GROUPS": 64, "SPAN": _SPAN},
        num_warps=4,
        is_decode=False,
    )
