"""The server from its first socket to its last: listens, serves until a signal comes, and leaves in good order.

It knows signals and sockets, and nothing of what is asked.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import resource
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import uvicorn

from runner.errors import RunnerError, UsageError
from runner.events import Loaded
from runner.server.access import Access
from runner.server.app import Answering, Served, make_app
from runner.server.connections import Connection
from runner.server.line import AnswerLine

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from runner.config import ChatOptions, SamplingParams
    from runner.engine_process import EngineProcess
    from runner.server.requests import Asked

_GOODBYE_S: Final = 2  # for answers that were stopped to say so
_IDLE_S: Final = 30  # a connection without a whole head of a request
_CONNECTIONS: Final = 256  # beside those that wait in the line
_BACKLOG: Final = 32  # accepted at a time
_OTHER_FILES: Final = 64 + 4 * _BACKLOG  # the engine's, the log, and connections before their number is looked at
_SIGNALS: Final = tuple(
    number for name in ("SIGINT", "SIGTERM", "SIGHUP") if (number := getattr(signal, name, None)) is not None
)


@dataclass(frozen=True, kw_only=True)
class Serving:
    """What a server needs.

    load: loads the model, or loads it again. params, options: what a request becomes; the values of the loaded model,
    of settings and flags are its to know. names: the model is asked for by these too. queue: how many may wait.
    on_ready, on_served: called when the model is there, and after each request.
    """

    engine: EngineProcess
    load: Callable[[], Loaded]
    params: Callable[[Loaded, Asked], SamplingParams]
    options: Callable[[Asked], ChatOptions]
    names: tuple[str, ...]
    access: Access
    queue: int
    on_ready: Callable[[Loaded], None]
    on_served: Callable[[Served], object]


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens there. Raises UsageError for an address that is none, RunnerError for one that is taken."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise UsageError(f"--host is {host!r}, which is no address here.", hint="Use 127.0.0.1.") from error
    # Clients that are told "localhost" try 127.0.0.1, some of them alone.
    family, kind, protocol, _, address = min(found, key=lambda each: each[0] != socket.AF_INET)
    try:
        listener = socket.socket(family, kind, protocol)  # of IPv6, as "::1" is, there are none on some machines
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(2048)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            hint = "Choose another with --port, or --port 0 for any that is free."
            raise RunnerError(f"Port {port} is in use.", hint=hint) from error
        hint = "Ports below 1024 are the administrator's: choose another with --port."
        hint = hint if error.errno == errno.EACCES else "Check --host and --port."
        raise RunnerError(f"Cannot listen on {host} port {port}: {error.strerror}.", hint=hint) from error
    return listener


def is_loopback(listener: socket.socket) -> bool:
    """Whether only this machine reaches it."""
    import ipaddress

    return ipaddress.ip_address(listener.getsockname()[0].partition("%")[0]).is_loopback


def serve(listener: socket.socket, serving: Serving) -> int | None:
    """Serve until a signal comes, whose number is returned. Raises what kept the model from being loaded first."""
    return asyncio.run(_serve(listener, serving))


async def _serve(listener: socket.socket, serving: Serving) -> int | None:
    loop = asyncio.get_running_loop()
    failures: list[Exception] = []

    def begin(result: Loaded | Exception) -> None:
        try:
            if isinstance(result, Exception):
                raise result
            serving.on_ready(result)
        except Exception as error:
            failures.append(error)
            server.should_exit = True
            line.stop()

    def on_first_load(result: Loaded | Exception) -> None:
        with suppress(RuntimeError):  # the server has left meanwhile
            loop.call_soon_threadsafe(begin, result)

    line = AnswerLine(serving.engine, serving.load, room=serving.queue, on_first_load=on_first_load)
    answering = Answering(line=line, params=serving.params, options=serving.options, names=serving.names)
    server = _Server(make_app(answering, serving.access, serving.on_served), _room(serving.queue))
    with _caught_signals(loop, server, line, serving.engine) as caught:
        line.start()
        try:
            await server.serve(sockets=[listener])
        finally:
            await asyncio.to_thread(line.close)
    if failures and not caught:
        raise failures[0]
    return caught[0] if caught else None


def _room(queue: int) -> int:
    """How many connections there may be: no more than this process may have files."""
    n_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = queue + _CONNECTIONS
    return wanted if n_files == resource.RLIM_INFINITY else min(wanted, max(n_files - _OTHER_FILES, n_files // 4))


class _Server(uvicorn.Server):
    """uvicorn without its own ways with signals and logs."""

    def __init__(self, app: ASGIApp, n_connections: int, idle_s: int = _IDLE_S) -> None:
        _share_log()
        super().__init__(
            uvicorn.Config(
                app,
                loop="asyncio",
                http=Connection,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=idle_s,
                timeout_graceful_shutdown=_GOODBYE_S,
                limit_concurrency=n_connections,
                backlog=_BACKLOG,
            )
        )

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextmanager
def _caught_signals(
    loop: asyncio.AbstractEventLoop, server: uvicorn.Server, line: AnswerLine, engine: EngineProcess
) -> Iterator[list[int]]:
    """The first signal ends the server in good order, the second one at once, and with it an engine that hangs."""
    caught: list[int] = []

    def on_signal(number: int) -> None:
        if caught:
            server.force_exit = True
            engine.kill()
        caught.append(number)
        server.should_exit = True
        line.stop()

    # What is ignored is meant to be: `nohup`, or a job in the background of a script.
    heeded = [number for number in _SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
    for number in heeded:
        loop.add_signal_handler(number, on_signal, number)
    try:
        yield caught
    finally:
        for number in heeded:
            loop.remove_signal_handler(number)


def _share_log() -> None:
    """What uvicorn and asyncio have to say goes where runner's own messages go."""
    for name in ("uvicorn", "asyncio"):
        library = logging.getLogger(name)
        library.handlers = logging.getLogger("runner").handlers
        library.setLevel(logging.WARNING)
        library.propagate = False
