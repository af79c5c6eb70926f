"""The table of actions: every row does something, no key does two things, and the documentation has all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from runner.tui.actions import ACTIONS, Action, Where, actions_of, reference
from runner.tui.app import RunnerApp
from runner.tui.messages import MODES
from runner.tui.screens.bench import BenchScreen
from runner.tui.screens.chat import ChatScreen
from runner.tui.screens.doctor import DoctorScreen
from runner.tui.screens.models import ModelsScreen
from runner.tui.widgets.transcript import Transcript

OWNERS: dict[Where, type] = {
    "app": RunnerApp,
    "chat": ChatScreen,
    "transcript": Transcript,
    "models": ModelsScreen,
    "bench": BenchScreen,
    "doctor": DoctorScreen,
}
ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize("action", ACTIONS, ids=lambda action: f"{action.where}-{action.name}")
def test_every_row_is_a_method_of_its_owner(action: Action) -> None:
    assert hasattr(OWNERS[action.where], f"action_{action.name.partition('(')[0]}")
    assert action.help.endswith((".", "?"))


@pytest.mark.parametrize("where", OWNERS)
def test_no_key_does_two_things_in_one_place(where: Where) -> None:
    rows = {*actions_of("app"), *actions_of(where)}
    keys = Counter(key for row in rows for key in f"{row.keys},{row.plain}".split(",") if key)
    assert [key for key, count in keys.items() if count > 1] == []


def test_every_mode_is_there_and_has_a_key(stage: Callable[[], RunnerApp]) -> None:
    assert {f"mode('{mode}')" for mode in MODES} == {row.name for row in actions_of("app") if "mode(" in row.name}
    assert set(MODES) == set(stage()._modes) == OWNERS.keys() - {"app", "transcript"}


def test_the_documentation_has_the_table() -> None:
    assert reference() in (ROOT / "docs" / "TUI.md").read_text(encoding="utf-8")
