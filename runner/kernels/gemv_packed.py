"""Packed weights times 1 to 16 rows of int8 activations: the product of decoding and of verifying drafts.

y[m, n] = row_scale[n] * sum over groups g of scale[n, g] * x.scale[m, g] * sum over g of level * x level. The inner sum
is exact (int32); the outer one is float32 and in one order for every M. A program computes BN columns for up to 4
rows and hands each row to the epilogue by itself. Weights are read once, in planes, so that neighbouring lanes read
neighbouring words; the words of a group are accumulated by chained dp4a and scaled once. The reference is
matmul.linear_ref. It knows nothing of what an epilogue does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl

from runner.kernels import epilogues
from runner.kernels.compile import Variant
from runner.kernels.epilogues import columns, streams
from runner.kernels.grids import FORMATS, dot4, load_quads, scale_value, table, words_of_group
from runner.kernels.values import MOST_ROWS, OPTIONS, Int8Rows, PackedMatrix, is_nvidia, next_power_of_2


@triton.jit
def _all_quads(group, stride, ok, levels, FORMAT: tl.constexpr, NVIDIA: tl.constexpr):
    """The levels of a group's eight quads, as int8 in int32s: a tuple of eight [BN, BG]."""
    low = ()
    high = ()
    for j in tl.static_range(4):
        a, b = load_quads(group, stride, ok, levels, j, FORMAT, NVIDIA)
        low = low + (a,)  # type: ignore[assignment]
        high = high + (b,)  # type: ignore[assignment]
    return low + high


@triton.jit
def _row_total(quads, x_group, stride, ok, NVIDIA: tl.constexpr):
    """The sums of level * x level over each group [BN, BG] int32, x_group [BN, BG] pointing at the groups of one row.

    Every lane reads the words of x that it multiplies by: they are in the L1 cache, and no lane waits for another.
    """
    total = tl.zeros(ok.shape, tl.int32)
    for q in tl.static_range(8):
        total = dot4(quads[q], tl.load(x_group + q * stride, mask=ok, other=0), total, NVIDIA)
    return total


@triton.jit
def _gemv_packed(
    packed, scale, row_scale, levels, x, x_scale, M, N, n_groups, args,
    EPILOGUE: tl.constexpr, CONFIG: tl.constexpr, PAIR: tl.constexpr, FORMAT: tl.constexpr, WORDS: tl.constexpr,
    ROWS: tl.constexpr, BN: tl.constexpr, BG: tl.constexpr, NVIDIA: tl.constexpr,
):  # fmt: skip
    n_parts = tl.cdiv(M, ROWS)
    tile = tl.program_id(0) // n_parts
    first_row = tl.program_id(0) % n_parts * ROWS
    w_row, w_ok, n, n2, n_ok = columns(tile, N, PAIR, BN)
    row = w_row[:, None].to(tl.int64) + tl.zeros((BN, BG), tl.int64)
    sums = ()
    for _ in tl.static_range(ROWS):
        sums = sums + (tl.zeros((BN, BG), tl.float32),)  # type: ignore[assignment]
    for first in range(0, n_groups, BG):
        g = first + tl.arange(0, BG)[None, :] + tl.zeros((BN, BG), tl.int32)
        ok = w_ok[:, None] & (g < n_groups)
        quads = _all_quads(packed + row * (WORDS * n_groups) + g, n_groups, ok, levels, FORMAT, NVIDIA)
        unit = scale_value(tl.load(scale + row * n_groups + g, mask=ok, other=0))
        more = ()
        for m in tl.static_range(ROWS):
            at = (first_row + m) + tl.zeros_like(g)
            there = ok & (at < M)
            total = _row_total(quads, x + at * (8 * n_groups) + g, n_groups, there, NVIDIA)
            factor = tl.load(x_scale + at * n_groups + g, mask=there, other=0.0)
            more = more + (tl.fma(total.to(tl.float32), unit * factor, sums[m]),)  # type: ignore[assignment]
        sums = more
    by_column = tl.load(row_scale + w_row, mask=w_ok, other=0.0)
    for m in tl.static_range(ROWS):
        lo, hi = streams((tl.sum(sums[m], 1) * by_column)[None, :], PAIR, 1, BN)
        rows = first_row + m + tl.arange(0, 1)
        EPILOGUE(lo, hi, rows, rows < M, n, n2, n_ok, tile, args, CONFIG)


@dataclass(frozen=True, kw_only=True)
class GemvPacked:
    """A launch of the kernel. n_tiles: programs along N, each of which has a part of every row."""

    x: Int8Rows
    w: PackedMatrix
    pair: int

    def __post_init__(self) -> None:
        assert self.x.shape[1] == self.w.shape[1], (self.x.shape, self.w.shape)
        assert 1 <= self.x.shape[0] <= MOST_ROWS

    @property
    def num_rows(self) -> int:
        return self.x.shape[0]

    @property
    def n_tiles(self) -> int:
        return -(-self.pair // (_BN // 2)) if self.pair else -(-self.w.shape[0] // _BN)

    def run(self, epilogue: Callable[..., Any], args: tuple[Any, ...], config: tuple[Any, ...]) -> None:
        """epilogue: a program (epilogues.py) with its arguments and constants."""
        n_rows, n_groups = self.x.shape[0], self.w.packed.shape[2]
        rows = min(_ROWS, next_power_of_2(n_rows))
        _gemv_packed[(self.n_tiles * -(-n_rows // rows),)](
            self.w.packed, self.w.scale, self.w.row_scale, table(self.w.packed.device), self.x.words, self.x.scale,
            n_rows, self.w.shape[0], n_groups, args,
            EPILOGUE=epilogue, CONFIG=config, PAIR=self.pair, FORMAT=self.w.format, WORDS=self.w.packed.shape[1],
            ROWS=rows, BN=_BN, BG=min(_BG, next_power_of_2(n_groups)),
            NVIDIA=is_nvidia(self.w.packed), num_warps=_WARPS, **OPTIONS,
        )  # fmt: skip


# Columns and groups of a tile: one choice for every M, since the order of summation follows from it. More than 4 rows
# are several programs side by side, the later ones of which find the weights in the L2 cache: 8 rows would need more
# registers than some GPUs have. On an H200 (4096 columns, M = 1, CUDA graph, weights larger than L2) 6144 rows of mq4
# take 7.5 us, with tiles of 8 x 32 8.1 and with 8 x 64, the best but one that spills on other targets, 7.3.
_BN, _BG, _WARPS, _ROWS = 4, 64, 4, 4


def variants() -> Iterator[Variant]:
    for form, program, rows, pair, config in (
        ("mq4", epilogues.store, 1, 0, (512, 512, False)),
        ("mq4", epilogues.add_residual, 1, 0, (0, 0, False)),
        ("mq4", epilogues.gate, 1, 14336, (512, 512, False, 0)),
        ("mq4", epilogues.gate, 4, 14336, (512, 512, False, 0)),
        ("mq4-uniform", epilogues.add_residual, 4, 0, (0, 0, False)),
        ("mq6", epilogues.logits, 1, 0, (512, 512, False)),
        ("mq6", epilogues.capped_logits, 1, 0, (512, 512, False)),
        ("mq6", epilogues.gate_by, 4, 0, (0, 0, False, 1)),
        ("mq8", epilogues.store, 4, 0, (512, 512, True)),
    ):
        yield Variant(
            name=f"gemv_packed {form} {program.__name__} M={rows}",
            kernel=_gemv_packed,
            signature={
                "packed": "*i32", "scale": "*u8", "row_scale": "*fp32", "levels": "*i32", "x": "*i32",
                "x_scale": "*fp32", "M": "i32", "N": "i32:16", "n_groups": "i32:16",
                "args": epilogues.signature(program, "*bf16"),
            },
            constants={
                "EPILOGUE": program, "CONFIG": config, "PAIR": pair, "FORMAT": form,
                "WORDS": words_of_group(FORMATS[form]), "ROWS": rows, "BN": _BN, "BG": _BG, "NVIDIA": False,
            },
            num_warps=_WARPS,
            nvidia_constants={"NVIDIA": True},
        )  # fmt: skip
