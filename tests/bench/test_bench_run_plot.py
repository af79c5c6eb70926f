"""Plots of a run that people look at: bars, every sample, the share of the bandwidth, figures over time, verdicts."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.bench.braille_plot import Curve, curve_lines, sample_strip
from runner.bench.comparison import compare_runs
from runner.bench.run_plot import bandwidth_lines, plot_lines, trend_lines, verdict_lines
from runner.bench.styled import plain
from runner.measures import text_width
from tests.bench.bench_records import HOSTILE, backend, full_run, row, run

WIDTHS = (22, 24, 36, 44, 60, 80, 120, 180)


def text_of(lines: list) -> str:  # type: ignore[type-arg]
    return "\n".join(plain(line) for line in lines)


@pytest.mark.parametrize("is_ascii", [False, True])
@pytest.mark.parametrize("width", WIDTHS)
def test_a_plot_names_every_test_and_backend_and_is_no_wider_than_there_is_room(width: int, is_ascii: bool) -> None:
    text = text_of(plot_lines(full_run().rows, width, is_ascii=is_ascii))
    for word in ("TTFT", "pp512", "tg128", "native", "llamacpp", "INVALID", "noisy", "142.6", " ms", "tok/s"):
        assert word in text
    assert max(text_width(line) for line in text.split("\n")) <= width
    if is_ascii:
        assert text.replace("±", "+").isascii()


def test_in_a_narrow_place_a_long_figure_stands_below_its_name_and_whole() -> None:
    noisy = [dataclasses.replace(row("tg128", (100.0, 300.0)), backend=name) for name in ("native", "llamacpp")]
    for width in range(16, 60):
        lines = text_of(plot_lines(noisy, width)).split("\n")
        assert max(map(text_width, lines)) <= width
        assert sum("200.0" in line and "noisy" in line for line in lines) == 2


def test_bars_are_in_proportion_and_the_samples_stand_under_their_bar() -> None:
    rows = [row("tg128", (100.0, 100.0)), dataclasses.replace(row("tg128", (50.0, 50.0)), backend="llamacpp")]
    lines = [plain(line) for line in plot_lines(rows, 100)]
    full, half = lines[1].count("█"), lines[3].count("█")
    assert full > 50
    assert abs(full - 2 * half) <= 1
    assert lines[2].strip(" ") != ""
    assert text_width(lines[2].rstrip()) == text_width(lines[1][: lines[1].rindex("█") + 1])


def test_less_is_better_is_said_of_times_and_more_of_rates() -> None:
    lines = [plain(line) for line in plot_lines(full_run().rows, 100) if "better" in plain(line)]
    assert [line.split(",")[-1].strip() for line in lines[:2]] == ["less is better", "more is better"]


def test_a_row_without_samples_says_so() -> None:
    assert "nothing yet" in text_of(plot_lines([row("tg128", (), segments=())], 80))


def test_a_trend_says_where_each_curve_ends_however_narrow_it_is() -> None:
    for width in (30, 44, 120):
        text = text_of(trend_lines([full_run()] * 3, full_run(), width, height=3))
        assert "● native 142.6" in text
        assert "● llamacpp 131.3" in text
        assert max(text_width(line) for line in text.split("\n")) <= width


def test_the_bandwidth_is_shown_for_what_decodes_and_only_where_it_was_measured() -> None:
    text = text_of(bandwidth_lines(full_run(), 80))
    assert "native tg128" in text
    assert "78 %" in text
    assert "71 %" in text
    assert bandwidth_lines(run(backend(row("pp512", (1.0, 2.0)))), 80) == []
    unknown = dataclasses.replace(full_run().machine, bandwidth=None)
    assert bandwidth_lines(full_run(machine=unknown), 80) == []


def test_figures_over_time_have_a_curve_for_each_backend_from_three_runs_on() -> None:
    runs = [full_run(id=f"2026013{number}-120000-4f2a") for number in range(3)]
    assert trend_lines(runs[:2], runs[1], 80) == []
    text = text_of(trend_lines(runs, runs[2], 80))
    assert "over the last 3 runs" in text
    assert "● native" in text
    assert "● llamacpp" in text
    assert trend_lines(runs, full_run(model="another"), 80) == []


def test_a_verdict_says_what_is_slower_faster_and_the_same() -> None:
    before = run(
        backend(row("ttft", (80.0, 81.0, 80.5)), row("pp512", (100.0, 101.0, 99.0)), row("tg128", (50.0, 50.1, 49.9)))
    )
    after = run(
        backend(row("ttft", (40.0, 40.5, 40.2)), row("pp512", (80.0, 81.0, 79.0)), row("tg128", (50.0, 50.1, 49.8))),
        id="20260201-120000-4f2a",
    )
    text = text_of(verdict_lines(compare_runs(before, after), 100))
    assert "▼ slower  -20.0 %: native pp512, 100.0 → 80.00 tok/s" in text
    assert "▲ faster" in text
    assert "ttft" in text
    assert "≈ same" in text
    assert text.index("▲") < text.index("≈")


def test_a_hostile_reason_is_harmless_in_a_verdict() -> None:
    before = run(backend(row("tg128", (50.0, 50.1))))
    after = run(backend(row("tg128", (), segments=(), invalid=HOSTILE)), id="20260201-120000-4f2a")
    assert "\x1b" not in text_of(verdict_lines(compare_runs(before, after), 60))


@given(
    st.lists(st.floats(min_value=0.001, max_value=1e6), min_size=1, max_size=40),
    st.integers(min_value=1, max_value=100),
    st.booleans(),
)
def test_every_sample_is_a_dot_of_the_strip(samples: list[float], width: int, is_ascii: bool) -> None:
    top = max(samples)
    strip = sample_strip(samples, top, width, is_ascii=is_ascii)
    assert len(strip) == width
    assert strip[min(width - 1, int(samples[0] / top * width))] != " "


@given(
    st.lists(st.lists(st.floats(min_value=0.001, max_value=1e6), min_size=1, max_size=30), min_size=1, max_size=3),
    st.integers(min_value=20, max_value=120),
    st.integers(min_value=2, max_value=8),
    st.booleans(),
)
def test_curves_fill_their_room_and_no_more(series: list[list[float]], width: int, height: int, is_ascii: bool) -> None:
    curves = [Curve(f"c{number}", tuple(values)) for number, values in enumerate(series)]
    lines = [plain(line) for line in curve_lines(curves, width, height, is_ascii=is_ascii)]
    assert len(lines) in (0, height)
    assert all(text_width(line) <= width for line in lines)
    assert not is_ascii or all(line.isascii() for line in lines)


def test_a_curve_that_rises_begins_low_and_ends_high() -> None:
    lines = [plain(line) for line in curve_lines([Curve("c", (1.0, 2.0, 3.0, 4.0))], 40, 4)]
    assert lines[-1].split("┤")[1].strip()
    assert lines[0].split("┤")[1].startswith(" ")
    assert len(lines[0].rstrip()) > len(lines[-1].rstrip())
