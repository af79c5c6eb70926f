"""Files of the user's own: one appears whole or not at all, and replaces another only when asked to.

It knows nothing of what is in them.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Final

from runner.errors import RunnerError, UsageError

_OPEN_FILES: Final = ("/dev/stdout", "/dev/stderr", "/dev/fd/", "/proc/")  # names of what a process has open


def write_new(
    path: Path,
    text: str,
    *,
    overwrite: bool = False,
    is_private: bool = True,
    remedy: str = "Choose another name, or remove it first.",
) -> None:
    """Write `text` to `path` in one step. Half a surrogate pair, which is no character, becomes "?".

    is_private: with mode 0600, else as the umask says. remedy: the hint where it is there already. Into a pipe that is
    read, or a device (/dev/stdout), it is written as it comes, and neither is replaced. Of a link, what it names is.
    """
    if os.path.isdir(path):  # which may have no name, as "/" has none
        raise UsageError(f"{path} is a directory, and this is written to a file.", hint="Name a file.")
    data = text.encode("utf-8", "replace")
    try:
        if path.is_block_device():
            raise UsageError(f"{path} is a disk, and this is written to a file.", hint="Name a file.")
        if path.exists() and (not path.is_file() or str(path).startswith(_OPEN_FILES)):
            _write_into(path, data)
        elif path.exists() and not overwrite:
            raise UsageError(f"{path} is there already.", hint=remedy)
        else:
            _put(Path(os.path.realpath(path)) if path.is_symlink() else path, data, 0o600 if is_private else 0o666)
    except OSError as error:
        raise RunnerError(
            f"{path} cannot be written: {error.strerror or error}.",
            hint="Give another name, in a directory of your own on a disk with room.",
        ) from error


def _write_into(stream: Path, data: bytes) -> None:
    """What is no file, or one that is open already, goes on; a pipe that nobody reads is an error, and no wait."""
    with open(os.open(stream, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK), "wb") as end:
        os.set_blocking(end.fileno(), True)
        end.write(data)


def _put(path: Path, data: bytes, mode: int) -> None:
    beside = path.with_name(f".{path.name[:50]}.{secrets.token_hex(4)}")  # a character takes up to four bytes of 255
    try:
        with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
