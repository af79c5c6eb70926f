"""Whole runs: on the demo model with both real backends, and on scripts that go wrong."""

from __future__ import annotations

import dataclasses
import json
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from runner.bench.events import BackendRefused, BenchEvent, BenchFinished, BenchStep, RowMeasured
from runner.bench.plan import Budget
from runner.bench.process import BenchProcess
from runner.bench.record import BenchBackend, BenchRow, BenchRun, run_from_json, run_to_json
from runner.bench.request import BenchRequest
from runner.bench.run import _time_notes, run_bench
from runner.config import LoadOptions
from runner.errors import (
    BackendUnavailable,
    BadModelFile,
    DoesNotFit,
    RunnerError,
    UnknownModel,
    UnsupportedModel,
    UsageError,
)
from runner.events import Progress
from runner.paths import builtin, user_paths
from runner.running import announce
from runner.types import BackendName, CancelToken

Script = Callable[..., str]
TEXT = "A scripted answer, which is long enough for everything that is asked of it here. "


@pytest.fixture
def script(tmp_path: Path) -> Script:
    def write(*replies: object, **fields: object) -> str:
        path = tmp_path / "a.script.json"
        path.write_text(json.dumps({"replies": replies or [TEXT], **fields}))
        return str(path)

    return write


def request(
    model: str, *, backends: tuple[BackendName, ...] = (), n: int = 8, repetitions: int = 3, **load: object
) -> BenchRequest:
    return BenchRequest(
        model=model,
        load=LoadOptions(n_threads=1, **load),  # type: ignore[arg-type]
        n_prompt=(16,),
        n_gen=(n,),
        depths=(0,),
        repetitions=repetitions,
        backends=backends,
        offline=True,
    )


def bench(asked: BenchRequest, cancel: CancelToken | None = None) -> tuple[BenchRun, list[BenchEvent]]:
    events = list(run_bench(asked, user_paths(), cancel or CancelToken()))
    last = events[-1]
    assert isinstance(last, BenchFinished)
    return last.run, events


def rows_of(run: BenchRun) -> list[tuple[str, str]]:
    return [(row.backend, row.test) for row in run.rows]


@pytest.fixture(scope="module")
def demo_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[BenchRun, list[BenchEvent]]:
    """The demo on both real backends, with sizes that take a moment."""
    asked = BenchRequest(
        model="demo",
        load=LoadOptions(n_threads=1),
        n_prompt=(24,),
        n_gen=(6,),
        depths=(0, 40, 4096),
        repetitions=3,
        offline=True,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RUNNER_HOME", str(tmp_path_factory.mktemp("home")))
        patch.setenv("RUNNER_N_THREADS", "1")
        return bench(asked)


def test_both_backends_are_measured_in_all_tests(demo_run: tuple[BenchRun, list[BenchEvent]]) -> None:
    run, _ = demo_run
    expected = ["ttft", "pp24", "tg6", "pp24 @ d40", "tg6 @ d40"]
    assert rows_of(run) == [(backend, test) for backend in ("native", "llamacpp") for test in expected]
    for row in run.rows:
        assert row.invalid is None
        assert len(row.samples) == 3
        assert row.segments == (2, 1)
        assert row.cold is not None
    assert {skipped.test for skipped in run.skipped} == {"pp24 @ d4096", "tg6 @ d4096"}
    assert all("the model has 2048" in skipped.reason for skipped in run.skipped)


def test_processes_are_fresh_and_go_there_and_back(demo_run: tuple[BenchRun, list[BenchEvent]]) -> None:
    _, events = demo_run
    loads = [event for event in events if isinstance(event, BenchStep) and event.what == "loading"]
    assert [(step.backend, step.process) for step in loads] == [
        ("native", 1),
        ("llamacpp", 2),
        ("llamacpp", 3),
        ("native", 4),
    ]


def test_rows_come_as_they_grow(demo_run: tuple[BenchRun, list[BenchEvent]]) -> None:
    run, events = demo_run
    rows = [event for event in events if isinstance(event, RowMeasured)]
    assert [event.is_complete for event in rows] == [False] * 10 + [True] * 10
    assert {event.row for event in rows if event.is_complete} == set(run.rows)


def test_backends_of_the_same_weights_write_the_same(demo_run: tuple[BenchRun, list[BenchEvent]]) -> None:
    (comparison,) = demo_run[0].comparison
    assert (comparison.backend, comparison.against) == ("native", "llamacpp")
    assert (comparison.n_same, comparison.n_ids) == (7, 7)


def test_a_run_says_what_it_measured_and_where(
    demo_run: tuple[BenchRun, list[BenchEvent]], demo_directory: Path
) -> None:
    run, _ = demo_run
    assert (run.model, run.format, run.quantization, run.num_parameters) == ("demo", "gguf", "Q8_0", 18357504)
    assert run.files[0].path == str(demo_directory / "demo-q8_0.gguf")
    assert len(run.files[0].sha256) == 64
    assert len(run.prompts_md5) == 32
    assert run.machine.bandwidth is not None
    native, llamacpp = run.backends
    assert native.memory is not None
    assert llamacpp.memory is not None
    on_cpu = native.device.startswith("CPU")
    assert native.memory.weights_bytes > (3 if on_cpu else 1.5) * llamacpp.memory.weights_bytes  # beside Q8_0
    for backend in run.backends:
        assert backend.load_s is not None
        assert backend.first_token_s is not None
        assert 0 < backend.load_s < backend.first_token_s < run.duration_s
        assert backend.process_peak_bytes is not None
    decode = {(row.backend, row.test): row for row in run.rows if row.n_gen and row.unit == "tok/s"}
    assert decode["native", "tg6"].bytes_per_token > decode["llamacpp", "tg6"].bytes_per_token  # type: ignore[operator]
    deeper = decode["llamacpp", "tg6 @ d40"].bytes_per_token
    assert deeper == decode["llamacpp", "tg6"].bytes_per_token + (40 - 16) * 6 * 2 * 4 * 64 * 2  # type: ignore[operator]
    assert decode["native", "tg6"].bandwidth_share is not None


def test_the_first_text_of_a_chat_is_timed_with_its_whole_prompt(
    demo_run: tuple[BenchRun, list[BenchEvent]],
) -> None:
    firsts = [row for row in demo_run[0].rows if row.test == "ttft"]
    assert [(row.unit, row.n_prompt, row.n_gen) for row in firsts] == 2 * [("ms", 35, 1)]


def test_a_run_reads_back_from_json(demo_run: tuple[BenchRun, list[BenchEvent]]) -> None:
    run, _ = demo_run
    assert run_from_json(json.loads(json.dumps(run_to_json(run), allow_nan=False))) == run


def test_a_run_without_time_makes_one_repetition_a_process_and_says_so(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runner.bench.run.DEFAULT_BUDGET_S", 0.001)
    asked = dataclasses.replace(request(script({"text": TEXT * 20, "token_s": 0.01}), n=40), repetitions=None)
    run, _ = bench(asked)
    assert {row.test: len(row.samples) for row in run.rows} == {"ttft": 1, "pp16": 1, "tg40": 1}
    assert all("the time was up" in row.note for row in run.rows)
    assert any("were used up" in note and "-r 5" in note for note in run.notes)


def test_used_up_time_is_no_news_where_every_row_has_enough() -> None:
    budget = Budget(0.0, is_binding=True)
    for n, is_told in ((1, True), (2, True), (3, False)):
        row = BenchRow(model="m", backend="native", test="pp16", unit="tok/s", samples=(1.0,) * n, segments=(n,))
        assert bool([*_time_notes(budget, [BenchBackend(name="native", rows=(row,))])]) == is_told
    assert not [*_time_notes(Budget(1.0, is_binding=True), [BenchBackend(name="native", rows=(row,))])]


def test_a_model_that_another_process_holds_meanwhile_is_told(script: Script) -> None:
    asked = request(script(), repetitions=1)
    run, _ = bench(asked)
    assert not [note for note in run.notes if "beside it" in note]
    mine = {"backend": "native", "quantization": "F16", "device": "CPU", "n_ctx": 8, "memory_bytes": 1}
    announce(user_paths().engines, model="another", **mine)  # type: ignore[arg-type]
    run, _ = bench(asked)
    assert f"Another model was loaded beside it: another (runner, pid {os.getpid()})." in run.notes


# --- refusals --------------------------------------------------------------------------------------------------------


def test_a_backend_that_cannot_run_the_model_is_listed_with_its_reason(script: Script) -> None:
    run, events = bench(request(script(), backends=("native", "fake")))
    assert [event.backend for event in events if isinstance(event, BackendRefused)] == ["native"]
    refused, ran = run.backends
    assert (refused.name, ran.name) == ("native", "fake")
    assert refused.refused is not None
    assert refused.refused.startswith("the native backend reads safetensors")
    assert refused.rows == ()
    assert [row.segments for row in ran.rows] == [(3,)] * 3  # alone: one process makes every repetition


@pytest.mark.parametrize("backends", [("fake",), ("llamacpp", "fake")])
def test_the_scripted_backend_invents_no_figures_of_a_model(backends: tuple[BackendName, ...]) -> None:
    with pytest.raises(UsageError, match="says nothing of how fast demo is") as refused:
        bench(request("demo", backends=backends))
    assert "native or llamacpp" in refused.value.hint


def test_when_none_can_run_it_all_reasons_are_given(script: Script) -> None:
    with pytest.raises(UnsupportedModel, match=r"native: .*llamacpp: ") as refused:
        bench(request(script(), backends=("native", "llamacpp")))
    assert "doctor" in refused.value.hint
    with pytest.raises(BackendUnavailable, match="The native backend cannot run"):
        bench(request(script(), backends=("native",)))


def test_a_damaged_model_is_refused_with_its_own_remedy() -> None:
    model = user_paths().models / "cut"
    model.mkdir(parents=True)
    whole = (builtin("models/demo") / "demo-q8_0.gguf").read_bytes()
    (model / "cut.gguf").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(BadModelFile) as refused:
        bench(request("cut"))
    assert "runner quantize" in refused.value.hint


def test_a_model_of_which_a_fifth_is_zeros_is_none_though_it_speaks() -> None:
    """Its perplexity is 65, that of the whole one 15."""
    model = user_paths().models / "holes"
    model.mkdir(parents=True)
    data = bytearray((builtin("models/demo") / "demo-q8_0.gguf").read_bytes())
    begin, end = 2 * len(data) // 5, 3 * len(data) // 5
    data[begin:end] = bytes(end - begin)
    (model / "holes.gguf").write_bytes(data)
    run, _ = bench(request("holes", backends=("llamacpp",)))
    assert set(invalid_rows(run).values()) == {
        "about 20 % of holes.gguf is zeros, as a download leaves it that ended early: "
        "fetch it again, or let `runner verify --repair` do it for a model of the hub"
    }


def test_a_model_that_does_not_fit_is_refused_as_everywhere() -> None:
    with pytest.raises(DoesNotFit):
        bench(request("demo", backends=("llamacpp",), ctx_size=2**26))


def test_a_process_that_is_killed_while_it_loads_is_a_refusal_with_a_remedy(script: Script) -> None:
    events = run_bench(request(script(load_s=20.0), backends=("fake", "native")), user_paths(), CancelToken())
    with pytest.raises(
        UnsupportedModel, match=r"fake: The engine was ended by SIGKILL\. .*memory ran out: use a smaller"
    ):
        for event in events:
            if isinstance(event, Progress):
                for child in psutil.Process().children():
                    child.kill()


def test_an_unknown_model_is_refused_before_anything_is_started() -> None:
    events = run_bench(request("nonesuch"), user_paths(), CancelToken())
    with pytest.raises(UnknownModel):
        next(events)


def test_no_context_is_made_that_the_model_was_not_trained_for() -> None:
    asked = request("demo", backends=("llamacpp",), repetitions=1)
    run, _ = bench(dataclasses.replace(asked, depths=(0, 9000)))
    assert [skipped.test for skipped in run.skipped] == ["pp16 @ d9000", "tg8 @ d9000"]
    assert "trained on" not in run.backends[0].note


def test_a_context_too_small_for_a_test_skips_it(script: Script) -> None:
    run, _ = bench(request(script(), ctx_size=24, n=12))
    assert rows_of(run) == [("fake", "pp16")]
    assert {skipped.test for skipped in run.skipped} == {"ttft", "tg12"}


# --- what goes wrong -------------------------------------------------------------------------------------------------


def invalid_rows(run: BenchRun) -> dict[str, str]:
    return {row.test: row.invalid for row in run.rows if row.invalid is not None}


def test_a_process_that_dies_invalidates_what_it_was_at_and_what_was_to_come(script: Script) -> None:
    run, _ = bench(request(script({"text": TEXT, "token_s": 0.004, "fail": "kill", "fail_after": 30}), n=40))
    rows = {row.test: row for row in run.rows}
    assert rows["ttft"].samples
    assert rows["pp16"].samples
    assert list(invalid_rows(run)) == ["tg40"]
    assert invalid_rows(run)["tg40"].startswith("The engine was ended by SIGKILL. If nobody killed it, memory ran out:")
    assert rows["tg40"].samples == ()


def test_a_process_that_dies_at_once_leaves_no_number(script: Script) -> None:
    run, _ = bench(request(script({"text": TEXT, "fail": "exit", "fail_after": 3, "token_s": 0.01})))
    assert set(invalid_rows(run)) == {row.test for row in run.rows} == {"ttft"}


def test_an_error_in_one_test_is_that_rows_alone(script: Script) -> None:
    run, _ = bench(request(script({"text": TEXT, "token_s": 0.004, "fail": "error", "fail_after": 30}), n=40))
    assert invalid_rows(run) == {"tg40": "The script asked for an error. Remove `fail` from the script."}


def test_an_answer_without_text_is_no_time_to_the_first_text(script: Script) -> None:
    silent = request(script(""), repetitions=1)
    run, _ = bench(silent)
    assert invalid_rows(run)["ttft"] == "the answer had no text"
    of_random_weights, _ = bench(dataclasses.replace(silent, is_random=True))
    assert not of_random_weights.is_invalid
    assert [skipped.test for skipped in of_random_weights.skipped] == ["ttft"]
    talking, _ = bench(dataclasses.replace(request(script(), repetitions=1), is_random=True))
    assert "first token that has text" in next(row.note for row in talking.rows if row.test == "ttft")


# --- cancelling ------------------------------------------------------------------------------------------------------


def cancelled_at(asked: BenchRequest, is_time: Callable[[Sequence[BenchEvent]], bool]) -> BenchRun:
    cancel = CancelToken()
    events: list[BenchEvent] = []
    for event in run_bench(asked, user_paths(), cancel):
        events.append(event)
        if is_time(events):
            cancel.cancel()
    last = events[-1]
    assert isinstance(last, BenchFinished)
    return last.run


def test_a_cancelled_run_keeps_what_was_measured(script: Script) -> None:
    slow = script({"text": TEXT * 20, "token_s": 0.02})
    run = cancelled_at(
        request(slow, n=1000, repetitions=2),
        lambda events: isinstance(events[-1], BenchStep) and events[-1].what == "tg1000",
    )
    assert run.is_partial
    assert rows_of(run) == [("fake", "ttft"), ("fake", "pp16")]
    assert run.files == ()


def test_a_run_that_is_cancelled_before_anything_was_measured_is_an_error(script: Script) -> None:
    cancel = CancelToken()
    cancel.cancel()
    with pytest.raises(RunnerError):
        bench(request(script()), cancel)


def test_a_bench_that_is_cancelled_while_it_measures_memory_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.engine_process._SILENCE_S", 200.0)  # after which a stopped process is given up
    cancel = CancelToken()

    def stop_the_process_and_cancel() -> None:
        """A stopped process answers on no machine, however fast."""
        with suppress(psutil.NoSuchProcess):
            while not any(BenchProcess.child_module in child.cmdline() for child in psutil.Process().children()):
                time.sleep(0.001)
            (child,) = psutil.Process().children()
            child.suspend()
        cancel.cancel()

    events = run_bench(request("demo"), user_paths(), cancel)
    assert isinstance(next(events), BenchStep)
    threading.Thread(target=stop_the_process_and_cancel, daemon=True).start()
    began = time.monotonic()
    with pytest.raises(RunnerError, match="cancelled"):
        next(events)
    assert time.monotonic() - began < 20


def test_closing_the_iterator_ends_the_process(script: Script) -> None:
    events = run_bench(request(script()), user_paths(), CancelToken())
    for event in events:
        if isinstance(event, RowMeasured):
            break
    (child,) = psutil.Process().children()
    events.close()  # type: ignore[attr-defined]
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE
