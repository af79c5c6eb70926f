"""What each layer gets of the calibration text beside the stream (Gemma 4's small models), one layer at a time.

Of the table only the rows that the text needs are held, and of what makes the inputs only what is one layer's. It knows
nothing of rounding: the copy gets the inputs that the model gets.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from runner.backends.native.blocks import Trunk
from runner.quant.mq.basis import to_float
from runner.quant.weights import LAYER_EMBEDDINGS, Weights

_PROJECTION = "model.per_layer_model_projection.weight"
_NORM = "model.per_layer_projection_norm.weight"


class LayerInputs:
    """Of ids [B, T], whose embeddings are `embedded` [B, T, hidden]. trunk: the model's, whatever its parameters hold.

    Raises OSError where the weights cannot be read.
    """

    def __init__(self, trunk: Trunk, weights: Weights, ids: Tensor, embedded: Tensor) -> None:
        used, self._ids = torch.unique(ids, return_inverse=True)
        self._rows = torch.cat([to_float(weights.read_rows(LAYER_EMBEDDINGS, row, row + 1)) for row in used.tolist()])
        self._weights = weights
        self._embedded = embedded
        self._trunk = copy.deepcopy(trunk)
        self._trunk.layers = nn.ModuleList()
        norm = to_float(weights.read(_NORM), ids.device)
        self._trunk.per_layer_projection_norm.weight = nn.Parameter(norm, requires_grad=False)

    def of(self, layer: int) -> Tensor:
        """[B, T, size] float32."""
        trunk, size, device = self._trunk, len(self._trunk.per_layer_projection_norm.weight), self._ids.device
        columns = slice(layer * size, (layer + 1) * size)
        table = self._rows[:, columns].contiguous().to(device)
        projection = to_float(self._weights.read_rows(_PROJECTION, columns.start, columns.stop), device)
        trunk.embed_tokens_per_layer.weight = nn.Parameter(table, requires_grad=False)
        trunk.per_layer_model_projection.weight = nn.Parameter(projection, requires_grad=False)
        found = trunk.layer_inputs(self._ids, self._embedded)
        assert found is not None
        (own,) = found
        return own
