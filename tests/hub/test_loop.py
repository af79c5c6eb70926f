"""Work on threads of its own: it is stopped at once, left behind, or waited for, and nothing of it stays."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any

import pytest
from waiting import PATIENCE_S, wait_for

from runner.errors import RunnerError
from runner.hub.loop import Background, _DaemonThreads, beside, in_thread
from runner.types import CancelToken


def test_there_are_as_many_threads_as_calls_at_a_time_and_they_are_used_again() -> None:
    pool, both = _DaemonThreads(), threading.Barrier(2, timeout=PATIENCE_S)

    def met() -> threading.Thread:
        both.wait()
        return threading.current_thread()

    at_once = [pool.submit(met) for _ in range(2)]
    threads = {future.result(PATIENCE_S) for future in at_once}
    assert len(threads) == 2
    assert all(thread.daemon for thread in threads)
    for _ in range(5):
        wait_for(lambda: pool._n_idle._value == 2)  # type: ignore[attr-defined]
        assert pool.submit(threading.current_thread).result(PATIENCE_S) in threads
    pool.shutdown()
    wait_for(lambda: not any(thread.is_alive() for thread in threads))


def test_what_a_call_raises_is_its_result_and_one_that_was_cancelled_is_not_made() -> None:
    pool, may_end, made = _DaemonThreads(), threading.Event(), []
    first = pool.submit(may_end.wait, PATIENCE_S)
    pool._n_idle.release()  # the next one waits for the thread that there is
    second = pool.submit(made.append, 1)
    assert second.cancel()
    may_end.set()
    assert first.result(PATIENCE_S)
    failing = pool.submit(int, "x")
    assert isinstance(failing.exception(PATIENCE_S), ValueError)
    assert made == []
    pool.shutdown()


def test_what_runs_in_the_background_is_watched_and_its_error_is_raised_at_the_end() -> None:
    may_end = threading.Event()

    async def failing() -> None:
        assert (await in_thread(threading.current_thread)).daemon  # or a process that is told to end waits for a disk
        assert await in_thread(may_end.wait, PATIENCE_S)
        raise ZeroDivisionError

    background = Background(failing())
    assert not background.wait(0.01)
    may_end.set()
    assert background.wait(PATIENCE_S)
    background.stop()  # changes nothing any more
    with pytest.raises(ZeroDivisionError):
        background.result()


def test_what_runs_in_the_background_is_stopped_where_it_waits() -> None:
    background = Background(asyncio.Event().wait())  # type: ignore[arg-type]
    background.stop()
    assert background.wait(PATIENCE_S)
    with pytest.raises(asyncio.CancelledError):
        background.result()


def test_where_no_loop_can_be_the_background_has_ended_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(main: Coroutine[Any, Any, None]) -> None:
        main.close()
        raise OSError("no more files")

    monkeypatch.setattr(asyncio, "run", none)
    background = Background(asyncio.sleep(0))
    assert background.wait(PATIENCE_S)
    background.stop()
    with pytest.raises(OSError, match="no more files"):
        background.result()


def test_a_call_beside_the_loop_is_waited_for_also_when_it_is_cancelled() -> None:
    begun, may_end, ended = threading.Event(), threading.Event(), []

    def call() -> None:
        begun.set()
        assert may_end.wait(PATIENCE_S)
        ended.append("call")
        raise ValueError

    async def main() -> None:
        task = asyncio.create_task(in_thread(call))
        assert await asyncio.to_thread(begun.wait, PATIENCE_S)
        task.cancel()
        asyncio.get_running_loop().call_later(0.05, may_end.set)
        with pytest.raises(asyncio.CancelledError):
            await task
        ended.append("task")

    asyncio.run(main())
    assert ended == ["call", "task"]


def test_a_question_that_nobody_can_cancel_is_asked_here_and_another_beside() -> None:
    here = threading.current_thread()
    assert beside(threading.current_thread, None) is here
    there = beside(threading.current_thread, CancelToken())
    assert there is not here
    wait_for(lambda: not there.is_alive())
    with pytest.raises(ValueError, match="invalid literal"):
        beside(lambda: int("x"), CancelToken())


def test_a_question_is_left_behind_when_it_is_cancelled_and_never_asked_when_it_was_before() -> None:
    cancel, may_end, asked = CancelToken(), threading.Event(), []

    def ask() -> None:
        asked.append(threading.current_thread())
        cancel.cancel()
        assert may_end.wait(PATIENCE_S)

    with pytest.raises(RunnerError, match="cancelled"):
        beside(ask, cancel)
    with pytest.raises(RunnerError, match="cancelled"):
        beside(ask, cancel)
    (thread,) = asked
    assert thread.is_alive()
    may_end.set()
    wait_for(lambda: not thread.is_alive())
