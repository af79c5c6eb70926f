"""A GGUF's metadata and tensor list to a Shape: what each layer keeps, by the keys that llama.cpp reads.

It knows llama.cpp's names of things and which of its architectures have windows without saying so; it opens no file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from runner.errors import BadModelFile
from runner.model_config.shape import LayerCache, Shape
from runner.quant.gguf_file import GgufHeader
from runner.quant.json_file import DAMAGED

MAX_LAYERS: Final = 2**12
LAYER_TABLE: Final = "per_layer_token_embd.weight"  # the inputs of layers, of which a token reads a row

# Each n-th layer sees everything and the others a window, where the file names a window and no pattern: llama-model.cpp
# has these in its code. An architecture that is not here is taken to keep everything in every layer.
_FULL_EVERY: Final[Mapping[str, int]] = {
    "gemma2": 2,
    "gemma3": 6,
    "gemma3n": 5,
    "gpt-oss": 2,
    "cohere2": 4,
    "llama4": 4,
}


def gguf_shape(headers: Sequence[GgufHeader]) -> Shape:
    """The Shape of a model from the headers of all its parts; the first has the metadata. Raises BadModelFile."""
    first = headers[0]
    n_layers = _whole(first, "block_count", 1, MAX_LAYERS)
    total, idle = _weights(headers)
    return Shape(
        architecture=first.architecture,
        num_parameters=total,
        num_active_parameters=total - idle,
        context_length=_whole(first, "context_length", 0),
        hidden_size=_whole(first, "embedding_length", 0),
        vocab_size=_vocab_size(first),
        caches=tuple(_cache(first, index, n_layers) for index in range(n_layers)),
    )


def _weights(headers: Sequence[GgufHeader]) -> tuple[int, int]:
    """(weights in all, those that a token does not pass through: experts that it is not sent to, tables by layer)"""
    count, used = headers[0].of_architecture("expert_count"), headers[0].of_architecture("expert_used_count")
    experts = table = 0
    for header in headers:
        table += sum(tensor.num_values for tensor in header.tensors if tensor.name == LAYER_TABLE)
        experts += sum(tensor.num_values for tensor in header.tensors if "_exps" in tensor.name)
    total = sum(header.num_parameters for header in headers)
    if type(count) is not int or type(used) is not int or not 0 < used <= count:
        return total, table
    return total, table + experts * (count - used) // count


def _vocab_size(header: GgufHeader) -> int:
    tokens = header.metadata.get("tokenizer.ggml.tokens", ())
    return len(tokens) if isinstance(tokens, Sequence) and not isinstance(tokens, str) else 0


def _whole(header: GgufHeader, key: str, low: int, high: int = 2**40, default: int | None = None) -> int:
    value = header.of_architecture(key)
    value = default if value is None else value
    if type(value) is not int or not low <= value <= high:
        raise _bad(header, key)
    return value


def _bad(header: GgufHeader, key: str) -> BadModelFile:
    return BadModelFile(
        f"{header.path.name} has no usable number under {header.architecture}.{key}.",
        hint=DAMAGED,
    )


def _of_layer(header: GgufHeader, key: str, index: int, default: int | None = None) -> int:
    """A number that a file gives once, or once for each layer."""
    value: Any = header.of_architecture(key)
    if isinstance(value, Sequence) and not isinstance(value, str):
        value = value[index] if index < len(value) else None
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 2**24:
        raise _bad(header, key)
    return value


def _cache(header: GgufHeader, index: int, n_layers: int) -> LayerCache:
    if index >= n_layers - _whole(header, "attention.shared_kv_layers", 0, default=0):
        return LayerCache(kind="shared", window=_window(header, index))
    state, past = _state_sizes(header)
    heads = _of_layer(header, "attention.head_count", index, 0 if state or past else None)
    kv_heads = _of_layer(header, "attention.head_count_kv", index, heads)
    every = _whole(header, "full_attention_interval", 0, default=0)
    is_recurrent = (index + 1) % every != 0 if every else kv_heads == 0
    if (state or past) and is_recurrent:
        return LayerCache(kind="state", state_size=state, past_size=past)
    window = _window(header, index)
    width = kv_heads * (
        _head_size(header, "key", index, heads, window) + _head_size(header, "value", index, heads, window)
    )
    return LayerCache(kind="window" if window else "full", width=width, window=window)


def _head_size(header: GgufHeader, what: str, index: int, heads: int, window: int) -> int:
    """Elements of one head's K or V; windowed layers may have a size of their own."""
    default = _whole(header, "embedding_length", 0) // max(1, heads)
    full = _of_layer(header, f"attention.{what}_length", index, default)
    return _of_layer(header, f"attention.{what}_length_swa", index, full) if window else full


def _window(header: GgufHeader, index: int) -> int:
    window = _whole(header, "attention.sliding_window", 0, default=0)
    pattern = header.of_architecture("attention.sliding_window_pattern")
    if not window:
        return 0
    if isinstance(pattern, Sequence) and not isinstance(pattern, str):
        return window if index < len(pattern) and bool(pattern[index]) else 0
    every = pattern if type(pattern) is int and pattern > 0 else _FULL_EVERY.get(header.architecture, 1)
    return window if (index + 1) % every else 0


def _state_sizes(header: GgufHeader) -> tuple[int, int]:
    """Elements of a recurrent layer's state, the matrix of each head, and of the past of its convolution.

    LFM2 has a convolution alone; what RWKV keeps of the tokens before is counted as one's past.
    """
    width = _whole(header, "embedding_length", 0)
    if taps := _whole(header, "shortconv.l_cache", 0, default=0):
        return 0, (taps - 1) * width
    if head := _whole(header, "wkv.head_size", 0, default=0):
        return head * width, _whole(header, "token_shift_count", 0, default=2) * width  # as llama.cpp takes it
    inner, state = _whole(header, "ssm.inner_size", 0, default=0), _whole(header, "ssm.state_size", 0, default=0)
    groups, kernel = _whole(header, "ssm.group_count", 0, default=0), _whole(header, "ssm.conv_kernel", 0, default=0)
    return state * inner, max(0, kernel - 1) * (inner + 2 * groups * state)
