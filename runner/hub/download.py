"""Fetching the files of a listing into the Hugging Face cache: which are missing, room, locks, several at once.

The calling thread watches and reports; an event loop beside it moves the bytes (transfer). It knows nothing of which
files a model needs.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.errors import RunnerError, UsageError
from runner.hub import errors
from runner.hub.blobs import RepoFolders, is_whole, part_bytes
from runner.hub.errors import Asked, TryAgain
from runner.hub.http import Tuning, asked_of, client_options, origin
from runner.hub.listing import Listing, RemoteFile, check_file_name
from runner.hub.progress import FetchState, Marks
from runner.hub_cache import hub_settings, record_ref
from runner.types import CancelToken

if TYPE_CHECKING:
    import asyncio

# Left free on the disk beyond what a download needs.
SPARE_BYTES = 256 * 2**20
# How often to report, and to look whether the download was cancelled.
TICK_S = 0.05
# A download that stands still is reported this often.
HEARTBEAT_S = 0.5
# What a cancelled transfer may take to write what it has; then it is left to itself.
FAREWELL_S = 0.08

OnProgress = Callable[[FetchState], None]


@dataclass(frozen=True)
class FetchOptions:
    """How to fetch. limit_rate_bytes_s: of all files together, None for no limit. parallel: files at a time."""

    limit_rate_bytes_s: int | None = None
    parallel: int = 4
    tuning: Tuning = field(default_factory=Tuning)

    def __post_init__(self) -> None:
        if self.limit_rate_bytes_s is not None and self.limit_rate_bytes_s < 1:
            raise UsageError(f"The rate limit is {self.limit_rate_bytes_s}.", hint="Give at least one byte a second.")
        if not 1 <= self.parallel <= 64:
            raise UsageError(f"{self.parallel} files at a time.", hint="Give a number from 1 to 64.")


def fetch(
    listing: Listing,
    names: Sequence[str],
    *,
    on_progress: OnProgress,
    cancel: CancelToken,
    options: FetchOptions | None = None,
) -> Path:
    """Fetch those files into the cache, unless they are there; returns the snapshot directory that has them.

    on_progress is called on this thread, at most twenty times a second and once at the end; what it raises ends the
    download. Cancelling does so within 200 ms, and what has arrived is kept for the next time. Raises UsageError for
    what the hub refuses, BusyError for no connection, DoesNotFit for a full disk, VerificationFailed for wrong
    contents.
    """
    download = _download(listing, names, options)
    _carry_out(download, listing, on_progress, cancel)
    return download.folders.snapshot


def fetch_each(
    listing: Listing,
    names: Sequence[str],
    *,
    on_progress: OnProgress,
    cancel: CancelToken,
    options: FetchOptions | None = None,
) -> Mapping[str, RunnerError]:
    """The same, but one file that cannot be fetched keeps no other from it: returns why, by name.

    Files that have not begun when there is no connection any more fail with that one. Raises as `fetch` does for what
    concerns all of them.
    """
    download = _download(listing, names, options, is_each=True)
    _carry_out(download, listing, on_progress, cancel)
    return download.failures


def _download(
    listing: Listing, names: Sequence[str], options: FetchOptions | None, *, is_each: bool = False
) -> _Download:
    files = tuple(listing.file(check_file_name(name)) for name in dict.fromkeys(names))
    return _Download(listing, files, options or FetchOptions(), is_each=is_each)


def _carry_out(download: _Download, listing: Listing, on_progress: OnProgress, cancel: CancelToken) -> None:
    with _disk_errors():
        if download.missing:
            if hub_settings().is_offline:
                raise errors.offline(download.asked)
            download.check_space()
            _watch(download, on_progress, cancel)
        if not download.failures:
            _record(listing)
    on_progress(download.marks.state())


def _watch(download: _Download, on_progress: OnProgress, cancel: CancelToken) -> None:
    """Run the download beside this thread, and report from here."""
    from runner.hub.loop import Background  # asyncio is loaded when something is fetched

    if cancel.is_cancelled:
        raise errors.cancelled()
    background = Background(download.run())
    try:
        shown: FetchState | None = None
        shown_at = 0.0
        while True:
            state, now = download.marks.state(), time.monotonic()
            if state != shown or now - shown_at > HEARTBEAT_S:
                on_progress(state)
                shown, shown_at = state, now
            if background.wait(TICK_S):
                break
            if cancel.is_cancelled:
                raise errors.cancelled()
    except BaseException:
        download.stop()
        background.stop()
        background.wait(FAREWELL_S)
        raise
    background.result()


def _record(listing: Listing) -> None:
    """Write down what the revision means. In a cache that is complete and only readable that is no error."""
    try:
        record_ref(listing.repo, listing.revision, listing.commit)
    except OSError as error:
        if error.errno in errors.DISK_FULL:
            raise


class _Download:
    """All files of one `fetch`. `run` belongs to the event loop, the rest to the calling thread.

    is_each: what one file fails with is kept in `failures`, by its name, and the others go on.
    """

    def __init__(self, listing: Listing, files: Sequence[RemoteFile], options: FetchOptions, *, is_each: bool) -> None:
        self.folders = RepoFolders.of(listing)
        self.marks = Marks(files)
        self.asked: Asked = asked_of(listing.repo, listing.revision)
        self.failures: dict[str, RunnerError] = {}
        self._listing, self._options, self._is_each = listing, options, is_each
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._stopping = threading.Event()
        missing = []
        for file in files:
            mark = self.marks[file.name]
            if is_whole(self.folders.link(file.name), file.size_bytes):
                mark.finish()
            else:
                mark.done_bytes = self._here(file)
                missing.append(file)
        self.missing = tuple(missing)

    def _here(self, file: RemoteFile) -> int:
        """What of a missing file is on the disk, as far as its name there can be told without asking."""
        etag = file.sha256 or file.blob_id
        return min(file.size_bytes, part_bytes(self.folders.blob(etag))) if etag else 0

    def check_space(self) -> None:
        """Raises DoesNotFit when the disk has no room for what has still to come."""
        needed = sum(file.size_bytes - self.marks[file.name].done_bytes for file in self.missing)
        place = self.folders.root
        while not os.path.exists(place):
            place = place.parent
        free = shutil.disk_usage(place).free
        if needed and needed + SPARE_BYTES > free:
            raise errors.no_space(needed, SPARE_BYTES, free, place)

    def stop(self) -> None:
        """Let blocking work on the disk end soon."""
        self._stopping.set()

    async def run(self) -> None:
        import asyncio

        import httpx2

        from runner.hub.one_file import OneFile
        from runner.hub.rate import RateLimit
        from runner.hub.remote import Remote

        async with httpx2.AsyncClient(**client_options(self._options.tuning)) as client:
            remote = Remote(
                client=client,
                origin=origin(),
                asked=self.asked,
                listing=self._listing,
                tuning=self._options.tuning,
                limit=RateLimit(self._options.limit_rate_bytes_s),
            )
            slots = asyncio.Semaphore(self._options.parallel)
            try:
                async with asyncio.TaskGroup() as group:
                    for file in self.missing:
                        one = OneFile(remote, self.folders, file, self.marks[file.name], self._stopping.is_set)
                        self._tasks[file.name] = group.create_task(self._one(file.name, one.run(slots)))
            except BaseExceptionGroup as failed:
                first = failed.exceptions[0]
            else:
                return
        raise first

    async def _one(self, name: str, fetching: Coroutine[Any, Any, None]) -> None:
        """When one file fails, blocking work on the others ends soon too, unless each is for itself."""
        try:
            await fetching
        except (RunnerError, OSError) as error:
            if not self._is_each:
                self.stop()
                raise
            failure = error if isinstance(error, RunnerError) else errors.of_disk(error, hub_settings().cache)
            self.failures[name] = failure
            if isinstance(failure.__cause__, TryAgain):  # it took its tries: the others would take as many, in vain
                self._give_up_waiting(failure)
        except BaseException:
            if name not in self.failures:  # it was not given up
                self.stop()
            raise

    def _give_up_waiting(self, failure: RunnerError) -> None:
        """End the files that have not begun."""
        for name, task in self._tasks.items():
            if self.marks[name].state == "waiting" and name not in self.failures:
                self.failures[name] = failure
                task.cancel()


@contextmanager
def _disk_errors() -> Iterator[None]:
    """Errors of the disk become ours, each with its remedy."""
    try:
        yield
    except RunnerError:
        raise
    except OSError as error:
        raise errors.of_disk(error, hub_settings().cache) from error
