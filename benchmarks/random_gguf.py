"""GGUF files of a given shape with random weights, for llama.cpp to be measured beside runner.

    python benchmarks/random_gguf.py llama-3.1-8b q4_k_m FILE.gguf

Types are those that llama.cpp's own quantizer gives the tensors of such a model in that mix; the tokenizer is the demo
model's, filled up. Blocks are random bytes with scales such that a matrix gives its output the size of its input. It
knows nothing of how fast anything is.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from arguments import new_file, positive
from gguf import GGML_QUANT_SIZES, GGUFWriter, Keys, LlamaFileType
from gguf import GGMLQuantizationType as Type
from numpy.typing import NDArray
from shapes import SHAPES, config_of

from runner.model_config import ModelConfig, parse_model_config
from runner.paths import builtin
from runner.quant.architectures import blocks
from runner.quant.convert import read_vocabulary
from runner.quant.gguf_metadata import QUANTIZATION_VERSION, write_model, write_vocabulary
from runner.quant.gguf_shape import LAYER_TABLE
from runner.quant.tensor_rules import Architecture, tensors_of

MIXES = {
    "q4_k_m": LlamaFileType.MOSTLY_Q4_K_M,
    "q4_0": LlamaFileType.MOSTLY_Q4_0,
    "q8_0": LlamaFileType.MOSTLY_Q8_0,
    "mxfp4_moe": LlamaFileType.MOSTLY_MXFP4_MOE,  # as gpt-oss is published: experts in MXFP4, all else in Q8_0
}
_BASES = {"q4_k_m": Type.Q4_K, "q4_0": Type.Q4_0, "q8_0": Type.Q8_0, "mxfp4_moe": Type.Q8_0}
_OF_ODD_ROWS = {Type.Q4_K: Type.Q5_0, Type.Q6_K: Type.Q8_0}  # that blocks of 256 do not fill
_GGUF_NAMES = {
    "gemma2": "gemma2", "gemma3_text": "gemma3", "gemma4_text": "gemma4", "gpt_oss": "gpt-oss", "granite": "granite",
    "llama": "llama", "ministral3": "mistral3", "mistral": "llama", "mixtral": "llama", "olmo2": "olmo2",
    "olmo3": "olmo2", "phi3": "phi3", "qwen2": "qwen2", "qwen3": "qwen3", "qwen3_5_moe_text": "qwen35moe",
    "qwen3_5_text": "qwen35", "qwen3_moe": "qwen3moe", "smollm3": "smollm3",
}  # fmt: skip
_NORMS = {
    "gemma2": blocks.NORMS_AROUND, "gemma3_text": blocks.NORMS_AROUND, "gemma4_text": blocks.NORMS_AROUND,
    "gpt_oss": blocks.NORMS_AS_CALLED, "olmo2": blocks.NORMS_AFTER, "olmo3": blocks.NORMS_AFTER,
    "qwen3_5_moe_text": blocks.NORMS_AS_CALLED, "qwen3_5_text": blocks.NORMS_AS_CALLED,
}  # fmt: skip
# What its quantizer does with as many experts as Mixtral has: what all of them share is small.
_MIXTRALS = 8
_OF_MIXTRALS = {"attn_k.weight": Type.Q8_0, "attn_v.weight": Type.Q8_0, "attn_output.weight": Type.Q5_K}
_ROPE_FACTORS = "rope_freqs.weight"  # what frequencies are divided by; 1e30 where a pair is not turned
_POOL_BYTES = 16 << 20  # of random blocks, which large tensors repeat


@dataclass(frozen=True, kw_only=True)
class Planned:
    """One tensor of the file; shape as torch has it, [..., N, K]."""

    name: str
    shape: tuple[int, ...]
    type: Type

    @property
    def nbytes(self) -> int:
        block, size = GGML_QUANT_SIZES[self.type]
        return math.prod(self.shape) // int(block) * int(size)


def planned(config: ModelConfig, mix: str) -> list[Planned]:
    """All tensors with their types."""
    return [
        Planned(name=name, shape=shape, type=_type(name, shape, config, mix)) for name, shape in _shapes(config).items()
    ]


def _shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    of_heads = {"none": (), "head": blocks.QK_NORMS, "row": blocks.QK_ROW_NORMS}[config.qk_norm]
    norms = _NORMS.get(config.model_type, blocks.NORMS)
    joined = (*blocks.JOINED_ATTENTION, *blocks.JOINED_MLP)
    attention = (*blocks.ATTENTION, *blocks.QKV_BIASES, *blocks.OUTPUT_BIAS, *blocks.SINKS)
    products = joined if config.is_joined else (*attention, *blocks.GATED_MLP)
    more = (*blocks.DELTA_NET, *blocks.LAYER_SCALARS, *blocks.LAYER_INPUTS)
    rules = (*blocks.EMBEDDINGS, *norms, *of_heads, *products, *more)
    decoder = Architecture(model_type=config.model_type, gguf_name="", interleaved_rotary=False, rules=rules)
    found = {tensor.target: tensor.gguf_shape for tensor in tensors_of(decoder, config)}
    if config.rope_scaling is not None and config.rope_scaling.kind == "proportional":
        found[_ROPE_FACTORS] = (config.ropes["global"].dim // 2,)
    experts, hidden = config.experts, config.hidden_size
    for layer in experts.layers if experts else ():
        block, count, width = f"blk.{layer}.ffn_", experts.count, experts.intermediate_size
        found[f"{block}gate_inp.weight"] = (count, hidden)
        found[f"{block}down_exps.weight"] = (count, hidden, width)
        if experts.is_beside:
            found[f"{block}gate_up_exps.weight"] = (count, 2 * width, hidden)
            found |= {f"{block}gate_inp.scale": (hidden,), f"{block}down_exps.scale": (count,)}
            norms = ("post_ffw_norm_1", "pre_ffw_norm_2", "post_ffw_norm_2")
            found |= {f"blk.{layer}.{norm}.weight": (hidden,) for norm in norms}
            continue
        for name in ("gate", "up", "down"):
            del found[f"{block}{name}.weight"]
        found |= {f"{block}{name}_exps.weight": (count, width, hidden) for name in ("gate", "up")}
        if experts.has_bias:
            found[f"{block}gate_inp.bias"] = (count,)
            found |= {f"{block}{name}_exps.bias": (count, width) for name in ("gate", "up")}
            found[f"{block}down_exps.bias"] = (count, hidden)
        if (shared := experts.shared_size) is not None:
            found[f"{block}gate_inp_shexp.weight"] = (hidden,)
            found |= {f"{block}{name}_shexp.weight": (shared, hidden) for name in ("gate", "up")}
            found[f"{block}down_shexp.weight"] = (hidden, shared)
    return found


def _type(name: str, shape: tuple[int, ...], config: ModelConfig, mix: str) -> Type:
    found = _wanted(name, shape, config, mix)
    return found if shape[-1] % int(GGML_QUANT_SIZES[found][0]) == 0 else _OF_ODD_ROWS[found]


def _wanted(name: str, shape: tuple[int, ...], config: ModelConfig, mix: str) -> Type:
    """The type, if its blocks fill the rows."""
    if len(shape) == 1 or name.endswith((".bias", "ffn_gate_inp.weight", "ssm_conv1d.weight")):
        return Type.F32
    if name == "per_layer_model_proj.weight":  # which its quantizer leaves as it is
        return Type.Q8_0
    if mix == "mxfp4_moe":
        return Type.MXFP4 if "_exps." in name else Type.Q8_0
    base = _BASES[mix]
    output = "token_embd.weight" if config.tie_word_embeddings else "output.weight"
    if name in (output, LAYER_TABLE) and mix != "q8_0":
        return Type.Q6_K
    _, _, rest = name.partition(".")
    layer, _, leaf = rest.partition(".")
    if config.experts is not None and config.experts.count == _MIXTRALS and leaf in _OF_MIXTRALS:
        return _OF_MIXTRALS[leaf] if leaf != "attn_output.weight" or mix == "q4_k_m" else base
    if mix != "q4_k_m" or not leaf.startswith(("attn_v.", "attn_qkv.", "ffn_down")):
        return base
    layers = list(range(config.num_layers))
    if leaf.startswith("attn_v."):  # counted by themselves
        layers = [one for one in layers if not (config.shares_cache(one) or config.heads(one).shares_projection)]
    return Type.Q6_K if _has_more_bits(layers.index(int(layer)), len(layers)) else base


def _has_more_bits(layer: int, num_layers: int) -> bool:
    """Whether q4_k_m keeps v, alone or with q and k, or down of this one of so many layers in Q6_K: of the first and
    the last eighth, and of each third between."""
    eighth = num_layers // 8
    return layer < eighth or layer >= 7 * num_layers // 8 or (layer - eighth) % 3 == 2


# --- blocks ----------------------------------------------------------------------------------------------------------

# Where a block has its half-precision scales, and the deviation of its weights where these scales are 1. In Q4_K the
# offset is 7.5 times the scale, in Q5_K 15.5 times, which makes the mean 0.
_SCALES: Mapping[Type, tuple[tuple[slice, float], ...]] = {
    Type.Q4_0: ((slice(0, 2), 1.0),),
    Type.Q5_0: ((slice(0, 2), 1.0),),
    Type.Q4_K: ((slice(0, 2), 1.0), (slice(2, 4), 7.5)),
    Type.Q5_K: ((slice(0, 2), 1.0), (slice(2, 4), 15.5)),
    Type.Q6_K: ((slice(208, 210), 1.0),),
    Type.Q8_0: ((slice(0, 2), 1.0),),
}
_DEVIATIONS: Mapping[Type, float] = {
    Type.Q4_0: 4.6,
    Type.Q5_0: 9.2,
    Type.Q4_K: 258.0,
    Type.Q5_K: 527.0,
    Type.Q6_K: 1367.0,
    Type.Q8_0: 73.9,
}
_MXFP4_DEVIATION = 2.93  # of 0, 0.5, 1, 1.5, 2, 3, 4 and 6


@cache
def _pool(kind: Type, k: int) -> NDArray[np.uint8]:
    """Random blocks whose weights have a deviation of about 1 / sqrt(k), flat."""
    _, size = GGML_QUANT_SIZES[kind]
    random = np.random.default_rng(int(kind))
    pool = random.integers(0, 256, (_POOL_BYTES // int(size), int(size)), dtype=np.uint8)
    if kind == Type.MXFP4:  # a power of two, which the first byte has
        pool[:, 0] = 127 + round(math.log2(k**-0.5 / _MXFP4_DEVIATION))
        return pool.reshape(-1)
    for place, factor in _SCALES[kind]:
        scale = np.float16(factor * k**-0.5 / _DEVIATIONS[kind])
        pool[:, place] = np.frombuffer(scale.tobytes(), np.uint8)
    return pool.reshape(-1)


def _data(tensor: Planned) -> Iterator[NDArray[Any]]:
    """The tensor's bytes, in pieces."""
    if tensor.name == _ROPE_FACTORS:  # as Gemma 4 has it: a quarter of the pairs is turned
        yield np.where(np.arange(*tensor.shape) < tensor.shape[0] // 4, 1.0, 1e30).astype(np.float32)
        return
    if tensor.type == Type.F32:
        random = np.random.default_rng(0)
        is_vector = len(tensor.shape) == 1
        values = np.ones(tensor.shape) if is_vector else random.normal(0, tensor.shape[-1] ** -0.5, tensor.shape)
        yield (-values if tensor.name.endswith(".ssm_a") else values).astype(np.float32)  # a state decays
        return
    pool, left = _pool(tensor.type, tensor.shape[-1]), tensor.nbytes
    while left:
        piece = pool[: min(left, len(pool))]
        yield piece
        left -= len(piece)


def write_gguf(target: Path, shape: Mapping[str, Any], mix: str) -> int:
    """The file; returns its bytes."""
    config = parse_model_config(dict(shape))
    tensors = planned(config, mix)
    writer = GGUFWriter(target, _GGUF_NAMES[config.model_type])
    try:
        # The context as published: what runner converts ends at the window, in case llama.cpp has none.
        whole = replace(config, sliding_window=None, sliding_layers=(), full_heads=None, shared_caches=None)
        if config.full_heads is not None:  # the factors of frequencies are a tensor
            whole = replace(whole, head_dim=config.full_heads.head_dim, rope_scaling=None)
        write_model(writer, whole, name="random weights")  # where a name has "phi3", llama.cpp wants tokens of Phi-3's
        if config.full_heads is not None:
            _write_heads_of_layers(writer, config)
        if config.experts is not None:
            writer.add_expert_count(config.experts.count)
            writer.add_expert_used_count(config.experts.per_token)
            writer.add_expert_feed_forward_length(config.experts.intermediate_size)
            if config.experts.shared_size is not None:
                writer.add_expert_shared_feed_forward_length(config.experts.shared_size)
        if config.sliding_window is not None:
            writer.add_sliding_window(config.sliding_window)
        if config.logit_cap is not None:
            writer.add_final_logit_softcapping(config.logit_cap)
        if config.score_cap is not None:
            writer.add_attn_logit_softcapping(config.score_cap)
        writer.add_file_type(int(MIXES[mix]))
        writer.add_quantization_version(QUANTIZATION_VERSION)
        write_vocabulary(writer, read_vocabulary(builtin("models") / "demo", config.vocab_size))
        for tensor in tensors:
            writer.add_tensor_info(
                tensor.name, tensor.shape, np.dtype(np.float32), tensor.nbytes, raw_dtype=tensor.type
            )
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
    finally:
        writer.close()
    return _append(target, tensors, writer.data_alignment)


def _write_heads_of_layers(writer: GGUFWriter, config: ModelConfig) -> None:
    """Gemma 4's keys, beside those of layers that see everything."""
    layers, local = range(config.num_layers), config.ropes["local"]
    del writer.kv_data[0][Keys.Attention.HEAD_COUNT_KV.format(arch=writer.arch)]  # gguf warns of what is written twice
    writer.add_head_count_kv([config.heads(layer).num_kv_heads for layer in layers])
    writer.add_sliding_window_pattern([layer in config.sliding_layers for layer in layers])
    writer.add_key_length_swa(config.head_dim)
    writer.add_value_length_swa(config.head_dim)
    writer.add_rope_dimension_count_swa(local.dim)
    writer.add_rope_freq_base_swa(local.theta)
    writer.add_shared_kv_layers(config.num_layers - len(config.caching_layers))
    writer.add_embedding_length_per_layer_input(config.layer_inputs.size if config.layer_inputs is not None else 0)
    widths = [config.mlp_size(layer) for layer in layers]
    if len(set(widths)) > 1:
        del writer.kv_data[0][Keys.LLM.FEED_FORWARD_LENGTH.format(arch=writer.arch)]
        writer.add_feed_forward_length(widths)


def _append(target: Path, tensors: list[Planned], alignment: int) -> int:
    """The tensors' bytes after the header, each at a multiple of the alignment."""
    with target.open("ab") as file:
        file.write(b"\0" * (-file.tell() % alignment))
        for tensor in tensors:
            for piece in _data(tensor):
                piece.tofile(file)
            file.write(b"\0" * (-tensor.nbytes % alignment))
        return file.tell()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shape", choices=[name for name in SHAPES if name != "tiny"])
    parser.add_argument("mix", choices=MIXES)
    parser.add_argument("output", type=new_file)
    parser.add_argument("--layers", type=positive)
    asked = parser.parse_args()
    started = time.perf_counter()
    size = write_gguf(asked.output, config_of(asked.shape, asked.layers), asked.mix)
    print(f"{asked.output}: {size / 1e9:.2f} GB in {time.perf_counter() - started:.1f} s")


if __name__ == "__main__":
    main()
