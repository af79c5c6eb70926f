"""An estimate in words: what a model would take here, for `show`, `explain`, `pull` and --estimate-only.

It turns a Preview into rows of text, and computes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from runner.cli import render
from runner.fit.words import free_text, kinds_text, trained_text, verdict_text
from runner.measures import binary_size, decimal_size, hung, short_count
from runner.safe_text import safe_text

if TYPE_CHECKING:
    from runner.config import LoadOptions
    from runner.paths import Paths
    from runner.preview import Preview


def fit_rows(preview: Preview) -> list[tuple[str, str]]:
    """The estimate, a row a part, and what would fit where it does not."""
    fit = preview.fit
    rows = [
        ("device", f"{fit.device.name}: {free_text(fit)}"),
        ("context", f"{fit.n_ctx} tokens" + trained_text(fit, preview.context_length)),
        ("weights", binary_size(fit.need.weights_bytes) + _format(preview)),
        ("KV cache", f"{binary_size(fit.need.kv_cache_bytes)} in {fit.kv_type}" + kinds_text(fit.kv_parts)),
        ("workspace", f"about {binary_size(fit.need.workspace_bytes)}"),
    ]
    if fit.draft_bytes:
        rows.append(("draft", f"{binary_size(fit.draft_bytes)} ({preview.drafting.source})"))
    rows.append(("in all", f"{binary_size(fit.total_bytes)}: {verdict_text(fit)}"))
    if fit.n_loads:
        loads = "1 load" if fit.n_loads == 1 else f"{fit.n_loads} loads"
        rows.append(("", f"corrected by what was used before ({loads})"))
    if preview.remedy is not None:
        rows.append(("instead", str(preview.remedy)))
    return rows + [("note", note) for note in preview.notes]


def not_run_rows(preview: Preview) -> list[tuple[str, str]]:
    """That no backend would run it, and why; nothing where one does."""
    return [] if preview.backing.name is not None else [("backend", f"none: {preview.backing.reason}")]


def model_rows(preview: Preview) -> list[tuple[str, str]]:
    """What the model is: its size in weights and bytes, and what is still to be fetched."""
    rows = [("model", preview.name)]
    if preview.num_parameters:
        active = ""
        if 0 < preview.num_active_parameters < preview.num_parameters:
            active = f", {short_count(preview.num_active_parameters)} of them for a token"
        rows.append(("parameters", short_count(preview.num_parameters) + active))
    if preview.files:
        first, n_more = preview.files[0][0], len(preview.files) - 1
        rows.append(("files", first + (f" and {n_more} more" if n_more else "")))
    if preview.download_bytes:
        rows.append(("to fetch", f"{decimal_size(preview.download_bytes)} from {preview.repo}"))
    return rows


def estimate_payload(preview: Preview) -> dict[str, Any]:
    """The same for programs, as JSON types."""
    from runner.wire import to_plain

    plain: dict[str, Any] = to_plain(preview)
    files = [{"name": name, "size_bytes": size} for name, size in preview.files]
    fit = {**plain["fit"], "total_bytes": preview.fit.total_bytes}
    instead = str(preview.remedy) if preview.remedy is not None else ""
    return {**plain, "files": files, "fit": fit, "fits": preview.fit.is_fitting, "instead": instead}


def print_rows(rows: list[tuple[str, str]]) -> None:
    """Names and values on stdout, aligned; on a terminal broken between words."""
    width = max(len(name) for name, _ in rows)
    columns = render.terminal_size().columns if render.is_terminal() else None
    for name, value in rows:
        render.data(hung(f"{name:<{width}}  ", safe_text(value), columns, narrow=2))


def show_estimate(name: str, options: LoadOptions, paths: Paths, *, offline: bool, as_json: bool = False) -> None:
    """What --estimate-only prints for the model that `name` means."""
    from runner.cli.loading import show_notice
    from runner.preview import preview
    from runner.registry import Registry

    seen = preview(Registry.load_for(paths).resolve(name), options, offline=offline, paths=paths)
    for notice in seen.notices:
        show_notice(notice)
    if as_json:
        render.emit_json("runner.estimate/1", estimate_payload(seen))
    else:
        print_rows([*model_rows(seen), *not_run_rows(seen), *fit_rows(seen)])


def _format(preview: Preview) -> str:
    if not preview.quantization:
        return ""
    bits = f", {preview.bpw:.2f} bits a weight" if preview.bpw else ""
    return f" ({preview.quantization}{bits} in the files)"
