"""The machine for those who look after it: every device with its memory, load, power and heat, once a second.

It shows the samples that it is given. It knows no driver and no model.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

from textual.content import Content
from textual.widgets import Static

from runner.measures import binary_size
from runner.tui.content import line
from runner.tui.machine_watch import DeviceSample, MachineSample
from runner.tui.widgets.device_section import readings_items
from runner.tui.widgets.gauges import both_ends, flow, gauge, sparkline

_LOADS: Final = 60  # a minute


class MachinePanel(Static):
    """show: the latest sample."""

    DEFAULT_CSS = """
    MachinePanel { width: 100%; height: auto; }
    """

    def __init__(self) -> None:
        super().__init__("", id="machine")
        self._sample: MachineSample | None = None
        self._loads: dict[str, deque[float | None]] = {}

    def show(self, sample: MachineSample) -> None:
        self._sample = sample
        for one in sample.devices:
            self._loads.setdefault(_key(one), deque(maxlen=_LOADS)).append(one.now.utilization)
        self._draw()

    def on_resize(self) -> None:
        self._draw()

    def _draw(self) -> None:
        width = self.scrollable_content_region.width
        if not width:
            return
        if self._sample is None:
            self.update(Content.styled("Reading the machine …", "$text-muted"))
            return
        rows = [row for one in self._sample.devices for row in (*self._device(one, width), Content(""))]
        held = sum(process.resident_bytes for process in self._sample.own)
        rows.append(both_ends(Content("this program holds"), Content.styled(binary_size(held), "bold"), width))
        if all(one.device.kind == "cpu" for one in self._sample.devices):
            rows.append(Content.styled("No GPU was found: models run on the processor, in main memory.", "$text-muted"))
        self.update(Content("\n").join(rows))

    def _device(self, one: DeviceSample, width: int) -> Iterator[Content]:
        is_cpu = one.device.kind == "cpu"
        yield Content.styled("PROCESSOR" if is_cpu else f"GPU {one.device.index}", "bold $primary")
        yield line(one.device.name, "$text-muted").truncate(width, ellipsis=True)
        total = one.now.total_bytes or one.device.total_bytes
        used = one.now.used_bytes if one.now.used_bytes is not None else total - one.device.free_bytes
        sizes = Content(f"{binary_size(used)} of {binary_size(total)}")
        yield both_ends(Content("main memory" if is_cpu else "memory"), sizes, width)
        yield gauge(used / total if total else 0.0, width)
        if one.now.utilization is not None:
            load = Content(f"load {100 * one.now.utilization:3.0f} %")
            room = max(0, width - load.cell_length - 2)
            yield Content.assemble(load, "  ", sparkline(list(self._loads[_key(one)]), room, top=1.0)[0])
        yield from flow(readings_items(one), width)
        if one.activity.throttled:
            yield line(f"▼ slowed by {', '.join(one.activity.throttled)}", "$warning")


def _key(one: DeviceSample) -> str:
    return f"{one.device.kind} {one.device.index}"
