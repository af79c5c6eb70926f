"""Conversations: what stays in the history and in the store when answers end, are stopped, fail or are killed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from runner.config import ChatOptions, SamplingParams
from runner.conversation import Conversation
from runner.errors import BusyError, ContextOverflow, EngineDied, RunnerError, StoreError, UsageError
from runner.events import (
    ChatEvent,
    Finished,
    FinishReason,
    Loaded,
    LoadEvent,
    Notice,
    Progress,
    ReasoningDelta,
    Stats,
    TextDelta,
)
from runner.store import Store
from runner.telemetry import Timings
from runner.transcript import Session, to_markdown
from runner.types import Message

Piece = ChatEvent | str | Exception


def finished(reason: FinishReason = "stop") -> Finished:
    timings = Timings(prompt_tokens=7, completion_tokens=3, decode_s=0.5, total_s=0.6)
    return Finished(reason=reason, timings=timings, token_ids=(1, 2, 3), seed=2**40, n_ctx=128)


class Scripted:
    """An engine surface that plays one script a request: text, events, and exceptions to raise.

    As the real ones do, it ends with Finished, and with "cancelled" once `cancel` was called.
    """

    def __init__(self, *scripts: Sequence[Piece]) -> None:
        self.loaded: Loaded | None = None
        self.scripts = list(scripts)
        self.asked: list[tuple[Message, ...]] = []
        self.closed = 0
        self._cancelled = False

    def load(self, model: str, options: object, *, offline: bool = False) -> Iterator[LoadEvent]:
        raise AssertionError((model, options, offline))

    def chat(
        self, messages: Sequence[Message], params: SamplingParams, options: ChatOptions | None = None
    ) -> Iterator[ChatEvent]:
        assert params is not None
        assert options is not None
        self.asked.append(tuple(messages))
        self._cancelled = False
        try:
            yield Progress("prefill", 1, 1, "tokens")
            for piece in self.scripts.pop(0):
                if self._cancelled:
                    yield finished("cancelled")
                    return
                if isinstance(piece, Exception):
                    raise piece
                yield TextDelta(piece) if isinstance(piece, str) else piece
            yield finished("cancelled" if self._cancelled else "stop")
        finally:
            self.closed += 1

    def cancel(self) -> None:
        self._cancelled = True

    def unload(self) -> None: ...

    def close(self) -> None: ...


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store(tmp_path / "chats.sqlite3")
    yield made
    made.close()


def talk(store: Store | None, *scripts: Sequence[Piece], **settings: object) -> Conversation:
    return Conversation(Scripted(*scripts), model="demo", store=store, **settings)  # type: ignore[arg-type]


def engine_of(conversation: Conversation) -> Scripted:
    engine = conversation._engine
    assert isinstance(engine, Scripted)
    return engine


def said(conversation: Conversation) -> list[tuple[str, str]]:
    return [(turn.content, turn.state) for turn in conversation.turns]


def kept(conversation: Conversation, store: Store) -> list[tuple[str, str]]:
    """What the store has, after checking that it is what the conversation has in memory."""
    assert conversation.session_id is not None
    turns = store.turns(conversation.session_id)
    assert turns == list(conversation.turns)
    return [(turn.content, turn.state) for turn in turns]


def until_text(events: Iterator[ChatEvent], n: int = 1) -> None:
    """Read events up to the n-th piece of text."""
    for event in events:
        n -= isinstance(event, (TextDelta, ReasoningDelta))
        if n == 0:
            return
    raise AssertionError("the answer ended before")


def test_an_answer_is_passed_on_whole_and_kept_with_its_numbers(store: Store) -> None:
    script = [ReasoningDelta("hm"), "Hel", Stats(Timings(), 128), "lo"]
    conversation = talk(store, script)
    events = list(conversation.send("hi"))
    assert [event for event in events if isinstance(event, TextDelta)] == [TextDelta("Hel"), TextDelta("lo")]
    assert isinstance(events[-1], Finished)
    assert kept(conversation, store) == [("hi", "complete"), ("Hello", "complete")]
    answer = conversation.turns[1]
    assert (answer.reasoning, answer.seed, answer.model) == ("hm", 2**40, "demo")
    assert answer.timings["decode_s"] == 0.5
    assert engine_of(conversation).closed == 1


def test_the_message_is_kept_before_the_first_event_is_read(store: Store) -> None:
    conversation = talk(store, ["x"])
    conversation.send("hi")
    assert kept(conversation, store) == [("hi", "complete")]


def test_the_next_question_carries_the_turns_before_and_the_system_prompt(store: Store) -> None:
    conversation = talk(store, ["one"], ["two"], system="be brief")
    list(conversation.send("first"))
    list(conversation.send("second"))
    asked = [(message.role, message.content) for message in engine_of(conversation).asked[1]]
    assert asked == [("system", "be brief"), ("user", "first"), ("assistant", "one"), ("user", "second")]


def test_a_stopped_answer_stays_in_the_history(store: Store) -> None:
    conversation = talk(store, ["par", "tial", "never"], ["ok"])
    events = conversation.send("q")
    until_text(events, 2)
    conversation.cancel()
    rest = list(events)
    assert isinstance(rest[-1], Finished)
    assert rest[-1].reason == "cancelled"
    assert kept(conversation, store) == [("q", "complete"), ("partial", "cancelled")]
    list(conversation.send("go on"))
    assert engine_of(conversation).asked[1][1] == Message(role="assistant", content="partial")


def test_closing_the_iterator_keeps_what_arrived(store: Store) -> None:
    conversation = talk(store, ["par", "tial", "never"])
    events = conversation.send("q")
    until_text(events, 2)
    events.close()  # type: ignore[attr-defined]
    assert kept(conversation, store) == [("q", "complete"), ("partial", "cancelled")]
    assert engine_of(conversation).closed == 1


def test_a_thought_that_was_stopped_is_kept_and_is_no_answer(store: Store) -> None:
    params, options = SamplingParams(temperature=0.5), ChatOptions(think="on")
    conversation = talk(store, ["first"], [ReasoningDelta("well"), "never"], params=params, options=options, system="")
    assert (conversation.params, conversation.options, conversation.system) == (params, options, None)
    list(conversation.send("one"))
    answer = conversation.send("two")
    while not isinstance(next(answer), ReasoningDelta):
        pass
    answer.close()  # type: ignore[attr-defined]
    assert kept(conversation, store)[-1] == ("", "cancelled")
    assert conversation.turns[-1].reasoning == "well"
    assert [message.content for message in conversation.messages] == ["one", "first", "two"]
    conversation.undo()
    conversation.send("three")
    assert (conversation.last_answer, conversation.title) == ("first", "one")


def test_a_new_message_ends_an_answer_that_was_left_open(store: Store) -> None:
    conversation = talk(store, ["par", "never"], ["done"])
    left_open = conversation.send("one")
    until_text(left_open)
    list(conversation.send("two"))
    assert [state for _, state in kept(conversation, store)] == ["complete", "cancelled", "complete", "complete"]
    assert list(left_open) == []


@pytest.mark.parametrize(
    "operation",
    [
        lambda conversation, _: conversation.undo(),
        lambda conversation, _: conversation.clear(),
        lambda conversation, _: conversation.edit_last("other"),
        lambda conversation, _: conversation.regenerate(),
        lambda conversation, _: conversation.set_system("s"),
        lambda conversation, _: conversation.rename("title"),
        lambda conversation, _: conversation.configure(options=ChatOptions(think="off")),
        lambda conversation, _: conversation.use(Scripted(), "other"),
        lambda conversation, _: conversation.resume(conversation.session_id),
        lambda conversation, saved: conversation.load(saved),
    ],
)
def test_every_operation_ends_an_answer_that_was_left_open(
    store: Store, tmp_path: Path, operation: Callable[[Conversation, Path], object]
) -> None:
    conversation = talk(store, ["a"], ["half", " and more"])
    list(conversation.send("one"))
    engine, saved = engine_of(conversation), conversation.save(tmp_path / "chat.json")
    left_open = conversation.send("two")
    while not isinstance(next(left_open), TextDelta):
        pass
    operation(conversation, saved)
    assert engine.closed == 2
    assert list(left_open) == []


def test_an_answer_stopped_before_it_began_leaves_the_question_and_can_be_asked_again(store: Store) -> None:
    conversation = talk(store, ["never"], ["answer"])
    events = conversation.send("q")
    assert isinstance(next(events), Progress)
    conversation.cancel()
    list(events)
    assert kept(conversation, store) == [("q", "complete")]
    list(conversation.regenerate())
    assert kept(conversation, store) == [("q", "complete"), ("answer", "complete")]
    assert [message.content for message in engine_of(conversation).asked[1]] == ["q"]


def test_two_messages_in_a_row_reach_the_model_as_one(store: Store) -> None:
    conversation = talk(store, [], ["answer"])
    events = conversation.send("first")
    next(events)
    conversation.cancel()
    list(events)
    list(conversation.send("second"))
    assert engine_of(conversation).asked[1] == (Message(role="user", content="first\n\nsecond"),)
    assert [content for content, _ in kept(conversation, store)] == ["first", "second", "answer"]


def test_an_engine_that_dies_in_an_answer_leaves_what_arrived(store: Store) -> None:
    conversation = talk(store, ["par", "tial", EngineDied("killed")], ["fine"])
    with pytest.raises(EngineDied):
        list(conversation.send("q"))
    assert kept(conversation, store) == [("q", "complete"), ("partial", "error")]
    list(conversation.send("again"))
    assert conversation.last_answer == "fine"


@pytest.mark.parametrize("error", [ContextOverflow("too long"), EngineDied("gone"), ZeroDivisionError("a bug")])
def test_a_message_that_the_engine_refuses_is_handed_back(store: Store, error: Exception) -> None:
    conversation = talk(store, ["fine"], [error], ["fine again"])
    list(conversation.send("one"))
    with pytest.raises(type(error)):
        list(conversation.send("too much"))
    assert conversation.unsent == "too much"
    assert kept(conversation, store) == [("one", "complete"), ("fine", "complete")]
    list(conversation.send("less"))
    assert conversation.unsent == ""
    assert len(kept(conversation, store)) == 4


@pytest.mark.parametrize("operation", ["clear", "regenerate"])
def test_what_was_handed_back_is_forgotten_with_what_it_was_said_in(operation: str) -> None:
    conversation = talk(None, ["fine"], [ContextOverflow("too long")], ["other"])
    list(conversation.send("one"))
    with pytest.raises(ContextOverflow):
        list(conversation.send("too much"))
    getattr(conversation, operation)()
    assert conversation.unsent == ""


def test_a_refused_first_message_leaves_no_empty_chat_behind(store: Store) -> None:
    conversation = talk(store, [ContextOverflow("too long")], ["ok"])
    with pytest.raises(ContextOverflow):
        list(conversation.send("too much"))
    assert (store.sessions(), conversation.session_id, conversation.unsent) == ([], None, "too much")
    list(conversation.send("less"))
    assert kept(conversation, store) == [("less", "complete"), ("ok", "complete")]


def test_an_engine_that_stops_without_a_word_is_an_error(store: Store) -> None:
    class Mute(Scripted):
        def chat(self, *_: object) -> Iterator[ChatEvent]:
            yield TextDelta("half")

    conversation = Conversation(Mute(), model="demo", store=store)
    with pytest.raises(EngineDied):
        list(conversation.send("q"))
    assert kept(conversation, store) == [("q", "complete"), ("half", "error")]


@pytest.mark.parametrize("end", [KeyboardInterrupt, SystemExit])
def test_a_signal_inside_the_engine_keeps_what_arrived(store: Store, end: type[BaseException]) -> None:
    class Interrupted(Scripted):
        def chat(self, *_: object) -> Iterator[ChatEvent]:
            yield TextDelta("half ")
            yield TextDelta("an answer")
            raise end

    conversation = Conversation(Interrupted(), model="demo", store=store)
    with pytest.raises(end):
        list(conversation.send("q"))
    assert kept(conversation, store) == [("q", "complete"), ("half an answer", "cancelled")]


def test_regenerate_replaces_the_answer_when_the_new_one_begins(store: Store) -> None:
    conversation = talk(store, ["old"], ["new ", "one"])
    list(conversation.send("q"))
    events = conversation.regenerate()
    assert isinstance(next(events), Progress)
    assert kept(conversation, store)[1] == ("old", "complete")
    until_text(events)
    assert kept(conversation, store)[1] == ("new ", "partial")
    list(events)
    assert kept(conversation, store) == [("q", "complete"), ("new one", "complete")]


@pytest.mark.parametrize("error", [EngineDied("gone"), None])
def test_regenerate_that_brings_nothing_leaves_the_old_answer(store: Store, error: Exception | None) -> None:
    conversation = talk(store, ["old"], [error or "never"])
    list(conversation.send("q"))
    events = conversation.regenerate()
    next(events)
    conversation.cancel() if error is None else None
    try:
        list(events)
    except EngineDied:
        assert error is not None
    assert conversation.unsent == ""
    assert kept(conversation, store) == [("q", "complete"), ("old", "complete")]


def test_edit_last_replaces_the_message_and_answers_it(store: Store) -> None:
    conversation = talk(store, ["a1"], ["a2"], ["better"])
    list(conversation.send("q1"))
    list(conversation.send("q2"))
    list(conversation.edit_last("q2!"))
    assert [content for content, _ in kept(conversation, store)] == ["q1", "a1", "q2!", "better"]


def test_edit_last_that_is_refused_brings_the_old_exchange_back(store: Store) -> None:
    conversation = talk(store, ["a1"], [ContextOverflow("too long")])
    list(conversation.send("q1"))
    with pytest.raises(ContextOverflow):
        list(conversation.edit_last("far too long"))
    assert conversation.unsent == "far too long"
    assert kept(conversation, store) == [("q1", "complete"), ("a1", "complete")]


def test_undo_takes_the_last_exchange_back_and_hands_out_its_text(store: Store) -> None:
    conversation = talk(store, ["a1"], ["a2"])
    list(conversation.send("q1"))
    list(conversation.send("q2"))
    assert conversation.undo() == "q2"
    assert [content for content, _ in kept(conversation, store)] == ["q1", "a1"]
    assert conversation.undo() == "q1"
    assert store.sessions() == []
    with pytest.raises(UsageError, match="no message"):
        conversation.undo()


@pytest.mark.parametrize("operation", ["regenerate", "edit"])
def test_operations_on_the_last_message_need_one(operation: str) -> None:
    conversation = talk(None)
    with pytest.raises(UsageError, match="no message"):
        conversation.regenerate() if operation == "regenerate" else conversation.edit_last("x")


def test_an_empty_message_is_refused() -> None:
    with pytest.raises(UsageError, match="empty"):
        talk(None).send(" \n")


def test_clear_starts_a_new_chat_and_keeps_the_old_one(store: Store) -> None:
    conversation = talk(store, ["a1"], ["a2"], system="s")
    list(conversation.send("q1"))
    first = conversation.session_id
    conversation.clear()
    assert (conversation.turns, conversation.session_id, conversation.system) == ((), None, "s")
    list(conversation.send("q2"))
    assert [content for content, _ in kept(conversation, store)] == ["q2", "a2"]
    assert first is not None
    assert [turn.content for turn in store.turns(first)] == ["q1", "a1"]


def test_the_title_comes_from_the_first_message_until_one_is_given(store: Store) -> None:
    conversation = talk(store, ["a"])
    list(conversation.send("  a long\n question " + "x" * 100))
    assert conversation.title == ("a long question " + "x" * 43 + "…")
    assert store.get(str(conversation.session_id)).title == conversation.title
    conversation.rename("mine\nand only mine")
    assert store.get(str(conversation.session_id)).title == "mine and only mine"


def test_changes_of_system_prompt_and_settings_are_kept_at_once(store: Store) -> None:
    conversation = talk(store, ["a"])
    list(conversation.send("q"))
    conversation.set_system("new")
    conversation.configure(params=SamplingParams(temperature=0.0, stop=("x",)), options=ChatOptions(think="off"))
    conversation.configure(params=SamplingParams(temperature=0.0))
    assert conversation.options.think == "off"
    conversation.configure(options=ChatOptions(think="on"))
    assert conversation.params.temperature == 0.0
    assert store.get(str(conversation.session_id)).settings["options"]["think"] == "on"
    conversation.configure(options=ChatOptions(think="off"))
    conversation.use(Scripted(["b"]), "other")
    session = store.get(str(conversation.session_id))
    assert (session.system, session.model) == ("new", "other")
    assert session.settings["params"]["temperature"] == 0.0
    assert session.settings["options"]["think"] == "off"
    conversation.set_system(None)
    assert store.get(str(conversation.session_id)).system is None
    list(conversation.send("r"))
    assert [turn.model for turn in conversation.turns if turn.role == "assistant"] == ["demo", "other"]
    assert [len(messages) for messages in engine_of(conversation).asked] == [3]
    conversation.set_system("")
    assert conversation.system is None


def test_the_title_has_the_words_of_a_message_and_not_its_files(store: Store) -> None:
    for message, title in (
        ("Sum it up\n\na.txt:\n```\nlong\n```", "Sum it up"),
        ("a.txt:\n```\nx\n```", "a.txt: ``` x ```"),
    ):
        conversation = talk(store, ["a"])
        list(conversation.send(message))
        assert conversation.title == title


def test_a_title_that_another_process_gave_is_not_overwritten(store: Store) -> None:
    conversation = talk(store, ["a"], ["b"])
    list(conversation.send("q"))
    store.update_session(str(conversation.session_id), lambda s: type(s)(**{**vars(s), "title": "theirs"}))
    conversation.set_system("new")
    list(conversation.send("r"))
    assert store.get(str(conversation.session_id)).title == "theirs"


def test_a_resumed_chat_goes_on_where_it_was(store: Store) -> None:
    first = talk(store, ["a1"], system="s")
    list(first.send("q1"))
    first.rename("given")
    second = talk(store, ["a2"])
    session = second.resume(str(first.session_id)[:5])
    assert (session.model, second.system, second.title) == ("demo", "s", "given")
    list(second.send("q2"))
    assert [content for content, _ in kept(second, store)] == ["q1", "a1", "q2", "a2"]
    assert len(store.sessions()) == 1
    assert [message.content for message in engine_of(second).asked[0]] == ["s", "q1", "a1", "q2"]


def test_a_chat_keeps_the_times_of_its_beginning_and_its_last_turn(store: Store, tmp_path: Path) -> None:
    times = iter(range(1000, 2000))
    conversation = talk(store, ["a"], ["b"], now=lambda: float(next(times)))
    began = conversation.about()
    assert began.created_at == began.updated_at == 1000
    list(conversation.send("q"))
    about = conversation.about()
    assert (about.id, about.created_at) == (conversation.session_id, 1000)
    assert about.updated_at == conversation.turns[-1].created_at > 1000
    loaded = talk(None)
    loaded.load(conversation.save(tmp_path / "chat.json"))
    assert (loaded.about().created_at, loaded.about().updated_at) == (1000, about.updated_at)
    conversation.clear()
    assert conversation.about().id == ""
    assert conversation.about().created_at > about.updated_at


def test_resume_needs_a_store_and_a_chat(store: Store) -> None:
    with pytest.raises(UsageError, match="not kept"):
        talk(None).resume("abc")
    with pytest.raises(UsageError, match="no chat"):
        talk(store).resume("abc")


def test_a_chat_that_went_on_elsewhere_is_kept_apart_and_nothing_is_lost(store: Store) -> None:
    mine = talk(store, ["a1"], ["mine"])
    list(mine.send("q1"))
    original = str(mine.session_id)
    theirs = talk(store, ["theirs"])
    theirs.resume(original)
    list(theirs.send("their question"))
    events = list(mine.send("my question"))
    assert any(isinstance(event, Notice) and "another runner" in event.text for event in events)
    assert mine.session_id != original
    assert [content for content, _ in kept(mine, store)] == ["q1", "a1", "my question", "mine"]
    assert [content for content, _ in kept(theirs, store)] == ["q1", "a1", "their question", "theirs"]


def test_a_chat_that_was_deleted_elsewhere_stays_deleted(store: Store) -> None:
    conversation = talk(store, ["a1"], ["a2"], ["a3"])
    list(conversation.send("q1"))
    store.delete([session.id for session in store.sessions()])
    events = list(conversation.send("q2"))
    assert any(isinstance(event, Notice) and "deleted" in event.text for event in events)
    assert (store.sessions(), conversation.is_kept, len(conversation.turns)) == ([], False, 4)
    conversation.clear()
    list(conversation.send("q3"))
    assert kept(conversation, store) == [("q3", "complete"), ("a3", "complete")]


def test_without_a_store_nothing_is_written(tmp_path: Path) -> None:
    conversation = talk(None, ["a"], ["b"])
    list(conversation.send("q"))
    list(conversation.regenerate())
    conversation.set_system("s")
    assert said(conversation) == [("q", "complete"), ("b", "complete")]
    assert list(tmp_path.iterdir()) == []


class FailingStore(Store):
    """A real store that fails while `trouble` is set."""

    trouble: RunnerError | None = None

    def write_turns(self, *args: object, **settings: object) -> int | None:
        if self.trouble:
            raise self.trouble
        return super().write_turns(*args, **settings)  # type: ignore[arg-type]


def test_trouble_with_the_store_does_not_stop_an_answer_and_is_made_up_for(tmp_path: Path) -> None:
    store = FailingStore(tmp_path / "chats.sqlite3")
    conversation = talk(store, ["a1"], ["a", "2"], ["a3"])
    list(conversation.send("q1"))
    events = conversation.send("q2")
    store.trouble = StoreError("disk full")
    rest = list(events)
    assert any(isinstance(event, Notice) and "disk full" in event.text for event in rest)
    assert said(conversation)[3] == ("a2", "complete")
    store.trouble = None
    list(conversation.send("q3"))
    assert [content for content, _ in kept(conversation, store)] == ["q1", "a1", "q2", "a2", "q3", "a3"]
    store.close()


class FullStore(FailingStore):
    """One in which new chats fail, too."""

    def create_session(self, **about: Any) -> Session:
        if self.trouble:
            raise self.trouble
        return super().create_session(**about)


def warnings(events: Iterator[ChatEvent]) -> list[str]:
    return [event.text for event in events if isinstance(event, Notice)]


def test_a_chat_that_cannot_be_kept_goes_on_and_says_so_once(tmp_path: Path) -> None:
    ticks = iter(range(1000))
    (tmp_path / "data").write_text("in the way of the directory")
    store = Store(tmp_path / "data" / "chats.sqlite3", without="Go without.")
    conversation = talk(store, ["a", "1"], ["a", "2"], ["a3"], ["a4"], clock=lambda: float(next(ticks)))
    (said_once,) = [event for event in conversation.send("q1") if isinstance(event, Notice)]
    assert "not kept" in said_once.text
    assert said_once.hint.endswith("RUNNER_HOME names another place. Go without.")
    assert conversation.undo() == "q1"
    conversation.set_system("brief")
    assert warnings(conversation.send("q2")) == []
    (tmp_path / "data").unlink()
    assert warnings(conversation.send("q3")) == []
    assert [content for content, _ in kept(conversation, store)] == ["q2", "a2", "q3", "a3"]
    store.close()


def test_what_could_not_be_kept_is_kept_when_the_chat_is_left_and_the_next_one_tells_anew(tmp_path: Path) -> None:
    store = FullStore(tmp_path / "chats.sqlite3")
    conversation = talk(store, ["a1"], ["a2"], ["a3"])
    store.trouble = StoreError("disk full")
    assert len(warnings(conversation.send("q1"))) == 1
    assert not conversation.catch_up()
    store.trouble = None
    conversation.clear()
    assert [summary.n_turns for summary in store.sessions()] == [2]
    store.trouble = StoreError("disk full")
    assert len(warnings(conversation.send("q2"))) == 1
    store.trouble = None
    conversation.set_system("brief")
    assert sorted(summary.n_turns for summary in store.sessions()) == [2, 2]
    assert conversation.catch_up()
    store.close()


def test_what_an_edit_that_is_not_kept_left_in_the_store_is_not_taken_back_and_is_replaced_later(
    tmp_path: Path,
) -> None:
    store = FullStore(tmp_path / "chats.sqlite3")
    conversation = talk(store, ["a1"], ["a2"], ["a3"])
    list(conversation.send("q1"))
    list(conversation.send("q2"))
    store.trouble = StoreError("disk full")
    list(conversation.edit_last("q2x"))
    with pytest.raises(StoreError):
        conversation.undo()
    assert not conversation.catch_up()
    store.trouble = None
    assert conversation.catch_up()
    assert [content for content, _ in kept(conversation, store)] == ["q1", "a1", "q2x", "a3"]
    store.close()


def test_that_a_chat_was_deleted_elsewhere_is_told_by_the_next_answer(tmp_path: Path) -> None:
    store = FullStore(tmp_path / "chats.sqlite3")
    conversation = talk(store, ["a1"], ["a2"], ["a3"])
    list(conversation.send("q1"))
    store.trouble = StoreError("disk full")
    list(conversation.send("q2"))
    store.trouble = None
    store.delete([str(conversation.session_id)])
    conversation.set_system("brief")
    assert "was deleted" in " ".join(warnings(conversation.send("q3")))
    store.close()


def test_a_message_that_the_store_never_had_is_taken_back(tmp_path: Path) -> None:
    store = FullStore(tmp_path / "chats.sqlite3")
    conversation = talk(store, ["a1"], ["a2"])
    list(conversation.send("q1"))
    store.trouble = StoreError("disk full")
    list(conversation.send("q2"))
    assert conversation.undo() == "q2"
    assert [content for content, _ in said(conversation)] == ["q1", "a1"]
    store.close()


def test_trouble_with_the_store_that_comes_again_is_said_again(tmp_path: Path) -> None:
    store = FailingStore(tmp_path / "chats.sqlite3")
    conversation = talk(store, ["a1"], ["a2"], ["a3"], ["a4"])
    heard = []
    for trouble in (None, StoreError("disk full"), None, StoreError("disk full")):
        store.trouble = trouble
        heard.append(len(warnings(conversation.send("q"))))
    assert heard == [0, 1, 0, 1]
    store.close()


def test_a_message_in_the_store_is_not_taken_back_where_it_would_stay_there(tmp_path: Path) -> None:
    store = FailingStore(tmp_path / "chats.sqlite3")
    conversation = talk(store, ["a1"])
    list(conversation.send("q1"))
    store.trouble = StoreError("disk full")
    with pytest.raises(StoreError):
        conversation.undo()
    assert len(conversation.turns) == 2
    store.close()


def test_partial_answers_are_saved_twice_a_second_at_most(store: Store) -> None:
    seconds = iter(range(10_000))
    pieces: list[Piece] = [str(number) for number in range(40)]
    conversation = talk(store, pieces, clock=lambda: next(seconds) * 0.1)
    texts = (event for event in conversation.send("q") if isinstance(event, TextDelta))
    revisions = [store.get(str(conversation.session_id)).revision for _ in texts]
    assert revisions[0] == 1
    assert 5 <= revisions[-1] <= 9  # 40 pieces at 0.1 s, and a few clock readings more
    assert kept(conversation, store)[1] == ("".join(map(str, range(40))), "complete")


def test_an_operation_while_a_thread_reads_an_answer_is_busy() -> None:
    entered, leave = threading.Event(), threading.Event()

    class Slow(Scripted):
        def chat(self, *_: object) -> Iterator[ChatEvent]:
            entered.set()
            assert leave.wait(10)
            yield finished()

    conversation = Conversation(Slow(), model="demo")
    thread = threading.Thread(target=lambda: list(conversation.send("q")))
    thread.start()
    assert entered.wait(10)
    with pytest.raises(BusyError):
        conversation.send("r")
    leave.set()
    thread.join()
    assert [turn.content for turn in conversation.turns] == ["q", ""]


KILLED = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_conversation import Scripted
from runner.conversation import Conversation
from runner.events import TextDelta
from runner.store import Store

class Endless(Scripted):
    def chat(self, *_):
        for number in range(10**6):
            yield TextDelta(f"{number} ")
            time.sleep(0.01)

conversation = Conversation(Endless(), model="demo", store=Store(Path(sys.argv[1])))
for event in conversation.send("count"):
    print(event.text, flush=True)
"""


def test_a_killed_runner_leaves_the_answer_so_far_and_it_can_be_resumed(tmp_path: Path) -> None:
    path = tmp_path / "chats.sqlite3"
    command = [sys.executable, "-c", KILLED, str(path), str(Path(__file__).parent)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        shown = [process.stdout.readline().strip() for _ in range(80)]  # 0.8 s: saved at the start and again
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    store = Store(path)
    conversation = talk(store, ["done"])
    conversation.resume(store.sessions()[0].id)
    question, answer = conversation.turns
    assert (question.content, answer.state) == ("count", "partial")
    saved = answer.content.split()
    assert len(saved) >= 10
    assert saved[: len(shown)] == shown[: len(saved)]
    list(conversation.send("go on"))
    assert [content for content, _ in kept(conversation, store)] == ["count", answer.content, "go on", "done"]
    store.close()


def test_a_saved_file_loads_as_a_new_chat_with_the_same_turns(store: Store, tmp_path: Path) -> None:
    conversation = talk(store, [ReasoningDelta("t"), "a\x1b[0m"], system="s")
    list(conversation.send("q"))
    path = conversation.save(tmp_path / "chat.json")
    assert path.stat().st_mode & 0o777 == 0o600
    other = talk(store)
    other.load(path)
    assert other.turns == conversation.turns
    assert (other.system, other.title) == ("s", "q")
    assert other.session_id != conversation.session_id
    kept(other, store)


def test_saving_does_not_replace_a_file_unless_asked(tmp_path: Path) -> None:
    conversation = talk(None, ["a"])
    list(conversation.send("q"))
    longest = conversation.save(tmp_path / ("\u6587" * 84 + ".md"))  # 255 bytes
    longest.unlink()
    conversation.save(tmp_path / "chat.md")
    with pytest.raises(UsageError, match="already"):
        conversation.save(tmp_path / "chat.md")
    conversation.save(tmp_path / "chat.md", overwrite=True)
    assert (tmp_path / "chat.md").read_text() == to_markdown(conversation.about(), conversation.turns)
    assert [path.name for path in tmp_path.iterdir()] == ["chat.md"]


@pytest.mark.parametrize(
    ("name", "message"),
    [("chat.txt", "no format"), ("absent/chat.json", "cannot be written"), ("a\0b.json", "not the name")],
)
def test_a_file_that_cannot_be_saved_is_refused(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(RunnerError, match=message):
        talk(None).save(tmp_path / name)


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"[" * 100_000, b"[1]", json.dumps({"schema": "x/1"}).encode()])
def test_a_file_that_is_no_chat_is_refused_and_changes_nothing(store: Store, tmp_path: Path, content: bytes) -> None:
    conversation = talk(store, ["a"])
    list(conversation.send("q"))
    (tmp_path / "bad.json").write_bytes(content)
    with pytest.raises(UsageError):
        conversation.load(tmp_path / "bad.json")
    assert kept(conversation, store) == [("q", "complete"), ("a", "complete")]


def test_copy_takes_the_answer_or_one_of_its_code_blocks() -> None:
    answer = "First\n\n```python\nprint('a')\n```\n\n1. item\n   ~~~\n   two\n   ~~~\n\n````\n```\nopen"
    conversation = talk(None, [answer])
    with pytest.raises(UsageError, match="no answer"):
        conversation.copy()
    list(conversation.send("q"))
    assert conversation.copy() == answer
    assert [conversation.copy(n) for n in (1, 2, 3)] == ["print('a')\n", "two\n", "```\nopen"]
    for n in (0, 4, -1):
        with pytest.raises(UsageError, match=f"no code block {n}"):
            conversation.copy(n)
    assert conversation.code_blocks == [conversation.copy(n) for n in (1, 2, 3)]
    plain = talk(None, ["none"])
    list(plain.send("q"))
    with pytest.raises(UsageError, match=r"no code block\."):
        plain.copy(1)
