"""What a loaded model is held against: the estimate it was loaded by, and the bandwidth that was measured."""

from __future__ import annotations

from dataclasses import replace

import pytest
from live_samples import loaded

from runner.bench.bytes_read import CacheRead
from runner.bench.record import Bandwidth
from runner.bench.store import append_run
from runner.config import LoadOptions
from runner.engine import Engine
from runner.events import Loaded
from runner.fit_history import read_history
from runner.machine import devices
from runner.paths import Paths, user_paths
from runner.tui.yardstick import RUN_BENCH, Yardstick, load_facts, measured_bandwidth, measured_since, without_this_load
from runner.types import Device
from tests.bench.bench_records import machine, run

OPTIONS = LoadOptions(ctx_size=512, n_threads=1, backend="llamacpp")
MEMORY = Device(kind="cpu", index=0, name="AMD EPYC", total_bytes=8 * 2**30, free_bytes=2**30)


def load_demo(paths: Paths) -> Loaded:
    engine = Engine(paths)
    *_, last = engine.load("demo", OPTIONS, offline=True)
    engine.close()
    assert isinstance(last, Loaded)
    return last


def with_bandwidth(bytes_s: float, **about: object) -> object:
    return machine(bandwidth=Bandwidth(bytes_s=bytes_s, method="measured"), **about)


def test_the_newest_benchmark_of_the_same_device_counts() -> None:
    runs = [
        run(machine=with_bandwidth(1e9)),
        run(machine=with_bandwidth(2e9)),
        run(machine=machine(bandwidth=None)),
        run(machine=with_bandwidth(3e9, device="another")),
        run(machine=with_bandwidth(4e9, kind="cuda")),
    ]
    assert measured_bandwidth(runs, MEMORY) == 2e9
    assert measured_bandwidth(runs, replace(MEMORY, name="unknown")) is None
    assert measured_bandwidth([], MEMORY) is None


def test_a_share_is_bytes_read_by_speed_over_what_was_measured() -> None:
    stick = Yardstick(token_bytes=4_000_000, cache=CacheRead(per_position=((1000.0, 0),)), bandwidth_bytes_s=1e9)
    assert stick.share(100.0, 1000) == pytest.approx(0.5)
    assert Yardstick(token_bytes=1, bandwidth_bytes_s=1e9, unknown=RUN_BENCH).share(100.0, 10) is None
    assert Yardstick(token_bytes=1).share(100.0, 10) is None


def test_a_loaded_model_has_its_estimate_and_no_bandwidth_before_a_benchmark() -> None:
    paths = user_paths()
    first = load_demo(paths)
    facts = load_facts(paths, "demo", first, OPTIONS)
    assert facts.fit is not None
    assert facts.fit.need == facts.fit.estimated  # its own load has not corrected it
    assert facts.fit.n_loads == 0
    assert facts.fit.total_bytes > 10 * 2**20
    assert facts.yardstick.unknown == RUN_BENCH


def test_the_second_load_was_estimated_by_the_first() -> None:
    paths = user_paths()
    load_demo(paths)
    facts = load_facts(paths, "demo", load_demo(paths), OPTIONS)
    assert facts.fit is not None
    assert facts.fit.n_loads == 1


def test_a_benchmark_of_this_machine_gives_the_bandwidth() -> None:
    paths = user_paths()
    here = devices()[-1]
    append_run(paths.bench_history, run(machine=with_bandwidth(20e9, kind="cpu", device=here.name)))
    facts = load_facts(paths, "demo", load_demo(paths), OPTIONS)
    assert facts.yardstick.unknown == ""
    share = facts.yardstick.share(1000.0, 0)
    assert share is not None
    assert 0.5 < share < 1.5  # the demo's 20 MB a thousand times a second, of 20 GB/s
    assert facts.yardstick.share(1000.0, 500) > share


def test_a_benchmark_that_another_program_ran_meanwhile_gives_it_too() -> None:
    paths = user_paths()
    model = load_demo(paths)
    before = load_facts(paths, "demo", model, OPTIONS).yardstick
    assert measured_since(before, paths, model) == before
    append_run(paths.bench_history, run(machine=with_bandwidth(20e9, kind="cpu", device=devices()[-1].name)))
    assert measured_since(before, paths, model) == load_facts(paths, "demo", model, OPTIONS).yardstick


def test_a_model_that_is_not_there_has_a_reason() -> None:
    facts = load_facts(user_paths(), "no-such-model", loaded(), OPTIONS)
    assert facts.fit is None
    assert facts.yardstick.unknown.startswith("how much a token reads is not known")


def test_a_model_in_two_memories_has_no_bandwidth() -> None:
    facts = load_facts(user_paths(), "demo", loaded(n_gpu_layers=18, device="GPU (18 of 36 layers)"), OPTIONS)
    has_gpu = devices()[0].kind != "cpu"
    assert facts.yardstick.unknown == ("the model is in two memories" if has_gpu else RUN_BENCH)


def test_records_of_other_loads_stay() -> None:
    paths = user_paths()
    first = load_demo(paths)
    records = read_history(paths.fit_history)
    assert len(records) == 1
    assert without_this_load(records, first) == ()
    assert without_this_load(records, loaded()) == records
    assert without_this_load((), first) == ()
