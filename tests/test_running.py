"""The list of running engines, and files in it that are not ours to trust."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from disk_limits import file_size_limit

from runner.errors import RunnerError
from runner.running import announce, running


def here(directory: Path) -> Path:
    return announce(directory, model="m", backend="fake", quantization="", device="", n_ctx=1, memory_bytes=0)


@pytest.mark.parametrize("field", ["pid", "process_started_at"])
@pytest.mark.parametrize("value", ["x", None, [1], {}])
def test_a_file_with_other_types_is_passed_over(tmp_path: Path, field: str, value: object) -> None:
    path = here(tmp_path)
    plain = json.loads(path.read_text())
    (tmp_path / "1.json").write_text(json.dumps({**plain, field: value}))
    assert [engine.pid for engine in running(tmp_path)] == [os.getpid()]


def test_a_list_that_cannot_be_read_is_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(RunnerError, match="Permission denied") as error:
        list(running(tmp_path))
    assert error.value.hint


def test_what_a_full_disk_refuses_leaves_nothing_behind(tmp_path: Path) -> None:
    with file_size_limit(20), pytest.raises(OSError, match="File too large"):
        announce(tmp_path, model="demo", backend="fake", quantization="", device="CPU", n_ctx=1, memory_bytes=1)
    assert not list(tmp_path.iterdir())


def test_no_directory_and_a_file_in_its_place_are_no_engines(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert list(running(tmp_path / "missing")) == list(running(tmp_path / "file")) == []
