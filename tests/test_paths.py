"""Where things are kept, and that nobody else can read them."""

from __future__ import annotations

import dataclasses
import os
import stat
from pathlib import Path

import pytest

from runner.errors import ConfigError
from runner.paths import Paths, builtin, open_private, private_directory, user_paths


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def open_umask():
    """The most permissive umask, so that modes are ours and not the environment's."""
    before = os.umask(0)
    yield
    os.umask(before)


def test_runner_home_holds_everything(runner_home: Path) -> None:
    paths = user_paths()
    folders = [getattr(paths, field.name) for field in dataclasses.fields(Paths)]
    assert all(folder.parent == runner_home for folder in folders)
    assert len(set(folders)) == 4
    for file in (paths.settings_file, paths.user_models_file, paths.database, paths.models, paths.log_file):
        assert file.is_relative_to(runner_home)
    assert paths.engines.is_relative_to(runner_home)
    assert paths.prompt_history.is_relative_to(runner_home)


def test_an_argument_wins_over_runner_home(tmp_path: Path) -> None:
    assert user_paths(tmp_path / "other").data == tmp_path / "other" / "data"


def test_runner_home_may_begin_with_a_tilde(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("RUNNER_HOME", "~/portable")
    assert user_paths().config == tmp_path / "portable" / "config"


@pytest.mark.parametrize("value", [None, ""])
def test_without_runner_home_the_platform_decides(monkeypatch: pytest.MonkeyPatch, value: str | None) -> None:
    if value is None:
        monkeypatch.delenv("RUNNER_HOME")
    else:
        monkeypatch.setenv("RUNNER_HOME", value)
    paths = user_paths()
    assert all(getattr(paths, field.name).is_absolute() for field in dataclasses.fields(Paths))
    assert all("runner" in str(getattr(paths, field.name)) for field in dataclasses.fields(Paths))


def test_naming_paths_makes_nothing(runner_home: Path) -> None:
    user_paths()
    assert not runner_home.exists()


@pytest.mark.usefixtures("open_umask")
def test_every_directory_that_is_made_is_private(tmp_path: Path) -> None:
    made = private_directory(tmp_path / "home" / "data" / "models")
    assert made.is_dir()
    for folder in (made, made.parent, made.parent.parent):
        assert mode(folder) == 0o700, folder


@pytest.mark.usefixtures("open_umask")
def test_a_directory_that_was_there_keeps_its_mode(tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir(mode=0o755)
    private_directory(there / "new")
    assert mode(there) == 0o755
    assert mode(there / "new") == 0o700


@pytest.mark.usefixtures("open_umask")
def test_a_private_file_has_mode_0600_also_when_it_was_there_before(tmp_path: Path) -> None:
    path = tmp_path / "new" / "secret"
    with os.fdopen(open_private(path), "w") as file:
        file.write("one")
    assert mode(path) == 0o600
    path.chmod(0o644)
    with os.fdopen(open_private(path), "w") as file:
        file.write("2")
    assert mode(path) == 0o600
    assert path.read_text() == "2"


def test_flags_can_append(tmp_path: Path) -> None:
    path = tmp_path / "log"
    for line in ("a", "b"):
        with os.fdopen(open_private(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "a") as file:
            file.write(line)
    assert path.read_text() == "ab"


def test_what_ships_with_runner_is_found() -> None:
    assert builtin("models.toml").is_file()
    assert builtin("models/demo").is_dir()


def test_a_home_of_nobody_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNNER_HOME", "~no-such-user-here/x")
    with pytest.raises(ConfigError, match="RUNNER_HOME"):
        user_paths()
