"""The machine of a run: its state, its versions, its memory's bandwidth, and the hashes of what ran on it."""

from __future__ import annotations

import dataclasses
import hashlib
import sys
from collections.abc import Generator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runner.bench.bandwidth import _cpu_bytes, read_bandwidth
from runner.bench.events import BenchStep
from runner.bench.hashed_files import hashed_files
from runner.bench.machine_state import (
    describe_machine,
    device_of_run,
    machine_notes,
    machine_state,
    over_a_run,
    versions,
)
from runner.bench.record import MachineState, ModelFile, OtherProcess
from runner.errors import RunnerError
from runner.machine import gpu_activity
from runner.machine.activity import throttle_reasons
from runner.machine.gpu import nvml
from runner.types import CancelToken, Device, ReadyModel

GPU = Device(kind="cuda", index=0, name="NVIDIA L4", total_bytes=100, free_bytes=60)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Generator[SimpleNamespace, None, None]:
    """A stand-in for NVML: one hot GPU that somebody else uses too."""
    stand_in = SimpleNamespace(
        NVMLError=RuntimeError,
        NVML_CLOCK_MEM=2,
        NVML_CLOCK_SM=1,
        NVML_TEMPERATURE_GPU=0,
        nvmlInit=lambda: None,
        nvmlSystemGetDriverVersion=lambda: "570.1",
        nvmlDeviceGetCount=lambda: 1,
        nvmlDeviceGetName=lambda _: "NVIDIA L4",
        nvmlDeviceGetUUID=lambda _: "GPU-0",
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetMemoryInfo=lambda _: SimpleNamespace(total=100, free=60, used=40),
        nvmlDeviceGetUtilizationRates=lambda _: SimpleNamespace(gpu=25),
        nvmlDeviceGetPowerUsage=lambda _: 71_500,
        nvmlDeviceGetTemperature=lambda *_: 88,
        nvmlDeviceGetClockInfo=lambda _, kind: {1: 1755, 2: 6251}[kind],
        nvmlDeviceGetCurrentClocksThrottleReasons=lambda _: 0x1 | 0x4 | 0x20,
        nvmlDeviceGetComputeRunningProcesses=lambda _: [
            SimpleNamespace(pid=2**30, usedGpuMemory=3 * 2**30),
            SimpleNamespace(pid=2**30 + 1, usedGpuMemory=None),
        ],
    )
    monkeypatch.setitem(sys.modules, "pynvml", stand_in)
    monkeypatch.setattr("runner.machine.gpu._NVML_LIBRARY", None)  # this program, which can always be opened
    nvml.cache_clear()
    yield stand_in
    nvml.cache_clear()


@pytest.mark.usefixtures("driver")
def test_the_state_of_a_gpu_is_read() -> None:
    state = machine_state(GPU)
    assert (state.clock_mhz, state.memory_clock_mhz, state.temperature_c, state.power_w) == (1755, 6251, 88.0, 71.5)
    assert state.throttled == ("power cap", "heat")
    assert [other.bytes for other in state.others] == [3 * 2**30, None]


def test_a_driver_that_answers_nothing_leaves_the_state_unknown(driver: SimpleNamespace) -> None:
    def no_answer(*_: object) -> Any:
        raise RuntimeError

    for name in vars(driver):
        if name.startswith("nvmlDevice") and name != "nvmlDeviceGetHandleByIndex":
            setattr(driver, name, no_answer)
    assert dataclasses.replace(machine_state(GPU), load_average=None) == MachineState()
    assert gpu_activity(dataclasses.replace(GPU, kind="cpu")).processes == ()


def test_an_idle_gpu_has_low_clocks_and_no_fault() -> None:
    assert throttle_reasons(0x1 | 0x2) == ()


def test_what_lowered_the_clocks_at_any_time_is_remembered() -> None:
    during = [MachineState(throttled=("heat",), clock_mhz=1000), MachineState(clock_mhz=1700)]
    other = OtherProcess(pid=7, name="game", bytes=2**30)
    state = over_a_run(during, MachineState(others=(other,)))
    assert (state.clock_mhz, state.throttled, state.others) == (1700, ("heat",), (other,))
    assert over_a_run([], state) == dataclasses.replace(state, throttled=())


@pytest.mark.usefixtures("driver")
def test_what_may_have_disturbed_a_run_is_said() -> None:
    calm, loaded = MachineState(load_average=0.0), machine_state(GPU)
    assert list(machine_notes(describe_machine(GPU, calm))) == []
    busy = dataclasses.replace(calm, load_average=1000.0)
    notes = list(machine_notes(dataclasses.replace(describe_machine(GPU, busy), after=loaded)))
    assert any("power cap, heat" in note for note in notes)
    assert any("3.0 GiB" in note for note in notes)
    assert any("a load of 1000.0" in note for note in notes)


def test_the_machine_and_its_versions_are_described() -> None:
    machine = describe_machine(device_of_run(0), MachineState())
    assert machine.kind == "cpu"
    assert machine.ram_bytes > 2**20
    assert {"runner", "python", "torch", "llama-cpp-python"} <= set(versions())


def test_a_checkout_says_its_commit_and_an_installation_does_not(tmp_path: Path) -> None:
    from runner.bench.machine_state import _commit

    assert _commit(tmp_path) == ""
    (tmp_path / ".git").write_text("gitdir: nowhere")
    assert _commit(tmp_path) == ""


def test_the_bandwidth_of_main_memory_is_plausible() -> None:
    measured = read_bandwidth("cpu", 0)
    assert 1e8 < measured.bytes_s < 1e13
    assert "numpy" in measured.method


def test_more_is_read_than_caches_hold_and_no_more_than_that_needs() -> None:
    assert _cpu_bytes(None) == 2**30
    assert _cpu_bytes(32 * 2**20) == 2**28
    assert _cpu_bytes(260 * 2**20) == 520 * 2**20
    assert _cpu_bytes(2**31) == 2**30


def test_without_a_gpu_its_bandwidth_is_refused() -> None:
    import torch

    if not torch.cuda.is_available():
        with pytest.raises(RunnerError, match="no GPU"):
            read_bandwidth("cuda", 0)


# --- hashes ----------------------------------------------------------------------------------------------------------


def hashed(model: ReadyModel, cancel: CancelToken | None = None) -> tuple[tuple[ModelFile, ...], list[BenchStep]]:
    steps: list[BenchStep] = []
    work = hashed_files(model, cancel or CancelToken())
    while True:
        try:
            steps.append(next(work))
        except StopIteration as done:
            return done.value, steps


def model(path: Path, form: Any = "gguf") -> ReadyModel:
    return ReadyModel(name="m", format=form, weights=(path,), directory=path.parent, size_bytes=1)


def test_a_file_is_hashed_and_how_far_that_is_is_told(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(bytes(9 * 2**20))
    (file,), steps = hashed(model(path))
    assert file.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert (file.size_bytes, file.how) == (9 * 2**20, "computed")
    assert [step.what for step in steps] == [f"hashing m.gguf, {percent} %" for percent in (44, 88, 100)]


def test_a_blob_of_the_cache_is_named_after_its_hash(tmp_path: Path) -> None:
    digest = hashlib.sha256(b"weights").hexdigest()
    (tmp_path / digest).write_bytes(b"weights")
    link = tmp_path / "m.gguf"
    link.symlink_to(digest)
    (file,), steps = hashed(model(link))
    assert (file.sha256, file.size_bytes, steps) == (digest, 7, [])
    assert "Hugging Face" in file.how


def test_of_a_packed_model_the_manifest_is_hashed(tmp_path: Path) -> None:
    (tmp_path / "runner.json").write_text("{}")
    (file,), _ = hashed(model(tmp_path / "model.safetensors", "packed"))
    assert file.sha256 == hashlib.sha256(b"{}").hexdigest()
    assert file.path.endswith("runner.json")


def test_a_file_that_is_gone_has_no_hash_and_says_why(tmp_path: Path) -> None:
    (file,), _ = hashed(model(tmp_path / "gone.gguf"))
    assert file.sha256 == ""
    assert "No such file" in file.how


def test_hashing_can_be_cancelled(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"x")
    cancel = CancelToken()
    cancel.cancel()
    with pytest.raises(RunnerError, match="cancelled"):
        hashed(model(path), cancel)
