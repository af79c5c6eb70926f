"""What a decode step leaves for the next one and for the host."""

from __future__ import annotations

import pytest
import torch
from attention_cases import DEVICE

from runner.kernels.advance import advance, advance_ref


@pytest.mark.parametrize("how", [advance, advance_ref])
@pytest.mark.parametrize("chosen", [70_000, -1])
def test_the_token_is_sent_and_the_position_moves_on(how: object, chosen: int) -> None:
    assert callable(how)
    tokens = torch.arange(5, dtype=torch.int64, device=DEVICE)
    start = torch.tensor([40], dtype=torch.int32, device=DEVICE)
    position = torch.tensor([41], dtype=torch.int64, device=DEVICE)
    slots = torch.full((2,), 9, dtype=torch.int64, pin_memory=DEVICE.type == "cuda")
    for step in range(3):
        how(torch.tensor([chosen + step], device=DEVICE), tokens, start, position, slots)
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()
    assert tokens.tolist() == [chosen + 2, 1, 2, 3, 4]
    assert slots.tolist() == [chosen + 1, chosen + 2]  # of positions 42 and 43
    assert (int(start), int(position)) == (43, 44)
