"""The top of the live rail: how fast the model writes now and wrote before, or how far a stage is that goes on.

It shows LiveNumbers and knows no engine.
"""

from __future__ import annotations

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.widgets import Digits

from runner.measures import decimal_size, duration, short_count, time_left
from runner.status_text import STAGES, rate
from runner.tui.content import line
from runner.tui.live_numbers import LiveNumbers, Stage
from runner.tui.model_names import short_name
from runner.tui.widgets.gauges import both_ends, flow, gauge, sparkline
from runner.tui.widgets.live_section import LiveSection, title

_PHASES = {
    "empty": ("○", "no model", "$text-muted"),
    "measuring": ("◐", "measuring", "$warning"),
    "loading": ("◐", "loading", "$warning"),
    "ready": ("●", "ready", "$success"),
    "waiting": ("◐", "waiting", "$warning"),
    "reading": ("◐", "reading", "$warning"),
    "decoding": ("▸", "writing", "$success"),
    "stopping": ("◐", "stopping", "$warning"),
}
_UNIT = " tok/s"
_F3 = Content.styled("F3 shows the benchmark", "$text-muted")


def phase_mark(numbers: LiveNumbers) -> Content:
    """What the engine is doing, as a mark and a word: "● ready"."""
    mark, word, style = _PHASES[numbers.phase]
    return Content.assemble((f"{mark} ", style), word)


def amount(stage: Stage) -> str:
    """How much of a stage is done: "1.2k/8.2k tokens", "1.1/4.5 GB", "43 %"."""
    progress = stage.progress
    if progress.unit == "%":
        return f"{progress.done} %"
    if progress.unit == "bytes":
        total = f" of {decimal_size(progress.total)}" if progress.total else ""
        return decimal_size(progress.done) + total
    total = f"/{short_count(progress.total)}" if progress.total else ""
    return f"{short_count(progress.done)}{total} {progress.unit}"


class _Heading(LiveSection):
    def __init__(self, numbers: LiveNumbers) -> None:
        super().__init__()
        self._numbers = numbers

    def rows(self, width: int) -> Sequence[Content]:
        return [both_ends(title("SPEED"), phase_mark(self._numbers), width)]


class _StageLines(LiveSection):
    """A stage that goes on: its name, a bar, how much, how long."""

    def __init__(self, numbers: LiveNumbers) -> None:
        super().__init__(classes="stage")
        self._numbers = numbers

    def rows(self, width: int) -> Sequence[Content]:
        stage = self._numbers.stage
        if stage is None:
            return []
        share = stage.share
        percent = Content("" if share is None else f"{100 * share:.0f} %")
        name = Content(STAGES[stage.progress.stage])
        parts = [] if stage.progress.unit == "%" else [Content(amount(stage))]
        if stage.left_s is not None:
            parts.append(Content(f"{time_left(stage.left_s)} left"))
        elif stage.since_s >= 1:
            parts.append(Content(f"for {duration(stage.since_s)}"))
        details = flow(parts, width)[:1] or [Content("")]
        return [both_ends(name, percent, width), gauge(share or 0.0, width), *details]


class _Chart(LiveSection):
    """The history of speeds. height: in lines, fewer on low screens."""

    def __init__(self, numbers: LiveNumbers) -> None:
        super().__init__(classes="chart")
        self._numbers = numbers
        self.height_in_lines = 2

    def rows(self, width: int) -> Sequence[Content]:
        return sparkline(self._numbers.history.columns(width), width, self.height_in_lines)


class _Line(LiveSection):
    """Speed on one line, for low screens."""

    def __init__(self, numbers: LiveNumbers) -> None:
        super().__init__(classes="one-line")
        self._numbers = numbers

    def rows(self, width: int) -> Sequence[Content]:
        speed = self._numbers.speed
        if speed is None or speed.shown_tok_s is None:
            return [Content.styled("– tok/s", "$text-muted")]
        shown = Content.styled(rate(speed.shown_tok_s), "bold $accent")
        room = width - shown.cell_length - 2
        return [Content.assemble(shown, "  ", sparkline(self._numbers.history.columns(room), room)[0])]


class _Details(LiveSection):
    """The newest answer: time to its first token, prefill, mean speed, length."""

    def __init__(self, numbers: LiveNumbers) -> None:
        super().__init__()
        self._numbers = numbers

    def rows(self, width: int) -> Sequence[Content]:
        numbers = self._numbers
        if numbers.speed is None:
            return flow(self._before_an_answer(), width)
        timings, parts = numbers.speed.timings, list[str]()
        if timings.ttft_s is not None:
            parts.append(f"TTFT {duration(timings.ttft_s)}")
        if timings.prefill_tok_s is not None:
            parts.append(f"prefill {rate(timings.prefill_tok_s)}")
        if timings.decode_tok_s is not None and numbers.speed.now_tok_s is not None:
            parts.append(f"mean {rate(timings.decode_tok_s)}")
        parts.append(f"{short_count(timings.completion_tokens)} token{'s' * (timings.completion_tokens != 1)}")
        if numbers.speed.now_tok_s is None:
            parts.append(f"in {duration(timings.total_s)}")
        return flow([Content(part) for part in parts], width)

    def _before_an_answer(self) -> list[Content]:
        numbers = self._numbers
        if numbers.loaded is not None:
            return [Content.styled(f"loaded in {duration(numbers.loaded.load_s)}", "$text-muted")]
        if numbers.state == "loading":
            return [line(short_name(numbers.model), "$text-muted")]
        if numbers.phase == "measuring":
            return [line(short_name(numbers.measured), "$text-muted"), _F3]
        return [Content.styled(words, "$text-muted") for words in ("ask something,", "or choose a model: F2")]


class SpeedSection(Vertical):
    """Heading, the large number or the stage that goes on, the history, the newest answer's numbers."""

    SCOPED_CSS = False  # its rules ask for classes of the screen, which is outside of it
    DEFAULT_CSS = """
    SpeedSection { height: auto; width: 1fr; }
    SpeedSection #speed-large { height: 3; width: 1fr; }
    SpeedSection Digits { width: auto; color: $accent; text-style: bold; }
    SpeedSection #speed-unit { width: 1fr; height: 3; padding: 0 0 0 1; color: $text-muted; }
    SpeedSection .stage { height: 3; }
    SpeedSection .one-line { display: none; }
    SpeedSection .stage { display: none; }
    .-low SpeedSection .one-line, .-flat SpeedSection .one-line { display: block; }
    .-low SpeedSection .chart, .-flat SpeedSection .chart { display: none; }
    .-low SpeedSection #speed-large, .-flat SpeedSection #speed-large { display: none; }
    SpeedSection.-staged .stage { display: block; }
    SpeedSection.-staged #speed-large, SpeedSection.-staged .one-line { display: none; }
    SpeedSection.-blank #speed-large, SpeedSection.-blank .one-line, SpeedSection.-blank .chart { display: none; }
    """

    def __init__(self, numbers: LiveNumbers) -> None:
        super().__init__(id="speed", classes="-blank")
        self._numbers = numbers
        self._digits = Digits("")
        self._unit = _Unit(numbers)

    def compose(self) -> ComposeResult:
        yield _Heading(self._numbers)
        with Horizontal(id="speed-large"):
            yield self._digits
            yield self._unit
        yield _StageLines(self._numbers)
        yield _Line(self._numbers)
        yield _Chart(self._numbers)
        yield _Details(self._numbers)

    def redraw(self) -> None:
        """Show what the numbers are now."""
        speed = self._numbers.speed
        shown = "" if speed is None or speed.shown_tok_s is None else rate(speed.shown_tok_s).removesuffix(_UNIT)
        if self._digits.value != (shown or "-"):
            self._digits.update(shown or "-")
        is_staged = self._numbers.stage is not None
        self.update_classes({"-staged": is_staged, "-blank": speed is None and not is_staged})
        for section in self.query(LiveSection):
            section.redraw()


class _Unit(LiveSection):
    """Beside the large number: its unit, and whether it is of this moment."""

    def __init__(self, numbers: LiveNumbers) -> None:
        super().__init__(id="speed-unit")
        self._numbers = numbers

    def rows(self, width: int) -> Sequence[Content]:  # noqa: ARG002
        speed = self._numbers.speed
        when = "" if speed is None else "now" if speed.now_tok_s is not None else "mean"
        return [Content(""), Content("tok/s"), Content(when)]
