"""Products of more than 16 rows with experts that have few of them each, of weights in fragments, on NVIDIA.

In a prompt of some tens of tokens most experts have a handful of pairs of a row and an expert, and some have many. They
are multiplied as int8 by the instruction that decoding takes (gemv_fragments.py), in blocks of 8 or 16 pairs of one
expert: for most its weights are decoded once, and a program is one block, since a program for all of an expert's would
hold up the others. It has 16 columns, of gate and up beside each other, or 32. The pairs come sorted by expert
(moe_groups.py), and a lane finds its rows by their numbers. moe_int8.py and moe_gemm.py are for experts with more
pairs, and the references are in moe_matmul.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import torch
import triton
import triton.language as tl

from runner.kernels import moe_pairs
from runner.kernels.compile import Variant
from runner.kernels.epilogues import ACTIVATIONS
from runner.kernels.fragment_products import half_tables_of_lanes
from runner.kernels.fragments import BLOCK, TILE
from runner.kernels.gemv_fragments import loaded_tiles, rows_of_sums, step_of_blocks
from runner.kernels.grids import half_tables, table
from runner.kernels.moe_fragments import check_apart, operands_to_try
from runner.kernels.moe_gemm import block_of
from runner.kernels.moe_groups import Groups, group_pairs
from runner.kernels.values import (
    MOST_ROWS,
    OPTIONS,
    Int8Fragments,
    Matrix,
    PackedMatrix,
    is_nvidia,
    next_power_of_2,
    register_option,
)


@triton.jit
def _rows_of(order, first, end, sharing):
    """Of 8 pairs from place `first` on, the rows of x [1, 128] of which lanes want words, even notes and odd notes.

    Beyond the last pair it is the last one's. One by one, since what is looked up together has another layout, and
    each load would bring it to that of x.
    """
    i = tl.arange(0, 128)[None, :]
    of_word = 0 * i
    of_even = 0 * i
    of_odd = 0 * i
    for column in tl.static_range(8):
        row = tl.load(order + tl.minimum(first + column, end - 1)) // sharing
        of_word = tl.where(i // 16 == column, row, of_word)
        of_even = tl.where(i // 4 % 4 * 2 == column, row, of_even)
        of_odd = tl.where(i // 4 % 4 * 2 + 1 == column, row, of_odd)
    return tl.max_constancy(of_word, [1, 16]), tl.max_constancy(of_even, [1, 4]), tl.max_constancy(of_odd, [1, 4])


@triton.jit
def _blocks_of_fragments(
    packed, high, scale, row_scale, levels, halves, x, notes, order, counts, E, N, sharing, args,
    EPILOGUE: tl.constexpr, CONFIG: tl.constexpr, PAIR: tl.constexpr, EXPERTS: tl.constexpr,
    FORMAT: tl.constexpr, BLOCKS: tl.constexpr, P: tl.constexpr, W: tl.constexpr, NVIDIA: tl.constexpr,
):  # fmt: skip
    """x, notes: Int8Fragments of rows apart, each of which `sharing` pairs have. PAIR: as in moe_fragments.py."""
    GAP: tl.constexpr = PAIR // 16 if PAIR > 0 else 1  # tiles between both of a program
    S: tl.constexpr = 4 * W
    expert, first, end = block_of(counts, tl.program_id(1), E, EXPERTS, 8 * BLOCKS)
    if expert < E:
        tile = tl.program_id(0) * (1 if PAIR > 0 else 2)
        i = tl.arange(0, 128)[None, :]
        r = tl.arange(0, S)
        p = (4 * (r % W) + r // W)[:, None]  # a warp has all that one lane adds up, as in gemv_fragments.py
        place = (expert.to(tl.int64) * (N // 16) + tile) * P
        words = packed + (place + p) * 128 + i
        tops = high + (place + p) * 128 + i // 4 * 4 + i % 4
        codes = scale + (place + p) * 32 + i // 16 * 4 + i % 4
        waiting = loaded_tiles(words, tops, codes, 0, (p < P) & (i >= 0), GAP * P, FORMAT, 2, NVIDIA)
        tables = half_tables_of_lanes(halves, S, FORMAT, NVIDIA)
        at = ()
        sums = ()
        for b in tl.static_range(BLOCKS):
            of_word, of_even, of_odd = _rows_of(order, first + 8 * b, end, sharing)
            words_at = x + of_word * (P * 16) + p * 16 + i % 16
            even_at = notes + of_even * (P * 4) + p * 4 + i % 4
            at = at + ((words_at, even_at, notes + of_odd * (P * 4) + p * 4 + i % 4),)  # type: ignore[assignment]  # noqa: RUF005
        for _ in tl.static_range(2 * BLOCKS):
            sums = sums + (tl.zeros((S, 128), tl.float32),)  # type: ignore[assignment]  # noqa: RUF005
        for start in range(0, P, S):
            ok = (start + p < P) & (i >= 0)
            loaded = ()
            for b in tl.static_range(BLOCKS):
                of_x, even, odd = at[b]  # type: ignore[var-annotated]
                of_x = tl.load(of_x + start * 16, mask=ok, other=0)
                even = tl.load(even + start * 4, mask=ok, other=0.0)
                loaded = loaded + ((of_x, even, tl.load(odd + start * 4, mask=ok, other=0.0)),)  # type: ignore[assignment]  # noqa: RUF005
            sums = step_of_blocks(waiting, sums, levels, tables, loaded, FORMAT, BLOCKS, 2, NVIDIA)
            on = (start + S) * 128
            ok = (start + S + p < P) & (i >= 0)
            waiting = loaded_tiles(words + on, tops + on, codes + on // 4, 0, ok, GAP * P, FORMAT, 2, NVIDIA)
        n = tile * 16 + tl.arange(0, 16)
        factor = 0.5 * tl.load(row_scale + expert * N + n)
        factor2 = 0.5 * tl.load(row_scale + expert * N + (n + GAP * 16))
        for b in tl.static_range(BLOCKS):
            places = first + 8 * b + tl.arange(0, 8)
            pairs = tl.load(order + places, mask=places < end, other=0)
            lo = rows_of_sums(sums[b], S) * factor[None, :]
            hi = rows_of_sums(sums[BLOCKS + b], S) * factor2[None, :]
            if PAIR > 0:
                EPILOGUE(lo, hi, pairs, places < end, n, n + PAIR, n >= 0, tile, args, CONFIG)
            else:
                EPILOGUE(lo, lo, pairs, places < end, n, n, n >= 0, tile, args, CONFIG)
                EPILOGUE(hi, hi, pairs, places < end, n + 16, n + 16, n >= 0, tile + 1, args, CONFIG)


@dataclass(frozen=True, kw_only=True)
class BlocksOfExperts:
    """A launch of the kernel. x: each row apart (C = 1), of rows, or of pairs; w: the matrices of all experts."""

    x: Int8Fragments
    w: PackedMatrix
    groups: Groups

    def __post_init__(self) -> None:
        check_apart(self.x, self.w)
        assert len(self.groups.order) % self.x.num_rows == 0

    def pairs(
        self, epilogue: Callable[..., Any], args: tuple[Any, ...], config: tuple[Any, ...], pair: int, n_columns: int
    ) -> None:
        """Each pair's product [n_columns] to the epilogue. pair: see epilogues.columns."""
        w, groups, nvidia = self.w, self.groups, is_nvidia(self.w.packed)
        n_experts, n_pairs = len(groups.counts), w.packed.shape[1]
        n = w.shape[0] // n_experts
        assert n % TILE == pair % TILE == 0
        assert pair or n % (2 * TILE) == 0
        all_pairs = len(groups.order)
        blocks = _blocks_at_once(all_pairs / n_experts)
        most_blocks = all_pairs // (BLOCK * blocks) + min(n_experts, all_pairs)  # an expert's last one may have few
        high = w.packed if w.high is None else w.high
        _blocks_of_fragments[(n_columns // (TILE if pair else 2 * TILE), most_blocks)](
            w.packed, high, w.scale, w.row_scale, table(w.packed.device), half_tables(w.packed.device),
            self.x.words, self.x.notes, groups.order, groups.counts, n_experts, n,
            all_pairs // self.x.num_rows, args,
            EPILOGUE=epilogue, CONFIG=config, PAIR=pair, EXPERTS=next_power_of_2(n_experts), FORMAT=w.format,
            BLOCKS=blocks, P=n_pairs, W=_warps(n_pairs), NVIDIA=nvidia, num_warps=_warps(n_pairs), num_stages=1,
            **register_option(_MOST_REGISTERS[blocks] if nvidia else None), **OPTIONS,
        )  # fmt: skip


def multiplies_in_blocks(w: Matrix) -> bool:
    """Whether the kernel takes these experts' matrices, and is right on the device that they are on: see layouts.py."""
    if not isinstance(w, PackedMatrix) or w.layout != "fragments":
        return False
    return not is_nvidia(w.packed) or _works(w.format, w.packed.device)


def try_blocks(form: str, device: torch.device) -> bool:
    """Whether it is: lanes are a compiler's to decide."""
    w, dense, x, rows = operands_to_try(form, device)
    gated, experts = torch.empty(3, TILE, device=device), torch.zeros(3, 1, dtype=torch.int32, device=device)
    args = (gated, TILE, (gated, 0.0, 0.0), gated, (experts, 1, 2 * TILE))
    BlocksOfExperts(x=x, w=w, groups=group_pairs(experts, 1)).pairs(
        moe_pairs.gate_pairs, args, (0, 0, False, ACTIVATIONS["silu"]), TILE, TILE
    )
    gate, up = (rows @ dense[: 2 * TILE].T).chunk(2, 1)
    wanted = gate.sigmoid() * gate * up
    return bool((gated.cpu() - wanted).norm() < 1e-4 * wanted.norm())


_works = cache(try_blocks)


def takes_blocks(w: PackedMatrix, n_rows: int, n_slots: int, n_experts: int) -> bool:
    """Whether the kernel is for these: more rows than decoding's are for, and few pairs an expert."""
    is_whole = w.layout == "fragments" and w.shape[0] // n_experts % (2 * TILE) == 0
    return is_whole and n_rows > MOST_ROWS and n_rows * n_slots <= MOST_PAIRS * n_experts


def _blocks_at_once(mean: float) -> int:
    """Blocks of 8 pairs of a program, where experts have so many on average."""
    return 1 if mean <= BLOCK else 2


def _warps(n_pairs: int) -> int:
    """Which share a program's pairs of groups."""
    return 2 if n_pairs >= 32 else 1


MOST_PAIRS: Final = 16
"""Pairs of an expert, on average, up to which this is for."""
# H100, mq4, 128 experts of [1536, 2048] and [2048, 768], 8 a row at random: us of both products and what they read, of
# 64, 128, 200, 256 and 384 rows, in moe_gemm.py 271, 276, 326, 322, 433; here, one warp, in blocks of 8 pairs 124, 185,
# 247, 309, 430, of 16 173, 180, 218, 287, 372. Two warps take gate and up of 200 rows from 134 to 125 and down, where
# 12 pairs of groups are too few, from 84 to 136. Blocks of 8 take 4 % less with 168 registers than with 255; 16 spill.
# (By programs that go over all blocks of an expert; whole prompts by this kernel and by moe_gemm.py: docs/LOG.md.)
_MOST_REGISTERS: Final = {1: 168, 2: 255}  # by blocks


def variants() -> Iterator[Variant]:
    for form, blocks, pair, n_pairs in (
        ("mq4", 1, 768, 32), ("mq4", 2, 768, 32), ("mq4", 1, 0, 12), ("mq4", 2, 0, 12),
        ("mq4-uniform", 2, 768, 32), ("mq6", 2, 768, 32),
    ):  # fmt: skip
        program = moe_pairs.gate_pairs if pair else moe_pairs.store_pairs
        yield Variant(
            name=f"moe_blocks {form} {program.__name__}, {8 * blocks} pairs",
            kernel=_blocks_of_fragments,
            signature={
                "packed": "*i32", "high": "*i16" if form == "mq6" else "*i32", "scale": "*u8", "row_scale": "*fp32",
                "levels": "*i32", "halves": "*i32", "x": "*i32", "notes": "*fp32", "order": "*i32", "counts": "*i32",
                "E": "i32:16", "N": "i32:16", "sharing": "i32", "args": moe_pairs.signature("*bf16"),
            },
            constants={
                "EPILOGUE": program, "CONFIG": (0, 0, False, 0) if pair else (0, 0, False), "PAIR": pair,
                "EXPERTS": 128, "FORMAT": form, "BLOCKS": blocks, "P": n_pairs, "W": _warps(n_pairs), "NVIDIA": True,
            },
            num_warps=_warps(n_pairs),
            num_stages=1,
            is_decode=False,
            is_nvidia_only=True,
            most_registers=_MOST_REGISTERS[blocks],
        )  # fmt: skip
