"""`runner rm MODEL...`: delete models that were fetched, and models and drafters that were made here.

With --partial only what is begun or damaged. It asks, then deletes what removal.py planned. Nothing is deleted before
every name has been understood.
"""

from __future__ import annotations

from typing import Annotated

import typer

from runner.cli import completing, render
from runner.cli.unreadable import warn_of_unreadable
from runner.deletion import delete, users
from runner.errors import RunnerError, UsageError
from runner.paths import Paths, user_paths
from runner.registry import Registry
from runner.removal import Removal, named, plan_half_made, plan_leftovers, plan_removal
from runner.safe_text import safe_line


def rm(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MODEL...",
            help="As `runner ls` names them; drafters as `runner du` does.",
            show_default=False,
            autocompletion=completing.removable,
        ),
    ] = None,
    partial: Annotated[
        bool,
        typer.Option(
            "--partial",
            help="Only partial downloads, what is half made, and damaged files set aside: of MODELs, or all there are.",
        ),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object, runner.rm/1.")] = False,
) -> None:
    """Delete a model's files, with what was begun of it; or a drafter's."""
    paths = user_paths()
    plans = _plans(models or [], partial, paths)
    for plan in plans:
        render.narrate(f"{safe_line(plan.title)}: {render.decimal_size(plan.disk_bytes)} on the disk")
    for words in users(plans, paths.engines) if plans else ():
        render.warn(safe_line(words))
    question = f"Delete {'this' if len(plans) == 1 else 'these'}?"
    if plans and not render.confirm(question, yes):
        render.narrate("Nothing was deleted.")
        raise typer.Exit(1)
    freed, skipped = _delete_all(plans)
    if as_json:
        removed = [{"name": title, "freed_bytes": size} for title, size in freed.items()]
        passed_over = [{"name": title, "reason": error.message} for title, error in skipped.items()]
        total = sum(freed.values())
        render.emit_json("runner.rm/1", {"removed": removed, "skipped": passed_over, "freed_bytes": total})
    elif plans:
        render.narrate(f"Freed {render.decimal_size(sum(freed.values()))}.")
    else:
        render.narrate("There is nothing unfinished or set aside.")
    if skipped:
        raise typer.Exit(next(iter(skipped.values())).exit_code)


def _delete_all(plans: list[Removal]) -> tuple[dict[str, int], dict[str, RunnerError]]:
    """Carry all of them out; what each freed, and why some could not be. One that is being fetched holds up no other.

    What could not be deleted is warned of at once.
    """
    freed, skipped = dict[str, int](), dict[str, RunnerError]()
    for plan in plans:
        try:
            freed[plan.title] = delete(plan)
        except RunnerError as error:
            skipped[plan.title] = error
            render.warn(f"{safe_line(plan.title)} was not deleted: {error.message}", error.hint)
    return freed, skipped


def _plans(models: list[str], partial: bool, paths: Paths) -> list[Removal]:
    """What is to be deleted, each once."""
    registry = Registry.load_for(paths)
    if not models and not partial:
        raise UsageError("Which models?", hint="Name them as `runner ls` does; --partial deletes what is unfinished.")
    if not models:
        warn_of_unreadable(registry, paths)
        return [*plan_leftovers(None), *plan_half_made([paths.models, paths.drafts])]
    plans: dict[str, Removal] = {}
    for model in models:
        for plan in _of_model(model, registry, partial, paths):
            plans.setdefault(plan.title, plan)  # the same model named twice
    return list(plans.values())


def _of_model(model: str, registry: Registry, partial: bool, paths: Paths) -> tuple[Removal, ...]:
    """What is to be deleted of one. What is half made, or half deleted, goes by its own name in `runner du`.

    It goes by that of what it was to be with --partial, or where nothing else is called so.
    """
    half_made = plan_half_made([paths.models, paths.drafts], model)
    if found := tuple(plan for plan in half_made if partial or plan.directory.name == model):
        return found
    if partial:
        return plan_leftovers(registry.resolve(model))
    try:
        return plan_removal(named(model, registry, paths.drafts), paths.models, paths.drafts)
    except UsageError:
        if not half_made:
            raise
        return half_made
