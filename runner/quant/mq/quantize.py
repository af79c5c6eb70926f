"""Makes a packed model: plan, one tensor after the other, manifest last, one rename.

Everything is written into "<output>.partial", and a run that is stopped or killed is continued by the next one with the
same source and settings. It knows the order of the work; what is rounded how is a producer's business.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

import runner
from runner.errors import UsageError
from runner.machine import default_threads
from runner.quant.draft_tensors import write_heads
from runner.quant.file_records import record_of
from runner.quant.hipfire.producer import ImportProducer, import_recipe
from runner.quant.hipfire.source import HfqWeights
from runner.quant.json_file import read_json
from runner.quant.mq import packed_file
from runner.quant.mq.basis import in_basis
from runner.quant.mq.budget import spend
from runner.quant.mq.manifest import Manifest, Rotation, TensorRecord, to_json
from runner.quant.mq.mq4_hipfire import MQ4_HIPFIRE
from runner.quant.mq.packed_file import PackedFile, lay_out
from runner.quant.mq.plain import PlainProducer, weight_error
from runner.quant.mq.plan import PackedPlan, make_plan
from runner.quant.mq.producer import OnStage, Producer
from runner.quant.mq.recipe import RECIPES, Recipe
from runner.quant.mq.source import PackedSource
from runner.quant.mq.source import opened as opened_source
from runner.quant.packed_files import HEAD_NAME, JOURNAL_NAME, WEIGHTS_NAME
from runner.quant.quantize import Quantized, refuse_packed
from runner.quant.weights import Weights
from runner.quant.work_directory import COMPANIONS, WorkDirectory, sync

OnNote = Callable[[str], None]
MakeProducer = Callable[[PackedSource, torch.device], Producer]
_SPARE_BYTES: Final = 2 * 2**20  # manifest and journal, and for each tensor's line in either:
_SPARE_BYTES_OF_ONE: Final = 1024


@dataclass(frozen=True, kw_only=True)
class Packed(Quantized):
    """bpw_body: of the layers' matrices. tensors: what the manifest says of each, the weight error among it."""

    bpw_body: float
    rotation: Rotation
    tensors: Mapping[str, TensorRecord]


def quantize_packed(
    source: Path,
    recipe: Recipe,
    output: Path,
    *,
    rotation: Rotation = "online",
    bpw: float | None = None,
    force: bool = False,
    device: torch.device | None = None,
    on_stage: OnStage,
    on_note: OnNote = lambda _: None,
    make_producer: MakeProducer | None = None,
) -> Packed:
    """Write `source` as the recipe says to the directory `output`, with its tokenizer and a manifest.

    bpw: bits a weight of the layers that may be spent (budget.py). force: replace an output that is there. device:
    where rounding is done; None takes a GPU if there is one. on_note: what is known before the work begins, a sentence
    each. make_producer: what rounds, for the opened source and a device; None rounds each matrix by itself.

    Raises UsageError when the output is there without `force` or cannot be a directory, DoesNotFit when the disk is or
    becomes too small, UnsupportedModel and BadModelFile as the source deserves, BusyError when another process is
    making the same output. After DoesNotFit, KeyboardInterrupt or a kill the same call goes on where it was.
    """
    started = time.monotonic()
    refuse_packed(source)
    work = WorkDirectory(output)
    if work.is_file:
        raise UsageError(
            f"{output} would be one file, and {recipe.name} makes a directory.",
            hint="Leave the suffix out, or choose a GGUF format such as --format q4_k_m.",
        )
    work.check_target(force=force, source=source)
    place = device or best_device()
    if place.type == "cpu":  # more threads than a container grants cores wait for each other
        torch.set_num_threads(min(torch.get_num_threads(), default_threads()))
    with opened_source(source) as opened:
        weights = in_basis(opened.weights, opened.config, rotation)
        if bpw is not None:
            recipe = spend(make_plan(opened.config, weights, recipe, rotation), bpw)
        recipe, producer = _ways(opened, recipe, make_producer, place)
        plan = make_plan(opened.config, weights, recipe, rotation)
        calibration = producer.calibration(plan)
        for note in plan.notes:
            on_note(note)
        with work.opened(resumes=True):
            needed_bytes = _needed_bytes(plan, opened.companions) + opened.heads.total_bytes
            work.require_room(needed_bytes, there_bytes=_held_bytes(work.path))
            made_from = {
                "source": [str(source.absolute()), opened.fingerprint],
                "calibration": calibration,
                "tool": _tool(),
            }
            had_journal = (work.path / JOURNAL_NAME).is_file()
            with packed_file.opened(work.path, plan, made_from, on_stage) as (file, is_new):
                _tell(file, plan, on_note, had_journal=had_journal, is_new=is_new)
                _fill(file, plan, weights, producer, place, on_stage)
                records = file.records()
            size_bytes = _finish(work, plan, opened, calibration, records, on_stage)
        return Packed(
            path=output,
            weights=output / WEIGHTS_NAME,
            format=plan.main_format.upper(),
            size_bytes=size_bytes,
            source_bytes=opened.size_bytes,
            num_parameters=plan.num_parameters,
            bpw=plan.bpw,
            bpw_body=plan.bpw_body,
            rotation=rotation,
            tensors=records,
            seconds=time.monotonic() - started,
            warnings=plan.notes,
        )


def _ways(
    source: PackedSource, recipe: Recipe, make_producer: MakeProducer | None, device: torch.device
) -> tuple[Recipe, Producer]:
    """The recipe and the producer for that source: a hipfire file is taken over as it is where the recipe means it."""
    takes_over = recipe == RECIPES[MQ4_HIPFIRE.name]
    if isinstance(source.weights, HfqWeights) and (takes_over or make_producer is None):
        chosen = import_recipe(source.weights) if takes_over else recipe
        return chosen, ImportProducer(source=source.weights, device=device)
    return recipe, PlainProducer(device=device) if make_producer is None else make_producer(source, device)


def best_device() -> torch.device:
    """The GPU if there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _tool() -> str:
    return f"runner {runner.__version__}"


def _needed_bytes(plan: PackedPlan, companions: Path) -> int:
    """What the whole model takes on the disk, with the files beside it."""
    total = lay_out(plan.tensors).total_bytes + _SPARE_BYTES + len(plan.tensors) * _SPARE_BYTES_OF_ONE
    return total + sum((companions / name).stat().st_size for name in COMPANIONS if (companions / name).is_file())


def _held_bytes(directory: Path) -> int:
    """What an earlier run's files take already; holes in them take nothing."""
    return sum(entry.stat().st_blocks * 512 for entry in directory.iterdir())


def _tell(file: PackedFile, plan: PackedPlan, on_note: OnNote, *, had_journal: bool, is_new: bool) -> None:
    if not is_new:
        on_note(f"Going on with an earlier run: {len(file.done)} of {len(plan.tensors)} tensors are done.")
    elif had_journal:
        on_note("What an earlier run left was of other settings or another source: starting over.")


def _fill(
    file: PackedFile, plan: PackedPlan, weights: Weights, producer: Producer, device: torch.device, on_stage: OnStage
) -> None:
    """Write every tensor that is not there yet."""
    by_name = plan.by_name
    for name, encoded in producer.produce(plan, weights, file, on_stage):
        file.write(name, encoded, weight_error(by_name[name], encoded, weights, device))
    missing = by_name.keys() - file.done
    assert not missing, missing


# --- finishing -------------------------------------------------------------------------------------------------------


def _finish(
    work: WorkDirectory,
    plan: PackedPlan,
    source: PackedSource,
    calibration: Mapping[str, Any] | None,
    records: Mapping[str, TensorRecord],
    on_stage: OnStage,
) -> int:
    """Put companions and manifest beside the weights and rename it all. Returns the bytes of all files.

    A head that drafts is kept as it is; it cannot read what a folded model computes.
    """
    work.copy_companions(source.companions)
    heads = source.heads
    if heads.tensors and plan.rotation == "online":
        write_heads(heads, work.path / HEAD_NAME)
        sync(work.path / HEAD_NAME)
    if plan.config_changes:
        _change_config(work.path / "config.json", plan.config_changes)
    files = {WEIGHTS_NAME: record_of(work.path / WEIGHTS_NAME, lambda done, total: on_stage("hashing", done, total))}
    files |= {name: record_of(path) for name in (HEAD_NAME, *COMPANIONS) if (path := work.path / name).is_file()}
    manifest = Manifest(
        format=plan.main_format,
        bpw=round(plan.bpw, 4),
        bpw_body=round(plan.bpw_body, 4),
        rotation=plan.rotation,
        recipe=plan.recipe,
        calibration=calibration,
        config_changes=plan.config_changes,
        notes=plan.notes,
        source=source.record(),
        tool=_tool(),
        tensors=records,
        files=files,
    )
    path = work.write_manifest(to_json(manifest))
    size_bytes = sum(record.size_bytes for record in files.values()) + path.stat().st_size
    work.place()
    return size_bytes


def _change_config(path: Path, changes: Mapping[str, Any]) -> None:
    """Put `changes` into config.json; of a multimodal model also where it describes its text model, which says some
    things of itself."""
    config = {**read_json(path), **changes}
    if isinstance(text := config.get("text_config"), Mapping):
        config["text_config"] = {**text, **changes}
    path.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    sync(path)
