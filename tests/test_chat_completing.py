"""What follows what is typed: commands, their arguments, paths; and the files that a message mentions."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.chat_commands import COMMANDS, as_message, is_command, parse_command
from runner.chat_completing import Asked, asked, offers, path_offers
from runner.errors import UsageError
from runner.tui.slash import FUNCTIONS


def offered(text: str, *, models: tuple[str, ...] = ()) -> list[str]:
    wanted = asked(text)
    return [offer.text for offer in offers(wanted, models)] if wanted else []


def paths(text: str, directory: Path) -> list[str]:
    wanted = asked(text)
    assert wanted is not None
    return [offer.text for offer in path_offers(wanted, directory)]


def test_the_commands_here_are_those_of_the_command_line() -> None:
    assert list(FUNCTIONS) == [words.name for words in COMMANDS]


def test_commands_are_completed_with_a_space_where_something_follows() -> None:
    assert offered("/s") == ["/system ", "/set ", "/show ", "/save ", "/stats"]
    assert offered("/UNDO") == ["/undo"]
    assert offered("what /s") == []
    assert offered("//s") == []


def test_arguments_are_completed_for_each_command_in_its_own_way() -> None:
    assert offered("/model q", models=("demo", "qwen3-8b", "big-q4")) == ["qwen3-8b", "big-q4"]
    assert offered("/set top_") == ["top_k ", "top_p "]
    assert offered("/set overflow ") == ["stop", "drop"]
    assert offered("/set think h") == ["high"]
    assert offered("/set kv-type q") == offered("/set --kv_type q") == ["q8_0"]
    assert offered("/set ngl ") == ["auto", "all"]
    assert offered("/set temperature 0") == offered("/set nonsense ") == []
    assert offered("/show t") == ["template"]
    assert offered("/think h") == ["high", "hide"]
    assert offered("/undo x") == []


def test_paths_are_listed_directories_first_and_hidden_files_on_demand(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "main.py").write_text("")
    for name in ("setup.py", ".secret", "my notes.txt"):
        (tmp_path / name).write_text("")
    assert paths("see @s", tmp_path) == ["@src/", "@setup.py "]
    assert paths("see @src/", tmp_path) == ["@src/main.py "]
    assert paths("@.", tmp_path) == ["@.secret "]
    assert paths("@my", tmp_path) == ['@"my notes.txt" ']
    assert paths('@"my n', tmp_path) == ['@"my notes.txt" ']
    assert paths("/read se", tmp_path) == ["setup.py"]
    assert paths("/export m", tmp_path) == ["md", "my notes.txt"]
    assert paths("@nowhere/x", tmp_path) == []


def test_an_at_sign_within_a_word_asks_for_nothing() -> None:
    assert asked("me@home") is None
    assert asked("a @") == Asked("mention", "", 2)


def test_what_a_typed_line_means() -> None:
    assert is_command(" /set x")
    assert not is_command("//set x")
    assert as_message("//usr/bin") == "/usr/bin"
    assert as_message('"""\none\ntwo\n"""') == "one\ntwo"
    assert parse_command("/SYSTEM\nbe\nbrief").argument == "be\nbrief"
    with pytest.raises(UsageError, match="no command"):
        parse_command("/sett")
    with pytest.raises(UsageError, match="takes nothing"):
        parse_command("/undo now")
