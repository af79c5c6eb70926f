"""The hub as the transfers of one download share it: asking where a file is, and how often to try.

It moves no contents and writes nothing to the disk.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from runner.hub import errors
from runner.hub.errors import TryAgain
from runner.hub.http import (
    MAX_REDIRECTS,
    Origin,
    Tuning,
    check_status,
    encoding_of,
    normal_etag,
    plain_etag,
    redirect_target,
    whole_number,
)
from runner.hub.listing import Listing, RemoteFile
from runner.hub.progress import Mark, Trouble
from runner.hub.rate import RateLimit

if TYPE_CHECKING:
    import httpx2


@dataclass(frozen=True)
class Location:
    """Where a file is now and what the hub says of it. size_bytes None: it does not say."""

    url: str
    etag: str
    size_bytes: int | None


@dataclass(frozen=True)
class Remote:
    """The hub as the transfers of one download share it."""

    client: httpx2.AsyncClient
    origin: Origin
    asked: errors.Asked
    listing: Listing
    tuning: Tuning
    limit: RateLimit

    async def locate(self, file: RemoteFile) -> Location:
        """Ask where `file` is. Raises TryAgain, and UsageError for what the hub refuses."""
        url = self.origin.resolve_url(self.listing.repo, self.listing.commit, file.name)
        commit, linked_etag, linked_size = "", "", None
        for _ in range(MAX_REDIRECTS):
            response = await self._head(url, file)
            headers = response.headers
            commit = commit or headers.get("x-repo-commit", "")
            linked_etag = linked_etag or plain_etag(headers.get("x-linked-etag", ""))
            if linked_size is None:
                linked_size = whole_number(headers.get("x-linked-size"))
            target = redirect_target(response)
            # Without a commit it is not the hub that has answered: its address has changed, or only its scheme.
            if target and (self.origin.is_own(target) or not commit):
                url = target
                continue
            if not target:
                if commit or self.origin.is_own(url):
                    self.check_status(response, file.name)
                if linked_size is None and not encoding_of(headers):
                    linked_size = whole_number(headers.get("content-length"))
            if not commit:
                raise TryAgain(errors.not_a_hub(self.asked, file.name))
            if commit != self.listing.commit:
                raise errors.changed(self.asked, file.name)
            etag = linked_etag or normal_etag(headers) or file.sha256 or file.blob_id
            return Location(target or url, etag, linked_size)
        raise errors.broken_off(self.asked, file.name, "the hub redirects in a circle")

    async def _head(self, url: str, file: RemoteFile) -> httpx2.Response:
        async with self.request("HEAD", url, file.name) as response:
            await response.aread()
            return response

    @asynccontextmanager
    async def request(self, method: str, url: str, name: str, byte_range: str = "") -> AsyncIterator[httpx2.Response]:
        """The answer to a request for the file `name`, its body still to be read.

        Its headers come in time, or not at all. Raises TryAgain for a connection that fails, also within the context.
        """
        import httpx2

        headers, tuning = self.origin.headers(url, byte_range), self.tuning
        try:
            request = self.client.build_request(method, url, headers=headers)
            try:
                async with asyncio.timeout(tuning.connect_timeout_s + tuning.stall_timeout_s):
                    response = await self.client.send(request, stream=True)
            except TimeoutError as error:
                raise TryAgain(errors.broken_off(self.asked, name, "the server does not answer")) from error
            try:
                yield response
            finally:
                await response.aclose()
        except (httpx2.TransportError, ssl.SSLError) as error:  # the latter of bytes that were changed on the way
            raise TryAgain(errors.lost(self.asked, name, error)) from error
        except (httpx2.InvalidURL, httpx2.HTTPError) as error:
            raise errors.broken_off(self.asked, name, f"a redirect cannot be followed ({error})") from error

    def check_status(self, response: httpx2.Response, name: str) -> None:
        """`http.check_status`, for this hub."""
        check_status(response, self.origin, self.asked, name)


class Tries:
    """Counts failures of one file in a row, waits after each, and gives up after too many. The file's mark tells."""

    def __init__(self, tuning: Tuning, mark: Mark) -> None:
        self._tuning, self._mark = tuning, mark
        self._failures = 0

    def succeeded(self) -> None:
        self._failures = 0
        self._mark.trouble = None

    async def failed(self, again: TryAgain) -> None:
        """Wait before the next try. Raises the cause when there is to be none."""
        self._failures += 1
        if self._failures >= self._tuning.max_tries or again.wait_s > self._tuning.wait_max_s:
            raise again.cause from again
        pause_s = self._tuning.backoff(self._failures) * random.uniform(0.75, 1.25)
        wait_s = max(again.wait_s, pause_s)
        self._mark.trouble = Trouble(again.cause.message, self._failures, wait_s)
        await asyncio.sleep(wait_s)


async def locate(remote: Remote, file: RemoteFile, mark: Mark) -> Location:
    """`Remote.locate`, tried as often as the tuning says."""
    tries = Tries(remote.tuning, mark)
    while True:
        try:
            location = await remote.locate(file)
            tries.succeeded()
            return location
        except TryAgain as again:
            await tries.failed(again)
