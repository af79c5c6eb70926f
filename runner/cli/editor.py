"""Lets the user change a text in the editor that $VISUAL or $EDITOR names.

The text goes through a private file that is removed afterwards. It knows nothing of what the text is for.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from pathlib import Path

from runner.errors import RunnerError


def edit_text(text: str) -> str | None:
    """The text as the user left it, or None when no editor is named. Raises RunnerError when the editor fails."""
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR")
    if not editor:
        return None
    descriptor, name = tempfile.mkstemp(prefix="runner-", suffix=".md")  # mkstemp makes it 0600
    path = Path(name)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="replace") as file:
            file.write(text)
        status = subprocess.call([*shlex.split(editor), name])
        if status != 0:
            raise RunnerError(f"The editor ended with status {status}: the message is as it was.")
        return path.read_text(encoding="utf-8", errors="replace").rstrip("\n")
    except (OSError, ValueError) as error:
        raise RunnerError(f"The editor {editor!r} cannot be run: {error}.", hint="Set $EDITOR to another.") from error
    finally:
        path.unlink(missing_ok=True)
