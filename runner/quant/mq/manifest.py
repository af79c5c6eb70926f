"""runner.json, the manifest of a packed model: what every tensor is stored as, what it was made from, and checksums.

Written last, so that a directory with one is whole. Reading checks every key, type and size before any is believed; the
shorter one beside a GGUF or a head (file_records.py) is read here too. It imports no torch: whether stored parts are
those of their format is checked when they are opened (packed_weights.py).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, cast

from runner.errors import BadModelFile, UnsupportedModel
from runner.garbage import no_garbage_collection
from runner.quant.file_records import FILES_SCHEMA, FileRecord, sealed, without_seal
from runner.quant.json_file import DAMAGED
from runner.quant.mq.recipe import Recipe, Rule
from runner.quant.packed_files import MANIFEST_NAME, WEIGHTS_NAME
from runner.quant.safetensors_file import is_plain_file_name
from runner.unchanged import WhileUnchanged
from runner.wire import to_plain

SCHEMA: Final = "runner.model/1"
MAX_BYTES: Final = 64 * 2**20  # a model of 100 layers has 200 kB, and one of 100 layers of 128 experts 12 MB
MAX_ENTRIES: Final = 2**17
MAX_NAME: Final = 512
MAX_TEXT: Final = 4096
LARGEST_ROTATION: Final = 256
PLAIN_FORMATS: Final = frozenset({"f32", "f16", "bf16"})  # tensors that are kept: one part, named as the tensor

Rotation = Literal["online", "folded"]
T = TypeVar("T")

_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_HINT: Final = f"If another version of runner made it, quantize the model again. {DAMAGED}"


@dataclass(frozen=True, kw_only=True)
class SourceRecord:
    """What the model was made from. quantization: the type that most of its weights had; files: the weights' own."""

    name: str
    repo: str
    revision: str
    quantization: str
    files: Mapping[str, FileRecord]


@dataclass(frozen=True, kw_only=True)
class TensorRecord:
    """One tensor. format: a weight format, or "f32", "f16", "bf16" for one that is kept. shape: [N, K] of a matrix.

    input_rotation: the block size of the rotation along K that the stored weights have and the input needs; 1 for none.
    parameters: what the format needs besides its parts. sha256: of the parts' bytes, in their order in the file.
    weight_error: squared error over squared weights, in the stored basis, or None where nothing was rounded.
    """

    format: str
    shape: tuple[int, ...]
    input_rotation: int
    parameters: Mapping[str, int]
    sha256: str
    weight_error: float | None

    @property
    def is_kept(self) -> bool:
        return self.format in PLAIN_FORMATS

    @property
    def num_values(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Everything that runner.json says.

    format: the recipe's main format, for people. bpw: stored bits a weight, scales included, of all tensors; bpw_body:
    of the layers' matrices alone. calibration: how the rounding was calibrated, free in form, or None. config_changes:
    keys of the source's config.json that have other values in this model's. notes: what is not as the recipe says.
    """

    format: str
    bpw: float
    bpw_body: float
    rotation: Rotation
    recipe: Recipe
    calibration: Mapping[str, Any] | None
    config_changes: Mapping[str, Any]
    notes: tuple[str, ...]
    source: SourceRecord
    tool: str
    tensors: Mapping[str, TensorRecord]
    files: Mapping[str, FileRecord]

    @property
    def num_parameters(self) -> int:
        return sum(tensor.num_values for tensor in self.tensors.values())

    @property
    def quantization(self) -> str:
        """The format's name as other formats' are written: "MQ4"."""
        return self.format.upper()


def to_json(manifest: Manifest) -> str:
    """The text of runner.json."""
    return sealed({"schema": SCHEMA, **to_plain(manifest)})


def read_manifest(path: Path) -> Manifest:
    """The checked contents of a runner.json, or of the one in a directory. Raises BadModelFile, UnsupportedModel."""
    return manifest_in(path / MANIFEST_NAME if path.is_dir() else path)


@WhileUnchanged
@no_garbage_collection()
def manifest_in(file: Path) -> Manifest:
    """See read_manifest."""
    return _read_manifest(_read(file))


@no_garbage_collection()
def read_files(path: Path) -> Mapping[str, FileRecord]:
    """The files that a runner.json lists, of a packed model, a GGUF or a head; none for one that is somebody else's.

    Raises as `read_manifest` does.
    """
    plain = _read(path)
    if plain.keys().isdisjoint(("schema", "files")):
        return {}
    return _read_manifest(plain).files if plain.get("schema") != FILES_SCHEMA else _files_alone(plain)


# --- reading ---------------------------------------------------------------------------------------------------------


def _read(file: Path) -> dict[str, Any]:
    text = without_seal(_read_text(file))
    if text is None:
        raise BadModelFile(f"{MANIFEST_NAME} is damaged: the hash in it is not its own.", hint=_HINT)
    return _object(text)


def _read_text(file: Path) -> str:
    try:
        if (size := file.stat().st_size) > MAX_BYTES:
            raise BadModelFile(f"{file} is too large for a manifest.", hint=_HINT)
        with file.open("rb") as opened:
            return opened.read(size).decode("utf-8")
    except OSError as error:
        raise BadModelFile(f"{file} cannot be read: {error.strerror or error}.", hint=_HINT) from error
    except UnicodeDecodeError as error:
        raise BadModelFile(f"{file} is not UTF-8.", hint=_HINT) from error


def _object(text: str) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise ValueError("a name occurs twice")
        return found

    def no_constant(name: str) -> float:
        raise ValueError(f"{name} is no number")

    try:
        value = json.loads(text, object_pairs_hook=unique, parse_constant=no_constant)
    except (ValueError, RecursionError) as error:
        raise BadModelFile(f"{MANIFEST_NAME} is not valid JSON: {error}.", hint=_HINT) from error
    if not isinstance(value, dict):
        raise BadModelFile(f"{MANIFEST_NAME} is not a JSON object.", hint=_HINT)
    return value


class _Fields:
    """The fields of one JSON object, taken one by one; `end` refuses what is left over."""

    def __init__(self, where: str, value: Any) -> None:
        if not isinstance(value, dict):
            raise _bad(where, "is not an object")
        self._where = where
        self._left = dict(value)

    def take(self, key: str, is_good: Callable[[Any], bool]) -> Any:
        if key not in self._left:
            raise _bad(self._where, f"has no {key!r}")
        value = self._left.pop(key)
        if not is_good(value):
            raise _bad(self._where, f"has a value for {key!r} that cannot be")
        return value

    def items(self, key: str, read: Callable[[str, Any], T], is_name: Callable[[str], bool]) -> dict[str, T]:
        """The named entries under `key`, each read by `read(where, value)`."""
        found = self.take(key, lambda value: isinstance(value, dict) and len(value) <= MAX_ENTRIES)
        if wrong := next((name for name in found if not is_name(name)), None):
            raise _bad(self._where, f"has the impossible name {wrong[:80]!r} in {key!r}")
        return {name: read(f"{key} {name!r}", value) for name, value in found.items()}

    def end(self) -> None:
        if self._left:
            raise _bad(self._where, f"has the unknown key {next(iter(self._left))[:80]!r}")


def _read_manifest(plain: dict[str, Any]) -> Manifest:
    schema = plain.pop("schema", None)
    if schema == SCHEMA:
        return _manifest(plain)
    if isinstance(schema, str) and schema.startswith("runner.model/") and len(schema) < 40:
        raise UnsupportedModel(
            f"{MANIFEST_NAME} is of version {schema.removeprefix('runner.model/')}; this runner reads version 1.",
            hint="Use a newer version of runner.",
        )
    raise BadModelFile(f"{MANIFEST_NAME} is not the manifest of a packed model.", hint=_HINT)


def _files_alone(plain: dict[str, Any]) -> Mapping[str, FileRecord]:
    """What is in the runner.json beside a GGUF or a head."""
    fields = _Fields("it", plain)
    fields.take("schema", _is_text)
    files = fields.items("files", _file, is_plain_file_name)
    fields.end()
    return files


def _manifest(plain: dict[str, Any]) -> Manifest:
    fields = _Fields("it", plain)
    manifest = Manifest(
        format=fields.take("format", _is_name),
        bpw=fields.take("bpw", _is_bits),
        bpw_body=fields.take("bpw_body", _is_bits),
        rotation=cast(Rotation, fields.take("rotation", lambda value: value in ("online", "folded"))),
        recipe=_recipe(fields.take("recipe", lambda value: isinstance(value, dict))),
        calibration=fields.take("calibration", lambda value: value is None or isinstance(value, dict)),
        config_changes=fields.take("config_changes", lambda value: isinstance(value, dict)),
        notes=tuple(fields.take("notes", _are_texts)),
        source=_source(fields.take("source", lambda value: isinstance(value, dict))),
        tool=fields.take("tool", _is_text),
        tensors=fields.items("tensors", _tensor, _is_name),
        files=fields.items("files", _file, is_plain_file_name),
    )
    fields.end()
    if WEIGHTS_NAME not in manifest.files:
        raise _bad("it", f"does not list {WEIGHTS_NAME}")
    return manifest


def _recipe(value: Any) -> Recipe:
    fields = _Fields("recipe", value)
    name = fields.take("name", _is_text)
    rules = fields.take("rules", lambda listed: isinstance(listed, list) and len(listed) <= MAX_ENTRIES)
    fields.end()
    return Recipe(name=name, rules=tuple(_rule(entry) for entry in rules))


def _rule(value: Any) -> Rule:
    fields = _Fields("a rule", value)
    rule = Rule(tensors=fields.take("tensors", _is_text), format=fields.take("format", _is_name))
    fields.end()
    return rule


def _source(value: Any) -> SourceRecord:
    fields = _Fields("source", value)
    record = SourceRecord(
        **{key: fields.take(key, _is_text) for key in ("name", "repo", "revision", "quantization")},
        files=fields.items("files", _file, is_plain_file_name),
    )
    fields.end()
    return record


def _file(where: str, value: Any) -> FileRecord:
    fields = _Fields(where, value)
    record = FileRecord(
        size_bytes=fields.take("size_bytes", _is_size),
        sha256=fields.take("sha256", lambda text: text == "" or _is_sha256(text)),
    )
    fields.end()
    return record


def _tensor(where: str, value: Any) -> TensorRecord:
    fields = _Fields(where, value)
    record = TensorRecord(
        format=fields.take("format", _is_name),
        shape=tuple(fields.take("shape", _is_shape)),
        input_rotation=fields.take("input_rotation", _is_rotation),
        parameters=fields.items("parameters", _parameter, _is_name),
        sha256=fields.take("sha256", _is_sha256),
        weight_error=fields.take("weight_error", lambda error: error is None or _is_number(error, 0, math.inf)),
    )
    fields.end()
    if not record.is_kept and len(record.shape) != 2:
        raise _bad(where, f"is no matrix, and has the format {record.format!r}")
    if record.shape[-1] % record.input_rotation:
        raise _bad(where, f"is rotated in blocks of {record.input_rotation}, which do not divide it")
    return record


def _parameter(where: str, value: Any) -> int:
    if type(value) is not int or not -(2**15) <= value < 2**15:
        raise _bad(where, "is not a small whole number")
    return value


# --- what values can be ----------------------------------------------------------------------------------------------


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= MAX_TEXT


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and len(value) <= MAX_ENTRIES and all(_is_text(item) for item in value)


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= MAX_NAME and value.isprintable()


def _is_number(value: Any, low: float, high: float) -> bool:
    return type(value) in (int, float) and low <= value <= high


def _is_bits(value: Any) -> bool:
    return _is_number(value, 0, 64)


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _is_sha256(value: Any) -> bool:
    return isinstance(value, str) and _SHA256.fullmatch(value) is not None


def _is_shape(value: Any) -> bool:
    return (
        isinstance(value, list)
        and 1 <= len(value) <= 8
        and all(type(size) is int and 0 < size < 2**40 for size in value)
        and math.prod(value) < 2**48
    )


def _is_rotation(value: Any) -> bool:
    return type(value) is int and 1 <= value <= LARGEST_ROTATION and value & (value - 1) == 0


def _bad(where: str, what: str) -> BadModelFile:
    subject = MANIFEST_NAME if where == "it" else f"{MANIFEST_NAME}: {where}"
    return BadModelFile(f"{subject} {what}.", hint=_HINT)
