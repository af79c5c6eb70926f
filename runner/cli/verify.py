"""`runner verify [MODEL...]`: check files against their hashes; with --repair, fetch damaged ones again.

It chooses what to check, shows how far it is and what was found. The checking is verify.py's, the mending mend.py's.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from runner.cli import completing, options, render
from runner.cli.interrupt import cancelling, say_fetch_stopped
from runner.closed import MOUNT, cannot_read, lost_target
from runner.errors import BusyError, UsageError, VerificationFailed
from runner.safe_text import safe_line

if TYPE_CHECKING:
    from runner.hub import FetchOptions
    from runner.mend import Mended
    from runner.verify import Finding, Plan


def verify(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MODEL...",
            help="As `runner ls` names them; drafters as `runner du` does. [default: all]",
            show_default=False,
            autocompletion=completing.models_here,
        ),
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", "-a", help="Every model on this machine, as when none is named.")
    ] = False,
    repair: Annotated[
        bool, typer.Option("--repair", help="Set damaged files aside, and fetch them and missing ones.")
    ] = False,
    limit_rate: options.LimitRate = None,
    parallel: options.Parallel = 4,
    offline: options.Offline = None,
    quiet: options.Quiet = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object, runner.verify/1; progress as NDJSON on stderr.")
    ] = False,
) -> None:
    """Check that the files of models and drafters are there and have the right hashes, and mend what is damaged.

    Nearly all of it needs no network. Exit code 5 means that something is wrong, and was not repaired.
    """
    from runner.hub import FetchOptions
    from runner.hub_cache import hub_settings
    from runner.inventory import unreadable
    from runner.paths import user_paths
    from runner.registry import Registry
    from runner.settings import load_settings
    from runner.verify import check

    render.configure(quiet=quiet)
    if models and every:
        raise UsageError("--all means every model.", hint="Leave it out, or the names.")
    paths = user_paths()
    is_offline = load_settings(paths).is_offline(offline) or hub_settings().is_offline
    if repair and is_offline:
        raise UsageError("--repair fetches files, and --offline forbids it.", hint="Leave one of them out.")
    fetching = FetchOptions(limit_rate_bytes_s=options.rate_bytes_s(limit_rate), parallel=parallel)
    plan = _plan(models or [], is_offline)
    closed = () if models else unreadable(Registry.load_for(paths), paths)
    checked_bytes = plan.size_bytes
    with cancelling(lambda: render.narrate("Stopped.")) as cancel, _Bar(as_json=as_json) as bar:
        findings = check(plan, bar.update, cancel)
    mended = _repair(findings, fetching, as_json=as_json) if repair else ()
    if mended:
        findings = tuple(one for one in findings if not _is_over(one))
    if as_json:
        _print_json(len(plan.targets), checked_bytes, findings, mended, closed)
    else:
        _print(len(plan.targets), checked_bytes, findings, mended)
    _conclude(findings, mended)
    if closed:
        raise cannot_read(closed)


# --- what to check ---------------------------------------------------------------------------------------------------


def _plan(models: Sequence[str], is_offline: bool) -> Plan:
    """What to check: of the models that were named, or of everything that is here."""
    from runner.mend import listed_hashes
    from runner.paths import user_paths
    from runner.registry import Registry
    from runner.removal import named
    from runner.verify import Plan
    from runner.verify_plan import plan_everything, plan_of

    paths = user_paths()
    registry = Registry.load_for(paths)
    ask = _refuse if is_offline else listed_hashes
    if not models:
        return plan_everything(registry, paths.drafts, ask)
    plan = Plan((), ())
    for model in dict.fromkeys(models):
        plan += plan_of(named(model, registry, paths.drafts), ask)
    return plan


def _refuse(repo: str, _commit: str) -> NoReturn:
    raise BusyError(f"asking the hub about {repo} is forbidden (--offline)")


class _Bar:
    """The progress of checking, shown where it takes its time."""

    _PATIENCE_S = 0.4

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._began = time.monotonic()
        self._bar: render.Progress | None = None

    def __enter__(self) -> _Bar:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def update(self, done: int, total: int) -> None:
        if self._bar is None and done < total and time.monotonic() - self._began >= self._PATIENCE_S:
            self._bar = render.Progress("Checking", total, as_json=self._as_json)
        if self._bar is not None:
            self._bar.update(done, total)


# --- mending ---------------------------------------------------------------------------------------------------------


def _is_over(finding: Finding) -> bool:
    """Whether that was a download which the repair has ended."""
    return finding.problem == "partial download" and not finding.path.exists()


def _repair(findings: Sequence[Finding], fetching: FetchOptions, *, as_json: bool) -> tuple[Mended, ...]:
    from runner.cli.fetching import ShownFetch
    from runner.cli.multi_progress import MultiProgress
    from runner.mend import mend

    if not any(finding.is_damage for finding in findings):
        return ()
    with cancelling(say_fetch_stopped) as cancel, MultiProgress("Fetching again", as_json=as_json) as progress:
        return mend(findings, on_progress=ShownFetch(progress), cancel=cancel, options=fetching)


# --- what came of it -------------------------------------------------------------------------------------------------


def _print(n_files: int, n_bytes: int, findings: Sequence[Finding], mended: Sequence[Mended]) -> None:
    for one in findings:
        about = f"{one.model}: {one.name}" if one.name else one.model
        render.data(safe_line(f"{about}: {one.problem}: {_detail(one, mended)}"))
    files = "1 file" if n_files == 1 else f"{n_files} files"
    n_damaged = sum(finding.is_damage for finding in findings)
    verdict = f"{n_damaged} {_wrong(findings)}" if n_damaged else "none is damaged"
    if n_files:
        render.narrate(f"Checked {files}, {render.decimal_size(n_bytes)}: {verdict}.")
    elif not n_damaged:
        render.narrate("There was nothing to check.")
    for result in mended:
        if result.set_aside is not None:
            render.narrate(f"{result.finding.name} of {result.finding.model} was set aside: {result.set_aside}")
    problems = {finding.problem for finding in findings}
    if "partial download" in problems:
        render.narrate("`runner pull` goes on with a partial download; `runner rm --partial` deletes it.")
    if "no weights" in problems:
        render.narrate("`runner pull` fetches the weights of a model that has none; `runner rm` deletes what is there.")
    if "set aside" in problems or any(result.set_aside is not None for result in mended):
        render.narrate("`runner rm --partial` deletes what was set aside.")


def _wrong(findings: Sequence[Finding]) -> str:
    """What the damage among them comes to, in words."""
    missing = {finding.problem == "missing" for finding in findings if finding.is_damage}
    return "damaged or missing" if len(missing) == 2 else "missing" if True in missing else "damaged"


def _detail(finding: Finding, mended: Sequence[Mended]) -> str:
    result = next((one for one in mended if one.finding == finding), None)
    if result is None:
        return finding.detail
    return (
        f"{finding.detail}; {result.detail}" if result.is_mended else f"{finding.detail}; not repaired: {result.detail}"
    )


def _print_json(
    n_files: int, n_bytes: int, findings: Sequence[Finding], mended: Sequence[Mended], closed: Sequence[Path]
) -> None:
    def plain(finding: Finding) -> dict[str, Any]:
        result = next((one for one in mended if one.finding == finding), None)
        return {
            "model": finding.model,
            "repo": finding.repo,
            "file": finding.name,
            "path": str(finding.path),
            "problem": finding.problem,
            "detail": finding.detail,
            "is_damage": finding.is_damage,
            "is_repaired": result is not None and result.is_mended,
            "repair": result.detail if result is not None else "",
            "set_aside": str(result.set_aside) if result is not None and result.set_aside is not None else "",
        }

    payload = {
        "files_checked": n_files,
        "bytes_checked": n_bytes,
        "findings": [plain(finding) for finding in findings],
        "unreadable": [str(directory) for directory in closed],
    }
    render.emit_json("runner.verify/1", payload)


def _conclude(findings: Sequence[Finding], mended: Sequence[Mended]) -> None:
    """Raise VerificationFailed when something is damaged still."""
    from runner.mend import NOT_FETCHED

    mended_ones = [one.finding for one in mended if one.is_mended]
    left = [finding for finding in findings if finding.is_damage and finding not in mended_ones]
    if not left:
        return
    files = "1 file is" if len(left) == 1 else f"{len(left)} files are"
    if mended:
        hint = "The lines above say of each why it was not repaired."
    elif any(finding.repo for finding in left):
        names = " ".join(dict.fromkeys(finding.model for finding in left if finding.repo))
        hint = f"`runner verify {names} --repair` fetches {'it' if len(left) == 1 else 'them'} again."
    else:
        are_lost = {lost_target(finding.path) is not None for finding in left}
        of_links = (f"To mend a link: {MOUNT} with `runner rm`.",) if True in are_lost else ()
        of_files = (f"What is not the hub's cannot be fetched: {NOT_FETCHED}.",) if False in are_lost else ()
        hint = " ".join((*of_links, *of_files))
    raise VerificationFailed(f"{files} {_wrong(left)}.", hint=hint)
