"""How many bytes one decoded token reads: weights that it passes through, the KV cache up to it, fixed states.

From headers and from what the loaded model says it holds; nothing is measured here. Activations and the one row of the
embeddings are left out: they are thousands of times less.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from runner.config import LoadOptions
from runner.fit import estimate, read_facts
from runner.machine import devices
from runner.model_config import parse_model_config
from runner.quant.gguf_file import GgufHeader, read_header
from runner.quant.json_file import read_json
from runner.quant.safetensors_file import read_header as read_safetensors
from runner.quant.text_tensors import of_text_model
from runner.types import BackendName, MemoryUse, ModelInfo, ReadyModel

_BLOCK: Final = 4096  # a context that every backend allocates as it is
_PAST_BYTES: Final = 4  # of an element of a convolution's past: a hundredth of its layer's state or less


@dataclass(frozen=True, kw_only=True)
class StoredWeights:
    """Bytes of all tensors in the files, and of those, on average, that one token needs."""

    total_bytes: int
    read_bytes: int

    @property
    def share(self) -> float:
        return self.read_bytes / self.total_bytes if self.total_bytes else 0.0


def stored_weights(model: ReadyModel) -> StoredWeights:
    """Read the headers. Raises BadModelFile, UnsupportedModel."""
    if model.format == "script":
        return StoredWeights(total_bytes=0, read_bytes=0)
    if model.format == "gguf":
        return _of_gguf([read_header(path) for path in model.weights])
    sizes = {name: tensor.nbytes for path in model.weights for name, tensor in read_safetensors(path).items()}
    return _of_checkpoint(sizes, read_json(model.directory / "config.json"))


def _of_gguf(headers: list[GgufHeader]) -> StoredWeights:
    count, used = headers[0].of_architecture("expert_count"), headers[0].of_architecture("expert_used_count")
    is_sparse = isinstance(count, int) and isinstance(used, int) and 0 < used <= count
    sizes = {tensor.name: tensor.size_bytes for header in headers for tensor in header.tensors}
    embeddings = {"token_embd.weight"} if "output.weight" in sizes else set[str]()
    experts = {name for name in sizes if "_exps." in name}
    return _summed(sizes, embeddings, experts, used / count if is_sparse else 1.0)


def _of_checkpoint(sizes: Mapping[str, int], plain_config: Mapping[str, object]) -> StoredWeights:
    """sizes: bytes by tensor name; a packed matrix is several tensors with the matrix's name in front.

    What is no text model's, and heads that draft, are not loaded.
    """
    config = parse_model_config(plain_config)
    sizes = of_text_model(sizes, config.model_type)
    is_tied = config.tie_word_embeddings and not any(name.startswith("lm_head.") for name in sizes)
    embeddings = set[str]() if is_tied else {name for name in sizes if name.startswith("model.embed_tokens.")}
    experts = {name for name in sizes if ".mlp.experts." in name}
    share = config.experts.per_token / config.experts.count if config.experts else 1.0
    return _summed(sizes, embeddings, experts, share)


def _summed(sizes: Mapping[str, int], unread: Iterable[str], experts: Iterable[str], used: float) -> StoredWeights:
    total = sum(sizes.values())
    idle = (1 - used) * sum(sizes[name] for name in experts)
    return StoredWeights(total_bytes=total, read_bytes=round(total - sum(sizes[name] for name in unread) - idle))


def weights_read(stored: StoredWeights, backend: BackendName, memory: MemoryUse) -> int:
    """Bytes of weights a token reads. llama.cpp reads them as they are stored, native as it holds them."""
    return round(stored.share * memory.weights_bytes) if backend == "native" else stored.read_bytes


def kv_bytes_per_position(model: ReadyModel, options: LoadOptions, info: ModelInfo) -> float:
    """Bytes of the KV cache that one more token of context makes each token read. Raises BadModelFile.

    Layers with a window are counted as if they read all: no more is known of what a backend does with them.
    """
    facts = read_facts(model)
    if not facts.shape.caches:
        return 0.0
    n_gpu_layers = options.n_gpu_layers if info.n_gpu_layers else 0
    wanted = dataclasses.replace(options, ctx_size=_BLOCK, n_gpu_layers=n_gpu_layers)
    fit = estimate(facts, wanted, devices(), info.backend)
    return sum(part.size_bytes for part in fit.kv_parts if part.kind != "state") / _BLOCK


def state_bytes(model: ReadyModel) -> int:
    """Bytes of the states that layers have in place of keys and values, however long the text. Raises BadModelFile."""
    return sum(cache.state_bytes(_PAST_BYTES) for cache in read_facts(model).shape.caches)
