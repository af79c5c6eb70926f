"""What speculation did: one round, and the counts of many with one definition of each number.

Names are the field's (specdec_bench). This file derives rates and knows nothing of how the counts came about.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from runner.speculative.drafter import Draft

SpeculationState = Literal["on", "off", "learning"]

_IMPOSSIBLE: Final = 1.1  # times what a round can gain: more is no noise


class Round(NamedTuple):
    """One step of the target: what was drafted, what came of it, and the seconds of each part.

    tokens: what it emitted, n_accepted drafted ones and one of the target's own. An empty draft is a plain step.
    verify_s: also what the caller did with the tokens, where steps begin early: see rounds.decode. is_ahead: a step
    that had begun before the round did, so that the host worked beside it: the round is all of the time since the
    token before it, what learning of that one took included. overlaps: its tokens are taken while the next step goes
    on.
    """

    draft: Draft
    n_accepted: int
    tokens: tuple[int, ...]
    draft_s: float
    verify_s: float
    sample_s: float
    is_ahead: bool = False
    overlaps: bool = False

    @property
    def n_handed(self) -> int:
        """Tokens whose taking is part of the next round."""
        return len(self.tokens) if self.overlaps else 1

    @property
    def total_s(self) -> float:
        return self.draft_s + self.verify_s + self.sample_s

    @property
    def step_s(self) -> float:
        """Seconds of its step; of one that had begun before, all that passed."""
        return self.total_s if self.is_ahead else self.verify_s + self.sample_s

    def unhidden_s(self, host_s: float, plain_s: float) -> float:
        """Of `host_s` seconds in which the host guessed or decided: those that made the round longer than a plain step.

        plain_s: of a plain step. Of a step for a draft, which the host began then, that is all.
        """
        return min(host_s, max(0.0, self.total_s - plain_s)) if self.is_ahead else host_s


@dataclass(slots=True)
class Passed:
    """Plain steps one after the other, for which nothing was asked: what is worth knowing of them, as they come.

    tokens: what they emitted. step_s, total_s: sums of their rounds'.
    """

    first: Round
    last: Round
    tokens: list[int]
    step_s: float
    total_s: float

    @classmethod
    def of(cls, done: Round) -> Passed:
        return cls(done, done, list(done.tokens), done.step_s, done.total_s)

    def add(self, done: Round) -> None:
        """One more. It is done for each token, so it does little."""
        total_s = done.draft_s + done.verify_s + done.sample_s
        self.last = done
        self.tokens += done.tokens
        self.step_s += total_s if done.is_ahead else total_s - done.draft_s
        self.total_s += total_s

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True, kw_only=True)
class SpeculationRecord:
    """Counts of one answer or of many.

    drafter: its name. state: "on" it drafts, "learning" its guesses are only compared with what is written, "off" it
    rests; reason says why, in a sentence. draft_length: tokens of the last draft that was verified.
    rounds: steps that verified a draft. drafted_at[i]: how often position i was drafted; reached_at[i]: how often all
    before it were accepted then; accepted_at[i]: how often it was accepted. lengths[n]: rounds that accepted n tokens.
    draft_s, verify_s, sample_s: seconds of those rounds. spent_s: seconds of all steps, plain ones too; plain_s: what
    the same tokens would have cost without speculation, by the measured plain step. drafter_bytes: memory it holds.
    file_tokens: tokens of files that it was given to quote.
    """

    drafter: str
    state: SpeculationState
    reason: str = ""
    draft_length: int = 0
    rounds: int = 0
    drafted_at: tuple[int, ...] = ()
    reached_at: tuple[int, ...] = ()
    accepted_at: tuple[int, ...] = ()
    lengths: tuple[int, ...] = ()
    draft_s: float = 0.0
    verify_s: float = 0.0
    sample_s: float = 0.0
    plain_s: float = 0.0
    spent_s: float = 0.0
    drafter_bytes: int = 0
    file_tokens: int = 0

    @property
    def n_drafted(self) -> int:
        return sum(self.drafted_at)

    @property
    def n_accepted(self) -> int:
        return sum(self.accepted_at)

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted tokens over drafted ones."""
        return self.n_accepted / self.n_drafted if self.n_drafted else None

    @property
    def acceptance_length(self) -> float | None:
        """AL: tokens that a round with a draft emits on average, the target's own one included."""
        return 1 + self.n_accepted / self.rounds if self.rounds else None

    @property
    def conditional_acceptance(self) -> tuple[float, ...]:
        """For each position: accepted there, of the rounds that drafted it and accepted all before it."""
        return tuple(
            accepted / reached if reached else 0.0
            for accepted, reached in zip(self.accepted_at, self.reached_at, strict=True)
        )

    @property
    def gain(self) -> float | None:
        """How many times as fast as plain decoding: plain_s over spent_s, at most the tokens of a round.

        None where it cannot be told: far more than that means that other programs held up the plain steps.
        """
        if self.spent_s <= 0:
            return None
        times, most = self.plain_s / self.spent_s, self.acceptance_length or 1.0
        return min(times, most) if times < _IMPOSSIBLE * most else None
