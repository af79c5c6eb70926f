"""Products of rows with experts that have few of them each, of weights in fragments, on NVIDIA.

In a prompt of some tens of tokens most experts have a handful of pairs of a row and an expert, and some have many; in a
step of several tokens some have two or three. They are multiplied as int8 by the instruction that decoding takes
(gemv_fragments.py), in blocks of 8 or 16 pairs of one expert: for most its weights are decoded once, and a program is
one block, since a program for all of an expert's would hold up the others. It has 16 columns, of gate and up beside
each other, or 32. The pairs come sorted by expert (moe_groups.py), and a lane finds its rows by their numbers.
moe_int8.py and moe_gemm.py are for experts with more pairs, and the references are in moe_matmul.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from runner.kernels import moe_pairs
from runner.kernels.compile import Variant
from runner.kernels.epilogues import ACTIVATIONS
from runner.kernels.fragment_products import half_tables_of_lanes
from runner.kernels.fragments import BLOCK, TILE
from runner.kernels.gemv_fragments import loaded_tiles, rows_of_sums, step_of_blocks
from runner.kernels.grids import half_tables, table
from runner.kernels.moe_fragments import (
    PAIRS_WARPS,
    WARPS_TO_TRY,
    GemvFragmentsOfExperts,
    check_apart,
    operands_to_try,
    warps_of_slot,
)
from runner.kernels.moe_groups import Groups, block_of, group_pairs
from runner.kernels.moe_slots import add_slots, slots_at_once
from runner.kernels.values import (
    GROUP,
    MOST_ROWS,
    OPTIONS,
    Int8Fragments,
    Matrix,
    PackedMatrix,
    has_pdl,
    is_nvidia,
    next_power_of_2,
    pdl_option,
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
    packed, high, scale, row_scale, levels, halves, x, notes, order, firsts, E, N, sharing, args,
    EPILOGUE: tl.constexpr, CONFIG: tl.constexpr, PAIR: tl.constexpr, EXPERTS: tl.constexpr, FEW: tl.constexpr,
    FORMAT: tl.constexpr, BLOCKS: tl.constexpr, P: tl.constexpr, W: tl.constexpr, NVIDIA: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """x, notes: Int8Fragments of rows apart, each of which `sharing` pairs have. PAIR: as in moe_fragments.py."""
    GAP: tl.constexpr = PAIR // 16 if PAIR > 0 else 1  # tiles between both of a program
    S: tl.constexpr = 4 * W
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    expert, first, end = block_of(firsts, tl.program_id(1), E, EXPERTS, 8 * BLOCKS, FEW)
    if first < end:
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
    """A launch of the kernel. x: each row apart (C = 1), of rows, or of pairs; w: the matrices of all experts.

    warps: which share a program's pairs of groups, and so the order of summation; None: as many as are fastest.
    """

    x: Int8Fragments
    w: PackedMatrix
    groups: Groups
    warps: int | None = None

    def __post_init__(self) -> None:
        check_apart(self.x, self.w)
        assert len(self.groups.order) % self.x.num_rows == 0

    def pairs(
        self, epilogue: Callable[..., Any], args: tuple[Any, ...], config: tuple[Any, ...], pair: int, n_columns: int
    ) -> None:
        """Each pair's product [n_columns] to the epilogue. pair: see epilogues.columns."""
        w, groups, nvidia, pdl = self.w, self.groups, is_nvidia(self.w.packed), has_pdl(self.w.packed)
        n_experts, n_pairs = groups.num_experts, w.packed.shape[1]
        n = w.shape[0] // n_experts
        assert n % TILE == pair % TILE == 0
        assert pair or n % (2 * TILE) == 0
        all_pairs = len(groups.order)
        blocks, warps = _blocks_at_once(all_pairs / n_experts), self.warps or _warps(n_pairs)
        high = w.packed if w.high is None else w.high
        _blocks_of_fragments[(n_columns // (TILE if pair else 2 * TILE), groups.num_blocks(BLOCK * blocks))](
            w.packed, high, w.scale, w.row_scale, table(w.packed.device), half_tables(w.packed.device),
            self.x.words, self.x.notes, groups.order, groups.firsts, n_experts, n,
            all_pairs // self.x.num_rows, args,
            EPILOGUE=epilogue, CONFIG=config, PAIR=pair, EXPERTS=next_power_of_2(n_experts),
            FEW=groups.are_few(BLOCK * blocks), FORMAT=w.format, BLOCKS=blocks, P=n_pairs, W=warps, NVIDIA=nvidia,
            PDL=pdl, num_warps=warps, num_stages=1,
            **register_option(_MOST_REGISTERS[blocks] if nvidia else None), **pdl_option(pdl), **OPTIONS,
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


def multiplies_alike(w: PackedMatrix) -> bool:
    """Whether these kernels and those of moe_fragments.py give a row the same bits on the device that w is on."""
    return not is_nvidia(w.packed) or _is_alike(w.format, w.packed.device)


def try_bits(form: str, device: torch.device) -> bool:
    """Whether they do, of both kinds of products that a step multiplies: lanes are a compiler's to decide."""
    w, _, x, _ = operands_to_try(form, device)
    experts = torch.tensor([[0], [1], [0]], dtype=torch.int32, device=device)
    together, alone = group_pairs(experts, 2), GemvFragmentsOfExperts(x=x, w=w, experts=experts, num_rows=2 * TILE)
    gated = torch.empty(2, 3, TILE, device=device)
    for out, launch in (
        (gated[0], alone.pairs),
        (gated[1], BlocksOfExperts(x=x, w=w, groups=together, warps=PAIRS_WARPS).pairs),
    ):
        args = (out, TILE, (out, 0.0, 0.0), out, (experts, 1, 2 * TILE))
        launch(moe_pairs.gate_pairs, args, (0, 0, False, ACTIVATIONS["silu"]), TILE, TILE)
    weights, y = torch.ones(3, 1, device=device), gated.new_empty(3, 2 * TILE)
    args, found = (y, 2 * TILE, (y, 0.0, 0.0), y, (experts, 1, 2 * TILE)), [gated]
    for warps in WARPS_TO_TRY:
        h, parts = torch.zeros(2, 3, 2 * TILE, device=device), gated.new_empty(2, 3, 2)
        replace(alone, warps=warps).sum(weights, h[0], None, parts[0])
        blocks = BlocksOfExperts(x=x, w=w, groups=together, warps=warps)
        blocks.pairs(moe_pairs.store_pairs, args, (0, 0, False), 0, 2 * TILE)
        add_slots(y, weights, h[1], parts[1])
        found += [h, parts]
    return all(torch.equal(*both) for both in found)


_is_alike = cache(try_bits)


def takes_blocks(w: PackedMatrix, n_rows: int, n_slots: int, n_experts: int) -> bool:
    """Whether the kernel is for these: more rows than decoding's are for, and few pairs an expert."""
    return _is_whole(w, n_experts) and n_rows > MOST_ROWS and n_rows * n_slots <= MOST_PAIRS * n_experts


def shares_blocks(w: PackedMatrix, n_rows: int, n_slots: int, n_experts: int) -> bool:
    """Whether it is for so few rows too: where enough of them take the same experts, if these are chosen at random."""
    enough = (_SHARED_PAIRS if n_slots <= slots_at_once(n_slots) else _SHARED_PAIRS_ONE_BY_ONE) * n_experts
    return _is_whole(w, n_experts) and 1 < n_rows <= MOST_ROWS and n_rows * n_slots >= enough


def _is_whole(w: PackedMatrix, n_experts: int) -> bool:
    return w.layout == "fragments" and w.shape[0] // n_experts % (2 * TILE) == 0


def _blocks_at_once(mean: float) -> int:
    """Blocks of 8 pairs of a program, where experts have so many on average."""
    return 1 if mean <= BLOCK else 2


def _warps(n_pairs: int) -> int:
    """Which share a program's pairs of groups."""
    return 2 if n_pairs >= 32 else 1


MOST_PAIRS: Final = 16
"""Pairs of an expert, on average, up to which this is for."""
# Pairs of an expert, on average, from which on it is for up to 16 rows, where these are otherwise added up as they are
# multiplied, and where they are not (moe_fragments.multiplies_one_by_one): of that no more than 0.56 was measured, and
# it lost 5 %. See docs/LOG.md.
_SHARED_PAIRS, _SHARED_PAIRS_ONE_BY_ONE = 0.4, 0.7
# H100, mq4, 128 experts of [1536, 2048] and [2048, 768], 8 a row at random: us of both products and what they read, of
# 64, 128, 200, 256 and 384 rows, in moe_gemm.py 271, 276, 326, 322, 433; here, one warp, in blocks of 8 pairs 124, 185,
# 247, 309, 430, of 16 173, 180, 218, 287, 372. Two warps take gate and up of 200 rows from 134 to 125 and down, where
# 12 pairs of groups are too few, from 84 to 136. Blocks of 8 take 4 % less with 168 registers than with 255; 16 spill.
# (By programs that go over all blocks of an expert; whole prompts by this kernel and by moe_gemm.py: docs/LOG.md.) Two
# steps of weights on their way, with 168 and with 200 registers, take 4 to 14 % more of 8 to 64 rows (H200).
_MOST_REGISTERS: Final = {1: 168, 2: 255}  # by blocks


def variants() -> Iterator[Variant]:
    for form, blocks, pair, n_pairs, few in (
        ("mq4", 1, 768, 32, False), ("mq4", 2, 768, 32, False), ("mq4", 1, 0, 12, False), ("mq4", 2, 0, 12, False),
        ("mq4-uniform", 2, 768, 32, False), ("mq6", 2, 768, 32, False),
        ("mq4", 1, 2880, 45, True), ("mq4", 1, 0, 45, True), ("mq4-uniform", 1, 768, 32, True),
        ("mq6", 1, 768, 32, True), ("mq4", 1, 704, 44, True), ("mq4", 1, 0, 11, True),  # the last two: Gemma 4, gelu
        ("mq4", 1, 0, 224, True), ("mq4", 2, 0, 224, True),  # Mixtral
    ):  # fmt: skip
        is_gemma4 = n_pairs in (44, 11)
        of_two = warps_of_slot(2 * GROUP * n_pairs, 2)
        of_step = f" of a step{', Gemma 4' if is_gemma4 else ', wide' if of_two > 1 else ''}" if few else ""
        program = moe_pairs.gate_pairs if pair else moe_pairs.store_pairs
        warps = _warps(n_pairs) if not few else PAIRS_WARPS if pair else of_two
        yield Variant(
            name=f"moe_blocks {form} {program.__name__}, {8 * blocks} pairs{of_step}",
            kernel=_blocks_of_fragments,
            signature={
                "packed": "*i32", "high": "*i16" if form == "mq6" else "*i32", "scale": "*u8", "row_scale": "*fp32",
                "levels": "*i32", "halves": "*i32", "x": "*i32", "notes": "*fp32", "order": "*i32", "firsts": "*i32",
                "E": "i32:16", "N": "i32:16", "sharing": "i32",
                "args": moe_pairs.signature("*fp32" if few and not pair else "*bf16"),
            },
            constants={
                "EPILOGUE": program, "CONFIG": (0, 0, False, int(is_gemma4)) if pair else (0, 0, False), "PAIR": pair,
                "EXPERTS": 128, "FEW": few, "FORMAT": form, "BLOCKS": blocks, "P": n_pairs, "W": warps, "NVIDIA": True,
            },
            num_warps=warps,
            num_stages=1,
            has_pdl=True,
            is_decode=few,
            is_nvidia_only=True,
            most_registers=_MOST_REGISTERS[blocks],
        )  # fmt: skip
