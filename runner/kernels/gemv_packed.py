"""Packed weights times 1 to 16 rows of int8 activations: the product of decoding and of verifying drafts.

y[m, n] = row_scale[n] * sum over groups g of scale[n, g] * x.scale[m, g] * sum over g of level * x level. The inner sum
is exact (int32); the outer one is float32 and in one order for every M. A program computes BN columns for all rows
and hands each row to the epilogue by itself. Weights are read once, in planes, so that neighbouring lanes read
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
from runner.kernels.values import MOST_ROWS, OPTIONS, Int8Rows, PackedMatrix, is_nvidia


@triton.jit
def _add_quads(
    total, group, ok, levels, x_group, x_ok, n_groups, j, FORMAT: tl.constexpr, NVIDIA: tl.constexpr
):  # fmt: skip
    """total [ROWS, BN, BG] plus the products of quads j and j + 4 of each group."""
    low, high = load_quads(group, n_groups, ok, levels, j, FORMAT, NVIDIA)
    x_low = tl.load(x_group + j * n_groups, mask=x_ok, other=0)
    x_high = tl.load(x_group + (j + 4) * n_groups, mask=x_ok, other=0)
    total = dot4(
        tl.broadcast_to(low[None, :, :], total.shape), tl.broadcast_to(x_low[:, None, :], total.shape), total, NVIDIA
    )
    return dot4(
        tl.broadcast_to(high[None, :, :], total.shape), tl.broadcast_to(x_high[:, None, :], total.shape), total, NVIDIA
    )


@triton.jit
def _gemv_packed(
    packed, scale, row_scale, levels, x, x_scale, M, N, n_groups, args,
    EPILOGUE: tl.constexpr, CONFIG: tl.constexpr, PAIR: tl.constexpr, FORMAT: tl.constexpr, WORDS: tl.constexpr,
    ROWS: tl.constexpr, BN: tl.constexpr, BG: tl.constexpr, NVIDIA: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(0)
    w_row, w_ok, n, n2, n_ok = columns(tile, N, PAIR, BN)
    m = tl.arange(0, ROWS)
    acc = tl.zeros((ROWS, BN, BG), tl.float32)
    for first in range(0, n_groups, BG):
        g = first + tl.arange(0, BG)
        g_ok = g < n_groups
        ok = w_ok[:, None] & g_ok[None, :]
        group = packed + w_row[:, None].to(tl.int64) * (WORDS * n_groups) + g[None, :]
        code = tl.load(scale + w_row[:, None].to(tl.int64) * n_groups + g[None, :], mask=ok, other=0)
        x_ok = (m < M)[:, None] & g_ok[None, :]
        x_group = x + m[:, None] * (8 * n_groups) + g[None, :]
        total = tl.zeros((ROWS, BN, BG), tl.int32)
        if NVIDIA:
            for j in tl.static_range(4):
                total = _add_quads(total, group, ok, levels, x_group, x_ok, n_groups, j, FORMAT, NVIDIA)
        else:  # unrolled, the portable form would need more registers than there are
            for j in range(4):
                total = _add_quads(total, group, ok, levels, x_group, x_ok, n_groups, j, FORMAT, NVIDIA)
        factor = tl.load(x_scale + m[:, None] * n_groups + g[None, :], mask=x_ok, other=0.0)
        acc = tl.fma(total.to(tl.float32), scale_value(code)[None, :, :] * factor[:, None, :], acc)
    by_row = tl.sum(acc, 2) * tl.load(row_scale + w_row, mask=w_ok, other=0.0)[None, :]
    for row in tl.static_range(ROWS):
        one = tl.sum(tl.where((m == row)[:, None], by_row, 0.0), 0)
        lo, hi = streams(one[None, :], PAIR, 1, BN)
        rows = row + tl.arange(0, 1)
        EPILOGUE(lo, hi, rows, rows < M, n, n2, n_ok, tile, args, CONFIG)


@dataclass(frozen=True, kw_only=True)
class GemvPacked:
    """A launch of the kernel. tile: columns that one program stores."""

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
    def tile(self) -> int:
        return _BN // 2 if self.pair else _BN

    def launch(
        self, epilogue: Callable[..., Any], args: tuple[Any, ...], config: tuple[Any, ...], n_tiles: int
    ) -> None:
        n_rows, n_groups = self.x.shape[0], self.w.packed.shape[2]
        _gemv_packed[(n_tiles,)](
            self.w.packed, self.w.scale, self.w.row_scale, table(self.w.packed.device), self.x.words, self.x.scale,
            n_rows, self.w.shape[0], n_groups, args,
            EPILOGUE=epilogue, CONFIG=config, PAIR=self.pair, FORMAT=self.w.format, WORDS=self.w.packed.shape[1],
            ROWS=triton.next_power_of_2(n_rows), BN=_BN, BG=min(_BG, triton.next_power_of_2(n_groups)),
            NVIDIA=is_nvidia(self.w.packed), num_warps=_WARPS, **OPTIONS,
        )  # fmt: skip


# Columns and groups of a tile: one choice for every M, since the order of summation follows from it.
_BN, _BG, _WARPS = 8, 32, 4


def variants() -> Iterator[Variant]:
    for form, program, rows, pair, config in (
        ("mq4", epilogues.store, 1, 0, (512, 512, False)),
        ("mq4", epilogues.add_residual, 1, 0, (0, 0, False)),
        ("mq4", epilogues.gate, 1, 14336, (512, 512, False, 0)),
        ("mq4", epilogues.gate, 16, 14336, (512, 512, False, 0)),
        ("mq4-uniform", epilogues.add_residual, 16, 0, (0, 0, False)),
        ("mq6", epilogues.logits, 1, 0, (512, 512, False)),
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
