from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner import __version__
from runner.config import LoadOptions
from runner.engine import Engine
from runner.fit_history import (
    LAST,
    LIMITS,
    MAX_RECORDS,
    NO_CORRECTION,
    FitKey,
    FitRecord,
    correction,
    read_history,
    record_load,
)
from runner.paths import user_paths
from runner.types import MemoryUse

KEY = FitKey(backend="llamacpp", device="cpu", architecture="qwen3", quantization="Q8_0", version=__version__)
ESTIMATED = MemoryUse(weights_bytes=1000, kv_cache_bytes=100, workspace_bytes=10)


def record(
    weights: float = 1.0, kv_cache: float = 1.0, workspace: float = 1.0, key: FitKey = KEY, estimated: int = 1000
) -> FitRecord:
    return FitRecord(
        key=key,
        estimated=MemoryUse(weights_bytes=estimated, kv_cache_bytes=1000, workspace_bytes=1000),
        actual=MemoryUse(
            weights_bytes=round(1000 * weights),
            kv_cache_bytes=round(1000 * kv_cache),
            workspace_bytes=round(1000 * workspace),
        ),
    )


# --- the correction --------------------------------------------------------------------------------------------------


def test_nothing_is_corrected_before_the_first_load() -> None:
    assert correction((), KEY) == NO_CORRECTION
    assert NO_CORRECTION.apply(ESTIMATED) == ESTIMATED


def test_an_estimate_is_corrected_by_the_median_of_the_last_loads() -> None:
    old = [record(2.0)] * 20
    recent = [record(1.1), record(1.2), record(1.3), record(1.25), record(1.9)]
    learned = correction([*old, *recent], KEY)
    assert learned.weights_bytes == pytest.approx(1.25)
    assert learned.n_loads == LAST
    assert learned.apply(ESTIMATED).weights_bytes == 1250
    assert learned.apply(ESTIMATED).kv_cache_bytes == 100


def test_each_part_is_corrected_by_its_own_factor() -> None:
    learned = correction([record(1.2, 1.5, 0.6)], KEY)
    assert learned.apply(ESTIMATED) == MemoryUse(weights_bytes=1200, kv_cache_bytes=150, workspace_bytes=6)


def test_one_odd_load_does_not_decide() -> None:
    assert correction([record(), record(), record(workspace=1.9)], KEY).workspace_bytes == 1.0


def test_ratios_are_clamped() -> None:
    assert correction([record(50.0, 0.01)], KEY).weights_bytes == LIMITS[1]
    assert correction([record(50.0, 0.01)], KEY).kv_cache_bytes == LIMITS[0]


@pytest.mark.parametrize("field", ["backend", "device", "architecture", "version"])
def test_loads_that_are_not_alike_do_not_count(field: str) -> None:
    other = FitKey(**{**vars(KEY), field: "other"})
    assert correction([record(1.5, key=other)], KEY) == NO_CORRECTION


def test_another_quantization_teaches_everything_but_the_weights() -> None:
    other = FitKey(**{**vars(KEY), "quantization": "Q4_0"})
    learned = correction([record(1.8, 1.1, 0.7, key=other)], KEY)
    assert (learned.weights_bytes, learned.kv_cache_bytes, learned.workspace_bytes) == (1.0, 1.1, 0.7)


def test_parts_that_were_not_measured_teach_nothing() -> None:
    assert correction([record(kv_cache=0.0), record(estimated=0, weights=1.5)], KEY).kv_cache_bytes == 1.0
    assert correction([record(estimated=0, weights=1.5)], KEY).weights_bytes == 1.0


# --- the file --------------------------------------------------------------------------------------------------------


def test_what_is_recorded_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "state" / "fit.jsonl"
    assert read_history(path) == ()
    record_load(path, record(1.1))
    record_load(path, record(1.2))
    assert read_history(path) == (record(1.1), record(1.2))
    assert path.stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in path.parent.iterdir()] == ["fit.jsonl"]


def test_the_file_stays_short(tmp_path: Path) -> None:
    path = tmp_path / "fit.jsonl"
    record_load(path, record())
    path.write_text(path.read_text() * (MAX_RECORDS + 50))
    record_load(path, record(1.5))
    assert len(path.read_text().splitlines()) == MAX_RECORDS
    assert read_history(path)[-1] == record(1.5)


def test_damaged_lines_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "fit.jsonl"
    record_load(path, record(1.1))
    good = path.read_text()
    bad = [
        "",
        "{",
        "null",
        "[]",
        "{}",
        '{"key": {}}',
        good[:-20],
        good.replace("1100", '"x"'),
        good.replace("1100", "-1"),
    ]
    path.write_bytes("\n".join([*bad, good]).encode() + b"\xff\xfe\x00\n" + good.encode())
    assert read_history(path) == (record(1.1), record(1.1))
    record_load(path, record(1.2))
    assert read_history(path)[-1] == record(1.2)


@given(st.binary(max_size=200))
@settings(max_examples=200)
def test_any_bytes_are_a_history(data: bytes) -> None:
    path = Path(os.environ["RUNNER_HOME"]).parent / "any.jsonl"
    path.write_bytes(data)
    assert all(isinstance(one, FitRecord) for one in read_history(path))


def test_a_huge_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "fit.jsonl"
    with path.open("wb") as file:
        file.truncate(2**40)
    assert read_history(path) == ()


def test_where_no_file_can_be_written_nothing_is_kept(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    record_load(blocked / "fit.jsonl", record())
    assert read_history(blocked / "fit.jsonl") == ()


def test_a_program_that_dies_while_it_writes_leaves_the_file_whole(tmp_path: Path) -> None:
    path = tmp_path / "fit.jsonl"
    record_load(path, record())
    code = (
        "import os, pathlib, sys, runner.fit_history as h\n"
        "real = pathlib.Path.replace\n"
        "pathlib.Path.replace = lambda *a: os._exit(9)\n"
        "h.record_load(pathlib.Path(sys.argv[1]), h.read_history(pathlib.Path(sys.argv[1]))[0])\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], check=False)
    assert done.returncode == 9
    assert read_history(path) == (record(),)


# --- the engine ------------------------------------------------------------------------------------------------------


def test_the_engine_learns_from_each_load() -> None:
    paths = user_paths()
    engine = Engine(paths)
    for _ in range(2):
        list(engine.load("demo", LoadOptions(n_threads=1, ctx_size=512, warmup=False)))
    assert engine.loaded is not None
    used = engine.loaded.memory
    engine.close()
    first, second = read_history(paths.fit_history)
    assert first == second  # the record is of the estimate before it is corrected
    assert first.actual == used
    assert first.key == KEY
    assert correction([first], KEY).apply(first.estimated).workspace_bytes == pytest.approx(
        used.workspace_bytes, rel=0.01
    )
    assert json.loads(paths.fit_history.read_text().splitlines()[0])["key"]["backend"] == "llamacpp"
