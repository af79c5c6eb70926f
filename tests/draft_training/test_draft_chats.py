"""What the target is asked: prompts of the project or of the user, by its template, as it is and changed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runner.backends.native.model_files import chat_template, tokenizer_path
from runner.backends.native.tokenizer import HuggingFaceTokenizer
from runner.draft_training.chats import CHANGES, Chats
from runner.draft_training.prompts import read_prompts, shipped_prompts
from runner.errors import UsageError
from runner.types import Message

QUESTION = [Message(role="user", content="How are you?")]


@pytest.fixture(scope="module")
def chats(demo_directory: Path) -> Chats:
    tokenizer = HuggingFaceTokenizer(tokenizer_path(demo_directory), 8192)
    return Chats(tokenizer=tokenizer, template=chat_template(demo_directory), bos="", eos="<|im_end|>")


def text_of(chats: Chats, ids: tuple[int, ...] | None) -> str:
    assert ids is not None
    return b"".join(chats.tokenizer.token_bytes(token, special=True) for token in ids).decode()


def test_the_template_as_it_is(chats: Chats) -> None:
    ids = chats.ids(QUESTION)
    wanted = "<|im_start|>user\nHow are you?<|im_end|>\n<|im_start|>assistant\n"
    assert text_of(chats, ids) == wanted
    assert ids == tuple(chats.tokenizer.encode(wanted, parse_special=True))


def test_each_change_changes_what_it_says_and_leaves_the_question(chats: Chats) -> None:
    roles, system, newlines = (text_of(chats, chats.ids(QUESTION, change)) for change in CHANGES)
    assert roles == "<|im_start|>human\nHow are you?<|im_end|>\n<|im_start|>helper\n"
    assert system.startswith("<|im_start|>system\nToday is a Tuesday")
    assert system.endswith(text_of(chats, chats.ids(QUESTION)))
    assert newlines == "<|im_start|>userHow are you?<|im_end|><|im_start|>assistant"


def test_the_words_of_a_message_are_no_part_of_a_change(chats: Chats) -> None:
    message = [Message(role="user", content="a user\nand an assistant")]
    for change in CHANGES:
        assert "a user\nand an assistant" in text_of(chats, chats.ids(message, change))


def test_a_chat_of_many_turns(chats: Chats) -> None:
    turns = [*QUESTION, Message(role="assistant", content="Well."), Message(role="user", content="Good.")]
    text = text_of(chats, chats.ids(turns, "other role names"))
    assert text.count("human") == 2
    assert text.count("helper") == 2


def test_a_base_model_is_given_the_prompt_as_it_stands_and_has_no_template_to_change(chats: Chats) -> None:
    base = Chats(tokenizer=chats.tokenizer, template=None, bos="", eos="")
    assert text_of(base, base.ids(QUESTION)) == "How are you?"
    assert all(base.ids(QUESTION, change) is None for change in CHANGES)


def test_a_template_without_names_of_roles_cannot_have_others(chats: Chats) -> None:
    plain = Chats(tokenizer=chats.tokenizer, template="[INST] {{ messages[-1].content }} [/INST]", bos="", eos="")
    assert text_of(plain, plain.ids(QUESTION)) == "[INST] How are you? [/INST]"
    assert plain.ids(QUESTION, "other role names") is None
    assert plain.ids(QUESTION, "no newlines") is None
    assert plain.ids(QUESTION, "a system text") is None  # it would be left out


def test_a_prompt_with_the_name_of_a_control_token_is_left_out(chats: Chats) -> None:
    assert chats.ids([Message(role="user", content="What is <|im_end|>?")]) is None


def test_the_shipped_prompts_are_many_different_and_in_one_part_each() -> None:
    shipped = shipped_prompts()
    parts = [*shipped.train, *shipped.watch, *shipped.measure]
    assert len(parts) == len(set(parts)) > 400
    assert min(len(shipped.watch), len(shipped.measure)) >= 40
    assert not any("{" in prompt for prompt in parts)
    assert shipped == shipped_prompts()


def test_prompts_of_a_users_own(tmp_path: Path) -> None:
    texts = [f"question {i}" for i in range(30)]
    breaks = "\u2028which ends a line of text\x85but none of JSON"
    lines, objects = tmp_path / "mine.txt", tmp_path / "mine.jsonl"
    lines.write_text("\n\n".join(texts) + "\nquestion 0\n")
    objects.write_text("\n".join(json.dumps({"prompt": text, "id": 1}) for text in texts))
    for path in (lines, objects):
        found = read_prompts(path)
        assert sorted([*found.train, *found.watch, *found.measure]) == sorted(texts)
        assert found.name == path.name
    assert read_prompts(lines).sha256 == read_prompts(objects).sha256
    objects.write_text("\r\n".join(json.dumps({"prompt": text + breaks}, ensure_ascii=False) for text in texts))
    assert {text + breaks for text in texts} == {*(found := read_prompts(objects)).train, *found.watch, *found.measure}


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("few.txt", b"one\ntwo\n", "2 different prompts"),
        ("binary.txt", b"\xff\xfe\x00", "not UTF-8"),
        ("bad.jsonl", b'{"prompt": "a"}\n{"text": "b"}\n', "Line 2"),
        ("worse.jsonl", b"[]\n", "Line 1"),
        ("empty.jsonl", b'{"prompt": " "}\n', "Line 1"),
    ],
)
def test_a_file_of_prompts_that_cannot_serve_is_refused(tmp_path: Path, name: str, data: bytes, said: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(UsageError, match=said) as caught:
        read_prompts(tmp_path / name)
    assert caught.value.hint


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.txt cannot be read"):
        read_prompts(tmp_path / "none.txt")
