"""The history of benchmarks: runs as lines of one file, added under a lock, found again by id.

A line that is damaged, or written by a newer version, is passed over and counted; nothing is ever taken out. It knows
neither how runs are measured nor how they are shown.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from runner.bench.record import SCHEMA, BenchRun, run_from_json, run_to_json
from runner.errors import BusyError, RunnerError, UsageError
from runner.paths import open_private, private_directory
from runner.wire import fits

_LOCK_PATIENCE_S: Final = 10.0
_ABSURD: Final = 1 << 63  # no number of a run is as large, or as small but 0; squares and quotients are still numbers
_LAST = re.compile(r"last(?:~(\d{1,9}))?")


@dataclass(frozen=True, kw_only=True)
class History:
    """Runs in the order in which they were kept, the last one last, and how many lines are not among them."""

    runs: tuple[BenchRun, ...] = ()
    n_damaged: int = 0
    n_newer: int = 0


def append_run(path: Path, run: BenchRun) -> None:
    """Add a run as one line. Raises BusyError when another program holds the lock, RunnerError when it cannot."""
    import filelock

    line = json.dumps(run_to_json(run)).encode("ascii") + b"\n"
    try:
        private_directory(path.parent)
        with filelock.FileLock(path.with_name(f"{path.name}.lock"), timeout=_LOCK_PATIENCE_S, mode=0o600):
            descriptor = open_private(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
            with open(descriptor, "ab", buffering=0) as file:
                _write_whole(file.fileno(), line if _ends_a_line(descriptor) else b"\n" + line)
    except filelock.Timeout as error:
        raise BusyError(
            f"The run is not kept: another program holds {path}.lock.", hint="End it, or remove that file."
        ) from error
    except OSError as error:
        raise RunnerError(
            f"The run is not kept: {path}: {error.strerror or error}.",
            hint="Make room there, or check its permissions; what --format json writes can be compared, too.",
        ) from error


def _ends_a_line(descriptor: int) -> bool:
    """Whether the file is empty or its last line is whole: a program that died may have left half of one."""
    size = os.fstat(descriptor).st_size
    return size == 0 or os.pread(descriptor, 1, size - 1) == b"\n"


def _write_whole(descriptor: int, line: bytes) -> None:
    """All of the line, or nothing of it. Raises OSError."""
    size = os.fstat(descriptor).st_size
    try:
        while line:
            line = line[os.write(descriptor, line) :]
    except OSError:
        os.ftruncate(descriptor, size)
        raise


def read_history(path: Path) -> History:
    """What is kept in `path`; nothing when there is no such file. Raises RunnerError when it cannot be read."""
    runs: list[BenchRun] = []
    n_damaged = n_newer = 0
    try:
        with path.open("rb") as file:
            for line in file:
                run = _run_of(line)
                if isinstance(run, BenchRun):
                    runs.append(run)
                elif run == "newer":
                    n_newer += 1
                elif line.strip():
                    n_damaged += 1
    except FileNotFoundError:
        return History()
    except PermissionError as error:
        raise RunnerError(f"{path} cannot be read: {error.strerror}.", hint="Check its permissions.") from error
    except OSError as error:
        raise RunnerError(
            f"{path} cannot be read: {error.strerror or error}.", hint="Move it away: a new one is begun then."
        ) from error
    return History(runs=tuple(runs), n_damaged=n_damaged, n_newer=n_newer)


def _run_of(line: bytes) -> BenchRun | str:
    try:
        plain = json.loads(line)
        return sound_run(plain)
    except (ValueError, RecursionError):
        return "newer" if _is_newer(line) else "damaged"


def _is_newer(line: bytes) -> bool:
    found = re.match(rb'\s*\{\s*"schema":\s*"runner\.bench/(\d+)"', line)
    return found is not None and int(found[1]) > int(SCHEMA.rpartition("/")[2])


def sound_run(plain: Any) -> BenchRun:
    """The run that `run_to_json` or `--format json` wrote, if every value is of its type. Raises ValueError."""
    if not isinstance(plain, dict):
        raise ValueError("it is no JSON object")
    run = run_from_json({key: value for key, value in plain.items() if key != "results"})
    if not fits(BenchRun, run, _is_sound):
        raise ValueError("it is damaged: a value is of another type than it should be")
    return run


def _is_sound(number: float) -> bool:
    return not number or 1 / _ABSURD < abs(number) < _ABSURD


# --- finding runs ----------------------------------------------------------------------------------------------------


def find_run(history: History, ref: str) -> BenchRun:
    """The run that `ref` means: an id, the beginning of one, "last", "last~1" for the one before it, and so on.

    Raises UsageError when it means none, or several.
    """
    if not history.runs:
        raise UsageError("No benchmark is kept yet.", hint="`runner bench MODEL` makes one.")
    if found := _LAST.fullmatch(ref):
        back = int(found[1] or 0)
        if back >= len(history.runs):
            raise UsageError(
                f"There is no {ref}: {_count(len(history.runs))} kept.", hint="See `runner bench history`."
            )
        return history.runs[-1 - back]
    matching = [run for run in history.runs if ref and run.id.startswith(ref)]
    exact = [run for run in matching if run.id == ref]
    if not matching:
        raise UsageError(f"No run has the id {ref!r}.", hint="`runner bench history` lists them; last is the last one.")
    if len(matching) > 1 and not exact:
        ids = ", ".join(run.id for run in matching[-5:])
        last = "The last of them: " if len(matching) > 5 else ""
        raise UsageError(
            f"{len(matching)} runs have ids that begin with {ref!r}.", hint=f"Give more of it. {last}{ids}."
        )
    return (exact or matching)[-1]


def _count(number: int) -> str:
    return "1 run is" if number == 1 else f"{number} runs are"


def last_like(runs: Sequence[BenchRun], run: BenchRun) -> BenchRun | None:
    """The last run before `run` that measured the same: model, options and device. Partial and empty ones are passed
    over, and those without numbers for a row that `run` has numbers for, as long as another has them."""
    whole = (one for one in reversed(runs) if one.rows and not one.is_partial)
    like = [one for one in whole if one.id != run.id and _is_like(one, run)]
    return next((one for one in like if _measured(run) <= _measured(one)), like[0] if like else None)


def last_comparable(runs: Sequence[BenchRun], run: BenchRun) -> BenchRun | None:
    """The last run of `runs` like `run`, else of the same model, that has numbers for a row of it."""
    comparable = [one for one in runs if one.model == run.model and _measured(one) & _measured(run)]
    return last_like(comparable, run) or (comparable[-1] if comparable else None)


def _measured(run: BenchRun) -> set[tuple[str, str]]:
    """Backend and test of the rows that have numbers."""
    return {(row.backend, row.test) for row in run.rows if row.samples}


def _is_like(one: BenchRun, run: BenchRun) -> bool:
    return (
        (one.model, one.quantization, one.format) == (run.model, run.quantization, run.format)
        and one.options == run.options
        and (one.machine.kind, one.machine.device) == (run.machine.kind, run.machine.device)
        and _hashes(one) == _hashes(run)
    )


def _hashes(run: BenchRun) -> tuple[tuple[int, str], ...]:
    return tuple((file.size_bytes, file.sha256) for file in run.files)


def read_run(path: Path) -> BenchRun:
    """The run in a file that `--format json` wrote. Raises UsageError for another file or none, RunnerError when it
    cannot be read."""
    try:
        return sound_run(json.loads(path.read_bytes()))
    except FileNotFoundError as error:
        raise UsageError(f"There is no {path}.", hint="Write one with --format json.") from error
    except OSError as error:
        raise RunnerError(f"{path} cannot be read: {error.strerror or error}.") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is no benchmark: {error}.", hint="Write one with --format json.") from error
