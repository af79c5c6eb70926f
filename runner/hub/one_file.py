"""One file of a download, from missing to linked: its lock, what is on the disk already, its transfer, its hash.

When another process fetches the file, this one watches it and takes over if it ends early. It knows nothing of the
other files and does not speak HTTP itself.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path

from runner.hub import errors
from runner.hub.blobs import Part, RepoFolders, arrived_bytes, forget_part, is_whole, last_beat, link_blob, set_aside
from runner.hub.hashes import expected_hash
from runner.hub.listing import RemoteFile
from runner.hub.loop import in_thread
from runner.hub.progress import Mark, Trouble
from runner.hub.remote import Location, Remote, locate
from runner.hub.transfer import Transfer
from runner.lock_holders import other_process

# How often to look whether another process has let go of a file.
ATTACHED_POLL_S = 0.1
N_DOWNLOADS = 2


class OneFile:
    """Fetches one file of a listing."""

    def __init__(
        self, remote: Remote, folders: RepoFolders, file: RemoteFile, mark: Mark, should_stop: Callable[[], bool]
    ) -> None:
        self._remote, self._folders, self._file, self._mark = remote, folders, file, mark
        self._should_stop = should_stop
        self._location: Location | None = None

    async def run(self, slots: asyncio.Semaphore) -> None:
        """Fetch it while holding one of `slots`; a file that another process fetches waits without one."""
        while True:
            async with slots:
                etag = await self._etag()
                with self._locked(etag) as is_ours:
                    if is_ours:
                        await self._fetch(self._folders.blob(etag))
                        self._mark.finish()
                        return
            await self._attend(etag)

    async def _attend(self, etag: str) -> None:
        """Show how far the process is that holds the lock, until it lets go. Raises BusyError when it hangs."""
        tuning, mark, blob = self._remote.tuning, self._mark, self._folders.blob(etag)
        at_work, growing = _Watch(tuning.attach_timeout_s), _Watch(tuning.quiet_s)
        while True:
            mark.state = "attached"
            mark.done_bytes = await in_thread(arrived_bytes, blob)
            beat = await in_thread(last_beat, blob)
            if at_work.is_stuck((mark.done_bytes, beat)):
                raise errors.held(self._remote.asked, self._file.name, self._holder(etag))
            is_quiet = growing.is_stuck(mark.done_bytes)
            mark.trouble = (mark.trouble or Trouble(self._what_it_waits_for(etag))) if is_quiet else None
            await asyncio.sleep(ATTACHED_POLL_S)
            with self._locked(etag) as is_free:
                if is_free:
                    mark.trouble = None
                    return

    def _holder(self, etag: str) -> str:
        return other_process(Path(self._folders.lock(etag).lock_file))

    def _what_it_waits_for(self, etag: str) -> str:
        why = "Nothing arrives now: it may be checking what is here, or waiting for the hub."
        return f"{self._holder(etag)} is fetching {self._file.name}, and is waited for. {why}"

    async def _etag(self) -> str:
        """The name of the blob: from the hub's list when the blob is here already, else asked for."""
        listed = self._file.sha256 or self._file.blob_id
        if listed and is_whole(self._folders.blob(listed), self._file.size_bytes):
            return listed
        if self._location is None:
            self._location = self._checked(await locate(self._remote, self._file, self._mark))
        return self._location.etag

    def _checked(self, location: Location) -> Location:
        """`location`, when it agrees with the hub's list. Raises VerificationFailed or BusyError."""
        file, size = self._file, location.size_bytes
        if file.sha256 and len(location.etag) == 64 and location.etag.lower() != file.sha256.lower():
            raise errors.changed(self._remote.asked, file.name)
        if size is not None and size != file.size_bytes:
            if file.size_bytes:
                raise errors.wrong_size(self._remote.asked, file.name, size, file.size_bytes)
            self._file = replace(file, size_bytes=size)  # the list did not say
            self._mark.size_bytes = size
        return location

    @contextmanager
    def _locked(self, etag: str) -> Iterator[bool]:
        """Hold the file's lock, if nobody else does."""
        import filelock

        lock = self._folders.lock(etag)
        try:
            lock.acquire(blocking=False)
        except filelock.Timeout:
            yield False
            return
        try:
            yield True
        finally:
            lock.release()

    async def _fetch(self, blob: Path) -> None:
        """Make the snapshot's file, from a blob that is here or from the network. The lock is held."""
        link, size = self._folders.link(self._file.name), self._file.size_bytes
        if is_whole(link, size):  # whoever held the lock before has made it
            return
        is_new = not is_whole(blob, size)
        if is_new:
            if blob.exists():
                set_aside(blob, blob, "corrupt")
            self._folders.snapshots.mkdir(parents=True, exist_ok=True)  # without, other tools call it damaged
            await self._transfer(blob)
        else:
            forget_part(blob)  # of a download that was killed in its last moment
        link_blob(blob, link, is_own=is_new)

    async def _transfer(self, blob: Path) -> None:
        """Fetch the blob and check it; once more when what came is wrong. Raises VerificationFailed."""
        self._mark.state = "downloading"
        location = self._location or self._checked(await locate(self._remote, self._file, self._mark))
        about = {"commit": self._remote.listing.commit, "name": self._file.name}
        kept = blob
        for _ in range(N_DOWNLOADS):
            part = Part(blob, expected_hash(self._file, location.etag), about)
            try:
                async with _beating(part, self._remote.tuning.beat_s):
                    self._mark.done_bytes = await in_thread(part.open, self._should_stop)
                    await Transfer(self._remote, self._file, location, part, self._mark).run()
                    if part.is_right():
                        await in_thread(part.finish)
                        return
                    kept = await in_thread(part.quarantine)
                    self._mark.done_bytes = 0
                    self._mark.remark = self._mark.remark or errors.arrived_wrong(
                        self._remote.asked, self._file.name, kept
                    )
            finally:
                part.close()
        raise errors.wrong_contents(self._remote.asked, self._file.name, kept)


@asynccontextmanager
async def _beating(part: Part, period_s: float) -> AsyncIterator[None]:
    """Meanwhile show that `part` is worked on."""

    async def beat() -> None:
        while True:
            await asyncio.sleep(period_s)
            await in_thread(part.beat)

    beats = asyncio.create_task(beat())
    try:
        yield
    finally:
        beats.cancel()


class _Watch:
    """Tells a process that works from one that hangs, by whether its signs of work change."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._last: object = None
        self._since = time.monotonic()

    def is_stuck(self, signs: object) -> bool:
        now = time.monotonic()
        if signs != self._last:
            self._last, self._since = signs, now
        return now - self._since > self._patience_s
