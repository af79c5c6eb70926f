"""The rails of the chat's screen: kept chats, folding, and the layouts at all sizes."""

from __future__ import annotations

import dataclasses
import os
import signal
import threading
from datetime import date, datetime
from typing import Any

import pytest
from chat_stage import LONG, Stage, stage
from live_samples import RAM_SAMPLE, machine
from textual.widgets import Input, OptionList
from waiting import PATIENCE_S

from runner.bench.record import Bandwidth
from runner.bench.store import append_run
from runner.machine import devices
from runner.measures import text_width
from runner.paths import user_paths
from runner.transcript import SessionSummary, Turn
from runner.tui import app as app_module
from runner.tui.jobs import Job
from runner.tui.machine_watch import MachineSample, take_sample
from runner.tui.messages import LoadEnded
from runner.tui.screens import side_desk
from runner.tui.screens.ask_text import AskText
from runner.tui.screens.confirm import Confirm
from runner.tui.session_rows import about, day_name, grouped
from runner.tui.turns.entries import Question
from runner.tui.widgets.context_meter import ContextMeter
from runner.tui.widgets.empty_chat import EXAMPLES, EmptyChat
from runner.tui.widgets.hint import Hint
from runner.tui.widgets.key_bar import KeyBar
from runner.tui.widgets.left_rail import LeftRail
from runner.tui.widgets.models_here import ModelsHere
from runner.tui.widgets.prompt_box import PromptBox
from runner.tui.widgets.sessions_rail import SessionList, SessionsRail
from runner.tui.widgets.transcript import Transcript
from runner.tui.yardstick import LoadFacts, load_facts
from tests.bench.bench_records import machine as bench_machine
from tests.bench.bench_records import run

__all__ = ["stage"]  # the fixture


def rows(on: Stage) -> list[str]:
    return [str(option.prompt) for option in on.chat.query_one(SessionList).options]


def strips(on: Stage) -> list[str]:
    return ["".join(segment.text for segment in strip) for strip in on.app.screen._compositor.render_strips()]


def keep(stage: Stage, *titles: str) -> None:
    for title in titles:
        turns = [Turn(role="user", content=f"about {title}"), Turn(role="assistant", content=f"{title} it is")]
        stage.store.create_session(model="demo", title=title, turns=turns)


def test_days_are_named_as_people_name_them() -> None:
    today = date(2026, 3, 14)

    def name(*day: int) -> str:
        return day_name(datetime(*day, 12).timestamp(), today)

    assert name(2026, 3, 14) == "Today"
    assert name(2026, 3, 13) == "Yesterday"
    assert name(2026, 3, 10) == "Tuesday"
    assert name(2026, 1, 2) == "January"
    assert name(2025, 12, 31) == "December 2025"


def test_chats_are_grouped_by_day() -> None:
    noon = datetime(2026, 3, 14, 12).timestamp()
    chats = [
        SessionSummary(id=str(n), title=f"chat {n}", model="", backend="", n_turns=1, created_at=at, updated_at=at)
        for n, at in enumerate((noon, noon - 60, noon - 86_400))
    ]
    listed = grouped(chats, date(2026, 3, 14))
    shown = [row.heading if row.session is None else row.session.title for row in listed]
    assert shown == ["Today", "chat 0", "chat 1", "Yesterday", "chat 2"]
    assert about(dataclasses.replace(chats[0], model="demo")) == "14 Mar 12:00 · 1 question · demo"


def test_a_model_that_was_unloaded_is_not_marked_as_loaded(stage: Stage) -> None:
    keep(stage, "tides")  # so that it is not the first run

    async def act(on: Stage) -> None:
        await on.ready()
        listed = on.chat.query_one(ModelsHere).query_one(OptionList)
        await on.until(lambda: "●" in str(listed.get_option_at_index(0).prompt), "the loaded model is not marked")
        on.chat.engine.unload("room is needed")
        await on.until(lambda: "●" not in str(listed.get_option_at_index(0).prompt), "it is still marked")

    stage.play("demo", act)


def test_a_benchmark_of_another_terminal_reaches_the_rail(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(stage, "tides")  # so that it is not the first run
    history = user_paths().bench_history
    is_read, may_end = threading.Event(), threading.Event()

    async def act(on: Stage) -> None:
        def now() -> MachineSample:
            return dataclasses.replace(machine(RAM_SAMPLE), benchmarks=take_sample((), (), history).benchmarks)

        def is_told(words: str) -> bool:
            on.app.post_message(app_module._MachineSeen(now()))
            return any(words in row for row in strips(on))

        def facts_read_slowly(*about: Any) -> LoadFacts:
            facts = load_facts(*about)
            is_read.set()
            assert may_end.wait(PATIENCE_S)
            return facts

        await on.ready()
        await on.until(lambda: is_told("run bench"), "nothing is said of the bandwidth")
        here = bench_machine(kind="cpu", device=devices()[-1].name, bandwidth=Bandwidth(bytes_s=20e9, method="read"))
        append_run(history, run(machine=here))
        await on.until(lambda: is_told("20.0 GB/s"), "it is not noticed")
        monkeypatch.setattr(side_desk, "load_facts", facts_read_slowly)
        on.chat.sides.on_engine(LoadEnded("ready", "demo", on.chat.engine.loaded))
        await on.until(is_read.is_set, "the facts are not read anew")
        faster = dataclasses.replace(here, bandwidth=Bandwidth(bytes_s=40e9, method="read"))
        append_run(history, run(machine=faster))
        on.chat.on_machine(now())
        may_end.set()
        await on.until(lambda: is_told("40.0 GB/s"), "one that ends while a model's facts are read is not noticed")

    stage.play("demo", act)


def test_a_model_whose_engine_died_over_an_answer_is_not_marked_as_loaded(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    marked: list[str | None] = []
    monkeypatch.setattr(ModelsHere, "show", lambda _self, _here, loaded: marked.append(loaded))

    async def act(on: Stage) -> None:
        await on.ready()
        await on.until(lambda: marked and marked[-1] == on.chat.engine.model)
        await on.type("talk")
        await on.until(lambda: on.chat.transcript.copy_answer(), "nothing came")
        os.kill(on.chat.engine.pids()[0], signal.SIGKILL)
        await on.until(lambda: marked[-1] is None, "it is still marked")

    stage.play(stage.script(LONG), act)


def test_a_model_named_by_a_path_has_a_short_name_at_the_top(stage: Stage) -> None:
    async def act(on: Stage) -> None:
        assert "/" not in on.shown("#model")
        await on.ready()

    stage.play(stage.script("Hi."), act)


def test_a_kept_chat_is_resumed_and_drafts_wait_where_they_were(stage: Stage) -> None:
    keep(stage, "tides", "moon")

    async def act(on: Stage) -> None:
        await on.ready()
        await on.until(lambda: len(rows(on)) == 3)
        on.chat.box.prompt.put("half a thought")
        await on.pilot.press("f7", "f7")
        on.chat.query_one(SessionList).focus()
        await on.pilot.press("home", "down", "enter")
        await on.until(lambda: on.said == ["about tides", "tides it is"] or on.said == ["about moon", "moon it is"])
        assert on.chat.box.prompt.text == ""
        await on.until(lambda: any(row.startswith("▸") for row in rows(on)))
        await on.pilot.press("ctrl+n")
        assert on.said == []
        assert on.chat.box.prompt.text == "half a thought"

    stage.play(stage.script("Hi."), act)


def test_a_chat_that_another_program_deleted_leaves_the_list_once_it_is_picked_or_the_rail_opened(stage: Stage) -> None:
    keep(stage, "tides", "moon")

    async def act(on: Stage) -> None:
        await on.ready()
        await on.until(lambda: len(rows(on)) == 3)
        gone, last = (one.id for one in on.store.sessions())
        on.store.delete([gone])
        on.chat.resume(gone)
        await on.until(lambda: any("There is no chat" in one.message for one in on.app._notifications))
        await on.until(lambda: len(rows(on)) == 2, "it is still listed")
        on.store.delete([last])
        await on.pilot.press("f7")
        await on.app.workers.wait_for_complete()
        await on.pilot.pause()
        assert len(rows(on)) == 2, "it is read as the rail goes"
        await on.pilot.press("f7")
        await on.until(lambda: len(rows(on)) < 2, "it is still listed")

    stage.play(stage.script("Hi."), act)


def test_search_as_you_type_finds_words_of_turns(stage: Stage) -> None:
    keep(stage, "tides", "moon")

    async def act(on: Stage) -> None:
        await on.until(lambda: len(rows(on)) == 3)
        on.chat.action_search_chats()
        await on.until(lambda: on.chat.query_one(SessionsRail).query_one(Input).has_focus)
        assert "Search" not in [key.label for key in on.chat.query_one(KeyBar)._keys()]  # it would be typed
        await on.pilot.press(*"moon it")
        await on.until(lambda: len(rows(on)) == 1 and "moon it is" in rows(on)[0])
        on.chat.query_one(SessionsRail).query_one(Input).value = ""
        await on.until(lambda: len(rows(on)) == 3)

    stage.play(stage.script("Hi."), act)


@pytest.mark.parametrize("is_open", [False, True])
def test_what_a_search_found_is_looked_at(stage: Stage, is_open: bool) -> None:
    turns = [Turn(role=("user", "assistant")[i % 2], content=f"word {i} ends") for i in range(60)]
    stage.store.create_session(model="demo", title="long", turns=turns)

    async def find(on: Stage, words: str) -> None:
        on.chat.query_one(SessionsRail).query_one(Input).value = words
        await on.until(lambda: any(words in row for row in rows(on)))
        await on.pilot.press("enter", "enter")

    def is_seen(on: Stage, words: str) -> bool:
        return any(words in entry.text for entry in on.chat.transcript.shown_entries if isinstance(entry, Question))

    async def act(on: Stage) -> None:
        await on.until(lambda: len(rows(on)) == 2)
        on.chat.action_search_chats()
        if is_open:
            await find(on, "word 59 ends")
            await on.until(lambda: len(on.said) == 60)
            on.chat.action_search_chats()
        await find(on, "word 6 ends")
        await on.until(lambda: is_seen(on, "word 6 ends"))
        assert not is_seen(on, "word 58 ends")
        assert on.chat.box.prompt.has_focus

    stage.play(stage.script("Hi."), act)


def test_escape_ends_a_search_and_then_leads_to_the_prompt(stage: Stage) -> None:
    keep(stage, "tides", "moon")

    async def act(on: Stage) -> None:
        await on.until(lambda: len(rows(on)) == 3)
        on.chat.action_search_chats()
        await on.pilot.press(*"moon it")
        await on.until(lambda: len(rows(on)) == 1)
        await on.pilot.press("escape")
        await on.until(lambda: len(rows(on)) == 3)
        assert not on.chat.box.prompt.has_focus
        await on.pilot.press("escape")
        assert on.chat.box.prompt.has_focus

    stage.play(stage.script("Hi."), act)


@pytest.mark.parametrize("width", [60, 80, 110, 120, 160])
def test_what_can_be_asked_and_the_keys_of_an_empty_chat_are_whole(stage: Stage, width: int) -> None:
    async def act(on: Stage) -> None:
        await on.ready()
        for part in (*EXAMPLES, "enter  send", "@      attach a file", "f6     how it answers"):
            assert any(part in strip for strip in strips(on))

    stage.play(stage.script("Hi."), act, (width, 40))


def test_why_there_is_nothing_to_chat_with_is_whole_in_the_smallest_terminal(stage: Stage) -> None:
    async def act(on: Stage) -> None:
        await on.ready()
        on.chat.query_one(EmptyChat).show_lent(f"/models/{'long-name-' * 20}.gguf")
        await on.pilot.pause()
        shown = " ".join(" ".join(strips(on)).split())
        assert "A benchmark has the machine: F3 shows it. Your first message after that loads it." in shown
        assert f"› {EXAMPLES[0]}" in shown

    stage.play(stage.script("Hi."), act, (40, 12))


@pytest.mark.parametrize("size", [(40, 20), (60, 20), (80, 24), (110, 32), (120, 40)])
def test_the_keys_under_the_prompt_are_whole_and_as_many_as_have_room(stage: Stage, size: tuple[int, int]) -> None:
    keys = ["enter send", "ctrl+j new line", "/ commands", "@ files"]

    async def act(on: Stage) -> None:
        await on.ready()
        hint = on.chat.query_one(Hint)

        def has_as_many_as_fit() -> bool:
            fitting = [
                " · ".join(keys[:n]) for n in (4, 3, 2, 1) if text_width(" · ".join(keys[:n])) <= hint.size.width
            ]
            return on.hint == fitting[0]

        for now in (size, (40, 20), size):
            await on.pilot.resize_terminal(*now)
            await on.until(has_as_many_as_fit)
        assert size[0] not in (60, 80) or keys[-1] in on.hint  # the context's numbers do not crowd it out

    stage.play(stage.script("Hi."), act, size)


@pytest.mark.parametrize("read_s", [0.0, 0.5])
def test_what_is_told_under_the_prompt_goes_soon_when_it_is_old_news(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, read_s: float
) -> None:
    monkeypatch.setattr("runner.tui.widgets.hint._TOLD_FOR_S", 3600.0)
    monkeypatch.setattr("runner.tui.widgets.hint._READ_S", read_s)

    async def act(on: Stage) -> None:
        await on.ready()
        on.chat.tell("The answer before comes first.")
        hint = on.chat.query_one(Hint)
        hint.show("answering")
        hint.show("ready")
        assert read_s == 0 or "comes first" in on.hint
        await on.until(lambda: "enter send" in on.hint, "old news stay")

    stage.play(stage.script("Hi."), act)


def test_what_is_told_under_the_prompt_has_room_for_two_lines(stage: Stage) -> None:
    said = "The model was not loaded: your message is in the prompt. F2 has other models."

    async def act(on: Stage) -> None:
        await on.ready()
        hint = on.chat.query_one(Hint)
        before = hint.region.height
        on.chat.tell(said)
        await on.pilot.pause()
        region = hint.region
        told = " ".join(line[region.x : region.right].strip() for line in strips(on)[region.y : region.bottom])
        assert told == said
        assert on.chat.region.contains_region(on.chat.box.region)
        hint._end_telling()
        await on.pilot.pause()
        assert hint.region.height == before

    for size in ((120, 40), (80, 24), (40, 12)):
        stage.play(stage.script("Hi."), act, size=size)


def test_renaming_and_deleting_ask_and_do_it(stage: Stage) -> None:
    keep(stage, "tides", "moon")

    async def act(on: Stage) -> None:
        await on.ready()
        await on.until(lambda: len(rows(on)) == 3)
        on.chat.query_one(SessionList).focus()
        await on.pilot.press("home", "down", "r")
        assert isinstance(on.app.screen, AskText)
        on.app.screen.query_one(Input).value = "a better name"
        await on.pilot.press("enter")
        await on.until(lambda: any("a better name" in row for row in rows(on)))
        await on.pilot.press("d")
        assert isinstance(on.app.screen, Confirm)
        assert "2 messages" in on.shown("#detail")
        await on.pilot.press("escape", "d", "enter")
        await on.pilot.pause()
        assert len(rows(on)) == 3, "what is gone for good is not deleted by Enter"
        await on.pilot.press("d", "y")
        await on.until(lambda: len(rows(on)) == 2)

    stage.play(stage.script("Hi."), act)
    assert len(stage.store.sessions()) == 1


def test_the_open_chat_is_renamed_and_deleted_too(stage: Stage) -> None:
    async def act(on: Stage) -> None:
        await on.ready()
        await on.ask("hello")
        on.chat.action_rename_chat()
        await on.pilot.pause()
        on.app.screen.query_one(Input).value = "greeting"
        await on.pilot.press("enter")
        await on.until(lambda: any("greeting" in row for row in rows(on)))
        assert on.chat.engine.conversation.title == "greeting"
        on.chat.action_delete_chat()
        await on.pilot.pause()
        await on.pilot.press("y")
        await on.until(lambda: on.said == [] and not stage.store.sessions())

    stage.play(stage.script("Hi."), act)


def test_taking_back_the_only_message_takes_the_chat_from_the_list(stage: Stage) -> None:
    async def act(on: Stage) -> None:
        await on.ready()
        await on.ask("hello")
        await on.until(lambda: any("hello" in row for row in rows(on)))
        on.chat.action_undo()
        await on.pilot.pause()
        assert isinstance(on.app.screen, Confirm)
        await on.pilot.press("escape")
        assert on.said
        on.chat.action_undo()
        await on.pilot.pause()
        await on.pilot.press("enter")
        await on.until(lambda: on.said == [] and not any("hello" in row for row in rows(on)))

    stage.play(stage.script("Hi."), act)


def test_f2_in_the_list_of_chats_leads_to_the_models_as_everywhere(stage: Stage) -> None:
    keep(stage, "tides")

    async def act(on: Stage) -> None:
        await on.until(lambda: len(rows(on)) == 2)
        on.chat.query_one(SessionsRail).focus_list()
        await on.pilot.press("f2")
        await on.until(lambda: on.app.current_mode == "models")

    stage.play(stage.script("Hi."), act)


def test_opening_another_chat_during_an_answer_asks_and_stops_it(stage: Stage) -> None:
    keep(stage, "tides")

    async def act(on: Stage) -> None:
        await on.ready()
        await on.type("talk")
        await on.until(lambda: on.chat.transcript.copy_answer().startswith("word"))
        on.chat.resume(stage.store.sessions()[-1].id)
        await on.pilot.pause()
        assert isinstance(on.app.screen, Confirm)
        await on.pilot.press("enter")
        await on.until(lambda: on.said == ["about tides", "tides it is"])

    stage.play(stage.script(LONG), act)
    kept = {summary.title: summary.n_turns for summary in stage.store.sessions()}
    assert kept == {"talk": 2, "tides": 2}


def test_five_thousand_chats_are_listed_page_by_page(stage: Stage) -> None:
    keep(stage, *(f"chat {n}" for n in range(50)))
    every = stage.store.sessions() * 100

    async def act(on: Stage) -> None:
        await on.until(lambda: len(rows(on)) == 51)
        rail = on.chat.query_one(SessionsRail)
        rail.show(every, None, date.today())
        await on.pilot.pause()
        assert len(rows(on)) < 250
        on.chat.query_one(SessionList).focus()
        await on.pilot.press("end")
        await on.until(lambda: len(rows(on)) > 300)

    stage.play(stage.script("Hi."), act)


@pytest.mark.parametrize("size", [(200, 60), (120, 40), (80, 24), (40, 12)])
def test_every_size_has_transcript_and_prompt_and_rails_by_key(stage: Stage, size: tuple[int, int]) -> None:
    async def act(on: Stage) -> None:
        await on.ready()
        await on.ask("hello")
        chat, is_cramped = on.chat, size[0] < 100
        chat.query_one(LeftRail).show_jobs([Job(id="1", kind="pull", model="a/b", state="done", message="made\n" * 9)])
        for _ in range(2):
            for widget in (chat.query_one(Transcript), chat.query_one(PromptBox)):
                assert chat.region.contains_region(widget.region)
                assert widget.region.width >= 30
                assert widget.region.height >= 1
            left, right = chat.query_one(LeftRail), chat.query_one("#live-rail")
            assert left.display is right.display is not is_cramped
            assert chat.query_one("#status-line").display is is_cramped
            await on.pilot.press("f7")
            assert left.display is is_cramped
            if is_cramped:
                assert chat.query_one(SessionList).region.height >= 2
                await on.pilot.press("f8")
                assert (left.display, right.display) == (False, True)
                await on.pilot.press("escape")
                assert not right.display
            else:
                await on.pilot.press("f7")
        assert chat.query_one(ContextMeter).region.right <= size[0]

    stage.play(stage.script("Hi."), act, size)
