"""A reference's logits on disk: written once, window after window, and read back as they were.

The file is a magic line, the length of a JSON header, the header, and float32 logits [windows, tokens, V] at a page
boundary. They are kept in full: what is computed from them is the same, to the bit, as from the model itself. It knows
nothing of models.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import struct
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from runner.errors import BadModelFile, BusyError, DoesNotFit, RunnerError, UsageError
from runner.evaluation.report import MeasuredModel
from runner.evaluation.windows import TextWindows, Windowing
from runner.paths import private_directory
from runner.wire import from_plain, to_plain

Logits32 = NDArray[np.float32]

_MAGIC = b"runner-logits/1\n"
_PAGE = 4096
_MAX_HEADER_BYTES = 2**30


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """What the logits are of. key: of everything that they follow from. pieces: what each token id stands for."""

    key: str
    model: MeasuredModel
    windowing: Windowing
    texts: tuple[TextWindows, ...]
    pieces: tuple[str, ...]

    @property
    def n_windows(self) -> int:
        return sum(len(text.windows) for text in self.texts)

    @property
    def data_bytes(self) -> int:
        return self.n_windows * self.windowing.n_scored * len(self.pieces) * 4


def key_of(*parts: object) -> str:
    """One name for all of `parts` (values that JSON holds)."""
    return hashlib.sha256(json.dumps(to_plain(parts), sort_keys=True).encode()).hexdigest()


class LogitsFile:
    """Recorded logits, open for reading."""

    def __init__(self, recorded: Recorded, file: BinaryIO, data_start: int) -> None:
        self.recorded = recorded
        shape = (recorded.n_windows, recorded.windowing.n_scored, len(recorded.pieces))
        self._logits = np.memmap(file, np.float32, mode="r", offset=data_start, shape=shape)

    def blocks(self, window: int, n_rows: int) -> Iterator[Logits32]:
        """The logits of that window (counted through all texts) in blocks of `n_rows` positions."""
        for start in range(0, self._logits.shape[1], n_rows):
            yield np.asarray(self._logits[window, start : start + n_rows])


def open_kept(path: Path, key: str) -> LogitsFile | None:
    """The logits in `path`, or None when there is no such file.

    Raises UsageError when they are of something else than `key`, BadModelFile when the file is no such file.
    """
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RunnerError(
            f"{path} cannot be read: {error.strerror}.", hint="Give another file with --keep-logits."
        ) from error
    with file:  # the mapping keeps the file's contents when the file itself is closed
        recorded, data_start = _read_header(path, file)
        if recorded.key != key:
            raise UsageError(
                f"{path} holds the logits of {recorded.model.name} on {_names(recorded.texts)}, made from other files, "
                "texts, windows or settings than these.",
                hint="Give another name with --keep-logits, or delete that file.",
            )
        return LogitsFile(recorded, file, data_start)


def write(recorded: Recorded, windows: Iterator[Iterator[Logits32]], path: Path | None, scratch: Path) -> LogitsFile:
    """Write what `windows` yields, blocks [R, V] of window after window, to `path`, or to a file without a name in
    the directory `scratch`, which is gone when it is closed, even by a kill.

    `path` appears when it is whole. Raises DoesNotFit when the disk has too little room, RunnerError when it fails.
    """
    directory = path.absolute().parent if path else private_directory(scratch)
    _check_disk(directory, recorded.data_bytes)
    try:
        if path is None:
            with tempfile.TemporaryFile(dir=directory) as file:
                return LogitsFile(recorded, file, _write_all(file, recorded, windows))
        return _write_named(recorded, windows, path.absolute())
    except OSError as error:
        raise RunnerError(
            f"The reference's logits cannot be kept in {directory}: {error.strerror or error}."
        ) from error


def _write_named(recorded: Recorded, windows: Iterator[Iterator[Logits32]], path: Path) -> LogitsFile:
    """Into "<path>.partial", locked, then one rename. What a killed run left there is written over."""
    partial = path.with_name(path.name + ".partial")
    with partial.open("a+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise BusyError(f"Another process is writing {path}.", hint="Wait for it to end.") from error
        try:
            file.seek(0)
            file.truncate()
            data_start = _write_all(file, recorded, windows)
            os.fsync(file.fileno())
            os.replace(partial, path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
        return LogitsFile(recorded, file, data_start)


def _write_all(file: BinaryIO, recorded: Recorded, windows: Iterator[Iterator[Logits32]]) -> int:
    """Returns where the logits begin."""
    header = json.dumps(to_plain(recorded)).encode()
    file.write(_MAGIC + struct.pack("<Q", len(header)) + header)
    data_start = -(-file.tell() // _PAGE) * _PAGE
    file.write(bytes(data_start - file.tell()))
    for blocks in windows:
        for block in blocks:
            file.write(np.ascontiguousarray(block, np.float32).data)
    file.flush()
    if file.tell() != data_start + recorded.data_bytes:
        raise RunnerError("The reference gave another number of logits than it was asked for.")
    return data_start


def _read_header(path: Path, file: BinaryIO) -> tuple[Recorded, int]:
    start = len(_MAGIC) + 8
    beginning = file.read(start)
    size = path.stat().st_size
    if len(beginning) < start or not beginning.startswith(_MAGIC):
        raise _bad(path)
    (length,) = struct.unpack("<Q", beginning[-8:])
    if length > min(size, _MAX_HEADER_BYTES):
        raise _bad(path)
    try:
        recorded = from_plain(Recorded, json.loads(file.read(length)))
    except (ValueError, TypeError, KeyError, AttributeError, UsageError) as error:
        raise _bad(path) from error
    data_start = -(-(start + length) // _PAGE) * _PAGE
    if size != data_start + recorded.data_bytes:
        raise _bad(path)
    return recorded, data_start


def _bad(path: Path) -> BadModelFile:
    return BadModelFile(
        f"{path} is not a whole file of logits that runner wrote.", hint="Give another name with --keep-logits."
    )


def _check_disk(directory: Path, needed: int) -> None:
    try:
        free = shutil.disk_usage(directory).free
    except OSError as error:
        raise RunnerError(f"{directory} cannot be used: {error.strerror}.") from error
    if needed > free:
        raise DoesNotFit(
            f"The reference's logits take {needed / 1e9:.1f} GB in {directory}, and {free / 1e9:.1f} GB are free.",
            hint="Measure fewer windows (--windows 20), or keep them on another disk: --keep-logits FILE.",
        )


def _names(texts: Sequence[TextWindows]) -> str:
    return ", ".join(text.name for text in texts)
