"""What steps cost: t(M) of the target for M tokens at once, in plain steps, and what a drafter takes for a token.

Measured when a model is loaded and kept true by live rounds. Durations are passed in; it knows no clock, no
acceptance, and not what the numbers decide.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from runner.speculative.load_times import LoadTimes, StepSeconds
from runner.speculative.plain_steps import PlainSteps

LEAST_STRIDE: Final = 3
"""Tokens that a step drafts at least which drafts by itself (rounds.Stretch), whatever is asked for."""

_CALIBRATED: Final = (2, 4, 8)  # numbers of tokens whose step is measured at load, between 1 and the most

_REPEATS = 3
_STALL = 3.0  # a step that takes so many times what it should was held up by something else
_WEIGHT = 0.2  # of a live round in a moving average
_FIRST_WEIGHT = 0.5  # and of the first of its length, when it cost more than expected
_PLAIN_NOISE = 0.9  # of the plain step at load: less than that is no noise any more
_SAME_PLAIN = 0.01  # of a plain step: what changes by less changes no table
_READY = 0.25  # of the plain step at load: what takes less was ready before it was waited for
_KEPT_SURPRISE, _KEPT_SURPRISE_PLAIN = 0.6, 0.97  # by a round, and by a plain step
_NO_SURPRISE = 1.001
_KEPT_GROWTH = 0.9  # of the evidence, by a round
_GROWTH_PRIOR = 0.5  # evidence, in squared plain steps, that what a plain step grows by is each token's
_GUESSED_SLOPE = 0.1  # plain steps that a further token is taken to cost before any is measured
_GUESSED_DRAFT = 0.3  # and that drafting one on the device is


@dataclass(frozen=True, slots=True)
class _Measured:
    """t(M) as measured: in plain steps, and the seconds that those took then."""

    ratio: float
    plain_s: float

    def scaled(self, factor: float) -> _Measured:
        return _Measured(self.ratio * factor, self.plain_s)

    def nearer(self, other: _Measured, share: float) -> _Measured:
        """This one moved so far towards the other."""
        return _Measured(
            self.ratio + share * (other.ratio - self.ratio), self.plain_s + share * (other.plain_s - self.plain_s)
        )


class StepCosts:
    """t(M) for M up to `most` tokens, relative to the plain step t(1), which grows as the context does.

    plain_s is 0.0 while it is not known, and not below a quarter of what it was at load, unless a whole step took less
    than that: then something held that up. likely[M], worst[M]: t(M) in
    plain steps, as it seems and at worst. The worst is dearer where a plain step has grown since t(M) was measured,
    since each token may have grown by as much; after a round that was dearer than expected; and beyond what was
    measured, where it is in proportion to M. Index 0 is unused.
    """

    def __init__(self, most: int) -> None:
        self._plain = PlainSteps()
        self._measured: dict[int, _Measured] = {}
        self._loaded: dict[int, _Measured] = {}  # what of it was measured at load
        self._least_s = 0.0  # of a plain step
        self._seen_plain = (0.0, False)  # the plain step, and whether it was fresh, when the tables were made
        self._is_live: set[int] = set()  # what of it rounds told of since
        self._growth_xx = self._growth_xy = 0.0  # sums of a regression
        self._surprise = 1.0  # times as dear as it seemed: the worst round lately
        self._most = most
        self._likely: list[float] = []  # the tables; empty: to be made anew
        self._worst: list[float] = []

    @property
    def plain_s(self) -> float:
        """Seconds of a plain step now."""
        seconds, least_s = self._plain.seconds, self._least_s
        return seconds if seconds > least_s else least_s

    # --- at load -----------------------------------------------------------------------------------------------------

    def calibrate(self, step_s: StepSeconds) -> None:
        """Measure t(1), then as many others as fit into half a second: a machine with slow steps learns live.

        t(1) is measured again after each: taken for longer than it is, it would make all others look cheap.
        """
        timed = LoadTimes(step_s)
        timed.add(1, _REPEATS)
        self._plain.seconds = timed.least(1)
        if self.plain_s <= 0:
            return
        for n_tokens in (*(n for n in _CALIBRATED if n < self._most), self._most):
            if not timed.has_room(2 * self.worst[n_tokens] * self.plain_s):
                break
            timed.add(n_tokens, _REPEATS)
            timed.add(1, _REPEATS)
            self._plain.seconds = timed.typical(1)
            ratios = {n: timed.least(n) / timed.least(1) for n in timed.known if n > 1}
            # What takes several plain steps for each of its tokens was held up: believed, it would never be tried.
            self._measured = {n: _Measured(ratio, self.plain_s) for n, ratio in ratios.items() if ratio <= _STALL * n}
            self._forget_tables()
        self._loaded = dict(self._measured)
        self._least_s = _READY * self.plain_s

    # --- live --------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """An answer begins, at another depth of the context: plain steps are measured anew."""
        self._plain.begin()
        for n_tokens, loaded in self._loaded.items():
            # A disturbance in one answer must not decide the next ones.
            self._measured[n_tokens] = self._measured[n_tokens].nearer(loaded, 0.5)
        self._forget_tables()

    @property
    def is_fresh(self) -> bool:
        """Whether plain steps were measured lately enough to compare with."""
        return self._plain.is_fresh

    @property
    def unseen(self) -> float:
        """See PlainSteps."""
        return self._plain.unseen

    @property
    def refill(self) -> float:
        """See PlainSteps."""
        return self._plain.refill

    def learn_plain(self, seconds: float, *, is_asked: bool = False, is_ahead: bool = False) -> float:
        """A plain step took so long; gives what it counts as, in plain steps. is_asked: the drafter, in vain.

        is_ahead: see Round.
        """
        if not is_ahead:
            self._bound_least(seconds)
        cost = self._plain.learn(seconds, is_asked=is_asked)
        self._have_learnt(1)
        return cost

    def learn_passed(self, n_steps: int, first_s: float, last_s: float, *, is_ahead: bool = False) -> float:
        """Plain steps for which nothing was asked are over, one after the other; gives what they count as.

        first_s, last_s: seconds of the first and of the last. is_ahead: of the last, see Round.
        """
        if not is_ahead:
            self._bound_least(last_s)
        cost = self._plain.pass_by(n_steps, first_s, last_s)
        self._have_learnt(n_steps)
        return cost

    def pass_stride(self) -> None:
        """A step is over that drafted by itself: the plain steps measured are older by one, and the next is as ever."""
        self._plain.pass_stride()

    def learn_break(self) -> None:
        """The draft that was wanted came too late for the step that was just learnt of: see PlainSteps."""
        self._plain.learn_break()

    def _have_learnt(self, n_plain: int) -> None:
        if self._surprise > 1:
            self._surprise = 1 + _KEPT_SURPRISE_PLAIN**n_plain * (self._surprise - 1)
            self._surprise = self._surprise if self._surprise > _NO_SURPRISE else 1.0
            self._worst = []
        plain_s, is_fresh = self.plain_s, self.is_fresh
        seen_s, was_fresh = self._seen_plain
        if abs(plain_s - seen_s) > _SAME_PLAIN * seen_s or is_fresh != was_fresh:
            self._seen_plain = (plain_s, is_fresh)
            self._hold_against_load()
            self._worst = []

    def _hold_against_load(self) -> None:
        """Where plain steps are shorter than at load, something held them up there, and all others looked cheap."""
        if not self.is_fresh:
            return
        plain_s = self.plain_s
        for n_tokens, loaded in self._loaded.items():
            if plain_s < _PLAIN_NOISE * loaded.plain_s:
                now = _Measured(loaded.ratio * loaded.plain_s / plain_s, plain_s)
                self._loaded[n_tokens] = now
                if n_tokens not in self._is_live:
                    self._measured[n_tokens] = now
                self._forget_tables()

    def learn_step(self, n_tokens: int, seconds: float, n_handed: int = 1) -> float:
        """A step for more than one token took so long; gives what it counts as, in plain steps, but for a stall.

        n_handed: see Round.
        """
        if self.plain_s <= 0:
            self._plain.learn_draft(n_handed)
            return float(n_tokens)
        self._plain.bound(seconds)
        self._bound_least(seconds)
        known = self._measured.get(n_tokens)
        expected = self.likely[n_tokens] if known else self.worst[n_tokens]
        now = _Measured(min(seconds / self.plain_s, _STALL * expected), self.plain_s)
        share = _WEIGHT
        if n_tokens not in self._is_live:
            self._is_live.add(n_tokens)
            share = _FIRST_WEIGHT if now.ratio > expected else _WEIGHT
            # What no round told of yet was measured with the same mistake, by all that is known.
            for other in self._measured.keys() - self._is_live:
                self._measured[other] = self._measured[other].scaled(1 + share * (now.ratio / expected - 1))
        if known:
            self._learn_growth(n_tokens, known, now.ratio)
        self._measured[n_tokens] = known.nearer(now, share) if known else now
        self._forget_tables()
        self._surprise = max(now.ratio / self.likely[n_tokens], 1 + _KEPT_SURPRISE * (self._surprise - 1))
        cost = self._plain.counted(now.ratio, seconds)
        self._plain.learn_draft(n_handed)
        return cost

    def _bound_least(self, seconds: float) -> None:
        """A whole step took so long: where that is less than the least plain step, that was taken for too long."""
        if 0 < seconds < self._least_s:
            self._least_s = _READY * seconds

    def _learn_growth(self, n_tokens: int, known: _Measured, ratio: float) -> None:
        """How much of what a plain step has grown by is each token's: the slope of a line through all rounds."""
        more = self._growth(known)
        x, y = more * (n_tokens - 1), ratio - (1 - more) * known.ratio - more
        self._growth_xx = _KEPT_GROWTH * self._growth_xx + x * x
        self._growth_xy = _KEPT_GROWTH * self._growth_xy + x * y

    # --- tables ------------------------------------------------------------------------------------------------------

    @property
    def likely(self) -> list[float]:
        """See the class; made when it is asked for, which is rarer than that it changes, as `worst` is."""
        if not self._likely:
            table = _lines({n: known.ratio for n, known in self._measured.items()})
            last = len(table) - 1
            slope = (table[last] - 1) / (last - 1) if last > 1 else _GUESSED_SLOPE
            self._likely = table + [table[last] + slope * (n - last) for n in range(last + 1, self._most + 1)]
        return self._likely

    @property
    def worst(self) -> list[float]:
        """See the class."""
        if not self._worst:
            share = (_GROWTH_PRIOR + self._growth_xy) / (_GROWTH_PRIOR + self._growth_xx)
            share = min(max(share, 0.0), 1.0)
            table = _lines({n: self._grown(n, known, share) for n, known in self._measured.items()})
            last = len(table) - 1
            beyond = range(last + 1, self._most + 1)
            table += [table[last] * n / last for n in beyond]
            self._worst = [
                worst if worst > likely else likely for worst, likely in zip(table, self.likely, strict=True)
            ]
        return self._worst

    def _grown(self, n_tokens: int, known: _Measured, share: float) -> float:
        """Worst t(M): so much of what a plain step has grown by may be each token's, as a CPU's attention is."""
        more = self._growth(known)
        return ((1 - more) * known.ratio + (1 + share * (n_tokens - 1)) * more) * self._surprise

    def _growth(self, known: _Measured) -> float:
        """The part of a plain step that it has grown by since."""
        plain_s = self.plain_s
        return 1 - known.plain_s / plain_s if plain_s > known.plain_s else 0.0

    def _forget_tables(self) -> None:
        self._likely, self._worst = [], []


def _lines(points: dict[int, float]) -> list[float]:
    """Straight lines between t(1) = 1 and what is known of t(M), never falling."""
    table, low, start = [0.0, 1.0], 1, 1.0
    for high in sorted(points):
        slope = max(0.0, (points[high] - start) / (high - low))
        table += [start + slope * n for n in range(1, high - low + 1)]
        low, start = high, table[high]
    return table


class DraftCosts:
    """Seconds that a drafter takes for each token, and for a call that brings nothing; moving averages.

    A drafter that works on the host has its draft whole at once: a token more costs nothing, a call does.
    """

    def __init__(self, is_host_only: bool) -> None:
        self._is_host_only = is_host_only
        self._token_s: float | None = None
        self._call_s = self._reading_s = 0.0

    def learn(self, n_tokens: int, seconds: float) -> None:
        """Guessing so many tokens, in one call, took so long."""
        if self._is_host_only:
            self._call_s += _WEIGHT * (seconds - self._call_s)
        elif n_tokens:
            each = seconds / n_tokens
            self._token_s = each if self._token_s is None else self._token_s + _WEIGHT * (each - self._token_s)

    def learn_reading(self, n_tokens: int, seconds: float) -> None:
        """Reading a text of so many tokens, part of which may have been known, took so long."""
        self._reading_s = max(self._reading_s / 2, seconds / n_tokens)

    def token(self, plain_s: float) -> float:
        """Plain steps that one token more takes."""
        if self._is_host_only:
            return 0.0
        return _GUESSED_DRAFT if self._token_s is None or plain_s <= 0 else self._token_s / plain_s

    def call(self, plain_s: float, n_unread: int) -> float:
        """Plain steps that a call takes whatever it brings, after so many tokens that the drafter did not see."""
        return (self._call_s + n_unread * self._reading_s) / plain_s if plain_s > 0 else 0.0
