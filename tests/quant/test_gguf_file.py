"""The GGUF reader reads good files exactly and refuses bad ones before it allocates anything."""

from __future__ import annotations

import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader, GGUFWriter
from gguf.quants import quantize
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runner.errors import BadModelFile, RunnerError, UnsupportedModel
from runner.quant.gguf_file import GgufArray, parts_of, read_header

U8, U32, STRING, ARRAY, U64 = 0, 4, 8, 9, 10


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def pair(key: str | bytes, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def tensor(name: str, shape: tuple[int, ...] = (4,), kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


def gguf(
    entries: list[bytes] | None = None,
    tensors: list[bytes] | None = None,
    data: bytes = bytes(64),
    *,
    version: int = 3,
    num_entries: int | None = None,
    num_tensors: int | None = None,
) -> bytes:
    entries, tensors = entries or [], tensors or []
    counts = (
        len(tensors) if num_tensors is None else num_tensors,
        len(entries) if num_entries is None else num_entries,
    )
    head = b"GGUF" + struct.pack("<IQQ", version, *counts) + b"".join(entries) + b"".join(tensors)
    return head + bytes(-len(head) % 32) + data


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def test_the_header_equals_what_the_gguf_package_reads(demo_directory: Path) -> None:
    path = demo_directory / "demo-q8_0.gguf"
    header, reference = read_header(path), GGUFReader(path)
    assert header.version == 3
    for key, field in reference.fields.items():
        if not key.startswith("GGUF."):
            assert header.metadata[key] == field.contents(), key
    assert header.data_offset == reference.data_offset
    assert len(header.tensors) == len(reference.tensors) == 68
    for mine, theirs in zip(header.tensors, reference.tensors, strict=True):
        assert (mine.name, mine.shape) == (theirs.name, tuple(theirs.shape.tolist())[::-1])
        assert (mine.offset, mine.size_bytes) == (theirs.data_offset, theirs.n_bytes)
        assert np.array_equal(header.read_raw(mine), np.asarray(theirs.data).reshape(-1).view(np.uint8))


def test_what_a_model_is_can_be_told_from_its_header(demo_directory: Path) -> None:
    header = read_header(demo_directory / "demo-q8_0.gguf")
    assert header.architecture == "qwen3"
    assert header.quantization == "Q8_0"
    assert header.num_parameters == 18_357_504
    assert header.of_architecture("context_length") == 2048
    assert header.size_bytes == (demo_directory / "demo-q8_0.gguf").stat().st_size
    assert header.tensor("no such tensor") is None


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_0"])
def test_tensors_are_decoded_one_at_a_time(tmp_path: Path, kind: str) -> None:
    from gguf import GGMLQuantizationType

    stored = GGMLQuantizationType[kind]
    values = np.random.default_rng(0).normal(size=(6, 64)).astype(np.float32)
    writer = GGUFWriter(tmp_path / "m.gguf", "llama")
    encoded = quantize(values, stored)
    writer.add_tensor("w", encoded.view(np.uint8) if kind == "BF16" else encoded, raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    header = read_header(tmp_path / "m.gguf")
    decoded = header.read_f32(header.tensors[0])
    assert decoded.shape == (6, 64)
    assert np.abs(decoded - values).max() < {"F32": 1e-9, "F16": 2e-3, "BF16": 2e-2, "Q8_0": 2e-2, "Q4_0": 0.5}[kind]
    assert header.quantization == kind


def test_a_type_without_a_decoder_is_refused_by_name(tmp_path: Path) -> None:
    path = written(tmp_path / "m.gguf", gguf(tensors=[tensor("w", (256,), kind=15)], data=bytes(512)))  # Q8_K
    header = read_header(path)
    with pytest.raises(UnsupportedModel, match="Q8_K"):
        header.read_f32(header.tensors[0])


def test_a_large_vocabulary_costs_little_until_it_is_used(tmp_path: Path) -> None:
    count = 151_936
    tokens = struct.pack("<IQ", STRING, count) + b"".join(text(f"token-{number}") for number in range(count))
    numbers = struct.pack("<IQ", U32, count) + np.arange(count, dtype="<u4").tobytes()
    entries = [pair("tokens", ARRAY, tokens), pair("merges", ARRAY, tokens), pair("numbers", ARRAY, numbers)]
    path = written(tmp_path / "m.gguf", gguf(entries))
    header = read_header(path)
    assert all(isinstance(header.metadata[key], GgufArray) for key in ("tokens", "merges", "numbers"))
    assert len(header.metadata["tokens"]) == count
    assert header.metadata["tokens"][count - 1] == f"token-{count - 1}"
    assert header.metadata["numbers"][5:8] == [5, 6, 7]


@pytest.mark.parametrize("kind", [0, 1, 8, 12, 30])
def test_a_tensor_without_values_is_read(tmp_path: Path, kind: int) -> None:
    header = read_header(written(tmp_path / "m.gguf", gguf(tensors=[tensor("a", (256, 0), kind)])))
    values = header.read_f32(header.tensors[0])
    assert (values.shape, values.dtype) == ((0, 256), np.float32)


def test_a_file_type_that_is_no_type_says_nothing(tmp_path: Path) -> None:
    numbers = struct.pack("<IQI", U32, 1, 7)
    for file_type in (
        pair("general.file_type", ARRAY, numbers),
        pair("general.file_type", U32, struct.pack("<I", 999)),
    ):
        tensors = [tensor("a", (32, 2, 1, 1), 8), tensor("b", (8,), 0, 96), tensor("rope_freqs.weight", (8,), 0, 128)]
        header = read_header(written(tmp_path / "m.gguf", gguf([file_type], tensors, bytes(160))))
        assert (header.quantization, header.num_parameters) == ("Q8_0", 64 + 8)  # the table is no weights


def test_metadata_of_every_scalar_type_is_read(tmp_path: Path) -> None:
    kinds = {0: ("B", 7), 1: ("b", -7), 2: ("H", 7), 3: ("h", -7), 4: ("I", 7), 5: ("i", -7), 6: ("f", 0.5)}
    kinds |= {7: ("B", 1), 10: ("Q", 2**60), 11: ("q", -(2**60)), 12: ("d", 0.1)}
    entries = [pair(f"k{kind}", kind, struct.pack("<" + code, value)) for kind, (code, value) in kinds.items()]
    header = read_header(written(tmp_path / "m.gguf", gguf(entries, version=2)))
    assert header.version == 2
    assert {key: value for key, value in header.metadata.items() if key != "k7"} == {
        f"k{kind}": value for kind, (_, value) in kinds.items() if kind != 7
    }
    assert header.metadata["k7"] is True


OVERLAPPING = [tensor("a", (16,)), tensor("b", (16,), offset=32)]
BAD_FILES: dict[str, bytes] = {
    "nothing": b"",
    "a magic alone": b"GGUF",
    "another magic": b"GGML" + gguf()[4:],
    "an unknown version": gguf(version=77),
    "a count of entries beyond the file": gguf(num_entries=1000),
    "a huge count of entries": gguf(num_entries=2**63),
    "a huge count of tensors": gguf(num_tensors=2**63),
    "a key beyond the file": gguf([struct.pack("<Q", 2**40) + b"k"]),
    "a key that is too long": gguf([pair("k" * 70_000, U8, b"\1")]),
    "a key that is not UTF-8": gguf([pair(b"\xff\xfe", U8, b"\1")]),
    "a key twice": gguf([pair("k", U8, b"\1"), pair("k", U8, b"\2")]),
    "a value of unknown type": gguf([pair("k", 99, b"\1")]),
    "a string beyond the file": gguf([pair("k", STRING, struct.pack("<Q", 2**63) + b"abc")]),
    "an array beyond the file": gguf([pair("k", ARRAY, struct.pack("<IQ", U64, 2**61))]),
    "strings beyond the file": gguf([pair("k", ARRAY, struct.pack("<IQ", STRING, 2**61))]),
    "a string in an array beyond the file": gguf(
        [pair("k", ARRAY, struct.pack("<IQ", STRING, 2) + text("a") + struct.pack("<Q", 2**64 - 1))]
    ),
    "an array of unknown type": gguf([pair("k", ARRAY, struct.pack("<IQ", 99, 1) + bytes(8))]),
    "an array of arrays": gguf([pair("k", ARRAY, struct.pack("<IQ", ARRAY, 1) + bytes(16))]),
    "an alignment of zero": gguf([pair("general.alignment", U32, struct.pack("<I", 0))]),
    "an odd alignment": gguf([pair("general.alignment", U32, struct.pack("<I", 24))]),
    "a huge alignment": gguf([pair("general.alignment", U32, struct.pack("<I", 2**31))]),
    "an alignment that is text": gguf([pair("general.alignment", STRING, text("32"))]),
    "a tensor without dimensions": gguf(tensors=[tensor("a", ())]),
    "a tensor of five dimensions": gguf(tensors=[tensor("a", (1, 1, 1, 1, 4))]),
    "a tensor of 2^32 dimensions": gguf(tensors=[text("a") + struct.pack("<I", 2**32 - 1)]),
    "a tensor of unknown type": gguf(tensors=[tensor("a", kind=4000)]),
    "a shape that overflows": gguf(tensors=[tensor("a", (2**62, 2**62))]),
    "half a block": gguf(tensors=[tensor("a", (33,), kind=8)]),
    "a tensor beyond the file": gguf(tensors=[tensor("a", (17,))]),
    "an offset beyond the file": gguf(tensors=[tensor("a", offset=2**40)]),
    "an offset that is not aligned": gguf(tensors=[tensor("a", offset=4)]),
    "overlapping tensors": gguf(tensors=OVERLAPPING, data=bytes(128)),
    "a tensor twice": gguf(tensors=[tensor("a"), tensor("a", offset=32)], data=bytes(128)),
    "a name that is not UTF-8": gguf(tensors=[text(b"\xff") + struct.pack("<IQIQ", 1, 4, 0, 0)]),
}


@pytest.mark.parametrize("content", BAD_FILES.values(), ids=BAD_FILES)
def test_a_bad_file_is_refused_without_using_memory(tmp_path: Path, content: bytes) -> None:
    path = written(tmp_path / "bad.gguf", content)
    tracemalloc.start()
    try:
        with pytest.raises((BadModelFile, UnsupportedModel), match=r"bad\.gguf"):
            read_header(path)
        assert tracemalloc.get_traced_memory()[1] < 5e6
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("version", [1, 0x03000000])
def test_an_old_or_big_endian_file_is_refused_with_the_remedy(tmp_path: Path, version: int) -> None:
    with pytest.raises(UnsupportedModel) as refused:
        read_header(written(tmp_path / "m.gguf", gguf(version=version)))
    assert refused.value.hint


def test_a_truncated_model_is_refused(tmp_path: Path, demo_directory: Path) -> None:
    content = (demo_directory / "demo-q8_0.gguf").read_bytes()
    for length in (0, 3, 23, 24, 1000, 300_000, len(content) // 2, len(content) - 64):
        with pytest.raises(BadModelFile, match=r"m\.gguf"):
            read_header(written(tmp_path / "m.gguf", content[:length]))


GOOD_FILE = gguf(
    [
        pair("general.architecture", STRING, text("llama")),
        pair("general.alignment", U32, struct.pack("<I", 32)),
        pair("tokens", ARRAY, struct.pack("<IQ", STRING, 3) + text("a") + text("") + text("ccc")),
        pair("scores", ARRAY, struct.pack("<IQ3f", 6, 3, 0.0, 1.0, 2.0)),
    ],
    [tensor("a", (4, 2)), tensor("b", (32,), kind=8, offset=32)],
    bytes(66),
)


@settings(max_examples=500, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    changes=st.lists(st.tuples(st.integers(4, len(GOOD_FILE) - 1), st.integers(0, 255)), min_size=1, max_size=6),
    cut=st.integers(0, 2 * len(GOOD_FILE)),
)
def test_mutated_bytes_are_read_or_refused_and_nothing_else(
    tmp_path: Path, changes: list[tuple[int, int]], cut: int
) -> None:
    content = bytearray(GOOD_FILE)
    for position, value in changes:
        content[position] = value
    try:
        header = read_header(written(tmp_path / "m.gguf", bytes(content[:cut])))
    except RunnerError:
        return
    for value in header.metadata.values():
        assert len(repr(value if isinstance(value, (int, float, str, bool)) else list(value))) < 10_000
    for found in header.tensors:
        assert header.read_raw(found).nbytes == found.size_bytes


class TestParts:
    """A split model is one model."""

    def names(self, directory: Path, present: int, count: int) -> list[Path]:
        paths = [directory / f"m-{number:05d}-of-{count:05d}.gguf" for number in range(1, count + 1)]
        for path in paths[:present]:
            path.write_bytes(gguf())
        return paths

    def test_all_parts_are_found_from_any_of_them(self, tmp_path: Path) -> None:
        paths = self.names(tmp_path, 3, 3)
        assert parts_of(paths[1]) == tuple(paths)
        upper = [path.rename(path.with_name(path.name.upper())) for path in paths]
        assert parts_of(upper[2]) == tuple(upper)

    def test_a_missing_part_is_named(self, tmp_path: Path) -> None:
        paths = self.names(tmp_path, 2, 3)
        with pytest.raises(BadModelFile, match=r"m-00003-of-00003\.gguf is missing"):
            parts_of(paths[0])

    def test_a_plain_file_is_its_only_part(self, tmp_path: Path) -> None:
        assert parts_of(tmp_path / "m.gguf") == (tmp_path / "m.gguf",)

    @pytest.mark.parametrize("name", ["m-00000-of-00003.gguf", "m-00004-of-00003.gguf", "m-00001-of-99999.gguf"])
    def test_an_impossible_number_is_refused(self, tmp_path: Path, name: str) -> None:
        with pytest.raises(BadModelFile, match="part number"):
            parts_of(tmp_path / name)


def test_arrays_compare_and_show_themselves(tmp_path: Path) -> None:
    header = read_header(written(tmp_path / "m.gguf", GOOD_FILE))
    array: Any = header.metadata["tokens"]
    assert array == ["a", "", "ccc"]
    assert array != ["a"]
    assert repr(array) == "<3 values>"
