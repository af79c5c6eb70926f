"""Doctor mode: the checks of this machine as they are done, then what to mend first; a report to copy, the machine.

The checks run in a thread; what is checked is runner.doctor's business.
"""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass
from typing import ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Container, VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.widgets import Static
from textual.worker import get_current_worker

from runner.clipboard import copy_by_tool
from runner.doctor import Check, Status, checks
from runner.doctor_report import heading, report, summary
from runner.tui.actions import bindings_of
from runner.tui.machine_watch import MachineSample
from runner.tui.messages import GoTo
from runner.tui.screens.mode import ModeScreen
from runner.tui.services import Services
from runner.tui.widgets.check_list import MARKS, CheckList
from runner.tui.widgets.machine_panel import MachinePanel

_log = logging.getLogger(__name__)


def _worst_first(check: Check) -> int:
    return ("error", "warning", "ok").index(check.status)


@dataclass
class _CheckDone(Message):
    check: Check


@dataclass
class _ChecksEnded(Message):
    pass


class DoctorScreen(ModeScreen):
    """The checks run when the mode is first opened, and again by `r`."""

    mode_name = "doctor"
    BINDINGS: ClassVar[list[BindingType]] = [*bindings_of("doctor")]
    DEFAULT_CSS = """
    DoctorScreen #doctor-head { height: 2; padding: 0 2; }
    DoctorScreen #doctor-body { height: 1fr; layout: horizontal; }
    DoctorScreen #doctor-checks {
        width: 1fr; height: 100%; border: round $border-blurred; padding: 0 1; scrollbar-size-vertical: 1;
        border-title-color: $text-muted;
    }
    DoctorScreen #doctor-checks:focus { border: round $border; }
    DoctorScreen #doctor-machine {
        width: 40; height: 100%; border: round $border-blurred; padding: 0 1; border-title-color: $text-muted;
    }
    DoctorScreen.-wide #doctor-machine { width: 56; }
    DoctorScreen.-narrow #doctor-body, DoctorScreen.-tiny #doctor-body { layout: vertical; }
    DoctorScreen.-narrow #doctor-machine { width: 100%; height: auto; max-height: 9; }
    DoctorScreen.-narrow.-tall #doctor-machine { max-height: 14; }
    DoctorScreen.-narrow #doctor-checks { height: 1fr; }
    DoctorScreen.-tiny #doctor-machine, DoctorScreen.-flat #doctor-machine { display: none; }
    DoctorScreen.-tiny #doctor-checks { border: none; padding: 0 1; }
    DoctorScreen.-tiny #doctor-head, DoctorScreen.-flat #doctor-head { height: 1; padding: 0 1; }
    """

    def __init__(self, services: Services) -> None:
        super().__init__()
        self._services = services
        self._found: list[Check] = []
        self._is_running = False

    def body(self) -> ComposeResult:
        yield Static(id="doctor-head")
        with Container(id="doctor-body"):
            with VerticalScroll(id="doctor-checks") as scroll:
                scroll.border_title = "Checks"
                yield CheckList()
            with VerticalScroll(id="doctor-machine", can_focus=False) as machine:
                machine.border_title = "Machine"
                yield MachinePanel()

    def on_resize(self) -> None:
        self.call_after_refresh(self._show)

    def on_mount(self) -> None:
        self.query_one("#doctor-checks").focus()
        self.action_again()

    # --- checking ----------------------------------------------------------------------------------------------------

    def action_again(self) -> None:
        """Run the checks, unless they are running."""
        if self._is_running:
            return
        self._is_running = True
        self._found = []
        self._show()
        self._check()

    @work(thread=True, exclusive=True, group="doctor", exit_on_error=False)
    def _check(self) -> None:
        worker = get_current_worker()
        try:
            for check in checks(self._services.paths, sys.__stdout__):  # Textual has put its own in place of stdout
                if worker.is_cancelled:
                    return
                self.post_message(_CheckDone(check))
        except Exception as error:  # our own mistakes are said too: a check that never ends says nothing
            _log.exception("a check failed")
            detail = f"The checks failed: {type(error).__name__}: {error}"
            self.post_message(_CheckDone(Check(name="doctor", status="error", detail=detail, remedy="runner logs")))
        self.post_message(_ChecksEnded())

    @on(_CheckDone)
    def _done(self, message: _CheckDone) -> None:
        self._found.append(message.check)
        self._show()

    @on(_ChecksEnded)
    def _ended(self) -> None:
        self._is_running = False
        self._show()

    def _show(self) -> None:
        is_over = not self._is_running  # while they come, none changes its place
        self.query_one(CheckList).show(sorted(self._found, key=_worst_first) if is_over else self._found)
        self.query_one("#doctor-head", Static).update(self._head())

    def _head(self) -> Content:
        statuses = {check.status for check in self._found}
        worst: Status = "error" if "error" in statuses else "warning" if "warning" in statuses else "ok"
        mark, style = ("◐", "$warning") if self._is_running else MARKS[worst]
        text = f"Checking … {len(self._found)} done" if self._is_running else summary(self._found)
        hint = "" if self._is_running else "y copies the report"
        shown = Content.assemble((mark, style), f" {text}").stylize("bold")
        if self.has_class("-tiny"):
            return shown
        more = [hint] if self.has_class("-narrow") else [heading(), hint]
        return Content.assemble(shown, *((f"   ·   {part}", "$text-muted") for part in more if part))

    # --- the rest ----------------------------------------------------------------------------------------------------

    def on_machine(self, sample: MachineSample) -> None:
        if self.is_current:
            self.query_one(MachinePanel).show(sample)

    def action_copy(self) -> None:
        """Copy the report: by the terminal's own clipboard, and by a tool where there is one."""
        text = report(self._found)
        self.app.copy_to_clipboard(text)
        self._copy_by_tool(text)
        self.notify(f"The report is copied: {len(self._found)} checks.", markup=False)

    @work(thread=True, group="doctor-copy", exit_on_error=False)
    def _copy_by_tool(self, text: str) -> None:
        copy_by_tool(text)

    def action_back(self) -> None:
        self.post_message(GoTo("chat"))
