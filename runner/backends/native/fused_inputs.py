"""Inputs of layers beside the stream (Gemma 4's small models) as the kernels compute them: how they are made, and the
branch by which each layer takes its own.

It knows neither attention nor MLPs; who hands the inputs on is fused.py.
"""

from __future__ import annotations

from torch import Tensor

from runner.backends.native.blocks import Layer, Trunk
from runner.backends.native.matrices import MatrixReader
from runner.backends.native.stream import (
    Stream,
    add_branch,
    dtype_of,
    multiply,
    normed,
    read_norm,
    read_product,
    reader_of,
)
from runner.kernels.add_parts import Reader
from runner.kernels.embedding import embed
from runner.kernels.layer_inputs import layer_inputs
from runner.kernels.matmul import Activation, linear_gated_by


class FusedInputs:
    """See blocks.Trunk.layer_inputs. The table stays in planes: rows of it are read, and no product."""

    def __init__(self, module: Trunk, name: str, reader: MatrixReader) -> None:
        self.dtype = reader.dtype
        self.table = reader.matrix(f"{name}.embed_tokens_per_layer.weight")
        self.factor = module.embed_tokens_per_layer.factor(reader.dtype)
        self.projection = read_product(reader, name, ["per_layer_model_projection"])
        self.norm = read_norm(reader, module, name, "per_layer_projection_norm")

    def __call__(self, tokens: Tensor, stream: Stream) -> Tensor:
        """What all layers get, side by side [M, L * P], of the tokens whose embeddings are the stream."""
        rows, _ = embed(tokens, self.table, self.factor, self.norm.eps)
        made = multiply(stream, None, self.projection, self.dtype)
        return layer_inputs(made, rows, self.norm.gain, self.norm.eps)


class FusedLayerInput:
    """See blocks.Layer: its third branch."""

    def __init__(self, module: Layer, index: int, name: str, reader: MatrixReader) -> None:
        self.dtype = reader.dtype
        self.activation: Activation = module.activation
        self.gate = read_product(reader, name, ["per_layer_input_gate"])
        self.projection = read_product(reader, name, ["per_layer_projection"])
        self.norm = read_norm(reader, module, name, "post_per_layer_input_norm")
        size = module.per_layer_input_gate.weight.shape[0]
        self._columns = slice(index * size, (index + 1) * size)

    @property
    def reader(self) -> Reader | None:
        """Who reads the stream before this branch."""
        return reader_of(self.gate, None)

    def add_to(self, stream: Stream, inputs: Tensor, reader: Reader | None, scale: float) -> Stream:
        """The stream after the branch, times the layer's number. inputs: of all layers; reader: see add_branch."""
        (w,) = self.gate.parts
        x, _ = normed(stream, None, w, dtype_of(w, self.dtype))
        gated = linear_gated_by(x, w, inputs[:, self._columns], self.activation, dtype=self.dtype)
        return add_branch(stream, gated, self.projection, self.norm, self.dtype, reader, scale)
