"""How full the context is, by part, on one line: a bar, the numbers, and what happens when it is full.

It shows the parts that it is given; it knows no conversation.
"""

from __future__ import annotations

from textual.content import Content
from textual.events import Resize
from textual.widgets import Static

from runner.config import OverflowPolicy
from runner.measures import short_count
from runner.status_text import context_used
from runner.tui.context_parts import ContextParts, cells, when_full

# A part is told by its cell's shape as well as by its colour.
_PARTS = (
    ("system", "▓", "$secondary"),
    ("chat", "█", "$primary"),
    ("files", "▒", "$warning"),
    ("answer", "▞", "$accent"),
)
_FREE = "·"


class ContextMeter(Static):
    """As much of it as there is room for."""

    DEFAULT_CSS = """
    ContextMeter { height: 1; width: 1fr; color: $text-muted; text-wrap: nowrap; text-overflow: ellipsis; }
    """

    def __init__(self) -> None:
        super().__init__(id="context-meter")
        self._parts = ContextParts()
        self._policy: OverflowPolicy = "stop"

    def show(self, parts: ContextParts, policy: OverflowPolicy) -> None:
        if (parts, policy) != (self._parts, self._policy):
            self._parts, self._policy = parts, policy
            self._draw()

    def on_resize(self, _: Resize) -> None:
        self._draw()

    def _draw(self) -> None:
        self.update(meter(self._parts, self._policy, self.content_size.width), layout=False)


def meter(parts: ContextParts, policy: OverflowPolicy, width: int) -> Content:
    """The line in `width` columns: the bar and the legend go first where room is short, the percentage last."""
    if not parts.n_ctx:
        return Content("")
    about = "~" if parts.is_estimate else ""
    numbers = Content(f"{about}{context_used(parts.used, parts.n_ctx)}")
    if parts.is_tight:
        full = f"! {about}{100 * parts.share:.0f} % full"
        warning = Content.styled(f"{full}: {when_full(policy, parts)}", "$warning")
        lines = [
            Content.assemble(_bar(parts, 10), " ", numbers, "  ", warning),
            warning,
            Content.styled(full, "$warning"),
        ]
    else:
        legend = Content.assemble(numbers, "  ", _legend(parts))
        lines = [
            Content.assemble("context ", _bar(parts, 16), " ", legend),
            Content.assemble(_bar(parts, 10), " ", legend),
            Content.assemble(_bar(parts, 10), " ", numbers),
            Content.assemble(_bar(parts, 6), " ", numbers),
        ]
    lines += [numbers, Content(f"{100 * parts.share:.0f} %")]
    return next((line for line in lines if line.cell_length <= width), Content(""))


def _bar(parts: ContextParts, width: int) -> Content:
    *filled, free = cells(parts, width)
    pieces = [Content.styled(mark * n, colour) for n, (_, mark, colour) in zip(filled, _PARTS, strict=True)]
    return Content("").join([*pieces, Content(_FREE * free)])


def _legend(parts: ContextParts) -> Content:
    counts = (parts.system, parts.conversation, parts.attached, parts.answer)
    shown = [
        Content.assemble((mark, colour), f" {name} {short_count(n)}")
        for n, (name, mark, colour) in zip(counts, _PARTS, strict=True)
        if n
    ]
    return Content("  ").join([*shown, Content(f"{_FREE} free {short_count(parts.free)}")])
