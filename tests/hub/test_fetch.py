"""Fetching from a hub that behaves: what is in the cache afterwards, what is asked for, what is reported."""

from __future__ import annotations

import errno
import os
import shutil
import threading
import time
from collections import namedtuple
from dataclasses import replace
from pathlib import Path

import pytest
from disk_limits import file_size_limit
from fetching import FILES, QUICK, REPO, blob_names, fetch, noise
from hub_server import Fault, Hub, etag_of

from runner import hub, hub_cache
from runner.errors import BadModelFile, BusyError, DoesNotFit, RunnerError, UsageError, VerificationFailed
from runner.hub import download
from runner.hub.blobs import RepoFolders
from runner.pull import plan_pull, pull
from runner.registry import Registry
from runner.types import CancelToken


def test_fetched_files_have_their_bytes_and_progress_adds_up(server: Hub) -> None:
    directory, seen = fetch(["tiny-Q4_0.gguf", "tiny-Q8_0.gguf", "sub/a.json"])
    for name in ("tiny-Q4_0.gguf", "tiny-Q8_0.gguf", "sub/a.json"):
        assert (directory / name).read_bytes() == FILES[name]
        assert not os.path.isabs(os.readlink(directory / name))
    assert not (directory / "README.md").exists()
    assert (seen[-1].done_bytes, seen[-1].total_bytes, seen[-1].fetched_bytes) == (10_002, 10_002, 10_002)
    assert {file.state for file in seen[-1].files} == {"done"}
    done = [state.done_bytes for state in seen]
    assert done == sorted(done)
    assert sorted(server.fetched()) == ["a.json", "tiny-Q4_0.gguf", "tiny-Q8_0.gguf"]
    assert sorted(blob_names()) == sorted(
        etag_of(name, FILES[name]) for name in ("tiny-Q4_0.gguf", "tiny-Q8_0.gguf", "sub/a.json")
    )


def test_progress_is_reported_on_the_calling_thread_and_not_too_often(server: Hub) -> None:
    server.repos[REPO].files["big.gguf"] = noise(300_000)
    server.bytes_s, server.most_bytes = 500_000, 100_000
    threads, seen = set(), []

    def show(state: hub.FetchState) -> None:
        threads.add(threading.current_thread())
        seen.append(state)
        server.most_bytes = state.done_bytes + 100_000  # none is missed, on a busy machine either

    listing, began = hub.list_files(REPO), time.monotonic()
    hub.fetch(listing, ["big.gguf"], on_progress=show, cancel=CancelToken())
    assert threads == {threading.current_thread()}
    assert 3 < len(seen) < 20 * (time.monotonic() - began) + 5
    assert any(0 < state.done_bytes < state.total_bytes for state in seen)
    assert {state.files[0].state for state in seen} == {"waiting", "downloading", "done"}


def test_what_is_there_is_not_fetched_again_and_counts_as_done(server: Hub) -> None:
    fetch(["tiny-Q4_0.gguf"])
    server.requests.clear()
    _, seen = fetch(["tiny-Q4_0.gguf", "tiny-Q8_0.gguf"])
    assert server.fetched() == ["tiny-Q8_0.gguf"]
    assert (seen[0].done_bytes, seen[0].total_bytes) == (3000, 10_000)
    assert seen[-1].fetched_bytes == 7000


def test_when_everything_is_there_nothing_is_asked(server: Hub) -> None:
    listing = hub.list_files(REPO)
    fetch(["tiny-Q4_0.gguf"])
    server.requests.clear()
    seen: list[hub.FetchState] = []
    hub.fetch(listing, ["tiny-Q4_0.gguf"], on_progress=seen.append, cancel=CancelToken())
    assert server.requests == []
    assert [state.done_bytes for state in seen] == [3000]


def test_a_blob_without_its_link_is_linked_and_not_fetched(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    directory, _ = fetch(["tiny-Q4_0.gguf", "README.md"])
    (directory / "tiny-Q4_0.gguf").unlink()
    (directory / "README.md").unlink()
    server.requests.clear()
    leave_free(monkeypatch, -1)  # what a link takes is not asked for
    _, seen = fetch(["tiny-Q4_0.gguf", "README.md"])
    assert server.fetched() == []
    assert (directory / "README.md").read_bytes() == b"hello"
    assert seen[-1].fetched_bytes == 0


@pytest.mark.usefixtures("server")
def test_a_blob_of_the_wrong_size_is_set_aside_and_fetched() -> None:
    directory, _ = fetch(["tiny-Q4_0.gguf"])
    etag = etag_of("tiny-Q4_0.gguf", FILES["tiny-Q4_0.gguf"])
    blob = directory.parent.parent / "blobs" / etag
    blob.write_bytes(b"4" * 2999)
    fetch(["tiny-Q4_0.gguf"])
    assert (directory / "tiny-Q4_0.gguf").read_bytes() == FILES["tiny-Q4_0.gguf"]
    assert blob_names() == [etag, f"{etag}.corrupt-1"]


def test_other_tools_read_what_was_fetched(server: Hub) -> None:
    from huggingface_hub import hf_hub_download, scan_cache_dir

    cache = hub_cache.hub_settings().cache
    directory, _ = fetch(["tiny-Q4_0.gguf", "sub/a.json"])
    for name in ("tiny-Q4_0.gguf", "sub/a.json"):
        found = hf_hub_download(REPO, name, cache_dir=cache, local_files_only=True)
        assert found == str(directory / name)
    scanned = scan_cache_dir(cache)
    assert not scanned.warnings
    (repo,) = scanned.repos
    (revision,) = repo.revisions
    assert (repo.repo_id, revision.commit_hash, revision.refs) == (REPO, server.repos[REPO].commit, {"main"})
    assert {file.file_name for file in revision.files} == {"tiny-Q4_0.gguf", "a.json"}
    assert repo.size_on_disk == 3002


def test_what_another_tool_fetched_is_used(server: Hub) -> None:
    from huggingface_hub import hf_hub_download

    for name in ("tiny-Q8_0.gguf", "README.md"):
        hf_hub_download(REPO, name, cache_dir=hub_cache.hub_settings().cache, endpoint=server.url)
    server.requests.clear()
    directory, _ = fetch(["tiny-Q8_0.gguf", "README.md", "sub/a.json"])
    assert server.fetched() == ["a.json"]
    assert (directory / "tiny-Q8_0.gguf").read_bytes() == FILES["tiny-Q8_0.gguf"]


def test_a_kill_in_the_last_moment_of_a_download_leaves_nothing_once_it_goes_on(server: Hub) -> None:
    directory, _ = fetch(["tiny-Q4_0.gguf"])
    blob = (directory / "tiny-Q4_0.gguf").resolve()
    (directory / "tiny-Q4_0.gguf").unlink()
    blob.with_name(blob.name + hub_cache.SIDECAR_SUFFIX).write_text('{"name": "tiny-Q4_0.gguf"}')
    fetch(["tiny-Q4_0.gguf"])
    assert blob_names() == [blob.name]
    assert server.fetched() == ["tiny-Q4_0.gguf"]


def test_other_tools_do_not_call_damaged_what_is_not_whole_yet(server: Hub) -> None:
    from huggingface_hub import scan_cache_dir

    server.faults = [Fault("gzip", name="tiny-Q4_0.gguf")]
    with pytest.raises(BusyError):
        fetch(["tiny-Q4_0.gguf"])
    assert blob_names() != []
    assert scan_cache_dir(hub_cache.hub_settings().cache).warnings == []


def test_two_files_with_the_same_contents_are_fetched_once(server: Hub) -> None:
    server.repos[REPO].files["copy.gguf"] = FILES["tiny-Q8_0.gguf"]
    directory, seen = fetch(["tiny-Q8_0.gguf", "copy.gguf"])
    assert (directory / "copy.gguf").read_bytes() == (directory / "tiny-Q8_0.gguf").read_bytes()
    assert seen[-1].fetched_bytes == server.sent_bytes() == 7000


def test_an_empty_file_is_fetched(server: Hub) -> None:
    server.repos[REPO].files |= {"empty.gguf": b"", "empty.txt": b""}
    directory, _ = fetch(["empty.gguf", "empty.txt"])
    assert (directory / "empty.gguf").read_bytes() == (directory / "empty.txt").read_bytes() == b""


def test_a_new_commit_is_fetched_beside_the_old_one_and_preferred(server: Hub) -> None:
    old, _ = fetch(["tiny-Q4_0.gguf", "tiny-Q8_0.gguf"])
    server.repos[REPO].files["tiny-Q4_0.gguf"] = b"new" * 900
    server.requests.clear()
    new, _ = fetch(["tiny-Q4_0.gguf", "tiny-Q8_0.gguf"])
    assert server.fetched() == ["tiny-Q4_0.gguf"]
    first, second = hub_cache.snapshots(REPO)
    assert (first.directory, second.directory) == (new, old)
    assert hub_cache.snapshots(REPO, old.name) == (second,)
    assert sum(hub_cache.taken_bytes(hub_cache.repo_directory(REPO)).values()) == 2700 + 3000 + 7000


def refuse_links(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(os, "symlink", refuse)


def test_without_symbolic_links_the_files_are_moved_or_copied(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    directory, _ = fetch(["README.md"])
    (directory / "README.md").unlink()
    refuse_links(monkeypatch)
    fetch(["README.md", "tiny-Q4_0.gguf"])
    for name in ("README.md", "tiny-Q4_0.gguf"):
        assert not (directory / name).is_symlink()
        assert (directory / name).read_bytes() == FILES[name]
    assert blob_names() == [etag_of("README.md", FILES["README.md"])]  # it was there before: another link may need it
    server.requests.clear()
    fetch(["README.md", "tiny-Q4_0.gguf"])
    assert server.fetched() == []


def test_a_copy_that_does_not_fit_leaves_nothing(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    directory, _ = fetch(["tiny-Q8_0.gguf"])
    (directory / "tiny-Q8_0.gguf").unlink()
    refuse_links(monkeypatch)
    with file_size_limit(4096), pytest.raises(DoesNotFit):
        fetch(["tiny-Q8_0.gguf"])
    assert blob_names() == [etag_of("tiny-Q8_0.gguf", FILES["tiny-Q8_0.gguf"])]
    assert server.fetched() == ["tiny-Q8_0.gguf"]


def test_a_disk_that_is_full_from_the_start_is_left_as_it_was(server: Hub) -> None:
    listing = hub.list_files(REPO)
    with file_size_limit(100), pytest.raises(DoesNotFit):
        hub.fetch(listing, ["tiny-Q8_0.gguf"], on_progress=lambda _: None, cancel=CancelToken())
    assert blob_names() == []
    assert server.fetched() == []


def test_a_renamed_repository_is_fetched_under_the_name_that_was_asked_for(server: Hub) -> None:
    server.renamed["old/tiny"] = REPO
    directory, _ = fetch(["tiny-Q4_0.gguf"], "old/tiny")
    assert directory.parent.parent == hub_cache.repo_directory("old/tiny")
    assert (directory / "tiny-Q4_0.gguf").read_bytes() == FILES["tiny-Q4_0.gguf"]


def test_large_files_come_from_a_cdn_and_small_ones_from_the_hub(server: Hub) -> None:
    server.cdn = True
    directory, _ = fetch(["tiny-Q4_0.gguf", "README.md"])
    assert (directory / "tiny-Q4_0.gguf").read_bytes() == FILES["tiny-Q4_0.gguf"]
    assert {body.name: body.path.startswith("/cdn/") for body in server.bodies} == {
        "tiny-Q4_0.gguf": True,
        "README.md": False,
    }


def test_the_rate_limit_holds_for_all_files_together(server: Hub) -> None:
    server.repos[REPO].files |= {f"{n}.gguf": noise(50_000, n) for n in range(4)}
    began = time.monotonic()
    fetch([f"{n}.gguf" for n in range(4)], limit=400_000)
    assert time.monotonic() - began > 0.35


def test_options_without_sense_are_refused() -> None:
    with pytest.raises(UsageError, match="rate limit"):
        hub.FetchOptions(limit_rate_bytes_s=0)
    with pytest.raises(UsageError, match="files at a time"):
        hub.FetchOptions(parallel=0)


# --- refusals ---


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


@pytest.mark.parametrize("headers", [{"X-Error-Code": "EntryNotFound"}, {}])
def test_a_file_that_is_gone_is_named_and_not_the_repository(server: Hub, headers: dict[str, str]) -> None:
    server.faults = [Fault("status", status=404, name="tiny-Q4_0.gguf", headers=headers, times=None)]
    with pytest.raises(UsageError) as caught:
        fetch(["tiny-Q4_0.gguf"])
    assert caught.value.message == f"{REPO} has no tiny-Q4_0.gguf at revision 'main'."
    assert f"{server.url}/{REPO}/tree/main" in caught.value.hint


def test_a_listing_made_by_hand_cannot_write_outside_the_cache(server: Hub) -> None:
    good = hub.list_files(REPO)
    bad = hub.Listing(REPO, "main", good.commit, False, (hub.RemoteFile("../../../out.gguf", 4),))
    with pytest.raises(BadModelFile):
        hub.fetch(bad, ["../../../out.gguf"], on_progress=lambda _state: None, cancel=CancelToken())
    assert server.fetched() == []


@pytest.mark.parametrize("cdn", [False, True], ids=["hub", "cdn"])
def test_a_file_of_another_size_than_the_list_says_is_refused(server: Hub, cdn: bool) -> None:
    server.cdn = cdn
    listing = hub.list_files(REPO)
    wrong = replace(listing, files=(replace(listing.file("tiny-Q4_0.gguf"), size_bytes=2999),))
    with pytest.raises(VerificationFailed, match="3000 bytes, and 2999") as caught:
        hub.fetch(wrong, ["tiny-Q4_0.gguf"], on_progress=lambda _state: None, cancel=CancelToken())
    assert caught.value.exit_code == 5
    assert server.bodies == []


@pytest.mark.parametrize("headers", [{}, {"X-Linked-Size": "", "X-Linked-ETag": ""}], ids=["linked", "own"])
def test_a_list_without_sizes_and_hashes_is_enough(server: Hub, headers: dict[str, str]) -> None:
    server.faults = [Fault("headers", method="HEAD", headers=headers)]
    listing = hub.list_files(REPO)
    bare = replace(listing, files=tuple(hub.RemoteFile(file.name, 0) for file in listing.files))
    seen: list[hub.FetchState] = []
    directory = hub.fetch(bare, ["tiny-Q4_0.gguf"], on_progress=seen.append, cancel=CancelToken())
    assert (directory / "tiny-Q4_0.gguf").read_bytes() == FILES["tiny-Q4_0.gguf"]
    assert seen[-1].total_bytes == 3000
    assert blob_names() == [etag_of("tiny-Q4_0.gguf", FILES["tiny-Q4_0.gguf"])]
    assert server.sent_bytes() == 3000


def test_hf_hub_offline_fetches_nothing_but_gives_what_is_there(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    listing = hub.list_files(REPO)
    directory, _ = fetch(["tiny-Q4_0.gguf"])
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    server.requests.clear()
    quiet = {"on_progress": lambda _state: None, "cancel": CancelToken()}
    assert hub.fetch(listing, ["tiny-Q4_0.gguf"], **quiet) == directory
    with pytest.raises(BusyError, match="HF_HUB_OFFLINE"):
        hub.fetch(listing, ["tiny-Q8_0.gguf"], **quiet)
    assert server.requests == []


# --- the disk ---


def leave_free(monkeypatch: pytest.MonkeyPatch, n_bytes: int) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**9, 10**9, download.SPARE_BYTES + n_bytes))


def test_a_download_that_does_not_fit_the_disk_is_refused_before_it_starts(
    server: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_free(monkeypatch, 2999)
    with pytest.raises(DoesNotFit, match=r"to spare.*MB free") as caught:
        fetch(["tiny-Q4_0.gguf"])
    assert caught.value.exit_code == 4
    assert server.fetched() == []


def test_what_has_arrived_before_needs_no_room(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    from hub_server import Fault

    server.faults = [Fault("drop", at=2000), Fault("status", status=503, times=None)]
    with pytest.raises(BusyError):
        fetch(["tiny-Q4_0.gguf"])
    server.faults = []
    leave_free(monkeypatch, 999)
    with pytest.raises(DoesNotFit):
        fetch(["tiny-Q4_0.gguf"])
    leave_free(monkeypatch, 1000)
    _, seen = fetch(["tiny-Q4_0.gguf"])
    assert seen[0].done_bytes == 2000


def test_a_disk_that_fills_up_on_the_way_keeps_what_has_arrived(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    data = noise(200_000)
    server.repos[REPO].files["big.gguf"] = data
    write = os.pwrite

    def nearly_full(descriptor: int, piece: bytes, offset: int) -> int:
        if offset + len(piece) > 100_000:
            piece = piece[: 100_000 - offset]
        if not piece:
            raise OSError(28, "No space left on device")
        return write(descriptor, piece, offset)

    monkeypatch.setattr(os, "pwrite", nearly_full)
    with pytest.raises(DoesNotFit, match="disk is full") as caught:
        fetch(["big.gguf"])
    assert "runner rm" in caught.value.hint
    assert blob_names() == [f"{etag_of('big.gguf', data)}.runner-part", f"{etag_of('big.gguf', data)}.runner-part.json"]
    monkeypatch.setattr(os, "pwrite", write)
    directory, seen = fetch(["big.gguf"])
    assert (seen[0].done_bytes, seen[-1].fetched_bytes) == (100_000, 100_000)
    assert (directory / "big.gguf").read_bytes() == data


def test_nothing_is_written_behind_a_gap(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    data = noise(200_000)
    server.repos[REPO].files["big.gguf"] = data
    write, was_full = os.pwrite, False

    def full_for_a_moment(descriptor: int, piece: bytes, offset: int) -> int:
        nonlocal was_full
        if not was_full:
            was_full = True
            raise OSError(28, "No space left on device")
        return write(descriptor, piece, offset)

    monkeypatch.setattr(os, "pwrite", full_for_a_moment)
    with pytest.raises(DoesNotFit, match="disk is full"):
        fetch(["big.gguf"])
    part = hub_cache.repo_directory(REPO) / "blobs" / f"{etag_of('big.gguf', data)}.runner-part"
    assert data.startswith(part.read_bytes())


def test_a_disk_that_does_not_answer_is_not_taken_for_the_server(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(*_: object) -> int:
        raise TimeoutError(errno.ETIMEDOUT, "Connection timed out")  # as network file systems say it

    monkeypatch.setattr(os, "pwrite", hang)
    with pytest.raises(RunnerError, match="The cache cannot be written"):
        fetch(["tiny-Q4_0.gguf"])
    assert server.fetched() == ["tiny-Q4_0.gguf"]


def test_each_file_is_fetched_for_itself_where_that_is_asked_for(server: Hub) -> None:
    server.faults = [Fault("status", status=404, name="tiny-Q4_0.gguf", times=None)]
    listing = hub.list_files(REPO)
    seen: list[hub.FetchState] = []
    options = hub.FetchOptions(parallel=1, tuning=QUICK)
    failed = hub.fetch_each(listing, listing.names, on_progress=seen.append, cancel=CancelToken(), options=options)
    assert list(failed) == ["tiny-Q4_0.gguf"]
    assert isinstance(failed["tiny-Q4_0.gguf"], UsageError)
    assert [file.name for file in seen[-1].files if file.state != "done"] == ["tiny-Q4_0.gguf"]
    assert {etag_of(name, data) for name, data in FILES.items() if name not in failed} <= set(blob_names())
    assert hub_cache.commit_of(REPO, "main") == ""


def test_files_that_have_not_begun_do_not_try_a_lost_connection_again(server: Hub) -> None:
    server.faults = [Fault("status", status=503, method="HEAD", times=None)]
    listing = hub.list_files(REPO)
    options = hub.FetchOptions(parallel=1, tuning=QUICK)
    failed = hub.fetch_each(listing, listing.names, on_progress=lambda _: None, cancel=CancelToken(), options=options)
    assert failed.keys() == FILES.keys()
    assert len({id(error) for error in failed.values()}) == 1
    assert sum(method == "HEAD" for method, _ in server.requests) == QUICK.max_tries


def test_a_file_that_fails_at_once_keeps_no_other_from_being_fetched(server: Hub) -> None:
    server.faults = [Fault("gzip", name="tiny-Q4_0.gguf")]
    listing = hub.list_files(REPO)
    options = hub.FetchOptions(parallel=1, tuning=QUICK)
    failed = hub.fetch_each(listing, list(FILES), on_progress=lambda _: None, cancel=CancelToken(), options=options)
    assert list(failed) == ["tiny-Q4_0.gguf"]


@pytest.mark.usefixtures("server")
def test_a_file_that_cannot_be_written_keeps_no_other_from_being_fetched() -> None:
    listing = hub.list_files(REPO)
    (RepoFolders.of(listing).snapshot / "README.md").mkdir(parents=True)
    failed = hub.fetch_each(listing, list(FILES), on_progress=lambda _: None, cancel=CancelToken())
    assert list(failed) == ["README.md"]
    assert "directory in the place of a file" in failed["README.md"].message


def test_files_that_are_given_up_end_no_other_that_goes_on_with_its_part(
    server: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "HEARTBEAT_S", download.TICK_S)
    first, second, third = "tiny-Q8_0.gguf", "tiny-Q4_0.gguf", "README.md"
    server.faults = [Fault("drop", at=2000, name=first), Fault("status", status=404, name=first)]
    with pytest.raises(UsageError):
        fetch([first])
    listing, held = hub.list_files(REPO), RepoFolders.of(hub.list_files(REPO)).lock(etag_of(first, FILES[first]))
    server.faults = [Fault("status", status=503, method="HEAD", name=second, times=None)]

    def let_go(_: hub.FetchState) -> None:
        if [path.endswith(second) for method, path in server.requests if method == "HEAD"].count(
            True
        ) >= QUICK.max_tries:
            held.release()

    options = hub.FetchOptions(parallel=1, tuning=QUICK)
    with held:
        failed = hub.fetch_each(
            listing, [first, second, third], on_progress=let_go, cancel=CancelToken(), options=options
        )
    assert failed.keys() == {second, third}


@pytest.mark.usefixtures("server")
def test_a_disk_that_is_full_after_the_last_file_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(download, "record_ref", no_room)
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
    assert "HF_HOME" in caught.value.hint


@pytest.mark.usefixtures("server")
def test_a_cache_that_cannot_be_reached_is_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / ("x" * 300)))
    plan = plan_pull(Registry.load_for().resolve(f"{REPO}:Q4_0"))
    with pytest.raises(RunnerError, match="cannot be written"):
        pull(plan, on_progress=lambda _: None, cancel=CancelToken(), options=hub.FetchOptions())


@pytest.mark.usefixtures("server")
def test_a_directory_in_the_place_of_a_file_is_named() -> None:
    directory, _ = fetch(["tiny-Q8_0.gguf"])
    (directory / "tiny-Q4_0.gguf").mkdir()
    with pytest.raises(RunnerError, match=f"in the place of a file, at {directory / 'tiny-Q4_0.gguf'}"):
        fetch(["tiny-Q4_0.gguf"])


@pytest.mark.usefixtures("server")
def test_a_complete_cache_may_be_read_only(monkeypatch: pytest.MonkeyPatch) -> None:
    directory, _ = fetch(["tiny-Q4_0.gguf"])

    def read_only(*_: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(download, "record_ref", read_only)
    assert fetch(["tiny-Q4_0.gguf"])[0] == directory
