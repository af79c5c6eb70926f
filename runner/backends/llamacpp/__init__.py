"""The llama.cpp backend: GGUF files through llama-cpp-python's token-level API. Importing this costs nothing.

It answers whether llama.cpp is installed, what it can do, and whether it can run a model; backend.py does the work.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from functools import cache

from runner.backends.base import Backend, LoadProgress
from runner.config import LoadOptions
from runner.types import CancelToken, ReadyModel

INSTALL_HINT = "Install it with: pip install --force-reinstall --no-cache-dir llama-cpp-python"
GPU_HINT = (
    "Reinstall it with GPU support: "
    'CMAKE_ARGS="-DGGML_CUDA=on" pip install --force-reinstall --no-cache-dir llama-cpp-python '
    "(-DGGML_HIP=on for AMD, -DGGML_METAL=on for Apple, -DGGML_VULKAN=on for others)."
)


@dataclass(frozen=True, kw_only=True)
class Probe:
    """What the installed llama-cpp-python can do. error: why it cannot be used at all, or None."""

    version: str
    gpu_offload: bool
    error: str | None


@cache
def probe() -> Probe:
    """Import llama_cpp and ask it; never raises. About 0.3 s the first time."""
    try:
        import llama_cpp

        from runner.backends.llamacpp.library import library_log
    except Exception as error:  # a broken wheel raises anything from ImportError to OSError and RuntimeError
        return Probe(version="", gpu_offload=False, error=f"llama-cpp-python cannot be imported: {error}")
    library_log()  # before the GPU backends start and print what they found
    return Probe(version=llama_cpp.__version__, gpu_offload=bool(llama_cpp.llama_supports_gpu_offload()), error=None)


def refusal(model: ReadyModel, options: LoadOptions) -> str | None:
    """Why llama.cpp cannot run `model` with `options` here, with the remedy, or None."""
    if model.format == "packed":
        return (
            f"llama.cpp reads GGUF files, and {model.name} is packed for the native backend. "
            "Take a GGUF of the model that it was made from: `runner quantize` makes one of that, and none of this."
        )
    if model.format != "gguf":
        return (
            f"llama.cpp reads GGUF files, and {model.name} is {model.format}. "
            f"`runner quantize {shlex.quote(str(model.directory))} --format q8_0` makes one of it."
        )
    found = probe()
    if found.error:
        return f"{found.error}. {INSTALL_HINT}"
    if options.n_gpu_layers not in ("auto", 0) and not found.gpu_offload:
        return f"The installed llama-cpp-python {found.version} has no GPU support. {GPU_HINT}"
    if model.architecture and not _knows(model.architecture):
        return (
            f"the installed llama-cpp-python {found.version} does not know the architecture {model.architecture!r}. "
            "A newer one may (pip install --upgrade llama-cpp-python)."
        )
    return None


def _knows(architecture: str) -> bool:
    from runner.backends.llamacpp.library import knows

    return knows(architecture)


def load(model: ReadyModel, options: LoadOptions, on_progress: LoadProgress, cancel: CancelToken) -> Backend:
    """Load a GGUF file. Raises BadModelFile, UnsupportedModel, DoesNotFit, BackendUnavailable."""
    from runner.backends.llamacpp.backend import LlamaCppBackend

    return LlamaCppBackend(model, options, on_progress, cancel)


def vocabulary(model: ReadyModel) -> tuple[str, ...]:
    """See BackendModule. Raises BadModelFile."""
    from runner.backends.llamacpp.tokenizer import read_pieces

    return read_pieces(model)
