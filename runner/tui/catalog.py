"""The catalog: one row for each model that is here, that the registry knows, or that the hub found.

Rows are made from values alone: what the registry says, what is on the disk, what was measured, and how much memory
there is. An estimate here goes by the size of the weights; exact_fit.py asks a model's own headers. It knows no widget.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from runner.bench.record import BenchRun
from runner.closed import GONE, MOUNT
from runner.disk_usage import Drafter
from runner.fit import USUAL_BPW, Fit, held_bytes, rough_bytes, size_of, usable_bytes
from runner.hub import Found
from runner.inventory import LocalModel
from runner.registry import SAFETENSORS, ModelSpec
from runner.types import BackendName, Device, WeightsFormat

Verdict = Literal["fits", "partly", "no", "unknown"]
Place = Literal["here", "registry", "hub"]
# What is taken of a repository of GGUF files when nothing is asked for, in most cases (model_files.PREFERRED_QUANTS).
_USUAL_QUANT: Final = "Q4_K_M"


@dataclass(frozen=True, kw_only=True)
class Room:
    """The memory that models of one kind are loaded into. ram_bytes: more of it, for layers that do not fit; or 0."""

    backend: BackendName
    on_gpu: bool
    free_bytes: int
    ram_bytes: int = 0
    bandwidth_bytes_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Rooms:
    """Where GGUF files run on this machine, and where everything else does."""

    gguf: Room
    native: Room

    def of(self, stored_as: WeightsFormat) -> Room:
        return self.gguf if stored_as == "gguf" else self.native


@dataclass(frozen=True, kw_only=True)
class RowFit:
    """need_bytes beside what the device has free; gpu_share: of the layers, where only some fit there, else 0."""

    verdict: Verdict = "unknown"
    need_bytes: int = 0
    free_bytes: int = 0
    gpu_share: float = 0.0
    is_exact: bool = False


@dataclass(frozen=True, kw_only=True)
class CatalogRow:
    """One model as the table shows it. name: what the command line calls it. Text is raw; 0 and "" are not known.

    title: what people call it, where that is another. stored_as: the format of its files. size_bytes: of the weights,
    in all, of a drafter of all its files; is_size_exact: not estimated. done_share: of a partial download.
    expected_tok_s: memory bandwidth over the bytes that a token reads, which no program reaches; None where one of them
    is not known. quants: what can be asked for. searched: what a filter looks through. lost_target: where its link
    leads, if nothing is to be found there, or "".
    """

    name: str
    place: Place
    state: Literal["complete", "partial", "damaged", "absent"] = "absent"
    kind: str = ""
    title: str = ""
    description: str = ""
    family: str = ""
    stored_as: WeightsFormat = "gguf"
    parameters: int = 0
    active: int = 0
    quant: str = ""
    quants: tuple[str, ...] = ()
    size_bytes: int = 0
    is_size_exact: bool = True
    done_share: float | None = None
    fit: RowFit = RowFit()
    expected_tok_s: float | None = None
    measured_tok_s: float | None = None
    context: int = 0
    licence: str = ""
    gated: Literal["", "yes", "original"] = ""
    repo: str = ""
    downloads: int = 0
    updated: str = ""
    searched: str = ""
    lost_target: str = ""

    @property
    def is_here(self) -> bool:
        return self.state == "complete"

    @property
    def has_unknown_quants(self) -> bool:
        """Whether the hub alone knows what else there is of it: a file of a repository that the registry lacks."""
        return self.kind == "cache" and self.stored_as == "gguf" and not self.quants

    @property
    def is_drafter(self) -> bool:
        """Whether it is no model: a head that was trained here, which drafts for one."""
        return self.kind == "drafter"


# --- the machine -----------------------------------------------------------------------------------------------------


def rooms(machine: Sequence[Device], bandwidths: Mapping[str, float], *, gguf_on_gpu: bool) -> Rooms:
    """Where models run. gguf_on_gpu: llama.cpp here can use a GPU. bandwidths: bytes a second by the device's name."""
    memory = next(device for device in machine if device.kind == "cpu")
    gpus = [device for device in machine if device.kind != "cpu"]
    best = max(gpus, key=lambda device: device.free_bytes, default=None)

    def room(backend: BackendName, *, on_gpu: bool) -> Room:
        device = best if on_gpu and best is not None else memory
        is_split = device is not memory and backend == "llamacpp" and not device.is_in_main_memory
        return Room(
            backend=backend,
            on_gpu=device is not memory,
            free_bytes=usable_bytes(device),
            ram_bytes=memory.free_bytes if is_split else 0,
            bandwidth_bytes_s=bandwidths.get(device.name),
        )

    has_native_gpu = best is not None and best.kind in ("cuda", "rocm")
    return Rooms(gguf=room("llamacpp", on_gpu=gguf_on_gpu), native=room("native", on_gpu=has_native_gpu))


def rough_fit(held: int, room: Room) -> RowFit:
    """Whether weights of `held` bytes in memory fit, as far as their size alone tells."""
    if not held:
        return RowFit(free_bytes=room.free_bytes)
    need = rough_bytes(held)
    share, verdict = 0.0, "fits"
    if need > room.free_bytes:
        verdict = "partly" if need <= room.free_bytes + room.ram_bytes else "no"
        share = max(0.0, (room.free_bytes - (need - held)) / held) if verdict == "partly" else 0.0
    return RowFit(verdict=verdict, need_bytes=need, free_bytes=room.free_bytes, gpu_share=share)  # type: ignore[arg-type]


def row_fit(fit: Fit) -> RowFit:
    """The same of an estimate from headers."""
    share = fit.n_gpu_layers / fit.num_layers if fit.num_layers else 0.0
    is_split = fit.ram_bytes > 0 and fit.n_gpu_layers < fit.num_layers
    verdict: Verdict = "no" if not fit.is_fitting else "partly" if is_split else "fits"
    return RowFit(
        verdict=verdict,
        need_bytes=fit.total_bytes,
        free_bytes=fit.available_bytes,
        gpu_share=share if verdict == "partly" else 0.0,
        is_exact=True,
    )


def expected_tok_s(held: int, parameters: int, active: int, fit: RowFit, room: Room) -> float | None:
    """How fast decoding could be: all that is read for a token, at the speed that the memory has.

    None where that is not known, and for a model in two memories or none.
    """
    if not held or not room.bandwidth_bytes_s or fit.verdict != "fits":
        return None
    share = active / parameters if 0 < active < parameters else 1.0
    return room.bandwidth_bytes_s / (held * share)


def measured_tok_s(runs: Iterable[BenchRun]) -> dict[str, float]:
    """By model, how fast the newest benchmark saw it decode with nothing in front: the best backend's mean.

    One that was stopped counts only where none went to its end: it may have measured the worse backend alone.
    """
    found: dict[str, float] = {}
    for run in sorted(runs, key=lambda run: not run.is_partial):
        decoding = (row for row in run.rows if row.unit == "tok/s" and row.n_gen and not row.n_depth)
        rates = [row.mean for row in decoding if row.mean is not None]
        if rates:
            found[run.model] = max(rates)
    return found


# --- rows ------------------------------------------------------------------------------------------------------------


def catalog_rows(
    specs: Sequence[ModelSpec], local: Sequence[LocalModel], where: Rooms, measured: Mapping[str, float]
) -> tuple[CatalogRow, ...]:
    """What is here first, then what the registry knows beside that, in its order."""
    by_name = {spec.name: spec for spec in specs}
    here = [_local_row(model, by_name.get(model.name.partition(":")[0])) for model in local]
    there = {model.name for model in local}
    rest = [_spec_row(spec) for spec in specs if spec.name not in there and spec.path is None]
    return tuple(_judged(row, where, measured) for row in (*here, *rest))


def with_drafters(rows: Sequence[CatalogRow], drafters: Iterable[Drafter]) -> tuple[CatalogRow, ...]:
    """The rows, and after what is here heads that were trained here; one called as a model is goes by its path."""
    names = {row.name for row in rows}
    heads = [
        CatalogRow(
            name=use.name if use.name not in names else str(use.path),
            place="here",
            state="complete" if one.is_whole else "damaged",
            kind=use.kind,
            stored_as="safetensors",
            description="A head that drafts for the model that it was trained for.",
            size_bytes=use.disk_bytes,
            searched=_searched(use.name, use.kind),
            lost_target=str(one.lost_target or ""),
        )
        for one in drafters
        for use in (one.use,)
    ]
    n_here = sum(row.place == "here" for row in rows)
    return (*rows[:n_here], *heads, *rows[n_here:])


def found_rows(found: Iterable[Found], known: Iterable[CatalogRow], where: Rooms) -> tuple[CatalogRow, ...]:
    """What the hub found and the catalog does not have yet."""
    repos = {row.repo.lower() for row in known}
    rows = (_found_row(one) for one in found if one.repo.lower() not in repos)
    return tuple(_judged(row, where, {}) for row in rows)


def _searched(*texts: str) -> str:
    return " ".join(text for text in texts if text).lower()


def _local_row(model: LocalModel, spec: ModelSpec | None) -> CatalogRow:
    is_begun = model.state == "partial" and model.total_bytes > 0
    row = CatalogRow(
        name=model.name,
        place="here",
        state=model.state,
        kind=model.kind,
        stored_as=model.format,
        quant=model.quantization or model.format,
        size_bytes=model.total_bytes or model.size_bytes,
        done_share=model.size_bytes / model.total_bytes if is_begun else None,
        repo=model.repo,
        lost_target=str(model.lost_target or ""),
        searched=_searched(model.name, model.repo, model.kind, model.quantization),
    )
    if spec is None:
        return row
    from_spec = _spec_row(spec)
    return dataclasses.replace(
        row,
        title=from_spec.title,
        description=spec.description,
        family=spec.family,
        parameters=spec.parameters,
        active=spec.active,
        quants=from_spec.quants,
        context=spec.context,
        licence=spec.licence,
        gated=from_spec.gated,
        searched=_searched(row.searched, from_spec.searched),
    )


def _spec_row(spec: ModelSpec) -> CatalogRow:
    is_gguf = not spec.wants_safetensors
    size = size_of(spec, spec.chosen_quant) if is_gguf else 2 * spec.parameters
    return CatalogRow(
        name=spec.name,
        place="registry",
        title=spec.family,
        description=spec.description,
        family=spec.family,
        stored_as="gguf" if is_gguf else "safetensors",
        parameters=spec.parameters,
        active=spec.active,
        quant=spec.chosen_quant if is_gguf else "BF16",
        quants=(*spec.quants, *([SAFETENSORS] if spec.repo else [])),
        size_bytes=size,
        is_size_exact=spec.chosen_quant in spec.sizes,
        context=spec.context,
        licence=spec.licence,
        gated=("original" if is_gguf else "yes") if spec.gated else "",
        repo=spec.gguf if is_gguf else spec.repo,
        searched=_searched(spec.name, *spec.aliases, spec.family, spec.repo, spec.gguf, spec.description, spec.licence),
    )


def _found_row(found: Found) -> CatalogRow:
    is_gguf = "gguf" in found.formats
    bits = USUAL_BPW[_USUAL_QUANT] if is_gguf else 16.0
    return CatalogRow(
        name=found.repo,
        place="hub",
        stored_as="gguf" if is_gguf else "safetensors",
        parameters=found.num_parameters,
        quant=("GGUF" if is_gguf else "BF16") if found.formats else "",
        size_bytes=round(found.num_parameters * bits / 8) if found.formats else 0,
        is_size_exact=False,
        gated="yes" if found.is_gated else "",
        repo=found.repo,
        downloads=found.downloads,
        updated=found.updated,
        searched=_searched(found.repo),
    )


def _judged(row: CatalogRow, where: Rooms, measured: Mapping[str, float]) -> CatalogRow:
    room = where.of(row.stored_as)
    held = held_bytes(row.stored_as, row.size_bytes, row.parameters, room.backend, on_gpu=room.on_gpu)
    fit = rough_fit(held if row.size_bytes else 0, room)
    return dataclasses.replace(
        row,
        fit=fit,
        expected_tok_s=expected_tok_s(held, row.parameters, row.active, fit, room),
        measured_tok_s=measured.get(row.name),
    )


# --- words and order -------------------------------------------------------------------------------------------------


def filtered(rows: Iterable[CatalogRow], query: str, *, fits_only: bool = False) -> Iterator[CatalogRow]:
    """The rows that have every word of `query` somewhere, and, if asked for, that fit or may be split."""
    words = query.lower().split()
    for row in rows:
        if all(word in row.searched for word in words) and not (
            fits_only and row.fit.verdict not in ("fits", "partly")
        ):
            yield row


def damage(row: CatalogRow) -> str:
    """What is to be done about a row that is damaged, or what is wrong with its link."""
    if row.lost_target and row.kind == "own file":
        return f"{row.lost_target} does not exist: {GONE}"
    if row.lost_target:
        return f"its link leads to {row.lost_target}: {MOUNT}"
    if row.is_drafter:
        return "train it again: runner draft train"
    return "verify --repair" if row.repo else "quantize again"


def deletable_name(row: CatalogRow) -> str:
    """The name that means the row's own weights alone, so that deleting it leaves its other quantizations."""
    if ":" in row.name or row.kind != "cache" or row.quant not in row.quants:
        return row.name
    return f"{row.name}:{row.quant if row.stored_as == 'gguf' else SAFETENSORS}"
