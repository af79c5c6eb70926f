"""The end of a decode step: its token goes to where the next step reads it and to the host, and the position moves on.

One launch in place of three and of a copy to the host, which the device would make between two graphs. It knows neither
logits nor how a token was chosen.
"""

from __future__ import annotations

from collections.abc import Iterator

import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from runner.kernels.compile import Variant
from runner.kernels.values import OPTIONS, has_pdl, pdl_option


def advance_ref(chosen: Tensor, tokens: Tensor, start: Tensor, position: Tensor, slots: Tensor) -> None:
    """See advance."""
    tokens[:1].copy_(chosen)
    slots[int(position) % len(slots)] = chosen[0]
    start.add_(1)
    position.add_(1)


@triton.jit
def _advance(chosen, tokens, start, position, slots, SLOTS: tl.constexpr, PDL: tl.constexpr):
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    token, at = tl.load(chosen), tl.load(position)
    tl.store(tokens, token)
    tl.store(slots + at % SLOTS, token)
    tl.store(start, tl.load(start) + 1)
    tl.store(position, at + 1)


def advance(chosen: Tensor, tokens: Tensor, start: Tensor, position: Tensor, slots: Tensor) -> None:
    """tokens[0] = slots[position % len(slots)] = chosen[0]; then start and position are one more.

    chosen: int64 [1]. tokens, slots: int64; slots may lie in pinned memory of the host, which sees the token once what
    the device has begun is done. start, position: [1], integers.
    """
    pdl = has_pdl(chosen)
    _advance[(1,)](
        chosen, tokens, start, position, slots, SLOTS=len(slots), PDL=pdl, num_warps=1, **pdl_option(pdl), **OPTIONS
    )


def variants() -> Iterator[Variant]:
    yield Variant(
        name="advance",
        kernel=_advance,
        signature={"chosen": "*i64", "tokens": "*i64", "start": "*i32", "position": "*i64", "slots": "*i64"},
        constants={"SLOTS": 2},
        num_warps=1,
        has_pdl=True,
    )
