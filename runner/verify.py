"""Do the files have the contents that they should have? Hashes them, compares, and says what is wrong.

What to check is verify_plan.py's choice. It changes nothing and reaches no network; it knows nothing of mending
(mend.py) or of how findings are shown.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from runner.errors import RunnerError
from runner.hub.hashes import Expected
from runner.hub_cache import file_size, first_hop, snapshots
from runner.shard_order import wrong_shards
from runner.types import CancelToken

Problem = Literal[
    "wrong contents",
    "truncated",
    "missing",
    "unreadable",
    "swapped",
    "partial download",
    "set aside",
    "not checked",
    "no weights",
]
# What is worth saying, and wrong with nothing.
_NOTES: frozenset[Problem] = frozenset({"partial download", "set aside", "not checked", "no weights"})
_CHUNK_BYTES = 4 * 2**20

UNKNOWN = -1
Link = tuple[str, str]
OnHashed = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True)
class Target:
    """One file to hash. model: a repository, or the name of a model made here. repo: "" for those.

    name: its path in the repository; for a blob that nothing links to, the blob's own name. links: who has it, as
    (commit, path in the repository). expected: with a size of UNKNOWN where only the hash is known.
    """

    model: str
    repo: str
    name: str
    path: Path
    expected: Expected
    links: tuple[Link, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Something about one file, as Target names it, or with no name about the whole model. detail: why, in words."""

    model: str
    repo: str
    name: str
    path: Path
    problem: Problem
    detail: str
    links: tuple[Link, ...] = ()

    @property
    def is_damage(self) -> bool:
        return self.problem not in _NOTES


@dataclass(frozen=True)
class Plan:
    """What is to be hashed, and what was found without it."""

    targets: tuple[Target, ...]
    findings: tuple[Finding, ...]

    @property
    def size_bytes(self) -> int:
        return sum(file_size(target.path) or 0 for target in self.targets)

    def __add__(self, other: Plan) -> Plan:
        return Plan(self.targets + other.targets, self.findings + other.findings)


# --- hashing ---------------------------------------------------------------------------------------------------------


def check(plan: Plan, on_hashed: OnHashed, cancel: CancelToken) -> tuple[Finding, ...]:
    """Hash everything in `plan`; returns its findings and those that came to light, by model and name.

    on_hashed(done, total): bytes, on this thread. Raises RunnerError when cancelled.
    """
    total, done = plan.size_bytes, 0
    findings = list(plan.findings)
    owners = {target.expected.hex_digest: target for target in plan.targets}
    for target in plan.targets:

        def on_read(read: int, before: int = done) -> None:
            on_hashed(min(before + read, total), total)

        finding = _check_one(target, owners, on_read, cancel)
        findings += [finding] if finding is not None else []
        done += file_size(target.path) or 0
    findings += _swapped(plan, {finding.path for finding in findings if finding.is_damage})
    on_hashed(total, total)
    return tuple(sorted(findings, key=lambda finding: (finding.model, not finding.is_damage, finding.name)))


def _check_one(
    target: Target, owners: Mapping[str, Target], on_read: Callable[[int], None], cancel: CancelToken
) -> Finding | None:
    expected, size = target.expected, file_size(target.path)
    if size is not None and size < expected.size_bytes:
        return _found(target, "truncated", f"{size} bytes instead of {expected.size_bytes}")
    try:
        digest = _digest(target, on_read, cancel)
    except OSError as error:
        return _found(target, "unreadable", error.strerror or str(error))
    if digest == expected.hex_digest:
        return None
    if size == 0:
        return _found(target, "truncated", "it is empty")
    if digest in owners:
        return _found(target, "wrong contents", f"it holds what {owners[digest].name} should hold")
    return _found(target, "wrong contents", f"its hash is {digest[:12]}… instead of {expected.hex_digest[:12]}…")


def _found(target: Target, problem: Problem, detail: str) -> Finding:
    return Finding(
        model=target.model,
        repo=target.repo,
        name=target.name,
        path=target.path,
        problem=problem,
        detail=detail,
        links=target.links,
    )


def _digest(target: Target, on_read: Callable[[int], None], cancel: CancelToken) -> str:
    """The hash of the file, of the kind that is expected of it. Raises OSError, RunnerError when cancelled."""
    running = dataclasses.replace(target.expected, size_bytes=file_size(target.path) or 0).new()
    assert running is not None, "a file without a known hash is no target"
    read = 0
    with target.path.open("rb", buffering=0) as file:
        while chunk := file.read(_CHUNK_BYTES):
            if cancel.is_cancelled:
                raise RunnerError("The check was cancelled.")
            running.update(chunk)
            read += len(chunk)
            on_read(read)
    return running.hexdigest()


# --- names that lead to the wrong blob -------------------------------------------------------------------------------


def _swapped(plan: Plan, damaged: set[Path]) -> Iterator[Finding]:
    """Links that lead to sound blobs of other files: a shard says itself which one it is."""
    names: dict[tuple[str, str], set[str]] = {}
    for target in plan.targets:
        for commit, name in target.links:
            names.setdefault((target.repo, commit), set()).add(name)
    for (repo, commit), wanted in sorted(names.items()):
        for snapshot in snapshots(repo, commit):
            whole = {file.name: file.path for file in snapshot.files if file.name in wanted}
            sound = {name: path for name, path in whole.items() if first_hop(path) not in damaged}
            for name, detail in wrong_shards(snapshot.directory, sound):
                yield Finding(
                    model=repo,
                    repo=repo,
                    name=name,
                    path=sound[name],
                    problem="swapped",
                    detail=detail,
                    links=((commit, name),),
                )
