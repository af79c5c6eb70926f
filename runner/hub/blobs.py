"""The disk side of a download: part files that survive a kill, finished blobs, quarantine, the links of a snapshot.

Everything is in the layout that hub_cache.py describes. Beside a blob that is being fetched are

    blobs/<etag>.runner-part         its first bytes, as far as they have arrived
    blobs/<etag>.runner-part.json    which file they belong to; without it they are not used
    blobs/<etag>.corrupt-<n>         what arrived whole and had the wrong hash
    blobs/<etag>.stale-<n>           what cannot be the beginning of the file any more

It knows nothing of the network. Whoever writes holds the file's lock.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from runner.errors import BadModelFile
from runner.hub.errors import cancelled
from runner.hub.hashes import Expected
from runner.hub.listing import Listing, check_file_name
from runner.hub_cache import PART_SUFFIX, SIDECAR_SUFFIX, file_size, repo_directory
from runner.hub_parts import free_name

if TYPE_CHECKING:
    from hashlib import _Hash

    from filelock import BaseFileLock

_CHUNK_BYTES = 2**20
_ETAG = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]{0,127}")


@dataclass(frozen=True)
class RepoFolders:
    """Where the cache has a repository and one of its commits."""

    root: Path
    commit: str

    @classmethod
    def of(cls, listing: Listing) -> RepoFolders:
        return cls(repo_directory(listing.repo), listing.commit)

    @property
    def snapshots(self) -> Path:
        return self.root / "snapshots"

    @property
    def snapshot(self) -> Path:
        return self.snapshots / self.commit

    def link(self, name: str) -> Path:
        return self.snapshot / check_file_name(name)

    def blob(self, etag: str) -> Path:
        """Raises BadModelFile for an ETag that is no file name."""
        return self.root / "blobs" / _check_etag(etag)

    def lock(self, etag: str) -> BaseFileLock:
        """The lock of that blob: the one of huggingface_hub, so that it and runner exclude each other."""
        import filelock

        path = self.root.parent / ".locks" / self.root.name / f"{_check_etag(etag)}.lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        return filelock.FileLock(path, mode=0o664, thread_local=False)


def _check_etag(etag: str) -> str:
    if not _ETAG.fullmatch(etag):
        raise BadModelFile(
            f"The hub gave an ETag that cannot be a file name: {etag[:100]!r}.", hint="Is HF_ENDPOINT right?"
        )
    return etag


def is_whole(path: Path, size_bytes: int) -> bool:
    """Whether that file is there and has that size; links are followed."""
    return file_size(path) == size_bytes


def part_bytes(blob: Path) -> int:
    """How much of a blob is here that a fetch can go on with, or all of it."""
    for path in (blob, blob.with_name(blob.name + PART_SUFFIX)):
        with contextlib.suppress(OSError):
            return path.stat().st_size
    return 0


def arrived_bytes(blob: Path) -> int:
    """How much of a blob is here while another process fetches it: runner, or huggingface_hub in a file of its own."""
    sizes = [part_bytes(blob)]
    with contextlib.suppress(OSError):
        for entry in os.scandir(blob.parent):
            if entry.name.startswith(blob.name) and entry.name.endswith(".incomplete"):
                with contextlib.suppress(OSError):
                    sizes.append(entry.stat().st_size)
    return max(sizes)


def last_beat(blob: Path) -> int:
    """When who fetches a blob last showed to be at work (Part.beat), ns of the file system's time; 0: never."""
    try:
        return blob.with_name(blob.name + SIDECAR_SUFFIX).stat().st_mtime_ns
    except OSError:
        return 0


def forget_part(blob: Path) -> None:
    """Delete what says that the blob, which is whole, is still to be fetched. Raises OSError."""
    blob.with_name(blob.name + SIDECAR_SUFFIX).unlink(missing_ok=True)


def set_aside(path: Path, blob: Path, why: str) -> Path:
    """Rename `path` to `<blob>.<why>-<n>` with the first n that is free, and return that. Raises OSError."""
    aside = free_name(blob.with_name(f"{blob.name}.{why}"))
    os.rename(path, aside)
    return aside


def link_blob(blob: Path, link: Path, *, is_own: bool) -> None:
    """Make the file of a snapshot: a relative symbolic link to its blob.

    Where the system makes none, the blob is moved there when it `is_own` (just fetched), else copied: another snapshot
    may hold it. The blob's lock is held. Raises OSError.
    """
    link.parent.mkdir(parents=True, exist_ok=True)
    fresh = blob.with_name(blob.name + ".runner-link")  # here, where a kill leaves nothing that looks like a file
    fresh.unlink(missing_ok=True)
    try:
        os.symlink(os.path.relpath(blob, link.parent), fresh)
    except (OSError, NotImplementedError):
        if is_own:
            os.replace(blob, link)
            return
        _copy(blob, fresh)
    os.replace(fresh, link)


def _copy(blob: Path, to: Path) -> None:
    """A copy, or nothing where the disk has no room for all of it."""
    try:
        shutil.copyfile(blob, to)
    except OSError:
        to.unlink(missing_ok=True)
        raise


class Beginning:
    """The bytes of a body that are here already, and whether they are the same."""

    def __init__(self, length: int, running: _Hash | None, digest: str, is_known: bool) -> None:
        self._left, self._hash, self._digest, self._is_known = length, running, digest, is_known
        self._is_empty = length == 0

    def cut(self, chunk: bytes) -> bytes:
        """The bytes of `chunk` that come after the beginning."""
        old, new = chunk[: self._left], chunk[self._left :]
        self._left -= len(old)
        if self._hash is not None:
            self._hash.update(old)
        return new

    @property
    def is_same(self) -> bool:
        """Whether what was cut off is what is here; without a hash nobody can tell."""
        if self._is_known or self._is_empty:
            return True
        return self._hash is not None and self._hash.hexdigest() == self._digest


class Part:
    """The part file of one blob, appended to until it is whole.

    Bytes go to the file with each call, through no buffer of this process: a kill loses none of them. They are written
    at their own offset, so that a write which outlives its lock cannot harm. No two calls may run at once.
    """

    def __init__(self, blob: Path, expected: Expected, about: dict[str, str]) -> None:
        self.blob = blob
        self.path = blob.with_name(blob.name + PART_SUFFIX)
        self.length = 0
        self._expected = expected
        self._sidecar = blob.with_name(blob.name + SIDECAR_SUFFIX)
        self._about = {"etag": blob.name, "size": expected.size_bytes, "sha256": _sha256(expected), **about}
        self._hash = expected.new()
        self._descriptor = -1

    def open(self, should_stop: Callable[[], bool] = lambda: False) -> int:
        """Take up what is there, hash it, and return its length. What cannot be used is set aside. Raises OSError.

        Raises RunnerError when `should_stop` says so in the middle.
        """
        self.blob.parent.mkdir(parents=True, exist_ok=True)
        if self.path.exists() and not self._is_usable():
            set_aside(self.path, self.blob, "stale")
        self._write_sidecar()
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
        while chunk := os.pread(self._descriptor, _CHUNK_BYTES, self.length):
            if should_stop():
                raise cancelled()
            self._update(chunk)
        return self.length

    def append(self, data: bytes | bytearray) -> None:
        view = memoryview(data)
        while view:
            n_written = os.pwrite(self._descriptor, view, self.length)
            self._update(view[:n_written])
            view = view[n_written:]

    def restart(self) -> None:
        """Begin again with nothing; the bytes so far are set aside."""
        self.close()
        if self.length:
            set_aside(self.path, self.blob, "stale")
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
        self.length, self._hash = 0, self._expected.new()

    def clear(self) -> None:
        """Drop the bytes so far: they are of something else, and few."""
        os.ftruncate(self._descriptor, 0)
        self.length, self._hash = 0, self._expected.new()

    def beginning(self, *, is_known: bool) -> Beginning:
        """What to skip of a body that comes from the file's start. is_known: it is of this file for certain."""
        digest = "" if self._hash is None else self._hash.hexdigest()
        return Beginning(self.length, None if is_known else self._expected.new(), digest, is_known)

    def beat(self) -> None:
        """Show those who wait for the blob that it is being worked on: while it is hashed, it does not grow."""
        with contextlib.suppress(OSError):
            os.utime(self._sidecar)

    def is_right(self) -> bool:
        """Whether it is whole and has the hash that the hub lists."""
        if self.length != self._expected.size_bytes:
            return False
        return self._hash is None or self._hash.hexdigest() == self._expected.hex_digest

    def quarantine(self) -> Path:
        """Set the whole but wrong contents aside, for someone to look at, and return where they are."""
        self.close()
        aside = set_aside(self.path, self.blob, "corrupt")
        self._sidecar.unlink(missing_ok=True)
        self.length, self._hash = 0, self._expected.new()
        return aside

    def finish(self) -> None:
        """Make it the blob: on the disk first, then under its name."""
        os.fsync(self._descriptor)
        self.close()
        os.replace(self.path, self.blob)
        _sync_directory(self.blob.parent)
        forget_part(self.blob)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _update(self, data: bytes | memoryview) -> None:
        if self._hash is not None:
            self._hash.update(data)
        self.length += len(data)

    def _is_usable(self) -> bool:
        """Whether the bytes there are the beginning of this very file."""
        try:
            found = json.loads(self._sidecar.read_bytes())
            length = self.path.stat().st_size
        except (OSError, ValueError):
            return False
        same = isinstance(found, dict) and all(found.get(key) == self._about[key] for key in ("etag", "size", "sha256"))
        return same and length <= self._expected.size_bytes

    def _write_sidecar(self) -> None:
        fresh = self._sidecar.with_name(self._sidecar.name + ".partial")
        try:
            with fresh.open("w", encoding="utf-8") as stream:
                json.dump(self._about, stream)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(fresh, self._sidecar)
        finally:
            fresh.unlink(missing_ok=True)  # on a full disk: nobody else would find it


def _sha256(expected: Expected) -> str:
    return expected.hex_digest if expected.kind == "sha256" else ""


def _sync_directory(path: Path) -> None:
    """Put a rename on the disk, where the system can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
