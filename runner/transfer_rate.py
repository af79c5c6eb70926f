"""How fast bytes arrive, and how long the rest will take: one definition for every front end.

Pure: clock readings (seconds of one monotonic clock) are passed in. It knows nothing of what is transferred.
"""

from __future__ import annotations

from collections import deque

WINDOW_S = 8.0
# Before this much time a rate says more about buffers than about the line.
_LEAST_S = 0.5


class TransferRate:
    """Bytes per second over the last seconds: (done_now - done_then) / (now - then), `then` at most WINDOW_S ago.

    What was there at the first reading does not count, so a resumed transfer does not seem fast.
    """

    def __init__(self) -> None:
        self._readings: deque[tuple[float, int]] = deque()

    def add(self, now: float, done_bytes: int) -> None:
        """`done_bytes` are there at `now`. Fewer than before (a transfer that began again) start the window anew."""
        if self._readings and done_bytes < self._readings[-1][1]:
            self._readings.clear()
        self._readings.append((now, done_bytes))
        while len(self._readings) > 2 and now - self._readings[1][0] >= WINDOW_S:
            self._readings.popleft()

    @property
    def bytes_s(self) -> float:
        """0.0 while there is too little to say."""
        if not self._readings:
            return 0.0
        (then, before), (now, done) = self._readings[0], self._readings[-1]
        return (done - before) / (now - then) if now - then >= _LEAST_S else 0.0

    def left_s(self, total_bytes: int) -> float | None:
        """Seconds until `total_bytes` are there at this rate; None when that cannot be said."""
        rate = self.bytes_s
        done = self._readings[-1][1] if self._readings else 0
        return max(0, total_bytes - done) / rate if rate > 0 else None
