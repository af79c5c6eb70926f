"""Progress of several files at once on stderr: a line a file and one for all on a terminal, else a line now and then.

It draws within the terminal's height, in place, and leaves one line behind. It takes states and knows nothing of how
they come about.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from runner.cli import render
from runner.measures import time_left
from runner.safe_text import safe_line
from runner.transfer_rate import TransferRate

Stage = Literal["waiting", "attached", "downloading", "done"]
_MOVING: frozenset[Stage] = frozenset({"downloading", "attached"})


@dataclass(frozen=True)
class FileProgress:
    """One of the files. attached: another process fetches it."""

    name: str
    done_bytes: int
    total_bytes: int
    stage: Stage


class MultiProgress:
    """Shows `update`s; at most 10 frames a second on a terminal, else a line each 5 % or 10 s, or NDJSON each second.

    NDJSON lines (runner.progress/1) have the files that changed since the line before. Use it as a context manager.
    """

    _FRAME_PERIOD_S = 0.1
    _JSON_PERIOD_S = 1.0
    _LINE_PERIOD_S = 10.0
    _LINE_SHARE = 0.05

    def __init__(self, label: str, *, as_json: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        self._label = safe_line(label)
        self._as_json = as_json
        self._clock = clock
        self._files: tuple[FileProgress, ...] = ()
        self._trouble = ""
        self._rates: dict[str, TransferRate] = {}
        self._rate = TransferRate()
        self._began: float | None = None
        self._first_done = 0
        self._shown_at: float | None = None
        self._shown_done = -1
        self._shown_files: dict[str, FileProgress] = {}
        self._frame: list[str] = []

    def __enter__(self) -> MultiProgress:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def done_bytes(self) -> int:
        return sum(file.done_bytes for file in self._files)

    @property
    def total_bytes(self) -> int:
        return sum(file.total_bytes for file in self._files)

    def update(self, files: Iterable[FileProgress], *, trouble: str = "") -> None:
        """All files as they are now, and what holds them up, in words. Cheap to call often."""
        self._files, self._trouble, now = tuple(files), trouble, self._clock()
        self._rate.add(now, self.done_bytes)
        for file in self._files:
            if file.stage in _MOVING:
                self._rates.setdefault(file.name, TransferRate()).add(now, file.done_bytes)
        if self._began is None:
            self._began, self._first_done = now, self.done_bytes
        if render.is_loud() and self._is_due(now):
            self._show(now)

    def say(self, text: str, *, is_warning: bool = False) -> None:
        """A line of narration, or a warning, above what is drawn."""
        if self._frame:
            self._draw([])
        (render.warn if is_warning else render.narrate)(text)

    def close(self) -> None:
        """End the display; on a terminal the line for all files stays."""
        if self._began is None or not render.is_loud():
            return
        if not self._draws():
            if self.done_bytes != self._shown_done:
                self._show(self._clock())
        elif self._frame:
            self._draw([self._summary(_width())])
            render.draw("\n")
        self._began = None

    def _draws(self) -> bool:
        return not self._as_json and render.is_terminal(sys.stderr) and not render.is_dumb()

    def _is_due(self, now: float) -> bool:
        if self._draws():
            return self._shown_at is None or now - self._shown_at >= self._FRAME_PERIOD_S
        if self._as_json:
            return self._shown_at is None or now - self._shown_at >= self._JSON_PERIOD_S
        since = now - (self._shown_at if self._shown_at is not None else self._began or now)
        step = self._LINE_SHARE * self.total_bytes
        return since >= self._LINE_PERIOD_S or 0 < step <= self.done_bytes - max(self._shown_done, self._first_done)

    def _show(self, now: float) -> None:
        self._shown_at, self._shown_done = now, self.done_bytes
        if self._as_json:
            self._write_json()
        elif self._draws():
            self._draw(self._lines(_width(), render.terminal_size().lines - 1))
        else:
            render.narrate(f"{self._label}  {'  '.join(self._numbers())}")

    def _write_json(self) -> None:
        left = self._rate.left_s(self.total_bytes)
        changed = [file for file in self._files if self._shown_files.get(file.name) != file]
        self._shown_files.update({file.name: file for file in changed})
        render.emit_progress(
            {
                "stage": "download",
                "label": self._label,
                "done": self.done_bytes,
                "total": self.total_bytes,
                "unit": "bytes",
                "rate_bytes_s": round(self._rate.bytes_s),
                "left_s": None if left is None else round(left, 1),
                "trouble": self._trouble,
                "files": [
                    {"name": file.name, "done": file.done_bytes, "total": file.total_bytes, "state": file.stage}
                    for file in changed
                ],
            }
        )

    # --- drawing ---

    def _draw(self, lines: Sequence[str]) -> None:
        """Put `lines` where the frame before was. A frame that a narrower window has wrapped takes more rows."""
        columns, rows = render.terminal_size()
        taken = sum(max(1, -(-render.text_width(line) // max(1, columns))) for line in self._frame)
        up = min(taken, rows) - 1
        start = "\r" + (f"\x1b[{up}A" if up > 0 else "")
        render.draw(start + "\n".join(line + "\x1b[K" for line in lines) + "\x1b[J")
        self._frame = list(lines)

    def _lines(self, width: int, height: int) -> list[str]:
        """A line for each file that moves, as many as there is room for, and the summary."""
        moving = [file for file in self._files if file.stage in _MOVING]
        room = max(0, height - 1)
        if len(self._files) == 1 or room == 0:
            return [self._summary(width)]
        shown = moving if len(moving) <= room else moving[: max(0, room - 1)]
        lines = [self._file_line(file, width) for file in shown]
        if hidden := len(moving) - len(shown):
            lines.append(render.clip(f"and {hidden} more", width))
        return [*lines, self._summary(width)]

    def _file_line(self, file: FileProgress, width: int) -> str:
        rate = self._rates[file.name].bytes_s
        if file.stage == "attached":
            side = "by another process"
        else:
            side = f"{render.decimal_size(rate)}/s" if rate else ""
        amount = f"{render.decimal_size(file.done_bytes)} of {render.decimal_size(file.total_bytes)}"
        return _row(safe_line(file.name), file.done_bytes, file.total_bytes, [amount, side], width)

    def _summary(self, width: int) -> str:
        label = self._label
        if len(self._files) > 1:
            label += f", {sum(file.stage == 'done' for file in self._files)} of {len(self._files)} files"
        return _row(label, self.done_bytes, self.total_bytes, self._numbers()[1:], width)

    def _numbers(self) -> list[str]:
        """Percent, amount, rate, time left or taken."""
        done, total, size = self.done_bytes, self.total_bytes, render.decimal_size
        if total and done >= total:
            taken = max(0.0, self._clock() - (self._began or 0.0))
            fetched = done - self._first_done
            speed = [f"{size(fetched / taken)}/s"] if taken >= 0.5 and fetched else []
            return ["100 %", size(total), *speed, f"in {render.duration(taken)}"]
        parts = [f"{_percent(done, total)} %", f"{size(done)} of {size(total)}"]
        if self._rate.bytes_s > 0:
            parts.append(f"{size(self._rate.bytes_s)}/s")
        left = self._rate.left_s(total)
        return [*parts, f"{time_left(left)} left"] if left is not None else parts


def _width() -> int:
    return render.terminal_size().columns - 1


def _percent(done: int, total: int) -> int:
    """Rounded down, so that 100 means all."""
    return 100 * done // total if total else 100


def _row(name: str, done: int, total: int, numbers: Sequence[str], width: int) -> str:
    """`name  61 %  bar  numbers` in `width` columns. The columns follow from the width alone, so rows are aligned.

    numbers: the least important first; those go where there is no room, and so does the bar.
    """
    name_width = min(44, max(10, round(0.35 * width)))
    cells = min(30, width - name_width - round(0.45 * width) - 9)
    cells = cells if cells >= 8 else 0
    room = width - name_width - 9 - (cells + 2 if cells else 0)
    kept = [one for one in numbers if one]
    while len(kept) > 1 and render.text_width("  ".join(kept)) > room:
        kept.pop(0)
    shown = render.clip(name, name_width)
    filled = min(cells, cells * done // total) if total else cells
    bar = ["█" * filled + "░" * (cells - filled)] if cells else []
    padding = " " * (name_width - render.text_width(shown))
    return render.clip("  ".join([shown + padding, f"{_percent(done, total):>3} %", *bar, *kept]), width)
