"""One connection of the server: uvicorn's, and what it lacks where anyone on the machine may connect.

A connection that asks for nothing is closed, however few bytes it trickles; when there is no room, the one that has
asked for nothing for longest is. What comes after a request, before its answer is whole, is not read: the connection
ends with that answer, and a client that leaves meanwhile is noticed. It knows nothing of what is asked.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

# With both, something on the way may see another end of the request, and in its rest a next one (RFC 9112, 6.1).
_LENGTHS = frozenset({b"content-length", b"transfer-encoding"})


class Connection(H11Protocol):
    """Of uvicorn's configuration, timeout_keep_alive is how many seconds the head of a request may take, the first
    one's too, and limit_concurrency how many connections there may be.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # uvicorn would count silent connections too, and refuse requests in a plain text.
        self._room, self.limit_concurrency = self.limit_concurrency, None
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait_for_request()
        if self._room is not None and len(self.connections) > self._room:
            self._make_room()

    def data_received(self, data: bytes) -> None:
        if self._is_answering() and not self.cycle.more_body:
            self.cycle.keep_alive = False
        else:
            super().data_received(data)

    def handle_events(self) -> None:
        super().handle_events()
        if not self._is_answering():
            return
        self._wait_no_more()
        if {name for name, _ in self.headers} >= _LENGTHS:
            self.cycle.keep_alive = False
        if not self.cycle.more_body and self.conn.trailing_data[0]:  # the next request came with this one
            self.cycle.keep_alive = False
            self.flow.resume_reading()

    def on_response_complete(self) -> None:
        self._wait_for_request()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._wait_no_more()
        super().connection_lost(exc)

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _wait_for_request(self) -> None:
        self._wait_no_more()
        self._deadline = self.loop.call_later(self.timeout_keep_alive, self._end)

    def _wait_no_more(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _make_room(self) -> None:
        """End the connection that has waited longest; that is this one, where all others are being answered."""
        waiting = [each for each in self.connections if isinstance(each, Connection) and each._deadline is not None]
        min(waiting, key=lambda each: each._deadline.when() if each._deadline else 0.0)._end()

    def _end(self) -> None:
        self._wait_no_more()
        self.transport.abort()  # to close it would wait for a client that reads nothing
