"""Packed weights in planes to fragments, on the GPU: as a model is loaded, each of its matrices once.

A program brings a tile of 16 places into order, some pairs of groups at a time, and keeps the largest scale code of
each. It moves integers as fragments.to_fragments does, which is the reference, and takes no room but for what comes of
it: of torch's own operations that would be a dozen, whose kernels take a fifth of a second to be there. It knows no
products.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import torch
import triton
import triton.language as tl

from runner.kernels.compile import Variant
from runner.kernels.fragments import FORMATS_IN_FRAGMENTS, TILE, can_be_fragments, num_tiles
from runner.kernels.grids import FORMATS, words_of_group
from runner.kernels.values import GROUP, OPTIONS, PackedMatrix

_PAIRS = 8  # of groups, at a time
_WARPS = 4
_SIZES = ["n_rows", "pair", "n_pairs"]  # of which there are many, and one kernel for all


@triton.jit
def _gathered(nibbles):
    """Four bytes with a nibble each to 16 bits."""
    pairs = (nibbles | (nibbles >> 4)) & 0x00FF00FF
    return (pairs | (pairs >> 8)) & 0xFFFF


@triton.jit
def _in_order(words):
    """Nibbles (low, high of byte 0, low, high of byte 1, ...) to (the low ones, the high ones)."""
    return _gathered(words & 0x0F0F0F0F) | (_gathered((words >> 4) & 0x0F0F0F0F) << 16)


@triton.jit
def _high_bits(at, stride, ok, j):
    """The top two bits of mq6 from its fifth and sixth word on, which are `stride` apart, of the elements of lane j."""
    found = tl.zeros(ok.shape, tl.int32)
    for half in tl.static_range(2):
        word = tl.load(at + half * stride, mask=ok, other=0)
        for i in tl.static_range(4):
            found |= ((word >> (8 * i + 2 * j)) & 3) << (8 * half + 2 * i)
    return found


@triton.jit
def _row_of(tile, g, h, n_rows, pair):
    """The row of place 8 h + g of a tile, as int64, and whether there is one."""
    first = tl.where(pair > 0, 8 * tile, 16 * tile) + g
    row = first + h * tl.where(pair > 0, pair, 8)
    return row.to(tl.int64), tl.where(pair > 0, first < pair, row < n_rows)


@triton.jit(do_not_specialize=_SIZES)
def _lay_out(
    packed, scale, to_packed, to_scale, to_high, largest, n_rows, pair, n_pairs,
    WORDS: tl.constexpr, IN_ORDER: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    """WORDS: of a group, in planes; with six there are high bits. IN_ORDER: nibbles become those of mq4."""
    tile = tl.program_id(0)
    groups = 2 * n_pairs
    i = tl.arange(0, PAIRS * 128)  # p, g, j, e, h
    p, g, j, e, h = i // 128, i // 16 % 8, i // 4 % 4, i // 2 % 2, i % 2
    row, is_row = _row_of(tile, g, h, n_rows, pair)
    words = packed + row * (WORDS * groups) + 2 * p + e
    k = tl.arange(0, PAIRS * 32)  # p, g, e, h
    of_code = k // 32
    row_of_code, is_row_of_code = _row_of(tile, k // 4 % 8, k % 2, n_rows, pair)
    codes = scale + row_of_code * groups + 2 * of_code + k // 2 % 2
    found = tl.zeros((PAIRS * 32,), tl.int32)
    before = tile.to(tl.int64) * n_pairs
    for first in range(0, n_pairs, PAIRS):
        is_there = first + p < n_pairs
        ok = is_there & is_row
        word = tl.load(words + 2 * first + j * groups, mask=ok, other=0)
        if IN_ORDER:
            word = _in_order(word)
        at = (before + first) * 128 + i
        tl.store(to_packed + at, word, mask=is_there)
        if WORDS == 6:
            high = _high_bits(words + 2 * first + 4 * groups, groups, ok, j)
            tl.store(to_high + at, high.to(tl.int16), mask=is_there)
        of_pair = first + of_code < n_pairs
        code = tl.load(codes + 2 * first, mask=of_pair & is_row_of_code, other=0)
        tl.store(to_scale + (before + first) * 32 + k, code, mask=of_pair)
        found = tl.maximum(found, code.to(tl.int32) & 127)
    of_place = tl.max(tl.max(tl.reshape(found, (PAIRS, 8, 2, 2)), 0), 1)  # g, h
    place = tl.arange(0, 8)[:, None] + 8 * tl.arange(0, 2)[None, :]
    tl.store(largest + tile.to(tl.int64) * 16 + place, of_place.to(tl.uint8))


def lay_out(w: PackedMatrix, pair: int = 0) -> PackedMatrix:
    """The same matrix in fragments; see fragments.to_fragments."""
    assert can_be_fragments(w)
    (n_rows, n_columns), device = w.shape, w.packed.device
    n_tiles, n_pairs = num_tiles(n_rows, pair), n_columns // (2 * GROUP)
    shape = (n_tiles, n_pairs, 8, 4, 4)
    packed = torch.empty(shape, dtype=torch.int32, device=device)
    scale = torch.empty(shape[:4], dtype=torch.uint8, device=device)
    largest = torch.empty(n_tiles, TILE, dtype=torch.uint8, device=device)
    words = words_of_group(FORMATS[w.format])
    high = torch.empty(shape, dtype=torch.int16, device=device) if words == 6 else None
    _lay_out[(n_tiles,)](
        w.packed, w.scale, packed, scale, packed if high is None else high, largest, n_rows, pair, n_pairs,
        WORDS=words, IN_ORDER=w.format == "mq4", PAIRS=_PAIRS, num_warps=_WARPS, **OPTIONS,
    )  # fmt: skip
    return dataclasses.replace(w, layout="fragments", pair=pair, packed=packed, scale=scale, high=high, largest=largest)


def variants() -> Iterator[Variant]:
    for form in FORMATS_IN_FRAGMENTS:
        words = words_of_group(FORMATS[form])
        yield Variant(
            name=f"lay_out {form}",
            kernel=_lay_out,
            signature={
                "packed": "*i32", "scale": "*u8", "to_packed": "*i32", "to_scale": "*u8",
                "to_high": "*i16" if words == 6 else "*i32", "largest": "*u8", "n_rows": "i32", "pair": "i32",
                "n_pairs": "i32",
            },
            constants={"WORDS": words, "IN_ORDER": form == "mq4", "PAIRS": _PAIRS},
            num_warps=_WARPS,
            is_decode=False,
            is_nvidia_only=True,
        )  # fmt: skip
