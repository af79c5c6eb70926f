"""The end of a decode step: what it emits goes to the text, to where the next step begins, and to the host.

A step of several rows has verified a draft: the tokens that stand and the one after them are emitted, and the position
moves on by as many. One launch, so that the next step can begin before the host has seen anything. It knows neither
logits nor how a token was chosen, nor who made the draft.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from runner.kernels.compile import Variant
from runner.kernels.values import MOST_ROWS, OPTIONS, has_pdl, pdl_option

SLOT_SIZE: Final = 2 * MOST_ROWS
"""Numbers of a slot: how many tokens were emitted; what was chosen after each row; from MOST_ROWS + 1 on the draft."""


def advance_ref(
    chosen: Tensor, tokens: Tensor, text: Tensor, start: Tensor, position: Tensor, turn: Tensor, slots: Tensor
) -> None:
    """See advance."""
    n_rows, at = len(chosen), int(position)
    draft = tokens[1:n_rows].clone()
    right = (chosen[:-1] == draft).long().cumprod(0)
    n_emitted = int(right.sum()) + 1
    text[at - 1], text[at : at + n_emitted] = tokens[0].int(), chosen[:n_emitted].int()
    tokens[0] = chosen[n_emitted - 1]
    slot = slots[int(turn) % len(slots)]
    slot[0], slot[1 : 1 + n_rows] = n_emitted, chosen
    slot[MOST_ROWS + 1 : MOST_ROWS + n_rows] = draft
    start.add_(n_emitted)
    position.add_(n_emitted)
    turn.add_(1)


@triton.jit
def _advance(
    chosen, tokens, text, start, position, turn, slots,
    ROWS: tl.constexpr, PADDED: tl.constexpr, SLOTS: tl.constexpr, SIZE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    i = tl.arange(0, PADDED)
    token = tl.load(chosen + i, mask=i < ROWS, other=-1)
    draft = tl.load(tokens + 1 + i, mask=i < ROWS - 1, other=-2)
    last = tl.min(tl.where((token == draft) & (i < ROWS - 1), PADDED, i), 0)  # the first that is not what was drafted
    at, turns, first = tl.load(position), tl.load(turn), tl.load(start)  # behind a store it would wait for that
    tl.store(text + at - 1, tl.load(tokens).to(tl.int32))
    tl.store(text + at + i, token.to(tl.int32), mask=i <= last)
    tl.store(tokens, tl.sum(tl.where(i == last, token, 0), 0))
    slot = slots + turns % SLOTS * SIZE
    tl.store(slot, (last + 1).to(tl.int64))
    tl.store(slot + 1 + i, token, mask=i < ROWS)
    tl.store(slot + PADDED + 1 + i, draft, mask=i < ROWS - 1)
    tl.store(start, first + last + 1)
    tl.store(position, at + last + 1)
    tl.store(turn, turns + 1)


def advance(
    chosen: Tensor, tokens: Tensor, text: Tensor, start: Tensor, position: Tensor, turn: Tensor, slots: Tensor
) -> None:
    """End a step of R rows, of tokens[:R]: tokens[1:R] are its draft, which stands as far as `chosen` says the same.

    chosen: int64 [R], the token after each row; those up to the first that was not drafted are emitted. text: int32,
    they go there from `position` on, and tokens[0] before it. tokens: int64 [MOST_ROWS]; the last of them goes to
    tokens[0]. start, position, turn: [1], integers: the first two move on by as many, turn by one. slots: int64
    [n, SLOT_SIZE]: all goes to slot turn % n, as SLOT_SIZE says; they may lie in pinned memory of the host, which sees
    them once what the device has begun is done.
    """
    n_rows, pdl = len(chosen), has_pdl(chosen)
    assert 1 <= n_rows <= len(tokens) == MOST_ROWS
    assert slots.shape[1] == SLOT_SIZE
    _advance[(1,)](
        chosen, tokens, text, start, position, turn, slots, ROWS=n_rows, PADDED=MOST_ROWS, SLOTS=len(slots),
        SIZE=SLOT_SIZE, PDL=pdl, num_warps=1, **pdl_option(pdl), **OPTIONS,
    )  # fmt: skip


def variants() -> Iterator[Variant]:
    for n_rows in (1, 8):
        yield Variant(
            name=f"advance M={n_rows}",
            kernel=_advance,
            signature={
                "chosen": "*i64", "tokens": "*i64", "text": "*i32", "start": "*i32", "position": "*i64", "turn": "*i64",
                "slots": "*i64",
            },
            constants={"ROWS": n_rows, "PADDED": MOST_ROWS, "SLOTS": 2, "SIZE": SLOT_SIZE},
            num_warps=1,
            has_pdl=True,
        )  # fmt: skip
