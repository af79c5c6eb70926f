"""A mixture of experts as the kernels compute it: see moe.MoE, and fused.py for what the rest of a layer does.

The experts' matrices are stacked, in the format that they are stored in; which experts a token takes is decided and
read on the device. It knows nothing of layers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from runner.backends.native.matrices import MatrixReader, join
from runner.backends.native.moe import MoE
from runner.backends.native.stream import Norm, Stream, multiply, read_product
from runner.errors import UnsupportedModel
from runner.kernels.matmul import gate_ref
from runner.kernels.moe_matmul import Dispatch, MoeRows, dispatch, moe_linear, moe_linear_gated, moe_linear_residual
from runner.kernels.moe_route import route
from runner.kernels.rotate import quantize_rows, rotate_rows
from runner.kernels.values import MOST_ROWS, Matrix


class FusedMoE:
    """See moe.MoE. gate_up: one stack of both, or two where their formats differ."""

    def __init__(self, module: MoE, name: str, reader: MatrixReader) -> None:
        self.module = module
        self.dtype = reader.dtype
        self.router = read_product(reader, name, [module.router_name])
        self.gate_up = _stacks(reader, name, module.num_experts, ["gate_proj", "up_proj"])
        (self.down,) = _stacks(reader, name, module.num_experts, ["down_proj"])

    def add_to(self, stream: Stream, before: Norm | None) -> Stream:
        """The stream after h += sum over a token's experts of weight * down(act(gate) * up)."""
        module, h = self.module, stream.h
        logits = multiply(stream, before, self.router, torch.float32)
        weights, experts = route(logits, module.experts_per_token, module.routing)
        to = dispatch(weights, experts, module.num_experts)
        down, bias = self.down
        x = _activations(self._gated(stream, before, to), None, down, self.dtype, is_few=len(h) <= MOST_ROWS)
        squares = moe_linear_residual(x, down, to, h, bias=bias, eps=stream.eps)
        return Stream(h=h, eps=stream.eps, squares=squares)

    def _gated(self, stream: Stream, before: Norm | None, to: Dispatch) -> Tensor:
        """act(gate) * up of all pairs of a token and an expert, [M * k, I]."""
        gain, squares = (None, None) if before is None else (before.gain, stream.squares)
        activation, is_few = self.module.activation, len(stream.h) <= MOST_ROWS
        if len(self.gate_up) == 1:
            ((w, bias),) = self.gate_up
            x = _activations(stream.h, gain, w, self.dtype, is_few=is_few)
            return moe_linear_gated(x, w, to, activation, bias=bias, squares=squares, dtype=self.dtype)
        gate, up = (
            moe_linear(x, w, to, bias=bias, squares=squares, dtype=torch.float32)
            for w, bias in self.gate_up
            for x in [_activations(stream.h, gain, w, self.dtype, is_few=is_few)]
        )
        return gate_ref(gate, up, activation).to(self.dtype)


def _activations(x: Tensor, gain: Tensor | None, w: Matrix, dtype: torch.dtype, *, is_few: bool) -> MoeRows:
    """x, times the gain, as a product with the experts' matrices wants it; is_few: it is one of up to 16 tokens."""
    if isinstance(w, Tensor):
        return rotate_rows(x, gain, 1, dtype) if gain is not None or x.dtype != dtype else x
    if is_few:
        return quantize_rows(x, gain, w.rotation)
    return rotate_rows(x, gain, w.rotation, dtype)


def _stacks(reader: MatrixReader, name: str, count: int, members: list[str]) -> list[tuple[Matrix, Tensor | None]]:
    """The members' matrices of all experts as [E * N, K] and biases [E, N]: together if their formats agree.

    Raises UnsupportedModel where a member's own formats differ from expert to expert.
    """
    matrices = {
        member: [reader.matrix(f"{name}.experts.{expert}.{member}.weight") for expert in range(count)]
        for member in members
    }
    biases = {
        member: [reader.optional_vector(f"{name}.experts.{expert}.{member}.bias") for expert in range(count)]
        for member in members
    }
    by_expert = [matrices[member][expert] for expert in range(count) for member in members]
    joined = join(by_expert, [biases[member][expert] for expert in range(count) for member in members])
    if len(joined.parts) == 1:
        bias = joined.biases[0]
        return [(joined.parts[0], None if bias is None else bias.view(count, -1))]
    found = []
    for member in members:
        alone = join(matrices[member], biases[member])
        if len(alone.parts) > 1:
            raise UnsupportedModel(
                f"The experts of {name} have {member} in different formats.",
                hint="Quantize the model again with one format for all experts of a layer, or run it with -ngl 0.",
            )
        ((w,), (bias,)) = alone.parts, alone.biases
        found.append((w, None if bias is None else bias.view(count, -1)))
    return found
