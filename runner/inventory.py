"""What models are on this machine, whose they are, and what deleting one would take away.

It joins the registry, the models made here and the Hugging Face cache, by file names and sizes; it opens no model file
and reaches no network. Deleting covers what runner made and what the cache holds, nothing else.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from runner.errors import RunnerError, UsageError
from runner.hub_cache import CachedFile, CacheEntry, cache_entries, cache_entry, remove
from runner.model_files import WEIGHT_SUFFIXES, choose, gguf_groups, safetensors_weights
from runner.paths import builtin
from runner.registry import SAFETENSORS, ModelSpec, Registry

Kind = Literal["built-in", "made here", "own file", "cache"]


@dataclass(frozen=True, kw_only=True)
class LocalModel:
    """One set of weights on this machine. name: what to call it on the command line.

    path: the first weight file. repo: where it came from, or "". last_used: Unix time, s, of the last access.
    """

    name: str
    kind: Kind
    format: Literal["gguf", "safetensors"]
    quantization: str
    size_bytes: int
    path: Path
    repo: str
    last_used: float


def local_models(registry: Registry) -> tuple[LocalModel, ...]:
    """Everything that can be run without the network: built-in, made here, named by the user's file, cached."""
    found: list[LocalModel] = []
    for spec in (*registry.specs, *registry.made()):
        if spec.path is not None:
            found += _in_directory(spec, spec.path)
    for entry in cache_entries():
        found += _in_cache(registry, entry)
    return tuple(found)


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

    format: Literal["gguf", "safetensors"]
    label: str
    quantization: str
    files: tuple[CachedFile, ...]

    def model(self, name: str, kind: Kind, repo: str) -> LocalModel:
        stats = [file.path.stat() for file in self.files]
        return LocalModel(
            name=name,
            kind=kind,
            format=self.format,
            quantization=self.quantization,
            size_bytes=sum(file.size_bytes for file in self.files),
            path=self.files[0].path,
            repo=repo,
            last_used=max(max(stat.st_atime, stat.st_mtime) for stat in stats),
        )


def _weights(files: Iterable[CachedFile]) -> list[_Weights]:
    """The complete sets of weights among `files`."""
    by_name = {file.name: file for file in files}
    found = [
        _Weights("gguf", group.label, group.quant, tuple(by_name[name] for name in group.names))
        for group in gguf_groups(by_name)
    ]
    try:
        names = safetensors_weights(by_name)
    except RunnerError:  # incomplete, or several models in one directory: nothing that could be run by this name
        names = ()
    if names:
        found.append(_Weights("safetensors", names[0], "", tuple(by_name[name] for name in names)))
    return found


def _in_directory(spec: ModelSpec, path: Path) -> list[LocalModel]:
    try:
        entries = [path] if path.is_file() else sorted(path.iterdir())
    except OSError:
        return []
    files = [CachedFile(entry.name, entry, entry.stat().st_size) for entry in entries if entry.is_file()]
    return [weights.model(spec.name, _kind(spec), "") for weights in _weights(files)]


def _in_cache(registry: Registry, entry: CacheEntry) -> list[LocalModel]:
    known = registry.known_repo(entry.repo)
    return [
        weights.model(_cache_name(known, entry.repo, weights), "cache", entry.repo) for weights in _weights(entry.files)
    ]


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


# --- deleting --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Removal:
    """One deletion: a directory of a model made here, or files (None: all) of a repository in the cache."""

    title: str
    size_bytes: int
    directory: Path | None = None
    entry: CacheEntry | None = None
    names: frozenset[str] | None = None


def plan_removal(spec: ModelSpec, made: Path) -> tuple[Removal, ...]:
    """What deleting `spec` means; nothing is deleted yet. made: the directory of the models made here.

    Raises UsageError for a model that is not here, that ships with runner, or whose files are not runner's.
    """
    if is_builtin(spec):
        raise UsageError(
            f"{spec.name} ships with runner and cannot be deleted.", hint="Removing the program removes it."
        )
    if spec.origin == "made" and spec.path is not None and spec.path.parent == made.absolute():
        size = sum(os.lstat(Path(folder, name)).st_size for folder, _, names in os.walk(spec.path) for name in names)
        return (Removal(spec.name, size, directory=spec.path),)
    if spec.path is not None or spec.origin == "fake":
        raise UsageError(
            f"{spec.path or spec.name} was neither made nor fetched by runner.",
            hint="Only models from `runner ls` of the kinds 'cache' and 'made here' are deleted.",
        )
    removals = [
        removal
        for repo in dict.fromkeys(one for one in (spec.gguf, spec.repo) if one)
        if (entry := cache_entry(repo)) is not None and (removal := _from_cache(spec, entry)) is not None
    ]
    if not removals:
        raise UsageError(f"{spec.name} is not on this machine.", hint="`runner ls` lists what is.")
    return tuple(removals)


def _from_cache(spec: ModelSpec, entry: CacheEntry) -> Removal | None:
    """The part of a cached repository that `spec` means; all of it when no other weights would be left."""
    if not spec.asked:
        return Removal(entry.repo, entry.size_bytes, entry=entry)
    if spec.asked == SAFETENSORS and spec.gguf and entry.repo.lower() == spec.gguf.lower() != spec.repo.lower():
        return None
    by_name = {file.name: file for file in entry.files}
    try:
        choice = choose(spec, tuple(by_name), entry.repo)
    except RunnerError:
        return None
    left = [name for name in by_name if name.lower().endswith(WEIGHT_SUFFIXES) and name not in choice.weights]
    if not left:
        return Removal(entry.repo, entry.size_bytes, entry=entry)
    size = sum(by_name[name].size_bytes for name in choice.weights)
    label = f"{entry.repo}, {choice.quant or SAFETENSORS}"
    return Removal(label, size, entry=entry, names=frozenset(choice.weights))


def delete(removal: Removal) -> int:
    """Carry it out; returns the bytes freed. Raises RunnerError when something could not be deleted."""
    if removal.entry is not None:
        return remove(removal.entry, removal.names)
    assert removal.directory is not None
    try:
        if removal.directory.is_symlink():  # someone linked a directory in here: the link is ours, what it means is not
            removal.directory.unlink()
            return 0
        shutil.rmtree(removal.directory)
    except OSError as error:
        raise RunnerError(f"{removal.directory} cannot be deleted: {error.strerror or error}.") from error
    return removal.size_bytes
