"""What models are on this machine, whose they are, and whether they are whole.

It joins the registry, the models made here and the Hugging Face cache, by file names and sizes; it opens no file but
the manifest of a packed model, an index where names do not tell which files are the model, and the weights of models
made here, of whose size nothing but their headers tells. It reaches no network. Whether the contents are right is
verify.py's question.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from runner.closed import closed, lost_target
from runner.errors import RunnerError
from runner.hub_cache import (
    CachedFile,
    broken_links,
    cached_files,
    cached_repos,
    closed_repos,
    file_size,
    repo_directory,
)
from runner.hub_parts import Part, leftovers
from runner.model_files import (
    INDEX,
    WEIGHT_SUFFIXES,
    FileGroup,
    gguf_groups,
    intended_groups,
    missing_side_files,
    needs_index,
    safetensors_weights,
)
from runner.paths import Paths, builtin
from runner.quant.half_made import finished
from runner.quant.packed_files import FILE_SUFFIXES, MANIFEST_NAME, WEIGHTS_NAME, is_packed
from runner.registry import SAFETENSORS, ModelSpec, Registry
from runner.shard_order import indexed_shards, names_in
from runner.weight_headers import damage

Kind = Literal["built-in", "made here", "own file", "cache"]
State = Literal["complete", "partial", "damaged"]


@dataclass(frozen=True, kw_only=True)
class LocalModel:
    """One set of weights on this machine. name: what to call it on the command line.

    path: the first weight file. repo: where it came from, or "". last_used: Unix time, s, of the last access.
    state: "partial" after an interrupted download, "damaged" where links lead nowhere, and of models made here where a
    header tells it. size_bytes: what is here of its weights; total_bytes: what there will be, 0 when not known.
    num_here of num_files weight files are here whole. lost_target: where its link leads, or what the user's file names,
    if nothing is to be found there.
    """

    name: str
    kind: Kind
    format: Literal["gguf", "safetensors", "packed"]
    quantization: str
    size_bytes: int
    path: Path
    repo: str
    last_used: float
    state: State = "complete"
    total_bytes: int
    num_here: int
    num_files: int
    lost_target: Path | None = None


def local_models(registry: Registry) -> tuple[LocalModel, ...]:
    """Every model of which there is something here: built-in, made here, named by the user's file, cached.

    Those in the state "complete" can be run without the network.
    """
    found: list[LocalModel] = []
    made = registry.made()
    for spec in (*registry.specs, *made):
        if spec.path is not None:
            found += _in_directory(spec, spec.path)
    taken = {spec.name for spec in made}  # by these names nothing else is found
    for repo, directory in cached_repos():
        found += _in_cache(_known(repo, registry, taken), repo, directory)
    return tuple(found)


def _known(repo: str, registry: Registry, taken: Collection[str]) -> ModelSpec | None:
    """The registry's model of a repository. taken: names of models made here."""
    known = registry.known_repo(repo)
    return None if known is None or known.name in taken else known


def unfinished(spec: ModelSpec, registry: Registry) -> LocalModel | None:
    """What is here of a model of the hub that is not here whole; None where there is nothing of it."""
    wanted, asked = spec.source[0].lower(), spec.chosen_quant.lower()
    taken = {made.name for made in registry.made()}
    of_it = [one for one in cached_repos() if one[0].lower() == wanted]
    for model in (model for one in of_it for model in _in_cache(_known(one[0], registry, taken), *one)):
        is_asked = model.format != "gguf" if spec.wants_safetensors else asked in ("", model.quantization.lower())
        if is_asked and model.state != "complete":
            return model
    return None


def unreadable(registry: Registry, paths: Paths) -> tuple[Path, ...]:
    """Directories that have models, or may have, and may not be read: what is in them is in no list."""
    made = [one for place in (paths.models, paths.drafts) for one in (place, *finished(place).values())]
    own = [spec.path for spec in registry.specs if spec.path is not None]
    found = [place for one in (*made, *own) if (place := closed(one)) is not None]
    return tuple(dict.fromkeys([*closed_repos(), *found]))


def _kind(spec: ModelSpec) -> Kind:
    if spec.origin == "made":
        return "made here"
    return "built-in" if is_builtin(spec) else "own file"


def is_builtin(spec: ModelSpec) -> bool:
    """Whether the model ships with runner."""
    return spec.path is not None and spec.path.is_relative_to(builtin("models").absolute())


@dataclass(frozen=True)
class _Weights:
    """One set of weight files. label: the file name without part numbers."""

    format: Literal["gguf", "safetensors", "packed"]
    label: str
    quantization: str
    files: tuple[CachedFile, ...]

    def model(self, name: str, kind: Kind, repo: str) -> LocalModel:
        return LocalModel(
            name=name,
            kind=kind,
            format=self.format,
            quantization=self.quantization,
            size_bytes=sum(file.size_bytes for file in self.files),
            path=self.files[0].path,
            repo=repo,
            last_used=_last_used(file.path for file in self.files),
            total_bytes=sum(file.size_bytes for file in self.files),
            num_here=len(self.files),
            num_files=len(self.files),
        )


def _last_used(paths: Iterable[Path]) -> float:
    """When one of them was last read or written, Unix time in s; a download may move them away meanwhile."""
    times = [0.0]
    for path in paths:
        with contextlib.suppress(OSError):
            found = os.stat(path) if os.path.exists(path) else os.lstat(path)
            times += [found.st_atime, found.st_mtime]
    return max(times)


def _weights(files: Iterable[CachedFile]) -> list[_Weights]:
    """The complete sets of weights among `files`."""
    by_name = {file.name: file for file in files}
    found = [
        _Weights("gguf", group.label, group.quant, tuple(by_name[name] for name in group.names))
        for group in gguf_groups(by_name)
    ]
    try:
        names = safetensors_weights(by_name, _indexed(by_name))
    except RunnerError:  # incomplete, or several models in one directory: nothing that could be run by this name
        names = ()
    if names and is_packed(by_name):
        form = _packed_format(by_name[MANIFEST_NAME].path)
        found.append(_Weights("packed", names[0], form, tuple(by_name[name] for name in names)))
    elif names:
        found.append(_Weights("safetensors", names[0], "", tuple(by_name[name] for name in names)))
    return found


def _indexed(files: Mapping[str, CachedFile]) -> tuple[str, ...]:
    return indexed_shards(files, files[INDEX].path) if INDEX in files else ()


def _groups(names: Collection[str], files: Mapping[str, CachedFile]) -> tuple[FileGroup, ...]:
    """The sets of weights that `names` belong to, where `files` are whole.

    All safetensors are one where the index is not whole that would tell which of them are.
    """
    indexed = _indexed(files)
    if not indexed and _lacks_index(names):
        indexed = tuple(name for name in names if name.endswith(".safetensors"))
    return intended_groups(names, indexed)


def _lacks_index(names: Collection[str]) -> bool:
    return needs_index(names) and WEIGHTS_NAME not in names


def _packed_format(manifest: Path) -> str:
    """What a packed model's manifest calls its format; "" when it cannot be read, which loading the model tells."""
    from runner.quant.mq.manifest import read_manifest

    try:
        return read_manifest(manifest).quantization
    except RunnerError:
        return ""


def _in_directory(spec: ModelSpec, path: Path) -> list[LocalModel]:
    try:
        places = _beside(path) if os.path.isfile(path) else {name: path / name for name in names_in(path)}
    except OSError:
        return [_weightless(spec, path)] if _is_told_lost(spec, path) else []
    sizes = {name: file_size(place) for name, place in places.items()}
    files = [CachedFile(name, places[name], size) for name, size in sizes.items() if size is not None]
    found = [_local(spec, weights) for weights in _weights(files)]
    return found or ([_weightless(spec, path)] if spec.origin == "made" and not has_weights(sizes) else [])


def _is_told_lost(spec: ModelSpec, path: Path) -> bool:
    """Whether it is in the list when it is not there: what the user names is, and of what was made here a link."""
    is_gone = closed(path) is None and not os.path.exists(path)
    return is_gone if spec.origin != "made" else lost_target(path) is not None


def _beside(path: Path) -> dict[str, Path]:
    """The files that one of a model's weight files stands for: all parts of a split GGUF, a packed model's manifest."""
    there = [path.name]
    with contextlib.suppress(OSError):  # it may be closed, and the file be open
        there = os.listdir(path.parent)
    split = next((group.names for group in gguf_groups(there) if path.name in group.names), (path.name,))
    names = (*split, MANIFEST_NAME) if path.name == WEIGHTS_NAME and MANIFEST_NAME in there else split
    return {name: path.with_name(name) for name in names}


def _local(spec: ModelSpec, weights: _Weights) -> LocalModel:
    """Those weights; of a model made here, only headers tell whether they are whole."""
    model = weights.model(spec.name, _kind(spec), "")
    checked = [file.path for file in weights.files]
    if weights.format == "packed" and not weights.quantization:  # its manifest could not be read
        checked.append(checked[0].with_name(MANIFEST_NAME))
    is_damaged = spec.origin == "made" and any(map(damage, checked))
    return dataclasses.replace(model, state="damaged") if is_damaged else model


def has_weights(names: Iterable[str]) -> bool:
    """Whether one of the files of a model made here is its weights, by names."""
    return any(name.lower().endswith((*WEIGHT_SUFFIXES, *FILE_SUFFIXES)) for name in names)


def _weightless(spec: ModelSpec, directory: Path) -> LocalModel:
    """A model whose weights are gone, or are not to be found now; where it was made here, `du` and `rm` know it too."""
    is_lost = spec.origin != "made"
    form: Literal["gguf", "safetensors"] = "safetensors" if is_lost and directory.suffix.lower() != ".gguf" else "gguf"
    return LocalModel(
        name=spec.name,
        kind=_kind(spec),
        format="packed" if _was_packed(directory) else form,
        quantization="",
        size_bytes=0,
        path=directory,
        repo="",
        last_used=_last_used([directory]),
        state="damaged",
        total_bytes=0,
        num_here=0,
        num_files=1,
        lost_target=lost_target(directory) or (directory if is_lost else None),
    )


def _was_packed(directory: Path) -> bool:
    from runner.quant.mq.manifest import read_files

    try:
        return WEIGHTS_NAME in read_files(directory / MANIFEST_NAME)
    except RunnerError:
        return False


def _in_cache(known: ModelSpec | None, repo: str, directory: Path) -> list[LocalModel]:
    files = {file.name: file for file in cached_files(repo)}
    whole = [weights for weights in _weights(files.values()) if _can_run(weights, files)]
    found = [weights.model(_cache_name(known, repo, weights), "cache", repo) for weights in whole]
    there = {file.name for weights in whole for file in weights.files}
    parts = {part.name: part for part in leftovers(directory).parts if part.is_resumable}
    broken = broken_links(repo)
    has_original = any(weights.format != "gguf" for weights in whole)
    for group in _groups({*files, *parts, *broken}, files):
        if there.isdisjoint(group.names) and not (has_original and _is_beside(group, files)):
            begun = _Unfinished(group, files, parts, broken)
            found.append(begun.model(_cache_name(known, repo, begun.weights), repo))
    return found


def _is_beside(group: FileGroup, files: Collection[str]) -> bool:
    """Whether those are whole safetensors that are not the model itself, such as another layout of it or an adapter."""
    return not group.label.lower().endswith(".gguf") and set(group.names) <= set(files)


def _can_run(weights: _Weights, names: Iterable[str]) -> bool:
    """Whether the files are there without which the weights are of no use."""
    return weights.format == "gguf" or not missing_side_files(names)


@dataclass(frozen=True)
class _Unfinished:
    """A set of weights in the cache of which something is missing."""

    group: FileGroup
    files: Mapping[str, CachedFile]
    parts: Mapping[str, Part]
    broken: Mapping[str, Path]

    @property
    def weights(self) -> _Weights:
        is_gguf = self.group.label.lower().endswith(".gguf")
        return _Weights("gguf" if is_gguf else "safetensors", self.group.label, self.group.quant if is_gguf else "", ())

    @property
    def _is_index_damaged(self) -> bool:
        """Whether all is here that is known of, and the index does not tell what that is."""
        names = self.group.names
        is_here = INDEX in self.files or INDEX in self.broken
        return is_here and len(names) > 1 and _lacks_index([INDEX, *names]) and not _indexed(self.files)

    def model(self, name: str, repo: str) -> LocalModel:
        names = self.group.names
        parts = [self.parts[one] for one in names if one in self.parts and one not in self.files]
        here = [self.files[one] for one in names if one in self.files]
        links = [self.broken[one] for one in names if one in self.broken]
        sizes = [file.size_bytes for file in here] + [part.size_bytes for part in parts]
        is_size_known = len(sizes) == len(names) and all(sizes)
        paths = [file.path for file in here] + [part.path for part in parts] + links
        return LocalModel(
            name=name,
            kind="cache",
            format=self.weights.format,
            quantization=self.weights.quantization,
            size_bytes=sum(file.size_bytes for file in here) + sum(part.done_bytes for part in parts),
            path=paths[0],
            repo=repo,
            last_used=_last_used(paths),
            state="damaged" if (links or self._is_index_damaged) and not parts else "partial",
            total_bytes=sum(sizes) if is_size_known else 0,
            num_here=len(here),
            num_files=len(names),
        )


def _cache_name(known: ModelSpec | None, repo: str, weights: _Weights) -> str:
    """What to call cached weights: by the registry's name where they are one of its files, else by repository."""
    if known is not None and weights.format == "safetensors" and known.repo.lower() == repo.lower():
        return f"{known.name}:{SAFETENSORS}" if known.gguf else known.name
    if known is not None and weights.format == "gguf" and known.gguf.lower() == repo.lower():
        base = weights.label.rsplit("/", 1)[-1].lower()
        quant = next((one for one in known.quants if known.file.replace("{quant}", one).lower() == base), None)
        if quant is not None:
            return known.name if quant == known.quant else f"{known.name}:{quant}"
    return f"{repo}:{weights.quantization}" if weights.quantization else repo


def known_names(repo: str) -> frozenset[str]:
    """The names of all files of a repository of which there is something in the cache: whole, begun, or a bare link."""
    here = {file.name for file in cached_files(repo)}
    begun = {part.name for part in leftovers(repo_directory(repo)).parts if part.name}
    return frozenset(here | begun | broken_links(repo).keys())


def known_groups(repo: str, without: Collection[str] = ()) -> tuple[FileGroup, ...]:
    """The sets of weights of a repository of which there is something in the cache, whole or not.

    without: files that are passed over.
    """
    files = {file.name: file for file in cached_files(repo) if file.name not in without}
    return _groups(known_names(repo).difference(without), files)


def is_meant(spec: ModelSpec, repo: str, group: FileGroup) -> bool:
    """Whether those weights of a repository are what the user asked for with ":QUANT" or ":safetensors"."""
    is_gguf = group.label.lower().endswith(".gguf")
    if spec.asked == SAFETENSORS:
        is_other = spec.gguf and repo.lower() == spec.gguf.lower() != spec.repo.lower()
        return not is_gguf and not is_other
    if not is_gguf:
        return False
    if spec.file:
        return group.label.rsplit("/", 1)[-1].lower() == spec.file.replace("{quant}", spec.asked).lower()
    return group.quant == spec.asked.upper()
