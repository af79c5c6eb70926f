"""`runner explain MODEL`: which backend would run it here, on what, with how much memory, and why.

It reads file headers, here or on the hub, and asks the drivers; it loads no weights and knows no arithmetic of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from runner.cli import flag_groups, options, render

if TYPE_CHECKING:
    from runner.draft_choice import DraftChoice
    from runner.preview import Preview


@flag_groups.with_groups
def explain(
    *,
    model: options.ModelArgument = None,
    run: flag_groups.Run,
    offline: options.Offline = None,
    as_json: options.Json = False,
) -> None:
    """Say how a model would run here, and why. Of a model that is not here only headers are read from the hub."""
    from runner.cli.fit_text import estimate_payload, fit_rows, model_rows, print_rows
    from runner.cli.loading import show_notice
    from runner.paths import user_paths
    from runner.preview import preview
    from runner.registry import Registry
    from runner.settings import load_settings

    paths = user_paths()
    settings = load_settings(paths)
    load_options = settings.load_options(**run.given())
    wanted = Registry.load_for(paths).resolve(options.model_name(model, default=settings.model))
    seen = preview(wanted, load_options, offline=settings.is_offline(offline), paths=paths)
    for notice in seen.notices:
        show_notice(notice)
    if as_json:
        render.emit_json("runner.explain/1", estimate_payload(seen))
        return
    layers = ("GPU layers", f"{seen.fit.n_gpu_layers} of {seen.fit.num_layers}")
    print_rows([*model_rows(seen), *_backend_rows(seen), layers, *_drafting_rows(seen.drafting), *fit_rows(seen)])


def _backend_rows(seen: Preview) -> list[tuple[str, str]]:
    return [
        ("backend", f"{seen.backing.name or 'none'}: {seen.backing.reason}"),
        *((f"not {name}", reason) for name, reason in seen.backing.refused),
        *([("or", seen.in_own_bits)] if seen.in_own_bits else []),
    ]


def _drafting_rows(drafting: DraftChoice) -> list[tuple[str, str]]:
    rows = [("speculation", drafting.words)]
    if drafting.suggestion:
        rows.append(("", f"{drafting.suggestion} is known to draft for it: --spec model"))
    return rows
