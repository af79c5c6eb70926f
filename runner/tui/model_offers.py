"""What a model can be fetched as: its quantizations with their sizes, and whether each fits. It may ask the hub."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from runner.fit import USUAL_BPW, held_bytes
from runner.registry import SAFETENSORS
from runner.tui.catalog import CatalogRow, Rooms, RowFit, rough_fit
from runner.tui.catalog_reading import Catalog, quants_on_hub
from runner.types import WeightsFormat


@dataclass(frozen=True, kw_only=True)
class Offer:
    """name: what to ask for. label: the quantization. note: such as "here already". is_usual: the default one."""

    name: str
    label: str
    size_bytes: int
    is_exact: bool
    fit: RowFit
    note: str = ""
    is_usual: bool = False


def offers_of(row: CatalogRow, catalog: Catalog) -> tuple[Offer, ...]:
    """The offers of a row, smallest first, the original weights last. Raises RunnerError when the hub has to be asked
    and cannot be."""
    base = row.name.partition(":")[0]
    states = {one.name: one.state for one in catalog.rows}
    if row.place == "hub" or not row.quants:
        found = quants_on_hub(base)
        if not found:
            return (_offer(row, base, row.quant, row.size_bytes, catalog.rooms, states.get(base, "")),)
        return tuple(
            _offer(row, f"{base}:{quant}", quant, size, catalog.rooms, states.get(f"{base}:{quant}", ""), exact=True)
            for quant, size in found
        )
    return tuple(_registry_offers(row, base, catalog))


def _registry_offers(row: CatalogRow, base: str, catalog: Catalog) -> Iterable[Offer]:
    by_name = {one.name: one for one in catalog.rows}
    usual = by_name.get(base)
    for quant in row.quants:
        name = f"{base}:{quant}"
        is_usual = usual is not None and usual.quant == quant
        known = by_name.get(name) or (usual if is_usual else None)
        bits = 16.0 if quant == SAFETENSORS else USUAL_BPW.get(quant.removeprefix("UD-"), 0.0)
        size = known.size_bytes if known is not None else round(row.parameters * bits / 8)
        is_exact = known is not None and known.is_size_exact
        state = known.state if known is not None else ""
        yield _offer(row, name, quant, size, catalog.rooms, state, exact=is_exact, is_usual=is_usual)


def _offer(
    row: CatalogRow,
    name: str,
    label: str,
    size: int,
    where: Rooms,
    state: str,
    *,
    exact: bool = False,
    is_usual: bool = False,
) -> Offer:
    is_original = label == SAFETENSORS or row.stored_as != "gguf"
    stored_as: WeightsFormat = "safetensors" if is_original else "gguf"
    room = where.of(stored_as)
    held = held_bytes(stored_as, size, row.parameters, room.backend, on_gpu=room.on_gpu) if size else 0
    notes = {"complete": "here already", "partial": "begun", "damaged": "damaged here"}
    gated = "gated" if row.gated == "yes" or (row.gated == "original" and is_original) else ""
    return Offer(
        name=name,
        label="original weights" if label == SAFETENSORS else label or "all of it",
        size_bytes=size,
        is_exact=exact,
        fit=rough_fit(held, room),
        note=", ".join(one for one in (notes.get(state, ""), gated) if one),
        is_usual=is_usual,
    )
