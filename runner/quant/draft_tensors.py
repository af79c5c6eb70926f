"""Which tensors of a checkpoint are not the model's own but those of the head that drafts for it (multi-token
prediction): told by their names, the same in every architecture.

What a head computes is the native backend's to know.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from runner.errors import UnsupportedModel
from runner.quant.packed_files import HEAD_NAME
from runner.quant.safetensors_file import Checkpoint, read_header
from runner.types import ReadyModel

# Qwen3-Next and its successors; MiMo. DeepSeek-V3 and GLM-4.5 add a layer that has an eh_proj.
_PREFIXES: Final = ("mtp.", "model.mtp_layers.")
_LAYER_OF_HEAD: Final = re.compile(r"(model\.layers\.\d+\.)eh_proj\.weight")


def head_names(names: Collection[str]) -> frozenset[str]:
    """Those of `names` that belong to a head."""
    layers = tuple(match[1] for name in names if (match := _LAYER_OF_HEAD.fullmatch(name)))
    return frozenset(name for name in names if name.startswith((*_PREFIXES, *layers)))


def heads_alone(checkpoint: Checkpoint) -> Checkpoint:
    """The tensors of the heads, none where there is no head."""
    heads = head_names(checkpoint.tensors.keys())
    return Checkpoint(MappingProxyType({name: one for name, one in checkpoint.tensors.items() if name in heads}))


def write_heads(source: Checkpoint, path: Path) -> None:
    """The heads of `source`, as they are stored there, in a .safetensors file. Raises OSError."""
    stored = sorted(heads_alone(source).tensors.values(), key=lambda one: one.name)
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for one in stored:
        entries[one.name] = {"dtype": one.dtype, "shape": list(one.shape), "data_offsets": [end, end + one.nbytes]}
        end += one.nbytes
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for one in stored:
            with one.path.open("rb") as held:
                held.seek(one.offset)
                file.write(held.read(one.nbytes))


def open_heads(model: ReadyModel) -> Checkpoint:
    """The tensors of the heads that a model's files have: in its safetensors, or beside a packed model's.

    Raises UnsupportedModel where there are none, BadModelFile for malformed files. Reads headers alone.
    """
    if model.format == "safetensors":
        files = model.weights
    else:
        files = tuple(path for path in [model.directory / HEAD_NAME] if model.format == "packed" and path.is_file())
    tensors = {name: one for path in files for name, one in read_header(path).items()}
    heads = heads_alone(Checkpoint(MappingProxyType(tensors)))
    if not heads.tensors:
        raise without_head(model.name)
    return heads


def without_head(name: str) -> UnsupportedModel:
    return UnsupportedModel(
        f"{name} has no multi-token head: no tensors of one are in its files.",
        hint="Few models ship one, and a GGUF none that can be read. --spec suffix needs no head.",
    )
