"""The load that a chat begins with, in a thread of its own: the user types while the model is loaded.

Only the load itself runs in that thread. What it tells is shown from the thread that reads the keys: above the prompt
while there is one (terminal.py looks here now and then), and as for any command once a message waits for the model. It
knows nothing of keys or of what the model is for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from runner.cli.interrupt import Interruptible
from runner.cli.loading import Loader, Narrator

if TYPE_CHECKING:
    from runner.events import Loaded, LoadEvent


class Opening:
    """A load that has begun. greet: shows what there is to say when the model is there.

    check: raises what else is to end the chat; it is called once the engine has spoken, when the prompt is there.
    is_over: nothing more will come, and all that came was shown. failure: why the model is not there.
    """

    def __init__(
        self, loader: Loader, greet: Callable[[Loaded], None], *, check: Callable[[], None] = lambda: None
    ) -> None:
        self._loader = loader
        self._greet = greet
        self._check = check
        self._narrator = Narrator(draws=False)
        self._events: SimpleQueue[LoadEvent | None] = SimpleQueue()  # None: the end
        self._untold: list[LoadEvent] = []
        self._loaded: Loaded | None = None
        self._error: BaseException | None = None
        self._has_ended = False
        threading.Thread(target=self._load, name="opening", daemon=True).start()

    @property
    def is_over(self) -> bool:
        return self._has_ended and not self._untold

    @property
    def failure(self) -> BaseException | None:
        return self._error if self._has_ended else None

    def has_news(self) -> bool:
        """Take in what came; whether there is something that `tell` would print."""
        for event in self._come():
            self._take(event)
        return bool(self._untold)

    def tell(self) -> None:
        """Print what came, on stderr, from the start of a line."""
        from runner.events import Loaded

        untold, self._untold = self._untold, []
        for event in untold:
            self._narrator(event)
            if isinstance(event, Loaded):
                self._greet(event)

    def bar(self, columns: int) -> str:
        """How far a stage that takes its time is, in one line of at most so many columns; "" when nothing does."""
        return "" if self._has_ended else self._narrator.bar(columns)

    def wait(self) -> Loaded:
        """The loaded model; until then, what it tells is shown. Raises what ended it, KeyboardInterrupt for Ctrl+C."""
        with Interruptible(self._loader.engine) as interrupted, self._narrator:
            self.tell()
            while not self._has_ended:
                self._take(self._events.get())
                self.tell()
        if self._error is not None and interrupted.presses:
            raise KeyboardInterrupt from self._error
        if self._error is not None:
            raise self._error
        assert self._loaded is not None  # else Loader.events would have raised
        return self._loaded

    def _load(self) -> None:
        try:
            with closing(self._loader.events()) as events:
                for number, event in enumerate(events):
                    if number == 0:
                        self._check()
                    self._events.put(event)
        except BaseException as error:  # it is raised again in the thread that waits
            self._error = error
        self._events.put(None)

    def _come(self) -> Iterator[LoadEvent | None]:
        try:
            while True:
                yield self._events.get_nowait()
        except Empty:
            return

    def _take(self, event: LoadEvent | None) -> None:
        from runner.events import Loaded, Progress

        if event is None:
            self._has_ended = True
        elif isinstance(event, Progress):
            self._narrator(event)
        else:
            if isinstance(event, Loaded):
                self._loaded = event
            self._untold.append(event)
