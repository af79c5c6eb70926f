"""The Hugging Face cache on this machine: what is in it, where it is, and removing from it. One copy for every tool.

The layout is the one documented by huggingface_hub ("Understand caching", and the docstring of hf_hub_download):

    <cache>/models--<owner>--<name>/blobs/<etag>            the bytes
                                    refs/<revision>         the commit that a branch or tag meant when it was fetched
                                    snapshots/<commit>/...  the repository's files, as links to blobs

It is read here directly, because importing that library takes 0.3 s and `runner ls` should not. Removing is left to the
library, which knows about blobs shared between repositories. This file reaches no network.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from runner.errors import RunnerError, UsageError
from runner.model_files import WEIGHT_SUFFIXES
from runner.registry import check_repo

DEFAULT_ENDPOINT = "https://huggingface.co"
_PREFIX = "models--"


@dataclass(frozen=True)
class HubSettings:
    """Where the hub and its cache are. is_offline: HF_HUB_OFFLINE is set, nothing may be asked of the hub."""

    endpoint: str
    cache: Path
    is_offline: bool


def hub_settings() -> HubSettings:
    """The settings by the variables of huggingface_hub: HF_ENDPOINT, HF_HUB_CACHE, HF_HOME, HF_HUB_OFFLINE.

    They are read at each call. The library reads them when it is imported, so it is told what is found here.
    """
    environment = os.environ
    home = environment.get("HF_HOME") or os.path.join(environment.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    cache = environment.get("HF_HUB_CACHE") or os.path.join(home, "hub")
    return HubSettings(
        endpoint=(environment.get("HF_ENDPOINT") or DEFAULT_ENDPOINT).rstrip("/"),
        cache=Path(os.path.expandvars(cache)).expanduser().absolute(),
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


@dataclass(frozen=True)
class CacheEntry:
    """One model repository in the cache: its files (of the newest commit that has each), and all that it takes.

    size_bytes: of everything, older commits included. last_used: Unix time, s, of the last reading or writing.
    """

    repo: str
    directory: Path
    files: tuple[CachedFile, ...]
    size_bytes: int
    last_used: float


def repo_directory(repo: str) -> Path:
    """Where the cache keeps that repository, there or not. Raises UsageError for a malformed name."""
    return hub_settings().cache / (_PREFIX + check_repo(repo).replace("/", "--"))


def _files(directory: Path) -> tuple[CachedFile, ...]:
    """The files below `directory` that can be opened; a link whose blob is gone is no file."""
    found = []
    for folder, _, names in os.walk(directory):
        for name in names:
            path = Path(folder, name)
            if path.is_file():
                found.append(CachedFile(path.relative_to(directory).as_posix(), path, path.stat().st_size))
    return tuple(sorted(found, key=lambda file: file.name))


def _ref(directory: Path, revision: str) -> str:
    """The commit that `revision` last meant, or ""."""
    path = directory / "refs" / revision
    try:
        return path.read_text(encoding="ascii").strip() if path.is_file() else ""
    except (OSError, UnicodeDecodeError):
        return ""


def snapshots(repo: str, revision: str = "main") -> tuple[Snapshot, ...]:
    """What the cache has of that repository: the commit that `revision` means first, then the others, newest first.

    A revision that is a commit gives that one alone, and so does any other than "main".
    """
    directory = repo_directory(repo)
    wanted = _ref(directory, revision) or revision
    try:
        commits = [path for path in (directory / "snapshots").iterdir() if path.is_dir()]
    except OSError:
        return ()
    commits.sort(key=lambda path: (path.name != wanted, -path.stat().st_mtime))
    if revision != "main":
        commits = [path for path in commits if path.name == wanted]
    return tuple(Snapshot(path.name, path, _files(path)) for path in commits)


def cache_entries() -> tuple[CacheEntry, ...]:
    """The repositories of the cache that have GGUF or safetensors weights, by name."""
    try:
        directories = sorted(hub_settings().cache.iterdir())
    except OSError:
        return ()
    entries = (_entry(path) for path in directories if path.name.startswith(_PREFIX) and path.is_dir())
    return tuple(entry for entry in entries if entry is not None)


def cache_entry(repo: str) -> CacheEntry | None:
    """That repository in the cache, or None."""
    directory = repo_directory(repo)
    return _entry(directory) if directory.is_dir() else None


def _is_weights(name: str) -> bool:
    return name.lower().endswith(WEIGHT_SUFFIXES)


def _entry(directory: Path) -> CacheEntry | None:
    owner, _, name = directory.name.removeprefix(_PREFIX).partition("--")
    repo = f"{owner}/{name}"
    try:
        check_repo(repo)
    except UsageError:  # not made by the hub's library, or a repository without an owner
        return None
    files: dict[str, CachedFile] = {}
    for snapshot in snapshots(repo):
        for file in snapshot.files:
            files.setdefault(file.name, file)
    if not any(_is_weights(name) for name in files):
        return None
    # Each blob once, however many commits link to it; where the system has no links, the snapshots hold the bytes.
    stats = {}
    for part in ("blobs", "snapshots"):
        for file in _files(directory / part):
            stat = file.path.stat()
            stats[(stat.st_dev, stat.st_ino)] = stat
    return CacheEntry(
        repo=repo,
        directory=directory,
        files=tuple(files[name] for name in sorted(files)),
        size_bytes=sum(stat.st_size for stat in stats.values()),
        last_used=max(max(stat.st_atime, stat.st_mtime) for stat in stats.values()),
    )


def record_ref(repo: str, revision: str, commit: str) -> None:
    """Write down that `revision` means `commit`, so that the files are found offline, by other tools too."""
    path = repo_directory(repo) / "refs" / revision
    if commit == revision or _ref(repo_directory(repo), revision) == commit:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    partial.write_text(commit, encoding="ascii")
    os.replace(partial, path)


def remove(entry: CacheEntry, names: Collection[str] | None = None) -> int:
    """Delete those files of a repository in every commit, or with None all of it; returns the bytes freed.

    When no weights would be left, all of it goes. Raises RunnerError when something cannot be deleted.
    """
    from huggingface_hub import scan_cache_dir

    now = _entry(entry.directory)  # something else may have been deleted since the entry was made
    if names is not None and (
        now is None or not {file.name for file in now.files if _is_weights(file.name)} - {*names}
    ):
        names = None
    try:
        scanned = scan_cache_dir(entry.directory.parent)
        # Commits are what the library deletes by, and a copied repository has the same ones: let it see this one alone.
        own = dataclasses.replace(
            scanned, repos=frozenset(repo for repo in scanned.repos if repo.repo_path == entry.directory)
        )
        revisions = [revision for repo in own.repos for revision in repo.revisions]
        if names is None:
            doomed = [entry.directory]
            plan = own.delete_revisions(*(revision.commit_hash for revision in revisions))
        else:
            files = [
                file
                for revision in revisions
                for file in revision.files
                if file.file_path.relative_to(revision.snapshot_path).as_posix() in names
            ]
            doomed = [file.file_path for file in files]
            plan = own.delete_files(*files)
        plan.execute()
    except OSError as error:
        raise RunnerError(f"{entry.repo} cannot be deleted: {error.strerror or error}.") from error
    if left := [path for path in doomed if os.path.lexists(path)]:  # the library only logs what it could not delete
        raise RunnerError(f"{left[0]} cannot be deleted.", hint="Does another user own it, or is the cache damaged?")
    return plan.expected_freed_size
