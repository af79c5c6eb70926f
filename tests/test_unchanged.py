"""What was read of a file: given again while the file is the same, and read anew as soon as it may not be."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from runner.unchanged import WhileUnchanged

LATER_NS = 10 * 10**9


@pytest.fixture
def reads() -> list[str]:
    """The texts that were read, in turn."""
    return []


@pytest.fixture
def read(reads: list[str]) -> WhileUnchanged[str]:
    def text(path: Path) -> str:
        reads.append(path.read_text())
        return reads[-1]

    return WhileUnchanged(text)


@pytest.fixture
def time_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that are written now were not written a moment ago."""
    now = time.time_ns
    monkeypatch.setattr("runner.unchanged.time.time_ns", lambda: now() + LATER_NS)


@pytest.mark.usefixtures("time_passes")
def test_a_file_is_read_once_until_it_is_let_go_of(read: WhileUnchanged[str], reads: list[str], tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("one")
    assert [read(path), read(path)] == ["one", "one"]
    assert reads == ["one"]
    read.forget()
    assert read(path) == "one"
    assert reads == ["one", "one"]


@pytest.mark.usefixtures("time_passes")
@pytest.mark.parametrize("how", ["in place", "replaced", "replaced by one of its age", "longer"])
def test_one_that_changed_is_read_anew(how: str, read: WhileUnchanged[str], tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("one")
    assert read(path) == "one"
    was = path.stat()
    if how.startswith("replaced"):
        other = tmp_path / "b"
        other.write_text("two")
        if "age" in how:
            os.utime(other, ns=(was.st_atime_ns, was.st_mtime_ns))
        other.replace(path)
    else:
        time.sleep(0.02)  # a tick of the file's clock
        path.write_text("two" if how == "in place" else "two, and more")
    assert read(path) == path.read_text()


def test_one_that_was_written_a_moment_ago_is_read_each_time(
    read: WhileUnchanged[str], reads: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "a"
    path.write_text("one")
    assert [read(path), read(path)] == ["one", "one"]
    assert reads == ["one", "one"]


@pytest.mark.usefixtures("time_passes")
def test_one_that_changes_while_it_is_read_is_not_kept(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("one")
    found = []

    def text(at: Path) -> str:
        value = at.read_text()
        if not found:
            at.write_text("longer")
        found.append(value)
        return value

    read = WhileUnchanged(text)
    assert [read(path), read(path), read(path)] == ["one", "longer", "longer"]
    assert found == ["one", "longer"]


@pytest.mark.usefixtures("time_passes")
def test_two_files_do_not_pass_for_each_other(read: WhileUnchanged[str], tmp_path: Path) -> None:
    (tmp_path / "a").write_text("one")
    os.link(tmp_path / "a", tmp_path / "b")  # the same file by another name: errors and tensors name their path
    (tmp_path / "c").write_text("two")
    assert [read(tmp_path / name) for name in "abcab"] == ["one", "one", "two", "one", "one"]


@pytest.mark.usefixtures("time_passes")
def test_what_fails_fails_again(read: WhileUnchanged[str], tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(FileNotFoundError):
            read(tmp_path / "none")
    (tmp_path / "none").write_text("one")
    assert read(tmp_path / "none") == "one"
