"""How gemv_fragments.py cuts a product into programs: data, measured once for a kind of GPU, and a default for others.

A choice depends on the format and on the matrix, never on the number of rows, since the order of summation follows from
it. It knows no kernel.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Tiles:
    """tiles: of 16 columns, of one program. pairs: of groups that its warps multiply at a time, each at least one.

    part: pairs of a program, 0 for all.
    """

    tiles: int
    pairs: int
    warps: int
    part: int = 0


def tiles_of(form: str, n_tiles: int, n_pairs: int) -> Tiles:
    """The choice for a matrix of n_tiles * 16 rows and n_pairs * 64 columns in a format.

    Matrices with few rows want few warps with much under way, since there are not enough programs to hide behind each
    other; those with many want small programs, two tiles of which share their activations.
    """
    is_many = n_tiles >= _MANY_TILES and n_tiles % 2 == 0
    pairs, warps = (_MANY if is_many else _FEW)[form]
    pairs = min(pairs, _power_of_two(n_pairs))
    return Tiles(tiles=2 if is_many else 1, pairs=pairs, warps=min(warps, pairs))


def tiles_of_parts(form: str, n_pairs: int) -> Tiles:
    """The choice where the columns may be summed in parts: one warp, which has all its weights under way at once."""
    part = _PART[form]
    return Tiles(tiles=1, pairs=min(part, _power_of_two(n_pairs)), warps=1, part=part)


def _power_of_two(n: int) -> int:
    """The smallest power of two that is at least n."""
    return 1 << (n - 1).bit_length()


# H200, Llama-3.1-8B's shapes, M = 1, chains of 32 launches with weights larger than L2: pairs, warps.
_MANY_TILES = 768
_MANY = {"mq4": (8, 4), "mq4-uniform": (4, 2), "mq6": (4, 2)}
_FEW = {"mq4": (32, 4), "mq4-uniform": (32, 4), "mq6": (32, 4)}
_PART = {"mq4": 8, "mq4-uniform": 8, "mq6": 8}
