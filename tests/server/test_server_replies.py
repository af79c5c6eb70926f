"""Events to OpenAI's objects: whole answers and chunks say the same."""

from __future__ import annotations

from typing import Any

import pytest

from runner.config import LONGEST_DRAFT
from runner.events import ChatEvent, Finished, FinishReason, Loaded, Notice, Progress, ReasoningDelta, TextDelta
from runner.server.refusal import Refusal
from runner.server.replies import Reply
from runner.telemetry import Timings
from runner.types import MemoryUse, ModelInfo

LOADED = Loaded(
    info=ModelInfo(
        name="m",
        backend="fake",
        architecture="none",
        num_parameters=0,
        num_layers=0,
        n_gpu_layers=0,
        vocab_size=1,
        context_length=8,
        n_ctx=8,
        quantization="",
        size_bytes=0,
        device="",
        chat_template=None,
        bos_token="",
        eos_token="",
        longest_draft=LONGEST_DRAFT,
    ),
    memory=MemoryUse(weights_bytes=0, kv_cache_bytes=0, workspace_bytes=0),
    reason="",
    load_s=0,
    sampling={},
    speculation="off: too small",
)


def finished(reason: FinishReason = "stop") -> Finished:
    timings = Timings(prompt_tokens=5, cached_tokens=2, completion_tokens=3, ttft_s=0.5, decode_s=1.0)
    return Finished(reason=reason, timings=timings, token_ids=(1, 2, 3), seed=7, n_ctx=8)


def answer(**values: Any) -> Reply:
    return Reply(id="x", created=1, loaded=LOADED, **{"is_chat": True, **values})


EVENTS: list[ChatEvent] = [
    Progress("prefill", 1, 2, "tokens"),
    ReasoningDelta("hm"),
    TextDelta("a\x1b"),
    Notice("warning", "Left out.", "Use -c."),
    TextDelta("b"),
    finished("context"),
]


def test_a_whole_answer() -> None:
    reply = answer()
    for event in EVENTS:
        reply.take(event)
    whole = reply.whole()
    assert whole["object"] == "chat.completion"
    [choice] = whole["choices"]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["content"] == "a\x1bb"
    assert choice["message"]["reasoning_content"] == "hm"
    assert whole["usage"] == {
        "prompt_tokens": 5,
        "completion_tokens": 3,
        "total_tokens": 8,
        "prompt_tokens_details": {"cached_tokens": 2},
    }
    assert whole["warnings"] == ["Left out. Use -c."]
    assert (whole["timings"]["seed"], whole["timings"]["decode_tok_s"], whole["timings"]["ttft_s"]) == (7, 2.0, 0.5)
    assert whole["timings"]["speculation"]["reason"] == "too small"


@pytest.mark.parametrize("has_usage", [False, True])
def test_chunks_say_what_the_whole_answer_says(has_usage: bool) -> None:
    reply, streamed = answer(), answer(has_usage=has_usage)
    for event in EVENTS:
        reply.take(event)
    chunks = [*streamed.opening(), *(chunk for event in EVENTS for chunk in streamed.chunks(event))]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert {choice["index"] for chunk in chunks for choice in chunk["choices"]} == {0}
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
    assert deltas[0] == {"role": "assistant", "content": ""}
    message = reply.whole()["choices"][0]["message"]
    for name in ("content", "reasoning_content"):
        assert "".join(delta.get(name, "") for delta in deltas) == message[name]
    last = chunks[-2] if has_usage else chunks[-1]
    assert last["choices"][0]["finish_reason"] == "length"
    assert last["timings"] == reply.whole()["timings"]
    assert ("usage" in chunks[0]) is has_usage
    if has_usage:
        assert (chunks[-1]["choices"], chunks[-1]["usage"]) == ([], reply.whole()["usage"])


def test_a_completion_has_text_and_no_message() -> None:
    reply = answer(is_chat=False)
    assert list(reply.opening()) == []
    chunks = [chunk for event in EVENTS for chunk in reply.chunks(event)]
    assert [chunk["choices"][0]["text"] for chunk in chunks] == ["a\x1b", "b", ""]
    assert {chunk["object"] for chunk in chunks} == {"text_completion"}
    whole = answer(is_chat=False)
    for event in [Notice("info", "The model was loaded again."), TextDelta("a"), finished()]:
        whole.take(event)
    plain = whole.whole()
    [choice] = plain["choices"]
    assert (plain["object"], choice["text"], choice["index"], choice["finish_reason"]) == (
        "text_completion",
        "a",
        0,
        "stop",
    )
    assert "message" not in choice
    assert "warnings" not in plain


def test_an_answer_that_was_stopped_is_no_answer() -> None:
    with pytest.raises(Refusal) as refusal:
        answer().take(finished("cancelled"))
    assert refusal.value.status == 503
