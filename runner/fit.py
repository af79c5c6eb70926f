"""Does a model fit this machine? An estimate from file headers alone, before anything is loaded.

Weights are what the files hold; the KV cache follows from the context and the shape of the attention layers; the
workspace is a bound on what one prefill chunk needs. It knows no backend's allocator: what was really used is in
MemoryUse after the load.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from runner.config import DEFAULT_CTX, KvType, LoadOptions
from runner.errors import BadModelFile, DoesNotFit
from runner.model_config import num_parameters, parse_model_config
from runner.quant.gguf_file import GgufHeader, read_header
from runner.quant.json_file import read_json
from runner.types import BackendName, Device, MemoryUse, ReadyModel

_KV_BYTES: dict[KvType, float] = {"f32": 4.0, "f16": 2.0, "bf16": 2.0, "q8_0": 34 / 32}
_SPARE = 256 * 2**20  # what drivers and libraries take for themselves on a GPU


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What the estimate needs to know of a model. kv_width: elements of K and V of all layers per token."""

    context_length: int
    num_parameters: int
    num_layers: int
    hidden_size: int
    vocab_size: int
    kv_width: int


@dataclass(frozen=True, kw_only=True)
class Fit:
    """An estimate beside what the device has. need: by part; available_bytes: free on `device` now.

    ram_bytes: free main memory for the layers that a GPU has no room for; 0 where the backend does not split a model.
    """

    device: Device
    n_ctx: int
    need: MemoryUse
    available_bytes: int
    ram_bytes: int
    n_gpu_layers: int

    @property
    def is_fitting(self) -> bool:
        return self.need.total_bytes <= self.available_bytes + self.ram_bytes


def model_shape(model: ReadyModel) -> Shape:
    """Read the shape from the GGUF header or config.json. Raises BadModelFile, UnsupportedModel."""
    if model.format == "gguf":
        return _gguf_shape(read_header(model.weights[0]))
    if model.format == "script":
        return Shape(
            context_length=DEFAULT_CTX, num_parameters=0, num_layers=0, hidden_size=0, vocab_size=0, kv_width=0
        )
    config = parse_model_config(read_json(model.directory / "config.json"))
    return Shape(
        context_length=config.max_position_embeddings,
        num_parameters=num_parameters(config),
        num_layers=config.num_layers,
        hidden_size=config.hidden_size,
        vocab_size=config.vocab_size,
        kv_width=2 * config.num_layers * config.num_kv_heads * config.head_dim,
    )


def _gguf_shape(header: GgufHeader) -> Shape:
    def number(key: str, default: int | None = None) -> int:
        value = header.metadata.get(f"{header.architecture}.{key}", default)
        if not isinstance(value, int):
            raise BadModelFile(
                f"{header.path.name} has no number under {header.architecture}.{key}.",
                hint="The file is damaged: fetch it again.",
            )
        return value

    layers, hidden = number("block_count"), number("embedding_length")
    heads = header.of_architecture("attention.head_count")  # one number, or one for each layer
    most_heads = max(heads, default=1) if isinstance(heads, Sequence) else number("attention.head_count")
    head_dim = hidden // max(most_heads, 1)
    width = number("attention.key_length", head_dim) + number("attention.value_length", head_dim)
    kv_heads = header.metadata.get(f"{header.architecture}.attention.head_count_kv", heads)
    total_kv_heads = sum(kv_heads) if isinstance(kv_heads, Sequence) else layers * int(kv_heads)
    return Shape(
        context_length=number("context_length"),
        num_parameters=header.num_parameters,
        num_layers=layers,
        hidden_size=hidden,
        vocab_size=len(header.metadata.get("tokenizer.ggml.tokens", ())),
        kv_width=total_kv_heads * width,
    )


def estimate(
    shape: Shape, size_bytes: int, options: LoadOptions, machine: Sequence[Device], backend: BackendName = "llamacpp"
) -> Fit:
    """What a model of `shape` with `size_bytes` of files needs, on the GPU with most free memory or in RAM.

    llama.cpp keeps weights as they are in the file; native has them, and its KV cache, in float32 on a CPU and in
    bfloat16 on a GPU.
    """
    n_ctx = options.n_ctx(shape.context_length)
    gpus = [device for device in machine if device.kind != "cpu"]
    on_gpu = bool(gpus) and options.n_gpu_layers != 0
    candidates = gpus if on_gpu else [device for device in machine if device.kind == "cpu"]
    device = max(candidates, key=lambda device: device.free_bytes)
    weights_bytes, kv_bytes = size_bytes, _KV_BYTES[options.kv_type]
    if backend == "native":
        weights_bytes = shape.num_parameters * (2 if on_gpu else 4)
        kv_bytes = 4.0 if options.kv_type == "f16" and not on_gpu else kv_bytes
    need = MemoryUse(
        weights_bytes=weights_bytes,
        kv_cache_bytes=round(shape.kv_width * n_ctx * kv_bytes),
        # fp32, for one prefill chunk: its logits, and about eight activations as wide as the hidden state
        workspace_bytes=4 * options.batch_size * (shape.vocab_size + 8 * shape.hidden_size),
    )
    available = device.free_bytes - (_SPARE if on_gpu else 0)
    n_gpu_layers = 0
    if on_gpu and shape.num_layers:
        per_layer = (need.weights_bytes + need.kv_cache_bytes) / shape.num_layers
        n_gpu_layers = min(shape.num_layers, max(0, int((available - need.workspace_bytes) / max(per_layer, 1))))
    is_split = on_gpu and backend == "llamacpp"
    return Fit(
        device=device,
        n_ctx=n_ctx,
        need=need,
        available_bytes=available,
        ram_bytes=sum(device.free_bytes for device in machine if device.kind == "cpu") if is_split else 0,
        n_gpu_layers=n_gpu_layers,
    )


def gpu_layers_that_fit(model: ReadyModel, options: LoadOptions, gpus: Sequence[Device]) -> int:
    """How many layers the GPU with most free memory holds; one more than there are also moves the output layer."""
    shape = model_shape(model)
    fit = estimate(shape, model.size_bytes, options, gpus)
    return shape.num_layers + 1 if fit.is_fitting else fit.n_gpu_layers


def check_fit(model: ReadyModel, options: LoadOptions, machine: Sequence[Device]) -> None:
    """Raise DoesNotFit when llama.cpp would need more than GPU and RAM together have, naming what would fit."""
    fit = estimate(model_shape(model), model.size_bytes, options, machine)
    if not fit.is_fitting:
        available = fit.available_bytes + fit.ram_bytes
        raise DoesNotFit(
            f"{model.name} needs {_gib(fit.need.total_bytes)} (weights {_gib(fit.need.weights_bytes)}, "
            f"KV cache for {fit.n_ctx} tokens {_gib(fit.need.kv_cache_bytes)}); {_gib(available)} are free.",
            hint=_what_would_fit(fit, available) + " --force tries anyway.",
        )


def _what_would_fit(fit: Fit, available: int) -> str:
    left = available - fit.need.weights_bytes - fit.need.workspace_bytes
    n_ctx = left * fit.n_ctx // fit.need.kv_cache_bytes if fit.need.kv_cache_bytes else 0
    if n_ctx >= 512:
        return f"A context of {n_ctx // 256 * 256} tokens would fit: -c {n_ctx // 256 * 256}."
    return "Choose a smaller quantization or a smaller model."


def _gib(n_bytes: int) -> str:
    return f"{n_bytes / 2**30:.2f} GiB"
