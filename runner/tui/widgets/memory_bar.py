"""The memory of the model's device as a stacked bar with a legend: each part has a glyph of its own beside its colour.

It shows a MemoryView. Sizes are binary (MiB, GiB) throughout.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from textual.content import Content

from runner.measures import binary_size
from runner.tui.content import line
from runner.tui.memory_parts import MemoryView, PartName, cells
from runner.tui.widgets.gauges import both_ends
from runner.tui.widgets.live_section import LiveSection, title

GLYPHS: Final[Mapping[PartName, tuple[str, str]]] = {
    "weights": ("█", "$primary"),
    "model": ("█", "$primary"),
    "KV cache": ("▓", "$accent"),
    "workspace": ("▒", "$secondary"),
    "graphs": ("░", "$success"),
    "draft": ("◇", "$secondary"),
    "runtime": ("≡", "$text-muted"),
    "others": ("╱", "$warning"),
    "others and runtime": ("╱", "$warning"),
}
_FREE: Final = ("·", "$text-muted")
_TWO_COLUMNS: Final = 46
_GAP: Final = 2


def bar(view: MemoryView, width: int) -> Content:
    """The parts in `width` columns, what is free at the end."""
    counts = cells([part.size_bytes for part in view.parts], view.free_bytes, width)
    marks = [*(GLYPHS[part.name] for part in view.parts), _FREE]
    return Content.assemble(*((glyph * count, style) for (glyph, style), count in zip(marks, counts, strict=True)))


def legend(view: MemoryView, width: int) -> list[Content]:
    """A line for each part and for what is free, its size at the right; two side by side where there is room."""
    n_columns = 2 if width >= _TWO_COLUMNS else 1
    column_width = (width - _GAP * (n_columns - 1)) // n_columns
    entries = [_entry(*GLYPHS[part.name], part.name, part.size_bytes, column_width) for part in view.parts]
    entries.append(_entry(*_FREE, "free", view.free_bytes, column_width))
    rows = [entries[start : start + n_columns] for start in range(0, len(entries), n_columns)]
    return [Content(" " * _GAP).join(row) for row in rows]


def _entry(glyph: str, style: str, name: str, size_bytes: int, width: int) -> Content:
    return both_ends(Content.assemble((glyph, style), " ", name), Content(binary_size(size_bytes)), width)


def expectation(view: MemoryView, width: int) -> list[Content]:
    """What the load was expected to take, what it took, and what this program really holds.

    After a load a backend may take more, as for graphs and a longer cache; the last figure alone has that.
    """
    if view.actual_bytes is None:
        return []
    took = f"at load {binary_size(view.actual_bytes)}"
    both = took if view.estimated_bytes is None else f"est. {_number(view)} → {took}"
    rows = [Content(both if len(both) <= width else took)]
    if view.held_bytes is not None:
        rows.append(Content.styled(f"runner holds {binary_size(view.held_bytes)} in all", "$text-muted"))
    return rows


def _number(view: MemoryView) -> str:
    """The estimate, without its unit where the actual size has the same."""
    assert view.estimated_bytes is not None
    assert view.actual_bytes is not None
    number, unit = binary_size(view.estimated_bytes).split(" ")
    return number if binary_size(view.actual_bytes).endswith(f" {unit}") else f"{number} {unit}"


class MemoryBar(LiveSection):
    """Heading, bar, legend, and the estimate beside what was used. `show` takes None where the driver says nothing."""

    DEFAULT_CSS = """
    MemoryBar { margin-top: 1; }
    """

    def __init__(self) -> None:
        super().__init__(id="memory")
        self._view: MemoryView | None = None
        self._nothing = "…"  # nobody has looked yet

    def show(self, view: MemoryView | None) -> None:
        self._view, self._nothing = view, "the driver says nothing of it"
        self.redraw()

    def rows(self, width: int) -> Sequence[Content]:
        view = self._view
        if view is None:
            return [title("MEMORY"), Content.styled(self._nothing, "$text-muted")]
        used = Content(f"{binary_size(view.used_bytes)} of {binary_size(view.total_bytes)}")
        notes = [line(view.note, "$text-muted")] if view.note else []
        return [
            both_ends(title(view.title), used, width),
            bar(view, width),
            *legend(view, width),
            *expectation(view, width),
            *notes,
        ]
