"""`runner rm MODEL...`: delete models that were fetched or made here.

It asks, then deletes what inventory.py planned. Nothing is deleted before every name has been understood.
"""

from __future__ import annotations

from typing import Annotated

import typer

from runner.cli import render
from runner.inventory import delete, plan_removal
from runner.paths import user_paths
from runner.registry import Registry


def rm(
    models: Annotated[list[str], typer.Argument(metavar="MODEL", help="As `runner ls` names them.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object, runner.rm/1.")] = False,
) -> None:
    """Delete a model's files."""
    paths = user_paths()
    registry = Registry.load_for(paths)
    plans = [plan for model in models for plan in plan_removal(registry.resolve(model), paths.models)]
    plans = list(dict.fromkeys(plans))  # the same model named twice
    for plan in plans:
        render.narrate(f"{plan.title}: {render.decimal_size(plan.size_bytes)}")
    question = f"Delete {'this' if len(plans) == 1 else 'these'}?"
    if not render.confirm(question, yes):
        render.narrate("Nothing was deleted.")
        raise typer.Exit(1)
    freed = {plan.title: delete(plan) for plan in plans}
    if as_json:
        removed = [{"name": title, "freed_bytes": size} for title, size in freed.items()]
        render.emit_json("runner.rm/1", {"removed": removed, "freed_bytes": sum(freed.values())})
    else:
        render.narrate(f"Freed {render.decimal_size(sum(freed.values()))}.")
