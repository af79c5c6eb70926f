"""The container reader reads hipfire's files exactly and refuses bad ones before it allocates anything."""

from __future__ import annotations

import contextlib
import json
import struct
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hfq_bytes import Stored, container, written
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runner.errors import BadModelFile, RunnerError, UnsupportedModel
from runner.quant.hipfire.container import read_header
from runner.quant.hipfire.source import HfqWeights

NORM = Stored()
HALF = Stored(name="half", number=1, shape=(2, 3), data=np.arange(6, dtype="<f2").tobytes())
METADATA = {"config": {"model_type": "qwen3"}, "tokenizer": '{"model": {"é": "}{\\""}}', "other": [1]}

GOLDEN = (
    b"HFQM"
    b"\x01\0\0\0"  # version
    b"\x01\0\0\0"  # arch_id
    b"\x02\0\0\0"  # tensors
    b"\x20\0\0\0\0\0\0\0"  # metadata_offset
    b"\x80\0\0\0\0\0\0\0"  # data_offset
    b'{"config":{"model_type":"llama"}}'  # 33 bytes, up to 65
    b"\x02\0\0\0"
    b"\x01\0a\x02\x01\x02\0\0\0\0\0\0\0\x08\0\0\0\0\0\0\0"  # "a": F32 [2], 8 bytes
    b"\x01\0b\x01\x01\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0"  # "b": F16 [1], 2 bytes
).ljust(128, b"\0") + b"\0\0\x80\x3f\0\0\0\xc0\0\x3c"


def test_a_file_given_as_bytes_is_read_as_what_it_is(tmp_path: Path) -> None:
    header = read_header(written(tmp_path / "golden.hfq", GOLDEN))
    assert (header.version, header.arch_id, header.data_offset) == (1, 1, 128)
    assert (header.model_type, header.tokenizer, header.quantization) == ("llama", "", "F32")
    assert [(tensor.name, tensor.type.name, tensor.shape) for tensor in header.tensors] == [
        ("a", "F32", (2,)),
        ("b", "F16", (1,)),
    ]
    assert [(tensor.offset, tensor.size_bytes) for tensor in header.tensors] == [(128, 8), (136, 2)]
    weights = HfqWeights(tmp_path / "golden.hfq")
    assert weights.read("a").tolist() == [1.0, -2.0]
    assert weights.read("b").tolist() == [1.0]


@pytest.mark.parametrize("version", [1, 2])
def test_both_versions_say_the_same(tmp_path: Path, version: int) -> None:
    path = written(tmp_path / "x.hfq", container([HALF, NORM], METADATA, version=version))
    header = read_header(path)
    assert header.metadata == METADATA
    assert header.tokenizer == METADATA["tokenizer"]
    assert bytes(header.read_raw(header.tensors[0])) == HALF.data
    assert bytes(header.read_raw(header.tensors[1])) == NORM.data
    assert header.tensors[1].offset == header.data_offset + (12 if version == 1 else 32)


@pytest.mark.parametrize(
    "text",
    [
        b'{"a": "}"}',
        b'{"a": "\\""}',
        b'{"a": "\\\\"}',
        b'{"a": {"b": [{}, "]"]}}',
        '{"ключ": "日本語 🎉"}'.encode(),
        b'{"a": "\\u007d\\ud83c\\udf89"}',
    ],
)
def test_the_metadata_ends_where_its_json_value_ends(tmp_path: Path, text: bytes) -> None:
    header = read_header(written(tmp_path / "x.hfq", container(metadata=text)))
    assert header.metadata == json.loads(text)
    assert [tensor.name for tensor in header.tensors] == ["model.norm.weight"]


def test_bytes_of_the_index_that_look_like_utf8_or_not_do_not_matter(tmp_path: Path) -> None:
    # 0xC3 begins a character of two bytes: as the count of tensors it must not join the metadata.
    tensors = [Stored(name=f"t{number}") for number in range(0xC3)]
    assert len(read_header(written(tmp_path / "x.hfq", container(tensors))).tensors) == 0xC3


def test_the_second_version_may_keep_metadata_after_the_tensors(tmp_path: Path) -> None:
    tail = json.dumps({"metadata": {"tokenizer": "{ }x", "config": {"model_type": "no"}}}).encode()
    place = {"offset": 4112, "size": len(tail)}
    front = {"config": {"model_type": "llama"}, "tail_metadata": place}
    header = read_header(written(tmp_path / "x.hfq", container(metadata=front, version=2, after=tail)))
    assert (header.model_type, header.tokenizer) == ("llama", "{ }x")


@pytest.mark.parametrize("place", [{"offset": 4112, "size": 99}, {"offset": -1, "size": 4}, {"offset": "0"}, 5])
def test_an_impossible_place_after_the_tensors_is_refused(tmp_path: Path, place: object) -> None:
    path = written(tmp_path / "x.hfq", container(metadata={"tail_metadata": place}, version=2, after=b"{}"))
    with pytest.raises(BadModelFile, match="impossible place"):
        read_header(path)


def test_what_hipfire_does_with_its_own_files_is_accepted(tmp_path: Path) -> None:
    # Its splitting tool does not align the data; its merging tool appends a prediction head.
    content = container([HALF, NORM], METADATA, alignment=1, after=b"HFQM more")
    header = read_header(written(tmp_path / "x.hfq", content))
    assert bytes(header.read_raw(header.tensors[1])) == NORM.data


def test_a_tokenizer_may_be_missing_or_an_object(tmp_path: Path) -> None:
    def tokenizer(value: object) -> str:
        return read_header(written(tmp_path / "x.hfq", container(metadata={"tokenizer": value}))).tokenizer

    assert (tokenizer("{}"), tokenizer(None), tokenizer(5)) == ("", "", "")
    assert json.loads(tokenizer({"model": {"é": 1}})) == {"model": {"é": 1}}


BAD = {
    "empty": (b"", "too short"),
    "magic alone": (b"HFQM", "too short"),
    "another magic": (container(magic=b"GGUF"), "not a hipfire container"),
    "header alone": (container()[:32], "its data at 4096 of 32"),
    "metadata inside the header": (container(metadata_offset=8), "metadata at 8"),
    "metadata after the data": (container(metadata_offset=5000), "metadata at 5000"),
    "data outside": (container(data_offset=10**6), "data at 1000000"),
    "data at 2^64 - 1": (container(data_offset=2**64 - 1), "data at"),
    "four billion tensors": (container(num_tensors=2**32 - 1), "claims to have 4294967295 tensors"),
    "more tensors than the index": (container(num_tensors=2), "2 tensors by its header and 1 by its index"),
    "more tensors than described": (container(num_tensors=100, counted=100), "truncated or has an impossible size|dim"),
    "no metadata": (container(metadata=b""), "not valid JSON"),
    "metadata cut": (container(metadata=b'{"config": "'), "not valid JSON"),
    "a list as metadata": (container(metadata=b"[]"), "not a JSON object"),
    "metadata that is not UTF-8": (container(metadata=b'{"a": "\xff"}'), "not valid JSON"),
    "metadata too deep": (container(metadata=b'{"a":' + b"[" * 100_000), "not valid JSON"),
    "a number of a million digits": (container(metadata=b'{"a":' + b"9" * 10**6 + b"}"), "not valid JSON"),
    "no dimensions": (container([NORM.but(shape=())]), "0 dimensions"),
    "five dimensions": (container([NORM.but(shape=(1, 1, 1, 1, 4))]), "5 dimensions"),
    "a name that is not UTF-8": (container([NORM.but(name=b"\xff\xfe")]), "not UTF-8"),
    "two of one name": (container([NORM, NORM]), "twice"),
    "a shape for more bytes": (container([NORM.but(shape=(5,))]), "holds 16 bytes .* needs 20"),
    "a shape of 2^128": (container([NORM.but(shape=(2**32 - 1,) * 4)]), "holds 16 bytes"),
    "a size for more": (container([NORM.but(size=20)]), "holds 20 bytes"),
    "a size of 2^64 - 1": (container([NORM.but(size=2**64 - 1)]), "holds 18446744073709551615 bytes"),
    "Q8_0 of half a block": (container([Stored(number=3, shape=(1, 16), data=bytes(17))]), "needs 34"),
    "data cut": (container()[:-1], "truncated"),
    "an honest size outside": (container([NORM.but(shape=(4000, 4000), size=64_000_000)]), "ends .* it is truncated"),
    "overlapping": (container([HALF, NORM.but(offset=4096)], version=2), "overlapping"),
    "data in the header": (container([NORM.but(offset=32)], version=2), "overlapping 'the header'"),
    "an offset of 2^68": (container([NORM.but(offset=32 * (2**64 - 1))], version=2), "truncated"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_malformed_file_is_refused_and_named(tmp_path: Path, case: str) -> None:
    content, reason = BAD[case]
    with pytest.raises(BadModelFile, match=reason) as caught:
        read_header(written(tmp_path / "bad.hfq", content))
    assert "bad.hfq" in caught.value.message
    assert caught.value.hint


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    whole = container([HALF, NORM], METADATA, alignment=32)
    read_header(written(tmp_path / "x.hfq", whole))
    for length in range(len(whole)):
        with pytest.raises(BadModelFile):
            read_header(written(tmp_path / "x.hfq", whole[:length]))


def test_a_missing_file_is_an_error_with_a_reason(tmp_path: Path) -> None:
    with pytest.raises(BadModelFile, match="cannot be read"):
        read_header(tmp_path / "none.hfq")


def test_unknown_types_are_all_listed_by_number(tmp_path: Path) -> None:
    tensors = [NORM, NORM.but(name="b", number=99), NORM.but(name="a", number=17), NORM.but(name="c", number=99)]
    with pytest.raises(UnsupportedModel, match=r"types 17, 99, such as 'a'; known are 1 \(F16\)") as caught:
        read_header(written(tmp_path / "x.hfq", container(tensors)))
    assert "original model" in caught.value.hint


def test_numbers_that_a_fork_gave_other_formats_are_not_read_from_its_files(tmp_path: Path) -> None:
    tensor = Stored(name="w", number=44, shape=(1, 256), data=bytes(136))
    assert read_header(written(tmp_path / "x.hfq", container([tensor]))).tensors[0].type.name == "MQ4-G256-V2"
    with pytest.raises(UnsupportedModel, match="types 44"):
        read_header(written(tmp_path / "x.hfq", container([tensor], version=2)))


@pytest.mark.parametrize("version", [0, 3, 2**32 - 1])
def test_an_unknown_version_is_named(tmp_path: Path, version: int) -> None:
    with pytest.raises(UnsupportedModel, match=f"of version {version}"):
        read_header(written(tmp_path / "x.hfq", container(version=version)))


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_changed_header_never_raises_anything_but_our_errors(tmp_path: Path, data: st.DataObject) -> None:
    content = bytearray(container([HALF, NORM], METADATA, version=data.draw(st.sampled_from([1, 2])), alignment=32))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = written(tmp_path / "x.hfq", bytes(content[: data.draw(st.integers(0, len(content)))]))
    with contextlib.suppress(RunnerError):  # anything else fails
        weights = HfqWeights(path)
        weights.write_companions(tmp_path)
        for name in weights.shapes:
            weights.read(name)


FUZZ = """
import random, resource, struct, sys
from pathlib import Path
import torch
from hfq_bytes import Stored, container
from runner.errors import RunnerError
from runner.quant.hipfire.source import HfqWeights

torch.set_num_threads(1)
path, rng = Path(sys.argv[1]), random.Random(5)
tensors = [
    Stored(name="a.weight", number=13, shape=(2, 256), group_size=256, data=bytes(272)),
    Stored(name="a.awq_scale.weight", number=1, shape=(256,), data=bytes(512)),
    Stored(name="b", number=3, shape=(4, 64), group_size=32, data=bytes(272)),
    Stored(name="c", number=44, shape=(1, 256), group_size=256, data=bytes(136)),
]
metadata = {"config": {"model_type": "qwen3"}, "tokenizer": "{\\"a\\": 1}"}
whole = container(tensors, metadata, alignment=32)
path.write_bytes(whole)
before = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (before + 200 * 2**20,) * 2)
refused = 0
for attempt in range(800):
    content = bytearray(whole)
    for _ in range(rng.randint(1, 3)):
        place = rng.randrange(len(content) - 64 if rng.random() < 0.2 else 450)
        value = rng.choice([b"\\xff" * 8, struct.pack("<Q", 2**40), struct.pack("<I", 2**31), bytes(4), b"\\x7f", b"{"])
        content[place : place + len(value)] = value
    path.write_bytes(bytes(content) if rng.random() < 0.8 else bytes(content[: rng.randrange(len(content))]))
    try:
        weights = HfqWeights(path)
        weights.write_companions(path.parent)
        for name in weights.shapes:
            weights.read(name)
    except RunnerError:
        refused += 1
print(refused)
"""


def test_hostile_files_raise_our_errors_alone_under_a_memory_cap(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-c", FUZZ, str(tmp_path / "x.hfq")],
        env={"PYTHONPATH": f"{Path(__file__).parent}:{Path(__file__).parents[3]}", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    assert 250 < int(result.stdout) < 800


def test_a_large_honest_header_is_read_quickly(tmp_path: Path) -> None:
    tensors = [Stored(name=f"model.layers.{number}.weight") for number in range(20_000)]
    metadata = {
        "config": {},
        "tokenizer": json.dumps({"vocab": {f"token{number}é": number for number in range(200_000)}}),
    }
    path = written(tmp_path / "x.hfq", container(tensors, metadata))
    started = time.monotonic()
    assert len(read_header(path).tensors) == 20_000
    assert time.monotonic() - started < 60


def test_the_index_is_struct_packed_as_hipfire_writes_it() -> None:
    # The test's own builder against literal bytes, so that it may stand for hipfire's writer elsewhere.
    built = container(
        [
            Stored(name="a", shape=(2,), data=struct.pack("<2f", 1, -2)),
            Stored(name="b", number=1, shape=(1,), data=b"\0\x3c"),
        ],
        b'{"config":{"model_type":"llama"}}',
        alignment=128,
    )
    assert built == GOLDEN
