"""Asking the hub's API: what a repository holds, and what a search finds.

One question is one answer in JSON, limited in size and time. What an answer means is read in answers.py; this file
moves no contents of models.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from runner.errors import RunnerError
from runner.hub import errors
from runner.hub.answers import read_found, read_listing
from runner.hub.errors import Asked
from runner.hub.http import Tuning, asked_of, client_options, origin
from runner.hub.listing import Found, Listing, check_revision
from runner.hub_cache import hub_settings
from runner.registry import check_repo

if TYPE_CHECKING:
    import httpx2

    from runner.types import CancelToken

T = TypeVar("T")

ASKING = Tuning(stall_timeout_s=20.0)
# A listing takes some 300 bytes a file: this is room for 200000 of them.
MAX_ANSWER_BYTES = 64 * 2**20
# From the first byte of an answer to the last.
MAX_ANSWER_S = 120.0
_SEARCHED = ["downloads", "likes", "lastModified", "gated", "safetensors", "gguf", "tags"]


def list_files(repo: str, revision: str = "main", *, cancel: CancelToken | None = None) -> Listing:
    """Ask the hub what `repo` holds; a renamed repository is followed, and the listing says its new name.

    Raises UsageError for no such repository, revision or access, BusyError for no connection, BadModelFile for file
    names that are not safe to write, RunnerError when cancelled.
    """
    from runner.hub.loop import beside  # asyncio is loaded when something is asked

    path = f"/api/models/{check_repo(repo)}/revision/{quote(check_revision(revision), safe='')}"
    asked = asked_of(repo, revision)
    ask = partial(_ask, asked, path, {"blobs": True}, lambda answer: read_listing(answer, repo, revision))
    return beside(ask, cancel)


def search(query: str, *, limit: int = 20) -> tuple[Found, ...]:
    """The repositories that the hub finds for `query`, the most downloaded first.

    Raises BusyError for no connection, UsageError for a refused token.
    """
    wanted = {"search": query, "sort": "downloads", "limit": limit, "expand": _SEARCHED}
    return _ask(asked_of(""), "/api/models", wanted, lambda answer: read_found(answer, limit))


def _ask(asked: Asked, path: str, query: Mapping[str, Any], read: Callable[[Any], T]) -> T:
    """One question to the hub, its answer as `read` reads it; what goes wrong becomes our errors."""
    if hub_settings().is_offline:
        raise errors.offline(asked)
    hub = origin()
    import httpx2

    url = hub.endpoint + path
    try:
        client = httpx2.Client(**client_options(ASKING))
    except (ImportError, ValueError, httpx2.InvalidURL) as error:
        raise errors.unusable_proxy(error) from error
    try:
        with (
            client,
            client.stream("GET", url, params=query, headers=hub.headers(url), follow_redirects=True) as response,
        ):
            response.raise_for_status()
            return read(json.loads(_body(response)))
    except httpx2.TransportError as error:
        raise errors.unreachable(asked, error) from error
    except httpx2.HTTPStatusError as error:
        answer, has_token = error.response, bool(hub.authorization)
        raise errors.refused(asked, answer.status_code, answer.headers, has_token=has_token) from error
    # A circle of redirects, or one to nowhere; no JSON, or not what it should say.
    except (httpx2.HTTPError, httpx2.InvalidURL, ValueError, RecursionError) as error:
        raise RunnerError(f"{hub.endpoint} gave no usable answer: {error}.", hint="Is HF_ENDPOINT right?") from error


def _body(response: httpx2.Response) -> bytes:
    """All of an answer. Raises ValueError for one without end."""
    body, began = bytearray(), time.monotonic()
    for chunk in response.iter_bytes():
        body += chunk
        if len(body) > MAX_ANSWER_BYTES:
            raise ValueError(f"it has more than {MAX_ANSWER_BYTES // 2**20} MiB")
        if time.monotonic() - began > MAX_ANSWER_S:
            raise ValueError(f"it has not ended after {MAX_ANSWER_S:.0f} s")
    return bytes(body)
