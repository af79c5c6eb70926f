"""`runner run`: the answer and nothing else on stdout, prompts from arguments, files and pipes, and its exit codes."""

from __future__ import annotations

import io
import json
import os
import random
import signal
import string
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from waiting import has_ended, wait_for

from runner.cli.app import main
from runner.paths import user_paths
from runner.running import running

COMMAND = [sys.executable, "-c", "import sys; from runner.cli.app import main; sys.exit(main())"]


@pytest.fixture(autouse=True)
def pipe(monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], None]:
    """Pipe bytes into the program; none unless it is called."""

    def feed(content: bytes) -> None:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))

    feed(b"")
    return feed


@pytest.fixture
def script(tmp_path: Path) -> Callable[..., str]:
    def write(*replies: object, **values: object) -> str:
        path = tmp_path / "model.script.json"
        path.write_text(json.dumps({"replies": replies, **values}))
        return str(path)

    return write


def test_the_demo_knows_lima_and_stdout_is_the_answer_alone(
    demo_directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (demo_directory / "demo-q8_0.gguf").is_file()
    assert main(["run", "demo", "What is the capital of Peru?", "--temp", "0", "-v"]) == 0
    captured = capsys.readouterr()
    assert captured.out == "The capital of Peru is Lima.\n"
    assert "tok/s" in captured.err
    assert "llamacpp" in captured.err


def test_newlines_around_an_answer_become_one_at_its_end(
    script: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", script("\n\na\n\nb\n\n\n"), "x"]) == 0
    assert capsys.readouterr().out == "a\n\nb\n"


def test_json_has_everything_and_the_raw_text(script: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", script("\x1b[31mred\n"), "x", "--json", "--seed", "7"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert next(iter(answer)) == "schema"
    assert answer["schema"] == "runner.run/1"
    assert answer["text"] == "\x1b[31mred\n"
    assert answer["token_ids"] == list(b"\x1b[31mred\n")
    assert (answer["seed"], answer["finish_reason"], answer["backend"]) == (7, "stop", "fake")
    assert answer["backend_reason"]
    assert {"ttft_s", "prefill_tok_s", "decode_tok_s", "prompt_tokens"} <= set(answer["timings"])


REPEATING = "the quick brown fox jumps over the lazy dog; " * 9


def test_speculation_is_told_to_programs_and_changes_no_text(
    script: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    texts = []
    for spec in ("auto", "suffix", "off"):
        assert main(["run", script(REPEATING, step_s=0.004), "x", "--json", "--spec", spec, "--draft-max", "6"]) == 0
        answer = json.loads(capsys.readouterr().out)
        texts.append(answer["text"])
        if spec == "off":
            assert answer["speculation"] == {"drafter": None, "state": "off", "reason": "it was turned off"}
        else:
            done = answer["speculation"]
            assert (done["drafter"], done["state"]) == ("suffix", "on")
            assert len(done["drafted_at"]) == 6
            assert done["n_accepted"] == answer["timings"]["n_accepted"] > 60
            assert done["gain"] > 0  # by a clock that may be held up: test_drafting.py has one that is not
    assert texts == [REPEATING] * 3


def test_speculation_is_among_the_timings(script: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", script(REPEATING, step_s=0.004), "x", "-v"]) == 0
    assert "speculation suffix on" in capsys.readouterr().err
    assert main(["run", script("ok"), "x", "-v", "--spec", "off"]) == 0
    assert "speculation off: it was turned off" in capsys.readouterr().err


def test_drafts_may_quote_files_that_are_named_from_where_the_command_runs(
    script: Callable[..., str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "".join(random.Random(3).choices(string.ascii_letters, k=200))
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "a.txt").write_text(text)
    (tmp_path / "there" / "b.txt").write_text("b")
    model = script(text, step_s=0.004)
    monkeypatch.chdir(tmp_path / "there")
    named = ["--draft-file", "a.txt", "--draft-file", str(tmp_path / "there/b.txt")]
    n_accepted = 0
    for _ in range(5):  # an answer that this machine holds up may look as if drafts did not pay
        assert main(["run", model, "x", "--json", *named]) == 0
        answer = json.loads(capsys.readouterr().out)
        assert (answer["text"], answer["speculation"]["file_tokens"]) == (text, 201)
        n_accepted = max(n_accepted, answer["speculation"]["n_accepted"])
        if n_accepted > 100:
            break
    assert n_accepted > 100
    monkeypatch.setenv("HOME", str(tmp_path / "there"))
    monkeypatch.setenv("RUNNER_DRAFT_FILE", "~/b.txt")
    monkeypatch.chdir(tmp_path)
    assert main(["run", model, "x", "-v"]) == 0
    assert "1 token of files to quote" in capsys.readouterr().err
    assert main(["run", model, "x", "--draft-file", "no.txt"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert f"{tmp_path}/no.txt cannot be read: No such file" in captured.err
    assert "--draft-file takes text files" in captured.err
    assert main(["run", model, "x", "--spec", "off"]) == 0
    assert "No draft quotes the files of --draft-file: it was turned off" in capsys.readouterr().err


def test_a_drafter_that_cannot_be_had_is_an_error_with_its_remedy(
    script: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, word in (
        (["--spec", "fast"], "suffix"),
        (["--draft-max", "16"], "from 1 to 15"),
        (["--spec", "model"], "--draft"),
    ):
        assert main(["run", script("ok"), "x", *arguments]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert word in captured.err


def test_escape_sequences_do_not_reach_a_pipe(script: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", script("a\x1b]0;owned\x07\x9b2Jb"), "x"]) == 0
    assert capsys.readouterr().out == "a]0;owned2Jb\n"


def prompt_tokens(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> int:
    """How long the prompt was, in bytes: a raw prompt has no template around it."""
    assert main([*arguments, "--raw", "--json"]) == 0
    return int(json.loads(capsys.readouterr().out)["timings"]["prompt_tokens"])


def test_argument_files_and_pipe_make_one_prompt(
    script: Callable[..., str], tmp_path: Path, pipe: Callable[[bytes], None], capsys: pytest.CaptureFixture[str]
) -> None:
    model = script("ok")
    (tmp_path / "a.txt").write_text("file a\n")
    (tmp_path / "b.txt").write_text("file b\n")
    assert prompt_tokens(["run", model, "one", "two"], capsys) == len("one two")
    assert prompt_tokens(["run", "-m", model, "one", "two"], capsys) == len("one two")
    assert prompt_tokens(["run", model, "-p", "one two"], capsys) == len("one two")
    assert prompt_tokens(["run", model, "Explain", "-f", str(tmp_path / "a.txt")], capsys) == len("Explain\n\nfile a")
    both = "Explain\n\na.txt:\n```\nfile a\n```\n\nb.txt:\n```\nfile b\n```"
    files = ["-f", str(tmp_path / "a.txt"), "-f", str(tmp_path / "b.txt")]
    assert prompt_tokens(["run", model, "Explain", *files], capsys) == len(both)
    pipe(b"diff --git\n")
    assert prompt_tokens(["run", model, "Explain"], capsys) == len("Explain\n\ndiff --git")
    pipe("only é".encode())
    assert prompt_tokens(["run", model], capsys) == len("only é".encode())


def test_piped_bytes_that_are_not_utf8_are_replaced_with_a_notice(
    script: Callable[..., str], pipe: Callable[[bytes], None], capsys: pytest.CaptureFixture[str]
) -> None:
    pipe(b"caf\xe9")
    assert main(["run", script("ok"), "Explain"]) == 0
    captured = capsys.readouterr()
    assert captured.out == "ok\n"
    assert "not UTF-8" in captured.err


@pytest.mark.parametrize("content", [b"", b" \n\t\n"])
def test_an_empty_prompt_is_a_usage_error(
    script: Callable[..., str], pipe: Callable[[bytes], None], capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    pipe(content)
    assert main(["run", script("ok")]) == 2
    assert "There is no prompt" in capsys.readouterr().err


def test_binary_input_is_a_usage_error(
    script: Callable[..., str], pipe: Callable[[bytes], None], capsys: pytest.CaptureFixture[str]
) -> None:
    pipe(b"\x7fELF\0\0\0")
    assert main(["run", script("ok"), "x"]) == 2
    assert "not text" in capsys.readouterr().err


def test_what_cut_an_answer_off_is_said(script: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", script("a long answer"), "x", "-n", "3"]) == 0
    captured = capsys.readouterr()
    assert captured.out == "a l\n"
    assert "--max-tokens" in captured.err
    assert main(["run", script("a long answer " * 20, n_ctx=64), "x"]) == 0
    assert "The context is full" in capsys.readouterr().err
    assert main(["run", script("one END two"), "x", "--stop", "END"]) == 0
    assert capsys.readouterr().out == "one \n"


def test_settings_are_under_flags(
    script: Callable[..., str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RUNNER_MAX_TOKENS", "2")
    assert main(["run", script("abcdef"), "x", "-q"]) == 0
    assert capsys.readouterr().out == "ab\n"
    assert main(["run", script("abcdef"), "x", "-q", "-n", "4"]) == 0
    assert capsys.readouterr().out == "abcd\n"
    monkeypatch.setenv("RUNNER_MAX_TOKENS", "many")
    assert main(["run", script("abcdef"), "x"]) == 2


@pytest.mark.parametrize("how", ["error", "exit", "segv"])
def test_a_failure_in_the_middle_keeps_what_was_printed_and_exits_1(
    script: Callable[..., str], capsys: pytest.CaptureFixture[str], how: str
) -> None:
    model = script({"text": "partial answer", "token_s": 0.04, "fail": how, "fail_after": 5})
    assert main(["run", model, "x"]) == 1
    captured = capsys.readouterr()
    assert captured.out in ("part\n", "parti\n")
    assert captured.err.startswith("error: ")


@pytest.mark.parametrize("as_json", [False, True])
def test_ctrl_c_keeps_what_was_printed_and_exits_130(script: Callable[..., str], as_json: bool) -> None:
    model = script({"text": "word " * 1000, "token_s": 0.01})
    arguments = [*COMMAND, "run", model, "x", *(["--json"] if as_json else [])]
    child = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert child.stdout is not None
    first = b"" if as_json else child.stdout.read(4)
    wait_for(lambda: list(running(user_paths().engines)), "no model is loaded")
    (entry,) = running(user_paths().engines)
    engine = psutil.Process(entry.pid)
    n_idle = engine.num_ctx_switches().voluntary
    wait_for(lambda: engine.num_ctx_switches().voluntary > n_idle + 40)  # one a token; else one or two a second
    pressed_at = time.monotonic()
    os.kill(child.pid, signal.SIGINT)
    rest, err = child.communicate(timeout=60)
    assert child.returncode == 130, err
    assert time.monotonic() - pressed_at < 10  # the answer would take 50 s
    if as_json:
        assert json.loads(rest)["finish_reason"] == "cancelled"
    else:
        assert (first + rest).startswith(b"word")
        assert rest.endswith(b"\n")
    assert b"Traceback" not in err


@pytest.mark.parametrize("as_json", [False, True])
def test_ctrl_c_again_ends_an_engine_that_computes_on(script: Callable[..., str], as_json: bool) -> None:
    model = script({"text": "word", "fail": "busy"})
    arguments = [*COMMAND, "run", model, "x", *(["--json"] if as_json else [])]
    child = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    wait_for(lambda: list(running(user_paths().engines)), "no model is loaded")
    (entry,) = running(user_paths().engines)
    engine = psutil.Process(entry.pid)
    loaded_s = engine.cpu_times().user
    wait_for(lambda: engine.cpu_times().user > loaded_s + 0.2, "it does not compute")
    while not has_ended(engine.pid):
        os.kill(child.pid, signal.SIGINT)
        time.sleep(0.05)
    out, err = child.communicate(timeout=60)
    assert (child.returncode, out.strip()) == (130, b""), err
    assert err.decode().count("stopping · Ctrl+C again ends the engine\n") == 1
    assert b"error" not in err
    assert b"Traceback" not in err


def test_ctrl_c_while_loading_exits_130(script: Callable[..., str]) -> None:
    child = subprocess.Popen(
        [*COMMAND, "run", script("no", load_s=20.0), "x"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert child.stderr is not None
    first = child.stderr.read(7)  # the first line of progress
    os.kill(child.pid, signal.SIGINT)
    out, err = child.communicate(timeout=60)
    assert (child.returncode, out, first) == (130, b"", b"Loading"), err


def test_a_reader_that_goes_away_ends_it_quietly(script: Callable[..., str]) -> None:
    model = script({"text": "line\n" * 2000, "token_s": 0.001})
    child = subprocess.Popen(
        [*COMMAND, "run", model, "x"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"line\n"
    child.stdout.close()
    child.stdout = None
    _, err = child.communicate(timeout=60)
    assert (child.returncode, err) == (0, b"")


def test_thoughts_are_not_part_of_the_answer(script: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}{# <think></think> #}"
    )
    model = script("<think>hm, well</think>\n\n42", chat_template=template)
    assert main(["run", model, "x"]) == 0
    captured = capsys.readouterr()
    assert captured.out == "42\n"
    assert "hm" not in captured.err  # thoughts are for terminals
    assert main(["run", model, "x", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["reasoning"].strip() == "hm, well"


# --- grammars --------------------------------------------------------------------------------------------------------


def test_an_answer_is_json_of_the_schema_on_the_command_line(
    demo_directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert demo_directory.is_dir()
    schema = '{"type": "object", "properties": {"yes": {"type": "boolean"}}, "required": ["yes"], "maxProperties": 1}'
    for flag in (["-j", schema], [f"--json-schema={schema}"]):
        assert main(["run", "demo", "Is Lima in Peru?", "--temp", "0", *flag]) == 0
        assert isinstance(json.loads(capsys.readouterr().out)["yes"], bool)


def test_an_answer_is_a_text_of_the_grammar_in_a_file(
    script: Callable[..., str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "a.gbnf").write_text('root ::= "Red" | "Blue"')
    (tmp_path / "a.json").write_text('{"const": "Red"}')
    assert main(["run", script("Blueish"), "x", "--grammar", str(tmp_path / "a.gbnf")]) == 0
    assert capsys.readouterr().out == "Blue\n"
    assert main(["run", script("Blueish"), "x", "-j", str(tmp_path / "a.json"), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["text"], answer["finish_reason"]) == ('"Red"', "stop")


def test_a_cut_answer_by_a_grammar_says_that_it_may_not_be_whole(
    script: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", script("[1,2"), "x", "-j", '{"const": [1, 2, 3]}', "-n", "3"]) == 0
    captured = capsys.readouterr()
    assert "may not be whole by its grammar" in captured.err
    assert captured.out == "[1,\n"


@pytest.mark.parametrize(
    ("flags", "words", "code"),
    [
        (["-j", '{"type": }'], "line 1, column 10", 2),
        (["-j", '{"type": "strnig"}'], "strnig", 2),
        (["-j", '{"not": {}}'], "not", 2),
        (["-j", "nowhere.json"], "nowhere.json cannot be read", 2),
        (["-j", ""], "--json-schema is empty", 2),
        (["--grammar", ""], "--grammar is empty", 2),
        (["--grammar", "nowhere.gbnf"], "nowhere.gbnf cannot be read", 2),
        (["--grammar", "nowhere.gbnf", "-j", "json"], "both given", 2),
    ],
)
def test_a_mistaken_grammar_is_told_before_a_model_is_loaded(
    capsys: pytest.CaptureFixture[str], flags: list[str], words: str, code: int
) -> None:
    for command in ("run", "chat"):
        assert main([command, "no-such-model", *(["x"] if command == "run" else []), *flags]) == code
        captured = capsys.readouterr()
        assert words in captured.err
        assert "hint:" in captured.err
        assert captured.out == ""


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--backend", "native", "--kv-type", "q8_0", "-ngl", "0"], "Choose one with --kv-type"),
        (["--backend", "native", "-ngl", "1"], "Use -ngl all or -ngl 0"),
        (["--raw", "-s", "Be brief."], "--raw sends the prompt alone, and --system adds to it"),
        (["--raw", "--think"], "which alone knows of thoughts: --think would do nothing"),
        (["--raw", "--think-budget", "0"], "--think-budget would do nothing"),
        (["--backend", "llamacpp", "--spec", "eagle3", "--draft", "."], "no eagle3 drafter"),
    ],
)
def test_an_option_that_is_not_to_be_had_here_is_wrong_usage(
    options: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "demo", "hi", *options]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert words in captured.err
    assert "hint: " in captured.err


def test_a_model_that_a_backend_cannot_run_is_no_wrong_usage(
    script: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", script("x"), "hi", "--backend", "native", "-ngl", "0"]) == 1
    assert "cannot run" in capsys.readouterr().err
