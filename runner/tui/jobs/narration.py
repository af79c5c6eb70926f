"""What the command line says on stderr while it works for us: progress as NDJSON, and errors and warnings in words.

Pure: it takes lines and keeps what they mean. It knows neither processes nor jobs.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

SCHEMA: Final = "runner.progress/1"
_LABELS: Final = ("error: ", "warning: ", "hint: ")
_KEPT_LINES: Final = 5
_MAX_TEXT: Final = 4000


@dataclass(frozen=True, kw_only=True)
class Step:
    """One line of progress. files: names of the files that it speaks of. trouble: what holds it up, in words, or ""."""

    stage: str
    done: int
    total: int
    unit: str
    rate_bytes_s: float | None
    eta_s: float | None
    files: tuple[str, ...]
    trouble: str = ""


def read_step(line: str) -> Step | None:
    """The progress that a line tells; None for a line of words, or of another schema."""
    if not line.startswith("{"):
        return None
    try:
        plain = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(plain, dict) or plain.get("schema") != SCHEMA:
        return None
    files = plain.get("files")
    named = [file.get("name") for file in files if isinstance(file, dict)] if isinstance(files, list) else []
    return Step(
        stage=_text(plain, "stage"),
        done=_count(plain, "done"),
        total=_count(plain, "total"),
        unit=_text(plain, "unit") or "bytes",
        rate_bytes_s=_number(plain, "rate_bytes_s"),
        eta_s=_number(plain, "left_s"),
        files=tuple(name for name in named if isinstance(name, str)),
        trouble=_text(plain, "trouble"),
    )


def _text(plain: Mapping[str, Any], key: str) -> str:
    value = plain.get(key)
    return value if isinstance(value, str) else ""


def _count(plain: Mapping[str, Any], key: str) -> int:
    value = plain.get(key)
    return value if type(value) is int and value >= 0 else 0


def _number(plain: Mapping[str, Any], key: str) -> float | None:
    value = plain.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0:
        return None
    return float(value)


class Words:
    """The lines that are no progress: the last error with its hint, the last warning with its, and the last of all."""

    def __init__(self) -> None:
        self._said = {"error: ": "", "warning: ": ""}
        self._hints = {"error: ": "", "warning: ": ""}
        self._about = ""
        self._is_hint = False
        self._last: deque[str] = deque(maxlen=_KEPT_LINES)

    def take(self, line: str) -> None:
        """One line without its end; a message may go on over several."""
        label = next((one for one in _LABELS if line.startswith(one)), "")
        text = line.removeprefix(label)
        if label == "hint: ":
            self._is_hint = True
            self._put(text, joined=False)
        elif label:
            self._about, self._is_hint = label, False
            self._hints[label] = ""
            self._put(text, joined=False)
        elif self._about == "error: " and line.strip():
            self._put(text, joined=True)
        if line.strip():
            self._last.append(line.strip()[:_MAX_TEXT])

    def _put(self, text: str, *, joined: bool) -> None:
        if self._about:
            place = self._hints if self._is_hint else self._said
            place[self._about] = f"{place[self._about]} {text}"[:_MAX_TEXT].strip() if joined else text[:_MAX_TEXT]

    @property
    def error(self) -> tuple[str, str]:
        """Its message and its hint, each "" when there is none."""
        return self._said["error: "], self._hints["error: "]

    @property
    def warning(self) -> tuple[str, str]:
        """Its message and its hint, each "" when there is none."""
        return self._said["warning: "], self._hints["warning: "]

    @property
    def last(self) -> str:
        """The last line that says something, for a process that ended without an error of its own."""
        return self._last[-1] if self._last else ""
