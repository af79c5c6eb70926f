"""The largest logit's id from what the tiles of a product say of theirs (epilogues.logits): no logit is read again.

It knows nothing of sampling.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from runner.kernels.compile import Variant
from runner.kernels.values import OPTIONS, has_pdl, pdl_option

NO_TOKEN = tl.constexpr(2147483647)  # more than every id


def greedy_from_tiles_ref(maxima: Tensor, arguments: Tensor) -> Tensor:
    """What `greedy_from_tiles` gives."""
    top = maxima.amax(1, keepdim=True)  # NaN if one is
    token = torch.where(maxima == top, arguments.long(), NO_TOKEN.value).amin(1)
    return torch.where(top[:, 0].isfinite(), token, -1)


@triton.jit
def is_finite(x):
    return tl.abs(x) < float("inf")


@triton.jit
def _greedy(maxima, arguments, out, n_tiles, CHUNK: tl.constexpr, PDL: tl.constexpr):
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    m = tl.program_id(0).to(tl.int64)
    best = tl.full((CHUNK,), -float("inf"), tl.float32)
    token = tl.full((CHUNK,), NO_TOKEN, tl.int32)
    is_nan = tl.zeros((CHUNK,), tl.int32)
    for first in range(0, n_tiles, CHUNK):
        tile = first + tl.arange(0, CHUNK)
        largest = tl.load(maxima + m * n_tiles + tile, mask=tile < n_tiles, other=-float("inf"))
        column = tl.load(arguments + m * n_tiles + tile, mask=tile < n_tiles, other=NO_TOKEN)
        is_nan |= (largest != largest).to(tl.int32)
        token = tl.where(largest > best, column, tl.where(largest == best, tl.minimum(token, column), token))
        best = tl.maximum(best, largest)
    top = tl.max(best, 0)
    found = tl.min(tl.where(best == top, token, NO_TOKEN), 0)
    is_good = is_finite(top) & (tl.max(is_nan, 0) == 0)
    tl.store(out + m, tl.where(is_good, found, -1).to(tl.int64))


def greedy_from_tiles(maxima: Tensor, arguments: Tensor) -> Tensor:
    """The id [M] int64 of each row's largest logit, the lowest of equals, from parts of the row; -1 where choose's is.

    maxima: float32 [M, T], the largest logit of each part, NaN if one is. arguments: int32 [M, T], the lowest id that
    has it. The parts may be in any order.
    """
    n_rows, n_tiles = maxima.shape
    assert arguments.shape == maxima.shape
    assert (maxima.dtype, arguments.dtype) == (torch.float32, torch.int32)
    assert maxima.is_contiguous()
    assert arguments.is_contiguous()
    pdl = has_pdl(maxima)
    out = torch.empty(n_rows, dtype=torch.int64, device=maxima.device)
    _greedy[(n_rows,)](
        maxima, arguments, out, n_tiles, CHUNK=_CHUNK, PDL=pdl, num_warps=_WARPS, **pdl_option(pdl), **OPTIONS
    )
    return out


# H100, us of 8016, 9496 and 16384 parts: 2.1, 2.8, 3.0; 2048 at a time 2.3, 2.9, 3.4; 8192 by 16 warps 2.5, 3.5, 3.2.
_CHUNK, _WARPS = 4096, 8


def variants() -> Iterator[Variant]:
    yield Variant(
        name="greedy",
        kernel=_greedy,
        signature={"maxima": "*fp32", "arguments": "*i32", "out": "*i64", "n_tiles": "i32"},
        constants={"CHUNK": _CHUNK},
        num_warps=_WARPS,
        has_pdl=True,
    )
