"""In all tests of kernels new tensors are poisoned: what a kernel leaves out shows, and what it should not read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

_POISON = -77  # for whole numbers: no result has it


@pytest.fixture(autouse=True)
def poison() -> Iterator[None]:
    """What a kernel does not write is NaN, or a number that no result has."""
    empty, empty_like = torch.empty, torch.empty_like

    def fill(tensor: Tensor) -> Tensor:
        return tensor.fill_(float("nan") if tensor.is_floating_point() else _POISON)

    def poisoned_empty(*args: Any, **kwargs: Any) -> Tensor:
        return fill(empty(*args, **kwargs))

    def poisoned_like(*args: Any, **kwargs: Any) -> Tensor:
        return fill(empty_like(*args, **kwargs))

    with patch.object(torch, "empty", poisoned_empty), patch.object(torch, "empty_like", poisoned_like):
        yield
