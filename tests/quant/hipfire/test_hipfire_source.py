"""A hipfire file as a source of weights, and the file that is written from one."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hfq_bytes import Stored, container, written
from numpy.typing import NDArray

from runner.errors import BadModelFile, UnsupportedModel
from runner.quant.hipfire import is_hipfire_file
from runner.quant.hipfire.container import read_header
from runner.quant.hipfire.source import HfqWeights
from runner.quant.hipfire.tensor_types import TYPES
from runner.quant.hipfire.write import encode, metadata_of, plan_container, write_container

CONFIG = {"model_type": "qwen3", "tie_word_embeddings": True}
METADATA = {
    "architecture": "qwen3",
    "config": CONFIG,
    "tokenizer": '{"model": {"vocab": {"é": 0}}}',
    "tokenizer_config": {"chat_template": "{{ messages }}"},
    "generation_config": None,
}


class InMemory:
    """Weights that are arrays, for the writer."""

    def __init__(self, arrays: dict[str, NDArray[Any]]) -> None:
        self.arrays = arrays
        self.shapes = {name: array.shape for name, array in arrays.items()}
        self.types = dict.fromkeys(arrays, "F32")
        self.bits = dict.fromkeys(arrays, 32.0)
        self.quantization, self.where = "F32", "memory"

    def read(self, name: str) -> NDArray[Any]:
        return self.arrays[name]

    def read_rows(self, name: str, start: int, stop: int) -> NDArray[Any]:
        return self.arrays[name][start:stop]


def normal(seed: int, *shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def stored(name: str, number: int, values: NDArray[np.float32]) -> Stored:
    kind = TYPES[number]
    group = 0 if kind.plain else kind.block_weights
    return Stored(name=name, number=number, shape=values.shape, group_size=group, data=encode(values, kind).tobytes())


def opened(tmp_path: Path, tensors: list[Stored], metadata: Any = METADATA, **options: Any) -> HfqWeights:
    return HfqWeights(written(tmp_path / "model.hfq", container(tensors, metadata, **options)))


def test_only_files_with_hipfires_suffixes_are_taken_for_its_files(tmp_path: Path) -> None:
    (tmp_path / "directory.mq4").mkdir()
    assert is_hipfire_file(Path("a.hfq"))
    assert is_hipfire_file(Path("A.MQ4"))
    assert not is_hipfire_file(Path("a.gguf"))
    assert not is_hipfire_file(tmp_path / "directory.mq4")


def test_rows_and_whole_tensors_are_the_same_values(tmp_path: Path) -> None:
    values = normal(0, 6, 512)
    weights = opened(tmp_path, [stored("w", 13, values), stored("n", 1, values[0])])
    whole = weights.read("w")
    assert float(np.square(whole - values).mean()) < 0.013
    np.testing.assert_allclose(weights.read_rows("w", 2, 5), whole[2:5], atol=1e-5)
    np.testing.assert_allclose(weights.rows("w", np.array([5, 0, 3])), whole[[5, 0, 3]], atol=1e-5)
    assert np.array_equal(weights.read_rows("n", 3, 7), values[0, 3:7].astype(np.float16))
    assert (weights.dtype("w"), weights.dtype("n")) == ("F32", "F16")
    assert (weights.types["w"], weights.bits["w"], weights.bits["n"]) == ("MQ4-G256", 4.25, 16)
    assert (weights.quantization, weights.where) == ("MQ4-G256", "model.hfq")
    assert weights.total_bytes == 6 * 2 * 136 + 1024


def test_what_is_read_is_a_copy_that_may_be_written_to(tmp_path: Path) -> None:
    weights = opened(tmp_path, [stored("n", 2, normal(0, 8)), stored("w", 1, normal(1, 2, 4))])
    for name in ("n", "w"):
        values = weights.read(name)
        before = values.copy()
        values += 1
        assert np.array_equal(weights.read(name), before)


def test_blocks_are_handed_over_as_they_lie_in_the_file(tmp_path: Path) -> None:
    one = stored("w", 13, normal(0, 3, 512))
    weights = opened(tmp_path, [one, stored("q", 3, normal(1, 2, 64)), stored("h", 6, normal(2, 2, 256))])
    blocks = weights.mq4_blocks("w")
    assert blocks is not None
    assert blocks.shape == (3, 2, 136)
    assert blocks.tobytes() == one.data
    assert weights.mq4_blocks("q") is weights.mq4_blocks("h") is None


@pytest.mark.parametrize("scale_name", ["layer.awq_scale.weight", "layer.weight.awq_scale"])
def test_weights_that_were_scaled_by_channel_are_scaled_back(tmp_path: Path, scale_name: str) -> None:
    values, scale = normal(0, 4, 256), np.float16(2) ** np.arange(256, dtype=np.float16).clip(0, 8)
    weights = opened(tmp_path, [stored("layer.weight", 13, values * scale), stored(scale_name, 1, np.float32(scale))])
    assert set(weights.shapes) == {"layer.weight"}
    assert weights.mq4_blocks("layer.weight") is None  # its blocks are those of other weights
    restored = weights.read("layer.weight") * scale
    plain = opened(tmp_path, [stored("layer.weight", 13, values * scale)]).read("layer.weight")
    np.testing.assert_allclose(restored, plain, rtol=1e-5)


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_a_scale_that_is_no_positive_number_is_refused(tmp_path: Path, bad: float) -> None:
    scale = np.ones(256, np.float32)
    scale[7] = bad
    weights = opened(tmp_path, [stored("w", 13, normal(0, 1, 256)), stored("w.awq_scale", 2, scale)])
    with pytest.raises(BadModelFile, match="not positive"):
        weights.read("w")


def test_scales_of_another_length_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadModelFile, match="do not fit 'w'"):
        opened(tmp_path, [stored("w", 13, normal(0, 1, 256)), stored("w.awq_scale", 2, np.ones(255, np.float32))])


def test_rows_that_are_not_whole_blocks_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="rows of 16 weights, which are not whole blocks of Q8_0"):
        opened(tmp_path, [Stored(name="conv", number=3, shape=(4, 16), data=bytes(68))])


@pytest.mark.parametrize(("arch_id", "what"), [(20, "drafter"), (21, "prediction head")])
def test_a_file_that_is_no_whole_model_is_refused(tmp_path: Path, arch_id: int, what: str) -> None:
    with pytest.raises(UnsupportedModel, match=what):
        opened(tmp_path, [Stored()], arch_id=arch_id)


def test_an_output_matrix_in_the_file_is_used_whatever_its_config_says(tmp_path: Path) -> None:
    tied = opened(tmp_path, [stored("model.embed_tokens.weight", 3, normal(0, 2, 32))])
    untied = opened(tmp_path, [stored("lm_head.weight", 3, normal(0, 2, 32))])
    assert (tied.config["tie_word_embeddings"], untied.config["tie_word_embeddings"]) == (True, False)


def test_the_warning_names_the_bits_and_a_plain_file_has_none(tmp_path: Path) -> None:
    coarse = opened(tmp_path, [stored("w", 13, normal(0, 1, 256)), stored("e", 3, normal(0, 1, 32))])
    assert "to 4 bits (MQ4-G256, Q8_0)" in coarse.warnings()[0]
    assert opened(tmp_path, [stored("w", 1, normal(0, 2, 4)), stored("n", 1, normal(0, 4))]).warnings() == ()


def test_the_files_beside_a_model_come_out_of_the_metadata(tmp_path: Path) -> None:
    opened(tmp_path, [Stored()]).write_companions(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text()) == CONFIG
    assert (tmp_path / "tokenizer.json").read_text("utf-8") == METADATA["tokenizer"]
    assert json.loads((tmp_path / "tokenizer_config.json").read_text()) == METADATA["tokenizer_config"]
    assert not (tmp_path / "generation_config.json").exists()


@pytest.mark.parametrize("tokenizer", ["{}", None, "{", "no", '{"a": "\ud800"}'])
def test_a_missing_or_broken_tokenizer_is_refused(tmp_path: Path, tokenizer: str | None) -> None:
    weights = opened(tmp_path, [Stored()], {**METADATA, "tokenizer": tokenizer})
    with pytest.raises(BadModelFile, match=r"tokenizer\.json"):
        weights.write_companions(tmp_path)


def test_a_file_without_a_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadModelFile, match="no config"):
        opened(tmp_path, [Stored()], {"config": []}).write_companions(tmp_path)


# --- writing ---------------------------------------------------------------------------------------------------------


def test_what_is_written_is_byte_for_byte_what_the_format_says(tmp_path: Path) -> None:
    # A constant group of zeros but for its first weight, so that its rotation is exact: +-1 everywhere.
    linear = np.zeros((1, 256), np.float32)
    linear[0, 0] = 16.0
    rotated = [1.0 if sign > 0 else -1.0 for sign in _second_signs()]
    nibbles = [0xF if value > 0 else 0 for value in rotated]
    block = struct.pack("<ff", np.float32(2) / np.float32(15), -1.0)
    block += bytes(low | high << 4 for low, high in zip(nibbles[::2], nibbles[1::2], strict=True))
    embedding = np.arange(64, dtype=np.float32).reshape(2, 32) * 127 / 31
    q8 = b"".join(
        np.float16(row.max() / 127).tobytes() + np.round(row * np.float32(127 / row.max())).astype(np.int8).tobytes()
        for row in embedding
    )
    arrays = {
        "model.norm.weight": np.array([1.0, -2.0], np.float32),
        "model.layers.0.self_attn.q_proj.weight": linear,
        "model.embed_tokens.weight": embedding,
    }
    expected = container(
        [
            Stored(name="model.embed_tokens.weight", number=3, shape=(2, 32), group_size=32, data=q8),
            Stored(
                name="model.layers.0.self_attn.q_proj.weight", number=13, shape=(1, 256), group_size=256, data=block
            ),
            Stored(name="model.norm.weight", number=1, shape=(2,), data=b"\x00\x3c\x00\xc0"),
        ],
        json.dumps(METADATA, separators=(",", ":"), sort_keys=True, ensure_ascii=False).encode(),
    )
    weights = InMemory(arrays)
    seen: list[tuple[int, int]] = []
    write_container(
        tmp_path / "x.hfq",
        METADATA,
        plan_container(weights.shapes),
        weights,
        lambda done, total: seen.append((done, total)),
    )
    assert (tmp_path / "x.hfq").read_bytes() == expected
    assert seen == [(68, 208), (204, 208), (208, 208)]


def _second_signs() -> list[int]:
    state, found = 1042, []
    for _ in range(256):
        state = (state * 1103515245 + 12345) % 2**31
        found.append(1 if state >> 16 & 1 else -1)
    return found


def test_types_are_chosen_as_hipfires_quantizer_chooses_them() -> None:
    shapes = {
        "model.embed_tokens.weight": (10, 512),
        "lm_head.weight": (10, 512),
        "a.q_proj.weight": (4, 256),
        "a.k_proj.weight": (4, 384),
        "a.v_proj.weight": (4, 96),
        "a.o_proj.weight": (4, 100),
        "a.q_proj.bias": (4,),
        "model.norm.weight": (256,),
    }
    assert {tensor.name: tensor.type.name for tensor in plan_container(shapes)} == {
        "model.embed_tokens.weight": "Q8_0",
        "lm_head.weight": "MQ4-G256",
        "a.q_proj.weight": "MQ4-G256",
        "a.k_proj.weight": "HFQ4-G128",
        "a.v_proj.weight": "Q8_0",
        "a.o_proj.weight": "F16",
        "a.q_proj.bias": "F16",
        "model.norm.weight": "F16",
    }


@pytest.mark.parametrize(
    ("array", "error", "reason"),
    [
        (np.array([np.nan], np.float32), BadModelFile, "NaN or infinite"),
        (np.array([np.inf], np.float32), BadModelFile, "NaN or infinite"),
        (np.array([1e6], np.float32), UnsupportedModel, "too large for F16"),
        (np.full((1, 256), 3e38, np.float32), UnsupportedModel, "too large"),
    ],
)
def test_weights_that_cannot_be_stored_are_refused(
    tmp_path: Path, array: NDArray[np.float32], error: type[Exception], reason: str
) -> None:
    weights = InMemory({"w": array})
    with pytest.raises(error, match=reason):
        write_container(
            tmp_path / "x.hfq", METADATA, plan_container(weights.shapes), weights, lambda _done, _total: None
        )


def test_an_architecture_without_a_number_is_refused(tmp_path: Path) -> None:
    metadata = {**METADATA, "config": {"model_type": "gpt_oss"}}
    with pytest.raises(UnsupportedModel, match="gpt_oss"):
        write_container(tmp_path / "x.hfq", metadata, (), InMemory({}), lambda _done, _total: None)


@pytest.mark.parametrize(("model_type", "number"), [("llama", 0), ("mistral", 0), ("qwen3", 1), ("qwen2", 7)])
def test_each_architecture_has_hipfires_number(tmp_path: Path, model_type: str, number: int) -> None:
    metadata = {**METADATA, "config": {"model_type": model_type}}
    write_container(tmp_path / "x.hfq", metadata, (), InMemory({}), lambda _done, _total: None)
    assert read_header(tmp_path / "x.hfq").arch_id == number


def test_a_template_in_a_file_of_its_own_is_put_where_hipfire_looks(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "chat_template.jinja").write_text("{{ x }}")
    assert metadata_of(tmp_path)["tokenizer_config"] == {"chat_template": "{{ x }}"}
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "another"}')
    assert metadata_of(tmp_path)["tokenizer_config"] == {"chat_template": "{{ x }}"}
