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
    n_parts = tl.cdiv(M, ROWS)
    tile = tl.program_id(0) // n_parts
    first_row = tl.program_id(0) % n_parts * ROWS
    w_row, w_ok, n, n2, n_ok = columns(tile, N, PAIR, BN)
    row = w_row[:, None].to(tl.int64) + tl.zeros((BN, BK), tl.int64)
    sums = ()
    for _ in tl.static_range(ROWS):
        sums = sums + (tl.zeros((BN, BK), tl.float32),)  # type: ignore[assignment]
    for first in range(0, K, BK):
        k = first + tl.arange(0, BK)[None, :] + tl.zeros((BN, BK), tl.int32)
        ok = w_ok[:, None] & (k < K)
        weights = tl.load(w + row * K + k, mask=ok, other=0.0, eviction_policy="evict_first").to(tl.float32)
        more = ()
        for m in tl.static_range(ROWS):
            at = (first_row + m) + tl.zeros_like(k)
            values = tl.load(x + at * K + k, mask=ok & (at < M), other=0.0).to(tl.float32)
            more = more + (tl.fma(weights, values, sums[m]),)  # type: ignore[assignment]
        sums = more
    for m in tl.static_range(ROWS):
        lo, hi = streams(tl.sum(sums[m], 1)[None, :], PAIR, 1, BN)
        rows = first_row + m + tl.arange(0, 1)
        EPILOGUE(lo, hi, rows, rows < M, n, n2, n_ok, tile, args, CONFIG)


@dataclass(frozen=True, kw_only=True)
class GemvDense:
    """A launch of the kernel. n_tiles: programs along N, each of which has a part of every row."""

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
    def n_tiles(self) -> int:
        return -(-self.pair // (_BN // 2)) if self.pair else -(-self.w.shape[0] // _BN)

    def run(self, epilogue: Callable[..., Any], args: tuple[Any, ...], config: tuple[Any, ...]) -> None:
        """epilogue: a program (epilogues.py) with its arguments and constants."""
        n, k = self.w.shape
        rows = min(_ROWS, triton.next_power_of_2(len(self.x)))
        _gemv_dense[(self.n_tiles * -(-len(self.x) // rows),)](
            self.w, self.x, len(self.x), n, k, args,
            EPILOGUE=epilogue, CONFIG=config, PAIR=self.pair,
            ROWS=rows, BN=_BN, BK=min(_BK, triton.next_power_of_2(k)),
            num_warps=_WARPS, **OPTIONS,
        )  # fmt: skip


# One choice for every M, since the order of summation follows from it; more than 8 rows are two programs.
_BN, _BK, _WARPS, _ROWS = 4, 256, 4, 8


def variants() -> Iterator[Variant]:
    for program, rows, config in (
        (epilogues.store, 1, (512, 512, False)),
        (epilogues.add_residual, 8, (0, 0, True)),
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
