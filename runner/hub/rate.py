"""A limit of bytes a second, shared by all transfers of a download.

It belongs to one event loop and knows nothing of what the bytes are.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable


class RateLimit:
    """One token bucket without a reserve: who takes bytes waits until those taken before are paid for.

    bytes_s None: no limit.
    """

    def __init__(self, bytes_s: int | None, clock: Callable[[], float] = time.monotonic) -> None:
        self.bytes_s = bytes_s
        self._clock = clock
        self._paid_until = 0.0

    def reserve(self, n_bytes: int) -> float:
        """Take `n_bytes` and return the seconds to wait before using them."""
        if self.bytes_s is None:
            return 0.0
        now = self._clock()
        start = max(self._paid_until, now)
        self._paid_until = start + n_bytes / self.bytes_s
        return self._paid_until - now

    async def take(self, n_bytes: int) -> None:
        """Wait until `n_bytes` more may be used."""
        if (wait_s := self.reserve(n_bytes)) > 0:
            await asyncio.sleep(wait_s)
