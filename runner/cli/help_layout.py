"""How help is laid out: in narrow terminals, which Typer takes for wider ones, and with whole sentences.

And what is said of a command that is none of a group's. It knows no command, and nothing of how options are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from typer.core import TyperCommand, TyperGroup

from runner.cli import render
from runner.errors import UsageError, nearest_hint
from runner.measures import wrap

_TYPERS_LEAST, _LEAST = 50, 20  # columns of help
_SHORT_FLAGS: Final = len("-h, --help")  # longer ones have a line of their own in a narrow terminal
_ANY_LENGTH: Final = 1000

_TypersContext: Any = TyperCommand.context_class  # neither it nor its formatter has a public name
_TypersHelp: Any = _TypersContext.formatter_class


class _Help(_TypersHelp):  # type: ignore[misc]
    """Typer's layout of help, which takes a narrow terminal for one of 52 columns, and lets it cut words in two."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        room = render.terminal_size().columns - 2
        self._is_narrow = room < _TYPERS_LEAST
        if self._is_narrow:
            self.width = max(room, _LEAST)

    def write_dl(self, rows: Sequence[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        if self._is_narrow:
            indent = " " * self.current_indent
            rows = [(wrap(flags, self.width).replace("\n", f"\n{indent}"), text) for flags, text in rows]
            col_max = min(col_max, _SHORT_FLAGS)
        super().write_dl(rows, col_max, col_spacing)


class Context(_TypersContext):  # type: ignore[misc]
    """What a command is called in."""

    formatter_class = _Help


def command_hint(word: str, known: Iterable[str], path: str) -> str:
    """What to give in place of a word that is no command. path: what the commands are given behind."""
    return f"`{path} --help` lists the commands." if word == "help" else nearest_hint(word, known)


class Group(TyperGroup):
    """Commands of one name."""

    context_class = Context

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Typer's. Raises UsageError for what is no command of these, as for what is none of the program's."""
        if args[0] not in self.commands and not args[0].startswith("-") and not ctx.resilient_parsing:
            hint = command_hint(args[0], self.commands, ctx.command_path)
            raise UsageError(f"{ctx.command_path} has no command {args[0]!r}.", hint=hint)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Each with the whole first sentence of its help, where Typer cuts what takes more than a line."""
        found = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        rows = [(name, one.get_short_help_str(_ANY_LENGTH)) for name, one in found.items() if one and not one.hidden]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)
