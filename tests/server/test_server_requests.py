"""Requests as clients write them: what becomes of each field, and that whatever comes is a request or a clear no."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.config import LARGEST_GRAMMAR, ChatOptions, SamplingParams
from runner.server.refusal import Refusal
from runner.server.requests import (
    _CHAT,
    _COMPLETION,
    _IGNORED,
    _IGNORED_IN_MESSAGES,
    _MESSAGE,
    _NOT_SUPPORTED,
    _NOT_SUPPORTED_IN_MESSAGES,
    Asked,
    parse,
    read,
    read_chat,
    read_completion,
)
from runner.types import Message

ASK = [{"role": "user", "content": "Hello"}]
Read = Callable[[object], Asked]


def chat(**fields: Any) -> Asked:
    return read_chat({"messages": ASK, **fields})


def refused(read: Callable[[], object]) -> dict[str, Any]:
    with pytest.raises(Refusal) as error:
        read()
    assert error.value.status == 400
    told: dict[str, Any] = error.value.body["error"]
    assert told["type"] == "invalid_request_error"
    return told


def read_or_refusal(read: Callable[[], object]) -> object:
    """What is read; of a refusal, that it is a clear one."""
    try:
        return read()
    except Refusal as error:
        refusal = error
    told = json.dumps(refusal.body)
    assert refusal.status == 400
    assert refusal.message
    assert len(told) < 20_000
    return refusal


# --- anything at all ---

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
WORDS = st.sampled_from(
    ["system", "user", "assistant", "tool", "text", "image_url", "json_object", "json_schema", "low"]
)
PARTS = st.fixed_dictionaries({}, optional=dict.fromkeys(("type", "text", "json_schema", "schema"), JSON | WORDS))
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "role": JSON | WORDS,
            "content": JSON | st.lists(PARTS, max_size=2),
            "reasoning_content": JSON,
            "refusal": JSON,
            "name": JSON,
        },
    )
    | JSON,
    max_size=3,
)
NAMES = [*_CHAT, *_COMPLETION, *_NOT_SUPPORTED]
BODIES = JSON | st.fixed_dictionaries(
    {"messages": st.just(ASK) | MESSAGES, "prompt": st.text() | JSON},
    optional=dict.fromkeys(sorted({*NAMES} - {"messages", "prompt"}), JSON | PARTS | WORDS),
)


@settings(max_examples=300)
@given(body=BODIES, read=st.sampled_from([read_chat, read_completion]))
def test_any_json_is_a_request_or_a_clear_no(body: object, read: Read) -> None:
    if isinstance(body, dict):
        body.pop("messages" if read is read_completion else "prompt", None)
    asked = read_or_refusal(lambda: read(body))
    if isinstance(asked, Asked):
        SamplingParams(**asked.sampling)
        ChatOptions(**asked.options)
        assert asked.messages
        "".join(message.content for message in asked.messages).encode()  # raises where there is half a character


@settings(max_examples=200)
@given(raw=st.binary(max_size=40) | st.text(alphabet='{}[]",:0e-9nul\\ud8', max_size=40).map(str.encode))
def test_any_bytes_are_json_or_a_clear_no(raw: bytes) -> None:
    read_or_refusal(lambda: read(raw, read_chat))


@pytest.mark.parametrize("raw", [b"[" * 100_000, b"NaN", b"1" * 5000, b'"\xff"', b""])
def test_bytes_that_break_parsers_are_a_clear_no(raw: bytes) -> None:
    told = refused(lambda: read(raw, read_chat))
    assert "The body is no JSON" in told["message"]
    assert "sys." not in told["message"]  # Python's own advice on numbers


def test_where_a_body_stops_being_json_is_said() -> None:
    told = refused(lambda: read(b'{"messages":\n x}', read_chat))
    assert (told["code"], "(line 2, column 2)" in told["message"]) == ("invalid_json", True)


@pytest.mark.parametrize("field", ["json_schema", "temperature", "zz"])
def test_whatever_the_depth_there_is_an_answer(field: str) -> None:
    limit = sys.getrecursionlimit()
    for depth in range(limit - 250, limit + 50):
        nested = '{"a":' * depth + "1" + "}" * depth
        raw = f'{{"messages": [{{"role": "user", "content": "x"}}], "{field}": {nested}}}'
        read_or_refusal(lambda raw=raw: read(raw.encode(), read_chat))


# --- fields ---


def test_messages_become_messages() -> None:
    asked = read_chat(
        {
            "messages": [
                {"role": "developer", "content": "Be brief."},
                {
                    "role": "user",
                    "name": "Ann",
                    "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
                },
                {
                    "role": "assistant",
                    "content": "c",
                    "reasoning_content": "d",
                    "id": "msg_1",
                    "tool_calls": [],
                    "refusal": None,
                    "annotations": [],
                    "metadata": {"a": 1},
                    "anything": None,
                },
                {"role": "user", "content": ""},
                {"role": "assistant", "content": None},
            ]
        }
    )
    assert asked.messages == (
        Message(role="system", content="Be brief."),
        Message(role="user", content="a\nb"),
        Message(role="assistant", content="c", reasoning="d"),
        Message(role="user", content=""),
        Message(role="assistant", content=""),
    )
    assert (asked.model, asked.is_chat, asked.is_streamed, asked.has_usage) == ("", True, False, False)
    assert (asked.sampling, asked.options) == ({}, {})


def test_a_prompt_goes_as_it_stands() -> None:
    asked = read_completion({"prompt": ["Once\n"], "stream": True, "stream_options": {"include_usage": True}})
    assert [message.content for message in asked.messages] == ["Once\n"]
    assert asked.options == {"raw": True}
    assert (asked.is_chat, asked.is_streamed, asked.has_usage) == (False, True, True)


def test_halves_of_surrogate_pairs_are_replaced() -> None:
    asked = read_chat(parse(rb'{"messages": [{"role": "user", "content": "a\ud83db \ud83d\ude00"}], "stop": "\udc00"}'))
    assert asked.messages[0].content == "a\ufffdb \U0001f600"
    assert asked.sampling["stop"] == ("\ufffd",)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"temperature": 0, "top_p": 0.5, "top_k": 3}, {"temperature": 0, "top_p": 0.5, "top_k": 3}),
        ({"max_tokens": 5}, {"max_tokens": 5}),
        ({"max_completion_tokens": 5, "max_tokens": 5}, {"max_tokens": 5}),
        ({"max_tokens": -1, "seed": -1}, {}),
        ({"repetition_penalty": 1.5}, {"repeat_penalty": 1.5}),
        ({"stop": "END"}, {"stop": ("END",)}),
        ({"stop": ["a", "b"]}, {"stop": ("a", "b")}),
        ({"stop": []}, {}),
        ({"stop": ""}, {}),
        ({"top_k": -1}, {"top_k": 0}),
        ({"presence_penalty": -1, "penalty_last_n": -1}, {"presence_penalty": -1, "penalty_last_n": -1}),
        ({"stop": [str(n) for n in range(64)]}, {"stop": tuple(str(n) for n in range(64))}),
        ({"verbosity": "low"}, {}),
        ({"temperature": None, "n": 1, "tools": [], "logprobs": False, "user": "me", "metadata": {"a": 1}}, {}),
    ],
)
def test_sampling_fields(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    assert chat(**fields).sampling == expected


@pytest.mark.parametrize(
    ("field", "neutral"),
    [
        ("n", 1),
        ("best_of", 1),
        ("echo", False),
        ("suffix", ""),
        ("functions", []),
        ("function_call", "auto"),
        ("tool_choice", "none"),
        ("logit_bias", {}),
        ("top_logprobs", 0),
        ("modalities", ["text"]),
    ],
)
def test_what_is_not_supported_is_taken_where_it_asks_for_nothing(field: str, neutral: object) -> None:
    assert chat(**{field: neutral}) == chat()
    assert refused(lambda: chat(**{field: "something"}))["code"] == "unsupported_parameter"


@pytest.mark.parametrize(
    ("fields", "think"),
    [
        ({"reasoning_effort": "high"}, "high"),
        ({"reasoning_effort": "none"}, "off"),
        ({"reasoning_effort": "minimal"}, "low"),
        ({"reasoning_effort": "xhigh"}, "high"),
        ({"chat_template_kwargs": {"reasoning_effort": "high"}}, "high"),
        ({"chat_template_kwargs": {"reasoning_effort": "high"}, "reasoning_effort": "low"}, "low"),
        ({"chat_template_kwargs": {"enable_thinking": False}}, "off"),
        ({"chat_template_kwargs": {"enable_thinking": True}}, "on"),
        ({"chat_template_kwargs": {"enable_thinking": True}, "reasoning_effort": "low"}, "low"),
        ({}, None),
    ],
)
def test_thinking(fields: dict[str, Any], think: str | None) -> None:
    assert chat(**fields).options.get("think") == think
    assert chat(think_budget=7).options["think_budget"] == 7


@pytest.mark.parametrize(
    ("fields", "kind", "words"),
    [
        ({"response_format": {"type": "json_object"}}, "json_schema", '"object"'),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"const": 1}}}}, "json_schema", "const"),
        ({"response_format": {"type": "json_object", "schema": {"const": 2}}}, "json_schema", "const"),
        ({"json_schema": {"enum": [3]}}, "json_schema", "enum"),
        ({"grammar": 'root ::= "yes"'}, "gbnf", "yes"),
    ],
)
def test_grammars(fields: dict[str, Any], kind: str, words: str) -> None:
    grammar = chat(**fields).sampling["grammar"]
    assert grammar.kind == kind
    assert words in grammar.text
    assert "grammar" not in chat(response_format={"type": "text"}).sampling


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"temperature": "warm"}, "temperature", "from 0 to 100"),
        ({"temperature": True}, "temperature", "from 0 to 100"),
        ({"top_p": 1e400}, "top_p", "from 0 to 1"),
        ({"max_tokens": 0}, "max_tokens", "whole number from 1"),
        ({"max_tokens": 5.5}, "max_tokens", "whole number"),
        ({"max_tokens": 5, "max_completion_tokens": 6}, "max_completion_tokens", "Leave out one"),
        ({"seed": -2}, "seed", "whole number from 0"),
        ({"stop": [""]}, "stop", "none of them empty"),
        ({"stop": 5}, "stop", "texts"),
        ({"stop": ["a", 5]}, "stop", "texts"),
        ({"stop": 0}, "stop", "texts"),
        ({"stop": [str(n) for n in range(65)]}, "stop", "It may have 64"),
        ({"top_k": -2}, "top_k", "whole number from 0"),
        ({"top_k": True}, "top_k", "whole number from 0"),
        ({"chat_template_kwargs": {"reasoning_effort": 5}}, "reasoning_effort", "medium"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content", "not a text"),
        ({"temprature": 1}, "temprature", "Did you mean temperature"),
        ({"n": 2}, "n", "Ask several times"),
        ({"n": True}, "n", "not supported"),
        ({"logprobs": True}, "logprobs", "not supported"),
        ({"logprobs": 0}, "logprobs", "not supported"),
        ({"tools": [{"type": "function"}]}, "tools", "not supported"),
        ({"tool_choice": "required"}, "tool_choice", "not supported"),
        ({"logit_bias": {"5": 1}}, "logit_bias", "not supported"),
        ({"stream": "yes"}, "stream", "true or false"),
        ({"stream_options": {"usage": True}}, "stream_options.usage", "include_usage"),
        ({"stream_options": []}, "stream_options", "no object"),
        ({"json_schema": {"const": "x" * LARGEST_GRAMMAR}}, "json_schema", f"At most {LARGEST_GRAMMAR}"),
        ({"grammar": "x" * (LARGEST_GRAMMAR + 1)}, "grammar", f"At most {LARGEST_GRAMMAR}"),
        ({"model": 5}, "model", "text"),
        ({"reasoning_effort": "very"}, "reasoning_effort", "medium"),
        ({"chat_template_kwargs": {"x": 1}}, "chat_template_kwargs.x", "enable_thinking"),
        ({"chat_template_kwargs": {"enable_thinking": False}, "reasoning_effort": "low"}, "reasoning_effort", '"low"'),
        ({"chat_template_kwargs": {"enable_thinking": True}, "reasoning_effort": "none"}, "reasoning_effort", '"none"'),
        ({"response_format": {"type": "xml"}}, "response_format", "json_object"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format", "schema"),
        ({"response_format": {"type": "json_object", "json_schema": {"schema": {}}}}, "response_format", "schema"),
        ({"response_format": {"type": "text", "schema": {}}}, "response_format", "schema"),
        ({"json_schema": [], "grammar": "x"}, "json_schema", "no object"),
        ({"json_schema": {}, "grammar": "x"}, "response_format", "several"),
        ({"grammar": ""}, "grammar", "grammar is empty. A GBNF grammar is such as"),
        ({"grammar": " "}, "grammar", "empty"),
        ({"grammar": ["root"]}, "grammar", "not a text"),
        ({"messages": [{"role": "assistant"}]}, "messages[0].content", "not a text"),
        (
            {"messages": [{"role": "user", "content": "", "reasoning_content": 5}]},
            "messages[0].reasoning_content",
            "text",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "text": "a cat"}]}]},
            "messages[0].content[0]",
            'of type "image_url"',
        ),
        ({"messages": []}, "messages", "not a list"),
        ({"messages": ["x"]}, "messages[0]", "no object"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role", "assistant"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "not a text"),
        ({"messages": [{"role": "assistant", "tool_calls": [1]}]}, "messages[0].tool_calls", "not supported"),
        (
            {"messages": [{"role": "assistant", "content": "", "refusal": "No."}]},
            "messages[0].refusal",
            "not supported",
        ),
        ({"messages": [*ASK, {"role": "user", "contents": "x"}]}, "messages[1].contents", "Did you mean content"),
        ({"messages": [{"role": "user", "content": "x", "think": 1}]}, "messages[0].think", "in messages[0]"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]},
            "messages[0].content[0]",
            "Only texts",
        ),
    ],
)
def test_what_is_wrong_is_named_with_what_would_be_right(fields: dict[str, Any], param: str, words: str) -> None:
    told = refused(lambda: chat(**fields))
    assert told["param"] == param
    assert words in told["message"]


def test_prompts_that_are_not_one_text_are_refused() -> None:
    for prompt in (None, [1, 2], ["a", "b"], [], {"a": 1}):
        assert refused(lambda prompt=prompt: read_completion({"prompt": prompt}))["param"] == "prompt"
    assert refused(lambda: read_completion({"prompt": "x", "messages": ASK}))["param"] == "messages"
    assert "prompt is missing" in refused(lambda: read_completion({"max_tokens": 5}))["message"]


def test_a_request_without_messages_is_refused_and_numbers_that_json_has_not() -> None:
    assert refused(lambda: read_chat({"messages": None}))["param"] == "messages"
    for raw in (b'{"temperature": NaN}', b"[-Infinity]"):
        assert "no number of JSON" in refused(lambda raw=raw: parse(raw))["message"]


def test_every_field_is_in_the_documentation() -> None:
    text = (Path(__file__).parents[2] / "docs" / "SERVER.md").read_text(encoding="utf-8")
    names = {*_CHAT, *_COMPLETION, *_IGNORED, *_NOT_SUPPORTED}
    names |= {*_MESSAGE, *_IGNORED_IN_MESSAGES, *_NOT_SUPPORTED_IN_MESSAGES}
    assert [name for name in sorted(names) if f"`{name}`" not in text and f"`{name}." not in text] == []


def test_a_long_value_is_not_sent_back_whole() -> None:
    told = refused(lambda: chat(temperature="x" * 100_000))
    assert len(told["message"]) < 200
    assert len(json.dumps(refused(lambda: chat(**{"y" * 100_000: 1})))) < 3000
