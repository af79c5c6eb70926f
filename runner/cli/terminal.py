"""Reads messages from a terminal: editing, several lines, history, completion; and from a pipe, one a line.

It knows keys and nothing of what is done with a message; the names to complete are given to it.
"""

from __future__ import annotations

import asyncio
import io
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Protocol, TextIO

from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.output import create_output
from prompt_toolkit.shortcuts import CompleteStyle

from runner.chat_commands import is_open_block, is_pasted_command
from runner.cli import render
from runner.cli.pasting import PromptPastes
from runner.prompt_history import history

PROMPT = "› "
_LOOK_S = 0.05  # between two looks at what goes on meanwhile


class Work(Protocol):
    """What goes on while the prompt is up, as the prompt's thread sees it between two keys; see Opening."""

    @property
    def is_over(self) -> bool: ...

    @property
    def failure(self) -> BaseException | None: ...

    def has_news(self) -> bool: ...

    def tell(self) -> None: ...

    def bar(self, columns: int) -> str: ...


class _Given:
    """The text that a prompt began with. As long as it is untouched, a slash, or a pasted command, puts it aside.

    It comes back when the command is deleted again, and after it: the next prompt begins with it too.
    """

    def __init__(self) -> None:
        self.begin("")

    def begin(self, text: str) -> None:
        self.text, self._is_aside = text, False

    def is_untouched(self, buffer: Buffer) -> bool:
        is_whole = buffer.text == self.text and buffer.cursor_position == len(self.text)
        return bool(self.text) and is_whole and not self._is_aside

    def give_way(self, buffer: Buffer, command: str) -> None:
        buffer.document = Document(command)
        self._is_aside = True

    def come_back(self, buffer: Buffer) -> bool:
        """Put it there again; whether it was aside."""
        was_aside, self._is_aside = self._is_aside, False
        if was_aside:
            buffer.document = Document(self.text)
        return was_aside

    def on_text_changed(self, buffer: Buffer) -> None:
        if not buffer.text:
            self.come_back(buffer)


class TerminalSource:
    """Messages from the terminal. history_file None keeps no history. See Source in repl.py.

    models: names for /model, asked for when they are completed. work: what goes on meanwhile: what it tells stands
    above the prompt.
    """

    is_interactive = True

    def __init__(
        self,
        *,
        history_file: Path | None = None,
        models: Callable[[], Iterable[str]] = tuple,
        work: Work | None = None,
    ) -> None:
        self._work = work
        self._history = history(history_file)
        self._completer = ChatCompleter(models)
        self._session: PromptSession[str] | None = None
        self._pastes: PromptPastes | None = None
        self._given = _Given()

    def read(self, default: str = "") -> str | None:
        """The next message; None when the user leaves: Ctrl+D, or Ctrl+C twice at an empty prompt.

        "" when the user gave up the text that `default` put there, by Ctrl+C. Raises what ended the work that goes on
        meanwhile, and KeyboardInterrupt when Ctrl+C at an empty prompt ends it.
        """
        session = self._session = self._session or self._make_session()
        self._given.begin(default)
        is_leaving = False
        while True:
            try:
                text = session.prompt(self._prompt, default=default, pre_run=partial(self._begin, session))
            except EOFError:
                return None
            except KeyboardInterrupt:
                if self._work is not None and not self._work.is_over:
                    raise
                if is_leaving:
                    return None
                is_leaving, default = True, ""
                self._given.begin("")
                render.say("(Ctrl+C again or Ctrl+D leaves)")
            else:
                if self._work is not None and self._work.failure is not None:
                    raise self._work.failure
                return text

    def _prompt(self) -> str:
        """The prompt, below the bar of the work that goes on; a prompt that is done keeps no bar."""
        app = get_app()
        bar = "" if self._work is None or app.is_done else self._work.bar(app.output.get_size().columns - 1)
        return f"{bar}\n{PROMPT}" if bar else PROMPT

    def _begin(self, session: PromptSession[str]) -> None:
        self._pastes = self._pastes or PromptPastes(session.app.input)
        self._pastes.begin()
        if self._work is not None and not self._work.is_over:
            session.app.create_background_task(_watch(self._work, session))

    def _make_session(self) -> PromptSession[str]:
        session: PromptSession[str] = PromptSession(
            multiline=True,
            prompt_continuation="  ",
            key_bindings=key_bindings(self._given),
            history=self._history,
            completer=self._completer,
            complete_while_typing=False,
            complete_style=CompleteStyle.READLINE_LIKE,
            enable_suspend=True,
            output=create_output(always_prefer_tty=True),
        )
        session.default_buffer.on_text_changed += self._given.on_text_changed
        return session


async def _watch(work: Work, session: PromptSession[str]) -> None:
    """Show what `work` tells above the prompt of `session`, and its bar in it; end the prompt when it has failed."""
    app, typed = session.app, session.default_buffer
    while not work.is_over:
        if work.has_news():
            # Keys stay the prompt's: prompt_toolkit's run_in_terminal would have the terminal show them for a moment,
            # and take Enter for Ctrl+J.
            app.renderer.erase()
            work.tell()
            app.renderer.request_absolute_cursor_position()
        app.invalidate()
        await asyncio.sleep(_LOOK_S)
    if work.failure is not None and not app.is_done:
        app.erase_when_done = not typed.text  # what was typed stays in sight, and in the history
        typed.append_to_history()
        app.exit(result="")


class PipeSource:
    """Messages from a pipe: one a line, or a block of lines between two \"\"\". Empty lines are passed over."""

    is_interactive = False

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def read(self, default: str = "") -> str | None:
        """The next message; None at the end. A message that could not be sent is not tried again."""
        del default
        text = ""
        for line in self._stream:
            text = text + line if text.strip() else line
            if text.strip() and not is_open_block(text):
                return text.rstrip("\r\n")
        return text if text.strip() else None


def key_bindings(given: _Given) -> KeyBindings:
    """Enter sends, unless a \"\"\" block is open; Ctrl+J begins a line; Ctrl+C clears, or leaves an empty prompt.

    given: the text that the prompt began with. Clearing that gives it up: the prompt ends with "".
    """
    keys = KeyBindings()

    @keys.add("/", filter=Condition(lambda: given.is_untouched(get_app().current_buffer)))
    def _begin_command(event: KeyPressEvent) -> None:
        given.give_way(event.current_buffer, "/")

    @keys.add(Keys.BracketedPaste)
    def _paste(event: KeyPressEvent) -> None:
        pasted, buffer = event.data.replace("\r\n", "\n").replace("\r", "\n"), event.current_buffer
        if is_pasted_command(pasted) and given.is_untouched(buffer):
            given.give_way(buffer, pasted)
        else:
            buffer.insert_text(pasted)

    @keys.add("enter")
    def _enter(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if is_open_block(buffer.text):
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    @keys.add("c-j")
    def _new_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    @keys.add("c-c")
    def _clear(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if given.come_back(buffer):
            return
        if buffer.text and given.text:
            event.app.exit(result="")
        elif buffer.text:
            buffer.reset()
        else:
            event.app.exit(exception=KeyboardInterrupt())

    return keys


class ChatCompleter(Completer):
    """Completes slash commands and what follows them, and paths after @. models: names for /model."""

    def __init__(self, models: Callable[[], Iterable[str]]) -> None:
        self._models = models
        self._paths = PathCompleter(expanduser=True)

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
        from runner.chat_completing import asked, offers  # with the first Tab: a prompt does not wait for it

        wanted = asked(document.text_before_cursor)
        if wanted is None:
            return
        if wanted.kind == "mention":
            yield from self._mentions(wanted.word, complete_event)
        elif wanted.kind == "path":
            yield from self._paths.get_completions(Document(wanted.word), complete_event)
        else:
            models = tuple(self._models()) if wanted.kind == "model" else ()
            for offer in offers(wanted, models):
                if offer.text.startswith(wanted.word):  # readline's way: what is typed stays as it is
                    yield Completion(offer.text, -len(wanted.word), display=offer.text.strip())

    def _mentions(self, typed: str, complete_event: CompleteEvent) -> Iterator[Completion]:
        """Paths behind an @; those with a space in them in quotation marks."""
        quote, path = ('"', typed[1:]) if typed.startswith('"') else ("", typed)
        for found in self._paths.get_completions(Document(path), complete_event):
            whole = path[: len(path) + found.start_position] + found.text
            mark = '"' if quote or " " in whole else ""
            yield Completion(f"{mark}{whole}", -len(typed), display=found.display)


def stdin_source() -> PipeSource:
    """What is piped into the program; nothing when stdin is closed. Bytes that are not UTF-8 are replaced."""
    if sys.stdin is None:
        return PipeSource(io.StringIO())
    reconfigure = getattr(sys.stdin, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(encoding="utf-8", errors="replace")
    return PipeSource(sys.stdin)
