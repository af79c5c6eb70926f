"""The native backend: models on a GPU by the kernels of runner.kernels, on a CPU by plain torch, their reference.

Reads safetensors, packed models (`runner quantize`), and GGUF files with F32, F16, BF16 or Q8_0 tensors that have their
Hugging Face files beside them.
Importing this costs nothing: torch comes with opening.py, which `load` imports. It knows nothing of text or of chats.
"""

from __future__ import annotations

import importlib.util
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Final

from runner.backends.base import Backend, LoadProgress
from runner.config import LoadOptions
from runner.errors import RunnerError
from runner.garbage import no_garbage_collection
from runner.model_config import ModelConfig
from runner.types import CancelToken, ReadyModel

# How often a thread on a CPU looks whether the others are done, before it lets go of its core, which one of them may be
# waiting for beside another program. By itself libgomp looks 300000 times, milliseconds (docs/LOG.md, 2026-11-28).
_SPINS: Final = "20000"


def refusal(model: ReadyModel, options: LoadOptions) -> str | None:
    """Why this backend cannot run `model` with `options` here, with the remedy, or None.

    Reads config.json and the header of the weights. torch is imported only to look for a GPU that was asked for.
    """
    if model.format not in ("safetensors", "gguf", "packed"):
        return f"the native backend reads safetensors, GGUF and packed models, and {model.name} is {model.format}."
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed. Install it with: pip install torch"
    if options.kv_type == "q8_0" and (options.n_gpu_layers == 0 or not _has_kernels()):
        return "its KV cache on a CPU is f16, bf16 or f32. Choose one with --kv-type, or use --backend llamacpp."
    try:
        config = _check(model)
    except RunnerError as error:
        return f"{error.message} {error.hint}".rstrip()
    if options.n_gpu_layers != 0 and (reason := _without_kernels(config)) and _has_kernels():
        return f"on a GPU {reason}. Use -ngl 0, or a GGUF of the model with --backend llamacpp."
    return _refused_layers(config.num_layers, options.n_gpu_layers)


def load(model: ReadyModel, options: LoadOptions, on_progress: LoadProgress, cancel: CancelToken) -> Backend:
    """Load it: packed weights stay packed on a GPU; all others are bfloat16 there, and float32 on a CPU.

    Raises BadModelFile, UnsupportedModel, DoesNotFit, BackendUnavailable, RunnerError when cancelled.
    """
    from runner.backends.native.tokenizer import open_tokenizer

    with ThreadPoolExecutor(1, "tokenizer") as beside:  # it takes half a second, and holds the interpreter for a fifth
        tokenizer = beside.submit(open_tokenizer, model.directory)
        import_torch(for_gpu=options.n_gpu_layers != 0)
        from runner.backends.native.opening import let_go, open_backend

        try:
            with no_garbage_collection():  # a mixture of experts has 19,000 tensors: looking for some took a second
                return open_backend(model, tokenizer, options, on_progress, cancel)
        except BaseException as error:
            let_go(error)
            raise


def vocabulary(model: ReadyModel) -> tuple[str, ...]:
    """See BackendModule. Raises BadModelFile, UnsupportedModel."""
    from runner.backends.native.tokenizer import open_tokenizer
    from runner.backends.vocabulary import pieces

    return pieces(open_tokenizer(model.directory), special=False)


def import_torch(*, for_gpu: bool) -> None:
    """Import torch and what opens a model with it, which takes a second and more where it was not there yet.

    None of that is garbage: looking for some would take a tenth of the time. for_gpu: what a GPU needs besides is done
    meanwhile, and Triton imported where one is: without a GPU it need not be installed.
    """
    if os.environ.keys().isdisjoint(("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")):  # libgomp reads them as torch brings it
        os.environ["GOMP_SPINCOUNT"] = _SPINS
    with no_garbage_collection():
        from runner.backends.native.ahead import gpu_prepared

        with gpu_prepared() if for_gpu else nullcontext():
            from runner.backends.native import opening as _opening  # noqa: F401

            if for_gpu and _has_kernels():
                from runner.kernels import trials as _trials  # noqa: F401


def _check(model: ReadyModel) -> ModelConfig:
    """The configuration of a model, if this backend can run that, its tensors' names and their types."""
    from runner.backends.native.model_files import read_config, tokenizer_path
    from runner.quant.mq.manifest import read_manifest
    from runner.quant.weights import open_weights

    config = read_config(model.directory)
    tokenizer_path(model.directory)
    if model.format == "packed":
        read_manifest(model.directory)  # the parts are compared with it when it is loaded: that takes torch
    else:
        open_weights(model, config)
    return config


def _without_kernels(config: ModelConfig) -> str | None:
    """What of a model no kernel computes: some sizes of a delta net's heads, and of a shared expert."""
    if (delta := config.delta) is not None:
        from runner.kernels.delta_sizes import takes_dims

        if not takes_dims(delta.key_dim, delta.value_dim):
            return (
                "the heads of a gated delta net must have 16, 32, 64 or 128 elements, and this model's keys have "
                f"{delta.key_dim} and its values {delta.value_dim}"
            )
    if (experts := config.experts) is not None and experts.shared_size not in (None, experts.intermediate_size):
        return (
            "the expert that every token takes must be as wide as the others, and in this model it has "
            f"{experts.shared_size} columns and they {experts.intermediate_size}"
        )
    return None


def _has_kernels() -> bool:
    """Whether a GPU and Triton are here: what runs on them is the kernels."""
    import torch

    return importlib.util.find_spec("triton") is not None and torch.cuda.is_available()


def _refused_layers(num_layers: int, n_gpu_layers: int | str) -> str | None:
    if n_gpu_layers in ("auto", 0):
        return None
    if isinstance(n_gpu_layers, int) and n_gpu_layers < num_layers:
        return (
            f"it puts a model wholly on the GPU or wholly on the CPU, and {n_gpu_layers} of {num_layers} layers were "
            "asked for. Use -ngl all or -ngl 0, or --backend llamacpp."
        )
    import torch

    if not torch.cuda.is_available():
        return "torch finds no GPU here. Use -ngl 0, or install a torch build for this machine's GPU."
    return None
