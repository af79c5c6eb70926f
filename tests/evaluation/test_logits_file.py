"""Logits on disk: whole or not there, and read back as they were."""

from __future__ import annotations

import fcntl
import shutil
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from runner.errors import BadModelFile, BusyError, DoesNotFit, RunnerError, UsageError
from runner.evaluation.logits_file import Logits32, Recorded, open_kept, write
from runner.evaluation.report import MeasuredModel
from runner.evaluation.windows import TextWindows, Windowing

MODEL = MeasuredModel(
    name="m",
    backend="native",
    reason="",
    device="CPU",
    quantization="BF16",
    num_parameters=1,
    size_bytes=2,
    bits=None,
)
WINDOWING = Windowing(size=16, context=10)
RECORDED = Recorded(
    key="k",
    model=MODEL,
    windowing=WINDOWING,
    texts=(TextWindows(name="t", n_tokens=99, windows=(tuple(range(16)), tuple(range(16, 32)))),),
    pieces=("a", "\xff", "<|end|>", "", "e"),
)
VALUES = np.random.default_rng(0).normal(0, 5, (2, 6, 5)).astype(np.float32)


def windows() -> Iterator[Iterator[Logits32]]:
    return (iter([window[:4], window[4:]]) for window in VALUES)


def test_logits_come_back_to_the_bit(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    written = write(RECORDED, windows(), path, tmp_path / "scratch")
    opened = open_kept(path, "k")
    assert opened is not None
    assert opened.recorded == RECORDED
    for file in (written, opened):
        for number in range(2):
            blocks = list(file.blocks(number, 4))
            assert [len(block) for block in blocks] == [4, 2]
            assert np.array_equal(np.concatenate(blocks), VALUES[number])
    assert not (tmp_path / "scratch").exists()


def test_a_file_without_a_name_leaves_nothing_behind(tmp_path: Path) -> None:
    file = write(RECORDED, windows(), None, tmp_path / "scratch")
    assert not list((tmp_path / "scratch").iterdir())
    assert np.array_equal(next(file.blocks(1, 6)), VALUES[1])


def test_a_reference_that_fails_half_way_leaves_nothing_behind(tmp_path: Path) -> None:
    def failing() -> Iterator[Iterator[Logits32]]:
        yield iter([VALUES[0]])
        raise RunnerError("out of luck")

    with pytest.raises(RunnerError, match="out of luck"):
        write(RECORDED, failing(), tmp_path / "kept", tmp_path)
    with pytest.raises(RunnerError, match="another number"):
        write(RECORDED, iter([iter([VALUES[0]])]), tmp_path / "kept", tmp_path)
    assert not list(tmp_path.iterdir())


def test_what_a_killed_run_left_is_written_over(tmp_path: Path) -> None:
    (tmp_path / "kept.partial").write_bytes(bytes(10**6))
    write(RECORDED, windows(), tmp_path / "kept", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert open_kept(tmp_path / "kept", "k") is not None


def test_a_second_writer_is_told_to_wait(tmp_path: Path) -> None:
    with (tmp_path / "kept.partial").open("wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(BusyError, match="Another process"):
            write(RECORDED, windows(), tmp_path / "kept", tmp_path)
    assert (tmp_path / "kept.partial").exists()


def test_a_missing_file_is_no_error_and_another_key_is(tmp_path: Path) -> None:
    assert open_kept(tmp_path / "kept", "k") is None
    write(RECORDED, windows(), tmp_path / "kept", tmp_path)
    with pytest.raises(UsageError, match="holds the logits of m on t"):
        open_kept(tmp_path / "kept", "other")


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    write(RECORDED, windows(), tmp_path / "kept", tmp_path)
    whole = (tmp_path / "kept").read_bytes()
    damaged = {
        "empty": b"",
        "other": b"GGUF" + whole[4:],
        "short": whole[:-1],
        "long": whole + b"x",
        "header": whole[:24] + b"[" + whole[25:],
        "length": whole[:16] + b"\xff" * 8 + whole[24:],
    }
    for name, data in damaged.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(BadModelFile, match="not a whole file"):
            open_kept(tmp_path / name, "k")


def test_a_full_disk_is_said_before_anything_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")

    def never() -> Iterator[Iterator[Logits32]]:
        raise AssertionError("the reference ran")
        yield

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: usage(1000, 761, 239))  # a byte less than 2 * 6 * 5 logits
        with pytest.raises(DoesNotFit, match="are free") as caught:
            write(RECORDED, never(), None, tmp_path)
    assert "--keep-logits" in caught.value.hint
    with pytest.raises(RunnerError, match="cannot be used"):
        write(RECORDED, never(), tmp_path / "no" / "such" / "kept", tmp_path)
