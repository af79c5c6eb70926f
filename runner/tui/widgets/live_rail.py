"""The right rail of the chat: what the machine is doing. Speed, speculation, memory, device, bandwidth, backend.

It is told what happens by four methods and never asks; what was not heard of is not shown. It knows no engine, and
the machine only as samples.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from textual import work
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.message import Message

from runner.fit import Fit
from runner.tui.live_numbers import LiveNumbers
from runner.tui.machine_watch import DeviceSample, MachineSample, OtherProgram, programs_in_memory, programs_on_gpu
from runner.tui.memory_parts import memory_view, model_device
from runner.tui.messages import EngineMessage
from runner.tui.widgets.device_section import BandwidthSection, DeviceSection
from runner.tui.widgets.fold import BackendReason, OtherPrograms
from runner.tui.widgets.memory_bar import MemoryBar
from runner.tui.widgets.speculation_section import SpeculationSection
from runner.tui.widgets.speed_section import SpeedSection
from runner.tui.yardstick import Yardstick

_PROGRAMS_EVERY_S = 5.0  # looking at every process of the machine costs some milliseconds


class LiveRail(VerticalScroll):
    """What the machine is doing now. Methods are called in the UI's thread."""

    SCOPED_CSS = False  # its rules ask for classes of the screen, which is outside of it
    DEFAULT_CSS = """
    LiveRail { width: 34; padding: 0 1; scrollbar-size-vertical: 1; scrollbar-gutter: auto; overflow-x: hidden; }
    .-wide LiveRail { width: 44; }
    """

    class ProgramsRead(Message):
        """What other programs hold was read."""

        def __init__(self, programs: tuple[OtherProgram, ...]) -> None:
            super().__init__()
            self.programs = programs

    def __init__(
        self,
        *,
        id: str | None = "live-rail",
        classes: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(id=id, classes=classes)
        self._clock = clock
        self._numbers = LiveNumbers()
        self._sample: MachineSample | None = None
        self._fit: Fit | None = None
        self._programs_read_s = float("-inf")
        self._speed = SpeedSection(self._numbers)
        self._speculation = SpeculationSection(self._numbers)
        self._memory = MemoryBar()
        self._others = OtherPrograms()
        self._device = DeviceSection()
        self._bandwidth = BandwidthSection(self._numbers)
        self._backend = BackendReason()

    def compose(self) -> ComposeResult:
        yield self._speed
        yield self._speculation
        yield self._memory
        yield self._others
        yield self._device
        yield self._bandwidth
        yield self._backend

    # --- what it is told ---------------------------------------------------------------------------------------------

    def on_engine(self, message: EngineMessage) -> None:
        """The engine of the chat did something."""
        before = self._numbers.loaded
        if not self._numbers.take(message, self._clock()):
            return
        self._speed.redraw()
        self._speculation.redraw()
        self._bandwidth.redraw()
        if self._numbers.loaded is not before:
            self._fit = None
            self._bandwidth.show(None)
            self._backend.show(self._numbers.loaded)
            self._show_memory()

    def on_machine(self, sample: MachineSample) -> None:
        """What the machine is doing, once a second."""
        self._sample = sample
        if self._numbers.pass_time(self._clock()):
            self._speed.redraw()
            self._bandwidth.redraw()
        self._show_memory()
        self._device.show(model_device(sample, self._numbers.loaded))
        self._read_programs_now_and_then(sample)

    def show_fit(self, fit: Fit | None) -> None:
        """The estimate of the loaded model."""
        self._fit = fit
        self._show_memory()

    def show_yardstick(self, yardstick: Yardstick | None) -> None:
        """What decoding is held against on this device; see yardstick.load_facts."""
        self._bandwidth.show(yardstick)

    # --- what the user does with it ----------------------------------------------------------------------------------

    def toggle_reason(self) -> None:
        """Show or hide why this backend was chosen."""
        self._backend.toggle()

    def toggle_speculation(self) -> None:
        """Show or hide how drafts fared."""
        self._speculation.toggle()

    def toggle_others(self) -> None:
        """Show or hide what other programs hold."""
        self._others.toggle()

    # --- inside ------------------------------------------------------------------------------------------------------

    def _show_memory(self) -> None:
        if self._sample is not None:
            view = memory_view(self._sample, self._numbers.loaded, self._fit)
            self._memory.show(view)
            self._others.show_amount(0 if view is None else view.others_bytes)

    def on_other_programs_opened(self) -> None:
        self._programs_read_s = float("-inf")
        if self._sample is not None:
            self._read_programs_now_and_then(self._sample)

    def _read_programs_now_and_then(self, sample: MachineSample) -> None:
        if self._others.is_open and sample.time_s - self._programs_read_s >= _PROGRAMS_EVERY_S:
            self._programs_read_s = sample.time_s
            self._read_programs(model_device(sample, self._numbers.loaded), sample)

    @work(thread=True, exclusive=True, group="programs")
    def _read_programs(self, one: DeviceSample, sample: MachineSample) -> None:
        own = [process.pid for process in sample.own]
        is_memory = one is sample.devices[-1]
        programs = programs_in_memory(own) if is_memory else programs_on_gpu(one, own)
        self.post_message(self.ProgramsRead(programs))

    def on_live_rail_programs_read(self, message: ProgramsRead) -> None:
        self._others.show_programs(message.programs)
