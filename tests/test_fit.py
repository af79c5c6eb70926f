from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from tiny_files import write_gguf

from runner.backends import llamacpp
from runner.config import LoadOptions
from runner.errors import BadModelFile, DoesNotFit
from runner.fit import Shape, check_fit, estimate, gpu_layers_that_fit, model_shape
from runner.types import CancelToken, Device, ReadyModel

GIB = 2**30
# Qwen3-8B: 36 layers, 8 KV heads of 128; Q4_K_M is 5.03 GB.
QWEN3_8B = Shape(
    context_length=40960,
    num_parameters=8_190_735_360,
    num_layers=36,
    hidden_size=4096,
    vocab_size=151936,
    kv_width=2 * 36 * 8 * 128,
)
Q4_BYTES = 5_030_000_000


def machine(ram_gib: float, gpu_gib: float | None = None) -> tuple[Device, ...]:
    ram = Device(kind="cpu", index=0, name="RAM", total_bytes=64 * GIB, free_bytes=round(ram_gib * GIB))
    if gpu_gib is None:
        return (ram,)
    gpu = Device(kind="cuda", index=0, name="GPU", total_bytes=80 * GIB, free_bytes=round(gpu_gib * GIB))
    return (gpu, ram)


@pytest.fixture
def demo(demo_directory: Path) -> ReadyModel:
    path = demo_directory / "demo-q8_0.gguf"
    return ReadyModel(
        name="demo", format="gguf", weights=(path,), directory=demo_directory, size_bytes=path.stat().st_size
    )


def test_kv_cache_of_a_known_model() -> None:
    fit = estimate(QWEN3_8B, Q4_BYTES, LoadOptions(ctx_size=32768), machine(64))
    assert fit.need.kv_cache_bytes == 32768 * 147456  # 144 KiB a token in f16
    half = estimate(QWEN3_8B, Q4_BYTES, LoadOptions(ctx_size=32768, kv_type="q8_0"), machine(64))
    assert half.need.kv_cache_bytes == pytest.approx(fit.need.kv_cache_bytes * 0.53, rel=0.01)


def test_a_gpu_takes_all_layers_some_or_none() -> None:
    def layers(gpu_gib: float) -> int:
        return estimate(QWEN3_8B, Q4_BYTES, LoadOptions(), machine(32, gpu_gib)).n_gpu_layers

    assert layers(24) == 36
    assert 8 < layers(4) < 28
    assert layers(0.3) == 0


def test_the_estimate_agrees_with_what_llama_cpp_allocates(demo: ReadyModel) -> None:
    options = LoadOptions(ctx_size=1024, n_threads=1)
    fit = estimate(model_shape(demo), demo.size_bytes, options, machine(8))
    backend = llamacpp.load(demo, options, lambda _: None, CancelToken())
    used = backend.memory()
    backend.close()
    assert fit.need.weights_bytes == pytest.approx(used.weights_bytes, rel=0.05)
    assert fit.need.kv_cache_bytes == pytest.approx(used.kv_cache_bytes, rel=0.01)
    assert used.workspace_bytes <= fit.need.workspace_bytes < 1.6 * used.workspace_bytes  # a bound


def test_what_does_not_fit_says_what_would(demo: ReadyModel) -> None:
    big = LoadOptions(ctx_size=2**20)
    with pytest.raises(DoesNotFit, match="KV cache for 1048576 tokens") as refused:
        check_fit(demo, big, machine(1))
    suggested = int(refused.value.hint.split("-c ")[1].split(".")[0])
    check_fit(demo, dataclasses.replace(big, ctx_size=suggested), machine(1))
    huge = dataclasses.replace(demo, size_bytes=40 * GIB)
    with pytest.raises(DoesNotFit) as refused:
        check_fit(huge, LoadOptions(), machine(8))
    assert "smaller model" in refused.value.hint
    check_fit(huge, LoadOptions(), machine(30, 16))  # split between GPU and RAM


def test_native_holds_wider_weights_than_the_file() -> None:
    on_cpu = estimate(QWEN3_8B, Q4_BYTES, LoadOptions(), machine(64), "native").need
    on_gpu = estimate(QWEN3_8B, Q4_BYTES, LoadOptions(), machine(64, 40), "native").need
    assert on_cpu.weights_bytes == 4 * QWEN3_8B.num_parameters == 2 * on_gpu.weights_bytes
    assert on_cpu.kv_cache_bytes == 2 * on_gpu.kv_cache_bytes


def test_gpu_layers_of_a_file(demo: ReadyModel) -> None:
    assert gpu_layers_that_fit(demo, LoadOptions(), machine(8, 8)[:1]) == 7


def test_shape_from_a_hugging_face_config(shared_data: Path, tmp_path: Path) -> None:
    config = json.loads((shared_data / "configs" / "Qwen--Qwen3-8B_config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = ReadyModel(name="m", format="safetensors", weights=(), directory=tmp_path, size_bytes=0)
    assert model_shape(model) == QWEN3_8B


def test_a_gguf_without_its_shape_is_named(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "shapeless.gguf")
    model = ReadyModel(name="x", format="gguf", weights=(path,), directory=tmp_path, size_bytes=path.stat().st_size)
    with pytest.raises(BadModelFile, match=r"shapeless\.gguf has no number under llama\.block_count") as caught:
        model_shape(model)
    assert caught.value.hint
