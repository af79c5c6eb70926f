"""A mixture of experts as the kernels compute it: see moe.py, and fused.py for what the rest of a layer does.

The experts' matrices are stacked, in the format that they are stored in; which experts a token takes is decided and
read on the device. A shared expert, which all tokens take, is the last of the stack. It knows nothing of layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from runner.backends.native.matrices import MatrixReader, Product, join
from runner.backends.native.stream import Norm, Stream, laid_out, multiply, norm_of, read_product
from runner.errors import UnsupportedModel
from runner.kernels.add_parts import rotates
from runner.kernels.fragment_products import ZEROS
from runner.kernels.fragments import TILE
from runner.kernels.matmul import gate_ref
from runner.kernels.moe_blocks import multiplies_alike, multiplies_in_blocks, shares_blocks, takes_blocks
from runner.kernels.moe_fragments import multiplies_experts
from runner.kernels.moe_int8 import multiplies_in_int8, takes_pairs_in_int8
from runner.kernels.moe_matmul import (
    Dispatch,
    MoeRows,
    dispatch,
    moe_linear,
    moe_linear_gated,
    moe_linear_residual,
    moe_linear_squares,
)
from runner.kernels.moe_route import rounds_in_lanes, route, route_and_round
from runner.kernels.moe_router import router_logits
from runner.kernels.rotate import quantize_blocks, quantize_fragments, quantize_rows, rotate_rows
from runner.kernels.values import MOST_ROWS, Matrix, PackedMatrix, Squares, is_nvidia
from runner.model_config import ExpertsConfig

_GATE_UP: Final = ("gate_proj", "up_proj")
_DOWN: Final = ("down_proj",)


class FusedMoE:
    """See moe.MoE. gate_up: one stack of both, or two where their formats differ. num_experts, per_token: with the
    shared one, whose gate is the router's last row. of_router: the norm before the router, where it is not the experts'
    own; factors: what the experts' weights are multiplied by, [E], or None (moe.ScaledRouter). name: what the names of
    router and experts begin with.

    rounding: of what gate and up read in a step of few tokens; None where they are dense, or want two. in_lanes: see
    quantize_rows. in_blocks, in_int8: whether moe_blocks.py and moe_int8.py are for these matrices at all. is_alike:
    whether in blocks the rows of a step have the bits that they have alone.
    """

    def __init__(
        self,
        config: ExpertsConfig,
        name: str,
        reader: MatrixReader,
        *,
        of_router: Norm | None = None,
        factors: Tensor | None = None,
    ) -> None:
        self.config = config
        self.of_router = of_router
        self.factors = factors
        self.dtype = reader.dtype
        assert config.shared_size in (None, config.intermediate_size)  # else it is refused
        self.is_shared = config.shared_size is not None
        self.per_token = config.per_token + self.is_shared
        scores, experts = [str(config.router)], [f"experts.{expert}" for expert in range(config.count)]
        if self.is_shared:
            scores.append("shared_expert_gate")
            experts.append("shared_expert")
        self.num_experts = len(experts)
        self.router = read_product(reader, name, scores)
        # At once, since files have them expert by expert; each is let go of as soon as it is laid out.
        read = reader.products(*(_names(name, experts, members) for members in (_GATE_UP, _DOWN)))
        self.gate_up = self._stacks(read.pop(0), name, _GATE_UP)
        (self.down,) = self._stacks(read.pop(0), name, _DOWN)
        roundings = {_rounding_of(w) for w, _ in self.gate_up}
        self.rounding = roundings.pop() if len(roundings) == 1 else None
        self.in_blocks = all(multiplies_in_blocks(w) for w, _ in (*self.gate_up, self.down))
        packed = [w for w, _ in (*self.gate_up, self.down) if isinstance(w, PackedMatrix)]
        self.is_alike = self.in_blocks and all(multiplies_alike(w) for w in packed)
        self.in_int8 = all(multiplies_in_int8(w) for w, _ in (*self.gate_up, self.down))
        self.in_lanes = all(is_nvidia(w.packed) and _in_lanes(w.rotation, w.packed.device) for w in packed)

    def _stacks(self, read: Product, name: str, members: Sequence[str]) -> list[tuple[Matrix, Tensor | None]]:
        """The members' matrices of all experts as [E * N, K] and biases [E, N]: together if their formats agree.

        Raises UnsupportedModel where a member's own formats differ from expert to expert.
        """
        if len(read.parts) == 1:
            return [self._stack(read, len(members))]
        found = []
        for i, member in enumerate(members):
            alone = join(read.parts[i :: len(members)], read.biases[i :: len(members)])
            if len(alone.parts) > 1:
                raise UnsupportedModel(
                    f"The experts of {name} have {member} in different formats.",
                    hint="Quantize the model again with one format for all experts of a layer, or run it with -ngl 0.",
                )
            found.append(self._stack(alone, 1))
        return found

    def _stack(self, product: Product, num_members: int) -> tuple[Matrix, Tensor | None]:
        """The one matrix of all experts, as the device multiplies it fastest where their members are of whole tiles."""
        ((w,), (bias,)) = product.parts, product.biases
        are_tiles = w.shape[0] % (TILE * self.num_experts * num_members) == 0
        if isinstance(w, PackedMatrix) and are_tiles and multiplies_experts(w, self.per_token):
            w = laid_out(w)
        return w, None if bias is None else bias.view(self.num_experts, -1)

    def add_to(self, stream: Stream, before: Norm | None) -> Stream:
        """The stream after h += sum over a token's experts of weight * down(act(gate) * up)."""
        (x, to), (down, bias), h = self._pairs(stream, before), self.down, stream.h
        squares = moe_linear_residual(x, down, to, h, bias=bias, dtype=self.dtype, eps=stream.eps)
        return Stream(h=h, eps=stream.eps, squares=squares)

    def sums(self, stream: Stream, before: Norm | None) -> tuple[Tensor, Squares]:
        """What add_to adds, [M, hidden] float32, and its squares, for a norm behind it."""
        (x, to), (down, bias) = self._pairs(stream, before), self.down
        return moe_linear_squares(x, down, to, bias=bias, dtype=self.dtype, eps=stream.eps)

    def _pairs(self, stream: Stream, before: Norm | None) -> tuple[MoeRows, Dispatch]:
        """act(gate) * up of all pairs of a token and an expert, as the down product wants it, and the pairs."""
        to, ready = self._chosen(stream, before)
        return self._activations(self._gated(stream, before, to, ready), None, self.down[0], len(stream.h)), to

    def _chosen(self, stream: Stream, before: Norm | None) -> tuple[Dispatch, MoeRows | None]:
        """The experts of each row; and the rows as gate and up want them, normed, where they come with that."""
        h, router, ready = stream.h, self.router.parts[0], None
        k, kind, of_router = self.config.per_token, self.config.routing, self.of_router or before
        if len(h) > MOST_ROWS or not isinstance(router, Tensor) or len(self.router.parts) > 1:
            logits = multiply(stream, of_router, self.router, torch.float32)
            weights, experts = route(logits, k, kind, is_shared=self.is_shared, factors=self.factors)
            return dispatch(weights, experts, self.num_experts), ready
        gain, squares = norm_of(stream, of_router)
        logits = router_logits(h, router, gain=gain, squares=squares, bias=self.router.biases[0])
        if self.rounding is None:
            weights, experts = route(logits, k, kind, is_shared=self.is_shared, factors=self.factors)
        else:
            gain, squares = norm_of(stream, before)
            weights, experts, ready = route_and_round(
                logits, k, kind, h, is_shared=self.is_shared, factors=self.factors, gain=gain, squares=squares,
                rotation=self.rounding.rotation, zero=self.rounding.zero, in_lanes=self.in_lanes,
            )  # fmt: skip
        # Rows that are to be normed behind a product are left alone: the sum of their squares has an order for each
        # layout.
        is_sorted = ready is not None and self._shares(len(h))
        return dispatch(weights, experts, self.num_experts, is_sorted=is_sorted), ready

    def _shares(self, n_rows: int) -> bool:
        """Whether a step of so many rows multiplies those of an expert together."""
        if not self.is_alike:
            return False
        matrices = (w for w, _ in (*self.gate_up, self.down) if isinstance(w, PackedMatrix))
        return all(shares_blocks(w, n_rows, self.per_token, self.num_experts) for w in matrices)

    def _gated(self, stream: Stream, before: Norm | None, to: Dispatch, ready: MoeRows | None) -> Tensor:
        """act(gate) * up of all pairs of a token and an expert, [M * k, I]. ready: see _chosen."""
        gain, squares = norm_of(stream, before)
        if ready is not None:
            squares = None

        def rows_for(w: Matrix) -> MoeRows:
            if ready is not None:
                return ready
            return self._activations(stream.h, gain, w, len(stream.h))

        activation = self.config.activation
        if len(self.gate_up) == 1:
            ((w, bias),) = self.gate_up
            return moe_linear_gated(rows_for(w), w, to, activation, bias=bias, squares=squares, dtype=self.dtype)
        gate, up = (
            moe_linear(rows_for(w), w, to, bias=bias, squares=squares, dtype=torch.float32) for w, bias in self.gate_up
        )
        return gate_ref(gate, up, activation).to(self.dtype)

    def _activations(self, x: Tensor, gain: Tensor | None, w: Matrix, n_tokens: int) -> MoeRows:
        """x, times the gain, as a product of so many tokens with the experts' matrices wants it."""
        if isinstance(w, Tensor):
            return rotate_rows(x, gain, 1, self.dtype) if gain is not None or x.dtype != self.dtype else x
        is_few = n_tokens <= MOST_ROWS
        if self.in_int8 and takes_pairs_in_int8(n_tokens, self.per_token, self.num_experts, self.down[0].shape[1]):
            return quantize_blocks(x, gain, w.rotation, in_lanes=self.in_lanes)
        in_blocks = self.in_blocks and takes_blocks(w, n_tokens, self.per_token, self.num_experts)
        if in_blocks or (is_few and w.layout == "fragments"):
            return quantize_fragments(x, gain, w.rotation, ZEROS[w.format], apart=True)
        if is_few:
            return quantize_rows(x, gain, w.rotation, in_lanes=self.in_lanes)
        return rotate_rows(x, gain, w.rotation, self.dtype, in_lanes=self.in_lanes)


@dataclass(frozen=True, kw_only=True)
class _Rounding:
    """How a packed matrix wants few rows: rotated in such blocks, and zero of Int8Fragments or None for Int8Rows."""

    rotation: int
    zero: int | None


def _names(name: str, experts: Sequence[str], members: Sequence[str]) -> tuple[list[str], list[str]]:
    """Of the members' weights and biases, expert by expert."""
    found = [f"{name}.{expert}.{member}" for expert in experts for member in members]
    return [f"{one}.weight" for one in found], [f"{one}.bias" for one in found]


def _rounding_of(w: Matrix) -> _Rounding | None:
    if isinstance(w, Tensor):
        return None
    return _Rounding(rotation=w.rotation, zero=ZEROS[w.format] if w.layout == "fragments" else None)


def _in_lanes(rotation: int, device: torch.device) -> bool:
    return rotates(rotation, device) and rounds_in_lanes(rotation, device)
