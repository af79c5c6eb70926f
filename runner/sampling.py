"""Logits to a token: penalties, top-k, top-p, min-p, temperature, and position-seeded Gumbel-max noise.

Pure functions of their arguments, in numpy. This file knows no model, backend or device, and keeps no state: the
random number of a (seed, position, token) is computed, not drawn, so the token at a position does not depend on how
it was reached (speculative verification and a GPU twin choose the same one).

The filters are llama.cpp's, in its order: penalties, top_k, top_p, min_p, temperature. Where llama.cpp leaves ties to
its sort, here the lowest id comes first. Probabilities are float64. What a grammar forbids is taken out first: with
penalties, which change each logit by itself, the order does not matter, and every filter after them sees allowed tokens
alone. (llama.cpp samples without the grammar and, where that forbids the token, again with it before all filters.)

What a token costs (`python benchmarks/sampling.py`, AMD EPYC, Zen 4): with a vocabulary of 8192, 1 us greedy and 20 to
80 us with the default filters; with 152k, 11 us and 80 to 140 us. Below ten candidates, Philox is most of it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from runner.config import SamplingParams
from runner.errors import BadModelFile

Ids = NDArray[np.intp]
Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

# Philox4x32-10: "Parallel random numbers: as easy as 1, 2, 3" (Salmon et al., SC 2011).
_ROUNDS = 10
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_MASK = 0xFFFFFFFF
_MOST_LANES = 512
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)

# Triton's scale of an int32 to [0, 1), and the number that stands in for its 0 (probability 2^-31), whose Gumbel
# value would be -inf: half of the next possible number. The largest is 1 - 2^-24, so every Gumbel value is finite.
_UNIFORM_SCALE = np.float32(4.6566127342e-10)
_SMALLEST_UNIFORM = np.float32(2.0**-32)
_LARGEST_GUMBEL = -math.log(-math.log(1 - 2.0**-24))

_UNLIMITED = 1e39  # more than any two finite logits differ
_LOWEST_LOGIT = float(np.finfo(np.float32).min)
_NEVER = np.float32(-math.inf)
_NUCLEUS_DEPTH = 10.0
_SORT_LIMIT = 1024  # candidates: fewer are sorted whole
_RACE_CHUNK = 4096  # candidates: more are raced in pieces


class Constraint(Protocol):
    """What one request's tokens have to keep to: a function of the text before each."""

    def allowed(self, history: Sequence[int]) -> Mask | None:
        """Which tokens [V] may follow `history`, the prompt and completion ids so far; None where all may.

        Never all False: where nothing may follow it raises RunnerError. The array is not to be changed.
        """
        ...


def sample(
    logits: NDArray[np.float32],
    params: SamplingParams,
    history: Sequence[int],
    position: int,
    allowed: Mask | None = None,
) -> int:
    """The token at `position`, chosen from `logits`.

    logits: [V] float32, not modified. history: the prompt and completion ids so far, which the penalties look at (a
    list, or an integer array). position: the index of the token being sampled, below 2^32. params.seed is a number
    unless temperature is 0. allowed: [V], the tokens that may be chosen; None is all of them. Raises BadModelFile when
    the logits are NaN, +inf or all -inf, those of the allowed tokens alone where not all are.
    """
    logits = _penalized(_masked(logits, allowed), params, history)
    if params.temperature == 0:
        return _greedy(logits)
    ids, values = _candidates(logits, params)
    if ids.size == 1:
        return int(ids[0])
    if params.seed is None:
        raise ValueError("sampling needs a seed")
    return _race(ids, values / params.temperature, params.seed, position)


def distribution(
    logits: NDArray[np.float32], params: SamplingParams, history: Sequence[int], allowed: Mask | None = None
) -> tuple[Ids, Floats]:
    """What `sample` draws from: the candidate ids and their probabilities, the most probable first.

    Arguments and errors are those of `sample`. At temperature 0 it is the one greedy token.
    """
    logits = _penalized(_masked(logits, allowed), params, history)
    if params.temperature == 0:
        return np.array([_greedy(logits)]), np.ones(1)
    ids, values = _candidates(logits, params)
    order = np.argsort(-values, kind="stable")
    weights = np.exp(values[order] / params.temperature)
    return ids[order], weights / weights.sum()


def _greedy(logits: NDArray[np.float32]) -> int:
    token = int(logits.argmax())
    _check(float(logits[token]))
    return token


def _check(top: float) -> None:
    """Refuse logits by their largest, `top`: it is NaN if any of them is."""
    if not math.isfinite(top):
        raise bad_logits({math.inf: "+inf", -math.inf: "all -inf"}.get(top, "NaN"))


def bad_logits(what: str = "not finite") -> BadModelFile:
    """The error for logits that no token can be chosen from."""
    return BadModelFile(
        f"The model's logits are {what}, so no token can be chosen.",
        hint="The model file is damaged, or its weights overflow here: verify the file, or try another "
        "quantization, --kv-type f32 or another --backend.",
    )


# --- filters ---------------------------------------------------------------------------------------------------------


def _masked(logits: NDArray[np.float32], allowed: Mask | None) -> NDArray[np.float32]:
    """`logits`, or a copy of them with -inf for what is not allowed: never chosen, whatever penalties do to it."""
    if allowed is None:
        return logits
    masked = np.full(logits.size, _NEVER)
    np.copyto(masked, logits, where=allowed)  # a fifth of np.where's time where few are, which is most masks
    return masked


def _penalized(logits: NDArray[np.float32], params: SamplingParams, history: Sequence[int]) -> NDArray[np.float32]:
    """`logits`, or a copy of them in which the tokens of the window are penalized, as llama.cpp does it.

    Once for each distinct token: divided by repeat_penalty if positive, else multiplied by it; then
    frequency_penalty * count + presence_penalty is subtracted.
    """
    repeat, presence, frequency = params.repeat_penalty, params.presence_penalty, params.frequency_penalty
    if params.penalty_last_n == 0 or (repeat == 1 and presence == 0 and frequency == 0):
        return logits
    window = history if params.penalty_last_n < 0 else history[-params.penalty_last_n :]
    counts = {token: count for token, count in Counter(window).items() if 0 <= token < logits.size}
    if not counts:
        return logits
    ids = np.fromiter(counts.keys(), np.intp, len(counts))
    values = logits[ids].astype(np.float64)
    values = np.where(values > 0, values / repeat, values * repeat)
    values -= presence + frequency * np.fromiter(counts.values(), np.float64, len(counts))
    penalized = logits.copy()
    with np.errstate(over="ignore"):  # a logit that leaves float32 downwards is -inf: never chosen
        penalized[ids] = values
    return penalized


def _candidates(logits: NDArray[np.float32], params: SamplingParams) -> tuple[Ids, Floats]:
    """The ids that pass top_k, top_p and min_p, and their logits less the largest one. Never empty, in no order."""
    top = float(logits.max())
    _check(top)
    # min_p cuts at a value and top_p at a rank, so the order of the two does not matter, once top_p's total is
    # known: min_p goes first and leaves top_p less to sort.
    depth = -math.log(params.min_p) if params.min_p > 0 else _UNLIMITED
    is_cut = params.top_p < 1
    if 0 < params.top_k < logits.size:
        ids = _largest(logits, params.top_k)
        values = logits[ids].astype(np.float64) - top
        count = int((-values).searchsorted(depth, side="right"))
        if is_cut:
            cumulative = np.exp(values).cumsum()
            count = min(count, int(cumulative.searchsorted(params.top_p * cumulative[-1])) + 1)
        return ids[:count], values[:count]
    if not is_cut:
        return _within(logits, top, depth)
    total = float(np.exp(logits - logits.max()).sum(dtype=np.float64))
    # Whatever is far below the top rarely counts for top_p: try without it first.
    ids, values = _within(logits, top, min(depth, _NUCLEUS_DEPTH))
    if depth > _NUCLEUS_DEPTH and np.exp(values).sum() < params.top_p * total:
        ids, values = _within(logits, top, depth)
    kept = _nucleus(values, params.top_p * total)
    return ids[kept], values[kept]


def _within(logits: NDArray[np.float32], top: float, depth: float) -> tuple[Ids, Floats]:
    """The ids of the logits that are at most `depth` below `top`, and these logits less `top`; -inf never counts."""
    ids = (logits >= max(top - depth, _LOWEST_LOGIT)).nonzero()[0]
    return ids, logits[ids].astype(np.float64) - top


def _largest(logits: NDArray[np.float32], count: int) -> Ids:
    """The ids of the `count` largest logits, the largest first, the lower id first among equals."""
    columns = 8 * count
    if 4 * columns <= logits.size:
        # The count-th largest of the column maxima is a lower bound of the count-th largest logit, and few others
        # reach it: 10 to 20 times faster than a partition of all of them.
        rows = logits.size // columns
        pool = logits[: rows * columns].reshape(rows, columns).max(axis=0)
    else:
        pool = logits
    bound = np.partition(pool, pool.size - count)[pool.size - count]
    ids: Ids = (logits >= bound).nonzero()[0]
    return ids[(-logits[ids]).argsort(kind="stable")[:count]]


def _nucleus(values: Floats, target: float) -> Ids:
    """The indices of the largest values, as few as have exp(values).sum() >= target; at least one.

    A quickselect by mass: only what is left around the boundary is sorted. Among equals the first come first.
    """
    if np.exp(values).sum() < target:
        return np.arange(values.size)
    chosen: list[Ids] = []
    pool = np.arange(values.size)
    while pool.size > _SORT_LIMIT:
        sampled = values[pool[:: pool.size // 64]]
        pivot = np.partition(sampled, sampled.size // 2)[sampled.size // 2]
        is_upper = values[pool] > pivot
        if not is_upper.any():
            is_upper = values[pool] == pivot
            if is_upper.all():
                break
        upper = pool[is_upper]
        mass = float(np.exp(values[upper]).sum())
        if mass >= target:
            pool = upper
        else:
            chosen.append(upper)
            target -= mass
            pool = pool[~is_upper]
    pool = pool[(-values[pool]).argsort(kind="stable")]
    cumulative = np.exp(values[pool]).cumsum()
    chosen.append(pool[: int(cumulative.searchsorted(target)) + 1])
    return np.concatenate(chosen)


# --- the random choice -----------------------------------------------------------------------------------------------


def _race(ids: Ids, scores: Floats, seed: int, position: int) -> int:
    """argmax(scores + Gumbel noise): a sample of softmax(scores) (the Gumbel-max trick). The largest score is 0."""
    if ids.size <= _RACE_CHUNK:
        return _winner(ids, scores, seed, position)[0]
    # No noise exceeds _LARGEST_GUMBEL, so what is far below a good result cannot win and its noise is not computed;
    # chunks that stay in the cache are 3 times faster than one piece.
    near = scores >= -4
    token, best = _winner(ids[near], scores[near], seed, position)
    far = ((scores < -4) & (scores > best - _LARGEST_GUMBEL)).nonzero()[0]
    for start in range(0, far.size, _RACE_CHUNK):
        chunk = far[start : start + _RACE_CHUNK]
        other, rival = _winner(ids[chunk], scores[chunk], seed, position)
        if rival > best:
            token, best = other, rival
    return token


def _winner(ids: Ids, scores: Floats, seed: int, position: int) -> tuple[int, float]:
    noisy = scores + gumbel(seed, position, ids)
    index = int(noisy.argmax())
    return int(ids[index]), float(noisy[index])


def gumbel(seed: int, position: int, tokens: Ids) -> Floats:
    """Standard Gumbel noise of each token at `position`, always finite: -log(-log(u)), u = uniform(...)."""
    return -np.log(-np.log(uniform(seed, position, tokens).astype(np.float64)))


def uniform(seed: int, position: int, tokens: Ids) -> NDArray[np.float32]:
    """A number in (0, 1) for each token at `position`: Triton's tl.rand bits, but 2^-32 where it gives 0.

    In Triton: maximum(uint_to_uniform_float(philox(seed, token, position, 0, 0)[0]), 2^-32), with 32-bit counters.
    """
    signed = _first_words(seed, position, tokens).astype(np.uint32).view(np.int32)
    signed ^= signed >> 31  # ~x where x is negative
    drawn: NDArray[np.float32] = np.maximum(signed.astype(np.float32) * _UNIFORM_SCALE, _SMALLEST_UNIFORM)
    return drawn


def _first_words(seed: int, position: int, tokens: Ids) -> NDArray[np.uint64]:
    """philox(seed, (token, position, 0, 0))[0] of each token.

    Few tokens, as there are after top_k, are computed in lanes of one large integer, many as an array: an operation on
    an array costs a microsecond before it does anything, and there are a hundred. 5 us instead of 37 for 8 tokens.
    """
    n = tokens.size
    if n > _MOST_LANES:
        first: NDArray[np.uint64] = philox(seed, (tokens.astype(np.uint64), position, 0, 0))[0]
        return first
    ones = _ones(n)
    packed = int.from_bytes(tokens.astype("<u8").tobytes(), "little")
    word = _rounds((packed, position * ones, 0, 0), _lane_keys(seed, n), _MASK * ones)[0]
    return np.frombuffer(word.to_bytes(8 * n, "little"), "<u8")


def philox(seed: int, counter: Sequence[Any]) -> tuple[Any, ...]:
    """Philox4x32-10 under a 64-bit key. counter: four words below 2^32, numbers or uint64 arrays; gives four words."""
    return _rounds(counter, _round_keys(seed), _MASK)


def _rounds(counter: Sequence[Any], keys: Sequence[tuple[Any, Any]], mask: Any) -> tuple[Any, ...]:
    """The rounds, on numbers, on uint64 arrays, or on integers with a number below 2^32 in each lane of 64 bits.

    A product of two 32-bit numbers fills its lane and no more, so lanes never touch; `mask` keeps the low half of each.
    """
    a, b, c, d = counter
    for key_a, key_c in keys:
        product_a, product_c = a * _MULTIPLIERS[0], c * _MULTIPLIERS[1]
        a, b = (product_c >> 32 & mask) ^ b ^ key_a, product_c & mask
        c, d = (product_a >> 32 & mask) ^ d ^ key_c, product_a & mask
    return a, b, c, d


@lru_cache(maxsize=16)
def _round_keys(seed: int) -> tuple[tuple[int, int], ...]:
    """The two 32-bit keys of each round: the low half of the seed first, as in Triton."""
    low, high = seed & _MASK, seed >> 32
    return tuple(((low + r * _KEY_STEPS[0]) & _MASK, (high + r * _KEY_STEPS[1]) & _MASK) for r in range(_ROUNDS))


@lru_cache(maxsize=512)
def _lane_keys(seed: int, n: int) -> tuple[tuple[int, int], ...]:
    """The round keys in each of n lanes."""
    return tuple((a * _ones(n), c * _ones(n)) for a, c in _round_keys(seed))


@lru_cache(maxsize=512)
def _ones(n: int) -> int:
    """The number 1 in each of n lanes."""
    return int.from_bytes(n * (b"\x01" + 7 * b"\x00"), "little")
