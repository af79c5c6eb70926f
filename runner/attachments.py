"""Text from files, which joins a prompt or is quoted by drafts: read whole, checked for size and for being text.

It knows nothing of prompts beyond how an attached file is set apart from the words around it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from runner.errors import UsageError

MAX_BYTES = 4 * 1024 * 1024
_SNIFFED_BYTES = 8192
_ATTACHED = re.compile(r"(?ms)^[^\n`]+:\n(?P<fence>`{3,})\n.*?^(?P=fence)$")


def decode(raw: bytes, origin: str) -> tuple[str, str]:
    """Bytes as text, and a notice when some of them were not UTF-8. Raises UsageError for what is no text at all."""
    if b"\0" in raw[:_SNIFFED_BYTES]:
        raise UsageError(f"{origin} is not text.", hint="Only text can be added to a prompt.")
    try:
        return raw.decode("utf-8-sig"), ""
    except UnicodeDecodeError:
        text = raw.decode("utf-8-sig", "replace")
        count = text.count(chr(0xFFFD))
        replaced = "1 byte was" if count == 1 else f"{count} bytes were"
        return text, f"{origin} is not UTF-8: {replaced} replaced by “\ufffd”."


def absolute(path: str, folder: Path | None = None) -> str:
    """A path that was written, as another process can use it: from `folder` or the working directory, ~ being home."""
    try:
        return str(Path(folder or "", os.path.expanduser(path)).absolute())
    except OSError:  # the working directory was deleted
        return path


def read_text_file(path: Path) -> tuple[str, str]:
    """A file's text, and a notice or "". Raises UsageError for one that cannot be read, is too large, or no text."""
    try:
        with path.expanduser().open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except (OSError, RuntimeError, ValueError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).rstrip(".")
        raise UsageError(f"{path} cannot be read: {reason}.", hint="Give the name of a text file.") from error
    check_size(raw, str(path))
    return decode(raw, str(path))


def attached(path: Path, text: str) -> str:
    """A file's text as it stands in a message: fenced, under its name."""
    fence = "```"
    while fence in text:
        fence += "`"
    body = text if text.endswith("\n") or not text else text + "\n"
    return f"{path.name}:\n{fence}\n{body}{fence}"


def own_words(message: str) -> str:
    """A message without the files that are attached to it."""
    return _ATTACHED.sub("", message) if "```" in message else message


def check_size(raw: bytes, origin: str) -> None:
    """Raises UsageError for more than MAX_BYTES."""
    if len(raw) > MAX_BYTES:
        raise UsageError(
            f"{origin} is larger than {MAX_BYTES // 2**20} MiB.", hint="Give the model the part that matters."
        )
