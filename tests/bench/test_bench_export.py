"""A run in a file, by its suffix; the request that a run was made by; the words of a bench that is running."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runner.bench.events import BenchStep
from runner.bench.export_file import SUFFIXES, export_run
from runner.bench.figures import with_unit
from runner.bench.formats import csv_text
from runner.bench.live_text import Place, progress_place, row_line, step_place
from runner.bench.request import BenchRequest, request_like, token_counts
from runner.bench.store import read_run
from runner.config import LoadOptions
from runner.errors import RunnerError, UsageError
from runner.events import Progress
from tests.bench.bench_records import full_run, row


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_run_is_written_whole_to_be_shared_and_never_over_another_file(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"bench{suffix.upper()}"
    assert export_run(full_run(), path) == path
    (ours := tmp_path / "ours").touch()
    assert path.stat().st_mode == ours.stat().st_mode  # as the umask says
    assert "demo" in path.read_text()
    with pytest.raises(UsageError, match="is there already"):
        export_run(full_run(), path)


def test_each_format_is_what_the_command_line_writes(tmp_path: Path) -> None:
    run = full_run()
    assert export_run(run, tmp_path / "a.csv").read_text() == csv_text(run)
    assert read_run(export_run(run, tmp_path / "a.json")) == run
    assert export_run(run, tmp_path / "a.svg").read_text().startswith("<svg")
    assert "| tg128 " in export_run(run, tmp_path / "a.md").read_text()


@pytest.mark.parametrize("name", ["bench", "bench.txt", ".md", "a\0.md"])
def test_a_name_without_a_format_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="says no format"):
        export_run(full_run(), tmp_path / name)


def test_a_directory_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(RunnerError, match="cannot be written"):
        export_run(full_run(), tmp_path / "nonesuch" / "a.md")


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"n_prompt": (128, 256)},
        {"n_prompt": (0,), "n_gen": (16,)},
        {"n_gen": (0,)},
        {"depths": (0, 64)},
        {"depths": (0, 4096)},
        {"repetitions": 2},
        {"backends": ("llamacpp", "native")},
        {"is_random": True},
        {"load": LoadOptions(ctx_size=512, n_gpu_layers=3, kv_type="q8_0", n_threads=1, batch_size=64)},
    ],
)
def test_a_run_is_asked_for_again_with_equal_options(given: dict[str, object]) -> None:
    first = BenchRequest(**{"model": "demo", "load": LoadOptions(), **given})  # type: ignore[arg-type]
    again = request_like(first.options(), "demo", LoadOptions(warmup=False))
    assert again.options() == first.options()
    assert not again.load.warmup


def test_numbers_of_tokens_are_read_as_on_the_command_line() -> None:
    assert token_counts("-p", None) is None
    assert token_counts("-p", "128, 512") == (128, 512)
    with pytest.raises(UsageError, match="-p is 'many'"):
        token_counts("-p", "many")


def test_a_place_says_where_a_bench_is_and_how_far() -> None:
    step = BenchStep(what="tg128", backend="native", process=1, n_processes=4, repetition=3, n_repetitions=5)
    assert step_place(step) == Place("native, process 1 of 4: tg128, 3 of 5", 3, 5, "native 1/4: tg128 3/5")
    assert step_place(step).text_for(38) == "native, process 1 of 4: tg128, 3 of 5"
    assert step_place(step).text_for(30) == "native 1/4: tg128 3/5"
    warm = BenchStep(what="tg128", backend="native", process=1, n_processes=4, n_repetitions=5)
    assert step_place(warm).text.endswith("tg128, warm-up")
    assert step_place(warm).short == "native 1/4: tg128 warm-up"
    assert step_place(BenchStep(what="hashing")) == Place("hashing", 0, 0)
    assert progress_place(Progress("load", 1, 4, "bytes")) == Place("load, 25 %", 1, 4)
    assert progress_place(Progress("load", 7, 0, "bytes")) == Place("load, 7 bytes", 7, 0)


def test_a_row_on_one_line_says_what_is_known_of_it_now() -> None:
    assert row_line(row("tg128", (50.0, 51.0)), is_complete=False).endswith("tok/s  2 times so far")
    measured = row("ttft", (9.531, 9.583))
    assert f" {with_unit(measured)}  2 times" in row_line(measured, is_complete=True)  # as the report has it
    assert json.dumps(row_line(row("tg128", (), segments=()), is_complete=False)).endswith('nothing yet"')
