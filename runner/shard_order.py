"""Which parts a split model has by its index, and is each the part that its name says? Asked of the parts' own headers.

Hashes cannot tell: two links that were exchanged lead to sound files. It reads headers and the index, no weights, and
knows nothing of caches.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from runner.errors import RunnerError
from runner.model_files import INDEX, needs_index, part_number
from runner.quant.json_file import read_json_if_there


def wrong_shards(directory: Path, files: Mapping[str, Path]) -> tuple[tuple[str, str], ...]:
    """The names among `files` (name -> where it is) that hold another part, each with how that shows.

    directory: where the safetensors index is, if anywhere. Files whose headers cannot be read are passed over: their
    hash says whether they are meant to be like that.
    """
    return (*_safetensors(directory, files), *_gguf(files))


def promised_tensors(directory: Path) -> dict[str, set[str]]:
    """The shards that the safetensors index in there names, each with its tensors; none where it cannot be read."""
    try:
        return tensors_of_shards(read_json_if_there(directory / INDEX))
    except RunnerError:
        return {}


def tensors_of_shards(index: Mapping[str, Any]) -> dict[str, set[str]]:
    """The shards that an index names, each with its tensors; none where it is malformed.

    What could mean a file elsewhere than beside the index or below it is passed over.
    """
    from runner.quant.safetensors_file import is_shard_name

    weight_map = index.get("weight_map")
    promised: dict[str, set[str]] = {}
    for tensor, shard in weight_map.items() if isinstance(weight_map, dict) else ():
        if isinstance(shard, str) and is_shard_name(shard):
            promised.setdefault(shard, set()).add(tensor)
    return promised


def indexed_shards(names: Collection[str], index: Path) -> tuple[str, ...]:
    """What `index` names of a model with those files, where their own names do not tell which are the weights."""
    return tuple(promised_tensors(index.parent)) if needs_index(names) else ()


def names_in(directory: Path) -> list[str]:
    """The files of a directory, and of those in folders below it the ones that its index names. Raises OSError."""
    names = [entry.name for entry in sorted(directory.iterdir()) if entry.is_file()]
    below = [name for name in indexed_shards(names, directory / INDEX) if "/" in name and (directory / name).is_file()]
    return [*names, *sorted(below)]


def _safetensors(directory: Path, files: Mapping[str, Path]) -> Iterator[tuple[str, str]]:
    """Shards without the tensors that the index says they have."""
    from runner.quant.safetensors_file import read_header

    for shard, tensors in sorted(promised_tensors(directory).items()):
        if shard not in files:
            continue
        try:
            missing = tensors - read_header(files[shard]).keys()
        except RunnerError:
            continue
        if missing:
            yield shard, f"it has no {min(missing)}, which the index says it has"


def _gguf(files: Mapping[str, Path]) -> Iterator[tuple[str, str]]:
    """Parts of a split GGUF that count themselves as another part."""
    from runner.quant.gguf_file import read_header

    for name, path in sorted(files.items()):
        number = part_number(name)
        if number is None or not name.lower().endswith(".gguf"):
            continue
        try:
            own = read_header(path).metadata.get("split.no")
        except RunnerError:
            continue
        if isinstance(own, int) and own + 1 != number:
            yield name, f"it is part {own + 1} by its own header"
