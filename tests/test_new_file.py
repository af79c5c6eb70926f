"""Files of the user's own: what is no file is written into, and stays what it is."""

from __future__ import annotations

import os
import select
import stat
import threading
from pathlib import Path

import pytest

from runner.errors import RunnerError, UsageError
from runner.new_file import write_new


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_pipe_is_written_into_and_not_replaced(tmp_path: Path, overwrite: bool) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    found: list[bytes] = []
    end = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    os.set_blocking(end, True)

    def read() -> None:
        select.select([end], [], [])  # until somebody writes: before that a pipe is at its end
        with open(end, "rb") as stream:
            found.append(stream.read())

    reader = threading.Thread(target=read)
    reader.start()
    write_new(pipe, "all of it\n" * 20_000, overwrite=overwrite)  # more than a pipe holds
    reader.join(30)
    assert found == [b"all of it\n" * 20_000]
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert os.listdir(tmp_path) == ["pipe"]


def test_a_pipe_that_nobody_reads_is_an_error_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(RunnerError, match="cannot be written"):
        write_new(tmp_path / "pipe", "text")


def test_what_a_link_names_is_replaced_and_the_link_stays(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("one")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    with pytest.raises(UsageError, match="there already"):
        write_new(tmp_path / "link", "two")
    write_new(tmp_path / "link", "two", overwrite=True)
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_text() == "two"


def test_what_a_process_has_open_is_written_on_to(tmp_path: Path) -> None:
    with (tmp_path / "out").open("w+") as out:
        out.write("before\n")
        out.flush()
        write_new(Path(f"/dev/fd/{out.fileno()}"), "chat\n")
        assert (tmp_path / "out").read_text() == "before\nchat\n"
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_name_that_no_disk_takes_is_an_error_with_a_remedy(tmp_path: Path, overwrite: bool) -> None:
    with pytest.raises(RunnerError, match="cannot be written: File name too long"):
        write_new(tmp_path / ("x" * 300), "text", overwrite=overwrite)


def test_a_device_that_takes_nothing_is_an_error_and_stays(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("/dev/full is Linux's")
    link = tmp_path / "full"
    link.symlink_to("/dev/full")
    with pytest.raises(RunnerError, match="No space left"):
        write_new(link, "text", overwrite=True)
    assert link.is_symlink()


def test_a_file_is_replaced_only_when_asked_to(tmp_path: Path) -> None:
    file = tmp_path / "file"
    write_new(file, "one")
    with pytest.raises(UsageError, match="there already"):
        write_new(file, "two")
    write_new(file, "two", overwrite=True)
    assert file.read_text() == "two"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
