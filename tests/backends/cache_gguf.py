"""Tiny random models as GGUF files whose caches are not plain: Mamba's states, and Gemma 3's sliding windows."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

from runner.quant.convert import read_vocabulary
from runner.quant.gguf_metadata import write_vocabulary

_VOCAB, _HIDDEN, _LAYERS = 8192, 32, 2
WINDOW = 16


class _Writer:
    def __init__(self, path: Path, architecture: str, demo: Path) -> None:
        self.gguf = gguf.GGUFWriter(path, architecture)
        self.gguf.add_context_length(512)
        self.gguf.add_embedding_length(_HIDDEN)
        self.gguf.add_block_count(_LAYERS)
        self.gguf.add_layer_norm_rms_eps(1e-5)
        write_vocabulary(self.gguf, read_vocabulary(demo, _VOCAB))
        self._random = np.random.default_rng(4)
        self.matrix("token_embd", _VOCAB, _HIDDEN, scale=0.05)
        self.ones("output_norm", _HIDDEN)

    def matrix(self, name: str, *shape: int, scale: float = 0.3) -> None:
        self.gguf.add_tensor(f"{name}.weight", self._random.normal(0, scale, shape).astype(np.float32))

    def bias(self, name: str, n: int) -> None:
        self.gguf.add_tensor(f"{name}.bias", self._random.normal(0, 0.3, n).astype(np.float32))

    def ones(self, name: str, n: int) -> None:
        self.gguf.add_tensor(f"{name}.weight", np.ones(n, np.float32))

    def close(self) -> None:
        self.gguf.write_header_to_file()
        self.gguf.write_kv_data_to_file()
        self.gguf.write_tensors_to_file()
        self.gguf.close()


def write_mamba(path: Path, demo: Path) -> Path:
    """demo: the directory of the demo model, whose tokenizer it takes."""
    inner, state, kernel, rank = 64, 8, 4, 4
    writer = _Writer(path, "mamba", demo)
    writer.gguf.add_feed_forward_length(0)
    writer.gguf.add_head_count(0)
    writer.gguf.add_ssm_inner_size(inner)
    writer.gguf.add_ssm_state_size(state)
    writer.gguf.add_ssm_conv_kernel(kernel)
    writer.gguf.add_ssm_time_step_rank(rank)
    for layer in range(_LAYERS):
        block = f"blk.{layer}."
        writer.ones(block + "attn_norm", _HIDDEN)
        writer.matrix(block + "ssm_in", 2 * inner, _HIDDEN)
        writer.matrix(block + "ssm_conv1d", inner, kernel)
        writer.bias(block + "ssm_conv1d", inner)
        writer.matrix(block + "ssm_x", rank + 2 * state, inner)
        writer.matrix(block + "ssm_dt", inner, rank)
        writer.bias(block + "ssm_dt", inner)
        writer.gguf.add_tensor(
            block + "ssm_a", -np.linspace(0.1, 2, inner * state, dtype=np.float32).reshape(inner, -1)
        )
        writer.gguf.add_tensor(block + "ssm_d", np.linspace(-1, 1, inner, dtype=np.float32))
        writer.matrix(block + "ssm_out", _HIDDEN, inner)
    writer.close()
    return path


def write_gemma3(path: Path, demo: Path) -> Path:
    """All its layers see the last WINDOW tokens. demo: as above."""
    heads, head_dim, inner = 2, 16, 48
    writer = _Writer(path, "gemma3", demo)
    writer.gguf.add_feed_forward_length(inner)
    writer.gguf.add_head_count(heads)
    writer.gguf.add_head_count_kv(heads)
    writer.gguf.add_key_length(head_dim)
    writer.gguf.add_value_length(head_dim)
    writer.gguf.add_sliding_window(WINDOW)
    for layer in range(_LAYERS):
        block = f"blk.{layer}."
        for norm in ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"):
            writer.ones(block + norm, _HIDDEN)
        for norm in ("attn_q_norm", "attn_k_norm"):
            writer.ones(block + norm, head_dim)
        for name in ("attn_q", "attn_k", "attn_v"):
            writer.matrix(block + name, heads * head_dim, _HIDDEN)
        writer.matrix(block + "attn_output", _HIDDEN, heads * head_dim)
        writer.matrix(block + "ffn_gate", inner, _HIDDEN)
        writer.matrix(block + "ffn_up", inner, _HIDDEN)
        writer.matrix(block + "ffn_down", _HIDDEN, inner)
    writer.close()
    return path
