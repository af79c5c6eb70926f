"""The plots of quality.py: bits a weight against divergence and against weight error."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from plot_style import BLUE, ORANGE, PURPLE, drawn, panel

LINE, REACH = 13, 60  # pixels at 100 dpi: the height of a label, and how far apart points are that cannot collide
FAMILIES = {"llama.cpp": (BLUE, "o"), "runner": (ORANGE, "s"), "hipfire": (PURPLE, "^")}


@dataclass(frozen=True)
class Point:
    """One format: x bits a weight, y with its interval or None."""

    label: str
    family: str
    x: float
    y: float
    low: float | None
    high: float | None


def draw(data: dict[str, Any], directory: Path) -> None:
    """Write quality and weight_error, each as .svg and .png."""
    rows = data["rows"]
    if rows:
        texts = [result["text"] for result in rows[0]["report"]["results"]]
        panels = {text: [_divergence(row, number) for row in rows] for number, text in enumerate(texts)}
        _figure(panels, "bits a weight, all tensors", "mean KL divergence (nats a token)", directory / "quality")
    kinds = list(data["synthetic"][0]["errors"])
    panels = {kind: [_error(row, kind) for row in data["synthetic"]] for kind in kinds}
    _figure(panels, "bits a weight", "squared error over squared weights", directory / "weight_error")


def _divergence(row: dict[str, Any], number: int) -> Point:
    report = row["report"]
    kld = report["results"][number]["against"]["mean_kld"]
    bits = report["model"]["bits"]["total"]
    return Point(row["name"], row["family"], bits, kld["value"], kld["low"], kld["high"])


def _error(row: dict[str, Any], kind: str) -> Point:
    return Point(row["name"], row["family"], row["bpw"], row["errors"][kind], None, None)


def _figure(panels: dict[str, list[Point]], x_label: str, y_label: str, path: Path) -> None:
    with drawn(path, len(panels), sharey=True) as (figure, axes):
        for ax, (title, points) in zip(axes, panels.items(), strict=True):
            _panel(ax, title, points, x_label)
        axes[0].set_ylabel(y_label)
        handles, labels = axes[0].get_legend_handles_labels()
        axes[-1].legend(handles, labels, frameon=False, loc="upper right")
        figure.canvas.draw()  # labels are set apart in pixels, which are known from here on
        for ax, points in zip(axes, panels.values(), strict=True):
            _label(ax, points)


def _panel(ax: Axes, title: str, points: list[Point], x_label: str) -> None:
    panel(ax, title, x_label)
    ax.set_yscale("log")
    for family, (colour, marker) in FAMILIES.items():
        mine = [point for point in points if point.family == family]
        if not mine:
            continue
        ax.scatter([p.x for p in mine], [p.y for p in mine], color=colour, marker=marker, s=42, label=family, zorder=3)
        for point in mine:
            if point.low is not None and point.high is not None:
                ax.plot([point.x, point.x], [point.low, point.high], color=colour, linewidth=1.4, zorder=2)
    ax.margins(x=0.28, y=0.12)
    low, high = ax.get_xlim()
    ax.set_xlim(low - 0.25 * (high - low), high)  # room for the names on the left


def _label(ax: Axes, points: list[Point]) -> None:
    """Names beside the points, llama.cpp's to the right and others to the left, moved up where they would overlap."""
    placed: list[tuple[bool, float, float]] = []
    at = {point: ax.transData.transform((point.x, point.y)) for point in points}
    for point in sorted(points, key=lambda point: point.y):
        is_right = point.family == "llama.cpp"
        x, y = at[point]
        taken = [up for right, across, up in placed if right == is_right and abs(across - x) < REACH]
        height = max([y, *(up + LINE for up in taken if up + LINE > y)])
        placed.append((is_right, x, height))
        ax.annotate(
            point.label,
            (point.x, point.y),
            xytext=(7 if is_right else -7, (height - y) * 72 / ax.figure.dpi),
            textcoords="offset points",
            ha="left" if is_right else "right",
            va="center",
            fontsize=8.5,
            color=FAMILIES[point.family][0],
        )
