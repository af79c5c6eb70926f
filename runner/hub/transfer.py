"""Moving one file from the hub into its part file, over as many requests as it takes.

It asks for the bytes that are missing and goes on after whatever breaks off. It knows nothing of locks, of other files,
or of where the finished file goes.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING, NoReturn

from runner.errors import RunnerError
from runner.hub import errors
from runner.hub.blobs import Beginning, Part
from runner.hub.errors import TryAgain
from runner.hub.http import (
    MAX_REDIRECTS,
    content_range,
    encoding_of,
    is_page,
    normal_etag,
    plain_etag,
    redirect_target,
    whole_number,
)
from runner.hub.listing import RemoteFile
from runner.hub.loop import in_thread
from runner.hub.progress import Mark
from runner.hub.remote import Location, Remote, Tries

if TYPE_CHECKING:
    import httpx2

# Bytes are written as soon as there are this many, or a 1024th of a small file: a kill loses no more than twice that.
MAX_WRITE_BYTES = 2**20
# The system may receive ahead of a limited transfer what it may take in this time, or a 256th of a small file: a kill
# loses that too. Without a limit little waits there.
AHEAD_S = 0.1
MIN_AHEAD_BYTES = 64 * 2**10
# An answer that ends in good order after so little is more likely somebody's note than the beginning of the file.
MAX_NOTE_BYTES = 64 * 2**10


class Transfer:
    """Brings one part file to its full length."""

    def __init__(self, remote: Remote, file: RemoteFile, location: Location, part: Part, mark: Mark) -> None:
        import httpx2

        self._remote, self._file, self._part, self._mark = remote, file, part, mark
        self._location: Location | None = location
        self._etag = location.etag
        self._n_contradictions = 0
        self._first_url = httpx2.URL(remote.origin.resolve_url(remote.listing.repo, remote.listing.commit, file.name))

    async def run(self) -> None:
        """Fetch what is missing. Raises RunnerError after too many tries that brought nothing, OSError of the disk."""
        tries = Tries(self._remote.tuning, self._mark)
        farthest = self._part.length
        while (before := self._part.length) < self._file.size_bytes:
            try:
                await self._request()
            except TryAgain as again:
                if self._part.length > before:
                    tries.succeeded()
                else:
                    self._location = None  # it may have expired, and another place have it
                if self._part.length > farthest:  # not merely what had come before the file was begun again
                    farthest, self._n_contradictions = self._part.length, 0
                await tries.failed(again)

    async def _request(self) -> None:
        """One request for all that is missing; returns when it has come. Raises TryAgain when it has not."""
        url = await self._address()
        start = self._part.length
        byte_range = f"bytes={start}-" if start else ""
        for _ in range(MAX_REDIRECTS):
            async with self._remote.request("GET", url, self._file.name, byte_range) as response:
                if target := redirect_target(response):
                    url = target
                    continue
                await self._accept(response)
                return
        raise self._broken("the hub redirects in a circle")

    async def _address(self) -> str:
        """Where to ask, found anew when the last address was refused. Raises BusyError for a file that has changed."""
        if self._location is None:
            found = await self._remote.locate(self._file)
            if found.etag != self._etag:
                raise errors.changed(self._remote.asked, self._file.name)
            self._location = found
        return self._location.url

    async def _accept(self, response: httpx2.Response) -> None:
        """Take the body where it can be joined to what is here; else the part file begins anew."""
        self._check(response)
        start, size, headers = self._part.length, self._file.size_bytes, response.headers
        skipped = None
        if response.status_code == 416:
            await self._contradict("the server has fewer bytes of it than the hub says")
        elif response.status_code == 206:
            found = content_range(headers)
            if found is None or found[0] != start or found[2] not in (None, size):
                await self._contradict("the server sends another part than asked for")
        else:
            if (promised := whole_number(headers.get("content-length"))) not in (None, size):
                # A page of somebody else, most likely: what is here is not touched.
                raise TryAgain(self._broken(f"the server sends {promised} bytes of {size}"))
            skipped = self._part.beginning(is_known=plain_etag(headers.get("etag", "")) == self._etag)
        await self._copy(response, skipped)

    def _check(self, response: httpx2.Response) -> None:
        """Raise for an answer that has no bytes to take, or those of another file."""
        status, is_direct = response.status_code, response.request.url == self._first_url
        if status in (200, 206):
            if encoding := encoding_of(response.headers):
                raise errors.compressed(self._remote.asked, self._file.name, encoding)
            if is_page(response.headers, self._file.name):
                raise TryAgain(errors.not_a_hub(self._remote.asked, self._file.name))
            # Where the bytes come from elsewhere, their ETag is of that place and says nothing.
            if is_direct and normal_etag(response.headers) not in ("", self._etag):
                raise errors.changed(self._remote.asked, self._file.name)
        elif not is_direct and 400 <= status < 500 and status not in (408, 416, 429):
            # A signed address that has expired.
            raise TryAgain(self._broken(f"{status} from where the hub keeps it"))
        elif status != 416:
            self._remote.check_status(response, self._file.name)

    async def _contradict(self, why: str) -> NoReturn:
        """After an answer that contradicts the part file: ask again, then begin again, then the server is wrong."""
        self._n_contradictions += 1
        if self._n_contradictions > 2:
            raise self._broken(why)
        if self._n_contradictions == 2:
            await in_thread(self._part.restart)
        raise TryAgain(self._broken(why))

    async def _copy(self, response: httpx2.Response, skipped: Beginning | None) -> None:
        """Append the body up to the file's size, without what is `skipped`. Raises TryAgain when it is shorter."""
        if self._remote.limit.bytes_s is not None:
            ahead = min(int(self._remote.limit.bytes_s * AHEAD_S), self._file.size_bytes // 256)
            _receive_ahead(response, max(MIN_AHEAD_BYTES, ahead))
        start = self._part.length
        async with _Writer(self._part, self._mark, self._file.size_bytes) as writer:
            async for chunk in response.aiter_raw():
                await self._remote.limit.take(len(chunk))
                self._mark.fetched_bytes += len(chunk)
                fresh = chunk if skipped is None else skipped.cut(chunk)
                if fresh and skipped is not None and not skipped.is_same:
                    await self._contradict("the server sends something else than before")
                await writer.add(fresh)
                if writer.is_whole:
                    return
        if start == 0 and self._part.length <= MAX_NOTE_BYTES:
            await in_thread(self._part.clear)
            self._mark.done_bytes = 0
        raise TryAgain(self._broken("the answer is shorter than promised"))

    def _broken(self, why: str) -> RunnerError:
        return errors.broken_off(self._remote.asked, self._file.name, why)


class _Writer:
    """Writes and hashes beside the network: one piece is on its way to the disk while the next arrives."""

    def __init__(self, part: Part, mark: Mark, size_bytes: int) -> None:
        self._part, self._mark, self._size_bytes = part, mark, size_bytes
        self._enough = max(1, min(MAX_WRITE_BYTES, size_bytes // 1024))
        self._n_taken = part.length
        self._buffer = bytearray()
        self._writing: asyncio.Future[None] | None = None

    async def __aenter__(self) -> _Writer:
        self._mark.done_bytes = self._part.length
        return self

    async def __aexit__(self, *_: object) -> None:
        """Whatever ended the transfer: what has arrived is written."""
        await self._settle()
        if self._buffer:
            self._start()
            await self._settle()

    @property
    def is_whole(self) -> bool:
        return self._n_taken == self._size_bytes

    async def add(self, data: bytes) -> None:
        """Take the next bytes of the file; those beyond its size are dropped."""
        data = data[: self._size_bytes - self._n_taken]
        if data:
            self._mark.trouble = None  # it gets on
        self._n_taken += len(data)
        self._buffer += data
        if len(self._buffer) >= self._enough:
            await self._settle()
            self._start()

    def _start(self) -> None:
        data, self._buffer = self._buffer, bytearray()
        self._writing = asyncio.get_running_loop().run_in_executor(None, self._part.append, data)

    async def _settle(self) -> None:
        """Wait for the write that is under way; being cancelled does not end it. Raises OSError."""
        if self._writing is not None:
            await asyncio.wait([self._writing])
            writing, self._writing = self._writing, None
            self._mark.done_bytes = self._part.length
            if writing.exception() is not None:
                self._buffer.clear()  # what comes behind a gap is of no use
            writing.result()


def _receive_ahead(response: httpx2.Response, n_bytes: int) -> None:
    """Let the system receive no more than that ahead of what is read here."""
    stream = response.extensions.get("network_stream")
    connection = stream.get_extra_info("socket") if stream is not None else None
    if connection is not None:
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, min(n_bytes, 2**30))
