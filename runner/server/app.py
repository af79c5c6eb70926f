"""The HTTP edge: routes, bodies, streams, and clients that go away in the middle.

What a request means is requests.py's, what an answer looks like replies.py's, who may ask access.py's. It knows no
socket and no terminal.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import time
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from runner.config import ChatOptions, SamplingParams
from runner.errors import BadGrammar, RunnerError
from runner.events import Finished, Loaded
from runner.server.access import Access
from runner.server.line import AnswerLine, Ticket
from runner.server.refusal import Refusal, refusal_of
from runner.server.replies import Reply, model_object
from runner.server.requests import Asked, grammar_field, read, read_chat, read_completion

log = logging.getLogger(__name__)

LARGEST_BODY: Final = 16 * 2**20  # bytes; a chat template takes half as many characters
_BODY_S: Final = 60.0  # for a body to arrive
_KEEP_ALIVE_S: Final = 5.0  # proxies cut a stream that is silent for long
_STALLED_S: Final = 30.0  # a reader that takes nothing for so long is gone
_LINE_ENDS: Final = tuple((end, json.dumps(end)[1:-1]) for end in "\x85\u2028\u2029")  # JSON escapes the other ones
_ENDPOINTS: Final = "GET /health, GET /v1/models, POST /v1/chat/completions, POST /v1/completions"


@dataclass(kw_only=True)
class Served:
    """A request, once it is over, for whoever keeps a record. error: why there is no answer, or no whole one."""

    method: str
    path: str
    status: int = 0
    took_s: float = 0.0
    finished: Finished | None = None
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class Answering:
    """How requests are answered: the line, and what is made of a request for the model that is loaded."""

    line: AnswerLine
    params: Callable[[Loaded, Asked], SamplingParams]
    options: Callable[[Asked], ChatOptions]
    names: tuple[str, ...]


def make_app(answering: Answering, access: Access, on_served: Callable[[Served], object]) -> ASGIApp:
    """The ASGI application. on_served: called on the event loop after each request."""
    started_at = int(time.time())

    async def health(_: Request) -> Response:
        state = answering.line.state
        return _json({"status": "ok" if state == "ready" else state}, 200 if state == "ready" else 503)

    async def models(_: Request) -> Response:
        return _json({"object": "list", "data": [model_object(_loaded(answering), started_at)]})

    async def model(request: Request) -> Response:
        loaded = _loaded(answering)
        _check_model(request.path_params["name"], loaded, answering)
        return _json(model_object(loaded, started_at))

    async def chat(request: Request) -> ASGIApp:
        return await _begin(request, answering, read_chat)

    async def completion(request: Request) -> ASGIApp:
        return await _begin(request, answering, read_completion)

    app = Starlette(
        routes=[
            Route("/health", health),
            Route("/v1/models", models),
            Route("/v1/models/{name:path}", model),
            Route("/v1/chat/completions", chat, methods=["POST"]),
            Route("/v1/completions", completion, methods=["POST"]),
        ],
        middleware=[
            *([_cors(access)] if access.origins else []),
            Middleware(_Token, access=access),
        ],
        exception_handlers={Refusal: _on_refusal, HTTPException: _on_http, Exception: _on_failure},
    )
    app.router.redirect_slashes = False  # there are no other paths than those above, and clients follow no redirect
    return _Told(_Guard(app, access), on_served)


def _cors(access: Access) -> Middleware:
    return Middleware(
        CORSMiddleware,
        allow_origins=list(access.origins),
        allow_methods=["GET", "POST"],
        allow_headers=["*"],
        allow_private_network=True,  # or a browser lets no page of the web reach this machine
    )


# --- around every request --------------------------------------------------------------------------------------------


def _headers(scope: Scope) -> dict[str, str]:
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}


class _Told:
    """Measures a request, and tells of it when it is over."""

    def __init__(self, app: ASGIApp, on_served: Callable[[Served], object]) -> None:
        self._app = app
        self._on_served = on_served

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        served = Served(method=scope["method"], path=scope["path"])
        began = time.monotonic()

        async def noted(message: Message) -> None:
            if message["type"] == "http.response.start":
                served.status = message["status"]
            await send(message)

        try:
            await self._app({**scope, "runner.served": served}, receive, noted)
        finally:
            served.took_s = time.monotonic() - began
            self._on_served(served)


class _Guard:
    """Refuses requests from where none may come, before anything else looks at them."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._access.refusal(_headers(scope))
        await (self._app if refusal is None else _refused(scope, refusal))(scope, receive, send)


class _Token:
    """Asks for the token, but of those who only ask whether the server is alive."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = None if scope["path"] == "/health" else self._access.token_refusal(_headers(scope))
        await (self._app if refusal is None else _refused(scope, refusal))(scope, receive, send)


def _refused(scope: Scope, refusal: Refusal) -> Response:
    scope["runner.served"].error = refusal.message
    return _json(refusal.body, refusal.status, refusal.headers)


async def _on_refusal(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refusal)
    return _refused(request.scope, error)


async def _on_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    what = "That path takes another method" if error.status_code == 405 else "Nothing is there"
    message = f"{what}. There are: {_ENDPOINTS}."
    return _refused(request.scope, Refusal(error.status_code, message, code="unknown_url", headers=error.headers))


async def _on_failure(request: Request, _: Exception) -> Response:
    return _refused(request.scope, Refusal(500, "The server failed. `runner logs` has the details.", code="failed"))


# --- what is asked ---------------------------------------------------------------------------------------------------


def _loaded(answering: Answering) -> Loaded:
    """The model, also while it is loaded again."""
    if (loaded := answering.line.loaded) is not None:
        return loaded
    raise Refusal(503, "The model is being loaded.", code="loading", headers={"Retry-After": "1"})


def _check_model(name: str, loaded: Loaded, answering: Answering) -> None:
    if name not in (loaded.info.name, *answering.names):
        message = f"The model {json.dumps(name[:200])} is not loaded. Loaded is {json.dumps(loaded.info.name)}."
        raise Refusal(404, message, code="model_not_found", param="model")


async def _begin(request: Request, answering: Answering, reader: Callable[[object], Asked]) -> ASGIApp:
    """Read a request, and put it into the line."""
    body = await _body(request)
    asked = await asyncio.to_thread(read, body, reader)  # it may be megabytes
    loaded = _loaded(answering)
    if asked.model:
        _check_model(asked.model, loaded, answering)
    try:
        ticket = Ticket(asked.messages, answering.params(loaded, asked), answering.options(asked))
    except RunnerError as error:
        raise refusal_of(error) from error
    answering.line.enter(ticket)
    reply = Reply(
        id=f"{'chatcmpl' if asked.is_chat else 'cmpl'}-{secrets.token_hex(12)}",
        created=int(time.time()),
        loaded=loaded,
        is_chat=asked.is_chat,
        has_usage=asked.has_usage,
    )
    return _Answer(answering.line, ticket, reply, is_streamed=asked.is_streamed)


async def _body(request: Request) -> bytes:
    """The body of a request. Raises Refusal for one that is too large or too slow, or of another type."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Refusal(415, "The body has to be JSON. Send Content-Type: application/json.", code="wrong_content_type")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise Refusal(415, "The body is compressed. Send it as it is.", code="wrong_content_encoding")
    length = request.headers.get("content-length", "0")
    if length.isdecimal() and int(length) > LARGEST_BODY:
        raise _too_large()
    body = bytearray()
    try:
        async with asyncio.timeout(_BODY_S):
            async for piece in request.stream():
                body += piece
                if len(body) > LARGEST_BODY:
                    raise _too_large()
    except TimeoutError:
        raise Refusal(408, f"The body took more than {_BODY_S:.0f} s to arrive.", code="timeout") from None
    except ClientDisconnect:
        raise Refusal(400, "The client went away before its request was whole.", code="disconnected") from None
    return bytes(body)


def _too_large() -> Refusal:
    return Refusal(413, f"The body has more than {LARGEST_BODY} bytes. Send a shorter one.", code="too_large")


# --- what is answered ------------------------------------------------------------------------------------------------


class _Answer:
    """The answer to a ticket, whole or streamed. A client that goes away leaves the line at once."""

    def __init__(self, line: AnswerLine, ticket: Ticket, reply: Reply, *, is_streamed: bool) -> None:
        self._line = line
        self._ticket = ticket
        self._reply = reply
        self._is_streamed = is_streamed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        served: Served = scope["runner.served"]
        work = self._stream(scope, receive, send) if self._is_streamed else self._send_whole(scope, receive, send)
        try:
            is_done = await _while_connected(receive, work)
        finally:
            self._line.leave(self._ticket)
        served.finished = self._reply.finished
        if not is_done:
            served.error = "the client went away"

    async def _send_whole(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            while (event := await self._ticket.next()) is not None:
                self._reply.take(event)
            response = _json(self._reply.whole())
        except (RunnerError, Refusal) as error:
            response = _refused(scope, self._refusal(error))
        await response(scope, receive, send)

    def _refusal(self, error: RunnerError | Refusal) -> Refusal:
        """What goes wrong, as the client gets it: with the field, where the engine finds that the grammar is wrong."""
        if isinstance(error, Refusal):
            return error
        grammar = self._ticket.params.grammar if isinstance(error, BadGrammar) else None
        return refusal_of(error, grammar_field(grammar.kind) if grammar is not None else None)

    async def _stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Chunks as they come. What goes wrong before the first one still has a status of its own."""
        stream = _EventStream(send)
        try:
            while True:
                try:
                    async with asyncio.timeout(_KEEP_ALIVE_S):
                        event = await self._ticket.next()
                except TimeoutError:
                    await self._open(stream)
                    await stream.comment()
                    continue
                if event is None:
                    break
                await self._open(stream)
                await stream.data(self._reply.chunks(event))
        except (RunnerError, Refusal) as error:
            refusal = self._refusal(error)
            if not stream.is_open:
                return await _refused(scope, refusal)(scope, receive, send)
            scope["runner.served"].error = refusal.message
            await stream.data([refusal.body])
            return await stream.close()
        await stream.write(b"data: [DONE]\n\n")
        return await stream.close()

    async def _open(self, stream: _EventStream) -> None:
        if not stream.is_open:
            await stream.open()
            await stream.data(self._reply.opening())


class _EventStream:
    """Server-sent events to one client."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.is_open = False

    async def open(self) -> None:
        self.is_open = True
        headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-cache"),
            (b"x-accel-buffering", b"no"),  # nginx would gather it
        ]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})

    async def data(self, values: Iterable[object]) -> None:
        if events := b"".join(b"data: " + _encoded(value) + b"\n\n" for value in values):
            await self.write(events)

    async def comment(self) -> None:
        """What clients pass over, and proxies count as life."""
        await self.write(b": waiting\n\n")

    async def write(self, body: bytes, *, more: bool = True) -> None:
        async with asyncio.timeout(_STALLED_S):
            await self._send({"type": "http.response.body", "body": body, "more_body": more})

    async def close(self) -> None:
        await self.write(b"", more=False)


async def _while_connected(receive: Receive, work: Coroutine[Any, Any, None]) -> bool:
    """Run `work`; False when the client goes away before it is done, or takes nothing of it any more."""

    async def until_gone() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    task, gone = asyncio.create_task(work), asyncio.create_task(until_gone())
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        task.cancel()
        gone.cancel()
        await asyncio.wait({task, gone})
    try:
        task.result()
    except (asyncio.CancelledError, TimeoutError):
        return False
    return True


def _json(value: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(_encoded(value), status, headers, media_type="application/json")


def _encoded(value: object) -> bytes:
    """JSON in one line, whatever a client takes for a line's end."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    for character, escaped in _LINE_ENDS:
        text = text.replace(character, escaped)
    return text.encode("utf-8", "replace")
