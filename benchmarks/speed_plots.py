"""The plots of page.py: decoding against depth, and steps of several rows, one panel a shape.

A shape that was measured at one place alone has no panel: a point is no line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from plot_style import BLUE, GREEN, ORANGE, PURPLE, drawn, panel

_COLOURS = (ORANGE, BLUE, PURPLE, GREEN)
Row = dict[str, Any]


def depth_of(test: str) -> int | None:
    """The depth of a decoding test, None for another one."""
    name, _, depth = test.partition(" @ d")
    return int(depth or 0) if name.startswith("tg") else None


def rows_of(test: str) -> int | None:
    """M of "t(M)", None for another test."""
    return int(test[2:-1]) if test.startswith("t(") else None


def draw(rows: Sequence[Row], directory: Path) -> list[str]:
    """Write what there are rows for; returns the names of the files without suffix."""
    colours = dict(zip(dict.fromkeys(row["engine"] for row in rows), cycle(_COLOURS), strict=False))
    found = []
    for name, x_of, x_label, y_label in (
        ("decode", depth_of, "tokens of context", "tokens/s"),
        ("rows", rows_of, "rows M of a step", "ms a step"),
    ):
        wanted = [row for row in rows if x_of(row["test"]) is not None]
        places = {row["shape"]: set[int | None]() for row in wanted}
        for row in wanted:
            places[row["shape"]].add(x_of(row["test"]))
        shapes = [shape for shape, xs in places.items() if len(xs) > 1]
        if not shapes:
            continue
        with drawn(directory / name, len(shapes), sharey=False) as (_, axes):
            for ax, shape in zip(axes, shapes, strict=True):
                panel(ax, shape, x_label)
                _lines(ax, [(x_of(row["test"]), row) for row in wanted if row["shape"] == shape], colours)
                ax.set_ylim(bottom=0)
                ax.set_ylabel(y_label)
            labelled = {label: line for ax in axes for line, label in zip(*ax.get_legend_handles_labels(), strict=True)}
            axes[-1].legend(labelled.values(), labelled.keys(), frameon=False)
        found.append(name)
    return found


def _lines(ax: Axes, points: list[tuple[int | None, Row]], colours: Mapping[str, str]) -> None:
    for engine in dict.fromkeys(row["engine"] for _, row in points):
        colour = colours[engine]
        mine = sorted((x or 0, row["median"], row["samples"]) for x, row in points if row["engine"] == engine)
        xs, middles = [x for x, _, _ in mine], [y for _, y, _ in mine]
        ax.plot(xs, middles, color=colour, marker="o", markersize=4, label=engine)
        ax.fill_between(
            xs, [min(samples) for *_, samples in mine], [max(samples) for *_, samples in mine], color=colour, alpha=0.2
        )
