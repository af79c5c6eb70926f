"""The program's log: what it did and what went wrong, in a private file that is rotated. `runner logs` shows it.

What users and models say never goes into it. It knows nothing of who logs: modules use logging.getLogger(__name__).
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path

from runner.paths import Paths, open_private
from runner.safe_text import safe_text

MAX_BYTES = 1_000_000
N_OLD_FILES = 2

_logger = logging.getLogger("runner")


class _PrivateFile(RotatingFileHandler):
    """A rotating file with mode 0600. When it cannot be written, the program goes on without it."""

    def _open(self) -> TextIOWrapper:
        descriptor = open_private(Path(self.baseFilename), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        return open(descriptor, "a", encoding="utf-8")

    def handleError(self, record: logging.LogRecord) -> None:
        """Say nothing: logging would print a traceback into the middle of a chat when the disk is full."""

    def close(self) -> None:
        with suppress(OSError):  # what the disk did not take is tried once more
            super().close()


class _SafeFormatter(logging.Formatter):
    """One line a record (a traceback follows on lines of its own), without anything that a terminal acts on."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s", "%Y-%m-%dT%H:%M:%S%z")

    def formatMessage(self, record: logging.LogRecord) -> str:
        return super().formatMessage(record).replace("\n", "\\n")

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        return safe_text(text.encode("utf-8", "replace").decode("utf-8"))


def start_logging(paths: Paths, verbose: bool = False) -> bool:
    """Log runner's own messages to paths.log_file: from INFO on, from DEBUG on when `verbose`.

    False when the file cannot be written: nothing is logged then. Calling it again replaces the file.
    """
    stop_logging()
    try:
        handler = _PrivateFile(paths.log_file, maxBytes=MAX_BYTES, backupCount=N_OLD_FILES, encoding="utf-8")
    except OSError:
        _logger.addHandler(logging.NullHandler())
        return False
    handler.setFormatter(_SafeFormatter())
    _logger.addHandler(handler)
    _logger.setLevel(logging.DEBUG if verbose else logging.INFO)
    _logger.propagate = False  # a library may have pointed the root logger at the terminal
    return True


def stop_logging() -> None:
    """Close the log."""
    for handler in list(_logger.handlers):
        _logger.removeHandler(handler)
        handler.close()
