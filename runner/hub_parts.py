"""What interrupted downloads and mended files left in the Hugging Face cache: how far they are, and deleting them.

The layout is in hub_cache.py. It reads sidecars and sizes, opens no model file and reaches no network;
fetching the rest is the hub package's business.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.closed import cannot_read, closed
from runner.errors import BusyError, RunnerError
from runner.hub_cache import PART_SUFFIX, SIDECAR_SUFFIX, file_size
from runner.trees import cannot_delete

# What huggingface_hub and tools built on it call the file that they write to; they do not go on with it.
_FOREIGN_SUFFIX = ".incomplete"
_SET_ASIDE = re.compile(r".+\.(?:corrupt|stale)-\d+")


@dataclass(frozen=True, kw_only=True)
class Part:
    """The beginning of one file of a repository. Of one that was only noted, or half deleted, `path` is not there.

    name: the file's path in the repository, and commit: of that repository; both "" when another tool made it, or what
    it belongs to is not written down. size_bytes: of the whole file, 0 when not known. done_bytes: what is here.
    """

    path: Path
    etag: str
    name: str
    commit: str
    size_bytes: int
    done_bytes: int

    @property
    def is_resumable(self) -> bool:
        """Whether the next pull goes on with it."""
        return self.path.name.endswith(PART_SUFFIX) and bool(self.name)


@dataclass(frozen=True, kw_only=True)
class Leftovers:
    """The unfinished and the damaged files of one repository. Sizes are those of the files on the disk."""

    parts: tuple[Part, ...] = ()
    set_aside: tuple[Path, ...] = ()

    @property
    def partial_bytes(self) -> int:
        return sum(part.done_bytes for part in self.parts)

    @property
    def set_aside_bytes(self) -> int:
        return sum(file_size(path) or 0 for path in self.set_aside)

    def of_files(self, names: Iterable[str]) -> Leftovers:
        """The parts of those files alone."""
        wanted = frozenset(names)
        return Leftovers(parts=tuple(part for part in self.parts if part.name in wanted))

    def __bool__(self) -> bool:
        return bool(self.parts or self.set_aside)


def leftovers(directory: Path) -> Leftovers:
    """What is left over in the cache's directory of one repository. Raises RunnerError where that may not be read."""
    try:
        paths = sorted((directory / "blobs").iterdir())
    except OSError as error:
        if (place := closed(directory / "blobs")) is not None:
            raise cannot_read([place]) from error
        return Leftovers()
    parts = [part for path in sorted({_part_path(path) for path in paths}) if (part := _part(path)) is not None]
    aside = [path for path in paths if _SET_ASIDE.fullmatch(path.name) and os.path.isfile(path)]
    return Leftovers(parts=tuple(parts), set_aside=tuple(aside))


def _part_path(path: Path) -> Path:
    """Where the part is that a sidecar belongs to; any other path as it is."""
    stem = path.name.removesuffix(SIDECAR_SUFFIX)
    return path if stem == path.name else path.with_name(stem + PART_SUFFIX)


def _part(path: Path) -> Part | None:
    etag = path.name.partition(".")[0]
    is_own = path.name.endswith(PART_SUFFIX)
    known = _sidecar(path.with_name(etag + SIDECAR_SUFFIX)) if is_own else {}
    is_noted = bool(known) and not os.path.lexists(path.with_name(etag))
    if not (is_own or path.name.endswith(_FOREIGN_SUFFIX)) or not (os.path.isfile(path) or is_noted):
        return None
    name, commit, size = known.get("name"), known.get("commit"), known.get("size")
    return Part(
        path=path,
        etag=etag,
        name=name if isinstance(name, str) else "",
        commit=commit if isinstance(commit, str) else "",
        size_bytes=size if type(size) is int and size > 0 else 0,
        done_bytes=file_size(path) or 0,
    )


def _sidecar(path: Path) -> dict[str, Any]:
    """What a part file is the beginning of; nothing where that cannot be read."""
    try:
        plain = json.loads(path.read_bytes()[:100_000])
    except (OSError, ValueError, RecursionError):
        return {}
    return plain if isinstance(plain, dict) else {}


# --- deleting and setting aside --------------------------------------------------------------------------------------


def lock_directory(directory: Path) -> Path:
    """Where the locks of that repository's files are."""
    return directory.parent / ".locks" / directory.name


def refuse_while_fetched(directory: Path, etags: Iterable[str] | None = None) -> None:
    """Raise BusyError when a process is fetching one of those files of the repository, or with None any of them."""
    locks = lock_directory(directory)
    try:
        found = sorted(locks.iterdir()) if etags is None else [locks / f"{etag}.lock" for etag in etags]
    except OSError:
        return
    for path in found:
        if path.suffix == ".lock" and os.path.isfile(path) and _is_held(path):
            raise BusyError(
                f"Another process is fetching files of {directory.name.removeprefix('models--').replace('--', '/')}.",
                hint="Wait for it to end, or stop it.",
            )


def _is_held(lock: Path) -> bool:
    from filelock import FileLock, Timeout

    try:
        with FileLock(lock, timeout=0):
            return False
    except Timeout:
        return True
    except (OSError, NotImplementedError):  # not ours to lock, or no locks on this file system: nothing can be known
        return False


def delete_leftovers(directory: Path, left: Leftovers) -> int:
    """Delete part files with their sidecars and locks, and files set aside; returns the bytes freed.

    Raises BusyError when one of them is being fetched now, RunnerError when one cannot be deleted.
    """
    refuse_while_fetched(directory, [part.etag for part in left.parts])
    freed = sum(part.done_bytes for part in left.parts if part.path.exists()) + left.set_aside_bytes
    doomed = [part.path for part in left.parts] + list(left.set_aside)
    for part in left.parts:
        doomed.append(part.path.with_name(part.etag + SIDECAR_SUFFIX))
        doomed.append(lock_directory(directory) / f"{part.etag}.lock")
    for path in doomed:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise cannot_delete(path, error) from error
    return freed


def quarantine(blob: Path, blobs: Path) -> Path | None:
    """Set a damaged file aside in that blobs/ directory, where nothing takes it for the real one.

    Returns where it is now; None when only a link was taken away, to nowhere or out of the cache. The bytes are moved
    also when `blob` is a link into the store that repositories share: they are as wrong for the others. Raises
    RunnerError.
    """
    cache = blobs.parent.parent.resolve()
    try:
        real: Path | None = Path(os.path.realpath(blob, strict=True))
    except OSError:
        real = None
    if real is not None and not real.is_relative_to(cache):
        real = None
    target = None
    try:
        if real is not None:
            blobs.mkdir(parents=True, exist_ok=True)
            target = free_name(blobs / f"{blob.name}.corrupt")
            os.replace(real, target)
        blob.unlink(missing_ok=True)
    except OSError as error:
        raise RunnerError(
            f"{blob} cannot be set aside: {error.strerror or error}.",
            hint="Mend the permissions of the cache, or put another one elsewhere with HF_HOME.",
        ) from error
    return target


def free_name(stem: Path) -> Path:
    """`<stem>-<n>` with the first n, from 1, that nothing has."""
    number = 1
    while os.path.lexists(free := stem.with_name(f"{stem.name}-{number}")):
        number += 1
    return free
