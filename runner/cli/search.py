"""`runner search QUERY`: models of the registry, then repositories of the hub.

The registry answers without the network; what the hub says passes the safe table of render.py. It fetches no files.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from runner.cli import options, render
from runner.cli.columns import print_table
from runner.errors import RunnerError, UsageError
from runner.inventory import LocalModel, local_models
from runner.registry import ModelSpec, Registry

if TYPE_CHECKING:
    from runner.hub import Found

_SHOWN = ("MODEL", "PARAMS", "FORMATS", "DOWNLOADS", "LIKES", "GATED", "UPDATED", "HERE")
_BY_WORTH = ("MODEL", "PARAMS", "HERE", "FORMATS", "DOWNLOADS", "GATED", "UPDATED", "LIKES")


def search(
    query: Annotated[list[str], typer.Argument(metavar="QUERY...", help="Words to look for.", show_default=False)],
    limit: Annotated[
        int, typer.Option("-n", "--limit", min=1, max=1000, metavar="N", help="At most this many of the hub.")
    ] = 20,
    offline: options.Offline = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object, runner.search/1.")] = False,
) -> None:
    """Find models in the registry and on the hub.

    Fetch one with: runner pull MODEL
    """
    from runner.paths import user_paths
    from runner.settings import load_settings

    text = " ".join(query).strip()
    if not text:
        raise UsageError("There is nothing to look for.", hint="Give a word, such as: runner search qwen3")
    paths = user_paths()
    is_offline = load_settings(paths).is_offline(offline)
    registry = Registry.load_for(paths)
    here = local_models(registry)
    specs = registry.search(text)
    found, error = _ask(text, limit, is_offline)
    if as_json:
        if error is not None:
            raise error
        _print_json(text, registry, specs, found, here)
        return
    rows = [_spec_row(spec, here) for spec in specs] + [_found_row(one, here) for one in found]
    if rows:
        print_table(_SHOWN, _BY_WORTH, rows, elastic=["MODEL"], right=["PARAMS", "DOWNLOADS", "LIKES"])
    elif error is None:
        render.narrate("Nothing was found.")
    if is_offline:
        render.narrate("The hub was not asked (--offline).")
    if error is not None:
        raise error


def _ask(text: str, limit: int, is_offline: bool) -> tuple[Sequence[Found], RunnerError | None]:
    """What the hub finds; and why it could not be asked: the registry's models are shown all the same."""
    if is_offline:
        return (), None
    from runner import hub

    try:
        return hub.search(text, limit=limit), None
    except RunnerError as error:
        return (), error


def _of_spec(spec: ModelSpec, here: Sequence[LocalModel]) -> list[LocalModel]:
    return [one for one in here if one.name == spec.name or one.name.startswith(f"{spec.name}:")]


def _of_repo(repo: str, here: Sequence[LocalModel]) -> list[LocalModel]:
    return [one for one in here if one.repo.lower() == repo.lower()]


def _state(models: Sequence[LocalModel]) -> str:
    """What is here: the quantizations of whole models, or how it stands with the others."""
    whole = [one.quantization or one.format for one in models if one.state == "complete"]
    return ", ".join(dict.fromkeys(whole)) or (models[0].state if models else "")


def _spec_row(spec: ModelSpec, here: Sequence[LocalModel]) -> dict[str, str]:
    formats = [name for name, there in (("gguf", spec.gguf), ("safetensors", spec.repo)) if there]
    return {
        "MODEL": spec.name,
        "PARAMS": render.short_count(spec.parameters) if spec.parameters else "",
        "FORMATS": " ".join(formats),
        "GATED": "original" if spec.gated else "",
        "HERE": _state(_of_spec(spec, here)),
    }


def _found_row(found: Found, here: Sequence[LocalModel]) -> dict[str, str]:
    return {
        "MODEL": found.repo,
        "PARAMS": render.short_count(found.num_parameters) if found.num_parameters else "",
        "FORMATS": " ".join(found.formats),
        "DOWNLOADS": render.short_count(found.downloads),
        "LIKES": render.short_count(found.likes),
        "GATED": "gated" if found.is_gated else "",
        "UPDATED": found.updated,
        "HERE": _state(_of_repo(found.repo, here)),
    }


def _print_json(
    text: str,
    registry: Registry,
    specs: Sequence[ModelSpec],
    found: Sequence[Found],
    here: Sequence[LocalModel],
) -> None:
    from runner.wire import to_plain

    def names(models: Sequence[LocalModel]) -> list[dict[str, str]]:
        return [{"name": one.name, "state": one.state} for one in models]

    def known(repo: str) -> str:
        spec = registry.known_repo(repo)
        return spec.name if spec is not None else ""

    render.emit_json(
        "runner.search/1",
        {
            "query": text,
            "registry": [{**to_plain(spec), "here": names(_of_spec(spec, here))} for spec in specs],
            "models": [
                {**to_plain(one), "name": known(one.repo), "here": names(_of_repo(one.repo, here))} for one in found
            ],
        },
    )
