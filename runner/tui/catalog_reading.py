"""Reading what the catalog is made of: registry, disk, benchmarks, devices; and asking the hub. It belongs in a thread.

It imports what is heavy, so that opening the screen is instant; it knows no widget.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from runner import hub
from runner.bench.store import read_history
from runner.closed import cannot_read
from runner.disk_usage import drafters
from runner.errors import RunnerError
from runner.inventory import local_models, unreadable
from runner.machine import devices, rated_bandwidth
from runner.paths import Paths
from runner.registry import Registry
from runner.tui.catalog import CatalogRow, Rooms, catalog_rows, found_rows, measured_tok_s, rooms, with_drafters
from runner.tui.exact_fit import explain
from runner.tui.yardstick import measured_bandwidth
from runner.types import Device

_ON_THIS_MACHINE = "demo"
SEARCH_LIMIT = 60


@dataclass(frozen=True, kw_only=True)
class Catalog:
    """Rows, and the memory that they were judged by: devices as they were at one moment, and what is loaded where.

    problem: what could not be read, and what to do about it.
    """

    rows: tuple[CatalogRow, ...]
    rooms: Rooms
    machine: tuple[Device, ...]
    problem: RunnerError | None = None


def read_catalog(paths: Paths, *, gguf_on_gpu: bool | None = None) -> Catalog:
    """Everything that is known without the network. gguf_on_gpu: as an earlier reading found out."""
    machine, problem = tuple(devices()), None
    try:
        runs = read_history(paths.bench_history).runs
    except RunnerError as error:
        runs, problem = (), error
    # A GPU's driver says what its memory gives at most; what a benchmark has read is nearer to what decoding finds.
    rates = {device.name: measured_bandwidth(runs, device) or rated_bandwidth(device) for device in machine}
    bandwidths = {name: rate for name, rate in rates.items() if rate is not None}
    where = rooms(machine, bandwidths, gguf_on_gpu=can_offload(machine, paths) if gguf_on_gpu is None else gguf_on_gpu)
    try:
        registry = Registry.load_for(paths)
        rows = catalog_rows(registry.specs, local_models(registry), where, measured_tok_s(runs))
        rows = with_drafters(rows, drafters(paths.drafts))
        if closed := unreadable(registry, paths):
            problem = problem or cannot_read(closed)
    except RunnerError as error:  # a models.toml of the user's with a mistake in it
        rows, problem = (), error
    return Catalog(rows=rows, rooms=where, machine=machine, problem=problem)


def can_offload(machine: Sequence[Device], paths: Paths) -> bool:
    """Whether GGUF files run on a GPU here: where there is one, what `runner explain` says of the demo."""
    if all(device.kind == "cpu" for device in machine):
        return False
    try:
        plain = explain(_ON_THIS_MACHINE, paths, offline=True)
        return plain is not None and plain["fit"]["device"]["kind"] != "cpu"
    except (RunnerError, KeyError, TypeError):
        return False


def search_hub(query: str, catalog: Catalog) -> tuple[CatalogRow, ...]:
    """What the hub finds for `query` and the catalog does not have. Raises RunnerError."""
    return found_rows(hub.search(query, limit=SEARCH_LIMIT), catalog.rows, catalog.rooms)


def quants_on_hub(repo: str) -> tuple[tuple[str, int], ...]:
    """The GGUF quantizations of a repository, with their bytes, smallest first. Raises RunnerError."""
    from runner.model_files import gguf_groups

    listing = hub.list_files(repo)
    sizes = {file.name: file.size_bytes for file in listing.files}
    found = {group.quant: sum(sizes[name] for name in group.names) for group in gguf_groups(sizes) if group.quant}
    return tuple(sorted(found.items(), key=lambda pair: pair[1]))
