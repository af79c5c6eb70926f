"""Streams to clients that wait, stop reading, or go away, without a socket."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from starlette.requests import Request

from runner.config import ChatOptions, SamplingParams
from runner.events import TextDelta
from runner.server import app
from runner.server.access import Access
from runner.server.app import _EventStream, _while_connected
from runner.server.line import _ROOM, AnswerLine, Ticket
from runner.server.refusal import Refusal


def ticket() -> Ticket:
    return Ticket([], SamplingParams(), ChatOptions())


async def forever() -> dict[str, Any]:
    await asyncio.Event().wait()
    return {}


def test_the_engine_waits_for_a_slow_reader_until_it_leaves() -> None:
    async def main() -> None:
        made = ticket()
        told: list[int] = []

        def tell() -> None:
            for n in range(_ROOM + 50):
                made.tell(TextDelta(str(n)))
                told.append(n)

        async def until_it_waits(n_told: int) -> None:
            async with asyncio.timeout(60):
                while len(told) < n_told:
                    await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)
            assert len(told) == n_told

        thread = threading.Thread(target=tell)
        thread.start()
        await until_it_waits(_ROOM)
        assert await made.next() == TextDelta("0")
        await until_it_waits(_ROOM + 1)
        made.cancel()
        await asyncio.to_thread(thread.join, 60)
        assert len(told) == _ROOM + 50

    asyncio.run(main())


def test_a_reader_that_takes_nothing_for_long_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "_STALLED_S", 0.05)

    async def stuck(_: object) -> None:
        await forever()

    async def main() -> bool:
        return await asyncio.wait_for(_while_connected(forever, _EventStream(stuck).write(b"x")), 60)

    assert asyncio.run(main()) is False


def test_no_event_has_what_a_client_may_take_for_the_end_of_a_line() -> None:
    text = "".join(map(chr, range(0x3000))) + "\ud800"
    encoded = app._encoded({"text": text}).decode()
    assert encoded.splitlines() == [encoded]
    assert json.loads(encoded)["text"] == text.replace("\ud800", "?")


def test_a_client_that_goes_away_ends_the_work_at_once() -> None:
    ended: list[str] = []

    async def gone() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def work() -> None:
        try:
            await forever()
        finally:
            ended.append("work")

    assert asyncio.run(asyncio.wait_for(_while_connected(gone, work()), 60)) is False
    assert ended == ["work"]


@pytest.mark.parametrize(("is_gone", "status"), [(False, 408), (True, 400)])
def test_a_body_that_does_not_come_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, is_gone: bool, status: int
) -> None:
    monkeypatch.setattr(app, "_BODY_S", 0.05)

    async def gone() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    scope = {"type": "http", "method": "POST", "headers": [(b"content-type", b"application/json")]}
    with pytest.raises(Refusal) as caught:
        asyncio.run(asyncio.wait_for(app._body(Request(scope, gone if is_gone else forever)), 60))
    assert caught.value.status == status


@pytest.mark.parametrize(("n_bytes", "status"), [(app.LARGEST_BODY, 408), (app.LARGEST_BODY + 1, 413)])
def test_a_body_that_is_said_to_be_too_large_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, n_bytes: int, status: int
) -> None:
    monkeypatch.setattr(app, "_BODY_S", 0.05)
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % n_bytes)]
    with pytest.raises(Refusal) as caught:
        asyncio.run(app._body(Request({"type": "http", "method": "POST", "headers": headers}, forever)))
    assert caught.value.status == status


def test_work_that_is_done_while_its_client_waits_is_done() -> None:
    assert asyncio.run(_while_connected(forever, asyncio.sleep(0))) is True


def test_a_failure_of_the_work_is_raised() -> None:
    async def work() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        asyncio.run(_while_connected(forever, work()))


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/v1/models", b""),
        ("GET", "/v1/models/m", b""),
        ("POST", "/v1/completions", b'{"prompt": "x"}'),
        ("POST", "/v1/chat/completions", b'{"messages": [{"role": "user", "content": "x"}]}'),
    ],
)
def test_while_the_model_is_loaded_for_the_first_time_clients_are_told_to_come_again(
    method: str, path: str, body: bytes
) -> None:
    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body}

    line = AnswerLine(None, lambda: None, room=1)  # type: ignore[arg-type, return-value]
    answering = app.Answering(line=line, params=None, options=None, names=())  # type: ignore[arg-type]
    asgi = app.make_app(answering, Access(host="127.0.0.1", port=80), lambda _: None)
    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    scope = {"type": "http", "method": method, "path": path, "headers": headers}
    asyncio.run(asgi(scope, receive, send))
    assert (sent[0]["status"], json.loads(sent[1]["body"])["error"]["code"]) == (503, "loading")
    assert (b"retry-after", b"1") in sent[0]["headers"]
    asyncio.run(asgi({**scope, "method": "GET", "path": "/health"}, receive, send))
    assert (sent[2]["status"], json.loads(sent[3]["body"])) == (503, {"status": "loading"})


def test_a_fault_of_the_server_is_an_answer_and_is_told_with_its_request() -> None:
    class Faulty:
        @property
        def state(self) -> str:
            raise ZeroDivisionError

    sent: list[dict[str, Any]] = []
    served: list[app.Served] = []

    async def send(message: Any) -> None:
        sent.append(message)

    answering = app.Answering(line=Faulty(), params=None, options=None, names=())  # type: ignore[arg-type]
    asgi = app.make_app(answering, Access(host="127.0.0.1", port=80), served.append)
    scope = {"type": "http", "method": "GET", "path": "/health", "headers": [(b"host", b"localhost")]}
    with pytest.raises(ZeroDivisionError):  # uvicorn's log has it
        asyncio.run(asgi(scope, forever, send))
    assert (sent[0]["status"], json.loads(sent[1]["body"])["error"]["code"]) == (500, "failed")
    assert [(one.method, one.path, one.status) for one in served] == [("GET", "/health", 500)]
    assert 0 < served[0].took_s < 60
    assert "runner logs" in served[0].error


def test_a_stream_that_waits_says_that_it_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "_KEEP_ALIVE_S", 0.02)
    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def main(stream: Callable[[Any, Any, Any], Awaitable[None]], made: Ticket) -> None:
        answer = asyncio.create_task(stream({"runner.served": None}, forever, send))
        while len(sent) < 4:
            await asyncio.sleep(0.01)
        made.end()
        await answer

    async def with_ticket() -> None:
        from test_server_replies import answer

        made = ticket()
        stream = app._Answer(None, made, answer(), is_streamed=True)._stream  # type: ignore[arg-type]
        await main(stream, made)

    asyncio.run(with_ticket())
    bodies = [message["body"] for message in sent if message["type"] == "http.response.body"]
    assert b'"role":"assistant"' in bodies[0]
    assert bodies[1] == b": waiting\n\n"
    assert bodies[-2:] == [b"data: [DONE]\n\n", b""]
