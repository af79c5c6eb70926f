"""A head that drafts: kept in step with the target, whose hidden states it hears, and asked for chains of tokens.

It follows the target's KV cache: what the target computes it is told, what the target forgets it forgets. Its own rows
are computed when a draft is asked for, all that came since in one pass, so that a target that does not draft pays for
a copy of its states and no more; but those of a prompt are computed with it. Its guesses never stay: the target's
states take their place. On a device that has the kernels a draft is a chain that the host waits for once (chain.py). It
knows no checkpoint.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from runner.backends.native.capture import Interior
from runner.backends.native.kv_cache import KvCache
from runner.config import LONGEST_DRAFT, SamplingParams
from runner.kernels.values import MOST_ROWS
from runner.sampling import sample
from runner.speculative.drafter import NO_DRAFT, Draft, Drafter, DrafterName, Gate

if TYPE_CHECKING:  # it imports Triton, which a CPU may do without
    from runner.backends.native.heads.chain import HeadChain

N_BUCKETS = 8
_USUAL_ROWS = (1, 2, 4, 8, 16)  # to which those that come between two drafts are filled up
_FIRST_CAPACITY = 4096  # rows of the cache from the start: one that grows moves, and recorded graphs are lost
_MOST_WAITING = 512  # rows: captured states of an 8B model take 12 MB then


class Head(Protocol):
    """What of the heads is the same. States and embeddings: see eagle3.Eagle3Head.extend.

    target_ids: the target's id of each id that it guesses.
    """

    @property
    def nbytes(self) -> int: ...

    @property
    def target_ids(self) -> Tensor: ...

    def fuse(self, captured: Tensor) -> Tensor: ...

    def extend(self, states: Tensor, embeddings: Tensor, cache: KvCache) -> Tensor: ...

    def logits(self, states: Tensor) -> Tensor: ...


class HeadDrafter(Drafter):
    """See Drafter in speculative/drafter.py, and Follower in capture.py.

    cache: of the head's layer. n_captured: values of a captured state. vocab_size: the target's. on_close: tells the
    target that nobody listens. make_chain: of the states that wait; None where the host is to choose each token.
    """

    n_buckets = N_BUCKETS
    is_host_only = False

    def __init__(
        self,
        name: Literal["mtp", "eagle3"],
        head: Head,
        interior: Interior,
        cache: KvCache,
        *,
        n_captured: int,
        vocab_size: int,
        on_close: Callable[[], None],
        make_chain: Callable[[Tensor], HeadChain] | None = None,
    ) -> None:
        self.name: DrafterName = name
        self._head = head
        self._interior = interior
        self._cache = cache
        self._on_close = on_close
        self._target_ids = head.target_ids.cpu().numpy()
        self._vocab_size = vocab_size
        self._is_whole = np.array_equal(self._target_ids, np.arange(vocab_size))
        # Row i is made of the state at position i and the token at i + 1: rows whose token is known wait here, and the
        # last one, whose token is not.
        self._waiting = torch.zeros(_MOST_WAITING, n_captured, dtype=interior.dtype, device=interior.device)
        self._waiting_ids: list[int] = []
        self._first = 0  # the position of the first row in the cache; only distances between rows matter to the head
        self._last: Tensor | None = None  # what the head gave for the last row in the cache
        self._chain = None if make_chain is None else make_chain(self._waiting)
        self._is_open = True

    @property
    def nbytes(self) -> int:
        chain = 0 if self._chain is None else self._chain.nbytes
        return self._head.nbytes + self._cache.nbytes + self._waiting.nbytes + chain if self._is_open else 0

    @property
    def _end(self) -> int:
        """Positions of the target that were heard of: the cache's rows, and those that wait."""
        return self._first + self._cache.length + len(self._waiting_ids)

    def keep(self, length: int) -> None:
        """The target forgot all positions from `length` on."""
        if length >= self._end:
            return
        n_waiting = length - self._first - self._cache.length
        if n_waiting >= 0:
            del self._waiting_ids[n_waiting:]
            return
        # The last row that stays was made with a token that may be another one now. Its state is gone, and one row
        # that is a little wrong costs less than all states kept.
        self._waiting_ids.clear()
        self._cache.truncate(max(0, length - self._first))
        self._first = min(self._first, length)
        self._last = None

    def extend(self, start: int, tokens: Sequence[int], captured: Tensor) -> None:
        """The target computed `tokens` at positions from `start` on; captured: [len(tokens), n_captured]."""
        self.keep(start)
        if start != self._end:  # it went on without being heard: what came before is out of reach
            self._cache.truncate(0)
            self._waiting_ids.clear()
            self._first, self._last = start, None
        with torch.inference_mode():
            self._reserve(start + len(tokens) + LONGEST_DRAFT - self._first)
            # A prompt's rows are computed with the prompt: waiting, they would make the first guess a dear one.
            is_prompt = len(tokens) > MOST_ROWS
            if self._waiting_ids and (is_prompt or len(self._waiting_ids) + len(tokens) > len(self._waiting)):
                self._compute([*self._waiting_ids[1:], tokens[0]])
            if is_prompt:
                self._compute_rows(captured[:-1], tokens[1:])
                tokens, captured = tokens[-1:], captured[-1:]
            begin = len(self._waiting_ids)
            self._waiting[begin : begin + len(tokens)] = captured
        self._waiting_ids.extend(tokens)

    def propose(self, history: Sequence[int], params: SamplingParams, gate: Gate) -> Draft:
        if not self._is_open or not gate.is_open:
            return NO_DRAFT
        begin = self._first + self._cache.length
        known = len(history) - 1 - begin  # rows that wait, and whose token `history` has
        if not 0 <= known <= len(self._waiting_ids) <= known + 1 or self._waiting_ids[:known] != [*history[begin:-1]]:
            return NO_DRAFT
        with torch.inference_mode():
            if known and self._chain is not None and self._chain.can_choose(params):
                return self._chained(self._chain, history, params, gate)
            if known:
                self._compute(history[begin + 1 :])
            if self._last is None:
                return NO_DRAFT
            held = self._cache.length
            try:
                return self._one_by_one(self._last, list(history), params, gate)
            finally:
                self._cache.truncate(held)

    def warm_up(self) -> None:
        """Draft in each way that a device records, so that none is recorded in the middle of an answer."""
        if self._chain is None:
            return
        with torch.inference_mode():
            self._reserve(_FIRST_CAPACITY)
            for params in (SamplingParams(temperature=0), SamplingParams(temperature=1, seed=0)):
                for n_rows in _USUAL_ROWS:
                    self._chain.draft([0] * n_rows, params, n_rows, 2)

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._chain = None
            self._cache.release()
            self._waiting_ids.clear()
            self._on_close()

    def _chained(self, chain: HeadChain, history: Sequence[int], params: SamplingParams, gate: Gate) -> Draft:
        """Guess on the device, after the rows that wait and whose token `history` has; there is one at least."""
        ids = history[self._first + self._cache.length + 1 :]
        if len(ids) > MOST_ROWS:
            self._compute(ids[:-1])
            ids = ids[-1:]
        room = self._cache.n_ctx - self._cache.length - len(ids) + 1
        n = max(1, min(gate.reach, room))
        self._reserve(self._cache.length + MOST_ROWS + LONGEST_DRAFT)
        guesses = chain.draft(ids, params, len(history), n)
        self._cache.advance(len(ids))
        self._forget_waiting(len(ids))
        self._last = chain.last
        tokens: list[int] = []
        buckets: list[int] = []
        for token, share in guesses:
            if not math.isfinite(share) or not gate.admits(bucket := _bucket(share)):
                break
            tokens.append(token)
            buckets.append(bucket)
        return Draft(tuple(tokens), tuple(buckets))

    def _one_by_one(self, state: Tensor, sequence: list[int], params: SamplingParams, gate: Gate) -> Draft:
        """Guess on from `state`; `sequence` is what the guesses follow, and grows with them."""
        tokens: list[int] = []
        buckets: list[int] = []
        while True:
            token, confidence = self._choice(self._head.logits(state)[0], params, sequence)
            bucket = _bucket(confidence)
            if token < 0 or not gate.admits(bucket):
                break
            tokens.append(token)
            buckets.append(bucket)
            sequence.append(token)
            if not gate.is_open or self._cache.length == self._cache.n_ctx:
                break
            state = self._extended(state, [token])
        return Draft(tuple(tokens), tuple(buckets))

    def _choice(self, logits: Tensor, params: SamplingParams, sequence: Sequence[int]) -> tuple[int, float]:
        """The guess after `sequence`, and how probable the head finds it; -1 for logits that are not finite.

        Sampled with the noise that the target has at that position: where the two distributions are alike, so are the
        tokens.
        """
        if _is_argmax(params):
            index, confidence = torch.stack((logits.argmax().float(), logits.softmax(-1).max())).tolist()
            return (int(self._target_ids[int(index)]), confidence) if math.isfinite(confidence) else (-1, 0.0)
        values = logits.cpu().numpy()
        if not np.isfinite(values).all():
            return -1, 0.0
        if not self._is_whole:
            own, values = values, np.full(self._vocab_size, -np.inf, dtype=np.float32)
            values[self._target_ids] = own
        token = sample(values, params, sequence, len(sequence))
        weights = np.exp((values - values.max()) / (params.temperature or 1.0))
        return token, float(weights[token] / weights.sum())

    def _compute(self, next_ids: Sequence[int]) -> None:
        """The first rows that wait, as many as there are tokens one position further on."""
        self._compute_rows(self._waiting[: len(next_ids)], next_ids)
        self._forget_waiting(len(next_ids))

    def _forget_waiting(self, n_rows: int) -> None:
        n_waiting = len(self._waiting_ids)
        self._waiting[: n_waiting - n_rows] = self._waiting[n_rows:n_waiting].clone()
        del self._waiting_ids[:n_rows]

    def _reserve(self, length: int) -> None:
        length = min(self._cache.n_ctx, length)
        if self._chain is not None and length > self._cache.capacity:
            self._chain.forget()  # the cache moves
        self._cache.reserve(length)

    def _compute_rows(self, captured: Tensor, next_ids: Sequence[int]) -> None:
        self._last = self._extended(self._head.fuse(captured), next_ids)[-1:].clone()

    def _extended(self, states: Tensor, ids: Sequence[int]) -> Tensor:
        tokens = torch.tensor(ids, dtype=torch.int64).to(self._interior.device, non_blocking=True)
        return self._head.extend(states, self._interior.embed(tokens), self._cache)


def _bucket(share: float) -> int:
    return min(N_BUCKETS - 1, int(share * N_BUCKETS))


def _is_argmax(params: SamplingParams) -> bool:
    """Whether the largest logit is chosen, whatever came before."""
    is_penalized = (params.repeat_penalty, params.presence_penalty, params.frequency_penalty) != (1, 0, 0)
    return params.temperature == 0 and not (is_penalized and params.penalty_last_n)
