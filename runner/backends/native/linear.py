"""The linear projection of every architecture: y = x @ weight.T + bias.

One class, so that a weight format with a kernel of its own has one place to come in. It knows no architecture.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class Linear(nn.Module):
    """weight: [out, in]; bias: [out] or None. The parameters are uninitialized until the loader fills them."""

    def __init__(self, in_features: int, out_features: int, *, bias: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out_features, in_features), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(out_features), requires_grad=False) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """x: [..., in] -> [..., out]."""
        return functional.linear(x, self.weight, self.bias)
