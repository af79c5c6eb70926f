"""What a plain step takes now, and by how much one is longer after a draft, or after the drafter was asked in vain.

Told from noise by comparing with the quiet ones: those before which nothing was asked. It knows nothing of drafts'
costs, and no clock.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable

_LATEST = 7  # steps, of whose lower third the plain step is
_STALE_STEPS = 64  # after so many steps of other kinds, the last quiet ones say little
_STEADY_WEIGHT = 0.02  # of a step in what is to be told from noise
_LEAST_SEEN = 6  # steps, to tell it at all
_LARGEST_EXCESS = 0.5  # plain steps; more is noise


class PlainSteps:
    """The plain steps of an answer; what they cost beyond quiet ones stays known from answer to answer.

    seconds: of a plain step now, 0.0 while it is not known.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._n_since_quiet = 0
        self._is_after_draft = False
        self._latest: deque[float] = deque(maxlen=_LATEST)
        self._quiet: deque[float] = deque(maxlen=_LATEST)
        self._quiet_excess, self._asked_excess, self._after_excess = _SteadyMean(), _SteadyMean(), _SteadyMean()

    def begin(self) -> None:
        """An answer begins, at another depth of the context."""
        self._latest.clear()
        self._quiet.clear()
        self._is_after_draft = False

    @property
    def is_fresh(self) -> bool:
        """Whether quiet steps of this answer were measured lately enough to compare with."""
        return len(self._quiet) >= 2 and self.seconds > 0 and self._n_since_quiet < _STALE_STEPS

    @property
    def unseen(self) -> float:
        """Plain steps that one is longer by after asking, as far as that can be told.

        What was computed on the host leaves the processor's caches cold for the target.
        """
        return self._asked_excess.beyond(self._quiet_excess)

    def learn(self, seconds: float, *, is_asked: bool) -> float:
        """A step took so long; gives what it counts as, in plain steps: what its kind takes, without its noise.

        is_asked: the drafter was asked before it, and nothing came of it.
        """
        self._n_since_quiet += 1
        if self._is_after_draft:
            # It fills the device's pipeline again, and says nothing of plain decoding.
            self._is_after_draft = False
            self._compare(self._after_excess, seconds)
            return 1.0 + self._after_excess.beyond(self._quiet_excess)
        if is_asked:
            self._compare(self._asked_excess, seconds)
            self._add(seconds / (1 + self.unseen))
            return 1.0 + self.unseen
        self._n_since_quiet = 0
        self._quiet.append(seconds)
        self._compare(self._quiet_excess, seconds)
        self._add(seconds)
        return 1.0

    def learn_draft(self) -> None:
        """A step for a draft is over."""
        self._n_since_quiet += 1
        self._is_after_draft = True

    def _add(self, seconds: float) -> None:
        self._latest.append(seconds)
        self.seconds = lower(self._latest)

    def _compare(self, excess: _SteadyMean, seconds: float) -> None:
        quiet_s = lower(self._quiet) if self._quiet else 0.0
        if quiet_s > 0:
            excess.add(seconds / quiet_s - 1)


def lower(seconds: Iterable[float]) -> float:
    """The upper end of the lower third: a step that was held up must not make others look cheap."""
    found = sorted(seconds)
    return found[(len(found) - 1) // 3]


class _SteadyMean:
    """A slow moving average in which no single value counts for much, and how sure it is."""

    def __init__(self) -> None:
        self.mean = 0.0
        self._n = 0
        self._square = 0.0  # mean squared distance

    def add(self, value: float) -> None:
        self._n += 1
        off = min(max(value, -_LARGEST_EXCESS), _LARGEST_EXCESS) - self.mean
        weight = max(_STEADY_WEIGHT, 1 / self._n)
        self.mean += weight * off
        self._square += weight * ((1 - weight) * off * off - self._square)

    @property
    def variance(self) -> float:
        """Of the mean, not of the values."""
        return self._square / min(self._n, 1 / _STEADY_WEIGHT) if self._n >= _LEAST_SEEN else math.inf

    def beyond(self, other: _SteadyMean) -> float:
        """By how much its values are larger than another's, as far as that is more than noise."""
        return max(0.0, self.mean - other.mean - math.sqrt(self.variance + other.variance))
