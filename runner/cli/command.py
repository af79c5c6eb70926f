"""How every command reads its options, beyond what Typer does: a value is neither empty nor another option, and ~ in a
path is a home directory.

An empty value is what a shell makes of a variable that is not set; Path would take it for the working directory. It
knows no command.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, TypeVar, get_args

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from runner.cli.help_layout import Context, Group
from runner.errors import UsageError

_Function = TypeVar("_Function", bound=Callable[..., Any])
_MAY_BE_BLANK: Final = ("prompt", "system", "stop")  # texts that somebody may mean, an empty one too


class Command(TyperCommand):
    """A command that looks at what was written before it is made anything else."""

    context_class = Context

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Typer's. Raises UsageError for a value that can only be a mistake."""
        options = [param for param in self.params if isinstance(param, TyperOption)]
        end = args.index("--") if "--" in args else len(args)
        if not ctx.resilient_parsing:
            _refuse_options_as_values(options, args[:end])
        if any(option.name == "think" for option in options):
            args = [*_with_levels(args[:end]), *args[end:]]
        if not ctx.resilient_parsing:
            written, _, _ = self.make_parser(ctx).parse_args(args=list(args))
            for param in self.params:
                if isinstance(param, TyperOption) or param.type.name == "path":
                    _refuse_empty(param, written.get(param.name or ""))
        rest = super().parse_args(ctx, args)
        for param in self.params:
            if param.type.name == "path" and not ctx.resilient_parsing:
                ctx.params[param.name] = _expanded(ctx.params[param.name])
        return rest


class App(typer.Typer):
    """A Typer app whose commands are such commands."""

    def __init__(self, *, cls: type[TyperGroup] = Group, **settings: Any) -> None:
        super().__init__(cls=cls, **settings)

    def command(  # type: ignore[override]  # what else Typer takes by name it is given as it stands
        self, name: str | None = None, *, cls: type[TyperCommand] = Command, **settings: Any
    ) -> Callable[[_Function], _Function]:
        return super().command(name, cls=cls, **settings)


def _with_levels(args: Sequence[str]) -> Iterator[str]:
    """--think alone as --think=on, which Typer cannot: the word behind it is its value where it is a level."""
    from runner.config import Think  # what `runner --help` has no use for

    levels = get_args(Think)
    for before, word, following in zip(["", *args], args, [*args[1:], ""], strict=False):
        if word == "--think":
            yield f"--think={following if following in levels else 'on'}"
        elif before != "--think" or word not in levels:
            yield word


def _expanded(written: Any) -> Any:
    """A path, or several, with ~ as a home directory, which a shell leaves after "=". Raises UsageError."""
    if isinstance(written, (list, tuple)):
        return type(written)(map(_expanded, written))
    if not isinstance(written, (str, Path)) or not str(written).startswith("~"):
        return written
    from runner.paths import expanded  # what `runner --help` has no use for

    return type(written)(expanded(Path(written)))


def _refuse_empty(param: Any, written: object) -> None:
    """written: the text, or the texts, that the parameter was given; anything else where it was not."""
    texts = written if isinstance(written, (list, tuple)) else (written,)
    if param.name in _MAY_BE_BLANK or not any(isinstance(text, str) and not text.strip() for text in texts):
        return
    if not isinstance(param, TyperOption):
        raise UsageError(f"{param.metavar} is empty.", hint="Give it a value.")
    flag = _longest(param)
    leave = "" if param.required else ", or leave it out"
    raise UsageError(f"{flag} is empty.", hint=f"Give it a value, {flag} {param.metavar}{leave}.")


def _refuse_options_as_values(options: Sequence[TyperOption], args: Sequence[str]) -> None:
    by_flag = {flag: option for option in options for flag in option.opts}
    for word, following in pairwise(args):
        takes_value = word in by_flag and not by_flag[word].is_flag and word != "--think"
        if takes_value and following in by_flag:
            flag = _longest(by_flag[word])
            raise UsageError(
                f"{flag} needs a value, and {following} is an option.",
                hint=f"Where that is the value, write {flag}={following}",
            )


def _longest(option: TyperOption) -> str:
    return max(option.opts, key=len)
