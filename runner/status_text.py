"""The words for what is loaded and for live and final numbers: prefill, a running answer, a finished one.

Pure functions of values; the numbers themselves are defined in telemetry.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runner.events import Loaded, Progress
from runner.measures import duration, short_count, time_left
from runner.speculative.record import SpeculationRecord
from runner.telemetry import Timings
from runner.wire import to_plain

SEPARATOR = " · "
STAGES: Mapping[str, str] = {
    "download": "Downloading",
    "load": "Loading",
    "compile": "Compiling kernels, once per machine",
    "prefill": "Reading",
}
_SHORTEST_S = 0.005  # a stage that took less is not worth a word


def header(loaded: Loaded) -> str:
    """What is loaded, and where and why it runs there: two lines."""
    info = loaded.info
    parts = [info.name, info.quantization, f"context {info.n_ctx}", "/help for commands"]
    return f"{SEPARATOR.join(parts)}\n{info.backend}: {loaded.reason}"


def rate(tok_s: float) -> str:
    """142.6 tok/s, 3900 tok/s, 12.3k tok/s."""
    if tok_s < 1000:
        return f"{tok_s:.1f} tok/s"
    return f"{tok_s:.0f} tok/s" if tok_s < 10_000 else f"{short_count(round(tok_s))} tok/s"


def tokens_text(n: int) -> str:
    """1 token, 412 tokens."""
    return "1 token" if n == 1 else f"{n} tokens"


def context_used(used: int, n_ctx: int) -> str:
    """1.2k/8.2k."""
    return f"{short_count(used)}/{short_count(n_ctx)}"


def time_left_s(progress: Progress, elapsed_s: float, first_done: int) -> float | None:
    """Seconds until a stage is done at the pace it had so far; None when that cannot be said.

    first_done: what was done when the stage was first heard of, `elapsed_s` ago: tokens that needed no reading.
    """
    done, total = progress.done, progress.total
    if done <= first_done or elapsed_s <= 0.3 or done >= total:
        return None
    return (total - done) * elapsed_s / (done - first_done)


def prefill_status(progress: Progress, elapsed_s: float, first_done: int) -> str:
    """How far reading the prompt is, and how long it will take. first_done: tokens that needed no reading."""
    done, total = progress.done, progress.total
    parts = [f"reading {short_count(done)}/{short_count(total)} tokens"]
    if total:
        parts.append(f"{100 * done / total:.0f} %")
    if (left_s := time_left_s(progress, elapsed_s, first_done)) is not None:
        parts.append(f"{time_left(left_s)} left")
    return SEPARATOR.join(parts)


def answer_status(timings: Timings, n_ctx: int, speculation: SpeculationRecord | None = None) -> str:
    """The live line of an answer, the most wanted numbers first, so that a narrow terminal cuts the least wanted."""
    parts = []
    if timings.decode_tok_s is not None:
        parts.append(rate(timings.decode_tok_s))
    if speculation is not None and speculation.state == "on" and speculation.gain is not None:
        parts.append(gain(speculation.gain))
    if timings.ttft_s is not None:
        parts.append(f"TTFT {duration(timings.ttft_s)}")
    parts.append(f"context {context_used(timings.context_tokens, n_ctx)}")
    parts.append(tokens_text(timings.completion_tokens))
    return SEPARATOR.join(parts)


def load_summary(loaded: Loaded) -> str:
    """What loading took, and what of it, for -v."""
    total = max(loaded.load_s, sum(loaded.stages.values()))
    parts = [f"{name} {duration(seconds)}" for name, seconds in loaded.stages.items() if seconds >= _SHORTEST_S]
    return SEPARATOR.join([f"load {duration(total)}", *parts])


def summary(timings: Timings, n_ctx: int) -> str:
    """What a finished answer took, for -v and /stats."""
    cached = f" ({timings.cached_tokens} cached)" if timings.cached_tokens else ""
    parts = [f"prompt {tokens_text(timings.prompt_tokens)}{cached}"]
    if timings.prefill_tok_s is not None:
        parts.append(f"prefill {rate(timings.prefill_tok_s)}")
    if timings.ttft_s is not None:
        parts.append(f"TTFT {duration(timings.ttft_s)}")
    parts.append(f"answer {tokens_text(timings.completion_tokens)}")
    if timings.decode_tok_s is not None:
        parts.append(f"decode {rate(timings.decode_tok_s)}")
    if timings.acceptance_rate is not None:
        parts.append(f"accepted {100 * timings.acceptance_rate:.0f} %")
    parts += [f"total {duration(timings.total_s)}", f"context {context_used(timings.context_tokens, n_ctx)}"]
    return SEPARATOR.join(parts)


def gain(times: float) -> str:
    """gain 1.83x: over plain decoding."""
    return f"gain {times:.2f}x"


def speculation_summary(record: SpeculationRecord) -> str:
    """What speculation did for an answer, for -v and /stats: the drafter, how its tokens fared, where the time went."""
    parts = [f"{record.drafter} {record.state}" + (f": {record.reason.rstrip('.')}" if record.reason else "")]
    if record.file_tokens:
        parts.append(f"{tokens_text(record.file_tokens)} of files to quote")
    if record.acceptance_rate is not None:
        parts.append(f"acceptance rate {100 * record.acceptance_rate:.0f} % of {record.n_drafted}")
    if record.acceptance_length is not None:
        parts.append(f"acceptance length {record.acceptance_length:.2f}")
    if record.gain is not None:
        parts.append(gain(record.gain))
    of_rounds = record.draft_s + record.verify_s + record.sample_s
    if of_rounds > 0:
        split = (("draft", record.draft_s), ("verify", record.verify_s), ("sample", record.sample_s))
        parts.append(", ".join(f"{name} {100 * seconds / of_rounds:.0f} %" for name, seconds in split))
    return SEPARATOR.join(parts)


def plain_speculation(record: SpeculationRecord | None, words: str) -> dict[str, Any]:
    """The record for JSON, with the rates that follow from it; words: Loaded.speculation, where nothing drafts."""
    if record is None:
        return {"drafter": None, "state": "off", "reason": words.removeprefix("off: ")}
    return {
        **to_plain(record),
        "n_drafted": record.n_drafted,
        "n_accepted": record.n_accepted,
        "acceptance_rate": record.acceptance_rate,
        "acceptance_length": record.acceptance_length,
        "conditional_acceptance": list(record.conditional_acceptance),
        "gain": record.gain,
    }


def plain_timings(timings: Timings) -> dict[str, Any]:
    """Timings for JSON: the durations and counts, and the rates that follow from them."""
    return {
        **to_plain(timings),
        "prefill_tok_s": timings.prefill_tok_s,
        "decode_tok_s": timings.decode_tok_s,
        "acceptance_rate": timings.acceptance_rate,
    }
