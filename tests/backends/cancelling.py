"""How soon a request ends once it is cancelled, by what the machine did for it and not for others."""

from __future__ import annotations

import threading
import time

from runner.types import CancelToken

PROMISED_S = 0.2
_STALLED_S = 20.0  # by the wall: a thread that waits for nothing uses no processor either


class TimedCancel:
    """Cancels a request of this thread from another one, `after_s` from `start`.

    The promise is measured in processor time of this thread, in which the backends compute with one thread: tests
    share their machine.
    """

    def __init__(self, cancel: CancelToken, after_s: float) -> None:
        self._cancel = cancel
        self._clock = time.pthread_getcpuclockid(threading.get_ident())
        self._timer = threading.Timer(after_s, self._now)
        self._at: tuple[float, float] | None = None

    def start(self) -> None:
        self._timer.start()

    def _now(self) -> None:
        self._at = time.clock_gettime(self._clock), time.monotonic()
        self._cancel.cancel()

    def check(self) -> None:
        """The request has ended: it must have been cancelled, and little done since."""
        used, now = time.clock_gettime(self._clock), time.monotonic()
        self._timer.cancel()
        self._timer.join()
        assert self._at is not None, "it ended before it was cancelled"
        assert used - self._at[0] < PROMISED_S
        assert now - self._at[1] < _STALLED_S
