"""What may not be read is said, and not taken for gone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from plain_user import python_as_plain_user, run_as_plain_user
from pulled import GGUF, SHARDS, fetch_all, server

from runner.cli.app import main
from runner.hub_cache import hub_settings, repo_directory
from runner.paths import user_paths

__all__ = ["server"]  # the fixture


def said(directory: Path) -> str:
    return f"{directory} cannot be read: permission denied.\nhint: Give yourself access: chmod -R u+rwX {directory}\n"


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize("part", ["", "blobs", "snapshots"])
def test_a_closed_repository_is_told_beside_what_can_be_read(part: str) -> None:
    fetch_all(GGUF)
    fetch_all(SHARDS)
    closed = repo_directory(GGUF) / part
    for command in ("ls", "du"):
        done = run_as_plain_user(command, "--json", closed=closed)
        assert (done.returncode, done.stderr) == (0, "warning: " + said(closed))
        plain = json.loads(done.stdout)
        assert plain["unreadable"] == [str(closed)]
        names = [one["name"] for one in plain["models" if command == "ls" else "uses"] if one["kind"] == "cache"]
        assert names == [SHARDS]
    done = run_as_plain_user("verify", "-q", closed=closed)
    assert (done.returncode, done.stderr) == (1, "error: " + said(closed))


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize("command", ["show", "verify", "rm -y", "rm -y --partial", "pull", "run --offline"])
def test_a_model_in_a_closed_cache_is_not_said_to_be_missing(command: str) -> None:
    fetch_all(GGUF)
    for closed in (repo_directory(GGUF), hub_settings().cache):
        done = run_as_plain_user(*command.split(), f"{GGUF}:Q8_0", *(["hi"] if "run" in command else []), closed=closed)
        assert done.returncode == 1
        assert done.stderr.endswith("error: " + said(closed))
    assert run_as_plain_user("ls", closed=hub_settings().cache).stderr.startswith(
        "warning: " + said(hub_settings().cache)
    )


def test_closed_directories_of_the_users_own_and_of_what_was_made_here_are_told() -> None:
    paths = user_paths()
    own = paths.data / "own"
    for directory in (paths.models / "mine-mq4", paths.drafts / "mine-normed", own, paths.config):
        directory.mkdir(parents=True)
    paths.user_models_file.write_text(f'[own]\npath = "{own}"\n')
    for closed in (own, paths.models, paths.models / "mine-mq4", paths.drafts, paths.drafts / "mine-normed"):
        done = run_as_plain_user("ls", closed=closed)
        assert done.stderr.startswith("warning: " + said(closed))


@pytest.mark.parametrize("command", ["run mine hi", "show mine", "verify mine", "verify", "rm -y mine"])
def test_a_closed_model_made_here_is_told_by_every_command(command: str) -> None:
    closed = user_paths().models / "mine"
    closed.mkdir(parents=True)
    (closed / "runner.json").write_text('{"files": {}}')
    done = run_as_plain_user(*command.split(), closed=closed)
    assert done.returncode == 1
    assert done.stderr.endswith("error: " + said(closed))
    assert closed.is_dir()


def test_quantize_tells_of_a_closed_source_and_of_a_closed_place_for_what_it_makes(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    (closed / "inside").mkdir(parents=True)
    assert run_as_plain_user("quantize", str(closed), closed=closed).stderr == "error: " + said(closed)
    imports = "from pathlib import Path; from runner.quant.work_directory import WorkDirectory\n"
    program = f"{imports}WorkDirectory(Path({str(closed / 'inside' / 'out')!r})).check_target(force=False)"
    assert f"{closed} cannot be read" in python_as_plain_user("-c", program, closed=closed).stderr
    left = tmp_path / "out.partial"
    left.mkdir()
    (left / "config.json").touch()
    program = f"{imports}WorkDirectory(Path({str(tmp_path / 'out')!r})).opened().__enter__()"
    done = python_as_plain_user("-c", program, closed=left, mode=0o555)
    assert f"{left} cannot be emptied: Permission denied." in done.stderr


def test_doctor_tells_of_a_closed_cache_and_ends() -> None:
    cache = hub_settings().cache
    cache.mkdir(parents=True)
    for closed in (cache, cache.parent):
        done = run_as_plain_user("doctor", "--json", closed=closed)
        found = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
        assert done.returncode == 1
        assert found["Models"]["detail"] == f"{closed} cannot be read: permission denied."
        assert found["Downloads"]["status"] == "warning"
        assert "HF_HOME" in found["Downloads"]["remedy"]


@pytest.mark.usefixtures("server")
def test_what_may_not_all_be_deleted_stays_whole() -> None:
    """Not the files alone go, with a directory that is left and "was not deleted"."""
    fetch_all(SHARDS)
    made = user_paths().models / "mine"
    made.mkdir(parents=True)
    (made / "model.safetensors").write_bytes(b"mine")
    repo = repo_directory(SHARDS)
    before = [sorted(place.rglob("*")) for place in (made, repo)]
    for name, closed in (("mine", made.parent), (SHARDS, repo / "blobs"), (SHARDS, repo.parent)):
        done = run_as_plain_user("rm", "-y", name, closed=closed, mode=0o555)
        assert done.returncode == 1
        assert f"{name} was not deleted: {closed} cannot be deleted: Permission denied." in done.stderr
    assert [sorted(place.rglob("*")) for place in (made, repo)] == before
    for name in ("mine", SHARDS):
        assert main(["rm", "-y", name]) == 0
    assert [place.exists() for place in (made, repo)] == [False, False]


@pytest.mark.parametrize("speculation", ["auto", "eagle3"])
def test_a_closed_directory_of_what_is_to_draft_is_told(tmp_path: Path, speculation: str) -> None:
    closed = tmp_path / "drafter"
    closed.mkdir()
    (closed / "config.json").touch()
    done = run_as_plain_user("explain", "demo", "--spec", speculation, "--draft", str(closed), closed=closed)
    assert done.returncode == 0
    assert f"refused: {closed} cannot be read: permission denied." in " ".join(done.stdout.split())
