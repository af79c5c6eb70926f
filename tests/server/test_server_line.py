"""The line with a real engine, at the moments when its thread must not be lost and an answer must not be taken back."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from waiting import has_ended, wait_for

from runner.config import ChatOptions, LoadOptions, SamplingParams
from runner.engine_process import EngineProcess
from runner.errors import RunnerError
from runner.events import ChatEvent, Finished, Loaded
from runner.paths import user_paths
from runner.server.line import AnswerLine, Ticket
from runner.server.refusal import Refusal
from runner.server.serving import _caught_signals, _Server
from runner.types import Message

ASK = [Message(role="user", content="x")]


@pytest.fixture
def engine() -> Iterator[EngineProcess]:
    with EngineProcess(user_paths()) as made:
        yield made


@pytest.fixture
def load(engine: EngineProcess, tmp_path: Path) -> Callable[[], Loaded]:
    path = tmp_path / "a.script.json"
    path.write_text(json.dumps({"replies": ["done"]}))

    def loaded() -> Loaded:
        *_, last = engine.load(str(path), LoadOptions())
        assert isinstance(last, Loaded)
        return last

    return loaded


def gone() -> Loaded:
    raise SystemExit  # as where the narration has no reader


def ticket(kind: type[Ticket] = Ticket) -> Ticket:
    return kind(ASK, SamplingParams(), ChatOptions())


async def events(made: Ticket) -> list[ChatEvent]:
    found = []
    async with asyncio.timeout(60):
        while (event := await made.next()) is not None:
            found.append(event)
    return found


async def until(line: AnswerLine, state: str) -> None:
    while line.state != state:
        await asyncio.sleep(0.01)


def test_a_line_without_room_takes_the_one_that_is_answered_at_once(engine: EngineProcess) -> None:
    async def main() -> None:
        line = AnswerLine(engine, gone, room=0)
        line.enter(ticket())
        with pytest.raises(Refusal) as caught:
            line.enter(ticket())
        assert (caught.value.status, caught.value.headers) == (429, {"Retry-After": "1"})
        line._last_s = 100.0
        with pytest.raises(Refusal) as caught:
            line.enter(ticket())
        assert caught.value.headers == {"Retry-After": "60"}

    asyncio.run(main())


def test_a_load_that_would_end_the_thread_is_a_failure_that_is_told(engine: EngineProcess) -> None:
    results: list[Loaded | Exception] = []
    line = AnswerLine(engine, gone, room=1, on_first_load=results.append)
    with closing(line):
        line.start()
        line._thread.join(60)
    assert isinstance(results[0], RunnerError)
    assert "SystemExit" in results[0].message


def test_a_load_that_would_end_the_thread_later_ends_one_answer_alone(
    engine: EngineProcess, load: Callable[[], Loaded], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runner.server.line._LOOK_S", 0.02)
    loads = iter([load, gone, gone, load])
    line = AnswerLine(engine, lambda: next(loads)(), room=1)

    async def main() -> None:
        line.start()
        async with asyncio.timeout(60):
            await until(line, "ready")
            engine.kill()
            await until(line, "failed")
        for is_answered in (False, True):
            line.enter(made := ticket())
            if is_answered:
                assert isinstance((await events(made))[-1], Finished)
            else:
                with pytest.raises(RunnerError, match="SystemExit"):
                    await events(made)
                assert line.state == "failed"

    with closing(line):
        asyncio.run(main())


def test_an_answer_that_is_whole_when_the_server_stops_stays_whole(
    engine: EngineProcess, load: Callable[[], Loaded]
) -> None:
    line = AnswerLine(engine, load, room=1)

    class StopsAtItsEnd(Ticket):
        def tell(self, event: ChatEvent) -> None:
            super().tell(event)
            if isinstance(event, Finished):
                line.stop()

    async def main() -> list[ChatEvent]:
        line.start()
        line.enter(made := ticket(StopsAtItsEnd))
        return await events(made)

    with closing(line):
        assert isinstance(asyncio.run(main())[-1], Finished)


async def suspended(line: AnswerLine, engine: EngineProcess) -> int:
    """Start the line, and suspend the engine once it is ready: it hears nothing more. Returns its process's id."""
    line.start()
    await until(line, "ready")
    pid = engine.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    return pid


def test_a_second_signal_waits_for_no_engine_that_does_not_stop(
    engine: EngineProcess, load: Callable[[], Loaded], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runner.engine_process._CANCEL_GRACE_S", 600.0)  # after which it would be ended anyway
    line = AnswerLine(engine, load, room=1)

    async def main() -> None:
        async with asyncio.timeout(60):
            pid = await suspended(line, engine)
            with _caught_signals(asyncio.get_running_loop(), _Server(None, 1), line, engine) as caught:  # type: ignore[arg-type]
                line.enter(made := ticket())
                os.kill(os.getpid(), signal.SIGTERM)
                while len(caught) < 1:
                    await asyncio.sleep(0.01)
                assert not has_ended(pid)
                os.kill(os.getpid(), signal.SIGTERM)
                while not has_ended(pid):
                    await asyncio.sleep(0.01)
            with pytest.raises(Refusal, match="shutting down"):
                await events(made)

    with closing(line):
        asyncio.run(main())


def test_a_line_that_closes_ends_an_engine_that_does_not_stop(
    engine: EngineProcess, load: Callable[[], Loaded], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runner.engine_process._CANCEL_GRACE_S", 600.0)  # after which it would be ended anyway
    monkeypatch.setattr("runner.server.line._GOODBYE_S", 0.1)
    line = AnswerLine(engine, load, room=1)

    async def main() -> None:
        async with asyncio.timeout(60):
            pid = await suspended(line, engine)
        line.enter(ticket())
        wait_for(lambda: line._is_asked)
        await asyncio.to_thread(line.close)
        wait_for(lambda: has_ended(pid) and not line._thread.is_alive())

    asyncio.run(main())
