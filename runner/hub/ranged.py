"""Reading parts of remote files by HTTP Range: headers of models, without fetching them.

It writes nothing to the cache and knows no file format.
"""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import TYPE_CHECKING

from runner.hub import errors
from runner.hub.errors import TryAgain
from runner.hub.http import (
    MAX_REDIRECTS,
    Tuning,
    asked_of,
    check_status,
    client_options,
    content_range,
    encoding_of,
    is_page,
    origin,
    redirect_target,
)
from runner.hub.listing import Listing, check_file_name
from runner.hub_cache import hub_settings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    import httpx2

    from runner.types import CancelToken

# A header is small: when a server ignores Range, more than this is not read only to be thrown away.
MAX_SKIPPED_BYTES = 64 * 2**20
# Somebody waits for the answer, and nothing is lost when there is none.
READING = Tuning(stall_timeout_s=15.0, max_tries=4, wait_max_s=20.0)


def read_range(
    listing: Listing,
    name: str,
    start: int,
    length: int,
    *,
    tuning: Tuning | None = None,
    cancel: CancelToken | None = None,
) -> bytes:
    """`length` bytes of a remote file from `start`, fewer at its end. For many, a RemoteReader is faster.

    Raises UsageError and BusyError as `fetch` does, BadModelFile for an unsafe name, RunnerError when cancelled.
    """
    with RemoteReader(listing, tuning=tuning, cancel=cancel) as reader:
        return reader.read(name, start, length)


class RemoteReader:
    """Reads parts of the files of one listing over connections that it keeps until it is closed.

    cancel: ends a read with RunnerError at once, also while nothing comes.
    """

    def __init__(self, listing: Listing, *, tuning: Tuning | None = None, cancel: CancelToken | None = None) -> None:
        import httpx2

        self._listing = listing
        self._cancel = cancel
        self._tuning = tuning or READING
        self._asked = asked_of(listing.repo, listing.revision)
        if hub_settings().is_offline:
            raise errors.offline(self._asked)
        self._origin = origin()
        self._client = httpx2.Client(**client_options(self._tuning))
        self._addresses: dict[str, str] = {}  # where a file really is, by its name
        self._is_closed = False
        self._reading = threading.Lock()  # a read that was left behind closes what it still looks at

    def __enter__(self) -> RemoteReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._is_closed = True
        if not self._reading.locked():
            self._client.close()

    def read(self, name: str, start: int, length: int) -> bytes:
        """`length` bytes of the file `name` from `start`, fewer at its end."""
        from runner.hub.loop import beside

        size = self._listing.file(check_file_name(name)).size_bytes
        if start < 0 or length < 0:
            raise ValueError(f"no part of a file: {length} bytes from {start}")
        wanted = max(0, min(length, size - start)) if size else length
        data = b""
        while len(data) < wanted:
            more = beside(partial(self._read_some, name, start + len(data), wanted - len(data)), self._cancel)
            if not more:
                break
            data += more
        return data

    def _read_some(self, name: str, start: int, length: int) -> bytes:
        """See _read_patiently; the reader may be closed meanwhile."""
        try:
            with self._reading:
                return self._read_patiently(name, start, length)
        finally:
            if self._is_closed:
                self._client.close()

    def _read_patiently(self, name: str, start: int, length: int) -> bytes:
        """One request, again while that may help."""
        failures = 0
        while True:
            self._end_if_cancelled()
            try:
                return self._read_once(name, start, length)
            except TryAgain as again:
                failures += 1
                self._addresses.pop(name, None)
                if failures >= self._tuning.max_tries or again.wait_s > self._tuning.wait_max_s:
                    raise again.cause from again
                time.sleep(max(again.wait_s, self._tuning.backoff(failures)))

    def _read_once(self, name: str, start: int, length: int) -> bytes:
        import httpx2

        url = self._addresses.get(name) or self._origin.resolve_url(self._listing.repo, self._listing.commit, name)
        byte_range = f"bytes={start}-{start + length - 1}"
        try:
            for _ in range(MAX_REDIRECTS):
                with self._client.stream("GET", url, headers=self._origin.headers(url, byte_range)) as response:
                    if target := redirect_target(response):
                        url = target
                        continue
                    body = self._body(response, name, start, length)
                self._addresses[name] = url
                return body
        except httpx2.TransportError as error:
            raise TryAgain(errors.lost(self._asked, name, error)) from error
        except (httpx2.InvalidURL, httpx2.HTTPError) as error:
            raise errors.broken_off(self._asked, name, f"a redirect cannot be followed ({error})") from error
        raise TryAgain(errors.broken_off(self._asked, name, "the hub redirects in a circle"))

    def _body(self, response: httpx2.Response, name: str, start: int, length: int) -> bytes:
        self._check(response, name)
        if response.status_code == 416:
            return b""
        found = content_range(response.headers)
        if response.status_code == 206:
            if found is None or found[0] != start:
                raise TryAgain(errors.broken_off(self._asked, name, "the server sends another part than asked for"))
            return self._take(response.iter_raw(), name, 0, min(length, found[1] - start + 1))
        if start > MAX_SKIPPED_BYTES:
            raise errors.broken_off(self._asked, name, "the server sends whole files only")
        # The whole file from its start: what was asked for is in it. It is read so far and no further.
        return self._take(response.iter_raw(), name, start, length)

    def _take(self, chunks: Iterator[bytes], name: str, skip: int, length: int) -> bytes:
        body = bytearray()
        for chunk in chunks:
            self._end_if_cancelled()
            body += chunk
            if len(body) >= skip + length:
                return bytes(body[skip : skip + length])
        raise TryAgain(errors.broken_off(self._asked, name, "the answer is shorter than promised"))

    def _end_if_cancelled(self) -> None:
        if self._cancel is not None and self._cancel.is_cancelled:
            raise errors.cancelled()

    def _check(self, response: httpx2.Response, name: str) -> None:
        """Raise for an answer that is not the bytes that were asked for."""
        status, headers = response.status_code, response.headers
        if status in (200, 206):
            if encoding := encoding_of(headers):
                raise errors.compressed(self._asked, name, encoding)
            if is_page(headers, name):
                raise TryAgain(errors.not_a_hub(self._asked, name))
            return
        is_kept = not self._origin.is_own(str(response.request.url)) or name in self._addresses
        if is_kept and 400 <= status < 500 and status not in (408, 416, 429):  # a signed address that has expired
            raise TryAgain(errors.broken_off(self._asked, name, f"{status} from where the hub keeps it"))
        if status != 416:
            check_status(response, self._origin, self._asked, name)
