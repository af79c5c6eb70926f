"""The live rail and the status line, alone in an app: what they show, and when they draw."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine

import pytest
from live_samples import ENGINE, GIB, HOSTILE, fit, gpu_sample, loaded, machine, timings
from textual.app import App, ComposeResult
from textual.pilot import Pilot
from textual.screen import Screen
from textual.widget import Widget

from runner.bench.bytes_read import CacheRead
from runner.errors import RunnerError
from runner.events import Finished, Progress, Stats, TextDelta
from runner.transcript import Turn
from runner.tui.machine_watch import OtherProgram
from runner.tui.messages import (
    AnswerBegan,
    AnswerEnded,
    AnswerStep,
    EngineMessage,
    Lent,
    LoadBegan,
    LoadEnded,
    LoadStep,
    TakenBack,
)
from runner.tui.widgets.fold import BackendReason, OtherPrograms
from runner.tui.widgets.live_rail import LiveRail
from runner.tui.widgets.live_section import LiveSection
from runner.tui.widgets.memory_bar import MemoryBar
from runner.tui.widgets.status_line import StatusLine
from runner.tui.yardstick import RUN_BENCH, Yardstick

QUESTION = Turn(role="user", content="Why?")
STICK = Yardstick(token_bytes=4_000_000_000, cache=CacheRead(per_position=((100_000.0, 0),)), bandwidth_bytes_s=940e9)


class LiveScreen(Screen[None]):
    """The two widgets, whose clock stands still unless a test sets it."""

    HORIZONTAL_BREAKPOINTS = [(0, "-tiny"), (60, "-narrow"), (100, "-medium"), (160, "-wide")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-flat"), (20, "-low"), (32, "-tall")]  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()
        self.clock = [100.0]

    def compose(self) -> ComposeResult:
        yield LiveRail(clock=lambda: self.clock[0])
        yield StatusLine(clock=lambda: self.clock[0])


class LiveApp(App[None]):
    CSS = "LiveRail { height: 1fr; }"

    def on_mount(self) -> None:
        self.push_screen(LiveScreen())


class Live:
    """Both widgets, and what they show."""

    def __init__(self, pilot: Pilot[None]) -> None:
        self.pilot = pilot
        assert isinstance(pilot.app.screen, LiveScreen)
        self.clock = pilot.app.screen.clock
        self.rail = pilot.app.screen.query_one(LiveRail)
        self.line = pilot.app.screen.query_one(StatusLine)

    async def tell(self, *messages: EngineMessage) -> None:
        for message in messages:
            self.rail.on_engine(message)
            self.line.on_engine(message)
        await self.pilot.pause()

    async def load(self, **about: object) -> None:
        await self.tell(LoadBegan("loading", "qwen"), LoadEnded("ready", "qwen", loaded(**about)))  # type: ignore[arg-type]

    async def sample(self, *gpus: object, **about: object) -> None:
        seen = machine(*gpus, **about)  # type: ignore[arg-type]
        self.rail.on_machine(seen)
        self.line.on_machine(seen)
        await self.pilot.pause()

    @property
    def text(self) -> str:
        """What the rail shows, line by line."""
        sections = [one for one in self.rail.query(LiveSection) if is_shown(one)]
        return "\n".join(str(section.render()) for section in sections)

    @property
    def status(self) -> str:
        return str(self.line.render())


def is_shown(widget: Widget) -> bool:
    return all(node.display for node in widget.ancestors_with_self if isinstance(node, Widget))


def in_app(body: Callable[[Live], Coroutine[None, None, None]], size: tuple[int, int] = (120, 40)) -> None:
    async def run() -> None:
        async with LiveApp().run_test(size=size) as pilot:
            await pilot.pause()
            await body(Live(pilot))

    asyncio.run(run())


def stats(n: int, decode_s: float, **about: int) -> AnswerStep:
    return AnswerStep("answering", Stats(timings(n, decode_s, **about), 8192))


def ended(n: int, decode_s: float) -> tuple[EngineMessage, EngineMessage]:
    event = Finished("stop", timings(n, decode_s), (), 1, 8192)
    return AnswerStep("answering", event), AnswerEnded("ready", QUESTION)


def test_before_anything_happens_it_says_what_to_do() -> None:
    async def body(live: Live) -> None:
        await live.sample(gpu_sample())
        assert "no model" in live.text
        assert "F2" in live.text
        assert "SPECULATION" in live.text
        assert "BANDWIDTH" not in live.text
        assert live.status.startswith("○ no model · VRAM 11.0 GiB of 24.0 GiB")

    in_app(body)


def test_while_a_benchmark_has_the_machine_it_says_so_and_not_that_a_model_is_to_be_chosen() -> None:
    async def body(live: Live) -> None:
        await live.sample(gpu_sample())
        await live.tell(Lent("empty", "qwen3-8b"))
        assert "◐ measuring" in live.text
        assert "qwen3-8b" in live.text
        assert "F3 shows the benchmark" in live.text
        assert "F2" not in live.text
        assert live.status.startswith("◐ measuring · ")
        await live.tell(TakenBack("empty"))
        assert "F2" in live.text
        assert "measuring" not in live.text + live.status

    in_app(body)


def test_a_load_shows_its_stage_its_bar_and_the_time_left() -> None:
    async def body(live: Live) -> None:
        clock = live.clock
        await live.tell(LoadBegan("loading", "qwen"), LoadStep("loading", Progress("load", 0, 100, "%")))
        clock[0] += 2
        await live.tell(LoadStep("loading", Progress("load", 40, 100, "%")))
        assert "◐ loading" in live.text
        assert "Loading" in live.text
        assert "40 %" in live.text
        assert "━━" in live.text
        assert "3 s left" in live.text
        assert live.status == "◐ loading · 40 % · 3 s left"

    in_app(body)


def test_a_load_that_stands_still_says_how_long_it_has_been() -> None:
    async def body(live: Live) -> None:
        await live.tell(LoadBegan("loading", "/models/deep/down/a.gguf"))
        assert "a.gguf" in live.text
        assert "/deep/" not in live.text
        await live.tell(LoadStep("loading", Progress("download", 0, 9_000_000, "bytes")))
        live.clock[0] += 1
        await live.tell(LoadStep("loading", Progress("download", 3_000_000, 9_000_000, "bytes")))
        assert "2 s left" in live.text
        assert "2 s left" in live.status
        for _ in range(20):
            live.clock[0] += 1
            await live.sample()
        assert "left" not in live.text + live.status
        assert "for 21" in live.text

    in_app(body)


def test_reading_a_prompt_shows_how_far_it_is() -> None:
    async def body(live: Live) -> None:
        await live.load()
        step = AnswerStep("answering", Progress("prefill", 1024, 4096, "tokens"))
        await live.tell(AnswerBegan("answering", QUESTION, True), step)
        assert "◐ reading" in live.text
        assert "1k/4.1k tokens" in live.text
        assert "25 %" in live.text
        await live.tell(AnswerStep("answering", TextDelta("The")))
        assert "4.1k tokens" not in live.text

    in_app(body)


def test_an_answer_that_stands_still_is_shown_as_waiting() -> None:
    async def body(live: Live) -> None:
        await live.load()
        await live.tell(AnswerBegan("answering", QUESTION, True), stats(101, 1.0))
        live.clock[0] += 3
        await live.sample(gpu_sample())
        assert "◐ waiting" in live.text
        assert "◐ waiting" in live.status
        assert "now" not in live.text

    in_app(body)


def test_an_answer_shows_its_numbers_as_the_status_line_does() -> None:
    async def body(live: Live) -> None:
        await live.load()
        await live.tell(AnswerBegan("answering", QUESTION, True), stats(101, 1.0))
        assert "TTFT 84 ms" in live.text
        assert "prefill 6250 tok/s" in live.text
        assert "101 tokens" in live.text
        assert "now" in live.text
        assert live.rail.query_one("Digits").value == "100.0"
        assert "▸ writing · 100.0 tok/s · TTFT 84 ms · ctx 701/8.2k" in live.status
        await live.tell(*ended(201, 2.0))
        assert "mean" in live.text
        assert "● ready" in live.text
        assert "ctx" not in live.status  # that is the meter's, which knows when another chat is opened

    in_app(body)


def test_the_share_of_bandwidth_follows_speed_and_context() -> None:
    async def body(live: Live) -> None:
        await live.load()
        live.rail.show_yardstick(Yardstick(unknown=RUN_BENCH))
        await live.pilot.pause()
        assert RUN_BENCH in live.text
        live.rail.show_yardstick(STICK)
        await live.pilot.pause()
        assert "measured 940 GB/s" in live.text
        await live.tell(AnswerBegan("answering", QUESTION, True), stats(101, 1.0))
        share = (4e9 + 701 * 1e5) * 100 / 940e9
        assert f"{100 * share:.0f} % of measured" in live.text
        live.rail.show_yardstick(Yardstick(token_bytes=20_000_000_000, bandwidth_bytes_s=1e12))
        await live.pilot.pause()
        assert "faster than memory was read" in live.text

    in_app(body)


def test_memory_is_shown_by_part_with_the_estimate() -> None:
    async def body(live: Live) -> None:
        await live.load()
        live.rail.show_fit(fit())
        await live.sample(gpu_sample())
        for words in (
            "VRAM",
            "11.0 GiB of 24.0 GiB",
            "█ weights",
            "▓ KV cache",
            "▒ workspace",
            "░ graphs",
            "≡ runtime",
        ):
            assert words in live.text
        assert "est. 8.2 → at load 8.2 GiB" in live.text
        assert "runner holds 9.0 GiB in all" in live.text
        bar = str(live.rail.query_one(MemoryBar).render()).split("\n")[1]
        assert len(bar) == live.rail.query_one(MemoryBar).size.width
        assert list(dict.fromkeys(bar)) == ["█", "▓", "▒", "░", "≡", "╱", "·"]

    in_app(body)


def test_the_estimate_of_the_model_before_is_not_shown_for_the_next() -> None:
    async def body(live: Live) -> None:
        await live.load()
        live.rail.show_fit(fit())
        await live.sample(gpu_sample())
        assert "est." in live.text
        await live.load()
        assert "est." not in live.text
        assert "at load" in live.text

    in_app(body)


def test_a_machine_without_a_gpu_is_said_to_have_none() -> None:
    async def body(live: Live) -> None:
        await live.load(n_gpu_layers=0, device="CPU (2 threads)")
        await live.sample()
        assert "RAM" in live.text
        assert "no GPU: main memory" in live.text
        assert "PROCESSOR" in live.text
        assert "load  25 %" in live.text
        assert "RAM 25.1 GiB of 64.0 GiB" in live.status  # mapped weights, which a machine does not count, are in it

    in_app(body)


def test_the_device_shows_what_its_driver_says_and_no_more() -> None:
    async def body(live: Live) -> None:
        await live.sample(gpu_sample(throttled=("power cap", "heat")))
        for words in ("GPU", "NVIDIA H200", "load  87 %", "312 W", "61 °C", "1980 MHz", "slowed by power cap, heat"):
            assert words in live.text
        await live.sample()
        assert "W ·" not in live.text
        assert "°C" not in live.text

    in_app(body)


def test_why_unfolds_by_key_by_mouse_and_by_method() -> None:
    async def body(live: Live) -> None:
        await live.load(reason="it was asked for", note="slow on this machine")
        assert "it was asked for" not in live.text
        fold = live.rail.query_one(BackendReason)
        fold.focus()
        await live.pilot.press("enter")
        assert "it was asked for" in live.text
        assert "slow on this machine" in live.text
        await live.pilot.click(BackendReason)
        assert "it was asked for" not in live.text
        live.rail.toggle_reason()
        await live.pilot.pause()
        assert "it was asked for" in live.text

    in_app(body)


def test_who_holds_memory_is_shown_by_name_on_demand() -> None:
    async def body(live: Live) -> None:
        await live.load()
        await live.sample(gpu_sample([(ENGINE, "python", 9 * GIB), (99, "Xorg", GIB), (98, "Xorg", GIB)]))
        assert "Xorg" not in live.text
        live.rail.toggle_others()
        await live.pilot.app.workers.wait_for_complete()
        await live.pilot.pause()
        assert "Xorg ×2" in live.text
        assert "2.0 GiB" in live.text

    in_app(body)


def test_names_of_other_programs_in_main_memory_come_from_a_thread() -> None:
    async def body(live: Live) -> None:
        await live.sample()
        live.rail.toggle_others()
        await live.pilot.app.workers.wait_for_complete()
        for _ in range(100):  # until what was read has reached the screen
            await live.pilot.pause()
            if "looking" not in str(live.rail.query_one(OtherPrograms).render()):
                break
        heading, *names = str(live.rail.query_one(OtherPrograms).render()).split("\n")
        assert "▾" in heading
        assert any(re.search(r"\d [KMGT]iB$", name) for name in names)

    in_app(body)


def test_nothing_is_drawn_when_nothing_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[str] = []

    async def body(live: Live) -> None:
        await live.load()
        live.rail.show_fit(fit())
        await live.tell(AnswerBegan("answering", QUESTION, True), stats(101, 1.0), *ended(101, 1.0))
        for _ in range(70):  # until the history of the load is full
            await live.sample(gpu_sample())
        refresh = Widget.refresh

        def counted(self: Widget, *regions: object, **how: object) -> Widget:
            drawn.append(type(self).__name__)
            return refresh(self, *regions, **how)  # type: ignore[arg-type]

        monkeypatch.setattr(Widget, "refresh", counted)
        for _ in range(5):
            await live.sample(gpu_sample())
        assert drawn == []
        await live.sample(gpu_sample(used_bytes=12 * GIB))
        assert "MemoryBar" in drawn

    in_app(body)


@pytest.mark.parametrize("size", [(200, 60), (120, 40), (80, 24), (40, 12)])
def test_nothing_is_wider_than_its_place_at_any_size(size: tuple[int, int]) -> None:
    async def body(live: Live) -> None:
        reason = "native runs packed models; llama.cpp cannot read their files, which are in a format of their own"
        await live.load(reason=reason, device="NVIDIA GeForce RTX 4090 Laptop GPU")
        live.rail.show_fit(fit())
        live.rail.show_yardstick(Yardstick(unknown=RUN_BENCH))
        live.rail.toggle_reason()
        await live.sample(gpu_sample(throttled=("power cap", "heat, by the hardware")))
        await live.tell(AnswerBegan("answering", QUESTION, True), stats(101, 1.0))
        assert not live.rail.show_horizontal_scrollbar
        for section in live.rail.query(LiveSection):
            if is_shown(section):
                assert section.size.height == len(section.rows(section.size.width))
        assert live.line.size.height == 1
        assert len(live.status) <= live.line.content_size.width
        assert live.status.startswith("▸ writing · 100.0 tok/s")
        has_large_number = size[1] >= 32
        assert is_shown(live.rail.query_one("Digits")) == has_large_number

    in_app(body, size)


def test_hostile_names_are_text_and_nothing_else() -> None:
    async def body(live: Live) -> None:
        await live.tell(LoadBegan("loading", HOSTILE))
        await live.load(reason=HOSTILE, device=HOSTILE, note=HOSTILE)
        live.rail.toggle_reason()
        live.rail.show_yardstick(Yardstick(unknown=HOSTILE))
        await live.sample(gpu_sample([(99, HOSTILE, GIB)], throttled=(HOSTILE,)))
        live.rail.toggle_others()
        await live.pilot.app.workers.wait_for_complete()
        live.rail.query_one(OtherPrograms).show_programs((OtherProgram(name=HOSTILE, n_processes=2, used_bytes=GIB),))
        await live.tell(AnswerEnded("ready", None, RunnerError(HOSTILE)))
        await live.pilot.pause()
        shown = live.text + live.status
        assert "a[/]b [@click=app.quit]x[/]" in shown
        assert not {"\x1b", "\x07", "\x9b"} & set(shown)

    in_app(body)


def test_the_status_line_drops_whole_items_the_least_wanted_first() -> None:
    async def body(live: Live) -> None:
        await live.load()
        await live.sample(gpu_sample())
        await live.tell(AnswerBegan("answering", QUESTION, True), stats(101, 1.0))
        full = live.status.split(" · ")
        assert full[0] == "▸ writing"
        await live.pilot.resize_terminal(44, 24)
        await live.pilot.pause()
        assert live.status.split(" · ") == full[:3]
        await live.pilot.resize_terminal(8, 24)
        await live.pilot.pause()
        assert live.status == "▸ wri…"

    in_app(body)
