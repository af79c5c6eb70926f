"""What keys and clicks of one burst find half done in Textual, where it would end the app with an error.

A page key in a list that has no lines yet, for it was not laid out; a click on a row that a list has no more; a dialog
that is left a second time, such as by a click beside it and a key; a search in a palette that was left. Nothing is done
there. It knows no screen of ours.
"""

from __future__ import annotations

import logging
from typing import Any, Final, Literal

from textual.app import ScreenStackError
from textual.await_complete import AwaitComplete
from textual.command import CommandList, CommandPalette
from textual.events import Click
from textual.screen import Screen
from textual.widgets import OptionList

_log = logging.getLogger(__name__)

_move_page: Final = OptionList._move_page
_click: Final = OptionList._on_click
_dismiss: Final = Screen.dismiss
_gather_commands: Final = CommandPalette._gather_commands
_watch_list: Final = CommandPalette._watch__list_visible


def _move_page_of_lines(self: OptionList, direction: Literal[-1, 1]) -> None:
    if self._lines:
        _move_page(self, direction)


async def _click_what_is_there(self: OptionList, event: Click) -> None:
    if event.style.meta.get("option", 0) < self.option_count:
        await _click(self, event)


def _dismiss_once(self: Screen[Any], result: Any = None) -> AwaitComplete:
    """Textual takes away whatever screen is on top."""
    if _is_on_top(self):
        return _dismiss(self, result)
    _log.debug("%r is left, but is not on top", self)
    return AwaitComplete()


def _gather_where_asked(self: CommandPalette, search_value: str) -> object:
    return _gather_commands(self, search_value) if _is_on_top(self) else None


def _is_on_top(screen: Screen[Any]) -> bool:
    """Textual's is_active takes any error for no."""
    try:
        return screen.app.screen is screen
    except ScreenStackError:
        return False


def _watch_what_is_there(self: CommandPalette) -> None:
    if self.query(CommandList):
        _watch_list(self)


def install() -> None:
    """Have Textual do so."""
    OptionList._move_page = _move_page_of_lines  # type: ignore[method-assign]
    OptionList._on_click = _click_what_is_there  # type: ignore[method-assign]
    Screen.dismiss = _dismiss_once  # type: ignore[method-assign]
    CommandPalette._gather_commands = _gather_where_asked  # type: ignore[method-assign,assignment]
    CommandPalette._watch__list_visible = _watch_what_is_there  # type: ignore[method-assign]
