"""Who sees the token, which proxy is used, and what headers mean."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import pytest
from fetching import QUICK, REPO, fetch
from hub_server import Fault, Hub, serving

from runner import hub
from runner.errors import BusyError, ConfigError, UsageError
from runner.hub.errors import retry_after_s
from runner.hub.http import Origin, content_range, encoding_of, is_page, plain_etag, redirect_target, whole_number

FETCH = f"""
from runner import hub
from runner.types import CancelToken
listing = hub.list_files({REPO!r})
hub.search("x")
print(hub.read_range(listing, "tiny-Q8_0.gguf", 2, 3))
hub.fetch(listing, ["tiny-Q4_0.gguf", "README.md"], on_progress=lambda s: None, cancel=CancelToken())
"""


def run_fetch(environment: Mapping[str, str]) -> None:
    """In a process of its own: huggingface_hub reads the environment when it is imported."""
    done = subprocess.run([sys.executable, "-c", FETCH], env=dict(environment), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "b'888'\n"


def base_environment(server: Hub, tmp_path: Path) -> dict[str, str]:
    checkout = str(Path(__file__).parent.parent.parent)
    return {"HF_ENDPOINT": server.url, "HF_HOME": str(tmp_path / "hf"), "HOME": str(tmp_path), "PYTHONPATH": checkout}


# --- the token ---


def test_the_token_goes_to_the_hub_and_never_to_another_host(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    server.cdn = True
    monkeypatch.setenv("HF_TOKEN", server.token)
    fetch(["tiny-Q4_0.gguf", "README.md"])
    hub.read_range(hub.list_files(REPO), "tiny-Q8_0.gguf", 0, 10)
    seen = {
        (path.startswith("/cdn/"), one.get("authorization"))
        for (_, path), one in zip(server.requests, server.headers, strict=True)
    }
    assert seen == {(True, None), (False, f"Bearer {server.token}")}


@pytest.mark.parametrize(("path", "reason"), [("/dev/null/token", ""), (".", "token of the hub cannot be read")])
def test_where_no_token_can_be_there_is_none_and_one_that_cannot_be_read_is_said(
    server: Hub, monkeypatch: pytest.MonkeyPatch, path: str, reason: str
) -> None:
    """A home that is a file, and a token that is a directory."""
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", path)
    if reason:
        with pytest.raises(ConfigError, match=reason):
            hub.list_files(REPO)
    else:
        assert hub.list_files(REPO).names
        assert [one.get("authorization") for one in server.headers] == [None]


def test_a_hub_that_redirects_to_another_machine_gives_no_token_away(
    server: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(Hub()) as thief:
        monkeypatch.setenv("HF_TOKEN", server.token)
        listing = hub.list_files(REPO)
        away = {"Location": f"{thief.url}/{REPO}/resolve/main/README.md"}
        for method in ("HEAD", "GET"):
            server.faults = [Fault("status", status=302, headers=away, method=method, times=None)]
            with pytest.raises(BusyError):
                fetch(["README.md"])
        with pytest.raises(BusyError):
            hub.read_range(listing, "README.md", 0, 2, tuning=QUICK)
        assert thief.headers
        assert not any("authorization" in headers for headers in thief.headers)


def test_a_hub_that_has_moved_is_followed_without_the_token(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(Hub(repos=server.repos)) as new:
        monkeypatch.setenv("HF_TOKEN", server.token)
        moved = {"Location": f"{new.url}/{REPO}/resolve/{server.repos[REPO].commit}/README.md"}
        server.faults = [Fault("status", status=301, headers=moved, method="HEAD", times=None)]
        directory, _ = fetch(["README.md"])
        assert (directory / "README.md").read_bytes() == b"hello"
        assert [method for method, _ in new.requests] == ["HEAD", "GET"]
        assert not any("authorization" in headers for headers in new.headers)


@pytest.mark.parametrize("how", ["HF_TOKEN", "HF_TOKEN_PATH", "stored login"])
def test_the_token_is_found_where_huggingface_hub_finds_it(server: Hub, tmp_path: Path, how: str) -> None:
    server.repos[REPO].is_gated = True
    environment = base_environment(server, tmp_path)
    if how == "HF_TOKEN":
        environment["HF_TOKEN"] = server.token
    else:
        path = tmp_path / "hf" / "token" if how == "stored login" else tmp_path / "secret"
        path.parent.mkdir(exist_ok=True)
        path.write_text(server.token + "\n")
        if how == "HF_TOKEN_PATH":
            environment["HF_TOKEN_PATH"] = str(path)
    run_fetch(environment)


def test_no_token_is_sent_when_that_is_switched_off(server: Hub, tmp_path: Path) -> None:
    run_fetch(base_environment(server, tmp_path) | {"HF_TOKEN": server.token, "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1"})
    assert server.headers
    assert not any("authorization" in headers for headers in server.headers)


def test_a_token_without_access_to_a_gated_repository_says_so(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", server.token)
    server.faults = [Fault("status", status=403, headers={"X-Error-Code": "GatedRepo"}, method="HEAD")]
    with pytest.raises(UsageError, match="the account of the token has no access") as caught:
        fetch(["README.md"])
    assert f"{server.url}/{REPO}" in caught.value.hint


def test_who_has_no_token_is_not_told_that_it_was_refused(server: Hub) -> None:
    server.faults = [Fault("status", status=403, method="HEAD", times=None)]
    with pytest.raises(UsageError, match=f"answers 403 for {REPO}: access is refused") as caught:
        fetch(["README.md"])
    assert "proxy" in caught.value.hint


def test_the_token_depends_on_scheme_host_and_port() -> None:
    origin = Origin("https://hub.example", "me", "Bearer t")
    assert "authorization" in origin.headers("https://hub.example:443/a")
    assert "authorization" in origin.headers("https://HUB.example/a")
    for url in (
        "http://hub.example/a",
        "https://hub.example:8443/a",
        "https://x.hub.example/",
        "https://hub.example.x/",
    ):
        assert "authorization" not in origin.headers(url)


# --- proxies ---


def test_everything_goes_through_the_proxy_of_the_environment(server: Hub, tmp_path: Path) -> None:
    environment = base_environment(server, tmp_path) | {"HTTP_PROXY": server.url, "HF_ENDPOINT": "http://hub.invalid"}
    run_fetch(environment)
    assert {headers["host"] for headers in server.headers} == {"hub.invalid"}
    assert sorted(server.fetched()) == ["README.md", "tiny-Q4_0.gguf", "tiny-Q8_0.gguf"]


def test_no_proxy_goes_around_it(server: Hub, tmp_path: Path) -> None:
    nobody = "http://127.0.0.1:9"
    run_fetch(base_environment(server, tmp_path) | {"HTTP_PROXY": nobody, "NO_PROXY": "127.0.0.1"})


@pytest.mark.parametrize("proxy", ["socks5://127.0.0.1:1", "http://[::bad", "foo://127.0.0.1:1"])
def test_a_proxy_that_cannot_be_used_is_a_configuration_error(
    server: Hub, monkeypatch: pytest.MonkeyPatch, proxy: str
) -> None:
    monkeypatch.setenv("ALL_PROXY", proxy)
    with pytest.raises(ConfigError, match="ALL_PROXY"):
        hub.search("x")
    assert server.requests == []


# --- headers ---


def test_a_token_that_can_be_none_is_a_configuration_error(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_ü")
    with pytest.raises(ConfigError, match="token") as caught:
        hub.list_files(REPO)
    assert "HF_TOKEN" in caught.value.hint
    assert server.requests == []


def test_a_hub_without_tls_is_told_from_no_connection(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", server.url.replace("http:", "https:"))
    with pytest.raises(BusyError, match="https") as caught:
        hub.list_files(REPO)
    assert "HF_ENDPOINT" in caught.value.hint


def test_an_etag_is_read_without_its_quotes() -> None:
    assert [plain_etag(text) for text in ('"abc"', 'W/"abc"', "abc", "")] == ["abc", "abc", "abc", ""]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("bytes 0-9/10", (0, 9, 10)),
        ("bytes 5-5/*", (5, 5, None)),
        ("BYTES 1-2/3", (1, 2, 3)),
        ("bytes 9-0/10", None),
        ("bytes */10", None),
        ("items 0-9/10", None),
        ("bytes -1-9/10", None),
        ("", None),
    ],
)
def test_a_content_range_is_three_numbers_or_nothing(text: str, parts: tuple[int, int, int | None] | None) -> None:
    assert content_range({"content-range": text}) == parts


@pytest.mark.parametrize(
    ("status", "location", "target"),
    [
        (302, "/b?c=1", "https://hub.example/b?c=1"),
        (307, "//cdn.example/b", "https://cdn.example/b"),
        (302, "", ""),
        (200, "/b", ""),
        (304, "/b", ""),
        (302, "mailto:a@b", ""),
        (302, "https://x:99999/", ""),
        (302, "https://" + 64 * "x", ""),
    ],
)
def test_where_a_redirect_leads_is_an_address_or_nothing(status: int, location: str, target: str) -> None:
    import httpx2

    asked = httpx2.Request("HEAD", "https://hub.example/a/c")
    assert redirect_target(httpx2.Response(status, headers={"location": location}, request=asked)) == target


def test_a_page_is_not_taken_for_a_file_nor_a_file_that_is_one_for_a_page() -> None:
    page = {"content-type": "Text/HTML; charset=utf-8"}
    assert [is_page(page, name) for name in ("a.gguf", "a.HTML", "b.htm")] == [True, False, False]
    assert not is_page({}, "a.gguf")


def test_how_a_body_is_compressed() -> None:
    given = [{}, {"content-encoding": " Identity"}, {"content-encoding": "GZip"}]
    assert [encoding_of(headers) for headers in given] == ["", "", "gzip"]


def test_a_number_of_bytes_is_digits_alone() -> None:
    assert [whole_number(text) for text in ("12", "", None, "-1", "1e3", "²", "9" * 30)] == [12] + [None] * 6


def test_a_wait_is_a_number_or_a_date() -> None:
    now = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)
    waits = {
        "7": 7.0,
        "Thu, 01 Jan 2026 12:00:30 GMT": 30.0,
        "Thu, 01 Jan 2026 11:00:00 GMT": 0.0,
        "Thu, 01 Jan 2026 12:00:30 -0000": 0.0,
        "Thu, 01 Jan 2026 3000300000:00:30 GMT": 0.0,
        "Thu, 01 Jan 2026 12:00:30 +9999999999": 0.0,
        "soon": 0.0,
        "-5": 0.0,
        "": 0.0,
    }
    assert {text: retry_after_s({"retry-after": text}, now) for text in waits} == waits
    assert retry_after_s({"retry-after": "1" * 5000}, now) == 10**6
    assert retry_after_s({"ratelimit": '"api";r=0;t=55'}, now) == 55.0
    assert retry_after_s({"ratelimit": '"api";r=3;t=55'}, now) == 0.0


def test_the_program_names_itself(server: Hub) -> None:
    fetch(["README.md"])
    assert all("runner/" in headers["user-agent"] for headers in server.headers)
