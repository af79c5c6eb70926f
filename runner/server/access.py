"""Who may ask: the Host header, the page that a browser asks for, and the token. Pure: headers in, a Refusal or None.

A page on the web can make the browser of this machine send requests here. It cannot choose the Host header (a name of
its own that it points at 127.0.0.1 shows there) nor leave out its Origin. It knows nothing of what is asked.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from runner.errors import UsageError
from runner.server.refusal import Refusal

_LOCAL: Final = ("localhost", "127.0.0.1", "::1")
_DEFAULT_PORTS: Final[Mapping[str, int]] = {"http": 80, "https": 443}
_HOST: Final = re.compile(r"(\[[0-9a-f:.]+\]|[^\s/@\[\]:]+)(:\d{1,5})?", re.IGNORECASE)
_ORIGIN: Final = re.compile(r"\*|null|[a-z][a-z0-9+.-]*://[^/\s]*")


@dataclass(frozen=True, kw_only=True)
class Access:
    """host, port: where the server listens. names: other Hosts that lead here, with their ports, or with any.

    origins: pages that may ask, "*" for all. is_remote: other machines may ask, who write any address of this one.
    Raises UsageError for names and origins that no browser writes so.
    """

    host: str
    port: int
    token: str | None = None
    names: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    is_remote: bool = False

    def __post_init__(self) -> None:
        for name in self.names:
            if not _HOST.fullmatch(name):
                hint = "Such as box.lan or front.example:443: no scheme and no path."
                raise UsageError(f"--allow-host is {name!r}, which is no name of a host.", hint=hint)
        for origin in self.origins:
            if not _ORIGIN.fullmatch(origin):
                hint = "Such as https://app.example or http://10.0.0.7:3000: a scheme and no path. * is all."
                raise UsageError(f"--allow-origin is {origin!r}, which is no origin of pages.", hint=hint)

    def refusal(self, headers: Mapping[str, str]) -> Refusal | None:
        """What is wrong with where a request comes from. headers: their names in lower case."""
        host = headers.get("host", "")
        if not self._is_own_host(host):
            named = "; --allow-host gives it another name" if host else ""
            return Refusal(403, f"The Host header is not this server's{named}.", code="wrong_host")
        origin = headers.get("origin")
        if origin is not None and not self._is_own_origin(origin, host):
            hint = "If you know that page, start the server with --allow-origin and its address."
            return Refusal(403, f"Web pages from elsewhere may not ask this server. {hint}", code="foreign_origin")
        return None

    def token_refusal(self, headers: Mapping[str, str]) -> Refusal | None:
        """What is wrong with the token of a request."""
        if self.token is None:
            return None
        scheme, _, given = headers.get("authorization", "").partition(" ")
        is_right = hmac.compare_digest(given.strip().encode("utf-8", "replace"), self.token.encode("utf-8", "replace"))
        if is_right and scheme.lower() == "bearer":
            return None
        said = "The token is wrong." if given else "A token is needed."
        hint = "Send the one that the server was started with: Authorization: Bearer TOKEN."
        return Refusal(401, f"{said} {hint}", code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})

    def _is_own_host(self, header: str) -> bool:
        if any(_is_named(header, named) for named in self.names):
            return True
        name, port = _host_and_port(header, 80)
        if port != self.port:
            return False
        return name in _LOCAL or name == self.host.lower() or (self.is_remote and _is_address(name))

    def _is_own_origin(self, origin: str, host: str) -> bool:
        if "*" in self.origins or origin in self.origins:
            return True
        scheme, _, rest = origin.lower().partition("://")
        if scheme not in _DEFAULT_PORTS:  # "null" too: a sandboxed page, a file
            return False
        own, given = (_host_and_port(each, _DEFAULT_PORTS[scheme]) for each in (host, rest))
        return given[0] in _LOCAL or given == own


def _host_and_port(text: str, default: int) -> tuple[str, int | None]:
    """("::1", 8080) of "[::1]:8080", in lower case; port None where it cannot be read."""
    name, separator, port = text.lower().rpartition(":")
    if not separator or text.endswith("]"):
        name, port = text.lower(), str(default)
    return name.removeprefix("[").removesuffix("]"), int(port) if port.isdecimal() and len(port) < 6 else None


def _is_named(header: str, named: str) -> bool:
    """Whether a Host header is that name of --allow-host, which has a port or stands for any."""
    (name, port), (other, other_port) = _host_and_port(header, 0), _host_and_port(named, 0)
    # Browsers leave out the port that belongs to the scheme, which the header does not tell.
    return name == other and (other_port in (0, port) or (port == 0 and other_port in _DEFAULT_PORTS.values()))


def _is_address(name: str) -> bool:
    """Whether it is an address, which no page can point elsewhere as it can a name."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
