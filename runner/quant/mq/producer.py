"""What makes the tensors of a packed model: the seam between the loop that writes them and the ways to round.

plain.py rounds every matrix by itself; a calibrating producer looks at the model's activations as well. It knows
nothing of files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from runner.quant.mq.packed_file import PackedFile
from runner.quant.mq.plan import PackedPlan
from runner.quant.mq.tensor_format import Encoded
from runner.quant.weights import Weights

# What is being done, how much of it is, and of how much; in bytes of the source for "quantizing".
OnStage = Callable[[str, int, int], None]


class Producer(Protocol):
    """Makes tensors in any order."""

    def calibration(self, plan: PackedPlan) -> Mapping[str, Any] | None:
        """What the manifest says of the calibration, as JSON; None where there is none. A half-made file is only
        continued by a producer that says the same."""
        ...

    def produce(
        self, plan: PackedPlan, weights: Weights, written: PackedFile, on_stage: OnStage
    ) -> Iterator[tuple[str, Encoded]]:
        """Every tensor of `plan` that is not in `written.done`, encoded.

        weights: of the plan's basis (basis.stored_rows gives a matrix as it is stored). A tensor that was yielded is in
        `written` when the iterator is asked for the next. Raises BadModelFile for weights that cannot be read or used.
        """
        ...
