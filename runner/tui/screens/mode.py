"""What the four modes have in common: the title bar, the key bar, and the doors by which news reach a screen.

The app hands every message of the engine, of the jobs and of the machine to every mode screen that is there. This
file knows none of the four.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.screen import Screen
from textual.widget import Widget

from runner.tui.messages import EngineMessage
from runner.tui.pacing import Pace
from runner.tui.widgets.key_bar import KeyBar
from runner.tui.widgets.title_bar import TitleBar

if TYPE_CHECKING:
    from runner.tui.jobs import Job
    from runner.tui.machine_watch import MachineSample


class ModeScreen(Screen[None]):
    """A mode. Its own widgets come from `body`; news come by the three methods below, in the UI's thread."""

    HORIZONTAL_BREAKPOINTS = [  # noqa: RUF012 - Textual's own declaration
        (0, "-tiny"),
        (60, "-narrow"),
        (110, "-medium"),
        (160, "-wide"),
    ]
    VERTICAL_BREAKPOINTS = [(0, "-flat"), (20, "-low"), (32, "-tall")]  # noqa: RUF012
    mode_name: ClassVar[str] = ""
    pace: Pace | None = None  # the app's; None: frames go when they are made
    _is_withheld = False
    _was_in_another_mode = False  # when it was last left: a dialog leaves it what is looked at

    def compose(self) -> ComposeResult:
        yield TitleBar(self.mode_name)
        yield from self.body()
        yield KeyBar()

    def body(self) -> ComposeResult:
        """The widgets between the two bars."""
        yield Widget()

    def on_screen_suspend(self) -> None:
        self._was_in_another_mode = self not in self.app.screen_stack

    def on_screen_resume(self) -> None:
        if self._was_in_another_mode:
            self.on_coming_back()

    def on_coming_back(self) -> None:
        """It is looked at again after another mode: other programs may have made and deleted what it lists."""

    def _compositor_refresh(self) -> None:
        """Textual's way to the terminal. What is not shown stays marked as changed, and goes with the next frame."""
        self._is_withheld = self.pace is not None and not self.pace.may_show()
        if self._is_withheld:
            return
        super()._compositor_refresh()
        if self.pace is not None and self.is_current:
            self.pace.shown()

    def show_withheld(self) -> None:
        """The terminal has shown what it was sent: what came since may go."""
        if self._is_withheld:
            self._compositor_refresh()

    def on_engine(self, message: EngineMessage) -> None:
        """The engine of the chat did something."""

    def on_jobs(self, jobs: tuple[Job, ...]) -> None:
        """A download or quantization moved."""

    def on_machine(self, sample: MachineSample) -> None:
        """What the machine is doing, once a second."""
