"""The list of what the word at the cursor may become, over what stands above the prompt.

It shows offers and the one that is marked; it knows neither keys nor text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual.binding import BindingType
from textual.content import Content
from textual.message import Message
from textual.widget import Widget
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from runner.chat_completing import Offer
from runner.measures import text_width
from runner.safe_text import safe_line
from runner.tui.content import line

_MOST_ROWS = 8
_WIDEST_LABEL = 32
_BORDERS = 2


class Completions(OptionList, can_focus=False, inherit_bindings=False):
    """The focus stays in the prompt, which sends its keys here."""

    DEFAULT_CSS = """
    Completions { display: none; overlay: screen; width: auto; max-width: 100%; height: auto; max-height: 10;
        background: $panel; border: round $primary; padding: 0 1; scrollbar-size-vertical: 1; }
    Completions > .option-list--option-highlighted, Completions:focus > .option-list--option-highlighted {
        background: $block-cursor-background; color: $block-cursor-foreground; text-style: bold; }
    Completions:focus { border: round $primary; }
    """
    BINDINGS: ClassVar[list[BindingType]] = []

    @dataclass
    class Taken(Message):
        """The user clicked on an offer."""

        offer: Offer

    def __init__(self) -> None:
        super().__init__()
        self._offers: list[Offer] = []
        self.is_moved = False

    @property
    def is_open(self) -> bool:
        return bool(self._offers)

    @property
    def marked(self) -> Offer | None:
        """The offer under the mark."""
        return self._offers[self.highlighted] if self._offers and self.highlighted is not None else None

    def has(self, text: str) -> bool:
        """Whether one of the offers is just this text."""
        return any(offer.text.rstrip() == text for offer in self._offers)

    def show(self, offers: Sequence[Offer], width: int) -> None:
        """Show these in at most `width` columns; none at all closes the list."""
        self._offers = list(offers)
        self.is_moved = False
        self.display = bool(offers)
        self.clear_options()
        if not offers:
            return
        room = width - 6
        column = min(_WIDEST_LABEL, max(text_width(safe_line(offer.label)) for offer in offers))
        self.add_options([Option(_row(offer, column, room)) for offer in offers])
        self.highlighted = 0
        self._place(len(offers))

    def _place(self, n_rows: int) -> None:
        """Over the field, wherever that is, and no higher than there is room."""
        above = self.parent.region.y if isinstance(self.parent, Widget) else 0
        rows = max(1, min(n_rows, _MOST_ROWS, above - _BORDERS - 1))
        gutter = self.parent.gutter.top if isinstance(self.parent, Widget) else 0
        self.styles.height = rows + _BORDERS
        self.styles.offset = (0, -rows - _BORDERS - gutter)

    def move(self, step: int) -> None:
        """Mark the next offer, round and round."""
        if self._offers:
            self.highlighted = ((self.highlighted or 0) + step) % len(self._offers)
            self.is_moved = True

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.post_message(self.Taken(self._offers[event.option_index]))


def _row(offer: Offer, column: int, room: int) -> Content:
    """A label, and its help in a column of its own where there is room for it."""
    label = line(offer.label)
    help_room = room - column - 2
    if not offer.help or help_room < 12:
        return label.truncate(room, ellipsis=True)
    help_text = line(offer.help, "$option-muted").truncate(help_room, ellipsis=True)
    return label.truncate(column, ellipsis=True, pad=True) + Content("  ") + help_text
