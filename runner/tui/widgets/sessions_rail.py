"""The kept chats as a list that can be searched: resume, rename, delete, begin a new one.

It shows the chats that it is given and posts what the user wants with them; it knows no store.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from itertools import islice
from typing import ClassVar

from textual import on
from textual.actions import SkipAction
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from runner.store import Match
from runner.transcript import SessionSummary
from runner.tui.content import line
from runner.tui.session_rows import Row, about, found, grouped

_PAGE = 200
_NEAR_END = 20
_UNTITLED = "(without words)"


class SessionList(OptionList):
    """The chats, a line each; two where a search shows what it found."""


class SessionsRail(Vertical):
    """show: what there is; show_matches: what a search found. The current chat is marked ▸."""

    DEFAULT_CSS = """
    SessionsRail { height: 1fr; }
    SessionsRail #sessions-title { height: 1; text-style: bold; color: $text-muted; }
    SessionsRail Input { height: 1; border: none; padding: 0; margin: 0 0 0 0; background: $boost; }
    SessionsRail Input:focus { border: none; background: $primary 20%; }
    SessionsRail SessionList { height: 1fr; border: none; padding: 0; background: transparent;
        text-wrap: nowrap; text-overflow: ellipsis; scrollbar-size-vertical: 1; }
    SessionsRail SessionList:focus { border: none; background: transparent; }
    SessionsRail SessionList > .option-list--option { padding: 0; }
    SessionsRail SessionList > .option-list--option-disabled { color: $text-muted; text-style: italic; }
    SessionsRail #about { height: 1; color: $text-muted; display: none; text-wrap: nowrap; text-overflow: ellipsis; }
    SessionsRail.-focused #about { display: block; }
    """
    # While the search field has the focus, letters are its own.
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("n", "new", "New"),
        Binding("r", "rename", "Rename"),
        Binding("d,delete", "delete", "Delete"),
        Binding("slash", "search", "Search"),
        Binding("escape", "end_search", show=False),
    ]

    @dataclass
    class Opened(Message):
        """The user wants to go on with this chat. position: of the turn that a search found, to be looked at."""

        session: SessionSummary
        position: int | None = None

    @dataclass
    class NewWanted(Message):
        """The user wants to begin a chat."""

    @dataclass
    class RenameWanted(Message):
        session: SessionSummary

    @dataclass
    class DeleteWanted(Message):
        session: SessionSummary

    @dataclass
    class Searched(Message):
        """What to search for; "" for nothing any more."""

        text: str

    def __init__(self) -> None:
        super().__init__(id="sessions-rail")
        self._rows: Iterable[Row] = iter(())  # those that are not in the list yet
        self._shown: list[Row] = []
        self._current: str | None = None
        self._searched = ""

    def compose(self) -> ComposeResult:
        yield Static("SESSIONS", id="sessions-title")
        yield Input(placeholder="/ search", compact=True, select_on_focus=False)
        yield SessionList(compact=True)
        yield Static(id="about")

    # --- what is shown ---------------------------------------------------------------------------------------------

    @property
    def searched(self) -> str:
        """What is being searched for, "" when nothing is."""
        return self._searched

    def show(self, sessions: list[SessionSummary], current: str | None, today: date) -> None:
        """Show these chats, the newest first; `current` is the id of the one that is open."""
        self._current = current
        self._fill(grouped(sessions, today), "No chats are kept yet.")

    def show_matches(self, matches: list[Match], current: str | None) -> None:
        """Show where a search found something."""
        self._current = current
        self._fill(found(matches), "Nothing was found.")

    def show_nothing_kept(self) -> None:
        """Say that chats are not kept."""
        self._fill(iter(()), "Not kept: save_chats off")

    def _fill(self, rows: Iterable[Row], when_empty: str) -> None:
        listed = self.query_one(SessionList)
        marked = self.marked
        top = listed.scroll_offset.y
        self._rows, self._shown = iter(rows), []
        with self.app.batch_update():
            listed.clear_options()
            self._more()
            if not self._shown:
                listed.add_option(Option(line(when_empty, "$text-muted"), disabled=True))
            wanted = marked.id if marked else self._current
            listed.highlighted = self._place_of(wanted)
            listed.scroll_to(y=top, animate=False)

    def _place_of(self, session_id: str | None) -> int | None:
        places = (index for index, row in enumerate(self._shown) if row.session and row.session.id == session_id)
        return next(places, None)

    def _more(self) -> None:
        """Put the next page into the list: thousands of chats are not laid out before somebody looks for them."""
        page = list(islice(self._rows, _PAGE))
        self._shown += page
        self.query_one(SessionList).add_options([self._option(row) for row in page])

    def _option(self, row: Row) -> Option:
        if row.session is None:
            return Option(line(row.heading), disabled=True)
        is_current = row.session.id == self._current
        title = line(f"{'▸' if is_current else ' '} {row.session.title or _UNTITLED}", "bold" if is_current else "")
        if row.excerpt:
            title = title + Content("\n") + line(f"    {row.excerpt}", "$option-muted")
        return Option(title)

    @property
    def marked(self) -> SessionSummary | None:
        """The chat under the cursor."""
        return row.session if (row := self._marked_row) is not None else None

    @property
    def _marked_row(self) -> Row | None:
        index = self.query_one(SessionList).highlighted
        return self._shown[index] if index is not None and index < len(self._shown) else None

    @on(OptionList.OptionHighlighted)
    def _tell_about(self, event: OptionList.OptionHighlighted) -> None:
        event.stop()
        session = self.marked
        self.query_one("#about", Static).update(line(about(session)) if session else "")
        if event.option_index >= len(self._shown) - _NEAR_END:
            self._more()

    def on_descendant_focus(self) -> None:
        self.add_class("-focused")

    def on_descendant_blur(self) -> None:
        self.remove_class("-focused")

    # --- what is wanted --------------------------------------------------------------------------------------------

    def focus_list(self) -> None:
        listed = self.query_one(SessionList)
        if listed.highlighted is None:
            listed.action_first()
        listed.focus()

    @on(OptionList.OptionSelected)
    def _open(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        if (row := self._marked_row) is not None and row.session is not None:
            self.post_message(self.Opened(row.session, row.position))

    @on(Input.Changed)
    def _search(self, event: Input.Changed) -> None:
        event.stop()
        self._searched = event.value.strip()
        self.post_message(self.Searched(self._searched))

    @on(Input.Submitted)
    def _to_list(self, event: Input.Submitted) -> None:
        event.stop()
        self.focus_list()

    def action_new(self) -> None:
        self.post_message(self.NewWanted())

    def action_rename(self) -> None:
        if session := self.marked:
            self.post_message(self.RenameWanted(session))

    def action_delete(self) -> None:
        if session := self.marked:
            self.post_message(self.DeleteWanted(session))

    def action_search(self) -> None:
        self.query_one(Input).focus()

    def action_end_search(self) -> None:
        """Show all chats again; with nothing searched for, the key is for others."""
        if not self._searched:
            raise SkipAction
        self.query_one(Input).value = ""
