"""Work on threads of its own, which a caller can watch, stop at once, and leave behind.

Transfers run on an event loop there, single questions as they are, so that a caller stays in charge while the network,
the name service or the disk hang. It knows nothing of what runs.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor, wait
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

from runner.hub.errors import cancelled

if TYPE_CHECKING:
    from runner.types import CancelToken

T = TypeVar("T")

# How often to look whether what runs was cancelled.
_LOOK_S = 0.05


class _DaemonThreads(ThreadPoolExecutor):
    """Daemon threads, as many as are needed at a time. Those of the standard pool keep a process from ending."""

    def __init__(self) -> None:
        super().__init__()
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._n_idle = threading.Semaphore(0)

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future: Future[T] = Future()

        def call() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = fn(*args, **kwargs)
            except BaseException as error:  # handed to whoever waits
                future.set_exception(error)
            else:
                future.set_result(result)

        self._calls.put(call)
        if not self._n_idle.acquire(blocking=False):
            threading.Thread(target=self._work, daemon=True).start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002
        """Let the threads end when they are done. They are not waited for, whatever `wait` says."""
        self._calls.put(None)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
            self._n_idle.release()
        self._calls.put(None)  # for the next thread


class Background:
    """Runs one coroutine on a thread with an event loop."""

    def __init__(self, main: Coroutine[Any, Any, None]) -> None:
        self._main = main
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._error: BaseException | None = None
        self._ended = threading.Event()
        threading.Thread(target=self._run, daemon=True, name="runner-download").start()
        self._ready.wait()

    def wait(self, timeout_s: float) -> bool:
        """Whether it has ended, within that time."""
        return self._ended.wait(timeout_s)

    def stop(self) -> None:
        """Cancel it, without waiting for its end."""
        if self._loop is not None and self._task is not None and not self._ended.is_set():
            try:
                self._loop.call_soon_threadsafe(self._task.cancel)
            except RuntimeError:  # the loop has been closed meanwhile
                return

    def result(self) -> None:
        """Raise what it raised. Only after its end."""
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            asyncio.run(self._outer())
        except BaseException as error:  # raised again by result()
            self._error = error
            self._main.close()  # it may not have begun
        finally:
            self._ended.set()
            self._ready.set()  # also when there could be no loop

    async def _outer(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.set_default_executor(_DaemonThreads())
        self._task = asyncio.current_task()
        self._ready.set()
        await self._main


async def in_thread(call: Callable[..., T], *arguments: object) -> T:
    """Run a blocking call beside the loop. When cancelled it is waited for: it uses files that others want next."""
    future = asyncio.get_running_loop().run_in_executor(None, call, *arguments)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        await asyncio.wait([future])
        if not future.cancelled():
            future.exception()  # looked at, so that nobody warns of it
        raise


def beside(call: Callable[[], T], cancel: CancelToken | None) -> T:
    """Run a blocking call of the network on a thread of its own, which is left behind when it is cancelled.

    cancel None: nobody can, and it runs here. Raises what the call raises, RunnerError when cancelled.
    """
    if cancel is None:
        return call()
    if cancel.is_cancelled:
        raise cancelled()
    threads = _DaemonThreads()
    future = threads.submit(call)
    threads.shutdown()
    while not wait([future], _LOOK_S).done:
        if cancel.is_cancelled:
            raise cancelled()
    return future.result()
