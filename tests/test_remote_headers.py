"""Headers read by Range: as checked as those of files here, by few bytes, and bounded when they lie."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFWriter
from hub_server import Hub, Repo, serving
from safetensors.numpy import save_file

from runner import hub
from runner.errors import BadModelFile
from runner.quant import gguf_file, safetensors_file
from runner.remote_headers import GGUF_START_BYTES, gguf_header, json_object, safetensors_header

MIB = 2**20


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serving(Hub()) as running:
        monkeypatch.setenv("HF_ENDPOINT", running.url)
        yield running


def opened(server: Hub, files: dict[str, bytes]) -> tuple[hub.RemoteReader, hub.Listing]:
    server.repos["a/b"] = Repo(files)
    listing = hub.list_files("a/b")
    return hub.RemoteReader(listing), listing


def write_gguf(path: Path, *, num_tokens: int, num_values: int = 32) -> bytes:
    writer = GGUFWriter(path, "llama")
    writer.add_token_list([f"<a rather long token number {number:07d}>" for number in range(num_tokens)])
    writer.add_tensor("token_embd.weight", np.zeros((num_values // 32, 32), np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()


def test_a_small_gguf_header_takes_one_request(server: Hub, tmp_path: Path) -> None:
    data = write_gguf(tmp_path / "x.gguf", num_tokens=10, num_values=8 * MIB)
    reader, listing = opened(server, {"x.gguf": data})
    with reader:
        header, start = gguf_header(reader, listing.file("x.gguf"))
    local = gguf_file.read_header(tmp_path / "x.gguf")
    assert (header.metadata["tokenizer.ggml.tokens"], header.tensors) == (
        local.metadata["tokenizer.ggml.tokens"],
        local.tensors,
    )
    assert header.size_bytes == len(data) > 15 * MIB
    assert server.sent_bytes("x.gguf") == GGUF_START_BYTES
    assert start == data[:GGUF_START_BYTES]


def test_a_large_vocabulary_is_fetched_in_growing_parts_and_no_byte_twice(server: Hub, tmp_path: Path) -> None:
    data = write_gguf(tmp_path / "x.gguf", num_tokens=120_000, num_values=8 * MIB)
    reader, listing = opened(server, {"x.gguf": data})
    with reader:
        header, _ = gguf_header(reader, listing.file("x.gguf"))
    assert len(header.metadata["tokenizer.ggml.tokens"]) == 120_000
    assert header.data_offset > 2 * GGUF_START_BYTES
    assert server.ranges("x.gguf") == [
        f"bytes=0-{2 * MIB - 1}",
        f"bytes={2 * MIB}-{4 * MIB - 1}",
        f"bytes={4 * MIB}-{8 * MIB - 1}",
    ]


@pytest.mark.parametrize("num_tensors", [1, 2000])
def test_a_safetensors_header_is_fetched_and_nothing_of_the_weights(
    server: Hub, tmp_path: Path, num_tensors: int
) -> None:
    path = tmp_path / "model.safetensors"
    save_file(
        {f"model.layers.{i}.weight": np.ones((8192 // num_tensors, 512), np.float16) for i in range(num_tensors)}, path
    )
    reader, listing = opened(server, {path.name: path.read_bytes()})
    with reader:
        found = safetensors_header(reader, listing.file(path.name))
    local = safetensors_file.read_header(path)
    assert {name: (one.shape, one.offset, one.nbytes) for name, one in found.items()} == {
        name: (one.shape, one.offset, one.nbytes) for name, one in local.items()
    }
    header = min(one.offset for one in local.values())
    assert server.sent_bytes(path.name) == max(64 * 1024, header)


def test_json_files_must_be_objects(server: Hub) -> None:
    files = {"a.json": b'{"x": 1}', "b.json": b"[1]", "c.json": b"{", "d.json": b"\xff", "e.json": b"[" * 100_000}
    reader, listing = opened(server, files)
    with reader:
        assert json_object(reader, listing.file("a.json")) == {"x": 1}
        for name in list(files)[1:]:
            with pytest.raises(BadModelFile, match=name):
                json_object(reader, listing.file(name))


# --- headers that lie ------------------------------------------------------------------------------------------------


def header(*parts: bytes) -> bytes:
    return b"GGUF" + struct.pack("<I", 3) + b"".join(parts)


def u64(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}Q", *values)


def text(value: bytes) -> bytes:
    return u64(len(value)) + value


def kind(value: int) -> bytes:
    return struct.pack("<I", value)


def safetensors(value: object, claimed: int | None = None) -> bytes:
    body = json.dumps(value).encode()
    return u64(len(body) if claimed is None else claimed) + body


LIES = {
    "gguf nothing": b"",
    "gguf not one": b"PK\x03\x04" + bytes(60),
    "gguf zeros": bytes(64),
    "gguf version": b"GGUF" + struct.pack("<I", 99) + u64(0, 0),
    "gguf big-endian": b"GGUF" + struct.pack(">I", 3) + u64(0, 0),
    "gguf tensors": header(u64(2**63, 0)),
    "gguf entries": header(u64(0, 2**63)),
    "gguf entries of nothing": header(u64(1, 60_000)),
    "gguf key": header(u64(0, 1), u64(2**62), b"x"),
    "gguf string": header(u64(0, 1), text(b"a"), kind(8), u64(2**40 - 100), b"x"),
    "gguf string in the file": header(u64(0, 1), text(b"a"), kind(8), u64(2**39), b"x"),
    "gguf strings": header(u64(0, 1), text(b"a"), kind(9), kind(8), u64(2**37), b"x"),
    "gguf empty strings": header(u64(0, 1), text(b"a"), kind(9), kind(8), u64(2**24)) + bytes(4 * MIB),
    "gguf numbers": header(u64(0, 1), text(b"a"), kind(9), kind(12), u64(2**61), b"x"),
    "gguf arrays": header(u64(0, 1), text(b"a"), kind(9), kind(9), u64(4), b"x"),
    "gguf type": header(u64(0, 1), text(b"a"), kind(77), b"x"),
    "gguf twice": header(u64(0, 2), *[text(b"a") + kind(0) + b"x"] * 2),
    "gguf dimensions": header(u64(1, 0), text(b"t"), kind(2**31)),
    "gguf shape": header(u64(1, 0), text(b"t"), kind(2), u64(2**63, 2**63), kind(0), u64(0)),
    "gguf extent": header(u64(1, 0), text(b"t"), kind(1), u64(2**42), kind(0), u64(0)),
    "gguf offset": header(u64(1, 0), text(b"t"), kind(1), u64(32), kind(0), u64(2**62)),
    "gguf utf-8": header(u64(0, 1), text(b"\xff\xfe"), kind(0), b"x"),
    "safetensors nothing": b"",
    "safetensors short": b"abc",
    "safetensors length": u64(2**62) + b"{}",
    "safetensors long": u64(90_000_000) + b'{"a": ' + b"[" * 1000,
    "safetensors no json": u64(4) + b"nope",
    "safetensors list": safetensors([1]),
    "safetensors deep": u64(50_000) + b"[" * 50_000,
    "safetensors empty": safetensors({}),
    "safetensors entry": safetensors({"a": 3}),
    "safetensors type": safetensors({"a": {"dtype": "PICKLE", "shape": [1], "data_offsets": [0, 4]}}),
    "safetensors shape": safetensors({"a": {"dtype": "F32", "shape": [2**62, 2**62], "data_offsets": [0, 4]}}),
    "safetensors extent": safetensors({"a": {"dtype": "F32", "shape": [1], "data_offsets": [2**60, 2**60 + 4]}}),
    "safetensors overlap": safetensors(
        {name: {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]} for name in ("a", "b")}
    ),
}
# A hub whose file claims to have a tebibyte, begins with `start` and goes on with zeros, or with what it began with.
PROGRAM = """
import json, pickle, resource, sys
from runner.errors import BadModelFile, UnsupportedModel
from runner.hub import RemoteFile
from runner import remote_headers

class Reader:
    def __init__(self, start, repeats):
        self.start, self.repeats, self.sent = start, repeats, 0

    def read(self, name, start, length):
        self.sent += length
        if self.repeats:
            return (self.start * (length // max(1, len(self.start)) + 2))[:length]
        return self.start[start : start + length].ljust(length, bytes(1))

lies = pickle.load(sys.stdin.buffer)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 384 * 2**20,) * 2)
failed = {}
for name, start in lies.items():
    read = remote_headers.gguf_header if name.startswith("gguf") else remote_headers.safetensors_header
    for repeats in (False, True):
        for size in (len(start), 2**40) if start else (0, 5):
            reader = Reader(start, repeats)
            try:
                read(reader, RemoteFile("x", size))
            except (BadModelFile, UnsupportedModel):
                wrong = "" if reader.sent <= 65 * 2**20 else f"read {reader.sent} bytes"
            except BaseException as error:
                wrong = repr(error)
            else:
                wrong = "was believed"
            if wrong:
                failed[f"{name}, {size} bytes, repeats {repeats}"] = wrong
print(json.dumps(failed))
"""


def test_headers_that_lie_are_refused_with_little_memory_and_few_bytes() -> None:
    import pickle

    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], input=pickle.dumps(LIES), capture_output=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr.decode()
    # A file that really ends after an empty header is a well-formed one.
    assert json.loads(done.stdout) == {
        f"safetensors empty, 10 bytes, repeats {repeats}": "was believed" for repeats in (False, True)
    }


@pytest.mark.parametrize("name", [name for name in LIES if LIES[name]])
def test_remote_headers_are_refused_as_local_ones(name: str, tmp_path: Path, server: Hub) -> None:
    is_gguf = name.startswith("gguf")
    path = tmp_path / ("x.gguf" if is_gguf else "x.safetensors")
    path.write_bytes(LIES[name])
    reader, listing = opened(server, {path.name: LIES[name]})
    read_local = gguf_file.read_header if is_gguf else safetensors_file.read_header
    read_remote = (lambda *asked: gguf_header(*asked)[0]) if is_gguf else safetensors_header

    def outcome(read: object, *arguments: object) -> str:
        try:
            return str(read(*arguments))  # type: ignore[operator]
        except Exception as error:
            return f"{type(error).__name__}: {error}"

    with reader:
        assert outcome(read_remote, reader, listing.file(path.name)) == outcome(read_local, path)
