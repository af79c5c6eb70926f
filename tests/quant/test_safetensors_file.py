"""The safetensors reader reads good files exactly and refuses bad ones before it allocates anything."""

from __future__ import annotations

import json
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from runner.errors import BadModelFile, RunnerError, UnsupportedModel
from runner.quant.safetensors_file import Checkpoint, is_plain_file_name, read_header, to_f32


def written(path: Path, header: Any, data: bytes = b"", *, length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


def entry(dtype: str = "F32", shape: Any = (2, 2), offsets: Any = (0, 16)) -> dict[str, Any]:
    as_list = [list(value) if isinstance(value, tuple) else value for value in (shape, offsets)]
    return {"dtype": dtype, "shape": as_list[0], "data_offsets": as_list[1]}


def test_tensors_of_every_type_come_back_exactly(tmp_path: Path) -> None:
    torch.manual_seed(0)
    tensors = {
        "f32": torch.randn(3, 5),
        "f16": torch.randn(7).half(),
        "bf16": torch.randn(2, 3, 4).bfloat16(),
        "f64": torch.randn(4).double(),
        "scalar": torch.tensor(3.5),
        "none": torch.zeros(0, 4),
    }
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    checkpoint = Checkpoint.open(tmp_path)
    assert set(checkpoint.tensors) == set(tensors)
    for name, tensor in tensors.items():
        assert checkpoint.tensors[name].shape == tuple(tensor.shape)
        assert np.array_equal(checkpoint.f32(name), tensor.float().numpy())
    assert checkpoint.raw("bf16").dtype == np.uint16
    assert checkpoint.total_bytes == sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


def test_types_that_are_not_read_are_no_damage(tmp_path: Path) -> None:
    """A file may have them among others, or be of a model for another program."""
    tensors = {
        "scales": torch.zeros(3).to(torch.float8_e8m0fnu),
        "other float8": torch.zeros(3).to(torch.float8_e4m3fnuz),
        "another": torch.zeros(3).to(torch.float8_e5m2fnuz),
        "complex": torch.zeros(3, dtype=torch.complex64),
    }
    save_file(tensors, tmp_path / "model.safetensors")
    header = read_header(tmp_path / "model.safetensors")
    assert {name: one.nbytes for name, one in header.items()} == {
        name: tensor.nbytes for name, tensor in tensors.items()
    }
    halves = written(tmp_path / "halves.safetensors", {"a": entry("F4", (2, 8), (0, 8))}, bytes(8))
    with pytest.raises(UnsupportedModel, match="stored as F4"):
        Checkpoint.open(halves).f32("a")
    assert read_header(written(halves, {"a": entry("F6_E2M3", (4, 2), (0, 6))}, bytes(6)))["a"].nbytes == 6


def test_bfloat16_bits_become_the_same_float32() -> None:
    bits = np.arange(2**16, dtype=np.uint16)
    expected = torch.from_numpy(bits.view(np.int16).copy()).view(torch.bfloat16).float().numpy()
    assert np.array_equal(to_f32(bits, "BF16").view(np.uint32), expected.view(np.uint32))


def test_an_integer_tensor_is_not_a_weight() -> None:
    with pytest.raises(UnsupportedModel, match="I8"):
        to_f32(np.zeros(3, np.int8), "I8")


BAD_HEADERS: dict[str, tuple[Any, bytes, int | None]] = {
    "a length beyond the file": ({}, b"", 10**6),
    "a length beyond any file": ({}, b"", 2**64 - 1),
    "a length beyond the cap": ({}, b"", 200_000_000),
    "no JSON": (b"not json", b"", None),
    "half a JSON": (b'{"a": {"dtype"', b"", None),
    "a list": ([1, 2], b"", None),
    "deep nesting": (b"[" * 50_000, b"", None),
    "a huge number": (b'{"a": ' + b"9" * 10_000 + b"}", b"", None),
    "invalid UTF-8": (b'{"\xff": 1}', b"", None),
    "a tensor twice": (b'{"a": {}, "a": {}}', b"", None),
    "a tensor that is no object": ({"a": 3}, b"", None),
    "no type": ({"a": {"shape": [1], "data_offsets": [0, 4]}}, bytes(4), None),
    "an unknown type": ({"a": entry("F12")}, bytes(16), None),
    "a type that is no name": ({"a": entry(["F32"])}, bytes(16), None),  # type: ignore[arg-type]
    "a negative size": ({"a": entry(shape=(-2, -2))}, bytes(16), None),
    "a size that is a float": ({"a": entry(shape=(2.0, 2))}, bytes(16), None),
    "a size that is true": ({"a": entry(shape=(True, 4))}, bytes(16), None),
    "a shape that is no list": ({"a": entry(shape="22")}, bytes(16), None),
    "too many dimensions": ({"a": entry(shape=(1,) * 9 + (4,))}, bytes(16), None),
    "a product that overflows": ({"a": entry(shape=(2**62, 2**62))}, bytes(16), None),
    "a shape that no array can have": ({"a": entry(shape=(2**62, 0), offsets=(0, 0))}, b"", None),
    "half a byte": ({"a": entry("F4", (3,), (0, 1))}, bytes(1), None),
    "offsets the wrong way round": ({"a": entry(offsets=(16, 0))}, bytes(16), None),
    "one offset": ({"a": entry(offsets=(16,))}, bytes(16), None),
    "an extent of the wrong size": ({"a": entry(offsets=(0, 12))}, bytes(16), None),
    "an extent beyond the file": ({"a": entry()}, bytes(15), None),
    "overlapping tensors": ({"a": entry(), "b": entry(offsets=(8, 24))}, bytes(24), None),
    "a hole": ({"a": entry(), "b": entry(offsets=(20, 36))}, bytes(36), None),
    "a hole at the start": ({"a": entry(offsets=(8, 24))}, bytes(24), None),
    "bytes after the end": ({"a": entry()}, bytes(20), None),
}


@pytest.mark.parametrize("case", BAD_HEADERS.values(), ids=BAD_HEADERS)
def test_a_bad_file_is_refused_without_using_memory(tmp_path: Path, case: tuple[Any, bytes, int | None]) -> None:
    header, data, length = case
    path = written(tmp_path / "bad.safetensors", header, data, length=length)
    tracemalloc.start()
    try:
        with pytest.raises(BadModelFile, match=r"bad\.safetensors"):
            read_header(path)
        assert tracemalloc.get_traced_memory()[1] < 5e6
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("content", [b"", b"\0", b"\0" * 7, b"\0" * 8, b"\xff" * 64, b"PK\x03\x04" * 40])
def test_a_file_of_another_kind_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(BadModelFile):
        Checkpoint.open(path)


GOOD = json.dumps({"a": entry(), "b": entry("BF16", (3,), (16, 22)), "__metadata__": {"format": "pt"}}).encode()
GOOD_FILE = struct.pack("<Q", len(GOOD)) + GOOD + bytes(22)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    changes=st.lists(st.tuples(st.integers(0, len(GOOD_FILE) - 1), st.integers(0, 255)), min_size=1, max_size=6),
    cut=st.integers(0, len(GOOD_FILE)),
)
def test_mutated_bytes_are_read_or_refused_and_nothing_else(
    tmp_path: Path, changes: list[tuple[int, int]], cut: int
) -> None:
    content = bytearray(GOOD_FILE)
    for position, value in changes:
        content[position] = value
    path = tmp_path / "mutated.safetensors"
    path.write_bytes(content if cut < len(GOOD_FILE) // 2 else content[:cut])
    try:
        tensors = read_header(path)
    except RunnerError:
        return
    checkpoint = Checkpoint(tensors)
    for name in tensors:
        assert checkpoint.raw(name).nbytes == tensors[name].nbytes


class TestDirectories:
    """Which files of a directory are read."""

    def shards(self, directory: Path, weight_map: dict[str, Any]) -> None:
        for number, name in enumerate("ab", 1):
            save_file({name: torch.full((2,), float(number))}, directory / f"m-0000{number}.safetensors")
        (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))

    def test_an_index_joins_its_shards(self, tmp_path: Path) -> None:
        self.shards(tmp_path, {"a": "m-00001.safetensors", "b": "m-00002.safetensors"})
        checkpoint = Checkpoint.open(tmp_path)
        assert [checkpoint.f32(name)[0] for name in "ab"] == [1, 2]

    @pytest.mark.parametrize(
        "name",
        [
            "../m-00002.safetensors",
            "/etc/x.safetensors",
            "..\\m.safetensors",
            "C:m.safetensors",
            "sub/../../m.safetensors",
            "sub//m.safetensors",
            "m\0.safetensors",
            "m.bin",
            "..",
            "",
            7,
        ],
    )
    def test_a_shard_name_that_leaves_the_directory_is_refused(self, tmp_path: Path, name: Any) -> None:
        self.shards(tmp_path, {"a": "m-00001.safetensors", "b": name})
        with pytest.raises(BadModelFile, match=r"tensor 'b'"):
            Checkpoint.open(tmp_path)

    def test_an_index_that_cannot_be_read_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "model.safetensors.index.json").symlink_to("/proc/self/mem")  # a file whose first byte is not there
        with pytest.raises(BadModelFile, match=r"index\.json cannot be read: Input/output error"):
            Checkpoint.open(tmp_path)

    def test_a_missing_shard_is_named(self, tmp_path: Path) -> None:
        self.shards(tmp_path, {"a": "m-00001.safetensors", "b": "m-00003.safetensors"})
        with pytest.raises(BadModelFile, match=r"m-00003\.safetensors is missing"):
            Checkpoint.open(tmp_path)

    def test_an_index_that_promises_too_much_is_refused(self, tmp_path: Path) -> None:
        self.shards(tmp_path, {"a": "m-00001.safetensors", "b": "m-00002.safetensors", "c": "m-00002.safetensors"})
        with pytest.raises(BadModelFile, match="lacks tensor 'c'"):
            Checkpoint.open(tmp_path)

    def test_a_shard_with_more_than_the_index_says_is_refused(self, tmp_path: Path) -> None:
        self.shards(tmp_path, {"a": "m-00001.safetensors"})
        save_file({"a": torch.zeros(1), "z": torch.zeros(1)}, tmp_path / "m-00001.safetensors")
        with pytest.raises(BadModelFile, match="'z'"):
            Checkpoint.open(tmp_path)

    @pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "weights.pth", "model.ckpt", "model.pkl"])
    def test_a_pickled_checkpoint_is_refused_with_the_remedy(self, tmp_path: Path, name: str) -> None:
        (tmp_path / name).write_bytes(b"\x80\x04.")
        with pytest.raises(UnsupportedModel, match="pickled") as refused:
            Checkpoint.open(tmp_path)
        assert "safetensors" in refused.value.hint
        with pytest.raises(UnsupportedModel, match="pickled"):
            Checkpoint.open(tmp_path / name)

    def test_an_empty_directory_is_an_error(self, tmp_path: Path) -> None:
        with pytest.raises(BadModelFile, match=r"no \.safetensors"):
            Checkpoint.open(tmp_path)


@pytest.mark.parametrize(
    ("name", "is_plain"),
    [
        ("a.safetensors", True),
        ("..", False),
        (".", False),
        ("", False),
        ("a/b", False),
        ("a\\b", False),
        ("C:a", False),
    ],
)
def test_a_plain_file_name_is_one_component_everywhere(name: str, is_plain: bool) -> None:
    assert is_plain_file_name(name) == is_plain
