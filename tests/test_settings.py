"""Settings: which place wins, what is refused and where, and edits that keep the rest of the file."""

from __future__ import annotations

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.config import ChatOptions, LoadOptions, SamplingParams
from runner.errors import ConfigError, UsageError
from runner.paths import Paths, user_paths
from runner.settings import (
    SETTINGS,
    Settings,
    load_settings,
    misspelt_variables,
    reference,
    set_value,
    setting,
    shown,
    unset_value,
)

ROOT = Path(__file__).parent.parent


@pytest.fixture
def paths(runner_home: Path) -> Paths:
    return user_paths(runner_home)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home" / "project" / "deep").mkdir(parents=True)
    return tmp_path / "home"


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def load(paths: Paths, home: Path, **variables: str) -> Settings:
    return load_settings(paths, variables, home / "project" / "deep", home)


# --- precedence ------------------------------------------------------------------------------------------------------


def test_without_files_and_variables_everything_is_default(paths: Paths, home: Path) -> None:
    settings = load(paths, home)
    assert {settings.origin(item.key) for item in SETTINGS} == {"default"}
    assert settings.model == "demo"
    assert settings.load_options() == LoadOptions()
    assert settings.chat_options() == ChatOptions()
    assert settings.sampling_params({}) == SamplingParams()
    assert settings.save_chats
    assert settings.show_thinking
    assert not settings.is_offline()


def test_each_place_wins_over_those_below_it(paths: Paths, home: Path) -> None:
    keys = ("top_k", "temperature", "seed", "min_p")
    user = write(paths.settings_file, "".join(f"{key} = 1\n" for key in keys))
    project = write(home / "project" / "runner.toml", "temperature = 0.5\nseed = 2\nmin_p = 0.2\n")
    settings = load(paths, home, RUNNER_SEED="3", RUNNER_MIN_P="0.3")
    assert [settings.value(key) for key in keys] == [1, 0.5, 3, 0.3]
    origins = [settings.origin(key) for key in (*keys, "top_p")]
    assert origins == [str(user), str(project), "RUNNER_SEED", "RUNNER_MIN_P", "default"]


def test_the_models_own_sampling_lies_between_defaults_and_settings(paths: Paths, home: Path) -> None:
    write(paths.settings_file, "temperature = 0.3\n")
    params = load(paths, home).sampling_params({"temperature": 0.6, "top_k": 20}, {"top_p": 0.5, "seed": None})
    assert (params.temperature, params.top_k, params.top_p, params.min_p) == (0.3, 20, 0.5, SamplingParams().min_p)


def test_flags_win_in_every_configuration(paths: Paths, home: Path) -> None:
    settings = load(paths, home, RUNNER_CTX_SIZE="4096", RUNNER_CONTEXT_OVERFLOW="drop", RUNNER_OFFLINE="yes")
    assert settings.load_options().ctx_size == 4096
    assert settings.load_options(ctx_size=512, backend=None).ctx_size == 512
    assert settings.chat_options() == ChatOptions(overflow="drop")
    assert settings.chat_options(overflow="stop", think="off") == ChatOptions(think="off")
    assert settings.is_offline()
    assert not settings.is_offline(False)


def test_paths_are_meant_from_the_file_that_has_them_or_the_working_directory(
    paths: Paths, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(home)
    project = write(home / "project" / "runner.toml", 'draft_file = ["a.py", "~/b.py", "/c.py"]\n')
    (project.parent / "deep").mkdir(exist_ok=True)
    monkeypatch.chdir(project.parent / "deep")
    settings = load_settings(paths, {}, project.parent / "deep", home)
    assert settings.load_options().draft_file == (f"{project.parent}/a.py", f"{home}/b.py", "/c.py")
    monkeypatch.chdir(project.parent)
    options = settings.load_options(draft_file=["../d e.py"])
    assert options.draft_file == (f"{project.parent}/../d e.py",), "the flag's alone"
    assert hash(options) != hash(settings.load_options())
    monkeypatch.chdir(home)
    set_value(paths, "draft_file", ["typed.py"])
    monkeypatch.chdir(project.parent)
    assert load_settings(paths, {}, home, home).load_options().draft_file == (f"{home}/typed.py",)
    monkeypatch.chdir(home)
    assert load(paths, home, RUNNER_DRAFT_FILE="b.py").load_options().draft_file == (f"{home}/b.py",)


def test_a_wrong_flag_is_refused(paths: Paths, home: Path) -> None:
    settings = load(paths, home)
    with pytest.raises(UsageError, match=r"^--top-p is 2\.$"):
        settings.sampling_params({}, {"top_p": 2.0})
    with pytest.raises(UsageError, match=r"^--ctx-size is 1\."):
        settings.load_options(ctx_size=1)
    with pytest.raises(UsageError, match="ctx_sise"):
        settings.load_options(ctx_sise=512)


def test_the_nearest_project_file_counts_and_none_above_home(paths: Paths, home: Path) -> None:
    write(home.parent / "runner.toml", "top_k = 1\n")
    assert load(paths, home).value("top_k") == SamplingParams().top_k
    write(home / "runner.toml", "top_k = 2\n")
    assert load(paths, home).value("top_k") == 2
    near = write(home / "project" / "deep" / "runner.toml", "top_p = 0.5\n")
    settings = load(paths, home)
    assert settings.origin("top_p") == str(near)
    assert settings.origin("top_k") == "default"
    outside = load_settings(paths, {}, home, home / "project")
    assert outside.value("top_k") == 2


def test_a_directory_that_was_deleted_has_no_project_file(paths: Paths, home: Path, monkeypatch) -> None:
    gone = home / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert load_settings(paths, {}).value("top_k") == SamplingParams().top_k


def test_variables_of_other_programs_and_empty_ones_are_left_alone(paths: Paths, home: Path) -> None:
    settings = load(paths, home, RUNNER_OS="Linux", RUNNER_TEMP="/tmp", RUNNER_HOME="/x", RUNNER_MODEL="")
    assert settings.given == {}


def test_variables_that_look_like_a_misspelt_setting_are_known_and_other_programs_are_not() -> None:
    ours = {"RUNNER_TOPK": "1", "RUNNER_CTXSIZE": "512", "RUNNER_MODLE": "demo", "RUNNER_TOPP": ""}
    read = {"RUNNER_MODEL": "demo", "RUNNER_HOME": "/x", "RUNNER_DEBUG": "1", "RUNNER_SERVE_TOKEN": "t"}
    of_others = ("OS", "ARCH", "NAME", "TEMP", "TOOL_CACHE", "WORKSPACE", "ENVIRONMENT", "TRACKING_ID", "USER", "TOKEN")
    of_others += (
        "SCOPE",
        "SECRET",
        "SERVER",
        "HOSTNAME",
        "HOME_DIR",
        "ACCESS_TOKEN",
        "SYSTEM_ID",
        "TYPE",
        "ADMIN",
        "CONTEXT",
    )
    found = misspelt_variables(ours | read | {f"RUNNER_{name}": "x" for name in of_others})
    meant = {"RUNNER_TOPK": "RUNNER_TOP_K", "RUNNER_CTXSIZE": "RUNNER_CTX_SIZE", "RUNNER_MODLE": "RUNNER_MODEL"}
    assert found == meant


def test_the_process_own_variables_are_read(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNNER_BACKEND", "native")
    assert load_settings(paths).load_options().backend == "native"


# --- values ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("temperature", "0", 0.0),
        ("temperature", " 1e-1 ", 0.1),
        ("seed", "18446744073709551615", 2**64 - 1),
        ("penalty_last_n", "-1", -1),
        ("n_gpu_layers", "all", "all"),
        ("n_gpu_layers", "12", 12),
        ("save_chats", "OFF", False),
        ("save_chats", "1", True),
        ("stop", "</s>", ("</s>",)),
        ("system", "  two\nlines ", "  two\nlines "),
        ("context_overflow", "drop", "drop"),
        ("model", "owner/repo:Q4_K_M", "owner/repo:Q4_K_M"),
    ],
)
def test_a_variable_is_read_by_the_type_of_its_setting(paths: Paths, home: Path, key: str, text: str, value) -> None:
    settings = load(paths, home, **{f"RUNNER_{key.upper()}": text})
    assert settings.value(key) == value
    assert type(settings.value(key)) is type(value)


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("temperature", "hot"),
        ("temperature", "nan"),
        ("temperature", "inf"),
        ("temperature", "1" + "0" * 400),
        ("top_k", "40.5"),
        ("top_k", "1" + "0" * 5000),
        ("seed", "-1"),
        ("n_gpu_layers", "some"),
        ("n_gpu_layers", "1.5"),
        ("save_chats", "perhaps"),
        ("backend", "cuda"),
        ("think", "hard"),
        ("kv_type", "F16"),
    ],
)
def test_a_wrong_variable_is_named_with_what_it_must_be(paths: Paths, home: Path, key: str, text: str) -> None:
    with pytest.raises(ConfigError, match=f"RUNNER_{key.upper()}") as caught:
        load(paths, home, **{f"RUNNER_{key.upper()}": text})
    assert "must be" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "line", "says", "hint"),
    [
        ("top_k = 1\ntemprature = 0.7\n", 2, "There is no setting 'temprature'", "temperature"),
        ("\n# top_p = 1\ntop_p = 1.5\n", 3, "top_p is 1.5", "from 0 to 1"),
        ("top_k = '40'\n", 1, "top_k is '40'", "whole number"),
        ("temperature = true\n", 1, "temperature is True", "number"),
        ("save_chats = 1\n", 1, "save_chats is 1", "true or false"),
        ("stop = 'x'\n", 1, "stop is 'x'", "list"),
        ("stop = ['']\n", 1, "stop is", "empty"),
        ("model = ['a']\n", 1, "model is", "text"),
        ("temperature = 1" + "0" * 400 + "\n", 1, "temperature is inf", "from 0 to 100"),
        ("seed = 0\n\n[sampling]\ntop_p = 0.5\n", 4, "'sampling.top_p'", "top_p ="),
        ("a.b.c = 1\n", 1, "'a.b'", "Known names"),
        ("[zzz]\n", 1, "'zzz'", "Known names"),
        ("top_k = 1\ntop_k = 2\n", None, "not valid TOML", ""),
        ("top_k = \n", 1, "not valid TOML", ""),
        ("top_k = 1\nseed = [1,\n", None, "not valid TOML", ""),
        ("seed = " + "1" * 5000, None, "not valid TOML", ""),
        ("stop = " + "[" * 5000, None, "not valid TOML", ""),
    ],
)
@pytest.mark.parametrize("place", ["user", "project"])
def test_a_wrong_file_is_named_with_its_line(
    paths: Paths, home: Path, place: str, text: str, line: int | None, says: str, hint: str
) -> None:
    file = write(paths.settings_file if place == "user" else home / "project" / "runner.toml", text)
    with pytest.raises(ConfigError) as caught:
        load(paths, home)
    assert f"{file}:{'' if line is None else f'{line}'}" in caught.value.message
    assert says in caught.value.message
    assert hint in caught.value.hint


def test_files_that_are_no_text_or_no_file_are_refused(paths: Paths, home: Path) -> None:
    paths.config.mkdir(parents=True)
    paths.settings_file.write_bytes(b"model = '\xff'\n")
    with pytest.raises(ConfigError, match="UTF-8"):
        load(paths, home)
    paths.settings_file.unlink()
    paths.settings_file.mkdir()
    with pytest.raises(ConfigError, match="is a directory") as caught:
        load(paths, home)
    assert caught.value.hint == "Move it away."
    paths.settings_file.rmdir()
    paths.config.rmdir()
    paths.config.touch()
    with pytest.raises(ConfigError, match="what it should lie in is a file") as caught:
        load(paths, home)
    assert "RUNNER_HOME" in caught.value.hint


def test_a_list_may_be_one_text_that_is_written_as_in_a_file(paths: Paths, home: Path) -> None:
    set_value(paths, "stop", ['["END", "two words"]'])
    assert load(paths, home).value("stop") == ("END", "two words")
    assert load(paths, home, RUNNER_STOP="['a\\n', 'b']").value("stop") == (r"a\n", "b")
    assert load(paths, home, RUNNER_STOP="[INST]").value("stop") == ("[INST]",)
    for wrong in ('["a" "b"]', '["a", 1]'):
        with pytest.raises(ConfigError, match="stop is"):
            set_value(paths, "stop", [wrong])


def test_a_byte_order_mark_is_no_error(paths: Paths, home: Path) -> None:
    write(paths.settings_file, "\ufefftop_k = 3\r\nseed = 4\r\n")
    assert load(paths, home).value("top_k") == 3


@given(st.sampled_from(SETTINGS), st.text(max_size=30))
def test_any_text_is_a_value_or_a_clear_error(item, text: str) -> None:
    refusal = None
    try:
        value = item.parse(text)
    except ConfigError as error:
        refusal = error
    if refusal is None:
        assert item.check(value) == value
    else:
        assert item.key in refusal.message
        assert refusal.hint


def test_every_default_is_a_value_of_its_setting() -> None:
    for item in SETTINGS:
        assert item.default is None or item.check(item.default) == item.default


def test_an_unknown_setting_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError) as caught:
        setting("temprature")
    assert "temperature" in caught.value.hint


@pytest.mark.parametrize(
    ("value", "text"), [(None, ""), (True, "true"), (0.1, "0.1"), (("a", "b"), "a, b"), (40, "40"), ("x", "x")]
)
def test_values_are_shown_as_a_file_spells_them(value: object, text: str) -> None:
    assert shown(value) == text


# --- edits -----------------------------------------------------------------------------------------------------------

HAND_WRITTEN = """\
# my settings
model = "demo"   # small

# cooler
temperature = 0.7
stop = [
  "END",  # the usual one
]
"""


def test_an_edit_keeps_everything_else(paths: Paths, home: Path) -> None:
    write(paths.settings_file, HAND_WRITTEN)
    assert set_value(paths, "temperature", ["0.25"]) == 0.25
    set_value(paths, "top_k", ["7"])
    text = paths.settings_file.read_text()
    assert text == HAND_WRITTEN.replace("0.7", "0.25") + "top_k = 7\n"
    assert load(paths, home).value("temperature") == 0.25
    assert unset_value(paths, "top_k")
    assert paths.settings_file.read_text() == HAND_WRITTEN.replace("0.7", "0.25")
    assert not unset_value(paths, "top_k")


@pytest.mark.parametrize(
    ("key", "texts"),
    [
        ("system", ['say "hi"\n\\ \t\x7f "\'\'\'"']),
        ("stop", ["a", "b c", '"""']),
        ("draft_file", ["a.py", "b c.py"]),
        ("save_chats", ["no"]),
        ("seed", [str(2**63 - 1)]),
        ("temperature", ["1e-05"]),
        ("n_gpu_layers", ["all"]),
        ("penalty_last_n", ["-1"]),
    ],
)
def test_what_is_set_is_what_is_read(paths: Paths, home: Path, key: str, texts: list[str]) -> None:
    value = set_value(paths, key, texts)
    settings = load(paths, home)
    assert settings.value(key) == value
    assert settings.origin(key) == str(paths.settings_file)


def test_the_file_is_private_and_whole(paths: Paths) -> None:
    set_value(paths, "top_k", ["1"])
    assert stat.S_IMODE(paths.settings_file.stat().st_mode) == 0o600
    paths.settings_file.chmod(0o644)
    set_value(paths, "top_k", ["2"])
    assert stat.S_IMODE(paths.settings_file.stat().st_mode) == 0o600
    assert [path.name for path in paths.config.iterdir()] == ["config.toml"]


def test_a_link_stays_a_link(paths: Paths, tmp_path: Path) -> None:
    real = write(tmp_path / "dotfiles" / "runner.toml", "# mine\n")
    paths.config.mkdir(parents=True)
    paths.settings_file.symlink_to(real)
    set_value(paths, "top_k", ["5"])
    assert paths.settings_file.is_symlink()
    assert real.read_text() == "# mine\ntop_k = 5\n"


def test_a_link_in_a_circle_is_said_and_left(paths: Paths) -> None:
    paths.config.mkdir(parents=True)
    paths.settings_file.symlink_to(paths.settings_file.name)
    with pytest.raises(ConfigError, match="Too many levels of symbolic links"):
        set_value(paths, "top_k", ["5"])
    assert paths.settings_file.is_symlink()


@pytest.mark.parametrize(
    ("key", "texts"),
    [("top_p", ["2"]), ("tempratur", ["1"]), ("seed", ["1", "2"]), ("seed", []), ("backend", ["cuda"])],
)
def test_a_wrong_edit_changes_nothing(paths: Paths, key: str, texts: list[str]) -> None:
    write(paths.settings_file, HAND_WRITTEN)
    with pytest.raises(ConfigError):
        set_value(paths, key, texts)
    assert paths.settings_file.read_text() == HAND_WRITTEN


@pytest.mark.parametrize(
    ("key", "text", "words"),
    [
        ("system", "\udcff", "bytes that are no text"),
        ("model", " ", "model is empty"),
        ("temperature", "nan", "temperature is nan"),
        ("temperature", "-1e999", "temperature is -inf"),
        ("temperature", "9" * 400, "temperature is inf"),
    ],
)
def test_what_cannot_be_a_value_is_named_and_leaves_nothing_behind(
    paths: Paths, key: str, text: str, words: str
) -> None:
    set_value(paths, "seed", ["1"])
    with pytest.raises(ConfigError, match=words):
        set_value(paths, key, [text])
    assert [(path.name, path.read_text()) for path in paths.config.iterdir()] == [("config.toml", "seed = 1\n")]


def test_edits_at_the_same_time_are_all_kept(paths: Paths, home: Path) -> None:
    """As from several terminals. More than one is between reading and writing, unless they wait for each other."""
    keys = ["seed", "top_k", "max_tokens", "n_threads", "think_budget", "penalty_last_n"]
    with ThreadPoolExecutor(len(keys)) as pool:
        for _ in pool.map(lambda key: set_value(paths, key, ["7"]), keys):
            pass
    assert set(load(paths, home).given) == set(keys)


def test_a_broken_file_is_not_overwritten(paths: Paths) -> None:
    write(paths.settings_file, "top_k = \n")
    with pytest.raises(ConfigError, match=r"config\.toml:1 is not valid TOML"):
        set_value(paths, "seed", ["1"])
    assert paths.settings_file.read_text() == "top_k = \n"


def test_a_mistaken_key_can_be_taken_out_and_others_still_set(paths: Paths, home: Path) -> None:
    write(paths.settings_file, "temprature = 1\n")
    set_value(paths, "seed", ["1"])
    assert unset_value(paths, "temprature")
    assert load(paths, home).given == {"seed": (1, str(paths.settings_file))}
    with pytest.raises(ConfigError):
        unset_value(paths, "temprature")


def test_a_file_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    paths = user_paths(write(tmp_path / "file", ""))
    with pytest.raises(ConfigError, match="cannot be"):
        set_value(paths, "seed", ["1"])


# --- the documentation -----------------------------------------------------------------------------------------------


def test_the_documentation_has_the_table_as_it_is() -> None:
    assert reference() in (ROOT / "docs" / "SETTINGS.md").read_text(encoding="utf-8")
