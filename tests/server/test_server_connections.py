"""Connections that ask for nothing, too many of them, and requests that come before the answer to the last one."""

from __future__ import annotations

import asyncio
import errno
import resource
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from runner.errors import RunnerError, UsageError
from runner.server import connections
from runner.server.serving import _room, _Server, bind, is_loopback

IDLE_S = 1
PATIENT_S = 600  # of a server that closes nothing for silence within a test
REQUEST = b"GET /%s HTTP/1.1\r\nHost: x\r\n\r\n"
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Connect = Callable[[], Awaitable[Streams]]


class App:
    """Answers at once, but to /slow when it is let; it knows whose client went away meanwhile.

    To /endless it answers until nobody takes any more of it. Of bodies it reads the first part.
    """

    def __init__(self) -> None:
        self.is_let = asyncio.Event()
        self.n_begun = 0
        self.n_gone = 0
        self.requests: list[Any] = []  # as uvicorn has them

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.n_begun += 1
        self.requests.append(receive.__self__)
        await receive()
        if scope["path"] == "/endless":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            with suppress(TimeoutError):
                while True:
                    await asyncio.wait_for(
                        send({"type": "http.response.body", "body": bytes(2**20), "more_body": True}), 0.1
                    )
            return
        if scope["path"] == "/slow":
            gone, let = asyncio.create_task(receive()), asyncio.create_task(self.is_let.wait())
            done, others = await asyncio.wait({gone, let}, return_when=asyncio.FIRST_COMPLETED)
            for task in others:
                task.cancel()
            self.n_gone += gone in done
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})


@asynccontextmanager
async def serving(
    room: int, idle_s: float = PATIENT_S, *, ends_first: bool = False
) -> AsyncIterator[tuple[App, Connect]]:
    """ends_first: the server ends before its clients do."""
    app, listener = App(), bind("127.0.0.1", 0)
    server = _Server(app, room, idle_s)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    opened: list[asyncio.StreamWriter] = []

    async def connect() -> Streams:
        streams = await asyncio.open_connection(*listener.getsockname())
        opened.append(streams[1])
        return streams

    try:
        async with asyncio.timeout(60):
            yield app, connect
    finally:
        server.should_exit = True
        if ends_first:
            await asyncio.wait_for(task, 60)
        for writer in opened:
            writer.close()
        await task


async def ended(reader: asyncio.StreamReader) -> bytes:
    """What still came before the server closed it."""
    try:
        return await reader.read()
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


@pytest.mark.parametrize(("n_files", "room"), [(resource.RLIM_INFINITY, 288), (1024, 288), (300, 108), (100, 25)])
def test_there_are_no_more_connections_than_files(monkeypatch: pytest.MonkeyPatch, n_files: int, room: int) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (n_files, n_files))
    assert _room(32) == room


def test_where_nobody_can_listen_is_said_with_the_flag_to_correct() -> None:
    with pytest.raises(UsageError, match="which is no address here") as caught:
        bind("x" * 70, 0)
    assert "127.0.0.1" in caught.value.hint
    with pytest.raises(RunnerError, match=r"Cannot listen on 192\.0\.2\.1 port 0: Cannot assign") as refused:
        bind("192.0.2.1", 0)  # of an example, and of no machine
    assert refused.value.hint == "Check --host and --port."


def test_an_address_of_a_kind_that_this_machine_has_not_is_said_to_be_that(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_ipv6(*_: int) -> socket.socket:
        raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")

    monkeypatch.setattr("runner.server.serving.socket.socket", without_ipv6)
    with pytest.raises(RunnerError, match="Cannot listen on ::1 port 0: Address family") as refused:
        bind("::1", 0)
    assert refused.value.hint == "Check --host and --port."


@pytest.mark.parametrize(("host", "is_own"), [("127.0.0.1", True), ("localhost", True), ("0.0.0.0", False)])
def test_an_address_of_this_machine_is_told_from_one_that_others_reach(host: str, is_own: bool) -> None:
    with bind(host, 0) as listener:
        assert is_loopback(listener) is is_own
        assert listener.family is socket.AF_INET


def test_a_connection_that_asks_for_nothing_is_closed_even_if_bytes_trickle() -> None:
    async def main() -> list[float]:
        async with serving(4, IDLE_S) as (_, connect):
            return await asyncio.gather(trickled(connect, b""), trickled(connect, REQUEST % b""))

    for took_s in asyncio.run(main()):
        assert IDLE_S <= took_s < IDLE_S * 40


def test_an_answer_that_takes_its_time_is_waited_for() -> None:
    async def main() -> None:
        async with serving(4, IDLE_S) as (app, connect):
            reader, writer = await connect()
            writer.write(REQUEST % b"slow")
            await until(lambda: app.n_begun == 1)
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
            assert b"200 OK" in await asking.readline()
            for each in silent[:17]:
                assert await ended(each) == b""
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
            assert await ended((await connect())[0]) == b""
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


@pytest.mark.parametrize(("with_it", "n_apart"), [(REQUEST % b"next", 0), (b"", 20), (REQUEST % b"next", 20)])
def test_what_comes_before_an_answer_is_whole_is_not_kept_and_the_connection_ends_with_the_answer(
    with_it: bytes, n_apart: int
) -> None:
    async def main() -> None:
        async with serving(room=4) as (app, connect):
            reader, writer = await connect()
            writer.write(REQUEST % b"slow" + with_it)
            await until(lambda: app.n_begun == 1)
            for _ in range(n_apart):
                writer.write(REQUEST % b"next" + bytes(2**16))
                await writer.drain()
                asking, asker = await connect()
                asker.write(REQUEST % b"")
                await asking.readuntil(b"ok")  # what came before that is read by now
            assert len(app.requests[0].conn.trailing_data[0]) < 2**17
            app.is_let.set()
            assert (await ended(reader)).endswith(b"ok")
            assert app.n_begun == 1 + n_apart

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
            with pytest.raises(ConnectionError):  # it is closed both ways
                while True:
                    writer.write(b"more")
                    await asyncio.sleep(0.01)
                    await writer.drain()
            assert app.n_begun == 1

    asyncio.run(main())


def test_who_takes_nothing_of_an_answer_that_was_given_up_holds_no_place() -> None:
    async def main() -> None:
        async with serving(room=1, idle_s=0.1) as (app, connect):
            _, writer = await connect()
            writer.transport.pause_reading()
            writer.write(REQUEST % b"endless")
            await until(lambda: app.n_begun == 1)
            while app.n_begun == 1:
                reader, asker = await connect()
                asker.write(REQUEST % b"")
                await ended(reader)

    asyncio.run(main())


def test_the_next_request_may_come_on_the_same_connection_once_the_answer_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "_LONGEST_REST", 2 * len(REQUEST))  # of one request, and not of all

    async def main() -> None:
        async with serving(room=4) as (_, connect):
            reader, writer = await connect()
            for _ in range(3):
                writer.write(REQUEST % b"")
                await reader.readuntil(b"ok")

    asyncio.run(main())


LONG = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n%s\r\nT"
LEAVING = b"Connection: close\r\n"


@pytest.mark.parametrize("headers", [b"", LEAVING])
def test_a_client_that_sends_all_of_a_long_request_before_it_reads_gets_its_answer(headers: bytes) -> None:
    def ask(address: tuple[str, int]) -> None:
        with socket.create_connection(address, 10) as client, client.makefile("rb") as answers:
            client.sendall(LONG % (2**24, headers))
            time.sleep(0.05)  # it is answered
            client.sendall(bytes(2**24 - 1))
            while not answers.readline().isspace():
                pass
            assert answers.read(2) == b"ok"
            if headers:
                assert answers.read() == b""
            else:  # the connection is as good as before
                client.sendall(REQUEST % b"")
                assert b"200 OK" in answers.readline()

    async def main() -> None:
        async with serving(room=4) as (_, connect):
            _, writer = await connect()
            await asyncio.to_thread(ask, writer.get_extra_info("peername"))

    asyncio.run(main())


def test_who_is_answered_and_sends_a_rest_that_is_malformed_is_done_with() -> None:
    async def main() -> None:
        failures: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, failure: failures.append(failure))
        async with serving(room=4) as (_, connect):
            reader, writer = await connect()
            writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nT\r\n")
            await reader.readuntil(b"ok")
            writer.write(b"no length\r\n")
            assert await ended(reader) == b""
        assert failures == []

    asyncio.run(main())


async def cut_off(connect: Connect, headers: bytes, piece: bytes, pause_s: float) -> tuple[int, float]:
    """How many bytes a client could send that was answered to its first ones, and for how many seconds."""
    reader, writer = await connect()
    began = time.monotonic()
    writer.write(LONG % (2**30, headers))
    await reader.readuntil(b"ok")
    n_sent = 0
    try:
        while True:
            writer.write(piece)
            await writer.drain()
            n_sent += len(piece)
            await asyncio.sleep(pause_s)
    except ConnectionError:
        return n_sent, time.monotonic() - began


@pytest.mark.parametrize("headers", [b"", LEAVING])
def test_who_is_answered_may_send_the_rest_but_not_endlessly(monkeypatch: pytest.MonkeyPatch, headers: bytes) -> None:
    monkeypatch.setattr(connections, "_LONGEST_REST", 2**20)

    async def main() -> None:
        async with serving(4, IDLE_S) as (_, connect):
            n_sent, took_s = await cut_off(connect, headers, b"T", IDLE_S / 50)
            assert took_s >= IDLE_S
            assert n_sent < 2**10
        async with serving(room=4) as (_, connect):
            n_sent, _ = await cut_off(connect, headers, bytes(2**16), 0)
            assert 2**20 <= n_sent < 2**26

    asyncio.run(main())


@pytest.mark.parametrize("headers", [b"", LEAVING])
def test_a_server_that_ends_waits_for_nobodys_rest(headers: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.server.serving._GOODBYE_S", PATIENT_S)

    async def main() -> None:
        async with serving(room=4, ends_first=True) as (_, connect):
            reader, writer = await connect()
            writer.write(LONG % (2**20, headers))
            await reader.readuntil(b"ok")

    asyncio.run(main())  # the client may go on for ten minutes
