"""Files of the user's own: one appears whole or not at all, and replaces another only when asked to.

It knows nothing of what is in them.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from runner.errors import RunnerError, UsageError


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
    if path.is_block_device():
        raise UsageError(f"{path} is a disk, and this is written to a file.", hint="Name a file.")
    data = text.encode("utf-8", "replace")
    path = path.resolve() if path.is_symlink() and path.is_file() else path
    beside = path.with_name(f".{path.name[:50]}.{secrets.token_hex(4)}")  # a character takes up to four bytes of 255
    try:
        is_stream = path.exists() and not path.is_file()
        if path.exists() and not (overwrite or is_stream):
            raise UsageError(f"{path} is there already.", hint=remedy)
        if is_stream:
            with open(os.open(path, os.O_WRONLY | os.O_NONBLOCK), "wb") as stream:  # a pipe that nobody reads: an error
                os.set_blocking(stream.fileno(), True)
                stream.write(data)
            return
        try:
            descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if is_private else 0o666)
            with open(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(beside, path)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise RunnerError(
            f"{path} cannot be written: {error.strerror or error}.",
            hint="Give another name, in a directory of your own on a disk with room.",
        ) from error
