"""Plots with the dots of braille characters, two across and four down in a column: samples, and values over time.

Pure functions that return lines of styled text; where an encoding has no braille, plain ASCII takes its place. It knows
no benchmark and no screen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from runner.bench.figures import figure
from runner.bench.styled import Line, Segment, Style, padded

_BLANK: Final = 0x2800
# The bit of each dot by (row from the top, left or right): dots 1 to 8 of the Unicode block.
_BITS: Final = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
_ACROSS, _DOWN = 2, 4
_ASCII_MARKS: Final = "*+ox"


def sample_strip(samples: Sequence[float], top: float, width: int, *, is_ascii: bool = False) -> str:
    """Every sample as a dot of one line that goes from 0 to `top`; the first ones are higher, so that drift is seen."""
    if is_ascii:
        marked = {min(width - 1, int(value / top * width)) for value in samples if 0 <= value <= top}
        return "".join("o" if column in marked else " " for column in range(width))
    cells = [0] * width
    for number, value in enumerate(samples):
        if 0 <= value <= top:
            across = min(_ACROSS * width - 1, int(value / top * _ACROSS * width))
            cells[across // _ACROSS] |= _BITS[number * _DOWN // len(samples)][across % _ACROSS]
    return "".join(chr(_BLANK + bits) if bits else " " for bits in cells)


@dataclass(frozen=True)
class Curve:
    """Values in the order of time."""

    name: str
    values: tuple[float, ...]
    style: Style = ""


def curve_lines(curves: Sequence[Curve], width: int, height: int, *, is_ascii: bool = False) -> list[Line]:
    """The curves over one scale, from the least value to the largest, which stand at the left; nothing where there is
    no room. The last values are at the right, those of a shorter curve under those of a longer."""
    values = [value for curve in curves for value in curve.values]
    if not values or height < 2:
        return []
    low, high = min(values), max(values)
    if high - low < 0.02 * high:  # what is nearly level shows as level, and not as its noise
        low, high = high - 0.02 * high, high
    marks = [figure(high), figure(low, high)]
    margin = max(len(mark) for mark in marks) + 1
    room = width - margin - 1
    if room < 8:
        return []
    grid = _Grid(room, height, is_ascii)
    n_most = max(len(curve.values) for curve in curves)
    for number, curve in enumerate(curves):
        first = n_most - len(curve.values)
        grid.draw([(first + i) / max(1, n_most - 1) for i in range(len(curve.values))],
                  [(value - low) / (high - low) for value in curve.values], number)  # fmt: skip
    axis = "|" if is_ascii else "┤"
    return [
        (
            Segment(
                padded(marks[0] if not row else marks[1] if row == height - 1 else "", margin, is_right=True), "dim"
            ),
            Segment(axis if row in (0, height - 1) else "|" if is_ascii else "│", "dim"),
            *(Segment(text, curves[number].style if number >= 0 else "") for text, number in grid.row(row)),
        )
        for row in range(height)
    ]


class _Grid:
    """Cells of dots, each with the number of the curve that was drawn there last."""

    def __init__(self, width: int, height: int, is_ascii: bool) -> None:
        self._width, self._height, self._is_ascii = width, height, is_ascii
        self._bits = [[0] * width for _ in range(height)]
        self._owner = [[-1] * width for _ in range(height)]

    def draw(self, xs: Sequence[float], ys: Sequence[float], owner: int) -> None:
        """Points with straight lines between them; x and y from 0 to 1, y upwards."""
        across, down = _ACROSS * self._width - 1, _DOWN * self._height - 1
        points = [(round(x * across), round((1 - y) * down)) for x, y in zip(xs, ys, strict=True)]
        for point in points:
            self._dot(*point, owner)
        for (x1, y1), (x2, y2) in pairwise(points):
            steps = max(abs(x2 - x1), abs(y2 - y1))
            for step in range(1, steps):
                self._dot(x1 + round((x2 - x1) * step / steps), y1 + round((y2 - y1) * step / steps), owner)

    def _dot(self, x: int, y: int, owner: int) -> None:
        self._bits[y // _DOWN][x // _ACROSS] |= _BITS[y % _DOWN][x % _ACROSS]
        self._owner[y // _DOWN][x // _ACROSS] = owner

    def row(self, number: int) -> Iterator[tuple[str, int]]:
        """Runs of cells of one curve; -1 for empty ones."""
        text, current = "", -1
        for bits, owner in zip(self._bits[number], self._owner[number], strict=True):
            if owner != current and text:
                yield text, current
                text = ""
            current = owner
            text += self._character(bits, owner)
        yield text, current

    def _character(self, bits: int, owner: int) -> str:
        if not bits:
            return " "
        return _ASCII_MARKS[owner % len(_ASCII_MARKS)] if self._is_ascii else chr(_BLANK + bits)
