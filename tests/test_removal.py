"""Deleting what is unfinished or damaged, with and beside whole models."""

from __future__ import annotations

import logging
import os
import shutil
from dataclasses import replace
from pathlib import Path

import filelock
import pytest
from hub_server import Hub
from pulled import GGUF, SHARDS, WEIGHTS, begin_fetch, blob, fetch_all, server, shard

from runner import hub
from runner.deletion import delete
from runner.errors import BusyError, RunnerError, UsageError
from runner.hub_cache import repo_directory
from runner.hub_parts import leftovers, lock_directory
from runner.paths import user_paths
from runner.quant.work_directory import WorkDirectory
from runner.registry import Registry
from runner.removal import (
    Removal,
    named,
    plan_half_made,
    plan_leftovers,
    plan_removal,
    plan_unfinished,
    shared_bytes,
)
from runner.types import CancelToken

__all__ = ["server"]  # the fixture


def removals(text: str) -> tuple[Removal, ...]:
    paths = user_paths()
    return plan_removal(named(text, Registry.load_for(), paths.drafts), paths.models, paths.drafts)


def test_a_model_that_was_only_begun_can_be_deleted_with_its_locks(server: Hub) -> None:
    part = begin_fetch(GGUF, WEIGHTS, server)
    size = part.stat().st_size
    for text in (GGUF, f"{GGUF}:Q8_0"):
        (removal,) = removals(text)
        assert removal.disk_bytes >= size
    delete(removal)
    assert not repo_directory(GGUF).exists()
    assert not lock_directory(repo_directory(GGUF)).exists()


def test_one_quantization_goes_with_what_was_begun_of_it_and_the_other_stays(server: Hub) -> None:
    fetch_all(GGUF)
    server.repos[GGUF].files["llama-Q4_0.gguf"] = bytes(500_000)
    begin_fetch(GGUF, "llama-Q4_0.gguf", server)
    (removal,) = removals(f"{GGUF}:Q4_0")
    assert delete(removal) == removal.disk_bytes > 0
    assert not leftovers(repo_directory(GGUF))
    assert blob(GGUF, WEIGHTS).read_bytes() == server.repos[GGUF].files[WEIGHTS]


@pytest.mark.usefixtures("server")
def test_a_damaged_repository_can_be_deleted() -> None:
    fetch_all(SHARDS)
    blob(SHARDS, shard(2)).unlink()
    (removal,) = removals(SHARDS)
    assert delete(removal) == removal.disk_bytes
    assert not repo_directory(SHARDS).exists()


@pytest.mark.usefixtures("server")
def test_what_cannot_be_deleted_is_one_error_and_no_traceback_of_a_library(monkeypatch: pytest.MonkeyPatch) -> None:
    fetch_all(GGUF)

    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(shutil, "rmtree", refuse)
    seen: list[logging.LogRecord] = []
    listener = logging.Handler()
    listener.emit = seen.append  # type: ignore[method-assign]
    logger = logging.getLogger("huggingface_hub")
    logger.addHandler(listener)
    try:
        with pytest.raises(RunnerError, match="cannot be deleted") as caught:
            delete(removals(GGUF)[0])
    finally:
        logger.removeHandler(listener)
    assert "another user" in caught.value.hint
    assert not seen


def test_nothing_is_deleted_under_a_running_download(server: Hub) -> None:
    begin_fetch(GGUF, WEIGHTS, server)
    etag = leftovers(repo_directory(GGUF)).parts[0].etag
    with filelock.FileLock(lock_directory(repo_directory(GGUF)) / f"{etag}.lock"):
        for removal in (*removals(GGUF), *plan_leftovers(None)):
            with pytest.raises(BusyError):
                delete(removal)
    assert leftovers(repo_directory(GGUF)).partial_bytes > 0


def test_leftovers_alone_go_of_one_model_or_of_all(server: Hub) -> None:
    assert plan_leftovers(None) == ()
    fetch_all(SHARDS)
    blob(SHARDS, shard(1)).with_name("e.corrupt-1").write_bytes(b"1234567")
    begin_fetch(GGUF, WEIGHTS, server)
    registry = Registry.load_for()
    assert plan_leftovers(registry.resolve("qwen3-8b")) == ()
    (of_shards,) = plan_leftovers(registry.resolve(SHARDS))
    assert (of_shards.title, delete(of_shards)) == (f"{SHARDS}, 1 damaged file", 7)
    (of_gguf,) = plan_leftovers(None)
    assert of_gguf.title == f"{GGUF}, 1 partial download"
    assert delete(of_gguf) == of_gguf.disk_bytes > 0
    assert blob(SHARDS, shard(1)).is_file()


@pytest.mark.usefixtures("server")
def test_a_model_whose_last_trace_is_gone_is_not_here() -> None:
    fetch_all(SHARDS)
    delete(removals(SHARDS)[0])
    with pytest.raises(UsageError, match="not on this machine"):
        removals(SHARDS)


def test_what_has_no_weights_goes_by_the_name_of_its_repository(server: Hub) -> None:
    listing = hub.list_files(SHARDS)
    hub.fetch(listing, ["tokenizer.json"], on_progress=lambda _: None, cancel=CancelToken())
    with pytest.raises(UsageError, match="not on this machine"):
        removals(f"{SHARDS}:safetensors")
    (removal,) = removals(SHARDS)
    assert delete(removal) == len(server.repos[SHARDS].files["tokenizer.json"])
    assert not repo_directory(SHARDS).exists()


def test_a_repository_goes_with_the_last_of_its_leftovers(server: Hub) -> None:
    begin_fetch(GGUF, WEIGHTS, server)
    (removal,) = plan_leftovers(None)
    assert delete(removal) == removal.disk_bytes
    assert not repo_directory(GGUF).exists()
    assert not lock_directory(repo_directory(GGUF)).exists()


def test_giving_up_a_download_takes_its_whole_files_too_where_they_are_of_no_use(server: Hub) -> None:
    spec = Registry.load_for().resolve(SHARDS)
    begin_fetch(SHARDS, shard(2), server, bytes_s=20_000)
    listing = hub.list_files(SHARDS)
    hub.fetch(listing, [shard(1)], on_progress=lambda _: None, cancel=CancelToken())
    removal = plan_unfinished(spec)
    assert removal is not None
    assert removal.names == {shard(1), shard(2)}
    assert delete(removal) > 0
    assert plan_unfinished(spec) is None


def test_giving_up_a_download_leaves_the_weights_that_are_whole(server: Hub) -> None:
    fetch_all(GGUF)
    server.repos[GGUF].files["llama-Q4_0.gguf"] = bytes(500_000)
    begin_fetch(GGUF, "llama-Q4_0.gguf", server)
    spec = Registry.load_for().resolve(GGUF)
    assert plan_unfinished(spec, [WEIGHTS]) is None
    assert plan_unfinished(Registry.load_for().resolve(f"{GGUF}:Q2_K")) is None
    removal = plan_unfinished(spec, ["llama-Q4_0.gguf"])
    assert removal is not None
    assert removal.names == {"llama-Q4_0.gguf"}
    assert removal == plan_unfinished(Registry.load_for().resolve(f"{GGUF}:Q4_0"))
    assert delete(removal) == removal.disk_bytes > 0
    assert blob(GGUF, WEIGHTS).read_bytes() == server.repos[GGUF].files[WEIGHTS]
    assert not leftovers(repo_directory(GGUF))


def test_bytes_that_another_file_shares_stay_and_are_counted(server: Hub) -> None:
    server.repos[GGUF].files["other-Q8_0.gguf"] = server.repos[GGUF].files[WEIGHTS]
    fetch_all(GGUF)
    directory = repo_directory(GGUF)
    size = len(server.repos[GGUF].files[WEIGHTS])
    removal = Removal(title="one", disk_bytes=size, directory=directory, repo=GGUF, names=frozenset({WEIGHTS}))
    assert shared_bytes(removal) == size
    assert shared_bytes(replace(removal, names=frozenset({WEIGHTS, "other-Q8_0.gguf"}))) == 0
    assert delete(removal) == 0
    (other,) = removals(GGUF)
    assert shared_bytes(other) == 0


def half_made(name: str) -> Path:
    path = user_paths().models / f"{name}.partial"
    path.mkdir(parents=True)
    (path / "journal.jsonl").write_bytes(bytes(1000))
    return path


def test_half_made_models_go_by_name_or_all_but_not_under_who_makes_them() -> None:
    made = user_paths().models
    assert plan_half_made([made]) == ()
    first, second = half_made("first-mq4"), half_made("second.gguf")
    logits = made / "kept.partial"
    logits.write_bytes(bytes(10))
    (made / "whole").mkdir()
    assert [plan.title for plan in plan_half_made([made])] == [
        "first-mq4, unfinished",
        "kept, unfinished",
        "second.gguf, unfinished",
    ]
    assert [plan.directory for plan in plan_half_made([made], "first-mq4")] == [first]
    assert [plan.directory for plan in plan_half_made([made], "first-mq4.partial")] == [first]
    (plan,) = plan_half_made([made], "second.gguf")
    with WorkDirectory(made / "second.gguf").opened(resumes=True), pytest.raises(BusyError, match="is making"):
        delete(plan)
    assert second.is_dir()
    assert [delete(plan) for plan in plan_half_made([made])] == [1000, 10, 1000]
    assert [path.name for path in made.iterdir()] == ["whole"]


def test_what_a_kill_left_of_a_replacement_is_the_model_or_goes() -> None:
    """The earlier model is the model while there is no later one, and what is left over when there is."""
    made = user_paths().models
    earlier = made / "mine.old-a1b2c3d4" / "replaced"
    earlier.mkdir(parents=True)
    (earlier / "journal.jsonl").write_bytes(bytes(1000))
    partial = half_made("mine")
    assert Registry.load_for().resolve("mine").path == earlier
    assert [plan.directory for plan in plan_half_made([made])] == [partial]
    (removal,) = removals("mine")
    assert (removal.title, removal.disk_bytes, removal.directory) == ("mine", 1000, earlier.parent)
    partial.rename(made / "mine")
    assert Registry.load_for().resolve("mine").path == made / "mine"
    assert [spec.name for spec in Registry.load_for().made()] == ["mine"]
    (plan,) = plan_half_made([made], "mine")
    assert (plan.title, delete(plan)) == ("mine, replaced", 1000)
    assert [path.name for path in made.iterdir()] == ["mine"]


def test_drafters_that_were_begun_go_with_the_half_made_models() -> None:
    drafts = user_paths().drafts
    (drafts / "demo-normed.partial").mkdir(parents=True)
    (drafts / "demo-normed.partial" / "corpus.jsonl").write_bytes(bytes(70))
    (drafts / "whole").mkdir()
    half_made("mine")
    directories = (user_paths().models, drafts)
    assert [plan.title for plan in plan_half_made(directories)] == ["mine, unfinished", "demo-normed, unfinished"]
    (plan,) = plan_half_made(directories, "demo-normed")
    assert delete(plan) == 70
    assert [path.name for path in drafts.iterdir()] == ["whole"]


def trained(name: str, where: Path | None = None) -> Path:
    head = (where or user_paths().drafts) / name
    head.mkdir(parents=True)
    (head / "model.safetensors").write_bytes(bytes(1000))
    return head


def test_a_drafter_goes_by_its_name_or_its_path_and_a_model_of_that_name_goes_first(tmp_path: Path) -> None:
    head, other = trained("demo-normed"), trained("mine")
    model = trained("mine", user_paths().models)
    (removal,) = removals("demo-normed")
    assert (removal.title, delete(removal)) == ("demo-normed, drafter", 1000)
    assert not head.exists()
    with pytest.raises(UsageError, match="There is no model 'demo-normed'"):
        removals("demo-normed")
    for directory, text in ((model, "mine"), (other, str(other))):
        (removal,) = removals(text)
        assert removal.directory == directory
    elsewhere = trained("head", tmp_path)
    with pytest.raises(UsageError, match="not among the models that runner keeps"):
        removals(str(elsewhere))


def test_a_drafter_that_was_being_replaced_goes_with_the_place_where_it_is() -> None:
    earlier = trained("demo-normed.old-a1b2c3d4/replaced").parent
    (removal,) = removals("demo-normed")
    assert delete(removal) == 1000
    assert not earlier.exists()


def test_a_link_to_a_drafter_goes_and_not_what_it_means(tmp_path: Path) -> None:
    head = trained("head", tmp_path)
    user_paths().drafts.mkdir(parents=True)
    link = user_paths().drafts / "linked"
    link.symlink_to(head)
    (removal,) = removals("linked")
    assert (removal.disk_bytes, delete(removal)) == (0, 0)
    assert (os.path.lexists(link), (head / "model.safetensors").is_file()) == (False, True)


def test_what_may_not_be_deleted_is_said_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    half_made("mine")
    monkeypatch.setattr(shutil, "rmtree", refuse)
    (plan,) = plan_half_made([user_paths().models])
    with pytest.raises(RunnerError, match="cannot be deleted: Permission denied") as caught:
        delete(plan)
    assert "read-only" in caught.value.hint


def test_what_two_processes_delete_at_once_is_deleted_and_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one takes each file away just before this one does."""
    head = trained("demo-normed")
    (head / "config.json").write_text("{}")
    (removal,) = removals("demo-normed")
    unlink = os.unlink

    def too_late(path: str, *, dir_fd: int | None = None) -> None:
        unlink(path, dir_fd=dir_fd)
        raise FileNotFoundError(2, "No such file or directory", path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", too_late)
        delete(removal)
    assert not head.exists()
    assert delete(removal) == 0


def test_what_was_finished_since_the_plan_stays() -> None:
    partial = half_made("mine")
    (plan,) = plan_half_made([partial.parent])
    partial.rename(partial.with_name("mine"))
    assert delete(plan) == 0
    assert (partial.with_name("mine") / "journal.jsonl").is_file()
