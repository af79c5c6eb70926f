"""The user's own programs in this terminal: the editor that $VISUAL or $EDITOR names, the pager that $PAGER names.

A text for the editor goes through a private file that is removed afterwards. It knows nothing of what a text is for.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from runner.errors import RunnerError, UsageError


def editor() -> str:
    """The command of the user's editor, "" when none is named."""
    return os.environ.get("VISUAL") or os.environ.get("EDITOR") or ""


def pager() -> str:
    """The command of the user's pager. Raises UsageError when there is none."""
    named = os.environ.get("PAGER") or shutil.which("less") or shutil.which("more")
    if not named:
        raise UsageError("There is no pager here.", hint="Set $PAGER to a program that shows its input.")
    return named


def edit_text(text: str) -> str | None:
    """The text as the user left it, or None when no editor is named. Raises RunnerError when the editor fails."""
    command = editor()
    if not command:
        return None
    try:
        descriptor, name = tempfile.mkstemp(prefix="runner-", suffix=".md")  # mkstemp makes it 0600
    except OSError as error:
        raise RunnerError(
            f"There is no place for a text to edit: {error.strerror}.",
            hint="Free some space, or set TMPDIR to a directory on another disk.",
        ) from error
    path = Path(name)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="replace") as file:
            file.write(text)
        with _interrupts_for_the_program():
            status = subprocess.call([*shlex.split(command), name])
        if status != 0:
            raise RunnerError(f"The editor ended with status {status}: the message is as it was.")
        return path.read_text(encoding="utf-8", errors="replace").rstrip("\n")
    except (OSError, ValueError) as error:
        raise RunnerError(f"The editor {command!r} cannot be run: {error}.", hint="Set $EDITOR to another.") from error
    finally:
        path.unlink(missing_ok=True)


def page_text(text: str) -> None:
    """Show a text in the pager until the user leaves it. Raises RunnerError when there is none that runs."""
    command = pager()
    try:
        with _interrupts_for_the_program():
            subprocess.run(shlex.split(command), input=text.encode("utf-8", "replace"), check=False)
    except (OSError, ValueError) as error:
        raise RunnerError(f"The pager {command!r} cannot be run: {error}.", hint="Set $PAGER to another.") from error


@contextmanager
def _interrupts_for_the_program() -> Iterator[None]:
    """Ctrl+C reaches every program of the terminal: meanwhile it is the other one's. A handler, for exec resets it."""
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
