"""How many bits a weight takes in a model's files, from their headers alone.

It counts the bytes of tensors, scales included, over the parameters of the model that they stand for; metadata and
tokenizer are not weights. It reads no weights and knows no format of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from runner.model_config import num_parameters, parse_model_config
from runner.quant.gguf_file import GgufTensor, read_header
from runner.quant.gguf_shape import LAYER_TABLE
from runner.quant.json_file import read_json
from runner.quant.safetensors_file import read_header as read_safetensors_header
from runner.quant.tensor_rules import may_be_left_out
from runner.quant.text_tensors import of_text_model
from runner.types import ReadyModel

_GGUF_ENDS = frozenset({"token_embd.weight", "output.weight", LAYER_TABLE})
_CHECKPOINT_ENDS = ("model.embed_tokens", "lm_head", "model.embed_tokens_per_layer")


@dataclass(frozen=True, kw_only=True)
class BitsPerWeight:
    """total: of all tensors over all parameters. body: without the embeddings, those of layers too, and the output
    matrix."""

    total: float
    body: float


def bits_per_weight(model: ReadyModel) -> BitsPerWeight | None:
    """None for a script, which has no weights. Raises BadModelFile, UnsupportedModel."""
    if model.format == "script":
        return None
    if model.format == "gguf":
        return _of_gguf([tensor for path in model.weights for tensor in read_header(path).tensors])
    sizes = {name: tensor.nbytes for path in model.weights for name, tensor in read_safetensors_header(path).items()}
    return _of_checkpoint(sizes, read_json(model.directory / "config.json"))


def _of_gguf(tensors: list[GgufTensor]) -> BitsPerWeight:
    weights = [tensor for tensor in tensors if not tensor.name.startswith("rope_")]
    ends = [tensor for tensor in weights if tensor.name in _GGUF_ENDS]
    return _ratios(
        sum(tensor.size_bytes for tensor in weights),
        sum(tensor.num_values for tensor in weights),
        sum(tensor.size_bytes for tensor in ends),
        sum(tensor.num_values for tensor in ends),
    )


def _of_checkpoint(sizes: Mapping[str, int], plain_config: Mapping[str, object]) -> BitsPerWeight:
    """sizes: bytes by tensor name; a packed matrix is several tensors with the matrix's name in front."""
    config = parse_model_config(plain_config)
    of_text = of_text_model(sizes, config.model_type)
    sizes = {name: size for name, size in of_text.items() if not may_be_left_out(name, config)}
    n_ends = config.vocab_size * config.hidden_size * (1 if config.tie_word_embeddings else 2)
    if (inputs := config.layer_inputs) is not None:
        n_ends += inputs.vocab_size * config.num_layers * inputs.size
    end_bytes = sum(
        size for name, size in sizes.items() if any(name.startswith(f"{module}.") for module in _CHECKPOINT_ENDS)
    )
    return _ratios(sum(sizes.values()), num_parameters(config), end_bytes, n_ends)


def _ratios(n_bytes: int, n_weights: int, end_bytes: int, n_ends: int) -> BitsPerWeight:
    return BitsPerWeight(
        total=8 * n_bytes / max(1, n_weights), body=8 * (n_bytes - end_bytes) / max(1, n_weights - n_ends)
    )
