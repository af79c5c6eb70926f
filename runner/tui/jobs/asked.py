"""The quantizations that were asked for and have not ended, a small file each, so that the next start knows of them.

A file of its own for each output: interfaces that run at the same time do not write over each other's. One that cannot
be written is not kept, and one that makes no sense is passed over. It knows no queue and no process.
"""

from __future__ import annotations

import hashlib
import json
import logging
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from runner.chat_file import write_new
from runner.errors import RunnerError
from runner.paths import Paths, private_directory

_log = logging.getLogger(__name__)
_FOLDER: Final = "quantizations"
_LONGEST: Final = 64 * 1024


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What `runner quantize` is told."""

    source: str
    weight_format: str
    output: Path
    calibrate: bool


def keep(paths: Paths, asked: Asked) -> None:
    """Write it down."""
    plain = {
        "source": asked.source,
        "format": asked.weight_format,
        "output": str(asked.output),
        "calibrate": asked.calibrate,
    }
    try:
        private_directory(paths.state / _FOLDER)
        write_new(_file_of(paths, asked.output), json.dumps(plain) + "\n", overwrite=True)
    except (OSError, RunnerError) as error:
        _log.warning("the next start will not know of %s: %s", asked.output, error)


def drop(paths: Paths, output: Path) -> None:
    """It has ended, or nobody wants it any more."""
    with suppress(OSError):
        _file_of(paths, output).unlink(missing_ok=True)


def kept(paths: Paths) -> tuple[Asked, ...]:
    """Those that have no output yet; the others were made by somebody else, and are forgotten. Never raises."""
    found = [_read(path) for path in sorted((paths.state / _FOLDER).glob("*.json"))]
    asked = [one for one in found if one is not None]
    for one in asked:
        if one.output.exists():
            drop(paths, one.output)
    return tuple(one for one in asked if not one.output.exists())


def _file_of(paths: Paths, output: Path) -> Path:
    return paths.state / _FOLDER / f"{hashlib.sha256(str(output.absolute()).encode()).hexdigest()[:16]}.json"


def _read(path: Path) -> Asked | None:
    try:
        with path.open("rb") as file:
            return _meant(json.loads(file.read(_LONGEST)))
    except (OSError, ValueError, RecursionError, LookupError, TypeError) as error:
        _log.warning("%s is passed over: %s", path, error)
        return None


def _meant(plain: Any) -> Asked:
    """Raises LookupError, TypeError or ValueError for what was written by somebody else."""
    texts = [plain[name] for name in ("source", "format", "output")]
    if not all(type(text) is str and text for text in texts) or "\0" in "".join(texts):
        raise ValueError("it is not a quantization")
    source, weight_format, output = texts
    return Asked(
        source=source, weight_format=weight_format, output=Path(output), calibrate=plain.get("calibrate") is not False
    )
