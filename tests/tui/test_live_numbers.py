"""From the engine's messages to the numbers that are shown."""

from __future__ import annotations

from dataclasses import replace

import pytest
from live_samples import loaded, timings

from runner.errors import RunnerError
from runner.events import Finished, Notice, Progress, Stats, TextDelta
from runner.telemetry import Timings
from runner.transcript import Turn
from runner.tui.live_numbers import HISTORY_S, SAMPLE_EVERY_S, History, LiveNumbers, decode_tok_s_between
from runner.tui.messages import AnswerBegan, AnswerEnded, AnswerStep, Lent, LoadBegan, LoadEnded, LoadStep, Unloaded

QUESTION = Turn(role="user", content="Why?")


def stats(n: int, decode_s: float) -> AnswerStep:
    return AnswerStep("answering", Stats(timings(n, decode_s), 8192))


def finished(n: int, decode_s: float) -> AnswerStep:
    event = Finished(reason="stop", timings=timings(n, decode_s), token_ids=(), seed=1, n_ctx=8192)
    return AnswerStep("answering", event)


def with_model() -> LiveNumbers:
    numbers = LiveNumbers()
    numbers.take(LoadBegan("loading", "qwen"), 0.0)
    numbers.take(LoadEnded("ready", "qwen", loaded()), 3.0)
    return numbers


def answered(rate: float, n_stats: int, *, start: float = 10.0, numbers: LiveNumbers | None = None) -> LiveNumbers:
    """An answer at `rate` tok/s whose Stats come ten times a second."""
    numbers = numbers or with_model()
    numbers.take(AnswerBegan("answering", QUESTION, True), start)
    for k in range(1, n_stats + 1):
        numbers.take(stats(1 + round(rate * k / 10), k / 10), start + k / 10)
    return numbers


def test_speed_now_is_of_the_last_second_and_the_answer_has_its_own_mean() -> None:
    numbers = answered(100.0, 30)
    for k in range(1, 21):  # two seconds at half the speed
        numbers.take(stats(301 + 5 * k, 3.0 + k / 10), 13.0 + k / 10)
    assert numbers.speed is not None
    assert numbers.speed.now_tok_s == pytest.approx(50.0, rel=0.02)
    assert numbers.speed.timings.decode_tok_s == pytest.approx(400 / 5.0, rel=0.02)


def test_an_ended_answer_shows_its_mean_by_telemetrys_definition() -> None:
    numbers = answered(100.0, 10)
    numbers.take(finished(121, 1.2), 11.2)
    numbers.take(AnswerEnded("ready", QUESTION), 11.2)
    assert numbers.speed is not None
    assert numbers.speed.now_tok_s is None
    assert numbers.speed.shown_tok_s == timings(121, 1.2).decode_tok_s == 100.0
    assert numbers.phase == "ready"


def test_an_answer_that_failed_is_not_now_any_more() -> None:
    numbers = answered(100.0, 10)
    assert numbers.phase == "decoding"
    numbers.take(AnswerEnded("ready", None), 11.0)
    assert numbers.speed is not None
    assert numbers.speed.now_tok_s is None


def test_an_engine_that_died_over_an_answer_leaves_what_was_heard_last_and_no_model() -> None:
    numbers = answered(100.0, 1)
    for k in range(1, 21):  # too soon after the first to be drawn
        numbers.take(stats(11 + k, 0.1 + k / 100), 10.1 + k / 100)
    assert numbers.speed is not None
    assert numbers.speed.timings.completion_tokens == 11
    numbers.take(AnswerEnded("empty", QUESTION), 11.0)
    assert numbers.speed.timings.completion_tokens == 31
    assert numbers.loaded is None


def test_what_an_earlier_answer_said_last_is_not_of_one_that_failed_at_once() -> None:
    numbers = answered(100.0, 3)
    numbers.take(finished(50, 0.5), 10.5)
    numbers.take(AnswerEnded("ready", QUESTION), 10.5)
    numbers.take(AnswerBegan("answering", QUESTION, True), 11.0)
    numbers.take(AnswerEnded("ready", None), 11.0)
    assert numbers.speed is not None
    assert numbers.speed.timings.completion_tokens == 50


def test_an_answer_that_stands_still_has_no_speed_now_until_it_goes_on() -> None:
    numbers = answered(100.0, 10)
    assert not numbers.pass_time(12.0)
    assert numbers.pass_time(13.5)
    assert numbers.phase == "waiting"
    assert numbers.speed is not None
    assert numbers.speed.now_tok_s is None
    assert not numbers.pass_time(14.5), "it was said already"
    numbers.take(stats(110, 4.0), 14.6)
    assert numbers.phase == "decoding"


def test_a_load_that_fails_before_the_model_is_let_go_leaves_its_numbers() -> None:
    numbers = answered(100.0, 10)
    numbers.take(finished(121, 1.2), 11.2)
    numbers.take(AnswerEnded("ready", QUESTION), 11.2)
    before, model = numbers.speed, numbers.loaded
    for then, kept in ((model, before), (loaded(), None)):
        numbers.take(LoadBegan("loading", "other"), 12.0)
        assert numbers.speed is None
        numbers.take(LoadEnded("ready", "other", then, next_model="qwen"), 12.5)
        assert numbers.speed == kept


def test_a_load_that_is_refused_while_nothing_is_loaded_leaves_the_numbers_of_the_last_answer() -> None:
    numbers = answered(100.0, 10)
    numbers.take(finished(121, 1.2), 11.2)
    numbers.take(AnswerEnded("ready", QUESTION), 11.2)
    numbers.take(Unloaded("empty", "A benchmark needs the machine."), 12.0)
    numbers.take(Lent("empty", "qwen"), 12.0)
    before = numbers.speed
    assert before is not None
    numbers.take(LoadBegan("loading", "qwen"), 13.0)
    numbers.take(LoadEnded("empty", "qwen", None, RunnerError("A benchmark is running.")), 13.0)
    assert numbers.speed == before
    assert numbers.phase == "measuring"


def test_at_most_four_times_a_second_something_is_to_be_drawn() -> None:
    numbers = with_model()
    numbers.take(AnswerBegan("answering", QUESTION, True), 10.0)
    drawn = sum(numbers.take(stats(1 + k, k / 100), 10.0 + k / 100) for k in range(1, 401))
    assert 15 <= drawn <= 4 / SAMPLE_EVERY_S + 1


def test_an_engine_that_dies_over_an_answer_leaves_what_was_heard_last_and_no_model() -> None:
    numbers = answered(100.0, 10)
    numbers.take(stats(140, 1.1), 11.05)  # too soon after the one before to be shown
    numbers.take(AnswerEnded("empty", QUESTION), 11.1)
    assert numbers.loaded is None
    assert numbers.speed is not None
    assert numbers.speed.timings == timings(140, 1.1)
    assert numbers.speed.now_tok_s is None


def test_the_speed_before_is_shown_again_when_another_model_could_not_be_loaded() -> None:
    numbers = answered(100.0, 10)
    numbers.take(finished(121, 1.2), 11.2)
    numbers.take(AnswerEnded("ready", QUESTION), 11.2)
    kept = numbers.loaded
    numbers.take(LoadBegan("loading", "another"), 12.0)
    assert numbers.speed is None
    numbers.take(LoadEnded("ready", "another", kept, error=RunnerError("It is not there.")), 13.0)
    assert numbers.speed is not None
    assert numbers.speed.timings == timings(121, 1.2)


def test_text_draws_nothing() -> None:
    numbers = answered(100.0, 10)
    assert not numbers.take(AnswerStep("answering", TextDelta("word")), 11.0)
    assert not numbers.take(AnswerStep("answering", Notice("info", "something")), 11.0)


def test_a_minute_of_decoding_is_kept_and_no_more() -> None:
    numbers = answered(100.0, 900)
    columns = numbers.history.columns(1000)
    assert len(columns) == HISTORY_S / SAMPLE_EVERY_S
    known = [value for value in columns if value is not None]
    assert len(known) > 0.9 * len(columns)
    assert known == pytest.approx([100.0] * len(known), rel=0.1)


def test_two_answers_are_parted_by_a_gap() -> None:
    numbers = answered(100.0, 10)
    numbers.take(AnswerEnded("ready", QUESTION), 11.0)
    answered(50.0, 10, start=20.0, numbers=numbers)
    columns = numbers.history.columns(100)
    assert columns.count(None) == 1
    gap = columns.index(None)
    assert columns[gap - 1] == pytest.approx(100.0, rel=0.1)
    assert columns[gap + 1] == pytest.approx(50.0, rel=0.1)


def test_an_answer_too_short_for_a_sample_is_in_the_history() -> None:
    numbers = with_model()
    numbers.take(AnswerBegan("answering", QUESTION, True), 10.0)
    numbers.take(finished(6, 0.05), 10.2)
    assert numbers.history.columns(10) == (100.0,)


def test_columns_keep_their_height_while_new_ones_come() -> None:
    history = History()
    for k in range(60):
        history.add(float(k))
    before = history.columns(30)
    history.add(60.0)
    history.add(61.0)
    assert history.columns(31)[:-1] == before


@pytest.mark.parametrize("width", [0, 1, 7, 26, 240, 1000])
def test_history_fits_every_width(width: int) -> None:
    history = History()
    for k in range(500):
        history.add(float(k % 7))
    assert len(history.columns(width)) <= width


def test_a_stretch_that_is_too_short_has_no_speed() -> None:
    assert decode_tok_s_between(timings(10, 1.0), timings(11, 1.05)) is None
    assert decode_tok_s_between(timings(10, 1.0), timings(60, 1.5)) == 100.0
    written = replace(timings(60, 1.5), written_tokens=30)  # the end of a thought, which took no time
    assert decode_tok_s_between(timings(10, 1.0), written) == 40.0


def test_reading_a_prompt_has_a_share_and_a_time_that_is_left() -> None:
    numbers = with_model()
    numbers.take(AnswerBegan("answering", QUESTION, True), 10.0)
    assert numbers.phase == "waiting"
    numbers.take(AnswerStep("answering", Progress("prefill", 1000, 5000, "tokens")), 10.0)
    numbers.take(AnswerStep("answering", Progress("prefill", 2000, 5000, "tokens")), 11.0)
    assert numbers.phase == "reading"
    assert numbers.stage is not None
    assert numbers.stage.share == 0.4
    assert numbers.stage.left_s == pytest.approx(3.0)  # the first 1000 were cached: they took no time
    numbers.take(AnswerStep("answering", TextDelta("The")), 14.0)
    assert numbers.stage is None


def test_loading_has_stages_one_after_another() -> None:
    numbers = LiveNumbers()
    numbers.take(LoadBegan("loading", "qwen"), 0.0)
    numbers.take(LoadStep("loading", Progress("download", 0, 4_000_000, "bytes")), 0.0)
    numbers.take(LoadStep("loading", Progress("download", 1_000_000, 4_000_000, "bytes")), 1.0)
    assert numbers.stage is not None
    assert numbers.stage.left_s == pytest.approx(3.0)
    numbers.take(LoadStep("loading", Progress("load", 10, 100, "%")), 5.0)
    assert numbers.stage.left_s is None
    numbers.take(LoadStep("loading", Progress("load", 20, 100, "%")), 6.0)
    assert numbers.stage.left_s == pytest.approx(8.0)
    assert numbers.stage.share == 0.2
    numbers.take(LoadEnded("empty", "qwen", None), 7.0)
    assert numbers.stage is None
    assert numbers.phase == "empty"


def test_a_stage_of_unknown_size_has_no_share() -> None:
    numbers = LiveNumbers()
    numbers.take(LoadStep("loading", Progress("download", 5, 0, "bytes")), 0.0)
    assert numbers.stage is not None
    assert numbers.stage.share is None
    assert numbers.stage.left_s is None


def test_a_download_that_stands_still_takes_longer_and_then_nobody_knows() -> None:
    numbers = LiveNumbers()
    numbers.take(LoadStep("loading", Progress("download", 0, 4_000_000, "bytes")), 0.0)
    numbers.take(LoadStep("loading", Progress("download", 1_000_000, 4_000_000, "bytes")), 1.0)
    assert numbers.pass_time(4.0)
    assert numbers.stage is not None
    assert numbers.stage.left_s == pytest.approx(12.0)
    for second in range(5, 20):
        numbers.pass_time(float(second))
    assert numbers.stage.left_s is None
    assert numbers.stage.since_s == 19.0


def test_time_alone_changes_nothing_when_nothing_goes_on() -> None:
    assert not with_model().pass_time(100.0)


def test_a_question_that_waits_does_not_end_the_answer_before_it() -> None:
    numbers = answered(100.0, 10)
    numbers.take(AnswerBegan("answering", QUESTION, True), 11.0)
    assert numbers.phase == "decoding"
    assert numbers.speed is not None
    assert numbers.speed.now_tok_s is not None


def test_what_was_loaded_is_forgotten_when_it_is_gone() -> None:
    numbers = with_model()
    assert numbers.loaded is not None
    numbers.take(Unloaded("empty", "its process died"), 5.0)
    assert numbers.loaded is None
    assert numbers.phase == "empty"


def test_a_repeated_progress_draws_nothing() -> None:
    numbers = LiveNumbers()
    step = LoadStep("loading", Progress("load", 10, 100, "%"))
    assert numbers.take(LoadBegan("loading", "qwen"), 0.0)
    assert numbers.take(step, 0.0)
    assert not numbers.take(step, 0.1)


def test_an_answer_of_one_token_has_no_speed() -> None:
    numbers = with_model()
    one = Timings(prompt_tokens=5, completion_tokens=1, ttft_s=0.1, prefill_s=0.1, total_s=0.1)
    numbers.take(AnswerStep("answering", Finished("stop", one, (), 1, 8192)), 10.0)
    assert numbers.speed is not None
    assert numbers.speed.shown_tok_s is None
    assert numbers.history.columns(10) == ()
