"""What the shell completes, and that it takes nothing heavy, breaks on nothing, and offers only plain words."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from checkout import CHECKOUT
from test_startup import HEAVY, python

from runner.cli import completing
from runner.cli.app import COMMANDS, _load
from runner.cli.bash_words import put_together
from runner.paths import user_paths
from runner.store import Store


def words(offers: list[tuple[str, str]]) -> list[str]:
    return [word for word, _ in offers]


def parameters(command: Any) -> Iterator[Any]:
    yield from command.params
    for one in getattr(command, "commands", {}).values():
        yield from parameters(one)


@pytest.mark.parametrize("name", COMMANDS)
def test_whatever_takes_a_model_a_chat_a_format_or_one_of_a_few_words_completes_it(name: str) -> None:
    kinds = ("MODEL", "SOURCE", "REFERENCE", "ID", "FORMAT")
    few = re.compile(r"[a-z]\w+\|.*")
    named = [(one, (one.metavar or "").removesuffix("...")) for one in parameters(_load(name))]
    wanted = [one for one, metavar in named if metavar in kinds or few.fullmatch(metavar)]
    assert [one.name for one in wanted if one._custom_shell_complete is None] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_names_the_values_of_each_option_and_says_where_an_argument_may_be_several(name: str) -> None:
    for one in parameters(_load(name)):
        takes_several = one.param_type_name == "argument" and one.nargs == -1
        assert takes_several == (one.metavar or "").endswith("..."), one.name
        if one.param_type_name == "option" and not one.is_flag:
            assert one.metavar or hasattr(one.type, "choices"), f"{one.name} shows the name of a type"


def test_models_are_offered_those_here_first_and_each_once() -> None:
    (user_paths().models / "zeta-mq4").mkdir(parents=True)
    offered = completing.models("")
    assert words(offered)[0] == "demo"
    assert "on this machine" in dict(offered)["demo"]
    assert "qwen3-8b" in words(offered)
    assert len(set(words(offered))) == len(offered)
    assert words(completing.models_here("")) == ["demo", "zeta-mq4"]
    assert "damaged" in dict(offered)["zeta-mq4"]  # it has no file


def test_after_a_colon_what_a_model_has_is_offered() -> None:
    assert {"qwen3-8b:Q8_0", "qwen3-8b:safetensors"} <= set(words(completing.models("qwen3-8b:Q")))


def test_chats_are_offered_by_id_with_plain_titles() -> None:
    assert completing.chats("") == []
    with closing(Store(user_paths().database)) as store:
        session = store.create_session(model="m", title="it's [bold]$(x)[/bold]\\")
    assert completing.chats("") == [(session.id, "it s bold x bold")]


def test_formats_are_those_that_quantize_writes() -> None:
    offered = words(completing.formats(""))
    assert {"mq4", "mq4-hipfire", "q4_k_m", "f32"} <= set(offered)
    told = next(one.help for one in parameters(_load("quantize")) if one.metavar == "FORMAT")
    assert [name for name in offered if name not in re.findall(r"[\w-]+", told)] == []


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
    [
        ("runner chat de", "demo"),
        ("runner quantize demo --format mq8", "mq8"),
        ("runner sessions show x", ""),
        ("runner config set think ", "auto\non\noff\nlow\nmedium\nhigh"),
        ("runner config set offline t", "true"),
        ("runner config set n_gpu_layers ", "auto\nall"),
        ("runner config set model de", "demo"),
        ("runner config set seed ", ""),
    ],
)
def test_a_tab_prints_what_fits_and_imports_nothing_heavy(line: str, offered: str) -> None:
    program = (
        "import atexit, sys\n"
        f"atexit.register(lambda: print('LOADED', [name for name in {HEAVY!r} if name in sys.modules]))\n"
        "from runner.cli.app import main\nsys.exit(main([]))"
    )
    environment = {"COMP_WORDS": line, "COMP_CWORD": str(line.count(" ")), "_RUNNER_COMPLETE": "complete_bash"}
    done = python(program, **environment)
    assert done.stdout == f"{offered}\nLOADED []\n", done.stderr


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("qwen3-8b :", {"Q4_K_M", "Q5_0", "Q5_K_M", "Q6_K", "Q8_0", "safetensors"}),
        ("qwen3-8b : Q8", {"Q8_0"}),
        ("--draft qwen3-8b : Q8", {"Q8_0"}),
        ("--draft qwen3-8b : Q8_0 qwen3-0.6b : saf", {"safetensors"}),
        ("--draft qwen3-8b : Q8_0 --backend nat", {"native"}),
        ("nosuch : Q", set()),
    ],
)
def test_bash_which_cuts_words_at_colons_is_offered_what_stands_behind(
    words: str, offered: set[str], tmp_path: Path
) -> None:
    """By the script that is installed, called as bash does it. ':' ends a word, and begins one."""
    script = python("from runner.cli.app import main; main([])", _RUNNER_COMPLETE="source_bash").stdout
    (tmp_path / "runner").write_text(f"#!/bin/sh\nexec {sys.executable} -m runner\n")
    (tmp_path / "runner").chmod(0o755)
    line = f"runner run {words}".split()
    typed = " ".join(map(shlex.quote, line))
    call = f"COMP_WORDS=({typed}) COMP_CWORD={len(line) - 1}; _runner_completion {tmp_path}/runner"
    done = subprocess.run(
        ["bash", "--norc", "-c", f'{script}\n{call}; printf "%s\\n" "${{COMPREPLY[@]}}"'],
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)}, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert set(done.stdout.split()) == offered, done.stderr


def test_other_words_stay_as_bash_gives_them() -> None:
    for words, place in (("runner\nrun\nde", 2), ("runner\nrun\n'a : b'", 2), ("runner\nrun\na:b", 2), ("runner", 5)):
        given = {"COMP_WORDS": words, "COMP_CWORD": str(place)}
        found = dict(given)
        put_together(found)
        assert found == given
    after_a_space = {"COMP_WORDS": "runner\nrun\nqwen3-8b\n:\n", "COMP_CWORD": "4"}
    put_together(after_a_space)
    assert after_a_space == {"COMP_WORDS": "runner\nrun\nqwen3-8b:\n", "COMP_CWORD": "3"}
    nothing: dict[str, str] = {"COMP_CWORD": "x"}
    put_together(nothing)
    assert nothing == {"COMP_CWORD": "x"}
