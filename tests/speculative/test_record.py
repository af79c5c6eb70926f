"""What a round took and what of it counts: the seconds of a round, and of many with drafts and without them."""

from __future__ import annotations

import pytest

from runner.config import LONGEST_DRAFT
from runner.speculative.drafter import NO_DRAFT, Draft
from runner.speculative.record import Passed, Round, SpeculationRecord
from runner.speculative.tally import Tally

PLAIN_S = 1.0


def plain(verify_s: float = 0.75, sample_s: float = 0.25, draft_s: float = 0.0, **kinds: bool) -> Round:
    return Round(NO_DRAFT, 0, (5,), draft_s, verify_s, sample_s, **kinds)


def drafted(n: int = 3, n_accepted: int = 1, *, overlaps: bool = False) -> Round:
    tokens = (5,) * (n_accepted + 1)
    return Round(Draft((5,) * n, (0,) * n), n_accepted, tokens, 0.5, 1.0, 0.25, overlaps=overlaps)


def record(tally: Tally) -> SpeculationRecord:
    return tally.record("suffix", "on", "", 0, 0)


# --- a round ---------------------------------------------------------------------------------------------------------


def test_asking_is_a_part_of_a_step_only_if_that_had_begun_before() -> None:
    done = plain(1.0, 0.25, draft_s=0.5)
    assert (done.total_s, done.step_s) == (1.75, 1.25)
    assert done._replace(is_ahead=True).step_s == 1.75


def test_where_tokens_are_taken_while_the_next_step_goes_on_all_of_them_are_a_part_of_that() -> None:
    assert drafted(3, 2).n_handed == 1
    assert drafted(3, 2, overlaps=True).n_handed == 3


@pytest.mark.parametrize(("is_ahead", "total_s", "unhidden_s"), [(False, 1.1, 0.5), (True, 1.2, 0.2), (True, 1.8, 0.5)])
def test_what_the_host_does_counts_as_far_as_a_device_did_not_hide_it(
    is_ahead: bool, total_s: float, unhidden_s: float
) -> None:
    assert plain(total_s, 0.0, is_ahead=is_ahead).unhidden_s(0.5, PLAIN_S) == pytest.approx(unhidden_s)


def test_a_step_that_was_shorter_than_a_plain_one_hid_all_and_gives_nothing_back() -> None:
    assert plain(0.75, 0.0, is_ahead=True).unhidden_s(0.5, PLAIN_S) == 0.0


def test_what_passed_is_the_sum_of_its_rounds() -> None:
    rounds = [plain(draft_s=0.5), plain(1.5, 0.5, draft_s=0.25), plain(2.0, 0.5, draft_s=0.5, is_ahead=True)]
    passed = Passed.of(rounds[0])
    for done in rounds[1:]:
        passed.add(done)
    assert passed.step_s == sum(done.step_s for done in rounds) == 6.0
    assert passed.total_s == sum(done.total_s for done in rounds) == 6.75
    assert (passed.first, passed.last, len(passed)) == (rounds[0], rounds[2], 3)


# --- the counts of an answer -----------------------------------------------------------------------------------------


def test_an_answer_of_which_nothing_was_told_has_no_rates_and_no_gain() -> None:
    nothing = record(Tally(LONGEST_DRAFT))
    assert nothing == SpeculationRecord(drafter="suffix", state="on")
    assert nothing.n_drafted == nothing.rounds == nothing.draft_length == 0
    assert nothing.draft_s == nothing.verify_s == nothing.sample_s == nothing.plain_s == nothing.spent_s == 0.0
    assert nothing.drafter_bytes == nothing.file_tokens == 0
    assert (nothing.acceptance_rate, nothing.acceptance_length, nothing.gain) == (None, None, None)


def test_a_round_for_a_draft_takes_guessing_deciding_and_its_step() -> None:
    tally = Tally(LONGEST_DRAFT)
    for _ in range(2):
        tally.add(drafted(), 0.5, 0.125, PLAIN_S)
    told = record(tally)
    assert (told.draft_s, told.verify_s, told.sample_s) == (1.0, 2.0, 0.5)
    assert told.spent_s == 2 * (0.5 + 0.125 + 1.25)
    assert told.plain_s == 4 * PLAIN_S


def test_a_step_that_was_asked_for_in_vain_would_have_been_shorter_without_asking() -> None:
    tally = Tally(LONGEST_DRAFT)
    tally.add(plain(1.0, 0.25, draft_s=0.5), 0.5, 0.125, PLAIN_S, unseen=0.25)
    assert record(tally).spent_s == 0.5 + 0.125 + 1.25
    assert record(tally).plain_s == 1.25 / 1.25


def test_a_step_after_a_draft_counts_as_a_plain_one_if_that_is_known_and_the_next_as_what_it_took() -> None:
    for plain_s, counted in ((PLAIN_S, 1.0), (0.0, 3.0)):
        tally = Tally(LONGEST_DRAFT)
        tally.add(drafted(n_accepted=0), 0.0, 0.0, plain_s)
        tally.add_plain(3.0, plain_s)
        tally.add_plain(2.0, plain_s)
        assert record(tally).plain_s == plain_s + counted + 2.0
        assert record(tally).spent_s == 1.25 + 3.0 + 2.0


def test_the_first_step_of_an_answer_counts_as_what_it_took() -> None:
    tally = Tally(LONGEST_DRAFT)
    tally.add_plain(3.0, PLAIN_S)
    assert record(tally).plain_s == 3.0


def test_what_learning_of_plain_steps_took_was_spent() -> None:
    tally = Tally(LONGEST_DRAFT)
    tally.pass_by(Passed.of(plain(1.0, 0.25, draft_s=0.5)), 0.125, PLAIN_S)
    assert (record(tally).plain_s, record(tally).spent_s) == (1.25, 1.875)
