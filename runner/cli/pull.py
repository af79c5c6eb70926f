"""`runner pull MODEL...`: fetch models into the cache, and go on with what was interrupted.

It shows what would be fetched, whether it fits, and how far it is. What to fetch is decided in pull.py of the package.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runner.cli import completing, options, render
from runner.cli.interrupt import cancelling
from runner.cli.multi_progress import MultiProgress
from runner.errors import BadModelFile, BusyError, DoesNotFit, UnsupportedModel, UsageError

if TYPE_CHECKING:
    from runner.config import LoadOptions
    from runner.hub import FetchOptions, FetchState
    from runner.paths import Paths
    from runner.preview import Preview
    from runner.pull import PullPlan
    from runner.registry import ModelSpec


def pull(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL...",
            help="Names, or owner/repo[:quant].",
            show_default=False,
            autocompletion=completing.models,
        ),
    ],
    revision: Annotated[
        str | None, typer.Option("--revision", metavar="REV", help="A branch, tag or commit of the repository.")
    ] = None,
    limit_rate: options.LimitRate = None,
    parallel: options.Parallel = 4,
    force: Annotated[bool, typer.Option("--force", help="Fetch even what is not expected to fit in memory.")] = False,
    estimate_only: options.EstimateOnly = False,
    offline: options.Offline = None,
    quiet: options.Quiet = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="The result as one JSON object; progress as NDJSON on stderr.")
    ] = False,
) -> None:
    """Fetch models, or the rest of what an interrupted download left.

    Other tools find them in the Hugging Face cache, and what those fetched is not fetched again.
    """
    from runner.hub import FetchOptions
    from runner.hub_cache import hub_settings
    from runner.paths import user_paths
    from runner.pull import at_revision
    from runner.registry import Registry
    from runner.settings import load_settings

    render.configure(quiet=quiet)
    fetching = FetchOptions(limit_rate_bytes_s=options.rate_bytes_s(limit_rate), parallel=parallel)
    paths = user_paths()
    settings = load_settings(paths)
    is_offline = settings.is_offline(offline) or hub_settings().is_offline
    registry = Registry.load_for(paths)
    specs = [registry.resolve(model) for model in dict.fromkeys(models)]
    if revision is not None:
        specs = [at_revision(_from_hub(spec), revision) for spec in specs]
    load_options = settings.load_options()
    if estimate_only:
        _print_estimates(specs, load_options, paths, is_offline, as_json=as_json)
        return
    puller = _Puller(paths, load_options, fetching, is_offline=is_offline, force=force, as_json=as_json)
    results = [puller.pull(spec) for spec in specs]
    if as_json:
        render.emit_json("runner.pull/1", {"models": results})


def _from_hub(spec: ModelSpec) -> ModelSpec:
    if spec.path is not None or spec.origin == "fake":
        raise UsageError(f"{spec.name} comes from no repository: it has no revisions.", hint="Leave --revision out.")
    return spec


def _print_estimates(
    specs: Iterable[ModelSpec], load_options: LoadOptions, paths: Paths, offline: bool, *, as_json: bool
) -> None:
    from runner.cli.fit_text import estimate_payload, fit_rows, model_rows, not_run_rows, print_rows
    from runner.preview import preview

    for spec in specs:
        seen = preview(spec, load_options, offline=offline, paths=paths)
        if as_json:
            render.emit_ndjson("runner.estimate/1", [estimate_payload(seen)])
        else:
            print_rows([*model_rows(seen), *not_run_rows(seen), *fit_rows(seen)])


class _Puller:
    """Pulls one model after the other and says what it did; each result is JSON for the final object."""

    def __init__(
        self,
        paths: Paths,
        load_options: LoadOptions,
        fetching: FetchOptions,
        *,
        is_offline: bool,
        force: bool,
        as_json: bool,
    ) -> None:
        self._paths = paths
        self._load_options = load_options
        self._fetching = fetching
        self._is_offline = is_offline
        self._force = force
        self._as_json = as_json

    def pull(self, spec: ModelSpec) -> dict[str, Any]:
        from runner.prepare import locate, not_here, title
        from runner.pull import here_for_good, plan_pull

        if spec.path is not None or spec.origin == "fake":
            if spec.path is not None:
                locate(spec)  # which refuses what is no model, or not a whole one
            render.narrate(f"{spec.name} is on this machine: there is nothing to fetch.")
            return self._done(title(spec), [] if spec.path is None else [str(spec.path)])
        located = locate(spec) if self._is_offline else here_for_good(spec)
        if located is not None:
            why = "not asked whether there is a newer one" if self._is_offline else "pinned to that commit"
            render.narrate(f"{title(spec)} is complete ({render.decimal_size(located.size_bytes)}; {why}).")
            return self._done(title(spec), [str(path) for path in located.weights], commit=located.directory.name)
        if self._is_offline:
            raise BusyError(
                f"{not_here(spec)}, and fetching it is forbidden (--offline).",
                hint="Leave --offline out, and unset HF_HUB_OFFLINE if it is set.",
            )
        return self._fetch(spec, plan_pull(spec))

    def _done(self, name: str, weights: list[str], **facts: Any) -> dict[str, Any]:
        if weights and not self._as_json:
            render.data(weights[0])
        plain = {"repo": "", "revision": "", "commit": "", "previous_commit": "", "fetched_bytes": 0, "duration_s": 0.0}
        return {"name": name, "weights": weights, **plain, **facts}

    def _fetch(self, spec: ModelSpec, plan: PullPlan) -> dict[str, Any]:
        from runner.cli.fetching import ShownFetch
        from runner.machine import devices
        from runner.pull import pull as fetch

        listing = plan.listing
        _announce(plan)
        if plan.is_worth_an_estimate(max(device.free_bytes for device in devices())):
            self._check_fit(spec, plan)
        began, last = time.monotonic(), list["FetchState"]()

        def show(state: FetchState) -> None:
            last[:] = [state]
            shown(state)

        with (
            cancelling(lambda: _say_stopped(plan, last)) as cancel,
            MultiProgress(plan.name, as_json=self._as_json) as progress,
        ):
            shown = ShownFetch(progress, has_bar=bool(plan.missing))
            located = fetch(plan, on_progress=show, cancel=cancel, options=self._fetching)
        if plan.missing:
            render.narrate(f"{plan.name} is complete. `runner chat {plan.name}` talks with it.")
        return self._done(
            plan.name,
            [str(path) for path in located.weights],
            repo=listing.repo,
            revision=listing.revision,
            commit=listing.commit,
            previous_commit=plan.before,
            fetched_bytes=last[0].fetched_bytes if last else 0,
            duration_s=round(time.monotonic() - began, 3),
            files=[{"name": file.name, "size_bytes": file.size_bytes, "sha256": file.sha256} for file in plan.files],
        )

    def _check_fit(self, spec: ModelSpec, plan: PullPlan) -> None:
        """Say what the model would take; raises DoesNotFit, unless it is to be fetched all the same."""
        from runner.preview import preview

        try:
            seen = preview(spec, self._load_options, offline=False, paths=self._paths)
        except (UnsupportedModel, BadModelFile) as error:  # other tools may have a use for it
            render.warn(f"{plan.name} will not run here: {error.message}", error.hint)
            return
        if seen.backing.name is None:
            render.warn(f"{plan.name} will not run here: {seen.backing.reason}")
        _say_fit(plan.name, seen, force=self._force)
        if seen.in_own_bits:
            render.narrate(f"Or {seen.in_own_bits}")


def _say_fit(name: str, seen: Preview, *, force: bool) -> None:
    size = render.binary_size
    need, room = size(seen.fit.total_bytes), size(seen.fit.room_bytes)
    if seen.fit.is_fitting:
        parameters = f"{render.short_count(seen.num_parameters)} parameters, " if seen.num_parameters else ""
        render.narrate(f"{parameters}needs {need} with a context of {seen.fit.n_ctx}; {room} are free: it fits.")
        return
    message = f"{name} needs {need} with a context of {seen.fit.n_ctx}, and {room} are free."
    instead = str(seen.remedy) if seen.remedy is not None else ""
    if not force:
        raise DoesNotFit(message, hint=f"{instead} --force fetches it all the same.".strip())
    render.warn(message, instead)


def _announce(plan: PullPlan) -> None:
    """Say what will be fetched, from where, and what has changed since the last time."""
    listing, size = plan.listing, render.decimal_size
    if listing.renamed_to:
        render.warn(f"{listing.repo} is called {listing.renamed_to} now.", "The old name still works.")
    if plan.has_moved:
        changed = f"{len(plan.missing)} of {len(plan.files)} files are new" if plan.missing else "no file of it is new"
        render.narrate(
            f"{listing.revision} of {listing.repo} has moved from {plan.before[:7]} to {listing.commit[:7]}: {changed}."
        )
    if not plan.missing:
        render.narrate(f"{plan.name} is complete ({size(plan.size_bytes)}, commit {listing.commit[:7]}).")
        return
    files = f"{len(plan.missing)} files" if len(plan.missing) > 1 else plan.missing[0].name
    rest = f", {size(plan.part_bytes)} of them here from before" if plan.part_bytes else ""
    missing = sum(file.size_bytes for file in plan.missing)
    source = "" if plan.name.startswith(listing.repo) else f" from {listing.repo}"
    render.narrate(f"Fetching {plan.name}{source}: {files}, {size(missing)}{rest}.")


def _say_stopped(plan: PullPlan, last: list[FetchState]) -> None:
    if last and last[0].total_bytes:
        done, total = last[0].done_bytes, last[0].total_bytes
        amount = f" at {100 * done // total} % ({render.decimal_size(done)} of {render.decimal_size(total)})"
    else:
        amount = ""
    render.narrate(f"Stopped{amount}. What has arrived is kept: `runner pull {plan.name}` goes on from there.")
