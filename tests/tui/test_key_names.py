"""Keys have the names that people know."""

from __future__ import annotations

import pytest

from runner.tui.key_names import key_names


@pytest.mark.parametrize(
    ("keys", "shown"),
    [
        ("", ""),
        ("f1", "F1"),
        ("f12", "F12"),
        ("ctrl+o", "^o"),
        ("slash", "/"),
        ("question_mark", "?"),
        ("escape,n", "Esc, n"),
        ("shift+tab", "Shift+Tab"),
        ("ctrl+shift+up", "Shift+^↑"),
        ("f", "f"),
    ],
)
def test_a_key_is_shown_as_people_know_it(keys: str, shown: str) -> None:
    assert key_names(keys) == shown
