"""What a packed model is made from: a Hugging Face directory, a GGUF with its files beside it, or a hipfire file.

Opening one reads headers and config.json, no weights. It knows where a source came from as far as its path tells.
"""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from runner.errors import BadModelFile, UnsupportedModel
from runner.model_config import ModelConfig, parse_model_config
from runner.quant.draft_tensors import heads_alone
from runner.quant.file_records import FileRecord
from runner.quant.gguf_file import parts_of
from runner.quant.hipfire import is_hipfire_file
from runner.quant.hipfire.source import HfqWeights
from runner.quant.json_file import read_json
from runner.quant.mq.manifest import SourceRecord
from runner.quant.origin import origin
from runner.quant.quantize import SOURCES_HINT, gguf_of, model_name
from runner.quant.safetensors_file import Checkpoint, plain_file_name, read_header
from runner.quant.weights import Weights, files_of, open_source
from runner.quant.work_directory import COMPANIONS

_CHEAP_BYTES: Final = 256 * 2**20  # a file of the source that is not larger is hashed for the manifest
_SHA256: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True)
class PackedSource:
    """companions: the directory of config.json and the tokenizer's files. files: the weights'."""

    name: str
    config: ModelConfig
    weights: Weights
    companions: Path
    files: tuple[Path, ...]

    @property
    def heads(self) -> Checkpoint:
        """The tensors of the heads that draft for the model, none where its files have none."""
        found = [path for path in self.files if path.suffix == ".safetensors"]
        tensors = {name: one for path in found for name, one in read_header(path).items()}
        return heads_alone(Checkpoint(MappingProxyType(tensors)))

    @property
    def size_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.files)

    @property
    def fingerprint(self) -> list[list[object]]:
        """What changes when a file does: sizes and times of the weights, which are not read, and contents of the files
        beside them, which say what the weights compute and are written anew for a hipfire file."""
        found: list[list[object]] = []
        for path in self.files:
            stat = path.stat()
            found.append([path.name, stat.st_size, stat.st_mtime_ns])
        beside = [path for name in COMPANIONS if (path := self.companions / name).is_file()]
        found.extend([path.name, hashlib.sha256(path.read_bytes()).hexdigest()] for path in beside)
        return found

    def record(self) -> SourceRecord:
        """What the manifest says of it. Reads files that are small."""
        repo, revision = origin(self.files[0])
        files = {
            plain_file_name(path.name): FileRecord(size_bytes=path.stat().st_size, sha256=_sha256(path))
            for path in self.files
        }
        return SourceRecord(
            name=self.name, repo=repo, revision=revision, quantization=self.weights.quantization, files=files
        )


@contextmanager
def opened(path: Path) -> Iterator[PackedSource]:
    """Open what is to be quantized.

    Raises UsageError for a path that is not a source, BadModelFile and UnsupportedModel as the files deserve.
    """
    if not path.exists():
        raise BadModelFile(f"{path} does not exist.", hint=SOURCES_HINT)
    if not is_hipfire_file(path):
        yield _plain(path)
        return
    with tempfile.TemporaryDirectory(prefix="runner-") as unpacked:
        weights = HfqWeights(path)
        weights.write_companions(Path(unpacked))
        yield PackedSource(
            name=model_name(path),
            config=parse_model_config(weights.config),
            weights=weights,
            companions=Path(unpacked),
            files=(path,),
        )


def _plain(path: Path) -> PackedSource:
    gguf = gguf_of(path)
    directory = path if path.is_dir() else path.parent
    for name in ("config.json", "tokenizer.json"):
        if not (directory / name).is_file():
            raise UnsupportedModel(
                f"There is no {name} in {directory.absolute()}.",
                hint="A packed model needs the Hugging Face files of its model: put them beside the weights.",
            )
    config = parse_model_config(read_json(directory / "config.json"))
    read_json(directory / "tokenizer.json")  # before hours of work, not after them
    weights = open_source(directory, gguf, config)
    files = parts_of(gguf) if gguf is not None else files_of(directory)
    return PackedSource(name=model_name(path), config=config, weights=weights, companions=directory, files=files)


def _sha256(path: Path) -> str:
    """The file's checksum where it costs little: the cache names large files by it, and small ones are read."""
    blob = path.resolve().name
    if _SHA256.fullmatch(blob):
        return blob
    if path.stat().st_size > _CHEAP_BYTES:
        return ""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
