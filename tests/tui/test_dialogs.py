"""Every dialog: each key that it has does something, none is shown that does not, and nothing is said over it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import pytest
from model_rows import row
from one_screen import OneScreen, running, said, seen, services, until
from textual.containers import VerticalScroll
from textual.pilot import Pilot
from textual.screen import ModalScreen
from textual.widgets import Static
from textual.widgets._toast import Toast

from runner.removal import Removal
from runner.tui import screens
from runner.tui.actions import bindings_of
from runner.tui.app import RunnerApp
from runner.tui.catalog import RowFit
from runner.tui.chat_settings import CHOICES, FIELDS
from runner.tui.model_offers import Offer
from runner.tui.screens.ask_text import AskText
from runner.tui.screens.choose_quant import ChooseQuant
from runner.tui.screens.compare_models import CompareModels
from runner.tui.screens.confirm import Confirm
from runner.tui.screens.delete_model import DeleteModel
from runner.tui.screens.doctor import DoctorScreen
from runner.tui.screens.first_run import FirstRun
from runner.tui.screens.help import HelpScreen
from runner.tui.screens.jump import JumpScreen
from runner.tui.screens.page import Page
from runner.tui.screens.quantize_model import QuantizeModel
from runner.tui.screens.question import Question
from runner.tui.screens.settings_panel import SettingsPanel
from runner.tui.widgets.key_bar import KeyBar

Dialog = ModalScreen[Any]
OFFER = Offer(name="m:Q4_K_M", label="Q4_K_M", size_bytes=10**9, is_exact=True, fit=RowFit())
REMOVAL = Removal(title="m", directory=Path("/m"), disk_bytes=10**9)
LONG = "\n".join(f"line {number}" for number in range(40))
DEFAULTS = {name: CHOICES[name][0] if name in CHOICES else "1" for name in FIELDS}


class Below(OneScreen):
    """A mode with every key of the app."""

    BINDINGS = bindings_of("app")


def below() -> Below:
    return Below(lambda: DoctorScreen(services()))


def dialogs(app: Below) -> dict[type[Dialog], Callable[[], Dialog]]:
    return {
        AskText: lambda: AskText("Which?"),
        ChooseQuant: lambda: ChooseQuant("Which?", "", lambda: [OFFER]),
        CompareModels: lambda: CompareModels(row("a"), row("b")),
        Confirm: lambda: Confirm("Really?", LONG),
        DeleteModel: lambda: DeleteModel("m", lambda: [REMOVAL] * 30, Path("no engines")),
        FirstRun: lambda: FirstRun(services(is_offline=False)),
        HelpScreen: lambda: HelpScreen("chat"),
        JumpScreen: lambda: JumpScreen(app.screen),
        Page: lambda: Page("page", "text"),
        QuantizeModel: lambda: QuantizeModel(row("m"), (), dict),
        SettingsPanel: lambda: SettingsPanel(
            "", {**DEFAULTS, "temperature": "0.5", "top_k": "2"}, DEFAULTS, "what is usual", is_tinted=True
        ),
    }


def keys_of(dialog: type[Dialog]) -> Iterator[str]:
    """As the files have them, in that order: down before up."""
    for one in dialog.__mro__:
        for binding in vars(one).get("BINDINGS", ()) if one.__module__.startswith(screens.__name__) else ():
            yield from binding.key.split(",")


def test_every_dialog_is_tried_here() -> None:
    modules = [import_module(f"{screens.__name__}.{found.name}") for found in iter_modules(screens.__path__)]
    there = {
        one
        for module in modules
        for one in vars(module).values()
        if isinstance(one, type) and issubclass(one, ModalScreen) and one.__module__ == module.__name__
    }
    assert there - {Question} == dialogs(below()).keys()


def test_every_key_of_a_dialog_does_something_and_the_bar_shows_none_that_does_nothing() -> None:
    app = below()

    async def opened(pilot: Pilot[Any], make: Callable[[], Dialog]) -> Dialog:
        app.push_screen(dialog := make())
        await pilot.app.workers.wait_for_complete()
        await pilot.pause()
        await pilot.pause()
        return dialog

    async def body(pilot: Pilot[Any]) -> None:
        await pilot.app.workers.wait_for_complete()
        bar = app.screen.query_one(KeyBar)
        for kind, make in dialogs(app).items():
            dialog = await opened(pilot, make)
            await until(pilot, lambda: not bar.children)
            keys = [*keys_of(kind), *(["enter"] if "enter" in seen(app).lower() else [])]
            for key in keys:
                if app.screen is not dialog:
                    dialog = await opened(pilot, make)
                before = seen(app), app.focused, len(app.wishes)
                await pilot.press(key)
                for _ in range(100):  # a dialog's list may come from a thread
                    await pilot.pause()
                    is_same = app.screen is dialog and (seen(app), app.focused, len(app.wishes)) == before
                    if not is_same:
                        break
                assert not is_same, f"{key} does nothing in {kind.__name__}"
            while app.screen.is_modal:
                await pilot.press("escape")
                await pilot.pause()
            await until(pilot, lambda: bool(bar.children))

    running(app, body, (60, 16))


@pytest.mark.parametrize("size", [(40, 12), (80, 24)])
@pytest.mark.parametrize("kind", [Confirm, DeleteModel])
def test_what_answers_a_question_is_seen_however_long_its_text_is(kind: type[Dialog], size: tuple[int, int]) -> None:
    app = below()

    async def body(pilot: Pilot[Any]) -> None:
        app.push_screen(dialogs(app)[kind]())
        await until(pilot, lambda: "Cancel" in seen(app) and app.screen.query_one(VerticalScroll).max_scroll_y > 0)
        last = app.screen.query_one("#detail", Static).render().plain.splitlines()[-1]
        assert last not in seen(app)
        for _ in range(12):
            if last not in seen(app):
                await pilot.press(*["down"] * 10)
        await until(pilot, lambda: last in seen(app))
        assert "Cancel" in seen(app)

    running(app, body, size)


@pytest.mark.parametrize("size", [(40, 12), (60, 20), (80, 24), (120, 40)])
def test_the_chosen_quantization_is_seen_under_the_longest_name(size: tuple[int, int]) -> None:
    offers = [dataclasses.replace(OFFER, name=f"m:Q{n}", label=f"Q{n}_K") for n in range(30)]
    name = "someone/" + "a-long-name-" * 7 + "GGUF"
    app = OneScreen(lambda: ChooseQuant(f"Fetch {name}: which of them?", "What it is good for. " * 5, lambda: offers))

    async def body(pilot: Pilot[Any]) -> None:
        await until(pilot, lambda: "Q0_K" in seen(app))
        await pilot.press("end")
        await until(pilot, lambda: "Q29_K" in seen(app) and "esc cancel" in seen(app))

    running(app, body, size)


def test_where_nothing_can_be_fetched_no_key_is_said_to_do_it() -> None:
    app = OneScreen(lambda: ChooseQuant("Which?", "", list))

    async def body(pilot: Pilot[Any]) -> None:
        await until(pilot, lambda: "nothing to fetch" in seen(app))
        assert "esc cancel" in seen(app)
        assert "enter fetch" not in seen(app)

    running(app, body)


@pytest.mark.parametrize(
    ("open_it", "shown"),
    [
        (lambda app: app.push_screen(Confirm("Really?")), "Really?"),
        (lambda app: app.action_command_palette(), "Search for commands"),
    ],
    ids=["question", "palette"],
)
@pytest.mark.parametrize("size", [(40, 12), (120, 40)])
def test_nothing_is_said_over_a_dialog_and_all_of_it_after_that(
    stage: Callable[[], RunnerApp], size: tuple[int, int], open_it: Callable[[RunnerApp], object], shown: str
) -> None:
    app = stage()

    async def body(pilot: Pilot[Any]) -> None:
        app.notify("before")
        await until(pilot, lambda: "before" in seen(app))
        open_it(app)
        await until(pilot, lambda: shown in seen(app))
        await until(pilot, lambda: len(app.screen.query(Toast)) == 1)
        app.notify("during")
        await pilot.pause()
        await pilot.pause()
        assert not any(toast.display for toast in app.screen.query(Toast))
        assert "during" not in seen(app)
        assert said(app) == ["before"]
        await pilot.press("escape")
        await until(pilot, lambda: "during" in seen(app))
        assert "before" in seen(app)

    running(app, body, size)
