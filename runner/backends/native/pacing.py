"""How far the host may run ahead of a GPU while it queues a prompt: a few checkpoints, not one and not all.

Work is queued on a GPU faster than it is done. Waiting for each product before the next is queued leaves the device
idle for as long as a launch takes; not waiting at all makes a cancelled prefill go on until everything queued is done.
It knows events, and nothing of what was queued between them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol

import torch

_AHEAD: Final = 8  # checkpoints, two layers: about 1 ms of an 8B model at 512 tokens


class Mark(Protocol):
    """A place in the queue of a device."""

    def record(self, stream: Any, /) -> Any:
        """Be the place that the queue ends at now."""
        ...

    def synchronize(self) -> Any:
        """Wait until the device has come this far."""
        ...


class Pacing:
    """mark: a new one. stream: the queue. Marks that were waited for are used again."""

    def __init__(self, mark: Callable[[], Mark], stream: Any = None) -> None:
        self._mark, self._stream = mark, stream
        self._marks: deque[Mark] = deque()
        self._spare: Mark | None = None

    def checkpoint(self) -> None:
        """Note this place, and wait until the device has passed the one noted _AHEAD checkpoints before it."""
        mark, self._spare = self._spare or self._mark(), None
        mark.record(self._stream)
        self._marks.append(mark)
        if len(self._marks) > _AHEAD:
            self._spare = self._marks.popleft()
            self._spare.synchronize()


def paced(device: torch.device) -> Pacing:
    """The pacing of the current stream of a GPU."""
    return Pacing(torch.cuda.Event, torch.cuda.current_stream(device))
