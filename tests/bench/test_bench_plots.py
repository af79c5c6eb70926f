"""Plots, in the terminal and as SVG: as long as their numbers, and safe to look at."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.bench.styled import plain
from runner.bench.svg_plot import svg_of
from runner.bench.text_plot import bar_lines, bar_of, can_show, sparkline
from runner.measures import text_width
from tests.bench.bench_records import HOSTILE, backend, full_run, gpu_machine, machine, row, run

SVG = "{http://www.w3.org/2000/svg}"


def test_a_bar_is_as_long_as_its_share() -> None:
    even = (50.0, 50.0)
    assert bar_of(row(samples=even), 100.0, 10) == "█████     "
    assert bar_of(row(samples=even), 50.0, 10) == "█" * 10
    assert bar_of(row(samples=even), 80.0, 10) == "██████▎   "
    assert bar_of(row(samples=even), 100.0, 10, is_ascii=True) == "#####     "


def test_the_spread_is_marked_where_there_is_room() -> None:
    assert bar_of(row(samples=(40.0, 60.0)), 100.0, 20) == "███████├──┼─┤       "
    assert bar_of(row(samples=(40.0, 60.0)), 100.0, 20, is_ascii=True) == "#######|--+-|       "
    assert "├" not in bar_of(row(samples=(50.0, 50.1)), 100.0, 20)
    assert bar_of(row(samples=(1.0, 120.0)), 150.0, 20) == "├───────┼──────────┤"  # a mean is seen in any case


def test_a_row_without_numbers_has_no_bar() -> None:
    assert bar_of(row(samples=(), segments=(), invalid="no"), 100.0, 8) == " " * 8


@given(
    st.lists(st.floats(0.001, 1e5), min_size=1, max_size=6).map(tuple),
    st.integers(1, 60),
    st.floats(1, 3),
    st.booleans(),
)
def test_a_bar_has_exactly_its_columns(samples: tuple[float, ...], width: int, slack: float, is_ascii: bool) -> None:
    one = row(samples=samples)
    assert one.mean is not None
    bar = bar_of(one, one.mean * slack, width, is_ascii=is_ascii)
    assert text_width(bar) == width
    assert not is_ascii or bar.isascii()
    assert bar.strip()


@pytest.mark.parametrize("width", [60, 79, 120, 200])
@pytest.mark.parametrize("is_ascii", [False, True])
def test_bars_fill_the_width_and_keep_the_numbers(width: int, is_ascii: bool) -> None:
    lines = [plain(line) for line in bar_lines(full_run().rows, width, is_ascii=is_ascii)]
    assert len(lines) == 7
    assert {text_width(line) for line in lines} == {width}
    assert "142.6 ± 1.2 tok/s" in "\n".join(lines)
    assert "8340 ± 963 tok/s  noisy" in "\n".join(lines)
    assert "INVALID" in lines[-1]
    assert not is_ascii or "\n".join(lines).replace("±", "").isascii()


def test_each_test_has_its_own_scale() -> None:
    lines = [plain(line) for line in bar_lines(full_run().rows, 100)]
    filled = [line.count("█") for line in lines if "native" in line and "INVALID" not in line]
    assert min(filled) > 0.6 * max(filled)


def test_where_there_is_no_room_there_are_no_bars() -> None:
    assert bar_lines(full_run().rows, 50) == []
    assert bar_lines((), 100) == []


@pytest.mark.parametrize(
    ("values", "shown"),
    [([], ""), ([1.0], "▅"), ([2.0, 2.0], "▅▅"), ([0.0, 7.0], "▁█"), ([1.0, 2.0, 3.0, 4.0], "▁▃▆█")],
)
def test_a_sparkline_goes_from_the_lowest_to_the_highest(values: list[float], shown: str) -> None:
    assert sparkline(values) == shown
    assert sparkline(values, is_ascii=True).isascii()
    assert len(sparkline(values, is_ascii=True)) == len(values)


@pytest.mark.parametrize(
    ("encoding", "can"), [("utf-8", True), ("ascii", False), ("latin-1", False), (None, False), ("no-such", False)]
)
def test_an_encoding_without_blocks_gets_ascii(encoding: str | None, can: bool) -> None:
    assert can_show(encoding) == can


# --- SVG -------------------------------------------------------------------------------------------------------------


def texts(root: ElementTree.Element) -> list[str]:
    return [element.text or "" for element in root.iter(f"{SVG}text")]


def test_a_plot_is_an_svg_with_a_bar_a_row_and_a_dot_a_sample() -> None:
    root = ElementTree.fromstring(svg_of(full_run()))
    assert root.tag == f"{SVG}svg"
    bars = [one for one in root.iter(f"{SVG}rect") if one.get("height") == "18"]
    assert len(bars) == 6
    assert len(list(root.iter(f"{SVG}circle"))) == 30
    assert len(list(root.iter(f"{SVG}path"))) == 6
    shown = texts(root)
    assert "142.6 ± 1.2 tok/s" in shown
    assert "8340 ± 963 tok/s · noisy" in shown
    assert "INVALID" in shown
    assert "llamacpp tg128 131.3 ± 0.6 tok/s" in (root.findtext(f"{SVG}desc") or "")


def test_bars_are_drawn_to_scale_within_each_test() -> None:
    root = ElementTree.fromstring(
        svg_of(run(backend(row(samples=(100.0,))), backend(row(samples=(50.0,)), name="llamacpp")))
    )
    widths = [float(one.get("width") or 0) for one in root.iter(f"{SVG}rect") if one.get("height") == "18"]
    assert widths[0] == pytest.approx(2 * widths[1], abs=0.2)


def test_everything_is_inside_the_picture() -> None:
    long = full_run(model="owner/" + "a-very-long-name-" * 9, machine=gpu_machine(versions={"v" * 30: "9" * 150}))
    root = ElementTree.fromstring(svg_of(long))
    width, height = float(root.get("width") or 0), float(root.get("height") or 0)
    for one in root.iter(f"{SVG}text"):
        assert 0 <= float(one.get("y") or -1) < height
        anchor, x = one.get("text-anchor"), float(one.get("x") or -1)
        size = 9.4 if one.get("class") == "title" else 6.7
        reach = len(one.text or "") * size
        assert x - reach >= 0 if anchor == "end" else x + reach <= width + 12
    for bar in root.iter(f"{SVG}rect"):
        assert float(bar.get("x") or 0) + float(bar.get("width") or 0) <= width


def test_it_follows_the_theme_and_fetches_nothing() -> None:
    svg = svg_of(full_run())
    assert "@media (prefers-color-scheme: dark)" in svg
    assert re.findall(r"https?://[^\"]+", svg) == ["http://www.w3.org/2000/svg"]
    assert "<script" not in svg
    assert "url(" not in svg


def test_the_same_run_is_the_same_file_without_paths() -> None:
    assert svg_of(full_run()) == svg_of(full_run())
    assert "/home/somebody" not in svg_of(full_run())


def test_hostile_names_are_text_in_a_plot() -> None:
    bad = full_run(model=HOSTILE + "\ufffe\udcff", machine=machine(cpu=HOSTILE, versions={"runner": HOSTILE}))
    svg = svg_of(bad)
    root = ElementTree.fromstring(svg)
    assert list(root.iter(f"{SVG}b")) == []
    assert not set(svg) & set("\x1b\x07\x9b\u202e")
    assert any("<b>" in text for text in texts(root))


def test_a_plot_of_nothing_is_a_picture_too(tmp_path: Path) -> None:
    path = tmp_path / "empty.svg"
    path.write_text(svg_of(run(backend())))
    assert ElementTree.parse(path).getroot().tag == f"{SVG}svg"
