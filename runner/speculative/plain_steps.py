"""What a plain step takes now, and by how much it is longer where the host did something before it.

Steps are of four kinds: after a draft; after the drafter was asked in vain; the one after that, before which was learnt
of it; and quiet ones. The others are told from noise by comparing with these. It knows nothing of drafts' costs, and no
clock.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from typing import Final, Literal, get_args

_LATEST = 7  # steps, of whose lower third the plain step is
_STALE_STEPS = 64  # after so many steps of other kinds, the last quiet ones say little
_STEADY_WEIGHT = 0.02  # of a step in what is to be told from noise
_LEAST_SEEN = 6  # steps, to tell it at all
_LARGEST_EXCESS = 0.5  # plain steps; more is noise,
_LARGEST_REFILL = 4.0  # but for a step that fills a pipeline again: 0.4 ms of the host, 4 steps of the demo on an H200
_SURELY_LESS = 0.8  # times a plain step: no noise

_Kind = Literal["quiet", "asked", "after asking", "after draft"]
_KINDS: Final[tuple[_Kind, ...]] = get_args(_Kind)


class PlainSteps:
    """The plain steps of an answer; what they cost beyond quiet ones stays known from answer to answer.

    seconds: of a plain step now, 0.0 while it is not known.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._n_since_quiet = 0
        self._follows: _Kind = "quiet"
        self._n_handed = 1
        self._quiet: deque[float] = deque(maxlen=_LATEST)
        self._excess = {kind: _SteadyMean(_largest_excess(kind)) for kind in _KINDS}
        self._beyond_quiet: dict[_Kind, float] = {}  # of the kinds that were asked for since the last step

    def begin(self) -> None:
        """An answer begins, at another depth of the context."""
        self._quiet.clear()
        self._follows = "quiet"

    @property
    def is_fresh(self) -> bool:
        """Whether quiet steps of this answer were measured lately enough to compare with."""
        return len(self._quiet) >= 2 and self.seconds > 0 and self._n_since_quiet < _STALE_STEPS

    @property
    def unseen(self) -> float:
        """Plain steps that one is longer by after asking, as far as that can be told.

        What was computed on the host leaves the processor's caches cold for the target.
        """
        return self._beyond("asked")

    @property
    def refill(self) -> float:
        """Plain steps by which the next one will be longer if a draft comes before it; 0 if it will be in any case."""
        return 0.0 if self._follows == "after draft" else self._beyond("after draft")

    def counted(self, steps: float, seconds: float) -> float:
        """What a step counts as that seems to cost so many plain steps and took so many seconds.

        The caller may have taken in it what the draft before it brought. If that is what took the time, it was no
        noise, up to what the draft had saved.
        """
        if self._n_handed == 1 or self._follows != "after draft" or self.seconds <= 0:
            return steps
        return max(steps, min(seconds / self.seconds, steps + self._n_handed - 1))

    def learn(self, seconds: float, *, is_asked: bool) -> float:
        """A step took so long; gives what it counts as, in plain steps: what its kind takes, without its noise.

        is_asked: the drafter was asked before it, and nothing came of it.
        """
        self._n_since_quiet += 1
        kind: _Kind = "after draft" if self._follows == "after draft" else "asked" if is_asked else self._follows
        if kind == "quiet":
            self._n_since_quiet = 0
            self._quiet.append(seconds)
            self.seconds = lower(self._quiet)
        cost = self.counted(self._of_kind(kind, seconds), seconds)
        self._follows = "after asking" if is_asked else "quiet"
        return cost

    def _of_kind(self, kind: _Kind, seconds: float) -> float:
        """What a step of its kind takes, in plain steps, this one among them."""
        if not self._quiet or self.seconds <= 0:
            return 1.0
        more, found, quiet = seconds / self.seconds - 1, self._excess[kind], self._excess["quiet"]
        # The caller took what the draft brought meanwhile: that is no part of what its kind takes (see counted).
        is_callers = kind == "after draft" and self._n_handed > 1
        if not is_callers:
            found.add(more)
        self._beyond_quiet.clear()
        if kind == "quiet":
            return 1.0
        if kind == "after draft" and not (found.is_known and quiet.is_known):
            # Each draft brings one: what it takes is not to be found out for nothing, nor while none is quiet.
            return 1.0 + min(max(more - quiet.mean, 0.0), _LARGEST_EXCESS if is_callers else _LARGEST_REFILL)
        return 1.0 + self._beyond(kind)

    def pass_by(self, n_steps: int, first_s: float, last_s: float) -> float:
        """So many steps for which nothing was asked are over, one after the other; gives what they count as.

        The first counts as what it follows. Of the others the last tells what quiet ones take: all would take too long.
        While none is known, the first tells it too.
        """
        n_told = 0 if self._follows == "quiet" and self._quiet else 1
        cost = self.learn(first_s, is_asked=False) if n_told else 0.0
        if n_steps > n_told:
            cost += self.learn(last_s, is_asked=False) + n_steps - n_told - 1
        return cost

    def bound(self, seconds: float) -> None:
        """A step of several tokens took so long, and one of a single token takes no longer.

        Where that is far below what plain steps were measured to take, something else held those up: they are
        forgotten, or every draft would look cheap.
        """
        if seconds < _SURELY_LESS * self.seconds:
            self.seconds = seconds
            self._quiet.clear()

    def learn_draft(self, n_handed: int) -> None:
        """A step for a draft is over. n_handed: see Round."""
        self._n_since_quiet += 1
        self.learn_break()
        self._n_handed = n_handed

    def pass_stride(self) -> None:
        """See StepCosts."""
        self._n_since_quiet += 1

    def learn_break(self) -> None:
        """A draft was wanted: the next plain step fills the device's pipeline again, and is unlike others."""
        self._follows, self._n_handed = "after draft", 1

    def _beyond(self, kind: _Kind) -> float:
        found = self._beyond_quiet.get(kind)
        if found is None:
            found = self._beyond_quiet[kind] = self._excess[kind].beyond(self._excess["quiet"])
        return found


def lower(seconds: Iterable[float]) -> float:
    """The upper end of the lower third: a step that was held up must not make others look cheap."""
    found = sorted(seconds)
    return found[(len(found) - 1) // 3]


def _largest_excess(kind: _Kind) -> float:
    """Plain steps by which one of that kind may be longer than a quiet one, and it is no noise."""
    return _LARGEST_REFILL if kind == "after draft" else _LARGEST_EXCESS


class _SteadyMean:
    """A slow moving average in which no single value counts for much, and how sure it is. most: a value counts as."""

    def __init__(self, most: float) -> None:
        self._most = most
        self.mean = 0.0
        self._n = 0
        self._square = 0.0  # mean squared distance

    def add(self, value: float) -> None:
        self._n += 1
        off = min(max(value, -self._most), self._most) - self.mean
        weight = max(_STEADY_WEIGHT, 1 / self._n)
        self.mean += weight * off
        self._square += weight * ((1 - weight) * off * off - self._square)

    @property
    def is_known(self) -> bool:
        return self._n >= _LEAST_SEEN

    @property
    def variance(self) -> float:
        """Of the mean, not of the values."""
        return self._square / min(self._n, 1 / _STEADY_WEIGHT) if self.is_known else math.inf

    def beyond(self, other: _SteadyMean) -> float:
        """By how much its values are larger than another's, as far as that is more than noise."""
        return max(0.0, self.mean - other.mean - math.sqrt(self.variance + other.variance))
