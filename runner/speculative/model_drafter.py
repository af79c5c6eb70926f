"""Drafting with a language model: a small one of the same vocabulary, or a smaller copy of the target.

It drafts as the target writes: the same filters, and the same noise at the same positions (runner.sampling), so that
where the two models agree on the probabilities they choose the same token in sampled text too. Token by token on the
host, or, where the model can, in a chain that a device computes alone: how long it is to be is then decided before, and
what of it is worth verifying after. It keeps its model's KV cache in step with the history by itself. It knows its
model by the protocols below, and nothing of files or devices.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Final, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from runner.config import SamplingParams
from runner.errors import BadModelFile
from runner.sampling import sample
from runner.speculative.control import Most
from runner.speculative.drafter import NO_DRAFT, Draft, Drafter, DrafterName, Gate
from runner.speculative.history import common_prefix
from runner.types import CancelToken, MemoryUse, ModelInfo

log = logging.getLogger(__name__)

CONFIDENCES: Final = (0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.97)
"""Where one bucket ends and the next begins: the probability that the draft model gives to what it drafts."""

# Tokens that a target writes between two drafts which the draft model did not: one or two after a draft, more after
# plain steps. A device may fill a step up, or record each number.
_USUAL_READS: Final = range(1, 9)
_LONG_READ: Final = 64  # tokens to read before a draft: as many are not worth a round's wait


class DraftModel(Protocol):
    """What drafting asks of a loaded model: a Backend."""

    info: ModelInfo

    @property
    def held(self) -> Sequence[int]:
        """The ids in the KV cache, by position."""
        ...

    def keep(self, length: int) -> int:
        """Cut the KV cache to its first `length` positions; returns how many are left."""
        ...

    def extend(self, tokens: Sequence[int], cancel: CancelToken) -> NDArray[np.float32] | None:
        """Compute `tokens` after what the cache holds: the logits [V] after the last, or None when cancelled."""
        ...

    def memory(self) -> MemoryUse: ...

    def close(self) -> None: ...


@runtime_checkable
class ChainedModel(DraftModel, Protocol):
    """A draft model that can write by itself: on a device, where asking the host for each token takes longer."""

    def can_chain(self, params: SamplingParams) -> bool:
        """Whether it chooses tokens by itself as `params` says."""
        ...

    def chain(
        self, tokens: Sequence[int], params: SamplingParams, n: int, cancel: CancelToken
    ) -> Sequence[tuple[int, float]]:
        """Compute `tokens` after what the KV cache holds and write n tokens after them, which fit the context.

        Each is the one that `sample` chooses at its position; with it comes its `confidence`. The cache then holds all
        but the last. None are written when cancelled. Raises BadModelFile where `sample` would.
        """
        ...


class ModelDrafter(Drafter):
    """See Drafter. It owns `model`, which must be able to go back by a draft (ModelInfo.longest_draft)."""

    n_buckets = len(CONFIDENCES) + 1
    is_host_only = False
    is_quoting = False

    def __init__(self, model: DraftModel, name: Literal["model", "self"] = "model") -> None:
        self.name: DrafterName = name
        self.longest_draft = model.info.longest_draft
        self._model = model
        self._chained = model if isinstance(model, ChainedModel) else None
        self._cancel = CancelToken()
        self._has_drafted = False

    @property
    def nbytes(self) -> int:
        return self._model.memory().total_bytes

    def attend(self, cancel: CancelToken) -> None:
        """From now on `cancel` ends what is being drafted: the request's own."""
        self._cancel = cancel

    def warm_up(self) -> None:
        """Draft in each way that a device records, so that none is recorded in the middle of an answer.

        Raises BadModelFile where the model cannot be run.
        """
        if self._chained is None:
            self.propose((0,), SamplingParams(temperature=0), Most(1))
            return
        for params in (SamplingParams(temperature=0), SamplingParams(temperature=1, seed=0)):
            for n_missing in _USUAL_READS:
                self._model.keep(0)
                self.propose((0,) * n_missing, params, Most(2))
        self._model.keep(0)
        self.propose((0,) * _LONG_READ, SamplingParams(temperature=0), Most(0))  # as a prompt is read

    def propose(self, history: Sequence[int], params: SamplingParams, gate: Gate) -> Draft:
        """Guess as long as the gate admits and the model's own context lasts.

        After a long text that the model has not read yet, such as a prompt, it reads that and drafts nothing: what that
        takes is no draft's cost. Raises BadModelFile while it has never drafted; later on, what cannot be guessed ends
        the draft.
        """
        missing = self._missing(history)
        if missing is None:
            return NO_DRAFT
        if len(missing) > _LONG_READ:
            self._model.extend(missing, self._cancel)
            return NO_DRAFT
        is_chained = self._chained is not None and self._chained.can_chain(params)
        write = self._in_a_chain if is_chained else self._one_by_one
        written: list[tuple[int, int]] = []
        try:
            written.extend(write(missing, history, params, gate))  # which keeps what came before an error
        except BadModelFile as error:
            if not self._has_drafted:  # at load, where it is told
                raise
            log.warning("the draft model guesses nothing here: %s", error.message)  # the target goes on without
        self._has_drafted = self._has_drafted or bool(written)
        return Draft(tuple(token for token, _ in written), tuple(bucket for _, bucket in written))

    def _one_by_one(
        self, missing: Sequence[int], history: Sequence[int], params: SamplingParams, gate: Gate
    ) -> Iterator[tuple[int, int]]:
        """Tokens and their buckets, each guessed when the gate has admitted the one before."""
        sequence = list(history)
        row = self._model.extend(missing, self._cancel)
        while row is not None:
            token = sample(row, params, sequence, len(sequence))
            bucket = _bucket(confidence(row, token))
            if not gate.admits(bucket):
                return
            yield token, bucket
            sequence.append(token)
            is_room = len(sequence) <= self._model.info.n_ctx
            row = self._model.extend([token], self._cancel) if is_room and gate.is_open else None

    def _in_a_chain(
        self, missing: Sequence[int], history: Sequence[int], params: SamplingParams, gate: Gate
    ) -> Iterator[tuple[int, int]]:
        """The same, all of them guessed at once."""
        assert self._chained is not None
        # Where none is wanted, one has `missing` read.
        n = max(1, min(gate.reach, self._model.info.n_ctx + 1 - len(history)))
        for token, share in self._chained.chain(missing, params, n, self._cancel):
            bucket = _bucket(share)
            if not gate.admits(bucket):
                return
            yield token, bucket

    def _missing(self, history: Sequence[int]) -> Sequence[int] | None:
        """What of `history` the cache lacks, at least its last token; None when the model cannot read it."""
        info = self._model.info
        if len(history) > info.n_ctx:
            return None
        kept = self._model.keep(min(common_prefix(self._model.held, history), len(history) - 1))
        missing = history[kept:]
        # A target's vocabulary may be padded further than its draft model's.
        return missing if all(token < info.vocab_size for token in missing) else None

    def close(self) -> None:
        self._model.close()


def _bucket(share: float) -> int:
    return bisect_right(CONFIDENCES, share)


def confidence(row: NDArray[np.float32], token: int) -> float:
    """The probability of `token` by logits [V], before temperature and filters."""
    top = row.max()
    return float(np.exp(row[token] - top) / np.exp(row - top).sum())
