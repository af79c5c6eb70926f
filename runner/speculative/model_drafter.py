"""Drafting with a language model: a small one of the same vocabulary, or a smaller copy of the target.

It drafts as the target writes: the same filters, and the same noise at the same positions (runner.sampling), so that
where the two models agree on the probabilities they choose the same token in sampled text too. It keeps its model's KV
cache in step with the history by itself. It knows its model by the protocol below, and nothing of files or devices.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from runner.config import SamplingParams
from runner.sampling import sample
from runner.speculative.drafter import NO_DRAFT, Draft, Drafter, DrafterName, Gate
from runner.speculative.history import common_prefix
from runner.types import CancelToken, MemoryUse, ModelInfo

CONFIDENCES: Final = (0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.97)
"""Where one bucket ends and the next begins: the probability that the draft model gives to what it drafts."""

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


class ModelDrafter(Drafter):
    """See Drafter. It owns `model`, which must be able to cut its cache anywhere."""

    n_buckets = len(CONFIDENCES) + 1
    is_host_only = False

    def __init__(self, model: DraftModel, name: Literal["model", "self"] = "model") -> None:
        self.name: DrafterName = name
        self._model = model
        self._cancel = CancelToken()

    @property
    def nbytes(self) -> int:
        return self._model.memory().total_bytes

    def attend(self, cancel: CancelToken) -> None:
        """From now on `cancel` ends what is being drafted: the request's own."""
        self._cancel = cancel

    def propose(self, history: Sequence[int], params: SamplingParams, gate: Gate) -> Draft:
        """Guess token by token, as long as the gate admits and the model's own context lasts.

        After a long text that the model has not read yet, such as a prompt, it reads that and drafts nothing: what that
        takes is no draft's cost.
        """
        missing = self._missing(history)
        if missing is None:
            return NO_DRAFT
        row = self._model.extend(missing, self._cancel)
        if len(missing) > _LONG_READ:
            return NO_DRAFT
        sequence = list(history)
        buckets: list[int] = []
        while row is not None:
            token = sample(row, params, sequence, len(sequence))
            bucket = bisect_right(CONFIDENCES, confidence(row, token))
            if not gate.admits(bucket):
                break
            sequence.append(token)
            buckets.append(bucket)
            is_room = len(sequence) <= self._model.info.n_ctx
            row = self._model.extend([token], self._cancel) if is_room and gate.is_open else None
        return Draft(tuple(sequence[len(history) :]), tuple(buckets))

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


def confidence(row: NDArray[np.float32], token: int) -> float:
    """The probability of `token` by logits [V], before temperature and filters."""
    top = row.max()
    return float(np.exp(row[token] - top) / np.exp(row - top).sum())
