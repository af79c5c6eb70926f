"""Everything that the command line prints goes through here: stdout is data, stderr is narration.

It decides colour, width and what is safe for a terminal. It knows nothing of models, engines or what the text means.

Text is passed through safe_text on every path, into pipes too; only JSON carries raw strings, escaped. Colour follows
NO_COLOR, FORCE_COLOR, TERM=dumb and whether the stream is a terminal, in this order.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, TextIO

from runner.errors import RunnerError, UsageError
from runner.measures import binary_size, clip, decimal_size, duration, short_count, text_width, time_left, wrap
from runner.safe_text import safe_line, safe_text
from runner.transfer_rate import TransferRate

__all__ = [
    "Progress",
    "binary_size",
    "can_ask",
    "check_output",
    "clip",
    "configure",
    "confirm",
    "control",
    "data",
    "decimal_size",
    "draw",
    "duration",
    "emit_json",
    "emit_ndjson",
    "emit_progress",
    "fail",
    "has_colour",
    "is_dumb",
    "is_loud",
    "is_terminal",
    "murmur",
    "narrate",
    "paint",
    "painted",
    "say",
    "short_count",
    "stream",
    "table",
    "terminal_size",
    "text_width",
    "warn",
]

Colour = Literal["red", "yellow", "green", "cyan", "dim", "bold"]
_SGR: Mapping[Colour, str] = {"red": "31", "yellow": "33", "green": "32", "cyan": "36", "dim": "2", "bold": "1"}


class _Mode:
    """What the current command asked for: set at its start by `configure`."""

    quiet = False


def configure(*, quiet: bool = False) -> None:
    """quiet: `narrate` and `Progress` print nothing; warnings and errors still appear."""
    _Mode.quiet = quiet


def is_loud() -> bool:
    """Whether the current command narrates: not with --quiet."""
    return not _Mode.quiet


# --- streams -------------------------------------------------------------------------------------------------------


def is_terminal(stream: TextIO | None = None) -> bool:
    """Whether `stream` (stdout when not given) is a terminal."""
    try:
        return (sys.stdout if stream is None else stream).isatty()
    except (AttributeError, ValueError):  # closed, before the program began or since
        return False


def can_ask() -> bool:
    """Whether there is a user at stdin: False in a pipe, and when stdin is closed."""
    return sys.stdin is not None and is_terminal(sys.stdin)


def terminal_size() -> os.terminal_size:
    """The terminal's columns and lines: by stderr or stdin where stdout is none, such as in `runner run ... > file`."""
    return shutil.get_terminal_size(_size_without_stdout())


def _size_without_stdout() -> tuple[int, int]:
    for stream in (sys.__stderr__, sys.__stdin__):
        try:
            columns, lines = os.get_terminal_size(stream.fileno()) if stream is not None else (0, 0)
        except (ValueError, OSError):  # closed, or no terminal
            continue
        if columns and lines:
            return columns, lines
    return 80, 24


def is_dumb() -> bool:
    """Whether the terminal understands no control sequences (TERM=dumb, or TERM empty or unset)."""
    return os.environ.get("TERM", "") in ("", "dumb")


def has_colour(stream: TextIO | None = None) -> bool:
    """Whether colour may be written to `stream` (stdout when not given)."""
    if os.environ.get("NO_COLOR"):
        return False
    if force := os.environ.get("FORCE_COLOR"):
        return force != "0"
    return is_terminal(stream) and not is_dumb()


def paint(text: str, colour: Colour, stream: TextIO | None = None) -> str:
    """`text`, which must be safe already, in that colour when `stream` takes colour."""
    return f"\x1b[{_SGR[colour]}m{text}\x1b[0m" if text and has_colour(stream) else text


def _write(stream: TextIO | None, text: str) -> None:
    """Write and flush. A reader that went away (`runner ls | head -1`, a closed terminal) ends the program quietly.

    Narration that nobody can read is dropped: it changes neither what is done nor the exit code.
    """
    if stream is None:  # closed before the program began
        return
    try:
        stream.write(text)
        stream.flush()
    except OSError as error:
        # What is still buffered would raise again at exit: send it nowhere.
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
        if stream is sys.stderr:
            return
        if error.errno in (errno.EPIPE, errno.EIO):
            raise SystemExit(0) from None
        raise RunnerError(f"The output cannot be written: {error.strerror}.") from error


def check_output() -> None:
    """Raise what `data` would where what others (Typer's help) print to stdout cannot be written."""
    _write(sys.stdout, "")


# --- data: stdout --------------------------------------------------------------------------------------------------


def data(text: str) -> None:
    """One line or block of data on stdout."""
    _write(sys.stdout, safe_text(text) + "\n")


def stream(text: str) -> None:
    """A piece of an answer on stdout, as it comes: no newline is added."""
    if text:
        _write(sys.stdout, safe_text(text))


def control(sequence: str) -> None:
    """A control sequence of our own on stdout, as it stands. Only for terminals, and never with text from outside."""
    _write(sys.stdout, sequence)


def painted(lines: Iterable[Sequence[tuple[str, Colour | None]]], stream: TextIO | None = None) -> None:
    """Lines whose pieces have colours, on `stream` (stdout when not given), with --quiet too."""
    out = sys.stdout if stream is None else stream
    for line in lines:
        pieces = [(safe_line(text), colour) for text, colour in line]
        _write(out, "".join(text if colour is None else paint(text, colour, out) for text, colour in pieces) + "\n")


def _json_line(value: Mapping[str, Any], indent: int | None = None) -> str:
    """JSON that keeps every character: readable UTF-8, unless it has some that a terminal would act on."""
    line = json.dumps(value, ensure_ascii=False, indent=indent)
    if safe_text(line) != line:
        line = json.dumps(value, ensure_ascii=True, indent=indent).replace("\x7f", "\\u007f")
    return line


def emit_json(schema: str, payload: Mapping[str, Any]) -> None:
    """One JSON object on stdout, with "schema" (such as "runner.ls/1") first. Strings are raw."""
    _write(sys.stdout, _json_line({"schema": schema, **payload}, indent=2 if is_terminal() else None) + "\n")


def emit_progress(state: Mapping[str, Any]) -> None:
    """One line of NDJSON about how far something is, on stderr: stdout stays the one object of the result.

    runner.progress/1 has "stage", "done", "total" (0: not known), "unit" ("bytes", "tokens", "tensors", "steps", "%")
    and "left_s" (an estimate, null where there is none); with bytes also "rate_bytes_s"; training has "figures", such
    as "loss", and downloads of several files a "label", "trouble" (what holds them up, "" while nothing does) and
    "files", those that changed since the line before: "name", "done", "total", "state".
    """
    _write(sys.stderr, _json_line({"schema": "runner.progress/1", **state}) + "\n")


def emit_ndjson(schema: str, rows: Iterable[Mapping[str, Any]]) -> None:
    """One JSON object a line on stdout, each with "schema" first. Rows are written as they come."""
    for row in rows:
        _write(sys.stdout, _json_line({"schema": schema, **row}) + "\n")


# --- narration: stderr ---------------------------------------------------------------------------------------------


def narrate(text: str) -> None:
    """One line of narration on stderr; nothing with --quiet."""
    if not _Mode.quiet:
        _write(sys.stderr, _wrapped(safe_text(text)) + "\n")


def narrate_now(text: str) -> None:
    """`narrate` for signal handlers: the buffered stream may be in the middle of a write, and cannot be entered again.

    The cursor may be behind a piece of an answer, where that is on the same terminal.
    """
    if not _Mode.quiet:
        start = "\n" if is_terminal() and is_terminal(sys.stderr) else ""
        with suppress(OSError, ValueError, AttributeError):  # closed, or none
            os.write(sys.stderr.fileno(), f"{start}{text}\n".encode())


def draw(text: str) -> None:
    """Text and control sequences of our own on stderr, as they stand; what is from outside must be safe already."""
    _write(sys.stderr, text)


def say(text: str) -> None:
    """One line or block on stderr that the user asked for: it appears with --quiet too."""
    _write(sys.stderr, _wrapped(safe_text(text)) + "\n")


def murmur(text: str) -> None:
    """A piece of dim narration on stderr, as it comes (thoughts): no newline is added."""
    if text and not _Mode.quiet:
        _write(sys.stderr, paint(safe_text(text), "dim", sys.stderr))


def _wrapped(text: str) -> str:
    """Safe text with its lines broken between words on a terminal; a word that is too long (a path) stays whole."""
    return wrap(text, terminal_size().columns) if is_terminal(sys.stderr) else text


def _labelled(label: str, colour: Colour, text: str, hint: str) -> None:
    for name, shade, words in ((label, colour, text), ("hint: ", "cyan", hint))[: 2 if hint else 1]:
        lines = _wrapped(name + safe_text(words).rstrip("\n"))
        _write(sys.stderr, paint(name, shade, sys.stderr) + lines.removeprefix(name) + "\n")


def warn(text: str, hint: str = "") -> None:
    """A warning on stderr, and its remedy."""
    _labelled("warning: ", "yellow", text, hint)


def fail(error: RunnerError) -> int:
    """Print an error and its remedy on stderr; returns its exit code."""
    _labelled("error: ", "red", error.message or type(error).__name__, error.hint)
    return error.exit_code


def confirm(question: str, yes: bool) -> bool:
    """Ask on the terminal; `yes` (-y) answers without asking. The answer is no unless it is y or yes.

    Raises UsageError when there is no terminal to ask on.
    """
    if yes:
        return True
    if not (can_ask() and is_terminal(sys.stderr)):
        raise UsageError(f"{question} There is no terminal to ask on.", hint="Pass -y to answer yes.")
    _write(sys.stderr, safe_text(question) + " [y/N] ")
    return sys.stdin.readline().strip().lower() in ("y", "yes")


# --- tables --------------------------------------------------------------------------------------------------------


def _fit(widths: list[int], total: int, whole: Sequence[int]) -> list[int]:
    """Shrink the widest columns until the row fits `total` columns; none below 6, and those of `whole` last."""
    widths = list(widths)
    while sum(widths) + 2 * (len(widths) - 1) > total and max(widths) > 6:
        others = [index for index, width in enumerate(widths) if width > 6 and index not in whole]
        widths[max(others or range(len(widths)), key=widths.__getitem__)] -= 1
    return widths


def table(
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    right: Sequence[int] = (),
    *,
    whole: Sequence[int] = (),
    is_narration: bool = False,
) -> None:
    """Aligned plain columns on stdout, two spaces apart; on a terminal, long cells are cut to its width.

    right: the indices of columns that align right (numbers). whole: of those that are cut last. is_narration: on
    stderr, and not with --quiet.
    """
    if is_narration and _Mode.quiet:
        return
    stream = sys.stderr if is_narration else sys.stdout
    cells = [[safe_line(cell) for cell in row] for row in (headers, *rows)]
    widths = [max(text_width(row[column]) for row in cells) for column in range(len(headers))]
    if is_terminal(stream):
        widths = _fit(widths, terminal_size().columns - 1, whole)
    lines = []
    for row in cells:
        line = []
        for column, (cell, width) in enumerate(zip(row, widths, strict=True)):
            shown = clip(cell, width)
            padding = " " * (width - text_width(shown))
            line.append(padding + shown if column in right else shown + padding)
        shown = "  ".join(line).rstrip()
        lines.append(clip(shown, terminal_size().columns - 1) if is_terminal(stream) else shown)
    lines[0] = paint(lines[0], "bold", stream)
    _write(stream, "\n".join(lines) + "\n")


# --- progress ------------------------------------------------------------------------------------------------------


class Progress:
    """Progress of one long stage on stderr: a bar on a terminal, else a line each 5 % or 10 s; NDJSON with `as_json`.

    unit: "bytes", or the word for what is counted ("tokens", "tensors", "%"). A total of 0 is not known yet.
    NDJSON lines come each 5 % or each second, as emit_progress describes them. Use it as a context manager.
    figures: set them for numbers to be shown besides, by their names.
    """

    _BAR_PERIOD_S = 0.1
    _JSON_PERIOD_S = 1.0
    _LINE_PERIOD_S = 10.0
    _LINE_SHARE = 0.05

    def __init__(
        self,
        label: str,
        total: int = 0,
        *,
        unit: str = "bytes",
        as_json: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.figures: Mapping[str, float] = {}
        self._label = safe_line(label)
        self._total = total
        self._unit = unit
        self._as_json = as_json
        self._clock = clock
        self._started = clock()
        self._rate = TransferRate()
        self._first: int | None = None
        self._shown_at: float | None = None
        self._shown_done = 0
        self._done = 0
        self._drawn = False

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def note(self, done: int, total: int | None = None) -> None:
        """`done` units of the total are there; nothing is shown."""
        self._done = done
        if total is not None:
            self._total = total
        if self._first is None:
            self._first = done
        if self._as_json:
            self._rate.add(self._clock(), done)

    def update(self, done: int, total: int | None = None) -> None:
        """`done` units of the total are there: show it when that is due. Cheap to call often."""
        self.note(done, total)
        if self._is_due():
            self.show()

    def close(self) -> None:
        """End the bar. The last state is shown if it was not yet."""
        if self._first is not None and self._done != self._shown_done:
            self.show()
        if self._drawn:
            _write(sys.stderr, "\n")
            self._drawn = False

    def _draws_bar(self) -> bool:
        return not self._as_json and is_terminal(sys.stderr) and not is_dumb()

    def _is_due(self) -> bool:
        since = self._clock() - (self._started if self._shown_at is None else self._shown_at)
        if self._draws_bar():
            return self._shown_at is None or since >= self._BAR_PERIOD_S
        step = self._LINE_SHARE * self._total
        period = self._JSON_PERIOD_S if self._as_json else self._LINE_PERIOD_S
        return since >= period or (0 < step <= self._done - self._shown_done)

    def show(self) -> None:
        """Show how far it is now; nothing with --quiet."""
        if _Mode.quiet:
            return
        self._shown_at, self._shown_done = self._clock(), self._done
        if self._as_json:
            emit_progress(self._state())
        elif self._draws_bar():
            _write(sys.stderr, "\r" + self.bar(terminal_size().columns - 1) + "\x1b[K")
            self._drawn = True
        else:
            _write(sys.stderr, f"{self._label}  {self._numbers()}\n")

    def _state(self) -> dict[str, Any]:
        left = self._rate.left_s(self._total) if self._total else None
        rate = {"rate_bytes_s": round(self._rate.bytes_s)} if self._unit == "bytes" else {}
        return {
            "stage": self._label,
            "done": self._done,
            "total": self._total,
            "unit": self._unit,
            **rate,
            "left_s": None if left is None else round(left, 1),
            **({"figures": dict(self.figures)} if self.figures else {}),
        }

    def _amount(self, value: float) -> str:
        return decimal_size(value) if self._unit == "bytes" else f"{value:.0f} {self._unit}".replace(" %", " %")

    def _numbers(self) -> str:
        elapsed = self._clock() - self._started
        rate = (self._done - (self._first or 0)) / elapsed if elapsed > 0.5 else 0.0
        parts = [f"{100 * self._done / self._total:.0f} %"] if self._total else []
        if self._unit != "%":
            whole = f" of {self._amount(self._total)}" if self._total else ""
            done = self._amount(self._done)
            parts.append((done.removesuffix(f" {self._unit}") if whole else done) + whole)
        if rate >= 0.5 and self._unit != "%":
            parts.append(f"{self._amount(rate)}/s")
        if rate > 0 and self._total > self._done:
            parts.append(f"{time_left((self._total - self._done) / rate)} left")
        parts += [f"{name.replace('_', ' ')} {value:g}" for name, value in self.figures.items()]
        return "  ".join(parts)

    def bar(self, width: int) -> str:
        """How far it is, as one line of at most `width` columns."""
        numbers = self._numbers()
        room = width - text_width(self._label) - text_width(numbers) - 4
        if not self._total or room < 8:
            return clip(f"{self._label}  {numbers}", width)
        cells = min(room, 30)
        filled = min(cells, round(cells * self._done / self._total))
        return f"{self._label}  {'█' * filled}{'░' * (cells - filled)}  {numbers}"
