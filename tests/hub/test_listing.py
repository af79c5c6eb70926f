"""What repositories hold and what a search finds, with the hub's refusals as errors that say what to do."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from dataclasses import replace

import pytest
from fetching import FILES, REPO
from hub_server import Hub, Repo, git_sha1

from runner import hub, hub_cache
from runner.errors import BadModelFile, BusyError, ConfigError, RunnerError, UsageError
from runner.hub import api
from runner.types import CancelToken


def test_a_listing_has_commit_sizes_and_hashes(server: Hub) -> None:
    listing = hub.list_files(REPO)
    assert listing.commit == server.repos[REPO].commit
    assert {file.name: file.size_bytes for file in listing.files} == {name: len(data) for name, data in FILES.items()}
    assert [bool(file.sha256) for file in listing.files] == [True, True, False, False]
    assert listing.file("README.md").blob_id == git_sha1(b"hello")
    assert not listing.is_gated
    assert listing.renamed_to == ""


@pytest.mark.usefixtures("server")
def test_a_file_that_is_not_listed_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="no file 'TINY"):
        hub.list_files(REPO).file("TINY.gguf")


@pytest.mark.parametrize(
    "name",
    ["../x.gguf", "a/../../x", "/etc/passwd", "C:/x", "c:x", "a\\b", "x\x00.gguf", "a//b", "./x", "x/.", "x.", "a\n",
     "x" * 300]
)  # fmt: skip
def test_a_listing_with_an_unsafe_name_is_refused_before_anything_is_written(server: Hub, name: str) -> None:
    server.repos[REPO].files[name] = b"evil"
    with pytest.raises(BadModelFile, match="unsafe name"):
        hub.list_files(REPO)
    assert not hub_cache.hub_settings().cache.exists()


def test_a_file_that_is_the_folder_of_another_is_refused(server: Hub) -> None:
    server.repos[REPO].files["README.md/x.gguf"] = b"evil"
    with pytest.raises(BadModelFile, match=r"'README.md' as a file and as a folder"):
        hub.list_files(REPO)


@pytest.mark.parametrize("revision", ["", "../../x", "/etc", "a\x00", "refs//1", "a/.."])
def test_a_revision_that_is_no_name_is_refused_before_anything_is_asked(server: Hub, revision: str) -> None:
    with pytest.raises(UsageError, match="cannot be a revision"):
        hub.list_files(REPO, revision)
    assert server.requests == []


def test_a_revision_may_have_slashes(server: Hub) -> None:
    server.repos[REPO].revisions = ("main", "refs/pr/1")
    listing = hub.list_files(REPO, "refs/pr/1")
    hub.fetch(listing, ["README.md"], on_progress=lambda _: None, cancel=CancelToken())
    assert hub_cache.commit_of(REPO, "refs/pr/1") == server.repos[REPO].commit
    (snapshot,) = hub_cache.snapshots(REPO, "refs/pr/1")
    assert snapshot.names == ("README.md",)


def test_a_renamed_repository_is_followed_and_its_new_name_known(server: Hub) -> None:
    server.renamed["old/tiny"] = REPO
    listing = hub.list_files("old/tiny")
    assert (listing.repo, listing.renamed_to) == ("old/tiny", REPO)
    assert listing.commit == server.repos[REPO].commit


def test_a_search_finds_the_most_downloaded_first(server: Hub) -> None:
    server.repos = {
        "a/Qwen-GGUF": Repo({"q.gguf": b"1"}, downloads=5, likes=1),
        "b/qwen": Repo({"q.safetensors": b"1"}, downloads=9, likes=3, num_parameters=600_000_000, is_gated=True),
        "c/llama": Repo({"l.gguf": b"1"}, downloads=99),
    }
    assert hub.search("qwen") == (
        hub.Found("b/qwen", 9, 3, "2025-03-09", True, 600_000_000, ("safetensors",)),
        hub.Found("a/Qwen-GGUF", 5, 1, "2025-03-09", False, 0, ("gguf",)),
    )
    assert [found.repo for found in hub.search("", limit=1)] == ["c/llama"]
    assert hub.search("nothing like it") == ()


# --- refusals ---


def test_a_wrong_token_is_named_as_the_cause(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    for ask in (lambda: hub.list_files(REPO), lambda: hub.search("x")):
        with pytest.raises(UsageError, match="refused the token") as caught:
            ask()
        assert "hf auth login" in caught.value.hint
    assert server.fetched() == []


def test_a_missing_and_a_private_repository_look_the_same(server: Hub) -> None:
    server.repos["owner/secret"] = Repo({"a.gguf": b""}, is_private=True)
    for repo in ("owner/nothing", "owner/secret"):
        with pytest.raises(UsageError, match=f"no repository {repo}.*or it is private") as caught:
            hub.list_files(repo)
        assert "HF_TOKEN" in caught.value.hint


def test_a_private_repository_opens_with_the_token(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    server.repos["owner/secret"] = Repo({"a.gguf": b"a"}, is_private=True)
    monkeypatch.setenv("HF_TOKEN", server.token)
    assert hub.list_files("owner/secret").names == ("a.gguf",)


@pytest.mark.usefixtures("server")
def test_an_unknown_revision_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="no revision 'v9'"):
        hub.list_files(REPO, "v9")


def test_a_server_in_trouble_is_worth_trying_again(server: Hub) -> None:
    server.status = 500
    with pytest.raises(BusyError, match="500") as caught:
        hub.list_files(REPO)
    assert caught.value.exit_code == 3


@pytest.mark.parametrize(
    ("status", "said", "remedy"),
    [
        (401, "answers 401 for a search: access is refused", "HF_TOKEN"),
        (403, "answers 403 for a search: access is refused", "HF_TOKEN"),
        (404, "has no search for models", "HF_ENDPOINT"),
    ],
)
def test_a_search_that_is_refused_is_about_no_repository(server: Hub, status: int, said: str, remedy: str) -> None:
    server.status = status
    with pytest.raises(UsageError, match=said) as caught:
        hub.search("x")
    assert remedy in caught.value.hint


def test_a_rate_limit_is_named(server: Hub) -> None:
    server.status = 429
    with pytest.raises(BusyError, match="rate limit") as caught:
        hub.search("x")
    assert "hf auth login" in caught.value.hint


def test_no_connection_is_worth_trying_again_and_names_offline() -> None:
    for ask in (lambda: hub.list_files(REPO), lambda: hub.search("x")):
        with pytest.raises(BusyError, match="no connection") as caught:
            ask()  # port 9 of the test environment: nobody listens
        assert "--offline" in caught.value.hint


@pytest.mark.parametrize(("is_silent", "said"), [(True, "does not answer"), (False, "hangs up before")])
def test_a_hub_that_is_there_and_does_not_answer_is_told_from_no_connection(
    monkeypatch: pytest.MonkeyPatch, is_silent: bool, said: str
) -> None:
    monkeypatch.setattr(api, "ASKING", replace(api.ASKING, stall_timeout_s=0.2))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{listener.getsockname()[1]}")

        def hang_up() -> None:
            with listener.accept()[0] as connection:
                connection.recv(1)

        if not is_silent:
            threading.Thread(target=hang_up, daemon=True).start()
        with pytest.raises(BusyError, match=said) as caught:
            hub.list_files(REPO)
    assert "--offline" in caught.value.hint


def test_hf_hub_offline_asks_nothing(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    listing = hub.list_files(REPO)
    server.requests.clear()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for ask in (lambda: hub.list_files(REPO), lambda: hub.search("x"), lambda: hub.read_range(listing, "a", 0, 1)):
        with pytest.raises(BusyError, match="HF_HUB_OFFLINE"):
            ask()
    assert server.requests == []


def test_an_endpoint_that_is_no_address_is_a_configuration_error(monkeypatch: pytest.MonkeyPatch) -> None:
    for endpoint in ("huggingface.co", "ftp://x", "http://", "http://[::bad"):
        monkeypatch.setenv("HF_ENDPOINT", endpoint)
        with pytest.raises(ConfigError, match="HF_ENDPOINT"):
            hub.list_files(REPO)


def test_something_else_than_a_hub_is_said_so(server: Hub) -> None:
    server.status = 200  # every answer is a page of plain text
    with pytest.raises(RunnerError) as caught:
        hub.list_files(REPO)
    assert "HF_ENDPOINT" in caught.value.hint


def test_importing_the_package_loads_no_http_client() -> None:
    code = "import runner.hub, sys; "
    code += "print(sorted({'huggingface_hub', 'httpx2', 'filelock', 'asyncio'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_library_sends_no_usage_data_and_uses_plain_http() -> None:
    code = "from runner.hub.http import origin; origin(); from huggingface_hub import constants as c; "
    code += "print(c.HF_HUB_DISABLE_XET, c.HF_HUB_DISABLE_TELEMETRY)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True"]
