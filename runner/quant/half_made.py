"""Which outputs in a directory are whole, and what a making that was stopped or killed left beside them, by names.

    <output>.partial                what is being made
    <output>.old-<8 characters>/    made for the moment of replacing an output, or of deleting it
        replaced                    the earlier output: it is the model still, until the later one is in its place
        deleted                     what is being deleted, or was when a kill ended that

It opens no file and changes nothing; work_directory.py does.
"""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from typing import Final

from runner.closed import lost_target
from runner.quant.packed_files import PARTIAL_SUFFIX

OLD_MARK: Final = ".old-"
REPLACED_NAME: Final = "replaced"
DELETED_NAME: Final = "deleted"
_OLD: Final = re.compile(r"(?P<output>.+)\.old-[a-z0-9_]{8}")  # as tempfile ends names


def finished(directory: Path) -> dict[str, Path]:
    """The outputs in there that are whole, by name, each with its directory; nothing where that cannot be had.

    One that was to be replaced by a run that was killed just then is where that run had put it. A link is one also
    while its target is not to be found.
    """
    try:
        paths = sorted(directory.absolute().iterdir())
    except OSError:  # nothing was made yet
        return {}
    found = dict[str, Path]()
    for path in paths:
        if (earlier := earlier_output(path)) is not None:
            found.setdefault(output_name(path), earlier)
        elif _is_output(path) and not path.name.startswith("."):
            found[path.name] = path
    return dict(sorted(found.items()))


def _is_output(path: Path) -> bool:
    """Whether that is a whole output, or a link to one that is not to be found now."""
    return (path.is_dir() or lost_target(path) is not None) and not is_half_made(path)


def half_made(directory: Path) -> tuple[Path, ...]:
    """What there is of no use but to go on with it, or of none at all, by name; nothing where that cannot be had."""
    try:
        paths = sorted(directory.absolute().iterdir())
    except OSError:  # nothing was made yet
        return ()
    return tuple(path for path in paths if is_half_made(path))


def is_half_made(path: Path) -> bool:
    """Whether that is begun, was replaced or half deleted. An earlier output that is the model still is none of it."""
    return path.name.endswith(PARTIAL_SUFFIX) or (_is_old(path) and earlier_output(path) is None)


def remedies(partial: Path) -> str:
    """What can be done with a half-made model that is where runner makes them."""
    again = "The command that was making it finishes it when it is given again"
    return f"{again}; `runner rm {shlex.quote(partial.name)}` deletes it."


def earlier_output(path: Path) -> Path | None:
    """The output that was to be replaced, where `path` has it and a kill kept the later one from its place."""
    is_wanted = _is_old(path) and not os.path.lexists(path.with_name(output_name(path)))
    return path / REPLACED_NAME if is_wanted and os.path.lexists(path / REPLACED_NAME) else None


def output_name(path: Path) -> str:
    """What the output that `path` was left of is called."""
    match = _OLD.fullmatch(path.name)
    return match["output"] if match else path.name.removesuffix(PARTIAL_SUFFIX)


def is_half_deleted(path: Path) -> bool:
    """Whether a deletion of that was killed."""
    return _is_old(path) and os.path.lexists(path / DELETED_NAME)


def olds_of(output: Path) -> tuple[Path, ...]:
    """What was made for the moment of replacing or deleting `output`, and is there still."""
    try:
        found = sorted(output.parent.iterdir())
    except OSError:
        return ()
    return tuple(path for path in found if path != output and output_name(path) == output.name and _is_old(path))


def _is_old(path: Path) -> bool:
    """By its name, and because nothing else is in it: somebody may call a model of their own like that."""
    if not _OLD.fullmatch(path.name) or path.is_symlink():
        return False
    try:
        return set(os.listdir(path)) <= {REPLACED_NAME, DELETED_NAME}
    except OSError:
        return False
