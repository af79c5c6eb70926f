"""The values of a run: statistics, what a row may not be, and JSON there and back."""

from __future__ import annotations

import dataclasses
import json

import pytest

from runner.bench.record import (
    Bandwidth,
    BenchBackend,
    BenchComparison,
    BenchMachine,
    BenchOptions,
    BenchRow,
    BenchRun,
    MachineState,
    ModelFile,
    OtherProcess,
    SkippedTest,
    run_from_json,
    run_to_json,
    without_numbers,
)
from runner.types import MemoryUse

ROW = BenchRow(
    model="m",
    backend="native",
    test="tg128",
    unit="tok/s",
    samples=(90.0, 100.0, 110.0),
    segments=(2, 1),
    cold=70.0,
    n_gen=128,
    bytes_per_token=10**9,
    bandwidth_share=0.5,
)
STATE = MachineState(
    clock_mhz=1755, throttled=("heat",), others=(OtherProcess(pid=1, name="x", bytes=None),), load_average=0.5
)
RUN = BenchRun(
    id="20260131-120000-4f2a",
    started_at="2026-01-31T12:00:00+00:00",
    duration_s=20.5,
    model="m",
    format="gguf",
    architecture="llama",
    quantization="Q8_0",
    num_parameters=10,
    size_bytes=20,
    files=(ModelFile(path="/m.gguf", size_bytes=20, sha256="ab", how="computed"),),
    prompts_md5="cd",
    options=BenchOptions(
        n_prompt=(512,),
        n_gen=(128,),
        depths=(0,),
        prefill_depths=(0,),
        repetitions=5,
        backends=("auto",),
        kv_type="f16",
        n_gpu_layers="auto",
    ),
    machine=BenchMachine(
        device="NVIDIA L4",
        kind="cuda",
        memory_bytes=100,
        driver="570",
        cpu="CPU",
        physical_cores=2,
        usable_cores=2,
        ram_bytes=100,
        os="Linux",
        before=STATE,
        after=STATE,
        bandwidth=Bandwidth(bytes_s=3e11, method="sum"),
        versions={"runner": "0.1.0"},
    ),
    backends=(
        BenchBackend(
            name="native",
            memory=MemoryUse(weights_bytes=1, kv_cache_bytes=2, workspace_bytes=3),
            load_s=1.0,
            rows=(ROW, without_numbers(ROW, "it computes logits that are not numbers")),
        ),
        BenchBackend(name="llamacpp", refused="it reads GGUF files"),
    ),
    skipped=(SkippedTest(test="tg128 @ d4096", reason="no room"),),
    comparison=(BenchComparison(backend="native", against="llamacpp", n_same=3, n_ids=9),),
    notes=("busy",),
)


def test_statistics_of_a_row_are_those_of_its_samples() -> None:
    assert (ROW.mean, ROW.median, ROW.min, ROW.max) == (100.0, 100.0, 90.0, 110.0)
    assert ROW.stddev == pytest.approx(10.0)  # n - 1
    assert ROW.cv == pytest.approx(0.1)
    assert ROW.is_noisy
    assert not dataclasses.replace(ROW, samples=(99.0, 100.0, 101.0)).is_noisy


def test_one_sample_has_no_spread_and_none_has_no_statistics() -> None:
    one = dataclasses.replace(ROW, samples=(5.0,), segments=(1,))
    assert (one.mean, one.stddev, one.cv, one.is_noisy) == (5.0, None, None, False)
    none = dataclasses.replace(ROW, samples=(), segments=())
    assert (none.mean, none.median, none.min, none.max, none.cv) == (None,) * 5


def test_an_invalid_row_has_no_numbers() -> None:
    invalid = without_numbers(ROW, "damaged")
    assert (invalid.samples, invalid.mean, invalid.cold, invalid.bandwidth_share) == ((), None, None, None)
    assert invalid.invalid == "damaged"
    with pytest.raises(ValueError, match="invalid and has numbers"):
        dataclasses.replace(ROW, invalid="damaged")
    for number in ({"samples": (5.0,), "segments": (1,)}, {"cold": 5.0}, {"bandwidth_share": 0.5}):
        with pytest.raises(ValueError, match="invalid and has numbers"):
            dataclasses.replace(invalid, **number)


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_what_is_no_measurement_is_no_sample(bad: float) -> None:
    with pytest.raises(ValueError, match="no measurements"):
        dataclasses.replace(ROW, samples=(1.0, 2.0, bad))


def test_every_sample_belongs_to_a_process() -> None:
    with pytest.raises(ValueError, match="belong to no process"):
        dataclasses.replace(ROW, segments=(1, 1))
    with pytest.raises(ValueError, match="belong to no process"):
        dataclasses.replace(ROW, segments=(4, -1))


def test_a_run_goes_through_json_and_back() -> None:
    text = json.dumps(run_to_json(RUN), allow_nan=False)
    assert run_from_json(json.loads(text)) == RUN
    plain = json.loads(text)
    assert plain["schema"] == "runner.bench/2"
    assert plain["backends"][0]["rows"][0]["mean"] == 100.0
    assert plain["backends"][0]["rows"][1]["mean"] is None


@pytest.mark.parametrize("change", [{"schema": "runner.bench/3"}, {"backends": None}, {"backends": [{}]}, {"new": 1}])
def test_another_schema_and_damage_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        run_from_json({**run_to_json(RUN), **change})


def test_a_run_with_an_invalid_row_is_invalid() -> None:
    assert RUN.is_invalid
    sound = dataclasses.replace(RUN, backends=(dataclasses.replace(RUN.backends[0], rows=(ROW,)),))
    assert not sound.is_invalid
    assert sound.rows == (ROW,)
