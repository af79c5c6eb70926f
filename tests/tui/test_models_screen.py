"""The models screen as a user works it, with the real command line beneath and a hub on this machine."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hub_server import Hub, Repo
from model_rows import text_of
from pulled import GGUF, SHARDS, WEIGHTS, fetch_all, server
from textual.app import App
from textual.content import Content
from textual.message import Message
from textual.pilot import Pilot
from textual.widgets import Button, Input, OptionList, Static
from waiting import PATIENCE_S

from runner import hub
from runner.hub_cache import cached_files
from runner.inventory import local_models
from runner.paths import user_paths
from runner.registry import Registry
from runner.running import announce
from runner.settings import load_settings
from runner.tui import themes
from runner.tui.actions import actions_of
from runner.tui.catalog_view import SORTS
from runner.tui.jobs import Job, JobQueue
from runner.tui.messages import BenchModel, GoTo, OpenModel
from runner.tui.screens.choose_quant import ChooseQuant
from runner.tui.screens.compare_models import CompareModels, Comparison
from runner.tui.screens.delete_model import DeleteModel
from runner.tui.screens.models import ModelsScreen
from runner.tui.screens.quantize_model import QuantizeModel
from runner.tui.services import Services
from runner.tui.widgets.job_list import JobList
from runner.types import CancelToken

__all__ = ["server"]  # the fixture


@dataclass
class Moved(Message):
    jobs: tuple[Job, ...]


class Models(App[None]):
    """The screen with a queue, and what it asked the app for."""

    def __init__(self, *, is_offline: bool = False) -> None:
        super().__init__()
        themes.register(self)
        self.theme = themes.DARK
        paths = user_paths()
        settings = load_settings(paths)
        services = Services(
            paths=paths,
            settings=settings,
            load_options=settings.load_options(),
            store=None,
            model="demo",
            is_offline=is_offline,
        )
        self.jobs = JobQueue(paths, lambda jobs: self.post_message(Moved(jobs)))
        self.models = ModelsScreen(services, self.jobs, lambda: self.loaded)
        self.loaded = ""
        self.wishes: list[Message] = []

    def on_mount(self) -> None:
        self.push_screen(self.models)

    def on_moved(self, message: Moved) -> None:
        self.models.on_jobs(message.jobs)

    def on_open_model(self, message: OpenModel) -> None:
        self.wishes.append(message)

    def on_bench_model(self, message: BenchModel) -> None:
        self.wishes.append(message)

    def on_go_to(self, message: GoTo) -> None:
        self.wishes.append(message)

    def on_unmount(self) -> None:
        self.jobs.close()
        self.jobs.wait(5)


Body = Callable[[Models, Pilot[None]], Awaitable[None]]


def run(body: Body, size: tuple[int, int] = (120, 40), **options: Any) -> None:
    async def running() -> None:
        app = Models(**options)
        async with app.run_test(size=size) as pilot:
            await until(pilot, lambda: bool(app.models.table.rows))
            await body(app, pilot)

    asyncio.run(running())


async def until(pilot: Pilot[None], condition: Callable[[], bool], within_s: float = PATIENCE_S) -> None:
    for _ in range(int(within_s / 0.02)):
        await pilot.pause(0.02)
        if condition():
            return
    raise AssertionError("it did not happen:\n" + text_of(pilot.app))


def current(app: Models) -> str:
    row = app.models.table.row
    return row.name if row is not None else ""


def test_the_demo_is_estimated_exactly_and_opened_with_the_context_that_was_chosen() -> None:
    async def body(app: Models, pilot: Pilot[None]) -> None:
        assert current(app) == "demo"
        await pilot.press("enter")
        await until(pilot, lambda: "it fits" in text_of(app))
        assert app.models.table.row is not None
        assert app.models.table.row.fit.is_exact
        free = {row.fit.free_bytes for row in app.models.table.rows if row.stored_as == "gguf"}
        assert len(free) == 1, "rows are judged by memory as it was at several moments"
        await pilot.press("left", "left", "enter")
        await pilot.pause()
        first, second = app.wishes
        assert isinstance(first, OpenModel)
        assert isinstance(second, OpenModel)
        assert (first.model, first.options) == ("demo", None)
        assert second.options is not None
        assert second.options.ctx_size == 1536
        await pilot.press("b", "escape")
        await pilot.pause()
        assert [type(one) for one in app.wishes[2:]] == [BenchModel, GoTo]

    run(body)


def test_typing_filters_and_escape_clears() -> None:
    async def body(app: Models, pilot: Pilot[None]) -> None:
        n_all = len(app.models.table.rows)
        await pilot.press("slash", *"coder 7b")
        assert [row.name for row in app.models.table.rows] == ["qwen2.5-coder-7b"]
        assert f"1 of {n_all}" in text_of(app)
        await pilot.press("escape")
        assert app.focused is app.models.table
        assert len(app.models.table.rows) == n_all

    run(body)


def test_what_does_not_fit_is_left_out_and_sorting_cycles() -> None:
    async def body(app: Models, pilot: Pilot[None]) -> None:
        n_all = len(app.models.table.rows)
        await pilot.press("f")
        await pilot.pause()
        assert all(row.fit.verdict in ("fits", "partly") for row in app.models.table.rows)
        assert "that fit" in text_of(app)
        await pilot.press("f", "s")
        sizes = [row.size_bytes for row in app.models.table.rows]
        assert len(sizes) == n_all
        assert sizes == sorted(sizes)
        assert "by size" in text_of(app)
        await pilot.click(app.models.table, offset=(4, 0))
        names = [row.name for row in app.models.table.rows]
        assert names == sorted(names)

    run(body)


def test_sorting_passes_over_columns_that_have_no_room() -> None:
    async def body(app: Models, pilot: Pilot[None]) -> None:
        seen = {"", *app.models.table.seen_columns}
        assert "context" not in seen
        keys = set()
        for _ in SORTS:
            await pilot.press("s")
            keys.add(app.models._view.sort[0])
        assert keys == seen & set(SORTS)

    run(body, size=(60, 24))


def test_what_was_said_of_other_rows_goes_when_the_filter_changes() -> None:
    async def body(app: Models, pilot: Pilot[None]) -> None:
        await pilot.press("d")
        await until(pilot, lambda: "demo is on this machine." in text_of(app))
        await pilot.press("slash", "q")
        await until(pilot, lambda: "demo is on this machine." not in text_of(app))

    run(body)


def test_a_model_is_found_on_the_hub_fetched_and_opened(server: Hub) -> None:
    async def body(app: Models, pilot: Pilot[None]) -> None:
        await pilot.press("h", *"llama", "enter")  # the registry has such models, too
        await until(pilot, lambda: current(app) == GGUF)
        await until(pilot, lambda: "to fetch from" in text_of(app))
        server.bytes_s, server.most_bytes = 700_000, server.sent_bytes() + 700_000
        await pilot.press("enter")
        await until(
            pilot, lambda: isinstance(app.screen, ChooseQuant) and app.screen.query_one(OptionList).option_count > 0
        )
        assert "Q8_0" in text_of(app)
        await pilot.press("enter")
        await until(pilot, lambda: any(0 < job.done < job.total for job in app.jobs.jobs) and "%" in text_of(app))
        server.let_go()
        await until(pilot, lambda: app.jobs.jobs[0].state == "done")
        await until(pilot, lambda: any(row.repo == GGUF and row.is_here for row in app.models.table.rows))
        app.models.table.select(f"{GGUF}:Q8_0")
        await pilot.press("enter")
        await pilot.pause()
        assert [one.model for one in app.wishes if isinstance(one, OpenModel)] == [f"{GGUF}:Q8_0"]
        await pilot.press("g", "x")
        await pilot.pause()
        assert app.jobs.jobs == ()

    run(body)


def test_what_is_here_of_a_repository_offers_its_other_quantizations(server: Hub) -> None:
    server.repos[GGUF].files["llama-F16.gguf"] = server.repos[GGUF].files[WEIGHTS]
    listing = hub.list_files(GGUF)
    hub.fetch(listing, [WEIGHTS], on_progress=lambda _: None, cancel=CancelToken())

    async def offered(app: Models, pilot: Pilot[None]) -> None:
        app.models.table.select(f"{GGUF}:Q8_0")
        await pilot.press("d")
        await until(pilot, lambda: isinstance(app.screen, ChooseQuant) and "F16" in text_of(app))
        assert "here already" in text_of(app)

    async def not_asked(app: Models, pilot: Pilot[None]) -> None:
        app.models.table.select(f"{GGUF}:Q8_0")
        n_asked = len(server.requests)
        await pilot.press("d")
        await until(pilot, lambda: f"{GGUF}:Q8_0 is on this machine." in text_of(app))
        assert len(server.requests) == n_asked

    run(offered)
    run(not_asked, is_offline=True)


def test_what_is_fetched_from_the_hub_is_given_up_or_once_paused_deleted_by_its_row(server: Hub) -> None:
    async def body(app: Models, pilot: Pilot[None]) -> None:
        await pilot.press("slash", *GGUF, "enter")
        await until(pilot, lambda: current(app) == GGUF)
        server.most_bytes = server.sent_bytes() + 700_000
        app.jobs.pull(f"{GGUF}:Q8_0")
        await until(pilot, lambda: any(model.state == "partial" for model in local_models(Registry.load_for())))
        await pilot.press("x")
        assert "is being fetched: g goes to the downloads" in text_of(app)
        await pilot.press("g", "space")
        await until(pilot, lambda: [job.state for job in app.jobs.jobs] == ["paused"])
        await until(pilot, lambda: [row.state for row in app.models.table.rows if row.repo == GGUF] == ["partial"])
        app.models.table.select(f"{GGUF}:Q8_0")
        app.models.table.focus()
        app.jobs.pull(f"{GGUF}:Q8_0")
        await pilot.press("x")
        assert app.screen is app.models
        app.jobs.pause(app.jobs.jobs[0].id)
        await until(pilot, lambda: [job.state for job in app.jobs.jobs] == ["paused"])
        await pilot.press("x")
        await until(pilot, lambda: isinstance(app.screen, DeleteModel))

    run(body)


@pytest.mark.usefixtures("server")
def test_what_was_left_to_fetch_is_not_told_of_what_is_here() -> None:
    async def body(app: Models, pilot: Pilot[None]) -> None:
        await pilot.press("slash", *SHARDS, "enter")
        await until(pilot, lambda: current(app) == SHARDS and "to fetch from" in text_of(app))
        app.jobs.pull(SHARDS)
        await until(pilot, lambda: [job.state for job in app.jobs.jobs] == ["done"])
        await until(pilot, lambda: "● here" in text_of(app))
        await until(pilot, lambda: "FILES" in text_of(app) and "to fetch from" not in text_of(app))

    run(body, size=(120, 60))


def test_a_gated_model_and_a_hub_that_cannot_be_reached_are_told_with_a_remedy(server: Hub) -> None:
    server.repos["tiny/gated"] = Repo(dict(server.repos[GGUF].files), is_gated=True, num_parameters=9)

    async def body(app: Models, pilot: Pilot[None]) -> None:
        await pilot.press("slash", *"tiny/gated", "enter")
        await until(pilot, lambda: current(app) == "tiny/gated")
        await until(pilot, lambda: "Gated" in text_of(app) and "✗" in text_of(app))
        server.status = 500
        await pilot.press("slash", *"x", "enter")
        await until(pilot, lambda: "✗" in text_of(app).splitlines()[2])

    run(body)


def test_in_the_smallest_terminal_a_failed_download_that_has_the_focus_says_its_remedy() -> None:
    async def body(app: Models, pilot: Pilot[None]) -> None:
        reason = "There is no connection to https://huggingface.co."
        hint = "Check the network; --offline uses only what is on this machine."
        failed = Job(id="pull-1", kind="pull", model="qwen3-1.7b", state="failed", message=reason, hint=hint)
        app.models.query_one(JobList).show((failed,))
        await pilot.pause()
        await pilot.press("g")
        await until(pilot, lambda: hint in " ".join(text_of(app).split()))

    run(body, (40, 12))


def test_offline_the_hub_is_not_asked(server: Hub) -> None:
    async def body(app: Models, pilot: Pilot[None]) -> None:
        await pilot.press("slash", *"llama")
        await pilot.press("escape", "slash", *"zzz", "enter")
        await pilot.pause()
        assert "runner is offline" in text_of(app)
        assert server.requests == []

    run(body, is_offline=True)


def test_deleting_says_what_goes_and_frees_it(server: Hub) -> None:
    size = len(server.repos[GGUF].files[WEIGHTS])
    fetch_all(GGUF)
    about = {"backend": "fake", "quantization": "", "device": "CPU", "n_ctx": 1, "memory_bytes": 0}
    file = next(file.path for file in cached_files(GGUF) if file.name == WEIGHTS)
    announce(user_paths().engines, model="another name", path=str(file), **about)  # type: ignore[arg-type]

    async def body(app: Models, pilot: Pilot[None]) -> None:
        app.models.table.select(f"{GGUF}:Q8_0")
        app.loaded = f"{GGUF}:Q8_0"
        await pilot.press("x")
        await until(
            pilot, lambda: isinstance(app.screen, DeleteModel) and not app.screen.query_one("#yes", Button).disabled
        )
        assert "has this model loaded" in str(app.screen.query_one("#detail", Static).render())
        assert "This frees" in text_of(app)
        assert f"{size / 1e6:.1f} MB" in text_of(app)
        await pilot.press("escape")
        assert any(row.repo == GGUF for row in app.models.table.rows)
        app.loaded = "demo"
        await pilot.press("x")
        await until(
            pilot, lambda: isinstance(app.screen, DeleteModel) and not app.screen.query_one("#yes", Button).disabled
        )
        said = str(app.screen.query_one("#detail", Static).render())
        assert "has this model loaded" not in said
        assert f"Process {os.getpid()} has another name loaded" in said
        await pilot.press("enter")
        await until(pilot, lambda: all(row.repo != GGUF for row in app.models.table.rows))

    run(body)


def test_what_ships_with_runner_cannot_be_deleted() -> None:
    async def body(app: Models, pilot: Pilot[None]) -> None:
        await pilot.press("x")
        await until(pilot, lambda: "ships with runner" in text_of(app))
        await pilot.press("y", "escape")
        assert app.screen is app.models

    run(body)


async def delete(app: Models, pilot: Pilot[None]) -> None:
    """What is chosen in the table, by x and y."""
    n_rows = len(app.models.table.rows)
    await pilot.press("x")
    await until(
        pilot, lambda: isinstance(app.screen, DeleteModel) and not app.screen.query_one("#yes", Button).disabled
    )
    await pilot.press("y")
    await until(pilot, lambda: len(app.models.table.rows) == n_rows - 1)


def test_a_drafter_is_listed_can_be_deleted_and_is_not_taken_for_a_model() -> None:
    """One is called as a model is, and goes by its path."""
    for name in ("demo-normed", "demo"):
        head = user_paths().drafts / name
        head.mkdir(parents=True)
        (head / "model.safetensors").write_bytes(bytes(1000))

    def left() -> list[str]:
        return [path.name for path in user_paths().drafts.iterdir()]

    async def body(app: Models, pilot: Pilot[None]) -> None:
        by_path = str(user_paths().drafts / "demo")
        assert [row.name for row in app.models.table.rows][:3] == ["demo", by_path, "demo-normed"]
        assert app.models.table.select("demo-normed")
        await until(pilot, lambda: "A head that drafts" in " ".join(text_of(app).split()))
        assert "● drafter" in text_of(app)
        for key in ("enter", "d", "q", "b", "c"):
            await pilot.press(key)
            assert "demo-normed is a drafter. In a chat of the native backend: /set draft demo-normed" in text_of(app)
            app.models._news("")
            await pilot.pause()
        assert (app.screen, app.wishes) == (app.models, [])
        await delete(app, pilot)
        assert left() == ["demo"]
        assert app.models.table.select(by_path)
        await delete(app, pilot)
        assert left() == []
        assert app.models.table.select("demo")

    run(body)


def test_a_drafter_whose_files_are_not_to_be_found_is_damaged_and_can_be_deleted() -> None:
    drafts = user_paths().drafts
    (drafts / "emptied").mkdir(parents=True)
    (drafts / "emptied" / "config.json").write_text("{}")
    (drafts / "linked").symlink_to("/unmounted/linked")

    async def body(app: Models, pilot: Pilot[None]) -> None:
        remedies = {"emptied": "train it again", "linked": "its link leads to /unmounted/linked: mount the disk"}
        for name, remedy in remedies.items():
            assert app.models.table.select(name)
            await until(pilot, lambda start=remedy[:14]: f"damaged: {start}" in text_of(app))  # type: ignore[misc]
            await pilot.press("enter")
            assert f"{name} is a drafter, and damaged: {remedy}" in text_of(app)
        assert (app.screen, app.wishes) == (app.models, [])
        await delete(app, pilot)
        assert [path.name for path in drafts.iterdir()] == ["emptied"]

    run(body)


def test_quantizing_makes_a_model_that_appears_in_the_table() -> None:
    async def body(app: Models, pilot: Pilot[None]) -> None:
        await pilot.press("q")
        await until(pilot, lambda: isinstance(app.screen, QuantizeModel))
        dialog = app.screen
        await until(pilot, lambda: dialog.query_one(Input).value == "demo-mq4")
        await pilot.press("end", "up", "up")
        await until(pilot, lambda: dialog.query_one(Input).value == "demo-bf16")
        dialog.query_one(Input).value = "tiny/x"
        await pilot.press("enter")
        assert "no '/'" in text_of(app)
        dialog.query_one(Input).value = "mine"
        await pilot.press("enter")
        await until(pilot, lambda: any(row.name == "mine" and row.kind == "made here" for row in app.models.table.rows))
        assert [job.weight_format for job in app.jobs.jobs] == ["bf16"]

    run(body)


@pytest.mark.parametrize("size", [(40, 12), (60, 20), (60, 24), (80, 24)])
def test_what_is_made_and_of_what_is_told_whole_in_a_small_terminal(size: tuple[int, int]) -> None:
    async def body(app: Models, pilot: Pilot[None]) -> None:
        await pilot.press("q")
        await until(pilot, lambda: isinstance(app.screen, QuantizeModel))
        words = lambda: " ".join(text_of(app).replace("│", " ").split())  # noqa: E731
        parts = ("Quantize demo", "the best of its size", "more exact", "About 10.1 MB", "From demo.", "Cancel")
        await until(pilot, lambda: all(part in words() for part in parts))

    run(body, size)


@pytest.mark.parametrize("size", [(40, 12), (60, 20), (80, 24)])
def test_what_is_compared_is_told_whole_in_a_small_terminal(size: tuple[int, int]) -> None:
    async def body(app: Models, pilot: Pilot[None]) -> None:
        await pilot.press("c", "down", "c")
        await until(pilot, lambda: isinstance(app.screen, CompareModels))
        await pilot.press("end")
        await pilot.pause()
        assert [line for line in str(app.screen.query_one(Comparison).render()).split("\n") if "…" in line] == []

    run(body, size)


def test_sizes_and_fits_of_what_may_be_fetched_are_whole_in_the_smallest_terminal() -> None:
    async def body(app: Models, pilot: Pilot[None]) -> None:
        await pilot.press("down", "d")
        await until(
            pilot, lambda: isinstance(app.screen, ChooseQuant) and app.screen.query_one(OptionList).option_count > 0
        )
        await pilot.pause()
        offers = app.screen.query_one(OptionList)
        width = offers.scrollable_content_region.width
        for option in offers.options:
            assert isinstance(option.prompt, Content)
            name, fit = option.prompt.plain.split("\n")
            assert len(name) <= width
            assert fit.index(" GiB") + 4 <= width
        assert "enter fetch" in text_of(app)

    run(body, (40, 12))


def test_two_models_are_compared() -> None:
    async def body(app: Models, pilot: Pilot[None]) -> None:
        await pilot.press("c", "down", "c")
        await pilot.pause()
        assert isinstance(app.screen, CompareModels)
        shown = text_of(app)
        assert "demo" in shown
        assert "qwen3-0.6b" in shown
        assert "◀" in shown
        assert "○ not here" in shown
        await pilot.press("escape", "c", "c")
        assert app.screen is app.models

    run(body)


@pytest.mark.parametrize("size", [(200, 60), (120, 40), (80, 24), (40, 12)])
def test_every_size_shows_the_table_and_the_details_when_asked(size: tuple[int, int]) -> None:
    async def body(app: Models, pilot: Pilot[None]) -> None:
        assert "demo" in text_of(app)
        was_shown = app.models.pane.display
        assert was_shown == (size[0] >= 100)
        await pilot.press("i")
        await pilot.pause()
        assert app.models.pane.display != was_shown
        await pilot.press("q")
        await pilot.pause()
        assert app.focused is not None
        await pilot.press("escape", "d")
        await pilot.pause()

    run(body, size)


def test_every_action_of_the_table_is_there() -> None:
    for action in actions_of("models"):
        assert callable(getattr(ModelsScreen, f"action_{action.name.partition('(')[0]}"))


def test_opening_the_screen_imports_nothing_that_computes() -> None:
    program = (
        "import sys; import runner.tui.screens.models; "
        "print([m for m in ('torch', 'llama_cpp', 'triton', 'huggingface_hub', 'httpx2') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
