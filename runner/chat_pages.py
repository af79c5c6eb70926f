"""What a chat can tell about itself as plain text: the model, the parameters, the speed of its answers; its notices.

Pure functions of values; both front ends show these pages. They know nothing of screens.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TypeVar

from runner import set_values
from runner.config import ChatOptions, LoadOptions, SamplingParams
from runner.errors import RunnerError
from runner.events import Finished, Loaded, Notice
from runner.measures import binary_size, decimal_size, short_count
from runner.status_text import rate, speculation_summary, summary, tokens_text

_Event = TypeVar("_Event")


def said_in_chat(event: _Event) -> _Event:
    """The event; of a notice the words and the remedy name what the chat takes, and no flags."""
    if not isinstance(event, Notice):
        return event
    return dataclasses.replace(event, text=set_values.in_chat(event.text), hint=set_values.in_chat(event.hint))


def error_in_chat(error: RunnerError) -> RunnerError:
    """The same of an error."""
    error.message, error.hint = set_values.in_chat(error.message), set_values.in_chat(error.hint)
    return error


@dataclass
class Totals:
    """What the answers of this chat took together, for /stats. n_timed: tokens that decode_s is of."""

    n_answers: int = 0
    completion_tokens: int = 0
    n_timed: int = 0
    decode_s: float = 0.0
    last: Finished | None = None

    def add(self, finished: Finished) -> None:
        self.n_answers += 1
        self.completion_tokens += finished.timings.completion_tokens
        self.n_timed += finished.timings.timed_tokens
        self.decode_s += finished.timings.decode_s
        self.last = finished


def stats_page(totals: Totals) -> str:
    """What the last answer and all of them took."""
    if totals.last is None:
        return "There was no answer yet."
    lines = [f"last answer  {summary(totals.last.timings, totals.last.n_ctx)}", f"seed         {totals.last.seed}"]
    if totals.last.speculation is not None:
        lines.append(f"speculation  {speculation_summary(totals.last.speculation)}")
    speed = f" · {rate(totals.n_timed / totals.decode_s)}" if totals.decode_s > 0 and totals.n_timed > 0 else ""
    answers = f"{totals.n_answers} answer{'' if totals.n_answers == 1 else 's'}"
    lines.append(f"this chat    {answers} · {tokens_text(totals.completion_tokens)}{speed}")
    return "\n".join(lines)


def info_page(loaded: Loaded, chat: str) -> str:
    """What is loaded, and where and why it runs there. chat: under what the chat is kept."""
    info, memory = loaded.info, loaded.memory
    trained = f" (trained for {info.context_length})" if info.context_length not in (0, info.n_ctx) else ""
    rows = [
        ("model", info.name),
        ("architecture", info.architecture),
        ("parameters", short_count(info.num_parameters)),
        ("quantization", info.quantization),
        ("size", decimal_size(info.size_bytes)),
        ("backend", f"{info.backend}: {loaded.reason}"),
        ("device", info.device),
        ("layers on GPU", f"{info.n_gpu_layers} of {info.num_layers}"),
        ("context", f"{info.n_ctx} tokens{trained}"),
        (
            "memory at load",
            f"{binary_size(memory.total_bytes)}: weights {binary_size(memory.weights_bytes)}, "
            f"KV {binary_size(memory.kv_cache_bytes)}, workspace {binary_size(memory.workspace_bytes)}"
            + (f", graphs {binary_size(memory.graphs_bytes)}" if memory.graphs_bytes else "")
            + (f", draft {binary_size(memory.draft_bytes)}" if memory.draft_bytes else ""),
        ),
        ("speculation", loaded.speculation),
        ("chat", chat),
    ]
    return "\n".join(f"{name:<14} {value}" for name, value in rows)


def parameters_page(params: SamplingParams, options: ChatOptions, load: LoadOptions) -> str:
    """Every parameter that /set knows, with its value."""
    lines = []
    for values in (params, options, load):
        fields = [f.name for f in dataclasses.fields(values) if f.name in set_values.shown_names()]
        lines += [f"{name:<18} {set_values.shown(getattr(values, name))}" for name in fields]
    return "\n".join(lines)
