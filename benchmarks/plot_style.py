"""How the plots of the documentation look, and how they become files: SVG and PNG, the same ones each time.

Nothing is drawn on a background, and lines and letters are of colours that can be read on white and on black.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

_MOST_SIDE_BY_SIDE = 4
INK = "#808080"
BLUE, ORANGE, PURPLE, GREEN = "#2f8fe0", "#e8720c", "#b25fd6", "#2fa84f"
STYLE = {
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.hashsalt": "runner",  # the same figure is the same file
    "font.size": 10,
}


@contextmanager
def drawn(path: Path, n_panels: int, *, sharey: bool) -> Iterator[tuple[Figure, list[Axes]]]:
    """Panels to draw on, up to four side by side, then `path` as .svg and .png."""
    n_rows = -(-n_panels // _MOST_SIDE_BY_SIDE)
    n_columns = -(-n_panels // n_rows)
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(
            n_rows,
            n_columns,
            figsize=(1.5 + 4.5 * n_columns, 4.8 * n_rows),
            sharey=sharey,
            squeeze=False,
            layout="constrained",
        )
        panels = list(axes.flat)
        for unused in panels[n_panels:]:
            unused.remove()
        yield figure, panels[:n_panels]
        figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})
        figure.savefig(path.with_suffix(".png"), dpi=150)
        plt.close(figure)


def panel(ax: Axes, title: str, x_label: str) -> None:
    """A panel's title, its axis and its grid."""
    ax.set_title(title, fontsize=11)
    ax.set_xlabel(x_label)
    ax.grid(color=INK, alpha=0.25, linewidth=0.6)
