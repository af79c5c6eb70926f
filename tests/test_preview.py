"""What a model would take, from files here and from the headers of a hub."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from fit_models import write_gemma3, write_llama
from gguf import GGUFWriter
from hub_server import Hub, Repo, serving
from safetensors.numpy import save
from tiny_files import read_tree

from runner.backends.llamacpp import Probe
from runner.config import LoadOptions
from runner.engine import Engine
from runner.errors import BadModelFile, BusyError, RunnerError, UsageError
from runner.events import Loaded
from runner.model_config.shapes import config_shape
from runner.paths import user_paths
from runner.prepare import ready
from runner.preview import Preview, preview
from runner.registry import Registry
from runner.types import CancelToken, Device

MIB, GIB = 2**20, 2**30
CONFIG = {
    "model_type": "qwen3",
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 1024,
}

WEIGHTS = 2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128 + 2 * 16 + 2 * 64) + 2 * 512 * 64 + 64


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serving(Hub()) as running:
        monkeypatch.setenv("HF_ENDPOINT", running.url)
        yield running


@pytest.fixture
def vocabulary(demo_directory: Path) -> Path:
    return demo_directory / "demo-q8_0.gguf"


def seen(name: str, options: LoadOptions | None = None, *, offline: bool = False) -> Preview:
    return preview(Registry.load_for().resolve(name), options or LoadOptions(ctx_size=512), offline=offline)


def safetensors_repo(config: dict[str, object], *, shards: int = 1, megabytes: int = 1) -> dict[str, bytes]:
    """A repository with `megabytes` of weights in that many shards."""
    files = {"config.json": json.dumps(config).encode(), "tokenizer.json": b"{}"}
    for number in range(1, shards + 1):
        name = "model.safetensors" if shards == 1 else f"model-{number:05d}-of-{shards:05d}.safetensors"
        files[name] = save({f"t{number}": np.zeros((megabytes * MIB // shards // 128, 64), np.float16)})
    return files


# --- from the hub ----------------------------------------------------------------------------------------------------


def test_a_remote_gguf_is_previewed_as_it_is_once_it_is_here(server: Hub, vocabulary: Path, tmp_path: Path) -> None:
    (tmp_path / "repo").mkdir()
    path = write_gemma3(tmp_path / "repo" / "tiny-F16.gguf", vocabulary)
    server.repos["who/tiny"] = Repo(read_tree(path.parent))
    remote = seen("who/tiny")
    assert remote.files == (("tiny-F16.gguf", path.stat().st_size),)
    assert remote.download_bytes == path.stat().st_size
    assert not remote.is_local
    local = seen(str(path))
    assert local.is_local
    same = {"name", "repo", "files", "download_bytes", "is_local", "backing", "fit"}
    fields = [field.name for field in dataclasses.fields(Preview) if field.name not in same]
    assert [getattr(remote, name) for name in fields] == [getattr(local, name) for name in fields]
    assert (remote.fit.need, remote.fit.kv_parts) == (local.fit.need, local.fit.kv_parts)
    assert remote.backing.name == local.backing.name == "llamacpp"


def test_of_a_large_model_only_the_header_is_fetched(server: Hub, tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "big-Q8_0.gguf", "llama")
    for key, value in {"block_count": 2, "context_length": 64, "embedding_length": 64}.items():
        writer.add_uint32(f"llama.{key}", value)
    writer.add_head_count(4)
    writer.add_tensor("token_embd.weight", np.zeros((48 * MIB // 64, 64), np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    server.repos["who/big"] = Repo({"big-Q8_0.gguf": (tmp_path / "big-Q8_0.gguf").read_bytes()})
    big = seen("who/big")
    assert big.download_bytes > 90 * MIB
    assert big.num_parameters == 48 * MIB
    assert server.sent_bytes("big-Q8_0.gguf") <= 2 * MIB


@pytest.mark.parametrize("shards", [1, 3, 40])
def test_remote_safetensors_are_counted_without_their_weights(server: Hub, shards: int) -> None:
    server.repos["who/hf"] = Repo(safetensors_repo(CONFIG, shards=shards, megabytes=32))
    found = seen("who/hf:safetensors")
    size = sum(size for name, size in found.files if name.endswith(".safetensors"))
    assert found.size_bytes == size > 31 * MIB
    assert found.download_bytes == size + len(server.repos["who/hf"].files["config.json"]) + 2
    assert found.num_parameters == config_shape(CONFIG).num_parameters == WEIGHTS
    assert found.quantization == "F16"
    assert found.backing.name == "native"
    assert found.fit.need.weights_bytes in (4 * WEIGHTS, 2 * WEIGHTS)  # by the device of this machine
    assert server.sent_bytes() < size // 4
    assert sum(name.endswith(".safetensors") for name in server.fetched()) == (shards if shards < 40 else 1)


def test_what_is_here_already_need_not_be_fetched(server: Hub, tmp_path: Path, vocabulary: Path) -> None:
    (tmp_path / "repo").mkdir()
    write_llama(tmp_path / "repo" / "tiny-F16.gguf", vocabulary)
    files = {"config.json": b"{}", **read_tree(tmp_path / "repo")}
    server.repos["who/tiny"] = Repo(files)
    spec = Registry.load_for().resolve("who/tiny")
    before = seen("who/tiny")
    ready(spec, offline=False, on_event=lambda _: None, cancel=CancelToken())
    after = seen("who/tiny")
    assert (before.download_bytes, before.is_local) == (len(files["config.json"]) + before.size_bytes, False)
    assert (after.download_bytes, after.is_local) == (0, True)


def test_an_unknown_family_is_estimated_by_its_headers_and_says_so(server: Hub) -> None:
    server.repos["who/new"] = Repo(safetensors_repo({**CONFIG, "model_type": "brand_new"}))
    found = seen("who/new:safetensors")
    assert found.num_parameters == MIB // 2
    assert "brand_new is not known" in found.notes[-1]
    assert found.backing.name is None
    assert "brand_new: model type not supported" in found.backing.reason


def test_a_remote_gguf_that_llama_cpp_does_not_know_says_so(server: Hub, vocabulary: Path) -> None:
    server.repos["who/new"] = Repo({"new-Q8_0.gguf": vocabulary.read_bytes().replace(b"qwen3", b"qwen9")})
    found = seen("who/new")
    assert found.backing.name is None
    assert "does not know the architecture 'qwen9'" in found.backing.reason


def test_a_vision_model_says_what_is_not_counted(server: Hub) -> None:
    text = {**CONFIG, "model_type": "gemma3_text"}
    whole = {"model_type": "gemma3", "text_config": text, "vision_config": {"depth": 2}}
    server.repos["who/eyes"] = Repo(safetensors_repo(whole))
    assert "not the vision part" in seen("who/eyes:safetensors").notes[0]


def test_a_malformed_remote_header_is_an_error(server: Hub) -> None:
    server.repos["who/bad"] = Repo({"bad-Q8_0.gguf": b"GGUF" + b"\xff" * 100})
    with pytest.raises(RunnerError, match=r"bad-Q8_0\.gguf"):
        seen("who/bad")
    server.repos["who/worse"] = Repo({**safetensors_repo(CONFIG), "config.json": b"[]"})
    with pytest.raises(BadModelFile, match=r"config\.json"):
        seen("who/worse:safetensors")


def test_offline_asks_nobody(server: Hub) -> None:
    server.repos["who/hf"] = Repo(safetensors_repo(CONFIG))
    with pytest.raises(BusyError, match="--offline forbids"):
        seen("who/hf:safetensors", offline=True)
    assert server.requests == []
    assert seen("demo", offline=True).is_local


@pytest.mark.usefixtures("server")
def test_no_such_repository_is_a_usage_error() -> None:
    with pytest.raises(UsageError):
        seen("no/body")


# --- what would fit --------------------------------------------------------------------------------------------------


def test_a_model_that_does_not_fit_names_a_quantization_of_the_listing_that_would(
    server: Hub, tmp_path: Path, vocabulary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "repo").mkdir()
    write_llama(tmp_path / "repo" / "tiny-F16.gguf", vocabulary, num_layers=8)
    files = read_tree(tmp_path / "repo")
    files["tiny-Q2_K.gguf"] = files["tiny-F16.gguf"][:100_000]
    server.repos["who/tiny"] = Repo(files)
    need = seen("who/tiny:F16").fit.total_bytes
    ram = Device(kind="cpu", index=0, name="RAM", total_bytes=GIB, free_bytes=need - 500_000)
    monkeypatch.setattr("runner.preview.devices", lambda: (ram,))
    found = seen("who/tiny:F16")
    assert not found.fit.is_fitting
    assert found.remedy is not None
    assert found.remedy.quant is not None
    assert (found.remedy.quant.name, found.remedy.quant.size_bytes) == ("who/tiny:Q2_K", 100_000)


# --- here ------------------------------------------------------------------------------------------------------------


def test_the_demo_is_previewed_from_its_files() -> None:
    found = seen("demo")
    assert (found.name, found.repo, found.is_local, found.download_bytes) == ("demo", "", True, 0)
    assert found.num_parameters == 18_357_504
    assert found.quantization == "Q8_0"
    assert found.bpw == pytest.approx(8.51, abs=0.01)
    assert (found.backing.name, found.context_length) == ("llamacpp", 2048)
    assert found.fit.is_fitting
    assert found.remedy is None


def test_what_drafts_on_a_gpu_is_known_before_a_model_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Device(kind="cuda", index=0, name="GPU", total_bytes=24 * GIB, free_bytes=23 * GIB)
    ram = Device(kind="cpu", index=0, name="RAM", total_bytes=24 * GIB, free_bytes=23 * GIB)
    monkeypatch.setattr("runner.preview.devices", lambda: (gpu, ram))
    built_for_it = Probe(version="0.0.0", gpu_offload=True, error=None)
    monkeypatch.setattr("runner.fit.arithmetic.probe", lambda: built_for_it)
    options = LoadOptions(ctx_size=512, backend="llamacpp")
    assert seen("demo", options).drafting.reason.startswith("llama.cpp on a GPU rounds")
    for changed in ({"n_gpu_layers": 0}, {"speculation": "suffix"}, {"backend": "native"}):
        assert seen("demo", dataclasses.replace(options, **changed)).drafting.drafter == "suffix"  # type: ignore[arg-type]


def test_how_a_model_of_the_registry_is_had_in_our_own_bits_is_told_where_a_gpu_is(
    server: Hub, tmp_path: Path, vocabulary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "repo").mkdir()
    write_llama(tmp_path / "repo" / "Qwen3-0.6B-Q8_0.gguf", vocabulary)
    server.repos["unsloth/Qwen3-0.6B-GGUF"] = Repo(read_tree(tmp_path / "repo"))
    assert seen("qwen3-0.6b").in_own_bits == ""  # there is no GPU
    gpu = Device(kind="cuda", index=0, name="GPU", total_bytes=24 * GIB, free_bytes=23 * GIB)
    monkeypatch.setattr("runner.own_bits.gpu_for_kernels", lambda: gpu)
    assert "runner pull qwen3-0.6b:safetensors, then runner quantize qwen3-0.6b" in seen("qwen3-0.6b").in_own_bits
    (user_paths().models / "Qwen3-0.6B-mq4").mkdir(parents=True)
    assert seen("qwen3-0.6b").in_own_bits.endswith("runner chat Qwen3-0.6B-mq4")
    assert seen("unsloth/Qwen3-0.6B-GGUF:Q8_0").in_own_bits == seen("qwen3-0.6b").in_own_bits
    assert seen("demo", LoadOptions(ctx_size=512, backend="llamacpp")).in_own_bits == ""  # no repository is known of it
    gemma = {"gemma-3-4b-it-Q4_K_M.gguf": (tmp_path / "repo" / "Qwen3-0.6B-Q8_0.gguf").read_bytes()}
    server.repos["ggml-org/gemma-3-4b-it-GGUF"] = Repo(gemma)
    assert "runner quantize gemma-3-4b" in seen("gemma-3-4b").in_own_bits  # by its text model
    for repo, file in (("E2B", "E2B-it-Q4_K_M"), ("31B", "31B-it-Q4_K_M"), ("26B-A4B", "26B-A4B-it-UD-Q4_K_M")):
        files = {f"gemma-4-{file}.gguf": gemma["gemma-3-4b-it-Q4_K_M.gguf"]}
        server.repos[f"unsloth/gemma-4-{repo}-it-GGUF"] = Repo(files)
    for name in ("gemma-4-e2b", "gemma-4-31b", "gemma-4-26b-a4b"):
        assert f"runner quantize {name}" in seen(name).in_own_bits
    monkeypatch.setattr("runner.own_bits.gpu_for_kernels", lambda: dataclasses.replace(gpu, free_bytes=1000))
    assert seen("qwen3-0.6b").in_own_bits == ""


def test_who_loads_a_model_by_llama_cpp_beside_a_gpu_for_our_kernels_is_told_what_is_faster(
    server: Hub, demo_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gguf = (demo_directory / "demo-q8_0.gguf").read_bytes()
    server.repos["unsloth/Qwen3-0.6B-GGUF"] = Repo({"Qwen3-0.6B-Q8_0.gguf": gguf})
    gpu = Device(kind="cuda", index=0, name="GPU", total_bytes=24 * GIB, free_bytes=23 * GIB)
    monkeypatch.setattr("runner.own_bits.gpu_for_kernels", lambda: gpu)
    engine = Engine(user_paths())
    for backend, is_told in (("auto", True), ("llamacpp", False)):
        *_, loaded = engine.load("qwen3-0.6b", LoadOptions(ctx_size=512, n_threads=1, backend=backend))
        assert isinstance(loaded, Loaded)
        assert loaded.info.backend == "llamacpp"
        assert ("; in four bits" in loaded.reason and "runner quantize qwen3-0.6b" in loaded.reason) == is_told
    engine.close()


def test_the_fake_model_takes_nothing() -> None:
    found = seen("fake")
    assert (found.backing.name, found.fit.total_bytes, found.files) == ("fake", 0, ())


def test_a_preview_is_corrected_by_what_loads_took() -> None:
    options = LoadOptions(n_threads=1, ctx_size=512, warmup=False)
    before = seen("demo", options)
    assert before.fit.n_loads == 0
    engine = Engine(user_paths())
    list(engine.load("demo", options))
    assert engine.loaded is not None
    used = engine.loaded.memory
    engine.close()
    after = seen("demo", options)
    assert after.fit.n_loads == 1
    assert after.fit.estimated == before.fit.need != after.fit.need
    assert after.fit.need.total_bytes == pytest.approx(used.total_bytes, rel=0.01)
