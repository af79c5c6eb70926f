"""How products of weights in fragments are cut into programs: by rules whose numbers were measured on an H200.

A choice depends on the size of the matrix, never on the number of rows, since the order of summation follows from
warps and part. It knows no kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from runner.kernels.values import MULTIPROCESSORS, cdiv, next_power_of_2


@dataclass(frozen=True, kw_only=True)
class Tiles:
    """warps: of a program, which share its pairs of groups four by four. part: pairs of a program, 0 for all.

    depth: of one row, how many times four pairs a warp has on their way. turns: of several rows, in how many goes, 1 or
    4, a warp multiplies its four pairs. Four want fewer registers, so more programs run at once; one goes faster where
    there are few programs. registers: of a thread, at most; 0 for as many as the launcher finds best.
    """

    warps: int
    depth: int = 2
    part: int = 0
    turns: int = 4
    registers: int = 0


def tiles_of(n_tiles: int, n_pairs: int) -> Tiles:
    """The choice for a matrix of n_tiles * 16 rows and n_pairs * 64 columns.

    Else than of small matrices two warps a program: with one step under way, and so few registers, where all programs
    then run at once. One warp where only that is one wave; of few tiles with many columns four, with much under way,
    unless that is two waves.
    """
    if is_small(n_tiles, n_pairs):
        return _tiles_of_small(n_pairs)
    if n_tiles >= _MANY_TILES or (n_tiles > _FOUR_WARPS and n_pairs >= 128):
        if _ONE_WAVE[0] <= n_tiles <= _ONE_WAVE[1] and n_pairs >= 16:
            return Tiles(warps=2, depth=1)
        is_one = _ONE_WAVE[1] < n_tiles <= _ONE_WARP or n_tiles >= _OUTPUT_TILES or n_pairs < 16
        warps = 1 if is_one else 2
        # Up to 2 * depth steps are unrolled; more are a loop, which needs masks where depth does not divide them.
        depth = 3 if -(-n_pairs // (4 * warps)) == 5 else 2
        return Tiles(warps=warps, depth=depth)
    warps = 4 if n_pairs >= 32 else 2
    return Tiles(warps=warps, depth=min(3, -(-n_pairs // (4 * warps))))


def tiles_of_branch(n_tiles: int, n_pairs: int) -> Tiles:
    """The choice where the product is added to a stream, whose columns may be summed in parts (add_parts.py).

    Whole where that is one wave: of two programs a multiprocessor, of eight warps each, or of four, of four warps; or
    where the matrix is small. Else in parts. The fewest tiles that are cut so have three steps under way.
    """
    if is_small(n_tiles, n_pairs):
        return _tiles_of_small(n_pairs)
    if not (_WAVE[0] <= n_tiles <= 2 * _WAVE[1] and n_pairs >= 32):
        return tiles_of_parts(n_tiles, n_pairs)
    warps = 8 if n_tiles <= _WAVE[1] else 4
    most = 3 if warps == 4 or n_tiles == _WAVE[0] else 4
    return Tiles(warps=warps, depth=min(most, -(-n_pairs // (4 * warps))))


def tiles_of_normed_branch(n_tiles: int, n_pairs: int) -> Tiles:
    """The same where a norm stands between the product and the stream, which wants the squares of whole sums.

    Eight warps where two such programs a multiprocessor are enough; four of small matrices. Gemma-3-4B's were measured.
    """
    small = is_small(n_tiles, n_pairs)
    warps = _no_idle(8 if n_tiles <= _WAVE[1] and not small else 4, n_pairs)
    return Tiles(warps=warps, depth=min(3, -(-n_pairs // (4 * warps))), turns=1 if small else 4)


def _tiles_of_small(n_pairs: int) -> Tiles:
    """A warp for each 256 columns, up to eight, and all of their weights under way at once, or most."""
    warps = min(8, next_power_of_2(cdiv(n_pairs, 4)))
    return Tiles(warps=warps, depth=min(4, -(-n_pairs // (4 * warps))), turns=1)


def _no_idle(warps: int, n_pairs: int) -> int:
    """So many warps, or as many as four pairs each keep busy."""
    while 4 * warps > n_pairs and warps > 1:
        warps //= 2
    return warps


def tiles_of_parts(n_tiles: int, n_pairs: int) -> Tiles:
    """The choice where the columns are summed in parts: one warp, and parts so long that all run at once."""
    part = 4
    while n_tiles * -(-n_pairs // part) > _AT_ONCE and part < n_pairs:
        part *= 2
    return Tiles(warps=1, depth=4 if part <= 16 else 2, part=part)


class Waves(NamedTuple):
    """number: how many there are. length: of all together, by the warps of a multiprocessor in each."""

    number: int
    length: int


def waves(n_programs: int, warps: int, registers: int) -> Waves:
    """Of programs of so many warps, with so many registers a thread."""
    at_once = max(1, _REGISTERS // (32 * registers) // warps)
    count = -(-n_programs // (at_once * MULTIPROCESSORS))
    return Waves(count, count * at_once * warps)


def is_small(n_tiles: int, n_pairs: int) -> bool:
    """Whether a matrix is read in less time than a kernel takes to begin and to end."""
    return n_tiles * n_pairs <= _SMALL


# H200, Llama-3.1-8B's shapes: with 80 to 96 registers, 16 warps on each of 132 multiprocessors run at once.
_REGISTERS = 1 << 16  # of a multiprocessor
FEW_REGISTERS, MANY_REGISTERS = 128, 168  # of a thread: 16 and 12 warps a multiprocessor, 4 and 3 a scheduler
_AT_ONCE = 16 * MULTIPROCESSORS
_WAVE = (128, 2 * MULTIPROCESSORS)  # tiles of 8 warps; 128, 160, 192, 256 and, of 4 warps, 320 were measured
_SMALL = 384 * 16  # tiles times pairs: gate and up of Qwen3-0.6B
_MANY_TILES = 768
_FOUR_WARPS = 4 * MULTIPROCESSORS  # tiles of a wave; of 640 with 128 pairs two warps and two steps take 1.3 % less
_ONE_WAVE = (10 * MULTIPROCESSORS, 14 * MULTIPROCESSORS)  # tiles, of 72 registers; 1536 and 1792 were measured
_ONE_WARP = 16 * MULTIPROCESSORS  # tiles; 768 to 1216 and 2176 measured with two
_OUTPUT_TILES = 5000  # one warp; two were not measured
