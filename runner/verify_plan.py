"""What to check of a model, and what each file should be.

A blob of the Hugging Face cache is named after its hash: SHA-256 for large files, git's SHA-1 for small ones. Models
and drafters made here have theirs in runner.json; of those of earlier versions, and of files, headers may have to do.
Where a name tells nothing, the hub's listing is asked for, through a function that is given. It reads names, headers
and the JSON that says which files belong together, no weights; checking is verify.py's.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from runner.closed import cannot_read, closed, lost_target
from runner.errors import RunnerError, UsageError
from runner.hub.hashes import Expected, expected_hash
from runner.hub.listing import RemoteFile
from runner.hub_cache import Snapshot, cached_repos, first_hop, repo_directory, snapshots
from runner.hub_parts import Part, leftovers
from runner.inventory import has_weights, is_meant, known_groups
from runner.model_config import SUPPORTED_MODEL_TYPES, text_model_type
from runner.model_files import CONFIG, INDEX, SIDE_FILES, WEIGHT_SUFFIXES, intended_groups, lacking_files
from runner.quant.half_made import finished
from runner.quant.json_file import read_json_if_there
from runner.quant.mq.manifest import read_files
from runner.quant.packed_files import MANIFEST_NAME, is_packed
from runner.registry import ModelSpec, Registry
from runner.shard_order import names_in, promised_tensors
from runner.verify import UNKNOWN, Finding, Link, Plan, Problem, Target
from runner.weight_headers import damage, lacks_manifest

# Beside weights that change a model and are none.
_ADAPTER_CONFIG = "adapter_config.json"
_MODEL_TYPE = re.compile(rb'"model_type"\s*:\s*"(\w+)"', re.ASCII)
_MOST_DAMAGED = 1_000_000  # bytes of a damaged config.json that are looked through

# What the hub lists for (repository, commit), by name. Raises RunnerError.
AskHub = Callable[[str, str], Mapping[str, Expected]]


def plan_everything(registry: Registry, drafts: Path, ask_hub: AskHub) -> Plan:
    """What to check of all models on this machine: in the cache, made here, and shipped with runner; and of drafters.

    drafts: the directory of those that were trained here. What may not be read is left out: `inventory.unreadable`
    has it.
    """
    plan = Plan((), ())
    for spec in (*registry.specs, *registry.made()):
        # Files of the user's own, and those that ship with runner, need have no hashes; what runner made should.
        if spec.path is None or closed(spec.path) is not None:
            continue
        if spec.origin == "made" or (spec.path / MANIFEST_NAME).exists():
            plan += plan_directory(spec.name, spec.path)
    for name, path in finished(drafts).items():
        if closed(path) is None:
            plan += plan_directory(name, path)
    for repo, directory in cached_repos():
        plan += plan_cached(repo, directory, None, ask_hub)
    return plan


def plan_of(spec: ModelSpec, ask_hub: AskHub) -> Plan:
    """What to check of one model. Raises UsageError when it is not here or has no files."""
    if spec.origin == "fake":
        raise UsageError(f"{spec.name} has no files.", hint="`runner ls` lists models that have.")
    if spec.path is not None:
        return plan_directory(spec.name, spec.path)
    plan, is_weightless = Plan((), ()), not any(known_groups(repo) for repo in spec.repos)
    for repo in spec.repos:
        names = _names_of(spec, repo)
        if names is None or names:
            plan += plan_cached(repo, repo_directory(repo), names, ask_hub, wants_weights=is_weightless)
    if not plan.targets and not plan.findings:
        raise UsageError(f"{spec.name} is not on this machine.", hint="`runner ls` lists what is.")
    return plan


def _names_of(spec: ModelSpec, repo: str) -> frozenset[str] | None:
    """The files of a repository that `spec` means: None for all, and none where the quantization is not there."""
    if not spec.asked:
        return None
    groups = [group for group in known_groups(repo) if is_meant(spec, repo, group)]
    return frozenset(name for group in groups for name in group.names) | (
        frozenset((*SIDE_FILES, INDEX)) if groups else frozenset()
    )


# --- the cache -------------------------------------------------------------------------------------------------------


def plan_cached(
    repo: str, directory: Path, names: Collection[str] | None, ask_hub: AskHub, *, wants_weights: bool = False
) -> Plan:
    """What to check of a repository in the cache: those files, or with None all of it, unused blobs included.

    wants_weights: it is damage when there are none; else they may never have been wanted, as by who counts tokens.
    """
    plan = _Cached(repo, names, ask_hub)
    commits, left = snapshots(repo), leftovers(directory)
    for snapshot in commits:
        plan.add_snapshot(snapshot)
    plan.add_absent(commits, left.parts)
    if names is None and not known_groups(repo):
        plan.add_weightless(commits, is_damage=wants_weights)
    for part in left.parts:
        if names is None or part.name in names:
            whole = f" of {part.size_bytes}" if part.size_bytes else ""
            plan.note(part.name or part.path.name, part.path, "partial download", f"{part.done_bytes}{whole} bytes")
    if names is None:
        for path in left.set_aside:
            plan.note(path.name, path, "set aside", "found damaged, or to belong to nothing, before")
        plan.add_unused(directory / "blobs", {part.path for part in left.parts} | set(left.set_aside))
    return Plan(tuple(plan.targets.values()), tuple(plan.findings))


class _Cached:
    """Collects what to check of one repository: each blob once, whichever commits link to it."""

    def __init__(self, repo: str, names: Collection[str] | None, ask_hub: AskHub) -> None:
        self._repo = repo
        self._names = names
        self._ask_hub = ask_hub
        self.targets: dict[Path, Target] = {}
        self.findings: list[Finding] = []

    def note(self, name: str, path: Path, problem: Problem, detail: str, links: tuple[Link, ...] = ()) -> None:
        self.findings.append(
            Finding(
                model=self._repo,
                repo=self._repo,
                name=name,
                path=path,
                problem=problem,
                detail=detail,
                links=links,
            )
        )

    def add_snapshot(self, snapshot: Snapshot) -> None:
        nameless: list[tuple[str, Path]] = []
        for name, path in _entries(snapshot.directory):
            if self._names is not None and name not in self._names:
                continue
            blob = first_hop(path)
            if _is_gone(path):
                self.note(
                    name, path, "missing", f"the link leads to {blob.name}, which is gone", ((snapshot.commit, name),)
                )
            elif (expected := expected_of(blob.name)) is not None and path.is_symlink():
                self._add(name, blob, expected, snapshot.commit)
            else:
                nameless.append((name, path))
        if nameless:
            self._add_nameless(snapshot, nameless)

    def add_absent(self, commits: Sequence[Snapshot], parts: Sequence[Part]) -> None:
        """What each set of weights lacks, of which a commit has something: at the first of those commits.

        It lacks nothing where another commit has it whole, or a part file says that its download has not ended.
        """
        begun = {part.name for part in parts}
        absent: dict[tuple[str, ...], tuple[Snapshot, frozenset[str]]] = {}
        for snapshot in commits:
            there = frozenset(name for name, _ in _entries(snapshot.directory))
            for weights in _meant_weights(snapshot.directory, there):
                is_asked = self._names is None or not set(self._names).isdisjoint(weights)
                if is_asked and begun.isdisjoint(weights):
                    lacking = _lacking(snapshot.directory, weights, there)
                    absent[weights] = absent.get(weights, (snapshot, lacking)) if lacking else (snapshot, lacking)
        found = {(snapshot.directory / name, snapshot, name) for snapshot, names in absent.values() for name in names}
        for path, snapshot, name in sorted(found, key=lambda entry: entry[0]):
            self.note(name, path, "missing", "the model needs it, and it is not here", ((snapshot.commit, name),))

    def add_weightless(self, commits: Sequence[Snapshot], *, is_damage: bool) -> None:
        """That there are no weights at all, where no index has told which they would be."""
        if any(
            finding.problem == "missing" and finding.name.lower().endswith(WEIGHT_SUFFIXES) for finding in self.findings
        ):
            return
        for snapshot in commits:
            if snapshot.files and (is_damage or _is_language_model(snapshot.directory, frozenset(snapshot.names))):
                problem: Problem = "missing" if is_damage else "no weights"
                detail = "only what comes with its weights is here"
                self.note("", snapshot.directory, problem, detail, ((snapshot.commit, ""),))
                return

    def _add(self, name: str, path: Path, expected: Expected, commit: str) -> None:
        links = (*(self.targets[path].links if path in self.targets else ()), (commit, name))
        self.targets[path] = Target(
            model=self._repo, repo=self._repo, name=name, path=path, expected=expected, links=links
        )

    def _add_nameless(self, snapshot: Snapshot, entries: Sequence[tuple[str, Path]]) -> None:
        """Files whose names tell no hash, as on systems without links: the hub knows what they should be."""
        try:
            listed = self._ask_hub(self._repo, snapshot.commit)
            why = "the hub does not list it"
        except RunnerError as error:
            listed, why = (
                dict[str, Expected](),
                f"its name tells no hash, and the hub could not be asked: {error.message}",
            )
        for name, path in entries:
            expected = listed.get(name)
            if expected is not None and expected.kind:
                self._add(name, path, expected, snapshot.commit)
            else:
                self.note(name, path, "not checked", why, ((snapshot.commit, name),))

    def add_unused(self, blobs: Path, others: set[Path]) -> None:
        """Blobs that no commit links to: a later download would take them for the real files."""
        for name, path in _entries(blobs):
            expected = expected_of(name)
            if path not in self.targets and path not in others and expected is not None and os.path.exists(path):
                self.targets[path] = Target(model=self._repo, repo=self._repo, name=name, path=path, expected=expected)


def _meant_weights(directory: Path, there: frozenset[str]) -> set[tuple[str, ...]]:
    """The sets of weights that a snapshot has something of, by the numbers in their names or by the index.

    What the index of a language model names is meant too where there are no weights at all.
    """
    indexed, groups = tuple(sorted(promised_tensors(directory))), intended_groups(there)
    if there.isdisjoint(indexed) and (groups or not _is_language_model(directory, there)):
        indexed = ()
    meant = {group.names for group in groups if set(indexed).isdisjoint(group.names)}
    return meant | ({indexed} if indexed else set())


def _lacking(directory: Path, weights: tuple[str, ...], there: frozenset[str]) -> frozenset[str]:
    """What a snapshot lacks to run those weights."""
    is_language_model = _is_language_model(directory, there)
    return frozenset(name for name in lacking_files(weights, there) if is_language_model or name in weights)


def _is_language_model(directory: Path, there: frozenset[str]) -> bool:
    """Whether a snapshot is of one that runner could run, as far as its configuration or what is beside it tells.

    Other tools keep models of images, adapters and the like in the same cache, which have other files beside them.
    """
    if CONFIG in there and (model_type := _model_type(directory / CONFIG)) is not None:
        return text_model_type(model_type) in SUPPORTED_MODEL_TYPES
    return _ADAPTER_CONFIG not in there and not there.isdisjoint(set(SIDE_FILES) - {CONFIG})


def _model_type(config: Path) -> str | None:
    """What a config.json says that its model is, "" for nothing; None where it is so damaged that it says nothing."""
    try:
        return str(read_json_if_there(config).get("model_type", ""))
    except RunnerError:
        match = _MODEL_TYPE.search(_beginning(config))
        return match[1].decode() if match else None


def _beginning(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_MOST_DAMAGED)
    except OSError:
        return b""


def _is_gone(path: Path) -> bool:
    """Whether a link leads to nothing; what may not be read is another matter, which reading it tells."""
    try:
        path.stat()
    except OSError as error:
        return not isinstance(error, PermissionError)
    return False


def _entries(directory: Path) -> list[tuple[str, Path]]:
    """Everything below `directory` but directories, links to nowhere too: its POSIX path in there, and where it is."""
    found = [Path(folder, name) for folder, _, names in os.walk(directory) for name in names]
    return sorted((path.relative_to(directory).as_posix(), path) for path in found)


def expected_of(blob_name: str) -> Expected | None:
    """What the name of a blob says of its contents; None when it says nothing."""
    expected = expected_hash(RemoteFile(blob_name, UNKNOWN), blob_name)
    return expected if expected.kind else None


# --- models made here ------------------------------------------------------------------------------------------------


def plan_directory(model: str, path: Path) -> Plan:
    """What to check of a model or a drafter that has a runner.json: the files it lists, with their sizes and hashes.

    Without one, its headers tell some damage. path: the directory of the model, or one file, which is checked alone.
    Raises RunnerError where it may not be read.
    """
    if (place := closed(path)) is not None:
        raise cannot_read([place])
    directory = path if path.is_dir() else path.parent
    targets, findings = [], []

    def find(place: Path, name: str, problem: Problem, detail: str) -> None:
        findings.append(Finding(model=model, repo="", name=name, path=place, problem=problem, detail=detail))

    manifest = directory / MANIFEST_NAME
    try:
        files = read_files(manifest) if manifest.exists() else {}
    except RunnerError as error:
        find(manifest, MANIFEST_NAME, "unreadable", error.message)
        for name, how in _damaged(path, _weights_in(path)).items():  # headers still tell something
            find(directory / name if name else path, name, "wrong contents", how)
        return Plan((), tuple(findings))
    meant = {name: record for name, record in files.items() if path in (directory, directory / name)}
    for name, record in meant.items():
        place = directory / name
        if not record.sha256:
            find(place, name, "not checked", f"{MANIFEST_NAME} has no hash of it")
        elif place.is_file():
            expected = Expected("sha256", record.sha256, record.size_bytes)
            targets.append(Target(model=model, repo="", name=name, path=place, expected=expected))
        else:
            find(place, name, "missing", f"{MANIFEST_NAME} lists it")
    for name, problem, detail in _without_hashes(path, meant):
        find(directory / name if name else path, name, problem, detail)
    return Plan(tuple(targets), tuple(findings))


def _without_hashes(path: Path, listed: Collection[str]) -> Iterator[tuple[str, Problem, str]]:
    """What can be said of weights without hashes to compare with: of which file, or of all as ""; what, and why.

    path: the directory of a model, or its only file. listed: the files that its runner.json speaks of.
    """
    if (target := lost_target(path)) is not None:
        yield "", "missing", f"it is a link to {target}, which cannot be found"
        return
    if not path.exists() and not listed:
        yield "", "missing", f"{path} does not exist: it was moved or deleted, or its disk is not mounted"
        return
    names = names_in(path) if path.is_dir() else []
    if path.is_dir() and not listed and not has_weights(names):
        yield "", "missing", "it has no weights"
        return
    weights = [name for name in _weights_in(path) if name not in listed] if path.is_dir() or not listed else []
    damaged = _damaged(path, weights)
    for name, how in damaged.items():
        with suppress(RunnerError):
            if lacks_manifest(path / name):
                yield MANIFEST_NAME, "missing", f"{(path / name).name} has packed weights, which it describes"
                continue
        yield name, "wrong contents", how
    if listed:
        yield from (
            (name, "not checked", f"{MANIFEST_NAME} does not list it") for name in weights if name not in damaged
        )
    elif is_packed(names) and (how := damage(path / MANIFEST_NAME)):
        yield MANIFEST_NAME, "unreadable", how
    elif not damaged:
        of_directory = f"no {MANIFEST_NAME} with any, as of earlier versions and of other tools"
        why = of_directory if path.is_dir() else "a file alone has none"
        yield "", "not checked", f"there are no hashes to compare with ({why})"


def _weights_in(path: Path) -> list[str]:
    """The names of weights in a directory; "" for the one file that `path` is."""
    names = names_in(path) if path.is_dir() else [""]
    return [name for name in names if (path / name).suffix.lower() in WEIGHT_SUFFIXES]


def _damaged(path: Path, names: Iterable[str]) -> dict[str, str]:
    """Which of those files are damaged by their headers, and how."""
    return {name: how for name in names if (how := damage(path / name))}
