"""The hub's edge against a server that speaks its protocol, and the cache as this and other tools leave it."""

from __future__ import annotations

import errno
import shutil
import subprocess
import sys
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path

import pytest
from hub_server import Hub, Repo, serving

from runner import hub, hub_cache
from runner.errors import BadModelFile, BusyError, DoesNotFit, RunnerError, UsageError, VerificationFailed

REPO = "owner/tiny-GGUF"
FILES = {"tiny-Q4_0.gguf": b"4" * 3000, "tiny-Q8_0.gguf": b"8" * 7000, "README.md": b"hello", "sub/a.json": b"{}"}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serving(Hub(repos={REPO: Repo(dict(FILES))})) as running:
        monkeypatch.setenv("HF_ENDPOINT", running.url)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        yield running


def fetch(names: list[str], repo: str = REPO) -> tuple[Path, list[tuple[int, int]]]:
    seen: list[tuple[int, int]] = []
    directory = hub.fetch(hub.list_files(repo), names, lambda done, total: seen.append((done, total)))
    return directory, seen


# --- listing ---


def test_a_listing_has_commit_sizes_and_hashes(server: Hub) -> None:
    listing = hub.list_files(REPO)
    assert listing.commit == server.repos[REPO].commit
    assert {file.name: file.size_bytes for file in listing.files} == {name: len(data) for name, data in FILES.items()}
    assert [bool(file.sha256) for file in listing.files] == [True, True, False, False]
    assert not listing.is_gated


@pytest.mark.parametrize(
    "name",
    ["../x.gguf", "a/../../x", "/etc/passwd", "C:/x", "c:x", "a\\b", "x\x00.gguf", "a//b", "./x", "x/.", "x.", "a\n"]
)  # fmt: skip
def test_a_listing_with_an_unsafe_name_is_refused_before_anything_is_written(server: Hub, name: str) -> None:
    server.repos[REPO].files[name] = b"evil"
    with pytest.raises(BadModelFile, match="unsafe name"):
        hub.list_files(REPO)
    assert not hub_cache.hub_settings().cache.exists()


def test_a_listing_made_by_hand_cannot_write_outside_the_cache_either(server: Hub) -> None:
    good = hub.list_files(REPO)
    bad = hub.Listing(REPO, "main", good.commit, False, (hub.RemoteFile("../../../out.gguf", 4),))
    with pytest.raises(BadModelFile):
        hub.fetch(bad, ["../../../out.gguf"], lambda _done, _total: None)
    assert server.fetched() == []


# --- fetching ---


def test_fetched_files_have_their_bytes_and_progress_adds_up(server: Hub) -> None:
    directory, seen = fetch(["tiny-Q4_0.gguf", "tiny-Q8_0.gguf", "sub/a.json"])
    for name in ("tiny-Q4_0.gguf", "tiny-Q8_0.gguf", "sub/a.json"):
        assert (directory / name).read_bytes() == FILES[name]
    assert not (directory / "README.md").exists()
    assert seen[-1] == (10_002, 10_002)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert {3000, 10_000} <= {done for done, _ in seen}
    assert sorted(server.fetched()) == ["a.json", "tiny-Q4_0.gguf", "tiny-Q8_0.gguf"]


def test_what_is_there_is_not_fetched_again_and_counts_as_done(server: Hub) -> None:
    fetch(["tiny-Q4_0.gguf"])
    server.requests.clear()
    _, seen = fetch(["tiny-Q4_0.gguf", "tiny-Q8_0.gguf"])
    assert server.fetched() == ["tiny-Q8_0.gguf"]
    assert seen[0] == (3000, 10_000)


def test_other_tools_find_what_was_fetched(server: Hub) -> None:
    from huggingface_hub import try_to_load_from_cache

    directory, _ = fetch(["tiny-Q4_0.gguf"])
    found = try_to_load_from_cache(REPO, "tiny-Q4_0.gguf", cache_dir=hub_cache.hub_settings().cache)
    assert found == str(directory / "tiny-Q4_0.gguf")
    assert (directory.parent.parent / "refs" / "main").read_text() == server.repos[REPO].commit


def test_what_another_tool_fetched_is_found(server: Hub) -> None:
    from huggingface_hub import hf_hub_download

    hf_hub_download(REPO, "tiny-Q8_0.gguf", cache_dir=hub_cache.hub_settings().cache, endpoint=server.url)
    (snapshot,) = hub_cache.snapshots(REPO)
    assert snapshot.names == ("tiny-Q8_0.gguf",)


@pytest.mark.usefixtures("server")
def test_an_error_from_the_progress_callback_ends_the_download() -> None:
    def stop(done: int, _total: int) -> None:
        if done:
            raise RunnerError("cancelled")

    with pytest.raises(RunnerError, match="cancelled"):
        hub.fetch(hub.list_files(REPO), ["tiny-Q8_0.gguf"], stop)
    assert hub_cache.cache_entries() == ()
    assert list((hub_cache.repo_directory(REPO) / "blobs").iterdir()) == []


@pytest.mark.usefixtures("server")
def test_a_file_of_another_size_than_the_hub_says_is_refused() -> None:
    listing = hub.list_files(REPO)
    wrong = hub.Listing(REPO, "main", listing.commit, False, (hub.RemoteFile("tiny-Q4_0.gguf", 2999),))
    with pytest.raises(VerificationFailed) as caught:
        hub.fetch(wrong, ["tiny-Q4_0.gguf"], lambda _done, _total: None)
    assert caught.value.exit_code == 5
    assert f"runner rm {REPO}" in caught.value.hint


def test_a_new_commit_is_fetched_beside_the_old_one_and_preferred(server: Hub) -> None:
    old, _ = fetch(["tiny-Q4_0.gguf", "tiny-Q8_0.gguf"])
    server.repos[REPO].files["tiny-Q4_0.gguf"] = b"new" * 900
    new, _ = fetch(["tiny-Q4_0.gguf"])
    first, second = hub_cache.snapshots(REPO)
    assert (first.directory, second.directory) == (new, old)
    assert hub_cache.snapshots(REPO, old.name) == (second,)
    (entry,) = hub_cache.cache_entries()
    sizes = {file.name: file.size_bytes for file in entry.files}
    assert sizes == {"tiny-Q4_0.gguf": 2700, "tiny-Q8_0.gguf": 7000}
    assert entry.size_bytes == 2700 + 3000 + 7000


# --- errors ---


def test_a_gated_repository_says_where_to_accept_the_licence(server: Hub) -> None:
    server.repos[REPO].is_gated = True
    with pytest.raises(UsageError, match="gated") as caught:
        fetch(["tiny-Q4_0.gguf"])
    assert f"{server.url}/{REPO}" in caught.value.hint
    assert "hf auth login" in caught.value.hint
    assert "HF_TOKEN" in caught.value.hint


def test_a_gated_repository_opens_with_the_token(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    server.repos[REPO].is_gated = True
    monkeypatch.setenv("HF_TOKEN", server.token)
    directory, _ = fetch(["tiny-Q4_0.gguf"])
    assert (directory / "tiny-Q4_0.gguf").is_file()


@pytest.mark.usefixtures("server")
def test_a_wrong_token_is_named_as_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(UsageError, match="refused the token"):
        fetch(["tiny-Q4_0.gguf"])


def test_a_missing_and_a_private_repository_look_the_same(server: Hub) -> None:
    server.repos["owner/secret"] = Repo({"a.gguf": b""}, is_private=True)
    for repo in ("owner/nothing", "owner/secret"):
        with pytest.raises(UsageError, match=f"no repository {repo}.*or it is private"):
            hub.list_files(repo)


@pytest.mark.usefixtures("server")
def test_an_unknown_revision_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="no revision 'v9'"):
        hub.list_files(REPO, "v9")


def test_a_server_in_trouble_is_worth_trying_again(server: Hub) -> None:
    server.status = 500
    with pytest.raises(BusyError, match="500") as caught:
        hub.list_files(REPO)
    assert caught.value.exit_code == 3


def test_no_connection_is_worth_trying_again_and_names_offline() -> None:
    with pytest.raises(BusyError, match="no connection") as caught:
        hub.list_files(REPO)  # port 9 of the test environment: nobody listens
    assert "--offline" in caught.value.hint


def test_hf_hub_offline_asks_nothing(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(BusyError, match="HF_HUB_OFFLINE"):
        hub.list_files(REPO)
    assert server.requests == []


def test_a_download_that_does_not_fit_the_disk_is_refused_before_it_starts(
    server: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**9, 10**9, hub.SPARE_BYTES + 2999))
    with pytest.raises(DoesNotFit, match="GB free") as caught:
        fetch(["tiny-Q4_0.gguf"])
    assert caught.value.exit_code == 4
    assert server.fetched() == []


def test_a_disk_that_fills_up_on_the_way_is_said_so() -> None:
    with pytest.raises(DoesNotFit, match="disk is full"), hub._Translated(REPO, "main"):
        raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.usefixtures("server")
def test_a_disk_that_is_full_after_the_last_file_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(hub, "record_ref", no_room)
    with pytest.raises(DoesNotFit, match="disk is full"):
        fetch(["tiny-Q4_0.gguf"])


@pytest.mark.usefixtures("server")
def test_a_cache_that_cannot_be_written_is_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "a-file"
    blocked.write_text("")
    monkeypatch.setenv("HF_HUB_CACHE", str(blocked))
    with pytest.raises(RunnerError) as caught:
        fetch(["tiny-Q4_0.gguf"])
    assert str(blocked) in caught.value.message


def test_the_library_sends_no_usage_data_and_uses_plain_http() -> None:
    code = "import runner.hub as h, os; h._library(); from huggingface_hub import constants as c; "
    code += "print(c.HF_HUB_DISABLE_XET, c.HF_HUB_DISABLE_TELEMETRY)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True"]


# --- the cache ---


def test_the_places_follow_the_variables_of_huggingface_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert hub_cache.hub_settings().cache == tmp_path / "hf-home" / "hub"
    monkeypatch.setenv("HF_HUB_CACHE", "~/elsewhere")
    assert hub_cache.hub_settings().cache == Path.home() / "elsewhere"
    for name in ("HF_HUB_CACHE", "HF_HOME", "HF_ENDPOINT"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert hub_cache.hub_settings().cache == tmp_path / "xdg" / "huggingface" / "hub"
    assert hub_cache.hub_settings().endpoint == "https://huggingface.co"


def test_a_cache_that_is_not_there_or_has_odd_things_in_it_lists_nothing() -> None:
    assert hub_cache.cache_entries() == ()
    cache = hub_cache.hub_settings().cache
    for name in (
        "models--gpt2/snapshots/c/x.gguf",
        "datasets--a--b/snapshots/c/x.gguf",
        "models--a--b/snapshots/c/t.txt",
    ):
        (cache / name).parent.mkdir(parents=True)
        (cache / name).write_bytes(b"x")
    (cache / "models--a--c").write_text("a file")
    broken = cache / "models--a--d" / "snapshots" / "c"
    broken.mkdir(parents=True)
    (broken / "x.gguf").symlink_to("../../blobs/gone")
    assert hub_cache.cache_entries() == ()


@pytest.mark.usefixtures("server")
def test_one_file_can_be_removed_and_the_rest_stays() -> None:
    directory, _ = fetch(["tiny-Q4_0.gguf", "tiny-Q8_0.gguf"])
    (entry,) = hub_cache.cache_entries()
    assert hub_cache.remove(entry, {"tiny-Q4_0.gguf"}) == 3000
    assert [path.name for path in directory.iterdir()] == ["tiny-Q8_0.gguf"]
    assert (directory / "tiny-Q8_0.gguf").read_bytes() == FILES["tiny-Q8_0.gguf"]
    assert len(list((entry.directory / "blobs").iterdir())) == 1


def test_a_whole_repository_can_be_removed_and_its_neighbour_stays(server: Hub) -> None:
    server.repos["owner/other"] = Repo({"o.gguf": b"o" * 10})
    fetch(["tiny-Q4_0.gguf"])
    fetch(["o.gguf"], "owner/other")
    entry = hub_cache.cache_entry(REPO)
    assert entry is not None
    assert hub_cache.remove(entry) == 3000
    assert [one.repo for one in hub_cache.cache_entries()] == ["owner/other"]
    assert not entry.directory.exists()


def test_removing_a_repository_spares_its_copy_with_the_same_commit(server: Hub) -> None:
    server.repos["owner/copy"] = Repo(dict(FILES))
    for repo in (REPO, "owner/copy"):
        fetch(["tiny-Q4_0.gguf"], repo)
    for entry in hub_cache.cache_entries():
        if entry.repo == REPO:
            hub_cache.remove(entry)
    assert [one.repo for one in hub_cache.cache_entries()] == ["owner/copy"]


def test_removing_the_last_weights_removes_the_repository(server: Hub) -> None:
    fetch(["tiny-Q4_0.gguf", "tiny-Q8_0.gguf", "README.md"])
    (entry,) = hub_cache.cache_entries()
    hub_cache.remove(entry, {"tiny-Q4_0.gguf"})
    hub_cache.remove(entry, {"tiny-Q8_0.gguf"})
    assert not entry.directory.exists()
    assert server.fetched()
