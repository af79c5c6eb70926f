"""Which GGUFs the native backend is chosen for on a GPU, without one: the driver's answers are given."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from runner.backends import choose
from runner.backends.native import preference
from runner.config import LoadOptions
from runner.types import Device, ReadyModel

H100 = Device(kind="cuda", index=0, name="NVIDIA H100", total_bytes=80 << 30, free_bytes=79 << 30)
RAM = Device(kind="cpu", index=0, name="a CPU", total_bytes=64 << 30, free_bytes=32 << 30)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A machine with an H100 and a torch that is built for it; a test may change each."""
    monkeypatch.setattr(preference, "devices", lambda: (H100, RAM))
    monkeypatch.setattr(preference, "cuda_capability", lambda _: (9, 0))
    monkeypatch.setattr(preference, "is_torch_for_nvidia", lambda: True)
    monkeypatch.setattr(preference, "can_compile", lambda: True)
    return monkeypatch


@pytest.fixture
def demo(demo_directory: Path) -> ReadyModel:
    return gguf(demo_directory / "demo-q8_0.gguf")


def gguf(path: Path) -> ReadyModel:
    return ReadyModel(
        name=path.stem, format="gguf", weights=(path,), directory=path.parent, size_bytes=path.stat().st_size
    )


@pytest.mark.usefixtures("gpu")
def test_a_small_gguf_with_its_files_runs_on_the_kernels(demo: ReadyModel) -> None:
    choice = choose(demo, LoadOptions())
    assert (choice.name, choice.is_fallback) == ("native", False)
    assert choice.reason == "it has kernels for NVIDIA H100"
    assert choose(demo, LoadOptions(backend="llamacpp")).name == "llamacpp"


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("n_gpu_layers", [0, 3])
def test_a_model_that_is_to_be_in_main_memory_is_left_to_llama_cpp(demo: ReadyModel, n_gpu_layers: int) -> None:
    assert preference.advantage(demo, LoadOptions(n_gpu_layers=n_gpu_layers)) is None


def test_a_machine_that_cannot_run_the_kernels_has_llama_cpp(gpu: pytest.MonkeyPatch, demo: ReadyModel) -> None:
    def is_native() -> bool:
        return choose(demo, LoadOptions()).name == "native"

    assert is_native()
    with gpu.context() as changed:
        changed.setattr(preference, "devices", lambda: (RAM,))
        assert not is_native()
    with gpu.context() as changed:
        changed.setattr(preference, "cuda_capability", lambda _: (7, 5))
        assert not is_native()
    with gpu.context() as changed:
        changed.setattr(preference, "cuda_capability", lambda _: (8, 0))  # the least that they are compiled for
        assert is_native()
    with gpu.context() as changed:
        changed.setattr(preference, "cuda_capability", lambda _: None)
        assert not is_native()
    with gpu.context() as changed:
        changed.setattr(preference, "is_torch_for_nvidia", lambda: False)
        assert not is_native()
    with gpu.context() as changed:
        changed.setattr(preference, "can_compile", lambda: False)
        assert not is_native()
    full = Device(kind="cuda", index=0, name="full", total_bytes=80 << 30, free_bytes=70 << 20)
    with gpu.context() as changed:
        changed.setattr(preference, "devices", lambda: (full, RAM))
        assert not is_native()
        assert choose(demo, LoadOptions(), is_emptied=True).name == "native"
    assert is_native()


def test_without_a_c_compiler_nothing_can_be_compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object() if name == "triton" else None)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not preference.can_compile()
    (tmp_path / "gcc").touch(0o755)
    assert preference.can_compile()
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert not preference.can_compile()


@pytest.mark.usefixtures("gpu")
def test_a_gguf_alone_is_llama_cpps(demo: ReadyModel, tmp_path: Path) -> None:
    alone = gguf(Path(shutil.copy(demo.weights[0], tmp_path / "alone.gguf")))
    choice = choose(alone, LoadOptions())
    assert (choice.name, choice.is_fallback) == ("llamacpp", False)
    shutil.copy(demo.directory / "config.json", tmp_path)
    assert choose(alone, LoadOptions()).name == "llamacpp"
    shutil.copy(demo.directory / "tokenizer.json", tmp_path)
    assert choose(alone, LoadOptions()).name == "native"


def test_weights_that_grow_in_memory_are_llama_cpps_unless_there_are_few(
    gpu: pytest.MonkeyPatch, demo: ReadyModel
) -> None:
    gpu.setattr(preference, "_FEW_BYTES", {(9, 0): 30 << 20})  # the demo's 18 million are 35 MiB in bfloat16
    assert preference.advantage(demo, LoadOptions()) is None
    as_wide = ReadyModel(
        name="demo", format="gguf", weights=demo.weights, directory=demo.directory, size_bytes=2 * 18_357_504
    )
    assert preference.advantage(as_wide, LoadOptions()) is not None
    gpu.setattr(preference, "cuda_capability", lambda _: (8, 9))
    assert preference.advantage(demo, LoadOptions()) is not None
    gpu.setattr(preference, "_FEW_BYTES_ELSEWHERE", 30 << 20)
    assert preference.advantage(demo, LoadOptions()) is None
