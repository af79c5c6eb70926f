"""What goes wrong with the hub and the disk, as errors of the right kind that say what happened and what helps."""

from __future__ import annotations

import errno
from pathlib import Path

import httpx2
import pytest

from runner.errors import BusyError, ConfigError, DoesNotFit, RunnerError, UsageError, VerificationFailed
from runner.hub import errors
from runner.hub.errors import Asked

HUB = Asked("https://hub.example", "o/m", "v1")
SEARCH = Asked("https://hub.example")
PLACE = Path("/models")
LOG_IN = "hf auth login"


@pytest.mark.parametrize(
    ("status", "headers", "has_token", "name", "kind", "said", "remedy"),
    [
        (403, {"x-error-code": "GatedRepo"}, False, "", UsageError, "o/m is gated: its licence", "then log in"),
        (403, {"x-error-code": "GatedRepo"}, True, "", UsageError, "the account of the token has no access", "Ask for"),
        (404, {"x-error-code": "RevisionNotFound"}, False, "a", UsageError, "no revision 'v1'", "o/m/tree/main"),
        (404, {"x-error-code": "EntryNotFound"}, False, "", UsageError, "no file that it listed", "o/m/tree/v1"),
        (404, {}, False, "a.gguf", UsageError, "o/m has no a.gguf at revision 'v1'", "Try again"),
        (404, {"x-error-code": "RepoNotFound"}, False, "a.gguf", UsageError, "There is no repository o/m", LOG_IN),
        (403, {"x-error-code": "RepoNotFound"}, True, "", UsageError, "There is no repository o/m", LOG_IN),
        (404, {}, True, "", UsageError, "There is no repository o/m at https://hub.example, or it is private", LOG_IN),
        (401, {}, False, "", UsageError, "There is no repository o/m", LOG_IN),
        (401, {}, False, "a.gguf", UsageError, "There is no repository o/m", LOG_IN),
        (403, {"x-error-message": "It is disabled."}, False, "", UsageError, "o/m is disabled at", "Choose another"),
        (403, {}, False, "", UsageError, "answers 403 for o/m: access is refused", "A proxy"),
        (403, {}, True, "", UsageError, "refused the token for o/m", "HF_TOKEN"),
        (401, {}, True, "", UsageError, "refused the token for o/m", "HF_TOKEN"),
        (401, {"x-error-message": "Bad credentials"}, False, "", UsageError, "refused the token for o/m", "HF_TOKEN"),
        (429, {}, False, "", BusyError, "takes no more requests for now", "in some minutes"),
        (429, {"retry-after": "7"}, False, "", BusyError, "takes no more requests for now", "Try again in 7 s"),
        (502, {}, False, "", BusyError, "The hub answered 502 for o/m", "Try again later"),
        (400, {}, False, "a.gguf", BusyError, "The hub answered 400 for o/m", "Try again later"),
    ],
)
def test_what_the_hub_refuses_is_said_with_what_helps(
    status: int, headers: dict[str, str], has_token: bool, name: str, kind: type[RunnerError], said: str, remedy: str
) -> None:
    error = errors.refused(HUB, status, headers, has_token=has_token, name=name)
    assert type(error) is kind
    assert said in error.message
    assert remedy in error.hint


@pytest.mark.parametrize(
    ("raised", "said", "remedy"),
    [
        (httpx2.ConnectError("refused"), "There is no connection to https://hub.example", "--offline"),
        (httpx2.ConnectTimeout("late"), "There is no connection to https://hub.example", "--offline"),
        (httpx2.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED]"), "The certificate of https://hub.example", "clock"),
        (httpx2.ConnectError("[SSL: WRONG_VERSION_NUMBER]"), "does not answer as https does", "HF_ENDPOINT"),
        (httpx2.ProxyError("407"), "The proxy lets nothing through to https://hub.example: 407", "HTTPS_PROXY"),
    ],
)
def test_why_there_is_no_connection_is_said_also_for_a_file(raised: Exception, said: str, remedy: str) -> None:
    for error in (errors.unreachable(HUB, raised), errors.lost(HUB, "a.gguf", raised)):
        assert type(error) is BusyError
        assert said in error.message
        assert remedy in error.hint


@pytest.mark.parametrize(
    ("raised", "why"),
    [
        (httpx2.ReadTimeout(""), "the server has stopped sending"),
        (httpx2.ReadError(""), "the connection was lost"),
        (httpx2.RemoteProtocolError(""), "the connection was lost"),
    ],
)
def test_a_file_that_breaks_off_is_kept_as_far_as_it_came(raised: Exception, why: str) -> None:
    error = errors.lost(HUB, "a.gguf", raised)
    assert (type(error), error.message) == (BusyError, f"a.gguf of o/m could not be fetched: {why}.")
    assert "goes on from there" in error.hint


@pytest.mark.parametrize(
    ("error", "kind", "said", "remedy"),
    [
        (errors.offline(HUB), BusyError, "o/m is not on this machine, and HF_HUB_OFFLINE is set", "Unset"),
        (errors.offline(SEARCH), BusyError, "A search needs the hub, and", "Unset"),
        (errors.unusable_proxy(ValueError("x")), ConfigError, "cannot be used: x", "socksio"),
        (errors.changed(HUB, "a"), BusyError, "a of o/m has changed at the hub", "Try again"),
        (errors.not_a_hub(HUB, "a"), BusyError, "for a of o/m at https://hub.example is no model hub", "HF_ENDPOINT"),
        (errors.compressed(HUB, "a", "gzip"), BusyError, "https://hub.example compresses a (gzip)", "NO_PROXY"),
        (errors.misdirected(HUB), RunnerError, "redirects o/m to what is no address", "HF_ENDPOINT"),
        (errors.wrong_contents(HUB, "a", PLACE), VerificationFailed, "the last one is /models", "rm --partial o/m"),
        (
            errors.wrong_size(HUB, "a", 3, 4),
            VerificationFailed,
            "a of o/m has 3 bytes, and 4",
            "https://hub.example/o/m",
        ),
        (errors.no_space(3, 2, 10**9, PLACE), DoesNotFit, "needs 3 B, with 2 B to spare", "runner rm"),
        (errors.no_space(3, 2, 10**9, PLACE), DoesNotFit, "/models has 1.0 GB free", "HF_HOME"),
        (errors.cancelled(), RunnerError, "The download was cancelled", ""),
    ],
)
def test_each_error_says_what_it_is_about(error: RunnerError, kind: type[RunnerError], said: str, remedy: str) -> None:
    assert type(error) is kind
    assert said in error.message
    assert remedy in error.hint


@pytest.mark.parametrize(
    ("number", "kind", "said", "remedy"),
    [
        (errno.ENOSPC, DoesNotFit, "The disk is full", "runner rm"),
        (errno.EDQUOT, DoesNotFit, "The disk is full", "runner rm"),
        (errno.EFBIG, DoesNotFit, "The file system of /there holds no files as large", "ulimit"),
        (errno.EROFS, RunnerError, "The disk of /there is mounted read-only", "HF_HOME"),
        (errno.ENOTDIR, RunnerError, "a file in the place of a directory, at or above /there", "Move it"),
        (errno.EISDIR, RunnerError, "a directory in the place of a file, at /there", "Move it"),
        (errno.EACCES, RunnerError, "The cache cannot be written: refused: /there", "permissions"),
    ],
)
def test_what_the_disk_refuses_names_the_place(number: int, kind: type[RunnerError], said: str, remedy: str) -> None:
    error = errors.of_disk(OSError(number, "refused", "/there"), PLACE)
    assert type(error) is kind
    assert said in error.message
    assert remedy in error.hint


def test_of_a_rename_that_fails_the_place_is_where_it_leads_and_without_one_it_is_the_cache() -> None:
    assert "refused: /b." in errors.of_disk(OSError(errno.EACCES, "refused", "/a", None, "/b"), PLACE).message
    assert "refused: /models." in errors.of_disk(OSError(errno.EACCES, "refused"), PLACE).message
    assert "cannot be written: odd: /models." in errors.of_disk(OSError("odd"), PLACE).message
