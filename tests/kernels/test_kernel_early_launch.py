"""The launch that is made for its own sake: made where kernels can begin early, and nowhere else."""

from __future__ import annotations

import torch
from kernel_data import DEVICE

from runner.kernels.early_launch import launch_early
from runner.kernels.values import has_pdl


def test_early_launch_happens_where_kernels_can_begin_early() -> None:
    place = torch.full((1,), 7, dtype=torch.int32, device=DEVICE)
    launch_early(place)
    assert place.item() == (0 if has_pdl(place) else 7)
