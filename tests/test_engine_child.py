"""What an engine process does while nobody asks for anything."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from checkout import CHECKOUT
from waiting import wait_for

from runner.bench.child import BenchChild
from runner.config import LoadOptions
from runner.engine import Engine
from runner.engine_child import Outbox, _Inbox
from runner.engine_process import EngineProcess
from runner.paths import user_paths


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

    def meanwhile() -> Iterator[None]:
        pytest.fail("it was begun")
        yield

    assert inbox.next(meanwhile())[0]["id"] == 7


def test_what_is_done_meanwhile_goes_on_until_there_is_a_request() -> None:
    inbox, done = _Inbox(), 0

    def meanwhile() -> Iterator[None]:
        nonlocal done
        for done in range(1, 9):
            if done == 3:
                ask(inbox, 7)
            yield

    assert inbox.next(meanwhile())[0]["id"] == 7
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
    monkeypatch.setattr(child.engine.backend, "get_ready", lambda: pytest.fail("it did"))
    assert not list(child.get_ready())


def test_an_engine_that_cannot_get_ready_answers_all_the_same(
    script: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine = Engine(user_paths())
    assert not list(engine.get_ready())  # nothing is loaded
    list(engine.load(script, LoadOptions()))
    assert not list(engine.get_ready())

    def pieces() -> Iterator[None]:
        yield
        raise MemoryError

    monkeypatch.setattr(engine.backend, "get_ready", pieces)
    assert list(engine.get_ready()) == [None]
    assert "MemoryError" in caplog.text
    engine.close()
