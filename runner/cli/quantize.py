"""`runner quantize SOURCE`: convert a model to GGUF in a weight format, ready for `runner chat`.

It names the output and shows progress; the work is runner.quant.quantize's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from runner.cli import options, render
from runner.errors import UsageError


def quantize(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE", help="A Hugging Face directory, a GGUF in F32, F16, BF16 or Q8_0, a name, or owner/repo."
        ),
    ],
    weight_format: Annotated[
        str,
        typer.Option("--format", "-t", metavar="FORMAT", help="f32, f16, bf16, q8_0, q4_0, q4_k_m, q5_k_m or q6_k."),
    ] = "q4_k_m",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="OUT", help="A directory, or a file that ends in .gguf.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an output that is there.")] = False,
    offline: options.Offline = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The result as one JSON object; progress as NDJSON.")] = False,
) -> None:
    """Convert a model to GGUF, smaller if you wish.

    The result is a directory with the weights and the tokenizer's files: runner chat THAT_DIRECTORY.
    """
    from runner.paths import user_paths
    from runner.quant.formats import format_of
    from runner.quant.quantize import model_name, quantize_model

    render.configure(quiet=quiet)
    chosen = format_of(weight_format)
    path = _source_path(source, offline, as_json=as_json)
    target = output or user_paths().models / f"{model_name(path)}-{chosen.name}"
    stages = _Stages(as_json=as_json)
    try:
        made = quantize_model(path, chosen, target, force=force, on_stage=stages.show)
    finally:
        stages.close()
    for warning in made.warnings:
        render.warn(warning)
    if as_json:
        render.emit_json(
            "runner.quantize/1",
            {
                "source": str(path),
                "path": str(made.path),
                "weights": str(made.weights),
                "format": made.format,
                "size_bytes": made.size_bytes,
                "source_bytes": made.source_bytes,
                "num_parameters": made.num_parameters,
                "bpw": round(made.bpw, 3),
                "duration_s": round(made.seconds, 3),
                "warnings": list(made.warnings),
            },
        )
        return
    size = render.decimal_size
    render.narrate(
        f"{made.format}: {size(made.source_bytes)} became {size(made.size_bytes)}, {made.bpw:.2f} bits a weight, "
        f"{render.short_count(made.num_parameters)} parameters, in {render.duration(made.seconds)}"
    )
    render.data(str(made.path))


def _source_path(text: str, offline: bool | None, *, as_json: bool) -> Path:
    """A path as it is; of a registry name or a repository the original weights, fetched when they are not here."""
    path = Path(text).expanduser()
    if path.is_dir() and not (path / "config.json").exists():
        raise UsageError(
            f"{path} is not the directory of a model.", hint="It has no config.json. A GGUF is named by its file."
        )
    if path.exists():
        return path
    from runner.cli.loading import Narrator
    from runner.paths import user_paths
    from runner.prepare import ready
    from runner.registry import SAFETENSORS, Registry
    from runner.settings import load_settings
    from runner.types import CancelToken

    paths = user_paths()
    registry = Registry.load_for(paths)
    spec = registry.resolve(text)
    if spec.origin == "registry" and spec.repo and not spec.asked:
        spec = registry.resolve(f"{text}:{SAFETENSORS}")
    is_offline = load_settings(paths).is_offline(offline)
    with Narrator(as_json=as_json) as narrator:
        model = ready(spec, offline=is_offline, on_event=narrator, cancel=CancelToken())
    return model.directory if model.format == "safetensors" else model.weights[0]


class _Stages:
    """One progress display a stage, each opened when its stage begins."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._name = ""
        self._progress: render.Progress | None = None

    def show(self, name: str, done: int, total: int) -> None:
        if name != self._name or self._progress is None:
            self.close()
            unit = "bytes" if name == "converting" else "tensors"
            self._name, self._progress = name, render.Progress(name, total, unit=unit, as_json=self._as_json)
        self._progress.update(done, total)

    def close(self) -> None:
        if self._progress is not None:
            self._progress.close()
            self._progress = None
