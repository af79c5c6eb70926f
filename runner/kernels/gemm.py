"""Dense or packed weights times many rows, on tensor cores: the products of prefill.

Weights that are packed become the type of the activations on their way: level * scale, exact but for one rounding to
that type. Activations for packed weights come in planes [M, 32, K / 32], so that a step multiplies 32 slices of
neighbouring groups, each slice one element of every group. The reference is matmul.linear_ref. It knows nothing of what
an epilogue does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from runner.kernels import epilogues
from runner.kernels.compile import Variant
from runner.kernels.epilogues import columns, streams
from runner.kernels.grids import FORMATS, load_level, scale_value, table, words_of_group
from runner.kernels.values import OPTIONS, PackedMatrix


@triton.jit
def _rows_and_tile(M, n_tiles, BM: tl.constexpr, GROUP_M: tl.constexpr):
    """Programs in an order in which neighbours share rows or columns in the L2 cache."""
    pid = tl.program_id(0)
    n_rows = tl.cdiv(M, BM)
    first = pid // (GROUP_M * n_tiles) * GROUP_M
    height = tl.minimum(n_rows - first, GROUP_M)
    inside = pid % (GROUP_M * n_tiles)
    return first + inside % height, inside // height


@triton.jit
def _gemm_dense(
    w, x, M, N, K, n_tiles, args,
    EPILOGUE: tl.constexpr, CONFIG: tl.constexpr, PAIR: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    block, tile = _rows_and_tile(M, n_tiles, BM, 8)
    rows = block * BM + tl.arange(0, BM)
    row_ok = rows < M
    w_row, w_ok, n, n2, n_ok = columns(tile, N, PAIR, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for first in range(0, K, BK):
        k = first + tl.arange(0, BK)
        k_ok = k < K
        left = tl.load(x + rows[:, None].to(tl.int64) * K + k[None, :], mask=row_ok[:, None] & k_ok[None, :], other=0.0)
        right = tl.load(w + w_row[None, :].to(tl.int64) * K + k[:, None], mask=w_ok[None, :] & k_ok[:, None], other=0.0)
        acc = tl.dot(left, right.to(left.dtype), acc, input_precision="ieee")
    lo, hi = streams(acc, PAIR, BM, BN)
    EPILOGUE(lo, hi, rows, row_ok, n, n2, n_ok, tile, args, CONFIG)


@triton.jit
def _gemm_packed(
    packed, scale, row_scale, levels, x, M, N, n_groups, n_tiles, args,
    EPILOGUE: tl.constexpr, CONFIG: tl.constexpr, PAIR: tl.constexpr, FORMAT: tl.constexpr, WORDS: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BG: tl.constexpr,
):  # fmt: skip
    block, tile = _rows_and_tile(M, n_tiles, BM, 8)
    rows = block * BM + tl.arange(0, BM)
    row_ok = rows < M
    w_row, w_ok, n, n2, n_ok = columns(tile, N, PAIR, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for first in range(0, n_groups, BG):
        g = first + tl.arange(0, BG)
        g_ok = g < n_groups
        ok = w_ok[None, :] & g_ok[:, None]
        group = packed + w_row[None, :].to(tl.int64) * (WORDS * n_groups) + g[:, None]
        factor = scale_value(tl.load(scale + w_row[None, :].to(tl.int64) * n_groups + g[:, None], mask=ok, other=0))
        x_group = x + rows[:, None].to(tl.int64) * (32 * n_groups) + g[None, :]
        for element in range(32):
            left = tl.load(x_group + element * n_groups, mask=row_ok[:, None] & g_ok[None, :], other=0.0)
            level = load_level(group, n_groups, ok, levels, element // 4, element % 4, FORMAT)
            right = (level.to(tl.float32) * factor).to(left.dtype)
            acc = tl.dot(left, right, acc, input_precision="ieee")
    acc *= tl.load(row_scale + w_row, mask=w_ok, other=0.0)[None, :]
    lo, hi = streams(acc, PAIR, BM, BN)
    EPILOGUE(lo, hi, rows, row_ok, n, n2, n_ok, tile, args, CONFIG)


@dataclass(frozen=True, kw_only=True)
class Gemm:
    """A launch of one of the kernels. x: [M, K] for dense weights, planes [M, 32, K / 32] for packed ones.

    n_tiles: programs along N, each of which has a part of every row.
    """

    x: Tensor
    w: Tensor | PackedMatrix
    pair: int

    def __post_init__(self) -> None:
        assert self.x.is_contiguous()
        assert self.x[0].numel() == self.w.shape[1], (self.x.shape, self.w.shape)
        assert self.x.dim() == (2 if isinstance(self.w, Tensor) else 3)

    @property
    def num_rows(self) -> int:
        return len(self.x)

    @property
    def n_tiles(self) -> int:
        return -(-self.pair // (_BN // 2)) if self.pair else -(-self.w.shape[0] // _BN)

    def run(self, epilogue: Callable[..., Any], args: tuple[Any, ...], config: tuple[Any, ...]) -> None:
        """epilogue: a program (epilogues.py) with its arguments and constants."""
        m, (n, k) = len(self.x), self.w.shape
        bm = min(_BM, max(16, triton.next_power_of_2(m)))
        grid = (triton.cdiv(m, bm) * self.n_tiles,)
        if isinstance(self.w, Tensor):
            _gemm_dense[grid](
                self.w, self.x, m, n, k, self.n_tiles, args,
                EPILOGUE=epilogue, CONFIG=config, PAIR=self.pair, BM=bm, BN=_BN, BK=_BK,
                num_warps=_WARPS, num_stages=_STAGES, **OPTIONS,
            )  # fmt: skip
            return
        _gemm_packed[grid](
            self.w.packed, self.w.scale, self.w.row_scale, table(self.x.device), self.x, m, n, k // 32, self.n_tiles,
            args,
            EPILOGUE=epilogue, CONFIG=config, PAIR=self.pair, FORMAT=self.w.format, WORDS=self.w.packed.shape[1],
            BM=bm, BN=_BN, BG=_BG, num_warps=_WARPS, num_stages=_STAGES, **OPTIONS,
        )  # fmt: skip


_BM, _BN, _BK, _BG, _WARPS, _STAGES = 64, 64, 32, 16, 4, 3


def variants() -> Iterator[Variant]:
    tile = {"BM": _BM, "BN": _BN}
    size = {"M": "i32", "N": "i32:16", "n_tiles": "i32"}
    gate = {"EPILOGUE": epilogues.gate, "CONFIG": (64, 64, False, 0), "PAIR": 14336}
    residual = {"EPILOGUE": epilogues.add_residual, "CONFIG": (0, 0, False), "PAIR": 0}
    yield Variant(
        name="gemm_dense add_residual",
        kernel=_gemm_dense,
        signature={
            "w": "*bf16", "x": "*bf16", **size, "K": "i32:16",
            "args": epilogues.signature(epilogues.add_residual, "*bf16"),
        },
        constants={**residual, **tile, "BK": _BK},
        num_warps=_WARPS,
        num_stages=_STAGES,
        is_decode=False,
    )  # fmt: skip
    for form in ("mq4", "mq6"):
        yield Variant(
            name=f"gemm_packed {form} gate",
            kernel=_gemm_packed,
            signature={
                "packed": "*i32", "scale": "*u8", "row_scale": "*fp32", "levels": "*i32", "x": "*bf16", **size,
                "n_groups": "i32:16", "args": epilogues.signature(epilogues.gate, "*bf16"),
            },
            constants={
                **gate, **tile, "FORMAT": form, "WORDS": words_of_group(FORMATS[form]), "BG": _BG
            },
            num_warps=_WARPS,
        num_stages=_STAGES,
        is_decode=False,
        )  # fmt: skip
