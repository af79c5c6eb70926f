"""A gated delta net as the kernels compute it: see delta_net.DeltaNet, and fused.py for what the rest of a layer does.

It knows nothing of layers, nor of which of a sequence's states are held.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from runner.backends.native.delta_net import DeltaNet
from runner.backends.native.matrices import MatrixReader
from runner.backends.native.stream import Norm, Stream, multiply, read_product
from runner.kernels.delta_rule import DeltaRows, DeltaSlots, DeltaWeights, delta_rows
from runner.kernels.gates import Gate, GatedRows


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
    """See delta_net.DeltaNet. qkv: one product of all that reads the stream: queries, keys and values, and behind these
    the output's gate, how far a token corrects, and how fast what is known fades."""

    def __init__(self, module: DeltaNet, name: str, reader: MatrixReader) -> None:
        self.config = module.config
        self.dtype = reader.dtype
        self.qkv = read_product(reader, name, ["in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a"])
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
        product = multiply(stream, before, self.qkv, self.dtype)
        run.checkpoint()
        sizes = [config.channels, config.values_size, config.value_heads, config.value_heads]
        mixed, z, b, a = torch.split(product, sizes, dim=1)
        rows = DeltaRows(mixed=mixed, a=a, b=b, num_key_heads=config.key_heads)
        answers = delta_rows(rows, self.weights, run.slots[layer], run.start, run.count)
        return GatedRows(x=answers, gate=Gate(values=z, gain=self.gain, eps=self.eps), dtype=self.dtype)
