"""How many bytes one decoded token reads: weights that it passes through, the KV cache up to it, fixed states.

From headers and from what the loaded model says it holds; nothing is measured here. Activations and the one row of the
embeddings are left out: they are thousands of times less.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

from runner.config import LoadOptions
from runner.fit import estimate, read_facts
from runner.machine import devices
from runner.model_config import num_parameters, parse_model_config
from runner.model_config.shapes import config_shape
from runner.quant.gguf_file import GgufHeader, read_header
from runner.quant.gguf_shape import LAYER_TABLE
from runner.quant.json_file import read_json
from runner.quant.safetensors_file import read_header as read_safetensors
from runner.quant.tensor_rules import may_be_left_out
from runner.quant.text_tensors import of_text_model
from runner.types import BackendName, MemoryUse, ModelInfo, ReadyModel

_BLOCK: Final = 4096  # a context that every backend allocates as it is
_PAST_BYTES: Final = 4  # of an element of a convolution's past: a hundredth of its layer's state or less
_LAYER_EMBEDDINGS: Final = "model.embed_tokens_per_layer."
_AS_STORED: Final = 1.25  # times the files: what holds more has unpacked them


@dataclass(frozen=True, kw_only=True)
class StoredWeights:
    """Bytes of all tensors in the files, and of those, on average, that one token needs.

    share: of all weights those that it needs, each counted as one however many bits the file has for it.
    """

    total_bytes: int
    read_bytes: int
    share: float

    def share_of(self, held_bytes: int) -> float:
        """Of weights that take so many bytes where they are held: as they are stored, or all in one type."""
        is_unpacked = held_bytes > _AS_STORED * self.total_bytes
        return self.share if is_unpacked or not self.total_bytes else self.read_bytes / self.total_bytes


@dataclass(frozen=True, kw_only=True)
class CacheRead:
    """What a token reads of the KV cache. per_position: bytes, and how many positions are read at most, 0 for all."""

    per_position: tuple[tuple[float, int], ...] = ()

    def at(self, context: float) -> float:
        """Bytes, with so many positions before it."""
        return sum(size * (min(context, most) if most else context) for size, most in self.per_position)


NOTHING_CACHED: Final = CacheRead()


def stored_weights(model: ReadyModel) -> StoredWeights:
    """Read the headers. Raises BadModelFile, UnsupportedModel."""
    if model.format == "script":
        return StoredWeights(total_bytes=0, read_bytes=0, share=0.0)
    if model.format == "gguf":
        return _of_gguf([read_header(path) for path in model.weights])
    sizes = {name: tensor.nbytes for path in model.weights for name, tensor in read_safetensors(path).items()}
    return _of_checkpoint(sizes, read_json(model.directory / "config.json"))


def _of_gguf(headers: list[GgufHeader]) -> StoredWeights:
    count, used = headers[0].of_architecture("expert_count"), headers[0].of_architecture("expert_used_count")
    is_sparse = isinstance(count, int) and isinstance(used, int) and 0 < used <= count
    tensors = [tensor for header in headers for tensor in header.tensors]
    unread = _unread({tensor.name for tensor in tensors})
    experts = {tensor.name for tensor in tensors if "_exps." in tensor.name}
    idle = 1 - used / count if is_sparse else 0.0
    total, read = _summed({tensor.name: tensor.size_bytes for tensor in tensors}, unread, experts, idle)
    weights, needed = _summed({tensor.name: tensor.num_values for tensor in tensors}, unread, experts, idle)
    return StoredWeights(total_bytes=total, read_bytes=round(read), share=needed / max(1, weights))


def _unread(names: AbstractSet[str]) -> set[str]:
    """Embeddings, of which a token reads a row, and the layers that predict tokens further on, which only draft."""
    embeddings = {LAYER_TABLE, *(["token_embd.weight"] if "output.weight" in names else [])}
    drafting = tuple({name.partition("nextn.")[0] for name in names if ".nextn." in name})
    return {name for name in names if name in embeddings or name.startswith(drafting)}


def _of_checkpoint(sizes: Mapping[str, int], plain_config: Mapping[str, object]) -> StoredWeights:
    """sizes: bytes by tensor name; a packed matrix is several tensors with the matrix's name in front.

    What is no text model's, heads that draft, and what may be left out are not loaded.
    """
    config = parse_model_config(plain_config)
    head, is_tied = "lm_head.", config.tie_word_embeddings
    found = {
        name: size
        for name, size in of_text_model(sizes, config.model_type).items()
        if not may_be_left_out(name, config)
    }
    sizes = {name: size for name, size in found.items() if not (is_tied and name.startswith(head))}
    tables = (_LAYER_EMBEDDINGS,) if is_tied else (_LAYER_EMBEDDINGS, "model.embed_tokens.")
    embeddings = {name for name in sizes if name.startswith(tables)}
    experts = {name for name in sizes if ".experts." in name}
    idle = 1 - config.experts.per_token / config.experts.count if config.experts else 0.0
    total, read = _summed(sizes, embeddings, experts, idle)
    rows = 0 if is_tied else config.vocab_size * config.hidden_size
    needed = config_shape(plain_config).num_active_parameters - rows
    return StoredWeights(total_bytes=total, read_bytes=round(read), share=needed / num_parameters(config))


def _summed(
    sizes: Mapping[str, int], unread: AbstractSet[str], experts: AbstractSet[str], idle: float
) -> tuple[int, float]:
    """All, and what a token reads. idle: the share of the experts that it is not sent to."""
    read = sum(size * (1 - idle if name in experts else 1) for name, size in sizes.items() if name not in unread)
    return sum(sizes.values()), read


def weights_read(stored: StoredWeights, backend: BackendName, memory: MemoryUse) -> int:
    """Bytes of weights a token reads. llama.cpp reads them as they are stored, native as it holds them."""
    held = memory.weights_bytes
    return round(stored.share_of(held) * held) if backend == "native" else stored.read_bytes


def cache_read(model: ReadyModel, options: LoadOptions, info: ModelInfo) -> CacheRead:
    """What a token reads of the KV cache. Raises BadModelFile.

    Of layers with a window native reads no more than that; llama.cpp keeps all positions and goes through them. A layer
    that keeps nothing reads what the layer that it sees keeps.
    """
    facts = read_facts(model)
    if not facts.shape.caches:
        return NOTHING_CACHED
    n_gpu_layers = options.n_gpu_layers if info.n_gpu_layers else 0
    wanted = dataclasses.replace(options, ctx_size=_BLOCK, n_gpu_layers=n_gpu_layers)
    fit = estimate(facts, wanted, devices(), info.backend)
    is_window_read = info.backend == "native"
    seeing = Counter(cache.window for cache in facts.shape.caches if cache.kind == "shared")
    return CacheRead(
        per_position=tuple(
            (part.size_bytes * (1 + seeing[part.window] / part.num_layers) / _BLOCK, part.window * is_window_read)
            for part in fit.kv_parts
            if part.kind in ("full", "window")
        )
    )


def state_bytes(model: ReadyModel) -> int:
    """Bytes of the states that layers have in place of keys and values, however long the text. Raises BadModelFile."""
    return sum(cache.state_bytes(_PAST_BYTES) for cache in read_facts(model).shape.caches)
