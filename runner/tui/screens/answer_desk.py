"""What the chat's screen does with the engine: brings it questions, and shows what it tells.

It keeps one question at a time: the next one waits in the prompt until the answer has ended. It knows nothing of kept
chats, settings or how anything is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from runner.chat_commands import as_message
from runner.chat_pages import Totals
from runner.errors import EngineDied, RunnerError, UsageError
from runner.events import ChatEvent, Finished, Notice, Progress, Stats
from runner.message_files import with_attachments
from runner.transcript import Turn
from runner.tui.context_parts import ContextCount, ContextParts
from runner.tui.messages import (
    AnswerBegan,
    AnswerEnded,
    AnswerStep,
    EngineMessage,
    Lent,
    LoadBegan,
    LoadEnded,
    LoadStep,
    TakenBack,
    Unloaded,
)
from runner.tui.widgets.context_meter import ContextMeter
from runner.tui.widgets.empty_chat import EmptyChat
from runner.tui.widgets.hint import Hint
from runner.tui.widgets.prompt_box import PromptBox
from runner.tui.widgets.title_bar import TitleBar

if TYPE_CHECKING:
    from runner.tui.screens.chat_surface import ChatSurface

_COUNTED_WHEN_TYPED = 400  # bytes: fewer are noise beside what the context holds


class AnswerDesk:
    """One chat screen's questions and answers. totals: what the answers of this chat took.

    has_thoughts: whether thoughts are shown.
    """

    def __init__(self, chat: ChatSurface) -> None:
        self._chat = chat
        self._count = ContextCount()
        self._is_counted = False
        self._question: Turn | None = None  # the one that is being answered
        self._has_refusal = False  # the transcript says why a question was not accepted
        self._finished: Finished | None = None  # the answer that is written, once it is
        self._load_error: RunnerError | None = None
        self._asked: PromptBox.Sent | None = None
        self._after: Callable[[], None] | None = None  # what waits for the end of the answer
        self._typed = self._attached = 0
        self.has_thoughts = False
        self.totals = Totals()

    # --- asking ----------------------------------------------------------------------------------------------------

    def ask(self, sent: PromptBox.Sent) -> None:
        """Send a message, or put it back while an answer is being written. Raises UsageError."""
        chat = self._chat
        if chat.engine.is_busy:
            chat.box.fill(sent.text, sent.files, is_edit=sent.is_edit)
            chat.tell("The answer before comes first: your text waits here. Esc stops the answer.", "warning")
            return
        text = with_attachments(as_message(sent.text), (*sent.files, *sent.mentioned))
        if sent.is_edit and not text.strip():
            chat.tell("Nothing was changed.")
            return
        self._asked = sent
        if self._has_refusal:  # what was refused before is in the past
            self.show()
        if sent.is_edit:
            chat.transcript.drop_from(_last_question(chat.engine.conversation.turns))
            chat.engine.edit_last(text)
        else:
            chat.engine.send(text)

    def regenerate(self) -> None:
        """Answer the last question again. Raises UsageError when there is none, BusyError during an answer."""
        chat = self._chat
        chat.refuse_while_answering()
        if self._has_refusal and chat.box.prompt.text:  # what was refused is in the prompt: that is meant
            chat.box.prompt.send()
            return
        self._asked = None
        turns = chat.engine.conversation.turns
        chat.engine.regenerate()
        if turns and turns[-1].role == "assistant":
            chat.transcript.drop_last_answer()

    def edit_last(self) -> None:
        """Put the last question into the prompt, to be sent in its place. Raises UsageError."""
        chat = self._chat
        chat.refuse_while_answering()
        turns = chat.engine.conversation.turns
        chat.box.fill(turns[_last_question(turns)].content, is_edit=True)
        chat.focus_prompt()

    def undo(self) -> None:
        """Take back the last question. Raises UsageError when there is none."""
        chat = self._chat
        chat.refuse_while_answering()
        taken = chat.engine.conversation.undo()
        self.show()
        chat.sessions.refresh()  # without its only question the chat is not kept
        if not chat.box.prompt.text:
            chat.box.prompt.remember(taken)
        chat.tell("Taken back. Up brings the message into the prompt.")

    def stop_and(self, act: Callable[[], None]) -> None:
        """Stop what runs, and act once it has ended."""
        if self._chat.engine.is_busy:
            self._after = act
            self._chat.engine.stop()
        else:
            act()

    # --- what there is ---------------------------------------------------------------------------------------------

    def show(self) -> None:
        """Show the conversation as it is now."""
        conversation = self._chat.engine.conversation
        turns = conversation.turns
        self._chat.transcript.show(turns)
        self._has_refusal = False
        self._chat.show_transcript(bool(turns))
        self._count.resume(conversation.system, turns)
        parts = self.recount()
        self._chat.query_one(TitleBar).show_context(parts.used, parts.n_ctx)

    def show_model(self) -> None:
        """Say where a chat begins how the model stands now, in place of what was said of it before."""
        engine, empty = self._chat.engine, self._chat.query_one(EmptyChat)
        if engine.state == "loading":
            empty.show_loading(self._chat.loading_model, "Loading")
        elif engine.loaded is not None:
            empty.show_loaded(engine.loaded)
        elif engine.is_lent:
            empty.show_lent(engine.model)
        else:
            empty.show_empty(engine.model)

    def show_thoughts(self, is_shown: bool) -> None:
        """Show the thoughts of all answers, or fold them."""
        if is_shown != self.has_thoughts:
            self.has_thoughts = is_shown
            self._chat.transcript.toggle_thoughts()

    def pending(self, typed: int, attached: int) -> None:
        """So many bytes are typed and attached, and not sent."""
        typed = typed if typed >= _COUNTED_WHEN_TYPED else 0
        if (typed, attached) != (self._typed, self._attached):
            self._typed, self._attached = typed, attached
            self.recount()

    def recount(self) -> ContextParts:
        """Show how full the context is."""
        engine, count = self._chat.engine, self._count
        n_ctx = engine.loaded.info.n_ctx if engine.loaded is not None else 0
        if self._chat.box.is_edit:  # what is typed comes in place of the last question and its answer
            count = ContextCount()
            count.resume(engine.conversation.system, _before_last_question(engine.conversation.turns))
        parts = count.parts(n_ctx, self._typed, self._attached)
        self._chat.query_one(ContextMeter).show(parts, engine.conversation.options.overflow)
        return parts

    # --- news ------------------------------------------------------------------------------------------------------

    def on_engine(self, message: EngineMessage) -> None:
        """Show what the engine tells."""
        self._chat.query_one(Hint).show(message.state, is_lent=self._chat.engine.is_lent)
        if isinstance(message, AnswerStep):
            self._step(message.event)
        elif isinstance(message, AnswerBegan):
            self._begin(message)
        elif isinstance(message, AnswerEnded):
            self._end(message)
        elif isinstance(message, Unloaded):
            self._chat.transcript.note(message.why, level="warning")
            self.show_model()
            self.recount()
        elif isinstance(message, (Lent, TakenBack)):
            self.show_model()
        else:
            self._load_news(message)

    def _load_news(self, message: EngineMessage) -> None:
        empty, transcript = self._chat.query_one(EmptyChat), self._chat.transcript
        if isinstance(message, (LoadBegan, LoadEnded)):
            self._load_error = message.error if isinstance(message, LoadEnded) else None
        if isinstance(message, LoadBegan):
            transcript.name_answer(message.model)
            empty.show_loading(message.model, "Loading")
        elif isinstance(message, LoadStep) and isinstance(message.event, Progress):
            empty.show_loading(self._chat.loading_model, _stage(message.event))
        elif isinstance(message, LoadStep) and isinstance(message.event, Notice):
            transcript.note(message.event.text, message.event.hint, message.event.level)
        elif isinstance(message, LoadEnded):
            if message.error is not None:
                then = _then(message)
                empty.show_failed(message.model, message.error, then)
                transcript.note(message.error.message, f"{message.error.hint} {then}".strip(), "error")
            elif message.loaded is not None:
                empty.show_loaded(message.loaded)
            else:
                empty.show_empty(self._chat.engine.model)  # the one before: it answers the next message
            transcript.name_answer(message.next_model or message.model)
            parts = self.recount()
            self._chat.query_one(TitleBar).show_context(parts.used, parts.n_ctx)

    def _begin(self, message: AnswerBegan) -> None:
        self._chat.show_transcript(True)
        if message.is_new:
            self._chat.transcript.ask(message.question)
        for missing in self._asked.missing if self._asked is not None else ():
            self._chat.transcript.note(missing.words, "/edit changes the message.", "warning")
        self._chat.transcript.begin_answer(self._chat.engine.model)
        self._is_counted = False
        self._question = message.question
        self._finished = None
        self._load_error = None

    def _step(self, event: ChatEvent) -> None:
        self._chat.transcript.take(event)
        if isinstance(event, (Stats, Finished)):
            if not self._is_counted:
                conversation = self._chat.engine.conversation
                self._count.begin(conversation.system, _prompt_of(conversation.turns, self._question))
                self._is_counted = True
            self._count.count(event.timings.prompt_tokens, event.timings.completion_tokens)
            self.recount()
        if isinstance(event, Finished):
            self._finished = event
            self.totals.add(event)

    def _end(self, message: AnswerEnded) -> None:
        chat = self._chat
        chat.transcript.end_answer(message.turn, message.error)
        self._say_cut_off()
        if message.turn is None or message.unsent:
            self.show()  # what was taken away for the new answer is back
            self._say_why(message)
        if message.unsent and self._asked is not None:
            self._give_back(self._asked)
        if isinstance(message.error, EngineDied) and message.turn is not None:
            chat.transcript.note("What had come of the answer is kept.", "Ctrl+R asks again.", "info")
        self._asked = None
        act, self._after = self._after, None
        if act is not None:
            chat.attempt(act)

    def _say_cut_off(self) -> None:
        """Why an answer ended that did not end by itself."""
        reason = "" if self._finished is None else self._finished.reason
        note = self._chat.transcript.note
        if reason == "context":
            hint = "Ctrl+N begins a new chat; /set overflow drop lets the oldest messages go."
            if self._chat.engine.conversation.options.overflow == "drop":  # they are gone, or it is the only one
                hint = "/set ctx_size N makes it larger."
            note("The context is full: the answer is cut off.", hint, "warning")
        elif reason == "length":
            note("The answer is cut off at max_tokens.", "/set max_tokens none lifts the limit; F6 shows it.")

    def _say_why(self, message: AnswerEnded) -> None:
        chat, failed = self._chat, self._load_error
        back = ": your message is in the prompt" if message.unsent else ""
        if message.error is not None:
            chat.transcript.note(message.error.message, message.error.hint, "error")
            chat.show_transcript(True)
            self._has_refusal = True
        elif failed is not None and chat.engine.is_lent:
            chat.tell(f"A benchmark has the machine{back}. F3 shows it.", "warning")
        elif failed is not None:
            chat.transcript.note(failed.message, failed.hint, "error")  # what was said of it went with the question
            self._has_refusal = bool(message.unsent)
            chat.tell(f"The model was not loaded{back}. F2 has other models.", "warning")
        elif message.unsent:
            chat.tell("Stopped before it was asked: your message is in the prompt.")
        else:
            chat.transcript.note("Stopped before the answer began.", "Ctrl+R asks again.")

    def _give_back(self, sent: PromptBox.Sent) -> None:
        """What could not be sent comes back into the prompt; when something else is there by now, into its history."""
        box = self._chat.box
        if box.prompt.text or box.files:
            box.prompt.remember(sent.text)
            self._chat.tell("Up brings your message back.")
        else:
            box.give_back(sent)


def _prompt_of(turns: Sequence[Turn], question: Turn | None) -> Sequence[Turn]:
    """The turns that an answer is the answer to, without what has come of it."""
    if turns and turns[-1].role == "assistant":
        turns = turns[:-1]
    return turns or [turn for turn in [question] if turn is not None]


def _last_question(turns: Sequence[Turn]) -> int:
    """Where the last message of the user stands. Raises UsageError when there is none."""
    for position in range(len(turns) - 1, -1, -1):
        if turns[position].role == "user":
            return position
    raise UsageError("There is no message to edit.", hint="Write one first.")


def _before_last_question(turns: Sequence[Turn]) -> Sequence[Turn]:
    """What stays when the last message is changed; all of them where there is none."""
    places = [place for place, turn in enumerate(turns) if turn.role == "user"]
    return turns[: places[-1]] if places else turns


def _stage(progress: Progress) -> str:
    percent = f" {100 * progress.done // progress.total} %" if progress.total else ""
    words = {"download": "Fetching", "load": "Loading", "compile": "Compiling kernels", "prefill": "Reading"}
    return f"{words[progress.stage]}{percent}"


def _then(failed: LoadEnded) -> str:
    """What answers the next message after a load that failed: a sentence, or "" where it is the model that failed."""
    if failed.loaded is not None:
        return f"{failed.next_model or failed.model} is still loaded, as it was."
    return f"The next message loads {failed.next_model}." if failed.next_model else ""
