"""The host runs ahead of the device by a bounded number of checkpoints."""

from __future__ import annotations

from runner.backends.native.pacing import _AHEAD, Pacing


class Queue:
    """A device that does nothing until somebody waits."""

    def __init__(self) -> None:
        self.made = self.noted = 0
        self.waited_for: list[int] = []

    def mark(self) -> Queue.Place:
        self.made += 1
        return Queue.Place()

    class Place:
        """One that is noted anew before it was waited for would lose its place."""

        number = 0

        def record(self, queue: Queue) -> None:
            assert not self.number
            queue.noted += 1
            self._queue, self.number = queue, queue.noted

        def synchronize(self) -> None:
            self._queue.waited_for.append(self.number)
            self.number = 0


def test_the_first_checkpoints_wait_for_nothing() -> None:
    queue = Queue()
    pacing = Pacing(queue.mark, queue)
    for _ in range(_AHEAD):
        pacing.checkpoint()
    assert queue.noted == _AHEAD
    assert queue.waited_for == []


def test_each_later_checkpoint_waits_for_the_one_so_many_before_it() -> None:
    queue = Queue()
    pacing = Pacing(queue.mark, queue)
    for number in range(1, 100):
        pacing.checkpoint()
        unfinished = number - (queue.waited_for[-1] if queue.waited_for else 0)
        assert unfinished <= _AHEAD
    assert queue.waited_for == list(range(1, 100 - _AHEAD))
    assert queue.made == _AHEAD + 1, "and marks are used again"
