"""The themes: text can be read on every ground, the cursor is seen, and a terminal starts with one that suits it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from one_screen import OneScreen, running
from staged_app import on_stage, settle, with_model
from textual.color import Color
from textual.command import CommandList
from textual.pilot import Pilot
from textual.screen import Screen
from textual.theme import Theme
from textual.widget import Widget
from textual.widgets import OptionList

from runner.tui import themes
from runner.tui.app import RunnerApp
from runner.tui.widgets.completions import Completions
from runner.tui.widgets.prompt import Prompt
from runner.tui.widgets.tick import Tick
from runner.tui.widgets.transcript import Transcript

_TEXTS = (
    "foreground", "text-muted", "text-disabled", "primary", "secondary", "accent", "success", "warning", "error",
    "text-primary", "text-accent", "text-success", "text-warning", "text-error", "footer-key-foreground",
)  # fmt: skip
_GROUNDS = ("background", "surface", "panel", "footer-background", "scrollbar-background")
_PAIRS = (
    ("block-cursor-foreground", "block-cursor-background"),
    ("block-cursor-blurred-foreground", "block-cursor-blurred-background"),
    ("foreground", "block-hover-background"),
    ("input-selection-foreground", "input-selection-background"),
    ("text-muted", "block-cursor-blurred-background"),
    ("text-muted", "block-cursor-background"),
)
_WITH_COLOURS = [theme for theme in themes.THEMES if not theme.ansi]


def contrast(one: str, other: str) -> float:
    """The contrast ratio of WCAG 2.2, from 1 to 21."""

    def luminance(colour: Color) -> float:
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour.normalized]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    dark, light = sorted((luminance(Color.parse(one)), luminance(Color.parse(other))))
    return (light + 0.05) / (dark + 0.05)


def colours(theme: Theme) -> dict[str, str]:
    return theme.to_color_system().generate()


@pytest.mark.parametrize("theme", _WITH_COLOURS, ids=lambda theme: theme.name)
def test_text_has_a_contrast_of_at_least_four_and_a_half_on_every_ground(theme: Theme) -> None:
    named = colours(theme)
    pairs = [(text, ground) for text in _TEXTS for ground in _GROUNDS] + list(_PAIRS)
    for text, ground in pairs:
        found = contrast(named[text], named[ground])
        assert found >= 4.5, f"{text} on {ground} has {found:.2f}"


@pytest.mark.parametrize("theme", _WITH_COLOURS, ids=lambda theme: theme.name)
def test_a_cursor_that_has_the_focus_differs_from_one_that_has_not(theme: Theme) -> None:
    named = colours(theme)
    assert named["block-cursor-background"] != named["block-cursor-blurred-background"]
    assert named["border"] != named["border-blurred"]


def test_frames_and_scrollbars_are_seen_on_a_light_ground() -> None:
    named = colours(next(theme for theme in themes.THEMES if theme.name == themes.LIGHT))
    lines = [("border-blurred", "background"), ("border-blurred", "surface"), ("scrollbar", "scrollbar-background")]
    for line, ground in lines:
        assert contrast(named[line], named[ground]) >= 3, f"{line} on {ground}"


def test_ansi_has_the_terminals_own_colours_alone() -> None:
    theme = next(theme for theme in themes.THEMES if theme.name == themes.ANSI)
    for name in (*_TEXTS, *_GROUNDS, "border", "block-cursor-background", "text", "scrollbar"):
        value = colours(theme).get(name, "ansi_default")
        assert value.startswith("ansi_") or value == "transparent", f"{name} is {value}"


@pytest.mark.parametrize("theme", _WITH_COLOURS, ids=lambda theme: theme.name)
def test_what_fields_offer_and_what_completes_a_word_can_be_read(theme: Theme, stage: Callable[[], RunnerApp]) -> None:
    async def play(pilot: Pilot[int]) -> None:
        app = pilot.app
        app.theme = theme.name
        await with_model(pilot)
        await pilot.press("/")
        await settle(pilot)
        assert least_contrast(app.screen.query_one(Completions)) >= 4.5
        await pilot.press("backspace", "f6")
        await settle(pilot)
        for field in app.screen.query("Input, TextArea"):
            field.focus()
            await pilot.pause()
            assert least_contrast(field) >= 4.5, field
        await pilot.press("escape")
        await settle(pilot)
        assert least_contrast(app.screen.query_one(Prompt)) >= 4.5

    on_stage(stage(), (120, 40), play)


@pytest.mark.parametrize("theme", _WITH_COLOURS, ids=lambda theme: theme.name)
def test_a_chat_the_palette_and_what_is_to_be_chosen_for_bench_can_be_read(
    theme: Theme, stage: Callable[[], RunnerApp]
) -> None:
    async def play(pilot: Pilot[int]) -> None:
        app = pilot.app
        app.theme = theme.name
        await with_model(pilot)
        app.screen.resume(app.services.store.latest().id)
        await settle(pilot)
        transcript = app.screen.query_one(Transcript)
        assert least_contrast(transcript) >= 4.5
        assert least_contrast(transcript, _is_line) >= 3
        await pilot.press("ctrl+p")
        await settle(pilot)
        assert least_contrast(app.screen.query_one(CommandList)) >= 4.5
        await pilot.press("escape", "f3")
        await settle(pilot)
        for box in app.screen.query(Tick):
            assert least_contrast(box, "[X]".__contains__) >= 4.5, box
        assert least_contrast(app.screen.query_one(".down-arrow"), "▼".__contains__) >= 3

    on_stage(stage(), (120, 40), play)


def test_ansi_leaves_no_word_on_the_cursor_in_the_terminals_own_colour(stage: Callable[[], RunnerApp]) -> None:
    """It is black in a light terminal, and the cursor is blue."""

    async def play(pilot: Pilot[int]) -> None:
        app = pilot.app
        app.theme = themes.ANSI
        await pilot.press("f2")
        await settle(pilot)
        for key, kind in (("q", OptionList), ("ctrl+p", CommandList)):
            await pilot.press(key)
            await settle(pilot)
            listed = app.screen.query_one(kind)
            parts = [part for strip in listed.render_lines(listed.outer_size.region) for part in strip]
            under = [part for part in parts if part.text.strip() and part.style.bgcolor.number == 4]
            assert under
            assert not [part.text for part in under if part.style.color.is_default]
            await pilot.press("escape")

    on_stage(stage(), (120, 40), play)


def _is_line(letter: str) -> bool:
    return letter in "─▎│━"


def least_contrast(widget: Widget, is_meant: Callable[[str], bool] = str.isalnum) -> float:
    """Of all the words, or what else is meant, that the widget shows."""
    strips = widget.render_lines(widget.outer_size.region)
    styles = [part.style for strip in strips for part in strip if any(map(is_meant, part.text))]
    assert styles
    return min(contrast(*(ground.get_truecolor().hex for ground in (style.color, style.bgcolor))) for style in styles)


@pytest.mark.parametrize("name", themes.NAMES)
def test_every_theme_can_be_used(name: str) -> None:
    app = OneScreen(Screen)

    async def body(pilot: Pilot[None]) -> None:
        app.theme = name
        await pilot.pause()
        assert app.current_theme.name == name
        assert app.native_ansi_color == (name == themes.ANSI)

    running(app, body)


def test_the_themes_follow_each_other_around() -> None:
    assert [themes.after(name) for name in themes.NAMES] == [*themes.NAMES[1:], themes.NAMES[0]]
    assert themes.after("somebody's own") == themes.DARK
    assert themes.after(themes.DARK, is_without_colour=True) == themes.ANSI


@pytest.mark.parametrize(
    ("environ", "name"),
    [
        ({"COLORTERM": "truecolor", "TERM": "xterm"}, themes.DARK),
        ({"TERM": "xterm-256color"}, themes.DARK),
        ({"TERM": "xterm-kitty"}, themes.DARK),
        ({"TERM": "xterm-256color", "COLORFGBG": "0;15"}, themes.LIGHT),
        ({"TERM": "xterm-256color", "COLORFGBG": "0;default;7"}, themes.LIGHT),
        ({"TERM": "xterm-256color", "COLORFGBG": "15;0"}, themes.DARK),
        ({"TERM": "xterm-256color", "COLORFGBG": "15;8"}, themes.DARK),
        ({"TERM": "xterm-256color", "COLORFGBG": "what;ever"}, themes.DARK),
        ({"TERM": "linux"}, themes.ANSI),
        ({"TERM": "vt100"}, themes.ANSI),
        ({}, themes.ANSI),
    ],
)
def test_a_terminal_starts_with_what_it_says_of_itself(environ: dict[str, str], name: str) -> None:
    assert themes.chosen("", environ=environ) == name


def test_what_was_chosen_comes_before_what_the_terminal_says_and_no_colour_before_that() -> None:
    assert themes.chosen(themes.LIGHT, environ={"TERM": "linux"}) == themes.LIGHT
    assert themes.chosen("gone", environ={"TERM": "xterm-256color"}) == themes.DARK
    assert themes.chosen(themes.LIGHT, is_without_colour=True) == themes.ANSI


def test_no_colour_takes_every_colour_out_and_leaves_an_underlined_cursor(monkeypatch: pytest.MonkeyPatch) -> None:
    from textual.app import App, ComposeResult
    from textual.widgets import OptionList

    assert themes.native_colours({}) is None
    monkeypatch.setenv("NO_COLOR", "1")

    class Listed(App[None]):
        def compose(self) -> ComposeResult:
            yield OptionList("one", "two")

    async def run() -> None:
        app = Listed(ansi_color=themes.native_colours())
        themes.register(app)
        app.theme = themes.chosen("", is_without_colour=app.no_color)
        async with app.run_test(size=(20, 6)) as pilot:
            await pilot.pause()
            strips = [strip for strip in app.screen._compositor.render_strips() if "one" in strip.text]
            shown = strips[0].apply_filter(app._filters[-1], Color(0, 0, 0)) if app._filters else strips[0]
            styles = [segment.style for segment in shown if "one" in segment.text]
            assert styles[0] is not None
            assert styles[0].underline
            assert styles[0].color is None or styles[0].color.is_default
            assert styles[0].bgcolor is None or styles[0].bgcolor.is_default

    asyncio.run(run())
