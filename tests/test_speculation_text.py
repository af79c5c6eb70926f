"""What speculation did, in words and for programs."""

from __future__ import annotations

import dataclasses
import json

from runner.chat_pages import Totals, stats_page
from runner.events import Finished
from runner.speculative.record import SpeculationRecord
from runner.status_text import answer_status, plain_speculation, speculation_summary
from runner.telemetry import Timings

TIMINGS = Timings(prompt_tokens=10, completion_tokens=101, ttft_s=0.2, decode_s=1.0, total_s=1.2)
RECORD = SpeculationRecord(
    drafter="suffix",
    state="on",
    reason="drafts of 4 cost 1.3 plain steps and bring 3 tokens.",
    draft_length=4,
    rounds=10,
    drafted_at=(10, 10, 10, 5),
    reached_at=(10, 8, 6, 2),
    accepted_at=(8, 6, 5, 1),
    lengths=(2, 2, 1, 4, 1),
    draft_s=0.01,
    verify_s=0.9,
    sample_s=0.09,
    plain_s=1.83,
    spent_s=1.0,
)
RESTING = dataclasses.replace(RECORD, state="off", reason="drafts cost more than they brought")
UNTRIED = SpeculationRecord(drafter="model", state="learning", plain_s=1.0, spent_s=1.0)


def test_the_status_line_shows_the_gain_while_it_is_on() -> None:
    assert answer_status(TIMINGS, 2048, RECORD).startswith("100.0 tok/s · gain 1.83x · TTFT 200 ms")
    for record in (None, RESTING, UNTRIED):
        assert "gain" not in answer_status(TIMINGS, 2048, record)


def test_the_summary_has_every_number_by_its_name() -> None:
    assert speculation_summary(RECORD) == (
        "suffix on: drafts of 4 cost 1.3 plain steps and bring 3 tokens · acceptance rate 57 % of 35 · "
        "acceptance length 3.00 · gain 1.83x · draft 1 %, verify 90 %, sample 9 %"
    )
    assert speculation_summary(RESTING).startswith("suffix off: drafts cost more than they brought · acceptance rate")
    assert speculation_summary(UNTRIED) == "model learning · gain 1.00x"


def test_programs_get_counts_and_rates() -> None:
    plain = plain_speculation(RECORD, "suffix: it needs no memory")
    assert json.loads(json.dumps(plain)) == plain
    assert (plain["n_drafted"], plain["n_accepted"], plain["acceptance_length"]) == (35, 20, 3.0)
    assert plain["conditional_acceptance"] == [0.8, 0.75, 5 / 6, 0.5]
    assert (plain["drafter"], plain["state"], plain["gain"]) == ("suffix", "on", 1.83)
    assert plain_speculation(None, "off: it was turned off") == {
        "drafter": None,
        "state": "off",
        "reason": "it was turned off",
    }


def test_the_page_of_numbers_has_a_line_for_it() -> None:
    totals = Totals()
    finished = Finished("stop", TIMINGS, (1,), 7, 2048, RECORD)
    totals.add(finished)
    assert f"\nspeculation  {speculation_summary(RECORD)}\n" in stats_page(totals)
    totals.add(dataclasses.replace(finished, speculation=None))
    assert "speculation" not in stats_page(totals)


def test_the_speed_of_a_chat_is_that_of_its_timed_tokens() -> None:
    """The first token of an answer belongs to the prefill; an answer that was stopped before it began has none."""
    totals = Totals()
    for timings in (
        Timings(prompt_tokens=3, completion_tokens=15, written_tokens=4, decode_s=2.0),
        Timings(prompt_tokens=3),
        Timings(prompt_tokens=3, completion_tokens=1),
    ):
        totals.add(Finished("stop", timings, (1,), 7, 2048, None))
    assert stats_page(totals).endswith("this chat    3 answers · 16 tokens · 5.0 tok/s")
    assert "prompt 3 tokens · answer 1 token ·" in stats_page(totals)
