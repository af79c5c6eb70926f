"""Packed weights in fragments times many rows, both as int8: the products of prompts on Hopper's tensor cores.

Weights are decoded to int8 with a step for each row, some tiles at a time (int8_weights.py); activations are int8 with
a scale for each 256 columns (Int8Blocks), since a token may have blocks that are far larger than its others. A program
multiplies a tile, whose blocks TMA brings to shared memory: the sums of 256 columns are whole numbers, exact; they are
added in float32, times the row's scale for these columns, and the epilogue follows. So a row of the product has the
same bits whatever its neighbours are. The reference is matmul.linear_ref with int8_weights_ref. It knows nothing of
what an epilogue does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from runner.kernels import epilogues
from runner.kernels.compile import Variant
from runner.kernels.fragments import TILE
from runner.kernels.gemm import BLOCK_BYTES
from runner.kernels.gemv_tiles import is_small
from runner.kernels.grids import scale_value
from runner.kernels.int8_weights import FORMATS_AS_INT8, int8_weights, longest_level
from runner.kernels.values import (
    FEW_ROWS,
    MOST_ROWS,
    OPTIONS,
    ROWS_OF_BLOCKS,
    Int8Blocks,
    Matrix,
    PackedMatrix,
    cdiv,
    is_hopper,
)


@triton.jit(do_not_specialize=["M"])
def _gemm_int8(
    x, x_scale, w, largest, row_scale, M, R, K, first, count, N, args,
    EPILOGUE: tl.constexpr, CONFIG: tl.constexpr, PAIR: tl.constexpr, LONGEST: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """x: the R rows of Int8Blocks with K places, in blocks of [BM, 256]. w: `count` places of as many from `first` on,
    in blocks of [BN, 256].

    Programs that share weights come one after the other.
    """
    n_rows = tl.cdiv(M, BM)
    tile = tl.program_id(0) // n_rows
    first_row = tl.program_id(0) % n_rows * BM
    rows = first_row + tl.arange(0, BM)
    acc = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, 256):
        factor = tl.load(x_scale + start // 256 * R + rows)
        found = tl.dot(x.load([first_row, start]), w.load([tile * BN, start]).T, out_dtype=tl.int32)
        acc = tl.fma(found.to(tl.float32), tl.broadcast_to(factor[:, None], (BM, BN)), acc)
    first_place = first + tile * BN
    finish(
        acc, largest, row_scale, rows, M, first_place, first + count, N, first // BN + tile, args,
        EPILOGUE, CONFIG, PAIR, LONGEST, BM, BN,
    )  # fmt: skip


@triton.jit
def finish(
    acc, largest, row_scale, rows, M, first_place, n_places, N, tile, args,
    EPILOGUE: tl.constexpr, CONFIG: tl.constexpr, PAIR: tl.constexpr, LONGEST: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """The epilogue, for sums acc [BM, BN] of places from first_place on, which the rows' steps are still to multiply.

    largest: codes by place, before n_places; row_scale: by row [N].
    """
    place = tl.minimum(first_place + tl.arange(0, BN), n_places - 1)
    if PAIR == 0:
        n = first_place + tl.arange(0, BN)
        of_place = tl.minimum(place, N - 1)
        n_ok = n < N
    else:
        n = first_place // 2 + tl.arange(0, BN // 2)
        of_place = tl.minimum(place // 16 * 8 + place % 8, PAIR - 1) + place % 16 // 8 * PAIR
        n_ok = n < PAIR
    step = scale_value(tl.load(largest + place)) * tl.load(row_scale + of_place) * (LONGEST / 127.0)
    acc *= step[None, :]
    lo = acc
    hi = acc
    if PAIR:
        lo, hi = tl.split(tl.permute(tl.reshape(acc, (BM, BN // 16, 2, 8)), (0, 1, 3, 2)))
        lo = tl.reshape(lo, (BM, BN // 2))
        hi = tl.reshape(hi, (BM, BN // 2))
    EPILOGUE(lo, hi, rows, rows < M, n, n + PAIR, n_ok, tile, args, CONFIG)


@dataclass(frozen=True, kw_only=True)
class Int8Product:
    """A product of rows in int8 to be run. x: rotated as w wants it."""

    x: Int8Blocks
    w: PackedMatrix
    pair: int

    def __post_init__(self) -> None:
        assert self.x.shape[1] == self.w.shape[1], (self.x.shape, self.w.shape)
        assert self.w.layout == "fragments"
        assert self.w.pair == self.pair
        assert len(self.x.levels) % ROWS_OF_BLOCKS == 0

    @property
    def num_rows(self) -> int:
        return self.x.shape[0]


@dataclass(frozen=True, kw_only=True)
class GemmInt8(Int8Product):
    """One whose weights are decoded before."""

    @property
    def n_tiles(self) -> int:
        return -(-self._n_places // self._tiles.columns)

    def run(self, epilogue: Callable[..., Any], args: tuple[Any, ...], config: tuple[Any, ...]) -> None:
        """epilogue: a program (epilogues.py) with its arguments and constants."""
        x, w, tiles = self.x, self.w, self._tiles
        n_rows, k, n_places = self.num_rows, x.levels.shape[1], self._n_places
        step = max(1, BLOCK_BYTES // (k * tiles.columns)) * tiles.columns
        for first in range(0, n_places, step):
            count = min(step, n_places - first)
            dense = torch.empty(count, k, dtype=torch.int8, device=x.levels.device)
            int8_weights(w, dense, first_tile=first // TILE)
            _gemm_int8[(cdiv(n_rows, tiles.rows) * cdiv(count, tiles.columns),)](
                TensorDescriptor.from_tensor(x.levels, [tiles.rows, 256]), x.scale,
                TensorDescriptor.from_tensor(dense, [tiles.columns, 256]), w.largest, w.row_scale, n_rows,
                len(x.levels), k, first, count, w.shape[0], args,
                EPILOGUE=epilogue, CONFIG=config, PAIR=self.pair, LONGEST=longest_level(w),
                BM=tiles.rows, BN=tiles.columns, num_warps=tiles.warps, num_stages=_STAGES, **OPTIONS,
            )  # fmt: skip

    @property
    def _n_places(self) -> int:
        return TILE * len(self.w.packed)

    @property
    def _tiles(self) -> _Tiles:
        n_large = cdiv(self.num_rows, _LARGE.rows) * cdiv(self._n_places, _LARGE.columns)
        return _LARGE if n_large >= _ENOUGH else _SMALL


def takes_int8(w: Matrix, n_rows: int) -> bool:
    """Whether so many rows are multiplied with w in int8: where that was measured to be faster, and costs its format
    little."""
    if isinstance(w, Tensor) or w.layout != "fragments" or w.format not in FORMATS_AS_INT8:
        return False
    n_tiles, n_pairs = w.packed.shape[:2]
    is_short = is_small(n_tiles, n_pairs) and min(n_tiles * 16, n_pairs * 64) < _SHORT
    if n_rows <= (FEW_ROWS if is_short else MOST_ROWS):
        return False
    return is_hopper(w.packed)


# Rows or columns of a small matrix. H200, us with what makes x, of 32, 48 and 64 rows by decoding's kernels | in int8:
# [4096, 1024] 4.6, 5.8, 7.3 | 7.1, 8.4, 8.0; [2048, 1536] 6.0, 6.0, 7.3 | 9.6, 9.8, 10.0; [2048, 2048] 12.8, 17.7, 22.6
# | 8.7, 9.0, 8.7. docs/LOG.md has more.
_SHORT: Final = 2048


@dataclass(frozen=True, kw_only=True)
class _Tiles:
    rows: int
    columns: int
    warps: int


# H200, us, the product alone, large | small, of 512 rows, before blocks came by TMA: [28672, 4096] 149 | 207,
# [4096, 14336] 70 | 102, [4096, 4096] 25 | 32. 16 layers of Llama-3.1-8B, ms of a prompt of 1024 tokens: 10.8 in three
# stages, 15.3 in two, and 11.3 and 13.8 in blocks of 128 and of 64 columns.
_LARGE, _SMALL = _Tiles(rows=128, columns=128, warps=8), _Tiles(rows=64, columns=64, warps=4)
_ENOUGH: Final = 100  # of large tiles, for some 130 multiprocessors
_STAGES = 3


def variants() -> Iterator[Variant]:
    for tiles in (_LARGE, _SMALL):
        for program, config, pair in (
            (epilogues.store, (4, 4, False), 0),
            (epilogues.add_residual, (0, 0, False), 0),
            (epilogues.gate, (4, 4, False, 0), 14336),
        ):
            yield Variant(
                name=f"gemm_int8 {program.__name__}, {tiles.rows} rows",
                kernel=_gemm_int8,
                signature={
                    "x": f"tensordesc<i8[{tiles.rows}, 256]>", "x_scale": "*fp32",
                    "w": f"tensordesc<i8[{tiles.columns}, 256]>", "largest": "*u8", "row_scale": "*fp32", "M": "i32",
                    "R": "i32:16", "K": "i32:16", "first": "i32:16", "count": "i32:16", "N": "i32:16",
                    "args": epilogues.signature(program, "*bf16"),
                },
                constants={
                    "EPILOGUE": program, "CONFIG": config, "PAIR": pair, "LONGEST": 127,
                    "BM": tiles.rows, "BN": tiles.columns,
                },
                num_warps=tiles.warps,
                num_stages=_STAGES,
                is_decode=False,
                only_target="sm_90",
            )  # fmt: skip
