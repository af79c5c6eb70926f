"""Starting the program: fast, without heavy imports, with the right exit codes."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pexpect
import pytest
from typer.testing import CliRunner

from runner import __main__ as start
from runner.cli import app as app_module
from runner.cli.app import ALIASES, COMMANDS, app, main
from runner.paths import builtin, user_paths

HEAVY = (
    "torch",
    "triton",
    "llama_cpp",
    "llguidance",
    "textual",
    "huggingface_hub",
    "transformers",
    "rich",
    "prompt_toolkit",
    "httpx",
    "httpx2",
    "starlette",
    "uvicorn",
)


# What a chat needs only to load, to answer or to complete: its prompt does not wait for it.
BEHIND_THE_PROMPT = (
    "runner.chat_pages",
    "runner.conversation",
    "runner.events",
    "runner.message_files",
    "runner.registry",
    "runner.running",
    "runner.set_values",
    "runner.speculative",
    "runner.status_text",
    "runner.store",
    "runner.telemetry",
    "runner.transcript",
    "runner.types",
    "gguf",
    "jinja2",
    "numpy",
    "psutil",
    "sqlite3",
)


def python(program: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **environment},
    )


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["ls"], ["ps"], ["du"]])
def test_light_commands_import_nothing_heavy(arguments: list[str]) -> None:
    program = (
        "import sys\nfrom runner.cli.app import main\ncode = main(sys.argv[1:])\n"
        f"print('LOADED', code, [name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = python(program, *arguments)
    assert done.stdout.splitlines()[-1] == "LOADED 0 []", done.stderr


def test_ls_reads_the_headers_of_models_made_here_without_numpy() -> None:
    gguf, packed = (user_paths().models / name for name in ("a", "b"))
    gguf.mkdir(parents=True)
    (gguf / "a.gguf").symlink_to(builtin("models/demo") / "demo-q8_0.gguf")
    packed.mkdir()
    header = b'{"t": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}'
    (packed / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    program = (
        "import sys\nfrom runner.cli.app import main\ncode = main(['ls', '--json'])\n"
        "print('LOADED', code, 'runner.quant.gguf_file' in sys.modules, 'numpy' in sys.modules)"
    )
    done = python(program)
    assert done.stdout.splitlines()[-1] == "LOADED 0 True False", done.stderr
    states = {model["name"]: model["state"] for model in json.loads(done.stdout.splitlines()[0])["models"]}
    assert (states["a"], states["b"]) == ("complete", "complete")


def test_help_imports_nothing_of_settings_or_logs() -> None:
    rest = ("runner.config", "runner.settings", "runner.log", "runner.paths", "logging.handlers")
    program = (
        "import sys\nfrom runner.cli.app import main\ncode = main(['--help'])\n"
        f"print('LOADED', code, [name for name in {rest!r} if name in sys.modules])"
    )
    assert python(program).stdout.splitlines()[-1] == "LOADED 0 []"


def test_ls_imports_nothing_of_what_runs_a_model() -> None:
    program = (
        "import sys\nfrom runner.cli.app import main\ncode = main(['ls'])\n"
        f"print('LOADED', code, [name for name in ('runner.config', *{BEHIND_THE_PROMPT!r}) if name in sys.modules])"
    )
    assert python(program).stdout.splitlines()[-1] == "LOADED 0 ['runner.registry']"


def test_a_chats_prompt_waits_for_nothing_that_only_an_answer_needs() -> None:
    """The engine is stopped as soon as it is started: what it tells is read behind the prompt."""
    program = (
        "import os, signal, sys\n"
        "from prompt_toolkit import PromptSession\n"
        "from runner.cli.app import main\n"
        "from runner.engine_process import EngineProcess\n"
        "start, engines = EngineProcess.start, []\n"
        "def start_silent(engine):\n"
        "    if engine.pid is None:\n"
        "        start(engine)\n"
        "        os.kill(engine.pid, signal.SIGSTOP)\n"
        "        engines.append(engine)\n"
        "def prompt(*_, **__):\n"
        f"    print('LOADED', [name for name in {BEHIND_THE_PROMPT!r} if name in sys.modules], flush=True)\n"
        "    engines[0].kill()\n"
        "    os._exit(0)\n"
        "EngineProcess.start, PromptSession.prompt = start_silent, prompt\n"
        "main(['chat', 'demo'])"
    )
    chat = pexpect.spawn(sys.executable, ["-c", program], encoding="utf-8", timeout=60, dimensions=(24, 200))
    chat.expect(r"LOADED (.*)\r\n")
    assert chat.match[1] == "[]"
    chat.close()


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    printed = capsys.readouterr().out
    assert all(f"  {name} " in printed for name in COMMANDS)
    assert not any(f"  {name} " in printed for name in ALIASES)


@pytest.mark.parametrize("name", [*COMMANDS, *ALIASES])
def test_every_command_has_help_of_its_own(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    assert capsys.readouterr().out.startswith(f"Usage: runner {ALIASES.get(name, name)}")


@pytest.mark.parametrize("arguments", [["search"], ["logs"], ["draft"], ["sessions"], ["config"]])
def test_help_shows_no_type_of_ours_and_cuts_no_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*arguments, "--help"]) == 0
    out = capsys.readouterr().out
    assert " range>" not in out
    assert not re.search(r"[^A-Z\]]\.\.\.", out)  # but behind what may be several


@pytest.mark.parametrize("arguments", [[], *([name] for name in COMMANDS), ["draft", "train"], ["bench", "compare"]])
def test_help_cuts_nothing_in_a_narrow_terminal(
    arguments: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    assert main([*arguments, "--help"]) == 0
    out = capsys.readouterr().out
    assert [line for line in out.splitlines() if len(line) > 40] == []
    assert not re.search(r"[^A-Z\]]\.\.\.$", out, re.MULTILINE)


def test_version_is_data(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("runner ")


def test_alone_it_prints_help_to_stderr_and_exits_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "runner chat demo" in captured.err
    assert "stdin, stdout and stderr are not all a terminal" in captured.err


def test_alone_on_a_terminal_that_places_no_text_it_says_why_no_interface_opens() -> None:
    child = pexpect.spawn(
        sys.executable, ["-m", "runner"], encoding="utf-8", env={**os.environ, "TERM": "dumb"}, timeout=20
    )
    child.expect_exact("The terminal interface does not open: TERM is dumb.")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["cht"], "Did you mean chat"),
        (["help"], "`runner --help`"),
        (["serve", "demo", "--token", "a b"], "leave --token and RUNNER_SERVE_TOKEN out"),
        (["quantize", "demo", "--format", "mq4", "--recipe", "nope.toml"], "--recipe takes a TOML file"),
        (["--nonsense"], "error: No such option: --nonsense.\nhint: `runner --help`"),
        (["run", "demo", "x", "--ctx-size"], "requires an argument.\nhint: `runner run --help`"),
        (["sessions", "export"], "error: Missing argument 'ID'.\nhint: `runner sessions export --help`"),
        (["draft"], "Usage: runner draft"),
        (["run", "demo", "x", "--tempp", "1"], "--temp"),
        (["run", "demo", "x", "--temp", "-1"], "from 0 to 100"),
        (["run", "demo", "x", "--temp", "warm"], "error: --temp is 'warm'.\nhint: It must be a number."),
        (["run", "demo", "x", "-n", "2.5"], "error: --max-tokens is '2.5'.\nhint: It must be a whole number."),
        (["sessions", "list", "-n", "0"], "error: --limit is 0.\nhint: It must be a whole number, 1 or more."),
        (["serve", "demo", "--port", "99999"], "--port is 99999.\nhint: It must be a whole number from 0 to 65535."),
        (["run", "demo", "x", "--backend", "cuda"], "llamacpp"),
        (["run", "demo", "x", "-ngl", "some"], "auto, all"),
        (["run", "demmo", "x"], "demo"),
        (["bench", "demo", "--csv"], "--format csv"),
        (["bench", "--markdown", "demo"], "--format md"),
        (["bench", "demo", "--md"], "--format md"),
    ],
)
def test_wrong_usage_exits_2_and_says_what_would_be_right(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO()))
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert words in captured.err


def test_completion_offers_commands_and_their_flags() -> None:
    def complete(words: str, position: int) -> list[str]:
        done = python(
            "from runner.cli.app import main; main([])",
            _RUNNER_COMPLETE="complete_bash",
            COMP_WORDS=words,
            COMP_CWORD=str(position),
        )
        return done.stdout.split()

    assert complete("runner s", 1) == ["search", "show", "serve", "sessions"]
    assert "--max-tokens" in complete("runner run --max", 2)
    assert complete("runner run --backend n", 3) == ["native"]


def test_a_crash_is_one_line_and_the_traceback_is_in_the_log(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(_paths: object) -> None:
        raise ZeroDivisionError("a bug\x1b[31m")

    monkeypatch.setattr("runner.running.running", broken)
    monkeypatch.delenv("RUNNER_DEBUG", raising=False)
    assert main(["ps"]) == 1
    message = capsys.readouterr().err
    assert message.startswith("error: runner failed: ZeroDivisionError: a bug")
    assert "Traceback" not in message
    assert "\x1b" not in message
    assert main(["logs"]) == 0
    assert "ZeroDivisionError: a bug" in capsys.readouterr().out
    monkeypatch.setenv("RUNNER_DEBUG", "1")
    main(["ps"])
    assert "Traceback" in capsys.readouterr().err


def test_an_interrupt_exits_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_paths: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("runner.running.running", interrupted)
    assert main(["ps"]) == 130


def test_an_interrupt_while_python_imports_is_silent(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("import time\nprint('importing', flush=True)\ntime.sleep(60)\n")
    command = [sys.executable, "-m", "runner", "ls"]
    path = os.pathsep.join([str(tmp_path), str(Path(app_module.__file__).parents[2])])
    environment = {**os.environ, "PYTHONPATH": path}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "importing\n"
        child.send_signal(signal.SIGINT)
        assert child.communicate(timeout=30) == ("", "")
    assert child.returncode == -signal.SIGINT


def test_after_the_imports_an_interrupt_is_an_exception_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["runner", "--version"])
    before = signal.getsignal(signal.SIGINT)
    assert start.main() == 0
    assert signal.getsignal(signal.SIGINT) is before
    project = tomllib.loads((Path(app_module.__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"runner": f"{start.__name__}:main"}


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="/dev/full is Linux's")
@pytest.mark.parametrize("arguments", ["--help", "ls --help", "--version"])
def test_help_that_cannot_be_written_is_an_error_and_no_crash(arguments: str) -> None:
    done = shell(f"{arguments} >/dev/full")
    assert (done.returncode, done.stderr) == (1, "error: The output cannot be written: No space left on device.\n")


@pytest.mark.parametrize("where", ["2>&-", "2>/dev/full", "2> >(exit)"])
def test_narration_that_cannot_be_written_does_not_make_an_answer_a_failure(where: str) -> None:
    if "full" in where and not os.path.exists("/dev/full"):
        pytest.skip("/dev/full is Linux's")
    done = shell(f"run fake hi -n 3 {where}")
    assert (done.returncode, done.stdout.strip() != "") == (0, True)


def test_doctor_can_be_run_for_its_exit_code_alone() -> None:
    done = shell("doctor >&-")
    assert "runner failed" not in done.stderr
    assert done.returncode in (0, 1)


def shell(arguments: str) -> subprocess.CompletedProcess[str]:
    """`runner ARGUMENTS`, with redirections."""
    return subprocess.run(
        ["bash", "-c", f'"{sys.executable}" -m runner {arguments}'],
        capture_output=True,
        text=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
    )


def test_the_app_object_is_the_same_program() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert result.exit_code == 0
