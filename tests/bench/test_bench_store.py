"""The history of benchmarks: nothing is lost, nothing damaged is read, and runs are found again."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import filelock
import pytest

from runner.bench import store
from runner.bench.formats import run_json
from runner.bench.record import SCHEMA, run_to_json, without_numbers
from runner.bench.store import History, append_run, find_run, last_like, read_history, read_run
from runner.errors import BusyError, RunnerError, UsageError
from tests.bench.bench_records import backend, full_run, machine, options, refused, row, run
from tests.bench.test_bench_speculation import genre_run

ADD = """
import sys
from pathlib import Path
from runner.bench.store import append_run
from tests.bench.bench_records import run
for number in range(8):
    append_run(Path(sys.argv[1]), run(id=f"{sys.argv[2]}-{number}"))
"""


def test_what_is_kept_comes_back_as_it_was_in_its_order(tmp_path: Path) -> None:
    path = tmp_path / "state" / "bench.jsonl"
    first, second = full_run(id="20260101-000000-aaaa"), run(id="20260102-000000-bbbb")
    append_run(path, first)
    append_run(path, second)
    assert read_history(path) == History(runs=(first, second))
    assert len(path.read_bytes().splitlines()) == 2
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_without_a_file_there_are_no_runs(tmp_path: Path) -> None:
    assert read_history(tmp_path / "none.jsonl") == History()


def test_programs_that_add_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "bench.jsonl"
    root = Path(__file__).parent.parent.parent
    writers = [subprocess.Popen([sys.executable, "-c", ADD, str(path), name], cwd=root) for name in ("a", "b", "c")]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    kept = read_history(path)
    assert sorted(one.id for one in kept.runs) == sorted(f"{name}-{n}" for name in "abc" for n in range(8))
    assert (kept.n_damaged, kept.n_newer) == (0, 0)


def test_a_line_that_a_dying_program_left_half_written_costs_only_itself(tmp_path: Path) -> None:
    path = tmp_path / "bench.jsonl"
    append_run(path, run(id="one"))
    with path.open("ab") as file:
        file.write(b'{"schema": "runner.bench/1", "id": "tw')
    append_run(path, run(id="three"))
    kept = read_history(path)
    assert [one.id for one in kept.runs] == ["one", "three"]
    assert kept.n_damaged == 1


def wrong(change: dict[str, object]) -> bytes:
    return json.dumps({**run_to_json(run()), **change}).encode()


@pytest.mark.parametrize(
    "line",
    [
        b"[]",
        b"null",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"schema": "runner.ls/1"}',
        wrong({"model": 5}),
        wrong({"model": ["demo"]}),
        wrong({"duration_s": float("nan")}),
        wrong({"num_parameters": "18M"}),
        wrong({"is_partial": 0}),
        wrong({"format": "zip"}),
        wrong({"surprise": 1}),
        wrong({"machine": None}),
        wrong({"machine": {**run_to_json(run())["machine"], "versions": {"runner": 5}}}),
        wrong({"machine": {**run_to_json(run())["machine"], "versions": ["runner"]}}),
        wrong({"backends": [{"name": "native", "rows": [{"samples": [-1.0]}]}]}),
        wrong({"notes": 7}),
        wrong({"num_parameters": 10**400}),
        json.dumps(run_to_json(run(backend(row())))).replace("102.0", "1.7e308").replace("98.0", "1.7e308").encode(),
        json.dumps(run_to_json(run(backend(row())))).replace("102.0", "1e-300").encode(),
        json.dumps(run_to_json(genre_run())).replace('"plain": [100.0', '"plain": [0.0').encode(),
        json.dumps(run_to_json(genre_run())).replace('"reached_at": [4', '"reached_at": [4, 4').encode(),
    ],
)
def test_lines_that_are_no_run_are_counted_and_passed_over(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "bench.jsonl"
    path.write_bytes(line + b"\n\n")
    append_run(path, run())
    kept = read_history(path)
    assert (len(kept.runs), kept.n_damaged, kept.n_newer) == (1, 1, 0)


def test_of_a_run_that_does_not_fit_on_the_disk_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "bench.jsonl"
    append_run(path, run(id="first"))
    write, n_written = os.write, 0

    def full(descriptor: int, data: bytes) -> int:
        nonlocal n_written
        n_written += 1
        if n_written > 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, data[:50])

    with monkeypatch.context() as patch, pytest.raises(RunnerError, match="No space left"):
        patch.setattr(os, "write", full)
        append_run(path, run(id="second"))
    append_run(path, run(id="third"))
    kept = read_history(path)
    assert ([one.id for one in kept.runs], kept.n_damaged) == (["first", "third"], 0)


def test_a_run_of_a_newer_version_is_told_from_damage(tmp_path: Path) -> None:
    path = tmp_path / "bench.jsonl"
    path.write_bytes(wrong({"schema": "runner.bench/3", "warp": 9}) + b"\n")
    kept = read_history(path)
    assert (len(kept.runs), kept.n_damaged, kept.n_newer) == (0, 0, 1)


def test_a_locked_history_is_busy_and_what_cannot_be_written_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "bench.jsonl"
    monkeypatch.setattr(store, "_LOCK_PATIENCE_S", 0.05)
    with filelock.FileLock(f"{path}.lock"), pytest.raises(BusyError, match="another program"):
        append_run(path, run())
    (tmp_path / "file").write_text("")
    with pytest.raises(RunnerError, match="The run is not kept"):
        append_run(tmp_path / "file" / "bench.jsonl", run())
    with pytest.raises(RunnerError, match="cannot be read"):
        read_history(tmp_path)


def test_a_history_of_a_thousand_runs_is_read(tmp_path: Path) -> None:
    path = tmp_path / "bench.jsonl"
    line = json.dumps(run_to_json(full_run())) + "\n"
    path.write_text(line * 1000)
    assert len(read_history(path).runs) == 1000


# --- finding ---------------------------------------------------------------------------------------------------------

KEPT = History(runs=tuple(run(id=name) for name in ("20260101-a1", "20260102-b2", "20260102-c3")))


@pytest.mark.parametrize(
    ("ref", "found"),
    [
        ("last", "20260102-c3"),
        ("last~0", "20260102-c3"),
        ("last~2", "20260101-a1"),
        ("20260101-a1", "20260101-a1"),
        ("20260102-b", "20260102-b2"),
        ("20260101", "20260101-a1"),
    ],
)
def test_a_run_is_found_by_its_id_the_beginning_of_it_or_its_age(ref: str, found: str) -> None:
    assert find_run(KEPT, ref).id == found


@pytest.mark.parametrize(
    ("ref", "message"),
    [
        ("last~3", "3 runs are kept"),
        ("20260102", "2 runs have ids that begin with"),
        ("2027", "No run has the id"),
        ("", "No run has the id"),
        ("last~-1", "No run has the id"),
    ],
)
def test_what_means_no_run_or_several_is_refused(ref: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        find_run(KEPT, ref)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("count", "hint"), [(5, "Give more of it. a0, a1,"), (6, "it. The last of them: a1, a2, a3, a4, a5.")]
)
def test_of_many_runs_that_are_meant_the_last_are_listed_and_said_to_be(count: int, hint: str) -> None:
    with pytest.raises(UsageError, match=f"{count} runs") as caught:
        find_run(History(runs=tuple(run(id=f"a{i}") for i in range(count))), "a")
    assert hint in caught.value.hint


def test_nothing_kept_has_its_own_message() -> None:
    with pytest.raises(UsageError, match="No benchmark is kept"):
        find_run(History(), "last")


def test_an_id_that_begins_another_is_itself() -> None:
    kept = History(runs=(run(id="abc"), run(id="abcd")))
    assert find_run(kept, "abc").id == "abc"


@pytest.mark.parametrize(
    "other",
    [
        {"model": "qwen3-8b"},
        {"quantization": "MQ4"},
        {"options": options(repetitions=9)},
        {"options": options(kv_type="q8_0")},
        {"machine": machine(device="NVIDIA H200", kind="cuda")},
        {"files": (dataclasses.replace(run().files[0], sha256="00" * 32),)},
        {"is_partial": True},
        {"backends": ()},
    ],
)
def test_the_last_run_like_one_is_of_the_same_files_options_and_device(other: dict[str, object]) -> None:
    like, unlike, now = run(id="like"), run(id="unlike", **other), run(id="now")
    assert last_like([like, unlike], now) is like
    assert last_like([unlike], now) is None


def test_a_run_that_has_no_numbers_of_a_row_is_compared_with_only_where_none_has() -> None:
    good, now = run(backend(row(), row("pp512")), id="good"), run(backend(row(), row("pp512")), id="now")
    invalid = run(backend(row(), without_numbers(row("pp512"), "it wrote no token")), id="invalid")
    refusing = run(backend(row()), refused("llamacpp", "no memory"), id="refusing")
    for bad in (invalid, refusing):
        assert last_like([good, bad], now) is good
        assert last_like([dataclasses.replace(bad, id="earlier"), bad], now) is bad  # that it lacks them is said
        assert last_like([good, bad], dataclasses.replace(bad, id="now")) is bad  # nor has the new one any


def test_versions_and_speeds_may_differ_between_runs_that_are_alike() -> None:
    before = run(backend(row(samples=(1.0, 2.0))), id="b", machine=machine(versions={"runner": "0.0.1"}, driver="x"))
    assert last_like([run(id="a"), before], run(id="now")) is before
    assert last_like([run(id="now")], run(id="now")) is None


def test_a_report_in_json_is_read_back_as_the_run_that_it_was(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text(json.dumps(run_json(full_run())))
    assert read_run(path) == full_run()
    path.write_text('{"schema": "runner.ls/1"}')
    with pytest.raises(UsageError, match=f"it is no {SCHEMA}"):
        read_run(path)
    with pytest.raises(UsageError, match="There is no"):
        read_run(tmp_path / "none.json")
    with pytest.raises(RunnerError, match="cannot be read"):
        read_run(tmp_path)


def test_a_line_is_ascii_so_that_no_encoding_can_break_it(tmp_path: Path) -> None:
    path = tmp_path / "bench.jsonl"
    odd = run(model="modèle \ud800 \u2028 x")
    append_run(path, odd)
    assert path.read_bytes().isascii()
    assert read_history(path).runs == (odd,)
