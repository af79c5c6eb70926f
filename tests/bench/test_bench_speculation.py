"""Rows of genres: what they say, what makes them invalid, and that earlier records are read as before."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from runner.bench.comparison import compare_runs
from runner.bench.formats import csv_text, flat_rows, markdown
from runner.bench.gates import genre_fault, genre_repetition_fault
from runner.bench.genre_texts import genre_prompts, md5_of, message_ids, prompt_ids
from runner.bench.history_table import history_lines
from runner.bench.live_text import row_line
from runner.bench.plan import Speed, load_options, plan_tests, wanted_tests
from runner.bench.record import BenchRow, BenchRun, run_from_json, run_to_json, without_numbers
from runner.bench.request import GENRES, BenchRequest, genre_list, request_like, temperature_list
from runner.bench.run_plot import plot_lines
from runner.bench.run_table import run_lines
from runner.bench.side import Tally
from runner.bench.speculated import Speculated, together
from runner.bench.speculation_text import acceptance_cell, length_cell
from runner.bench.store import append_run, last_like, read_history, sound_run
from runner.bench.styled import plain
from runner.bench.tasks import GenreSample, Written
from runner.config import LoadOptions
from runner.errors import UsageError
from runner.speculative.record import SpeculationRecord
from tests.bench.bench_records import backend, full_run, options, run
from tests.bench.test_bench_plan import info

RECORD = SpeculationRecord(
    drafter="suffix",
    state="off",
    reason="drafts of 16 rounds gained 0.9x",
    rounds=4,
    drafted_at=(4, 3),
    reached_at=(4, 2),
    accepted_at=(3, 1),
    lengths=(1, 2, 1),
    draft_s=0.1,
    verify_s=0.8,
    sample_s=0.1,
)
CODE = BenchRow(
    model="demo",
    backend="native",
    test="code128",
    unit="tok/s",
    samples=(200.0, 240.0),
    segments=(2,),
    cold=150.0,
    n_gen=128,
    speculation=Speculated(plain=(100.0, 100.0), record=RECORD),
)


def genre_run(*rows: BenchRow, **others: object) -> BenchRun:
    made = options(n_prompt=(), genres=("code",), temperatures=(0.0,), speculation="auto", draft_max=15)
    return run(backend(*(rows or (CODE,))), options=made, **others)


def request(**others: object) -> BenchRequest:
    return BenchRequest(model="m", load=LoadOptions(), genres=GENRES, **others)  # type: ignore[arg-type]


# --- texts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("genre", GENRES)
def test_every_genre_has_prompts_with_answers_of_their_own(genre: str) -> None:
    prompts = genre_prompts(genre)  # type: ignore[arg-type]
    assert len({prompt.name for prompt in prompts}) == len(prompts) == 4
    assert all(len(prompt.answer) > 300 and len(prompt.ask) > 60 for prompt in prompts)


def test_code_that_is_edited_repeats_most_of_its_prompt() -> None:
    edit = genre_prompts("code")[0]
    lines = [line for line in edit.answer.splitlines() if line.strip()]
    kept = [line for line in lines if line in edit.ask]
    assert 0.8 < len(kept) / len(lines) < 1


def test_a_text_that_goes_on_is_given_as_it_stands_and_a_question_as_a_message() -> None:
    from runner.backends.fake import CHAT_TEMPLATE, FakeTokenizer

    target = dataclasses.replace(info(), chat_template=CHAT_TEMPLATE)
    novel, question = genre_prompts("prose")[0], genre_prompts("instruct")[0]
    assert bytes(prompt_ids(novel, target, FakeTokenizer())).decode() == f"{novel.ask}\n"
    assert prompt_ids(question, target, FakeTokenizer())[0] == 256  # <|im_start|>
    base = dataclasses.replace(target, chat_template=None)
    assert bytes(message_ids("Why?", base, FakeTokenizer())) == b"Why?"


def test_the_hash_of_prompts_tells_order_and_content() -> None:
    assert md5_of([[1, 2], [3]]) == md5_of([(1, 2), (3,)])
    assert md5_of([[1, 2], [3]]) != md5_of([[3], [1, 2]])


# --- what is measured ------------------------------------------------------------------------------------------------


def test_a_request_names_every_genre_at_every_temperature() -> None:
    names = [test.name for test in wanted_tests(request(temperatures=(0.0, 0.7)).options())]
    assert names == [f"{genre}128{at}" for at in ("", " @ t0.7") for genre in GENRES]


def test_a_slow_machine_writes_shorter_answers_and_says_so() -> None:
    slow = plan_tests(request(), info(), Speed(prefill_tok_s=1000.0, decode_tok_s=200.0), 8.0)
    assert [test.name for test in slow.tests] == ["code16", "prose16", "instruct32", "maths32"], "prompts are read too"
    assert "in place of code128" in slow.notes["code16"]
    asked = plan_tests(request(n_gen=(128,)), info(), Speed(prefill_tok_s=1000.0, decode_tok_s=200.0), 8.0)
    assert asked.tests[0].name == "code128"


def test_prefill_and_decode_are_measured_without_a_drafter_and_genres_with_the_one_asked_for() -> None:
    drafting = LoadOptions(speculation="model", draft="small", draft_max=4, draft_file=("/a",))
    plain_request = BenchRequest(model="m", load=drafting)
    assert load_options(plain_request, "native").speculation == "off"
    assert load_options(plain_request, "native").draft is None
    assert load_options(plain_request, "native").draft_file == ()
    with_genres = load_options(dataclasses.replace(plain_request, genres=("code",)), "native")
    assert (with_genres.speculation, with_genres.draft, with_genres.draft_max) == ("model", "small", 4)


def test_the_options_of_a_run_give_its_request_again() -> None:
    drafting = LoadOptions(speculation="model", draft="small", draft_max=4, draft_file=("/a",))
    asked = BenchRequest(model="m", load=drafting, genres=("code", "maths"), temperatures=(0.0, 0.7), repetitions=3)
    assert request_like(asked.options(), "m", LoadOptions()) == asked


def test_lists_are_read_as_they_are_written() -> None:
    assert genre_list(None) == GENRES
    assert genre_list("prose, code,prose") == ("prose", "code")
    assert temperature_list(None) == (0.0,)
    assert temperature_list("0,0.7") == (0.0, 0.7)
    with pytest.raises(UsageError):
        temperature_list("0;1")


# --- gates -----------------------------------------------------------------------------------------------------------


def sample(
    *, plain: tuple[int, ...] = (1, 2, 3), drafted: tuple[int, ...] = (1, 2, 3), seconds: float = 1.0
) -> GenreSample:
    ways = [Written(ids=((9, 9), ids), n_tokens=len(ids), seconds=seconds) for ids in (plain, drafted)]
    return GenreSample(plain=ways[0], speculative=ways[1], record=RECORD, prompts_md5="a")


def test_tokens_must_be_the_same_both_ways() -> None:
    assert genre_fault(sample(), "native") is None
    assert "prompt 2" in (genre_fault(sample(drafted=(1, 2, 4)), "native") or "")
    assert (genre_fault(sample(drafted=(1, 2, 4)), "native") or "").endswith("from token 3 on")
    assert "from token 3 on" in (genre_fault(sample(drafted=(1, 2)), "native") or "")
    assert genre_fault(sample(seconds=0.0), "native") == "the clock did not advance"
    for way in ("plain", "speculative"):
        still = dataclasses.replace(sample(), **{way: Written(ids=((9, 9), (1, 2, 3)), n_tokens=3, seconds=0.0)})
        assert genre_fault(still, "native") == "the clock did not advance"
    assert "first token" in (genre_fault(sample(plain=(), drafted=()), "native") or "")


def test_where_llama_cpp_rounds_otherwise_the_remedy_is_named() -> None:
    assert "with -t 1 or --kv-type bf16 it does not" in (genre_fault(sample(drafted=(1, 2, 4)), "llamacpp") or "")


def test_repetitions_must_be_the_same_too() -> None:
    assert genre_repetition_fault(sample(), sample(), "native") is None
    other = sample(plain=(1, 5, 3), drafted=(1, 5, 3))
    assert "prompt 2: tokens differ between repetitions, from token 2" in (
        genre_repetition_fault(sample(), other, "native") or ""
    )
    elsewhere = dataclasses.replace(sample(), prompts_md5="b")
    assert "different ids" in (genre_repetition_fault(sample(), elsewhere, "native") or "")


# --- rows ------------------------------------------------------------------------------------------------------------


def test_a_row_grows_by_pairs() -> None:
    tally = Tally(dataclasses.replace(CODE, samples=(), segments=(), cold=None, speculation=None))
    tally.begin_process()
    tally.add_pair(100.0, 200.0, RECORD)
    tally.add_pair(100.0, 240.0, dataclasses.replace(RECORD, lengths=(0, 0, 0, 5), state="on", reason=""))
    grown = tally.row(None)
    assert grown.gains == (2.0, 2.4)
    assert grown.speculation is not None
    assert grown.speculation.record.lengths == (1, 2, 1, 5)
    assert grown.speculation.record.state == "on"  # as the last one says


def test_counts_of_answers_add_up() -> None:
    both = together([RECORD, RECORD])
    assert (both.rounds, both.drafted_at, both.accepted_at) == (8, (8, 6), (6, 2))
    assert (both.acceptance_rate, both.acceptance_length) == (RECORD.acceptance_rate, RECORD.acceptance_length)
    assert together([RECORD]) == RECORD


def test_a_row_has_as_many_plain_rates_as_others() -> None:
    with pytest.raises(ValueError, match="nothing to compare"):
        dataclasses.replace(CODE, samples=(200.0,), segments=(1,))
    invalid = without_numbers(CODE, "tokens differ")
    assert invalid.speculation is None
    with pytest.raises(ValueError, match="invalid and has numbers"):
        dataclasses.replace(invalid, speculation=CODE.speculation)


def test_every_format_has_the_gain_and_the_acceptance() -> None:
    one = genre_run()
    (flat,) = flat_rows(one)
    assert flat["gain"] == pytest.approx(2.2)
    assert flat["acceptance_rate"] == pytest.approx(4 / 7)
    assert flat["acceptance_length"] == 2.0
    assert flat["acceptance_length_histogram"] == {"1": 1, "2": 2, "3": 1}
    assert flat["conditional_acceptance_rate"] == [0.75, 0.5]
    assert (flat["drafter"], flat["drafter_state"]) == ("suffix", "off")
    header, line = csv_text(one).splitlines()
    assert "acceptance_length," in header
    assert ",2.2," in line
    assert "2.20 ± 0.28x" in markdown(one)
    assert "57 %" in markdown(one)
    shown = "\n".join(map(plain, run_lines(one, None)))
    for words in ("2.20 ± 0.28x", "suffix off", "1: 1, 2: 2, 3: 1", "75 50", "verify 80 %", "gained 0.9x"):
        assert words in shown
    assert "2.20 ± 0.28x the plain rate" in row_line(CODE, is_complete=True)


def test_one_disturbed_repetition_makes_no_gain_and_is_labelled() -> None:
    rates = (100.0, 101.0, 99.0, 100.0, 100.0)
    plain_rates = (100.0, 100.0, 5.0, 101.0, 100.0)
    disturbed = dataclasses.replace(
        CODE, samples=rates, segments=(5,), speculation=Speculated(plain=plain_rates, record=RECORD)
    )
    assert disturbed.gain == pytest.approx(1.0, abs=0.011)
    assert disturbed.is_noisy
    assert disturbed.cv is not None
    assert disturbed.cv < 0.05 < disturbed.noise
    assert "noisy" in "\n".join(map(plain, history_lines([genre_run(disturbed)], None)))
    calm = dataclasses.replace(disturbed, speculation=Speculated(plain=rates, record=RECORD))
    assert not calm.is_noisy
    assert "noisy" not in "\n".join(map(plain, history_lines([genre_run(calm)], None)))


@pytest.mark.parametrize("width", [40, 60])
def test_a_narrow_terminal_shows_gains_before_the_models_name_and_the_rate(width: int) -> None:
    shown = [plain(line) for line in history_lines([genre_run(model="qwen3-30b-a3b-instruct")], width)]
    assert "2.20x code128" in shown[1]
    assert len(shown[1]) <= width
    report = "\n".join(
        plain(line) for line in run_lines(genre_run(dataclasses.replace(CODE, backend="llamacpp")), width)
    )
    assert "GAIN" in report
    assert "2.20 ± 0.28x" in report


def test_where_nothing_was_drafted_the_report_says_so() -> None:
    nothing = SpeculationRecord(drafter="suffix", state="on")
    idle = dataclasses.replace(CODE, speculation=Speculated(plain=(200.0, 240.0), record=nothing))
    shown = "\n".join(map(plain, run_lines(genre_run(idle), None)))
    assert "nothing was drafted" in shown
    assert (acceptance_cell(idle), length_cell(idle)) == ("-", "-")


def test_the_gain_stands_beside_the_bar_of_what_was_written_with_speculation() -> None:
    assert "2.20x" in "\n".join(plain(line) for line in plot_lines([CODE], 100))
    without = dataclasses.replace(CODE, speculation=None)
    assert "2.20x" not in "\n".join(plain(line) for line in plot_lines([without], 100))


def test_rows_without_speculation_look_as_before() -> None:
    (flat,) = flat_rows(run())
    assert not {"gain", "drafter", "acceptance_rate", "draft_s"} & flat.keys()
    shown = "\n".join(map(plain, run_lines(full_run(), None)))
    assert "GAIN" not in shown
    assert "drafts" not in shown
    assert "gain" not in markdown(full_run())


def test_a_run_goes_through_json_and_the_history(tmp_path: Path) -> None:
    one = genre_run()
    text = json.dumps(run_to_json(one), allow_nan=False)
    assert json.loads(text)["backends"][0]["rows"][0]["speculation"]["gain"] == pytest.approx(2.2)
    assert sound_run(json.loads(text)) == one
    append_run(tmp_path / "bench.jsonl", one)
    kept = read_history(tmp_path / "bench.jsonl")
    assert kept.runs == (one,)
    assert last_like(kept.runs, dataclasses.replace(one, id="later")) == one
    assert "2.20x code128" in "\n".join(map(plain, history_lines(kept.runs, None)))


def test_runs_of_genres_are_compared_by_their_rate_with_speculation() -> None:
    faster = dataclasses.replace(CODE, samples=(400.0, 480.0))
    (compared,) = compare_runs(genre_run(id="a"), genre_run(faster, id="b")).rows
    assert compared.speed is not None
    assert compared.speed.value == pytest.approx(2.0)


def test_records_of_the_version_before_are_read_and_are_like_new_ones(tmp_path: Path) -> None:
    now = full_run()
    old = run_to_json(now) | {"schema": "runner.bench/1"}
    for name in ("genres", "temperatures", "speculation", "draft", "draft_max", "draft_file"):
        del old["options"][name]
    for each in old["backends"]:
        del each["draft_max"]
        for one in each["rows"]:
            del one["speculation"]
        if each["memory"]:
            del each["memory"]["draft_bytes"]
    (tmp_path / "bench.jsonl").write_text(json.dumps(old) + "\n")
    kept = read_history(tmp_path / "bench.jsonl")
    assert (kept.n_damaged, kept.n_newer) == (0, 0)
    assert kept.runs == (now,)
    assert run_from_json(old).options == now.options
