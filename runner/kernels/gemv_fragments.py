"""Packed weights times 1 to 64 rows of int8 activations on tensor cores: decoding, and verifying drafts, on NVIDIA.

y[m, n] = row_scale[n] * sum over pairs of groups p of x.scale[m, p] * sum over the two groups g of scale[n, g] *
sum over g of level * x level. The innermost sum is exact (int32): one instruction of a tensor core makes it for 16 rows
of weights and 8 of activations, so 8 rows cost what one does. The others are float32, in one order for every M:
pair 4 (W s + w) + t of a part, for warp w of W, is added to the sum of class (t, w) in the order of s, and these sums
as fragment_products.sum_by_halves says. One row is multiplied in gemv_one_row.py, in the same order.

A program computes one tile of 16 columns, or two, for 8 or 16 rows; its warps share the groups, and a lane finds all
that it needs side by side (fragments.py), so nothing passes between lanes before the end. A warp takes four pairs a
step, in one go or one by one (Tiles.turns), and loads those of the next step into the place of each that is done; the
first before the kernel before this one has finished.

The reference is matmul.linear_ref. It knows nothing of what an epilogue does. Elsewhere gemv_packed.py does this work;
the portable form of the instruction is there for tests.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from runner.kernels import epilogues
from runner.kernels.compile import Variant
from runner.kernels.epilogues import columns, p_parts, p_rstd_of, streams
from runner.kernels.fragment_products import (
    START,
    ZEROS,
    addends,
    by_group,
    codes_in_four,
    half_tables_of_lanes,
    portable_product,
    scales,
    scales_of,
    sum_by_halves,
)
from runner.kernels.fragments import BLOCK, rows_of_block
from runner.kernels.gemv_one_row import multiply_one_row
from runner.kernels.gemv_tiles import (
    FEW_REGISTERS,
    MANY_REGISTERS,
    Tiles,
    tiles_of,
    tiles_of_branch,
    tiles_of_normed_branch,
    tiles_of_parts,
    waves,
)
from runner.kernels.grids import half_tables, table
from runner.kernels.values import (
    FEW_ROWS,
    OPTIONS,
    Int8Fragments,
    PackedMatrix,
    cdiv,
    has_pdl,
    is_nvidia,
    pdl_option,
    register_option,
)


def _fold(*, has_addends: bool) -> str:
    """PTX: acc += x.scale * (the two groups' scale * (level * x level)), for 16 rows of weights and 8 of x.

    $0-$3 acc after; $4-$7 low quads and $8-$11 high ones, of row g and row g + 8 in the first group, then in the
    second; $12-$15 x words; $16 the four scales' codes in the same order; $20-$23 notes of x for column 2 t and $24-$27
    for the next; $28-$31 acc; $32-$39, if has_addends, what is to be added to the quads. Sums begin with the bits of
    1.5 * 2^23: then they are a float's bits, and one subtraction, of what x notes, makes the float of them, less what
    the levels lie too high.
    """
    lines = ["{ .reg .b32 d<8>, c, m; .reg .f32 f<8>, s<4>; mov.b32 m, 0x4B400000;"]
    for group in range(2):
        d = ", ".join(f"d{4 * group + i}" for i in range(4))
        b = ", ".join(f"${12 + 2 * group + i}" for i in range(2))
        before = "m, m, m, m"
        for quads in ((4, 5, 8, 9), (32, 33, 36, 37)) if has_addends else ((4, 5, 8, 9),):
            a = ", ".join(f"${register + 2 * group}" for register in quads)
            lines.append(f"mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {{{d}}}, {{{a}}}, {{{b}}}, {{{before}}};")
            before = d
    lines.append(scales("$16"))
    for i in range(4):
        notes, row = 20 + 4 * (i % 2), i // 2
        begins = ("0f4B400000",) * 2 if has_addends else (f"${notes + 1}", f"${notes + 2}")
        lines.append(f"mov.b32 f{i}, d{i}; sub.rn.f32 f{i}, f{i}, {begins[0]}; mul.rn.f32 f{i}, f{i}, s{row};")
        lines.append(f"mov.b32 f{4 + i}, d{4 + i}; sub.rn.f32 f{4 + i}, f{4 + i}, {begins[1]};")
        lines.append(f"fma.rn.f32 f{i}, f{4 + i}, s{2 + row}, f{i}; fma.rn.f32 f{i}, f{i}, ${notes}, ${28 + i};")
    lines.append(" ".join(f"mov.b32 ${i}, f{i};" for i in range(4)) + " }")
    return " ".join(lines)


_FOLD = tl.constexpr(_fold(has_addends=False))
_FOLD_ADDENDS = tl.constexpr(_fold(has_addends=True))
_FOLD_REGISTERS = tl.constexpr(",".join(["=f"] * 4 + ["r"] * 16 + ["f"] * 12))
_FOLD_ADDENDS_REGISTERS = tl.constexpr(",".join(["=f"] * 4 + ["r"] * 16 + ["f"] * 12 + ["r"] * 8))


@triton.jit
def _portable_fold(low, high, x, codes, even, odd, acc, S: tl.constexpr):
    """What _fold says, without its instruction."""
    low0, low1 = by_group(low, S)
    high0, high1 = by_group(high, S)
    x0, x1 = by_group(x, S)
    scale0, scale1 = by_group(scales_of(codes), S)
    notes = tl.join(even, odd)  # [S, 128, 2]: c last
    first, second = tl.split(tl.permute(tl.reshape(notes, (S, 8, 4, 2, 2, 2)), (0, 1, 2, 3, 5, 4)))
    x_scale, begin1 = tl.split(tl.permute(first, (0, 1, 2, 4, 3)))  # of places 0 and 2: [S, 8, 4, 2]
    begin0, _ = tl.split(tl.permute(second, (0, 1, 2, 4, 3)))
    found = portable_product(low0, high0, x0, S).to(tl.float32) - (begin0 - START)[:, :, :, None, :]
    found *= scale0[:, :, :, :, None]
    more = portable_product(low1, high1, x1, S).to(tl.float32) - (begin1 - START)[:, :, :, None, :]
    found = tl.fma(more, scale1[:, :, :, :, None] + 0.0 * more, found)
    before = tl.reshape(acc, (S, 8, 4, 2, 2))
    return tl.reshape(tl.fma(found, x_scale[:, :, :, None, :] + 0.0 * found, before), (S, 128))


@triton.jit
def _loaded_x(words, notes, ok, n_left, COLUMNS: tl.constexpr):
    """Of a block of 8 rows, of which n_left are there: the words [R, 128], the notes of even and of odd rows."""
    i = tl.arange(0, 128)[None, :]
    x = tl.load(words, mask=ok & (i // 16 < n_left))
    is_there = ok & (i // 4 % 4 * 2 < COLUMNS)
    return x, tl.load(notes, mask=is_there, other=0.0), tl.load(notes + 4, mask=is_there, other=0.0)


@triton.jit
def _loaded(packed, high, scale, ok, FORMAT: tl.constexpr, NVIDIA: tl.constexpr):
    """The words of a step [R, 128]; for mq6 the upper bits of them; the codes of scales, on NVIDIA four in an int32."""
    words = tl.load(packed, mask=ok, other=0, eviction_policy="evict_first")
    codes = tl.load(scale, mask=ok, other=0)
    more = words
    if FORMAT == "mq6":
        more = tl.load(high, mask=ok, other=0, eviction_policy="evict_first")
    return words, more, codes_in_four(codes, NVIDIA)


@triton.jit
def loaded_tiles(
    packed, high, scale, ahead: tl.constexpr, ok,
    P: tl.constexpr, FORMAT: tl.constexpr, TILES: tl.constexpr, NVIDIA: tl.constexpr,
):  # fmt: skip
    """The same of tiles P pairs of groups apart, as three tuples, `ahead` pairs of groups behind the pointers."""
    words = ()
    more = ()
    codes = ()
    for r in tl.static_range(TILES):
        on = (r * P + ahead) * 128
        a, b, c = _loaded(packed + on, high + on, scale + on // 4, ok, FORMAT, NVIDIA)
        words = words + (a,)  # type: ignore[assignment]
        more = more + (b,)  # type: ignore[assignment]
        codes = codes + (c,)  # type: ignore[assignment]
    return words, more, codes


@triton.jit
def _loaded_blocks(
    x, notes, ahead: tl.constexpr, p, end, n_left, P: tl.constexpr, BLOCKS: tl.constexpr, COLUMNS: tl.constexpr
):
    """What _loaded_x gives of several blocks, `ahead` pairs of groups behind those that the pointers are at."""
    loaded = ()
    for b in tl.static_range(BLOCKS):
        on = (b * P + ahead) * 4 * COLUMNS
        # Where the number of blocks is odd, the last program's second one does not exist.
        ok = p + ahead < (end if b == 0 else tl.where(n_left > 8 * b, end, 0))
        loaded = loaded + (_loaded_x(x + 4 * on, notes + on, ok, n_left - 8 * b, COLUMNS),)  # type: ignore[assignment]
    return loaded


@triton.jit
def step_of_blocks(
    waiting, sums, levels, tables, loaded,
    FORMAT: tl.constexpr, BLOCKS: tl.constexpr, TILES: tl.constexpr, NVIDIA: tl.constexpr,
):  # fmt: skip
    """sums, a tuple of [R, 128] for each tile and block of rows, with the pairs added whose words `waiting` has.

    waiting: see loaded_tiles. loaded: of each block the words of x [R, 128], the notes of even and of odd rows.
    """
    words, more, codes = waiting
    left, right, minus = tables
    result = ()
    for r in tl.static_range(TILES):
        low, top, low2, top2 = addends(words[r], more[r], levels, left, right, minus, FORMAT, NVIDIA)
        for b in tl.static_range(BLOCKS):
            x_words, even, odd = loaded[b]
            before = sums[r * BLOCKS + b]
            if NVIDIA and FORMAT == "mq4":
                after = tl.inline_asm_elementwise(
                    _FOLD_ADDENDS,
                    _FOLD_ADDENDS_REGISTERS,
                    [low, top, x_words, codes[r], even, odd, before, low2, top2],
                    dtype=tl.float32,
                    is_pure=True,
                    pack=4,
                )
            elif NVIDIA:
                after = tl.inline_asm_elementwise(
                    _FOLD,
                    _FOLD_REGISTERS,
                    [low, top, x_words, codes[r], even, odd, before],
                    dtype=tl.float32,
                    is_pure=True,
                    pack=4,
                )
            else:
                after = _portable_fold(low, top, x_words, codes[r], even, odd, before, before.shape[0])
            result = result + (after,)  # type: ignore[assignment]
    return result


@triton.jit
def rows_of_sums(sums, R: tl.constexpr):
    """What step_of_blocks added up for a tile and a block [R, 128] as rows of x by columns [8, 16]."""
    total = tl.reshape(sum_by_halves(sums, R, 128), (8, 4, 2, 2))  # g, t, h, c
    return tl.reshape(tl.permute(total, (1, 3, 2, 0)), (8, 16))


@triton.jit
def _gemv_fragments(
    packed, high, scale, row_scale, levels, halves, x, notes, M, N, norm, args,
    EPILOGUE: tl.constexpr, CONFIG: tl.constexpr, NORM: tl.constexpr, PAIR: tl.constexpr, FORMAT: tl.constexpr,
    BLOCKS: tl.constexpr, COLUMNS: tl.constexpr, P: tl.constexpr, PART: tl.constexpr, W: tl.constexpr,
    TURNS: tl.constexpr, NVIDIA: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    S: tl.constexpr = 4 * W
    R: tl.constexpr = S // TURNS
    SHARE: tl.constexpr = 4 // TURNS
    LENGTH: tl.constexpr = P if PART == 0 else PART
    tile = tl.program_id(0)
    part = tl.program_id(2)
    first_block = tl.program_id(1) * BLOCKS
    first = part * LENGTH
    end = tl.minimum(first + LENGTH, P)
    i = tl.arange(0, 128)[None, :]
    r = tl.arange(0, R)  # W t + w: a warp has all that one lane adds up
    p = (first + 4 * (r % W) + r // W)[:, None]
    # Pointers that move on by constants leave no address to be worked out. The indices are written so that Triton sees
    # that they come in fours, and no more of the smaller ones.
    fours = i // 4 * 4 + i % 4
    packed += tile.to(tl.int64) * (P * 128) + p * 128 + i
    high += tile.to(tl.int64) * (P * 128) + p * 128 + fours
    scale += tile.to(tl.int64) * (P * 32) + p * 32 + i // 16 * 4 + i % 4
    x += (first_block * P + p) * (16 * COLUMNS) + i
    notes += (first_block * P + p) * (4 * COLUMNS) + i // 4 % 4 * 8 + i % 4
    n_left = M - 8 * first_block
    waiting = ()
    for turn in tl.static_range(TURNS):
        ok = (p + turn * SHARE < end) & (i >= 0)
        waiting = waiting + (loaded_tiles(packed, high, scale, turn * SHARE, ok, P, FORMAT, 1, NVIDIA),)  # type: ignore[assignment]
    tables = half_tables_of_lanes(halves, R, FORMAT, NVIDIA)
    w_row, w_ok, _, _, _ = columns(tile, N, PAIR, 16)
    factor = 0.5 * tl.load(row_scale + w_row, mask=w_ok, other=0.0)
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    squares = ()
    if NORM[0] > 0:  # asked for now, while weights come, and used at the end
        for b in tl.static_range(BLOCKS):
            rows = 8 * (first_block + b) + tl.arange(0, 8)
            squares = squares + (p_parts(norm[0], rows, rows < M, NORM[0], NORM[1]),)  # type: ignore[assignment]
    sums = ()
    for _ in tl.static_range(TURNS):
        zeros = ()
        for _ in tl.static_range(BLOCKS):
            zeros = zeros + (tl.zeros((R, 128), tl.float32),)  # type: ignore[assignment]
        sums = sums + (zeros,)  # type: ignore[assignment]
    for step in range((LENGTH + S - 1) // S):
        added = ()
        loaded = ()
        for turn in tl.static_range(TURNS):
            after = sums[turn]  # type: ignore[var-annotated]
            fresh = waiting[turn]  # type: ignore[var-annotated]
            # A branch, or ptxas gathers the loads of all turns, which then want all registers.
            if first + step * S + turn * SHARE < end:
                loaded_x = _loaded_blocks(x, notes, turn * SHARE, p, end, n_left, P, BLOCKS, COLUMNS)
                after = step_of_blocks(waiting[turn], sums[turn], levels, tables, loaded_x, FORMAT, BLOCKS, 1, NVIDIA)
                ok = (p + (turn * SHARE + S) < end) & (i >= 0)
                fresh = loaded_tiles(packed, high, scale, turn * SHARE + S, ok, P, FORMAT, 1, NVIDIA)
            added = added + (after,)  # type: ignore[assignment]
            loaded = loaded + (fresh,)  # type: ignore[assignment]
        sums = added
        waiting = loaded
        p += S
        packed += S * 128
        high += S * 128
        scale += S * 32
        x += S * 16 * COLUMNS
        notes += S * 4 * COLUMNS
    _, _, n, n2, n_ok = columns(tile, N, PAIR, 16)
    for b in tl.static_range(BLOCKS):
        total = sums[0][b]  # type: ignore[misc]
        if TURNS == 4:
            total += sums[2][b]  # type: ignore[misc]
            total += sums[1][b] + sums[3][b]  # type: ignore[misc]
        lo, hi = streams(rows_of_sums(total, R) * factor[None, :], PAIR, 8, 16)
        rows = 8 * (first_block + b) + tl.arange(0, 8)
        if NORM[0] > 0:
            rstd = p_rstd_of(squares[b], norm[1], norm[2])[:, None]
            lo = lo * rstd
            hi = hi * rstd
        EPILOGUE(lo, hi, rows, rows < M, n, n2, n_ok, tile if PART == 0 else part, args, CONFIG)


@dataclass(frozen=True, kw_only=True)
class GemvFragments:
    """Launches this kernel, or for one row gemv_one_row's. n_tiles: along N; each has a part of every row."""

    x: Int8Fragments
    w: PackedMatrix
    pair: int
    tiles: Tiles | None = None

    def __post_init__(self) -> None:
        assert self.x.shape[1] == self.w.shape[1], (self.x.shape, self.w.shape)
        assert self.w.layout == "fragments"
        assert self.w.pair == self.pair
        assert self.x.zero == ZEROS[self.w.format]
        assert 1 <= self.x.num_rows <= FEW_ROWS

    @property
    def num_rows(self) -> int:
        return self.x.num_rows

    @property
    def n_tiles(self) -> int:
        return self.w.packed.shape[0]

    def run(self, epilogue: Callable[..., Any], args: tuple[Any, ...], config: tuple[Any, ...]) -> None:
        """epilogue: a program (epilogues.py) with its arguments and constants."""
        size = self.w.packed.shape[:2]
        is_branch = epilogue is epilogues.store_squares
        tiles = self.tiles or (tiles_of_normed_branch(*size) if is_branch else tiles_of(*size))
        assert not tiles.part
        self._launch(tiles, epilogue, args, config)

    def add_to(self, h: Tensor, bias: Tensor | None) -> Tensor | None:
        """h += the product + bias, h [M, N] float32; or the product's parts, which are left to be added (parts)."""
        tiles = tiles_of_branch(*self.w.packed.shape[:2])
        if tiles.part:
            return replace(self, tiles=tiles).parts()
        args = (h, self.w.shape[0], (h, 0.0, 0.0), h if bias is None else bias)
        self._launch(tiles, epilogues.add_stream, args, (0, 0, bias is not None))
        return None

    def parts(self) -> Tensor:
        """The product as sums over parts of the columns of w, [M, parts, N] float32; their sum is the product.

        For matrices with few rows, whose programs are too few to keep the memory busy.
        """
        tiles = self.tiles or tiles_of_parts(*self.w.packed.shape[:2])
        n_parts = cdiv(self.w.packed.shape[1], tiles.part)
        out = torch.empty(self.num_rows, n_parts, self.w.shape[0], dtype=torch.float32, device=self.w.packed.device)
        self._launch(tiles, epilogues.store_part, (out, self.w.shape[0]), (n_parts,))
        return out

    def _launch(
        self, tiles: Tiles, epilogue: Callable[..., Any], args: tuple[Any, ...], config: tuple[Any, ...]
    ) -> None:
        if self.num_rows == 1:
            multiply_one_row(self.x, self.w, tiles, epilogue, args, config)
            return
        w, x, nvidia, pdl = self.w, self.x, is_nvidia(self.w.packed), has_pdl(self.w.packed)
        n_blocks, n_pairs = x.words.shape[0], w.packed.shape[1]
        # Two blocks of 8 rows at once want more registers than mq4 leaves of them on GPUs before sm_90.
        at_once = min(1 if nvidia and not pdl else 2, n_blocks)
        n_parts = cdiv(n_pairs, tiles.part or n_pairs)
        norm, is_normed, args, config = epilogues.norm_apart(epilogue, args, config, x.notes)
        grid = (self.n_tiles, cdiv(n_blocks, at_once), n_parts)
        _gemv_fragments[grid](
            w.packed, w.packed if w.high is None else w.high, w.scale, w.row_scale, table(w.packed.device),
            half_tables(w.packed.device), x.words, x.notes, x.num_rows, w.shape[0], norm, args,
            EPILOGUE=epilogue, CONFIG=config, NORM=is_normed, PAIR=self.pair, FORMAT=w.format, BLOCKS=at_once,
            COLUMNS=x.words.shape[2], P=n_pairs, PART=tiles.part, W=tiles.warps, TURNS=tiles.turns,
            NVIDIA=nvidia, PDL=pdl, num_warps=tiles.warps, num_stages=1,
            **register_option(_most_registers(at_once, tiles, math.prod(grid)) if nvidia else None),
            **pdl_option(pdl), **OPTIONS,
        )  # fmt: skip


def _most_registers(blocks: int, tiles: Tiles, n_programs: int) -> int:
    """Given less, ptxas spills more than another program is worth; given more, it takes what other programs want.

    In four turns it follows from the waves. H200, us of 8 and 16 rows, with 128 and with 168: 384 programs of four
    warps (q, k and v of Llama-3.1-8B) 6.5 and 9.2, 5.2 and 7.1; 1536 of two 19.3 and 27.0, 17.3 and 24.9; 1792 of two
    19.8 and 28.0, 21.2 and 30.8; 256 of eight (down) 10.4 and 14.8, 12.5 and 18.4. Within a step a second wave of 12
    warps is worth it with 16 rows alone: Qwen3-8B takes 2.12 and 2.80 ms so, 2.09 and 2.94 without.
    """
    if tiles.registers:
        return tiles.registers
    if tiles.turns == 1:
        return 255 if blocks > 1 else 168 if tiles.warps <= 4 else 200
    few, many = (waves(n_programs, tiles.warps, registers) for registers in (FEW_REGISTERS, MANY_REGISTERS))
    is_shorter = many.length < few.length if blocks > 1 else many.number == 1
    return MANY_REGISTERS if is_shorter else FEW_REGISTERS


def variants() -> Iterator[Variant]:
    for form, program, rows, pair, n_tiles, n_pairs in (
        ("mq4", epilogues.store, 2, 0, 384, 64),
        ("mq4", epilogues.store_part, 8, 0, 96, 140),
        ("mq4", epilogues.add_stream, 8, 0, 256, 172),
        ("mq4", epilogues.add_stream, 8, 0, 320, 272),
        ("mq4", epilogues.gate, 8, 14336, 1792, 64),
        ("mq4", epilogues.gate, 8, 9728, 1216, 40),
        ("mq4", epilogues.gate, 16, 14336, 1792, 64),
        ("mq4-uniform", epilogues.add_residual, 8, 0, 20, 5),
        ("mq4-uniform", epilogues.add_stream, 8, 0, 256, 64),
        ("mq4-uniform", epilogues.add_stream, 16, 0, 256, 64),
        ("mq4-uniform", epilogues.gate, 8, 14336, 1792, 64),
        ("mq6", epilogues.logits, 8, 0, 8016, 64),
        ("mq6", epilogues.capped_logits, 8, 0, 16384, 84),
        ("mq6", epilogues.gate_by, 8, 0, 16, 24),
    ):
        is_part, blocks = program is epilogues.store_part, -(-rows // BLOCK)
        is_branch = program in (epilogues.store_part, epilogues.add_stream)
        tiles = tiles_of_branch(n_tiles, n_pairs) if is_branch else tiles_of(n_tiles, n_pairs)
        assert is_part == (tiles.part > 0)
        of_gate = {epilogues.gate: (0,), epilogues.gate_by: (1,)}.get(program, ())  # silu, gelu
        config = (-(-n_pairs // tiles.part),) if is_part else (0, 0, False, *of_gate)
        yield Variant(
            name=f"gemv_fragments {form} {program.__name__} K={64 * n_pairs} M={rows}",
            kernel=_gemv_fragments,
            signature={
                "packed": "*i32", "high": "*i16" if form == "mq6" else "*i32", "scale": "*u8", "row_scale": "*fp32",
                "levels": "*i32", "halves": "*i32", "x": "*i32", "notes": "*fp32", "M": "i32", "N": "i32:16",
                "norm": ("*fp32", "fp32", "fp32"),
                "args": epilogues.signature(program, "*bf16"),
            },
            constants={
                "EPILOGUE": program, "CONFIG": config, "NORM": (0, 1) if is_branch else (16, 16), "PAIR": pair,
                "FORMAT": form, "BLOCKS": blocks, "COLUMNS": rows_of_block(rows), "P": n_pairs,
                "PART": tiles.part, "W": tiles.warps, "TURNS": tiles.turns, "NVIDIA": True,
            },
            num_warps=tiles.warps,
            num_stages=1,
            has_pdl=True,
            is_nvidia_only=True,
            most_registers=_most_registers(blocks, tiles, n_tiles * (config[0] if is_part else 1)),
        )  # fmt: skip
