"""A draft by the device itself: what followed where the text ended before as it does now.

Of all earlier places at which the last tokens stand, the one with the longest match counts, and of equals the latest;
what follows it is the draft, which goes round where the match reaches into the end itself, as in a text that repeats.
It is made in one program, which passes over what does not even match in one token, and takes no time of the host's.
It knows neither what a draft costs nor whether it is right.
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

LONGEST_MATCH: Final = 16
"""Tokens that are compared at most: of longer matches the latest counts."""


def draft_repeats_ref(text: Tensor, begin: Tensor, start: Tensor, tokens: Tensor, n_drafted: int) -> None:
    """See draft_repeats; `text` begins with the earlier ones."""
    last = int(start) - int(begin)
    ids = text[: last + 1].tolist()

    def length(end: int) -> int:
        most = min(LONGEST_MATCH, end + 1)
        return next((n for n in range(most) if ids[end - n] != ids[last - n]), most)

    matches = [(length(end), end) for end in range(last) if length(end)]
    found = max(matches)[1] if matches else last - 1
    for i in range(n_drafted):
        tokens[1 + i] = max(ids[found + 1 + i % (last - found)], 0)


@triton.jit
def _draft_repeats(
    text, begin, start, tokens, N: tl.constexpr, MOST: tl.constexpr, BLOCK: tl.constexpr, PADDED: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    low, last = tl.load(begin), tl.load(start)
    token = tl.load(text + last)
    best = tl.zeros((BLOCK,), tl.int64)
    for first in range(low, last, BLOCK):
        end = first + tl.arange(0, BLOCK)
        ok = (tl.load(text + end, mask=end < last, other=-1) == token) & (end < last)
        if tl.max(ok.to(tl.int32), 0) > 0:
            length = ok.to(tl.int64)
            for i in tl.static_range(1, MOST):
                wanted = tl.load(text + tl.maximum(last - i, low))
                ok = ok & (tl.load(text + end - i, mask=ok & (end - i >= low), other=-1) == wanted)
                length += ok.to(tl.int64)
            best = tl.maximum(best, tl.where(length > 0, (length << 32) | (end - low).to(tl.int64), 0))
    top = tl.max(best, 0)
    found = tl.where(top > 0, (top & 0xFFFFFFFF).to(tl.int32) + low, last - 1)
    i = tl.arange(0, PADDED)
    draft = tl.load(text + found + 1 + i % (last - found), mask=i < N, other=0)
    tl.store(tokens + 1 + i, tl.maximum(draft, 0).to(tl.int64), mask=i < N)  # -1 is no token, though one was chosen


def draft_repeats(text: Tensor, begin: Tensor, start: Tensor, tokens: Tensor, n_drafted: int) -> None:
    """tokens[1 : 1 + n_drafted] = what followed before, after text[: start + 1], or its last token again and again.

    text: int32 [n]; start: int32 [1], the place of its last token; begin: int32 [1], 0 or less, the place of the first
    one to look at: earlier texts lie in memory before this one. tokens: int64. All on one device, where they stay.
    """
    assert 1 <= n_drafted < min(len(tokens), MOST_ROWS)
    pdl = has_pdl(text)
    _draft_repeats[(1,)](
        text, begin, start, tokens, N=n_drafted, MOST=LONGEST_MATCH, BLOCK=_BLOCK, PADDED=MOST_ROWS, PDL=pdl,
        num_warps=_WARPS, **pdl_option(pdl), **OPTIONS,
    )  # fmt: skip


_BLOCK, _WARPS = 4096, 16


def variants() -> Iterator[Variant]:
    yield Variant(
        name="draft_repeats",
        kernel=_draft_repeats,
        signature={"text": "*i32", "begin": "*i32", "start": "*i32", "tokens": "*i64"},
        constants={"N": MOST_ROWS - 1, "MOST": LONGEST_MATCH, "BLOCK": _BLOCK, "PADDED": MOST_ROWS},
        num_warps=_WARPS,
        has_pdl=True,
    )
