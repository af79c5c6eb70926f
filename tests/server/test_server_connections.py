"""Connections that ask for nothing, too many of them, and requests that come before the answer to the last one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from runner.server.serving import _Server, bind

IDLE_S = 1
REQUEST = b"GET /%s HTTP/1.1\r\nHost: x\r\n\r\n"
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Connect = Callable[[], Awaitable[Streams]]


class App:
    """Answers at once, but to /slow when it is let; it knows whose client went away meanwhile."""

    def __init__(self) -> None:
        self.is_let = asyncio.Event()
        self.n_begun = 0
        self.n_gone = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.n_begun += 1
        await receive()
        if scope["path"] == "/slow":
            gone, let = asyncio.create_task(receive()), asyncio.create_task(self.is_let.wait())
            done, others = await asyncio.wait({gone, let}, return_when=asyncio.FIRST_COMPLETED)
            for task in others:
                task.cancel()
            self.n_gone += gone in done
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})


@asynccontextmanager
async def serving(room: int) -> AsyncIterator[tuple[App, Connect]]:
    app, listener = App(), bind("127.0.0.1", 0)
    server = _Server(app, room, IDLE_S)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    opened: list[asyncio.StreamWriter] = []

    async def connect() -> Streams:
        streams = await asyncio.open_connection(*listener.getsockname())
        opened.append(streams[1])
        return streams

    try:
        async with asyncio.timeout(20):
            yield app, connect
    finally:
        for writer in opened:
            writer.close()
        server.should_exit = True
        await task


async def ended(reader: asyncio.StreamReader, within_s: float = 10) -> bytes:
    """What still came before the server closed it."""
    try:
        return await asyncio.wait_for(reader.read(), within_s)
    except ConnectionResetError:
        return b""


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


async def trickled(connect: Connect, first: bytes) -> float:
    """Seconds until a connection is closed on which bytes of a request come, but no whole head of one."""
    began = time.monotonic()
    reader, writer = await connect()
    if first:
        writer.write(first)
        await reader.readuntil(b"ok")
    writer.write(b"GET / HT")
    ending = asyncio.create_task(ended(reader))
    while not ending.done():
        writer.write(b"T")
        await asyncio.sleep(0.05)
    return time.monotonic() - began


def test_a_connection_that_asks_for_nothing_is_closed_even_if_bytes_trickle() -> None:
    async def main() -> list[float]:
        async with serving(room=4) as (_, connect):
            return await asyncio.gather(trickled(connect, b""), trickled(connect, REQUEST % b""))

    for took_s in asyncio.run(main()):
        assert IDLE_S <= took_s < IDLE_S * 40


def test_an_answer_that_takes_its_time_is_waited_for() -> None:
    async def main() -> None:
        async with serving(room=4) as (app, connect):
            reader, writer = await connect()
            writer.write(REQUEST % b"slow")
            await asyncio.sleep(IDLE_S * 1.5)
            app.is_let.set()
            await reader.readuntil(b"ok")

    asyncio.run(main())


def test_silent_connections_shut_nobody_out_and_answers_are_not_cut_for_others() -> None:
    async def main() -> None:
        async with serving(room=4) as (app, connect):
            reader, writer = await connect()
            writer.write(REQUEST % b"slow")
            await until(lambda: app.n_begun == 1)
            silent = [(await connect())[0] for _ in range(20)]
            asking, asker = await connect()
            asker.write(REQUEST % b"")
            assert b"200 OK" in await asyncio.wait_for(asking.readline(), IDLE_S / 2)
            for each in silent[:17]:
                assert await ended(each, IDLE_S / 2) == b""
            app.is_let.set()
            await reader.readuntil(b"ok")

    asyncio.run(main())


def test_beyond_its_room_a_busy_server_takes_no_more() -> None:
    async def main() -> None:
        async with serving(room=2) as (app, connect):
            busy = [await connect() for _ in range(2)]
            for _, writer in busy:
                writer.write(REQUEST % b"slow")
            await until(lambda: app.n_begun == 2)
            assert await ended((await connect())[0], IDLE_S / 2) == b""
            app.is_let.set()
            for reader, _ in busy:
                await reader.readuntil(b"ok")

    asyncio.run(main())


@pytest.mark.parametrize("is_apart", [False, True])
def test_a_client_that_sent_its_next_request_and_leaves_is_noticed(is_apart: bool) -> None:
    async def main() -> None:
        async with serving(room=4) as (app, connect):
            _, writer = await connect()
            writer.write(REQUEST % b"slow" + (b"" if is_apart else REQUEST % b"next"))
            await until(lambda: app.n_begun == 1)
            if is_apart:
                writer.write(REQUEST % b"next")
                await asyncio.sleep(0.1)
                writer.write(b"and more")
                await asyncio.sleep(0.1)
            assert app.n_gone == 0
            writer.close()
            await until(lambda: app.n_gone == 1)
            assert app.n_begun == 1

    asyncio.run(main())


def test_after_a_request_whose_length_is_given_in_two_ways_the_connection_ends() -> None:
    """The second one may be what somebody hid in the first, past a proxy that counts by the other way."""
    lengths = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"

    async def main() -> None:
        async with serving(room=4) as (app, connect):
            reader, writer = await connect()
            writer.write(lengths + b"0\r\n\r\n")
            await reader.readuntil(b"ok")
            writer.write(REQUEST % b"hidden")
            assert await ended(reader) == b""
            assert app.n_begun == 1

    asyncio.run(main())


def test_the_next_request_may_come_on_the_same_connection_once_the_answer_is_there() -> None:
    async def main() -> None:
        async with serving(room=4) as (_, connect):
            reader, writer = await connect()
            for _ in range(3):
                writer.write(REQUEST % b"")
                await reader.readuntil(b"ok")

    asyncio.run(main())
