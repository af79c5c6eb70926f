"""Where a model runs here and in which types, and whether it fits there.

The CPU computes in float32: it is the reference that other ways of running a model are compared with, and 16-bit
products are slower than 32-bit ones on most CPUs. A GPU computes in bfloat16. It knows sizes and devices, no tensors.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch

from runner.backends.native.delta_state import state_bytes
from runner.backends.native.kv_cache import bytes_of_token
from runner.config import LoadOptions
from runner.errors import DoesNotFit, UnsuitedOptions
from runner.machine import default_threads, main_memory
from runner.model_config import ModelConfig
from runner.quant.weights import Weights

# float32 operations that may pass before a cancelled prefill notices. The slowest CPUs of interest do 20 GFLOP/s:
# 3 GFLOP there are 150 ms.
_FLOP_BETWEEN_CHECKS = 3e9

_FIRST_CAPACITY = 4096  # tokens: 24 splits of attention
_SHARE_OF_FREE = 0.1  # of what is free once the weights are there

# What an error says that has no class of its own: torch's on a CPU; CUDA's, HIP's and Triton's; and their libraries'.
_NO_MEMORY = ("DefaultCPUAllocator", "out of memory", "ALLOC_FAILED")

PACKED_ON_DEVICE = frozenset({"mq4", "mq4-uniform", "mq6", "mq8"})  # the formats that have kernels


@dataclass(frozen=True, kw_only=True)
class Placement:
    """dtype: dense weights and arithmetic. kv_dtype: the KV cache. name: the device for people.

    has_kernels: the model runs on the kernels, and packed weights stay packed.
    """

    device: torch.device
    dtype: torch.dtype
    kv_dtype: torch.dtype
    name: str
    has_kernels: bool

    @property
    def is_gpu(self) -> bool:
        return self.device.type != "cpu"


@dataclass(frozen=True, kw_only=True)
class Needs:
    """Bytes that a model takes at `n_ctx` tokens of context. state_bytes: of delta nets, whatever the context."""

    weights_bytes: int
    kv_bytes_per_token: int
    n_ctx: int
    state_bytes: int = 0

    @property
    def cache_bytes(self) -> int:
        return self.state_bytes + self.kv_bytes_per_token * self.n_ctx

    @property
    def total_bytes(self) -> int:
        return self.weights_bytes + self.cache_bytes


def place(options: LoadOptions) -> Placement:
    """The GPU if there is one and layers may go there, else the CPU, whose threads are set here for the process.

    kv_type "f16", the default, keeps the cache in the type that attention computes in: float32 on the CPU, where
    halves would be converted at every step, bfloat16 on a GPU. "bf16" and "f32" are taken as they are. "q8_0" is int8
    with a scale for each head's row, which only the kernels read: UnsuitedOptions on a CPU. Raises DoesNotFit where
    other programs leave a GPU no memory at all.
    """
    use_gpu = options.n_gpu_layers != 0 and torch.cuda.is_available()
    if options.n_gpu_layers not in ("auto", 0) and not use_gpu:
        raise UnsuitedOptions("torch finds no GPU here.", hint="Use -ngl 0 to run the model on the CPU.")
    dtype = torch.bfloat16 if use_gpu else torch.float32
    has_kernels = use_gpu and importlib.util.find_spec("triton") is not None
    if options.kv_type == "q8_0" and not has_kernels:
        raise UnsuitedOptions(
            "The native backend has a q8_0 KV cache only on a GPU with Triton.",
            hint="Use --kv-type f16, bf16 or f32, or --backend llamacpp.",
        )
    kv_dtype = {"f16": dtype, "bf16": torch.bfloat16, "f32": torch.float32, "q8_0": torch.int8}[options.kv_type]
    if use_gpu:
        # cuDNN's attention plans anew for every length, which each token changes: 24 tok/s instead of 384
        # (demo model, H200, torch 2.11).
        torch.backends.cuda.enable_cudnn_sdp(False)
        device = _opened_gpu()
        return Placement(
            device=device,
            dtype=dtype,
            kv_dtype=kv_dtype,
            name=torch.cuda.get_device_name(device),
            has_kernels=has_kernels,
        )
    torch.set_num_threads(options.n_threads or default_threads())
    threads = torch.get_num_threads()
    name = f"CPU ({threads} thread{'s' if threads != 1 else ''})"
    return Placement(device=torch.device("cpu"), dtype=dtype, kv_dtype=kv_dtype, name=name, has_kernels=False)


def _opened_gpu() -> torch.device:
    """The current GPU, with the context that this process needs there, some hundred megabytes."""
    try:
        device = torch.device("cuda", torch.cuda.current_device())
        torch.cuda.mem_get_info(device)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise DoesNotFit(
            "The GPU has no memory left, not even what it takes to use it at all.",
            hint="End a program that holds some (nvidia-smi or rocm-smi lists them), or use -ngl 0 for the CPU.",
        ) from error
    return device


def prefill_chunk(config: ModelConfig, placement: Placement, options: LoadOptions) -> int:
    """Prompt tokens per forward pass: as the options say, or less where a cancelled prefill would not notice in time.

    It follows from the model and not from the clock, so that a prompt is always cut in the same places: the order of
    summation, and with it the last bits of the logits, does not depend on how busy the machine is.
    """
    if placement.is_gpu:
        return options.chunk(is_native_gpu=True)
    channels = 0 if config.delta is None else config.delta.channels
    queries = max(map(config.queries_size, config.attention_layers), default=0)
    largest = config.hidden_size * max(config.widest_mlp, queries, channels, config.inputs_size)
    return max(1, min(options.chunk(), int(_FLOP_BETWEEN_CHECKS / (2 * largest))))


def needs(config: ModelConfig, weights: Weights, placement: Placement, n_ctx: int) -> Needs:
    layers = [config.heads(layer) for layer in config.caching_layers]
    return Needs(
        weights_bytes=_weights_bytes(weights, placement),
        kv_bytes_per_token=bytes_of_token(layers, placement.kv_dtype),
        n_ctx=n_ctx,
        state_bytes=state_bytes(config.delta, placement.dtype),
    )


def _weights_bytes(weights: Weights, placement: Placement) -> int:
    """What the weights take on the device: those that kernels read as they are stored, all others as `dtype`."""
    total = 0.0
    for name, shape in weights.shapes.items():
        stays = placement.has_kernels and weights.types[name] in PACKED_ON_DEVICE
        bits = weights.bits[name] if stays else 8 * placement.dtype.itemsize
        total += math.prod(shape) * bits / 8
    return int(total)


def check_fit(need: Needs, placement: Placement) -> None:
    """Raise DoesNotFit, saying what would fit, when the device has less free memory than `need`."""
    free = free_bytes(placement)
    if need.total_bytes > free:
        raise DoesNotFit(
            _what_was_asked(need, placement, f"{_gib(free)} free"),
            hint=what_would_fit(need, free) + " --force tries anyway.",
        )


def out_of_memory(need: Needs, placement: Placement, room: int) -> DoesNotFit:
    """The error for an allocation that failed, with what was asked for and what would fit. room: see memory_errors.

    Where there was room for all that is counted, what is not, such as a pass over a prompt, lacked it: half the context
    leaves some.
    """
    asked = _what_was_asked(need, placement, f"{_gib(room)} for them")
    lesser = replace(need, n_ctx=need.n_ctx // 2) if need.total_bytes <= room else need
    return DoesNotFit(f"Out of memory. {asked}", hint=what_would_fit(lesser, room))


def is_out_of_memory(error: BaseException) -> bool:
    """Whether torch or Triton raised `error` because an allocation failed."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _NO_MEMORY)


def free_bytes(placement: Placement) -> int:
    if not placement.is_gpu:
        return main_memory().free_bytes
    unused_by_torch = torch.cuda.memory_reserved(placement.device) - torch.cuda.memory_allocated(placement.device)
    return int(torch.cuda.mem_get_info(placement.device)[0]) + unused_by_torch


def first_capacity(need: Needs, free: int) -> int:
    """Tokens that the KV cache of a GPU has room for from the start.

    A cache that grows moves, and the graphs that were recorded with it are lost. Attention looks at all of its splits,
    so that much more would cost short answers time.
    """
    affordable = int(_SHARE_OF_FREE * free / max(1, need.kv_bytes_per_token))
    return min(need.n_ctx, _FIRST_CAPACITY, affordable)


def what_would_fit(need: Needs, room: int) -> str:
    n_ctx = (room - need.weights_bytes - need.state_bytes) // max(1, need.kv_bytes_per_token) // 256 * 256
    if (n_ctx := min(n_ctx, need.n_ctx)) >= 512:
        return f"A context of {n_ctx} tokens would fit: -c {n_ctx}."
    return "Use a smaller model, or a quantized GGUF of this one with --backend llamacpp."


def _what_was_asked(need: Needs, placement: Placement, there_is: str) -> str:
    kind = "" if placement.has_kernels else f" as {str(placement.dtype).removeprefix('torch.')}"
    return (
        f"The weights{kind} take {_gib(need.weights_bytes)} and the KV cache for {need.n_ctx} tokens "
        f"{_gib(need.cache_bytes)}; {placement.name} has {there_is}."
    )


def _gib(n_bytes: int) -> str:
    return f"{n_bytes / 2**30:.2f} GiB"


@contextmanager
def memory_errors(need: Needs, placement: Placement, room: Callable[[], int]) -> Iterator[None]:
    """Turns a failed allocation into DoesNotFit. room: bytes that there are for `need`, what it holds of them already
    included; asked for then."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        if placement.is_gpu:
            torch.cuda.empty_cache()
        raise out_of_memory(need, placement, room()) from error
