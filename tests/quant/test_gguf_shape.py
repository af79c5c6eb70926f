from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fit_models import HEAD_DIM, KV_HEADS, write_gemma3, write_llama, write_qwen35
from gguf import GGUFWriter
from tiny_files import write_gguf

from runner.errors import BadModelFile
from runner.model_config.shape import LayerCache, Shape
from runner.quant.gguf_file import read_header
from runner.quant.gguf_shape import gguf_shape

WIDTH = 2 * KV_HEADS * HEAD_DIM


@pytest.fixture
def vocabulary(demo_directory: Path) -> Path:
    return demo_directory / "demo-q8_0.gguf"


def shape(path: Path) -> Shape:
    return gguf_shape([read_header(path)])


def write(path: Path, *, table_rows: int = 0, **numbers: Any) -> Path:
    """A GGUF of an architecture "test" with those keys and no weights to speak of; table_rows: of inputs by layer."""
    writer = GGUFWriter(path, "test")
    values = {"block_count": 4, "context_length": 128, "embedding_length": 64, "attention.head_count": 4, **numbers}
    for key, value in values.items():
        if isinstance(value, list):
            writer.add_array(f"test.{key}", value)
        elif isinstance(value, str):
            writer.add_string(f"test.{key}", value)
        else:
            writer.add_uint32(f"test.{key}", value)
    writer.add_tensor("blk.0.ffn_up_exps.weight", np.zeros((8, 4, 32), np.float16))
    writer.add_tensor("output_norm.weight", np.zeros(64, np.float32))
    if table_rows:
        writer.add_tensor("per_layer_token_embd.weight", np.zeros((table_rows, 32), np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_the_demo_is_what_its_card_says(vocabulary: Path) -> None:
    found = shape(vocabulary)
    assert (found.architecture, found.num_parameters, found.context_length) == ("qwen3", 18_357_504, 2048)
    assert (found.hidden_size, found.vocab_size) == (512, 8192)
    assert found.caches == (LayerCache(kind="full", width=2 * 4 * 64),) * 6


def test_layers_of_each_kind(vocabulary: Path, tmp_path: Path) -> None:
    assert shape(write_llama(tmp_path / "l.gguf", vocabulary)).caches == (LayerCache(kind="full", width=WIDTH),) * 4
    gemma = shape(write_gemma3(tmp_path / "g.gguf", vocabulary, window=512)).caches
    assert gemma == (*(LayerCache(kind="window", width=WIDTH, window=512),) * 5, LayerCache(kind="full", width=WIDTH))
    qwen = shape(write_qwen35(tmp_path / "q.gguf", vocabulary)).caches
    assert [cache.kind for cache in qwen] == ["state", "state", "state", "full"] * 2


def test_a_file_may_give_its_pattern_its_heads_and_its_sharing_by_layer(tmp_path: Path) -> None:
    path = write(
        tmp_path / "x.gguf",
        **{
            "attention.head_count_kv": [4, 2, 2, 2],
            "attention.sliding_window": 32,
            "attention.sliding_window_pattern": [True, False, True, True],
            "attention.key_length": 16,
            "attention.value_length": 16,
            "attention.key_length_swa": 8,
            "attention.value_length_swa": 8,
            "attention.shared_kv_layers": 1,
        },
    )
    assert shape(path).caches == (
        LayerCache(kind="window", width=4 * 16, window=32),
        LayerCache(kind="full", width=2 * 32),
        LayerCache(kind="window", width=2 * 16, window=32),
        LayerCache(kind="shared", window=32),
    )


def test_convolutions_and_shifts_of_tokens_cannot_be_cut(tmp_path: Path) -> None:
    lfm2 = shape(write(tmp_path / "l.gguf", **{"shortconv.l_cache": 3, "attention.head_count_kv": [0, 2, 0, 2]}))
    assert lfm2.caches == (LayerCache(kind="state", past_size=2 * 64), LayerCache(kind="full", width=2 * 2 * 16)) * 2
    heads = {"attention.head_count": 0, "wkv.head_size": 16}
    rwkv = shape(write(tmp_path / "r.gguf", **heads))  # RWKV6 and 7 do not say how many tokens they keep
    assert rwkv.caches == (LayerCache(kind="state", state_size=16 * 64, past_size=2 * 64),) * 4
    once = shape(write(tmp_path / "o.gguf", **heads, token_shift_count=1))
    assert once.caches == (LayerCache(kind="state", state_size=16 * 64, past_size=64),) * 4
    assert [found.can_go_back for found in (lfm2, rwkv, once)] == [False] * 3


def test_experts_that_are_not_used_are_not_active(tmp_path: Path) -> None:
    found = shape(write(tmp_path / "x.gguf", expert_count=8, expert_used_count=2))
    assert (found.num_parameters, found.num_active_parameters) == (1024 + 64, 256 + 64)


def test_a_table_of_inputs_by_layer_is_not_active(tmp_path: Path) -> None:
    found = shape(write(tmp_path / "t.gguf", table_rows=10))
    assert (found.num_parameters, found.num_active_parameters) == (1024 + 64 + 320, 1024 + 64)
    with_experts = shape(write(tmp_path / "e.gguf", table_rows=10, expert_count=8, expert_used_count=2))
    assert with_experts.num_active_parameters == 256 + 64


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("block_count", 0),
        ("block_count", 2**31),
        ("block_count", "four"),
        ("attention.head_count", "many"),
        ("attention.head_count", [4]),
        ("attention.head_count_kv", 2**31),
        ("attention.sliding_window", "wide"),
    ],
)
def test_numbers_that_make_no_sense_are_named(tmp_path: Path, key: str, value: object) -> None:
    with pytest.raises(BadModelFile, match=rf"no usable number under test\.{key}"):
        shape(write(tmp_path / "x.gguf", **{key: value}))


def test_a_gguf_without_its_shape_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadModelFile, match=r"shapeless\.gguf has no usable number under llama\.block_count") as caught:
        shape(write_gguf(tmp_path / "shapeless.gguf"))
    assert caught.value.hint
