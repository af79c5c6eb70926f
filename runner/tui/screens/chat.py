"""The chat: what its keys, its widgets and the engine's news lead to.

What lies where is chat_surface.py's; what follows is decided by the desks: answer_desk.py (questions and answers),
session_desk.py (kept chats), settings_desk.py (the panel), side_desk.py (the rails), slash.py (commands).
"""

from __future__ import annotations

from time import monotonic
from typing import ClassVar, TypeVar

from textual import on
from textual.binding import Binding, BindingType

from runner.chat_commands import is_command
from runner.errors import RunnerError
from runner.tui import own_programs, slash
from runner.tui.actions import actions_of, bindings_of
from runner.tui.chat_engine import ChatEngine
from runner.tui.job_wishes import carry_out
from runner.tui.jobs import Job, JobQueue
from runner.tui.machine_watch import MachineSample
from runner.tui.messages import AnswerBegan, AnswerEnded, EngineMessage, LoadBegan
from runner.tui.prompt_memory import PromptMemory
from runner.tui.screens.chat_surface import ChatSurface
from runner.tui.screens.confirm import Confirm
from runner.tui.services import Services
from runner.tui.widgets.empty_chat import EmptyChat
from runner.tui.widgets.hint import Hint
from runner.tui.widgets.job_list import JobMessage
from runner.tui.widgets.live_rail import LiveRail
from runner.tui.widgets.models_here import ModelsHere
from runner.tui.widgets.prompt_box import PromptBox
from runner.tui.widgets.sessions_rail import SessionsRail
from runner.tui.widgets.title_bar import TitleBar
from runner.tui.widgets.transcript import Transcript

T = TypeVar("T")
_TWICE_S = 2.0


def _plain_bindings() -> list[BindingType]:
    """The letters that do the same where no text is being typed."""
    return [
        Binding(action.plain, action.name, action.label, show=False) for action in actions_of("chat") if action.plain
    ]


class ChatScreen(ChatSurface):
    """The mode "chat"."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings_of("chat"), *_plain_bindings()]

    def __init__(self, services: Services, chat_engine: ChatEngine, jobs: JobQueue) -> None:
        super().__init__(services, chat_engine, jobs)
        self._memory = PromptMemory(services.paths.prompt_history if services.store else None)
        self._interrupted_at = float("-inf")

    def on_mount(self) -> None:
        self.sides.show()
        self.show_tint(self.is_tinted)
        self.query_one(TitleBar).show(
            self.engine.state, self.engine.model, self.engine.loaded, is_lent=self.engine.is_lent
        )
        self.show_conversation()
        self.sides.read_models()
        self.in_thread(self._memory.read, self.box.prompt.set_history)

    def on_coming_back(self) -> None:
        self._read_left_rail()

    def _read_left_rail(self) -> None:
        """Models and chats may have come and gone."""
        self.sides.read_models()
        self.sessions.refresh()

    def keep_draft(self) -> None:
        """Keep what is typed and not sent, so that Up brings it back the next time. Uses the disk."""
        text = self.box.prompt.text
        if text.strip() and self.box.prompt.remember(text):
            self._memory.add(text)

    # --- news ------------------------------------------------------------------------------------------------------

    def on_engine(self, message: EngineMessage) -> None:
        if isinstance(message, LoadBegan):
            self.loading_model = message.model
        self.sides.on_engine(message)
        self.answers.on_engine(message)
        self.settings.on_engine(message)
        if isinstance(message, (AnswerBegan, AnswerEnded)):
            self.sessions.refresh()

    def on_jobs(self, jobs: tuple[Job, ...]) -> None:
        self.sides.on_jobs(jobs)

    def on_machine(self, sample: MachineSample) -> None:
        self.sides.on_machine(sample)

    # --- what the widgets tell -------------------------------------------------------------------------------------

    @on(PromptBox.Sent)
    def _sent(self, message: PromptBox.Sent) -> None:
        if message.text.strip():
            self.box.prompt.remember(message.text)
            self.in_thread(lambda: self._memory.add(message.text), lambda _: None)
        try:
            if is_command(message.text):
                slash.run_command(self, message.text)
            else:
                self.answers.ask(message)
        except RunnerError as error:
            self.fail(error)

    @on(PromptBox.FileRefused)
    def _file_refused(self, message: PromptBox.FileRefused) -> None:
        self.box.give_back(message.sent)
        self.fail(message.file.error)

    @on(PromptBox.Changed)
    def _count_pending(self, message: PromptBox.Changed) -> None:
        self.answers.pending(message.typed, message.attached)

    @on(EmptyChat.Picked)
    def _ask_example(self, message: EmptyChat.Picked) -> None:
        self.focus_prompt()
        self._sent(PromptBox.Sent(message.question, (), is_edit=False))

    @on(ModelsHere.Picked)
    def _pick_model(self, message: ModelsHere.Picked) -> None:
        self.sides.close_overlay()
        self.open_model(message.model)

    @on(Transcript.CopyRequested)
    def _copy_requested(self, message: Transcript.CopyRequested) -> None:
        self.copy(message.text)

    @on(Transcript.RegenerateRequested)
    def action_regenerate(self) -> None:
        self.attempt(self.answers.regenerate)

    @on(Transcript.EditRequested)
    def action_edit_last(self) -> None:
        self.attempt(self.answers.edit_last)

    @on(Transcript.LinkClicked)
    def _copy_link(self, message: Transcript.LinkClicked) -> None:
        self.copy(message.url)

    @on(SessionsRail.Opened)
    def _open_session(self, message: SessionsRail.Opened) -> None:
        self.resume(message.session.id, message.position)

    @on(SessionsRail.NewWanted)
    def action_new_chat(self) -> None:
        self.attempt(self.sessions.begin)

    @on(SessionsRail.RenameWanted)
    def _rename_session(self, message: SessionsRail.RenameWanted) -> None:
        self.sessions.rename(message.session)

    @on(SessionsRail.DeleteWanted)
    def _delete_session(self, message: SessionsRail.DeleteWanted) -> None:
        self.sessions.delete(message.session)

    @on(SessionsRail.Searched)
    def _search(self) -> None:
        self.sessions.search_soon()

    @on(JobMessage)
    def _change_job(self, message: JobMessage) -> None:
        message.stop()
        carry_out(self.app, self.jobs, message)

    # --- actions ---------------------------------------------------------------------------------------------------

    def action_stop(self) -> None:
        """Esc: close what lies over the transcript; else stop what runs, or, asked again seconds later, end the engine;
        else give up an edit; and go to the prompt.

        With nothing of that to do, it leaves an empty prompt for the answers, where letters are keys.
        """
        prompt = self.box.prompt
        if self.sides.has_overlay:
            self.sides.close_overlay()
        elif self.engine.is_busy or self.engine.state == "loading":
            self.engine.insist()
            self.query_one(Hint).show("stopping")
        elif self.box.is_edit:
            self.box.give_up_edit()
            self.tell("The message stays as it was.")
        elif prompt.has_focus and not prompt.text and self.transcript.display:
            self.transcript.focus()
            return
        self.focus_prompt()

    def action_copy_text(self) -> None:
        """Ctrl+C: copy what is selected; else stop, else empty the prompt; in an empty prompt, twice leaves.

        Files that were to go with the message stay beside the empty prompt: the history has texts alone.
        """
        if selected := self.get_selected_text():
            self.copy(selected)
        elif self.engine.is_busy:
            self.action_stop()
        elif self.box.prompt.bring_back():
            self.tell("Your message is back.")
        elif text := self.box.prompt.text:
            self.box.prompt.remember(text)
            files = self.box.files
            self.box.fill("", files)
            self.tell("Up brings it back." + (" The files stay; Backspace takes them away." if files else ""))
        elif monotonic() - self._interrupted_at < _TWICE_S:
            self.do("app.quit")
        else:
            self._interrupted_at = monotonic()
            self.tell("Ctrl+C again leaves.")

    def action_thoughts(self) -> None:
        self.answers.show_thoughts(not self.answers.has_thoughts)

    def action_settings(self) -> None:
        self.settings.open()

    def action_left_rail(self) -> None:
        if self.sides.toggle("left"):
            self._read_left_rail()

    def action_right_rail(self) -> None:
        self.sides.toggle("right")

    def action_backend_reason(self) -> None:
        self.sides.reveal("right")
        self.query_one(LiveRail).toggle_reason()

    def action_speculation(self) -> None:
        self.sides.reveal("right")
        self.query_one(LiveRail).toggle_speculation()

    def action_tint(self) -> None:
        self.show_tint(not self.is_tinted)
        self.tell("What a drafter guessed is tinted." if self.is_tinted else "Guessed tokens look like all others.")

    def action_other_programs(self) -> None:
        self.sides.reveal("right")
        self.query_one(LiveRail).toggle_others()

    def action_search_chats(self) -> None:
        self.sides.reveal("left")
        self.query_one(SessionsRail).action_search()

    def action_undo(self) -> None:
        """A letter is hit by mistake more easily than /undo is typed: it asks first."""
        if self.engine.is_busy or not self.engine.conversation.turns:
            self.attempt(self.answers.undo)  # which says why not
            return
        detail = "The last message and its answer go; the message comes back with Up, the answer does not."
        self.app.push_screen(
            Confirm("Take back the last message?", detail, yes="Take back"),
            lambda is_sure: self.attempt(self.answers.undo) if is_sure else None,
        )

    def action_copy_answer(self) -> None:
        self.attempt(lambda: self.copy(self.engine.conversation.copy()))

    def action_copy_code(self) -> None:
        n_blocks = len(self.engine.conversation.code_blocks)
        self.attempt(lambda: self.copy(self.engine.conversation.copy(max(1, n_blocks))))

    def action_editor(self) -> None:
        self.attempt(lambda: own_programs.write_in_editor(self))

    def action_pager(self) -> None:
        self.attempt(lambda: own_programs.read_in_pager(self))

    def action_rename_chat(self) -> None:
        self.attempt(lambda: self.sessions.rename(self.sessions.current()))

    def action_delete_chat(self) -> None:
        self.attempt(lambda: self.sessions.delete(self.sessions.current()))

    def action_export_chat(self) -> None:
        self.attempt(lambda: slash.run_command(self, "/export"))

    def action_stats(self) -> None:
        self.attempt(lambda: slash.run_command(self, "/stats"))

    def action_model_page(self) -> None:
        self.attempt(lambda: slash.run_command(self, "/show info"))
