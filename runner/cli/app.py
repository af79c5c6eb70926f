"""The `runner` program: the table of commands, and what happens to their errors.

A command's module is imported when that command runs, so that `runner --help` is instant. This file knows no command's
work: it maps names to modules, and exceptions to exit codes.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer

import runner
from runner.cli import bash_words, render
from runner.cli.command import App
from runner.cli.help_layout import Group, command_hint
from runner.errors import RunnerError, UsageError

_log = logging.getLogger(__name__)
_WRONG_USAGE: Any = typer.BadParameter.__base__  # what Typer says of a command line; it has no public name
# What Typer's types of numbers are called, and what they are.
_NUMBERS = {"int": "a whole number", "int range": "a whole number", "float": "a number", "float range": "a number"}


@dataclass(frozen=True)
class Entry:
    """Where a command is: `attribute` of `module` is its function, or a Typer app with commands of its own."""

    module: str
    attribute: str
    help: str


COMMANDS: dict[str, Entry] = {
    "chat": Entry("runner.cli.chat", "chat", "Talk with a model."),
    "run": Entry("runner.cli.run", "run", "Answer one prompt; text from a pipe is added to it."),
    "ls": Entry("runner.cli.ls", "ls", "List the models on this machine."),
    "search": Entry("runner.cli.search", "search", "Find models in the registry and on the hub."),
    "pull": Entry("runner.cli.pull", "pull", "Fetch models, or go on with an interrupted download."),
    "show": Entry("runner.cli.show", "show", "Show what is known of a model."),
    "rm": Entry("runner.cli.rm", "rm", "Delete a model's files."),
    "verify": Entry("runner.cli.verify", "verify", "Check the files of models against their hashes, and mend them."),
    "du": Entry("runner.cli.du", "du", "Show what models take on the disk."),
    "ps": Entry("runner.cli.ps", "ps", "List the models that are loaded now."),
    "quantize": Entry("runner.cli.quantize", "quantize", "Make a model smaller: four bits unless you say otherwise."),
    "draft": Entry("runner.cli.draft", "app", "Train a drafter for a model, and show what it is."),
    "eval": Entry("runner.cli.eval", "evaluate", "Measure perplexity, and how far a model is from its reference."),
    "bench": Entry("runner.cli.bench", "app", "Measure how fast a model runs here, and compare runs."),
    "serve": Entry("runner.cli.serve", "serve", "Serve a model over HTTP, as OpenAI's API has it."),
    "explain": Entry("runner.cli.explain", "explain", "Say how a model would run here, and why."),
    "doctor": Entry("runner.cli.doctor", "doctor", "Check this machine and say what to mend."),
    "config": Entry("runner.cli.config", "app", "Show settings, and where each value comes from."),
    "sessions": Entry("runner.cli.sessions", "app", "List, show, export, search and delete saved chats."),
    "logs": Entry("runner.cli.logs", "logs", "Show the program's log."),
}
ALIASES = {"list": "ls", "get": "pull", "diag": "doctor"}


def _placeholder(name: str) -> Any:
    """A command that has only a name and a help line: enough for lists and for completion of names."""
    app = new_app()
    app.command(name, help=COMMANDS[name].help)(lambda: None)
    return typer.main.get_command(app)


def _load(name: str) -> Any:
    """The real command, from its module."""
    entry = COMMANDS[name]
    target = getattr(importlib.import_module(entry.module), entry.attribute)
    if not isinstance(target, typer.Typer):
        app = new_app()
        app.command(name, help=target.__doc__ or entry.help)(target)
        target = app
    return typer.main.get_command(target)


class LazyCommands(Group):
    """The commands of the table above: listed from the table, imported when one of them runs."""

    def list_commands(self, _ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, _ctx: Any, cmd_name: str) -> Any:
        return _placeholder(cmd_name) if cmd_name in COMMANDS else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = ALIASES.get(args[0], args[0])
        if name in COMMANDS:
            return name, _load(name), args[1:]
        if ctx.resilient_parsing:  # completion of something that is no command: nothing to offer
            return None, None, args[1:]
        raise UsageError(f"There is no command {args[0]!r}.", hint=command_hint(args[0], COMMANDS, "runner"))

    def format_commands(self, _ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in COMMANDS.items()])


def new_app(*, add_completion: bool = False, **settings: Any) -> App:
    """An app with this program's settings; commands that have commands of their own are made with it."""
    return App(
        add_completion=add_completion,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
        **settings,
    )


app = new_app(add_completion=True, cls=LazyCommands)


def _print_version(value: bool) -> None:
    if value:
        render.data(f"runner {runner.__version__}")
        raise typer.Exit(0)


@app.callback(invoke_without_command=True)
def top(
    ctx: typer.Context,
    version: Annotated[  # noqa: ARG001 - the callback does the work
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
    with_parent: Annotated[
        bool, typer.Option("--with-parent", help="End when standard input ends.", hidden=True)
    ] = False,
) -> None:
    """Run language models on your own machine.

    Without a command the terminal interface opens.

    Start with: runner chat demo
    """
    from runner.log import start_logging, stop_logging
    from runner.paths import user_paths

    render.configure()
    if ctx.invoked_subcommand is None and (reason := _why_no_interface()):
        render.narrate(f"{ctx.get_help()}\n\n{reason}")
        raise typer.Exit(2)
    start_logging(user_paths())
    ctx.call_on_close(stop_logging)
    if with_parent:
        from runner.cli.parent import end_with_parent

        end_with_parent()
    if ctx.invoked_subcommand is None:
        raise typer.Exit(_terminal_interface())


def _why_no_interface() -> str:
    """Why the interface cannot be shown, or "": it reads keys from stdin, and Textual draws on stderr."""
    if not (render.can_ask() and all(map(render.is_terminal, (sys.stdout, sys.stderr)))):
        return "The terminal interface does not open: stdin, stdout and stderr are not all a terminal."
    if render.is_dumb():
        term = os.environ.get("TERM") or "not set"
        return f"The terminal interface does not open: TERM is {term}. `runner chat` needs no more than lines."
    return ""


def _terminal_interface() -> int:
    from runner.paths import user_paths
    from runner.settings import load_settings
    from runner.tui import run_tui

    paths = user_paths()
    return run_tui(paths, load_settings(paths))


def _wants_traceback(arguments: Sequence[str]) -> bool:
    return bool(os.environ.get("RUNNER_DEBUG")) or "-v" in arguments or "--verbose" in arguments


def _report_crash(error: Exception, arguments: Sequence[str]) -> int:
    """Say in one line that runner itself failed; the traceback goes to the log (and to stderr with -v)."""
    from runner.log import start_logging, stop_logging
    from runner.paths import user_paths

    start_logging(user_paths())
    _log.error("crash", exc_info=error)
    stop_logging()
    if _wants_traceback(arguments):
        render.warn("".join(traceback.format_exception(error)))
    summary = str(error).strip().split("\n")[0]
    message = f"runner failed: {type(error).__name__}: {summary}".rstrip(": ")
    hint = f"The details are in {user_paths().log_file}; -v or RUNNER_DEBUG=1 shows them here."
    return render.fail(RunnerError(message, hint=hint))


def _wrong_number(error: Any) -> RunnerError | None:
    """What is wrong with a number, in the words of our own checks; None where that is not what Typer says."""
    given, is_not, _ = error.message.partition(" is not ")
    kind: Any = getattr(getattr(error, "param", None), "type", None)
    if not is_not or getattr(kind, "name", "") not in _NUMBERS:
        return None
    low, high = getattr(kind, "min", None), getattr(kind, "max", None)
    span = "" if low is None else f", {low} or more" if high is None else f" from {low} to {high}"
    return UsageError(f"{max(error.param.opts, key=len)} is {given}.", hint=f"It must be {_NUMBERS[kind.name]}{span}.")


def _usage_error(error: Any, arguments: Sequence[str]) -> RunnerError:
    """What Typer says, as this program says it."""
    if wrong := _wrong_number(error):
        return wrong
    message = error.format_message().rstrip(".")
    command = "runner" if not arguments or arguments[0] not in COMMANDS else f"runner {arguments[0]}"
    if error.ctx is not None:
        command = error.ctx.command_path
    return UsageError(f"{message}.", hint=f"`{command} --help` says what there is.")


def _check_working_directory(error: OSError) -> None:
    """Raise RunnerError where it was deleted: a path that is meant from there has no beginning."""
    try:
        os.getcwd()
    except FileNotFoundError:
        raise RunnerError("The working directory was deleted.", hint="Go to another: cd ~") from error


def _run(arguments: list[str]) -> int:
    """Gives the exit code."""
    try:
        code = app(arguments, prog_name="runner", standalone_mode=False)
    except _WRONG_USAGE as error:
        if error.ctx is not None and error.message == error.ctx.get_help():  # of a command that needs one of its own
            render.narrate(error.message)
            return 2
        raise _usage_error(error, arguments) from error
    except OSError as error:
        render.check_output()
        if isinstance(error, FileNotFoundError):
            _check_working_directory(error)
        raise
    return code if isinstance(code, int) else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:  # a terminal that cannot show a character shows "?" and the program goes on
            reconfigure(errors="replace")
    if os.environ.get("_RUNNER_COMPLETE") == "complete_bash":
        bash_words.put_together(os.environ)
    try:
        return _run(given)
    except RunnerError as error:
        return render.fail(error)
    except KeyboardInterrupt:
        return 130
    except SystemExit as done:
        return done.code if isinstance(done.code, int) else 0 if done.code is None else 1
    except Exception as error:
        return _report_crash(error, given)
