"""How much of the disk models take: the Hugging Face cache, models made here, and what is unfinished or damaged.

Sizes come from the file system, each file once however many links lead to it. It opens no file and deletes nothing.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from runner.closed import lost_target
from runner.hub_cache import cached_repos, has_files, hub_settings
from runner.hub_parts import leftovers
from runner.inventory import has_weights
from runner.quant.half_made import finished, half_made
from runner.registry import Registry

UseKind = Literal["cache", "made here", "drafter", "unfinished", "other"]


@dataclass(frozen=True, kw_only=True)
class Use:
    """What one model takes. disk_bytes: all of its files, with partial_bytes (downloads) and set_aside_bytes
    (damaged files).

    kind: "drafter" is a head that was trained here; "unfinished" is a model or a drafter that is half made, or a model
    that was replaced; "other" is what is in the cache and is no model. A file that two of them share counts for the
    first.
    """

    name: str
    kind: UseKind
    path: Path
    disk_bytes: int
    partial_bytes: int = 0
    set_aside_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class Drafter:
    """A head that was trained here. is_whole: its weights are there. lost_target: where its link leads, if nothing is
    to be found there.
    """

    use: Use
    is_whole: bool
    lost_target: Path | None


@dataclass(frozen=True, kw_only=True)
class Disk:
    """The disk that a directory is on."""

    path: Path
    free_bytes: int
    total_bytes: int


@dataclass(frozen=True, kw_only=True)
class DiskUsage:
    """Everything, the largest first, and the disks it is on."""

    uses: tuple[Use, ...]
    disks: tuple[Disk, ...]

    @property
    def disk_bytes(self) -> int:
        return sum(use.disk_bytes for use in self.uses)


def disk_usage(registry: Registry, made: Path, drafts: Path) -> DiskUsage:
    """What models take. made: the directory of the models made here; drafts: that of the drafters."""
    counter = _Counter()
    repos = cached_repos()
    counter.new_bytes(directory for _, directory in repos if not has_files(directory))  # some notes, and no use to list
    uses = [_cached(registry, counter, repo, directory) for repo, directory in repos if has_files(directory)]
    uses += [*_finished(counter, made, "made here"), *_finished(counter, drafts, "drafter")]
    uses += [*_unfinished(counter, made), *_unfinished(counter, drafts)]
    cache = hub_settings().cache
    others = counter.new_bytes([cache])
    if others:
        uses.append(Use(name="other files in the cache", kind="other", path=cache, disk_bytes=others))
    uses.sort(key=lambda use: (-use.disk_bytes, use.name))
    return DiskUsage(uses=tuple(uses), disks=_disks([cache, made, drafts]))


def drafters(drafts: Path) -> tuple[Drafter, ...]:
    """The drafters trained there, by name."""
    return tuple(
        Drafter(use=use, is_whole=_has_weights(use.path), lost_target=lost_target(use.path))
        for use in _finished(_Counter(), drafts, "drafter")
    )


def _has_weights(directory: Path) -> bool:
    try:
        return has_weights(path.name for path in directory.iterdir() if path.is_file())
    except OSError:  # a link to nowhere; or it may not be read, which is told in other words
        return lost_target(directory) is None


class _Counter:
    """Adds up files that it has not met before, by device and inode."""

    def __init__(self) -> None:
        self._met: set[tuple[int, int]] = set()

    def new_bytes(self, places: Iterable[Path]) -> int:
        """Of files, and of all files in directories."""
        total = 0
        for place in places:
            total += self._new(str(place)) if os.path.isfile(place) else 0
            for folder, _, names in os.walk(place):
                for name in names:
                    total += self._new(os.path.join(folder, name))
        return total

    def _new(self, path: str) -> int:
        try:
            stat = os.stat(path)
        except OSError:  # a link to nowhere, or gone since
            return 0
        key = (stat.st_dev, stat.st_ino)
        if key in self._met:
            return 0
        self._met.add(key)
        return stat.st_size


def _cached(registry: Registry, counter: _Counter, repo: str, directory: Path) -> Use:
    left = leftovers(directory)
    known = registry.known_repo(repo)
    return Use(
        name=f"{repo} ({known.name})" if known is not None else repo,
        kind="cache",
        path=directory,
        disk_bytes=counter.new_bytes([directory]),
        partial_bytes=left.partial_bytes,
        set_aside_bytes=left.set_aside_bytes,
    )


def _finished(counter: _Counter, directory: Path, kind: UseKind) -> list[Use]:
    return [
        Use(name=name, kind=kind, path=path, disk_bytes=counter.new_bytes([path]))
        for name, path in finished(directory).items()
    ]


def _unfinished(counter: _Counter, directory: Path) -> list[Use]:
    return [
        Use(name=path.name, kind="unfinished", path=path, disk_bytes=counter.new_bytes([path]))
        for path in half_made(directory)
    ]


def _disks(directories: Iterable[Path]) -> tuple[Disk, ...]:
    """The disks of those directories, which need not exist yet, each once."""
    found: dict[int, Disk] = {}
    for directory in directories:
        place = next((one for one in (directory, *directory.parents) if os.path.exists(one)), None)
        if place is not None and (device := place.stat().st_dev) not in found:
            usage = shutil.disk_usage(place)
            found[device] = Disk(path=place, free_bytes=usage.free, total_bytes=usage.total)
    return tuple(found.values())
