"""The chat's engine behind its thread: what it tells, in which order, and what stops, waits, fails and comes back."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import pytest
from waiting import PATIENCE_S, has_ended, wait_for

from runner.config import LoadOptions
from runner.errors import BusyError, UsageError
from runner.events import TextDelta
from runner.paths import user_paths
from runner.settings import load_settings
from runner.store import Store
from runner.tui.chat_engine import ChatEngine
from runner.tui.messages import (
    AnswerBegan,
    AnswerEnded,
    AnswerStep,
    AnswerStopping,
    EngineMessage,
    LoadBegan,
    LoadEnded,
    Unloaded,
)
from runner.tui.services import Services


class Told:
    """An engine, and what it has told."""

    def __init__(self, model: str) -> None:
        paths = user_paths()
        self.store = Store(paths.database)
        self._queue: SimpleQueue[Any] = SimpleQueue()
        services = Services(
            paths=paths,
            settings=load_settings(paths),
            load_options=LoadOptions(),
            store=self.store,
            model=model,
            is_offline=True,
        )
        self.engine = ChatEngine(services, self._queue.put)
        self.engine.start()

    def until(self, kind: type[EngineMessage]) -> list[EngineMessage]:
        """What is told up to the next message of that kind, which is the last."""
        told = []
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                told.append(self._queue.get(timeout=max(0.01, deadline - time.monotonic())))
            except Empty:
                raise AssertionError(f"no {kind.__name__} came, but {told}") from None
            if isinstance(told[-1], kind):
                return told

    def last(self, kind: type[EngineMessage]) -> Any:
        return self.until(kind)[-1]


@pytest.fixture
def script(tmp_path: Path) -> Callable[..., str]:
    def write(*replies: object, **settings: object) -> str:
        path = tmp_path / "a.script.json"
        path.write_text(json.dumps({"replies": replies, **settings}))
        return str(path)

    return write


@pytest.fixture
def told(script: Callable[..., str]) -> Iterator[Callable[..., Told]]:
    made: list[Told] = []

    def make(*replies: object, **settings: object) -> Told:
        made.append(Told(script(*replies, **settings)))
        return made[-1]

    yield make
    for one in made:
        one.engine.close()
        one.engine.wait(10)
        one.store.close()


def text_of(messages: list[EngineMessage]) -> str:
    steps = (message.event for message in messages if isinstance(message, AnswerStep))
    return "".join(event.text for event in steps if isinstance(event, TextDelta))


def test_a_question_loads_the_model_and_is_answered_and_kept(told: Callable[..., Told]) -> None:
    chat = told("Hello there.")
    chat.engine.send("Hi")
    messages = chat.until(AnswerEnded)
    kinds = [type(message) for message in messages if not isinstance(message, AnswerStep)]
    assert kinds[:2] == [AnswerBegan, LoadBegan]
    assert [message.state for message in messages if isinstance(message, LoadEnded)] == ["ready"]
    assert text_of(messages) == "Hello there."
    end = messages[-1]
    assert isinstance(end, AnswerEnded)
    assert end.turn is not None
    assert (end.turn.content, end.turn.state, end.state, end.unsent) == ("Hello there.", "complete", "ready", "")
    id = chat.engine.conversation.session_id
    assert id is not None
    assert [turn.content for turn in chat.store.turns(id)] == ["Hi", "Hello there."]


def test_questions_wait_for_the_load_and_are_answered_in_order(told: Callable[..., Told]) -> None:
    chat = told("one", "two", load_s=0.3)
    chat.engine.open(chat.engine.model)
    chat.engine.send("first")
    chat.engine.send("second")
    assert chat.engine.is_busy
    assert text_of(chat.until(AnswerEnded)) == "one"
    assert text_of(chat.until(AnswerEnded)) == "two"
    assert chat.engine.state == "ready"
    assert not chat.engine.is_busy
    assert [turn.content for turn in chat.engine.conversation.turns] == ["first", "one", "second", "two"]


def test_stopping_keeps_what_came_and_gives_back_what_waits(told: Callable[..., Told]) -> None:
    chat = told({"text": "word " * 4000, "token_s": 0.01})
    chat.engine.send("go")
    while not text_of([chat.last(AnswerStep)]):
        pass
    chat.engine.send("later")
    began = time.monotonic()
    (pid,) = chat.engine.pids()
    os.kill(pid, signal.SIGSTOP)
    chat.engine.stop()
    assert chat.engine.state == "stopping"
    assert chat.last(AnswerStopping).state == "stopping"  # said at once: an engine that hangs tells nothing more
    os.kill(pid, signal.SIGCONT)
    first, second = chat.last(AnswerEnded), chat.last(AnswerEnded)
    assert time.monotonic() - began < 20  # the answer would take 200 s
    assert first.turn.state == "cancelled"
    assert ("word " * 4000).startswith(first.turn.content)
    assert (second.turn, second.unsent) == (None, "later")
    chat.engine.send("again")
    assert isinstance(chat.last(AnswerStep), AnswerStep)


def test_an_answer_that_does_not_stop_ends_with_the_engine_when_asked_again(
    told: Callable[..., Told], monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = told({"text": "one word after the other", "fail": "busy", "fail_after": 1})
    chat.engine.send("go")
    while not text_of([chat.last(AnswerStep)]):
        pass
    chat.engine.insist()
    chat.engine.insist()  # by a hand that is not sure of the first
    (pid,) = chat.engine.pids()
    monkeypatch.setattr("runner.tui.chat_engine._PATIENCE_S", 0.0)
    chat.engine.stop()  # as what opens another chat does
    chat.engine.insist()
    ended = chat.last(AnswerEnded)
    assert (ended.state, ended.turn.content, ended.error.message) == ("empty", "o", "The engine was ended.")
    assert has_ended(pid)
    chat.engine.open(chat.engine.model)
    assert chat.last(LoadEnded).loaded is not None


def test_a_load_that_is_stopped_is_no_error_and_gives_the_question_back(told: Callable[..., Told]) -> None:
    chat = told("never", load_s=30)
    chat.engine.send("hurry")
    chat.last(LoadBegan)
    chat.engine.stop()
    ended = chat.last(LoadEnded)
    assert (ended.loaded, ended.error, ended.state) == (None, None, "empty")
    assert chat.last(AnswerEnded).unsent == "hurry"


def test_a_model_that_is_not_there_is_an_error_of_the_load_and_the_question_comes_back(
    told: Callable[..., Told],
) -> None:
    chat = told("fine")
    good = chat.engine.model
    chat.engine.open(good + ".gone")
    refused = chat.last(LoadEnded)
    assert refused.error.message
    assert (refused.loaded, refused.next_model) == (None, good)
    chat.engine.open(good)
    ended = chat.last(LoadEnded)
    assert ended.loaded is not None
    assert (chat.engine.model, ended.next_model) == (good, "")
    chat.engine.open(good + ".gone", LoadOptions(speculation="off"))
    refused = chat.last(LoadEnded)  # and the one before is still there, as it was
    assert refused.error.message
    assert (refused.state, refused.loaded, refused.next_model) == ("ready", ended.loaded, good)
    assert refused.options == chat.engine.options != LoadOptions(speculation="off")
    chat.engine.send("one")
    assert text_of(chat.until(AnswerEnded)) == "fine"


def test_an_engine_that_dies_in_an_answer_leaves_the_part_and_the_next_question_loads_again(
    told: Callable[..., Told],
) -> None:
    chat = told({"text": "partial and more", "fail": "kill", "fail_after": 8, "token_s": 0.02}, "whole")
    chat.engine.send("one")
    ended = chat.last(AnswerEnded)
    assert ended.error is not None
    assert "SIGKILL" in ended.error.message
    assert ended.turn.state == "error"
    assert ended.turn.content.startswith("partial")
    assert ended.state == "empty"
    chat.engine.send("two")
    assert chat.last(LoadEnded).loaded is not None
    assert text_of(chat.until(AnswerEnded)) == "whole"


def test_a_death_that_nobody_saw_is_noticed(told: Callable[..., Told]) -> None:
    chat = told("x")
    chat.engine.open(chat.engine.model)
    chat.last(LoadEnded)
    chat.engine.notice_death()
    os.kill(chat.engine.pids()[0], signal.SIGKILL)
    wait_for(lambda: not chat.engine.pids())
    chat.engine.notice_death()
    assert chat.last(Unloaded).state == "empty"


def test_regenerating_answers_the_same_question_again(told: Callable[..., Told]) -> None:
    chat = told("first", "second")
    with pytest.raises(UsageError):
        chat.engine.regenerate()
    chat.engine.send("q")
    chat.until(AnswerEnded)
    chat.engine.regenerate()
    began = chat.last(AnswerBegan)
    assert (began.question.content, began.is_new) == ("q", False)
    chat.until(AnswerEnded)
    assert [turn.role for turn in chat.engine.conversation.turns] == ["user", "assistant"]
    chat.engine.edit_last("p")
    chat.until(AnswerEnded)
    assert [turn.content for turn in chat.engine.conversation.turns][:1] == ["p"]


def test_unloading_ends_the_engines_process(told: Callable[..., Told]) -> None:
    chat = told("x")
    chat.engine.open(chat.engine.model)
    chat.last(LoadEnded)
    chat.engine.unload("room is needed")
    assert chat.last(Unloaded).why == "room is needed"
    assert chat.engine.pids() == ()


def test_own_parameters_stay_when_a_model_is_loaded(told: Callable[..., Told]) -> None:
    chat = told("x")
    chat.engine.configure(own_params={"temperature": 0.25})
    with pytest.raises(UsageError):
        chat.engine.configure(own_params={"temperature": -1})
    chat.engine.open(chat.engine.model)
    chat.last(LoadEnded)
    assert chat.engine.conversation.params.temperature == 0.25
    with pytest.raises(UsageError):
        chat.engine.send("  ")


def test_while_a_benchmark_has_the_machine_a_question_comes_back(told: Callable[..., Told]) -> None:
    chat = told("Hello.")
    chat.engine.lend("demo")
    chat.engine.send("Hi")
    messages = chat.until(AnswerEnded)
    (refused,) = (message for message in messages if isinstance(message, LoadEnded))
    assert isinstance(refused.error, BusyError)
    assert "benchmark" in refused.error.message
    assert messages[-1] == AnswerEnded("empty", None, None, "Hi")
    chat.engine.take_back()
    chat.engine.send("Hi")
    assert chat.last(AnswerEnded).turn.content == "Hello."
