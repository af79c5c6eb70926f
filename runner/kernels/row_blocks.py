"""A product of more than 16 rows of int8 activations with packed weights, 16 rows at a time.

Up to some tens of rows this is faster than decoding the weights for the library, which takes the same time for one row
as for a hundred; and a row has the bits here that it has alone. It knows no kernel, only that one takes up to 16 rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from runner.kernels.values import MOST_ROWS, Int8Rows


class Launch(Protocol):
    """What one of the products of few rows is."""

    @property
    def n_tiles(self) -> int: ...

    def run(self, epilogue: Callable[..., Any], args: tuple[Any, ...], config: tuple[Any, ...]) -> None: ...


@dataclass(frozen=True, kw_only=True)
class RowBlocks:
    """A product to be run. launches: of 16 rows each, the last of what is left."""

    num_rows: int
    launches: tuple[Launch, ...]

    @property
    def n_tiles(self) -> int:
        return self.launches[0].n_tiles

    def run(self, epilogue: Callable[..., Any], args: tuple[Any, ...], config: tuple[Any, ...]) -> None:
        """epilogue: a program (epilogues.py) with its arguments and constants; its matrices have a row for each row."""
        for i, launch in enumerate(self.launches):
            launch.run(epilogue, _cut(args, slice(MOST_ROWS * i, MOST_ROWS * (i + 1))), config)


def row_blocks(x: Int8Rows) -> list[Int8Rows]:
    """The same activations, up to 16 rows at a time."""
    cuts = [slice(first, first + MOST_ROWS) for first in range(0, x.shape[0], MOST_ROWS)]
    return [Int8Rows(words=x.words[cut], scale=x.scale[cut]) for cut in cuts]


def _cut(args: tuple[Any, ...], rows: slice) -> tuple[Any, ...]:
    """The arguments of a program for some of its rows: what it has of rows are matrices, and of columns vectors."""
    return tuple(
        _cut(arg, rows) if isinstance(arg, tuple) else arg[rows] if isinstance(arg, Tensor) and arg.dim() == 2 else arg
        for arg in args
    )
