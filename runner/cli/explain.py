"""`runner explain MODEL`: which backend would run it here, on what, with how much memory, and why.

It reads file headers and asks the drivers; it loads no weights and knows no arithmetic of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from runner.cli import options, render

if TYPE_CHECKING:
    from runner.cli.loading import Narrator
    from runner.paths import Paths
    from runner.types import ReadyModel


def explain(
    model: options.ModelArgument = None,
    backend: options.Backend = None,
    ctx_size: options.CtxSize = None,
    n_gpu_layers: options.GpuLayers = None,
    kv_type: options.KvType = None,
    threads: options.Threads = None,
    as_json: options.Json = False,
) -> None:
    """Say how a model would run here, and why. It must be on this machine: nothing is fetched or loaded."""
    from runner.backends import choose
    from runner.cli.loading import Narrator
    from runner.engine import with_gpu_layers
    from runner.fit import estimate, model_shape
    from runner.machine import devices
    from runner.paths import user_paths
    from runner.settings import load_settings
    from runner.wire import to_plain

    paths = user_paths()
    settings = load_settings(paths)
    load_options = settings.load_options(
        backend=backend,
        ctx_size=ctx_size,
        n_gpu_layers=options.gpu_layers(n_gpu_layers),
        kv_type=kv_type,
        n_threads=threads,
    )
    with Narrator(as_json=as_json) as narrator:
        files = _files(model or settings.model, paths, narrator)
        choice = choose(files, load_options)
        machine = devices()
        if choice.name == "llamacpp":
            load_options = with_gpu_layers(files, load_options, machine, narrator)
    fit = estimate(model_shape(files), files.size_bytes, load_options, machine, choice.name)
    if as_json:
        payload = {"model": files.name, "files": files.weights, "choice": choice, "fit": fit, "fits": fit.is_fitting}
        render.emit_json("runner.explain/1", to_plain(payload))
        return
    size, need = render.binary_size, fit.need
    more = f" and {len(files.weights) - 1} more" if len(files.weights) > 1 else ""
    rows = [
        ["model", files.name],
        ["files", f"{files.weights[0]}{more}" if files.weights else "none"],
        ["backend", f"{choice.name}: {choice.reason}"],
        *([f"not {name}", reason] for name, reason in choice.refused),
        ["device", f"{fit.device.name} ({size(fit.available_bytes)} free of {size(fit.device.total_bytes)})"],
        ["GPU layers", f"{fit.n_gpu_layers}"],
        ["context", f"{fit.n_ctx} tokens"],
        ["weights", size(need.weights_bytes)],
        ["KV cache", size(need.kv_cache_bytes)],
        ["workspace", f"about {size(need.workspace_bytes)}"],
        ["in all", f"{size(need.total_bytes)}: " + ("it fits" if fit.is_fitting else "it does not fit")],
    ]
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        render.data(f"{name:<{width}}  {value}")


def _files(name: str, paths: Paths, narrator: Narrator) -> ReadyModel:
    """The model's files on this machine. Raises UsageError where they are not: headers are read, never fetched."""
    from runner.errors import UsageError
    from runner.prepare import locate, ready, title
    from runner.registry import FAKE, Registry
    from runner.types import CancelToken

    spec = Registry.load_for(paths).resolve(name)
    if spec.origin != FAKE and spec.path is None and locate(spec) is None:
        raise UsageError(
            f"{title(spec)} is not on this machine, and explaining it takes its files.",
            hint=f"`runner show {name}` says what is known of it; `runner chat {name}` fetches it.",
        )
    return ready(spec, offline=True, on_event=narrator, cancel=CancelToken())
