"""The field where messages are typed: several lines, history on the first and last of them, and its own keys.

It knows keys and text; what is done with a message, and what completes it, is told by messages to its parent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from textual.actions import SkipAction
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.events import Key, Paste
from textual.message import Message
from textual.widgets import TextArea

from runner.chat_commands import is_command, is_open_block, is_pasted_command
from runner.safe_text import safe_text

BIG_PASTE = 20_000  # characters: a text area wraps each of them anew at every key
_NEW_LINE = ("ctrl+j", "shift+enter", "alt+enter")
_NOT_OURS = {"f6", "f7"}  # TextArea selects with them; they are the chat's

ListKey = Literal["up", "down", "take", "enter", "close"]


class Prompt(TextArea, inherit_bindings=False):
    """Enter sends; Ctrl+J, Shift+Enter, Alt+Enter and a backslash at the end begin a line, and so does Enter in \"\"\".

    has_list: a list of completions is open: Up, Down, Tab, Enter and Esc are its keys then. A text that was given
    back is put aside by a slash that is typed at once, for a command, or by a command that is pasted; it comes back
    after it, or when it is deleted.
    """

    SCOPED_CSS = False  # its rules ask for classes of the screen, which is outside of it
    DEFAULT_CSS = """
    Prompt, Prompt:focus { height: auto; min-height: 1; max-height: 8; border: none; padding: 0;
        background: transparent; scrollbar-size-vertical: 1; scrollbar-size-horizontal: 0; }
    Prompt .text-area--placeholder { color: $text-disabled; }
    .-flat Prompt { max-height: 3; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        binding for binding in TextArea.BINDINGS if not (isinstance(binding, Binding) and binding.key in _NOT_OURS)
    ]

    @dataclass
    class Sent(Message):
        """The user sends this text, which is gone from the field."""

        text: str

    @dataclass
    class Moved(Message):
        """The text or the cursor changed."""

    @dataclass
    class ListKeyPressed(Message):
        """A key for the open list of completions."""

        key: ListKey

    @dataclass
    class BigPaste(Message):
        """A text too long for the field was pasted."""

        text: str

    @dataclass
    class BackspaceWhenEmpty(Message):
        """Backspace in an empty field."""

    def __init__(self, placeholder: str) -> None:
        super().__init__(placeholder=Content(placeholder), highlight_cursor_line=False, compact=True)
        self.cursor_blink = False  # a blinking cursor is drawn for ever, over every connection
        self.has_list = False
        self._history: list[str] = []
        self._is_read = self._is_awaited = False  # whether the history came, and whether Up was pressed before
        self._recalled: int | None = None  # the place in the history that is shown
        self._unfinished = ""  # what was being typed when the history was entered
        self._given_back = self._aside = ""

    # --- what others do --------------------------------------------------------------------------------------------

    def put(self, text: str, *, is_given_back: bool = False) -> None:
        """Replace what is there; the cursor goes to the end. Control characters are left out.

        is_given_back: the user sent it before, and what he types next may be the remedy for what kept it from going.
        """
        self._show(text)
        self._given_back, self._aside = self.text if is_given_back else "", ""

    def _show(self, text: str) -> None:
        self.text = safe_text(text.replace("\r\n", "\n").replace("\r", "\n"))
        self.move_cursor(self.document.end)
        self._recalled = None

    @property
    def is_as_given_back(self) -> bool:
        """Whether a text that was given back is there untouched."""
        return bool(self._given_back) and self.text == self._given_back and self.cursor_at_end_of_text

    @property
    def has_aside(self) -> bool:
        """Whether a text waits for the command that is being typed."""
        return bool(self._aside)

    def bring_back(self) -> bool:
        """Replace the command that is being typed by the text that waits for it; whether one does."""
        if self._aside:
            self.put(self._aside, is_given_back=True)
            return True
        return False

    def set_history(self, entries: Sequence[str]) -> None:
        """What Up goes back through, the oldest first; what was sent before it came is the newest of it."""
        sent, self._history, self._is_read = self._history, list(entries), True
        for text in sent:
            self.remember(text)
        self._recalled = None
        if self._is_awaited:
            self._recall(-1)

    def remember(self, text: str) -> bool:
        """A text that Up brings back from now on; whether it is another one than the newest."""
        is_new = not self._history or self._history[-1] != text
        if is_new:
            self._history.append(text)
        self._recalled = None
        return is_new

    @property
    def before_cursor(self) -> str:
        return self.get_text_range((0, 0), self.cursor_location)

    def replace_before_cursor(self, start: int, text: str) -> None:
        """Replace what stands between the character `start` of the text and the cursor."""
        kept = self.before_cursor[:start]
        self.replace(safe_text(text), _end_of(kept), self.cursor_location)
        self.move_cursor(_end_of(kept + safe_text(text)))

    def on_resize(self) -> None:
        self.call_after_refresh(self.scroll_cursor_visible)  # the text is wrapped anew: it went elsewhere

    # --- keys ------------------------------------------------------------------------------------------------------

    async def _on_key(self, event: Key) -> None:
        if event.character == "/" and self.is_as_given_back:
            self._put_aside()
        elif self.has_list and (key := _LIST_KEYS.get(event.key)):
            event.stop()
            event.prevent_default()
            self.post_message(self.ListKeyPressed(key))
        elif event.key in _NEW_LINE or (event.key == "enter" and self._is_continued()):
            event.stop()
            event.prevent_default()
            self.insert("\n")
        elif event.key == "enter":
            event.stop()
            event.prevent_default()
            self.send()
        elif event.key == "backspace" and not self.text:
            self.post_message(self.BackspaceWhenEmpty())

    def _put_aside(self) -> None:
        self._aside = self.text
        self.clear()

    def send(self) -> None:
        """Give the text away and empty the field."""
        text = self.text
        self.clear()
        self._recalled = None
        if not is_command(text) or not self.bring_back():
            self._aside = ""
        self.post_message(self.Sent(text))

    def _is_continued(self) -> bool:
        """Whether Enter begins a line: after a backslash, which goes, and within \"\"\"."""
        row, column = self.cursor_location
        if self.cursor_at_end_of_text and self.document[row].endswith("\\"):
            self.delete((row, column - 1), (row, column))
            return True
        return is_open_block(self.text)

    async def _on_paste(self, event: Paste) -> None:
        event.prevent_default()
        event.stop()
        text = safe_text(event.text.replace("\r\n", "\n").replace("\r", "\n"))
        if len(text) > BIG_PASTE:
            self.post_message(self.BigPaste(text))
            return
        if is_pasted_command(text) and self.is_as_given_back:
            self._put_aside()
        if result := self._replace_via_keyboard(text, *self.selection):
            self.move_cursor(result.end_location)

    def action_copy(self) -> None:
        if not self.selected_text:
            raise SkipAction
        self.app.copy_to_clipboard(self.selected_text)

    def action_cursor_up(self, select: bool = False) -> None:
        if not select and self.navigator.is_first_wrapped_line(self.cursor_location):
            self._recall(-1)
        else:
            super().action_cursor_up(select)

    def action_cursor_down(self, select: bool = False) -> None:
        if not select and self.navigator.is_last_wrapped_line(self.cursor_location):
            self._recall(+1)
        else:
            super().action_cursor_down(select)

    def _recall(self, step: int) -> None:
        """Go back or forth in the history; past its end is what was being typed."""
        if self._recalled is None:
            self._is_awaited = step < 0 and not self._history and not self._is_read
            if step > 0 or not self._history:
                return
            self._unfinished = self.text
            place = len(self._history) - 1
        else:
            place = max(0, self._recalled + step)
        if place >= len(self._history):
            self._show(self._unfinished)
            return
        self._show(self._history[place])
        self._recalled = place
        if step < 0:  # so that Up goes on back, however many lines there are
            self.move_cursor((0, len(self.document[0])))

    def on_text_area_changed(self, event: TextArea.Changed) -> None:
        event.stop()
        self._is_awaited = False
        if not self.text:
            self.bring_back()
        if self._recalled is not None and self.text != self._history[self._recalled]:
            self._recalled = None  # it was changed: now it is what is being typed
        self.post_message(self.Moved())

    def on_text_area_selection_changed(self, event: TextArea.SelectionChanged) -> None:
        event.stop()
        self.post_message(self.Moved())


_LIST_KEYS: dict[str, ListKey] = {"up": "up", "down": "down", "tab": "take", "enter": "enter", "escape": "close"}


def _end_of(text: str) -> tuple[int, int]:
    """Row and column behind a text that begins at the beginning."""
    return text.count("\n"), len(text) - text.rfind("\n") - 1
