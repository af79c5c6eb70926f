"""The program's log file."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.log import MAX_BYTES, N_OLD_FILES, start_logging, stop_logging
from runner.paths import Paths, user_paths

log = logging.getLogger("runner.some.module")


@pytest.fixture
def paths(runner_home: Path) -> Iterator[Paths]:
    yield user_paths(runner_home)
    stop_logging()


def test_a_message_is_one_dated_line_in_a_private_file(paths: Paths) -> None:
    assert start_logging(paths)
    log.info("loaded %s", "demo")
    line = paths.log_file.read_text()
    assert line.endswith(" INFO runner.some.module loaded demo\n")
    assert line[:4].isdigit()
    assert paths.log_file.stat().st_mode & 0o777 == 0o600


def test_text_from_outside_cannot_forge_a_line_or_reach_the_terminal(paths: Paths) -> None:
    start_logging(paths)
    log.warning("name: %s", "x\n2030-01-01 ERROR forged \x1b]52;c;x\x07 \udcff")
    text = paths.log_file.read_text()
    assert text.count("\n") == 1
    assert "\x1b" not in text


def test_an_exception_is_followed_by_its_traceback(paths: Paths) -> None:
    start_logging(paths)
    try:
        raise ValueError("reason")
    except ValueError:
        log.exception("failed")
    assert paths.log_file.read_text().splitlines()[-1] == "ValueError: reason"


def test_details_are_logged_only_when_asked_for(paths: Paths) -> None:
    start_logging(paths)
    log.debug("quiet")
    start_logging(paths, verbose=True)
    log.debug("loud")
    assert [line.split()[-1] for line in paths.log_file.read_text().splitlines()] == ["loud"]


def test_the_file_is_rotated_and_every_part_is_private(paths: Paths) -> None:
    start_logging(paths)
    for _ in range(5 * MAX_BYTES // 100_000):
        log.info("x" * 100_000)
    files = sorted(paths.state.iterdir())
    assert len(files) == 1 + N_OLD_FILES
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
    assert all(file.stat().st_size <= MAX_BYTES + 200_000 for file in files)


def test_a_log_that_cannot_be_written_stops_nothing(paths: Paths, capsys: pytest.CaptureFixture[str]) -> None:
    paths.state.parent.mkdir()
    paths.state.write_text("in the way")
    assert not start_logging(paths)
    log.error("nowhere to go")
    assert capsys.readouterr().err == ""


def test_a_full_disk_prints_nothing_into_the_chat(paths: Paths) -> None:
    code = (
        "import logging, resource, sys; from pathlib import Path; from runner.log import start_logging, stop_logging\n"
        "from runner.paths import user_paths\n"
        "start_logging(user_paths(Path(sys.argv[1])))\n"
        "logging.getLogger('runner').error('first')\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))\n"
        "for _ in range(3): logging.getLogger('runner').error('x' * 60)\n"
        "stop_logging(); print('alive')\n"
    )
    command = [sys.executable, "-c", code, str(paths.state.parent)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("alive\n", "")
    assert paths.log_file.stat().st_size == 100
