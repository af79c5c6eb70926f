"""Work that may take long, done in a thread, and what follows from it in the UI's thread. It knows no work."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar

from textual.screen import Screen
from textual.worker import get_current_worker

from runner.errors import RunnerError

T = TypeVar("T")
_log = logging.getLogger(__name__)


def in_thread(
    screen: Screen[Any],
    work: Callable[[], T],
    then: Callable[[T], object],
    on_error: Callable[[RunnerError], object],
    group: str = "",
) -> None:
    """Do `work` in a thread, and call `then` with its result, or `on_error`, in the UI's thread.

    group: of two works of one group, only what the later one found is heard of. After the screen's end, nothing is.
    """

    def run() -> None:
        worker = get_current_worker()
        try:
            result = work()
        except Exception as raised:
            if not worker.is_cancelled:
                screen.call_later(on_error, _as_runner_error(raised))
        else:
            if not worker.is_cancelled:
                screen.call_later(then, result)

    screen.run_worker(run, thread=True, exclusive=bool(group), group=group or "default")


def _as_runner_error(error: Exception) -> RunnerError:
    """Our own mistakes too are said, and do not end the program."""
    if isinstance(error, RunnerError):
        return error
    _log.error("work in a thread failed", exc_info=error)
    return RunnerError(f"runner failed: {type(error).__name__}: {error}", hint="The details are in `runner logs`.")
