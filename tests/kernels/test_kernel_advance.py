"""What a decode step leaves for the next one, for the text and for the host."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from attention_cases import DEVICE
from torch import Tensor

from runner.kernels.advance import SLOT_SIZE, advance, advance_ref
from runner.kernels.values import MOST_ROWS

Advance = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], None]
HOW = pytest.mark.parametrize("how", [advance, advance_ref])


class State:
    """What steps share, 41 tokens into a text; the host's part pinned where there is a device."""

    def __init__(self, tokens: list[int]) -> None:
        self.tokens = torch.tensor(tokens + [7] * (MOST_ROWS - len(tokens)), device=DEVICE)
        self.text = torch.full((100,), 9, dtype=torch.int32, device=DEVICE)
        self.start = torch.tensor([40], dtype=torch.int32, device=DEVICE)
        self.position = torch.tensor([41], dtype=torch.int64, device=DEVICE)
        self.turn = torch.tensor([0], dtype=torch.int64, device=DEVICE)
        self.slots = torch.full((2, SLOT_SIZE), 9, dtype=torch.int64, pin_memory=DEVICE.type == "cuda")

    def end(self, how: Advance, chosen: list[int]) -> None:
        how(
            torch.tensor(chosen, device=DEVICE),
            self.tokens,
            self.text,
            self.start,
            self.position,
            self.turn,
            self.slots,
        )
        if DEVICE.type == "cuda":
            torch.cuda.synchronize()


@HOW
@pytest.mark.parametrize("chosen", [70_000, -1])
def test_the_token_is_sent_and_the_position_moves_on(how: Advance, chosen: int) -> None:
    state = State([1, 2, 3])
    for step in range(3):
        state.end(how, [chosen + step])
    assert state.tokens.tolist() == [chosen + 2, 2, 3, *[7] * 13]
    assert state.slots[:, :3].tolist() == [[1, chosen + 2, 9], [1, chosen + 1, 9]]  # of turns 2 and 1
    assert (int(state.start), int(state.position), int(state.turn)) == (43, 44, 3)
    assert state.text[39:45].tolist() == [9, 1, chosen, chosen + 1, chosen + 2, 9]


@HOW
@pytest.mark.parametrize(
    ("draft", "chosen", "n_emitted"),
    [
        ([4, 5, 6], [4, 5, 6, 8], 4),
        ([4, 5, 6], [4, 5, 8, 6], 3),
        ([4, 5, 6], [8, 5, 6, 4], 1),
        ([4, 5, 6], [-1, 5, 6, 4], 1),
        (list(range(20, 35)), [*range(20, 35), 7], 16),
        ([4], [4, 7], 2),
    ],
)
def test_of_a_draft_as_much_stands_as_was_chosen_too(
    how: Advance, draft: list[int], chosen: list[int], n_emitted: int
) -> None:
    state = State([3, *draft])
    state.end(how, chosen)
    assert int(state.tokens[0]) == chosen[n_emitted - 1]
    assert state.tokens[1 : 1 + len(draft)].tolist() == draft
    assert (int(state.start), int(state.position), int(state.turn)) == (40 + n_emitted, 41 + n_emitted, 1)
    assert state.text[39 : 42 + n_emitted].tolist() == [9, 3, *chosen[:n_emitted], 9]
    slot = state.slots[0].tolist()
    assert slot[: 1 + len(chosen)] == [n_emitted, *chosen]
    assert slot[MOST_ROWS + 1 : MOST_ROWS + 1 + len(draft)] == draft
    assert state.slots[1].tolist() == [9] * SLOT_SIZE
