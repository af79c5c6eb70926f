"""Whose the memory of the model's device is: the model's by part, this program's rest, others', and what is free.

Pure functions of a sample, a loaded model and its estimate. They know no colour and no widget; what nobody says (whose
a part is, in a container) is said to be unknown and not guessed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from runner.events import Loaded
from runner.fit import Fit
from runner.tui.machine_watch import DeviceSample, MachineSample
from runner.types import MemoryUse

PartName = Literal[
    "weights", "KV cache", "workspace", "graphs", "draft", "model", "runtime", "others", "others and runtime"
]
_LEAST_REST: Final = 2**20  # rounding of pages and drivers, not worth a part


@dataclass(frozen=True, kw_only=True)
class Part:
    name: PartName
    size_bytes: int


@dataclass(frozen=True, kw_only=True)
class MemoryView:
    """The memory of one device.

    title: "VRAM" or "RAM". note: what is to be known of the figures, or nothing. parts: what is held, in the order of
    the bar, none of them empty; with free_bytes they add up to total_bytes. runtime is what this program holds beside
    the model's parts at load: libraries, the driver's share, the interpreter, graphs that were recorded since.
    estimated_bytes: what the load was expected to take; actual_bytes: what the backend says it took; held_bytes: what
    this program's processes hold on the device now. None where nobody says.
    """

    title: Literal["VRAM", "RAM"]
    device: str
    note: str
    parts: tuple[Part, ...]
    free_bytes: int
    total_bytes: int
    estimated_bytes: int | None
    actual_bytes: int | None
    held_bytes: int | None

    @property
    def used_bytes(self) -> int:
        return self.total_bytes - self.free_bytes

    @property
    def others_bytes(self) -> int:
        return sum(part.size_bytes for part in self.parts if part.name in ("others", "others and runtime"))


def model_device(sample: MachineSample, loaded: Loaded | None) -> DeviceSample:
    """The device that holds the loaded model; without one, the device that a model would be put on.

    Of several GPUs it is the one that this program holds most memory of, else one of the name that the backend gives,
    else the first.
    """
    gpus, memory = sample.devices[:-1], sample.devices[-1]
    if not gpus or (loaded is not None and not loaded.info.n_gpu_layers):
        return memory
    named = [one for one in gpus if loaded is not None and one.device.name == loaded.info.device]
    return max(gpus, key=lambda one: (_held_on_gpu(one, sample) or 0, one in named))


def memory_view(sample: MachineSample, loaded: Loaded | None, fit: Fit | None) -> MemoryView | None:
    """The memory of the model's device; None when its driver says nothing."""
    one = model_device(sample, loaded)
    used, total = one.now.used_bytes, one.now.total_bytes
    if used is None or not total:
        return None
    is_memory = one is sample.devices[-1]
    held = _held_in_memory(sample) if is_memory else _held_on_gpu(one, sample)
    model = _model_parts(loaded, held, is_split=_is_split(sample, loaded))
    own = _private_bytes(sample) if is_memory else held
    parts = _clamped([*model, *_rest(model, used, own, held)], total)
    return MemoryView(
        title="RAM" if is_memory else "VRAM",
        device=one.device.name,
        note=_note(one, sample, loaded, held),
        parts=tuple(parts),
        free_bytes=total - sum(part.size_bytes for part in parts),
        total_bytes=total,
        estimated_bytes=fit.total_bytes if fit is not None and loaded is not None and fit.total_bytes else None,
        actual_bytes=loaded.memory.total_bytes if loaded is not None and loaded.memory.total_bytes else None,
        held_bytes=held,
    )


def _held_in_memory(sample: MachineSample) -> int | None:
    return sum(process.resident_bytes for process in sample.own) or None


def _private_bytes(sample: MachineSample) -> int:
    """Mapped weights are the file cache's: what counts as used does not have them."""
    return sum(process.private_bytes for process in sample.own)


def _held_on_gpu(one: DeviceSample, sample: MachineSample) -> int | None:
    """Bytes that this program's processes hold of a GPU; None when its driver does not say which are ours."""
    own = {process.pid for process in sample.own}
    mine = [process.used_bytes for process in one.activity.processes if process.pid in own]
    return sum(size for size in mine if size is not None) or None


def _is_split(sample: MachineSample, loaded: Loaded | None) -> bool:
    """Whether the model lies in more than one memory, so that its parts cannot be told apart on one of them."""
    if loaded is None or not loaded.info.n_gpu_layers:
        return False
    n_held = sum(_held_on_gpu(one, sample) is not None for one in sample.devices[:-1])
    return loaded.info.n_gpu_layers < loaded.info.num_layers or n_held > 1


def _model_parts(loaded: Loaded | None, held: int | None, *, is_split: bool) -> list[Part]:
    if loaded is None:
        return []
    if is_split:
        return _filled([("model", held or 0)])
    use: MemoryUse = loaded.memory
    return _filled(
        [
            ("weights", use.weights_bytes),
            ("KV cache", use.kv_cache_bytes),
            ("workspace", use.workspace_bytes),
            ("graphs", use.graphs_bytes),
            ("draft", use.draft_bytes),
        ]
    )


def _rest(model: Sequence[Part], used: int, own: int | None, held: int | None) -> list[Part]:
    """What is held beside the model's parts. own: this program's share of `used`, None when nobody says it."""
    of_model = sum(part.size_bytes for part in model)
    if own is None:
        name: PartName = "others and runtime" if model else "others"
        return _filled([(name, max(0, used - of_model))])
    runtime = max(0, (held or 0) - of_model)
    return _filled([("runtime", runtime if runtime >= _LEAST_REST else 0), ("others", max(0, used - own))])


def _filled(sizes: Sequence[tuple[PartName, int]]) -> list[Part]:
    return [Part(name=name, size_bytes=size) for name, size in sizes if size > 0]


def _clamped(parts: Sequence[Part], total: int) -> list[Part]:
    """The parts, cut where they are more than there is: they are read one after another while memory moves."""
    left, found = total, []
    for part in parts:
        size = min(part.size_bytes, left)
        left -= size
        if size:
            found.append(Part(name=part.name, size_bytes=size))
    return found


def _note(one: DeviceSample, sample: MachineSample, loaded: Loaded | None, held: int | None) -> str:
    if one.device.kind == "cpu":
        return "no GPU: main memory" if len(sample.devices) == 1 else "the model is in main memory"
    if one.device.is_in_main_memory:
        return "the GPU works in main memory"
    if loaded is None:
        return ""
    info = loaded.info
    if info.n_gpu_layers < info.num_layers:
        return f"{info.n_gpu_layers} of {info.num_layers} layers; the others are in RAM"
    if held is None and one.device.kind == "cuda":
        return "whose the rest is, " + (
            "the driver does not say" if sample.has_host_pids else "the driver does not say in a container"
        )
    return ""


def cells(parts: Sequence[int], free: int, width: int) -> tuple[int, ...]:
    """How many of `width` cells of a bar each part gets, the free rest last.

    Each part has one at least, so that none is hidden, as long as there are cells; the rest is shared by size, by the
    largest remainder.
    """
    sizes = [*parts, max(0, free)]
    total = sum(sizes)
    if width <= 0 or total <= 0:
        return tuple(0 for _ in sizes)
    least = [int(size > 0) for size in sizes] if sum(size > 0 for size in sizes) <= width else [0] * len(sizes)
    exact = [width * size / total for size in sizes]
    counts = [max(floor, int(value)) for floor, value in zip(least, exact, strict=True)]
    while sum(counts) > width:  # small parts were rounded up: the largest give way
        counts[max(range(len(counts)), key=lambda index: counts[index] - least[index])] -= 1
    by_remainder = sorted(range(len(sizes)), key=lambda index: counts[index] - exact[index])
    for index in by_remainder[: width - sum(counts)]:
        counts[index] += 1
    return tuple(counts)
