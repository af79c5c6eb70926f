"""What the interface remembers: written whole and private, read as far as it makes sense."""

from __future__ import annotations

import json
import stat

import pytest

from runner.paths import Paths, user_paths
from runner.tui import remembered
from runner.tui.remembered import Memory, Remembered, read_remembered, remembered_file, write_remembered

OTHER = Remembered(theme="runner-light", left_rail=False, right_rail=False, tint=False)


def test_what_was_written_is_read() -> None:
    paths = user_paths()
    assert read_remembered(paths) == Remembered()
    write_remembered(paths, OTHER)
    assert read_remembered(paths) == OTHER
    assert stat.S_IMODE(remembered_file(paths).stat().st_mode) == 0o600
    assert [one.name for one in paths.state.iterdir()] == ["tui.json"], "nothing half-written is left beside it"


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 20_000, b'"theme"'])
def test_a_damaged_file_is_as_good_as_none(content: bytes) -> None:
    paths = user_paths()
    write_remembered(paths, OTHER)
    remembered_file(paths).write_bytes(content)
    assert read_remembered(paths) == Remembered()


def test_values_that_make_no_sense_and_keys_that_nobody_knows_are_passed_over() -> None:
    paths = user_paths()
    write_remembered(paths, OTHER)
    plain = {"theme": 7, "left_rail": "no", "right_rail": False, "of_the_future": {"a": 1}}
    remembered_file(paths).write_text(json.dumps(plain))
    assert read_remembered(paths) == Remembered(right_rail=False)


def test_of_two_interfaces_each_writes_what_was_chosen_in_it() -> None:
    paths = user_paths()
    one, other = Memory(paths), Memory(paths)
    assert one.take(Remembered(theme="runner-light"))
    one.write()
    assert not other.take(other.known)
    assert other.take(Remembered(tint=False))
    other.write()
    one.write()
    assert read_remembered(paths) == Remembered(theme="runner-light", tint=False)
    assert one.take(Remembered())
    one.write()
    assert read_remembered(paths) == Remembered(tint=False)


def test_what_is_chosen_back_while_the_disk_is_slow_is_written_too(monkeypatch: pytest.MonkeyPatch) -> None:
    paths = user_paths()
    memory = Memory(paths)
    before = memory.known

    def chosen_back_meanwhile(paths: Paths, values: Remembered) -> bool:
        monkeypatch.setattr(remembered, "write_remembered", write_remembered)
        assert memory.take(before)
        return write_remembered(paths, values)

    monkeypatch.setattr(remembered, "write_remembered", chosen_back_meanwhile)
    assert memory.take(OTHER)
    memory.write()
    assert read_remembered(paths) == OTHER
    memory.write()
    assert read_remembered(paths) == before
    assert not memory.take(before)


def test_a_directory_that_cannot_be_written_ends_nothing_and_is_tried_again() -> None:
    paths = user_paths()
    paths.state.parent.mkdir(parents=True)
    paths.state.write_text("a file where the directory should be")
    memory = Memory(paths)
    assert memory.take(OTHER)
    memory.write()
    assert read_remembered(paths) == Remembered()
    paths.state.unlink()
    assert memory.take(OTHER)
    memory.write()
    assert read_remembered(paths) == OTHER
