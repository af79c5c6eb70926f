"""Speculation in the live rail: whether it drafts and how it pays, why it does not, and how drafts fared."""

from __future__ import annotations

import dataclasses

import pytest
from live_samples import SPECULATION, loaded, machine, timings

from runner.config import LoadOptions
from runner.events import Finished, Stats
from runner.speculative.record import SpeculationRecord
from runner.transcript import Turn
from runner.tui.live_numbers import LiveNumbers
from runner.tui.memory_parts import memory_view
from runner.tui.messages import AnswerBegan, AnswerStep, LoadBegan, LoadEnded
from runner.tui.widgets.gauges import bars
from runner.tui.widgets.speculation_section import SpeculationSection
from runner.tui.widgets.status_line import status_items

QUESTION = Turn(role="user", content="Why?")
WIDTH = 32


def numbers_of(record: SpeculationRecord | None, chosen: str = "", options: LoadOptions | None = None) -> LiveNumbers:
    """After a load, and an answer if there is a record of one."""
    numbers = LiveNumbers()
    numbers.take(LoadBegan("loading", "qwen"), 0.0)
    there = dataclasses.replace(loaded(), speculation=chosen)
    numbers.take(LoadEnded("ready", "qwen", there, None, options or LoadOptions()), 1.0)
    if record is not None:
        numbers.take(AnswerBegan("answering", QUESTION, True), 2.0)
        numbers.take(AnswerStep("answering", Stats(timings(101, 1.0), 8192, record)), 3.0)
    return numbers


def rows_of(numbers: LiveNumbers, *, is_open: bool = False, width: int = WIDTH) -> list[str]:
    section = SpeculationSection(numbers)
    section.is_open = is_open
    return [row.plain for row in section.rows(width)]


def test_what_drafts_is_said_with_acceptance_gain_and_length() -> None:
    rows = rows_of(numbers_of(SPECULATION))
    assert rows[0] == "SPECULATION ▸  auto: on · suffix"
    assert rows[1:] == ["accept 70 % · gain 1.83x", "AL 3.10 · k 4"]


def test_the_time_is_split_where_there_is_room_for_it() -> None:
    assert "draft 4 % · verify 92 % · sample 4 %" not in rows_of(numbers_of(SPECULATION))
    assert "draft 4 % · verify 92 % · sample 4 %" in rows_of(numbers_of(SPECULATION), width=42)
    assert "draft 4 % · verify 92 %" in rows_of(numbers_of(SPECULATION), is_open=True)


def test_why_it_rests_is_said_without_opening_it() -> None:
    record = dataclasses.replace(SPECULATION, state="off", reason="12 tok/s with drafts, 14 without")
    rows = rows_of(numbers_of(record))
    assert rows[0].endswith("auto: off · suffix")
    assert rows[-1] == "12 tok/s with drafts, 14 without"


def test_before_an_answer_it_says_what_was_decided_at_load() -> None:
    rows = rows_of(numbers_of(None, "off: the cache of this model cannot be cut"))
    assert rows == ["SPECULATION ▸          auto: off", "the cache of this model cannot", "be cut"]
    assert rows_of(numbers_of(None))[0].endswith(" off")


def test_auto_is_named_only_where_it_chose() -> None:
    chosen = LoadOptions(speculation="suffix")
    assert rows_of(numbers_of(SPECULATION, "suffix: it was asked for", chosen))[0].endswith("  on · suffix")


def test_opened_it_shows_positions_rounds_and_counts() -> None:
    rows = rows_of(numbers_of(dataclasses.replace(SPECULATION, drafter_bytes=2**20)), is_open=True)
    assert rows[0].startswith("SPECULATION ▾")
    at = rows.index("accepted at position")
    assert rows[at + 1 : at + 4] == ["▆▆▆ ▃▃▃ ▄▄▄    ", "███ ███ ███ ███", "1             4"]
    assert rows[rows.index("rounds by tokens accepted") + 3].split() == ["0", "4"]
    assert "210 of 300 in 100 rounds" in rows
    assert "the drafter holds 1.0 MiB" in rows


def test_a_record_without_a_round_has_no_numbers_and_no_bars() -> None:
    record = SpeculationRecord(drafter="suffix", state="learning", reason="it watches first")
    rows = rows_of(numbers_of(record), is_open=True)
    assert rows == ["SPECULATION ▾  learning · suffix", "it watches first"]


@pytest.mark.parametrize("width", [20, 32, 42, 60])
def test_nothing_is_wider_than_its_place(width: int) -> None:
    record = dataclasses.replace(SPECULATION, lengths=tuple(range(16)), reason="a long reason " * 9)
    for row in SpeculationSection(numbers_of(record)).rows(width)[1:]:
        assert row.cell_length <= max(width, 24)


def test_the_record_is_forgotten_with_its_model_and_followed_to_the_end_of_an_answer() -> None:
    numbers = numbers_of(SPECULATION)
    last = dataclasses.replace(SPECULATION, rounds=101)
    numbers.take(AnswerStep("answering", Finished("stop", timings(120, 1.1), (), 1, 8192, last)), 3.1)
    assert numbers.speculation == last
    numbers.take(LoadBegan("loading", "other"), 4.0)
    assert numbers.speculation is None


def test_a_narrow_screen_has_the_gain_too() -> None:
    assert "gain 1.83x" in [item.plain for item in status_items(numbers_of(SPECULATION), None, ())]
    assert not any("gain" in item.plain for item in status_items(numbers_of(None), None, ()))


def test_the_drafter_has_its_part_of_the_memory_bar() -> None:
    there = loaded()
    there = dataclasses.replace(there, memory=dataclasses.replace(there.memory, draft_bytes=2**30))
    view = memory_view(
        machine(), dataclasses.replace(there, info=dataclasses.replace(there.info, n_gpu_layers=0)), None
    )
    assert view is not None
    assert {part.name: part.size_bytes for part in view.parts}["draft"] == 2**30


def test_bars_name_their_first_and_last() -> None:
    rows = [row.plain for row in bars([1.0, 0.5, 0.0], 32, 2, first=1, top=1.0)]
    assert rows == ["███        ", "███ ███    ", "1         3"]
    assert [row.plain for row in bars([2], 32, 1, first=0)] == ["███", "0"]
    assert bars([], 32, 2, first=1) == []
