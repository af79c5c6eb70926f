"""The model hub over the network: what files a repository has, and fetching them into the Hugging Face cache.

`list_files` and `fetch` are the whole edge; huggingface_hub does the transfer behind them and is imported
when one of them runs. It knows nothing of formats or of which files a model needs.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from runner.errors import BadModelFile, BusyError, DoesNotFit, RunnerError, UsageError, VerificationFailed
from runner.hub_cache import hub_settings, record_ref, repo_directory
from runner.registry import check_repo

# Left free on the disk beyond what a download needs.
SPARE_BYTES = 256 * 2**20

OnProgress = Callable[[int, int], None]


@dataclass(frozen=True)
class RemoteFile:
    """A file of a repository. sha256: "" for small files, which the hub does not hash that way."""

    name: str
    size_bytes: int
    sha256: str = ""


@dataclass(frozen=True)
class Listing:
    """What a repository holds at one commit. revision: what was asked for and meant that commit."""

    repo: str
    revision: str
    commit: str
    is_gated: bool
    files: tuple[RemoteFile, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(file.name for file in self.files)


def check_file_name(name: str) -> str:
    """`name` if it can only mean a file inside its repository, on every system. Raises BadModelFile."""
    parts = name.split("/")
    unsafe = any(part in ("", ".", "..") or part.endswith((" ", ".")) for part in parts) or any(
        character in '\\:*?"<>|' or ord(character) < 32 or ord(character) == 127 for character in name
    )
    if unsafe or len(name) > 512:
        raise BadModelFile(
            f"The repository has a file with an unsafe name: {name[:200]!r}.", hint="Do not use this repository."
        )
    return name


def list_files(repo: str, revision: str = "main") -> Listing:
    """Ask the hub what `repo` holds. Raises UsageError for no such repository, BusyError for no connection."""
    settings = hub_settings()
    check_repo(repo)
    if settings.is_offline:
        _refuse_offline(repo)
    with _Translated(repo, revision):
        info = (
            _library()
            .HfApi(endpoint=settings.endpoint)
            .model_info(repo, revision=revision, files_metadata=True, timeout=30)
        )
        siblings, commit = info.siblings or [], str(info.sha or "")
    if len(commit) != 40 or not set(commit) <= set("0123456789abcdef"):
        raise RunnerError(f"The hub gave no commit for {repo}.", hint="Is HF_ENDPOINT right?")
    files = tuple(
        RemoteFile(check_file_name(one.rfilename), one.size or 0, one.lfs.sha256 if one.lfs else "") for one in siblings
    )
    return Listing(repo, revision, commit, bool(info.gated), files)


def fetch(listing: Listing, names: Sequence[str], on_progress: OnProgress) -> Path:
    """Fetch those files into the cache, unless they are there; returns the snapshot directory that has them.

    on_progress(done, total): bytes of all files together; what it raises ends the download. Sizes are compared with the
    hub's. Raises UsageError for a gated repository, BusyError for no connection, DoesNotFit for a full disk.
    """
    files = [file for file in listing.files if file.name in set(names)]
    snapshot = repo_directory(listing.repo) / "snapshots" / listing.commit
    missing = [file for file in files if not (snapshot / check_file_name(file.name)).is_file()]
    total = sum(file.size_bytes for file in files)
    meter = _Meter(total, total - sum(file.size_bytes for file in missing), on_progress)
    if missing:
        if hub_settings().is_offline:
            _refuse_offline(listing.repo)
        with _Translated(listing.repo, listing.revision):
            _check_space(sum(file.size_bytes for file in missing))
    for file in missing:
        _fetch_one(listing, file, meter)
    with _Translated(listing.repo, listing.revision):
        record_ref(listing.repo, listing.revision, listing.commit)
    on_progress(total, total)
    return snapshot


# --- the transfer, by huggingface_hub --------------------------------------------------------------------------------


def _library() -> Any:
    """huggingface_hub, told before its import to send no usage data and to transfer over plain HTTP.

    Its other way, Xet, runs callbacks on a thread of its own: a download could be neither cancelled from them nor
    counted exactly.
    """
    os.environ.setdefault("HF_HUB_DISABLE_XET", "1")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    import huggingface_hub

    return huggingface_hub


class _Meter:
    """Adds up the bytes of one file after the other and reports them."""

    def __init__(self, total: int, done: int, on_progress: OnProgress) -> None:
        self._total = total
        self._finished = done
        self._on_progress = on_progress

    def bar_class(self) -> type[Any]:
        """The progress bar that the library makes for each transfer: it shows nothing and reports to this meter."""
        meter = self

        class Bar:
            def __init__(self, *_: Any, initial: float = 0, **__: Any) -> None:
                self.n = initial

            def update(self, n: float | None = 1) -> None:
                self.n += n or 0
                meter.report(int(self.n))

            def __enter__(self) -> Bar:
                return self

            def __exit__(self, *_: object) -> None:
                return None

            def close(self) -> None:
                return None

        return Bar

    def report(self, of_this_file: int) -> None:
        self._on_progress(min(self._finished + of_this_file, self._total), self._total)

    def finish(self, size_bytes: int) -> None:
        self._finished += size_bytes


def _fetch_one(listing: Listing, file: RemoteFile, meter: _Meter) -> None:
    settings = hub_settings()
    meter.report(0)
    with _Translated(listing.repo, listing.revision):
        path = _library().hf_hub_download(
            listing.repo,
            file.name,
            revision=listing.commit,
            cache_dir=settings.cache,
            endpoint=settings.endpoint,
            tqdm_class=meter.bar_class(),
        )
    size = os.path.getsize(path)
    if file.size_bytes and size != file.size_bytes:
        raise VerificationFailed(
            f"{file.name} has {size} bytes, and {file.size_bytes} at the hub.",
            hint=f"Delete it with `runner rm {listing.repo}` and fetch it again.",
        )
    meter.finish(size)


def _check_space(needed: int) -> None:
    place = hub_settings().cache
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    if needed + SPARE_BYTES > free:
        raise DoesNotFit(
            f"The download needs {needed / 1e9:.2f} GB, and {place} has {free / 1e9:.2f} GB free.",
            hint="Delete models with `runner rm`, or put the cache on another disk with HF_HOME.",
        )


# --- errors ----------------------------------------------------------------------------------------------------------


def _refuse_offline(repo: str) -> NoReturn:
    raise BusyError(f"{repo} is not on this machine, and HF_HUB_OFFLINE is set.", hint="Unset HF_HUB_OFFLINE.")


class _Translated:
    """Turns the library's errors into ours, each with its remedy; ours pass as they are."""

    def __init__(self, repo: str, revision: str) -> None:
        self._repo, self._revision = repo, revision

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, RunnerError):
            raise self._translate(error) from error

    def _translate(self, error: Exception) -> Exception:
        from huggingface_hub import errors as hub_errors

        endpoint = hub_settings().endpoint
        page = f"{endpoint}/{self._repo}"
        status = getattr(getattr(error, "response", None), "status_code", None)
        if isinstance(error, hub_errors.GatedRepoError):
            return UsageError(
                f"{self._repo} is gated: its licence has to be accepted first.",
                hint=f"Accept it at {page}, then log in with `hf auth login` or set HF_TOKEN.",
            )
        if isinstance(error, hub_errors.RevisionNotFoundError):
            return UsageError(f"{self._repo} has no revision {self._revision!r}.", hint=f"See {page}/tree/main.")
        if isinstance(error, hub_errors.RepositoryNotFoundError):
            return UsageError(
                f"There is no repository {self._repo} at {endpoint}, or it is private.",
                hint="Check the name; for a private one log in with `hf auth login` or set HF_TOKEN.",
            )
        if status in (401, 403):
            return UsageError(
                f"The hub refused the token for {self._repo}.",
                hint="Log in again with `hf auth login`, or correct HF_TOKEN: it may be wrong, expired or too narrow.",
            )
        if isinstance(error, hub_errors.RemoteEntryNotFoundError):
            return UsageError(f"{self._repo} no longer has a file that it listed.", hint="Try again.")
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return DoesNotFit(
                "The disk is full.", hint="Delete models with `runner rm`, or put the cache elsewhere with HF_HOME."
            )
        if isinstance(error, OSError) and error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            return RunnerError(
                f"The cache cannot be written: {error.strerror}: {error.filename or hub_settings().cache}.",
                hint="Mend its permissions, or put the cache elsewhere with HF_HOME.",
            )
        if status is not None:
            return BusyError(f"The hub answered {status} for {self._repo}.", hint="Try again later.")
        if _is_connection_error(error):
            return BusyError(
                f"There is no connection to {endpoint}.",
                hint="Check the network; --offline uses only what is on this machine.",
            )
        return RunnerError(f"{self._repo} could not be fetched: {error}.", hint="Try again.")


def _is_connection_error(error: BaseException | None) -> bool:
    """Whether `error` or what caused it is about the network. The library's HTTP client has changed its name before."""
    while error is not None:
        names = {kind.__name__ for kind in type(error).__mro__}
        if names & {"TransportError", "ConnectionError", "TimeoutError", "RequestException"}:
            return True
        error = error.__cause__
    return False
