"""The words around a turn: when it was said, what it took, how long was thought. Pure functions of values."""

from __future__ import annotations

import time

from runner.measures import duration
from runner.status_text import SEPARATOR, rate, tokens_text
from runner.telemetry import Timings
from runner.transcript import Turn
from runner.wire import from_plain

_DAY_S = 86_400


def timings_of(turn: Turn) -> Timings | None:
    """What the answer took, None when that is not known: a chat file may hold anything there."""
    if not turn.timings:
        return None
    try:
        timings = from_plain(Timings, dict(turn.timings))
        numbers_text(timings)
    except (TypeError, ValueError, KeyError, ArithmeticError):
        return None
    return timings


def numbers_text(timings: Timings) -> str:
    """142.6 tok/s · TTFT 84 ms · 412 tokens."""
    parts = []
    if timings.decode_tok_s is not None:
        parts.append(rate(timings.decode_tok_s))
    if timings.ttft_s is not None:
        parts.append(f"TTFT {duration(timings.ttft_s)}")
    if timings.completion_tokens:
        parts.append(tokens_text(timings.completion_tokens))
    if timings.acceptance_rate is not None:
        parts.append(f"accepted {100 * timings.acceptance_rate:.0f} %")
    return SEPARATOR.join(parts)


def thought_label(turn: Turn) -> str:
    """What is known of the thought of a kept answer: its share of the answer's tokens and time, by its length."""
    timings = timings_of(turn)
    length = len(turn.reasoning) + len(turn.content)
    if timings is None or not timings.completion_tokens or not length:
        return "thought"
    share = len(turn.reasoning) / length
    label = measured_thought_label(timings.decode_s * share, round(timings.completion_tokens * share))
    return label if share == 1 else label.replace("thought ", "thought ≈ ", 1)


def measured_thought_label(seconds: float, n_tokens: int) -> str:
    """thought 3.1 s · 412 tokens."""
    label = f"thought {duration(seconds)}"
    return f"{label}{SEPARATOR}{tokens_text(n_tokens)}" if n_tokens else label


def time_text(seconds: float, now: float) -> str:
    """12:03, and the day when that is not today. "" when it is not known. Seconds since the epoch; local time."""
    if seconds <= 0:
        return ""
    try:
        moment, today = time.localtime(seconds), time.localtime(now)
    except (OverflowError, ValueError, OSError):
        return ""
    if moment[:3] == today[:3]:
        return time.strftime("%H:%M", moment)
    return time.strftime("%b %d %H:%M" if moment.tm_year == today.tm_year else "%Y-%m-%d %H:%M", moment)
