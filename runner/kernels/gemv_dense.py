"""Dense weights times 1 to 16 rows: the small product of unquantized matrices.

Products and sums are float32, in one order for every M; see gemv_packed.py, whose shape this has. The reference is
matmul.linear_ref. It knows nothing of what an epilogue does.
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
from runner.kernels.values import MOST_ROWS, OPTIONS


@triton.jit
def _gemv_dense(
    w, x, M, N, K, args,
    EPILOGUE: tl.constexpr, CONFIG: tl.constexpr, PAIR: tl.constexpr,
    ROWS: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(0)
    w_row, w_ok, n, n2, n_ok = columns(tile, N, PAIR, BN)
    m = tl.arange(0, ROWS)
    acc = tl.zeros((ROWS, BN, BK), tl.float32)
    for first in range(0, K, BK):
        k = first + tl.arange(0, BK)
        k_ok = k < K
        at = w_row[:, None].to(tl.int64) * K + k[None, :]
        weights = tl.load(w + at, mask=w_ok[:, None] & k_ok[None, :], other=0.0, eviction_policy="evict_first")
        rows = tl.load(x + m[:, None] * K + k[None, :], mask=(m < M)[:, None] & k_ok[None, :], other=0.0)
        acc = tl.fma(weights.to(tl.float32)[None, :, :] + tl.zeros_like(acc), rows.to(tl.float32)[:, None, :], acc)
    by_row = tl.sum(acc, 2)
    for row in tl.static_range(ROWS):
        one = tl.sum(tl.where((m == row)[:, None], by_row, 0.0), 0)
        lo, hi = streams(one[None, :], PAIR, 1, BN)
        numbers = row + tl.arange(0, 1)
        EPILOGUE(lo, hi, numbers, numbers < M, n, n2, n_ok, tile, args, CONFIG)


@dataclass(frozen=True, kw_only=True)
class GemvDense:
    """A launch of the kernel. tile: columns that one program stores."""

    x: Tensor
    w: Tensor
    pair: int

    def __post_init__(self) -> None:
        assert self.x.shape[1] == self.w.shape[1], (self.x.shape, self.w.shape)
        assert 1 <= len(self.x) <= MOST_ROWS
        assert self.x.is_contiguous()
        assert self.w.is_contiguous()

    @property
    def num_rows(self) -> int:
        return len(self.x)

    @property
    def tile(self) -> int:
        return _BN // 2 if self.pair else _BN

    def launch(
        self, epilogue: Callable[..., Any], args: tuple[Any, ...], config: tuple[Any, ...], n_tiles: int
    ) -> None:
        n, k = self.w.shape
        _gemv_dense[(n_tiles,)](
            self.w, self.x, len(self.x), n, k, args,
            EPILOGUE=epilogue, CONFIG=config, PAIR=self.pair,
            ROWS=triton.next_power_of_2(len(self.x)), BN=_BN, BK=min(_BK, triton.next_power_of_2(k)),
            num_warps=_WARPS, **OPTIONS,
        )  # fmt: skip


# One choice for every M, since the order of summation follows from it.
_BN, _BK, _WARPS = 4, 256, 4


def variants() -> Iterator[Variant]:
    for program, rows, config in (
        (epilogues.store, 1, (512, 512, False)),
        (epilogues.add_residual, 16, (0, 0, True)),
    ):
        yield Variant(
            name=f"gemv_dense {program.__name__} M={rows}",
            kernel=_gemv_dense,
            signature={
                "w": "*bf16", "x": "*bf16", "M": "i32", "N": "i32:16", "K": "i32:16",
                "args": epilogues.signature(program, "*bf16"),
            },
            constants={"EPILOGUE": program, "CONFIG": config, "PAIR": 0, "ROWS": rows, "BN": _BN, "BK": _BK},
            num_warps=_WARPS,
        )  # fmt: skip
