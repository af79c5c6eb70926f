"""Bytes of files come whole and unchanged, in whatever order they are asked for, and what goes wrong is said."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from runner.backends.native import upload
from runner.backends.native.upload import Stopped, Upload

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Extent:
    path: Path
    offset: int
    nbytes: int


@pytest.fixture
def contents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, bytes]:
    """A file of 10 000 bytes, read in blocks of 1000."""
    monkeypatch.setattr(upload, "BLOCK_BYTES", 1000)
    monkeypatch.setattr(upload, "_AHEAD_BYTES", 3000)
    monkeypatch.setattr(upload, "_STEP_BYTES", 128)
    monkeypatch.setattr(upload, "_LARGEST_GAP", 16)
    data = os.urandom(10_000)
    (tmp_path / "weights").write_bytes(data)
    return tmp_path / "weights", data


def taken(found: Upload, key: str, nbytes: int) -> bytes:
    out = torch.empty(nbytes, dtype=torch.uint8)
    assert list(found.take([(key, out)])) == [None]
    return out.numpy().tobytes()


# Neighbours, small gaps, large gaps, going back in the file, more than a block, nothing at all.
SPANS = {"a": (0, 10), "b": (10, 20), "c": (40, 3500), "d": (7000, 7001), "e": (5000, 6500), "f": (3500, 3500)}


@pytest.mark.parametrize("order", ["abcdef", "fedcba", "cafebd"])
def test_each_extent_has_its_bytes_in_whatever_order_they_are_taken(contents: tuple[Path, bytes], order: str) -> None:
    path, data = contents
    extents = {key: Extent(path=path, offset=start, nbytes=end - start) for key, (start, end) in SPANS.items()}
    found = Upload(extents, CPU)
    for key in order:
        start, end = SPANS[key]
        assert taken(found, key, end - start) == data[start:end]
    assert not found._bytes_held
    assert not any(block.arrival or block.data is not None for block in found._blocks), "what was taken is kept"
    found.close()
    found.close()


def test_what_follows_in_another_file_is_read_from_that(contents: tuple[Path, bytes]) -> None:
    path, data = contents
    other = path.with_name("other")
    other.write_bytes(data[::-1])
    same = path.parent / "." / path.name  # and not the same object
    found = Upload({"a": Extent(path, 0, 10), "b": Extent(other, 10, 10), "c": Extent(same, 20, 10)}, CPU)
    assert [taken(found, key, 10) for key in "abc"] == [data[:10], data[::-1][10:20], data[20:30]]
    found.close()


def test_as_much_is_read_ahead_as_is_allowed(contents: tuple[Path, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    path, _ = contents
    read: list[int] = []
    real = os.preadv

    def counted(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        read.append(sum(map(len, buffers)))
        return real(descriptor, buffers, offset)

    monkeypatch.setattr(os, "preadv", counted)
    extents = {str(i): Extent(path=path, offset=1000 * i, nbytes=1000) for i in range(10)}
    found = Upload(extents, CPU)
    for i in range(10):
        taken(found, str(i), 1000)
        assert sum(block.arrival is not None for block in found._blocks) == min(3, 9 - i)
    found.close()
    assert sum(read) == 10_000, "each byte is read once"


def test_a_file_that_ends_early_is_an_error_where_it_is_missed(contents: tuple[Path, bytes]) -> None:
    path, data = contents
    extents = {
        "whole": Extent(path=path, offset=0, nbytes=500),
        "cut": Extent(path=path, offset=9_000, nbytes=1500),
        "gone": Extent(path=path.with_name("no such file"), offset=0, nbytes=1),
    }
    found = Upload(extents, CPU)
    assert taken(found, "whole", 500) == data[:500]
    with pytest.raises(OSError, match="the file ends at byte 10000"):
        taken(found, "cut", 1500)
    with pytest.raises(FileNotFoundError):
        taken(found, "gone", 1)
    found.close()


def test_waiting_ends_when_the_load_is_cancelled(contents: tuple[Path, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    path, _ = contents
    is_cancelled, may_go_on = threading.Event(), threading.Event()

    def stuck(_descriptor: int, _buffers: list[memoryview], _offset: int) -> int:
        is_cancelled.set()
        may_go_on.wait(60)
        return 1

    monkeypatch.setattr(os, "preadv", stuck)
    found = Upload({"a": Extent(path=path, offset=0, nbytes=100)}, CPU, is_cancelled.is_set)
    with pytest.raises(Stopped):
        taken(found, "a", 100)
    may_go_on.set()
    found.close()


@pytest.mark.parametrize("many", [1, 10**9], ids=["by one launch", "one by one"])
def test_pieces_of_a_block_are_there_however_they_are_copied(
    contents: tuple[Path, bytes], many: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, data = contents
    monkeypatch.setattr(upload, "_MANY", many)
    spans = [(start, min(start + length, 10_000)) for length in (7, 333, 1200) for start in range(0, 10_000, 1200)]
    outs = {str(i): torch.empty(end - start, dtype=torch.uint8) for i, (start, end) in enumerate(spans)}
    found = Upload({str(i): Extent(path, start, end - start) for i, (start, end) in enumerate(spans)}, CPU)
    taking = found.take(outs.items())
    for (start, end), out in zip(spans, outs.values(), strict=True):
        next(taking)
        assert out.numpy().tobytes() == data[start:end], "what is told to be there is there"
    assert next(taking, "no more") == "no more"
    assert not found._bytes_held
    found.close()
