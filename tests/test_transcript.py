"""The forms of a chat outside the database."""

from __future__ import annotations

import json
import time
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.errors import UsageError
from runner.transcript import (
    TITLE_LENGTH,
    Session,
    Turn,
    TurnState,
    code_blocks,
    from_json,
    iso_time,
    title_from,
    to_json,
    to_markdown,
    to_messages,
)
from runner.types import Message, Role

times = st.integers(0, 253_402_300_799_000).map(lambda milliseconds: milliseconds / 1000)
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
objects = st.dictionaries(st.text(), plain, max_size=3)
turns = st.builds(
    Turn,
    role=st.sampled_from(get_args(Role)),
    content=st.text(),
    reasoning=st.text(),
    state=st.sampled_from(get_args(TurnState)),
    model=st.text(),
    seed=st.none() | st.integers(0, 2**64 - 1),
    timings=objects,
    created_at=times,
)
sessions = st.builds(
    Session,
    id=st.text(),
    title=st.text(),
    model=st.text(),
    backend=st.text(),
    system=st.none() | st.text(min_size=1),
    settings=objects,
    created_at=times,
    updated_at=times,
    revision=st.just(0),
)


@settings(max_examples=50)
@given(sessions, st.lists(turns, max_size=3))
def test_a_chat_survives_json_unchanged(session: Session, chat: list[Turn]) -> None:
    assert from_json(json.loads(json.dumps(to_json(session, chat)))) == (session, chat)


def test_a_chat_written_by_hand_needs_only_roles_and_contents() -> None:
    session, chat = from_json({"schema": "runner.session/1", "turns": [{"role": "user", "content": "hi"}]})
    assert (session, chat) == (Session(id=""), [Turn(role="user", content="hi")])


def with_value(where: str, key: str, value: object) -> dict[str, Any]:
    chat = to_json(Session(id="a"), [Turn(role="user", content="q")])
    (chat if where == "chat" else chat["turns"][0])[key] = value
    return chat


@pytest.mark.parametrize(
    ("where", "key", "value"),
    [
        ("chat", "schema", "runner.session/99"),
        ("chat", "schema", 1),
        ("chat", "turns", {}),
        ("chat", "turns", [1]),
        ("chat", "title", 5),
        ("chat", "settings", []),
        ("chat", "created_at", "yesterday"),
        ("chat", "created_at", "0001-01-01T00:00:00+14:00"),
        ("chat", "updated_at", "9999-12-31T23:59:59-14:00"),
        ("turn", "role", "root"),
        ("turn", "role", []),
        ("turn", "content", None),
        ("turn", "state", "done"),
        ("turn", "seed", True),
        ("turn", "seed", 2**64),
        ("turn", "seed", -1),
        ("turn", "seed", "1"),
        ("turn", "timings", "fast"),
    ],
)
def test_a_wrong_value_is_refused_by_its_name(where: str, key: str, value: object) -> None:
    with pytest.raises(UsageError, match=key if not isinstance(value, list) or key != "turns" else "turn 1"):
        from_json(with_value(where, key, value))


def test_what_is_missing_is_said_to_be_and_what_is_wrong_what_it_should_be() -> None:
    with pytest.raises(UsageError, match="'turns' of the file is missing"):
        from_json({"schema": "runner.session/1"})
    with pytest.raises(UsageError, match="'role' of turn 1 is not one of system, user, assistant, tool"):
        from_json(with_value("turn", "role", "root"))


@pytest.mark.parametrize("seed", [0, 2**64 - 1])
def test_every_seed_can_be_kept(seed: int) -> None:
    assert from_json(with_value("turn", "seed", seed))[1][0].seed == seed


@pytest.mark.parametrize("value", [None, [], "text", 3])
def test_what_is_no_object_is_refused(value: object) -> None:
    with pytest.raises(UsageError, match="Not a saved chat"):
        from_json(value)


def test_a_model_is_asked_with_no_empty_answer_and_no_two_questions_in_a_row() -> None:
    chat = [
        Turn(role="user", content="a"),
        Turn(role="assistant", content="", reasoning="thinking", state="cancelled"),
        Turn(role="user", content="b"),
        Turn(role="assistant", content="c", reasoning="why"),
        Turn(role="user", content=""),
    ]
    asked = (
        Message(role="user", content="a\n\nb"),
        Message(role="assistant", content="c", reasoning="why"),
        Message(role="user", content=""),
    )
    assert to_messages(None, chat) == asked
    assert to_messages("s", chat) == (Message(role="system", content="s"), *asked)


def test_a_time_without_a_zone_is_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        session, _ = from_json(with_value("chat", "created_at", "1970-01-02T00:00:00"))
    finally:
        monkeypatch.undo()
        time.tzset()
    assert session.created_at == 86400


def test_a_title_of_accents_alone_is_cut_to_nothing() -> None:
    assert title_from("\u0301" * (TITLE_LENGTH + 1)) == "…"


def test_markdown_has_every_part_of_a_chat() -> None:
    chat = [
        Turn(role="user", content="Why?"),
        Turn(role="assistant", content="Because.", reasoning="Let me think."),
        Turn(role="user", content="And?"),
        Turn(role="assistant", content="Well", state="cancelled"),
    ]
    session = Session(id="a", title="Why", model="demo", backend="fake", system="Be brief.", created_at=0.0)
    assert to_markdown(session, chat) == (
        "# Why\n\n*demo · fake · 1970-01-01T00:00:00.000Z*\n\n## System\n\nBe brief.\n\n## You\n\nWhy?\n\n"
        "## Assistant\n\n<details><summary>Thought</summary>\n\nLet me think.\n\n</details>\n\nBecause.\n\n"
        "## You\n\nAnd?\n\n## Assistant\n\nWell\n\n*(this answer was stopped)*\n"
    )


@given(st.text())
def test_a_title_is_one_short_line(text: str) -> None:
    title = title_from(text)
    assert len(title) <= TITLE_LENGTH
    assert "\n" not in title
    assert title == title.strip()
    assert title_from(title) == title


def test_a_title_that_is_cut_does_not_part_a_letter_from_its_accent() -> None:
    assert title_from("x" * 58 + "e\u0301" + "y" * 10) == "x" * 58 + "…"
    assert title_from("x" * 60) == "x" * 60


def test_times_are_utc_to_the_millisecond() -> None:
    assert iso_time(1_700_000_000.1234) == "2023-11-14T22:13:20.123Z"


@pytest.mark.parametrize(
    ("markdown", "blocks"),
    [
        ("no code", []),
        ("`inline` and\n\n    indented", []),
        ("```\n```", [""]),
        ("> ```\n> quoted\n> ```", ["quoted\n"]),
        ("> " * 5000 + "deep", []),
    ],
)
def test_code_blocks_are_the_fenced_ones(markdown: str, blocks: list[str]) -> None:
    assert code_blocks(markdown) == blocks
