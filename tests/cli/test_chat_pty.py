"""`runner chat` on a real pseudo-terminal, read back by a terminal emulator: what the user would see."""

from __future__ import annotations

import json
import re
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from chat_terminal import PROMPT, Terminal
from waiting import PATIENCE_S

from runner.cli.interrupt import _SAME_PRESS_S
from runner.paths import user_paths
from runner.store import Store

# Every sequence that the chat itself may send: cursor, erasing, colours, margins, keypad, paste and screen modes.
OWN_SEQUENCES = re.compile(r"\x1b\[[0-9;]*[ABCDGHJKm]|\x1b\[\?(1|7|12|25|2004)[hl]|\x1b\[6n|\x1b[78DM=>]|\x1b\[0? q")


@pytest.fixture
def script(tmp_path: Path) -> Callable[..., str]:
    def write(*replies: object, **values: object) -> str:
        path = tmp_path / "m.script.json"
        path.write_text(json.dumps({"replies": replies, **values}))
        return str(path)

    return write


@pytest.fixture
def chat() -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def start(*arguments: str, columns: int = 80, rows: int = 24, first: str = "") -> Terminal:
        opened.append(Terminal(["chat", *arguments], columns, rows, first))
        opened[-1].wait_for_prompt()
        return opened[-1]

    yield start
    for terminal in opened:
        terminal.child.close(force=True)


def test_the_demo_answers(chat: Callable[..., Terminal]) -> None:
    terminal = chat("demo", "--temp", "0")
    shown = terminal.wait_for(lambda text: "llamacpp: " in text)
    assert "demo · Q8_0 · context 2048 · /help for commands" in shown
    terminal.wait_for_prompt()
    terminal.type("What is the capital of Peru?\r")
    shown = terminal.wait_for(lambda text: "Lima." in text)
    terminal.wait_for_prompt()
    terminal.type("\x04")
    assert terminal.wait_for_exit() == 0


@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (40, 12)])
def test_a_streaming_answer_has_a_status_line_that_goes_away(
    chat: Callable[..., Terminal], script: Callable[..., str], columns: int, rows: int
) -> None:
    text = "".join(f"{n} 漢字 word {'x' * (n % 50)}\n" for n in range(40))
    terminal = chat(script({"text": text, "token_s": 0.0005}), columns=columns, rows=rows)
    terminal.type("go\r")
    shown = terminal.wait_for(lambda text: "tok/s" in text.split("\n")[-1])
    assert "TTFT" in shown.split("\n")[-1]
    assert "context" in shown.split("\n")[-1]
    assert sum("tok/s" in line for line in shown.split("\n")) == 1
    shown = terminal.wait_for_prompt()
    assert "tok/s" not in shown
    assert f"39漢字word{'x' * 39}" in re.sub(r"\s", "", shown)


def test_long_lines_wrap_and_nothing_is_lost_at_the_edges(
    chat: Callable[..., Terminal], script: Callable[..., str]
) -> None:
    text = "".join(f"<{n}>" for n in range(200))
    terminal = chat(script({"text": text, "token_s": 0.001}), columns=40, rows=40)
    terminal.type("go\r")
    terminal.wait_for(lambda shown: "<199>" in shown.replace("\n", ""))
    shown = terminal.wait_for_prompt()
    assert text in shown.replace("\n", "")


def test_ctrl_c_stops_an_answer_in_200_ms_and_says_so(
    chat: Callable[..., Terminal], script: Callable[..., str]
) -> None:
    terminal = chat(script({"text": "word " * 1000, "token_s": 0.01}, "fine"))
    terminal.type("go\r")
    terminal.wait_for(lambda shown: shown.count("word") > 3)
    pressed_at = time.monotonic()
    terminal.type("\x03")
    terminal.wait_for(lambda shown: "(stopped)" in shown)
    assert time.monotonic() - pressed_at < 10  # the margin is the machine's; the answer would take 50 s
    terminal.wait_for_prompt()
    assert "^C" not in terminal.read()
    terminal.type("and now?\r")
    terminal.wait_for(lambda shown: "fine" in shown)


def test_ctrl_c_stops_a_prefill_in_200_ms(chat: Callable[..., Terminal], script: Callable[..., str]) -> None:
    terminal = chat(script("never", prefill_token_s=0.015))
    terminal.type("long " * 800 + "\r")
    terminal.wait_for(lambda shown: re.search(r"reading \d+/\S+ tokens · \d+ % · .* left", shown) is not None)
    pressed_at = time.monotonic()
    terminal.type("\x03")
    terminal.wait_for(lambda shown: "/regen asks again" in shown)
    assert time.monotonic() - pressed_at < 10  # the prompt would take a minute


def test_a_second_ctrl_c_ends_an_engine_that_does_not_stop(
    chat: Callable[..., Terminal], script: Callable[..., str]
) -> None:
    stuck = {"text": "stuck", "token_s": 0.05, "fail": "hang", "fail_after": 2}
    terminal = chat(
        script(stuck, "back again"), first="from runner import engine_process as e; e._CANCEL_GRACE_S = 60; "
    )
    terminal.type("go\r")
    terminal.wait_for(lambda shown: "\nst" in shown)
    terminal.read(0.5)
    terminal.type("\x03")
    terminal.wait_for(lambda shown: "Ctrl+C again ends the engine" in shown)
    terminal.read(1.5 * _SAME_PRESS_S)
    terminal.type("\x03")
    shown = terminal.wait_for(lambda shown: "stopped by ending the engine" in shown)
    assert "memory ran out" not in shown
    terminal.wait_for_prompt()
    terminal.type("again\r")
    terminal.wait_for(lambda shown: "back again" in shown)


def test_a_killed_engine_leaves_the_chat_and_comes_back(
    chat: Callable[..., Terminal], script: Callable[..., str]
) -> None:
    terminal = chat(script({"text": "word " * 1000, "token_s": 0.01}, "whole"))
    terminal.type("go\r")
    terminal.wait_for(lambda shown: shown.count("word") > 3)
    terminal.engine.kill()
    shown = terminal.wait_for(lambda shown: "SIGKILL" in shown)
    assert "word word" in shown
    terminal.wait_for_prompt()
    assert "tok/s" not in terminal.read()
    terminal.type("again\r")
    shown = terminal.wait_for(lambda shown: "whole" in shown)
    assert "loading" in shown


def test_a_pasted_text_of_200_lines_is_one_message(chat: Callable[..., Terminal], script: Callable[..., str]) -> None:
    terminal = chat(script("got it"))
    pasted = "\r".join(f"line {n} of the paste" for n in range(200))
    terminal.type(f"\x1b[200~{pasted}\x1b[201~")
    terminal.wait_for(lambda shown: "line 199" in shown)
    terminal.type("\r")
    terminal.wait_for(lambda shown: "got it" in shown)
    terminal.wait_for_prompt()  # what is typed while an answer ends belongs to nobody
    terminal.type("/exit\r")
    assert terminal.wait_for_exit() == 0
    store = Store(user_paths().database)
    session = store.latest()
    assert session is not None
    question, answer = store.turns(session.id)
    store.close()
    assert question.content == pasted.replace("\r", "\n")
    assert answer.content == "got it"


def test_a_storm_of_resizes_does_no_harm(chat: Callable[..., Terminal], script: Callable[..., str]) -> None:
    later = {"text": "more words " * 20 + "fine", "token_s": 0.01}
    terminal = chat(script({"text": "some words " * 150, "token_s": 0.004}, later))
    terminal.type("go\r")
    terminal.wait_for(lambda shown: "tok/s" in shown)
    for columns, rows in [(100, 30), (40, 12), (10, 3), (200, 50), (20, 4), (1, 1), (80, 24), (40, 12)] * 3:
        terminal.resize(columns, rows)
        terminal.read(0.03)
    terminal.wait_for(lambda shown: "tok/s" in shown.split("\n")[-1] or shown.split("\n")[-1].strip() == PROMPT)
    terminal.wait_for_prompt()
    assert "Traceback" not in terminal.raw
    n_before = len(terminal.raw)
    terminal.type("again\r")
    terminal.wait_for(lambda shown: "fine" in shown)
    _storm, again, after = terminal.wait_for_prompt().rpartition("again")
    # What was on its way while the screen had one row has no line below: a status may stay there, and only there.
    assert again
    assert "tok/s" not in after
    assert "tok/s" in terminal.raw[n_before:]


def test_no_escape_sequence_of_a_model_reaches_the_terminal(
    chat: Callable[..., Terminal], script: Callable[..., str]
) -> None:
    attacks = [
        "\x1b]52;c;ZXZpbA==\x07",
        "\x1b]0;owned\x1b\\",
        "\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\",
        "\x1bP+q544e\x1b\\",
        "\x1b[2J\x1b[H",
        "\x1b[1;1r",
        "\x1b[?1049h",
        "\x1b[5i",
        "\x1bc",
        "\x9b2J",
        "\x9d52;c;ZXZpbA==\x9c",
        "\r\b\x7f\x0e\x0f\x00\x05",
        "\u202etxt.exe\u2066",
        "[@click=app.quit]x[/] a[/]b",
    ]
    terminal = chat(script({"text": "\n".join(attacks) + "\nEND", "token_s": 0.0005}))
    before = len(terminal.raw)
    terminal.type("go\r")
    shown = terminal.wait_for(lambda shown: "END" in shown)
    terminal.wait_for_prompt()
    assert "a[/]b" in shown
    left = OWN_SEQUENCES.sub("", terminal.raw[before:])
    assert "\x1b" not in left, repr(left)
    assert not set(left) & {*map(chr, range(0x80, 0xA0)), "\x07", "\x0e", "\x0f", "\x05", "\u202e", "\u2066"}


def test_keys_typed_during_an_answer_wait_for_the_prompt(
    chat: Callable[..., Terminal], script: Callable[..., str]
) -> None:
    terminal = chat(script({"text": "slow " * 40, "token_s": 0.004}, "second"))
    terminal.type("go\r")
    terminal.wait_for(lambda shown: "slow" in shown)
    terminal.type("typed ahead\r")
    shown = terminal.wait_for(lambda shown: "second" in shown)
    assert "slow typed" not in shown
    assert f"{PROMPT} typed ahead" in shown


def test_a_killed_chat_is_kept_as_partial_and_can_be_resumed(
    chat: Callable[..., Terminal], script: Callable[..., str]
) -> None:
    model = script({"text": "word " * 1600, "token_s": 0.004}, "and then")
    terminal = chat(model)
    terminal.type("tell me\r")
    terminal.wait_for(lambda shown: shown.count("word") > 30)
    engine = terminal.engine
    terminal.child.kill(signal.SIGKILL)
    engine.wait(PATIENCE_S)
    with sqlite3.connect(user_paths().database) as database:
        states = [row[0] for row in database.execute("SELECT state FROM turns ORDER BY position")]
    database.close()
    assert states == ["complete", "partial"]
    again = chat("--continue")
    shown = again.read()
    assert "tell me" in shown
    assert "word word" in shown
    again.type("go on\r")
    again.wait_for(lambda shown: "and then" in shown)


def test_sigterm_gives_the_terminal_back_and_keeps_the_answer(
    chat: Callable[..., Terminal], script: Callable[..., str]
) -> None:
    terminal = chat(script({"text": "word " * 1000, "token_s": 0.01}))
    terminal.type("go\r")
    terminal.wait_for(lambda shown: "tok/s" in shown)
    terminal.child.kill(signal.SIGTERM)
    assert terminal.wait_for_exit() == 128 + signal.SIGTERM
    assert "tok/s" not in terminal.read()


def test_ctrl_c_twice_at_an_empty_prompt_leaves(chat: Callable[..., Terminal], script: Callable[..., str]) -> None:
    terminal = chat(script("ok"))
    terminal.wait_for(lambda shown: "/help for commands" in shown)
    terminal.wait_for_prompt()  # while that was printed above it, keys were the terminal's: Ctrl+C a signal
    terminal.type("half a line")
    terminal.wait_for(lambda shown: "half a line" in shown)
    terminal.type("\x03")
    terminal.wait_for(lambda shown: "half" not in shown)
    terminal.type("\x03")
    terminal.wait_for(lambda shown: "again" in shown)
    terminal.type("\x03")
    assert terminal.wait_for_exit() == 0
