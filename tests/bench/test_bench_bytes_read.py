"""How many bytes a decoded token reads, counted from headers."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fit_models import write_gemma3, write_qwen35
from gguf import GGUFReader, GGUFWriter
from safetensors.numpy import load_file, save_file

from runner.bench.bytes_read import cache_read, state_bytes, stored_weights, weights_read
from runner.config import LONGEST_DRAFT, LoadOptions
from runner.model_config import num_parameters, parse_model_config
from runner.types import MemoryUse, ModelInfo, ReadyModel
from tests.backends.native import tiny_models
from tests.backends.native.tiny_wholes import make_whole

CONFIG = {
    "model_type": "qwen3_moe",
    "hidden_size": 8,
    "intermediate_size": 16,
    "moe_intermediate_size": 4,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 4,
    "vocab_size": 32,
    "num_experts": 4,
    "num_experts_per_tok": 1,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "max_position_embeddings": 64,
    "hidden_act": "silu",
}


def checkpoint(directory: Path, tensors: dict[str, tuple[int, ...]], **config: Any) -> ReadyModel:
    path = directory / "model.safetensors"
    save_file({name: np.zeros(shape, np.float16) for name, shape in tensors.items()}, path)
    (directory / "config.json").write_text(json.dumps({**CONFIG, **config}))
    return ReadyModel(name="m", format="safetensors", weights=(path,), directory=directory, size_bytes=1)


def demo(directory: Path) -> ReadyModel:
    path = directory / "demo-q8_0.gguf"
    return ReadyModel(name="demo", format="gguf", weights=(path,), directory=directory, size_bytes=1)


def info(backend: Any, *, n_gpu_layers: int = 0) -> ModelInfo:
    return ModelInfo(
        name="m",
        backend=backend,
        architecture="qwen3",
        num_parameters=1,
        num_layers=6,
        n_gpu_layers=n_gpu_layers,
        vocab_size=100,
        context_length=2048,
        n_ctx=2048,
        quantization="Q8_0",
        size_bytes=1,
        device="CPU",
        chat_template=None,
        bos_token="",
        eos_token="",
        longest_draft=LONGEST_DRAFT,
    )


def test_tied_embeddings_are_read_as_the_output_matrix(demo_directory: Path) -> None:
    stored = stored_weights(demo(demo_directory))
    tensors = GGUFReader(demo_directory / "demo-q8_0.gguf").tensors
    assert stored.total_bytes == sum(int(tensor.n_bytes) for tensor in tensors)
    assert stored.read_bytes == stored.total_bytes


def test_of_untied_embeddings_one_row_is_read(tmp_path: Path) -> None:
    names = {"model.embed_tokens.weight": (32, 8), "lm_head.weight": (32, 8), "model.norm.weight": (8,)}
    untied = stored_weights(checkpoint(tmp_path, names, tie_word_embeddings=False))
    assert untied.total_bytes - untied.read_bytes == 2 * 32 * 8
    copied = stored_weights(checkpoint(tmp_path, names, tie_word_embeddings=True))  # native loads no copy of them
    del names["lm_head.weight"]
    tied = stored_weights(checkpoint(tmp_path, names, tie_word_embeddings=True))
    assert tied.read_bytes == tied.total_bytes
    assert copied == tied


def test_of_a_multimodal_checkpoint_the_text_model_is_read(tmp_path: Path) -> None:
    model = make_whole("mistral3-mistral")
    read = stored_weights(tiny_models.ready(tiny_models.save(model, tmp_path)))
    embeddings = 4 * model.lm_head.weight.numel()
    n_text = sum(parameter.numel() for parameter in (*model.model.language_model.parameters(), model.lm_head.weight))
    assert (read.total_bytes, read.read_bytes) == (4 * n_text, 4 * n_text - embeddings)


def test_what_sees_and_what_drafts_is_not_read(tmp_path: Path) -> None:
    names = {"model.language_model.embed_tokens.weight": (32, 8), "model.language_model.norm.weight": (8,)}
    config = {"model_type": "mistral"} | dict.fromkeys(key for key in CONFIG if "expert" in key or "moe" in key)
    text = stored_weights(checkpoint(tmp_path, names, tie_word_embeddings=True, **config))
    assert text.read_bytes == text.total_bytes == 2 * (32 * 8 + 8)
    more = {"model.visual.blocks.0.weight": (64, 8), "mtp.fc.weight": (8, 16), "lm_head.weight": (32, 8)}
    untied = stored_weights(checkpoint(tmp_path, names | more, tie_word_embeddings=False, **config))
    assert (untied.total_bytes, untied.read_bytes) == (2 * (2 * 32 * 8 + 8), 2 * (32 * 8 + 8))


@pytest.mark.parametrize("experts", ["mlp.experts", "experts"])
def test_of_experts_the_chosen_ones_are_read(experts: str, tmp_path: Path) -> None:
    names = {f"model.layers.0.{experts}.{n}.up_proj.weight": (4, 8) for n in range(4)}
    stored = stored_weights(checkpoint(tmp_path, {**names, "model.norm.weight": (8,)}, tie_word_embeddings=True))
    assert stored.total_bytes == 2 * (4 * 32 + 8)
    assert stored.read_bytes == 2 * (32 + 8)


def gguf(path: Path, tensors: dict[str, np.ndarray[Any, Any]], *, n_experts: int = 0) -> ReadyModel:
    """Of each token one expert is used."""
    writer = GGUFWriter(path, "qwen3moe")
    writer.add_block_count(1)
    if n_experts:
        writer.add_expert_count(n_experts)
        writer.add_expert_used_count(1)
    for name, values in tensors.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return ReadyModel(name="m", format="gguf", weights=(path,), directory=path.parent, size_bytes=1)


EMBEDDINGS = {"token_embd.weight": np.zeros((32, 8), np.float32), "output.weight": np.zeros((32, 8), np.float32)}


def test_experts_of_a_gguf_are_counted_alike(tmp_path: Path) -> None:
    experts = {"blk.0.ffn_up_exps.weight": np.zeros((4, 4, 8), np.float32)}
    stored = stored_weights(gguf(tmp_path / "moe.gguf", experts | EMBEDDINGS, n_experts=4))
    assert stored.total_bytes == 4 * (128 + 256 + 256)
    assert stored.read_bytes == 4 * (32 + 256)


def test_of_a_gguf_embeddings_of_each_layer_and_layers_that_draft_are_not_read(tmp_path: Path) -> None:
    """Gemma 3n's and 4's are half of the model; GLM-4.5 and others have a layer more, for drafts."""
    more = ("per_layer_token_embd.weight", "blk.1.attn_q.weight", "blk.1.nextn.eh_proj.weight")
    tensors = {name: np.zeros((64, 8), np.float32) for name in ("blk.0.attn_q.weight", "blk.10.attn_q.weight", *more)}
    stored = stored_weights(gguf(tmp_path / "more.gguf", tensors | EMBEDDINGS))
    assert stored.read_bytes == 4 * (2 * 64 * 8 + 32 * 8)


def test_of_a_checkpoint_embeddings_of_each_layer_are_not_read_and_unused_keys_not_there(tmp_path: Path) -> None:
    """Gemma 4's small models are published with keys of layers that see those of others."""
    model = tiny_models.make("gemma4-inputs-by-layer-and-shared-caches")
    path = tiny_models.save(model, tmp_path) / "model.safetensors"
    stored = stored_weights(tiny_models.ready(tmp_path))
    table = 4 * model.model.embed_tokens_per_layer.weight.numel()
    assert stored.total_bytes == 4 * (sum(one.numel() for one in model.parameters()) + 6)  # a scalar a layer
    assert stored.read_bytes == stored.total_bytes - table
    assert stored.share == pytest.approx(stored.read_bytes / stored.total_bytes, rel=1e-3)
    unused = {"model.layers.5.self_attn.k_proj.weight": np.zeros((12, 48), np.float32)}
    save_file(load_file(path) | unused, path)
    assert stored_weights(tiny_models.ready(tmp_path)) == stored


def test_what_native_unpacks_it_reads_unpacked(tmp_path: Path) -> None:
    """gpt-oss's experts have four bits in the file, all else sixteen, and native computes with sixteen or more."""
    experts = {"blk.0.ffn_up_exps.weight": np.zeros((4, 4, 8), np.float16)}
    stored = stored_weights(gguf(tmp_path / "moe.gguf", experts | EMBEDDINGS, n_experts=4))
    as_stored = MemoryUse(weights_bytes=stored.total_bytes, kv_cache_bytes=0, workspace_bytes=0)
    assert weights_read(stored, "native", as_stored) == 2 * 32 + 4 * 256
    unpacked = MemoryUse(weights_bytes=8 * (128 + 256 + 256), kv_cache_bytes=0, workspace_bytes=0)
    assert weights_read(stored, "native", unpacked) == 8 * (32 + 256)


def test_a_checkpoint_that_native_unpacks_is_counted_by_its_config(tmp_path: Path) -> None:
    path = tiny_models.save(tiny_models.make("gpt-oss"), tmp_path)
    stored = stored_weights(tiny_models.ready(path))
    config = parse_model_config(json.loads((path / "config.json").read_text()))
    assert stored.share == pytest.approx(stored.read_bytes / stored.total_bytes)  # all of it is float32
    held = MemoryUse(weights_bytes=4 * num_parameters(config), kv_cache_bytes=0, workspace_bytes=0)
    packed = dataclasses.replace(stored, total_bytes=stored.total_bytes // 4, read_bytes=stored.read_bytes // 2)
    assert weights_read(packed, "native", held) == pytest.approx(stored.read_bytes, abs=8)


def test_native_reads_weights_as_it_holds_them_and_llama_cpp_as_they_are_stored(demo_directory: Path) -> None:
    stored = stored_weights(demo(demo_directory))
    memory = MemoryUse(weights_bytes=1000, kv_cache_bytes=0, workspace_bytes=0)
    assert weights_read(stored, "native", memory) == 1000
    assert weights_read(stored, "llamacpp", memory) == stored.total_bytes


@pytest.mark.parametrize(
    ("backend", "kv_type", "size"), [("llamacpp", "f16", 2), ("llamacpp", "f32", 4), ("native", "f16", 4)]
)
def test_each_position_of_the_context_adds_its_keys_and_values(
    demo_directory: Path, backend: str, kv_type: Any, size: int
) -> None:
    options = LoadOptions(kv_type=kv_type, n_gpu_layers=0)
    read = cache_read(demo(demo_directory), options, info(backend))
    assert read.at(1) == 6 * 2 * 4 * 64 * size  # layers, K and V, heads, their size
    assert read.at(1000.5) == 1000.5 * read.at(1)


def test_native_reads_of_a_window_no_more_than_it(demo_directory: Path, tmp_path: Path) -> None:
    path = write_gemma3(tmp_path / "gemma3.gguf", demo_directory / "demo-q8_0.gguf", num_layers=6, window=512)
    model = ReadyModel(name="m", format="gguf", weights=(path,), directory=tmp_path, size_bytes=1)
    native, llamacpp = (cache_read(model, LoadOptions(kv_type="f32"), info(name)) for name in ("native", "llamacpp"))
    row = 4 * 2 * 2 * 32  # bytes of K and V of two heads
    assert native.at(100) == llamacpp.at(100) == 6 * 100 * row
    assert native.at(4000) == (4000 + 5 * 512) * row
    assert llamacpp.at(4000) == 6 * 4000 * row


def test_layers_that_keep_nothing_read_what_others_keep(demo_directory: Path, tmp_path: Path) -> None:
    vocabulary = demo_directory / "demo-q8_0.gguf"
    own, shared = (
        write_gemma3(tmp_path / f"{num_layers}.gguf", vocabulary, num_layers=num_layers, num_shared=num_layers - 6)
        for num_layers in (6, 12)
    )
    for backend in ("native", "llamacpp"):
        once, twice = (
            cache_read(
                ReadyModel(name="m", format="gguf", weights=(path,), directory=tmp_path, size_bytes=1),
                LoadOptions(),
                info(backend),
            )
            for path in (own, shared)
        )
        assert twice.at(4000) == 2 * once.at(4000) > 0


def test_states_are_read_whole_and_once_whatever_the_backend_keeps_of_them(
    demo_directory: Path, tmp_path: Path
) -> None:
    path = write_qwen35(tmp_path / "qwen35.gguf", demo_directory / "demo-q8_0.gguf", num_layers=8)
    model = ReadyModel(name="m", format="gguf", weights=(path,), directory=tmp_path, size_bytes=1)
    keys = values = 16
    past = 3 * (2 * 2 * keys + 4 * values)  # a convolution over 4 tokens, of queries, keys and values
    assert state_bytes(model) == 6 * 4 * (4 * keys * values + past)
    assert state_bytes(demo(demo_directory)) == 0


def test_a_script_reads_nothing(tmp_path: Path) -> None:
    script = ReadyModel(name="s", format="script", weights=(), directory=tmp_path, size_bytes=0)
    assert stored_weights(script).read_bytes == 0
    assert stored_weights(script).share_of(0) == 0.0
    assert cache_read(script, LoadOptions(), info("fake")).at(100) == 0.0
    assert state_bytes(script) == 0
