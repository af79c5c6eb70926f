"""`runner bench` as a user runs it: what it measures, what it says, and how it ends. Scripts stand in for models."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pexpect
import psutil
import pytest

from runner.bench.events import RowMeasured
from runner.bench.store import read_history
from runner.cli.app import main
from runner.cli.bench_live import Live
from runner.paths import user_paths
from tests.backends.cache_gguf import write_mamba
from tests.bench.bench_records import row
from tests.disk_limits import fill, small_disk

RUNNER = [sys.executable, "-c", "import sys; from runner.cli.app import main; sys.exit(main())"]
TEXT = "A scripted answer, which is long enough for everything that is asked of it here. "
SMALL = ["-p", "16", "-n", "8", "-d", "0", "-r", "2", "--no-save"]


@pytest.fixture
def script(tmp_path: Path) -> Callable[..., str]:
    def write(**reply: object) -> str:
        path = tmp_path / "a.script.json"
        path.write_text(json.dumps({"replies": [{"text": TEXT, **reply}]}))
        return str(path)

    return write


def test_the_demo_is_measured_by_both_backends(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "demo", "-t", "1", *SMALL, "--format", "json"]) == 0
    out, err = capsys.readouterr()
    run = json.loads(out)
    assert run["schema"] == "runner.bench/2"
    measured = {(row["backend"], row["test"]) for backend in run["backends"] for row in backend["rows"]}
    assert measured == {(backend, test) for backend in ("native", "llamacpp") for test in ("ttft", "pp16", "tg8")}
    stages = [json.loads(line)["stage"] for line in err.splitlines()]
    assert "native, process 1 of 4: tg8, warm-up" in stages
    assert "llamacpp, process 3 of 4: tg8, 1 of 1" in stages


def test_a_pipe_gets_a_line_a_row_and_no_control_codes(script: Callable[..., str]) -> None:
    done = subprocess.run([*RUNNER, "bench", script(), *SMALL], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    lines = done.stderr.splitlines()
    assert [line.split()[:2] for line in lines] == [["fake", "ttft"], ["fake", "pp16"], ["fake", "tg8"]]
    assert all("2 times" in line for line in lines)
    assert "\x1b" not in done.stderr + done.stdout
    assert "tok/s" in done.stdout


def test_a_run_that_nobody_reads_is_kept_and_its_exit_code_stands(script: Callable[..., str]) -> None:
    for more, code in (({}, 0), ({"token_s": 0.004, "fail": "error", "fail_after": 30}, 1)):
        measuring = subprocess.Popen(
            [*RUNNER, "bench", script(**more), "-p", "16", "-n", "40", "-d", "0", "-r", "2"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert measuring.stdout is not None
        measuring.stdout.close()
        _, err = measuring.communicate(timeout=60)
        assert measuring.returncode == code, err
        assert "Kept as " in err


def test_a_plot_without_room_names_the_run_to_be_drawn_elsewhere_if_it_is_kept(
    script: Callable[..., str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with small_disk(tmp_path / "full", "16k") as disk:
        fill(disk / "everything")
        plotted = ["bench", script(), *SMALL[:-1], "--plot", str(disk / "x.svg")]
        assert main(plotted) == 1
        (kept,) = read_history(user_paths().bench_history).runs
        assert f"hint: `runner bench show {kept.id} --plot FILE`" in capsys.readouterr().err
        user_paths().bench_history.unlink()
        user_paths().bench_history.mkdir()
        assert main(plotted) == 1
        err = capsys.readouterr().err
        assert "The run is not kept" in err
        assert "No space left" in err
        assert "bench show" not in err


def test_a_run_that_measured_nothing_fails_and_is_no_baseline(
    script: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        assert main(["bench", script(), "-p", "5000", "-n", "0", "-d", "0", "-c", "64", "--baseline", "last"]) != 0
        out, err = capsys.readouterr()
        assert "Nothing was measured" in err
        assert "Kept as" not in err
        assert "slower" not in out + err


def test_of_a_model_for_which_nothing_drafts_the_bench_says_so_and_what_measures_it(
    tmp_path: Path, demo_directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mamba = write_mamba(tmp_path / "mamba.gguf", demo_directory)
    assert main(["bench", str(mamba), "--speculation", "-n", "4", "-r", "1", "--genres", "code"]) == 1
    out, err = capsys.readouterr()
    assert "cannot go back" in out + err
    assert "without --speculation" in err


def test_quiet_prints_the_report_alone(script: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", script(), *SMALL, "-q", "--json"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert json.loads(out)["model"] == "a.script.json"


def test_the_model_may_come_after_the_options_and_be_the_default(
    script: Callable[..., str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *SMALL, "-q", "--json", script()]) == 0
    assert json.loads(capsys.readouterr().out)["model"] == "a.script.json"
    monkeypatch.setenv("RUNNER_MODEL", "nonesuch")
    assert main(["bench", "-q"]) == 2
    assert "nonesuch" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nonesuch"], "There is no model 'nonesuch'"),
        (["demo", "-p", "many"], "-p is 'many'"),
        (["demo", "-n", "-5"], "-n is -5"),
        (["demo", "-d", "99999999"], "-d is 99999999"),
        (["demo", "-r", "0"], "-r is 0"),
        (["demo", "-p", "0", "-n", "0"], "nothing to measure"),
        (["demo", "--backend", "lamacpp"], "llamacpp"),
        (["demo", "--format", "xml"], "xml"),
        (["demo", "--kv-type", "q3"], "q3"),
        (["demo", "-c", "3"], "--ctx-size is 3"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_runs(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert words in err
    assert "tok/s" not in err


def test_a_model_that_cannot_run_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "demo", "--backend", "llamacpp", "-c", str(2**26)]) == 4
    assert main(["bench", "demo", "--backend", "llamacpp,native", "-ngl", "all", *SMALL]) in (0, 2)
    assert "native does not run it" in capsys.readouterr().err


def test_an_invalid_row_shows_no_number_and_fails(
    script: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    failing = script(token_s=0.004, fail="error", fail_after=30)
    assert main(["bench", failing, "-p", "16", "-n", "40", "-d", "0", "-r", "2", "--no-save"]) == 1
    out, err = capsys.readouterr()
    assert "tg40" in err
    assert "INVALID: The script asked for an error." in err
    (line,) = [line for line in out.splitlines() if line.startswith("tg40")]
    assert "INVALID" in line
    assert not re.search(r"\d tok/s", line)


def test_help_shows_the_options_of_measuring_and_names_the_other_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--help"]) == 0
    out = capsys.readouterr().out
    assert "Usage: runner bench [OPTIONS] [MODEL]" in out
    assert "--depth" in out
    assert "history" in out
    for command in ("history", "show", "compare", "export"):
        assert main(["bench", command, "--help"]) == 0
        assert f"Usage: runner bench {command}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        (["demo", "-r", "1.5"], "error: --repetitions is '1.5'."),
        (["--bogus"], "`runner bench --help`"),
        (["demo", "demo"], "`runner bench --help`"),
    ],
)
def test_usage_errors_name_the_command_as_it_is_called(
    arguments: list[str], remedy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *arguments]) == 2
    err = capsys.readouterr().err
    assert remedy in err
    assert "measure" not in err


def test_a_misspelt_command_is_a_model_that_is_not_there_and_the_command_is_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["bench", "hist"]) == 2
    err = capsys.readouterr().err
    assert "There is no model 'hist'" in err
    assert "`runner bench history`" in err
    assert main(["bench", "nonesuch"]) == 2
    assert "runner bench history" not in capsys.readouterr().err


# --- Ctrl+C ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_sigterm_keep_what_was_measured(script: Callable[..., str], number: signal.Signals) -> None:
    slow = script(token_s=0.02)
    with subprocess.Popen(
        [*RUNNER, "bench", slow, "-p", "16", "-n", "2000", "-r", "2", "--no-save"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        assert any("pp16" in line for line in process.stderr)  # False once it has ended
        time.sleep(0.5)  # the decode test runs
        children = psutil.Process(process.pid).children(recursive=True)
        pressed = time.monotonic()
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
        assert time.monotonic() - pressed < 16  # the test would take 80 s
    assert process.returncode == 130
    assert "Stopped" in err
    assert "pp16" in out
    assert not re.search(r"^tg2000", out, re.MULTILINE)
    assert "partial" in out.lower() or "stopped" in out.lower() or "interrupted" in out.lower()
    _, alive = psutil.wait_procs(children, timeout=60)
    assert not alive


def test_ctrl_c_before_anything_was_measured_says_so(script: Callable[..., str]) -> None:
    with subprocess.Popen(
        [*RUNNER, "bench", script(token_s=0.1), "-n", "100"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        bench = psutil.Process(process.pid)
        while not bench.children():  # until one is there that loads the model, whose first sample takes ten seconds
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out == ""
    assert "Stopped before anything was measured." in err


def bench_in_terminal(*arguments: str) -> pexpect.spawn:
    return pexpect.spawn(
        RUNNER[0],
        [*RUNNER[1:], "bench", *arguments],
        dimensions=(24, 60),
        encoding="utf-8",
        env={**os.environ, "TERM": "xterm-256color", "NO_COLOR": "1"},
        timeout=60,
    )


def test_a_terminal_says_at_once_that_it_stops_also_where_the_child_hangs(script: Callable[..., str]) -> None:
    child = bench_in_terminal(script(token_s=0.02), "-p", "16", "-n", "2000", "-r", "2", "--no-save")
    child.expect("fake +pp16 ")
    child.expect("tg2000, warm-up\x1b\\[K")
    for measuring in psutil.Process(child.pid).children(recursive=True):
        measuring.suspend()
    child.sendintr()
    child.expect("\rstopping · Ctrl\\+C again ends it without a report\x1b\\[K")
    child.expect("Stopped: the report has what was measured")
    child.expect(pexpect.EOF)
    child.wait()
    assert child.exitstatus == 130


def test_a_second_ctrl_c_says_what_is_lost_with_it(capsys: pytest.CaptureFixture[str]) -> None:
    with Live(as_json=False) as live:
        live.say_nothing_is_kept()
        live.show(RowMeasured(row=row("tg128", (50.0,)), is_complete=False))
        live.say_nothing_is_kept()
    before, _, after = capsys.readouterr().err.splitlines()
    assert before == "Stopped before anything was measured."
    assert after == "Stopped at once: what was measured is not kept."


def test_a_terminal_shows_where_it_is_in_one_line(script: Callable[..., str]) -> None:
    child = bench_in_terminal(script(token_s=0.01), *SMALL)
    child.expect("fake, process 1 of 1: ttft, warm-up\x1b\\[K")
    child.expect("fake, process 1 of 1: tg8, 2 of 2\x1b\\[K")
    child.expect("\r\x1b\\[Kfake +tg8 +[0-9.]+ ± [0-9.]+ tok/s +2 times")
    child.expect(pexpect.EOF)
    child.wait()
    assert child.exitstatus == 0
