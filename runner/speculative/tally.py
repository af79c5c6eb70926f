"""Counting rounds into a SpeculationRecord. It decides nothing, and knows no drafter and no clock."""

from __future__ import annotations

from collections.abc import Sequence

from runner.speculative.record import Passed, Round, SpeculationRecord, SpeculationState


class Tally:
    """The counts of the steps of one answer. draft_max: the longest draft."""

    def __init__(self, draft_max: int) -> None:
        self._drafts = [0] * (draft_max + 1)  # by their length
        self._reaches = [0] * (draft_max + 1)  # by how many of their positions were judged
        self._lengths = [0] * (draft_max + 1)  # by how many tokens were accepted
        self._rounds = self._draft_length = 0
        self._follows_draft = False
        self._draft_s = self._verify_s = self._sample_s = self._plain_s = self._spent_s = 0.0

    def add(self, done: Round, guess_s: float, own_s: float, plain_s: float, unseen: float = 0.0) -> None:
        """Count a step.

        guess_s: seconds that guessing took, without those in which something else held it up. own_s: those spent on
        deciding beside the step. plain_s: of a plain step, as measured now. unseen: what a plain step took longer for
        having been asked before, in plain steps.
        """
        n = len(done.draft)
        if n == 0:
            self._spent_s += guess_s + done.verify_s + done.sample_s + own_s
            self._plain_s += self._alone(done.verify_s + done.sample_s, plain_s) / (1 + unseen)
            return
        self._follows_draft = True
        self._spent_s += guess_s + done.step_s + own_s
        self._plain_s += len(done.tokens) * plain_s
        self._rounds += 1
        self._draft_length = n
        self._draft_s += guess_s
        self._verify_s += done.verify_s
        self._sample_s += done.sample_s
        self._drafts[n] += 1
        self._reaches[min(n, done.n_accepted + 1)] += 1
        self._lengths[done.n_accepted] += 1

    def _alone(self, seconds: float, plain_s: float) -> float:
        """What a plain step that took so long would have taken without drafts: one after a draft is unlike others."""
        follows, self._follows_draft = self._follows_draft, False
        return plain_s if follows and plain_s > 0 else seconds

    def add_plain(self, seconds: float, plain_s: float) -> None:
        """Count a plain step among such as draft by themselves."""
        self._plain_s += self._alone(seconds, plain_s)
        self._spent_s += seconds

    def pass_by(self, passed: Passed, own_s: float, plain_s: float) -> None:
        """Count plain steps for which nothing was asked. own_s: seconds that were spent on all of them beside."""
        first_s = passed.first.step_s
        self._plain_s += passed.step_s - first_s + self._alone(first_s, plain_s)
        self._spent_s += passed.total_s + own_s

    def record(
        self, drafter: str, state: SpeculationState, reason: str, drafter_bytes: int, file_tokens: int
    ) -> SpeculationRecord:
        """The counts so far; positions and lengths that never came up are left out at the end."""
        n_positions = max((n for n, count in enumerate(self._drafts) if count), default=0)
        n_lengths = max((n + 1 for n, count in enumerate(self._lengths) if count), default=0)
        return SpeculationRecord(
            drafter=drafter,
            state=state,
            reason=reason,
            draft_length=self._draft_length,
            rounds=self._rounds,
            drafted_at=_beyond(self._drafts, n_positions),
            reached_at=_beyond(self._reaches, n_positions),
            accepted_at=_beyond(self._lengths, n_positions),
            lengths=tuple(self._lengths[:n_lengths]),
            draft_s=self._draft_s,
            verify_s=self._verify_s,
            sample_s=self._sample_s,
            plain_s=self._plain_s,
            spent_s=self._spent_s,
            drafter_bytes=drafter_bytes,
            file_tokens=file_tokens,
        )


def _beyond(counts: Sequence[int], n_positions: int) -> tuple[int, ...]:
    """For each position: of how many drafts, counted by a length, that length is more."""
    return tuple(sum(counts[position + 1 :]) for position in range(n_positions))
