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
from runner.kernels.values import OPTIONS, has_pdl, next_power_of_2, pdl_option

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
    chunk = _chunk(n_tiles)
    _greedy[(n_rows,)](
        maxima, arguments, out, n_tiles,
        CHUNK=chunk, PDL=pdl, num_warps=_warps(chunk), **pdl_option(pdl), **OPTIONS,
    )  # fmt: skip
    return out


def _chunk(n_tiles: int) -> int:
    """Parts that a program asks for at once: all, up to 8192."""
    return min(8192, max(32, next_power_of_2(n_tiles)))


def _warps(chunk: int) -> int:
    """Of up to 16 parts a thread."""
    return max(1, chunk // 512)


def variants() -> Iterator[Variant]:
    for n_tiles in (2000, 8016):
        yield Variant(
            name=f"greedy {n_tiles} tiles",
            kernel=_greedy,
            signature={"maxima": "*fp32", "arguments": "*i32", "out": "*i64", "n_tiles": "i32"},
            constants={"CHUNK": _chunk(n_tiles)},
            num_warps=_warps(_chunk(n_tiles)),
            has_pdl=True,
        )
