"""`runner ls`: the models on this machine, and with --all those of the registry.

It shows what inventory.py found. It opens no model file and imports nothing heavy.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from runner.cli import render
from runner.cli.columns import print_table
from runner.cli.unreadable import warn_of_unreadable
from runner.closed import GONE, MOUNT
from runner.inventory import LocalModel, local_models
from runner.paths import user_paths
from runner.quant.half_made import half_made
from runner.registry import ModelSpec, Registry
from runner.weight_headers import MAKE_AGAIN
from runner.wire import to_plain

_SHOWN = ("MODEL", "QUANT", "SIZE", "STATE", "KIND", "LAST USED", "WHERE")
_BY_WORTH = ("MODEL", "STATE", "SIZE", "QUANT", "WHERE", "KIND", "LAST USED")
_SHOWN_OF_ALL = ("MODEL", "PARAMS", "QUANTS", "CONTEXT", "LICENCE", "ORIGINAL", "STATE")
_BY_WORTH_OF_ALL = ("MODEL", "STATE", "PARAMS", "QUANTS", "CONTEXT", "LICENCE", "ORIGINAL")


def ls(
    every: Annotated[bool, typer.Option("--all", "-a", help="Also the models that can be fetched by name.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object, runner.ls/1.")] = False,
) -> None:
    """List the models on this machine.

    SIZE is that of the weights; `runner du` tells what all files take on the disk.
    """
    paths = user_paths()
    registry = Registry.load_for(paths)
    models = local_models(registry)
    closed = warn_of_unreadable(registry, paths)
    if as_json:
        payload = {"models": to_plain(models), "unreadable": closed}
        if every:
            payload["registry"] = [_plain(spec, models) for spec in registry.specs]
        render.emit_json("runner.ls/1", payload)
        return
    if every:
        _table_of_all(registry, models)
        return
    rows = [_row(model) for model in models]
    print_table(_SHOWN, _BY_WORTH, rows, elastic=["MODEL", "WHERE"], right=["SIZE"])
    _say_remedies(models)
    _say_unfinished([*half_made(paths.models), *half_made(paths.drafts)])
    if all(model.kind == "built-in" for model in models):
        render.narrate("`runner ls --all` lists models that can be fetched.")


def _row(model: LocalModel) -> dict[str, str]:
    return {
        "MODEL": model.name,
        "QUANT": model.quantization or model.format,
        "SIZE": render.decimal_size(model.size_bytes),
        "STATE": state_in_words(model),
        "KIND": model.kind,
        "LAST USED": time.strftime("%Y-%m-%d", time.localtime(model.last_used)) if model.last_used else "",
        "WHERE": model.repo or str(model.path),
    }


def state_in_words(model: LocalModel) -> str:
    """The state, and how far a partial download is: by bytes where all sizes are known, else by files."""
    if model.state != "partial":
        return model.state
    if model.num_here == model.num_files:
        return "partial, no configuration or tokenizer"
    if model.total_bytes:
        return f"partial {100 * model.size_bytes // model.total_bytes} %"
    return f"partial, {model.num_here} of {model.num_files} files" if model.num_files > 1 else "partial"


def _say_remedies(models: Sequence[LocalModel]) -> None:
    """What to do about models that are not whole."""
    partial = next((model for model in models if model.state == "partial"), None)
    if partial is not None:
        render.narrate(f"Partial: `runner pull {partial.name}` goes on with it, `runner rm {partial.name}` deletes it.")
    damaged = [model for model in models if model.state == "damaged"]
    if fetched := next((model for model in damaged if model.repo), None):
        render.narrate(f"Damaged: `runner verify {fetched.name} --repair` fetches what is damaged or missing.")
    if own := next((model for model in damaged if model.kind == "own file"), None):
        render.narrate(f"Damaged: {own.name}: {own.lost_target} does not exist: {GONE}.")
    damaged = [model for model in damaged if model.kind != "own file"]
    if lost := next((model for model in damaged if model.lost_target is not None), None):
        render.narrate(
            f"Damaged: {lost.name} is a link to {lost.lost_target}, which cannot be found: {MOUNT}"
            f" with `runner rm {shlex.quote(lost.name)}`."
        )
    if made := next((model for model in damaged if not model.repo and model.lost_target is None), None):
        render.narrate(f"Damaged: {MAKE_AGAIN}, or delete it with `runner rm {shlex.quote(made.name)}`.")


def _say_unfinished(paths: Sequence[Path]) -> None:
    """What of models and drafters made here is in no list of models."""
    if paths:
        more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
        render.narrate(
            f"Unfinished: {paths[0].name}{more}; `runner du` lists what is, `runner rm --partial` deletes it."
        )


def _here(spec: ModelSpec, models: tuple[LocalModel, ...]) -> list[LocalModel]:
    """What this machine has of that registry entry."""
    return [model for model in models if model.name == spec.name or model.name.startswith(f"{spec.name}:")]


def _state(here: list[LocalModel]) -> str:
    if not here:
        return "not here"
    whole = [model.quantization or model.format for model in here if model.state == "complete"]
    others = [
        f"{model.quantization or model.format} {state_in_words(model)}" for model in here if model.state != "complete"
    ]
    return ", ".join([*(["here: " + ", ".join(whole)] if whole else []), *others])


def _plain(spec: ModelSpec, models: tuple[LocalModel, ...]) -> dict[str, object]:
    return {**to_plain(spec), "here": [model.name for model in _here(spec, models)]}


def _table_of_all(registry: Registry, models: tuple[LocalModel, ...]) -> None:
    rows: list[dict[str, str]] = []
    listed: set[str] = set()
    for spec in registry.specs:
        here = _here(spec, models)
        listed.update(model.name for model in here)
        rows.append(
            {
                "MODEL": spec.name,
                "PARAMS": render.short_count(spec.parameters) if spec.parameters else "",
                "QUANTS": " ".join(spec.quants),
                "CONTEXT": render.short_count(spec.context) if spec.context else "",
                "LICENCE": spec.licence,
                "ORIGINAL": "gated" if spec.gated else "",
                "STATE": _state(here),
            }
        )
    rows += [{"MODEL": model.name, "STATE": _state([model])} for model in models if model.name not in listed]
    print_table(
        _SHOWN_OF_ALL,
        _BY_WORTH_OF_ALL,
        rows,
        elastic=["QUANTS", "LICENCE", "STATE"],
        right=["PARAMS", "CONTEXT"],
    )
