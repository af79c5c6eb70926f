"""The prompts of earlier chats, where the disk takes no more of them."""

from __future__ import annotations

import resource
from pathlib import Path

from runner.prompt_history import history


def test_a_prompt_that_the_disk_has_no_room_for_is_no_error(tmp_path: Path) -> None:
    file = tmp_path / "prompts"
    kept = history(file)
    kept.append_string("one")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file.stat().st_size, limits[1]))
    try:
        kept.append_string("two")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert kept.get_strings() == ["one", "two"]
    assert list(history(file).load_history_strings()) == ["one"]
