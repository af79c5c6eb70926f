"""Bench mode with the real measuring on scripts: it starts, shows rows, keeps the run, compares, writes and stops."""

from __future__ import annotations

import dataclasses
import itertools
import json
import queue
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest
from chat_stage import Stage, stage
from one_screen import HARMLESS, HOSTILE, SIZES, OneScreen, running, said, seen, services, until
from textual.events import ScreenResume
from textual.message import Message
from textual.pilot import Pilot
from textual.widgets import Button, Checkbox, Input, Static

from runner.bench.events import BackendRefused, BenchStep, RowMeasured
from runner.bench.record import NOT_REACHED, MachineState
from runner.bench.request import GENRES, BenchRequest
from runner.bench.speculated import Speculated
from runner.bench.store import append_run, read_history
from runner.config import LoadOptions
from runner.errors import RunnerError
from runner.paths import user_paths
from runner.speculative.record import SpeculationRecord
from runner.tui.bench_run import BenchKept, BenchThread
from runner.tui.messages import GoTo, Unloaded
from runner.tui.screens.bench import BenchScreen
from runner.tui.screens.confirm import Confirm
from runner.tui.widgets.bench_form import BenchForm
from runner.tui.widgets.bench_live import BenchLive
from runner.tui.widgets.bench_report import BenchReport, Shown
from runner.tui.widgets.styled_lines import StyledLines
from runner.types import Device
from tests.bench.bench_records import backend, full_run, row, run

__all__ = ["stage"]  # the fixture
TEXT = "A scripted answer, which is long enough for everything that is asked of it here. "


class Chat:
    """What bench mode asks of the chat's engine."""

    def __init__(self, state: str = "empty", *, is_busy: bool = False) -> None:
        self.state, self.is_busy, self.model = state, is_busy, "demo"
        self.unloaded: list[str] = []
        self.lent: list[bool] = []

    def lend(self, _model: str) -> None:
        self.lent.append(True)

    def take_back(self) -> None:
        self.lent.append(False)

    def unload(self, why: str) -> None:
        self.unloaded.append(why)


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "a.script.json"
    path.write_text(json.dumps({"replies": [{"text": TEXT}]}))
    return str(path)


@pytest.fixture
def slow_script(tmp_path: Path) -> str:
    path = tmp_path / "slow.script.json"
    path.write_text(json.dumps({"replies": [{"text": TEXT * 20, "tokens_per_s": 20}]}))
    return str(path)


def bench(chat: Chat | None = None) -> OneScreen:
    return OneScreen(lambda: BenchScreen(services(), chat or Chat()))  # type: ignore[arg-type]


async def ask_for(app: OneScreen, pilot: Pilot[Any], model: str) -> BenchScreen:
    """A small measurement of `model` in the form."""
    screen = app.screen
    assert isinstance(screen, BenchScreen)
    screen.choose(model)
    for name, text in (("prefill", "16"), ("decode", "8"), ("depth", "0"), ("repeat", "2")):
        screen.query_one(f"#bench-{name}", Input).value = text
    await pilot.pause()
    return screen


def shown_id(screen: BenchScreen) -> str:
    shown = screen.query_one(BenchReport).shown
    return "" if shown is None else shown.run.id


def test_a_run_is_measured_shown_kept_and_measured_again(script: str) -> None:
    app = bench()

    async def body(pilot: Pilot[Any]) -> None:
        screen = await ask_for(app, pilot, script)
        assert "Nothing was measured yet." in seen(app)
        screen.action_start()
        assert screen.is_measuring
        await until(pilot, lambda: not screen.is_measuring, 60)
        first = shown_id(screen)
        assert [one.id for one in read_history(user_paths().bench_history).runs] == [first]
        for word in ("tg8", "pp16", "TTFT", "fake", "tok/s"):
            await until(pilot, lambda word=word: word in seen(app))  # type: ignore[misc]
        screen.action_again()
        await until(pilot, lambda: not screen.is_measuring, 60)
        assert shown_id(screen) != first
        report = screen.query_one(BenchReport).shown
        assert report is not None
        assert report.beside is not None
        assert report.beside.before.id == first

    running(app, body, (120, 60))


def test_a_run_that_is_shown_again_has_no_figures_of_another_one_beside_its_title_not_for_a_moment() -> None:
    app = bench()

    async def body(pilot: Pilot[Any]) -> None:
        report = app.screen.query_one(BenchReport)
        report.show(Shown(run(backend(row("tg128", (123.4, 123.4)))), None, ()))
        await until(pilot, lambda: "123.4" in seen(app))
        report.display = False
        await until(pilot, lambda: "123.4" not in seen(app))
        report.display = True
        report.show(Shown(run(backend(row("tg128", (567.8, 567.8)))), None, ()))
        assert "123.4" not in str(report.query_one(StyledLines).render())
        await until(pilot, lambda: "567.8" in seen(app))

    running(app, body, (120, 60))


def test_a_backend_that_a_stopped_run_never_came_to_was_not_refused() -> None:
    left = dataclasses.replace(backend(), rows=(), refused=NOT_REACHED)
    refused = dataclasses.replace(left, refused="it does not know this architecture")
    append_run(user_paths().bench_history, run(left))
    append_run(user_paths().bench_history, run(refused))
    app = bench()

    async def body(pilot: Pilot[Any]) -> None:
        await until(pilot, lambda: "not reached" in seen(app))
        assert f"{refused.name} refused" in seen(app)

    running(app, body)


def test_runs_that_cannot_be_read_are_counted_beside_those_that_can() -> None:
    append_run(user_paths().bench_history, run(backend(row("tg128", (123.4, 123.4)))))
    app = bench()

    async def body(pilot: Pilot[Any]) -> None:
        await until(pilot, lambda: "123.4" in seen(app))
        assert "unreadable" not in seen(app)
        with user_paths().bench_history.open("a") as file:
            file.write('{"schema": "runner.bench/2", "id": "half\n{"schema": "runner.bench/99"}\n')
        app.screen.post_message(ScreenResume())
        await until(pilot, lambda: "Earlier runs · 2 unreadable" in seen(app))

    running(app, body, (80, 24))


def test_a_run_of_speculation_says_in_the_list_what_it_gained() -> None:
    record = SpeculationRecord(
        drafter="suffix", state="on", reason="", rounds=1, drafted_at=(1,), reached_at=(1,), accepted_at=(1,),
        lengths=(1,), draft_s=0.1, verify_s=0.1, sample_s=0.1,
    )  # fmt: skip
    genres = [
        dataclasses.replace(
            row(f"{genre}32", (rate, rate)), speculation=Speculated(plain=(100.0, 100.0), record=record)
        )
        for genre, rate in (("code", 220.0), ("prose", 98.0))
    ]
    append_run(user_paths().bench_history, run(backend(genres[0])))
    append_run(user_paths().bench_history, run(backend(*genres, name="llamacpp")))
    app = bench()

    async def body(pilot: Pilot[Any]) -> None:
        await until(pilot, lambda: "llamacpp gain 0.98–2.20x" in seen(app))
        assert "native gain 2.20x" in seen(app)

    running(app, body, (80, 24))


def test_speculation_is_asked_for_in_place_of_prefill() -> None:
    app = bench()

    async def body(pilot: Pilot[Any]) -> None:
        screen = await ask_for(app, pilot, "demo")
        form = screen.query_one(BenchForm)
        assert screen.wanted().genres == ()
        screen.query_one("#bench-speculation", Checkbox).value = True
        await pilot.pause()
        assert screen.query_one("#bench-prefill", Input).disabled
        assert not screen.query_one("#bench-decode", Input).disabled
        wanted = form.request(LoadOptions(speculation="off"), is_kv_chosen=True, offline=True)
        assert (wanted.genres, wanted.load.speculation) == (GENRES, "auto")
        assert (wanted.n_prompt, wanted.n_gen, wanted.depths) == (None, (8,), None)

    running(app, body)


@pytest.mark.parametrize("setting", ["", 'kv_type = "f16"'])
def test_the_cache_gets_the_type_that_the_command_gives_it(setting: str) -> None:
    user_paths().settings_file.parent.mkdir(parents=True, exist_ok=True)
    user_paths().settings_file.write_text(setting)
    app = bench()

    async def body(pilot: Pilot[Any]) -> None:
        screen = await ask_for(app, pilot, "demo")
        assert screen.wanted().is_kv_chosen == bool(setting), "or a run with speculation may be INVALID for rounding"

    running(app, body)


def test_a_benchmark_that_was_not_started_yet_is_not_waited_for() -> None:
    BenchThread(BenchRequest(model="demo", load=LoadOptions()), user_paths(), lambda _: None).wait(3600)


def test_who_leaves_while_it_measures_finds_in_the_history_what_was_measured(stage: Stage) -> None:
    async def act(on: Stage) -> None:
        await on.ready()
        await on.pilot.press("f3")
        screen = on.app.screen
        assert isinstance(screen, BenchScreen)
        for name, text in (("prefill", "16"), ("decode", "1000"), ("depth", "0"), ("repeat", "2")):
            screen.query_one(f"#bench-{name}", Input).value = text
        screen.action_start()
        await on.until(lambda: "pp16" in seen(on.app), "nothing was measured")
        await on.pilot.press("ctrl+q")

    stage.play(stage.script({"text": TEXT * 20, "token_s": 0.02}), act)
    (kept,) = read_history(user_paths().bench_history).runs
    assert kept.is_partial
    assert [one.test for one in kept.rows] == ["ttft", "pp16"]


def test_what_was_measured_is_kept_when_a_driver_hangs_and_once(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = BenchRequest(model=script, load=LoadOptions(), n_prompt=(16,), n_gen=(8,), depths=(0,), repetitions=2)
    is_hanging, goes_on, posted = threading.Event(), threading.Event(), queue.Queue[Message]()
    n_asked = itertools.count()

    def state(_device: Device) -> MachineState:
        if next(n_asked):
            is_hanging.set()
            goes_on.wait()
        return MachineState()

    monkeypatch.setattr("runner.bench.run.machine_state", state)
    thread = BenchThread(asked, user_paths(), posted.put)
    thread.start()
    assert is_hanging.wait(60)
    thread.cancel()
    thread.wait(0.01)
    (kept,) = read_history(user_paths().bench_history).runs
    assert kept.is_partial
    assert [(one.test, len(one.samples)) for one in kept.rows] == [("ttft", 2), ("pp16", 2)]
    goes_on.set()
    while not isinstance(message := posted.get(timeout=60), BenchKept):
        pass
    assert message.run is not None
    assert len(read_history(user_paths().bench_history).runs) == 1


def test_stopping_ends_it_soon_and_says_what_is_missing(slow_script: str) -> None:
    chat = Chat()
    app = bench(chat)

    async def body(pilot: Pilot[Any]) -> None:
        screen = await ask_for(app, pilot, slow_script)
        assert screen.pids() == ()
        screen.action_start()
        await until(pilot, lambda: bool(screen.pids()))
        assert all(psutil.pid_exists(pid) for pid in screen.pids())
        assert chat.lent == [True]  # nothing is answered beside it
        await pilot.press("escape")
        await until(pilot, lambda: not screen.is_measuring, 15)
        assert screen.pids() == ()
        assert chat.lent == [True, False]
        assert app.wishes == []
        await pilot.press("escape")
        await pilot.pause()
        assert [type(wish) for wish in app.wishes] == [GoTo]

    running(app, body)


def test_the_key_bar_says_how_to_stop_wherever_the_focus_is(slow_script: str) -> None:
    app = bench()

    async def body(pilot: Pilot[Any]) -> None:
        screen = await ask_for(app, pilot, slow_script)
        key_bar = lambda: seen(app).splitlines()[-1]  # noqa: E731
        screen.query_one("#bench-runs").focus()
        await until(pilot, lambda: "x Stop" in key_bar())
        await pilot.press("x")
        assert said(app) == ["Nothing is being measured: s begins."]
        screen.action_start()
        screen.query_one("#bench-decode").focus()  # where x is typed
        await until(pilot, lambda: "x Stop" not in key_bar() and "esc Stop/back" in key_bar())
        assert "⏎ Start" in key_bar()
        await pilot.press("escape")
        await until(pilot, lambda: not screen.is_measuring, 15)
        assert app.wishes == []

    running(app, body)


def test_what_the_button_does_does_not_hang_on_how_it_looks(slow_script: str) -> None:
    app = bench()

    async def body(pilot: Pilot[Any]) -> None:
        screen = await ask_for(app, pilot, slow_script)
        button = screen.query_one("#bench-start", Button)
        button.variant = "error"
        button.press()
        await until(pilot, lambda: screen.is_measuring)
        button.variant = "primary"
        button.press()
        await until(pilot, lambda: not screen.is_measuring, 15)

    running(app, body)


def test_the_chats_model_is_unloaded_first_and_an_answer_is_asked_about(script: str) -> None:
    chat = Chat("answering", is_busy=True)
    app = bench(chat)

    async def body(pilot: Pilot[Any]) -> None:
        screen = await ask_for(app, pilot, script)
        screen.action_start()
        await pilot.pause()
        assert isinstance(app.screen, Confirm)
        await pilot.press("escape")
        await pilot.pause()
        assert (chat.unloaded, screen.is_measuring) == ([], False)
        screen.action_start()
        await pilot.pause()
        await pilot.press("enter")
        await until(pilot, lambda: bool(chat.unloaded))
        assert screen.is_measuring
        assert "unloading the chat's model" in seen(app)
        chat.state = "empty"
        screen.on_engine(Unloaded("empty", chat.unloaded[0]))
        await until(pilot, lambda: not screen.is_measuring, 60)
        assert shown_id(screen)

    running(app, body)


def test_a_wish_to_stop_while_the_model_is_unloaded_is_kept(script: str) -> None:
    app = bench(Chat("ready"))

    async def body(pilot: Pilot[Any]) -> None:
        screen = await ask_for(app, pilot, script)
        screen.action_start()
        assert screen.is_measuring
        screen.action_stop()
        screen.on_engine(Unloaded("empty", "why"))
        await pilot.pause()
        assert not screen.is_measuring

    running(app, body)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda screen: [setattr(box, "value", False) for box in screen.query(Checkbox)], "No backend is chosen."),
        (lambda screen: setattr(screen.query_one("#bench-decode", Input), "value", "1,,2"), "Decode is '1,,2'"),
        (lambda screen: setattr(screen.query_one("#bench-repeat", Input), "value", "1 2"), "Repeat is '1 2'"),
        (lambda screen: setattr(screen.query_one("#bench-repeat", Input), "value", "2000"), "Repeat is 2000."),
    ],
)
def test_what_makes_no_sense_is_said_and_nothing_is_measured(change: Any, words: str, script: str) -> None:
    app = bench()

    async def body(pilot: Pilot[Any]) -> None:
        screen = await ask_for(app, pilot, script)
        change(screen)
        screen.action_start()
        await until(pilot, lambda: words in seen(app))
        assert not screen.is_measuring

    running(app, body)


def test_a_model_that_is_not_there_is_said_with_its_remedy() -> None:
    app = bench()

    async def body(pilot: Pilot[Any]) -> None:
        screen = await ask_for(app, pilot, "nonesuch")
        screen.action_start()
        await until(pilot, lambda: not screen.is_measuring)
        await until(pilot, lambda: "There is no model 'nonesuch'" in seen(app))
        assert "Nothing was measured yet." in seen(app)

    running(app, body)


def kept_runs() -> None:
    before = run(backend(row("tg128", (50.0, 50.2, 49.9)), row("pp512", (900.0, 905.0, 899.0))))
    after = run(
        backend(row("tg128", (40.0, 40.2, 39.9)), row("pp512", (900.0, 904.0, 899.5))),
        id="20260201-120000-4f2a",
    )
    for one in (before, after):
        append_run(user_paths().bench_history, one)


def test_earlier_runs_are_looked_at_compared_and_a_regression_is_said_in_words() -> None:
    kept_runs()
    app = bench()

    async def body(pilot: Pilot[Any]) -> None:
        screen = app.screen
        assert isinstance(screen, BenchScreen)
        await until(pilot, lambda: shown_id(screen) == "20260201-120000-4f2a")
        assert "▼ slower" in seen(app)
        assert "-20.0 %" in seen(app)
        await pilot.press("c", "down")
        await until(pilot, lambda: shown_id(screen).startswith("20260131"))
        assert "◆" in seen(app)
        await pilot.press("c")
        await pilot.pause()
        assert "20260131-120000-4f2a → 20260201-120000-4f2a" in seen(app)
        assert "95 % INTERVAL" in seen(app)

    running(app, body)


def test_earlier_runs_are_shown_and_compared_below_while_another_is_measured(slow_script: str) -> None:
    kept_runs()
    app = bench()

    async def body(pilot: Pilot[Any]) -> None:
        screen = await ask_for(app, pilot, slow_script)
        screen.action_start()
        await until(pilot, lambda: bool(screen.pids()))
        report = screen.query_one(BenchReport)
        assert not report.display
        screen.query_one("#bench-runs").focus()
        await pilot.press("e")
        assert said(app) == ["There is no run to write yet."]
        await pilot.press("c", "down")
        await until(pilot, lambda: report.display)
        await pilot.press("c")
        await until(pilot, lambda: "→" in seen(app))
        assert screen.query_one(BenchLive).display
        await pilot.press("escape")
        await until(pilot, lambda: not screen.is_measuring, 15)

    running(app, body)


@pytest.mark.parametrize("size", SIZES)
def test_hostile_names_and_reasons_are_shown_as_they_stand(size: tuple[int, int]) -> None:
    hostile = full_run(model=HOSTILE, notes=(HOSTILE,))
    append_run(user_paths().bench_history, hostile)
    app = bench()

    async def body(pilot: Pilot[Any]) -> None:
        screen = app.screen
        assert isinstance(screen, BenchScreen)
        await until(pilot, lambda: bool(shown_id(screen)))
        screen.choose(HOSTILE)
        live = screen.query_one(BenchLive)
        live.begin(HOSTILE)
        before = [segment.text for (segment,) in live._lines(20)]
        assert " ".join(before).endswith("first test are made.")
        assert max(map(len, before)) <= 20
        live.take(BenchStep(what=HOSTILE))
        live.take(BackendRefused(backend="native", reason=HOSTILE))
        live.take(RowMeasured(row=row("tg128", (), segments=(), invalid=HOSTILE), is_complete=True))
        screen._say(RunnerError(HOSTILE, hint=HOSTILE))
        await pilot.pause(0.1)
        text = seen(app)
        assert "\x1b" not in text
        assert max(len(line) for line in text.split("\n")) <= size[0]
        assert screen.query_one(BenchForm).model == HOSTILE
        live.end()
        await pilot.pause()
        assert HARMLESS in str(screen.query_one("#bench-title", Static).render())

    running(app, body, size)


def test_a_run_is_written_to_a_file_whose_path_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept_runs()
    monkeypatch.chdir(tmp_path)
    app = bench()

    async def body(pilot: Pilot[Any]) -> None:
        screen = app.screen
        assert isinstance(screen, BenchScreen)
        await until(pilot, lambda: bool(shown_id(screen)))
        runs = screen.query_one("#bench-runs")
        runs.focus()
        await until(pilot, lambda: app.focused is runs)
        await pilot.press("e")
        await until(pilot, lambda: app.screen is not screen)
        await pilot.press("enter")
        await until(pilot, lambda: any("Written to" in text for text in said(app)))
        assert [one.name for one in tmp_path.glob("bench-*.md")] == [f"bench-{shown_id(screen)}.md"]
        await until(pilot, lambda: app.focused is runs)
        await pilot.press("e")
        await until(pilot, lambda: app.screen is not screen)
        await pilot.press("enter")
        await until(pilot, lambda: any("is there already" in text for text in said(app)))

    running(app, body)


@pytest.mark.parametrize("size", SIZES)
def test_everything_is_reached_by_tab_alone(size: tuple[int, int]) -> None:
    kept_runs()
    app = bench()

    async def body(pilot: Pilot[Any]) -> None:
        screen = app.screen
        assert isinstance(screen, BenchScreen)
        await until(pilot, lambda: bool(shown_id(screen)))
        reached = []
        for _ in range(10):
            reached.append(app.focused.id if app.focused else None)
            await pilot.press("tab")
        assert reached == [
            "bench-model", "bench-native", "bench-llamacpp", "bench-speculation",
            "bench-prefill", "bench-decode", "bench-depth", "bench-repeat", "bench-start", "bench-runs",
        ]  # fmt: skip
        assert app.focused is not None
        assert app.focused.id == "bench-right"
        before = seen(app)
        await pilot.press("down", "down", "down")
        await pilot.pause()
        assert seen(app) != before or size[1] >= 40

    running(app, body, size)


@pytest.mark.parametrize("width", [44, 60, 80, 120])
def test_the_list_has_the_figures_of_every_backend_however_narrow(width: int) -> None:
    rows = row("tg128", (142.6, 142.6))
    append_run(user_paths().bench_history, run(backend(rows), dataclasses.replace(backend(rows), name="llamacpp")))
    app = bench()

    def has_both() -> bool:
        listed = seen(app).split("Earlier runs")[1]
        return all(f"{name} 142.6" in listed for name in ("native", "llamacpp"))

    async def body(pilot: Pilot[Any]) -> None:
        for now in (width, 100, width):
            await pilot.resize_terminal(now, 24)
            await until(pilot, has_both)

    running(app, body, (width, 24))


@pytest.mark.parametrize("width", [44, 60, 80, 120])
def test_where_it_is_is_told_whole_however_narrow(width: int) -> None:
    app = bench()

    async def body(pilot: Pilot[Any]) -> None:
        live = app.screen.query_one(BenchLive)
        live.begin("demo")
        live.take(
            BenchStep(what="tg128@d4096", backend="llamacpp", process=1, n_processes=4, repetition=3, n_repetitions=5)
        )
        await until(pilot, lambda: all(part in seen(app) for part in ("llamacpp", "tg128@d4096", "━")))
        assert "…" not in str(app.screen.query_one("#bench-place", Static).render())
        assert "3/5" in seen(app) or "3 of 5" in seen(app)

    running(app, body, (width, 30))


def test_stopping_is_said_until_it_has_stopped() -> None:
    app = bench()
    step = BenchStep(what="tg128")

    async def body(pilot: Pilot[Any]) -> None:
        live = app.screen.query_one(BenchLive)
        live.begin("demo")
        live.take(step)
        await until(pilot, lambda: "tg128" in seen(app))
        live.stopping()
        live.take(step)  # was on its way then
        await until(pilot, lambda: "◐ stopping" in seen(app) and "tg128" not in seen(app))
        live.end()
        live.begin("demo")
        live.take(step)
        await until(pilot, lambda: "tg128" in seen(app))

    running(app, body)


@pytest.mark.parametrize("size", SIZES)
def test_where_it_is_can_be_seen_at_every_size_once_it_measures(size: tuple[int, int], slow_script: str) -> None:
    app = bench()

    async def body(pilot: Pilot[Any]) -> None:
        screen = await ask_for(app, pilot, slow_script)
        screen.action_start()
        await until(pilot, lambda: "◐" in seen(app))
        screen.action_stop()
        await until(pilot, lambda: not screen.is_measuring, 15)

    running(app, body, size)
