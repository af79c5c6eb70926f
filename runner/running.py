"""The list of this user's running engines: one small file each, written by the engine process (`runner ps`).

A file whose process is gone is removed when it is read. It knows nothing of what an engine does.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from runner.errors import RunnerError
from runner.paths import open_private
from runner.wire import from_plain, to_plain


@dataclass(frozen=True, kw_only=True)
class RunningEngine:
    """One engine process. started_at: Unix time, s. process_started_at: the same of the process, against pid reuse.

    path: the model's first weight file, "" of an engine of a version that did not tell.
    """

    pid: int
    process_started_at: float
    started_at: float
    model: str
    backend: str
    quantization: str
    device: str
    n_ctx: int
    memory_bytes: int
    path: str = ""


def _process_started_at(pid: int) -> float | None:
    import psutil

    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else float(process.create_time())
    except psutil.Error:
        return None


def entry(directory: Path, pid: int) -> Path:
    """The file of the engine with that process id, there or not."""
    return directory / f"{pid}.json"


def announce(
    directory: Path,
    *,
    model: str,
    backend: str,
    quantization: str,
    device: str,
    n_ctx: int,
    memory_bytes: int,
    path: str = "",
) -> Path:
    """Write this process's file, replacing an earlier one; returns its path, which `Path.unlink` withdraws.

    Raises OSError, and leaves nothing behind then.
    """
    pid = os.getpid()
    engine = RunningEngine(
        pid=pid,
        process_started_at=_process_started_at(pid) or 0.0,
        started_at=time.time(),
        model=model,
        backend=backend,
        quantization=quantization,
        device=device,
        n_ctx=n_ctx,
        memory_bytes=memory_bytes,
        path=path,
    )
    announced = entry(directory, pid)
    partial = directory / f"{pid}.json.partial"
    try:
        with os.fdopen(open_private(partial), "w") as file:
            json.dump(to_plain(engine), file)
        partial.replace(announced)
    except OSError:  # a full disk has room for an empty file
        partial.unlink(missing_ok=True)
        raise
    return announced


def _entries(directory: Path) -> list[Path]:
    try:
        return sorted(path for path in directory.iterdir() if path.suffix == ".json")
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise RunnerError(
            f"{directory} cannot be read: {error.strerror or error}.", hint="Check its permissions."
        ) from error


def running(directory: Path) -> Iterator[RunningEngine]:
    """The engines that run now, oldest first; files of dead ones are removed. Raises RunnerError."""
    found: list[RunningEngine] = []
    for path in _entries(directory):
        try:
            engine = from_plain(RunningEngine, json.loads(path.read_text(encoding="utf-8")))
            started = _process_started_at(int(engine.pid))
            is_same = started is not None and abs(started - float(engine.process_started_at)) <= 1
        except (OSError, ValueError, TypeError, AttributeError, KeyError):
            continue
        if not is_same:
            with suppress(OSError):
                path.unlink(missing_ok=True)
        else:
            found.append(engine)
    yield from sorted(found, key=lambda engine: engine.started_at)
