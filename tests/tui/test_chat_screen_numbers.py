"""What fills the context by part, and what the settings panel's fields mean: functions of values."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path
from typing import Any

import pytest

from runner.attachments import attached
from runner.config import LONGEST_DRAFT, ChatOptions, LoadOptions, SamplingParams
from runner.errors import UsageError
from runner.measures import text_width
from runner.paths import user_paths
from runner.settings import load_settings, set_value
from runner.transcript import Turn
from runner.tui.chat_settings import FIELDS, is_changed, read, texts
from runner.tui.context_parts import ContextCount, ContextParts, Lengths, cells, lengths
from runner.tui.screens.settings_desk import Saved, save
from runner.tui.widgets.context_meter import meter

FULL = ContextParts(system=100, conversation=1500, attached=200, answer=100, n_ctx=2048)


def question(text: str) -> Turn:
    return Turn(role="user", content=text)


def answer(timings: dict[str, Any]) -> Turn:
    return Turn(role="assistant", content="Hi.", timings=timings)


def test_attached_files_are_told_from_words() -> None:
    file = attached(Path("a.py"), "x = '```'\n")
    assert lengths(None, [question(f"look\n\n{file}")]) == Lengths(0, 6, len(file))
    assert lengths("be kind", [question("no ``` file")]) == Lengths(7, 11, 0)


def test_a_character_of_more_bytes_is_taken_for_more_of_a_token() -> None:
    count = ContextCount()
    count.begin(None, [question("これは日本語の文章です。" * 100)])  # 1200 characters, most of a token each
    assert 800 < count.parts(2048).conversation < 1200


def test_the_parts_of_a_counted_prompt_add_up_to_what_was_counted() -> None:
    count = ContextCount()
    count.begin("s" * 100, [question("w" * 300), Turn(role="assistant", content="a" * 100)])
    count.count(333, 21)
    parts = count.parts(1000)
    assert parts.system + parts.conversation + parts.attached == 333
    assert (parts.answer, parts.free, parts.is_estimate) == (21, 1000 - 354, False)
    assert parts.system == pytest.approx(333 / 5, abs=1)


def test_what_is_not_sent_yet_is_an_estimate_by_what_was_counted_before() -> None:
    count = ContextCount()
    count.begin(None, [question("w" * 400)])
    assert count.parts(1000).is_estimate
    count.count(100, 0)
    parts = count.parts(1000, typed=400, attached=800)
    assert (parts.conversation, parts.attached, parts.is_estimate) == (200, 200, True)


def test_a_short_prompt_does_not_tell_how_many_tokens_a_byte_takes() -> None:
    count = ContextCount()
    count.begin(None, [question("hello")])
    count.count(24, 3)  # most of them are the template's
    assert count.parts(8192, typed=10_000).next_message == 2800
    count.begin(None, [question("hello" * 100)])
    count.count(200, 3)
    assert count.parts(8192, typed=10_000).next_message == 4000


def test_a_kept_answer_brings_its_own_count() -> None:
    count = ContextCount()
    count.resume(None, [question("hello"), answer({"prompt_tokens": 12, "completion_tokens": 3})])
    assert count.parts(100) == ContextParts(conversation=12, answer=3, n_ctx=100)
    for number in ("many", [12], 1e999, 10**400, -12):  # a chat file may hold anything there
        count.resume(None, [question("hello"), answer({"prompt_tokens": number, "completion_tokens": number})])
        assert count.parts(100).is_estimate


def test_a_question_that_got_no_answer_is_added_to_what_was_counted_before() -> None:
    count = ContextCount()
    turns = [question("w" * 400), answer({"prompt_tokens": 200, "completion_tokens": 30})]
    count.resume(None, [*turns, question("w" * 100)])
    assert count.parts(1000) == ContextParts(conversation=250, answer=30, n_ctx=1000, is_estimate=True)
    assert count.parts(1000, typed=40).next_message == 20
    count.begin(None, [*turns, question("w" * 100)])
    count.count(260, 1)
    assert count.parts(1000) == ContextParts(conversation=260, answer=1, n_ctx=1000)


@pytest.mark.parametrize("width", [6, 10, 40])
@pytest.mark.parametrize("parts", [FULL, ContextParts(n_ctx=9), ContextParts(system=1, answer=9999, n_ctx=100)])
def test_a_bar_is_as_wide_as_asked_and_shows_what_is_there_at_all(parts: ContextParts, width: int) -> None:
    *filled, free = cells(parts, width)
    assert sum(filled) + free == width
    counts = (parts.system, parts.conversation, parts.attached, parts.answer)
    assert [n > 0 for n in filled] == [n > 0 for n in counts]


@pytest.mark.parametrize("width", range(12, 130, 7))
@pytest.mark.parametrize("parts", [FULL, ContextParts(conversation=900, n_ctx=8192, is_estimate=True)])
def test_the_meter_keeps_to_its_width(parts: ContextParts, width: int) -> None:
    assert text_width(meter(parts, "stop", width).plain) <= width


def test_a_number_that_there_is_no_room_for_is_not_cut() -> None:
    half = ContextParts(conversation=1200, n_ctx=2048)
    assert [meter(half, "stop", width).plain for width in (7, 6, 4, 3)] == ["1.2k/2k", "59 %", "59 %", ""]


def test_a_full_context_says_what_happens_then() -> None:
    assert "answers stop" in meter(FULL, "stop", 80).plain
    assert "oldest turns" in meter(FULL, "drop", 80).plain
    too_much = dataclasses.replace(FULL, attached=900)
    assert "! 127 % full: that does not fit" in meter(too_much, "stop", 80).plain
    assert "127 % full: the oldest turns are left out" in meter(too_much, "drop", 80).plain
    assert "93 %" in meter(FULL, "stop", 14).plain


@pytest.mark.parametrize("has_history", [False, True])
def test_a_message_that_does_not_fit_by_itself_is_not_said_to_push_turns_out(has_history: bool) -> None:
    count = ContextCount()
    count.begin("s" * 40, [question("w" * 400), Turn(role="assistant", content="a")] if has_history else [])
    if has_history:
        count.count(110, 1)
    assert "the message alone does not fit" in meter(count.parts(1000, typed=4000), "drop", 80).plain
    assert "that does not fit" in meter(count.parts(1000, typed=4000), "stop", 80).plain
    is_enough = meter(count.parts(1000, typed=3300), "drop", 80).plain
    assert "oldest turns are left out" in is_enough


def test_an_empty_field_means_its_default_and_a_changed_one_is_the_users_own() -> None:
    defaults = texts(SamplingParams(temperature=0.6), ChatOptions(), LoadOptions())
    typed = {
        **dict.fromkeys(FIELDS, ""),
        "think": "high",
        "overflow": "stop",
        "speculation": "off",
        "top_k": "20",
        "stop": "'a b' c",
    }
    settings = read("Be brief.\n", typed, defaults)
    assert settings.own_params == {"top_k": 20, "stop": ("a b", "c")}
    assert settings.options == ChatOptions(think="high")
    assert settings.loading == {"speculation": "off", "draft": None, "draft_max": LONGEST_DRAFT, "draft_file": ()}
    assert settings.system == "Be brief."
    assert not is_changed("temperature", "0.60", defaults["temperature"])
    assert is_changed("temperature", "hot", defaults["temperature"])
    with pytest.raises(UsageError, match="top_p"):
        read("", {**typed, "top_p": "2"}, defaults)
    with pytest.raises(UsageError, match="draft_max"):
        read("", {**typed, "draft_max": "99"}, defaults)


def test_saving_writes_what_differs_and_takes_back_what_is_none() -> None:
    paths = user_paths()
    defaults = texts(SamplingParams(), ChatOptions(), LoadOptions())
    now = {**defaults, "temperature": "0.2", "stop": "'a b' c", "overflow": "drop", "draft_file": "'/a b' /c"}
    written = ("context_overflow", "temperature", "stop", "draft_file", "system")
    assert save(paths, "Be brief.", now, {}) == Saved(written, ())
    settings = load_settings(paths)
    assert settings.load_options().draft_file == ("/a b", "/c")
    assert settings.sampling_params({}) == SamplingParams(temperature=0.2, stop=("a b", "c"))
    assert settings.system == "Be brief."
    for stop in ("[]", '["END"]', '["'):  # texts, as they are, and no lists
        save(paths, "Be brief.", {**now, "stop": shlex.join([stop])}, {})
        assert load_settings(paths).sampling_params({}).stop == (stop,)
    save(paths, "Be brief.", now, {})
    assert save(paths, "", {**now, "overflow": "stop"}, {}) == Saved((), ("context_overflow", "system"))
    assert load_settings(paths).system == ""
    assert save(paths, "", {**now, "overflow": "stop"}, {}) == Saved((), ())


def test_saving_leaves_what_a_project_or_a_variable_says(monkeypatch: pytest.MonkeyPatch) -> None:
    paths = user_paths()
    set_value(paths, "temperature", ["0.3"])
    monkeypatch.setenv("RUNNER_TEMPERATURE", "0.5")
    now = texts(load_settings(paths).sampling_params({}), ChatOptions(), LoadOptions())
    assert now["temperature"] == "0.5"
    assert save(paths, "", now, {}) == Saved((), ())
    monkeypatch.delenv("RUNNER_TEMPERATURE")
    assert save(paths, "", {**now, "temperature": "0.6"}, {"temperature": 0.6}) == Saved((), ("temperature",))
    assert not paths.settings_file.read_text()
