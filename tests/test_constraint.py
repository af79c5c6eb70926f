"""An answer keeps to its grammar and the thought before it is free, whatever is told of the text and in which order."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.config import Grammar
from runner.constraint import AnswerConstraint
from runner.errors import RunnerError
from runner.grammar import Grammars
from runner.templates import reasoning_markers
from runner.types import ReasoningMarkers
from tests.byte_tokenizer import ByteTokenizer

PROMPT = [1, 2, 3]
YES = Grammar(kind="gbnf", text='root ::= "yes" | "no" "!"*')
TAGS = reasoning_markers("<think></think>")
HARMONY = reasoning_markers("<|channel|> <|message|> analysis")
assert TAGS is not None
assert HARMONY is not None
# Markers as text, as control tokens, and a vocabulary whose tokens end a thought and go on.
TEXT = ByteTokenizer(texts=("\n\n",))
CONTROL = ByteTokenizer(controls=("<|end|>", "<think>", "</think>"), texts=("\n\n",))
JOINED = ByteTokenizer(texts=("\n\n", ">y", ">\n", ">z"))
CHANNELS = ByteTokenizer(
    controls=("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>"), stops=("<|return|>",)
)


def ids(tokenizer: ByteTokenizer, text: str) -> list[int]:
    return tokenizer.encode(text)


def constraint(
    tokenizer: ByteTokenizer, markers: ReasoningMarkers | None = None, *, is_in_reasoning: bool = False
) -> AnswerConstraint:
    matcher = Grammars(tokenizer).matcher(YES)
    return AnswerConstraint(matcher, tokenizer, len(PROMPT), markers, is_in_reasoning=is_in_reasoning)


def may(found: AnswerConstraint, tokenizer: ByteTokenizer, completion: Sequence[int]) -> set[str]:
    """What may follow a completion, by its names; "any" for all but the ends."""
    mask = found.allowed([*PROMPT, *completion])
    assert mask is not None
    tokens = mask.nonzero()[0].tolist()
    if len(tokens) > 20:
        assert set(range(tokenizer.vocab_size)) - set(tokens) == tokenizer.stop_ids
        return {"any"}
    return {tokenizer.token_bytes(token, special=True).decode("latin-1") for token in tokens}


def test_without_thoughts_the_answer_begins_at_once() -> None:
    found = constraint(TEXT)
    assert may(found, TEXT, []) == {"y", "n"}
    assert may(found, TEXT, ids(TEXT, "ye")) == {"s"}
    assert may(found, TEXT, ids(TEXT, "yes")) == {"<|end|>"}
    assert may(found, TEXT, ids(TEXT, "no!")) == {"<|end|>", "!"}
    assert may(found, TEXT, ids(TEXT, "yes<|end|>")) == {"<|end|>"}


@pytest.mark.parametrize("tokenizer", [TEXT, CONTROL], ids=["text", "control"])
def test_a_model_may_think_first_and_its_thought_is_free(tokenizer: ByteTokenizer) -> None:
    found = constraint(tokenizer, TAGS)
    first = "<think>" if tokenizer is CONTROL else "<"
    assert may(found, tokenizer, []) == {"y", "n", first}
    assert may(found, tokenizer, ids(tokenizer, "no")) == {"<|end|>", "!"}
    for thought in ("<think>", "<think>y", "<think>what ever? yes\n\n", "<think>\n"):
        assert may(found, tokenizer, ids(tokenizer, thought)) == {"any"}
    done = ids(tokenizer, "<think>hm</think>")
    assert may(found, tokenizer, done) == {"y", "n", "\n\n"}
    blank_line = ids(tokenizer, "\n\n")
    assert may(found, tokenizer, [*done, *blank_line]) == {"y", "n"}
    assert may(found, tokenizer, [*done, *blank_line, ord("y")]) == {"e"}
    assert may(found, tokenizer, [*done, ord("n"), ord("o")]) == {"<|end|>", "!"}


def test_the_blank_line_after_a_thought_is_not_the_grammars() -> None:
    matcher = Grammars(TEXT).matcher(Grammar(kind="gbnf", text=r'root ::= "\n\n" "yes"'))
    found = AnswerConstraint(matcher, TEXT, len(PROMPT), TAGS)
    done = ids(TEXT, "<think>hm</think>\n\n")
    assert may(found, TEXT, done) == {"\n", "\n\n"}
    assert may(found, TEXT, [*done, *ids(TEXT, "\n\n")]) == {"y"}


def test_half_an_opening_goes_on_as_one() -> None:
    assert may(constraint(TEXT, TAGS), TEXT, ids(TEXT, "<th")) == {"i"}


def test_an_opening_may_also_begin_an_answer() -> None:
    matcher = Grammars(TEXT).matcher(Grammar(kind="gbnf", text='root ::= "<table/>"'))
    found = AnswerConstraint(matcher, TEXT, len(PROMPT), TAGS)
    assert may(found, TEXT, ids(TEXT, "<t")) == {"h", "a"}
    assert may(found, TEXT, ids(TEXT, "<ta")) == {"b"}
    assert may(found, TEXT, ids(TEXT, "<think>")) == {"any"}
    assert may(found, TEXT, ids(TEXT, "<think></think>")) == {"<", "\n\n"}


def test_a_thought_that_the_prompt_has_opened_is_free_from_the_start() -> None:
    found = constraint(CONTROL, TAGS, is_in_reasoning=True)
    assert may(found, CONTROL, []) == {"any"}
    assert may(found, CONTROL, ids(CONTROL, "hm</think>")) == {"y", "n", "\n\n"}


def test_a_token_that_ends_a_thought_may_begin_the_answer() -> None:
    found = constraint(JOINED, TAGS, is_in_reasoning=True)
    thought = ids(JOINED, "hm</think")
    joined = {JOINED.token_bytes(token): token for token in range(256, 260)}
    assert may(found, JOINED, [*thought, joined[b">y"]]) == {"e"}
    assert may(found, JOINED, [*thought, joined[b">\n"]]) == {"y", "n", "\n\n"}
    with pytest.raises(RunnerError) as caught:
        found.allowed([*PROMPT, *thought, joined[b">z"]])
    assert "left the form of its thoughts" in caught.value.message


def test_line_ends_that_were_written_after_a_thought_are_not_the_answers() -> None:
    """A thought that is cut short is ended for the model, in whatever tokens."""
    found = constraint(CONTROL, TAGS, is_in_reasoning=True)
    ended = [*ids(CONTROL, "hm\n</think>"), ord("\n")]
    assert may(found, CONTROL, ended) == {"y", "n"}
    assert may(found, CONTROL, [*ended, ord("\n"), *b"yes"]) == {"<|end|>"}


def test_an_answer_on_a_channel_is_free_up_to_its_channel() -> None:
    found = constraint(CHANNELS, HARMONY)
    assert may(found, CHANNELS, []) == {"<|channel|>"}
    thought = ids(CHANNELS, "<|channel|>analysis<|message|>hm<|end|>")
    assert may(found, CHANNELS, thought) == {"any"}
    final = ids(CHANNELS, "<|start|>assistant<|channel|>final<|message|>")
    assert may(found, CHANNELS, [*thought, *final[:-1]]) == {"any"}
    assert may(found, CHANNELS, [*thought, *final]) == {"y", "n"}
    assert may(found, CHANNELS, [*final[final.index(ids(CHANNELS, "<|channel|>")[0]) :]]) == {"y", "n"}
    assert may(found, CHANNELS, [*thought, *final, *b"yes"]) == {"<|return|>"}


COMPLETIONS = [
    ids(CONTROL, text)
    for text in ("yes", "no!!!<|end|>", "<think>a b</think>yes", "<think>x</think>\n\nno", "<think>never", "")
]


@given(st.lists(st.tuples(st.sampled_from(COMPLETIONS), st.integers(0, 24)), max_size=12))
def test_it_is_a_function_of_the_history(asked: list[tuple[list[int], int]]) -> None:
    """Drafts are taken back, and a thought that is cut short is written anew: any history may come after any other."""
    found = constraint(CONTROL, TAGS)
    for completion, length in asked:
        part = completion[:length]
        assert may(found, CONTROL, part) == may(constraint(CONTROL, TAGS), CONTROL, part)
