"""The widgets of the models screen, each alone in an app."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from model_rows import HOSTILE, OneWidget, row, text_of
from textual.pilot import Pilot
from textual.widget import Widget

from runner.errors import RunnerError
from runner.paths import user_paths
from runner.quant.quantize import made_name
from runner.tui import themes
from runner.tui.catalog_columns import Cell
from runner.tui.exact_fit import ask
from runner.tui.job_words import numbers, percent, status
from runner.tui.jobs import Job
from runner.tui.screens.choose_quant import ChooseQuant
from runner.tui.screens.compare_models import CompareModels, better
from runner.tui.screens.delete_model import DeleteModel
from runner.tui.screens.quantize_model import QuantizeModel
from runner.tui.widgets.context_slider import ContextSlider, stops
from runner.tui.widgets.fit_pane import FitPane
from runner.tui.widgets.job_list import JobList, JobMessage, JobRow
from runner.tui.widgets.model_table import ModelTable

Body = Callable[[OneWidget, Pilot[None]], Awaitable[None]]


def run(widget: Widget, body: Body, *kinds: type, size: tuple[int, int] = (100, 20)) -> None:
    async def running() -> None:
        app = OneWidget(widget, *kinds)
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            await body(app, pilot)

    asyncio.run(running())


# --- the table -------------------------------------------------------------------------------------------------------


def test_the_table_moves_chooses_and_says_so() -> None:
    table = ModelTable()

    async def body(app: OneWidget, pilot: Pilot[None]) -> None:
        table.show([row("a"), row("b"), row("c")], offer="search the hub")
        table.focus()
        await pilot.press("down", "enter", "end")
        assert table.is_on_offer
        await pilot.press("enter", "home")
        chosen = [one.row and one.row.name for one in app.seen if isinstance(one, ModelTable.Chosen)]
        lit = [one.row and one.row.name for one in app.seen if isinstance(one, ModelTable.Highlighted)]
        assert chosen == ["b", None]
        assert lit == ["a", "b", None, "a"]

    run(table, body, ModelTable.Chosen, ModelTable.Highlighted)


def test_a_click_selects_a_second_one_chooses_and_a_title_sorts() -> None:
    table = ModelTable()

    async def body(app: OneWidget, pilot: Pilot[None]) -> None:
        table.show([row("a"), row("b"), row("c")])
        await pilot.click(table, offset=(4, 3))
        assert table.row is not None
        assert table.row.name == "c"
        await pilot.click(table, offset=(4, 3), times=2)
        await pilot.click(table, offset=(4, 0))
        assert [type(one) for one in app.seen] == [ModelTable.Chosen, ModelTable.SortWanted]
        assert app.seen[1].key == "name"

    run(table, body, ModelTable.Chosen, ModelTable.SortWanted)


def test_the_cursor_stays_on_its_model_when_rows_change() -> None:
    table = ModelTable()

    async def body(_app: OneWidget, _pilot: Pilot[None]) -> None:
        table.show([row("a"), row("b"), row("c")])
        table.cursor = 2
        table.show([row("c"), row("b")])
        assert table.row is not None
        assert table.row.name == "c"
        table.show([row("x"), row("y")])
        assert table.row is not None
        assert table.row.name == "x"
        table.show([])
        assert table.row is None

    run(table, body)


@pytest.mark.parametrize("low", [8, 5, 3])
def test_the_cursor_is_seen_in_every_size(low: int) -> None:
    table = ModelTable()

    async def body(app: OneWidget, pilot: Pilot[None]) -> None:
        table.show([row(f"model-{number}") for number in range(67)])
        table.cursor = 65
        for columns, rows in ((80, 24), (40, low), (200, 60), (80, low), (80, 80), (80, 24)):
            await pilot.resize_terminal(columns, rows)
            await pilot.pause()
            await pilot.pause()
            assert "▸ model-65" in text_of(app), (columns, rows)

    run(table, body)


def test_five_thousand_rows_are_shown_and_filtered() -> None:
    table = ModelTable()
    rows = [row(f"model-{number}") for number in range(5000)]

    async def body(_app: OneWidget, pilot: Pilot[None]) -> None:
        for step in range(10):
            table.show(rows[step:], sort=("name", False))
            await pilot.pause()
        table.focus()
        await pilot.press("end")
        assert table.scroll_offset.y == 4991 - 19
        await pilot.press("pageup", "pageup")
        assert table.cursor < 4991 - 19

    run(table, body)


def test_states_of_jobs_and_marks_are_shown() -> None:
    table = ModelTable()

    async def body(app: OneWidget, pilot: Pilot[None]) -> None:
        table.show([row("a"), row("b")])
        table.show_states({"b": Cell("↓ 61 %", "accent")})
        table.mark({"b"})
        await pilot.pause()
        lines = text_of(app).splitlines()
        assert "↓ 61 %" in lines[2]
        assert lines[2].startswith("◆ b")

    run(table, body)


def test_a_download_is_seen_in_the_row_of_the_hub_and_the_cursor_follows_what_it_becomes() -> None:
    table = ModelTable()
    found = row("owner/repo-GGUF", place="hub", repo="owner/repo-GGUF")
    fetched = row("owner/repo-GGUF:Q8_0", place="here", repo="owner/repo-GGUF")

    async def body(app: OneWidget, pilot: Pilot[None]) -> None:
        table.show([row("a"), found])
        table.show_states({"owner/repo-GGUF:Q8_0": Cell("↓ 61 %", "accent")})
        table.select(found.name)
        await pilot.pause()
        assert "↓ 61 %" in text_of(app).splitlines()[2]
        table.show_states({})
        table.show([fetched, row("a")])
        await pilot.pause()
        assert table.row == fetched

    run(table, body)


@pytest.mark.parametrize("size", [(200, 60), (120, 40), (80, 24), (40, 12), (3, 3)])
def test_the_table_fits_every_width(size: tuple[int, int]) -> None:
    table = ModelTable()

    async def body(app: OneWidget, pilot: Pilot[None]) -> None:
        table.show([row("a-model-with-a-long-name-that-goes-on-and-on-" * 3), row("日本語モデル" * 5)])
        await pilot.pause()
        assert not table.show_horizontal_scrollbar
        assert all(strip.cell_length == size[0] for strip in app.screen._compositor.render_strips())

    run(table, body, size=size)


@pytest.mark.parametrize("theme", themes.NAMES)
def test_the_cursor_is_seen_in_every_theme(theme: str) -> None:
    table = ModelTable()

    async def body(app: OneWidget, pilot: Pilot[None]) -> None:
        app.theme = theme
        table.show([row("a"), row("b")])
        table.focus()
        await pilot.pause()
        first, second = (list(table.render_line(y))[1].style for y in (1, 2))
        assert first is not None
        assert second is not None
        assert first.reverse or first.bgcolor != second.bgcolor

    run(table, body)


# --- the slider ------------------------------------------------------------------------------------------------------


def test_stops_go_up_by_quarters_of_a_doubling() -> None:
    assert stops(2048) == (512, 640, 768, 896, 1024, 1280, 1536, 1792, 2048)
    assert stops(3000, [1000])[-1] == 3000
    assert 1000 in stops(3000, [1000])
    assert stops(100) == (100,)


def test_the_slider_is_moved_by_keys_wheel_and_mouse() -> None:
    slider = ContextSlider()

    async def body(app: OneWidget, pilot: Pilot[None]) -> None:
        slider.show(8192, 2048)
        slider.focus()
        await pilot.press("right", "left", "left", "end", "end", "home")
        assert [one.n_ctx for one in app.seen] == [2560, 2048, 1792, 8192, 512]
        await pilot.click(slider, offset=(slider.size.width - 6, 0))
        assert slider.value == 8192
        await pilot.click(slider, offset=(5, 0))
        assert slider.value == 512

    run(slider, body, ContextSlider.Changed, size=(60, 5))


# --- the pane --------------------------------------------------------------------------------------------------------


def test_the_pane_shows_memory_by_part_and_follows_the_slider() -> None:
    from runner.config import LoadOptions

    exact = ask("demo", user_paths(), LoadOptions(), offline=True)
    assert exact is not None
    exact = dataclasses.replace(exact, files=(*exact.files, ("tokenizer.json", 10**9)))
    assert exact.fit(2048).need.kv_cache_bytes == 4 * exact.fit(512).need.kv_cache_bytes
    pane = FitPane()

    async def body(app: OneWidget, pilot: Pilot[None]) -> None:
        pane.show(row("demo"), is_asking=True)
        await pilot.pause(0.3)
        assert "reading the headers" in text_of(app)
        pane.show_exact(exact, 2048)
        await pilot.pause()
        shown = text_of(app)
        assert "12.0 MiB" in shown
        assert "it fits" in shown
        assert "demo-q8_0.gguf" in shown
        assert "19.8 MB ·" in shown  # the weights, as in the table
        pane.query_one(ContextSlider).focus()
        await pilot.press("home")
        await pilot.pause()
        assert pane.n_ctx == 512
        assert "3.0 MiB" in text_of(app)
        assert [(one.name, one.n_ctx) for one in app.seen] == [("demo", 512)]

    run(pane, body, FitPane.ContextChosen, size=(56, 50))


def test_the_pane_says_what_would_fit_instead() -> None:
    import dataclasses

    from runner.config import LoadOptions

    exact = ask("demo", user_paths(), LoadOptions(), offline=True)
    assert exact is not None
    small = tuple(dataclasses.replace(device, free_bytes=52 * 2**20) for device in exact.machine)
    exact = dataclasses.replace(exact, machine=small)
    pane = FitPane()

    async def body(app: OneWidget, pilot: Pilot[None]) -> None:
        pane.show(row("demo"))
        pane.show_exact(exact, 2048)
        await pilot.pause()
        assert "✗" in text_of(app)
        assert "would fit" in text_of(app)

    run(pane, body, size=(56, 50))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"repo": "o/r"}, "damaged: verify --repair"),
        ({}, "damaged: quantize again"),
        ({"kind": "drafter"}, "damaged: train it again: runner draft train"),
        ({"lost_target": "/disk/x"}, "damaged: its link leads to /disk/x: mount the disk that it is on"),
    ],
)
def test_the_pane_says_what_to_do_about_damage(changes: dict[str, str], said: str) -> None:
    pane = FitPane()

    async def body(app: OneWidget, pilot: Pilot[None]) -> None:
        pane.show(row("mine", state="damaged", **changes))
        await pilot.pause()
        assert said in text_of(app)

    run(pane, body, size=(100, 50))


# --- jobs ------------------------------------------------------------------------------------------------------------


def job(job_id: str = "pull-1", **changes: Any) -> Job:
    values: dict[str, Any] = {
        "id": job_id,
        "kind": "pull",
        "model": "qwen3-8b",
        "state": "running",
        "stage": "download",
    }
    return Job(**{**values, "done": 610, "total": 1000, "rate_bytes_s": 312e6, "eta_s": 240.0, **changes})


def test_a_job_is_a_bar_with_numbers_and_takes_keys() -> None:
    jobs = JobList()

    async def body(app: OneWidget, pilot: Pilot[None]) -> None:
        assert not jobs.display
        jobs.show([job()])
        await pilot.pause()
        shown = text_of(app)
        for part in ("qwen3-8b", "61 %", "312 MB/s", "4 min 00 s"):
            assert part in shown
        jobs.query_one(JobRow).focus()
        await pilot.press("p")
        jobs.show([job(state="paused")])
        await pilot.press("p", "x")
        jobs.show([job(state="failed", message="No connection.", hint="Try again.")])
        await pilot.pause()
        assert "failed: No connection. Try again." in text_of(app)
        await pilot.press("r", "x")
        wishes = [type(one).__name__ for one in app.seen]
        assert wishes == ["Pause", "Resume", "Cancel", "Retry", "Forget"]
        assert {one.id for one in app.seen} == {"pull-1"}
        jobs.show([])
        await pilot.pause()
        assert not jobs.display

    run(jobs, body, JobMessage, size=(80, 10))


def test_loading_before_a_quantization_begins_is_no_share_of_it() -> None:
    loading = job(kind="quantize", weight_format="mq4", stage="loading", done=1000, unit="tokens")
    assert (percent(loading), status(loading)) == ("", "loading")
    assert percent(dataclasses.replace(loading, stage="quantizing", done=10)) == "1 %"


def test_the_key_of_a_job_that_has_ended_takes_it_away_and_says_so() -> None:
    jobs = JobList()

    def label(app: OneWidget) -> str:
        return app.screen.active_bindings["x"].binding.description

    async def body(app: OneWidget, pilot: Pilot[None]) -> None:
        jobs.show([job()])
        await pilot.pause()
        jobs.query_one(JobRow).focus()
        await pilot.pause()
        assert label(app) == "Give up"
        jobs.show([job(state="cancelled")])
        await pilot.pause()
        assert label(app) == "Take away"

    run(jobs, body, JobMessage, size=(40, 10))


def test_a_long_reason_is_read_to_its_end_where_the_job_has_the_focus() -> None:
    jobs = JobList()
    reason = "It is gated: " + "its licence has to be accepted first, " * 3

    async def body(app: OneWidget, pilot: Pilot[None]) -> None:
        failed = job("pull-2", state="failed", message=reason, hint="Then log in with the end of it.")
        jobs.show([job(), failed])
        await pilot.pause()
        first, second = jobs.query(JobRow)
        assert "end of it." not in text_of(app)
        second.focus()
        await pilot.pause()
        await pilot.pause()
        assert "end of it." in text_of(app)
        first.focus()
        await pilot.pause()
        assert "end of it." not in text_of(app)

    run(jobs, body, JobMessage, size=(40, 8))


def test_a_job_that_changes_before_its_row_is_composed_is_shown_as_it_is_then() -> None:
    """As one does whose process answers sooner than a busy terminal draws."""
    jobs = JobList()

    async def body(app: OneWidget, pilot: Pilot[None]) -> None:
        jobs.show([job()])
        jobs.show([job(state="failed", message="There is no room.")])
        await pilot.pause()
        await pilot.pause()
        assert "There is no room." in text_of(app)

    run(jobs, body, JobMessage, size=(40, 10))


def test_arrows_go_through_the_jobs_and_stay_among_them() -> None:
    jobs = JobList()

    async def body(app: OneWidget, pilot: Pilot[None]) -> None:
        jobs.show([job(), job("pull-2", state="paused")])
        await pilot.pause()
        first, second = jobs.query(JobRow)
        first.focus()
        await pilot.press("down", "down", "down")
        assert app.focused is second
        await pilot.press("up")
        assert app.focused is first

    run(jobs, body, JobMessage, size=(40, 10))


def test_in_a_low_list_the_newest_job_is_the_one_that_is_seen() -> None:
    jobs = JobList()

    async def body(app: OneWidget, pilot: Pilot[None]) -> None:
        jobs.styles.max_height = 2
        jobs.show([job(model="first")])
        await pilot.pause()
        jobs.show([job(model="first"), job("pull-2", model="second", state="queued")])
        await pilot.pause()
        await pilot.pause()
        assert "second" in text_of(app)

    run(jobs, body, JobMessage, size=(40, 10))


def test_a_job_that_is_asked_for_again_while_it_stops_says_so() -> None:
    assert status(job(stage="stopping")) == "stopping…"
    jobs = JobList()

    async def body(app: OneWidget, pilot: Pilot[None]) -> None:
        jobs.show([job(stage="restarting")])
        await pilot.pause()
        assert "begins again when it has stopped" in text_of(app)
        app.query_one(JobRow).focus()
        await pilot.press("space", "x")
        assert [type(one) for one in app.seen] == [JobList.Cancel]

    run(jobs, body, JobMessage, size=(60, 10))


def test_a_job_tells_the_time_that_is_left_as_such() -> None:
    assert numbers(job()) == ["61 %", "312 MB/s", "4 min 00 s left"]


def test_a_download_that_stands_still_says_so() -> None:
    assert numbers(job(rate_bytes_s=None, eta_s=None)) == ["61 %", "waiting for data"]
    assert numbers(job(done=0, rate_bytes_s=None, eta_s=None)) == ["0 %"]


def test_what_holds_a_download_up_is_said_below_its_bar_and_no_longer_than_it_does() -> None:
    jobs = JobList()

    async def body(app: OneWidget, pilot: Pilot[None]) -> None:
        jobs.show([job(rate_bytes_s=None, trouble="The hub cannot be reached. Trying again in 4 s.")])
        await pilot.pause()
        assert "61 %" in text_of(app)
        assert "The hub cannot be reached." in text_of(app)
        jobs.show([job()])
        await pilot.pause()
        assert "The hub" not in text_of(app)

    run(jobs, body, JobMessage, size=(60, 10))


def test_a_click_on_a_sign_of_a_job_does_what_it_says() -> None:
    jobs = JobList()

    async def body(app: OneWidget, pilot: Pilot[None]) -> None:
        jobs.show([job(), job("pull-2", state="queued", done=0, total=0)])
        await pilot.pause()
        pause, _, _, give_up, take_away = jobs.query("#job-pull-2 JobButton")
        await pilot.click(pause)
        await pilot.click(give_up)
        jobs.show([job(), job("pull-2", state="done")])
        await pilot.pause()
        await pilot.click(take_away)
        assert [type(one).__name__ for one in app.seen] == ["Pause", "Cancel", "Forget"]
        assert {one.id for one in app.seen} == {"pull-2"}

    run(jobs, body, JobMessage, size=(26, 10))


# --- hostile text ----------------------------------------------------------------------------------------------------


def hostile_row() -> Any:
    return row(HOSTILE, description=HOSTILE, licence=HOSTILE, quant=HOSTILE, repo=HOSTILE, quants=(HOSTILE, HOSTILE))


def harmless(app: OneWidget) -> None:
    """The text is there as it stands, without its control characters, and nothing in it can be clicked."""
    shown = text_of(app)
    assert "a[/]b" in shown
    assert "\x1b" not in shown
    assert "\x9b" not in shown
    strips = app.screen._compositor.render_strips()
    metas = [segment.style.meta for strip in strips for segment in strip if segment.style is not None]
    assert not any("@click" in meta and "quit" in str(meta["@click"]) for meta in metas)


def test_a_hostile_name_is_text_in_the_table_the_pane_and_the_jobs() -> None:
    table, pane, jobs = ModelTable(), FitPane(), JobList()

    async def in_table(app: OneWidget, pilot: Pilot[None]) -> None:
        table.show([hostile_row()], offer=HOSTILE)
        table.show_states({HOSTILE: Cell(HOSTILE)})
        await pilot.pause()
        harmless(app)

    async def in_pane(app: OneWidget, pilot: Pilot[None]) -> None:
        pane.show(hostile_row())
        pane.show_error(RunnerError(HOSTILE, hint=HOSTILE))
        await pilot.pause()
        harmless(app)

    async def in_jobs(app: OneWidget, pilot: Pilot[None]) -> None:
        jobs.show([job(model=HOSTILE), job("pull-2", model=HOSTILE, state="failed", message=HOSTILE, hint=HOSTILE)])
        await pilot.pause()
        harmless(app)

    run(table, in_table)
    run(pane, in_pane)
    run(jobs, in_jobs)


def test_a_hostile_name_is_text_in_every_dialog() -> None:
    def fail() -> Any:
        raise RunnerError(HOSTILE, hint=HOSTILE)

    dialogs = [
        ChooseQuant(HOSTILE, HOSTILE, fail),
        QuantizeModel(hostile_row(), (), lambda: {"mq4": made_name(Path(HOSTILE), "mq4")}),
        QuantizeModel(hostile_row(), (), fail),
        DeleteModel(HOSTILE, fail, Path("no engines")),
        CompareModels(hostile_row(), hostile_row()),
    ]
    for dialog in dialogs:

        async def body(app: OneWidget, pilot: Pilot[None], dialog: Any = dialog) -> None:
            app.push_screen(dialog)
            await pilot.pause()
            await app.workers.wait_for_complete()
            await pilot.pause()
            harmless(app)
            await pilot.press("escape")
            await pilot.pause()
            assert len(app.screen_stack) == 1

        run(Widget(), body)


def test_of_two_numbers_the_better_one_is_marked() -> None:
    assert better(1, 2, "less") == (True, False)
    assert better(1, 2, "more") == (False, True)
    assert better(1, 1, "more") == better(None, 1, "more") == better(1, 2, "") == (False, False)
