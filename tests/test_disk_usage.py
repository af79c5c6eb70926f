"""What models take on the disk, each file once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from runner.disk_usage import DiskUsage, disk_usage, drafters
from runner.hub_cache import hub_settings, repo_directory
from runner.paths import user_paths
from runner.registry import Registry
from runner.removal import drafter, plan_removal

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def usage() -> DiskUsage:
    return disk_usage(Registry.load_for(), user_paths().models, user_paths().drafts)


def put(repo: str, name: str, size: int, commit: str = COMMIT) -> Path:
    """A file of a repository in the cache, as a link to its blob."""
    directory = repo_directory(repo)
    blob = directory / "blobs" / f"etag-of-{name}"
    blob.parent.mkdir(parents=True, exist_ok=True)
    blob.write_bytes(b"x" * size)
    link = directory / "snapshots" / commit / name
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(f"../../blobs/{blob.name}")
    return blob


def test_a_machine_without_models_takes_nothing_and_has_a_disk() -> None:
    found = usage()
    assert (found.uses, found.disk_bytes) == ((), 0)
    assert 0 < found.disks[0].free_bytes <= found.disks[0].total_bytes
    assert not hub_settings().cache.exists()


def test_a_cache_in_a_place_that_cannot_be_reached_takes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / ("x" * 300)))
    assert usage().uses == ()


def test_a_repository_of_which_nothing_is_left_is_not_listed() -> None:
    directory = repo_directory("a/one")
    for folder in ("blobs", f"snapshots/{COMMIT}", "refs", f".no_exist/{COMMIT}"):
        (directory / folder).mkdir(parents=True)
    (directory / "refs" / "main").write_text(COMMIT)
    (directory / ".no_exist" / COMMIT / "added_tokens.json").touch()
    assert usage().uses == ()


def test_a_blob_that_two_commits_link_to_counts_once() -> None:
    blob = put("Qwen/Qwen3-8B-GGUF", "a.gguf", 1000)
    other = blob.parent.parent / "snapshots" / ("f" * 40) / "a.gguf"
    other.parent.mkdir()
    other.symlink_to(f"../../blobs/{blob.name}")
    (use,) = usage().uses
    assert (use.name, use.kind, use.disk_bytes) == ("Qwen/Qwen3-8B-GGUF (qwen3-8b)", "cache", 1000)


def test_a_file_shared_by_repositories_counts_once_in_all() -> None:
    first, second = put("a/one", "a.gguf", 1000), put("b/two", "a.gguf", 1000)
    second.unlink()
    os.link(first, second)
    found = usage()
    assert found.disk_bytes == 1000
    assert [(use.name, use.disk_bytes) for use in found.uses] == [("a/one", 1000), ("b/two", 0)]


def test_partial_downloads_and_damaged_files_are_told_apart() -> None:
    blob = put("a/one", "a.gguf", 1000)
    blob.with_name("e.runner-part").write_bytes(b"x" * 300)
    blob.with_name("f.incomplete").write_bytes(b"x" * 30)
    blob.with_name("g.corrupt-1").write_bytes(b"x" * 7)
    (use,) = usage().uses
    assert (use.disk_bytes, use.partial_bytes, use.set_aside_bytes) == (1337, 330, 7)


def test_models_made_here_unfinished_ones_and_other_things_in_the_cache_are_listed_by_size() -> None:
    put("a/one", "a.gguf", 1000)
    for path, size in (
        (user_paths().models / "mine" / "m.gguf", 3000),
        (user_paths().models / "next.partial" / "m.gguf", 2000),
        (hub_settings().cache / "datasets--x--y" / "blobs" / "e", 500),
    ):
        path.parent.mkdir(parents=True)
        path.write_bytes(b"x" * size)
    (repo_directory("a/one") / "snapshots" / COMMIT / "gone.gguf").symlink_to("../../blobs/gone")
    found = usage()
    assert [(use.kind, use.disk_bytes) for use in found.uses] == [
        ("made here", 3000),
        ("unfinished", 2000),
        ("cache", 1000),
        ("other", 500),
    ]
    assert found.disk_bytes == 6500


def test_half_trained_drafters_and_replaced_models_are_unfinished() -> None:
    paths = user_paths()
    for path, size in (
        (paths.drafts / "head.partial" / "corpus.jsonl", 4000),
        (paths.models / "one" / "m.gguf", 3000),
        (paths.models / "one.old-00000000" / "replaced" / "m.gguf", 2000),
        (paths.models / "two.old-00000000" / "replaced" / "m.gguf", 1000),
        (paths.models / "m.gguf.partial", 500),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * size)
    assert [(use.name, use.kind, use.disk_bytes) for use in usage().uses] == [
        ("head.partial", "unfinished", 4000),
        ("one", "made here", 3000),
        ("one.old-00000000", "unfinished", 2000),
        ("two", "made here", 1000),
        ("m.gguf.partial", "unfinished", 500),
    ]


def test_drafters_trained_here_are_listed_with_all_their_files() -> None:
    head = user_paths().drafts / "demo-normed"
    head.mkdir(parents=True)
    for name, size in (("model.safetensors", 3000), ("corpus.jsonl", 500)):
        (head / name).write_bytes(b"x" * size)
    assert [(use.name, use.kind, use.disk_bytes) for use in usage().uses] == [("demo-normed", "drafter", 3500)]


def test_a_drafter_that_was_to_be_replaced_when_a_kill_came_is_whole_where_it_is() -> None:
    drafts = user_paths().drafts
    earlier = drafts / "head.old-00000000" / "replaced"
    for directory in (earlier, drafts / ".hidden"):
        directory.mkdir(parents=True)
        (directory / "model.safetensors").write_bytes(b"x")
    assert [(one.use.name, one.use.path, one.is_whole) for one in drafters(drafts)] == [("head", earlier, True)]
    assert plan_removal(drafter("head", drafts), user_paths().models, drafts)[0].directory == earlier.parent
