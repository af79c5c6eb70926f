"""The device in the live rail: load, power, heat, clocks, what slows it; and the share of its bandwidth in use.

Only what the driver says is shown. It knows no driver.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from textual.content import Content

from runner.measures import decimal_size
from runner.tui.content import line
from runner.tui.live_numbers import LiveNumbers
from runner.tui.machine_watch import DeviceSample
from runner.tui.widgets.gauges import both_ends, flow, gauge, sparkline
from runner.tui.widgets.live_section import LiveSection, title
from runner.tui.yardstick import Yardstick

_LOADS: Final = 60  # a minute
_CACHED_SHARE: Final = 1.05  # runner.bench's: more than memory gives, by more than measuring may be off


def readings_items(one: DeviceSample) -> list[Content]:
    """Power, temperature and clocks, as far as the driver says them."""
    now, parts = one.now, list[str]()
    if now.power_w is not None:
        parts.append(f"{now.power_w:.0f} W")
    if now.temperature_c is not None:
        parts.append(f"{now.temperature_c:.0f} °C")
    if now.clock_mhz is not None:
        parts.append(f"{now.clock_mhz} MHz")
    if one.activity.memory_clock_mhz is not None:
        parts.append(f"memory {one.activity.memory_clock_mhz} MHz")
    return [Content(part) for part in parts]


def _heading_and_reason(reason: str, width: int) -> list[Content]:
    heading, why = title("BANDWIDTH"), line(reason, "$text-muted")
    if heading.cell_length + 1 + why.cell_length <= width:
        return [both_ends(heading, why, width)]
    return [heading, *why.wrap(width)]


class DeviceSection(LiveSection):
    """show: None while nothing was read yet."""

    DEFAULT_CSS = """
    DeviceSection { margin-top: 1; }
    """

    def __init__(self) -> None:
        super().__init__(id="device")
        self._one: DeviceSample | None = None
        self._loads: deque[float | None] = deque(maxlen=_LOADS)

    def show(self, one: DeviceSample | None) -> None:
        if one is not None and self._one is not None and one.device.name != self._one.device.name:
            self._loads.clear()
        self._one = one
        if one is not None:
            self._loads.append(one.now.utilization)
        self.redraw()

    def rows(self, width: int) -> Sequence[Content]:
        one = self._one
        if one is None:
            return [title("DEVICE")]
        heading = title("PROCESSOR" if one.device.kind == "cpu" else "GPU")
        rows = [both_ends(heading, line(one.device.name, "$text-muted").truncate(width - 11, ellipsis=True), width)]
        if one.now.utilization is not None:
            load = Content(f"load {100 * one.now.utilization:3.0f} %")
            room = width - load.cell_length - 2
            rows.append(Content.assemble(load, "  ", sparkline(list(self._loads), room, top=1.0)[0]))
        rows += flow(readings_items(one), width)
        if one.activity.throttled:
            rows.append(line(f"▼ slowed by {', '.join(one.activity.throttled)}", "$warning"))
        return rows


class BandwidthSection(LiveSection):
    """show: the yardstick of the loaded model, None while it is not known."""

    DEFAULT_CSS = """
    BandwidthSection { margin-top: 1; display: none; }
    BandwidthSection.-known { display: block; }
    """

    def __init__(self, numbers: LiveNumbers) -> None:
        super().__init__(id="bandwidth")
        self._numbers = numbers
        self._yardstick: Yardstick | None = None

    def show(self, yardstick: Yardstick | None) -> None:
        self._yardstick = yardstick
        self.set_class(yardstick is not None, "-known")
        self.redraw()

    def rows(self, width: int) -> Sequence[Content]:
        stick, speed = self._yardstick, self._numbers.speed
        if stick is None:
            return []
        if stick.unknown:
            return _heading_and_reason(stick.unknown, width)
        measured = Content.styled(f"{decimal_size(stick.bandwidth_bytes_s)}/s", "$text-muted")
        room = width - measured.cell_length - 1
        tok_s = None if speed is None else speed.shown_tok_s
        share = None if speed is None or tok_s is None else stick.share(tok_s, speed.timings.context_tokens)
        if share is None:
            return [both_ends(title("BANDWIDTH"), Content.assemble(("measured ", "$text-muted"), measured), width)]
        heading = Content(f"{100 * share:.0f} % of measured")
        rows = [
            both_ends(title("BANDWIDTH"), heading, width),
            Content.assemble(gauge(share, room), " ", measured),
        ]
        if share > _CACHED_SHARE:
            rows.append(Content.styled("faster than memory was read", "$text-muted"))
        return rows
