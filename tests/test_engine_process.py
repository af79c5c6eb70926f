"""What only an engine in a child process can go through: its death, its silence, and its parent's death."""

from __future__ import annotations

import errno
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
from checkout import CHECKOUT
from gguf import GGUFWriter
from waiting import has_ended, wait_for

from runner.config import LoadOptions, SamplingParams
from runner.engine_process import EngineProcess
from runner.errors import EngineDied, RunnerError, UnknownModel, UsageError
from runner.events import Finished, Progress, TextDelta
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


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (PermissionError(13, "Permission denied"), "may be run"),
        (FileNotFoundError(2, "No such file"), "Install runner again"),
        (BlockingIOError(11, "Resource temporarily unavailable"), "Make room"),
    ],
)
def test_a_child_that_cannot_be_started_names_the_remedy_of_its_reason(
    engine: EngineProcess, monkeypatch: pytest.MonkeyPatch, error: OSError, remedy: str
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("subprocess.Popen", refuse)
    with pytest.raises(EngineDied, match="cannot be started") as died:
        load(engine, "demo")
    assert remedy in died.value.hint


def test_a_child_killed_from_outside_is_noticed_at_once(engine: EngineProcess, script: Callable[..., str]) -> None:
    load(engine, script({"text": "slow " * 1000, "token_s": 0.02}))
    killed_at = 0.0
    with pytest.raises(EngineDied) as died:
        for event in engine.chat(ASK, GREEDY):
            if isinstance(event, TextDelta) and not killed_at:
                killed_at = time.monotonic()
                assert engine.pid is not None
                os.kill(engine.pid, signal.SIGKILL)
    assert "memory ran out" in died.value.hint
    assert time.monotonic() - killed_at < 20  # the answer would take 100 s


@pytest.mark.parametrize("how", ["hang", "busy"])
def test_a_child_that_does_not_hear_cancel_is_ended(
    engine: EngineProcess, script: Callable[..., str], monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr("runner.engine_process._BUSY_GRACE_S", 600.0 if how == "hang" else 0.1)
    load(engine, script({"text": "abcdef", "fail": how}))
    cancelling = threading.Timer(0.1, engine.cancel)
    with pytest.raises(EngineDied, match="did not stop") as ended:
        for event in engine.chat(ASK, GREEDY):
            if isinstance(event, Progress) and event.done == event.total:  # what comes next looks for no cancel
                cancelling.start()
    cancelling.join()
    assert "memory" not in ended.value.hint, "runner itself ended it"
    load(engine, script("fine"))
    assert "".join(received(engine)) == "fine"


def test_a_child_that_computes_is_given_time_to_hear_cancel(engine: EngineProcess, script: Callable[..., str]) -> None:
    load(engine, script({"text": "abcdef", "fail": "busy"}))
    events = []
    for event in engine.chat(ASK, GREEDY):
        events.append(event)
        if isinstance(event, Progress) and event.done == event.total:  # what comes next looks for no cancel for 3 s
            engine.cancel()
    assert isinstance(events[-1], Finished)
    assert events[-1].reason == "cancelled"
    assert engine.loaded is not None


def test_a_cancel_that_finds_no_room_behind_a_long_request_comes_once_there_is_some(
    engine: EngineProcess, script: Callable[..., str]
) -> None:
    for _ in engine.load(script({"text": "slow " * 1000, "token_s": 0.02}), LoadOptions(ctx_size=2**17)):
        pass
    assert engine.pid is not None
    child = psutil.Process(engine.pid)
    child.suspend()
    wait_for(lambda: child.status() == psutil.STATUS_STOPPED)  # before that it would read on

    def cancel() -> None:
        wait_for(lambda: engine._active and not engine._is_sending)
        engine.cancel()
        is_sent.append(engine._has_sent_cancel)
        child.resume()

    is_sent: list[bool] = []
    threading.Thread(target=cancel).start()
    long = [Message(role="user", content="x" * (2**16 - 1024))]  # as much as a pipe holds
    *_, end = engine.chat(long, GREEDY)
    assert isinstance(end, Finished)
    assert (end.reason, is_sent) == ("cancelled", [False])


def test_a_reader_that_was_held_up_ends_no_engine_that_has_stopped_meanwhile(
    engine: EngineProcess, script: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    load(engine, script({"text": "slow " * 1000, "token_s": 0.01}))
    away_s = 0.0
    monkeypatch.setattr("runner.engine_process.time", SimpleNamespace(monotonic=lambda: time.monotonic() + away_s))
    for event in engine.chat(ASK, GREEDY):
        if isinstance(event, TextDelta) and not away_s:
            engine.cancel()
            away_s = 3600.0  # that the reader takes for this event
    assert away_s
    assert engine.loaded is not None


def test_a_child_that_falls_silent_is_ended(
    engine: EngineProcess, script: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    load(engine, script({"text": "slow " * 1000, "token_s": 0.02}))
    monkeypatch.setattr("runner.engine_process._SILENCE_S", 1.5)
    with pytest.raises(EngineDied, match="did not respond"):
        for event in engine.chat(ASK, GREEDY):
            if isinstance(event, TextDelta) and engine.pid:
                os.kill(engine.pid, signal.SIGSTOP)


@pytest.fixture
def slow_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """What the next engine waits for when it loads, until somebody writes there; silence is taken for a hang soon."""
    pipe = tmp_path / "disk"
    os.mkfifo(pipe)
    monkeypatch.setenv("PYTHONPATH", str(CHECKOUT))
    monkeypatch.setenv("DISK_CHILD", str(pipe))
    monkeypatch.setattr(EngineProcess, "child_module", "tests.disk_child")
    monkeypatch.setattr("runner.engine_process._SILENCE_S", 2.0)
    yield pipe
    os.close(os.open(pipe, os.O_RDWR))  # what an engine that was ended had begun to start waits on


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere such a wait is not seen")
def test_a_silent_child_that_waits_for_a_disk_is_not_ended(script: Callable[..., str], slow_disk: Path) -> None:
    def answer() -> None:
        wait_for(lambda: psutil.Process(engine.pid).status() == psutil.STATUS_DISK_SLEEP)
        time.sleep(3.0)  # longer than a silence may be
        os.close(os.open(slow_disk, os.O_RDWR))

    with EngineProcess(user_paths()) as engine:
        engine.start()
        threading.Thread(target=answer).start()
        load(engine, script("fine"))
        assert "".join(received(engine)) == "fine"


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere such a wait is not seen")
def test_a_disk_is_not_waited_for_without_end(
    script: Callable[..., str], slow_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runner.engine_process._DISK_PATIENCE_S", 1.0)
    assert slow_disk.exists()
    with EngineProcess(user_paths()) as engine, pytest.raises(EngineDied, match="did not respond"):
        load(engine, script("fine"))


def test_the_hard_stop_ends_an_answer(engine: EngineProcess, script: Callable[..., str]) -> None:
    load(engine, script({"text": "slow " * 1000, "token_s": 0.02}))
    with pytest.raises(EngineDied):
        for event in engine.chat(ASK, GREEDY):
            if isinstance(event, TextDelta):
                engine.kill()


class Undying(subprocess.Popen[bytes]):
    """A process that does not end when it is killed, as one that waits for a driver: the kill is not delivered."""

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)


@pytest.mark.parametrize("how", ["cancel", "kill", "close"])
def test_an_engine_that_cannot_even_be_killed_is_not_waited_for(
    script: Callable[..., str], monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr("subprocess.Popen", Undying)
    monkeypatch.setattr("runner.engine_process._EXIT_GRACE_S", 0.2)
    monkeypatch.setattr("runner.engine_process._TEARDOWN_S", 0.5)
    monkeypatch.setattr("runner.engine_process._CANCEL_GRACE_S", 0.2)
    engine = EngineProcess(user_paths())
    load(engine, script({"text": "slow " * 1000, "token_s": 0.02}))
    pid, child = engine.pid, engine._child
    assert pid is not None
    assert child is not None
    rescue = threading.Timer(10.0, child.send_signal, (signal.SIGKILL,))  # of who waits without end
    rescue.start()
    try:
        events = engine.chat(ASK, GREEDY)
        next(events)
        os.kill(pid, signal.SIGSTOP)
        if how == "close":
            engine.close()
            return
        getattr(engine, how)()
        with pytest.raises(EngineDied) as died:
            list(events)
        assert f"Process {pid} is held up" in died.value.hint
    finally:
        assert rescue.is_alive()
        rescue.cancel()
        child.send_signal(signal.SIGKILL)  # which does nothing where something has let it go on, and end
        child.wait()


def test_ps_names_what_is_loaded_whatever_failed_since(engine: EngineProcess, script: Callable[..., str]) -> None:
    load(engine, "demo")
    with pytest.raises(UnknownModel):
        load(engine, "dmo")
    assert [entry.model for entry in running(user_paths().engines)] == ["demo"]
    load(engine, script("fine"))
    assert [entry.backend for entry in running(user_paths().engines)] == ["fake"]
    with pytest.raises(RunnerError):
        list(engine.load("demo", LoadOptions(ctx_size=2**26)))
    assert list(running(user_paths().engines)) == []


def test_closing_ends_the_child_and_its_entry_in_ps(engine: EngineProcess) -> None:
    load(engine, "demo")
    (entry,) = running(user_paths().engines)
    assert (entry.pid, entry.model, entry.backend) == (engine.pid, "demo", "llamacpp")
    assert Path(entry.path).name == "demo-q8_0.gguf"
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
    wait_for(lambda: has_ended(child), "the engine outlived its parent")


def test_a_library_that_aborts_on_a_damaged_file_is_quoted(engine: EngineProcess, tmp_path: Path) -> None:
    path = tmp_path / "damaged.gguf"
    writer = GGUFWriter(path, "llama")
    for add in (writer.add_block_count, writer.add_head_count, writer.add_head_count_kv):
        add(1)
    for add in (writer.add_context_length, writer.add_embedding_length, writer.add_feed_forward_length):
        add(32)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(["same", "same", "a", "b"])  # llama.cpp ends the process over a token that is there twice
    writer.add_token_types([1, 1, 1, 1])
    writer.add_token_merges(["a b"])
    writer.add_tensor("token_embd.weight", np.zeros((4, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(EngineDied, match=r"SIGABRT.*damaged\.gguf") as died:
        load(engine, str(path))
    assert "It said: llama-vocab.cpp:" in died.value.hint
    assert "GGML_ASSERT" in died.value.hint
    assert "fetch it again" in died.value.hint


def test_a_pause_of_everything_is_no_hang(
    engine: EngineProcess, script: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    load(engine, script({"text": "slow " * 12, "token_s": 0.01}))
    real, n_looks, slept_s = select.select, 0, 0.0

    def paused(*arguments: Any) -> Any:
        """At the second look, the first for an event, all is frozen for an hour, and we are the first to go on."""
        nonlocal n_looks, slept_s
        n_looks += 1
        if n_looks != 2 or engine.pid is None:
            return real(*arguments)
        os.kill(engine.pid, signal.SIGSTOP)
        slept_s = 3600.0
        threading.Timer(0.2, os.kill, (engine.pid, signal.SIGCONT)).start()
        return [], [], []

    monkeypatch.setattr("runner.engine_process.select.select", paused)
    monkeypatch.setattr("runner.engine_process.time", SimpleNamespace(monotonic=lambda: time.monotonic() + slept_s))
    assert "".join(received(engine)) == "slow " * 12
    assert slept_s


def test_closing_from_another_thread_ends_the_answer(engine: EngineProcess, script: Callable[..., str]) -> None:
    load(engine, script({"text": "slow " * 1000, "token_s": 0.02}))
    closing = threading.Timer(0.1, engine.close)
    with pytest.raises(EngineDied):
        for event in engine.chat(ASK, GREEDY):
            if isinstance(event, TextDelta) and closing.ident is None:
                closing.start()
    load(engine, script("fine"))
    assert "".join(received(engine)) == "fine"


def test_a_child_that_reads_nothing_is_ended(
    engine: EngineProcess, script: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    load(engine, script("fine"))
    assert engine.pid is not None
    monkeypatch.setattr("runner.engine_process._SILENCE_S", 0.5)
    os.kill(engine.pid, signal.SIGSTOP)
    with pytest.raises(EngineDied, match="did not respond"):
        list(engine.chat([Message(role="user", content="x" * 1_000_000)], GREEDY))


def test_a_request_that_cannot_be_read_ends_the_child(engine: EngineProcess, script: Callable[..., str]) -> None:
    load(engine, script({"text": "slow " * 1000, "token_s": 0.02}))
    with pytest.raises(EngineDied):
        for event in engine.chat(ASK, GREEDY):
            if isinstance(event, TextDelta):
                child = engine._child
                assert child is not None
                assert child.stdin is not None
                os.write(child.stdin.fileno(), b'{"op": "ch\n')


def test_a_model_runs_where_no_file_can_be_written(engine: EngineProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    state = user_paths().state
    state.parent.mkdir(parents=True, exist_ok=True)
    state.write_text("in the way of the directory")
    monkeypatch.setattr("tempfile.TemporaryFile", _no_room)
    load(engine, "demo")
    assert "".join(received(engine))


def _no_room(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_an_engine_that_cannot_be_started_says_why(engine: EngineProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("subprocess.Popen", _no_room)
    n_open = psutil.Process().num_fds()
    with pytest.raises(EngineDied, match="No space left") as died:
        load(engine, "demo")
    assert died.value.hint
    assert psutil.Process().num_fds() == n_open


def test_a_load_that_is_refused_leaves_the_model_loaded(engine: EngineProcess, script: Callable[..., str]) -> None:
    path = script({"text": "slow " * 100, "token_s": 0.02})
    load(engine, path)
    answer = engine.chat(ASK, GREEDY)
    next(answer)
    with pytest.raises(UsageError, match="another request"):
        load(engine, path)
    assert engine.loaded is not None
    answer.close()  # type: ignore[attr-defined]


def test_a_killed_child_leaves_no_entry_behind(engine: EngineProcess) -> None:
    load(engine, "demo")
    engine.kill()
    with pytest.raises(EngineDied):
        received(engine)
    assert list(user_paths().engines.iterdir()) == []


def test_a_child_that_was_killed_after_its_answer_loads_nothing_more(
    engine: EngineProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill comes at the answer's last words, which were all sent: nobody has heard of it, and it is not dead yet."""
    load(engine, "demo")
    engine.kill()
    assert engine._child is not None
    monkeypatch.setattr(engine._child, "poll", lambda: None)
    load(engine, "demo")
    assert received(engine)


def test_a_load_that_was_over_when_it_was_closed_has_loaded(engine: EngineProcess, script: Callable[..., str]) -> None:
    path = script("fine")
    loading = engine.load(path, LoadOptions())
    next(loading)
    wait_for(lambda: list(running(user_paths().engines)), "it did not load")
    loading.close()  # type: ignore[attr-defined]
    assert engine.loaded is not None
    assert "".join(received(engine)) == "fine"
