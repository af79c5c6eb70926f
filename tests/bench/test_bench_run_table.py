"""The report of a run: everything is in it, at every width, and nothing of it acts on a terminal."""

from __future__ import annotations

import time

import pytest

from runner.bench.figures import figure, local_start, mean_and_spread
from runner.bench.formats import markdown
from runner.bench.history_table import history_lines, history_markdown
from runner.bench.record import NOT_REACHED, BenchBackend, BenchRun
from runner.bench.run_table import run_lines
from runner.bench.styled import Column, Segment, plain, table_lines, wrapped
from runner.measures import text_width
from runner.safe_text import safe_line
from tests.bench.bench_records import HOSTILE, backend, full_run, gpu_machine, machine, options, refused, row, run


def text(one: BenchRun, width: int | None = None) -> str:
    return "\n".join(plain(line) for line in run_lines(one, width))


def unwrapped(shown: str) -> str:
    return " ".join(shown.split())


def test_a_report_has_the_rows_with_their_units_and_all_that_is_known_of_them() -> None:
    lines = text(full_run()).splitlines()
    heading = next(line for line in lines if line.startswith("TEST"))
    assert heading.split("  ") != [heading]
    decode = next(line for line in lines if line.startswith("tg128 ") and "native" in line)
    assert decode.split() == [
        "tg128", "native", "142.6", "±", "1.2", "tok/s", "142.6", "141.0", "..", "144.2", "0.8", "%", "120.0",
        "78", "%", "5",
    ]  # fmt: skip
    first = next(line for line in lines if line.startswith("ttft") and "native" in line)
    assert "84.74 ± 1.20 ms" in first
    assert "402.7" in first


def test_few_repetitions_and_backends_that_were_not_reached_are_told_as_such() -> None:
    rows = (row("tg128", (100.0, 101.0)), row("pp512", (100.0,)), row("ttft"))
    left = BenchBackend(name="llamacpp", refused=NOT_REACHED)
    stopped = run(backend(*rows), left, is_partial=True)
    lines = text(stopped).splitlines()
    labelled = {line.split()[0]: line.split()[-1] for line in lines if line.startswith(("tg128", "pp512", "ttft"))}
    assert (labelled["tg128"], labelled["pp512"]) == ("few", "few")
    assert labelled["ttft"] not in ("few", "noisy")
    shown = unwrapped("\n".join(lines))
    assert "few native tg128 (2), native pp512 (1): by so few repetitions" in shown
    assert "unreached llamacpp" in shown
    assert "refused" not in shown + "\n".join(plain(line) for line in history_lines([stopped], None))
    assert "llamacpp was not reached" in markdown(stopped)


@pytest.mark.parametrize("width", [39, 59, 79, 99, 159, None])
def test_labels_and_reasons_are_there_at_every_width(width: int | None) -> None:
    shown = unwrapped(text(full_run(is_partial=True), width))
    for needed in (
        "noisy llamacpp pp512 (11.6 %)",
        "INVALID native tg128 @ d4096: greedy tokens differ between repetitions, from token 3 on",
        "refused fake: It runs scripts alone.",
        "skipped pp4096: it takes 4097 tokens of context, and the model has 2048",
        "note Another process was on the GPU: Xorg (pid 77, 0.2 GiB).",
        "note llamacpp: Flash attention is off.",
        "note llamacpp pp512: the first chunk was slow",
        "note native and llamacpp wrote the same first 120 of 128 greedy tokens: they part",
        "PARTIAL It was interrupted",
        "native: 35.0 MiB = weights 20.0 MiB + KV cache 12.0 MiB + workspace 3.0 MiB; its process at most 512 MiB",
        "native: loaded in 810 ms, first text after 1.1 s",
        "sha256 9c9c9c9c9c9c",
        "memory read at 12.5 GB/s",
        "commit 0123456789ab",
        "prompts md5 edededededed",
    ):
        assert needed in shown


@pytest.mark.parametrize("width", range(20, 130, 7))
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    words = {word for line in text(full_run()).splitlines() for word in line.split()}
    longest = max(text_width(word) for word in words) + 10
    for line in text(full_run(), width).splitlines():
        assert text_width(line) <= max(width, longest)


def test_eighty_columns_show_what_matters() -> None:
    lines = text(full_run(), 79).splitlines()
    heading = next(line for line in lines if line.startswith("TEST"))
    for name in ("BACKEND", "MEAN ± SD", "CV", "COLD", "BANDWIDTH", "LABEL"):
        assert name in heading
    noisy = next(line for line in lines if line.startswith("pp512") and "llamacpp" in line)
    assert "8340 ± 963 tok/s" in noisy
    assert noisy.endswith("noisy")


def test_the_state_of_a_gpu_is_shown_before_and_after() -> None:
    shown = unwrapped(text(run(machine=gpu_machine())))
    assert "clock 345 → 1980 MHz · memory clock 2619 → 3201 MHz · 31 → 48 °C · 75 → 512 W · load 0.2 → 1.1" in shown
    assert "NVIDIA H200 (141 GiB) · CUDA 13.0, driver 580.65 · AMD EPYC" in shown


def test_a_run_without_rows_is_a_report_too() -> None:
    shown = text(run(refused("native", "No GPU."), refused("llamacpp", "No GGUF.")))
    assert "MEAN" not in shown
    assert "refused   native: No GPU." in shown


def test_hostile_text_reaches_no_terminal() -> None:
    bad = full_run(
        model=HOSTILE,
        quantization=HOSTILE,
        architecture=HOSTILE,
        notes=(HOSTILE,),
        machine=machine(cpu=HOSTILE, os=HOSTILE, versions={"runner": HOSTILE}),
        backends=(backend(row(note=HOSTILE), note=HOSTILE), refused("llamacpp", HOSTILE)),
    )
    for lines in (run_lines(bad, 79), run_lines(bad, None), history_lines([bad] * 3, 79)):
        for line in lines:
            assert plain(line) == safe_line(plain(line))


# --- history ---------------------------------------------------------------------------------------------------------


def steps(*means: float) -> list[BenchRun]:
    return [
        run(backend(row(samples=(mean, mean * 1.01)), row("pp512", (mean * 30, mean * 31))), id=f"2026010{number}-aa")
        for number, mean in enumerate(means)
    ]


def test_a_history_has_a_line_for_each_backend_and_trends_beneath() -> None:
    shown = [plain(line) for line in history_lines([*steps(100, 110, 140), full_run()], None)]
    assert "128: 100.5" in shown[1]
    assert "512: 3050" in shown[1]
    assert sum("20260131-120000-4f2a" in line for line in shown) == 3
    assert any("refused" in line for line in shown)
    trend = next(line for line in shown if "tg128" in line and "native" in line)
    assert trend.split() == ["▁▂██", "native", "tg128", "100.5", "142.6", "142.6", "tok/s", "demo", "Q8_0", "4"]


@pytest.mark.parametrize(
    ("samples", "word"), [((50.0, 100.0, 150.0), "noisy"), ((100.0, 101.0), "few"), ((100.0, 101.0, 100.5), "")]
)
def test_a_doubtful_figure_of_the_history_is_told_in_a_word_too(samples: tuple[float, ...], word: str) -> None:
    earlier = run(backend(row("pp512", (3000.0, 3001.0, 3002.0)), row("tg128", samples)))
    for lines in ([plain(line) for line in history_lines([earlier], None)], history_markdown([earlier]).splitlines()):
        assert ("LABEL" in lines[0]) == bool(word)
        assert word in lines[-1]


def test_a_narrow_terminal_shows_the_figures_of_a_history_first() -> None:
    runs = [*steps(*[100] * 30), full_run(is_partial=True)]
    shown = [plain(line) for line in history_lines(runs, 40)]
    assert all(text_width(line) <= 40 for line in shown)
    last = next(line for line in shown if line.startswith("20260131-120000 "))
    assert last.split() == ["20260131-120000", "native", "128:", "142.6"]
    trend = next(line for line in shown if "tg128" in line)
    assert trend.split() == ["▁▁▁▁▁▁▁█", "native", "tg128", "142.6", "tok/s"]
    alike = [plain(line) for line in history_lines([full_run(), full_run(id="20260131-120000-9999")], 40)]
    assert {line[:20] for line in alike[1:]} == {"20260131-120000-4f2a", "20260131-120000-9999"}


def test_a_partial_run_is_told_as_such() -> None:
    line = next(plain(line) for line in history_lines([full_run(is_partial=True)], 80) if "native" in plain(line))
    assert line.startswith("20260131-120000-4f2a  demo")
    assert line.endswith("partial")


def test_the_best_time_to_the_first_token_is_the_least() -> None:
    runs = [run(backend(row("ttft", (value, value)))) for value in (90.0, 70.0, 80.0)]
    trend = next(line for line in (plain(line) for line in history_lines(runs, None)) if " ttft " in line)
    assert trend.split()[:6] == ["█▁▅", "native", "ttft", "90.00", "80.00", "70.00"]


def test_runs_that_loaded_the_model_otherwise_are_no_trend() -> None:
    runs = [full_run(options=options(kv_type=kv_type)) for kv_type in ("f16", "q8_0", "f16")]
    assert not any("TREND" in plain(line) for line in history_lines(runs, None))
    assert any("TREND" in plain(line) for line in history_lines([*runs, runs[0]], None))


def test_two_runs_are_no_trend_and_other_models_are_not_mixed() -> None:
    runs = [*steps(100, 110), *(run(backend(row()), model="other") for _ in range(2))]
    assert not any("TREND" in plain(line) for line in history_lines(runs, None))


def test_a_history_for_documents_is_one_table() -> None:
    lines = history_markdown([full_run(model="a|b")]).splitlines()
    assert len(lines) == 5
    assert "a\\|b" in lines[2]
    assert history_markdown([]) == ""


# --- columns and figures ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "shown"),
    [(12345.6, "12346"), (999.96, "1000"), (999.94, "999.9"), (99.996, "100.0"), (42.0, "42.00"), (0.1234, "0.123")],
)
def test_figures_have_four_digits(value: float, shown: str) -> None:
    assert figure(value) == shown


def test_a_spread_has_the_decimals_of_its_mean() -> None:
    assert mean_and_spread(row(samples=(9999.0, 10001.0))) == "10000 ± 1"
    assert mean_and_spread(row(samples=(50.0,))) == "50.00"


def test_columns_of_least_worth_go_first_and_wide_characters_are_counted() -> None:
    columns = (Column(name="A", worth=0), Column(name="B", worth=2), Column(name="C", worth=1, is_right=True))
    rows = [{"A": "模型", "B": "bbbb", "C": "1"}, {"A": "m", "B": Segment("b", "bad"), "C": "22"}]
    assert [plain(line) for line in table_lines(columns, rows, None)] == [
        "A     B      C",
        "模型  bbbb   1",
        "m     b     22",
    ]
    assert [plain(line) for line in table_lines(columns, rows, 9)] == ["A      C", "模型   1", "m     22"]
    assert [plain(line) for line in table_lines(columns, rows, 3)] == ["A", "模…", "m"]


def test_long_names_leave_room_for_others_and_shrink_before_they_go() -> None:
    columns = (
        Column(name="NAME", worth=0, is_elastic=True),
        Column(name="N", worth=1),
        Column(name="ALSO", worth=2, is_elastic=True),
    )
    rows = [{"NAME": "a-name-that-goes-on-and-on-and-on", "N": "7", "ALSO": "another-long-name"}]
    assert plain(table_lines(columns, rows, 30)[1]) == "a-name-that-goes-on-and-on…  7"
    assert plain(table_lines(columns, rows, 43)[1]) == "a-name-that-goes-on-and…  7  another-long-…"
    assert plain(table_lines(columns, rows, 48)[1]) == "a-name-that-goes-on-and-o…  7  another-long-name"
    assert plain(table_lines(columns, rows, 10)[1]) == "a-name-th…"


def test_text_is_broken_at_spaces_though_not_before_a_unit() -> None:
    text = "it varies by 5 %, takes 3.1 s and 2 GB"
    assert [plain(line) for line in wrapped("note", "", text, 6, 20)] == [
        "note  it varies by",
        "      5 %, takes",
        "      3.1 s and 2 GB",
    ]
    assert [plain(line) for line in wrapped("note", "", text, 6, None)] == [f"note  {text}"]
    assert [plain(line) for line in wrapped("", "", "a-path-that-is-longer-than-a-line x", 2, 10)] == [
        "  a-path-that-is-longer-than-a-line",
        "  x",
    ]


@pytest.mark.parametrize(
    ("started", "shown"),
    [
        ("2026-01-31T16:00:00+00:00", "2026-02-01 01:00"),
        ("then", "then"),
        ("0001-01-01T00:00:00+23:59", "0001-01-01 00:00"),
    ],
)
def test_people_read_when_a_run_began_by_their_own_clock(
    started: str, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        assert local_start(run(backend(row()), started_at=started)) == shown
    time.tzset()
