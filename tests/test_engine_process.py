"""What only an engine in a child process can go through: its death, its silence, and its parent's death."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from runner.config import LoadOptions, SamplingParams
from runner.engine_process import EngineProcess
from runner.errors import EngineDied
from runner.events import TextDelta
from runner.paths import user_paths
from runner.running import running
from runner.types import Message

ASK = [Message(role="user", content="x")]
GREEDY = SamplingParams(temperature=0)


@pytest.fixture
def engine() -> Iterator[EngineProcess]:
    with EngineProcess(user_paths()) as made:
        yield made


@pytest.fixture
def script(tmp_path: Path) -> Callable[..., str]:
    def write(*replies: object) -> str:
        path = tmp_path / "a.script.json"
        path.write_text(json.dumps({"replies": replies}))
        return str(path)

    return write


def load(engine: EngineProcess, model: str) -> None:
    for _ in engine.load(model, LoadOptions()):
        pass


def received(engine: EngineProcess) -> list[str]:
    return [event.text for event in engine.chat(ASK, GREEDY) if isinstance(event, TextDelta)]


@pytest.mark.parametrize(("how", "words"), [("kill", "SIGKILL"), ("segv", "SIGSEGV"), ("exit", "exit status 3")])
def test_a_child_that_dies_in_an_answer_leaves_its_text_and_a_reason(
    engine: EngineProcess, script: Callable[..., str], how: str, words: str
) -> None:
    load(engine, script({"text": "abcdef", "token_s": 0.05, "fail": how, "fail_after": 4}))
    text = ""
    with pytest.raises(EngineDied, match=words) as died:
        for event in engine.chat(ASK, GREEDY):
            text += event.text if isinstance(event, TextDelta) else ""
    assert text in ("abc", "abcd")
    assert "again" in died.value.hint
    assert engine.loaded is None
    load(engine, script("fine"))
    assert "".join(received(engine)) == "fine"


def test_a_child_killed_from_outside_is_noticed_at_once(engine: EngineProcess, script: Callable[..., str]) -> None:
    load(engine, script({"text": "slow " * 1000, "token_s": 0.02}))
    killed_at = 0.0
    with pytest.raises(EngineDied):
        for event in engine.chat(ASK, GREEDY):
            if isinstance(event, TextDelta) and not killed_at:
                killed_at = time.monotonic()
                assert engine.pid is not None
                os.kill(engine.pid, signal.SIGKILL)
    assert time.monotonic() - killed_at < 1


def test_a_child_that_does_not_hear_cancel_is_ended(engine: EngineProcess, script: Callable[..., str]) -> None:
    load(engine, script({"text": "abcdef", "token_s": 0.03, "fail": "hang", "fail_after": 3}))
    started = time.monotonic()
    threading.Timer(0.6, engine.cancel).start()
    with pytest.raises(EngineDied, match="did not stop"):
        received(engine)
    assert time.monotonic() - started < 5
    load(engine, script("fine"))
    assert "".join(received(engine)) == "fine"


def test_a_child_that_falls_silent_is_ended(
    engine: EngineProcess, script: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runner.engine_process._SILENCE_S", 1.5)
    load(engine, script({"text": "slow " * 1000, "token_s": 0.02}))
    with pytest.raises(EngineDied, match="did not respond"):
        for event in engine.chat(ASK, GREEDY):
            if isinstance(event, TextDelta) and engine.pid:
                os.kill(engine.pid, signal.SIGSTOP)


def test_the_hard_stop_ends_an_answer(engine: EngineProcess, script: Callable[..., str]) -> None:
    load(engine, script({"text": "slow " * 1000, "token_s": 0.02}))
    with pytest.raises(EngineDied):
        for event in engine.chat(ASK, GREEDY):
            if isinstance(event, TextDelta):
                engine.kill()


def test_closing_ends_the_child_and_its_entry_in_ps(engine: EngineProcess) -> None:
    load(engine, "demo")
    (entry,) = running(user_paths().engines)
    assert (entry.pid, entry.model, entry.backend) == (engine.pid, "demo", "llamacpp")
    pid = entry.pid
    engine.close()
    assert not psutil.pid_exists(pid)
    assert list(running(user_paths().engines)) == []
    assert list(user_paths().engines.iterdir()) == []


def test_the_child_goes_when_its_parent_is_killed(script: Callable[..., str]) -> None:
    path = script({"text": "slow " * 10000, "token_s": 0.02})
    program = f"""
import sys
from runner.config import LoadOptions, SamplingParams
from runner.engine_process import EngineProcess
from runner.paths import user_paths
from runner.types import Message
engine = EngineProcess(user_paths())
for _ in engine.load({path!r}, LoadOptions()): pass
for event in engine.chat([Message(role="user", content="x")], SamplingParams()):
    print(engine.pid, flush=True)
"""
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert psutil.pid_exists(child)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 2
    while psutil.pid_exists(child) and psutil.Process(child).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline, "the engine outlived its parent by 2 s"
        time.sleep(0.02)
