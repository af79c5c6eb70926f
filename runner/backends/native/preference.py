"""Whether a GGUF is better run here than by llama.cpp: what decides, told without importing torch.

On a GPU the kernels read weights of 16 bits at nine tenths of what its memory gives (H200), draft on the device, and
write the same text with drafts as without. Weights of other types become bfloat16 here, which takes more memory and
more time to read than what is in the file: that pays for small models alone. It knows nothing of what llama.cpp can do.
"""

from __future__ import annotations

import importlib.util
import math
import shutil
from pathlib import Path
from typing import Final

from runner.config import LoadOptions
from runner.errors import RunnerError
from runner.machine import cuda_capability, devices
from runner.types import Device, ReadyModel

_LEAST_CAPABILITY: Final = (8, 0)  # kernels are compiled for these and newer ones (kernels/compile/targets.py)
_COMPILERS: Final = ("gcc", "clang")  # of C: Triton compiles what launches a kernel with one of them
_CUDA_PART: Final = Path("lib/libtorch_cuda.so")
_BFLOAT16_BYTES: Final = 2
_SHARE_OF_FREE: Final = 0.5  # of the GPU's memory, for weights: the rest is for the KV cache and graphs
# Bytes in bfloat16 up to which weights of any type pay, by compute capability. On an H200 the shapes of Qwen3-0.6B and
# 1.7B decode 1.58 and 1.23 times as fast as llama.cpp from Q8_0; a GPU not measured may be bound by its memory sooner.
_FEW_BYTES: Final = {(9, 0): 4 << 30}
_FEW_BYTES_ELSEWHERE: Final = 256 << 20


def advantage(model: ReadyModel, options: LoadOptions, *, is_emptied: bool = False) -> str | None:
    """Why a GGUF is better run by this backend than by llama.cpp, or None where it is not, or cannot be run here.

    is_emptied: as if all of the GPU's memory were free.
    """
    gpu = gpu_for_kernels() if options.n_gpu_layers in ("auto", "all") else None
    weights_bytes = _bytes_on_gpu(model) if gpu is not None else None
    if gpu is None or weights_bytes is None:
        return None
    if weights_bytes > _SHARE_OF_FREE * (gpu.total_bytes if is_emptied else gpu.free_bytes):
        return None
    few = _FEW_BYTES.get(cuda_capability(gpu) or (0, 0), _FEW_BYTES_ELSEWHERE)
    if weights_bytes > max(few, 1.05 * model.size_bytes):
        return None
    return f"it has kernels for {gpu.name}"


def gpu_for_kernels() -> Device | None:
    """The first GPU of this process, if the kernels run on it and can be compiled here."""
    gpu = next((device for device in devices() if device.kind == "cuda"), None)
    if gpu is None or (cuda_capability(gpu) or (0, 0)) < _LEAST_CAPABILITY:
        return None
    return gpu if is_torch_for_nvidia() and can_compile() else None


def can_compile() -> bool:
    """Whether kernels can be compiled: Triton and a C compiler are here."""
    return importlib.util.find_spec("triton") is not None and any(map(shutil.which, _COMPILERS))


def is_torch_for_nvidia() -> bool:
    """Whether the torch that is installed is built for NVIDIA GPUs. It is not imported to tell."""
    torch = importlib.util.find_spec("torch")
    return torch is not None and torch.origin is not None and (Path(torch.origin).parent / _CUDA_PART).exists()


def _bytes_on_gpu(model: ReadyModel) -> int | None:
    """What the weights take there, or None for a model that this backend does not read."""
    from runner.backends.native.model_files import read_config, tokenizer_path  # not where there is no GPU
    from runner.quant.weights import open_weights

    try:
        tokenizer_path(model.directory)
        weights = open_weights(model, read_config(model.directory))
    except RunnerError:
        return None
    return _BFLOAT16_BYTES * sum(math.prod(shape) for shape in weights.shapes.values())
