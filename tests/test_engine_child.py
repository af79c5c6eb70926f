"""What an engine process does while nobody asks for anything."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from checkout import CHECKOUT
from waiting import wait_for

from runner.bench.child import BenchChild
from runner.config import LoadOptions, SamplingParams
from runner.engine import Engine
from runner.engine_child import Outbox, _Inbox
from runner.engine_process import EngineProcess
from runner.paths import user_paths
from runner.templates.sandbox import compile_template
from runner.types import CancelToken, Message


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "a.script.json"
    path.write_text(json.dumps({"replies": ["fine"]}))
    return str(path)


def ask(inbox: _Inbox, number: int) -> None:
    inbox.read(io.BytesIO(json.dumps({"op": "unload", "id": number}).encode() + b"\n"), lambda: None)


def test_who_has_another_request_at_once_waits_for_nothing_that_is_done_meanwhile() -> None:
    inbox = _Inbox()
    ask(inbox, 7)

    def meanwhile(_cancel: CancelToken) -> Iterator[None]:
        pytest.fail("it was begun")
        yield

    assert inbox.next(meanwhile)[0]["id"] == 7


def test_what_is_done_meanwhile_goes_on_until_there_is_a_request() -> None:
    inbox, done = _Inbox(), 0

    def meanwhile(cancel: CancelToken) -> Iterator[None]:
        nonlocal done
        for done in range(1, 9):
            assert not cancel.is_cancelled
            if done == 3:
                ask(inbox, 7)
                assert cancel.is_cancelled  # a piece may be long
            yield

    for _ in range(2):
        assert inbox.next(meanwhile)[0]["id"] == 7
        assert done == 3


def test_a_model_that_is_loaded_gets_ready(tmp_path: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(CHECKOUT))
    monkeypatch.setenv("READY_CHILD", str(tmp_path))
    monkeypatch.setattr(EngineProcess, "child_module", "tests.ready_child")
    with EngineProcess(user_paths()) as engine:
        list(engine.load(script, LoadOptions()))
        wait_for((tmp_path / "ready").exists, "it did not get ready")


def test_a_process_that_measures_does_nothing_while_another_one_is_measured(
    script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = BenchChild(user_paths(), Outbox(-1, lambda: None))
    list(child.engine.load(script, LoadOptions()))
    monkeypatch.setattr(child.engine, "get_ready", lambda _: pytest.fail("it did"))
    assert not list(child.get_ready(CancelToken()))


@pytest.fixture
def loaded(script: str) -> Iterator[Engine]:
    engine = Engine(user_paths())
    assert not list(engine.get_ready(CancelToken()))  # nothing is there to get ready
    list(engine.load(script, LoadOptions()))
    yield engine
    engine.close()


def test_an_engine_that_has_got_ready_compiles_no_template_for_a_message(loaded: Engine) -> None:
    compile_template.cache_clear()
    list(loaded.get_ready(CancelToken()))
    assert compile_template.cache_info().misses == 1
    list(loaded.chat([Message(role="user", content="x")], SamplingParams(temperature=0)))
    assert compile_template.cache_info().misses == 1


def test_an_engine_that_cannot_get_ready_answers_all_the_same(
    loaded: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def pieces(_cancel: CancelToken) -> Iterator[None]:
        yield
        raise MemoryError

    monkeypatch.setattr(loaded.backend, "get_ready", pieces)
    loaded.backend.info = replace(loaded.backend.info, chat_template=None)  # which who asks is told
    assert not caplog.text
    assert list(loaded.get_ready(CancelToken())) == [None, None]
    assert "MemoryError" in caplog.text
