"""One connection of the server: uvicorn's, and what it lacks where anyone on the machine may connect.

A connection that asks for nothing is closed, however few bytes it trickles; when there is no room, the one that has
asked for nothing for longest is. One that is to be closed goes in the end, though its client takes no more of it.
What comes after a request, before its answer is whole, is not read: the connection ends with that answer, and a client
that leaves meanwhile is noticed. Who is answered before all of a request has come may send the rest, of which nothing
is kept: to close the connection at once would reset it, and many clients read no answer before all is sent. It knows
nothing of what is asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

# With both, something on the way may see another end of the request, and in its rest a next one (RFC 9112, 6.1).
_LENGTHS: Final = frozenset({b"content-length", b"transfer-encoding"})
_LONGEST_REST: Final = 2**28  # bytes that an answered client may still send, for as long as a next request may take


class Connection(H11Protocol):
    """Of uvicorn's configuration, timeout_keep_alive is how many seconds the head of a request may take, the first
    one's too, and the rest of an answer once the connection ends; limit_concurrency is how many there may be.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # uvicorn would count silent connections too, and refuse requests in a plain text.
        self._room, self.limit_concurrency = self.limit_concurrency, None
        self._deadline: asyncio.TimerHandle | None = None
        self._n_rest = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._ending = _Ending(transport, self._has_rest, self._set_deadline)
        super().connection_made(self._ending)
        self._set_deadline()
        if self._room is not None and len(self.connections) > self._room:
            self._make_room()

    def data_received(self, data: bytes) -> None:
        if self._is_answering() and not self.cycle.more_body:
            self.cycle.keep_alive = False
            return
        self._n_rest = self._n_rest + len(data) if self._has_rest() else 0
        if self._n_rest > _LONGEST_REST:
            self._end()
        elif not self._ending.has_begun:
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

    def send_400_response(self, msg: str) -> None:
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:  # the request is answered, and its rest is malformed
            self.transport.close()

    def on_response_complete(self) -> None:
        self._set_deadline()
        super().on_response_complete()

    def shutdown(self) -> None:
        if self._has_rest():
            self._end()
        else:
            super().shutdown()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._wait_no_more()

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _has_rest(self) -> bool:
        """Whether the client is answered and may still be sending the request that it was answered to."""
        return self.cycle is not None and self.cycle.response_complete and self.conn.their_state is h11.SEND_BODY

    def _set_deadline(self) -> None:
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


class _Ending(asyncio.Transport):
    """A transport that is closed in two steps where `has_rest`: nothing more is sent, and then the client closes it.

    on_close: called as it begins to close.
    """

    def __init__(
        self, transport: asyncio.Transport, has_rest: Callable[[], bool], on_close: Callable[[], None]
    ) -> None:
        super().__init__()
        self._transport = transport
        self._has_rest = has_rest
        self._on_close = on_close
        self.has_begun = False

    def close(self) -> None:
        self._on_close()
        if self.is_closing() or not self._has_rest():
            self._transport.close()
            return
        self.has_begun = True
        with suppress(OSError):  # the client has left, which is noticed by reading
            self._transport.write_eof()
        self._transport.resume_reading()

    def is_closing(self) -> bool:
        return self.has_begun or self._transport.is_closing()

    def abort(self) -> None:
        self._transport.abort()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._transport.write(data)

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)
