"""Dense weights times 1 to 16 rows: the small product of unquantized matrices.

Weights of 16 bits go through tensor cores, always with 16 rows, of which those that do not exist are 0: 16 rows cost
what one does, and a row has the same bits for every M. Weights of 32 bits are multiplied and added one by one, in one
order for every M; gemv_packed.py has the same shape. Sums are float32. The reference is matmul.linear_ref.
It knows nothing of what an epilogue does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from runner.kernels import epilogues
from runner.kernels.compile import Variant
from runner.kernels.epilogues import columns, streams
from runner.kernels.values import MOST_ROWS, OPTIONS, has_pdl, is_nvidia, next_power_of_2, pdl_option


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


@triton.jit
def _gemv_dense_16_bits(
    w, x, M, N, K, args,
    EPILOGUE: tl.constexpr, CONFIG: tl.constexpr, PAIR: tl.constexpr,
    ROWS: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(0)
    w_row, w_ok, n, n2, n_ok = columns(tile, N, PAIR, BN)
    rows = tl.arange(0, ROWS)
    w_at = w + w_row.to(tl.int64)[:, None] * K
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    total = tl.zeros((ROWS, BN), tl.float32)
    for first in range(0, K, BK):
        k = first + tl.arange(0, BK)[None, :]
        weights = tl.load(w_at + k, mask=w_ok[:, None] & (k < K), other=0.0, eviction_policy="evict_first")
        values = tl.load(x + rows[:, None] * K + k, mask=(rows < M)[:, None] & (k < K), other=0.0)
        total = tl.dot(values, tl.trans(weights), total)
    lo, hi = streams(total, PAIR, ROWS, BN)
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
        columns_of_tile = _DOT_BN if self._is_small else _BN
        return -(-2 * self.pair // columns_of_tile) if self.pair else -(-self.w.shape[0] // columns_of_tile)

    @property
    def _is_small(self) -> bool:
        return self.w.itemsize == 2

    def run(self, epilogue: Callable[..., Any], args: tuple[Any, ...], config: tuple[Any, ...]) -> None:
        """epilogue: a program (epilogues.py) with its arguments and constants."""
        (n, k), n_rows = self.w.shape, len(self.x)
        if self._is_small:
            assert self.x.dtype == self.w.dtype, (self.x.dtype, self.w.dtype)
            pdl, (columns_at_once, warps, stages) = has_pdl(self.w), _cut(self.n_tiles, nvidia=is_nvidia(self.w))
            _gemv_dense_16_bits[(self.n_tiles,)](
                self.w, self.x, n_rows, n, k, args,
                EPILOGUE=epilogue, CONFIG=config, PAIR=self.pair, ROWS=MOST_ROWS, BN=_DOT_BN, BK=columns_at_once,
                PDL=pdl, num_warps=warps, num_stages=stages, **pdl_option(pdl), **OPTIONS,
            )  # fmt: skip
            return
        rows = min(_ROWS, next_power_of_2(n_rows))
        _gemv_dense[(self.n_tiles * -(-n_rows // rows),)](
            self.w, self.x, n_rows, n, k, args,
            EPILOGUE=epilogue, CONFIG=config, PAIR=self.pair,
            ROWS=rows, BN=_BN, BK=min(_BK, next_power_of_2(k)),
            num_warps=_WARPS, **OPTIONS,
        )  # fmt: skip


# One choice for every M, since the order of summation follows from it.
_BN, _BK, _WARPS, _ROWS = 4, 256, 4, 2
_DOT_BN = 16


def _cut(n_tiles: int, *, nvidia: bool) -> tuple[int, int, int]:
    """BK, warps and stages of a product of 16 bits, whose sums have one order in any case.

    One warp alone spills on RDNA, and so do 256 columns where Triton 3.6 compiles them.

    H200, bf16, us for M = 1 and 16, and by sums one by one: 4096 x 4096 11.3, 11.3 (11.9, 57), 28672 x 4096 58, 60
    (59, 324), 4096 x 14336 33, 34 (35, 220). cuBLAS, 8 rows: 12.4, 62, 32.
    """
    if not nvidia:
        return 128, 2, 3
    return (128, 1, 4) if n_tiles >= 512 else (256, 2, 3)


def variants() -> Iterator[Variant]:
    for program, form, config, n_tiles in (
        (epilogues.store, "bf16", (512, 512, False), 256),
        (epilogues.add_residual, "bf16", (0, 0, True), 256),
        (epilogues.logits, "bf16", (512, 512, False), 512),
        (epilogues.capped_logits, "bf16", (512, 512, False), 512),
        (epilogues.gate_by, "bf16", (0, 0, False, 1), 16),
        (epilogues.add_residual, "fp32", (0, 0, True), 1024),
    ):
        is_small, is_large = form == "bf16", n_tiles == 512
        columns_at_once, warps, stages = _cut(n_tiles, nvidia=is_large) if is_small else (_BK, _WARPS, 3)
        yield Variant(
            name=f"gemv_dense {form} {program.__name__}",
            kernel=_gemv_dense_16_bits if is_small else _gemv_dense,
            signature={
                "w": f"*{form}", "x": f"*{form}", "M": "i32", "N": "i32:16", "K": "i32:16",
                "args": epilogues.signature(program, f"*{form}"),
            },
            constants={
                "EPILOGUE": program, "CONFIG": config, "PAIR": 0, "ROWS": MOST_ROWS if is_small else _ROWS,
                "BN": _DOT_BN if is_small else _BN, "BK": columns_at_once,
            },
            num_warps=warps,
            num_stages=stages,
            has_pdl=is_small,
            is_nvidia_only=is_large,
        )  # fmt: skip
