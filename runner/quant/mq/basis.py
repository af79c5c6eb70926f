"""In which basis a packed model computes: its own with every input rotated at run time, or one where that is folded.

Online, the model's weights are the source's, each quantized matrix is stored rotated along its input, and the input is
rotated when the model runs. Folded, the model is another one that gives the same logits: gains of norms are part of the
matrices after them, one block rotation of the residual stream and one of the values within a head are merged into the
matrices around them, and only the input of the down projection is still rotated at run time (QuaRot, arXiv:2404.00456).
It knows the names of a Llama-like decoder and nothing of formats or files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from runner.errors import BadModelFile, UsageError
from runner.model_config import ModelConfig
from runner.quant.mq.manifest import Rotation
from runner.quant.mq.rotation import rotate, rotation_size
from runner.quant.weights import EMBEDDINGS, OUTPUT, Weights

DOWN: Final = ".down_proj.weight"
_ROUTERS: Final = ("gate", "router")  # of mixtures of experts
_ATTENTION_NORM, _MLP_NORM, _FINAL_NORM = "input_layernorm", "post_attention_layernorm", "model.norm"


def in_basis(weights: Weights, config: ModelConfig, rotation: Rotation) -> Weights:
    """The weights of the model that computes in that basis: the source's own, or a view that folds them.

    Raises UsageError for a model that cannot be folded.
    """
    if rotation == "folded" and config.norms != "before":
        raise UsageError(
            f"The rotations of a {config.model_type} model cannot be folded: it has norms after its branches, whose "
            "gains belong to the unrotated stream.",
            hint="Use --rotation online.",
        )
    if rotation == "folded" and config.is_gated:
        raise UsageError(
            f"The rotations of a {config.model_type} model cannot be folded: gates multiply what its heads give, "
            "between the two matrices that a rotation of it would be part of.",
            hint="Use --rotation online.",
        )
    return weights if rotation == "online" else FoldedWeights(weights, config)


def stored_rotation(name: str, k: int, rotation: Rotation) -> int:
    """The block size of the run-time rotation at the input of the matrix `name` with K = k; 1 for none."""
    return rotation_size(k) if rotation == "online" or name.endswith(DOWN) else 1


def config_changes(config: ModelConfig, rotation: Rotation) -> dict[str, bool]:
    """The keys of config.json that the basis changes: a folded output matrix is no longer the embedding."""
    return {"tie_word_embeddings": False} if rotation == "folded" and config.tie_word_embeddings else {}


def to_float(values: NDArray[Any], device: torch.device | None = None) -> Tensor:
    """Values as a Weights gives them (float32, float16, or the bits of bfloat16) as float32 of their own memory."""
    owned = values if values.flags.writeable and values.flags.c_contiguous else np.array(values)
    tensor = torch.from_numpy(owned).to(device or torch.device("cpu"))
    return (tensor.view(torch.bfloat16) if owned.dtype == np.uint16 else tensor).float()


def stored_rows(
    weights: Weights, name: str, input_rotation: int, start: int, stop: int, device: torch.device
) -> Tensor:
    """Rows of one matrix in the basis that it is stored in, [stop - start, K] float32.

    weights: of the basis (in_basis). Raises BadModelFile when they cannot be read.
    """
    try:
        rows = to_float(weights.read_rows(name, start, stop), device)
    except OSError as error:
        raise BadModelFile(f"Tensor {name!r} cannot be read: {error}.", hint="Fetch the model again.") from error
    return rows if input_rotation == 1 else rotate(rows, input_rotation)


@dataclass(frozen=True, kw_only=True)
class _Fold:
    """What becomes of one tensor. source: the tensor that it is made from; gain: the norm that goes into its columns;
    inward, outward: the block sizes of the rotations of its input and of its output (rows), 1 for none.
    turned_from: the first row that the latter turns."""

    source: str
    gain: str = ""
    inward: int = 1
    outward: int = 1
    turned_from: int = 0


class FoldedWeights:
    """A view of `source` as the model whose rotations are folded. What is changed is float32, computed when read."""

    def __init__(self, source: Weights, config: ModelConfig) -> None:
        self._source = source
        self._hidden = rotation_size(config.hidden_size)
        self._head = rotation_size(config.head_dim)
        self._first_value = (config.num_heads + config.num_kv_heads) * config.head_dim  # row of a joined matrix
        is_tied = OUTPUT not in source.shapes
        self._made_from = {name: name for name in source.shapes} | ({OUTPUT: EMBEDDINGS} if is_tied else {})
        self._gains: dict[str, Tensor] = {}
        self.where = source.where
        self.quantization = source.quantization
        self.shapes: Mapping[str, tuple[int, ...]] = self._of_all(source.shapes)
        self.bits: Mapping[str, float] = self._of_all(source.bits)
        self.types: Mapping[str, str] = {
            name: self._type(name, kind) for name, kind in self._of_all(source.types).items()
        }

    def _of_all(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return {name: values[made_from] for name, made_from in self._made_from.items()}

    def _type(self, name: str, kind: str) -> str:
        """A vector that is changed needs float32, and so does a router; any other matrix is rounded in any case."""
        if len(self.shapes[name]) == 1:
            return "F32" if _is_gain(name) or self._fold(name).outward > 1 else kind
        return "F32" if _kind(name)[1] in _ROUTERS else kind

    def read(self, name: str) -> NDArray[Any]:
        return self.read_rows(name, 0, self.shapes[name][0])

    def read_rows(self, name: str, start: int, stop: int) -> NDArray[Any]:
        if _is_gain(name):
            return np.ones(stop - start, np.float32)
        fold = self._fold(name)
        if fold == _Fold(source=name):
            return self._source.read_rows(name, start, stop)
        # A rotation of the output mixes blocks of rows: whole blocks are read, and the rows wanted cut out of them.
        first, last = start // fold.outward * fold.outward, -(-stop // fold.outward) * fold.outward
        rows = to_float(self._source.read_rows(fold.source, first, last))
        if fold.gain:
            rows *= self._gain(fold.gain)
        if fold.inward > 1:
            rows = rotate(rows, fold.inward)
        if fold.outward > 1:
            turned = rows[max(0, fold.turned_from - first) :]
            turned.copy_(rotate(turned.T, fold.outward).T if rows.dim() == 2 else rotate(turned, fold.outward))
        return np.ascontiguousarray(rows[start - first : stop - first].numpy())

    def _gain(self, norm: str) -> Tensor:
        if norm not in self._gains:
            self._gains[norm] = to_float(self._source.read(f"{norm}.weight"))
        return self._gains[norm]

    def _fold(self, name: str) -> _Fold:
        hidden, head = self._hidden, self._head
        layer, kind = _kind(name)
        is_bias = name.endswith(".bias")
        if name == EMBEDDINGS:
            return _Fold(source=name, inward=hidden)
        if name == OUTPUT:
            return _Fold(source=self._made_from[OUTPUT], gain=_FINAL_NORM, inward=hidden)
        if kind in ("q_proj", "k_proj") and not is_bias:
            return _Fold(source=name, gain=f"{layer}.{_ATTENTION_NORM}", inward=hidden)
        if kind == "v_proj":
            if is_bias:
                return _Fold(source=name, outward=head)
            return _Fold(source=name, gain=f"{layer}.{_ATTENTION_NORM}", inward=hidden, outward=head)
        if kind == "qkv_proj":
            gain = f"{layer}.{_ATTENTION_NORM}"
            return _Fold(source=name, gain=gain, inward=hidden, outward=head, turned_from=self._first_value)
        if kind in ("gate_proj", "up_proj", "gate_up_proj", *_ROUTERS) and not is_bias:
            return _Fold(source=name, gain=f"{layer}.{_MLP_NORM}", inward=hidden)
        if kind == "o_proj":
            return _Fold(source=name, inward=1 if is_bias else head, outward=hidden)
        if kind == "down_proj":
            return _Fold(source=name, outward=hidden)
        return _Fold(source=name)


def _kind(name: str) -> tuple[str, str]:
    """The layer of a tensor, and the matrix that it is, or belongs to: the same of every expert."""
    layer, _, rest = name.rpartition(".")[0].partition(".self_attn." if ".self_attn." in name else ".mlp.")
    return layer, rest.rpartition(".")[2]


def _is_gain(name: str) -> bool:
    """Whether it is the gain of a norm that is folded away; the norms of q and k stay."""
    return name == f"{_FINAL_NORM}.weight" or name.endswith((f".{_ATTENTION_NORM}.weight", f".{_MLP_NORM}.weight"))
