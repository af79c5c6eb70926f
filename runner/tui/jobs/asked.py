"""The jobs that were asked for and have not ended, a small file each, so that the next start knows of them.

A file of its own for each: interfaces that run at the same time do not write over each other's. One that cannot be
written is not kept, and one that makes no sense is passed over. It knows no queue and no process.
"""

from __future__ import annotations

import hashlib
import json
import logging
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from runner.errors import RunnerError
from runner.new_file import write_new
from runner.paths import Paths, private_directory
from runner.tui.jobs.commands import is_fetched_or_begun

_log = logging.getLogger(__name__)
_PULLS, _QUANTIZATIONS = "downloads", "quantizations"
_LONGEST: Final = 128 * 1024


@dataclass(frozen=True, kw_only=True)
class Failure:
    """How a job failed; see Job."""

    message: str
    hint: str = ""
    exit_code: int | None = None


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What `runner quantize` is told, or `runner pull`, which has no format. failure: None where it has not failed."""

    source: str
    weight_format: str = ""
    output: Path = Path()
    calibrate: bool = True
    force: bool = False
    failure: Failure | None = None

    @property
    def is_pull(self) -> bool:
        return not self.weight_format


def keep(paths: Paths, asked: Asked) -> None:
    """Write it down."""
    plain: dict[str, Any] = {"source": asked.source}
    if asked.is_pull:
        plain |= {"force": asked.force}
    else:
        plain |= {"format": asked.weight_format, "output": str(asked.output), "calibrate": asked.calibrate}
    if asked.failure is not None:
        plain |= {"failure": asdict(asked.failure)}
    file = _file_of(paths, asked)
    try:
        private_directory(file.parent)
        write_new(file, json.dumps(plain) + "\n", overwrite=True)
    except (OSError, RunnerError) as error:
        _log.warning("the next start will not know of %s: %s", asked.source, error)


def drop(paths: Paths, asked: Asked) -> None:
    """It has ended, or nobody wants it any more."""
    with suppress(OSError):
        _file_of(paths, asked).unlink(missing_ok=True)


def kept(paths: Paths) -> tuple[Asked, ...]:
    """Those of which the disk does not tell by itself: no output is there, no weights have begun to come.

    The others are forgotten. Never raises.
    """
    found = [
        _read(path, is_pull=folder == _PULLS)
        for folder in (_PULLS, _QUANTIZATIONS)
        for path in sorted((paths.state / folder).glob("*.json"))
    ]
    waiting = []
    for one in found:
        if one is None:
            continue
        if is_fetched_or_begun(paths, one.source) if one.is_pull else one.output.exists():
            drop(paths, one)
        else:
            waiting.append(one)
    return tuple(waiting)


def _file_of(paths: Paths, asked: Asked) -> Path:
    folder, name = (_PULLS, asked.source) if asked.is_pull else (_QUANTIZATIONS, str(asked.output.absolute()))
    return paths.state / folder / f"{hashlib.sha256(name.encode()).hexdigest()[:16]}.json"


def _read(path: Path, *, is_pull: bool) -> Asked | None:
    try:
        with path.open("rb") as file:
            return _meant(json.loads(file.read(_LONGEST)), is_pull=is_pull)
    except (OSError, ValueError, RecursionError, LookupError, TypeError) as error:
        _log.warning("%s is passed over: %s", path, error)
        return None


def _meant(plain: Any, *, is_pull: bool) -> Asked:
    """Raises LookupError, TypeError or ValueError for what was written by somebody else."""
    texts = [plain[name] for name in (("source",) if is_pull else ("source", "format", "output"))]
    if not all(type(text) is str and text for text in texts) or "\0" in "".join(texts):
        raise ValueError("it is no job")
    failure = _failure(plain.get("failure"))
    if is_pull:
        return Asked(source=texts[0], force=plain.get("force") is True, failure=failure)
    source, weight_format, output = texts
    return Asked(
        source=source,
        weight_format=weight_format,
        output=Path(output),
        calibrate=plain.get("calibrate") is not False,
        failure=failure,
    )


def _failure(plain: Any) -> Failure | None:
    """None for what is none: the job is one that waits then."""
    if not isinstance(plain, dict) or type(plain.get("message")) is not str or type(plain.get("hint")) is not str:
        return None
    exit_code = plain.get("exit_code")
    return Failure(
        message=plain["message"], hint=plain["hint"], exit_code=exit_code if type(exit_code) is int else None
    )
