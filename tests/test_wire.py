"""Every value that crosses the pipe to the engine process comes back equal, through real JSON."""

from __future__ import annotations

import dataclasses
import json
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner import errors, events
from runner.config import LONGEST_DRAFT, ChatOptions, Grammar, LoadOptions, SamplingParams
from runner.errors import RunnerError, error_class
from runner.events import Finished, Loaded, Notice, Progress, ReasoningDelta, Stats, TextDelta
from runner.telemetry import Timings
from runner.types import Device, MemoryUse, Message, ModelInfo, ReadyModel
from runner.wire import from_plain, to_plain

INFO = ModelInfo(
    name="démo\x1b[31m",
    backend="llamacpp",
    architecture="qwen3",
    num_parameters=18_400_000,
    num_layers=6,
    n_gpu_layers=0,
    vocab_size=8192,
    context_length=2048,
    n_ctx=2048,
    quantization="Q8_0",
    size_bytes=2**40,
    device="CPU (2 threads)",
    chat_template=None,
    bos_token="",
    eos_token="<|im_end|>",
    longest_draft=LONGEST_DRAFT,
)
TIMINGS = Timings(prompt_tokens=9, cached_tokens=3, completion_tokens=2, ttft_s=0.1, prefill_s=0.1, decode_s=1 / 3)
EVENTS = [
    Progress("prefill", 512, 0, "tokens"),
    Notice("warning", "it fell back", "use --backend native"),
    Notice("info", 'quotes " and \\ and \u2028 and \x00'),
    Loaded(INFO, MemoryUse(weights_bytes=1, kv_cache_bytes=2, workspace_bytes=3), "it reads GGUF", 0.25, {"top_k": 20}),
    TextDelta("e\u0301 \U0001f468\u200d\U0001f469 \r\n\x1b]52;c;"),
    ReasoningDelta(""),
    Stats(TIMINGS, 4096),
    Stats(Timings(), 16),
    Finished("cancelled", TIMINGS, (1, 2, 3), 2**64 - 1, 2048),
    Finished("stop", Timings(), (), 0, 2048),
]


def through_json(value: Any) -> Any:
    return from_plain(type(value), json.loads(json.dumps(to_plain(value))))


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_every_event_comes_back_equal(event: Any) -> None:
    back = through_json(event)
    assert back == event
    assert [type(getattr(back, f.name)) for f in dataclasses.fields(back)] == [
        type(getattr(event, f.name)) for f in dataclasses.fields(event)
    ]


def test_no_event_is_missing_here() -> None:
    assert {type(event) for event in EVENTS} == set(typing.get_args(events.Event))


@pytest.mark.parametrize(
    "value",
    [
        LoadOptions(),
        LoadOptions(n_gpu_layers=12, ctx_size=4096, n_threads=2, backend="native", warmup=False),
        LoadOptions(n_gpu_layers="all"),
        LoadOptions(draft_file=("/a b/c.py", "/d")),
        SamplingParams(stop=("END", "\n\n"), seed=2**64 - 1, max_tokens=5),
        SamplingParams(),
        SamplingParams(grammar=Grammar(kind="gbnf", text='root ::= "\\x1b" | [\u2028]')),
        ChatOptions(think="low", think_budget=0, overflow="drop", raw=True),
        Message(role="user", content="hello"),
        Message(role="assistant", content="", reasoning="so"),
        Device(kind="cuda", index=1, name="NVIDIA H200", total_bytes=2**37, free_bytes=0),
        ReadyModel(
            name="demo",
            format="gguf",
            weights=(Path("/a b/ü.gguf"), Path("relative")),
            directory=Path("/a b"),
            size_bytes=7,
            sampling={"temperature": 0.6, "top_k": 20},
            chat_template="{{ x }}",
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_configuration_and_value_comes_back_equal(value: Any) -> None:
    assert through_json(value) == value


@pytest.mark.parametrize("name", [name for name in vars(errors) if isinstance(getattr(errors, name), type)])
def test_every_error_comes_back_with_its_class_message_and_hint(name: str) -> None:
    error: RunnerError = error_class(name)("It failed: “x”\n", hint="Do this.")
    plain = json.loads(json.dumps({"class": type(error).__name__, "message": error.message, "hint": error.hint}))
    back = error_class(plain["class"])(plain["message"], hint=plain["hint"])
    assert type(back) is type(error)
    assert (back.message, back.hint, back.exit_code) == (error.message, error.hint, error.exit_code)


@given(st.text(), st.integers(0, 2**63), st.floats(allow_nan=False))
def test_any_text_and_number_survives(text: str, number: int, seconds: float) -> None:
    assert through_json(TextDelta(text)) == TextDelta(text)
    stats = Stats(Timings(prompt_tokens=number, total_s=seconds), number)
    assert through_json(stats) == stats


@dataclass(frozen=True)
class _Inner:
    path: Path | None


@dataclass(frozen=True)
class _Outer:
    inner: _Inner | None
    many: tuple[_Inner, ...]
    listed: list[_Inner]
    by_name: dict[str, int]


@pytest.mark.parametrize(
    "value",
    [
        _Outer(_Inner(Path("/x")), (_Inner(None), _Inner(Path("y"))), [_Inner(Path("z"))], {"a": 1}),
        _Outer(None, (), [], {}),
    ],
)
def test_values_inside_values_come_back_with_their_types(value: _Outer) -> None:
    assert through_json(value) == value


def test_a_value_that_does_not_match_is_an_error() -> None:
    with pytest.raises(KeyError):
        from_plain(TextDelta, {"txt": "x"})
    with pytest.raises(TypeError):
        from_plain(Progress, {"stage": "load"})
