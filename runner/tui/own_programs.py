"""The user's own programs over the chat: the editor for a message, the pager to read a chat and to search in it.

The interface leaves the terminal to them and comes back afterwards; an answer goes on meanwhile. It knows no key.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from textual.app import SuspendNotSupported

from runner.errors import RunnerError, UsageError
from runner.safe_text import safe_text
from runner.terminal_programs import edit_text, editor, page_text, pager
from runner.transcript import to_markdown

if TYPE_CHECKING:
    from runner.tui.screens.chat_surface import ChatSurface

T = TypeVar("T")


def write_in_editor(chat: ChatSurface) -> None:
    """What is being typed, as the user leaves it in the editor. Raises RunnerError."""
    if not editor():
        raise UsageError("No editor is named.", hint="Set $EDITOR, for example to nano or vim.")
    box = chat.box
    typed = box.prompt.text
    written = _with_terminal(chat, lambda: edit_text(typed))
    if written is not None and written != typed:
        box.fill(written, box.files, is_edit=box.is_edit)


def read_in_pager(chat: ChatSurface) -> None:
    """The chat in the user's pager, as /export writes it. Raises RunnerError."""
    conversation = chat.engine.conversation
    if not conversation.turns:
        raise UsageError("There is nothing to read.", hint="Ask something first.")
    pager()  # that there is none is said here, and not in a terminal that was left for it
    text = safe_text(to_markdown(conversation.about(), conversation.turns))
    _with_terminal(chat, lambda: page_text(text))


def _with_terminal(chat: ChatSurface, run: Callable[[], T]) -> T:
    try:
        with chat.app.suspend():
            return run()
    except SuspendNotSupported as error:
        raise RunnerError("This terminal cannot be left to another program.") from error
