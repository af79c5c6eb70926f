"""`runner serve MODEL`: the model over HTTP, as OpenAI's API has it; the address on stdout, a line a request on stderr.

It turns flags into a server and its events into lines. What the server does is runner/server's.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from runner.cli import flag_groups, options, render
from runner.errors import RunnerError, UsageError

if TYPE_CHECKING:
    import socket

    from runner.cli.loading import Loader
    from runner.config import ChatOptions, LoadOptions, SamplingParams
    from runner.events import Loaded
    from runner.paths import Paths
    from runner.server import Access, Served
    from runner.server.requests import Asked
    from runner.settings import Settings

DEFAULT_PORT: Final = 8383
_LOCAL: Final = "127.0.0.1"
_TOKEN_VARIABLE: Final = "RUNNER_SERVE_TOKEN"
# Nobody may be there to read the narration, or its file's disk be full: that ends other commands, and not this one.
_UNREAD: Final = suppress(SystemExit, RunnerError)

Host = Annotated[str, typer.Option("--host", metavar="ADDRESS", help="Where to listen.")]
Port = Annotated[int, typer.Option("--port", min=0, max=65535, metavar="N", help="0 takes any that is free.")]
AllowRemote = Annotated[bool, typer.Option("--allow-remote", help="Other machines may ask; needs a token.")]
Token = Annotated[  # a secret, and so no setting: `runner config show` would print it
    str | None,
    typer.Option("--token", envvar=_TOKEN_VARIABLE, metavar="TEXT", help="What a client has to send."),
]
AllowHost = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-host", metavar="NAME[:PORT]", help="A name that leads here, as clients write it; repeatable."
    ),
]
AllowOrigin = Annotated[
    list[str] | None,
    typer.Option("--allow-origin", metavar="URL", help="A web page that may ask, or *; repeatable."),
]
Queue = Annotated[int, typer.Option("--queue", min=0, metavar="N", help="Requests that may wait for the one before.")]


@flag_groups.with_groups
def serve(
    *,
    model_argument: options.ModelArgument = None,
    model: options.Model = None,
    host: Host = _LOCAL,
    port: Port = DEFAULT_PORT,
    allow_remote: AllowRemote = False,
    token: Token = None,
    allow_host: AllowHost = None,
    allow_origin: AllowOrigin = None,
    queue: Queue = 32,
    sampling: flag_groups.Sampling,
    think: options.Think = None,
    think_budget: options.ThinkBudget = None,
    overflow: options.Overflow = None,
    load: flag_groups.Load,
    offline: options.Offline = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Serve a model over HTTP, as OpenAI's API has it.

    Sampling flags are the defaults of requests that do not say otherwise. docs/SERVER.md has the rest.
    """
    from runner.paths import user_paths
    from runner.settings import load_settings

    render.configure(quiet=quiet)
    paths = user_paths()
    settings = load_settings(paths)
    load_options = settings.load_options(**load.given())
    defaults = _Defaults(
        settings,
        sampling.given(),  # what an answer has to be is each request's own
        {"overflow": overflow, "think": think, "think_budget": think_budget},
    )
    # An empty variable means nothing to Typer, and is a mistake all the same: $(cat FILE) of a file that is not there.
    _check_token(os.environ.get(_TOKEN_VARIABLE) if token is None else token)
    listener = _listen(host, port, token, allow_remote=allow_remote)
    with listener:
        from runner.server import Access

        access = Access(
            host=host,
            port=listener.getsockname()[1],
            token=token,
            names=tuple(allow_host or ()),
            origins=tuple(origin.lower().removesuffix("/") for origin in allow_origin or ()),
            is_remote=allow_remote,
        )
        command = _Command(
            paths, access, options.model_name(model, model_argument, default=settings.model), as_json=as_json
        )
        code = command.run(listener, load_options, defaults, queue, is_offline=settings.is_offline(offline))
    if code:
        raise typer.Exit(code)


class _Defaults:
    """What holds for a request that does not say otherwise. Raises UsageError for what can hold for none."""

    def __init__(self, settings: Settings, sampling: dict[str, Any], chat: dict[str, Any]) -> None:
        self._settings = settings
        self._sampling = sampling
        self._chat = chat
        settings.sampling_params({}, sampling)
        settings.chat_options(**chat)

    def params(self, loaded: Loaded, asked: Asked) -> SamplingParams:
        return self._settings.sampling_params(loaded.sampling, {**self._sampling, **asked.sampling})

    def options(self, asked: Asked) -> ChatOptions:
        return self._settings.chat_options(**{**self._chat, **asked.options})


def _check_token(token: str | None) -> None:
    if token is not None and not (token.isascii() and token.isprintable() and token.split() == [token]):
        raise UsageError(
            "The token is empty, or has characters that no header can carry.",
            hint=f"Give letters and digits, or leave --token and {_TOKEN_VARIABLE} out where only this machine asks.",
        )


def _listen(host: str, port: int, token: str | None, *, allow_remote: bool) -> socket.socket:
    """The socket. Raises UsageError for one that other machines reach without a token."""
    from runner.server import bind, is_loopback

    listener = bind(host, port)
    if not is_loopback(listener) and not (allow_remote and token):
        listener.close()
        raise UsageError(
            f"Other machines could reach {host}.",
            hint="Add --allow-remote and a token: --token, or RUNNER_SERVE_TOKEN, which no list of processes shows.",
        )
    return listener


class _Command:
    """One server, as a terminal sees it."""

    def __init__(self, paths: Paths, access: Access, model: str, *, as_json: bool) -> None:
        self._paths = paths
        self._access = access
        self._model = model
        self._as_json = as_json
        self._has_loaded = False

    def run(
        self, listener: socket.socket, load_options: LoadOptions, defaults: _Defaults, queue: int, *, is_offline: bool
    ) -> int:
        """Serve until a signal comes; returns the exit code."""
        from concurrent.futures import ThreadPoolExecutor

        from runner.cli.loading import Loader
        from runner.engine_process import EngineProcess
        from runner.server import Serving, serve

        # Lines wait in a thread of their own: a terminal that is stopped (Ctrl+S), or a pager, stops nobody's answer.
        with ThreadPoolExecutor(1) as lines, EngineProcess(self._paths) as engine:
            loader = Loader(engine, self._model, load_options, offline=is_offline, as_json=self._as_json)
            serving = Serving(
                engine=engine,
                load=lambda: self._load(loader),
                params=defaults.params,
                options=defaults.options,
                names=(self._model,),
                access=self._access,
                queue=queue,
                on_ready=self._on_ready,
                on_served=lambda served: lines.submit(_tell, served),
            )
            number = serve(listener, serving)
        return 130 if number == signal.SIGINT else 0

    def _load(self, loader: Loader) -> Loaded:
        load = loader.ensure if self._has_loaded else loader.load
        try:
            try:
                loaded = load()
            except SystemExit:  # nobody reads the narration, which goes nowhere from now on
                loaded = load()
        except RunnerError as error:
            if self._has_loaded:  # the server goes on, and the next request tries again
                with _UNREAD:
                    render.warn(error.message, error.hint)
            raise
        self._has_loaded = True
        return loaded

    def _on_ready(self, loaded: Loaded) -> None:
        host = f"[{self._access.host}]" if ":" in self._access.host else self._access.host
        url = f"http://{host}:{self._access.port}"
        info = loaded.info
        if self._as_json:
            found = {"url": url, "api": f"{url}/v1", "model": info.name, "backend": info.backend, "n_ctx": info.n_ctx}
            render.emit_json("runner.serve/1", {**found, "pid": os.getpid()})
        else:
            render.data(url)
        with _UNREAD:
            about = f"{info.name} · {info.quantization} · context {info.n_ctx}\n{info.backend}: {loaded.reason}"
            render.narrate(f"{about}\nOpenAI's API is at {url}/v1 · Ctrl+C stops the server")


def _tell(served: Served) -> None:
    with _UNREAD:
        render.narrate(_line(served))


def _line(served: Served) -> str:
    """A request in one line: POST /v1/completions 200 · 12 + 34 tokens · 142.6 tok/s · 0.3 s."""
    from runner.safe_text import safe_line
    from runner.status_text import SEPARATOR, rate

    parts = [f"{served.method} {render.clip(safe_line(served.path), 60)} {served.status or 'unanswered'}"]
    if served.finished is not None:
        timings = served.finished.timings
        parts.append(f"{timings.prompt_tokens} + {timings.completion_tokens} tokens")
        if timings.decode_tok_s is not None:
            parts.append(rate(timings.decode_tok_s))
    parts.append(render.duration(served.took_s))
    if served.error:
        parts.append(render.clip(safe_line(served.error), 100))
    return SEPARATOR.join(parts)
