"""Files that a message mentions as @path: finding them in the text, and reading them for it.

`read_mentions` is the disk's edge and belongs in a thread. It knows no widget.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from runner.attachments import attached, read_text_file
from runner.errors import RunnerError, UsageError

_MENTION = re.compile(r'(?:^|(?<=\s))@(?:"([^"\n]+)"|(\S+))')
_PUNCTUATION = ".,;:!?)]}'\""


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


@dataclass(frozen=True)
class Refused:
    """A file that was meant and cannot be attached."""

    name: str
    error: RunnerError


def mentions(text: str) -> tuple[str, ...]:
    """What stands after each @ that begins a word, in order, each once."""
    return tuple(dict.fromkeys(quoted or plain for quoted, plain in _MENTION.findall(text)))


def read_mentions(names: Sequence[str], directory: Path) -> tuple[Attachment | Refused, ...]:
    """The files among `names`, read and checked; a name that is no file is an ordinary word and is passed over."""
    found = [(name, path) for name in names if (path := _file(name, directory)) is not None]
    return tuple(read(path.name, path) for _, path in found)


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
    """A message and what goes with it, as it is sent."""
    return "\n\n".join([*filter(str.strip, [message]), *(one.in_message for one in attachments)])


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
