"""What can follow what is typed in a chat: names and arguments of commands, paths after @ or after a command.

Pure functions of text, but `path_offers`, which lists one directory. It knows no front end.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from runner import set_values
from runner.chat_commands import COMMANDS, PAGES, PATH_COMMANDS, THINK_LEVELS, is_command
from runner.errors import UsageError
from runner.message_files import OPEN_MENTION, READ_NONE
from runner.settings import SETTINGS

Kind = Literal["command", "model", "set name", "set value", "word", "path", "mention"]

_MOST_PATHS = 200
_SET_WORDS = {item.field: item.words for item in SETTINGS if item.owner is not None}
_HELP = {item.field or item.key: item.help for item in SETTINGS}
_WORD_HELP = {
    "info": "the model, and where it runs",
    "parameters": "everything that /set knows",
    "system": "the system prompt",
    "template": "the model's chat template",
    "show": "show thoughts",
    "hide": "fold thoughts",
    "md": "as Markdown",
    "json": "as JSON, which /load reads",
}


@dataclass(frozen=True)
class Asked:
    """What is being typed at the cursor. start: where the word begins in the text. topic: the command or parameter."""

    kind: Kind
    word: str
    start: int
    topic: str = ""

    @property
    def typed(self) -> str:
        """The word as it stands in the text."""
        return f"@{self.word}" if self.kind == "mention" else self.word

    @property
    def last_part(self) -> str:
        """The last part of a path, or the whole of any other word."""
        return self.word.rpartition("/")[2] if self.kind in ("path", "mention") else self.word


@dataclass(frozen=True)
class Offer:
    """One thing that the word may become. text: what replaces it, with a space behind it where that is due.

    is_last: the command is complete with it: Enter may send it at once.
    """

    label: str
    text: str
    help: str = ""
    is_last: bool = False


def asked(before: str) -> Asked | None:
    """What is being typed, from the text before the cursor; None where there is nothing to complete."""
    if mention := OPEN_MENTION.search(before):
        return Asked("mention", mention[1], mention.start(1) - 1)
    if not is_command(before) or "\n" in before or before[0] != "/":
        return None
    name, space, rest = before.partition(" ")
    if not space:
        return Asked("command", name, 0)
    command, start = name[1:].lower(), len(name) + 1
    if command == "set":
        field, space, value = rest.partition(" ")
        if not space:
            return Asked("set name", field, start)
        return Asked("set value", value, start + len(field) + 1, field)
    if command in PATH_COMMANDS:
        return Asked("path", rest, start, command)
    if command == "model":
        return Asked("model", rest, start)
    return Asked("word", rest, start, command) if command in ("show", "think") else None


def offers(wanted: Asked, models: Sequence[str]) -> list[Offer]:
    """What the word may become, in the order of the tables; paths are `path_offers`'s. models: names for /model."""
    if wanted.kind == "command":
        rows = [(f"/{words.name}", words.argument, words.help) for words in COMMANDS]
        return [
            Offer(f"{name} {argument}".rstrip(), f"{name} " if argument else name, help, is_last=not argument)
            for name, argument, help in rows
            if name.startswith(wanted.word.lower())
        ]
    if wanted.kind == "set name":
        names = [name for name in set_values.names() if wanted.word.lower().replace("-", "_") in name]
        return [Offer(name, f"{name} ", _HELP.get(name, "")) for name in _beginning_first(names, wanted.word)]
    return [
        Offer(word, word, _WORD_HELP.get(word, "") if wanted.kind == "word" else "", is_last=True)
        for word in _words(wanted, models)
    ]


def _words(wanted: Asked, models: Sequence[str]) -> Iterable[str]:
    word = wanted.word.lower()
    if wanted.kind == "model":
        return _beginning_first([name for name in models if word in name.lower()], word)
    if wanted.kind == "set value":
        known = _set_words(wanted.topic)
    else:
        known = PAGES if wanted.topic == "show" else (*THINK_LEVELS, "show", "hide")
    return [one for one in known if one.startswith(word)]


def _set_words(name: str) -> tuple[str, ...]:
    """What /set takes for that name, as it may be written, where that is one of a few words."""
    try:
        return _SET_WORDS.get(set_values.field_name(name), ())
    except UsageError:
        return ()


def _beginning_first(names: Iterable[str], word: str) -> list[str]:
    return sorted(names, key=lambda name: not name.lower().startswith(word.lower()))


def path_offers(wanted: Asked, directory: Path) -> list[Offer]:
    """Files and directories that the word may become: directories first, hidden ones only when asked for by a dot.

    Reads one directory; one that cannot be read offers nothing.
    """
    is_mention = wanted.kind == "mention"
    typed = wanted.word.lstrip('"').lstrip("'")
    folder, _, beginning = typed.rpartition("/")
    folder = f"{folder}/" if "/" in typed else ""
    try:
        with os.scandir(directory / Path(folder or ".").expanduser()) as entries:
            found = sorted((not _is_directory(entry), entry.name) for entry in entries)
    except (OSError, RuntimeError, ValueError):
        return []
    offered = [Offer(word, word, is_last=True) for word in ("md", "json") if wanted.topic == "export" and not folder]
    offered = [offer for offer in offered if offer.text.startswith(typed)]
    if wanted.topic == "read" and typed == READ_NONE:  # Enter sends it, whatever the files that begin so
        offered.append(Offer(typed, typed, is_last=True))
    for is_file, name in found:
        if name.lower().startswith(beginning.lower()) and (beginning.startswith(".") or not name.startswith(".")):
            path = folder + name + ("" if is_file else "/")
            offered.append(Offer(path, _mention(path, is_file=is_file) if is_mention else path, is_last=False))
    return offered[:_MOST_PATHS]


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _mention(path: str, *, is_file: bool) -> str:
    """A path as it is written after @: in quotes when it has a space; a directory is left open, to go on in."""
    quoted = f'"{path}' + ('"' if is_file else "") if " " in path else path
    return f"@{quoted} " if is_file else f"@{quoted}"
