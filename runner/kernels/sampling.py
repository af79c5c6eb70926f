"""Logits to tokens on the device: the twin of runner/sampling.py, without penalties, in three launches and no sort.

The filters and the random numbers are runner/sampling.py's; the reference is choice.choose_ref. Each filter keeps the
first few in one order, the largest logit first and the lower id first among equals: it ends at some rank of that order.

1. `_survey`: the largest logit of every 128, and the mass exp(logit - largest) of these.
2. `_gather`: a logit below which top_k and top_p keep nothing follows from those maxima; whatever reaches it, a few
   dozen as a rule, goes to a list. Without top_k and top_p nothing is listed: the tiles race here.
3. `_decide`: bisects the list for the rank, over the bits of logit and id, and runs the race among what is left.

The list has no certain order, so sums over it are of integers: masses count in units of 2^-40. A request's numbers are
read on the device and no grid depends on them: one captured graph serves every request. No row knows of another.

numpy chooses the same token unless top_p ends so near a token that float32 exponentials decide whether it is kept: less
than one draw in a million (modelled: 4e-7 at most, over Zipf-like logits of 128k and top_p of 0.5 to 0.999). Scratch is
8 bytes a logit. It knows no model, and nothing of what tokens mean.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from runner.kernels.choice import Choice, is_supported
from runner.kernels.compile import Variant
from runner.kernels.greedy import NO_TOKEN, is_finite
from runner.kernels.values import OPTIONS, cdiv, has_pdl, next_power_of_2, pdl_option

__all__ = ["Choice", "choose", "is_supported"]

_LOWEST = tl.constexpr(-3.4028234663852886e38)  # of finite float32
_ID_BITS = tl.constexpr(31)
_ONE = tl.constexpr(1099511627776.0)  # 2^40: the mass of the largest logit, so that 2^22 of them fit an int64
# No noise is below -3.1 (u = 2^-32) or above 16.64 (u = 1 - 2^-24): what is 20 below the best score cannot win.
_HOPELESS = tl.constexpr(20.0)
# Where a request's numbers lie.
_TEMPERATURE, _TOP_K, _TOP_P, _DEPTH, _SEED_LOW, _SEED_HIGH = (tl.constexpr(place) for place in range(6))


# --- what the kernels share ------------------------------------------------------------------------------------------


@triton.jit
def ordered_bits(z):
    """A float as an int32 in the order of floats, 0 and -0 being one; above -2^31."""
    bits = tl.where(z == 0.0, 0.0, z).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def float_of(ordered):
    """The inverse."""
    return (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def rank_of(z, ids):
    """The place of a logit in the order: a larger rank comes first. Equal logits, 0 and -0 too, go by id."""
    # The id's bits inverted: lower ids rank higher.
    return (ordered_bits(z).to(tl.int64) << _ID_BITS) | (ids ^ NO_TOKEN)


@triton.jit
def logit_and_id(rank):
    return float_of((rank >> _ID_BITS).to(tl.int32)), (rank & NO_TOKEN).to(tl.int32) ^ NO_TOKEN


@triton.jit
def _maxima(maxima, n_parts, PARTS: tl.constexpr):
    """The maxima of a row's parts, and the largest: NaN if one of them is."""
    part = tl.arange(0, PARTS)
    found = tl.load(maxima + part, mask=part < n_parts, other=-float("inf"))
    is_nan = tl.max((found != found).to(tl.int32), 0) > 0
    return found, tl.where(is_nan, float("nan"), tl.max(found, 0))


@triton.jit
def _total(masses, found, top, n_parts, PARTS: tl.constexpr):
    """The mass of a row, sum exp(logit - top), in float64."""
    part = tl.arange(0, PARTS)
    mass = tl.load(masses + part, mask=part < n_parts, other=0.0)
    return tl.sum(mass.to(tl.float64) * tl.exp(found - top).to(tl.float64), 0)


@triton.jit
def _is_listed(numbers, V):
    """Whether a filter looks at more than a logit's own value."""
    top_k = tl.load(numbers + _TOP_K)
    return (tl.load(numbers + _TOP_P) < 1) | ((top_k > 0) & (top_k < V))


@triton.jit
def _race(z, ids, ok, top, numbers, position):
    """The best of logit / temperature + Gumbel noise in float64, and the lowest id that has it; -inf if none is ok."""
    low = tl.load(numbers + _SEED_LOW).to(tl.int64)
    high = tl.load(numbers + _SEED_HIGH).to(tl.int64)
    zero = ids * 0
    word, _, _, _ = tl.philox((high << 32) | low, ids, zero + position.to(tl.int32), zero, zero)
    uniform = tl.maximum(tl.uint_to_uniform_float(word), 2.3283064365386963e-10)  # 2^-32
    noise = -tl.log(-tl.log(uniform.to(tl.float64)))
    score = (z.to(tl.float64) - top.to(tl.float64)) / tl.load(numbers + _TEMPERATURE)
    noisy = tl.where(ok, score + noise, -float("inf"))
    best = tl.max(noisy, 0)
    return best, tl.min(tl.where(ok & (noisy == best), ids, NO_TOKEN), 0)


# --- 1: survey -------------------------------------------------------------------------------------------------------


@triton.jit
def _survey(
    logits, maxima, masses, counts, V, n_parts, BLOCK: tl.constexpr, PART: tl.constexpr, PDL: tl.constexpr
):  # fmt: skip
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    m = tl.program_id(0).to(tl.int64)
    tile = tl.program_id(1)
    part = tile * (BLOCK // PART) + tl.arange(0, BLOCK // PART)
    column = part[:, None] * PART + tl.arange(0, PART)[None, :]
    z = tl.load(logits + m * V + column, mask=column < V, other=-float("inf"))
    is_nan = tl.max((z != z).to(tl.int32), 1) > 0
    largest = tl.max(z, 1)
    finite = tl.where(largest == -float("inf"), 0.0, largest)  # what is all -inf has mass 0 and not NaN
    place = m * n_parts + part
    tl.store(maxima + place, tl.where(is_nan, float("nan"), largest))
    tl.store(masses + place, tl.sum(tl.exp(z - finite[:, None]), 1))
    if tile == 0:
        tl.store(counts + m, 0)


# --- 2: gather -------------------------------------------------------------------------------------------------------


@triton.jit
def _reached(found, weight, target, top, STEPS: tl.constexpr):
    """A logit that maxima of weight `target` together reach, so that what is kept ends there or above; hardly lower."""
    low = tl.min(tl.where(found == -float("inf"), top, found), 0)
    low = tl.maximum(low, top - 64.0)
    low = tl.where(tl.sum(tl.where(found >= low, weight, 0.0), 0) >= target, low, _LOWEST)
    high = tl.where(low == _LOWEST, low, top)
    for _ in range(STEPS):
        mid = 0.5 * low + 0.5 * high
        is_low = tl.sum(tl.where(found >= mid, weight, 0.0), 0) >= target
        low = tl.where(is_low, mid, low)
        high = tl.where(is_low, high, mid)
    return low


@triton.jit
def _bound(found, masses, top, numbers, V, n_parts, PARTS: tl.constexpr, STEPS: tl.constexpr):
    """A logit that every candidate reaches, and few others."""
    temperature = tl.load(numbers + _TEMPERATURE)
    top_p = tl.load(numbers + _TOP_P)
    top_k = tl.load(numbers + _TOP_K)
    exact = top.to(tl.float64)
    # What min_p lets pass, rounded to float32 as numpy does where there is no top_k.
    bound = tl.maximum(exact - tl.load(numbers + _DEPTH), _LOWEST).to(tl.float32)
    if (top_k > 0) & (top_k < V):
        last = _reached(found, tl.full((PARTS,), 1.0, tl.float32), top_k, top, STEPS)
        # top_p is a share of all top_k, those that min_p drops too.
        bound = tl.where(top_p < 1, last, tl.maximum(bound, last))
    elif top_p < 1:
        total = _total(masses, found, top, n_parts, PARTS)
        last = _reached(found, tl.exp(found - top), top_p * total * 1.00001, top, STEPS)
        # And all that is below this has less than the share 1 - top_p, were it all V logits.
        deep = exact + tl.log((1.0 - top_p) * total / V) - 0.01
        bound = tl.maximum(bound, tl.maximum(last, deep.to(tl.float32)))
    else:
        hopeless = tl.maximum(exact - _HOPELESS * temperature, _LOWEST)
        bound = tl.maximum(bound, hopeless.to(tl.float32))
    return bound


@triton.jit
def _gather(
    logits, numbers, position, scratch, V, n_parts, n_tiles,
    BLOCK: tl.constexpr, PARTS: tl.constexpr, STEPS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    maxima, masses, counts, ranks, scores, tokens = scratch
    m = tl.program_id(0).to(tl.int64)
    tile = tl.program_id(1)
    found, top = _maxima(maxima + m * n_parts, n_parts, PARTS)
    if (tl.load(numbers + _TEMPERATURE) == 0) | (not is_finite(top)):
        return
    ids = tile * BLOCK + tl.arange(0, BLOCK)
    z = tl.load(logits + m * V + ids, mask=ids < V, other=-float("inf"))
    ok = z >= _bound(found, masses + m * n_parts, top, numbers, V, n_parts, PARTS, STEPS)
    count = tl.sum(ok.to(tl.int32), 0)
    if _is_listed(numbers, V):
        if count > 0:
            place = tl.atomic_add(counts + m, count) + tl.cumsum(ok.to(tl.int32), 0) - 1
            tl.store(ranks + m * V + place, rank_of(z, ids), mask=ok)
    else:
        best = tl.full((), -float("inf"), tl.float64)
        token = tl.full((), NO_TOKEN, tl.int32)
        if count > 0:
            best, token = _race(z, ids, ok, top, numbers, tl.load(position) + m)
        tl.store(scores + m * n_tiles + tile, best)
        tl.store(tokens + m * n_tiles + tile, token)


# --- 3: decide -------------------------------------------------------------------------------------------------------


@triton.jit
def _last(ranks, n, CHUNK: tl.constexpr):
    """The smallest rank of the list."""
    least = tl.full((CHUNK,), 9223372036854775807, tl.int64)
    for first in range(0, n, CHUNK):
        at = first + tl.arange(0, CHUNK)
        least = tl.minimum(least, tl.load(ranks + at, mask=at < n, other=9223372036854775807))
    return tl.min(least, 0)


@triton.jit
def _weigh(ranks, n, least, top, CHUNK: tl.constexpr):
    """How many ranks of the list are `least` or larger, and their mass in units of 1 / _ONE."""
    count = tl.zeros((CHUNK,), tl.int32)
    mass = tl.zeros((CHUNK,), tl.int64)
    for first in range(0, n, CHUNK):
        at = first + tl.arange(0, CHUNK)
        rank = tl.load(ranks + at, mask=at < n, other=-9223372036854775808)
        ok = rank >= least
        z, _ = logit_and_id(rank)
        count += ok.to(tl.int32)
        mass += (tl.exp(tl.where(ok, z, -float("inf")) - top) * _ONE).to(tl.int64)
    return tl.sum(count, 0), tl.sum(mass, 0)


@triton.jit
def _shortest(ranks, n, least, target, top, BY_MASS: tl.constexpr, CHUNK: tl.constexpr):
    """The last rank of the first few, none below `least`, that weigh `target` together; `least` if all weigh less."""
    low = least
    high = rank_of(top, n * 0) + 1
    n_low, mass_low = _weigh(ranks, n, low, top, CHUNK)
    n_high = n_low * 0
    weight = (mass_low if BY_MASS else n_low).to(tl.float64)
    n_low = tl.where(weight < target, 0, n_low)
    while n_low - n_high > 1:
        mid = low + ((high - low) >> 1)
        n_mid, mass_mid = _weigh(ranks, n, mid, top, CHUNK)
        is_low = (mass_mid if BY_MASS else n_mid).to(tl.float64) >= target
        low = tl.where(is_low, mid, low)
        n_low = tl.where(is_low, n_mid, n_low)
        high = tl.where(is_low, high, mid)
        n_high = tl.where(is_low, n_high, n_mid)
    return low


@triton.jit
def _from_list(ranks, n, top, total, numbers, position, V, CHUNK: tl.constexpr, HEAT: tl.constexpr):
    """The token of a row whose candidates are in the list."""
    top_k = tl.load(numbers + _TOP_K)
    top_p = tl.load(numbers + _TOP_P)
    least = _last(ranks, n, CHUNK)
    depth = tl.full((), float("inf"), tl.float64)  # without top_k, min_p was at work when the list was made
    if (top_k > 0) & (top_k < V):
        least = _shortest(ranks, n, least, top_k, top, False, CHUNK)
        _, mass = _weigh(ranks, n, least, top, CHUNK)
        total = mass.to(tl.float64)
        depth = tl.load(numbers + _DEPTH)
    if top_p < 1:
        least = _shortest(ranks, n, least, tl.maximum(top_p * total, 1.0), top, True, CHUNK)
    best = tl.full((), -float("inf"), tl.float64)
    token = tl.full((), NO_TOKEN, tl.int32)
    for first in range(0, n, HEAT):
        at = first + tl.arange(0, HEAT)
        rank = tl.load(ranks + at, mask=at < n, other=-9223372036854775808)
        z, ids = logit_and_id(rank)
        ok = (rank >= least) & (top.to(tl.float64) - z.to(tl.float64) <= depth)
        if tl.max(ok.to(tl.int32), 0) > 0:
            rival, other = _race(z, ids, ok, top, numbers, position)
            token = tl.where(rival > best, other, tl.where(rival == best, tl.minimum(token, other), token))
            best = tl.maximum(best, rival)
    return token


@triton.jit
def _decide(
    logits, numbers, position, scratch, out, V, n_parts, n_tiles,
    PART: tl.constexpr, PARTS: tl.constexpr, TILES: tl.constexpr, CHUNK: tl.constexpr, HEAT: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    maxima, masses, counts, ranks, scores, tokens = scratch
    m = tl.program_id(0).to(tl.int64)
    found, top = _maxima(maxima + m * n_parts, n_parts, PARTS)
    token = tl.full((), -1, tl.int32)
    if is_finite(top):
        if tl.load(numbers + _TEMPERATURE) == 0:
            first = tl.min(tl.where(found == top, tl.arange(0, PARTS), PARTS), 0)
            ids = first * PART + tl.arange(0, PART)
            z = tl.load(logits + m * V + ids, mask=ids < V, other=-float("inf"))
            token = tl.min(tl.where(z == top, ids, NO_TOKEN), 0)
        elif _is_listed(numbers, V):
            total = _total(masses + m * n_parts, found, top, n_parts, PARTS) * _ONE
            n = tl.load(counts + m)
            token = _from_list(ranks + m * V, n, top, total, numbers, tl.load(position) + m, V, CHUNK, HEAT)
        else:
            tile = tl.arange(0, TILES)
            score = tl.load(scores + m * n_tiles + tile, mask=tile < n_tiles, other=-float("inf"))
            rival = tl.load(tokens + m * n_tiles + tile, mask=tile < n_tiles, other=NO_TOKEN)
            token = tl.min(tl.where(score == tl.max(score, 0), rival, NO_TOKEN), 0)
    tl.store(out + m, token.to(tl.int64))


# --- launchers -------------------------------------------------------------------------------------------------------


def choose(logits: Tensor, request: Choice, position: Tensor) -> Tensor:
    """A token [M] int64 for each row, row m the one at `position` + m; -1 where the logits are NaN, +inf or all -inf.

    logits: float32 [M, V], contiguous. position: int64 [1], on the device; positions are below 2^32.
    """
    n_rows, vocabulary = logits.shape
    assert logits.dtype == torch.float32
    assert logits.is_contiguous()
    assert position.shape == (1,)
    assert position.dtype == torch.int64
    assert 1 <= vocabulary <= _MOST_TOKENS
    n_tiles = cdiv(vocabulary, _BLOCK)
    n_parts = n_tiles * (_BLOCK // _PART)

    def new(*shape: int, dtype: torch.dtype) -> Tensor:
        return torch.empty(n_rows, *shape, dtype=dtype, device=logits.device)

    maxima, masses = new(n_parts, dtype=torch.float32), new(n_parts, dtype=torch.float32)
    counts, ranks = new(dtype=torch.int32), new(vocabulary, dtype=torch.int64)
    scores, tokens = new(n_tiles, dtype=torch.float64), new(n_tiles, dtype=torch.int32)
    scratch, out = (maxima, masses, counts, ranks, scores, tokens), new(dtype=torch.int64)
    sizes, pdl = (vocabulary, n_parts, n_tiles), has_pdl(logits)
    parts, tiles = next_power_of_2(n_parts), next_power_of_2(n_tiles)
    _survey[(n_rows, n_tiles)](
        logits, maxima, masses, counts, vocabulary, n_parts,
        BLOCK=_BLOCK, PART=_PART, PDL=pdl, num_warps=_WARPS, **pdl_option(pdl), **OPTIONS,
    )  # fmt: skip
    _gather[(n_rows, n_tiles)](
        logits, request.numbers, position, scratch, *sizes,
        BLOCK=_BLOCK, PARTS=parts, STEPS=_STEPS, PDL=pdl, num_warps=_WARPS, **pdl_option(pdl), **OPTIONS,
    )  # fmt: skip
    _decide[(n_rows,)](
        logits, request.numbers, position, scratch, out, *sizes,
        PART=_PART, PARTS=parts, TILES=tiles, CHUNK=_CHUNK, HEAT=_HEAT, PDL=pdl,
        num_warps=_DECIDING_WARPS, **pdl_option(pdl), **OPTIONS,
    )  # fmt: skip
    return out


_MOST_TOKENS = 2**22
_BLOCK, _PART, _STEPS, _WARPS = 1024, 128, 12, 8
# The list is weighed in chunks and raced in heats: noise costs so much more that few should be computed in vain.
_CHUNK, _HEAT, _DECIDING_WARPS = 2048, 512, 16


# --- for compiling ahead of time -------------------------------------------------------------------------------------


def variants() -> Iterator[Variant]:
    vocabulary = 128_256
    n_tiles = cdiv(vocabulary, _BLOCK)
    parts = next_power_of_2(n_tiles * (_BLOCK // _PART))
    given = {"logits": "*fp32", "numbers": "*fp64", "position": "*i64"}
    scratch = {"scratch": ("*fp32", "*fp32", "*i32", "*i64", "*fp64", "*i32")}
    sizes = {"V": "i32:16", "n_parts": "i32", "n_tiles": "i32"}
    yield Variant(
        name="sampling survey",
        kernel=_survey,
        signature={
            "logits": "*fp32", "maxima": "*fp32", "masses": "*fp32", "counts": "*i32", "V": "i32:16", "n_parts": "i32",
        },
        constants={"BLOCK": _BLOCK, "PART": _PART},
        num_warps=_WARPS,
        has_pdl=True,
    )  # fmt: skip
    yield Variant(
        name=f"sampling gather V={vocabulary}",
        kernel=_gather,
        signature={**given, **scratch, **sizes},
        constants={"BLOCK": _BLOCK, "PARTS": parts, "STEPS": _STEPS},
        num_warps=_WARPS,
        has_pdl=True,
    )
    yield Variant(
        name=f"sampling decide V={vocabulary}",
        kernel=_decide,
        signature={**given, **scratch, "out": "*i64", **sizes},
        constants={
            "PART": _PART, "PARTS": parts, "TILES": next_power_of_2(n_tiles), "CHUNK": _CHUNK, "HEAT": _HEAT,
        },
        num_warps=_DECIDING_WARPS,
        has_pdl=True,
    )  # fmt: skip
