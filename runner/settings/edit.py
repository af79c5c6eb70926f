"""Changes one setting in the user's config.toml, and keeps everything else in it: comments, order, spacing.

The file is replaced in one step, with mode 0600, and by one edit at a time. It knows nothing of where else a setting
may be given.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from runner.attachments import absolute
from runner.errors import ConfigError, RunnerError
from runner.paths import Paths, open_private, private_directory
from runner.settings.files import read_text
from runner.settings.table import setting


def set_value(paths: Paths, key: str, texts: Sequence[str]) -> Any:
    """Write `key` with the value that `texts` mean (one; more for a list) into the user's file; returns the value.

    Raises ConfigError, and RunnerError where it cannot be written.
    """
    return set_meant(paths, key, setting(key).parse(*texts))


def set_meant(paths: Paths, key: str, value: Any) -> Any:
    """set_value of what is the value itself, and no text that means it: a list's texts are exact. Raises what
    set_value does."""
    value = setting(key).check(value)
    if key == "draft_file":  # typed here, and read from everywhere
        value = tuple(map(absolute, value))
    with _alone(paths.settings_file):
        document = _document(paths.settings_file)
        document[key] = list(value) if isinstance(value, tuple) else value
        _write(paths.settings_file, document.as_string())
    return value


def unset_value(paths: Paths, key: str) -> bool:
    """Remove `key` from the user's file; returns whether it was there.

    A key that is no setting is removed too, if it is there: so a mistake can be taken back. Raises what set_value does.
    """
    with _alone(paths.settings_file):
        document = _document(paths.settings_file)
        if key not in document:
            setting(key)
            return False
        del document[key]
        _write(paths.settings_file, document.as_string())
    return True


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Between reading the file and replacing it no other edit may come: it would be lost.

    The lock is the directory's, so that no file is left beside the settings.
    """
    with ExitStack() as held:
        with suppress(OSError):  # no directory, which the write tells of; or a file system without locks
            descriptor = os.open(private_directory(_target(path).parent), os.O_RDONLY)
            held.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield


def _target(path: Path) -> Path:
    """The file itself: a link into somebody's dotfiles stays a link. One that goes in a circle is what it is."""
    return Path(os.path.realpath(path))


def _document(path: Path) -> Any:
    import tomlkit
    from tomlkit.exceptions import ParseError

    try:
        return tomlkit.parse(read_text(path))
    except ParseError as error:
        raise ConfigError(f"{path}:{error.line} is not valid TOML.", hint="Mend the file, then try again.") from error


def _write(path: Path, text: str) -> None:
    target = _target(path)
    partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
    try:
        contents = text.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(
            "The value has bytes that are no text.", hint=f"{path} is UTF-8; check the terminal's encoding."
        ) from error
    try:
        try:
            with os.fdopen(open_private(partial), "wb") as file:
                file.write(contents)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise RunnerError(
            f"{path} cannot be written: {error.strerror or error}.", hint="Free some space, or check its permissions."
        ) from error
