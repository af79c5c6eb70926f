"""`runner quantize SOURCE`: make a model smaller: packed for the native backend (mq4 ...), or a GGUF (q4_k_m ...).

It names the output and shows progress; the work is runner.quant's.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

from runner.cli import completing, options, render
from runner.cli.interrupt import making_stopped, stopping
from runner.cli.stages import Stages
from runner.closed import cannot_read, closed
from runner.errors import UsageError, nearest_hint

if TYPE_CHECKING:
    from runner.quant.mq.quantize import MakeProducer
    from runner.quant.quantize import Quantized

_HIPFIRE_SUFFIXES = (".hfq", ".mq4")
_FORMAT_HELP = "mq4, mq4-uniform, mq6, mq8, mq4-hipfire; as GGUF f32, f16, bf16, q8_0, q4_0, q4_k_m, q5_k_m, q6_k."


def quantize(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="A Hugging Face directory, a GGUF, a hipfire file, a name, or owner/repo.",
            autocompletion=completing.models,
        ),
    ],
    weight_format: Annotated[
        str | None,
        typer.Option(
            "--format",
            "-t",
            metavar="FORMAT",
            help=f"{_FORMAT_HELP} [default: mq4, or q4_k_m where OUT ends in .gguf]",
            autocompletion=completing.formats,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="OUT", help="A directory, or a file that ends in .gguf (or .hfq)."),
    ] = None,
    rotation: Annotated[
        str,
        typer.Option(
            "--rotation",
            metavar="online|folded",
            help="Packed formats: as the model runs, or folded into the weights.",
            autocompletion=lambda: ["online", "folded"],
        ),
    ] = "online",
    recipe: Annotated[
        Path | None,
        typer.Option("--recipe", metavar="FILE", help="Packed formats: a TOML file of rules that come first."),
    ] = None,
    calibrate: Annotated[
        Path | None,
        typer.Option("--calibrate", metavar="FILE", help="Calibrate on this text, instead of what the model writes."),
    ] = None,
    no_calibrate: Annotated[
        bool, typer.Option("--no-calibrate", help="Round each matrix by itself: quicker, and less exact.")
    ] = False,
    calibration_tokens: Annotated[
        int | None, typer.Option("--calibration-tokens", metavar="N", help="Tokens to calibrate on [default: 65536].")
    ] = None,
    bpw: Annotated[
        float | None,
        typer.Option("--bpw", metavar="BITS", help="mq4: spend up to BITS a weight of the layers on better formats."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an output that is there.")] = False,
    offline: options.Offline = None,
    quiet: options.Quiet = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="The result as one JSON object; progress as NDJSON on stderr.")
    ] = False,
) -> None:
    """Make a model smaller, in four bits unless you say otherwise.

    The result is a directory with the weights and the tokenizer's files: runner chat THAT_DIRECTORY. Making a packed
    model that was interrupted goes on where it was when the same command is given again.
    """
    from runner.paths import user_paths
    from runner.quant.mq.recipe import RECIPES
    from runner.quant.quantize import made_name
    from runner.quant.work_directory import check_output

    render.configure(quiet=quiet)
    name = (weight_format or ("q4_k_m" if output is not None and output.suffix.lower() == ".gguf" else "mq4")).lower()
    packing = _Packing(rotation, recipe, bpw, calibrate, no_calibrate, calibration_tokens)
    _check_format(name, packing, output)
    if bpw is not None and not math.isfinite(bpw):
        raise UsageError(f"--bpw is {bpw}.", hint="It is a number of bits, such as 4.5.")
    if output is not None:
        check_output(output)
    path = _source_path(source, offline, as_json=as_json)
    # With a budget it is another model than the format's own, and may be mostly of a wider format.
    called = name if bpw is None else f"{name}-{bpw:g}"
    target = user_paths().models / made_name(path, called) if output is None else output
    units = {"writing text": "tokens", "checking": "tensors"} if name in RECIPES else {"quantizing": "tensors"}
    stages = Stages(units, "bytes", as_json=as_json)
    is_file = name not in RECIPES or target.suffix.lower() in _HIPFIRE_SUFFIXES
    with stopping(making_stopped(target, is_kept=not is_file)), closing(stages):
        if name not in RECIPES:
            made = _make_gguf(path, name, target, stages, force=force)
        elif is_file:
            made = _make_hipfire(path, name, target, stages, force=force)
        else:
            made = _make_packed(path, name, target, stages, packing, force=force)
    _report(path, made, as_json=as_json)


@dataclass(frozen=True)
class _Packing:
    """The options that packed formats alone have, as they were given."""

    rotation: str
    recipe: Path | None
    bpw: float | None
    calibrate: Path | None
    no_calibrate: bool
    calibration_tokens: int | None

    @property
    def is_default(self) -> bool:
        return self == _Packing("online", None, None, None, False, None)


def _check_format(name: str, packing: _Packing, output: Path | None) -> None:
    """Raise UsageError for a format that does not exist, or options that it does not have."""
    from runner.quant.formats import FORMATS
    from runner.quant.mq.recipe import RECIPES

    if name not in RECIPES and name not in FORMATS:
        raise UsageError(f"Unknown weight format {name!r}.", hint=nearest_hint(name, [*RECIPES, *FORMATS]))
    is_packed = name in RECIPES and (output is None or output.suffix.lower() not in _HIPFIRE_SUFFIXES)
    if not is_packed and not packing.is_default:
        raise UsageError(
            "A GGUF or a file of hipfire's has no rotation, recipe, budget or calibration to choose.",
            hint=f"Those options are of {', '.join(RECIPES)}, written to a directory.",
        )
    if packing.rotation not in ("online", "folded"):
        raise UsageError(f"--rotation is {packing.rotation!r}.", hint="It must be online or folded.")
    if packing.no_calibrate and (packing.calibrate or packing.calibration_tokens):
        raise UsageError("--no-calibrate contradicts the other options of calibration.", hint="Leave one of them out.")
    if packing.calibration_tokens is not None and packing.calibration_tokens < 1:
        raise UsageError(f"--calibration-tokens is {packing.calibration_tokens}.", hint="It must be 1 or more.")


# --- making ----------------------------------------------------------------------------------------------------------


def _make_gguf(path: Path, name: str, target: Path, stages: Stages, *, force: bool) -> Quantized:
    from runner.quant.formats import format_of
    from runner.quant.quantize import quantize_model

    made = quantize_model(path, format_of(name), target, force=force, on_stage=stages.show)
    stages.close()
    for warning in made.warnings:
        render.warn(warning)
    return made


def _make_hipfire(path: Path, name: str, target: Path, stages: Stages, *, force: bool) -> Quantized:
    from runner.quant.hipfire.make import make_container

    if name != "mq4-hipfire":
        raise UsageError(f"{target} is a file of hipfire's, which has no {name}.", hint="Use --format mq4-hipfire.")
    made = make_container(path, target, force=force, on_stage=stages.show)
    stages.close()
    for warning in made.warnings:
        render.warn(warning)
    return made


def _make_packed(path: Path, name: str, target: Path, stages: Stages, packing: _Packing, *, force: bool) -> Quantized:
    from runner.quant.mq.quantize import quantize_packed
    from runner.quant.mq.recipe import recipe_of, with_own_rules

    chosen = recipe_of(name)
    return quantize_packed(
        path,
        chosen if packing.recipe is None else with_own_rules(chosen, packing.recipe),
        target,
        rotation=cast(Literal["online", "folded"], packing.rotation),
        bpw=packing.bpw,
        force=force,
        on_stage=stages.show,
        on_note=stages.outside(render.warn),
        make_producer=_calibration(name, packing, stages.outside(render.warn)),
    )


def _calibration(name: str, packing: _Packing, on_refusal: Callable[[str], None]) -> MakeProducer | None:
    """How a model of that recipe is calibrated: as asked for, else where it is worth the time and can be done."""
    asked = packing.calibrate is not None or packing.calibration_tokens is not None
    from runner.quant.mq.recipe import CALIBRATED

    if packing.no_calibrate or not (asked or name in CALIBRATED):
        return None
    from runner.calibration.producer import DEFAULT_TOKENS, calibrated

    n_tokens = packing.calibration_tokens or DEFAULT_TOKENS
    return calibrated(packing.calibrate, n_tokens, on_refusal=None if asked else on_refusal)


def _source_path(text: str, offline: bool | None, *, as_json: bool) -> Path:
    """A path as it is; of a registry name or a repository the original weights, fetched when they are not here."""
    path = Path(os.path.expanduser(text))  # as Path.expanduser, which raises where there is no such user
    if not text:
        raise UsageError("SOURCE is empty.", hint="Name a model, or a file or directory with one.")
    if (place := closed(path)) is not None:
        raise cannot_read([place])
    if os.path.isdir(path) and not (path / "config.json").exists():
        raise UsageError(
            f"{path.absolute()} is not the directory of a model.",
            hint="It has no config.json. A GGUF is named by its file.",
        )
    if os.path.exists(path):
        return path
    from runner.cli.loading import ready_here
    from runner.paths import user_paths
    from runner.registry import SAFETENSORS, Registry
    from runner.settings import load_settings

    paths = user_paths()
    registry = Registry.load_for(paths)
    spec = registry.resolve(text)
    if spec.origin == "registry" and spec.repo and not spec.asked:
        spec = registry.resolve(f"{text}:{SAFETENSORS}")
    is_offline = load_settings(paths).is_offline(offline)
    model = ready_here(spec, offline=is_offline, as_json=as_json)
    return model.weights[0] if model.format == "gguf" else model.directory


# --- showing ---------------------------------------------------------------------------------------------------------


def _report(path: Path, made: Quantized, *, as_json: bool) -> None:
    if as_json:
        render.emit_json("runner.quantize/1", _plain(path, made))
        return
    size = render.decimal_size
    render.narrate(
        f"{made.format}: {size(made.source_bytes)} became {size(made.size_bytes)}, {made.bpw:.2f} bits a weight, "
        f"{render.short_count(made.num_parameters)} parameters, in {render.duration(made.seconds)}"
    )
    render.data(str(made.path.absolute()))


def _plain(path: Path, made: Quantized) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "source": str(path),
        "path": str(made.path.absolute()),
        "weights": str(made.weights.absolute()),
        "format": made.format,
        "size_bytes": made.size_bytes,
        "source_bytes": made.source_bytes,
        "num_parameters": made.num_parameters,
        "bpw": round(made.bpw, 3),
        "duration_s": round(made.seconds, 3),
        "warnings": list(made.warnings),
    }
    if made.format.lower().startswith("mq"):
        from runner.quant.mq.quantize import Packed

        if isinstance(made, Packed):
            plain["bpw_body"] = round(made.bpw_body, 3)
            plain["rotation"] = made.rotation
            plain["weight_error"] = {name: tensor.weight_error for name, tensor in made.tensors.items()}
    return plain
