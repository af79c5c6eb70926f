"""The prompts of earlier chats, where the disk takes no more of them."""

from __future__ import annotations

from pathlib import Path

from disk_limits import file_size_limit

from runner.prompt_history import history


def test_a_prompt_that_the_disk_has_no_room_for_is_no_error(tmp_path: Path) -> None:
    file = tmp_path / "prompts"
    kept = history(file)
    kept.append_string("one")
    with file_size_limit(file.stat().st_size):
        kept.append_string("two")
    assert kept.get_strings() == ["one", "two"]
    assert list(history(file).load_history_strings()) == ["one"]
