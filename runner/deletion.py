"""Deleting what removal.py planned, so that a kill in the middle leaves nothing without a name.

What was made here is renamed first to what is known to be left over; in the cache, blobs go before what tells whose
they are. The same deletion, or `runner rm --partial`, takes the rest. It asks nobody.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from runner.errors import BusyError, RunnerError
from runner.hub_cache import has_files, remove_files
from runner.hub_parts import delete_leftovers, lock_directory, refuse_while_fetched
from runner.inventory import known_groups
from runner.quant.half_made import output_name
from runner.quant.packed_files import PARTIAL_SUFFIX
from runner.quant.work_directory import held, no_room, set_aside
from runner.removal import Removal
from runner.running import RunningEngine, running
from runner.trees import alone_at, cannot_delete, check_deletable, delete_tree


def delete(removal: Removal) -> int:
    """Carry it out; returns the bytes freed.

    Raises BusyError when a process is fetching or making those files, RunnerError when something could not be deleted.
    """
    if not removal.repo:
        return _delete_made(removal)
    with alone_at(removal.directory):
        return _delete_cached(removal)


def users(removals: Sequence[Removal], engines: Path) -> tuple[str, ...]:
    """What to say of other programs that have those models loaded, one line each. engines: the list of engines.

    No reason not to delete: a file stays where it is open until the last who has it lets go of it.
    """
    found: list[RunningEngine] = []
    with suppress(RunnerError):  # a list that cannot be read keeps nobody from deleting
        found = [one for one in running(engines) if any(_takes(removal, Path(one.path)) for removal in removals)]
    return tuple(
        f"Process {one.pid} has {one.model} loaded: it goes on with it, and cannot load it again."
        for one in found
        if not _is_ours(one.pid)
    )


def _takes(removal: Removal, file: Path) -> bool:
    """Whether that file goes: one of a directory, or of a snapshot in the cache, snapshots/REVISION/NAME."""
    if not file.is_relative_to(removal.directory):
        return False
    return removal.names is None or "/".join(file.relative_to(removal.directory).parts[2:]) in removal.names


def _is_ours(pid: int) -> bool:
    import psutil

    try:
        return bool(psutil.Process(pid).ppid() == os.getpid())
    except psutil.Error:
        return False


# --- models and drafters made here -----------------------------------------------------------------------------------


def _delete_made(removal: Removal) -> int:
    directory = removal.directory
    try:
        if directory.is_symlink():  # someone linked a directory in here: the link is ours, what it means is not
            directory.unlink(missing_ok=True)
            return 0
        with _undisturbed(directory):
            return removal.disk_bytes if _delete_output(directory) else 0
    except OSError as error:
        raise cannot_delete(directory, error) from error


@contextmanager
def _undisturbed(directory: Path) -> Iterator[None]:
    """Wait for another deletion of it. Raises BusyError while it is being made, or in use to replace a model."""
    partial = directory.with_name(output_name(directory) + PARTIAL_SUFFIX)
    with ExitStack() as stack:
        if output_name(directory) != directory.name:
            stack.enter_context(held(partial))
        if directory != partial:
            stack.enter_context(alone_at(directory))
        yield


def _delete_output(path: Path) -> bool:
    """Delete a directory, or the file that is half made there; False where it has gone since the plan."""
    check_deletable(path)
    try:
        if path.is_file():
            path.unlink()
            return True
        rest = set_aside(path)
    except FileNotFoundError:  # it is gone, or the directory that was to take it is
        return os.path.lexists(path) and _delete_output(path)
    except OSError as error:
        if no_room(error, path.parent) is None:
            raise
        rest = path  # not even for one more directory: what is deleted makes room
    try:
        delete_tree(rest)
    except OSError as error:
        raise cannot_delete(rest, error) from error
    return True


# --- the cache -------------------------------------------------------------------------------------------------------


def _delete_cached(removal: Removal) -> int:
    names = removal.names
    if names:  # another deletion since the plan may have left these as the last weights
        names = names if known_groups(removal.repo, without=names) else None
    if names is None:
        refuse_while_fetched(removal.directory)
        freed = remove_files(removal.directory, None)
        shutil.rmtree(lock_directory(removal.directory), ignore_errors=True)
        return freed
    freed = delete_leftovers(removal.directory, removal.left)
    freed += remove_files(removal.directory, names) if names else 0
    if not has_files(removal.directory):
        with suppress(BusyError):
            refuse_while_fetched(removal.directory)
            shutil.rmtree(removal.directory, ignore_errors=True)
            shutil.rmtree(lock_directory(removal.directory), ignore_errors=True)
    return freed
