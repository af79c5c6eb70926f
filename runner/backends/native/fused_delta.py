"""A gated delta net as the kernels compute it: see delta_net.DeltaNet, and fused.py for what the rest of a layer does.

It knows nothing of layers, nor of which of a sequence's states are held.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from runner.backends.native.delta_net import DeltaNet
from runner.backends.native.matrices import MatrixReader
from runner.backends.native.stream import Norm, Stream, multiply, norm_of, read_product
from runner.kernels.delta_chunks import delta_prompt
from runner.kernels.delta_rule import DeltaRows, DeltaSlots, DeltaWeights, delta_step
from runner.kernels.gates import Gate, GatedRows
from runner.kernels.moe_router import router_logits
from runner.kernels.values import MOST_ROWS


class Recurring(Protocol):
    """What a delta net needs of a pass: see fused.FusedPass."""

    @property
    def slots(self) -> Sequence[DeltaSlots]: ...

    @property
    def start(self) -> Tensor: ...

    @property
    def count(self) -> Tensor | None: ...

    @property
    def checkpoint(self) -> Callable[[], None]: ...


class FusedDeltaNet:
    """See delta_net.DeltaNet. qkv: the product of queries, keys and values, and of the output's gate behind these.
    gates: that of how far a token corrects and how fast what is known fades, which packed models keep as they are."""

    def __init__(self, module: DeltaNet, name: str, reader: MatrixReader) -> None:
        self.config = module.config
        self.dtype = reader.dtype
        self.qkv = read_product(reader, name, ["in_proj_qkv", "in_proj_z"])
        self.gates = read_product(reader, name, ["in_proj_b", "in_proj_a"])
        self.weights = DeltaWeights(
            taps=reader.vector(f"{name}.conv1d.weight").squeeze(1).T.contiguous(),
            fading=-reader.vector(f"{name}.A_log").exp(),
            bias=reader.vector(f"{name}.dt_bias"),
        )
        self.gain = reader.vector(f"{name}.norm.weight")
        self.eps = module.norm.eps
        self.o = read_product(reader, name, ["out_proj"])

    def mix(self, stream: Stream, before: Norm | None, layer: int, run: Recurring) -> GatedRows:
        """What the value heads answer to the rows [M, Hv * Dv], which their norm and gate still are to follow."""
        config = self.config
        b, a = self._gates(stream, before).chunk(2, 1)
        mixed, z = multiply(stream, before, self.qkv, self.dtype).tensor_split([config.channels], dim=1)
        run.checkpoint()
        rows = DeltaRows(mixed=mixed, a=a, b=b, num_key_heads=config.key_heads)
        slots = run.slots[layer]
        if run.count is None:
            answers = delta_step(rows, self.weights, slots, run.start)
        else:
            answers = delta_prompt(rows, self.weights, slots, run.start, run.count)
        return GatedRows(x=answers, gate=Gate(values=z, gain=self.gain, eps=self.eps), dtype=self.dtype)

    def _gates(self, stream: Stream, before: Norm | None) -> Tensor:
        """b and a of the rows, [M, 2 Hv] float32."""
        w = self.gates.parts[0]
        if len(stream.h) > MOST_ROWS or len(self.gates.parts) > 1 or not isinstance(w, Tensor):
            return multiply(replace(stream, ready=None), before, self.gates, torch.float32)
        gain, squares = norm_of(stream, before)
        return router_logits(stream.h, w, gain=gain, squares=squares, bias=self.gates.biases[0])
