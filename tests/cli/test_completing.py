"""What the shell completes, and that it takes nothing heavy, breaks on nothing, and offers only plain words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from test_startup import HEAVY, python

from runner.cli import completing
from runner.cli.app import COMMANDS, _load
from runner.paths import user_paths
from runner.store import Store


def words(offers: list[tuple[str, str]]) -> list[str]:
    return [word for word, _ in offers]


def parameters(command: Any) -> Iterator[Any]:
    yield from command.params
    for one in getattr(command, "commands", {}).values():
        yield from parameters(one)


@pytest.mark.parametrize("name", COMMANDS)
def test_whatever_takes_a_model_a_chat_or_a_format_completes_it(name: str) -> None:
    wanted = [one for one in parameters(_load(name)) if one.metavar in ("MODEL", "SOURCE", "REFERENCE", "ID", "FORMAT")]
    assert [one.name for one in wanted if one._custom_shell_complete is None] == []


def test_models_are_offered_those_here_first_and_each_once() -> None:
    (user_paths().models / "zeta-mq4").mkdir(parents=True)
    offered = completing.models("")
    assert words(offered)[0] == "demo"
    assert "on this machine" in dict(offered)["demo"]
    assert "qwen3-8b" in words(offered)
    assert len(set(words(offered))) == len(offered)
    assert words(completing.models_here("")) == ["demo"]  # of the other there is no file


def test_after_a_colon_what_a_model_has_is_offered() -> None:
    assert {"qwen3-8b:Q8_0", "qwen3-8b:safetensors"} <= set(words(completing.models("qwen3-8b:Q")))


def test_chats_are_offered_by_id_with_plain_titles() -> None:
    assert completing.chats("") == []
    with closing(Store(user_paths().database)) as store:
        session = store.create_session(model="m", title="it's [bold]$(x)[/bold]\\")
    assert completing.chats("") == [(session.id, "it s bold x bold")]


def test_formats_are_those_that_quantize_writes() -> None:
    assert {"mq4", "mq4-hipfire", "q4_k_m", "f32"} <= set(words(completing.formats("")))


def test_names_that_a_shell_could_run_are_not_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completing, "_here", lambda _: iter([("a$(b)", ""), ("two words", ""), ("o/r:Q8_0", "")]))
    assert words(completing.models_here("")) == ["o/r:Q8_0"]


def test_what_cannot_be_read_offers_nothing() -> None:
    paths = user_paths()
    paths.config.mkdir(parents=True)
    paths.user_models_file.write_text("broken [")
    paths.database.parent.mkdir(parents=True)
    paths.database.write_bytes(b"garbage " * 1000)
    assert completing.models("") == []
    assert completing.chats("") == []


@pytest.mark.parametrize(
    ("line", "offered"),
    [("runner chat de", "demo"), ("runner quantize demo --format mq8", "mq8"), ("runner sessions show x", "")],
)
def test_a_tab_prints_what_fits_and_imports_nothing_heavy(line: str, offered: str) -> None:
    program = (
        "import atexit, sys\n"
        f"atexit.register(lambda: print('LOADED', [name for name in {HEAVY!r} if name in sys.modules]))\n"
        "from runner.cli.app import main\nsys.exit(main([]))"
    )
    environment = {"COMP_WORDS": line, "COMP_CWORD": str(line.count(" ")), "_RUNNER_COMPLETE": "complete_bash"}
    done = python(program, **environment)
    assert done.stdout.split("\n") == [offered, "LOADED []", ""], done.stderr
