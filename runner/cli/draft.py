"""`runner draft`: train a drafter for a model, and show what one is.

It names the output and shows progress; the work is runner.draft_training's.
"""

from __future__ import annotations

import re
import shlex
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runner.cli import completing, options, render
from runner.cli.app import new_app
from runner.cli.stages import Stages
from runner.errors import UsageError

if TYPE_CHECKING:
    from runner.draft_training.job import Stage
    from runner.draft_training.prompts import Prompts
    from runner.draft_training.report import Report
    from runner.types import ReadyModel

app = new_app(no_args_is_help=True)
_LIMIT_UNITS = {"s": 1, "m": 60, "h": 3600}
_UNITS = {"training": "steps", "measuring": "conditions", "loading": "%"}


@app.callback()
def draft() -> None:
    """Train a drafter for a model, and show what it is."""


@app.command("train", short_help="Train an EAGLE-3 head that drafts for a model.")
def train(
    model: Annotated[
        str,
        typer.Argument(metavar="MODEL", help="A model that the native backend runs.", autocompletion=completing.models),
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="DIR", help="Where the head goes.", show_default=False)
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option("--prompts", metavar="FILE", help='Your own: one a line, or .jsonl with a "prompt" in each.'),
    ] = None,
    corpus: Annotated[
        Path | None,
        typer.Option("--corpus", metavar="DIR", help="Use the text that was written for the head in DIR."),
    ] = None,
    tokens: Annotated[
        int | None,
        typer.Option("--tokens", metavar="N", help="Tokens that the model writes [default: 2000000, on a CPU 50000]."),
    ] = None,
    steps: Annotated[
        int | None, typer.Option("--steps", metavar="N", help="Steps at most [default: 4000, on a CPU 400].")
    ] = None,
    variant: Annotated[
        str | None,
        typer.Option(
            "--variant",
            metavar="eagle3|normed",
            help="As published, or with two more norms [default: normed].",
            autocompletion=lambda: ["eagle3", "normed"],
        ),
    ] = None,
    depth: Annotated[
        int | None, typer.Option("--depth", metavar="N", help="Tokens deep that it learns to draft [default: 6].")
    ] = None,
    draft_vocab: Annotated[
        int | None,
        typer.Option("--draft-vocab", metavar="N", help="Tokens it can draft [default: 32000, on a CPU 2048]."),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="The same seed gives the same head on a CPU.")] = 0,
    time_limit: Annotated[
        str | None, typer.Option("--time-limit", metavar="TIME", help="End in about that time: 90s, 15m, 2h.")
    ] = None,
    n_gpu_layers: options.GpuLayers = None,
    threads: options.Threads = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a head that is there.")] = False,
    offline: options.Offline = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Train an EAGLE-3 head that drafts for a model, on text that the model writes itself.

    The result is a directory: runner chat MODEL --backend native --draft THAT_DIRECTORY. Ctrl+C keeps what is there,
    and the same command goes on from it.
    """
    from runner.backends.native.placement import place
    from runner.cli.interrupt import cancelling, making_stopped
    from runner.draft_training.job import Job
    from runner.draft_training.make import train_draft
    from runner.draft_training.settings import DEFAULT_VARIANT, training_settings
    from runner.draft_training.target import open_target
    from runner.paths import user_paths
    from runner.settings import load_settings

    render.configure(quiet=quiet)
    paths = user_paths()
    settings = load_settings(paths)
    limit = _seconds(time_limit)
    asked = _prompts(prompts)
    gpu_layers = options.gpu_layers(n_gpu_layers)
    placement = place(settings.load_options(n_threads=threads, n_gpu_layers=gpu_layers))
    ready_model = _ready(model, offline=settings.is_offline(offline), as_json=as_json)
    target = open_target(ready_model)
    chosen = training_settings(
        is_gpu=placement.is_gpu,
        context=target.config.max_position_embeddings,
        vocab_size=target.used_ids,
        variant=variant or DEFAULT_VARIANT,
        n_tokens=tokens,
        steps=steps,
        depth=depth,
        draft_vocab_size=draft_vocab,
        seed=seed,
    )
    job = Job(
        target=target,
        prompts=asked,
        output=output or paths.drafts / f"{_file_name(ready_model.name)}-{chosen.variant}",
        settings=chosen,
        device=placement.device,
        device_name=placement.name,
        text_from=corpus,
        time_limit_s=limit,
        force=force,
    )
    stages = Stages(_UNITS, "tokens", as_json=as_json)

    def show(stage: Stage) -> None:
        stages.show(stage.name, stage.done, stage.total, stage.figures)

    with cancelling(making_stopped(job.output)) as token, closing(stages):
        report = train_draft(job, show, stages.outside(render.narrate), token)
    _show_result(model, job.output, report, as_json=as_json)


@app.command("show", short_help="Show what a head was trained on, and what of its drafts was accepted.")
def show(
    head: Annotated[
        Path, typer.Argument(metavar="DIR", help="A head that `runner draft train` made, or its name in `runner du`.")
    ],
    as_json: options.Json = False,
) -> None:
    """Show what a drafter was trained for and on, and what of its drafts was accepted."""
    from runner.draft_training.report import read_report, report_json
    from runner.paths import user_paths
    from runner.quant.half_made import finished

    report = read_report(finished(user_paths().drafts).get(str(head)) or head)
    if as_json:
        render.emit_json(
            "runner.draft/1", {key: value for key, value in report_json(report).items() if key != "schema"}
        )
        return
    render.table(["target", report.target], _facts(report))
    render.data("")
    _measured_table(report)


def _seconds(text: str | None) -> float | None:
    """The value of --time-limit. Raises UsageError."""
    if text is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", text.strip())
    seconds = float(match[1]) * _LIMIT_UNITS[match[2] or "m"] if match else 0.0
    if seconds <= 0:
        raise UsageError(f"--time-limit is {text!r}.", hint="It must be a time such as 90s, 15m or 2h.")
    return seconds


def _prompts(path: Path | None) -> Prompts:
    from runner.draft_training.prompts import read_prompts, shipped_prompts

    return shipped_prompts() if path is None else read_prompts(path)


def _ready(text: str, *, offline: bool, as_json: bool) -> ReadyModel:
    from runner.cli.loading import ready_here
    from runner.paths import user_paths
    from runner.registry import Registry

    return ready_here(Registry.load_for(user_paths()).resolve(text), offline=offline, as_json=as_json)


def _file_name(model: str) -> str:
    return re.sub(r"[^\w.-]+", "-", model).strip("-.") or "model"


# --- showing ---------------------------------------------------------------------------------------------------------


def _show_result(model: str, output: Path, report: Report, *, as_json: bool) -> None:
    from runner.draft_training.report import report_json

    output = output.absolute()
    if as_json:
        plain: dict[str, Any] = {key: value for key, value in report_json(report).items() if key != "schema"}
        render.emit_json("runner.draft/1", {"path": str(output), **plain})
        return
    for name, text in _facts(report):
        render.narrate(f"{name:<10} {text}")
    _measured_table(report, is_narration=True)
    render.narrate(f"Use it: runner chat {shlex.quote(model)} --backend native --draft {shlex.quote(str(output))}")
    render.data(str(output))


def _facts(report: Report) -> list[list[str]]:
    settings, text = report.settings, report.text
    norms = "norm_output and fc_norm" if settings.variant == "normed" else "no further norms"
    return [
        ["head", f"EAGLE-3, {settings.variant} ({norms}), drafts {settings.depth} tokens deep"],
        ["size", f"{render.short_count(report.num_parameters)} parameters, {render.decimal_size(report.size_bytes)}"],
        ["vocabulary", f"{settings.draft_vocab_size} tokens, {text.coverage:.1%} of its text".replace("%", " %")],
        ["text", f"{text.tokens} tokens in {text.answers} answers to prompts {text.prompts}"],
        ["training", f"{report.steps} of {settings.steps} steps ({report.ended}), best after {report.best_step}"],
        ["time", f"{render.duration(report.write_s)} of writing, {render.duration(report.training_s)} of training"],
        ["on", report.device],
    ]


def _measured_table(report: Report, *, is_narration: bool = False) -> None:
    depth = report.settings.depth
    headers = ["ACCEPTED", *(f"TOKEN {i}" for i in range(1, depth + 1)), "LENGTH", "TOKENS"]
    rows = [
        [
            found.condition,
            *(f"{share:.1%}".replace("%", " %") for share in found.accepted),
            f"{found.acceptance_length:.2f}",
            str(found.tokens),
        ]
        for found in report.measured
    ]
    render.table(headers, rows, right=range(1, depth + 3), is_narration=is_narration)
