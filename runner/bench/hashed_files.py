"""Which files were measured: their paths, sizes and hashes, and where each hash comes from.

A hash is read off a name or a manifest where one is there, and computed where none is. It knows no backend.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator
from pathlib import Path
from typing import Final

from runner.bench.events import BenchStep
from runner.bench.record import ModelFile
from runner.errors import RunnerError
from runner.hub_cache import first_hop
from runner.quant.packed_files import MANIFEST_NAME
from runner.types import CancelToken, ReadyModel
from runner.verify_plan import expected_of

_CHUNK_BYTES: Final = 4 * 2**20
_SHOWN_PERCENT: Final = 5


def hashed_files(model: ReadyModel, cancel: CancelToken) -> Generator[BenchStep, None, tuple[ModelFile, ...]]:
    """The files that say which model this is; yields how far reading them is.

    Of a packed model that is its manifest, which lists the hashes of its weights. A file that cannot be read has no
    hash, and says why. Raises RunnerError when cancelled.
    """
    if model.format == "packed":
        return ((yield from _computed(model.directory / MANIFEST_NAME, "computed, of the manifest", cancel)),)
    files: tuple[ModelFile, ...] = ()
    for path in model.weights:
        files += ((yield from _of_weights(path, cancel)),)
    return files


def _of_weights(path: Path, cancel: CancelToken) -> Generator[BenchStep, None, ModelFile]:
    expected = expected_of(first_hop(path).name) if path.is_symlink() else None
    if expected is not None and expected.kind == "sha256":
        how = "the name of the file in the Hugging Face cache"
        return ModelFile(path=str(path), size_bytes=path.stat().st_size, sha256=expected.hex_digest, how=how)
    return (yield from _computed(path, "computed", cancel))


def _computed(path: Path, how: str, cancel: CancelToken) -> Generator[BenchStep, None, ModelFile]:
    running, done, shown = hashlib.sha256(), 0, 0
    try:
        size = path.stat().st_size
        with path.open("rb", buffering=0) as file:
            while chunk := file.read(_CHUNK_BYTES):
                if cancel.is_cancelled:
                    raise RunnerError("The benchmark was cancelled.")
                running.update(chunk)
                done += len(chunk)
                if (percent := 100 * done // max(size, 1)) >= shown + _SHOWN_PERCENT or done == size:
                    shown = percent
                    yield BenchStep(what=f"hashing {path.name}, {percent} %")
    except OSError as error:
        return ModelFile(path=str(path), size_bytes=0, sha256="", how=f"not read: {error.strerror or error}")
    return ModelFile(path=str(path), size_bytes=size, sha256=running.hexdigest(), how=how)
