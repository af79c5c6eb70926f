"""Files that go with a message: those that /read names, and those that its text mentions as @path.

`read` and `read_mentions` are the disk's edge. It knows no front end; how a file stands in a message is up to
attachments.py.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from runner.attachments import attached, own_words, read_text_file
from runner.errors import RunnerError, UsageError

_MENTION = re.compile(r'(?:^|(?<=\s))@(?:"([^"\n]+)"|(\S+))')
OPEN_MENTION = re.compile(r'(?:^|(?<=\s))@("[^"\n]*|[^\s"]*)$')
"""What is being typed behind an @ at the end of a text: group 1, with the quotation mark before it, if there is one."""
_PUNCTUATION = ".,;:!?)]}'\""
NO_FILES = "No file goes with your next message."
READ_NONE = "off"
# Of files that people read to a model; @click.group and @example.com are none.
_SUFFIX = re.compile(
    r"bash|bat|bib|c|cc|cfg|conf|cpp|cs|css|csv|cu|diff|go|h|hpp|html?|ini|ipynb|java|jl|jsx?|jsonl?|kt|log|lua|md|patch|php"
    r"|pl|ps1|py|rb?|rs|rst|scala|sh|sql|svelte|swift|tex|toml|tsx?|tsv|txt|vue|xml|ya?ml|zig",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Attachment:
    """A text that goes with a message. name: for people. notice: what should be known of it, or ""."""

    name: str
    path: Path
    text: str
    notice: str = ""

    @property
    def in_message(self) -> str:
        return attached(self.path, self.text)

    @property
    def words(self) -> str:
        """Its name and how long it is."""
        n_lines = len(self.text.splitlines())
        return f"{self.name} ({n_lines} {'line' if n_lines == 1 else 'lines'})"


@dataclass(frozen=True)
class Refused:
    """A file that was meant and cannot be attached."""

    name: str
    error: RunnerError


@dataclass(frozen=True)
class Missing:
    """A mention that reads like a file's name and names none: it stays a word of the message, which is to be said."""

    name: str

    @property
    def words(self) -> str:
        return f"@{self.name} is no file here: it is sent as it stands."


def file_to_read(argument: str, directory: Path) -> Path | None:
    """The file that "/read `argument`" adds to the next message, or None when none is to go with it.

    Raises UsageError for no name, and for one that is no path.
    """
    name = argument.strip("'\"")
    if not name:
        raise UsageError("/read needs the name of a file.", hint="It is: /read PATH, or /read off for none.")
    return None if argument == READ_NONE else path_of(name, directory)


def path_of(name: str, directory: Path) -> Path:
    """Where a name that was typed leads. Raises UsageError for what is no path."""
    try:
        return directory / Path(name).expanduser()
    except RuntimeError as error:
        raise UsageError(f"{name} is no path: {error}", hint="~ alone is your own directory.") from error


def mentions(text: str) -> tuple[str, ...]:
    """What stands after each @ that begins a word of the user's own, in order, each once."""
    return tuple(dict.fromkeys(quoted or plain for quoted, plain in _MENTION.findall(own_words(text))))


def read_mentions(names: Sequence[str], directory: Path) -> tuple[Attachment | Refused | Missing, ...]:
    """The files among `names`, read and checked, and what only reads like one; any other word is passed over."""
    found: list[Attachment | Refused | Missing] = []
    for name in names:
        if (path := _file(name, directory)) is not None:
            found.append(read(path.name, path))
        elif _is_like_path(name, directory):
            found.append(Missing(name.rstrip(_PUNCTUATION)))
    return tuple(found)


def read(name: str, path: Path) -> Attachment | Refused:
    """One file for a message. A pipe or a device is refused: it could keep a thread for ever."""
    try:
        if _is_special(path):
            raise UsageError(f"{path} is a pipe or a device.", hint="Write what comes out of it to a file first.")
        text, notice = read_text_file(path)
    except RunnerError as error:
        return Refused(name, error)
    return Attachment(name, path, text, notice)


def with_attachments(message: str, attachments: Sequence[Attachment]) -> str:
    """A message and what goes with it, as it is sent. What it has already, as an edited one may, is not added again."""
    text = message if message.strip() else ""
    for one in attachments:
        if one.in_message not in text:
            text = f"{text}\n\n{one.in_message}" if text else one.in_message
    return text


def _is_special(path: Path) -> bool:
    try:
        return path.exists() and not path.is_file() and not path.is_dir()
    except OSError:  # a name too long: opening it says so
        return False


def _file(name: str, directory: Path) -> Path | None:
    """The file that a mention means; a full stop behind it may belong to the sentence."""
    for candidate in dict.fromkeys((name, name.rstrip(_PUNCTUATION))):
        try:
            path = directory / Path(candidate).expanduser()
            if candidate and path.is_file():
                return path
        except (OSError, RuntimeError, ValueError):  # a name too long, ~nobody, a NUL
            continue
    return None


def _is_like_path(name: str, directory: Path) -> bool:
    """Whether a mention was meant as a file: @notes.txt, @./x and @src/x where there is src; not @you or @org/team."""
    folder, slash, last = name.rstrip(_PUNCTUATION).rpartition("/")
    stem, _, suffix = last.rpartition(".")
    if stem and _SUFFIX.fullmatch(suffix) and "@" not in last:
        return True
    if f"{folder}{slash}".startswith(("./", "../", "~/")):
        return True
    try:
        return bool(slash and last) and (directory / (folder or slash)).is_dir()
    except (OSError, ValueError):  # a name too long, a NUL
        return False
