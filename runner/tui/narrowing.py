"""What changes on the screen is sent without what stands left of it.

Textual sends a changed region from the beginning of the widget that shows it there. Under a dialog that widget is the
dialog's screen, which begins at the left edge: every change of the live numbers sent whole lines, 17 kB a second where
300 bytes had changed. It knows no widget.
"""

from __future__ import annotations

from rich.console import Console
from textual import _compositor


class NarrowUpdate(_compositor.ChopsUpdate):
    """Textual's update of some regions, each cut at both of its edges."""

    def render_segments(self, console: Console) -> str:
        return "".join(
            f"\x1b[{y + 1};{max(x, left) + 1}H{strip.crop(max(0, left - x), min(end, right) - x).render(console)}"
            for y, left, right in self.spans
            for end, (x, strip) in zip(self.chop_ends[y], self.chops[y].items(), strict=False)
            if strip is not None and x < right and end > left
        )


def install() -> None:
    """Have Textual use it."""
    _compositor.ChopsUpdate = NarrowUpdate  # type: ignore[misc]
