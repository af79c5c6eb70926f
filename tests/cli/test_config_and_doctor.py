"""`runner config` and `runner doctor`, as a user types them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from runner.cli.app import _load, main
from runner.paths import user_paths
from runner.settings import SETTINGS, reference


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory without a runner.toml above it that counts."""
    (tmp_path / "work").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(arguments)
    out, err = capsys.readouterr()
    return code, out, err


# --- config ----------------------------------------------------------------------------------------------------------


def test_show_has_every_setting_with_its_value_and_origin(
    capsys: pytest.CaptureFixture[str], elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (elsewhere / "runner.toml").write_text("temperature = 0.3\n")
    monkeypatch.setenv("RUNNER_SEED", "7")
    monkeypatch.setenv("RUNNER_MODLE", "qwen3-8b")
    code, out, err = run(capsys, "config", "show")
    assert code == 0
    assert "runner does not read RUNNER_MODLE." in err
    assert "RUNNER_MODEL?" in err
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines()[1:]}
    assert set(rows) == {item.key for item in SETTINGS}
    assert rows["temperature"] == ["0.3", str(elsewhere / "runner.toml")]
    assert rows["seed"] == ["7", "RUNNER_SEED"]
    assert rows["model"] == ["demo", "default"]


def test_the_flag_of_every_setting_is_one_of_the_chat() -> None:
    options = {name for one in _load("chat").params for name in one.opts}
    assert {item.flag for item in SETTINGS if item.flag} <= options


def test_show_as_json_carries_types_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "config", "show", "--json")
    plain = json.loads(out)
    assert (code, plain["schema"]) == (0, "runner.config/1")
    rows = {row["key"]: row for row in plain["settings"]}
    assert rows["save_chats"]["value"] is True
    assert rows["ctx_size"]["value"] is None
    assert all(row["help"] and row["variable"].startswith("RUNNER_") for row in rows.values())


def test_set_get_and_unset(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "config", "set", "temperature", "0.25")[0] == 0
    assert run(capsys, "config", "get", "temperature") == (0, "0.25\n", "")
    assert json.loads(run(capsys, "config", "get", "temperature", "--json")[1])["value"] == 0.25
    assert run(capsys, "config", "unset", "temperature")[0] == 0
    assert run(capsys, "config", "get", "temperature")[1] == "0.8\n"
    code, out, err = run(capsys, "config", "unset", "temperature")
    assert (code, out) == (0, "")
    assert "was not in" in err


def test_negative_numbers_and_lists_can_be_set(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "config", "set", "penalty_last_n", "-1")[0] == 0
    assert run(capsys, "config", "get", "penalty_last_n")[1] == "-1\n"
    assert run(capsys, "config", "set", "stop", "END", "two words")[0] == 0
    assert run(capsys, "config", "get", "stop")[1] == "END\ntwo words\n"


def test_a_value_that_something_else_hides_is_said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUNNER_TOP_K", "9")
    code, _, err = run(capsys, "config", "set", "top_k", "3")
    assert code == 0
    assert "still comes from RUNNER_TOP_K" in err
    assert run(capsys, "config", "get", "top_k")[1] == "9\n"


def test_a_value_is_set_beside_a_name_that_is_no_setting_and_that_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    file = user_paths().settings_file
    file.parent.mkdir(parents=True)
    file.write_text("tempature = 1\n")
    code, _, err = run(capsys, "config", "set", "seed", "7")
    assert code == 0
    assert "seed = 7" in file.read_text()
    assert "There is no setting 'tempature'" in err
    assert "Did you mean temperature?" in err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["get", "temprature"], "temperature"),
        (["set", "temprature", "1"], "temperature"),
        (["set", "top_p", "2"], "from 0 to 1"),
        (["set", "system", "be", "brief"], "quotes"),
        (["unset", "temprature"], "temperature"),
    ],
)
def test_mistakes_exit_with_2_and_say_the_remedy(
    capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    code, out, err = run(capsys, "config", *arguments)
    assert (code, out) == (2, "")
    assert says in err
    assert not user_paths().settings_file.exists()


def test_a_broken_file_exits_with_2_and_its_line_and_path_still_works(capsys: pytest.CaptureFixture[str]) -> None:
    file = user_paths().settings_file
    file.parent.mkdir(parents=True)
    file.write_text("top_k = 1\ntop_q = 2\n")
    code, _, err = run(capsys, "config", "show")
    assert code == 2
    assert f"{file}:2" in err
    assert run(capsys, "config", "path") == (0, f"{file}\n", "")
    assert run(capsys, "config", "unset", "top_q")[0] == 0
    assert run(capsys, "config", "show")[0] == 0


def test_reference_is_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "config", "reference")[1] == reference()


# --- doctor ----------------------------------------------------------------------------------------------------------


def test_doctor_prints_a_plain_report(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "doctor")
    assert "\x1b" not in out
    assert err == ""
    lines = [line for line in out.splitlines() if re.match(r"(ok|warning|error) ", line)]
    assert len(lines) > 15
    assert code == (1 if any(line.startswith("error") for line in lines) else 0)


@pytest.mark.usefixtures("no_gpu")
def test_doctor_exits_with_1_when_something_is_broken_and_json_says_what(capsys: pytest.CaptureFixture[str]) -> None:
    file = user_paths().settings_file
    file.parent.mkdir(parents=True, mode=0o700)
    file.write_text("topk = 1\n")
    file.chmod(0o600)
    code, out, _ = run(capsys, "doctor", "--json")
    plain = json.loads(out)
    assert (code, plain["schema"]) == (1, "runner.doctor/1")
    (settings,) = [check for check in plain["checks"] if check["name"] == "Settings"]
    assert settings["status"] == "error"
    assert "top_k" in settings["remedy"]
    code, out, _ = run(capsys, "doctor")
    assert code == 1
    assert re.search(r"^error +Settings .*\n +-> Did you mean top_k", out, re.MULTILINE)
    assert re.search(r"^1 error", out, re.MULTILINE)


def test_doctor_paints_only_its_own_words(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("RUNNER_HOME", str(tmp_path / "a\x1b]0;x\x07b"))
    _, out, _ = run(capsys, "doctor")
    assert set(re.findall(r"\x1b[^m]*m", out)) <= {"\x1b[32m", "\x1b[33m", "\x1b[31m", "\x1b[0m"}
    assert "\x1b]" not in out
    assert "\x07" not in out


def test_config_and_doctor_import_nothing_heavy() -> None:
    code = (
        "import sys\nfrom runner.cli.app import main\nmain(['config', 'show'])\n"
        "print(sorted({'torch', 'triton', 'llama_cpp', 'textual', 'huggingface_hub', 'numpy'} & set(sys.modules)))\n"
        "main(['doctor'])\nprint(sorted({'torch', 'triton', 'textual'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines().count("[]") == 2, done.stdout
