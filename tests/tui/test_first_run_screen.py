"""The first run: the demo by Enter, a model that fits by one key, offline said, and never shown to who has chats."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from chat_stage import Stage, stage
from one_screen import HOSTILE, SIZES, OneScreen, running, seen, services, until
from textual import events
from textual.pilot import Pilot
from textual.widgets import OptionList

from runner.registry import ModelSpec, Registry
from runner.tui.first_models import N_OFFERED, offers
from runner.tui.messages import GoTo, Write
from runner.tui.screens.first_run import FirstRun, is_first_run
from runner.types import Device

__all__ = ["stage"]  # the fixture
GIB = 2**30


def memory(free_gib: float, kind: Any = "cpu") -> Device:
    return Device(kind=kind, index=0, name="x", total_bytes=round(free_gib * GIB), free_bytes=round(free_gib * GIB))


@pytest.mark.parametrize("free_gib", [2.5, 4, 8, 16, 24, 48, 80, 141])
@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_what_is_offered_fits_and_there_is_something_to_choose(free_gib: float, kind: str) -> None:
    machine = [*([memory(free_gib, kind)] if kind != "cpu" else []), memory(free_gib)]
    found = offers(Registry.load_for().specs, machine)
    assert 1 <= len(found) <= N_OFFERED
    assert all(offer.need_bytes <= offer.free_bytes for offer in found)
    assert all(later.size_bytes <= 0.6 * earlier.size_bytes for earlier, later in pairwise(found))
    assert all(offer.is_on_gpu == (kind != "cpu") for offer in found)


def test_a_processor_is_not_offered_what_it_would_be_slow_with() -> None:
    specs = Registry.load_for().specs
    assert max(offer.size_bytes for offer in offers(specs, [memory(500)])) <= 6e9
    assert max(offer.size_bytes for offer in offers(specs, [memory(141, "cuda"), memory(500)])) > 6e9


def test_nothing_is_offered_where_nothing_fits_and_files_of_this_machine_never() -> None:
    assert offers(Registry.load_for().specs, [memory(0.2)]) == ()
    here = ModelSpec(name="mine", path=Registry.load_for().resolve("demo").path, parameters=10**9, quant="Q8_0")
    assert offers([here], [memory(64)]) == ()


def test_it_is_the_first_run_until_a_chat_is_kept_or_another_model_is_asked_for() -> None:
    given = services()
    assert is_first_run(given)
    assert not is_first_run(services(model="qwen3-8b"))
    assert given.store is not None
    given.store.create_session(model="demo", title="a chat")
    assert not is_first_run(given)
    given.store.close()


def test_a_model_made_here_ends_the_first_run() -> None:
    given = services()
    model = given.paths.models / "mine"
    model.mkdir(parents=True)
    (model / "mine.gguf").write_bytes(b"GGUF" + bytes(100))
    assert not is_first_run(given)


@pytest.mark.parametrize("size", SIZES)
def test_enter_opens_the_demo(size: tuple[int, int]) -> None:
    app = OneScreen(lambda: FirstRun(services()))

    async def body(pilot: Pilot[Any]) -> None:
        assert "demo" in seen(app)
        await pilot.press("enter")
        await pilot.pause()
        assert app.result == "demo"

    running(app, body, size)


@pytest.mark.parametrize("size", SIZES)
def test_a_number_takes_a_model_that_fits(size: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.tui.screens.first_run.devices", lambda: (memory(16),))
    wanted = [offer.spec.name for offer in offers(Registry.load_for().specs, [memory(16)])]
    app = OneScreen(lambda: FirstRun(services(is_offline=False)))

    async def body(pilot: Pilot[Any]) -> None:
        await until(pilot, lambda: app.screen.query_one(OptionList).option_count == 1 + N_OFFERED)
        assert all(name in seen(app) for name in wanted)
        await pilot.press("2")
        await pilot.pause()
        assert app.result == wanted[1]

    running(app, body, size)


def test_all_models_are_one_key_away() -> None:
    app = OneScreen(lambda: FirstRun(services()))

    async def body(pilot: Pilot[Any]) -> None:
        await pilot.press("f2")
        await pilot.pause()
        assert app.result is None
        assert app.wishes == [GoTo("models")]

    running(app, body)


def test_who_writes_has_chosen_to_chat() -> None:
    app = OneScreen(lambda: FirstRun(services()))

    async def body(pilot: Pilot[Any]) -> None:
        await pilot.press("h", "i")
        await pilot.pause()
        assert app.result is None
        assert app.wishes == [Write("h")]  # the rest went to the field

    running(app, body)


def test_what_is_written_in_the_first_run_is_in_the_prompt(stage: Stage) -> None:
    async def act(on: Stage) -> None:
        await on.until(lambda: isinstance(on.app.screen, FirstRun), "it is not the first run")
        for key in "hi 123":
            on.app.post_message(events.Key("space" if key == " " else key, key))  # at once, as a terminal has kept them
        await on.until(lambda: on.chat.box.prompt.text == "hi 123", "it is not in the prompt, or not all of it")
        assert on.app.screen is on.chat
        assert on.chat.engine.state == "empty"

    stage.play("demo", act)


def test_a_pasted_text_is_written_too() -> None:
    app = OneScreen(lambda: FirstRun(services()))

    async def body(pilot: Pilot[Any]) -> None:
        app.screen.post_message(events.Paste("what is a monad?\nbriefly"))
        await pilot.pause()
        assert app.result is None
        assert app.wishes == [Write("what is a monad?\nbriefly")]

    running(app, body)


def test_offline_is_said_and_what_needs_a_network_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.tui.screens.first_run.devices", lambda: (memory(16),))
    app = OneScreen(lambda: FirstRun(services(is_offline=True)))

    async def body(pilot: Pilot[Any]) -> None:
        await until(pilot, lambda: "Offline" in seen(app))
        await pilot.press("1")
        await pilot.pause()
        assert app.result == "nothing yet"
        await pilot.press("escape")
        await pilot.pause()
        assert app.result is None

    running(app, body)


def test_a_registry_that_cannot_be_read_is_said_as_it_stands() -> None:
    given = services()
    given.paths.user_models_file.parent.mkdir(parents=True)
    given.paths.user_models_file.write_text(f'["{"x"}"]\npath = 7 # {HOSTILE[:5]}\n')
    app = OneScreen(lambda: FirstRun(given))

    async def body(pilot: Pilot[Any]) -> None:
        await until(pilot, lambda: "models.toml" in seen(app))
        await pilot.press("enter")
        await pilot.pause()
        assert app.result == "demo"

    running(app, body)
