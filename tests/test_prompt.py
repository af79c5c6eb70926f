"""What does not fit a context is refused, or left out, before it costs anything."""

from __future__ import annotations

import dataclasses

import pytest

from runner import prompt
from runner.config import ChatOptions
from runner.errors import ContextOverflow
from runner.prompt import Prompt, build_prompt
from runner.types import Message
from tests.byte_tokenizer import ByteTokenizer
from tests.test_wire import INFO

TEMPLATE = "{% for m in messages %}<|start|>{{ m.content }}<|end|>{% endfor %}"
DROP = ChatOptions(overflow="drop")


class Recorder(ByteTokenizer):
    """Knows how many characters the longest text had that it was given."""

    longest = 0
    n_read = 0

    def encode(self, text: str, *, parse_special: bool = True) -> list[int]:
        self.longest = max(self.longest, len(text))
        self.n_read += len(text)
        return super().encode(text, parse_special=parse_special)


def build(messages: list[Message], tokenizer: Recorder, options: ChatOptions, n_ctx: int = 64) -> Prompt:
    info = dataclasses.replace(INFO, chat_template=TEMPLATE, n_ctx=n_ctx, context_length=4 * n_ctx)
    return build_prompt(messages, options, info, tokenizer, 8)


def turns(n: int) -> list[Message]:
    return [Message(role="user" if i % 2 == 0 else "assistant", content=str(i % 10)) for i in range(n)]


def test_more_messages_than_the_context_has_tokens_are_refused_unread() -> None:
    tokenizer = Recorder()
    with pytest.raises(ContextOverflow, match=r"has 64 messages and the context holds 64 tokens\.") as caught:
        build(turns(64), tokenizer, ChatOptions())
    assert "--overflow drop" in caught.value.hint
    assert "-c, up to 256" in caught.value.hint
    assert not tokenizer.longest
    with pytest.raises(ContextOverflow, match="has 189 tokens"):  # one less is read, and counted
        build(turns(63), tokenizer, ChatOptions())


@pytest.mark.parametrize("n_system", [0, 1])
def test_a_message_that_does_not_fit_by_itself_is_told_as_such_in_the_middle_of_a_chat(n_system: int) -> None:
    before = [*[Message(role="system", content="S")] * n_system, *turns(2)]
    with pytest.raises(ContextOverflow, match=r"^The message has \d+ tokens") as caught:
        build([*before, Message(role="user", content="x" * 70)], Recorder(), ChatOptions())
    assert "Shorten it" in caught.value.hint
    assert "oldest turns" not in caught.value.hint
    with pytest.raises(ContextOverflow, match=r"^The conversation has") as caught:
        build([*before, Message(role="user", content="x" * 57)], Recorder(), ChatOptions())
    assert "oldest turns" in caught.value.hint


@pytest.mark.parametrize("options", [ChatOptions(raw=True), ChatOptions(), DROP], ids=["raw", "stop", "drop"])
def test_a_long_text_is_read_until_it_certainly_does_not_fit(
    monkeypatch: pytest.MonkeyPatch, options: ChatOptions
) -> None:
    monkeypatch.setattr(prompt, "_PART", 100)
    tokenizer = Recorder()
    with pytest.raises(ContextOverflow, match=r"has more than 64 tokens and the context holds 64\.") as caught:
        build([Message(role="user", content="x" * 1_000_000)], tokenizer, options)
    assert "Shorten it, or load the model with a larger context (-c, up to 256)" in caught.value.hint
    assert tokenizer.n_read < 1000


@pytest.mark.parametrize("options", [ChatOptions(raw=True), ChatOptions()], ids=["raw", "stop"])
def test_a_long_text_of_few_tokens_is_whole_though_it_was_cut_within_them(
    monkeypatch: pytest.MonkeyPatch, options: ChatOptions
) -> None:
    monkeypatch.setattr(prompt, "_PART", 10_000)
    tokenizer = Recorder(texts=(" " * 128,))
    text = "x" + " " * 128 * 300
    found = build([Message(role="user", content=text)], tokenizer, options, n_ctx=320)
    assert tokenizer.longest >= len(text)
    assert found.ids == tuple(tokenizer.encode(text if options.raw else f"<|start|>{text}<|end|>"))


@pytest.mark.parametrize("n_system", [0, 1])
def test_of_many_turns_only_as_many_are_read_as_the_context_has_tokens(n_system: int) -> None:
    tokenizer = Recorder()
    system, many = [Message(role="system", content="S")] * n_system, turns(10_001)
    found = build([*system, *many], tokenizer, DROP)
    assert tokenizer.longest < 64 * len("<|start|>0<|end|>")
    kept = (64 - 8) // 3 - n_system  # each message takes three tokens
    kept -= 1 - kept % 2  # a question, and before it questions with their answers
    assert found.dropped == tuple(many[:-kept])
    assert found.ids == tuple(
        tokenizer.encode("".join(f"<|start|>{m.content}<|end|>" for m in [*system, *many[-kept:]]))
    )


def test_a_last_turn_of_more_messages_than_the_context_has_tokens_is_refused_unread() -> None:
    tokenizer = Recorder()
    pieces = [Message(role="assistant", content="more")] * 64
    with pytest.raises(ContextOverflow, match="65 messages"):
        build([*turns(10), Message(role="user", content="Go on"), *pieces], tokenizer, DROP)
    assert not tokenizer.longest


def test_the_characters_of_many_turns_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted anew from each turn on, those of a body of 16 MiB would take seconds."""
    monkeypatch.setattr(prompt, "_MAX_CONTENT_CHARS", 100)

    class Counted(str):
        n_asked = 0

        def __len__(self) -> int:
            Counted.n_asked += 1
            return super().__len__()

    many = [Message(role="user", content=Counted("12345")) for _ in range(300)]
    assert len(build(many, Recorder(), DROP, n_ctx=1000).dropped) == 280
    assert Counted.n_asked < 3 * len(many)
