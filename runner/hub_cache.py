"""The Hugging Face cache on this machine: what is in it, where it is, and removing from it. One copy for every tool.

The layout is the one documented by huggingface_hub ("Understand caching", and the docstring of hf_hub_download):

    <cache>/models--<owner>--<name>/blobs/<etag>            the bytes
                                    refs/<revision>         the commit that a branch or tag meant when it was fetched
                                    snapshots/<commit>/...  the repository's files, as links to blobs
           .locks/models--<owner>--<name>/<etag>.lock       held by whoever fetches that file

runner adds to blobs/, where other tools pass over it (hub_parts.py reads these):

    blobs/<etag>.runner-part                                the beginning of a file whose download has not ended
    blobs/<etag>.runner-part.json                           what it is the beginning of
    blobs/<etag>.corrupt-<n>                                a file that turned out damaged, set aside
    blobs/<etag>.stale-<n>                                  a beginning of something else, set aside

It is read here directly, because importing that library takes 0.3 s and `runner ls` should not. Removing blobs is left
to the library, which knows about blobs shared between repositories. This file reaches no network.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from runner.closed import cannot_read, closed
from runner.errors import ConfigError, RunnerError, UsageError
from runner.model_files import WEIGHT_SUFFIXES
from runner.registry import check_repo
from runner.trees import cannot_delete, check_deletable, delete_tree

DEFAULT_ENDPOINT = "https://huggingface.co"
PART_SUFFIX, SIDECAR_SUFFIX = ".runner-part", ".runner-part.json"
_PREFIX = "models--"


@dataclass(frozen=True)
class HubSettings:
    """Where the hub and its cache are. is_offline: HF_HUB_OFFLINE is set, nothing may be asked of the hub."""

    endpoint: str
    cache: Path
    is_offline: bool


def hub_settings() -> HubSettings:
    """The settings by the variables of huggingface_hub: HF_ENDPOINT, HF_HUB_CACHE, HF_HOME, HF_HUB_OFFLINE.

    They are read at each call. The library reads them when it is imported, so it is told what is found here. Raises
    ConfigError for a home directory of nobody.
    """
    environment = os.environ
    home = environment.get("HF_HOME") or os.path.join(environment.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    cache = os.path.expandvars(environment.get("HF_HUB_CACHE") or os.path.join(home, "hub"))
    try:
        directory = Path(cache).expanduser().absolute()
    except RuntimeError as error:
        raise ConfigError(
            f"The cache is to be {cache!r}, and there is no such user.", hint="Correct HF_HOME or HF_HUB_CACHE."
        ) from error
    return HubSettings(
        endpoint=(environment.get("HF_ENDPOINT") or DEFAULT_ENDPOINT).rstrip("/"),
        cache=directory,
        is_offline=environment.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"),
    )


@dataclass(frozen=True)
class CachedFile:
    """One file of a repository. name: its path in the repository. path: where it can be opened."""

    name: str
    path: Path
    size_bytes: int


@dataclass(frozen=True)
class Snapshot:
    """The files that the cache has of one commit of a repository."""

    commit: str
    directory: Path
    files: tuple[CachedFile, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(file.name for file in self.files)


def repo_directory(repo: str) -> Path:
    """Where the cache keeps that repository, there or not. Raises UsageError for a malformed name."""
    return hub_settings().cache / (_PREFIX + check_repo(repo).replace("/", "--"))


def file_size(path: Path) -> int | None:
    """The size of a file, links followed; None where there is none that can be reached, or none any more."""
    try:
        found = path.stat()
    except (OSError, ValueError):
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def _files(directory: Path) -> tuple[CachedFile, ...]:
    """The files below `directory` that can be opened; a link whose blob is gone is no file."""
    found = []
    for folder, _, names in os.walk(directory):
        for name in names:
            path = Path(folder, name)
            if (size := file_size(path)) is not None:
                found.append(CachedFile(path.relative_to(directory).as_posix(), path, size))
    return tuple(sorted(found, key=lambda file: file.name))


def _ref(directory: Path, revision: str) -> str:
    """The commit that `revision` last meant, or ""."""
    path = directory / "refs" / revision
    try:
        return path.read_text(encoding="ascii").strip() if path.is_file() else ""
    except (OSError, UnicodeDecodeError):
        return ""


def commit_of(repo: str, revision: str) -> str:
    """The commit that a revision meant when it was last fetched, or ""."""
    return _ref(repo_directory(repo), revision)


def snapshots(repo: str, revision: str = "main") -> tuple[Snapshot, ...]:
    """What the cache has of that repository: the commit that `revision` means first, then the others, newest first.

    A revision that is a commit gives that one alone, and so does any other than "main". Raises RunnerError where what
    the cache has may not be read.
    """
    directory = repo_directory(repo)
    if (place := _closed_in(directory)) is not None:
        raise cannot_read([place])
    wanted = _ref(directory, revision) or revision
    try:
        ages = {path: -path.stat().st_mtime for path in (directory / "snapshots").iterdir() if path.is_dir()}
    except OSError:
        return ()
    commits = sorted(ages, key=lambda path: (path.name != wanted, ages[path]))
    if revision != "main":
        commits = [path for path in commits if path.name == wanted]
    return tuple(Snapshot(path.name, path, _files(path)) for path in commits)


def cached_repos() -> tuple[tuple[str, Path], ...]:
    """Every model repository that has a directory in the cache, whatever is in it: its name and the directory.

    Those that may not be read are left out: `closed_repos` has them.
    """
    return tuple((repo, path) for repo, path in _repos() if _closed_in(path) is None)


def closed_repos() -> tuple[Path, ...]:
    """What of the cache may not be read: it, or directories of its repositories."""
    if (place := closed(hub_settings().cache)) is not None:
        return (place,)
    return tuple(place for _, path in _repos() if (place := _closed_in(path)) is not None)


def _repos() -> list[tuple[str, Path]]:
    try:
        directories = sorted(hub_settings().cache.iterdir())
    except OSError:
        return []
    named = ((_repo_of(path), path) for path in directories if path.name.startswith(_PREFIX) and os.path.isdir(path))
    return [(repo, path) for repo, path in named if repo]


def _closed_in(directory: Path) -> Path | None:
    """The first directory on the way to that of a repository, or in it, that may not be read."""
    snapshots = directory / "snapshots"
    places = [directory, directory / "blobs", snapshots]
    with suppress(OSError):
        places += sorted(snapshots.iterdir())
    return next((found for place in places if (found := closed(place)) is not None), None)


def has_files(directory: Path) -> bool:
    """Whether a repository's directory has a file, or a link to one that is gone.

    What a revision means, and which files other tools have not found there, is noted beside them and is nothing.
    """
    return any(_entries(directory / part) for part in ("blobs", "snapshots"))


def cached_files(repo: str) -> tuple[CachedFile, ...]:
    """The files of a repository that can be opened, each of the newest commit that has it, by name."""
    files: dict[str, CachedFile] = {}
    for snapshot in snapshots(repo):
        for file in snapshot.files:
            files.setdefault(file.name, file)
    return tuple(files[name] for name in sorted(files))


def broken_links(repo: str) -> dict[str, Path]:
    """Files of a repository whose blob is gone or out of reach, by name: where the newest commit with each has it."""
    found: dict[str, Path] = {}
    seen: set[str] = set()
    for snapshot in snapshots(repo):
        for path in _entries(snapshot.directory):
            name = path.relative_to(snapshot.directory).as_posix()
            if name not in seen and not os.path.exists(path):
                found[name] = path
            seen.add(name)
    return found


def _repo_of(directory: Path) -> str:
    """The repository that a directory of the cache is named after, or ""."""
    owner, _, name = directory.name.removeprefix(_PREFIX).partition("--")
    try:
        return check_repo(f"{owner}/{name}")
    except UsageError:  # not made by the hub's library, or a repository without an owner
        return ""


def record_ref(repo: str, revision: str, commit: str) -> None:
    """Write down that `revision` means `commit`, so that the files are found offline, by other tools too."""
    path = repo_directory(repo) / "refs" / revision
    if commit == revision or _ref(repo_directory(repo), revision) == commit:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        partial.write_text(commit, encoding="ascii")
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)  # on a full disk: other tools take every file there for a revision


def remove_files(directory: Path, names: Collection[str] | None) -> int:
    """Delete those files from every commit in the cache's directory of a repository, or with None the directory.

    A blob goes when nothing else links to it; links go after the blobs, those of weights last, so that what a kill
    leaves is known by its name. Works on damaged repositories too, which the library's own scan passes over. Returns
    the bytes freed; raises RunnerError when something cannot be deleted.
    """
    check_deletable(directory)
    links = {link: first_hop(link) for link in _entries(directory / "snapshots")}
    doomed = {link for link in links if names is None or _name_of(link, directory) in names}
    kept = {blob for link, blob in links.items() if link not in doomed}
    blobs = set(_entries(directory / "blobs")) - kept
    if names is not None:
        blobs &= {links[link] for link in doomed}
    taken = taken_bytes(directory)
    try:
        if names is None and directory.is_symlink():  # someone keeps it elsewhere: the link is the cache's, that is not
            directory.unlink()
            return 0
        _delete_blobs(directory.parent, [blob for blob in blobs if not blob.name.endswith(SIDECAR_SUFFIX)])
        for link in sorted(doomed, key=lambda link: link.name.lower().endswith(WEIGHT_SUFFIXES)):
            link.unlink(missing_ok=True)
        if names is None:
            delete_tree(directory)
    except OSError as error:
        raise cannot_delete(directory, error) from error
    return sum(size for path, size in taken.items() if not os.path.exists(path))


def _delete_blobs(cache: Path, blobs: Collection[Path]) -> None:
    """Left to the library, which knows what of a store that repositories share nothing needs any more."""
    from huggingface_hub import DeleteCacheStrategy

    logging.getLogger("huggingface_hub").setLevel(logging.CRITICAL)  # what it cannot delete is told below
    DeleteCacheStrategy(
        expected_freed_size=0,
        blobs=frozenset(blobs),
        files=frozenset(),
        refs=frozenset(),
        repos=frozenset(),
        snapshots=frozenset(),
        cache_dir=cache,
    ).execute()
    if left := [path for path in blobs if os.path.lexists(path)]:  # the library only logs what it could not delete
        raise RunnerError(f"{left[0]} cannot be deleted.", hint="Does another user own it, or is the cache damaged?")


def links_of(directory: Path) -> list[tuple[str, Path]]:
    """Each file of each commit in the cache's directory of a repository: its name there, and where its bytes are."""
    return [(_name_of(link, directory), first_hop(link)) for link in _entries(directory / "snapshots")]


def _entries(directory: Path) -> list[Path]:
    """Everything below `directory` that is no directory, links to nowhere too."""
    return [Path(folder, name) for folder, _, names in os.walk(directory) for name in names]


def first_hop(path: Path) -> Path:
    """What a link points to, itself where it is none. A blob may be a link again, into a store of all repositories."""
    return Path(os.path.normpath(path.parent / os.readlink(path))) if path.is_symlink() else path


def _name_of(link: Path, directory: Path) -> str:
    """What the repository calls that file of a snapshot."""
    return PurePosixPath(*link.relative_to(directory / "snapshots").parts[1:]).as_posix()


def taken_bytes(directory: Path) -> dict[Path, int]:
    """The files that hold the bytes of a repository, wherever they are, each once; and their sizes."""
    return {
        file.path.resolve(): file.size_bytes for part in ("blobs", "snapshots") for file in _files(directory / part)
    }
