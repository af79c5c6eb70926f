"""`runner bench history`, `show`, `compare` and `export`, and what is done with a new run."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pexpect
import pytest

from runner.bench.formats import run_json
from runner.bench.record import BenchRun, ModelFile, run_from_json
from runner.bench.store import append_run, read_history
from runner.cli import bench_reports
from runner.cli.app import main
from runner.errors import RunnerError, UsageError
from runner.paths import user_paths
from tests.bench.bench_records import HOSTILE, backend, full_run, machine, options, row, run
from tests.disk_limits import file_size_limit

RUNNER = [sys.executable, "-c", "import sys; from runner.cli.app import main; sys.exit(main())"]
FAST = (100.0, 102.0, 98.0, 101.0, 99.0)
SLOW = (80.0, 81.6, 78.4, 80.8, 79.2)

Capture = pytest.CaptureFixture[str]


def keep(*runs: BenchRun) -> None:
    for one in runs:
        append_run(user_paths().bench_history, one)


def of(samples: tuple[float, ...], id: str = "20260131-120000-4f2a", **others: object) -> BenchRun:
    return run(backend(row(samples=samples)), id=id, **others)


# --- commands --------------------------------------------------------------------------------------------------------


def test_without_runs_history_says_how_to_make_one(capsys: Capture) -> None:
    assert main(["bench", "history"]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert "`runner bench MODEL` makes one" in err


def test_history_lists_runs_of_a_model_and_the_last_ones(capsys: Capture) -> None:
    keep(*(of(FAST, id=f"run-{number}") for number in range(5)), of(FAST, id="other", model="qwen3-8b:Q4_K_M"))
    assert main(["bench", "history", "demo", "--limit", "2"]) == 0
    out, err = capsys.readouterr()
    assert [line.split()[0] for line in out.splitlines()[1:]] == ["run-3", "run-4"]
    assert "in tok/s" in err
    assert "These are the last 2 of 5 runs" in err
    assert main(["bench", "history", "demo", "--limit", "1"]) == 0
    assert "This is the last of 5 runs" in capsys.readouterr().err
    assert main(["bench", "history", "Qwen3-8B"]) == 0
    assert "other" in capsys.readouterr().out
    keep(run(backend(row("ttft")), id="waits", model="slow"))
    assert main(["bench", "history", "slow"]) == 0
    out, err = capsys.readouterr()
    assert "waits" in out
    assert "tok/s" not in out + err


@pytest.mark.parametrize("meant", ["models/small.gguf", "./models", "small.gguf"])
def test_a_model_that_is_a_path_has_its_history_by_that_path_too(
    meant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    weights = ModelFile(path=str(tmp_path / "models" / "small.gguf"), size_bytes=1, sha256="", how="computed")
    other = dataclasses.replace(weights, path=str(tmp_path / "others" / "small2.gguf"))
    keep(of(FAST, id="its", model="small.gguf", files=(weights,)), of(FAST, id="other", files=(other,)))
    assert main(["bench", "history", meant]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]] == ["its"]
    for name, target in (("one", "other"), ("other", "one")):
        (tmp_path / name).symlink_to(target)
    assert main(["bench", "history", "one"]) == 0
    assert "No benchmark of one is kept" in capsys.readouterr().err


@pytest.mark.parametrize("form", ["json", "jsonl", "csv", "md"])
def test_a_history_is_data_for_programs(form: str, capsys: Capture) -> None:
    runs = [full_run(id="one"), of(FAST, id="two")]
    keep(*runs)
    assert main(["bench", "history", "--format", form]) == 0
    out = capsys.readouterr().out
    if form == "json":
        found = json.loads(out)
        assert found["schema"] == "runner.bench.history/1"
        assert [run_from_json(one) for one in found["runs"]] == runs
    elif form == "jsonl":
        assert [run_from_json(json.loads(line)) for line in out.splitlines()] == runs
    else:
        assert len(out.splitlines()) == (10 if form == "csv" else 6)


def test_an_empty_history_is_empty_data(capsys: Capture) -> None:
    assert main(["bench", "history", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"schema": "runner.bench.history/1", "runs": []}


def test_what_cannot_be_read_of_a_history_is_said(capsys: Capture) -> None:
    path = user_paths().bench_history
    keep(of(FAST))
    with path.open("a") as file:
        file.write('{"half\n{"schema": "runner.bench/7"}\n')
    assert main(["bench", "history"]) == 0
    out, err = capsys.readouterr()
    assert "4f2a" in out
    assert f"1 damaged line is passed over in {path}" in err
    assert "1 run is of a newer version of runner" in err


def test_an_earlier_run_is_shown_again_and_drawn(tmp_path: Path, capsys: Capture) -> None:
    keep(full_run(), of(FAST, id="20260201-000000-0000"))
    plot = tmp_path / "plot.svg"
    assert main(["bench", "show", "20260131", "--plot", str(plot)]) == 0
    assert "142.6 ± 1.2 tok/s" in capsys.readouterr().out
    assert ElementTree.parse(plot).getroot().tag.endswith("svg")
    assert main(["bench", "show", "20260131", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(run_json(full_run())))


@pytest.mark.parametrize(("form", "n_lines"), [("jsonl", 8), ("csv", 9)])
def test_a_run_is_a_line_a_row_for_programs(form: str, n_lines: int, capsys: Capture) -> None:
    keep(full_run())
    assert main(["bench", "show", "--format", form]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == n_lines
    if form == "jsonl":
        rows = [json.loads(line) for line in lines]
        assert {one["schema"] for one in rows} == {"runner.bench.row/1"}
        assert [one.get("avg_ts") for one in rows[:2]] == [None, pytest.approx(9885.74)]


def test_two_runs_are_compared_and_without_arguments_the_last_two(capsys: Capture) -> None:
    keep(of(FAST, id="a"), of(SLOW, id="b"))
    assert main(["bench", "compare"]) == 0
    out = capsys.readouterr().out
    assert "-20.0 %" in out
    assert "slower" in out
    assert main(["bench", "compare", "b", "a", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["schema"], found["before"], found["after"]) == ("runner.bench.compare/1", "b", "a")
    assert found["rows"][0]["verdict"] == "faster"
    assert main(["bench", "compare", "a", "a", "--format", "md"]) == 0
    assert "no difference that can be told from noise" in capsys.readouterr().out


def test_without_arguments_the_last_run_is_compared_with_one_that_measured_the_same(capsys: Capture) -> None:
    prefill = run(backend(row("pp512")), id="other-test")
    keep(of(FAST, id="like", options=options(kv_type="q8_0")), of(FAST, id="other", model="qwen3-8b"), prefill)
    keep(of(SLOW, id="now"))
    assert main(["bench", "compare", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["before"] == "like"
    assert "Compared with like: no run since is more like it." in err
    keep(of(FAST, id="elsewhere", machine=machine(device="NVIDIA H200", kind="cuda")), of(FAST, id="later"))
    assert main(["bench", "compare", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["before"] == "now"
    assert "Compared with now: no run since is more like it." in err
    keep(dataclasses.replace(of(FAST), id="aborted", backends=()))
    assert main(["bench", "compare"]) == 2
    assert "The last run (aborted, demo) cannot be compared: it has no numbers." in capsys.readouterr().err
    keep(dataclasses.replace(prefill, id="alone", model="new"))
    assert main(["bench", "compare"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "The last run (alone, new) cannot be compared" in err


def test_a_run_of_another_machine_is_compared_from_its_file(tmp_path: Path, capsys: Capture) -> None:
    keep(of(FAST, id="here"))
    theirs = tmp_path / "theirs.json"
    theirs.write_text(json.dumps(run_json(of(SLOW, id="there", machine=machine(cpu="Cray-1")))))
    assert main(["bench", "compare", str(theirs), "last"]) == 0
    out = capsys.readouterr().out
    assert "cpu: Cray-1 → AMD EPYC" in out
    assert "+25.0 %" in out


@pytest.mark.parametrize(("allowed", "code"), [("5%", 1), ("19.9", 1), ("21%", 0)])
def test_a_comparison_may_fail(allowed: str, code: int, capsys: Capture) -> None:
    keep(of(FAST, id="a"), of(SLOW, id="b"))
    assert main(["bench", "compare", "a", "b", "--fail-below", allowed]) == code
    err = capsys.readouterr().err
    assert ("FAILED: native tg128 is 20.0 % slower" in err) == bool(code)
    assert main(["bench", "compare", "b", "a", "--fail-below", allowed]) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["compare", "nothing"], "No run has the id 'nothing'"),
        (["compare", "last~7"], "There is no last~7"),
        (["compare", "--format", "csv"], "--format is 'csv'"),
        (["compare", "--json", "--format", "md"], "--json contradicts --format md"),
        (["history", "--json", "--format", "table"], "--json contradicts --format table"),
        (["show", "--json", "--format", "csv"], "--json contradicts --format csv"),
        (["demo", "--json", "--format", "jsonl"], "--json contradicts --format jsonl"),
        (["compare", "--fail-below", "much"], "--fail-below is 'much'"),
        (["history", "--format", "xml"], "--format is 'xml'"),
        (["show", "--plot", "rows.png"], "plots are SVG"),
        (["show", "--plot", "nowhere/rows.svg"], "There is no directory nowhere"),
        (["show", "--plot", "~no-such-user/rows.svg"], "there is no such user"),
        (["export", "--for", "hall-of-fame"], "--for is 'hall-of-fame'"),
        (["export"], "The repository of demo is not known"),
        (["export", "--hf-id", "no repository"], "not the name of a repository"),
    ],
)
def test_mistakes_are_usage_errors(arguments: list[str], message: str, capsys: Capture) -> None:
    keep(of(FAST, id="a"), of(FAST, id="b"))
    assert main(["bench", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert "hint: " in err


def test_an_export_is_a_payload_and_goes_to_a_file_or_stdout(tmp_path: Path, capsys: Capture) -> None:
    keep(full_run(model="qwen3-8b"))
    assert main(["bench", "export", "--for", "localmaxxing"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["hfId"] == "Qwen/Qwen3-8B"
    path = tmp_path / "run.json"
    assert main(["bench", "export", "last", "--for", "localmaxxing", "--output", str(path)]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert "nothing was uploaded" in err
    assert json.loads(path.read_text()) == printed
    assert main(["bench", "export", "-o", str(path)]) == 2
    assert "is there already" in capsys.readouterr().err
    assert main(["bench", "export", "-o", str(path), "--force", "--backend", "llamacpp"]) == 0
    assert json.loads(path.read_text())["engineName"] == "llama.cpp"


# --- a new run -------------------------------------------------------------------------------------------------------


def test_options_that_could_only_fail_later_are_refused_before_anything_is_measured(tmp_path: Path) -> None:
    keep(of(FAST, id="a"))
    good = tmp_path / "plot.svg"
    bench_reports.check_options("a", "5%", good)
    bench_reports.check_options("last", None, None)
    assert main(["bench", "show", "--json", "--format", "json"]) == 0  # no contradiction
    for wrong in (
        ("no-such", None, None),
        (None, "5%", None),
        ("last", "-5%", None),
        (None, None, tmp_path / "plot.png"),
    ):
        with pytest.raises(UsageError) as caught:
            bench_reports.check_options(*wrong)
        assert caught.value.hint


def test_the_baseline_is_the_last_run_that_measured_the_same(capsys: Capture) -> None:
    paths = user_paths()
    keep(
        of(FAST, id="like"), of(SLOW, id="unlike", options=options(repetitions=9)), of(SLOW, id="part", is_partial=True)
    )
    assert not bench_reports.compare_with_baseline(of(FAST, id="now"), None, "5%", paths)
    assert bench_reports.compare_with_baseline(of(SLOW, id="now"), None, "5%", paths)
    out, err = capsys.readouterr()
    assert out == ""
    assert "before    like" in err
    assert "No row is slower by more than 5 % beyond noise." in err
    assert "FAILED: native tg128 is 20.0 % slower; 5 % is allowed." in err
    named = bench_reports.check_options("unlike", "5%", None)
    assert not bench_reports.compare_with_baseline(of(SLOW, id="now"), named, "5%", paths)
    assert not bench_reports.compare_with_baseline(of(SLOW, id="now"), None, None, paths)


def test_a_row_that_was_lost_or_is_invalid_fails_too(capsys: Capture) -> None:
    keep(run(backend(row(), row("pp512")), id="before"))
    bad = run(backend(row("tg128", (), segments=(), invalid="tokens differ")), id="now")
    assert bench_reports.compare_with_baseline(bad, None, "5%", user_paths())
    err = capsys.readouterr().err
    assert "FAILED: native tg128: INVALID in the later run: tokens differ." in err
    assert "FAILED: native pp512: the later run does not have it." in err


def test_of_a_row_with_one_repetition_it_is_said_that_nobody_can_tell(capsys: Capture) -> None:
    keep(run(backend(row(), row("pp512")), id="before"))
    slow = run(backend(row(samples=(10.0,)), row("pp512")), id="now")
    assert not bench_reports.compare_with_baseline(slow, None, "5%", user_paths())
    err = capsys.readouterr().err
    assert "NOT TOLD: native tg128: one repetition" in err
    assert "No other row is slower by more than 5 % beyond noise." in err


def test_without_a_baseline_nothing_is_slower(capsys: Capture) -> None:
    assert not bench_reports.compare_with_baseline(of(SLOW), None, "5%", user_paths())
    assert "There is no baseline" in capsys.readouterr().err


def test_a_run_is_read_from_a_file_of_any_name(tmp_path: Path, capsys: Capture) -> None:
    bench_reports.show_run(of(FAST), "json")
    (tmp_path / "run.txt").write_text(capsys.readouterr().out)
    assert bench_reports.run_meant(bench_reports.read_kept(user_paths()), str(tmp_path / "run.txt")) == of(FAST)


def test_a_plot_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "plot.svg").mkdir()
    with pytest.raises(UsageError, match="is a directory"):
        bench_reports.check_options(None, None, tmp_path / "plot.svg")


def test_a_run_that_cannot_be_kept_is_a_warning(runner_home: Path, capsys: Capture) -> None:
    bench_reports.keep_run(of(FAST), user_paths())
    assert read_history(user_paths().bench_history).runs == (of(FAST),)
    user_paths().bench_history.unlink()
    user_paths().bench_history.mkdir()
    bench_reports.keep_run(of(FAST), user_paths())
    err = capsys.readouterr().err
    assert "warning: The run is not kept" in err
    assert "hint: Make room there" in err
    assert runner_home.is_dir()


def test_a_plot_that_cannot_be_written_names_how_it_is_drawn_elsewhere(tmp_path: Path) -> None:
    with file_size_limit(100), pytest.raises(RunnerError, match="cannot be written") as failed:
        bench_reports.write_plot(full_run(), tmp_path / "plot.svg", kept_as="20260131")
    assert "`runner bench show 20260131 --plot FILE`" in failed.value.hint
    assert list(tmp_path.iterdir()) == []


def test_a_plot_replaces_the_one_before(tmp_path: Path) -> None:
    plot = tmp_path / "plot.svg"
    plot.write_text("old")
    bench_reports.write_plot(full_run(), plot)
    assert plot.read_text().startswith("<svg")


# --- terminals -------------------------------------------------------------------------------------------------------


def in_a_terminal(*arguments: str, columns: int, **variables: str) -> str:
    environment = {**os.environ, "TERM": "xterm-256color", "LANG": "C.UTF-8", **variables}
    child = pexpect.spawn(
        RUNNER[0], [*RUNNER[1:], *arguments], env=environment, dimensions=(50, columns), encoding="utf-8", timeout=30
    )
    return str(child.read())


def test_a_terminal_gets_colours_and_bars_and_a_pipe_neither(capsys: Capture) -> None:
    keep(full_run())
    shown = in_a_terminal("bench", "show", columns=80)
    assert "\x1b[31mINVALID\x1b[0m" in shown
    assert "█" in shown
    assert main(["bench", "show"]) == 0
    piped = capsys.readouterr().out
    assert "\x1b" not in piped
    assert "█" not in piped
    assert "MIN .. MAX" in piped


def test_no_colour_means_none_and_ascii_bars_where_blocks_cannot_be_shown() -> None:
    keep(full_run())
    shown = in_a_terminal("bench", "show", columns=80, NO_COLOR="1", PYTHONIOENCODING="ascii")
    assert "\x1b" not in shown
    assert "#####" in shown
    assert "█" not in shown


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_hostile_names_do_nothing_to_a_terminal(columns: int) -> None:
    bad = full_run(model=HOSTILE, id="bad", machine=machine(device=HOSTILE, cpu=HOSTILE, versions={"runner": HOSTILE}))
    keep(bad, bad, bad)
    for arguments in (("show",), ("history",), ("compare", "last~1", "last")):
        shown = in_a_terminal("bench", *arguments, columns=columns, NO_COLOR="1")
        assert not set(shown) & set("\x1b\x07\x9b\u202e")


def test_a_reader_that_goes_away_is_no_error() -> None:
    keep(*(full_run(id=f"run-{number}") for number in range(40)))
    command = f"{shlex.join(RUNNER)} bench history --format csv | head -1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("build_commit,")
    assert done.stderr == ""
