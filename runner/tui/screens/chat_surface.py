"""The chat's screen as its desks act through it: what lies where, and the doors to it.

Transcript and prompt are in the middle; kept chats, models and downloads on the left, live numbers on the right. It
decides nothing: keys and widgets' messages are chat.py's, what follows from them the desks'.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal, TypeVar

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical

from runner.chat_pages import Totals, error_in_chat
from runner.errors import BusyError, RunnerError
from runner.safe_text import safe_line
from runner.tui import copying
from runner.tui.chat_engine import ChatEngine
from runner.tui.in_thread import in_thread
from runner.tui.jobs import JobQueue
from runner.tui.messages import Preferred
from runner.tui.remembered import read_remembered
from runner.tui.screens.answer_desk import AnswerDesk
from runner.tui.screens.confirm import Confirm
from runner.tui.screens.mode import ModeScreen
from runner.tui.screens.page import Page
from runner.tui.screens.session_desk import SessionDesk
from runner.tui.screens.settings_desk import SettingsDesk
from runner.tui.screens.side_desk import SideDesk
from runner.tui.services import Services
from runner.tui.widgets.context_meter import ContextMeter
from runner.tui.widgets.empty_chat import EmptyChat
from runner.tui.widgets.hint import Hint
from runner.tui.widgets.left_rail import LeftRail
from runner.tui.widgets.live_rail import LiveRail
from runner.tui.widgets.prompt_box import PromptBox
from runner.tui.widgets.status_line import StatusLine
from runner.tui.widgets.transcript import Transcript

T = TypeVar("T")


class ChatSurface(ModeScreen):
    """engine, services and directory (where @paths and /export begin) are for the desks; loading_model: the one that is
    being loaded; is_tinted: what a drafter had guessed is told apart in the answers.
    """

    mode_name = "chat"
    AUTO_FOCUS = "Prompt"
    DEFAULT_CSS = """
    ChatSurface #chat-body { height: 1fr; layers: base over; }
    ChatSurface #middle { width: 1fr; height: 100%; }
    ChatSurface #below { height: 1; padding: 0 2; }
    ChatSurface #below Hint { width: auto; max-width: 1fr; margin-right: 2; }
    ChatSurface #below ContextMeter { text-align: right; }
    ChatSurface.-tall #below { layout: vertical; height: 2; }
    ChatSurface.-tall #below Hint { width: 1fr; }
    ChatSurface.-tall #below ContextMeter { text-align: left; width: 1fr; }
    ChatSurface #below.-telling, ChatSurface.-tall #below.-telling { height: auto; }
    ChatSurface #below.-telling Hint { height: auto; max-height: 2; text-wrap: wrap; }
    ChatSurface StatusLine { display: none; }
    ChatSurface.-narrow StatusLine, ChatSurface.-tiny StatusLine { display: block; }
    ChatSurface.-no-left #left-rail, ChatSurface.-no-right #live-rail { display: none; }
    ChatSurface.-narrow #left-rail, ChatSurface.-tiny #left-rail { display: none; }
    ChatSurface.-narrow #live-rail, ChatSurface.-tiny #live-rail { display: none; }
    ChatSurface.-over-left #left-rail { display: block; layer: over; dock: left; width: 40; max-width: 100%;
        background: $surface; }
    ChatSurface.-over-right #live-rail { display: block; layer: over; dock: right; width: 40; max-width: 100%;
        height: 100%; background: $surface; border-left: vkey $panel; }
    ChatSurface.-flat #below { display: none; padding: 0; }
    ChatSurface.-flat #below.-telling { display: block; }
    ChatSurface.-flat #below ContextMeter { display: none; }
    ChatSurface ToastRack { visibility: visible; dock: top; align: right top; margin: 1 0; max-height: 50%; }
    ChatSurface Toast { max-width: 80%; margin: 0 0 1 0; padding: 0 1; }
    """

    def __init__(self, services: Services, chat_engine: ChatEngine, jobs: JobQueue) -> None:
        super().__init__()
        remembered = read_remembered(services.paths)
        self.services = services
        self.engine = chat_engine
        self.directory = Path.cwd()
        self.loading_model = services.model
        self.jobs = jobs
        self.is_tinted = remembered.tint
        self.answers = AnswerDesk(self)
        self.sessions = SessionDesk(self, services.store)
        self.settings = SettingsDesk(self)
        self.sides = SideDesk(self, jobs, left=remembered.left_rail, right=remembered.right_rail)

    def body(self) -> ComposeResult:
        with Horizontal(id="chat-body"):
            yield LeftRail()
            with Vertical(id="middle"):
                yield EmptyChat()
                yield Transcript()
                yield PromptBox(self.directory)
                with Horizontal(id="below"):
                    yield Hint()
                    yield ContextMeter()
            yield LiveRail()
        yield StatusLine()

    # --- what the desks and commands use ---------------------------------------------------------------------------

    @property
    def box(self) -> PromptBox:
        return self.query_one(PromptBox)

    @property
    def transcript(self) -> Transcript:
        return self.query_one(Transcript)

    @property
    def totals(self) -> Totals:
        return self.answers.totals

    def tell(self, text: str, level: Literal["info", "warning"] = "info") -> None:
        """Say something under the prompt for some seconds."""
        self.query_one(Hint).tell(text, level)

    def fail(self, error: RunnerError) -> None:
        """Say what went wrong, and the remedy."""
        error = error_in_chat(error)
        text = f"{safe_line(error.message)}\n{safe_line(error.hint)}".strip()
        self.notify(text, severity="error", timeout=8, markup=False)

    def page(self, title: str, text: str) -> None:
        """Show a page of text."""
        self.app.push_screen(Page(title, text))

    def in_thread(self, work: Callable[[], T], then: Callable[[T], object], group: str = "") -> None:
        """See in_thread.py; an error is said."""
        in_thread(self, work, then, self.fail, group)

    def attempt(self, act: Callable[[], object]) -> None:
        """Act, and say what goes wrong."""
        try:
            act()
        except RunnerError as error:
            self.fail(error)

    def do(self, action: str) -> None:
        """Run an action of the app."""
        self.call_later(self.run_action, action)

    def refuse_while_answering(self) -> None:
        """Raises BusyError while an answer is written: what it is made of must not change."""
        if self.engine.is_busy:
            raise BusyError("An answer is being written.", hint="Esc stops it.")

    def show_transcript(self, is_shown: bool) -> None:
        """Show the transcript, or what there is to see before anything was said."""
        self.transcript.display = is_shown
        self.query_one(EmptyChat).display = not is_shown

    def show_tint(self, is_shown: bool) -> None:
        """Tint what a drafter had guessed, or not."""
        self.is_tinted = is_shown
        self.transcript.set_class(not is_shown, "-plain")
        self.post_message(Preferred())

    def show_conversation(self) -> None:
        """Another chat is open: show it, and what was being typed in it."""
        self.answers.totals = Totals()
        self.answers.show()
        self.answers.show_model()
        self.sessions.arrive()
        self.sessions.refresh()
        self.sides.close_overlay()
        self.focus_prompt()

    def leave_chat(self) -> None:
        """Keep what is typed in the chat that is left."""
        self.sessions.leave()

    def recount(self) -> None:
        """What fills the context changed."""
        self.answers.recount()

    def stop_and(self, act: Callable[[], None]) -> None:
        """Stop what runs, and act once it has ended."""
        self.answers.stop_and(lambda: self.attempt(act))

    def focus_prompt(self) -> None:
        self.box.prompt.focus()

    def resume(self, session_id: str, position: int | None = None) -> None:
        """Go on with a kept chat. position: of a turn to look at first."""
        self.attempt(lambda: self.sessions.resume(session_id, position))

    def open_model(self, model: str) -> None:
        """Load another model; an answer that is being written is stopped only when the user agrees."""
        if not self.engine.is_busy:
            self.engine.open(model)
            return
        question = Confirm(
            "An answer is being written.", f"Stop it, keep what has come, and load {model}?", yes="Stop it"
        )
        self.app.push_screen(question, lambda is_sure: self.engine.open(model) if is_sure else None)

    def copy(self, text: str) -> None:
        """Put text on the clipboard by every way there is, and say which took it."""
        is_asked = copying.by_terminal(self.app, text)
        self.in_thread(
            lambda: copying.copy_by_tool(text), lambda tool: self.tell(copying.copied(text, tool, is_asked)), "copy"
        )
