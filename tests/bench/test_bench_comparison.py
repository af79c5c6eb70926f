"""Two runs beside each other: verdicts, directions, and what is not there."""

from __future__ import annotations

import dataclasses

import pytest

from runner.bench.comparison import RowComparison, compare_runs
from runner.bench.comparison_table import comparison_json, comparison_lines, comparison_markdown
from runner.bench.styled import plain
from runner.measures import text_width
from tests.bench.bench_records import HOSTILE, backend, full_run, machine, options, refused, row, run

STEADY = (100.0, 102.0, 98.0, 101.0, 99.0)


def scaled(by: float) -> tuple[float, ...]:
    return tuple(by * value for value in STEADY)


def only(before: object, after: object) -> RowComparison:
    (found,) = compare_runs(run(backend(before)), run(backend(after))).rows  # type: ignore[arg-type]
    return found


@pytest.mark.parametrize(
    ("test", "by", "verdict"),
    [
        ("tg128", 1.2, "faster"),
        ("tg128", 0.8, "slower"),
        ("tg128", 1.01, "same"),
        ("pp512", 0.99, "same"),
        ("ttft", 1.2, "slower"),
        ("ttft", 0.8, "faster"),
    ],
)
def test_more_tokens_a_second_and_fewer_milliseconds_are_faster(test: str, by: float, verdict: str) -> None:
    found = only(row(test, STEADY), row(test, scaled(by)))
    assert found.verdict == verdict
    assert found.speed is not None
    assert found.speed.value == pytest.approx(1 / by if test == "ttft" else by)


def test_slower_means_by_more_than_allowed_and_beyond_noise() -> None:
    slower = only(row(samples=STEADY), row(samples=scaled(0.8)))
    assert slower.is_slower_by(0.05)
    assert slower.is_slower_by(0.19)
    assert not slower.is_slower_by(0.21)
    wild = only(row(samples=(100.0, 60.0, 140.0, 90.0, 110.0)), row(samples=(80.0, 50.0, 120.0, 70.0, 80.0)))
    assert wild.verdict == "same"
    assert not wild.is_slower_by(0.05)
    assert not only(row(samples=scaled(0.8)), row(samples=STEADY)).is_slower_by(0.0)


def test_one_repetition_is_too_little_to_tell() -> None:
    found = only(row(samples=(100.0,)), row(samples=(50.0,)))
    assert found.verdict == "unknown"
    assert not found.is_slower_by(0.05)


def test_rows_without_a_counterpart_say_why() -> None:
    before = run(backend(row("pp512"), row("tg128")), backend(row("tg128"), name="llamacpp"))
    after = run(backend(row("tg128", (), segments=(), invalid="tokens differ")), refused("llamacpp", "no GGUF"), id="b")
    rows = {(one.backend, one.test): one for one in compare_runs(before, after).rows}
    assert rows["native", "pp512"].missing == "the later run does not have it"
    assert rows["native", "tg128"].missing == "INVALID in the later run: tokens differ"
    assert rows["llamacpp", "tg128"].missing == "the later run does not have it: no GGUF"
    assert {one.verdict for one in rows.values()} == {"none"}
    assert {one.missing for one in compare_runs(after, before).rows} == {
        "the earlier run does not have it",
        "INVALID in the earlier run: tokens differ",
    }


def test_rows_that_cannot_be_compared_say_why() -> None:
    none, some = row(samples=()), row()
    for before, after in ((none, some), (some, none), (none, none)):
        found = only(before, after)
        assert (found.missing, found.verdict) == ("one of the runs has no samples of it", "none")
    found = only(dataclasses.replace(some, unit="ms"), some)
    assert (found.missing, found.speed) == ("its unit is another", None)


def test_it_is_noted_where_either_side_is_of_one_process() -> None:
    one, two = row(samples=STEADY, segments=(5, 0)), row(samples=STEADY, segments=(3, 2))
    assert only(one, two).is_one_process
    assert only(two, one).is_one_process
    assert not only(two, two).is_one_process
    assert not only(row(samples=(), segments=(), invalid="no"), one).is_one_process  # there is no interval


def test_the_rows_of_a_test_stand_together() -> None:
    both = run(backend(row("pp512"), row("tg128")), backend(row("pp512"), row("tg128"), name="llamacpp"))
    order = [(one.test, one.backend) for one in compare_runs(both, both).rows]
    assert order == [(test, name) for test in ("pp512", "tg128") for name in ("native", "llamacpp")]


def test_a_run_is_the_same_as_itself() -> None:
    comparison = compare_runs(full_run(), full_run())
    assert comparison.differences == ()
    assert {one.verdict for one in comparison.rows if not one.missing} == {"same"}


def test_what_differs_is_said() -> None:
    before = full_run()
    after = full_run(
        model="other",
        machine=machine(usable_cores=8, versions={"runner": "0.2.0", "python": "3.11.7", "triton": "3.6"}),
        options=options(kv_type="q8_0", depths=(0,)),
        files=(dataclasses.replace(before.files[0], sha256="ab" * 32),),
        is_partial=True,
    )
    found = {one.what: (one.before, one.after) for one in compare_runs(before, after).differences}
    assert found == {
        "model": ("demo", "other"),
        "model files": ("9c9c9c9c9c9c", "abababababab"),
        "interrupted": ("no", "yes"),
        "usable cores": ("2", "8"),
        "runner version": ("0.1.0", "0.2.0"),
        "torch version": ("2.13.0", "none"),
        "commit version": ("0123456789ab", "none"),
        "triton version": ("none", "3.6"),
        "option kv type": ("f16", "q8_0"),
        "option depths": ("0, 4096", "0"),
    }


# --- how it is shown -------------------------------------------------------------------------------------------------


def text(before: object, after: object, width: int | None = None) -> str:
    return "\n".join(plain(line) for line in comparison_lines(compare_runs(before, after), width))  # type: ignore[arg-type]


def test_a_difference_that_may_be_noise_is_called_so() -> None:
    shown = text(run(backend(row(samples=STEADY))), run(backend(row(samples=scaled(1.01)))))
    assert "+1.0 %" in shown
    assert "no difference that can be told from noise" in shown
    assert "faster" not in shown.replace("is faster.", "")


def test_a_real_difference_comes_with_its_interval() -> None:
    shown = text(run(backend(row(samples=STEADY))), run(backend(row(samples=scaled(1.5)))))
    line = next(line for line in shown.splitlines() if line.startswith("tg128"))
    assert "+50.0 %" in line
    assert line.endswith("faster")
    assert "100.0 ± 1.6" in line
    assert "150.0 ± 2.4" in line


def test_one_process_is_noted() -> None:
    one = run(backend(row(segments=(5,))))
    assert "single process" in text(one, one)
    assert "single process" not in text(run(), run())


@pytest.mark.parametrize("width", [39, 60, 79, 119, None])
def test_it_fits_every_terminal_and_keeps_the_verdict(width: int | None) -> None:
    shown = text(full_run(), full_run(), width)
    if width is not None:
        assert max(text_width(line) for line in shown.splitlines()) <= width
    assert "within noise" in shown
    assert "INVALID in the later run" in shown.replace("\n          ", " ")


def test_hostile_names_reach_no_terminal() -> None:
    bad = full_run(model=HOSTILE, machine=machine(device=HOSTILE, versions={HOSTILE: HOSTILE}))
    for shown in (text(bad, full_run()), comparison_markdown(compare_runs(full_run(), bad))):
        assert not set(shown) & set("\x1b\x07\x9b\u202e")
    assert "\\[red\\]\\|\\`x\\`\\<b\\>" in comparison_markdown(compare_runs(full_run(), bad))


def test_programs_get_numbers() -> None:
    plain_rows = comparison_json(compare_runs(run(backend(row(samples=STEADY))), run(backend(row(samples=scaled(2))))))
    (found,) = plain_rows["rows"]
    assert found["before"] == pytest.approx(100)
    assert found["after"] == pytest.approx(200)
    assert found["speed"] == pytest.approx(2)
    assert found["low"] < 2 < found["high"]
    assert (found["verdict"], found["missing"], found["unit"]) == ("faster", "", "tok/s")
