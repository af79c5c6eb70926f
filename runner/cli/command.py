"""What every command holds its options to, beyond what Typer does: a value is neither empty nor another option.

An empty value is what a shell makes of a variable that is not set; Path would take it for the working directory. It
knows no command.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Final, TypeVar

import typer
from typer.core import TyperCommand, TyperOption

from runner.errors import UsageError

_Function = TypeVar("_Function", bound=Callable[..., Any])
_MAY_BE_BLANK: Final = ("prompt", "system", "stop")  # texts that somebody may mean, an empty one too


class Command(TyperCommand):
    """A command that looks at what was written before it is made anything else."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Typer's. Raises UsageError for a value that can only be a mistake."""
        if not ctx.resilient_parsing:
            options = [param for param in self.params if isinstance(param, TyperOption)]
            _refuse_options_as_values(options, args[: args.index("--")] if "--" in args else args)
            written, _, _ = self.make_parser(ctx).parse_args(args=list(args))
            for param in self.params:
                if isinstance(param, TyperOption) or param.type.name == "path":
                    _refuse_empty(param, written.get(param.name or ""))
        return super().parse_args(ctx, args)


class App(typer.Typer):
    """A Typer app whose commands are such commands."""

    def command(  # type: ignore[override]  # what else Typer takes by name it is given as it stands
        self, name: str | None = None, *, cls: type[TyperCommand] = Command, **settings: Any
    ) -> Callable[[_Function], _Function]:
        return super().command(name, cls=cls, **settings)


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
        if word in by_flag and not by_flag[word].is_flag and following in by_flag:
            flag = _longest(by_flag[word])
            raise UsageError(
                f"{flag} needs a value, and {following} is an option.",
                hint=f"Where that is the value, write {flag}={following}",
            )


def _longest(option: TyperOption) -> str:
    return max(option.opts, key=len)
