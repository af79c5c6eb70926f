"""The chat's loop: reads a message or a slash command, acts on it, shows the answer, survives what goes wrong.

It drives a Conversation and a Loader and reads from any Source: a terminal, a pipe, a list in a test. It knows nothing
of keys, cursors or the database. The slash commands themselves are in slash.py.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from runner.attachments import absolute
from runner.chat_commands import as_message, is_command
from runner.chat_pages import Totals, error_in_chat
from runner.cli import render
from runner.cli.answer import AnswerView
from runner.cli.interrupt import Interruptible
from runner.cli.live import Live
from runner.cli.loading import Loader
from runner.cli.opening import Opening
from runner.cli.slash import needs_model, run_command
from runner.config import SamplingParams, build
from runner.conversation import Conversation
from runner.errors import ContextOverflow, EngineDied, RunnerError
from runner.events import ChatEvent, Finished, Loaded
from runner.message_files import Attachment, Missing, Refused, mentions, read_mentions, with_attachments
from runner.safe_text import safe_line
from runner.status_text import header, speculation_summary, summary
from runner.terminal_programs import edit_text
from runner.transcript import NOTES


class Source(Protocol):
    """Where messages come from."""

    is_interactive: bool

    def read(self, default: str = "") -> str | None:
        """The next message, with `default` to start from where that can be edited; None at the end."""
        ...


@dataclass
class Refill:
    """What the next prompt starts from. is_edit: what is sent then replaces the last message."""

    text: str = ""
    is_edit: bool = False


def plain_params(model_defaults: Mapping[str, Any], own: Mapping[str, Any]) -> SamplingParams:
    """The model's own defaults under what the user set, without any settings between. Raises UsageError."""
    return build(SamplingParams, model_defaults, own)


@dataclass
class Repl:
    """One running chat. Its attributes are what slash commands act on.

    has_thoughts: show thoughts. silence: keeps keys that are typed meanwhile for the next prompt. attachments: files
    that go with the next message. directory: where @paths begin and /export writes. own_params: sampling that the user
    set, by flag or /set; make_params makes SamplingParams of a model's own defaults and those. editor: see edit_text.
    opening: the load that the chat began with, until its model is used; None when the model was there before.
    """

    conversation: Conversation
    loader: Loader
    source: Source
    has_thoughts: bool = True
    is_quiet: bool = False
    is_verbose: bool = False
    silence: Callable[[], AbstractContextManager[None]] = nullcontext
    attachments: list[Attachment] = field(default_factory=list)
    refill: Refill = field(default_factory=Refill)
    totals: Totals = field(default_factory=Totals)
    exit_code: int = 0
    directory: Path = field(default_factory=lambda: Path(absolute("")))
    own_params: dict[str, Any] = field(default_factory=dict)
    make_params: Callable[[Mapping[str, Any], Mapping[str, Any]], SamplingParams] = plain_params
    editor: Callable[[str], str | None] = edit_text
    opening: Opening | None = None
    _silent: ExitStack = field(default_factory=ExitStack, init=False, repr=False)

    def run(self) -> int:
        """Read and act until the source ends or the user leaves; returns the exit code.

        A terminal's chat goes on after an error; a pipe's goes on too, and ends with the last error's code. What ends
        the opening ends the chat: it is raised.
        """
        return self.run_from(self.source.read())

    def run_from(self, text: str | None) -> int:
        """`run`, after the first text was read: None when the user left instead."""
        with self._silent:
            while text is not None:
                self._hush()
                if self.opening is not None and needs_model(text):
                    self.begin_with(self.opening.wait())
                    self.opening = None
                refill = self.refill
                if not is_command(text):  # a message that a command was typed before waits for it
                    self.refill = Refill()
                if not self.handle(text, is_edit=refill.is_edit):
                    break
                text = self.source.read(self.refill.text)
                self._silent.close()
        if self.conversation.is_kept and not self.conversation.catch_up():
            render.warn("This chat could not be kept, or not whole.")
        return self.exit_code

    def _hush(self) -> None:
        """Until the next prompt is over: an Enter before that would reach it as a line's end, not as Enter."""
        self._silent.enter_context(self.silence())

    def begin_with(self, loaded: Loaded) -> None:
        """Answer with the first model: its own defaults are under what the user set."""
        self.conversation.params = self.params_for(loaded.sampling)

    def handle(self, text: str, *, is_edit: bool = False) -> bool:
        """Act on one message or slash command. False: the user wants to leave."""
        try:
            if is_command(text):
                return run_command(self, text)
            message = as_message(text)
            if is_edit and not message.strip():
                render.narrate("Nothing was changed.")
            elif message.strip() or self.attachments:
                self.say(message, is_edit=is_edit)
        except KeyboardInterrupt:
            render.narrate("(stopped)")
            self._fail_pipe(130)
        except RunnerError as error:
            self._fail_pipe(render.fail(error_in_chat(error)))
            if isinstance(error, ContextOverflow) and self.attachments:
                n = len(self.attachments)
                render.narrate(f"{'A file is' if n == 1 else f'{n} files are'} part of it: /read off leaves that out.")
            self._keep_error_in_sight()
        return True

    def _keep_error_in_sight(self) -> None:
        """A prompt that is refilled with many lines would push the error off the screen: history has them as well."""
        size = render.terminal_size()
        n_rows = sum(1 + render.text_width(safe_line(line)) // size.columns for line in self.refill.text.split("\n"))
        if self.source.is_interactive and not self.refill.is_edit and n_rows > size.lines // 2:
            self.refill = Refill()
            render.narrate("(Up brings your message back)")

    def say(self, message: str, *, is_edit: bool = False) -> None:
        """Send a message with its files, what /read added and what it mentions, and show the answer."""
        self.refill = Refill(message, is_edit)  # until it is sent, it can be sent again
        text = with_attachments(message, (*self.attachments, *self._mentioned(message)))
        self.loader.ensure()
        try:
            self.answer(lambda: self.conversation.edit_last(text) if is_edit else self.conversation.send(text))
        finally:
            if not self.conversation.unsent:
                self.refill, self.attachments = Refill(), []

    def _mentioned(self, message: str) -> list[Attachment]:
        """The files that a message mentions as @path. Raises UsageError for one that cannot be sent.

        In a text that no one typed, such as a log in a pipe, @ is a character.
        """
        files: list[Attachment] = []
        if not self.source.is_interactive:
            return files
        for found in read_mentions(mentions(message), self.directory):
            if isinstance(found, Refused):
                raise found.error
            if isinstance(found, Missing):
                render.warn(found.words, "/edit changes the message.")
                continue
            if found.notice:
                render.warn(found.notice)
            render.narrate(f"{found.words} goes with it.")
            files.append(found)
        return files

    def answer(self, ask: Callable[[], Iterator[ChatEvent]]) -> None:
        """Show the answer that `ask` begins, and say how it ended."""
        live = Live(is_wanted=self._has_status_line())
        has_thoughts = self.has_thoughts and render.is_terminal(sys.stderr)
        view = AnswerView(live, has_thoughts=has_thoughts, is_in_chat=True)
        self.loader.ensure()
        engine = self.loader.engine
        try:
            with Interruptible(engine, on_first=view.stopping) as interrupted, live:
                view.show_all(ask())
        except EngineDied:
            if not interrupted.is_killed:
                raise
            render.narrate("(stopped by ending the engine; the model is loaded again with your next message)\n")
            self._fail_pipe(130)
        if view.finished is not None:
            self._conclude(view.finished)

    def _conclude(self, finished: Finished) -> None:
        """What is said after an answer: why it ended, if not by itself, and its numbers with -v."""
        self.totals.add(finished)
        if finished.reason == "cancelled":
            render.narrate("(stopped)" if finished.token_ids else "(stopped before it began; /regen asks again)")
            self._fail_pipe(130)
        elif finished.reason == "length":
            render.narrate("(cut off at max_tokens; /set max_tokens none lifts the limit)")
        elif finished.reason == "context":
            render.warn(
                "The context is full: the answer is cut off.", "/clear starts anew; /set ctx_size N makes it larger."
            )
        if finished.reason in ("context", "length") and self.conversation.params.grammar is not None:
            render.warn("It may not be whole by its grammar.")
        if self.is_verbose:
            render.say(summary(finished.timings, finished.n_ctx))
            if finished.speculation is not None:
                render.say(f"speculation {speculation_summary(finished.speculation)}")
        if self.source.is_interactive:
            render.narrate("")

    def _fail_pipe(self, code: int) -> None:
        if not self.source.is_interactive:
            self.exit_code = code

    def _has_status_line(self) -> bool:
        return self.source.is_interactive and not self.is_quiet and render.is_terminal() and not render.is_dumb()

    # --- for the slash commands ------------------------------------------------------------------------------------

    def params_for(self, model_defaults: Mapping[str, float | int]) -> SamplingParams:
        """Sampling for a model: its own defaults, under what the user set."""
        return self.make_params(model_defaults, self.own_params)

    def edit_text(self, text: str) -> str | None:
        """`text` as the user changed it in an editor; None when it is to be changed at the prompt."""
        if not self.source.is_interactive:
            return None
        self._silent.close()  # the editor wants the terminal's own keys
        try:
            return self.editor(text)
        finally:
            self._hush()

    def begin_anew(self) -> None:
        """Another chat is open: files and numbers were the one's before, and what waits changes no message."""
        self.refill = Refill(self.refill.text)
        self.attachments.clear()
        self.totals = Totals()

    def refill_with(self, text: str, *, is_edit: bool) -> None:
        self.refill = Refill(text, is_edit)

    def header(self) -> str:
        """What is loaded, and where and why it runs there: two lines."""
        return header(self.loader.ensure())

    def recap(self, n_turns: int = 4) -> str:
        """The last turns, for a chat that is gone on with."""
        turns = self.conversation.turns
        left_out = [f"({len(turns) - n_turns} earlier turns)"] if len(turns) > n_turns else []
        shown = [("› " if turn.role == "user" else "") + turn.content.strip() for turn in turns[-n_turns:]]
        if turns and turns[-1].state in NOTES:
            shown.append(f"({NOTES[turns[-1].state]}; /regen asks again)")
        return "\n\n".join([*left_out, *shown]) or "The chat is empty."
