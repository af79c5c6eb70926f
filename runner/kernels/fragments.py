"""Packed weights in the order in which tensor cores take them, from planes and back.

A tile of 16 rows and two groups of 32 columns is what one warp multiplies with two instructions (mma.m16n8k32 of PTX):
its lane (g, j) finds the four words that it needs side by side, and a warp reads 512 bytes in a row. It knows no
kernels but this order, and moves integers only.

    T = ceil(N / 16) tiles, P = K / 64 pairs of groups; r = 2 e + h
    packed int32 [T, P, 8, 4, 4]  word [t, p, g, j, r]: word j of the planes, group 2 p + e, place 16 t + 8 h + g
    scale uint8 [T, P, 8, 4]      byte r: of the same group and row
    largest uint8 [T, 16]         by place: the largest of the row's scale codes without their signs
    high int16 [T, P, 8, 4, 4]    mq6: the top two bits of what the word has the others of; bits 2 i those of element
                                  4 j + i of the group, bits 8 + 2 i those of element 16 + 4 j + i

Place s holds row s; with rows in pairs (n, n + pair), places 16 t to 16 t + 7 hold rows 8 t to 8 t + 7 and the next
eight their partners. A word of mq4 has its nibbles in the order of the elements, 4 j + i before 16 + 4 j + i, as PRMT
looks them up; in a word of the others byte i has both, as in quant/mq/grid.py.
"""

from __future__ import annotations

import dataclasses
from typing import Final

import torch
from torch import Tensor

from runner.kernels.values import GROUP, Int8Fragments, PackedMatrix

FORMATS_IN_FRAGMENTS: Final = ("mq4", "mq4-uniform", "mq6")
TILE: Final = 16  # rows of a tile
BLOCK: Final = 8  # activations' rows that one instruction multiplies
_MAGNITUDE: Final = 127  # of a scale code: bit 7 is its sign
_LOW_NIBBLES: Final = 0x0F0F0F0F
MAGIC: Final = 12582912.0  # 1.5 * 2^23: the bits of this float plus an integer are those of their sum


def can_be_fragments(w: PackedMatrix) -> bool:
    """Whether its format has this layout, and its groups come in pairs."""
    return w.layout == "planes" and w.format in FORMATS_IN_FRAGMENTS and w.shape[1] % (2 * GROUP) == 0


def num_tiles(n_rows: int, pair: int) -> int:
    """T for so many rows; pair: see above, half of them or 0."""
    assert pair in (0, n_rows // 2)
    assert not pair or n_rows == 2 * pair
    return -(-n_rows // TILE) if not pair else -(-pair // BLOCK)


def to_fragments(w: PackedMatrix, pair: int = 0) -> PackedMatrix:
    """The same matrix in this layout; pair: see above, half its rows or 0. Rows that fill the last tile are 0.

    What lies between both takes several times the room of either: lay_out.py needs none.
    """
    assert can_be_fragments(w)
    tiles, codes = _tiles_in_planes(w, _places(w.shape[0], pair, w.packed.device))
    quads = tiles[:, :, :, :4].permute(0, 4, 2, 3, 5, 1).flatten(4)  # t, p, g, j, (e, h)
    return dataclasses.replace(
        w,
        layout="fragments",
        pair=pair,
        packed=(_in_order(quads) if w.format == "mq4" else quads).contiguous(),
        scale=codes.permute(0, 3, 2, 4, 1).flatten(3).contiguous(),
        high=_high_bits(tiles[:, :, :, 4:]) if w.format == "mq6" else None,
        largest=(codes & _MAGNITUDE).amax((3, 4)).flatten(1),
    )


def _tiles_in_planes(w: PackedMatrix, places: Tensor) -> tuple[Tensor, Tensor]:
    """The rows of these places, 0 where there is none: words [t, h, g, word, p, e] and scale codes [t, h, g, p, e]."""
    n_rows, n_pairs = w.shape[0], w.shape[1] // (2 * GROUP)
    rows = places.clamp(max=n_rows - 1)
    words, codes = w.packed[rows], w.scale[rows]
    words.masked_fill_((places == n_rows)[:, None, None], 0)
    codes.masked_fill_((places == n_rows)[:, None], 0)
    return words.view(-1, 2, BLOCK, words.shape[1], n_pairs, 2), codes.view(-1, 2, BLOCK, n_pairs, 2)


def to_planes(w: PackedMatrix) -> PackedMatrix:
    """The inverse."""
    assert w.layout == "fragments"
    n_rows, n_pairs = w.shape[0], w.packed.shape[1]
    quads = _out_of_order(w.packed) if w.format == "mq4" else w.packed
    words = quads.unflatten(4, (2, 2)).permute(0, 5, 2, 3, 1, 4)  # t, h, g, j, p, e
    if w.high is not None:
        words = torch.cat((words, _plane_words(w.high)), 3)
    codes = w.scale.unflatten(3, (2, 2)).permute(0, 4, 2, 1, 3)
    places = _places(n_rows, w.pair, w.packed.device)
    order = torch.argsort(places)[:n_rows]
    return dataclasses.replace(
        w,
        layout="planes",
        pair=0,
        packed=words.reshape(len(places), -1, 2 * n_pairs)[order].contiguous(),
        scale=codes.reshape(len(places), -1)[order].contiguous(),
        high=None,
        largest=None,
    )


def _places(n_rows: int, pair: int, device: torch.device) -> Tensor:
    """The row of each place, n_rows for none."""
    place = torch.arange(num_tiles(n_rows, pair) * TILE, device=device)
    if not pair:
        return torch.where(place < n_rows, place, n_rows)
    row = BLOCK * (place // TILE) + place % BLOCK
    return torch.where(row < pair, row + (place % TILE // BLOCK) * pair, n_rows)


def _in_order(words: Tensor) -> Tensor:
    """Nibbles (low, high of byte 0, low, high of byte 1, ...) to (the low ones, the high ones)."""
    return _gathered(words & _LOW_NIBBLES) | (_gathered((words >> 4) & _LOW_NIBBLES) << 16)


def _out_of_order(words: Tensor) -> Tensor:
    """The inverse."""
    return _spread(words & 0xFFFF) | (_spread((words >> 16) & 0xFFFF) << 4)


def _gathered(nibbles: Tensor) -> Tensor:
    """Four bytes with a nibble each to 16 bits."""
    pairs = (nibbles | (nibbles >> 4)) & 0x00FF00FF
    return (pairs | (pairs >> 8)) & 0xFFFF


def _spread(nibbles: Tensor) -> Tensor:
    """The inverse."""
    pairs = (nibbles | (nibbles << 8)) & 0x00FF00FF
    return (pairs | (pairs << 4)) & _LOW_NIBBLES


def _high_bits(words: Tensor) -> Tensor:
    """Words [T, h, g, half, P, e] of mq6's top bits, to [T, P, g, j, (e, h)]."""
    t, _, g, _, p, e = words.shape
    result = torch.zeros(t, 2, g, 4, p, e, dtype=torch.int32, device=words.device)
    for half in range(2):
        for j in range(4):
            for i in range(4):
                result[:, :, :, j] |= ((words[:, :, :, half] >> (8 * i + 2 * j)) & 3) << (8 * half + 2 * i)
    return result.permute(0, 4, 2, 3, 5, 1).flatten(4).to(torch.int16).contiguous()


def _plane_words(high: Tensor) -> Tensor:
    """The inverse: [T, h, g, half, P, e]."""
    bits = high.int().unflatten(4, (2, 2)).permute(0, 5, 2, 3, 1, 4)  # t, h, g, j, p, e
    t, _, g, _, p, e = bits.shape
    result = torch.zeros(t, 2, g, 2, p, e, dtype=torch.int32, device=high.device)
    for half in range(2):
        for j in range(4):
            for i in range(4):
                result[:, :, :, half] |= ((bits[:, :, :, j] >> (8 * half + 2 * i)) & 3) << (8 * i + 2 * j)
    return result


def activations_ref(x: Tensor, zero: int, *, apart: bool = False) -> Int8Fragments:
    """Rows x [M, K], K a multiple of 64, in this order; scale: max|x| / 127 of 64 elements, halves rounded to even.

    apart: in blocks of one row.
    """
    n_rows, n_pairs = len(x), x.shape[1] // (2 * GROUP)
    of_block = 1 if apart else rows_of_block(n_rows)
    n_blocks = -(-n_rows // of_block)
    groups = x.unflatten(1, (n_pairs, 2 * GROUP))
    scale = groups.abs().amax(2) / 127
    levels = torch.round(groups / torch.where(scale > 0, scale, 1.0)[:, :, None]).to(torch.int8)
    sums = levels.int().unflatten(2, (2, GROUP)).sum(3)
    notes = torch.cat((scale[:, :, None], MAGIC + zero * sums, torch.zeros_like(scale)[:, :, None]), 2).float()
    words = (
        levels.contiguous().view(torch.int32).unflatten(2, (2, 2, 4)).permute(0, 1, 4, 2, 3).flatten(3)
    )  # t, (e, half)
    in_blocks = (
        torch.cat((rows, rows.new_zeros(n_blocks * of_block - n_rows, *rows.shape[1:])))
        .unflatten(0, (n_blocks, of_block))
        .transpose(1, 2)
        .contiguous()
        for rows in (words, notes)
    )
    words, notes = in_blocks
    return Int8Fragments(words=words, notes=notes, num_rows=n_rows, zero=zero)


def activation_rows(x: Int8Fragments) -> Tensor:
    """The activations that this stands for, [M, K] float32."""
    words = x.words.transpose(1, 2).flatten(0, 1)
    by_quad = words.unflatten(3, (2, 2)).permute(0, 1, 3, 4, 2).contiguous()  # row, p, e, half, t
    levels = by_quad.view(torch.int8).view(*by_quad.shape[:2], 2 * GROUP)
    scale = x.notes[..., 0].transpose(1, 2).flatten(0, 1)
    rows: Tensor = (levels.float() * scale[:, :, None]).flatten(1)[: x.num_rows]
    return rows


def rows_of_block(n_rows: int) -> int:
    """C of Int8Fragments for M rows that are multiplied together."""
    return min(BLOCK, 1 << (n_rows - 1).bit_length())
