"""Makes a packed model from one of hipfire's files: what lies there in MQ4-G256 is taken over bit for bit.

What is stored otherwise is encoded as any weights are. It knows no files but the source's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from runner.quant.hipfire.source import HfqWeights
from runner.quant.mq.mq4_hipfire import BLOCK_WEIGHTS, MQ4_HIPFIRE
from runner.quant.mq.packed_file import PackedFile
from runner.quant.mq.plain import encode
from runner.quant.mq.plan import PackedPlan, TensorPlan
from runner.quant.mq.producer import OnStage
from runner.quant.mq.recipe import KEEP, Recipe, Rule
from runner.quant.mq.tensor_format import Encoded
from runner.quant.weights import Weights


def import_recipe(weights: HfqWeights) -> Recipe:
    """The recipe that keeps MQ4-G256 matrices and plain ones as they are; what else there is becomes mq8."""
    matrices = sorted(name for name, shape in weights.shapes.items() if len(shape) == 2)
    others = [name for name in matrices if weights.mq4_blocks(name) is None]
    rules = [Rule(tensors=name, format=_format_of(weights, name)) for name in others]
    return Recipe(name=MQ4_HIPFIRE.name, rules=(*rules, Rule(tensors="*", format=MQ4_HIPFIRE.name)))


def _format_of(weights: HfqWeights, name: str) -> str:
    return KEEP if weights.types[name] == weights.dtype(name) else "mq8"


@dataclass(frozen=True, kw_only=True)
class ImportProducer:
    """source: the file. device: where what is not taken over is rounded."""

    source: HfqWeights
    device: torch.device

    def calibration(self, _plan: PackedPlan) -> None:
        return None

    def produce(
        self, plan: PackedPlan, weights: Weights, written: PackedFile, on_stage: OnStage
    ) -> Iterator[tuple[str, Encoded]]:
        """See Producer."""
        done = sum(tensor.source_bytes for tensor in plan.tensors if tensor.name in written.done)
        on_stage("quantizing", done, plan.source_bytes)
        for tensor in plan.tensors:
            if tensor.name in written.done:
                continue
            taken_over = self._taken_over(plan, tensor)
            yield tensor.name, taken_over or encode(tensor, weights, self.device, plan.largest_f32_bytes // 2)
            done += tensor.source_bytes
            on_stage("quantizing", done, plan.source_bytes)

    def _taken_over(self, plan: PackedPlan, tensor: TensorPlan) -> Encoded | None:
        is_in_its_basis = plan.rotation == "online" and tensor.input_rotation == BLOCK_WEIGHTS
        if tensor.format != MQ4_HIPFIRE.name or not is_in_its_basis:
            return None
        blocks = self.source.mq4_blocks(tensor.name)
        # A copy: the file is mapped read-only, which torch does not know of.
        return None if blocks is None else MQ4_HIPFIRE.encoded(torch.from_numpy(np.array(blocks)))
