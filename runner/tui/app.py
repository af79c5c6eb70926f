"""The app: it owns the engine, the jobs and the watch over the machine, and hands their news to the modes' screens.

What a mode shows and does is its screen's; this file knows only that there are four, and what all of them share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from time import monotonic
from typing import Any, ClassVar, Final

from rich.console import RenderableType
from textual import events, on
from textual.binding import BindingType
from textual.command import CommandPalette
from textual.driver import Driver
from textual.message import Message
from textual.screen import Screen

from runner.tui import themes
from runner.tui.actions import Where, bindings_of
from runner.tui.chat_engine import ChatEngine
from runner.tui.jobs import Job, JobQueue
from runner.tui.key_order import KeyOrder
from runner.tui.machine_watch import MachineSample, MachineWatch
from runner.tui.messages import BenchModel, EngineMessage, GoTo, Mode, OpenModel, Preferred, ResumeChat, Write
from runner.tui.pacing import ASK, Pace
from runner.tui.palette import RunnerCommands
from runner.tui.remembered import Memory, Remembered
from runner.tui.screens.bench import BenchScreen
from runner.tui.screens.chat import ChatScreen
from runner.tui.screens.doctor import DoctorScreen
from runner.tui.screens.first_run import FirstRun, is_first_run
from runner.tui.screens.help import HelpScreen
from runner.tui.screens.jump import JumpScreen
from runner.tui.screens.mode import ModeScreen
from runner.tui.screens.models import ModelsScreen
from runner.tui.services import Services
from runner.tui.widgets.title_bar import TitleBar

_SILENCE_S: Final = 3.0
_GOODBYE_S: Final = 5.0  # what has not ended by then, of all that runs, is killed


@dataclass
class _JobsMoved(Message):
    jobs: tuple[Job, ...]


@dataclass
class _CaughtUp(Message):
    """The terminal has shown what it was sent."""


@dataclass
class _MachineSeen(Message):
    sample: MachineSample


class RunnerApp(KeyOrder[int]):
    """The terminal interface. services: where things are, and what the user has set."""

    TITLE = "runner"
    CSS = """
    ModeScreen { background: $background; }
    ModalScreen Toast, CommandPalette Toast { display: none; }
    CommandPalette > .command-palette--help-text { color: $option-muted; text-style: not bold; }
    SelectCurrent .arrow, SelectCurrent Static#label { color: $text-muted; }
    SelectCurrent.-has-value Static#label { color: $foreground; }
    """
    COMMANDS: ClassVar = {RunnerCommands}
    BINDINGS: ClassVar[list[BindingType]] = [*bindings_of("app")]

    def __init__(self, services: Services) -> None:
        super().__init__(ansi_color=themes.native_colours())
        themes.register(self)
        self.services = services
        self._memory = Memory(services.paths)
        self._first_theme = themes.chosen(self._memory.known.theme, is_without_colour=self.no_color)
        self.chat_engine = ChatEngine(services, self.post_message)
        self.jobs = JobQueue(services.paths, lambda jobs: self.post_message(_JobsMoved(jobs)))
        self.machine_watch = MachineWatch(
            lambda sample: self.post_message(_MachineSeen(sample)),
            self._own_pids,
            benchmarks=services.paths.bench_history,
        )
        self.pace = Pace()
        self._screens: dict[str, ModeScreen] = {}
        self._unsaid: list[Callable[[], None]] = []
        makers: dict[Mode, Callable[[], ModeScreen]] = {
            "chat": lambda: ChatScreen(services, self.chat_engine, self.jobs),
            "models": lambda: ModelsScreen(services, self.jobs, self._loaded_model),
            "bench": lambda: BenchScreen(services, self.chat_engine),
            "doctor": lambda: DoctorScreen(services),
        }
        for mode, make in makers.items():
            self.add_mode(mode, self._kept(mode, make))
        self.theme = self._first_theme

    def _kept(self, mode: str, make: Callable[[], ModeScreen]) -> Callable[[], ModeScreen]:
        def made() -> ModeScreen:
            self._screens[mode] = screen = make()
            screen.pace = self.pace
            return screen

        return made

    def _loaded_model(self) -> str:
        return self.chat_engine.model if self.chat_engine.loaded is not None else ""

    def _own_pids(self) -> tuple[int, ...]:
        """Of the processes whose memory is this program's, and not that of others."""
        bench = self._screens.get("bench")
        measuring = bench.pids() if isinstance(bench, BenchScreen) else ()
        return (*self.chat_engine.pids(), *self.jobs.pids(), *measuring)

    # --- beginning and end -----------------------------------------------------------------------------------------

    async def on_mount(self) -> None:
        self.screen_change_signal.subscribe(self, self._say_unsaid)
        self._begin_pace()
        self.chat_engine.start()
        await self.switch_mode("chat")
        self.machine_watch.start()
        self.jobs.find_unfinished()
        if is_first_run(self.services):
            self.push_screen(FirstRun(self.services), self._begin)
        else:
            self._begin(self.services.model)

    def _begin(self, model: str | None) -> None:
        if model is not None:
            self.chat_engine.open(model)

    def _begin_pace(self) -> None:
        if self._driver is not None and not self.is_headless:
            self.pace.begin(partial(self._driver.write, ASK), lambda: self.post_message(_CaughtUp()))

    @on(Driver.SignalResume)
    def _show_again(self) -> None:
        """The shell had stopped the program: the terminal has nothing any more of what was shown."""
        self._begin_pace()
        self.refresh(layout=True)

    @contextmanager
    def suspend(self) -> Iterator[None]:
        """Leave the terminal to another program for as long as the block runs."""
        self.pace.settle(_SILENCE_S)  # what the terminal says is for whoever reads it then
        failed: Exception | None = None
        try:
            with super().suspend():
                try:
                    yield
                except Exception as error:  # Textual would not come back
                    failed = error
        finally:
            self._begin_pace()
        if failed is not None:
            raise failed

    def action_suspend_process(self) -> None:
        self.pace.settle(_SILENCE_S)
        super().action_suspend_process()

    def exit(self, result: int | None = None, return_code: int = 0, message: RenderableType | None = None) -> None:
        self.pace.settle(_SILENCE_S)  # here, while the terminal is still read
        self.keep_draft()
        super().exit(result, return_code, message)

    def keep_draft(self) -> None:
        """Keep what is typed and not sent. To be called while the screens are there."""
        chat = self._screens.get("chat")
        if isinstance(chat, ChatScreen) and chat.is_mounted:
            chat.keep_draft()

    def on_unmount(self) -> None:
        self.close_down()

    def close_down(self) -> None:
        """End the threads and processes of the interface, and keep what it remembers. Takes some seconds at most.

        All are asked before any is waited for: they end beside each other.
        """
        bench = self._screens.get("bench")
        parts = (self.jobs, self.chat_engine, *((bench,) if isinstance(bench, BenchScreen) else ()))
        deadline = monotonic() + _GOODBYE_S
        for part in parts:
            part.close()
        self.machine_watch.stop()
        for part in parts:
            part.wait(max(0.0, deadline - monotonic()))
        if self.services.store is not None:
            self.services.store.close()  # who writes once more opens it again
        self._memory.take(self._to_remember())
        self._memory.write()

    # --- what is remembered ----------------------------------------------------------------------------------------

    def watch_theme(self) -> None:
        self._remember()

    @on(Preferred)
    def _remember(self) -> None:
        """Keep what was chosen, in a thread: the disk may be slow."""
        if self._memory.take(self._to_remember()):
            self.run_worker(self._memory.write, thread=True, exit_on_error=False)

    def _to_remember(self) -> Remembered:
        kept = self._memory.known
        if self.theme != self._first_theme:  # the one that the terminal called for was not chosen
            kept = replace(kept, theme=self.theme)
        chat = self._screens.get("chat")
        if isinstance(chat, ChatScreen):
            rails = chat.sides.is_open
            kept = replace(kept, left_rail=rails["left"], right_rail=rails["right"], tint=chat.is_tinted)
        return kept

    # --- news ------------------------------------------------------------------------------------------------------

    def _mounted(self) -> Iterator[ModeScreen]:
        return (screen for screen in self._screens.values() if screen.is_mounted)

    @on(EngineMessage)
    def _tell_engine(self, message: EngineMessage) -> None:
        for screen in self._mounted():
            screen.query_one(TitleBar).on_engine(message)
            screen.on_engine(message)

    @on(_JobsMoved)
    def _tell_jobs(self, message: _JobsMoved) -> None:
        for screen in self._mounted():
            screen.on_jobs(message.jobs)

    @on(_CaughtUp)
    def _show_withheld(self) -> None:
        for screen in self._mounted():
            screen.show_withheld()

    @on(_MachineSeen)
    def _tell_machine(self, message: _MachineSeen) -> None:
        self.chat_engine.notice_death()
        for screen in self._mounted():
            screen.on_machine(message.sample)

    # --- what is said over a mode ----------------------------------------------------------------------------------

    def notify(self, message: str, **how: Any) -> None:
        """Say something for some seconds; once no dialog is open, for it would lie over what the dialog asks."""
        self._unsaid.append(partial(super().notify, message, **how))
        if self.screen_stack:
            self._say_unsaid(self.screen)

    def _say_unsaid(self, screen: Screen[Any]) -> None:
        if not screen.is_modal:
            unsaid, self._unsaid = self._unsaid, []
            for say in unsaid:
                say()

    # --- wishes ----------------------------------------------------------------------------------------------------

    async def _go(self, mode: str) -> ModeScreen:
        """The screen of a mode, which is on top from now on."""
        await self.switch_mode(mode)
        screen, engine = self._screens[mode], self.chat_engine
        bar = screen.query_one(TitleBar)
        bar.show(engine.state, engine.model, engine.loaded, is_lent=engine.is_lent)
        chat = self._screens.get("chat")
        if isinstance(chat, ChatScreen) and chat.is_mounted:
            parts = chat.answers.recount()
            bar.show_context(parts.used, parts.n_ctx)
        return screen

    @on(OpenModel)
    async def _open_model(self, message: OpenModel) -> None:
        await self._go("chat")
        self.chat_engine.open(message.model, message.options)

    @on(BenchModel)
    async def _bench_model(self, message: BenchModel) -> None:
        screen = await self._go("bench")
        assert isinstance(screen, BenchScreen)
        screen.choose(message.model)

    @on(ResumeChat)
    async def _resume_chat(self, message: ResumeChat) -> None:
        screen = await self._go("chat")
        assert isinstance(screen, ChatScreen)
        screen.resume(message.id)

    @on(GoTo)
    async def _go_to(self, message: GoTo) -> None:
        await self._go(message.mode)

    @on(Write)
    async def _write(self, message: Write) -> None:
        screen = await self._go("chat")
        assert isinstance(screen, ChatScreen)
        screen.box.prompt.post_message(events.Paste(message.text))

    async def action_mode(self, mode: str) -> None:
        await self._go(mode)

    def action_help(self) -> None:
        where: Where = self.current_mode if self.current_mode in self._screens else "app"  # type: ignore[assignment]
        self.push_screen(HelpScreen(where, self.focused))

    def action_command_palette(self) -> None:
        if not isinstance(self.screen, CommandPalette):
            self.push_screen(CommandPalette())  # without Textual's id, which one that goes away has still

    def action_jump(self) -> None:
        self.push_screen(JumpScreen(self.screen))

    def action_next_theme(self) -> None:
        self.theme = themes.after(self.theme, is_without_colour=self.no_color)
