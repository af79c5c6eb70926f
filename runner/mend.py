"""Mending what verify.py found: damaged files are set aside and fetched again.

Nothing is changed before the hub has said that it has the file. It never deletes contents; what it set aside goes with
`runner rm --partial`. It knows nothing of how findings come about or are shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from runner import hub
from runner.closed import MOUNT, lost_target
from runner.errors import RunnerError
from runner.hub.hashes import Expected, expected_hash
from runner.hub_cache import repo_directory
from runner.hub_parts import quarantine, refuse_while_fetched
from runner.model_files import TOKENIZERS
from runner.prepare import chosen
from runner.registry import ModelSpec
from runner.types import CancelToken
from runner.verify import Finding
from runner.weight_headers import MAKE_AGAIN

# Of a file that was made here, or that somebody put where it is.
NOT_FETCHED: Final = f"{MAKE_AGAIN}, a drafter with `runner draft train MODEL --force`, or copy it from where it came"

OnProgress = Callable[[hub.FetchState], None]


@dataclass(frozen=True, kw_only=True)
class Mended:
    """What became of one finding. set_aside: where the damaged file is now, if there was one."""

    finding: Finding
    is_mended: bool
    set_aside: Path | None
    detail: str


def listed_hashes(repo: str, commit: str) -> Mapping[str, Expected]:
    """What the hub says the files of a commit are, by name. Raises what hub.list_files raises."""
    return {file.name: expected_hash(file) for file in hub.list_files(repo, commit).files}


def mend(
    findings: Sequence[Finding],
    *,
    on_progress: OnProgress,
    cancel: CancelToken,
    options: hub.FetchOptions,
) -> tuple[Mended, ...]:
    """Mend the damage among `findings`, one commit after the other; says of each what became of it.

    Raises RunnerError only when cancelled; what could not be fetched is said of its finding.
    """
    damaged = [finding for finding in findings if finding.is_damage]
    done = [_without_hub(finding) for finding in damaged if not finding.links]
    for (repo, commit), group in _by_commit(finding for finding in damaged if finding.links).items():
        done += _mend_commit(repo, commit, group, on_progress, cancel, options)
    return tuple(done)


def _by_commit(findings: Iterable[Finding]) -> dict[tuple[str, str], list[Finding]]:
    """Each finding once, under the first commit that has the file: other commits link to the same blob."""
    groups: dict[tuple[str, str], list[Finding]] = {}
    for finding in findings:
        groups.setdefault((finding.repo, finding.links[0][0]), []).append(finding)
    return groups


def _without_hub(finding: Finding) -> Mended:
    if lost_target(finding.path) is not None and not finding.repo:
        return _left(finding, MOUNT)
    if not finding.repo:
        return _left(finding, f"it is not the hub's and cannot be fetched: {NOT_FETCHED}")
    try:
        aside = _set_aside(finding)
    except RunnerError as error:
        return _left(finding, _words(error))
    return Mended(finding=finding, is_mended=True, set_aside=aside, detail="set aside; nothing needs it")


def _set_aside(finding: Finding) -> Path | None:
    """Take the damaged file, or the link that leads to the wrong one, out of the way. Raises RunnerError."""
    directory = repo_directory(finding.repo)
    if finding.problem == "swapped":
        try:
            finding.path.unlink(missing_ok=True)
        except OSError as error:
            raise RunnerError(f"{finding.path} cannot be replaced: {error.strerror or error}.") from error
        return None
    if finding.problem == "missing":
        return None
    refuse_while_fetched(directory, [finding.path.name])
    return quarantine(finding.path, directory / "blobs")


def _mend_commit(
    repo: str,
    commit: str,
    findings: Sequence[Finding],
    on_progress: OnProgress,
    cancel: CancelToken,
    options: hub.FetchOptions,
) -> list[Mended]:
    """Each finding by its own outcome: what cannot be set aside or fetched keeps nothing else from it."""
    try:
        listing = hub.list_files(repo, commit, cancel=cancel)
    except RunnerError as error:
        if cancel.is_cancelled:
            raise
        return [_left(finding, _words(error)) for finding in findings]
    done, aside, wanted = list[Mended](), dict[Finding, Path | None](), dict[Finding, frozenset[str]]()
    for finding in findings:
        try:
            if not (names := _at_hub(finding, commit, listing, cancel)):
                done.append(_left(finding, "the hub no longer has it in that commit"))
                continue
            aside[finding] = _set_aside(finding)
            wanted[finding] = names
        except RunnerError as error:
            if cancel.is_cancelled:
                raise
            done.append(_left(finding, _words(error)))
    try:
        failed = hub.fetch_each(
            listing, sorted(set[str]().union(*wanted.values())), on_progress=on_progress, cancel=cancel, options=options
        )
    except RunnerError as error:
        if cancel.is_cancelled:
            raise
        return done + [_left(finding, _words(error), aside[finding]) for finding in wanted]
    for finding, names in wanted.items():
        why = next((_words(failed[name]) for name in sorted(names) if name in failed), "")
        done.append(_left(finding, why, aside[finding]) if why else _fetched(finding, aside[finding]))
    return done


def _words(error: RunnerError) -> str:
    return f"{error.message} {error.hint}".strip()


def _at_hub(finding: Finding, commit: str, listing: hub.Listing, cancel: CancelToken) -> frozenset[str]:
    """What to fetch for a finding; nothing where the commit has no such file any more.

    Which tokenizer a model has that is here without one, the listing alone can tell; and which weights, where there are
    none at all. Raises what prepare.chosen raises.
    """
    if not finding.name:
        whole = ModelSpec(name=finding.repo, origin="hub", repo=finding.repo, gguf=finding.repo)
        return frozenset(chosen(whole, listing, cancel).names)
    names = frozenset(name for at, name in finding.links if at == commit)
    if finding.links[0][1] in listing.names:
        return names
    is_tokenizer = finding.problem == "missing" and names == set(TOKENIZERS[0])
    return frozenset(next((files for files in TOKENIZERS if is_tokenizer and set(files) <= set(listing.names)), ()))


def _left(finding: Finding, why: str, aside: Path | None = None) -> Mended:
    return Mended(finding=finding, is_mended=False, set_aside=aside, detail=why)


def _fetched(finding: Finding, aside: Path | None) -> Mended:
    detail = "linked to the right file" if finding.problem == "swapped" else "fetched again"
    return Mended(finding=finding, is_mended=True, set_aside=aside, detail=detail)
