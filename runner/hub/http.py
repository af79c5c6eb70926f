"""The HTTP edge of the hub: addresses, the token and where it may go, proxies, timeouts, redirects, statuses.

One place makes the clients, and one rule says who sees the token: the hub's own origin, never the host that a redirect
leads to. It knows nothing of files on this machine, and it does not retry.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urljoin, urlsplit

from runner import __version__
from runner.errors import ConfigError
from runner.hub import errors
from runner.hub.errors import Asked, TryAgain
from runner.hub_cache import hub_settings

if TYPE_CHECKING:
    import httpx2

MAX_REDIRECTS = 10
REDIRECTS = (301, 302, 303, 307, 308)
_DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True)
class Tuning:
    """How patient a transfer is. stall_timeout_s: without a single byte. max_tries: in a row that bring nothing.

    backoff_s doubles with each of them up to backoff_max_s; a Retry-After above wait_max_s is not waited for.
    attach_timeout_s: how long to wait for another process that gives no sign of work; one that fetches gives one every
    beat_s. quiet_s: how long nothing may arrive before that is told.
    """

    connect_timeout_s: float = 10.0
    stall_timeout_s: float = 30.0
    max_tries: int = 8
    backoff_s: float = 0.5
    backoff_max_s: float = 30.0
    wait_max_s: float = 310.0
    attach_timeout_s: float = 600.0
    beat_s: float = 5.0
    quiet_s: float = 10.0

    def backoff(self, failures: int) -> float:
        """Seconds to wait after that many failures in a row, from 1."""
        return float(min(self.backoff_max_s, self.backoff_s * 2 ** (failures - 1)))


def use_library_quietly() -> None:
    """Tell huggingface_hub to send no usage data and to keep to plain HTTP; it reads this when it is imported."""
    os.environ.setdefault("HF_HUB_DISABLE_XET", "1")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")


@dataclass(frozen=True)
class Origin:
    """The hub as requests see it: its address, and what is sent along. authorization: "" without a token."""

    endpoint: str
    user_agent: str
    authorization: str

    def headers(self, url: str, byte_range: str = "") -> dict[str, str]:
        """What to send to `url`: the token to the hub alone, and the wish for bytes as they are."""
        headers = {"user-agent": self.user_agent, "accept-encoding": "identity"}
        if self.authorization and _origin(url) == _origin(self.endpoint):
            headers["authorization"] = self.authorization
        if byte_range:
            headers["range"] = byte_range
        return headers

    def is_own(self, url: str) -> bool:
        """Whether `url` is at the hub itself, not at a place that it redirects to."""
        return _origin(url) == _origin(self.endpoint)

    def resolve_url(self, repo: str, commit: str, name: str) -> str:
        return f"{self.endpoint}/{repo}/resolve/{quote(commit, safe='')}/{quote(name)}"


def origin() -> Origin:
    """The hub by this process's environment: HF_ENDPOINT, and the token as huggingface_hub finds it.

    Raises ConfigError for an endpoint that is no address, and a token that cannot be read or be one.
    """
    endpoint = hub_settings().endpoint
    try:
        is_address = _origin(endpoint)[0] in _DEFAULT_PORTS and bool(_origin(endpoint)[1])
    except ValueError:
        is_address = False
    if not is_address:
        raise ConfigError(f"HF_ENDPOINT is {endpoint!r}.", hint="It must be an address such as https://example.org.")
    use_library_quietly()
    headers = _library_headers()
    authorization = headers.get("authorization", "")
    if not (authorization.isascii() and authorization.isprintable()):
        raise ConfigError(
            "The token of the hub has characters that none has.", hint="Correct HF_TOKEN, or log in anew."
        )
    return Origin(endpoint, headers.get("user-agent", ""), authorization)


def _library_headers() -> dict[str, str]:
    """What huggingface_hub sends along: who asks, and the token if there is one."""
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    ask = partial(build_hf_headers, library_name="runner", library_version=__version__)
    try:
        return ask()
    except NotADirectoryError:  # HF_HOME is a file: nobody can have logged in there
        return ask(token=False)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"The token of the hub cannot be read: {error}.", hint="Correct HF_TOKEN_PATH or HF_HOME, or set HF_TOKEN."
        ) from error


def client_options(tuning: Tuning) -> dict[str, Any]:
    """What an httpx2 client of either kind is made with; it takes the proxies from the environment by itself.

    Redirects are followed by hand, so that each address is looked at before the token is sent to it.
    """
    import httpx2

    return {
        "timeout": httpx2.Timeout(tuning.stall_timeout_s, connect=tuning.connect_timeout_s),
        "follow_redirects": False,
        "limits": httpx2.Limits(max_connections=None, max_keepalive_connections=8),
    }


def redirect_target(response: httpx2.Response) -> str:
    """Where a redirect leads, as a whole address, or "" when the answer is none that can be followed."""
    location: str = response.headers.get("location", "")
    if response.status_code not in REDIRECTS or not location:
        return ""
    try:
        target = urljoin(str(response.request.url), location)
        scheme, host, _ = _origin(target)
        host.encode("idna")  # as the name service is asked, which takes no empty label and none of 64 letters
    except ValueError:
        return ""
    return target if scheme in _DEFAULT_PORTS and host else ""


def check_status(response: httpx2.Response, origin: Origin, asked: Asked, name: str) -> None:
    """Raise for an answer of the hub itself that does not have the file `name`: TryAgain where that may help."""
    status = response.status_code
    if status in (200, 206):
        return
    if status in REDIRECTS:
        raise errors.misdirected(asked)
    refusal = errors.refused(asked, status, response.headers, has_token=bool(origin.authorization), name=name)
    if status in (408, 425, 429) or status < 400 or status >= 500:
        raise TryAgain(refusal, errors.retry_after_s(response.headers, datetime.now(UTC)))
    raise refusal


def is_page(headers: Mapping[str, str], name: str) -> bool:
    """Whether a body is for a browser and not the file `name`: of a proxy, a login, an address that has expired."""
    is_html = headers.get("content-type", "").strip().lower().startswith("text/html")
    return is_html and not name.lower().endswith((".html", ".htm"))


def normal_etag(headers: Mapping[str, str]) -> str:
    """The ETag of the file that an answer of the hub stands for, without quotes, or "": X-Linked-ETag before ETag."""
    return plain_etag(headers.get("x-linked-etag") or headers.get("etag") or "")


def plain_etag(etag: str) -> str:
    return etag.strip().removeprefix("W/").strip('"')


def whole_number(text: str | None) -> int | None:
    """A header's number of bytes, or None when there is none that can be one."""
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 19 else None


def content_range(headers: Mapping[str, str]) -> tuple[int, int, int | None] | None:
    """`Content-Range: bytes first-last/total` as numbers, total None for "*"; None when it is missing or malformed."""
    unit, _, rest = headers.get("content-range", "").strip().partition(" ")
    span, _, total = rest.strip().partition("/")
    first, _, last = span.partition("-")
    start, end = whole_number(first), whole_number(last)
    if unit.lower() != "bytes" or start is None or end is None or end < start:
        return None
    return start, end, whole_number(total)


def encoding_of(headers: Mapping[str, str]) -> str:
    """How a body is compressed, or "" when it is not."""
    encoding = headers.get("content-encoding", "").strip().lower()
    return "" if encoding == "identity" else encoding


def asked_of(repo: str, revision: str = "main") -> Asked:
    return Asked(hub_settings().endpoint, repo, revision)


def _origin(url: str) -> tuple[str, str, int]:
    parts = urlsplit(url)
    return parts.scheme, (parts.hostname or "").lower(), parts.port or _DEFAULT_PORTS.get(parts.scheme, 0)
