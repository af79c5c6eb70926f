"""What Ctrl+C means while the engine works: first stop what it does, then, if it does not stop, end the engine.

Where what was done so far is kept, SIGTERM means the same.

It knows nothing of what runs, only how to stop it and what to say then.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol

import typer

from runner.cli import render
from runner.errors import RunnerError

if TYPE_CHECKING:
    from runner.types import CancelToken

# A key that bounces, or an impatient second press while the first is still being obeyed, is no second wish.
_SAME_PRESS_S = 0.3


class Stoppable(Protocol):
    """An engine: `cancel` asks it to stop, `kill` ends it. Both may be called from a signal handler."""

    def cancel(self) -> None: ...

    def kill(self) -> None: ...


class Interruptible:
    """While this context is open, Ctrl+C cancels what `engine` does, and a second one kills it.

    signals: those that count as Ctrl+C. on_first: called in the signal handler after the first press.
    presses: how often it was pressed; is_killed: whether the engine was ended.
    """

    def __init__(
        self,
        engine: Stoppable,
        on_first: Callable[[], None] = lambda: None,
        signals: Sequence[signal.Signals] = (signal.SIGINT,),
    ) -> None:
        self._engine = engine
        self._on_first = on_first
        self._signals = signals
        self._before: dict[signal.Signals, Any] = {}
        self._pressed_at = 0.0
        self.presses = 0
        self.is_killed = False

    def __enter__(self) -> Interruptible:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._on_signal) for number in self._signals}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.presses and now - self._pressed_at < _SAME_PRESS_S:
            return
        self._pressed_at = now
        self.presses += 1
        if self.presses == 1:
            self._engine.cancel()
            self._on_first()
        else:
            self.is_killed = True
            self._engine.kill()


class _Token:
    """A CancelToken as something stoppable: a second press does not wait for the work to notice the first."""

    def __init__(self, token: CancelToken) -> None:
        self.cancel = token.cancel

    def kill(self) -> None:
        raise KeyboardInterrupt


class _AtOnce:
    """Work that looks at no token: each press ends it where it is."""

    def cancel(self) -> None:
        raise KeyboardInterrupt

    kill = cancel


@contextmanager
def cancelling(on_stopped: Callable[[], None], on_first: Callable[[], None] = lambda: None) -> Iterator[CancelToken]:
    """A token that Ctrl+C or SIGTERM cancels in this context. Work that ends by it calls on_stopped and exits 130.

    on_first: called in the signal handler, at once.
    """
    from runner.types import CancelToken

    token = CancelToken()
    with _ending(_Token(token), on_stopped, on_first):
        yield token


def stopping(on_stopped: Callable[[], None]) -> AbstractContextManager[None]:
    """The same for work that has no token: Ctrl+C or SIGTERM raises KeyboardInterrupt in it."""
    return _ending(_AtOnce(), on_stopped)


@contextmanager
def _ending(
    work: Stoppable, on_stopped: Callable[[], None], on_first: Callable[[], None] = lambda: None
) -> Iterator[None]:
    with Interruptible(work, on_first, (signal.SIGINT, signal.SIGTERM)) as interrupted:
        try:
            yield
        except (RunnerError, KeyboardInterrupt) as error:
            if isinstance(error, RunnerError) and not interrupted.presses:
                raise
            on_stopped()
            raise typer.Exit(130) from error


# --- what the user is told -------------------------------------------------------------------------------------------


def say_fetch_stopped() -> None:
    render.narrate("Stopped. What has arrived is kept: the same command goes on from there.")


def making_stopped(output: Path, *, is_kept: bool = True) -> Callable[[], None]:
    """What says, when the making of `output` was stopped, what is left of it and of an earlier one; asked for before it
    begins. is_kept: whether the next run goes on with what is done.
    """
    from runner.quant.half_made import finished, olds_of
    from runner.quant.packed_files import PARTIAL_SUFFIX

    output = output.absolute()
    earlier = _identity(finished(output.parent).get(output.name, output))

    def say() -> None:
        now = _identity(output)
        if now not in (None, earlier):
            rest = "".join(f" What is left of the earlier one, {old}, may be deleted." for old in olds_of(output))
            render.narrate(f"Stopped, when {output} was finished.{rest}")
            return
        partial = output.with_name(output.name + PARTIAL_SUFFIX)
        if is_kept and partial.is_dir():
            said = f"What is done is kept in {partial}: the same command goes on from there."
        else:
            said = f"Nothing is kept of {'the new ' if now else ''}{output}: the same command starts over."
        render.narrate(f"Stopped. {said}{f' {output} is the earlier one still.' if now else ''}")

    return say


def _identity(path: Path) -> tuple[int, int] | None:
    """Which file or directory is there, whatever its name; None for none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
