"""Which repository a file is of, as far as its path tells: one in the Hugging Face cache has it there.

It opens nothing.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

_REPO: Final = re.compile(r"models--(?P<owner>.+?)--(?P<name>.+)")


def origin(path: Path) -> tuple[str, str]:
    """The repository and commit of a file, or of the directory of a commit; else two empty strings."""
    parts = path.absolute().parts
    for index, part in enumerate(parts[:-2]):
        if (match := _REPO.fullmatch(part)) and parts[index + 1] == "snapshots":
            return f"{match['owner']}/{match['name']}", parts[index + 2]
    return "", ""


def called(directory: Path) -> str:
    """What to call the model in a directory, for people: its repository, not the commit, or the directory."""
    return origin(directory)[0] or directory.name
