"""What went wrong between this machine and the hub, as the program's errors, each with its remedy.

Pure: answers of the hub, errors of the HTTP client and of the disk go in, errors for people come out. It knows nothing
of retrying; what reaches it has been tried often enough.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from runner.errors import BusyError, ConfigError, DoesNotFit, RunnerError, UsageError, VerificationFailed
from runner.measures import decimal_size

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
_WINDOW = re.compile(r"\br\s*=\s*0\s*;\s*t\s*=\s*([0-9]{1,6})\b")
_LOG_IN = "log in with `hf auth login` or set HF_TOKEN"


class TryAgain(Exception):
    """This try failed, another may not. cause: the error if all of them do. wait_s: what the server asked to wait."""

    def __init__(self, cause: RunnerError, wait_s: float = 0.0) -> None:
        super().__init__(cause.message)
        self.cause, self.wait_s = cause, wait_s


@dataclass(frozen=True)
class Asked:
    """What was asked of which hub: it names things in the messages. repo: "" when it was not about one."""

    endpoint: str
    repo: str = ""
    revision: str = "main"

    @property
    def page(self) -> str:
        return f"{self.endpoint}/{self.repo}"


def refused(asked: Asked, status: int, headers: Mapping[str, str], *, has_token: bool, name: str = "") -> RunnerError:
    """The error for an answer of the hub that is no success. headers: with lower-case names or case-insensitive.

    name: of the file that was asked for, if it was one.
    """
    code, said = headers.get("x-error-code", ""), headers.get("x-error-message", "")[:200]
    if code == "GatedRepo":
        return _gated(asked, has_token)
    if code == "RevisionNotFound":
        return UsageError(
            f"{asked.repo} has no revision {asked.revision!r}.",
            hint=f"See {asked.page}/tree/main.",
        )
    if code == "EntryNotFound" or (name and status == 404 and code != "RepoNotFound"):
        return UsageError(
            f"{asked.repo} has no {name or 'file that it listed'} at revision {asked.revision!r}.",
            hint=f"Try again: its files are listed anew. When it stays so, see {asked.page}/tree/{asked.revision}.",
        )
    if "disabled" in said:
        return UsageError(f"{asked.repo} is disabled at {asked.endpoint}.", hint="Choose another repository.")
    if status == 404 and not asked.repo:
        return UsageError(f"{asked.endpoint} has no search for models.", hint="Is HF_ENDPOINT right?")
    is_refused = status == 403 or (status == 401 and not asked.repo)  # of a repository, 401 is one that is private
    if is_refused and code != "RepoNotFound" and not has_token:
        return UsageError(
            f"{asked.endpoint} answers {status} for {asked.repo or 'a search'}: access is refused.",
            hint=f"A proxy or a firewall may be in between; if the repository is private, {_LOG_IN}.",
        )
    if code != "RepoNotFound" and (status == 403 or (status == 401 and (has_token or "credentials" in said))):
        return _refused_token(asked)
    if code == "RepoNotFound" or status in (401, 404):
        return UsageError(
            f"There is no repository {asked.repo} at {asked.endpoint}, or it is private.",
            hint=f"Check the name; for a private one {_LOG_IN}.",
        )
    if status == 429:
        return _rate_limited(asked, headers)
    return BusyError(f"The hub answered {status} for {asked.repo or 'a search'}.", hint="Try again later.")


def _gated(asked: Asked, has_token: bool) -> UsageError:
    if has_token:
        return UsageError(
            f"{asked.repo} is gated, and the account of the token has no access to it.",
            hint=f"Ask for access at {asked.page}, or {_LOG_IN} of the account that has it.",
        )
    return UsageError(
        f"{asked.repo} is gated: its licence has to be accepted first.",
        hint=f"Accept it at {asked.page}, then {_LOG_IN}.",
    )


def _refused_token(asked: Asked) -> UsageError:
    return UsageError(
        f"The hub refused the token for {asked.repo or 'a search'}.",
        hint="Log in again with `hf auth login`, or correct HF_TOKEN: it may be wrong, expired or too narrow.",
    )


def _rate_limited(asked: Asked, headers: Mapping[str, str]) -> BusyError:
    wait_s = retry_after_s(headers, datetime.now(UTC))
    when = f"in {wait_s:.0f} s" if wait_s else "in some minutes"
    return BusyError(
        f"{asked.endpoint} takes no more requests for now (rate limit).",
        hint=f"Try again {when}; who is logged in (`hf auth login`) may ask more.",
    )


def retry_after_s(headers: Mapping[str, str], now: datetime) -> float:
    """The seconds that an answer asks to wait, 0 when it does not say.

    Retry-After is a number, or a date to compare with `now`; the hub says the same in `RateLimit: "api";r=0;t=55`.
    """
    from email.utils import parsedate_to_datetime

    text = headers.get("retry-after", "").strip()
    if text.isascii() and text.isdigit():
        return float(min(int(text[:9]), 10**6))
    try:
        return max(0.0, (parsedate_to_datetime(text) - now).total_seconds())
    except (ValueError, TypeError, OverflowError):
        window = _WINDOW.search(headers.get("ratelimit", ""))
        return float(window[1]) if window else 0.0


def cancelled() -> RunnerError:
    return RunnerError("The download was cancelled.")


def offline(asked: Asked) -> BusyError:
    what = f"{asked.repo} is not on this machine" if asked.repo else "A search needs the hub"
    return BusyError(f"{what}, and HF_HUB_OFFLINE is set.", hint="Unset HF_HUB_OFFLINE.")


def unreachable(asked: Asked, error: Exception) -> BusyError:
    """The error for a hub that cannot be talked to, by what the HTTP client raised."""
    if _is_kind(error, "ProxyError"):
        return BusyError(
            f"The proxy lets nothing through to {asked.endpoint}: {error}.",
            hint="Correct HTTPS_PROXY, or name the hub in NO_PROXY.",
        )
    if "CERTIFICATE" in str(error).upper():
        return BusyError(
            f"The certificate of {asked.endpoint} cannot be verified.",
            hint="Check this machine's clock; behind a proxy with its own certificates, name them in SSL_CERT_FILE.",
        )
    if "SSL" in str(error).upper():
        return BusyError(
            f"{asked.endpoint} does not answer as https does.",
            hint="Is HF_ENDPOINT right? Some hubs have http:// only.",
        )
    if _is_kind(error, "ReadTimeout", "ReadError", "RemoteProtocolError"):
        what = "does not answer" if _is_kind(error, "ReadTimeout") else "hangs up before its answer is whole"
        return BusyError(
            f"{asked.endpoint} {what}.", hint="Try again later; --offline uses only what is on this machine."
        )
    return BusyError(
        f"There is no connection to {asked.endpoint}.",
        hint="Check the network; --offline uses only what is on this machine.",
    )


def unusable_proxy(error: Exception) -> ConfigError:
    return ConfigError(
        f"The proxy of HTTPS_PROXY, HTTP_PROXY or ALL_PROXY cannot be used: {error}",
        hint="Give an address such as http://127.0.0.1:8080; a SOCKS proxy needs the package socksio.",
    )


def lost(asked: Asked, name: str, error: Exception) -> BusyError:
    """The error for a connection that could not be made or was lost, by what the HTTP client raised."""
    if _is_kind(error, "ConnectError", "ConnectTimeout", "ProxyError"):
        return unreachable(asked, error)
    if _is_kind(error, "ReadTimeout"):
        return broken_off(asked, name, "the server has stopped sending")
    return broken_off(asked, name, "the connection was lost")


def _is_kind(error: Exception, *names: str) -> bool:
    """Whether `error` is of one of those classes of the HTTP client, which is not imported for that."""
    return any(kind.__name__ in names for kind in type(error).__mro__)


def changed(asked: Asked, name: str) -> BusyError:
    return BusyError(
        f"{name} of {asked.repo} has changed at the hub while it was fetched.",
        hint="Try again: the new one is listed and fetched then.",
    )


def not_a_hub(asked: Asked, name: str) -> BusyError:
    return BusyError(
        f"What answers for {name} of {asked.repo} at {asked.endpoint} is no model hub.",
        hint="Does this network want a login in the browser first? Is HF_ENDPOINT right?",
    )


def held(asked: Asked, name: str, who: str) -> BusyError:
    return BusyError(
        f"{who} holds the download of {name} of {asked.repo}, and it does not get on.",
        hint="End that process, and try again: this one goes on from where it was.",
    )


def broken_off(asked: Asked, name: str, why: str) -> BusyError:
    """`name` could not be fetched to its end, after all tries."""
    return BusyError(
        f"{name} of {asked.repo} could not be fetched: {why}.",
        hint="Try again: what has arrived is kept, and the download goes on from there.",
    )


def compressed(asked: Asked, name: str, encoding: str) -> BusyError:
    return BusyError(
        f"Something between here and {asked.endpoint} compresses {name} ({encoding[:40]}), though it was asked not to.",
        hint="Turn that off in the proxy, or go around it with NO_PROXY.",
    )


def misdirected(asked: Asked) -> RunnerError:
    return RunnerError(f"{asked.endpoint} redirects {asked.repo} to what is no address.", hint="Is HF_ENDPOINT right?")


def arrived_wrong(asked: Asked, name: str, kept: Path) -> str:
    """What is said of it; no error yet."""
    return (
        f"{name} arrived with other contents than the hub says, and is fetched once more. What came is set aside as "
        f"{kept}: `runner rm --partial {asked.repo}` deletes it."
    )


def wrong_contents(asked: Asked, name: str, kept: Path) -> VerificationFailed:
    return VerificationFailed(
        f"{name} of {asked.repo} arrived twice with other contents than the hub says; the last one is {kept}.",
        hint="Something on the way, this disk or the memory changes bytes. Check them, and try again; "
        f"`runner rm --partial {asked.repo}` deletes what was set aside.",
    )


def wrong_size(asked: Asked, name: str, found: int, listed: int) -> VerificationFailed:
    return VerificationFailed(
        f"{name} of {asked.repo} has {found} bytes, and {listed} in the hub's list.",
        hint=f"Try again; when it stays so, tell the owner of {asked.page}.",
    )


def no_space(needed_bytes: int, spare_bytes: int, free_bytes: int, place: Path) -> DoesNotFit:
    needed, spare, free = map(decimal_size, (needed_bytes, spare_bytes, free_bytes))
    return DoesNotFit(
        f"The download needs {needed}, with {spare} to spare for other programs, and {place} has {free} free.",
        hint="Delete models with `runner rm`, or put the cache on another disk with HF_HOME.",
    )


def of_disk(error: OSError, cache: Path) -> RunnerError:
    """The error for a failed operation on the cache."""
    if error.errno in DISK_FULL:
        return DoesNotFit(
            "The disk is full.",
            hint="Make room with `runner rm`, or put the cache elsewhere with HF_HOME; what has arrived is kept.",
        )
    place = error.filename2 or error.filename or cache  # of a rename, where it leads
    if error.errno == errno.EFBIG:
        return DoesNotFit(
            f"The file system of {place} holds no files as large as this one.",
            hint="FAT32 ends at 4 GB, and `ulimit -f` sets a limit too. Put the cache on another disk with HF_HOME.",
        )
    if error.errno == errno.EROFS:
        return RunnerError(
            f"The disk of {place} is mounted read-only.",
            hint="Mount it so that it can be written, or put the cache elsewhere with HF_HOME.",
        )
    if error.errno in (errno.EISDIR, errno.ENOTDIR):
        if error.errno == errno.ENOTDIR:
            wrong = f"file in the place of a directory, at or above {place}"
        else:
            wrong = f"directory in the place of a file, at {place}"
        return RunnerError(
            f"The cache cannot be written: there is a {wrong}.",
            hint="Move it away, or put the cache elsewhere with HF_HOME.",
        )
    return RunnerError(
        f"The cache cannot be written: {error.strerror or error}: {place}.",
        hint="Mend its permissions, or put the cache elsewhere with HF_HOME.",
    )
