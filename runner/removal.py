"""What deleting a model would take away: models and drafters made here, and what the Hugging Face cache holds.

Nothing else is ever deleted. It plans by names and sizes, opens no model file and reaches no network. The front end
shows the plan and asks; deletion.py carries it out.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from runner.closed import cannot_read, closed
from runner.errors import UnknownModel, UsageError
from runner.hub_cache import (
    cached_files,
    cached_repos,
    file_size,
    has_files,
    links_of,
    repo_directory,
    taken_bytes,
)
from runner.hub_parts import Leftovers, leftovers
from runner.inventory import is_builtin, is_meant, known_groups, known_names
from runner.model_files import FileGroup, missing_side_files
from runner.quant.half_made import finished, half_made, is_half_deleted, output_name
from runner.quant.packed_files import PARTIAL_SUFFIX
from runner.registry import SAFETENSORS, ModelSpec, Registry


@dataclass(frozen=True, kw_only=True)
class Removal:
    """One deletion. directory: of what was made here, whole or half, or of the repository `repo` in the cache.

    disk_bytes: of all that goes. names: the files of the repository that go; None means all of the directory. left: the
    unfinished and damaged files that go with them.
    """

    title: str
    disk_bytes: int
    directory: Path
    repo: str = ""
    names: frozenset[str] | None = None
    left: Leftovers = field(default_factory=Leftovers)


def named(text: str, registry: Registry, drafts: Path) -> ModelSpec:
    """The model that `text` means, or where there is none of that name the drafter in `drafts` that is called so.

    Raises what `Registry.resolve` raises.
    """
    try:
        return registry.resolve(text)
    except UnknownModel:
        if text not in finished(drafts):
            raise
        return drafter(text, drafts)


def drafter(name: str, drafts: Path) -> ModelSpec:
    """The drafter in `drafts` that is called so. Raises UsageError where there is none."""
    if (head := finished(drafts).get(name)) is None:
        raise UsageError(f"{name} is not on this machine.", hint="`runner du` lists what is.")
    return ModelSpec(name=name, origin="path", path=head)


def plan_removal(spec: ModelSpec, made: Path, drafts: Path) -> tuple[Removal, ...]:
    """What deleting `spec` means; nothing is deleted yet. made, drafts: where models and drafters made here are.

    Raises UsageError for a model that is not here, that ships with runner, or whose files are not runner's, and
    RunnerError for one that may not be read.
    """
    if is_builtin(spec):
        raise UsageError(
            f"{spec.name} ships with runner and cannot be deleted.", hint="Removing the program removes it."
        )
    for place, what in ((made.absolute(), ""), (drafts.absolute(), ", drafter")):
        name = next((name for name, path in finished(place).items() if path == spec.path), None)
        if name is not None and spec.path is not None:
            directory = place / spec.path.relative_to(place).parts[0]
            if not directory.is_symlink() and (inside := closed(directory)) is not None:
                raise cannot_read([inside])
            return (Removal(title=name + what, disk_bytes=_size_of(directory), directory=directory),)
    if spec.path is not None or spec.origin == "fake":
        raise UsageError(
            f"{spec.path or spec.name} is not among the models that runner keeps.",
            hint="Only models of the kinds 'cache' and 'made here' in `runner ls`, and drafters, are deleted; what is "
            "elsewhere, though `runner quantize` wrote it there, is yours to delete.",
        )
    removals = [removal for repo in spec.repos if (removal := _from_cache(spec, repo)) is not None]
    if not removals:
        raise UsageError(f"{spec.name} is not on this machine.", hint="`runner ls` lists what is.")
    return tuple(removals)


def plan_leftovers(spec: ModelSpec | None) -> tuple[Removal, ...]:
    """What deleting the unfinished and the damaged files of `spec` means, or with None those of the whole cache."""
    found = []
    repos = cached_repos() if spec is None else [(repo, repo_directory(repo)) for repo in spec.repos]
    for repo, directory in repos:
        if left := leftovers(directory):
            found.append(_of_leftovers(repo, directory, left))
    return tuple(found)


def plan_half_made(directories: Iterable[Path], name: str = "") -> tuple[Removal, ...]:
    """What deleting the half-made models and drafters there means: all of them, or those that are to be called `name`.

    With what was left of one that was replaced, or that was being deleted, when a kill ended that.
    """
    found = [path for directory in directories for path in half_made(directory)]
    return tuple(of_half_made(path) for path in found if name in ("", path.name, output_name(path)))


def of_half_made(partial: Path) -> Removal:
    """What deleting that half-made model means, or one that was replaced or half deleted."""
    state = "half deleted" if is_half_deleted(partial) else "replaced"
    if partial.name.endswith(PARTIAL_SUFFIX):
        state = "unfinished"
    return Removal(title=f"{output_name(partial)}, {state}", disk_bytes=_size_of(partial), directory=partial)


def _size_of(path: Path) -> int:
    """The bytes of a file, or of all files in a directory. Links are not followed, and what has gone meanwhile is 0."""
    if path.is_symlink():  # what it means stays
        return 0
    found = [Path(folder, name) for folder, _, names in os.walk(path) for name in names]
    total = 0
    for file in found if os.path.isdir(path) else [path]:
        with suppress(OSError):
            total += os.lstat(file).st_size
    return total


def plan_unfinished(spec: ModelSpec, names: Collection[str] = ()) -> Removal | None:
    """What giving up the download of `spec` means: its parts, and those of its files that are of no use without them.

    names: the files that the download fetches, where they are known. Weights that are whole stay. None: nothing is
    there of it.
    """
    repo = spec.source[0]
    directory, there = repo_directory(repo), known_names(repo)
    whole = {file.name: file.size_bytes for file in cached_files(repo)}
    wanted = replace(spec, asked=spec.asked or spec.quant)
    begun = [group for group in known_groups(repo) if not _is_whole(group, whole)]
    if names:
        begun = [group for group in begun if set(group.names) & set(names)]
    elif wanted.asked:
        begun = [group for group in begun if is_meant(wanted, repo, group)]
    doomed = frozenset(name for group in begun for name in group.names if name in there)
    left = leftovers(directory).of_files(doomed | set(names))
    if not doomed and not left:
        return None
    size = sum(whole.get(name, 0) for name in doomed) + left.partial_bytes
    return Removal(
        title=f"{repo}, unfinished", disk_bytes=size, directory=directory, repo=repo, names=doomed, left=left
    )


def _is_whole(group: FileGroup, files: Collection[str]) -> bool:
    is_gguf = group.label.lower().endswith(".gguf")
    return set(group.names) <= set(files) and (is_gguf or not missing_side_files(files))


def shared_bytes(removal: Removal) -> int:
    """Of the bytes that `removal` names, those that stay, because other files of the cache are links to them too."""
    if not removal.repo or not removal.names:
        return 0
    links = links_of(removal.directory)
    doomed = {blob for name, blob in links if name in removal.names}
    kept = {blob for name, blob in links if name not in removal.names}
    return sum(file_size(blob) or 0 for blob in doomed & kept)


def _of_leftovers(repo: str, directory: Path, left: Leftovers) -> Removal:
    return Removal(
        title=f"{repo}, {_words(left)}",
        disk_bytes=left.partial_bytes + left.set_aside_bytes,
        directory=directory,
        repo=repo,
        names=frozenset(),
        left=left,
    )


def _words(left: Leftovers) -> str:
    counts = [(len(left.parts), "partial download"), (len(left.set_aside), "damaged file")]
    return " and ".join(f"{count} {noun}{'s' if count > 1 else ''}" for count, noun in counts if count)


def _from_cache(spec: ModelSpec, repo: str) -> Removal | None:
    """The part of a cached repository that `spec` means; all of it when no other weights would be left.

    What has no weights, as other tools leave it who count tokens, goes by the name of the repository alone.
    """
    directory = repo_directory(repo)
    left = leftovers(directory)
    names = known_names(repo)
    groups = known_groups(repo)
    if not groups and not left and not (spec.origin == "hub" and has_files(directory)):
        return None
    chosen = [group for group in groups if is_meant(spec, repo, group)] if spec.asked else list(groups)
    if spec.asked and not chosen:
        return None
    if len(chosen) == len(groups):
        whole = 0 if directory.is_symlink() else sum(taken_bytes(directory).values())
        return Removal(title=repo, disk_bytes=whole, directory=directory, repo=repo)
    doomed = frozenset(name for group in chosen for name in group.names if name in names)
    sizes = {file.name: file.size_bytes for file in cached_files(repo)}
    of_files = left.of_files(doomed)
    return Removal(
        title=f"{repo}, {chosen[0].quant or SAFETENSORS}",
        disk_bytes=sum(sizes.get(name, 0) for name in doomed) + of_files.partial_bytes,
        directory=directory,
        repo=repo,
        names=doomed,
        left=of_files,
    )
