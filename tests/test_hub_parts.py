"""What interrupted downloads leave: read, deleted, refused while somebody fetches; and damaged files set aside."""

from __future__ import annotations

import json
from pathlib import Path

import filelock
import pytest
from hub_server import Hub
from pulled import GGUF, WEIGHTS, begin_fetch, blob, fetch_all, server

from runner.errors import BusyError, RunnerError
from runner.hub_cache import repo_directory
from runner.hub_parts import delete_leftovers, leftovers, lock_directory, quarantine, refuse_while_fetched

__all__ = ["server"]  # the fixture


def test_a_part_says_which_file_it_begins_and_how_far_it_is(server: Hub) -> None:
    path = begin_fetch(GGUF, WEIGHTS, server)
    (part,) = leftovers(repo_directory(GGUF)).parts
    assert (part.name, part.commit) == (WEIGHTS, server.repos[GGUF].commit)
    assert part.size_bytes == len(server.repos[GGUF].files[WEIGHTS])
    assert 0 < part.done_bytes == path.stat().st_size < part.size_bytes
    assert part.is_resumable


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        '{"commit": 5, "size": true}',
        '{"name": 7, "size": "big"}',
        '{"size": -3, "name": null}',
        "[" * 9999,
    ],
)
def test_a_part_with_an_unreadable_sidecar_is_counted_and_belongs_to_nothing(text: str) -> None:
    blobs = repo_directory(GGUF) / "blobs"
    blobs.mkdir(parents=True)
    (blobs / "abc.runner-part").write_bytes(b"12345")
    (blobs / "abc.runner-part.json").write_text(text)
    (part,) = leftovers(repo_directory(GGUF)).parts
    assert (part.name, part.commit, part.size_bytes, part.done_bytes, part.is_resumable) == ("", "", 0, 5, False)


def test_what_other_tools_left_is_counted_and_deleted_too() -> None:
    directory = repo_directory(GGUF)
    (directory / "blobs").mkdir(parents=True)
    (directory / "blobs" / "abc.1234abcd.incomplete").write_bytes(b"123")
    (directory / "blobs" / "abc").write_bytes(b"whole")
    left = leftovers(directory)
    assert (left.partial_bytes, left.parts[0].is_resumable) == (3, False)
    assert delete_leftovers(directory, left) == 3
    assert [path.name for path in (directory / "blobs").iterdir()] == ["abc"]


def test_deleting_takes_part_sidecar_and_lock(server: Hub) -> None:
    begin_fetch(GGUF, WEIGHTS, server)
    directory = repo_directory(GGUF)
    left = leftovers(directory)
    assert delete_leftovers(directory, left) == left.partial_bytes > 0
    assert list((directory / "blobs").iterdir()) == []
    assert list(lock_directory(directory).iterdir()) == []
    assert not leftovers(directory)


def test_nothing_is_deleted_while_a_process_fetches_it(server: Hub) -> None:
    path = begin_fetch(GGUF, WEIGHTS, server)
    directory = repo_directory(GGUF)
    left = leftovers(directory)
    with filelock.FileLock(lock_directory(directory) / f"{left.parts[0].etag}.lock"):
        with pytest.raises(BusyError, match=GGUF):
            delete_leftovers(directory, left)
        with pytest.raises(BusyError):
            refuse_while_fetched(directory)
    assert path.exists()
    refuse_while_fetched(directory)


def test_a_damaged_file_is_set_aside_under_a_free_name(server: Hub) -> None:
    fetch_all(GGUF)
    path = blob(GGUF, WEIGHTS)
    for number in (1, 2):
        path.write_bytes(b"damaged")
        assert quarantine(path, path.parent) == path.with_name(f"{path.name}.corrupt-{number}")
        assert not path.exists()
    left = leftovers(repo_directory(GGUF))
    assert (len(left.set_aside), left.set_aside_bytes) == (2, 14)
    assert server.fetched()


def test_setting_aside_follows_a_link_into_the_shared_store_and_never_out_of_the_cache(
    server: Hub, tmp_path: Path
) -> None:
    fetch_all(GGUF)
    path = blob(GGUF, WEIGHTS)
    store = path.parent.parent.parent / "blobs" / "ab" / "abcd"
    store.parent.mkdir(parents=True)
    path.rename(store)
    path.symlink_to(store)
    aside = quarantine(path, path.parent)
    assert aside is not None
    assert aside.is_file()
    assert not store.exists()
    own = tmp_path / "own.gguf"
    own.write_bytes(b"mine")
    path.symlink_to(own)
    assert quarantine(path, path.parent) is None
    assert own.read_bytes() == b"mine"
    assert not path.is_symlink()
    assert server.fetched()


# --- without a hub ---------------------------------------------------------------------------------------------------


@pytest.fixture
def blobs() -> Path:
    path = repo_directory(GGUF) / "blobs"
    path.mkdir(parents=True)
    return path


def begun(blobs: Path, etag: str, name: str, data: bytes = b"123") -> Path:
    """A part file of 9 bytes, with its sidecar."""
    part = blobs / f"{etag}.runner-part"
    part.write_bytes(data)
    (blobs / f"{etag}.runner-part.json").write_text(json.dumps({"name": name, "commit": "c", "size": 9}))
    return part


def test_the_parts_of_some_files_are_those_alone(blobs: Path) -> None:
    begun(blobs, "aa", "one")
    begun(blobs, "bb", "two", b"12345")
    (blobs / "cc.stale-1").write_bytes(b"old")
    left = leftovers(blobs.parent)
    assert (left.partial_bytes, left.set_aside_bytes) == (8, 3)
    some = left.of_files(["two", "three"])
    assert ([part.etag for part in some.parts], some.set_aside) == (["bb"], ())
    assert some
    assert not left.of_files(["three"])


def test_files_set_aside_are_leftovers_and_directories_none(blobs: Path) -> None:
    (blobs / "aa.corrupt-1").mkdir()
    assert not leftovers(blobs.parent)
    (blobs / "aa.corrupt-2").write_bytes(b"12")
    left = leftovers(blobs.parent)
    assert left
    assert delete_leftovers(blobs.parent, left) == 2
    assert [path.name for path in blobs.iterdir()] == ["aa.corrupt-1"]


def test_a_download_that_was_only_noted_is_begun_until_its_file_is_there(blobs: Path) -> None:
    begun(blobs, "aa", "one").unlink()
    (part,) = leftovers(blobs.parent).parts
    assert (part.name, part.commit, part.size_bytes, part.done_bytes) == ("one", "c", 9, 0)
    assert part.path == blobs / "aa.runner-part"
    assert part.is_resumable
    (blobs / "aa").symlink_to("elsewhere")
    assert not leftovers(blobs.parent)


def test_what_is_deleted_is_counted_as_far_as_it_is_there(blobs: Path) -> None:
    part = begun(blobs, "aa", "one")
    begun(blobs, "bb", "two", b"12345")
    (blobs / "cc.stale-1").write_bytes(b"1234567")
    left = leftovers(blobs.parent)
    part.unlink()
    assert delete_leftovers(blobs.parent, left) == 12
    assert list(blobs.iterdir()) == []


def test_a_part_that_cannot_be_deleted_is_said(blobs: Path) -> None:
    begun(blobs, "aa", "one").unlink()
    left = leftovers(blobs.parent)
    (blobs / "aa.runner-part").mkdir()
    with pytest.raises(RunnerError, match=r"aa\.runner-part cannot be deleted"):
        delete_leftovers(blobs.parent, left)


def test_only_locks_of_what_is_asked_for_are_in_the_way(blobs: Path) -> None:
    locks = lock_directory(blobs.parent)
    locks.mkdir(parents=True)
    (locks / "bb.txt").write_text("no lock")
    (locks / "cc.lock").mkdir()
    refuse_while_fetched(blobs.parent)
    with filelock.FileLock(locks / "aa.lock"):
        refuse_while_fetched(blobs.parent, ["bb", "cc", "dd"])
        with pytest.raises(BusyError, match=GGUF):
            refuse_while_fetched(blobs.parent, ["bb", "aa"])
    with filelock.FileLock(locks / "bb.txt"):
        refuse_while_fetched(blobs.parent)


def test_where_nothing_can_be_locked_nothing_is_in_the_way(blobs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    locks = lock_directory(blobs.parent)
    locks.mkdir(parents=True)
    (locks / "aa.lock").write_text("")

    def refuse(_lock: filelock.FileLock) -> None:
        raise NotImplementedError

    monkeypatch.setattr(filelock.FileLock, "_acquire", refuse)
    refuse_while_fetched(blobs.parent)


def test_a_damaged_file_that_is_no_link_is_set_aside_where_there_were_no_blobs() -> None:
    directory = repo_directory(GGUF)
    path = directory / "snapshots" / "c" / "model.gguf"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"damaged")
    aside = quarantine(path, directory / "blobs")
    assert aside == directory / "blobs" / "model.gguf.corrupt-1"
    assert aside.read_bytes() == b"damaged"
    assert not path.exists()


@pytest.mark.parametrize("target", ["nowhere", "aa"])
def test_of_a_link_to_nowhere_nothing_is_left(blobs: Path, target: str) -> None:
    (blobs / "aa").symlink_to(target)
    assert quarantine(blobs / "aa", blobs) is None
    assert list(blobs.iterdir()) == []


def test_what_cannot_be_set_aside_is_said_and_stays(blobs: Path) -> None:
    (blobs / "aa").write_bytes(b"damaged")
    with pytest.raises(RunnerError, match="aa cannot be set aside: Not a directory"):
        quarantine(blobs / "aa", blobs / "aa" / "blobs")
    assert (blobs / "aa").read_bytes() == b"damaged"
