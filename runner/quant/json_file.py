"""The small JSON files beside a model's weights, read with a limit on their size.

It knows nothing of what is in them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final

from runner.errors import BadModelFile

MAX_JSON_BYTES: Final = 256 * 1024 * 1024  # tokenizer.json of a large vocabulary is some 30 MB
DAMAGED: Final = "`runner verify --repair` fetches damaged files again, and says what mends those that it cannot fetch."


@contextmanager
def opened_json(path: Path) -> Iterator[BinaryIO]:
    """The file, for whoever reads it. Raises BadModelFile when it is missing, too large, or cannot be read."""
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise BadModelFile(f"{path} is too large to be what its name says.", hint=DAMAGED)
        with path.open("rb") as file:
            yield file
    except OSError as error:
        raise BadModelFile(f"{path} cannot be read: {error.strerror or error}.", hint=DAMAGED) from error


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in `path`. Raises BadModelFile when it is missing, too large, or not an object."""
    try:
        with opened_json(path) as file:
            value = json.loads(file.read().decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise BadModelFile(f"{path} is not JSON: {error}.", hint=DAMAGED) from error
    if not isinstance(value, dict):
        raise BadModelFile(f"{path} is not a JSON object.", hint=DAMAGED)
    return value


def read_json_if_there(path: Path) -> dict[str, Any]:
    """The JSON object in `path`, or {} when there is no such file. Raises BadModelFile for anything else."""
    return read_json(path) if path.is_file() else {}
