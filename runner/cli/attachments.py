"""Text that joins a prompt from files and pipes: read whole, checked for size and for being text.

It knows nothing of prompts beyond how an attached file is set apart from the words around it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from runner.cli.render import can_ask
from runner.errors import RunnerError, UsageError

MAX_BYTES = 4 * 1024 * 1024
_SNIFFED_BYTES = 8192


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


def read_text_file(path: Path) -> tuple[str, str]:
    """A file's text, and a notice or "". Raises UsageError for a file that is too large, or no text."""
    try:
        with path.expanduser().open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except (OSError, RuntimeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise RunnerError(f"{path} cannot be read: {reason}.") from error
    _check_size(raw, str(path))
    return decode(raw, str(path))


def read_stdin() -> tuple[str, str]:
    """What is piped into the program, up to its end, and a notice or "". Nothing from a terminal."""
    if sys.stdin is None or can_ask():
        return "", ""
    raw = sys.stdin.buffer.read(MAX_BYTES + 1)
    _check_size(raw, "What was piped in")
    return decode(raw, "What was piped in")


def attached(path: Path, text: str) -> str:
    """A file's text as it stands in a message: fenced, under its name."""
    fence = "```"
    while fence in text:
        fence += "`"
    body = text if text.endswith("\n") or not text else text + "\n"
    return f"{path.name}:\n{fence}\n{body}{fence}"


def _check_size(raw: bytes, origin: str) -> None:
    if len(raw) > MAX_BYTES:
        raise UsageError(
            f"{origin} is larger than {MAX_BYTES // 2**20} MiB.", hint="Give the model the part that matters."
        )
