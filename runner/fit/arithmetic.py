"""The arithmetic: weights, KV cache by kind of layer, workspace and draft, beside what a device has free.

How each backend holds what a file stores is in one table here. It knows no allocator: what was really used is in
MemoryUse after the load, and fit_history corrects the next estimate by it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from runner.backends.llamacpp import GPU_HINT, probe
from runner.config import KvType, LoadOptions
from runner.events import Notice
from runner.fit.facts import ModelFacts, default_context
from runner.fit_history import NO_CORRECTION, Correction
from runner.model_config.shape import CacheKind, Shape
from runner.types import BackendName, Device, MemoryUse, WeightsFormat

_KV_BYTES: Final[Mapping[KvType, float]] = {"f32": 4.0, "f16": 2.0, "bf16": 2.0, "q8_0": 34 / 32}
_PREFILL_BLOCK: Final = 256 * 2**20  # runner.kernels.gemm.BLOCK_BYTES, which is not imported: it would import torch
_SPARE: Final = 256 * 2**20  # what drivers and libraries take for themselves on a GPU


@dataclass(frozen=True, kw_only=True)
class Fit:
    """An estimate beside what the device has.

    need: by part, corrected; estimated: the same as the formulas have it. kv_parts: need's KV cache by kind of layer.
    draft_bytes: all that the draft model takes. available_bytes: free on `device` now, less what drivers
    take. others_bytes: what other processes hold there. ram_bytes: free main memory for the layers that a GPU has no
    room for; 0 where the backend does not split a model, or the GPU works in main memory itself. n_loads: how many
    earlier loads the correction comes from.
    """

    device: Device
    backend: BackendName
    n_ctx: int
    kv_type: KvType
    need: MemoryUse
    estimated: MemoryUse
    kv_parts: tuple[KvPart, ...]
    draft_bytes: int
    available_bytes: int
    others_bytes: int
    ram_bytes: int
    n_gpu_layers: int
    num_layers: int
    n_loads: int

    @property
    def total_bytes(self) -> int:
        return self.need.total_bytes + self.draft_bytes

    @property
    def room_bytes(self) -> int:
        return self.available_bytes + self.ram_bytes

    @property
    def is_fitting(self) -> bool:
        return self.total_bytes <= self.room_bytes


@dataclass(frozen=True, kw_only=True)
class KvPart:
    """What the layers of one kind keep at the estimate's context. window: tokens that such a layer needs, or 0."""

    kind: CacheKind
    num_layers: int
    window: int
    size_bytes: int


@dataclass(frozen=True, kw_only=True)
class _Ways:
    """How a backend holds a model. ctx_block: the context is rounded up to a multiple. states: how many of each layer
    that has one, and put_aside: how many more in main memory, wherever the layer is. past_on_gpu: bytes there of an
    element of a convolution's past. gpus: kinds that it uses."""

    ctx_block: int
    keeps_windows_whole: bool
    splits: bool
    states: int
    put_aside: int = 0
    past_on_gpu: int
    gpus: tuple[str, ...]


# llama.cpp: measured with llama-cpp-python 0.3.36. Its default is swa_full, by which layers with a window have cells
# for all of the context: it lets the cache be cut anywhere. Recurrent states are float32 whatever --kv-type says; two
# more are put aside (saved_states.py, which is not imported: it would import llama_cpp).
# native: its cache has one length for all layers, and states are those of 12 lengths and two that are saved, the past
# of their convolutions in the type that it computes in (delta_state.py, which is not imported: it would import torch).
_GPUS: Final = ("cuda", "rocm")
_WAYS: Final[Mapping[BackendName, _Ways]] = {
    "llamacpp": _Ways(
        ctx_block=256,
        keeps_windows_whole=True,
        splits=True,
        states=1,
        put_aside=2,
        past_on_gpu=4,
        gpus=(*_GPUS, "metal"),
    ),
    "native": _Ways(ctx_block=1, keeps_windows_whole=True, splits=False, states=14, past_on_gpu=2, gpus=_GPUS),
    "fake": _Ways(ctx_block=1, keeps_windows_whole=False, splits=False, states=1, past_on_gpu=4, gpus=()),
}


def usable_bytes(device: Device) -> int:
    """What a model may take of what a device has free: nothing of one that is full."""
    return max(0, device.free_bytes - (_SPARE if device.kind != "cpu" else 0))


def estimate(
    facts: ModelFacts,
    options: LoadOptions,
    machine: Sequence[Device],
    backend: BackendName = "llamacpp",
    *,
    draft: ModelFacts | None = None,
    correction: Correction = NO_CORRECTION,
) -> Fit:
    """What a model needs on the GPU with most free memory, or in RAM. draft: of speculative decoding, on the same."""
    n_ctx = options.n_ctx(default_context(facts.shape))
    gpus = [device for device in machine if device.kind in _WAYS[backend].gpus]
    on_gpu = bool(gpus) and options.n_gpu_layers != 0
    candidates = gpus if on_gpu else [device for device in machine if device.kind == "cpu"]
    device = max(candidates, key=lambda device: device.free_bytes)
    in_ram = not on_gpu or device.is_in_main_memory
    estimated, parts = _need(facts, options, n_ctx, backend, on_gpu=on_gpu, in_ram=in_ram)
    need = correction.apply(estimated)
    draft_bytes = 0
    if draft is not None:
        draft_ctx = min(n_ctx, default_context(draft.shape))
        of_draft, _ = _need(draft, options, draft_ctx, backend, on_gpu=on_gpu, in_ram=in_ram)
        draft_bytes = of_draft.total_bytes
    available = usable_bytes(device)
    is_split = on_gpu and _WAYS[backend].splits and not device.is_in_main_memory
    return Fit(
        device=device,
        backend=backend,
        n_ctx=n_ctx,
        kv_type=kv_type_of(options.kv_type, backend, on_gpu=on_gpu),
        need=need,
        estimated=estimated,
        kv_parts=parts,
        draft_bytes=draft_bytes,
        available_bytes=available,
        others_bytes=max(0, device.total_bytes - device.free_bytes),
        ram_bytes=sum(device.free_bytes for device in machine if device.kind == "cpu") if is_split else 0,
        n_gpu_layers=_layers_on_gpu(need, available - draft_bytes, facts.shape.num_layers) if on_gpu else 0,
        num_layers=facts.shape.num_layers,
        n_loads=correction.n_loads,
    )


def _need(
    facts: ModelFacts, options: LoadOptions, n_ctx: int, backend: BackendName, *, on_gpu: bool, in_ram: bool
) -> tuple[MemoryUse, tuple[KvPart, ...]]:
    """in_ram: the model's memory is main memory, where states are put aside too."""
    ways = _WAYS[backend]
    cells = -(-n_ctx // ways.ctx_block) * ways.ctx_block
    per_element = _KV_BYTES[kv_type_of(options.kv_type, backend, on_gpu=on_gpu)]
    parts = _kv_parts(facts.shape, cells, per_element, ways, on_gpu=on_gpu, in_ram=in_ram)
    workspace = {"llamacpp": _llamacpp_workspace, "native": _native_workspace}.get(backend)
    chunk = min(options.chunk(is_native_gpu=backend == "native" and on_gpu), n_ctx)  # no prompt is longer
    need = MemoryUse(
        weights_bytes=_weights_bytes(facts, backend, on_gpu=on_gpu),
        kv_cache_bytes=sum(part.size_bytes for part in parts),
        workspace_bytes=workspace(facts.shape, chunk, cells, on_gpu) if workspace else 0,
    )
    return need, parts


def kv_type_of(asked: KvType, backend: BackendName, *, on_gpu: bool) -> KvType:
    """The type of the KV cache. native takes f16, the default, as the type that its attention computes in."""
    if backend == "native" and asked == "f16":
        return "bf16" if on_gpu else "f32"
    return asked


def _weights_bytes(facts: ModelFacts, backend: BackendName, *, on_gpu: bool) -> int:
    """What the weights take once they are loaded."""
    return held_bytes(facts.format, facts.weights_bytes, facts.num_parameters, backend, on_gpu=on_gpu)


def held_bytes(
    stored_as: WeightsFormat, stored_bytes: int, num_parameters: int, backend: BackendName, *, on_gpu: bool
) -> int:
    """What weights take in memory: the one place that knows what each backend makes of a file.

    llama.cpp keeps them as the file has them. native holds all of them in float32 on a CPU; on a GPU packed ones stay
    packed and all others are bfloat16.
    """
    if backend != "native" or not num_parameters or (on_gpu and stored_as == "packed"):
        return stored_bytes
    return (2 if on_gpu else 4) * num_parameters


def _kv_parts(
    shape: Shape, cells: int, per_element: float, ways: _Ways, *, on_gpu: bool, in_ram: bool
) -> tuple[KvPart, ...]:
    n_states = ways.states + (ways.put_aside if in_ram else 0)
    past_bytes = ways.past_on_gpu if on_gpu else 4
    sizes: dict[tuple[CacheKind, int], list[int]] = {}
    for cache in shape.caches:
        sizes.setdefault((cache.kind, 0 if cache.kind == "shared" else cache.window), []).append(
            round(cache.elements(cells, is_window_whole=ways.keeps_windows_whole) * per_element)
            + n_states * cache.state_bytes(past_bytes)
        )
    return tuple(
        KvPart(kind=kind, num_layers=len(of_layers), window=window, size_bytes=sum(of_layers))
        for (kind, window), of_layers in sizes.items()
    )


def _llamacpp_workspace(shape: Shape, batch_size: int, cells: int, _on_gpu: bool) -> int:
    """A bound for one prefill chunk: its logits and about eight activations in float32, a mask for each kind of window.

    llama.cpp's allocator reuses what is no longer needed: it took 0.5 to 0.97 of this on six small models, at contexts
    of 1000 to 32768 tokens (llama-cpp-python 0.3.36, CPU).
    """
    masks = len({cache.window for cache in shape.caches if cache.width})
    return batch_size * (4 * (shape.vocab_size + 8 * shape.hidden_size) + 2 * masks * cells)


def _native_workspace(shape: Shape, batch_size: int, _cells: int, on_gpu: bool) -> int:
    """A bound: float32 activations of one prefill chunk, and the logits of its last token alone.

    On a GPU also a matrix as bfloat16, and its product in float32, both of which are cut where they would take more
    than _PREFILL_BLOCK. A matrix is at most all that a token passes through in a layer.
    """
    activations = 4 * (batch_size * 14 * shape.hidden_size + shape.vocab_size)
    if not on_gpu:
        return activations
    embedding = shape.vocab_size * shape.hidden_size
    matrix = max(0, shape.num_active_parameters - embedding) // max(1, shape.num_layers)
    product = 4 * batch_size * (matrix // max(1, shape.hidden_size))
    return activations + min(_PREFILL_BLOCK, 2 * matrix) + min(_PREFILL_BLOCK, product)


def _layers_on_gpu(need: MemoryUse, available: int, num_layers: int) -> int:
    if not num_layers:
        return 0
    per_layer = (need.weights_bytes + need.kv_cache_bytes) / num_layers
    return min(num_layers, max(0, int((available - need.workspace_bytes) / max(per_layer, 1))))


def gpu_layers_that_fit(
    facts: ModelFacts,
    options: LoadOptions,
    gpus: Sequence[Device],
    correction: Correction = NO_CORRECTION,
    draft: ModelFacts | None = None,
) -> int:
    """How many layers the GPU with most free memory holds; one more than there are also moves the output layer."""
    fit = estimate(facts, options, gpus, correction=correction, draft=draft)
    return facts.shape.num_layers + 1 if fit.total_bytes <= fit.available_bytes else fit.n_gpu_layers


def with_gpu_layers(
    facts: ModelFacts,
    options: LoadOptions,
    machine: Sequence[Device],
    emit: Callable[[Notice], None],
    correction: Correction = NO_CORRECTION,
    draft: ModelFacts | None = None,
) -> LoadOptions:
    """Resolve n_gpu_layers "auto" for llama.cpp: all on a GPU that holds them, none without a usable GPU."""
    gpus = [device for device in machine if device.kind != "cpu"]
    if options.n_gpu_layers != "auto" or not gpus:
        return dataclasses.replace(options, n_gpu_layers=0) if options.n_gpu_layers == "auto" else options
    if not probe().gpu_offload:
        text = f"{gpus[0].name} is not used: the installed llama-cpp-python has no GPU support."
        emit(Notice("warning", text, GPU_HINT))
        return dataclasses.replace(options, n_gpu_layers=0)
    return dataclasses.replace(options, n_gpu_layers=gpu_layers_that_fit(facts, options, gpus, correction, draft))
