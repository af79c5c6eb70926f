"""From a ModelSpec to files that can be loaded now: found here or fetched, checked, and described as a ReadyModel.

Nothing is asked of the network when the files are on this machine. It reads headers and JSON, never weights, and knows
nothing of backends.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.closed import GONE, cannot_read, closed, leads_nowhere, lost_target
from runner.config import SamplingParams
from runner.errors import BadModelFile, BusyError, RunnerError, UnsupportedModel, UsageError
from runner.events import Notice, Progress
from runner.hub_cache import file_size, repo_directory, snapshots
from runner.inventory import has_weights, unfinished
from runner.measures import decimal_size
from runner.model_files import (
    CONFIG,
    INDEX,
    PICKLES,
    SAMPLING,
    SIDE_FILES,
    Choice,
    FileGroup,
    check_index,
    choose,
    gguf_groups,
    missing_side_files,
    needs_index,
)
from runner.paths import user_paths
from runner.quant.half_made import remedies
from runner.quant.hipfire import is_hipfire_file
from runner.quant.json_file import read_json_if_there
from runner.quant.packed_files import MANIFEST_NAME, PARTIAL_SUFFIX, WEIGHTS_NAME
from runner.registry import SCRIPT_SUFFIX, ModelSpec, Registry
from runner.shard_order import indexed_shards, names_in, tensors_of_shards
from runner.types import CancelToken, ReadyModel
from runner.weight_headers import check_header, remedies_of

if TYPE_CHECKING:
    from runner import hub

OnEvent = Callable[[Progress | Notice], None]

_MAX_INDEX_BYTES = 64 * 2**20  # some 100 bytes a tensor

# What generation_config.json and a GGUF's metadata call the fields of SamplingParams.
_SAMPLING_KEYS = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "repeat_penalty",
}
_GGUF_SAMPLING_KEYS = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_k": "top_k",
    "general.sampling.top_p": "top_p",
    "general.sampling.min_p": "min_p",
    "general.sampling.penalty_repeat": "repeat_penalty",
    "general.sampling.penalty_last_n": "penalty_last_n",
}


@dataclass(frozen=True)
class Located:
    """The files of a model on this machine: `choice` names them relative to `directory`."""

    directory: Path
    choice: Choice

    @property
    def weights(self) -> tuple[Path, ...]:
        # Not resolved: llama.cpp finds the other parts of a split model by name, beside the first.
        return tuple(self.directory / name for name in self.choice.weights)

    @property
    def beside(self) -> Path:
        """Where the configuration and the tokenizer are: a GGUF has its own in its folder."""
        return self.weights[0].parent if self.choice.format == "gguf" else self.directory

    @property
    def files(self) -> tuple[Path, ...]:
        return tuple(self.directory / name for name in self.choice.names)

    @property
    def size_bytes(self) -> int:
        """Of the weights."""
        return sum(path.stat().st_size for path in self.weights)


def ready(spec: ModelSpec, *, offline: bool, on_event: OnEvent, cancel: CancelToken) -> ReadyModel:
    """Make `spec` ready to load: fetch what is missing, check every header, read the sampling defaults.

    on_event gets Progress("download", ...) in bytes and Notices, on this thread. Raises UsageError and BusyError for
    what cannot be had, BadModelFile and UnsupportedModel for what cannot be loaded, RunnerError when cancelled.
    """
    if spec.origin == "fake":
        return ReadyModel(name=spec.name, format="script", weights=(), directory=Path(), size_bytes=0)
    if spec.path is not None and spec.path.name.endswith(SCRIPT_SUFFIX):
        size = spec.path.stat().st_size
        return ReadyModel(
            name=spec.name, format="script", weights=(spec.path,), directory=spec.path.parent, size_bytes=size
        )
    located = locate(spec)
    if located is None:
        if offline:
            raise BusyError(
                f"{not_here(spec)}, and --offline forbids fetching it.",
                hint="Without --offline it is fetched; `runner ls` lists what is here.",
            )
        located = _fetch(spec, on_event, cancel)
    with remedies_of(spec):
        return _describe(spec, located, on_event)


def title(spec: ModelSpec) -> str:
    """The model's name with the quantization that was asked for."""
    return f"{spec.name}:{spec.asked}" if spec.asked and spec.origin == "registry" else spec.name


def not_here(spec: ModelSpec) -> str:
    """The beginning of what is said where files of a model of the hub are asked for that are not here, or not all."""
    is_begun = unfinished(spec, Registry.load_for(user_paths())) is not None
    return f"{title(spec)} is not {'whole ' if is_begun else ''}on this machine"


# --- finding ---------------------------------------------------------------------------------------------------------


def locate(spec: ModelSpec) -> Located | None:
    """The files of `spec` on this machine, or None when some have to be fetched. Asks no network.

    Raises UsageError, BadModelFile or UnsupportedModel for a local path without a model in it, RunnerError for one that
    may not be read.
    """
    if spec.path is not None:
        with remedies_of(spec):
            return _at_path(spec, spec.path)
    repo, revision = _source(spec)
    for snapshot in snapshots(repo, revision) if repo else ():
        try:
            indexed = indexed_shards(snapshot.names, snapshot.directory / INDEX)
            return Located(snapshot.directory, choose(spec, snapshot.names, repo, indexed))
        except RunnerError:  # this commit is not here, or not completely; another may be
            continue
    return None


def expected_path(spec: ModelSpec) -> Path:
    """The GGUF or the directory that `spec` is here; while it has to be fetched, a path of the name that it will have.

    Asks no network. Raises as `locate` does.
    """
    located = locate(spec)
    if located is not None:
        return located.weights[0] if located.choice.format == "gguf" else located.directory
    file = spec.file.replace("{quant}", spec.chosen_quant) if spec.chosen_quant else ""
    return Path(file or _source(spec)[0].rpartition("/")[2])


def _source(spec: ModelSpec) -> tuple[str, str]:
    """The repository and revision that the files come from."""
    return (spec.repo, spec.revision) if spec.wants_safetensors else (spec.gguf, spec.gguf_revision)


def _at_path(spec: ModelSpec, path: Path) -> Located:
    if (place := closed(path)) is not None:
        raise cannot_read([place])
    if (target := lost_target(path)) is not None:
        raise leads_nowhere(path, target)
    if not path.exists():
        raise BadModelFile(f"{path} does not exist.", hint=f"{GONE[0].upper()}{GONE[1:]}.")
    if path.is_dir():
        names = names_in(path)
        if spec.origin == "made" and not has_weights(names):
            raise BadModelFile(f"{path} has no weights.")  # as verify says; remedies_of has the remedy
        groups = gguf_groups(names)
        if len(groups) > 1:
            listed = ", ".join(group.label for group in groups)
            raise UsageError(
                f"{path} has several models: {listed}.", hint=f"Name one of them: {path / groups[0].names[0]}"
            )
        try:
            return Located(path, choose(spec, names, str(path), indexed_shards(names, path / INDEX)))
        except RunnerError as error:
            if not (path.name.endswith(PARTIAL_SUFFIX) and path.absolute().parent == user_paths().models.absolute()):
                raise
            raise BadModelFile(f"{path} is not finished.", hint=remedies(path)) from error
    suffix = path.suffix.lower()
    if suffix == ".gguf":
        return Located(path.parent, Choice("gguf", _gguf_parts(path), _side_files(path.parent)))
    if suffix == ".safetensors":
        side = _side_files(path.parent)
        if missing := missing_side_files(side):
            raise BadModelFile(
                f"{path.parent} has weights, but no {missing}.", hint="Put it there: it comes with the model."
            )
        if path.name == WEIGHTS_NAME and (path.parent / MANIFEST_NAME).is_file():
            return Located(path.parent, Choice("packed", (path.name,), (MANIFEST_NAME, *side)))
        return Located(path.parent, Choice("safetensors", (path.name,), side))
    if suffix in PICKLES:
        raise UnsupportedModel(
            f"{path.name} is a pickle, and loading one can run any program in it.",
            hint="Look for a safetensors or GGUF version of the model.",
        )
    if is_hipfire_file(path):
        raise UnsupportedModel(
            f"{path.name} is one of hipfire's files, which are not run as they are.",
            hint=f"Make a model of it: runner quantize {shlex.quote(str(path))}",
        )
    raise UsageError(f"{path.name} is no model file.", hint="Give a .gguf file, or a directory with a model.")


def _gguf_parts(path: Path) -> tuple[str, ...]:
    """`path` alone, or all parts of the split model that it belongs to. Raises BadModelFile when one is missing."""
    beside = [entry.name for entry in path.parent.iterdir() if entry.name.lower().endswith(".gguf")]
    whole: FileGroup | None = next((group for group in gguf_groups(beside) if path.name in group.names), None)
    if whole is not None:
        return whole.names
    from runner.quant.gguf_file import parts_of

    return tuple(part.name for part in parts_of(path))


def _side_files(directory: Path) -> tuple[str, ...]:
    return tuple(name for name in SIDE_FILES if (directory / name).is_file())


# --- fetching --------------------------------------------------------------------------------------------------------


def listed(spec: ModelSpec, cancel: CancelToken | None = None) -> tuple[hub.Listing, Choice]:
    """What the hub has now of the repository of `spec`, and the files of it that are the model.

    Raises what hub.list_files and `chosen` raise.
    """
    from runner import hub

    repo, revision = _source(spec)
    listing = hub.list_files(repo, revision, cancel=cancel)
    return listing, chosen(spec, listing, cancel)


def chosen(spec: ModelSpec, listing: hub.Listing, cancel: CancelToken | None = None) -> Choice:
    """The files of a listing that are the model of `spec`.

    Raises what model_files.choose and hub.read_range raise, and BadModelFile when the repository lacks weights that its
    own index names: before they are fetched, not after.
    """
    repo, shards = listing.repo, None
    if needs_index(listing.names):
        shards = tensors_of_shards(_index(listing, cancel))
    choice = choose(spec, listing.names, repo, shards or (), are_all=True)
    if INDEX in choice.side:
        if shards is None:
            shards = tensors_of_shards(_index(listing, cancel))
        check_index(choice.weights, shards, listing.names, repo)
    return choice


def _index(listing: hub.Listing, cancel: CancelToken | None) -> Mapping[str, Any]:
    """The index of a listing, from the cache or else from the hub; {} for one that no shards could be named by."""
    from runner import hub

    file, here = listing.file(INDEX), repo_directory(listing.repo) / "snapshots" / listing.commit / INDEX
    if not 0 < file.size_bytes <= _MAX_INDEX_BYTES:
        return {}
    try:
        if file_size(here) == file.size_bytes:
            plain = json.loads(here.read_bytes())
        else:
            plain = json.loads(hub.read_range(listing, INDEX, 0, file.size_bytes, cancel=cancel))
    except (OSError, ValueError, RecursionError):  # verify tells of a damaged one, and no weights are read by it
        return {}
    return plain if isinstance(plain, dict) else {}


def _fetch(spec: ModelSpec, on_event: OnEvent, cancel: CancelToken) -> Located:
    from runner import hub

    repo = _source(spec)[0]
    listing, choice = listed(spec, cancel)
    wanted = set(choice.names)
    size = sum(file.size_bytes for file in listing.files if file.name in wanted)
    label = choice.weights[0] if len(choice.weights) == 1 else f"{len(choice.weights)} files"
    on_event(Notice("info", f"Fetching {label} ({decimal_size(size)}) from {repo}."))

    if listing.renamed_to:
        on_event(Notice("info", f"{repo} is now called {listing.renamed_to}."))

    troubles = hub.Troubles()

    def on_progress(state: hub.FetchState) -> None:
        on_event(Progress("download", state.done_bytes, state.total_bytes, "bytes"))
        for text in troubles.news(state):
            on_event(Notice("warning", text))

    return Located(hub.fetch(listing, choice.names, on_progress=on_progress, cancel=cancel), choice)


# --- checking --------------------------------------------------------------------------------------------------------


def _describe(spec: ModelSpec, located: Located, on_event: OnEvent) -> ReadyModel:
    """Check the headers of all weights and read what the engine needs of the files beside them."""
    from_weights: dict[str, float | int] = {}
    architecture = ""
    if located.choice.format == "gguf":
        from runner.quant.gguf_file import read_header as read_gguf

        headers = [read_gguf(path) for path in located.weights]
        from_weights = gguf_sampling(headers[0].metadata)
        architecture = headers[0].architecture
    else:
        for path in located.weights:
            check_header(path)
        if located.choice.format == "packed":
            check_header(located.directory / MANIFEST_NAME)
        for name in (CONFIG, "tokenizer_config.json"):
            read_json_if_there(located.beside / name)
    directory = located.beside
    from_config, ignored = sampling_defaults(directory / SAMPLING)
    if ignored:
        on_event(Notice("warning", f"{SAMPLING} has sampling values that cannot be used: {', '.join(ignored)}."))
    return ReadyModel(
        name=title(spec),
        format=located.choice.format,
        weights=located.weights,
        directory=directory,
        size_bytes=located.size_bytes,
        architecture=architecture,
        sampling={**from_weights, **from_config},
        stop_ids=stop_ids(read_json_if_there(directory / SAMPLING)),
    )


def sampling_defaults(path: Path) -> tuple[dict[str, float | int], tuple[str, ...]]:
    """A generation_config.json as SamplingParams fields, and the names of values that they cannot hold.

    `do_sample: false` is temperature 0. A missing file gives nothing; raises BadModelFile for one that is not JSON.
    """
    plain = read_json_if_there(path)
    values = _numbers(plain, _SAMPLING_KEYS)
    if plain.get("do_sample") is False:
        values["temperature"] = 0.0
    return _usable(values)


def stop_ids(generation_config: Mapping[str, Any]) -> tuple[int, ...]:
    """The `eos_token_id` of a generation_config.json, which is a number, a list of them, or nothing."""
    value = generation_config.get("eos_token_id")
    listed = value if isinstance(value, list) else [value]
    return tuple(token for token in listed if isinstance(token, int) and not isinstance(token, bool) and token >= 0)


def gguf_sampling(metadata: Mapping[str, Any]) -> dict[str, float | int]:
    """The sampling defaults in a GGUF's metadata as SamplingParams fields; values that cannot be used are left out."""
    return _usable(_numbers(metadata, _GGUF_SAMPLING_KEYS))[0]


def _numbers(plain: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, float | int]:
    """The values of those keys that are numbers, under their new names. Whole floats count for whole fields."""
    found: dict[str, float | int] = {}
    for key, name in names.items():
        value = plain.get(key)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
            whole = name in ("top_k", "penalty_last_n") and value == int(value)
            # GGUF holds 32-bit floats: 0.6 is meant, not 0.6000000238.
            found[name] = int(value) if whole else float(f"{value:.6g}")
    return found


def _usable(values: Mapping[str, float | int]) -> tuple[dict[str, float | int], tuple[str, ...]]:
    """The values that SamplingParams accepts, and the names of the others."""
    good: dict[str, float | int] = {}
    for name, value in values.items():
        try:
            SamplingParams(**{name: value})  # type: ignore[arg-type]
        except UsageError:
            continue
        good[name] = value
    return good, tuple(name for name in values if name not in good)
