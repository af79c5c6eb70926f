"""What the interface remembers from one time to the next: theme, folded rails, the tint.

A JSON file of its own beside the logs, private, replaced in one step. A file that is damaged, or of another version, is
read as far as it can be understood. It knows no widget.
"""

from __future__ import annotations

import json
import logging
import threading
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

from runner.errors import RunnerError
from runner.new_file import write_new
from runner.paths import Paths, private_directory

_log = logging.getLogger(__name__)
_LONGEST: Final = 64 * 1024


@dataclass(frozen=True, kw_only=True)
class Remembered:
    """theme: "" when none was chosen. left_rail, right_rail: whether they are open where there is room for them.

    tint: whether what a drafter had guessed is told apart in the answers.
    """

    theme: str = ""
    left_rail: bool = True
    right_rail: bool = True
    tint: bool = True


def read_remembered(paths: Paths) -> Remembered:
    """What was written; the defaults for what is missing or makes no sense. Never raises."""
    path = remembered_file(paths)
    try:
        with path.open("rb") as file:
            plain = json.loads(file.read(_LONGEST))
    except FileNotFoundError:
        return Remembered()
    except (OSError, ValueError, RecursionError) as error:
        _log.warning("%s is passed over: %s", path, error)
        return Remembered()
    if not isinstance(plain, dict):
        return Remembered()
    return Remembered(**{one.name: plain[one.name] for one in fields(Remembered) if _is_sound(one.name, plain)})


def write_remembered(paths: Paths, values: Remembered) -> bool:
    """Replace the file; whether that was done. Why it cannot be goes to the log: nothing of value is lost."""
    try:
        private_directory(paths.state)
        write_new(remembered_file(paths), json.dumps(asdict(values), indent=2) + "\n", overwrite=True)
    except (OSError, RunnerError) as error:
        _log.warning("the interface's settings are not kept: %s", error)
        return False
    return True


class Memory:
    """The file as one interface keeps it: what was chosen here is written, the rest is left to whoever wrote it.

    known: what was remembered when this interface began.
    """

    def __init__(self, paths: Paths) -> None:
        self.known = self._written = self._wanted = read_remembered(paths)
        self._paths = paths
        self._writing = threading.RLock()  # of one thread: a signal may come while it writes

    def take(self, values: Remembered) -> bool:
        """Note how things are now; whether there is something to write, which there may be only after what a thread is
        writing now."""
        before, self._wanted = self._wanted, values
        return values != before or values != self._written

    def write(self) -> None:
        """Write what was noted last, if it is not there yet. It waits for the disk."""
        with self._writing:
            wanted, before = asdict(self._wanted), asdict(self._written)
            changed = {name: value for name, value in wanted.items() if value != before[name]}
            if changed and write_remembered(self._paths, replace(read_remembered(self._paths), **changed)):
                self._written = Remembered(**wanted)


def remembered_file(paths: Paths) -> Path:
    return paths.state / "tui.json"


def _is_sound(name: str, plain: dict[str, Any]) -> bool:
    """Whether a value is there and of the type of its default."""
    return name in plain and type(plain[name]) is type(getattr(Remembered(), name))
