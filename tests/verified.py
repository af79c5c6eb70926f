"""Verifying as tests do it: offline, without a front end."""

from __future__ import annotations

from collections.abc import Mapping

from runner import hub
from runner.errors import BusyError
from runner.hub.hashes import Expected
from runner.mend import Mended, mend
from runner.types import CancelToken
from runner.verify import Finding, Plan, check


def nobody(repo: str, commit: str) -> Mapping[str, Expected]:
    """A hub that must not be asked, and if it is, cannot be reached."""
    raise BusyError(f"{repo} at {commit} is not to be asked for")


def found(plan: Plan) -> tuple[Finding, ...]:
    return check(plan, lambda _done, _total: None, CancelToken())


def repaired(findings: tuple[Finding, ...]) -> tuple[Mended, ...]:
    return mend(findings, on_progress=lambda _: None, cancel=CancelToken(), options=hub.FetchOptions())


def problems(findings: tuple[Finding, ...]) -> dict[str, str]:
    return {finding.name: finding.problem for finding in findings}
