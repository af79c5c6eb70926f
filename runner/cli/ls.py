"""`runner ls`: the models on this machine, and with --all those of the registry.

It shows what inventory.py found. It opens no model file and imports nothing heavy.
"""

from __future__ import annotations

import time
from typing import Annotated

import typer

from runner.cli import render
from runner.inventory import LocalModel, local_models
from runner.registry import ModelSpec, Registry
from runner.wire import to_plain


def ls(
    every: Annotated[bool, typer.Option("--all", "-a", help="Also the models that can be fetched by name.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object, runner.ls/1.")] = False,
) -> None:
    """List the models on this machine."""
    registry = Registry.load_for()
    models = local_models(registry)
    if as_json:
        payload = {"models": to_plain(models)}
        if every:
            payload["registry"] = [_plain(spec, models) for spec in registry.specs]
        render.emit_json("runner.ls/1", payload)
        return
    if every:
        _table_of_all(registry, models)
        return
    rows = [_row(model) for model in models]
    render.table(["MODEL", "QUANT", "SIZE", "KIND", "LAST USED", "WHERE"], rows, right=[2])
    if all(model.kind == "built-in" for model in models):
        render.narrate("`runner ls --all` lists models that can be fetched.")


def _row(model: LocalModel) -> list[str]:
    size = render.decimal_size(model.size_bytes)
    day = time.strftime("%Y-%m-%d", time.localtime(model.last_used))
    return [model.name, model.quantization or model.format, size, model.kind, day, model.repo or str(model.path)]


def _here(spec: ModelSpec, models: tuple[LocalModel, ...]) -> list[LocalModel]:
    """What this machine has of that registry entry."""
    return [model for model in models if model.name == spec.name or model.name.startswith(f"{spec.name}:")]


def _state(here: list[LocalModel]) -> str:
    if not here:
        return "not here"
    return "here: " + ", ".join(model.quantization or model.format for model in here)


def _plain(spec: ModelSpec, models: tuple[LocalModel, ...]) -> dict[str, object]:
    return {**to_plain(spec), "here": [model.name for model in _here(spec, models)]}


def _table_of_all(registry: Registry, models: tuple[LocalModel, ...]) -> None:
    rows: list[list[str]] = []
    listed: set[str] = set()
    for spec in registry.specs:
        here = _here(spec, models)
        listed.update(model.name for model in here)
        rows.append(
            [
                spec.name,
                render.short_count(spec.parameters) if spec.parameters else "",
                " ".join(spec.quants),
                render.short_count(spec.context) if spec.context else "",
                spec.licence,
                "gated" if spec.gated else "",
                _state(here),
            ]
        )
    rows += [[model.name, "", "", "", "", "", _state([model])] for model in models if model.name not in listed]
    render.table(["MODEL", "PARAMS", "QUANTS", "CONTEXT", "LICENCE", "ORIGINAL", "STATE"], rows, right=[1, 3])
