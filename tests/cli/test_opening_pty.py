"""`runner chat` on a pseudo-terminal while the model is still being loaded: the prompt is there already."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest
from chat_terminal import PROMPT, Terminal
from pulled import GGUF, WEIGHTS, small_hub
from waiting import PATIENCE_S

from runner.cli.loading import Loader
from runner.cli.opening import Opening
from runner.config import LoadOptions
from runner.engine_process import EngineProcess
from runner.errors import EngineDied
from runner.events import Loaded, LoadEvent
from runner.paths import user_paths

BAR = re.compile(r"Loading .*\d+ %")


@pytest.fixture
def slow(tmp_path: Path) -> Callable[..., str]:
    """Writes a scripted model that takes some seconds to load."""

    def write(load_s: float, **values: object) -> str:
        path = tmp_path / "m.script.json"
        path.write_text(json.dumps({"replies": ["first", "second"], "load_s": load_s, **values}))
        return str(path)

    return write


@pytest.fixture
def chat() -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def start(*arguments: str, columns: int = 80, rows: int = 24) -> Terminal:
        opened.append(Terminal(["chat", *arguments], columns, rows))
        opened[-1].wait_for(lambda _: PROMPT in opened[-1].raw)
        return opened[-1]

    yield start
    for terminal in opened:
        terminal.child.close(force=True)


def lines(shown: str) -> list[str]:
    return [line for line in shown.split("\n") if line.strip()]


@pytest.mark.parametrize("columns", [80, 40])
def test_what_is_typed_while_loading_stays_in_the_prompt_below_the_header(
    chat: Callable[..., Terminal], slow: Callable[..., str], columns: int
) -> None:
    terminal = chat(slow(2.5), columns=columns)
    terminal.type("typed early")
    shown = terminal.wait_for(lambda shown: BAR.search(shown) is not None)
    assert lines(shown)[-1] == f"{PROMPT} typed early"
    shown = terminal.wait_for(lambda shown: "/help for" in shown)
    shown = terminal.wait_for(lambda shown: lines(shown)[-1] == f"{PROMPT} typed early")
    assert "Loading" not in shown
    assert shown.count(PROMPT) == 1
    assert lines(shown)[0].startswith("m.script")
    terminal.type(", sent late\r")
    shown = terminal.wait_for(lambda shown: "first" in shown)
    assert f"{PROMPT} typed early, sent late" in shown
    assert shown.count("/help for") == 1


def test_a_message_that_is_sent_while_loading_waits_with_a_bar(
    chat: Callable[..., Terminal], slow: Callable[..., str]
) -> None:
    terminal = chat(slow(2.5), "--temp", "0.5")
    terminal.type("sent early\r")
    shown = terminal.wait_for(lambda shown: BAR.search(shown) is not None)
    assert lines(shown)[0] == f"{PROMPT} sent early"
    shown = terminal.wait_for(lambda shown: "first" in shown)
    begins = [line.split()[0] for line in lines(shown)]
    assert begins[:5] == [PROMPT, "Loading", "m.script.json", "fake:", "first"]
    terminal.wait_for_prompt()
    terminal.type("/set temperature\r")
    terminal.wait_for(lambda shown: "temperature 0.5" in shown)


def test_help_exit_and_mistakes_do_not_wait_for_the_model(
    chat: Callable[..., Terminal], slow: Callable[..., str]
) -> None:
    terminal = chat(slow(30))
    terminal.type("/help\r")
    terminal.wait_for(lambda shown: "Ctrl+D leaves." in shown)
    terminal.wait_for(lambda shown: BAR.search(shown) is not None)
    terminal.type("/regne\r")
    terminal.wait_for(lambda shown: "There is no command /regne." in shown)
    terminal.type("/exit\r")
    assert terminal.wait_for_exit() == 0


@pytest.mark.parametrize(
    ("typed", "code"), [("\x04", 0), ("\x03", 130), ("half\x03\x03", 130), ("a message\r\x03", 130)]
)
def test_leaving_while_the_model_is_loaded(
    chat: Callable[..., Terminal], slow: Callable[..., str], typed: str, code: int
) -> None:
    terminal = chat(slow(30))
    engine = terminal.engine
    for key in typed:
        terminal.type(key)
        terminal.read(0.2)
    assert terminal.wait_for_exit() == code
    assert "Traceback" not in terminal.raw
    engine.wait(PATIENCE_S)


def test_a_model_that_is_not_there_ends_the_chat_and_takes_the_prompt_away(chat: Callable[..., Terminal]) -> None:
    terminal = chat("no-such-model")
    assert terminal.wait_for_exit() == 2
    shown = terminal.read()
    assert "no-such-model" in shown
    assert PROMPT not in shown


def test_a_database_that_is_damaged_ends_the_chat_before_anything_is_answered(
    chat: Callable[..., Terminal], slow: Callable[..., str]
) -> None:
    database = user_paths().database
    database.parent.mkdir(parents=True)
    database.write_bytes(b"garbage " * 1000)
    terminal = chat(slow(30))
    terminal.type("a long question\r")
    assert terminal.wait_for_exit() == 1
    shown = terminal.read()
    assert "is damaged" in shown
    assert "--no-log chats without it." in shown.replace("\n", " ")
    assert "a long question" in user_paths().prompt_history.read_text()


def test_a_download_has_its_bar_above_the_prompt_and_goes_on_another_time(
    chat: Callable[..., Terminal], tmp_path: Path, demo_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with small_hub(tmp_path / "served", demo_directory) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        hub.bytes_s, hub.most_bytes = 300_000, 800_000  # of 1.3 MB: it is not whole before Ctrl+C
        terminal = chat(GGUF)
        terminal.type("typed early")
        shown = terminal.wait_for(lambda shown: re.search(r"Downloading .* [1-9]\d? % .* MB/?", shown) is not None)
        assert lines(shown)[-1] == f"{PROMPT} typed early"
        terminal.type("\x03")  # clears what was typed
        terminal.wait_for(lambda shown: lines(shown)[-1].strip() == PROMPT)
        terminal.type("\x03")
        assert terminal.wait_for_exit() == 130
        hub.let_go()
        again = chat(GGUF)
        again.wait_for(lambda shown: "/help for" in shown)
        assert re.match("bytes=[1-9]", hub.ranges(WEIGHTS)[-1])


@pytest.mark.usefixtures("no_gpu")
def test_a_model_that_does_not_fit_ends_the_chat_below_what_was_typed(chat: Callable[..., Terminal]) -> None:
    terminal = chat("demo", "-c", "67108864")
    terminal.type("early")
    assert terminal.wait_for_exit() == 4
    shown = lines(terminal.read())
    assert shown[0] == f"{PROMPT} early"
    assert shown[1].startswith("error: demo needs")


def test_a_resize_while_loading_keeps_one_prompt_and_one_bar(
    chat: Callable[..., Terminal], slow: Callable[..., str]
) -> None:
    terminal = chat(slow(30))
    terminal.type("typed early")
    terminal.wait_for(lambda shown: BAR.search(shown) is not None)
    terminal.resize(100, 30)
    terminal.read(0.3)  # while it is drawn anew there may be nothing on it
    bar, prompt = lines(terminal.wait_for(lambda shown: len(lines(shown)) == 2))
    assert BAR.search(bar)
    assert prompt == f"{PROMPT} typed early"


@pytest.mark.parametrize("end", ["", "\r"])
def test_a_load_that_fails_ends_the_chat_and_what_was_typed_is_kept(
    chat: Callable[..., Terminal], slow: Callable[..., str], end: str
) -> None:
    terminal = chat(slow(30))
    terminal.wait_for(lambda shown: BAR.search(shown) is not None)
    terminal.type(f"a long question{end}")
    terminal.wait_for(lambda shown: "a long question" in shown and BAR.search(shown) is not None)
    terminal.engine.kill()
    assert terminal.wait_for_exit() == 1
    shown = terminal.read()
    assert lines(shown)[0] == f"{PROMPT} a long question"
    assert "error: The engine was ended by SIGKILL." in shown
    assert "a long question" in user_paths().prompt_history.read_text()


def test_a_chat_that_is_gone_on_with_shows_its_turns_above_the_prompt(
    chat: Callable[..., Terminal], slow: Callable[..., str]
) -> None:
    model = slow(0)
    terminal = chat(model)
    terminal.type("the question\r")
    terminal.wait_for(lambda shown: "first" in shown)
    terminal.wait_for_prompt()  # what is typed while an answer ends belongs to nobody
    terminal.type("/exit\r")
    assert terminal.wait_for_exit() == 0
    slow(1, n_ctx=64)
    again = chat("--continue", "-c", "128")
    again.wait_for(lambda shown: "first" in shown)
    shown = again.wait_for(lambda shown: "/help for" in shown and lines(shown)[-1].strip() == PROMPT)
    words = [shown.index(word) for word in ("the question", "first", "/set ctx_size 64 keeps to it", "/help for")]
    assert words == sorted(words)
    again.type("more\r")
    again.wait_for(lambda shown: "second" in shown)


def test_what_is_sent_to_a_dumb_terminal_while_loading_is_answered_line_by_line(slow: Callable[..., str]) -> None:
    terminal = Terminal(["chat", slow(2)], 80, 24, first="import os; os.environ['TERM'] = 'dumb'; ")
    try:
        assert terminal.child.waitnoecho(PATIENCE_S)
        assert "/help for" not in terminal.read()  # it is being loaded
        terminal.type("one\rtwo\r")
        terminal.wait_for(lambda shown: "first" in shown and "second" in shown)
    finally:
        terminal.child.close(force=True)


def test_a_load_that_ends_without_a_word_is_told_as_such() -> None:
    class Mute(EngineProcess):
        def load(self, *_: object, **__: object) -> Iterator[LoadEvent]:
            return iter(())

    class MuteLoader(Loader):
        def events(self, *_: object) -> Generator[LoadEvent, None, None]:
            yield from ()

    loaded: list[Loaded] = []
    with pytest.raises(EngineDied, match="did not finish loading"):
        Opening(Loader(Mute(user_paths()), "demo", LoadOptions()), loaded.append).wait()
    opening = Opening(MuteLoader(Mute(user_paths()), "demo", LoadOptions()), loaded.append)
    while not opening.is_over:
        opening.has_news()
    assert (opening.failure, loaded) == (None, [])
