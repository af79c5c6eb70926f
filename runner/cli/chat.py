"""`runner chat MODEL`: puts the chat together from its parts: engine, model, store, conversation, terminal.

The loop is repl.py's, the keys are terminal.py's; this file only connects them.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from types import FrameType
from typing import TYPE_CHECKING, Any

import typer

from runner.cli import flag_groups, options, render
from runner.config import ChatOptions, LoadOptions
from runner.errors import UsageError

if TYPE_CHECKING:
    from runner.cli.loading import Loader
    from runner.cli.opening import Opening
    from runner.cli.repl import Repl, Source
    from runner.events import Loaded
    from runner.paths import Paths
    from runner.settings import Settings
    from runner.store import Store
    from runner.transcript import Session


@flag_groups.with_groups
def chat(
    *,
    model_argument: options.ModelArgument = None,
    model: options.Model = None,
    system: options.System = None,
    answer: flag_groups.Answer,
    think: options.Think = None,
    think_budget: options.ThinkBudget = None,
    hide_thinking: options.HideThinking = False,
    overflow: options.Overflow = None,
    load: flag_groups.Load,
    offline: options.Offline = None,
    estimate_only: options.EstimateOnly = False,
    continue_latest: options.Continue = False,
    resume: options.Resume = None,
    no_log: options.NoLog = False,
    verbose: options.Verbose = False,
    quiet: options.Quiet = False,
) -> None:
    """Talk with a model. /help lists what can be typed; from a pipe, each line is a message."""
    from runner.paths import user_paths
    from runner.settings import load_settings

    render.configure(quiet=quiet)
    paths = user_paths()
    settings = load_settings(paths)
    is_kept = settings.save_chats and not no_log
    resumed = _session_to_resume(paths, continue_latest, resume, is_kept=is_kept, no_log=no_log)
    name = options.model_name(
        model, model_argument, (resumed.model or None) if resumed else None, default=settings.model
    )
    flags = answer.given()
    setup = _Setup(
        paths=paths,
        settings=settings,
        is_kept=is_kept,
        resumed=resumed,
        model=name,
        system=system,
        own_params={**_kept_params(resumed), **flags},
        load_options=settings.load_options(**load.given()),
        chat_options=settings.chat_options(overflow=overflow, think=think, think_budget=think_budget),
        is_offline=settings.is_offline(offline),
        has_thoughts=settings.show_thinking and not hide_thinking,
        is_quiet=quiet,
        is_verbose=verbose,
    )
    if estimate_only:
        from runner.cli.fit_text import show_estimate

        show_estimate(setup.model, setup.load_options, paths, offline=setup.is_offline)
    elif code := _run(setup):
        raise typer.Exit(code)


@dataclass(frozen=True, kw_only=True)
class _Setup:
    """What a chat is started with."""

    paths: Paths
    settings: Settings
    is_kept: bool
    resumed: Session | None
    model: str
    system: str | None
    own_params: dict[str, Any]
    load_options: LoadOptions
    chat_options: ChatOptions
    is_offline: bool
    has_thoughts: bool
    is_quiet: bool
    is_verbose: bool


def _run(setup: _Setup) -> int:
    """Chat until the user leaves; returns the exit code. At a terminal the user types while the model is loaded."""
    from runner.engine_process import EngineProcess

    setup.settings.sampling_params({}, setup.own_params)  # a wrong value is better said before a model is loaded
    with _ended_by_signals(), ExitStack() as at_end, EngineProcess(setup.paths) as engine:
        engine.start()  # it imports what it needs while this process does
        from runner.cli.loading import Loader

        # Who writes through a pipe is at a shell, and has flags; at the prompt, /set changes what was loaded.
        loader = Loader(engine, setup.model, setup.load_options, offline=setup.is_offline, is_in_chat=render.can_ask())
        # A terminal that knows no control sequences can show nothing above its prompt: there the model comes first.
        has_live_prompt = render.can_ask() and not render.is_dumb()
        return (_run_at_prompt if has_live_prompt else _run_with_model)(setup, loader, at_end)


def _store(setup: _Setup) -> Store | None:
    """Where the chat is to be kept, if it is."""
    from runner.store import Store

    return Store(setup.paths.database, without="--no-log chats without it.") if setup.is_kept else None


def _check_store(setup: _Setup) -> None:
    """Raises StoreError for a database that is damaged or not ours, before somebody writes in the chat.

    A place that cannot be written is told by the first answer.
    """
    if (store := _store(setup)) is not None:
        with closing(store):
            store.check()


def _run_at_prompt(setup: _Setup, loader: Loader, at_end: ExitStack) -> int:
    from runner.cli.live import silent_keys
    from runner.cli.opening import Opening

    with silent_keys():  # what is typed around the first prompt appears in that or in the next one
        opening = Opening(loader, _greet_at_prompt, check=partial(_check_store, setup))
        source = _source(setup, opening)
        repl = _make_repl(setup, loader, at_end, source, opening) if setup.resumed else None
        if repl is not None:
            render.narrate(repl.recap() + "\n")
        text = source.read()  # a new chat's prompt does not wait for what only an answer needs
        repl = repl or _make_repl(setup, loader, at_end, source, opening)
    return repl.run_from(text)


def _run_with_model(setup: _Setup, loader: Loader, at_end: ExitStack) -> int:
    from runner.cli.live import silent_keys

    with silent_keys():  # what is typed while the model is loaded is for the first prompts, Enter as Enter
        _check_store(setup)
        loaded = loader.load()
        repl = _make_repl(setup, loader, at_end, _source(setup))
        repl.begin_with(loaded)
        if setup.resumed:
            render.narrate(repl.recap() + "\n")
        _greet(loaded)
    return repl.run()


def _greet(loaded: Loaded) -> None:
    from runner.status_text import header

    render.narrate(header(loaded))


def _greet_at_prompt(loaded: Loaded) -> None:
    _greet(loaded)
    # What answers need takes a twentieth of a second to import: while the user types, that costs nothing.
    threading.Thread(target=import_module, args=["runner.cli.repl"], daemon=True).start()


def _make_repl(
    setup: _Setup, loader: Loader, at_end: ExitStack, source: Source, opening: Opening | None = None
) -> Repl:
    from runner.cli.live import silent_keys
    from runner.cli.repl import Repl
    from runner.conversation import Conversation

    if (store := _store(setup)) is not None:
        at_end.callback(store.close)
    conversation = Conversation(
        loader.engine,
        model=setup.model,
        store=store,
        params=setup.settings.sampling_params({}, setup.own_params),
        options=setup.chat_options,
        system=setup.settings.system if setup.system is None else setup.system,
    )
    if setup.resumed:
        conversation.resume(setup.resumed.id)
        if setup.system is not None:
            conversation.set_system(setup.system)
    return Repl(
        conversation,
        loader,
        source,
        has_thoughts=setup.has_thoughts,
        is_quiet=setup.is_quiet,
        is_verbose=setup.is_verbose,
        silence=silent_keys,
        own_params=setup.own_params,
        make_params=setup.settings.sampling_params,
        opening=opening,
    )


def _source(setup: _Setup, opening: Opening | None = None) -> Source:
    """The terminal when there is one, else the pipe."""
    from runner.cli.terminal import TerminalSource, stdin_source

    if not render.can_ask():
        return stdin_source()

    def model_names() -> list[str]:
        from runner.registry import Registry

        registry = Registry.load_for(setup.paths)
        return [spec.name for spec in (*registry.specs, *registry.made())]

    return TerminalSource(
        history_file=setup.paths.prompt_history if setup.is_kept else None,
        models=model_names,
        work=opening,
    )


def _session_to_resume(
    paths: Paths, continue_latest: bool, wanted: str | None, *, is_kept: bool, no_log: bool
) -> Session | None:
    """The chat that --continue or --resume means. Raises UsageError when there is none."""
    if not continue_latest and wanted is None:
        return None
    if continue_latest and wanted is not None:
        raise UsageError("--continue and --resume are both given.", hint="Use one of them.")
    if no_log:
        raise UsageError("With --no-log there is no chat to go on with.", hint="Leave out --no-log.")
    if not is_kept:
        raise UsageError(
            "No chat is gone on with where none is kept: save_chats is off.",
            hint="For this command alone it is on with RUNNER_SAVE_CHATS=true in front.",
        )
    from runner.store import Store

    with closing(Store(paths.database)) as store:
        session = store.latest() if wanted is None else store.get(wanted)
    if session is None:
        raise UsageError("There is no chat to go on with.", hint="Start one: runner chat demo")
    return session


def _kept_params(resumed: Session | None) -> dict[str, Any]:
    """The sampling that the chat to go on with was set to."""
    if resumed is None:
        return {}
    from runner.kept_chat import kept_params

    return kept_params(resumed)


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP leave in good order: the terminal is given back, the partial answer is kept."""

    def leave(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    numbers = [number for name in ("SIGTERM", "SIGHUP") if (number := getattr(signal, name, None))]
    before = {number: signal.signal(number, leave) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
