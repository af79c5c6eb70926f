"""An update of a region sends that region: what stands left of it is left alone."""

from __future__ import annotations

import random

import pyte
import pytest
from rich.console import Console
from rich.segment import Segment
from textual import _compositor
from textual.strip import Strip

from runner.tui.narrowing import NarrowUpdate, install

WIDTH, HEIGHT = 40, 6
BELOW = "." * WIDTH


def strip(text: str) -> Strip:
    return Strip([Segment(part) for part in (text[:3], text[3:]) if part])


def shown(update: _compositor.ChopsUpdate) -> list[str]:
    """A screen full of points, and the update on it."""
    screen = pyte.Screen(WIDTH, HEIGHT)
    stream = pyte.Stream(screen)
    stream.feed("\r\n".join([BELOW] * HEIGHT))
    stream.feed(update.render_segments(Console(force_terminal=True)))
    return screen.display


def test_a_region_in_the_middle_of_a_widget_is_cut_at_both_edges() -> None:
    line = {0: strip("abcdefghij"), 10: strip("ABCDEFGHIJKLMNOPQRSTUVWXYZ0123")}
    update = NarrowUpdate([line] * HEIGHT, [(2, 4, 15)], [[10, 40]] * HEIGHT)
    assert shown(update) == [BELOW, BELOW, "....efghijABCDE" + "." * 25, BELOW, BELOW, BELOW]
    assert "a" not in update.render_segments(Console(force_terminal=True))


def test_what_is_to_be_seen_in_a_region_is_what_textual_shows_there() -> None:
    dice = random.Random(3)
    for _ in range(200):
        cuts = sorted({0, *dice.sample(range(1, WIDTH), 3)})
        ends = [*cuts[1:], WIDTH]
        text = "".join(dice.choices("abcdefgh", k=WIDTH))
        line = {x: strip(text[x:end]) if dice.random() < 0.9 else None for x, end in zip(cuts, ends, strict=True)}
        left, right = sorted(dice.sample(range(WIDTH + 1), 2))
        given = ([line] * HEIGHT, [(1, left, right)], [ends] * HEIGHT)
        mine, theirs = shown(NarrowUpdate(*given))[1], shown(_compositor.ChopsUpdate(*given))[1]
        assert mine[left:right] == theirs[left:right]
        assert mine[:left] + mine[right:] == "." * (WIDTH - right + left)


def test_wide_characters_keep_their_places() -> None:
    line = {0: strip("一二三四五六七八九十" * 2)}
    update = NarrowUpdate([line] * HEIGHT, [(0, 4, 8)], [[40]] * HEIGHT)
    assert shown(update)[0].startswith("....三")
    assert shown(update)[0].endswith("." * (WIDTH - 8))


def test_textual_uses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_compositor, "ChopsUpdate", object)
    install()
    assert _compositor.ChopsUpdate is NarrowUpdate
