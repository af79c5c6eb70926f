"""Tiny GGUF models that llama.cpp loads, one of each way to keep the past: whole, windows, fixed states.

Random weights and the demo's vocabulary; what they say does not matter, only what they take.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from gguf import GGUFWriter

from runner.quant.gguf_file import read_header

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, FF = 64, 4, 2, 32, 128
_RANDOM = np.random.default_rng(0)


class _Model:
    """A GGUF being written: its common metadata first, then tensors by name."""

    def __init__(self, path: Path, architecture: str, num_layers: int, vocabulary: Path) -> None:
        self.writer = GGUFWriter(path, architecture)
        metadata, writer = read_header(vocabulary).metadata, self.writer
        self.vocab_size = len(metadata["tokenizer.ggml.tokens"])
        writer.add_tokenizer_model(metadata["tokenizer.ggml.model"])
        writer.add_tokenizer_pre(metadata["tokenizer.ggml.pre"])
        writer.add_token_list(list(metadata["tokenizer.ggml.tokens"]))
        writer.add_token_types(list(metadata["tokenizer.ggml.token_type"]))
        writer.add_token_merges(list(metadata["tokenizer.ggml.merges"]))
        writer.add_eos_token_id(metadata["tokenizer.ggml.eos_token_id"])
        writer.add_context_length(65536)
        writer.add_embedding_length(HIDDEN)
        writer.add_block_count(num_layers)
        writer.add_feed_forward_length(FF)
        writer.add_head_count(HEADS)
        writer.add_head_count_kv(KV_HEADS)
        writer.add_key_length(HEAD_DIM)
        writer.add_value_length(HEAD_DIM)
        writer.add_layer_norm_rms_eps(1e-6)
        writer.add_rope_freq_base(10000.0)
        writer.add_rope_dimension_count(HEAD_DIM)
        self.matrices({"token_embd": (self.vocab_size, HIDDEN)})
        self.ones({"output_norm": (HIDDEN,)})

    def matrices(self, shapes: dict[str, tuple[int, ...]]) -> None:
        for name, shape in shapes.items():
            values = (_RANDOM.standard_normal(shape) * 0.02).astype(np.float16)
            self.writer.add_tensor(f"{name}.weight", values)

    def ones(self, shapes: dict[str, tuple[int, ...]], suffix: str = ".weight") -> None:
        for name, shape in shapes.items():
            self.writer.add_tensor(name + suffix, np.ones(shape, np.float32))

    def attention(self, block: str, *, q_heads: int = HEADS) -> None:
        self.matrices(
            {
                f"{block}.attn_q": (q_heads * HEAD_DIM, HIDDEN),
                f"{block}.attn_k": (KV_HEADS * HEAD_DIM, HIDDEN),
                f"{block}.attn_v": (KV_HEADS * HEAD_DIM, HIDDEN),
                f"{block}.attn_output": (HIDDEN, HEADS * HEAD_DIM),
            }
        )

    def mlp(self, block: str) -> None:
        shapes = {"ffn_gate": (FF, HIDDEN), "ffn_up": (FF, HIDDEN), "ffn_down": (HIDDEN, FF)}
        self.matrices({f"{block}.{name}": shape for name, shape in shapes.items()})

    def norms(self, block: str, *names: str, size: int = HIDDEN) -> None:
        self.ones({f"{block}.{name}": (size,) for name in names})

    def close(self) -> None:
        self.writer.write_header_to_file()
        self.writer.write_kv_data_to_file()
        self.writer.write_tensors_to_file()
        self.writer.close()


def write_llama(path: Path, vocabulary: Path, *, num_layers: int = 4) -> Path:
    """Every layer keeps everything."""
    model = _Model(path, "llama", num_layers, vocabulary)
    for index in range(num_layers):
        block = f"blk.{index}"
        model.norms(block, "attn_norm", "ffn_norm")
        model.attention(block)
        model.mlp(block)
    model.close()
    return path


def write_gemma3(path: Path, vocabulary: Path, *, num_layers: int = 6, window: int = 512, num_shared: int = 0) -> Path:
    """Five layers of six see a window. num_shared: the last ones, said to see what earlier ones keep."""
    model = _Model(path, "gemma3", num_layers, vocabulary)
    model.writer.add_sliding_window(window)
    model.writer.add_shared_kv_layers(num_shared)
    for index in range(num_layers):
        block = f"blk.{index}"
        model.norms(block, "attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
        model.norms(block, "attn_q_norm", "attn_k_norm", size=HEAD_DIM)
        model.attention(block)
        model.mlp(block)
    model.close()
    return path


def write_qwen35(path: Path, vocabulary: Path, *, num_layers: int = 8) -> Path:
    """Three layers of four have a state of fixed size."""
    n_keys, n_values, size, kernel = 2, 4, 16, 4
    model = _Model(path, "qwen35", num_layers, vocabulary)
    model.writer.add_rope_dimension_sections([4, 2, 2, 0])
    model.writer.add_ssm_conv_kernel(kernel)
    model.writer.add_ssm_inner_size(n_values * size)
    model.writer.add_ssm_state_size(size)
    model.writer.add_ssm_time_step_rank(n_values)
    model.writer.add_ssm_group_count(n_keys)
    model.writer.add_uint32("qwen35.full_attention_interval", 4)
    convolved = (2 * n_keys + n_values) * size
    for index in range(num_layers):
        block = f"blk.{index}"
        model.norms(block, "attn_norm", "post_attention_norm")
        if (index + 1) % 4 == 0:
            model.attention(block, q_heads=2 * HEADS)
            model.norms(block, "attn_q_norm", "attn_k_norm", size=HEAD_DIM)
        else:
            model.matrices(
                {
                    f"{block}.attn_qkv": (convolved, HIDDEN),
                    f"{block}.attn_gate": (n_values * size, HIDDEN),
                    f"{block}.ssm_alpha": (n_values, HIDDEN),
                    f"{block}.ssm_beta": (n_values, HIDDEN),
                    f"{block}.ssm_out": (HIDDEN, n_values * size),
                }
            )
            model.ones({f"{block}.ssm_conv1d": (convolved, kernel), f"{block}.ssm_norm": (size,)})
            model.ones({f"{block}.ssm_dt.bias": (n_values,), f"{block}.ssm_a": (n_values,)}, suffix="")
        model.mlp(block)
    model.close()
    return path
