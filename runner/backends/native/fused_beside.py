"""Experts beside a layer's MLP as the kernels compute them: see moe.LayerWithExperts.

Both read the stream as attention left it. What comes of each is normed on its way to their sum, and that is normed and
added to the stream as any branch is. It knows neither how an MLP nor how a mixture of experts is multiplied.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from runner.backends.native.fused_moe import FusedMoE
from runner.backends.native.matrices import MatrixReader, Product
from runner.backends.native.moe import AFTER_DENSE, AFTER_EXPERTS, BEFORE_EXPERTS, LayerWithExperts
from runner.backends.native.stream import Norm, Stream, add_normed_branch, branch_product, read_norm, reader_for
from runner.kernels.add_norm import sum_normed
from runner.kernels.add_parts import Reader


class FusedBeside:
    """What a layer has beside its MLP. name: the layer's."""

    def __init__(self, module: LayerWithExperts, name: str, reader: MatrixReader) -> None:
        self.after_dense = read_norm(reader, module, name, AFTER_DENSE)
        self.before_experts = read_norm(reader, module, name, BEFORE_EXPERTS)
        self.after_experts = read_norm(reader, module, name, AFTER_EXPERTS)
        # A norm without weights, whose factors are the router's.
        scale = reader.vector(f"{name}.router.scale")
        of_router = Norm(gain=scale * scale.numel() ** -0.5, eps=module.router.eps)
        factors = reader.vector(f"{name}.router.per_expert_scale")
        self.experts = FusedMoE(module.experts.config, name, reader, of_router=of_router, factors=factors)

    def add_to(
        self, stream: Stream, gated: Tensor, down: Product, after: Norm, reader: Reader | None, scale: float
    ) -> Stream:
        """(h + norm(norm(gated @ down.T) + norm(experts(h)))) * scale; h is changed in place.

        gated: of the MLP, before its output product. after: the outer norm. reader: see stream.add_branch.
        """
        y, of_y, _ = branch_product(gated, down, self.after_dense.eps, self.experts.dtype)
        # What is ready of the stream was made for the MLP.
        z, of_z = self.experts.sums(replace(stream, ready=None), self.before_experts)
        squares = sum_normed(y, of_y, self.after_dense.gain, z, of_z, self.after_experts.gain)
        fitting = reader_for(reader, len(y), down)
        return add_normed_branch(stream, y, squares, after, fitting, scale)
