"""What the token ids of a model on the hub stand for, told before its weights are fetched.

What is in front of the weights is put into a folder for a moment, and a backend reads it as it reads a model's own
files. It compares nothing.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from runner import hub
from runner.backends import backend_module
from runner.errors import BadModelFile
from runner.types import BackendName, CancelToken, ReadyModel, WeightsFormat

_FILES: Final = ("config.json", "tokenizer.json")
_MOST_BYTES: Final = 64 * 2**20  # twice the largest tokenizer.json of the usual repositories


def gguf_vocabulary(start: bytes, size_bytes: int) -> tuple[str, ...]:
    """See BackendModule.vocabulary. start: of the file, its whole header. Raises BadModelFile, and OSError."""
    with TemporaryDirectory() as directory:
        path = Path(directory) / "model.gguf"
        with path.open("wb") as file:
            file.write(start)
            file.truncate(size_bytes)  # with a hole for the weights, which nobody reads and which takes no room
        return _vocabulary("llamacpp", "gguf", Path(directory), (path,))


def safetensors_vocabulary(listing: hub.Listing, cancel: CancelToken) -> tuple[str, ...]:
    """The same of a repository with safetensors. Raises what reading from the hub and the native backend raise too."""
    with TemporaryDirectory() as directory, hub.RemoteReader(listing, cancel=cancel) as reader:
        for name in _FILES:
            size = listing.file(name).size_bytes
            if size > _MOST_BYTES:
                raise BadModelFile(f"{name} has {size} bytes.", hint="It is not what its name says.")
            (Path(directory) / name).write_bytes(reader.read(name, 0, size))
        return _vocabulary("native", "safetensors", Path(directory), ())


def _vocabulary(
    backend: BackendName, stored_as: WeightsFormat, directory: Path, weights: tuple[Path, ...]
) -> tuple[str, ...]:
    model = ReadyModel(name="", format=stored_as, weights=weights, directory=directory, size_bytes=0)
    return backend_module(backend).vocabulary(model)
