"""Packed weights times 1 to 64 rows of int8 activations on tensor cores: decoding, and verifying drafts, on NVIDIA.

y[m, n] = row_scale[n] * sum over pairs of groups p of x.scale[m, p] * sum over the two groups g of scale[n, g] *
sum over g of level * x level. The innermost sum is exact (int32): one instruction of a tensor core makes it for 16 rows
of weights and 8 of activations, so 8 rows cost what one does. The others are float32, in one order for every M. A
program computes one or two tiles of 16 columns; its warps share the groups, and a lane finds all that it needs side by
side (fragments.py), so nothing passes between lanes before the end. Weights are loaded two steps ahead, the first of
them before the kernel before this one has finished.

The reference is matmul.linear_ref. It knows nothing of what an epilogue does. Elsewhere gemv_packed.py does this work;
the portable form of the instruction is there for tests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from runner.kernels import epilogues
from runner.kernels.add_parts import rotates
from runner.kernels.compile import Variant
from runner.kernels.epilogues import columns, streams
from runner.kernels.fragments import (
    BLOCK,
    MAGIC,
    activation_rows,
    activations_ref,
    can_be_fragments,
    rows_of_block,
    to_fragments,
)
from runner.kernels.gemv_tiles import Tiles, tiles_of, tiles_of_parts
from runner.kernels.grids import FORMATS, LOOK_UP_IN_ORDER, dot4, table, table_quad, words_of_group
from runner.kernels.pack import dequantize_ref
from runner.kernels.values import FEW_ROWS, OPTIONS, Int8Fragments, PackedMatrix, has_pdl, is_nvidia, pdl_option

# What a weight's bits say lies this much above its level: they say twice a nibble or twice six bits, or, where there is
# a table of levels, the level itself.
ZEROS = {name: 0 if form.grid == "table" else -form.levels[0] for name, form in FORMATS.items()}


def _fold(*, is_one_row: bool) -> str:
    """PTX: acc += x.scale * (the two groups' scale * (level * x level)), for 16 rows of weights and 8 of x.

    $0-$3 acc after; $4-$7 low quads and $8-$11 high ones, of row g and row g + 8 in the first group, then in the
    second; $12-$15 x words; $16 the four scales' codes in the same order; $20-$23 notes of x for column 2 t and $24-$27
    for the next; $28-$31 acc. Sums begin with the bits of 1.5 * 2^23: then they are a float's bits, and one
    subtraction, of what x notes, makes the float of them, less what the levels lie too high. A code's exponent, 0 to 7,
    is put beside a float's 128, which takes no carry: scales are twice what they say, and the columns' factor mends it.
    """
    lines = ["{ .reg .b32 d<8>, c, m; .reg .f32 f<8>, s<4>; mov.b32 m, 0x4B400000;"]
    for group in range(2):
        d = ", ".join(f"d{4 * group + i}" for i in range(4))
        a = ", ".join(f"${register + 2 * group}" for register in (4, 5, 8, 9))
        b = ", ".join(f"${12 + 2 * group + i}" for i in range(2))
        lines.append(f"mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {{{d}}}, {{{a}}}, {{{b}}}, {{m, m, m, m}};")
    for i in range(4):
        byte_and_its_sign = 0x8880 + 0x1111 * i & 0xFFFF | i
        lines.append(f"prmt.b32 c, $16, 0, {byte_and_its_sign:#x}; shl.b32 c, c, 19; and.b32 c, c, 0x83f80000;")
        lines.append(f"or.b32 c, c, 0x40000000; mov.b32 s{i}, c;")
    for i in range(4):
        if is_one_row and i % 2:  # the column of the row that does not exist
            lines.append(f"mov.b32 f{i}, ${28 + i};")
            continue
        notes, row = 20 + 4 * (i % 2), i // 2
        lines.append(f"mov.b32 f{i}, d{i}; sub.rn.f32 f{i}, f{i}, ${notes + 1}; mul.rn.f32 f{i}, f{i}, s{row};")
        lines.append(f"mov.b32 f{4 + i}, d{4 + i}; sub.rn.f32 f{4 + i}, f{4 + i}, ${notes + 2};")
        lines.append(f"fma.rn.f32 f{i}, f{4 + i}, s{2 + row}, f{i}; fma.rn.f32 f{i}, f{i}, ${notes}, ${28 + i};")
    lines.append(" ".join(f"mov.b32 ${i}, f{i};" for i in range(4)) + " }")
    return " ".join(lines)


FOLD = tl.constexpr(_fold(is_one_row=False))
FOLD_ONE_ROW = tl.constexpr(_fold(is_one_row=True))
FOLD_REGISTERS = tl.constexpr(",".join(["=f"] * 4 + ["r"] * 16 + ["f"] * 12))
EVEN_BITS = tl.constexpr(0x1E1E1E1E)
START = tl.constexpr(MAGIC)


@triton.jit
def _spread(bits):
    """Four times two bits, each to the low end of a byte."""
    bits = (bits | (bits << 12)) & 0x000F000F
    return (bits | (bits << 6)) & 0x03030303


@triton.jit
def _quads(words, high, levels, FORMAT: tl.constexpr, NVIDIA: tl.constexpr):
    """Levels, plus what ZEROS says, of the low and the high quads of words [S, 128], as int8 in int32s."""
    if FORMAT == "mq4":
        if NVIDIA:
            return tl.inline_asm_elementwise(
                LOOK_UP_IN_ORDER, "=r,=r,r", [words], dtype=(tl.int32, tl.int32), is_pure=True, pack=1
            )
        first = words & 0xFFFF
        second = (words >> 16) & 0xFFFF
        first = (first & 15) | ((first & 0xF0) << 4) | ((first & 0xF00) << 8) | ((first & 0xF000) << 12)
        second = (second & 15) | ((second & 0xF0) << 4) | ((second & 0xF00) << 8) | ((second & 0xF000) << 12)
        return table_quad(first, levels), table_quad(second, levels)
    low = (words << 1) & EVEN_BITS
    top = (words >> 3) & EVEN_BITS
    if FORMAT == "mq6":
        low |= _spread(high.to(tl.int32) & 255) << 5
        top |= _spread((high.to(tl.int32) >> 8) & 255) << 5
    return low, top


@triton.jit
def _by_group(v, S: tl.constexpr):
    """What lies in [S, 128] by group: two times [S, 8, 4, 2], the last index being r % 2."""
    return tl.split(tl.permute(tl.reshape(v, (S, 8, 4, 2, 2)), (0, 1, 2, 4, 3)))


@triton.jit
def _portable_product(low, high, x, S: tl.constexpr):
    """What the instruction gives, [S, 8, 4, 2, 2] (g, t, h, c), of one group's low, high and x [S, 8, 4, 2]."""
    x_low, x_high = tl.split(x)
    total = tl.zeros((S, 8, 8, 4, 2), tl.int32)  # g, n, j, h
    total = dot4(low[:, :, None, :, :] + total, x_low[:, None, :, :, None] + total, total, False)
    total = dot4(high[:, :, None, :, :] + 0 * total, x_high[:, None, :, :, None] + 0 * total, total, False)
    found = tl.reshape(tl.sum(total, 3), (S, 8, 4, 2, 2))  # g, t, c, h
    return tl.permute(found, (0, 1, 2, 4, 3)).to(tl.float32)


@triton.jit
def _portable_fold(low, high, x, codes, even, odd, acc, S: tl.constexpr):
    """What _fold says, without its instruction."""
    low0, low1 = _by_group(low, S)
    high0, high1 = _by_group(high, S)
    x0, x1 = _by_group(x, S)
    bits = codes.to(tl.int8, bitcast=True).to(tl.int32) << 19
    scale0, scale1 = _by_group(((bits & -0x7C080000) | 0x40000000).to(tl.float32, bitcast=True), S)
    notes = tl.join(even, odd)  # [S, 128, 2]: c last
    first, second = tl.split(tl.permute(tl.reshape(notes, (S, 8, 4, 2, 2, 2)), (0, 1, 2, 3, 5, 4)))
    x_scale, begin1 = tl.split(tl.permute(first, (0, 1, 2, 4, 3)))  # of places 0 and 2: [S, 8, 4, 2]
    begin0, _ = tl.split(tl.permute(second, (0, 1, 2, 4, 3)))
    found = (_portable_product(low0, high0, x0, S) - (begin0 - START)[:, :, :, None, :]) * scale0[:, :, :, :, None]
    more = _portable_product(low1, high1, x1, S) - (begin1 - START)[:, :, :, None, :]
    found = tl.fma(more, scale1[:, :, :, :, None] + 0.0 * more, found)
    before = tl.reshape(acc, (S, 8, 4, 2, 2))
    return tl.reshape(tl.fma(found, x_scale[:, :, :, None, :] + 0.0 * found, before), (S, 128))


@triton.jit
def _loaded_x(words, notes, pair, ok, n_left, COLUMNS: tl.constexpr):
    """Of a block of 8 rows and the pairs of groups `pair`: the words [S, 128], the notes of even and of odd rows."""
    i = tl.arange(0, 128)[None, :]
    x = tl.load(words + pair * (16 * COLUMNS) + i, mask=ok & (i // 16 < n_left))
    # The indices are written so that Triton sees that they come in fours.
    at = notes + pair * (4 * COLUMNS) + i % 4
    if COLUMNS == 1:
        even = tl.load(at, mask=ok & (i >= 0), other=0.0)
        return x, even, even
    is_there = ok & (i // 4 % 4 * 2 < COLUMNS)
    even = tl.load(at + i // 4 % 4 * 8, mask=is_there, other=0.0)
    odd = tl.load(at + i // 4 % 4 * 8 + 4, mask=is_there, other=0.0)
    return x, even, odd


@triton.jit
def _loaded(packed, high, scale, p, end, FORMAT: tl.constexpr, NVIDIA: tl.constexpr):
    """The words of a step [S, 128]; for mq6 the upper bits of them; the codes of scales, on NVIDIA four in an int32."""
    i = tl.arange(0, 128)[None, :]
    ok = (p < end) & (i >= 0)
    # A lane has four elements of each, whatever their size: an index with i // 4 and i % 4 keeps Triton from giving it
    # eight of the smaller ones.
    words = tl.load(packed + p * 128 + i, mask=ok, other=0, eviction_policy="evict_first")
    codes = tl.load(scale + p * 32 + i // 16 * 4 + i % 4, mask=ok, other=0)
    if NVIDIA:
        codes = tl.inline_asm_elementwise(
            "mov.b32 $0, $4; mov.b32 $1, $4; mov.b32 $2, $4; mov.b32 $3, $4;", "=r,=r,=r,=r,r",
            [codes], dtype=tl.int32, is_pure=True, pack=4,
        )  # fmt: skip
    more = words
    if FORMAT == "mq6":
        more = tl.load(high + p * 128 + i // 4 * 4 + i % 4, mask=ok, other=0, eviction_policy="evict_first")
    return words, more, codes


@triton.jit
def _loaded_tiles(packed, high, scale, p, P, end, FORMAT: tl.constexpr, TILES: tl.constexpr, NVIDIA: tl.constexpr):
    """The same of several tiles, as three tuples."""
    words = ()
    more = ()
    codes = ()
    for r in tl.static_range(TILES):
        a, b, c = _loaded(packed + r * P * 128, high + r * P * 128, scale + r * P * 32, p, end, FORMAT, NVIDIA)
        words = words + (a,)  # type: ignore[assignment]
        more = more + (b,)  # type: ignore[assignment]
        codes = codes + (c,)  # type: ignore[assignment]
    return words, more, codes


@triton.jit
def _step(
    words, more, codes, acc, levels, x, notes, first_block, p, P, end, M,
    FORMAT: tl.constexpr, BLOCKS: tl.constexpr, COLUMNS: tl.constexpr, TILES: tl.constexpr, NVIDIA: tl.constexpr,
):  # fmt: skip
    """acc, a tuple of [S, 128] for each tile and block of rows, with the pairs of groups p added."""
    loaded = ()
    for b in tl.static_range(BLOCKS):
        block = first_block + b
        ok = p < end
        if BLOCKS > 1:  # where the number of blocks is odd, the last program's second one does not exist
            ok = p < tl.where(8 * block < M, end, 0)
        loaded = loaded + (_loaded_x(x, notes, block * P + p, ok, M - 8 * block, COLUMNS),)  # type: ignore[assignment]
    result = ()
    for r in tl.static_range(TILES):
        low, top = _quads(words[r], more[r], levels, FORMAT, NVIDIA)
        for b in tl.static_range(BLOCKS):
            x_words, even, odd = loaded[b]  # type: ignore[var-annotated]
            before = acc[r * BLOCKS + b]
            if NVIDIA:
                after = tl.inline_asm_elementwise(
                    FOLD_ONE_ROW if COLUMNS == 1 else FOLD,
                    FOLD_REGISTERS,
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
def _sum_of_part(
    packed, high, scale, levels, x, notes, first_block, first, M, acc,
    FORMAT: tl.constexpr, BLOCKS: tl.constexpr, COLUMNS: tl.constexpr, TILES: tl.constexpr,
    P: tl.constexpr, PART: tl.constexpr, S: tl.constexpr, NVIDIA: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The sums over PART pairs of groups of P, from the first on, as acc; PART 0: over all.

    Two steps' weights are on their way while a third is multiplied; the first two's are before the kernel before this
    one has ended. The kernel after this one begins after that: any earlier, and it takes the room of what still works.
    """
    STEPS: tl.constexpr = ((P if PART == 0 else PART) + S - 1) // S
    end = P if PART == 0 else tl.minimum(first + PART, P)
    s = first + tl.arange(0, S)[:, None]
    words, more, codes = _loaded_tiles(packed, high, scale, s, P, end, FORMAT, TILES, NVIDIA)
    if STEPS > 1:
        words2, more2, codes2 = _loaded_tiles(packed, high, scale, S + s, P, end, FORMAT, TILES, NVIDIA)
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    if STEPS <= 2:
        acc = _step(
            words, more, codes, acc, levels, x, notes, first_block, s, P, end, M,
            FORMAT, BLOCKS, COLUMNS, TILES, NVIDIA,
        )  # fmt: skip
        if STEPS == 2:
            acc = _step(
                words2, more2, codes2, acc, levels, x, notes, first_block, S + s, P, end, M,
                FORMAT, BLOCKS, COLUMNS, TILES, NVIDIA,
            )  # fmt: skip
    else:
        for step in range(0, STEPS, 2):
            p = step * S + s
            acc = _step(
                words, more, codes, acc, levels, x, notes, first_block, p, P, end, M,
                FORMAT, BLOCKS, COLUMNS, TILES, NVIDIA,
            )  # fmt: skip
            words, more, codes = _loaded_tiles(packed, high, scale, p + 2 * S, P, end, FORMAT, TILES, NVIDIA)
            acc = _step(
                words2, more2, codes2, acc, levels, x, notes, first_block, p + S, P, end, M,
                FORMAT, BLOCKS, COLUMNS, TILES, NVIDIA,
            )  # fmt: skip
            words2, more2, codes2 = _loaded_tiles(packed, high, scale, p + 3 * S, P, end, FORMAT, TILES, NVIDIA)
    return acc


@triton.jit
def _gemv_fragments(
    packed, high, scale, row_scale, levels, x, notes, M, N, args,
    EPILOGUE: tl.constexpr, CONFIG: tl.constexpr, PAIR: tl.constexpr, FORMAT: tl.constexpr,
    BLOCKS: tl.constexpr, COLUMNS: tl.constexpr, TILES: tl.constexpr, P: tl.constexpr, PART: tl.constexpr,
    S: tl.constexpr, NVIDIA: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(0) * TILES
    part = tl.program_id(2)
    first_block = tl.program_id(1) * BLOCKS
    acc = ()
    for _ in tl.static_range(TILES * BLOCKS):
        acc = acc + (tl.zeros((S, 128), tl.float32),)  # type: ignore[assignment]
    acc = _sum_of_part(
        packed + tile.to(tl.int64) * (P * 128), high + tile.to(tl.int64) * (P * 128),
        scale + tile.to(tl.int64) * (P * 32), levels, x, notes, first_block, part * (P if PART == 0 else PART), M, acc,
        FORMAT, BLOCKS, COLUMNS, TILES, P, PART, S, NVIDIA, PDL,
    )  # fmt: skip
    for r in tl.static_range(TILES):
        w_row, w_ok, n, n2, n_ok = columns(tile + r, N, PAIR, 16)
        factor = 0.5 * tl.load(row_scale + w_row, mask=w_ok, other=0.0)
        for b in tl.static_range(BLOCKS):
            total = tl.permute(tl.reshape(tl.sum(acc[r * BLOCKS + b], 0), (8, 4, 2, 2)), (1, 3, 2, 0))  # t, c, h, g
            lo, hi = streams(tl.reshape(total, (8, 16)) * factor[None, :], PAIR, 8, 16)
            rows = 8 * (first_block + b) + tl.arange(0, 8)
            which = tile + r if PART == 0 else part
            EPILOGUE(lo, hi, rows, rows < M, n, n2, n_ok, which, args, CONFIG)


@dataclass(frozen=True, kw_only=True)
class GemvFragments:
    """A launch of the kernel. n_tiles: tiles along N, each of which has a part of every row."""

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
        tiles = self.tiles or tiles_of(self.w.format, self.n_tiles, self.w.packed.shape[1])
        self._launch(tiles, 0, epilogue, args, config)

    def parts(self) -> Tensor:
        """The product as sums over parts of the columns of w, [M, parts, N] float32; their sum is the product.

        For matrices with few rows, whose programs are too few to keep the memory busy.
        """
        tiles = self.tiles or tiles_of_parts(self.w.format, self.w.packed.shape[1])
        n_parts = triton.cdiv(self.w.packed.shape[1], tiles.part)
        out = torch.empty(self.num_rows, n_parts, self.w.shape[0], dtype=torch.float32, device=self.w.packed.device)
        self._launch(tiles, tiles.part, epilogues.store_part, (out, self.w.shape[0]), (n_parts,))
        return out

    def _launch(
        self, tiles: Tiles, part: int, epilogue: Callable[..., Any], args: tuple[Any, ...], config: tuple[Any, ...]
    ) -> None:
        w, x, nvidia, pdl = self.w, self.x, is_nvidia(self.w.packed), has_pdl(self.w.packed)
        n_blocks, n_pairs = x.words.shape[0], w.packed.shape[1]
        # Two blocks of 8 rows at once want more registers than mq4 leaves of them on GPUs before sm_90.
        at_once, n_parts = min(1 if nvidia and not pdl else 2, n_blocks), triton.cdiv(n_pairs, part) if part else 1
        _gemv_fragments[(self.n_tiles // tiles.tiles, triton.cdiv(n_blocks, at_once), n_parts)](
            w.packed, w.packed if w.high is None else w.high, w.scale, w.row_scale, table(w.packed.device),
            x.words, x.notes, x.num_rows, w.shape[0], args,
            EPILOGUE=epilogue, CONFIG=config, PAIR=self.pair, FORMAT=w.format, BLOCKS=at_once,
            COLUMNS=x.words.shape[2], TILES=tiles.tiles, P=n_pairs, PART=part, S=tiles.pairs, NVIDIA=nvidia, PDL=pdl,
            num_warps=tiles.warps, num_stages=1, **pdl_option(pdl), **OPTIONS,
        )  # fmt: skip


def best_layout(w: PackedMatrix, pair: int = 0) -> PackedMatrix:
    """The same matrix in the layout that its device multiplies fastest; pair: see to_fragments."""
    device = w.packed.device
    if not can_be_fragments(w) or not is_nvidia(w.packed) or not _works(w.format, device):
        return w
    return to_fragments(w, pair) if rotates(w.rotation, device) else w


@cache
def _works(form: str, device: torch.device) -> bool:
    """Whether the kernel gives what it should: it counts on which lane has what, which a compiler decides."""
    if torch.cuda.get_device_capability(device) < (8, 0):
        return False
    random = torch.Generator().manual_seed(0)
    shape = (48, words_of_group(FORMATS[form]), 6)
    w = PackedMatrix(
        format=form,
        packed=torch.randint(-(2**31), 2**31, shape, dtype=torch.int32, generator=random).to(device),
        scale=torch.randint(0, 256, (48, 6), dtype=torch.uint8, generator=random).to(device),
        row_scale=torch.full((48,), 2.0**-8, device=device),
        rotation=1,
    )
    for n_rows in (1, 3, 16):
        x = torch.randn(n_rows, 192, generator=random).to(device)
        rows = activations_ref(x, ZEROS[form])
        out = torch.empty(n_rows, 48, device=device)
        GemvFragments(x=rows, w=to_fragments(w), pair=0).run(
            epilogues.store, (out, 48, (out, 0.0, 0.0), out), (0, 0, False)
        )
        right = activation_rows(rows) @ dequantize_ref(w).T
        if not (out - right).norm() < 1e-4 * right.norm():
            return False
    return True


def variants() -> Iterator[Variant]:
    for form, program, rows, pair, n_tiles, n_pairs in (
        ("mq4", epilogues.store, 1, 0, 384, 64),
        ("mq4", epilogues.store_part, 1, 0, 256, 224),
        ("mq4", epilogues.store_part, 8, 0, 256, 224),
        ("mq4", epilogues.gate, 1, 14336, 1792, 64),
        ("mq4", epilogues.gate, 8, 14336, 1792, 64),
        ("mq4-uniform", epilogues.add_residual, 1, 0, 256, 64),
        ("mq4-uniform", epilogues.store_part, 8, 0, 256, 64),
        ("mq4-uniform", epilogues.gate, 1, 14336, 1792, 64),
        ("mq6", epilogues.logits, 1, 0, 8016, 64),
    ):
        is_part = program is epilogues.store_part
        tiles = tiles_of_parts(form, n_pairs) if is_part else tiles_of(form, n_tiles, n_pairs)
        config = (28,) if is_part else (16, 16, False, 0) if pair else (0, 0, False)
        yield Variant(
            name=f"gemv_fragments {form} {program.__name__} K={64 * n_pairs} M={rows}",
            kernel=_gemv_fragments,
            signature={
                "packed": "*i32", "high": "*i16" if form == "mq6" else "*i32", "scale": "*u8", "row_scale": "*fp32",
                "levels": "*i32", "x": "*i32", "notes": "*fp32", "M": "i32", "N": "i32:16",
                "args": epilogues.signature(program, "*bf16"),
            },
            constants={
                "EPILOGUE": program, "CONFIG": config, "PAIR": pair, "FORMAT": form, "BLOCKS": -(-rows // BLOCK),
                "COLUMNS": rows_of_block(rows), "TILES": tiles.tiles, "P": n_pairs, "PART": tiles.part,
                "S": tiles.pairs, "NVIDIA": True,
            },
            num_warps=tiles.warps,
            num_stages=1,
            has_pdl=True,
            is_nvidia_only=True,
        )  # fmt: skip
