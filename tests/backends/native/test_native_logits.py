from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from numpy.typing import NDArray
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from runner.backends.base import Backend
from runner.backends.native.architectures import ARCHITECTURES
from runner.backends.native.placement import prefill_chunk
from runner.config import LoadOptions, SamplingParams
from runner.model_config import parse_model_config
from runner.model_config.families import FAMILIES
from runner.model_config.shapes import KNOWN_FAMILIES
from tests.backends.conformance import take
from tests.backends.native.tiny_models import TINY, VOCAB, load, make, ready, save

IDS = [int(token) for token in np.random.default_rng(3).integers(0, VOCAB, 41)]


def scores(backend: Backend, ids: Sequence[int]) -> NDArray[np.float32]:
    return np.stack([entry.values for entry in backend.score(ids)])


def reference(model: PreTrainedModel, ids: Sequence[int]) -> NDArray[np.float32]:
    with torch.inference_mode():
        logits: NDArray[np.float32] = model(torch.tensor([list(ids)])).logits[0].float().numpy()
    return logits


def relative_error(found: NDArray[np.float32], expected: NDArray[np.float32]) -> float:
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def greedy(model: PreTrainedModel, prompt: Sequence[int], n: int) -> list[int]:
    """n greedy tokens by transformers, each from the whole sequence: no cache that could be wrong."""
    ids = list(prompt)
    for _ in range(n):
        ids.append(int(reference(model, ids)[-1].argmax()))
    return ids[len(prompt) :]


def test_every_family_is_built_compared_and_counted() -> None:
    compared = {model_type for model_type, _ in TINY.values()}
    assert FAMILIES.keys() == set(ARCHITECTURES) == compared | {"mimo"}  # transformers has none: test_heads_mtp.py
    assert FAMILIES.keys() <= set(KNOWN_FAMILIES)


@pytest.mark.parametrize("name", TINY)
def test_logits_and_greedy_ids_equal_transformers(name: str, tmp_path: Path) -> None:
    model = make(name)
    backend = load(ready(save(model, tmp_path)), batch_size=64)
    assert relative_error(scores(backend, IDS), reference(model, IDS)) < 1e-4
    assert take(backend, IDS[:20], 12) == greedy(model, IDS[:20], 12)
    assert backend.info.num_parameters == sum(parameter.numel() for parameter in model.parameters())


CHUNKED = ("llama-tied", "mistral-window", "qwen2-window-in-upper-layers", "qwen3", "gemma4")
CHUNKED += ("gemma4-inputs-by-layer-and-shared-caches",)
CHUNKED += (
    "gemma2",
    "gemma3",
    "phi3-partial-rope-and-window",
    "phi3-long-rope",
    "olmo2",
    "olmo3",
    "smollm3",
    "ministral3",
    "qwen3-5",
)


@pytest.mark.parametrize("name", CHUNKED)
@pytest.mark.parametrize("batch_size", [1, 6, 7, 8])
def test_chunked_prefill_equals_one_shot(name: str, batch_size: int, tmp_path: Path) -> None:
    directory = save(make(name), tmp_path)
    whole, chunked = load(ready(directory), batch_size=64), load(ready(directory), batch_size=batch_size)
    assert relative_error(scores(chunked, IDS), scores(whole, IDS)) < 1e-5
    assert take(chunked, IDS, 8) == take(whole, IDS, 8)


@pytest.mark.parametrize("name", CHUNKED)
def test_a_prefix_that_is_reused_gives_the_ids_of_a_cold_start(name: str, tmp_path: Path) -> None:
    directory = save(make(name), tmp_path)
    warm, cold = load(ready(directory)), load(ready(directory))
    take(warm, IDS[:30], 6)
    assert take(warm, [*IDS[:25], 3, 4, 5], 8) == take(cold, [*IDS[:25], 3, 4, 5], 8)


@pytest.mark.parametrize("name", ["qwen3", "qwen3-5"])
def test_beyond_the_first_block_of_the_cache_logits_still_equal_transformers(name: str, tmp_path: Path) -> None:
    model = make(name, max_position_embeddings=1024)
    ids = [int(token) for token in np.random.default_rng(5).integers(0, VOCAB, 700)]
    backend = load(ready(save(model, tmp_path)), batch_size=96)
    assert relative_error(scores(backend, ids), reference(model, ids)) < 1e-4


def test_a_sharded_checkpoint_equals_a_single_file(tmp_path: Path) -> None:
    model = make("qwen3")
    single, sharded = save(model, tmp_path / "one"), save(model, tmp_path / "many", max_shard_size="40KB")
    assert len(list(sharded.glob("*.safetensors"))) > 2
    assert np.array_equal(scores(load(ready(sharded)), IDS), scores(load(ready(single)), IDS))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_checkpoints_are_computed_in_float32(dtype: torch.dtype, tmp_path: Path) -> None:
    model = make("llama-untied-one-kv-head").to(dtype)
    backend = load(ready(save(model, tmp_path)))
    # Not model.float(): that would keep rotary frequencies which were rounded too.
    exact = type(model).from_pretrained(tmp_path, dtype=torch.float32)
    assert relative_error(scores(backend, IDS), reference(exact, IDS)) < 1e-4
    assert backend.info.quantization == {torch.bfloat16: "BF16", torch.float16: "F16"}[dtype]


def test_a_tied_checkpoint_that_carries_the_output_matrix_too_is_read(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    model = make("qwen3")
    path = save(model, tmp_path) / "model.safetensors"
    tensors = load_file(path)
    save_file({**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"].clone()}, path)
    assert relative_error(scores(load(ready(tmp_path)), IDS), reference(model, IDS)) < 1e-4


def test_the_bf16_cache_is_near_the_f32_one_and_half_as_large(tmp_path: Path) -> None:
    directory = save(make("qwen3"), tmp_path)
    exact, half = load(ready(directory)), load(ready(directory), kv_type="bf16")
    error = relative_error(scores(half, IDS), scores(exact, IDS))
    assert 0 < error < 0.05
    assert half.memory().kv_cache_bytes * 2 == exact.memory().kv_cache_bytes


def test_prefill_is_cut_so_that_a_large_model_on_a_cpu_notices_a_cancel(tmp_path: Path, shared_data: Path) -> None:
    config = parse_model_config(json.loads((shared_data / "configs" / "Qwen--Qwen3-8B_config.json").read_text()))
    placement = load(ready(save(make("qwen3"), tmp_path)))._placement
    chunk = prefill_chunk(config, placement, LoadOptions(batch_size=512))
    assert 2 * chunk * config.hidden_size * config.intermediate_size <= 3e9
    assert chunk >= 16


def test_stories_have_their_golden_logits_and_greedy_ids(shared_data: Path) -> None:
    stories = shared_data / "stories260K"
    golden = np.load(stories / "golden_logits_64x512_f32.npy")
    ids = json.loads((stories / "golden_greedy_200.json").read_text())
    backend = load(ready(stories / "hf"))
    assert relative_error(scores(backend, ids["greedy_ids"][:64]), golden) < 1e-5
    expected = ids["greedy_ids"][len(ids["prompt_ids"]) :]
    assert take(backend, ids["prompt_ids"], len(expected)) == expected


@pytest.mark.parametrize(("kind", "tolerance"), [("f32", 1e-5), ("f16", 5e-3)])
def test_stories_as_gguf_have_their_golden_logits(kind: str, tolerance: float, shared_data: Path) -> None:
    """The llama architecture's q and k rows are in another order there."""
    stories = shared_data / "stories260K"
    ids = json.loads((stories / "golden_greedy_200.json").read_text())["greedy_ids"][:64]
    backend = load(ready(stories / "hf", stories / "gguf" / f"stories260K-{kind}.gguf"))
    assert relative_error(scores(backend, ids), np.load(stories / "golden_logits_64x512_f32.npy")) < tolerance
    assert backend.info.quantization == kind.upper()


def test_stories_have_their_golden_perplexity(shared_data: Path) -> None:
    golden = json.loads((shared_data / "stories260K" / "golden_perplexity.json").read_text())["valid_wikipedia"]
    backend = load(ready(shared_data / "stories260K" / "hf"))
    text = (shared_data / "text" / "valid_wikipedia.txt").read_text()[:40000]
    ids = backend.tokenizer.encode(text)[: 64 * 255]
    losses = []
    for start in range(0, len(ids), 255):
        chunk = [1, *ids[start : start + 255]]
        rows = torch.from_numpy(scores(backend, chunk[:-1]))
        losses.append(torch.nn.functional.cross_entropy(rows, torch.tensor(chunk[1:]), reduction="sum").item())
    assert len(ids) == golden["tokens"]
    assert abs(sum(losses) / len(ids) - golden["mean_nll_nats"]) < 1e-4


def test_the_demo_gguf_equals_transformers_on_the_same_weights(demo_directory: Path) -> None:
    path = demo_directory / "demo-q8_0.gguf"
    config = Qwen3Config(**json.loads((demo_directory / "config.json").read_text()))
    stored = {tensor.name: dequantize(tensor.data, tensor.tensor_type) for tensor in GGUFReader(path).tensors}
    model = Qwen3ForCausalLM(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.from_numpy(np.array(stored[_gguf_name(name)], dtype=np.float32)))
    backend = load(ready(demo_directory, path))
    template = "<|im_start|>user\nWhat is the capital of Peru?<|im_end|>\n<|im_start|>assistant\n"
    prompt = backend.tokenizer.encode(template)
    assert relative_error(scores(backend, prompt), reference(model, prompt)) < 1e-4
    answer = take(backend, prompt, 8, SamplingParams(temperature=0, seed=0))
    assert answer == greedy(model, prompt, 8)
    assert b"Lima" in b"".join(map(backend.tokenizer.token_bytes, answer))


def _gguf_name(name: str) -> str:
    """The GGUF name of a Qwen3 tensor, written out here so that the test does not rest on the rules it checks."""
    inner = {
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "self_attn.q_norm": "attn_q_norm",
        "self_attn.k_norm": "attn_k_norm",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
    }
    parts = name.removesuffix(".weight").split(".")
    if parts[1] == "layers":
        return f"blk.{parts[2]}.{inner['.'.join(parts[3:])]}.weight"
    return {"embed_tokens": "token_embd.weight", "norm": "output_norm.weight"}[parts[1]]
