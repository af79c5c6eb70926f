"""A plot of a run as an SVG file: bars with every sample and one standard deviation, a scale of its own for each test.

It has no background, and its colours follow the viewer's light or dark theme. The same run is the same file. It knows
no screen and no file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final
from xml.sax.saxutils import escape, quoteattr

from runner.bench.figures import INVALID, label, with_unit
from runner.bench.record import BenchRow, BenchRun
from runner.measures import clip, short_count
from runner.safe_text import safe_line

_WIDTH: Final = 760
_LEFT, _RIGHT, _MARGIN = 206, 212, 24
_BAR, _ROW, _GROUP = 18, 25, 14  # heights: a bar, from one bar to the next, between two tests
_HEAD: Final = 84
_CHARACTER: Final = 6.6  # the width of one at 12 px, about
_COLOURS: Final = (("#2563c9", "#6ea8ff"), ("#d9650b", "#ff9d4d"), ("#7c3aad", "#c792ea"))  # light, dark
_NOT_IN_XML: Final = re.compile("[\ufffe\uffff]")  # beside what no terminal is shown
_STYLE: Final = """
  text { font: 12px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; fill: #24292f; }
  .title { font-size: 17px; font-weight: 600; }
  .test { font-weight: 600; }
  .dim { fill: #656d76; }
  .bad { fill: #c62828; font-weight: 600; }
  .axis { stroke: #afb8c1; stroke-width: 1; }
  .spread { stroke: #24292f; stroke-width: 1.4; fill: none; }
  .sample { fill: #24292f; fill-opacity: 0.55; }
"""
_DARK_STYLE: Final = """
    text { fill: #e6edf3; }
    .dim { fill: #9198a1; }
    .bad { fill: #ff7b72; }
    .axis { stroke: #656d76; }
    .spread { stroke: #e6edf3; }
    .sample { fill: #e6edf3; }
"""


def svg_of(run: BenchRun) -> str:
    """The run's rows as a whole SVG document, with a description for those who cannot see it."""
    backends = list(dict.fromkeys(row.backend for row in run.rows))
    body, bottom = _groups(run.rows, backends)
    height = bottom + 40
    title = f"How fast {run.model} {run.quantization} runs"
    described = "; ".join(f"{row.backend} {row.test} {_value(row)}" for row in run.rows)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" '
        f'role="img" aria-labelledby="title description">'
    )
    return "\n".join(
        [
            head,
            f'<title id="title">{_text(title)}</title>',
            f'<desc id="description">{_text(described)}</desc>',
            f"<style>{_STYLE}{_bar_styles(0)}  @media (prefers-color-scheme: dark) {{{_DARK_STYLE}{_bar_styles(1)}  }}",
            "</style>",
            *_heading(run, backends),
            *body,
            *_footer(run, height),
            "</svg>",
            "",
        ]
    )


def _bar_styles(theme: int) -> str:
    return "".join(f"  .bar{number} {{ fill: {colours[theme]}; }}\n" for number, colours in enumerate(_COLOURS))


def _text(text: str) -> str:
    return escape(_NOT_IN_XML.sub("", safe_line(text)))


def _written(x: float, y: float, text: str, *, kind: str = "", anchor: str = "start", room: float = _WIDTH) -> str:
    shown = clip(safe_line(text), int(room / _CHARACTER))
    return f'<text x="{x:g}" y="{y:g}" class={quoteattr(kind)} text-anchor="{anchor}">{_text(shown)}</text>'


# --- head and foot ---------------------------------------------------------------------------------------------------


def _heading(run: BenchRun, backends: Sequence[str]) -> Iterator[str]:
    room = _WIDTH - 2 * _MARGIN
    name = clip(f"{run.model} · {run.quantization} · {short_count(run.num_parameters)} parameters", 72)
    yield _written(_MARGIN, 30, name, kind="title")
    machine = run.machine
    device = machine.cpu if machine.kind == "cpu" else f"{machine.device}, {machine.cpu}"
    yield _written(_MARGIN, 50, device, kind="dim", room=room)
    x = float(_MARGIN)
    for number, backend in enumerate(backends):
        yield f'<rect x="{x:g}" y="62" width="11" height="11" rx="2" class="bar{number % len(_COLOURS)}"/>'
        yield _written(x + 17, 72, backend)
        x += 36 + _CHARACTER * len(backend)
    legend = "bar: mean · dots: samples · line: ± one standard deviation"
    legend += " · of ms, less is better" if any(row.unit == "ms" for row in run.rows) else ""
    yield _written(x + 6, 72, legend, kind="dim", room=_WIDTH - x)


def _footer(run: BenchRun, height: float) -> Iterator[str]:
    versions = ", ".join(f"{name} {value}" for name, value in run.machine.versions.items() if name != "python")
    yield _written(_MARGIN, height - 14, f"{run.id} · {versions}", kind="dim", room=_WIDTH - 2 * _MARGIN)


# --- bars ------------------------------------------------------------------------------------------------------------


def _groups(rows: Sequence[BenchRow], backends: Sequence[str]) -> tuple[list[str], float]:
    """The elements of all tests, and the height at which they end."""
    y: float = _HEAD + _GROUP
    elements: list[str] = []
    for test in dict.fromkeys(row.test for row in rows):
        members = [row for row in rows if row.test == test]
        top = max((max(row.max or 0.0, (row.mean or 0.0) + (row.stddev or 0.0)) for row in members), default=0.0)
        elements.append(_written(_MARGIN, y + _BAR - 5, test, kind="test", room=_LEFT - 90))
        begin = y
        for row in members:
            elements += _bar(row, backends.index(row.backend), y, top)
            y += _ROW
        end = y - _ROW + _BAR + 3
        elements.append(f'<line x1="{_LEFT}" y1="{begin - 3:g}" x2="{_LEFT}" y2="{end:g}" class="axis"/>')
        y += _GROUP
    return elements, y


def _bar(row: BenchRow, number: int, y: float, top: float) -> Iterator[str]:
    yield _written(_LEFT - 8, y + _BAR - 5, row.backend, kind="dim", anchor="end", room=90)
    if row.mean is None or top <= 0:
        yield _written(_LEFT + 8, y + _BAR - 5, INVALID if row.invalid is not None else "no samples", kind="bad")
        return
    scale = (_WIDTH - _LEFT - _RIGHT) / top
    middle = y + _BAR / 2
    kind = f"bar{number % len(_COLOURS)}"
    yield f'<rect x="{_LEFT}" y="{y:g}" width="{row.mean * scale:.1f}" height="{_BAR}" rx="2" class="{kind}"/>'
    if row.stddev is not None:
        low, high = (_LEFT + max(0.0, row.mean + sign * row.stddev) * scale for sign in (-1, 1))
        yield f'<path d="M{low:.1f} {middle - 4:g}v8m0-4H{high:.1f}m0-4v8" class="spread"/>'
    for sample in row.samples:
        yield f'<circle cx="{_LEFT + sample * scale:.1f}" cy="{middle:g}" r="1.9" class="sample"/>'
    reach = max(row.max or 0.0, row.mean + (row.stddev or 0.0))
    yield _written(_LEFT + reach * scale + 8, y + _BAR - 5, _value(row))


def _value(row: BenchRow) -> str:
    return " · ".join(part for part in (with_unit(row), label(row) if row.invalid is None else "") if part)
