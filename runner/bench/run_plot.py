"""A run to be looked at: bars with every sample under them, the share of the bandwidth as gauges, figures over time.

Pure: rows and a width come in, lines of styled text go out. It knows no screen and no file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from runner.bench.braille_plot import Curve, curve_lines, sample_strip
from runner.bench.comparison import RowComparison, RunComparison
from runner.bench.comparison_table import change_of
from runner.bench.figures import doubt, figure, label, percent, with_unit
from runner.bench.history_table import trend_series, what_was_measured
from runner.bench.record import BenchRow, BenchRun
from runner.bench.styled import Line, Segment, Style, padded, wrapped
from runner.bench.text_plot import bar_of
from runner.measures import decimal_size, text_width

_STYLES: Final[tuple[Style, ...]] = ("accent", "good", "doubt")
_LEAST_BAR: Final = 14
_LONGEST_TREND: Final = 60
_GAUGE: Final = 40
_KINDS: Final = {"pp": "prefill", "tg": "decode", "ttft": "time to the first text"}


def plot_lines(rows: Sequence[BenchRow], width: int, *, is_ascii: bool = False, has_samples: bool = True) -> list[Line]:
    """Test by test, each on a scale of its own from zero: a bar for each backend, ± one sd marked, and its samples.

    Where there is no room for bars the figures stand alone, without their spread and on lines of their own if need be.
    """
    backends = list(dict.fromkeys(row.backend for row in rows))
    room = _room(rows, width)
    lines: list[Line] = []
    for test in dict.fromkeys(row.test for row in rows):
        members = [row for row in rows if row.test == test]
        lines += [()] if lines else []
        lines.append(_test_heading(members[0], width))
        top = max((_reach(row) for row in members), default=0.0)
        for row in members:
            style = _STYLES[backends.index(row.backend) % len(_STYLES)]
            lines += _bar(row, top, style, room, is_ascii=is_ascii, has_samples=has_samples)
    return lines


@dataclass(frozen=True)
class _Room:
    """Columns of the backends' names and of a bar, 0 for none. is_short: figures without their spread; is_stacked: and
    below the names."""

    of_name: int
    of_bar: int
    is_short: bool
    is_stacked: bool


def _room(rows: Sequence[BenchRow], width: int) -> _Room:
    """What there is room for. A bar says more than a spread does, which the dots show as well."""
    of_name = max((text_width(row.backend) for row in rows), default=0) + 2
    of_figures, of_short = (
        max((text_width(_numbers(row, is_short=is_short)) for row in rows), default=0) for is_short in (False, True)
    )
    left = width - of_name - 2
    if left - of_figures - 2 >= _LEAST_BAR:
        return _Room(of_name, left - of_figures - 2, is_short=False, is_stacked=False)
    if left - of_short - 2 >= _LEAST_BAR // 2:
        return _Room(of_name, left - of_short - 2, is_short=True, is_stacked=False)
    return _Room(of_name, 0, is_short=of_figures > left, is_stacked=of_short > left)


def _test_heading(row: BenchRow, width: int) -> Line:
    kind = next((words for start, words in _KINDS.items() if row.test.startswith(start)), "with speculation")
    better = "more is better" if row.is_higher_better else "less is better"
    name = "TTFT" if row.test == "ttft" else row.test
    return _heading(name, (f"{kind}, {row.unit}, {better}", f"{kind}, {row.unit}", row.unit), width)


def _heading(name: str, abouts: Sequence[str], width: int) -> Line:
    """The name with the first of those texts for which there is room, the last one if there is none."""
    about = next((text for text in abouts if text_width(name) + 2 + text_width(text) <= width), abouts[-1])
    return (Segment(name, "bold"), Segment(f"  {about}", "dim"))


def _bar(
    row: BenchRow,
    top: float,
    style: Style,
    room: _Room,
    *,
    is_ascii: bool,
    has_samples: bool,
) -> Iterator[Line]:
    name = Segment(padded(f"  {row.backend}", room.of_name))
    numbers_in: Style = "bad" if row.invalid is not None else "doubt" if doubt(row) else "bold"
    numbers = Segment(_numbers(row, is_short=room.is_short), numbers_in)
    if room.is_stacked:
        yield (name,)
        yield (Segment("    "), numbers)
    elif not room.of_bar or row.mean is None:
        yield (name, Segment("  "), numbers)
    else:
        bar = Segment(bar_of(row, top, room.of_bar, is_ascii=is_ascii), style)
        yield (name, Segment("  "), bar, Segment("  "), numbers)
        if has_samples and len(row.samples) > 1:
            strip = sample_strip(row.samples, top, room.of_bar, is_ascii=is_ascii)
            yield (Segment(" " * (room.of_name + 2)), Segment(strip.rstrip(), style))


def _numbers(row: BenchRow, *, is_short: bool = False) -> str:
    """The mean with its spread and unit, the gain of speculation, what must not be missed; is_short: without spread."""
    if row.mean is None:
        return with_unit(row) or "nothing yet"
    shown = figure(row.mean) if is_short else with_unit(row)
    gain = "" if row.gain is None else f"{row.gain:.2f}x"
    return " ".join(part for part in (shown, gain, label(row)) if part)


def _reach(row: BenchRow) -> float:
    return max(row.max or 0.0, (row.mean or 0.0) + (row.stddev or 0.0))


# --- bandwidth -------------------------------------------------------------------------------------------------------


def bandwidth_lines(run: BenchRun, width: int, *, is_ascii: bool = False) -> list[Line]:
    """How much of the measured bandwidth decoding reads, a gauge for each backend; nothing where nobody knows."""
    if run.machine.bandwidth is None:
        return []
    rows = [row for row in run.rows if row.bandwidth_share is not None]
    if not rows:
        return []
    measured = f"of {decimal_size(run.machine.bandwidth.bytes_s)}/s"
    backends = list(dict.fromkeys(row.backend for row in run.rows))
    names = [f"  {row.backend} {row.test}" for row in rows]
    of_names = max(text_width(name) for name in names)
    room = min(_GAUGE, width - of_names - 10)
    abouts = (f"that decoding reads, {measured} measured", f"{measured} measured", measured)
    lines = [_heading("Bandwidth", abouts, width)]
    for name, row in zip(names, rows, strict=True):
        style = _STYLES[backends.index(row.backend) % len(_STYLES)]
        share = percent(row.bandwidth_share)
        gauge = [*_gauge(row.bandwidth_share or 0.0, room, style, is_ascii)] if room >= _LEAST_BAR // 2 else []
        lines.append((Segment(padded(name, of_names)), Segment("  "), *gauge, Segment(f" {share}", "bold")))
    return lines


def _gauge(share: float, width: int, style: Style, is_ascii: bool) -> Iterator[Segment]:
    filled = min(width, max(1, round(share * width)))
    full, empty = ("#", ".") if is_ascii else ("█", "░")
    yield Segment(full * filled, style)
    yield Segment(empty * (width - filled), "dim")


# --- over time -------------------------------------------------------------------------------------------------------


def trend_lines(
    runs: Sequence[BenchRun], like: BenchRun, width: int, *, is_ascii: bool = False, height: int = 5
) -> list[Line]:
    """How the figures of the model of `like` went on over all runs like it: a plot for each test that at least three
    runs have, with a curve for each backend."""
    meant = what_was_measured(like)
    found = {(key[1], key[2]): rows for key, rows in trend_series(runs).items() if key[0] == meant}
    backends = list(dict.fromkeys(row.backend for row in like.rows))
    lines: list[Line] = []
    for test in dict.fromkeys(test for _, test in found):
        curves = [
            Curve(name, tuple(row.mean or 0.0 for row in found[name, test][-_LONGEST_TREND:]),
                  _STYLES[backends.index(name) % len(_STYLES)])
            for name in backends if (name, test) in found
        ]  # fmt: skip
        unit = next((rows[0].unit for (_, one), rows in found.items() if one == test), "")
        drawn = curve_lines(curves, width - 2, height, is_ascii=is_ascii)
        if drawn:
            lines += [()] if lines else []
            lines += _trend_heading(test, unit, curves, width)
            lines += [(Segment("  "), *line) for line in drawn]
    return lines


def _trend_heading(test: str, unit: str, curves: Sequence[Curve], width: int) -> list[Line]:
    """What is drawn, and where each curve ends: on one line, or on a line each."""
    n_runs = max(len(curve.values) for curve in curves)
    heading = _heading("TTFT" if test == "ttft" else test, (f"{unit} over the last {n_runs} runs", unit), width)
    ends = [(Segment(f"● {curve.name}", curve.style), Segment(f" {figure(curve.values[-1])}")) for curve in curves]
    together = tuple(segment for end in ends for segment in (Segment("   "), *end))
    if sum(text_width(segment.text) for segment in (*heading, *together)) <= width:
        return [(*heading, *together)]
    return [heading, *((Segment("  "), *end) for end in ends)]


# --- beside an earlier run -------------------------------------------------------------------------------------------

_INDENT: Final = 10


def verdict_lines(comparison: RunComparison, width: int) -> list[Line]:
    """In words, what is slower and what is faster than in the earlier run, beyond noise; the rest in one sentence."""
    lines: list[Line] = []
    for row in comparison.rows:
        if row.verdict == "slower":
            lines += wrapped("▼ slower", "bad", f"{_change(row)}: {row.backend} {row.test}{_span(row)}", _INDENT, width)
        elif row.verdict == "faster":
            lines += wrapped(
                "▲ faster", "good", f"{_change(row)}: {row.backend} {row.test}{_span(row)}", _INDENT, width
            )
    same = [f"{row.backend} {row.test}" for row in comparison.rows if row.verdict == "same"]
    if same:
        lines += wrapped("≈ same", "dim", f"within noise: {', '.join(same)}", _INDENT, width)
    unknown = [f"{row.backend} {row.test}" for row in comparison.rows if row.verdict in ("unknown", "none")]
    if unknown:
        lines += wrapped("? open", "doubt", f"cannot be told: {', '.join(unknown)}", _INDENT, width)
    return lines


def _change(row: RowComparison) -> str:
    return change_of(row.speed)


def _span(row: RowComparison) -> str:
    """From what to what."""
    if row.before is None or row.after is None or row.before.mean is None or row.after.mean is None:
        return ""
    return f", {figure(row.before.mean)} → {figure(row.after.mean)} {row.unit}"
