"""A deletion that is killed, at any of its steps: what is left has a name in every list, and the next one takes it."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from hub_server import Hub
from pulled import GGUF, SHARDS, begin_fetch, fetch_all, server
from typer.testing import CliRunner

from runner import deletion, hub_cache
from runner.cli import completing
from runner.cli.app import app
from runner.deletion import delete
from runner.disk_usage import disk_usage
from runner.errors import BusyError
from runner.hub_cache import has_files, repo_directory
from runner.inventory import local_models
from runner.paths import user_paths
from runner.quant.file_records import files_json, record_of
from runner.quant.work_directory import PACKED_PARTS, WorkDirectory
from runner.registry import Registry
from runner.removal import Removal, named, plan_half_made, plan_leftovers, plan_removal

__all__ = ["server"]  # the fixture


class Killed(BaseException):
    pass


@contextmanager
def killed_at(step: int) -> Iterator[None]:
    """Let so many changes of the disk happen, and none after them."""
    left = step

    def counted(change: Callable[..., Any]) -> Callable[..., Any]:
        def or_killed(*arguments: Any, **options: Any) -> Any:
            nonlocal left
            if left == 0:
                raise Killed
            left -= 1
            return change(*arguments, **options)

        return or_killed

    with pytest.MonkeyPatch.context() as patch:
        for name in ("unlink", "remove", "rename", "replace", "rmdir", "mkdir"):
            patch.setattr(os, name, counted(getattr(os, name)))
        yield


def is_killed(removal: Removal, step: int) -> bool:
    try:
        with killed_at(step):
            delete(removal)
    except Killed:
        return True
    return False


def plan(name: str) -> tuple[Removal, ...]:
    paths = user_paths()
    return plan_removal(named(name, Registry.load_for(), paths.drafts), paths.models, paths.drafts)


def made(place: Path, name: str) -> Path:
    directory = place / name
    directory.mkdir(parents=True)
    for file in ("config.json", "tokenizer.json"):
        (directory / file).write_text("{}")
    (directory / "model.safetensors").write_bytes(b"\2\0\0\0\0\0\0\0{}")  # with no tensor
    (directory / "runner.json").write_text(
        files_json({"model.safetensors": record_of(directory / "model.safetensors")})
    )
    return directory


def listed() -> dict[str, str]:
    return {model.name: model.state for model in local_models(Registry.load_for())}


def used() -> list[str]:
    paths = user_paths()
    return [use.name for use in disk_usage(Registry.load_for(), paths.models, paths.drafts).uses]


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize("again", [("mine",), ("--partial",)], ids=["by its name", "with all that is left"])
def test_of_a_model_made_here_it_leaves_all_or_what_is_known_to_be_unfinished(again: tuple[str, ...]) -> None:
    models, step, is_over = user_paths().models, 0, False
    while not is_over:
        whole = made(models, "mine")
        before = listed()["mine"]
        is_over = not is_killed(*plan("mine"), step)
        if whole.exists():
            assert len(list(whole.iterdir())) == 4
            assert listed()["mine"] == before
            delete(*plan("mine"))
        elif not is_over:
            (rest,) = plan_half_made([models])
            assert used() == [rest.directory.name]
            assert rest.directory.name in dict(completing.removable(""))
            assert "mine" not in listed()
            said = run("ls")
            assert f"Unfinished: {rest.directory.name}" in said
            assert "`runner rm --partial` deletes it" in said
            assert "mine, " in run("rm", "-y", *again)
        for empty in plan_half_made([models]):
            delete(empty)
        assert list(models.iterdir()) == []
        step += 1
    assert step > 6


def test_where_there_is_no_room_for_one_more_directory_a_model_goes_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_arguments: Any, **_options: Any) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "mkdtemp", refuse)
    directory = made(user_paths().models, "mine")
    size = sum(path.stat().st_size for path in directory.iterdir())
    assert delete(*plan("mine")) == size
    assert not directory.exists()


def test_of_a_half_made_model_it_leaves_what_the_next_run_can_begin_with_or_pass_over() -> None:
    models, step, is_over = user_paths().models, 0, False
    while not is_over:
        partial = made(models, "mine.partial")
        is_over = not is_killed(*plan_half_made([models], "mine.partial"), step)
        work = WorkDirectory(models / "mine", PACKED_PARTS)
        work.check_target(force=False)
        with work.opened(resumes=True):
            pass
        for rest in plan_half_made([models], "mine"):
            delete(rest)
        assert not partial.exists()
        assert list(models.iterdir()) == []
        step += 1
    assert step > 6


def test_of_an_earlier_model_that_was_to_be_replaced_it_leaves_no_half_of_it() -> None:
    models, step, is_over = user_paths().models, 0, False
    while not is_over:
        earlier = made(models / "mine.old-a1b2c3d4", "replaced")
        is_over = not is_killed(*plan("mine"), step)
        if "mine" in listed():
            assert len(list(earlier.iterdir())) == 4
        if list(models.iterdir()):
            run("rm", "-y", "mine")
        assert list(models.iterdir()) == []
        step += 1
    assert step > 5


@pytest.mark.parametrize("repo", [GGUF, SHARDS])
@pytest.mark.usefixtures("server")
def test_of_what_was_fetched_it_leaves_a_model_of_the_same_name_that_is_not_whole(repo: str, tmp_path: Path) -> None:
    name, step, is_over = f"{repo}:Q8_0" if repo == GGUF else repo, 0, False
    fetch_all(repo)
    kept = shutil.copytree(repo_directory(repo), tmp_path / "kept", symlinks=True)
    while not is_over:
        shutil.rmtree(repo_directory(repo), ignore_errors=True)
        shutil.copytree(kept, repo_directory(repo), symlinks=True)
        is_over = not is_killed(*plan(name), step)
        if has_files(repo_directory(repo)):
            assert name in listed()
            assert repo in used()
            assert name in run("ls", "--json")
            run("rm", "-y", name)
        assert not has_files(repo_directory(repo))
        assert name not in listed()
        step += 1
    assert step > 6


def test_of_one_quantization_it_leaves_the_other_and_the_name_of_the_one(server: Hub) -> None:
    server.repos[GGUF].files["llama-Q4_0.gguf"] = bytes(500_000)
    step, is_over = 0, False
    while not is_over:
        fetch_all(GGUF)
        is_over = not is_killed(*plan(f"{GGUF}:Q4_0"), step)
        assert listed()[f"{GGUF}:Q8_0"] == "complete"
        if not is_over:
            run("rm", "-y", f"{GGUF}:Q4_0")
        assert f"{GGUF}:Q4_0" not in listed()
        blobs = repo_directory(GGUF) / "blobs"
        assert sum(path.stat().st_size for path in blobs.iterdir()) < 1_500_000
        step += 1
    assert step == 3


def test_of_a_download_that_was_begun_it_leaves_one_that_is_begun(server: Hub) -> None:
    step, is_over = 0, False
    while not is_over:
        begin_fetch(GGUF, "llama-Q8_0.gguf", server)
        is_over = not is_killed(*plan(GGUF), step)
        if has_files(repo_directory(GGUF)):
            assert listed()[f"{GGUF}:Q8_0"] == "partial"
            assert "partial download" in run("rm", "-y", "--partial")
        assert not has_files(repo_directory(GGUF))
        step += 1
    assert step > 3


# --- two at once -----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize("what", ["made here", "half deleted", "cached"])
def test_what_two_deletions_at_once_take_is_counted_once(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    models = user_paths().models
    if what == "cached":
        fetch_all(SHARDS)
        (doomed,) = plan(SHARDS)
    elif what == "made here":
        made(models, "mine")
        (doomed,) = plan("mine")
    else:
        made(models / "mine.old-a1b2c3d4", "deleted")
        (doomed,) = plan_half_made([models])
    both = threading.Barrier(2, timeout=1)

    def met(delete_now: Callable[..., Any]) -> Callable[..., Any]:
        def or_alone(*arguments: Any) -> Any:
            with suppress(threading.BrokenBarrierError):  # the other one waits until this one is done
                both.wait()
            return delete_now(*arguments)

        return or_alone

    monkeypatch.setattr(deletion, "delete_tree", met(deletion.delete_tree))
    monkeypatch.setattr(hub_cache, "_delete_blobs", met(hub_cache._delete_blobs))
    with ThreadPoolExecutor() as pool:
        freed = list(pool.map(delete, [doomed, doomed]))
    assert sorted(freed) == [0, doomed.disk_bytes]
    assert doomed.disk_bytes > 0
    assert not doomed.directory.exists()


@pytest.mark.usefixtures("server")
def test_downloads_that_are_gone_since_the_plan_are_not_counted(server: Hub) -> None:
    begin_fetch(GGUF, "llama-Q8_0.gguf", server)
    (doomed,) = plan_leftovers(None)
    assert [delete(doomed), delete(doomed)] == [doomed.disk_bytes, 0]


def test_a_deletion_goes_on_where_another_took_the_directory_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    directory = made(user_paths().models, "mine")
    size = sum(path.stat().st_size for path in directory.iterdir())
    make, taken = tempfile.mkdtemp, list[str]()

    def take_first(**options: Any) -> str:
        path = make(**options)
        if not taken:
            taken.append(path)
            delete(*plan_half_made([directory.parent]))
        return path

    monkeypatch.setattr(tempfile, "mkdtemp", take_first)
    assert delete(*plan("mine")) == size
    assert list(directory.parent.iterdir()) == []


@pytest.mark.parametrize("moment", [0, 1])
def test_what_a_replacement_uses_for_a_moment_is_not_deleted_from_under_it(
    moment: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    models, renamed, rename = user_paths().models, list[str](), os.rename
    (made(models, "mine") / "config.json").write_text("earlier")
    work = WorkDirectory(models / "mine", PACKED_PARTS)
    work.check_target(force=True)

    def after_deletions(source: Path, target: Path) -> None:
        if len(renamed) == moment:
            (old,) = models.glob("mine.old-*")
            with pytest.raises(BusyError, match="making"):
                delete(Removal(title="", disk_bytes=0, directory=old))
        renamed.append(source.name)
        rename(source, target)

    with work.opened():
        (work.path / "config.json").write_text("later")
        monkeypatch.setattr(os, "rename", after_deletions)
        work.place()
    assert renamed == ["mine", "mine.partial"]
    assert [path.name for path in models.iterdir()] == ["mine"]
    assert (models / "mine" / "config.json").read_text() == "later"
