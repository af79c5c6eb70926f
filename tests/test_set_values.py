"""What /set takes: values as they are written, and what is refused; remedies that name flags, as /set says them."""

from __future__ import annotations

import dataclasses

import pytest

from runner.chat_commands import parse_command
from runner.config import ChatOptions, LoadOptions, SamplingParams
from runner.errors import UsageError
from runner.set_values import field_name, in_chat, names, parsed, shown
from runner.settings import SETTINGS


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ('END "two words"', ("END", "two words")),
        (r'"\n\n" "a\tb"', ("\n\n", "a\tb")),
        (r'"é\n"', ("é\n",)),
        (r'"日本\n🙂"', ("日本\n🙂",)),
        (r'"\x41\u65e5"', ("A日",)),
        ("日本", ("日本",)),
        ("none", ()),
        (r"""["END", 'two words', "\n", "\\begin", '\n']""", ("END", "two words", "\n", r"\begin", r"\n")),
        (" [ ] ", ()),
        ("[]", ()),
        ("[INST]", ("[INST]",)),
    ],
)
def test_stop_strings_are_what_they_are_written_as(text: str, wanted: tuple[str, ...]) -> None:
    assert parsed("stop", text) == wanted


@pytest.mark.parametrize("text", ['["a" "b"]', '["a", 1]', '"open', "'\\'", r"'\x4'"])
def test_a_list_that_is_no_list_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="stop cannot be"):
        parsed("stop", text)


@pytest.mark.parametrize(
    ("name", "text", "wanted"), [("top_k", "20", 20), ("seed", "none", None), ("min_p", "0.1", 0.1)]
)
def test_numbers_and_nothing(name: str, text: str, wanted: object) -> None:
    assert parsed(name, text) == wanted


def test_every_default_is_written_as_it_is_shown() -> None:
    fields = [field for owner in (SamplingParams, ChatOptions, LoadOptions) for field in dataclasses.fields(owner)]
    for field in fields:
        if field.name in names():
            value = parsed(field.name, shown(field.default))
            assert (value, type(value)) == (field.default, type(field.default)), field.name


@pytest.mark.parametrize(
    ("name", "text", "hint"),
    [
        ("top_k", "1.5", "It must be a whole number."),
        ("temperature", "0,5", "It must be a number."),
        ("seed", "new", "It must be none, or a whole number."),
        ("n_gpu_layers", "half", "It must be auto, all, or a whole number."),
    ],
)
def test_what_is_no_number_is_refused_with_what_it_can_be(name: str, text: str, hint: str) -> None:
    with pytest.raises(UsageError, match=f"{name} cannot be '{text}'") as raised:
        parsed(name, text)
    assert raised.value.hint == hint


def test_values_are_shown_as_they_are_set() -> None:
    assert parsed("stop", shown(("two words", "é"))) == ("two words", "é")
    assert (shown(None), shown(())) == ("none", "none")


@pytest.mark.parametrize(
    ("hint", "said"),
    [
        ("Load it with a larger context (-c).", "Load it with a larger context (/set ctx_size N)."),
        ("A context of 512 tokens would fit: -c 512.", "A context of 512 tokens would fit: /set ctx_size 512."),
        ("It would fit on the CPU: -ngl 0.", "It would fit on the CPU: /set n_gpu_layers 0."),
        ("Use -ngl all or -ngl 0.", "Use /set n_gpu_layers all or /set n_gpu_layers 0."),
        ("Use --kv-type f16, or --backend llamacpp.", "Use /set kv_type f16, or /set backend llamacpp."),
        ("It would fit without one: --spec suffix.", "It would fit without one: /set speculation suffix."),
        ("With --backend auto, runner chooses.", "With /set backend auto, runner chooses."),
        ("`runner show -c 512` says; --force tries.", "`runner show -c 512` says; `runner chat MODEL --force` tries."),
        ("Give it a text with --raw.", "Give it a text with `runner run MODEL --raw`."),
        ("Any JSON object is: --json-schema json.", "Any JSON object is: /grammar json."),
        ("pip install --force-reinstall --no-cache-dir x", "pip install --force-reinstall --no-cache-dir x"),
        ("A well-c known word, and a - dash.", "A well-c known word, and a - dash."),
        ("", ""),
        ("It is '--temp -c 5', and -c 5 is no 'it'.", "It is '--temp -c 5', and /set ctx_size 5 is no 'it'."),
        ('''A draft named "it's --temp" is none.''', '''A draft named "it's --temp" is none.'''),
        ("The model's cache and the users' --kv-type q8_0.", "The model's cache and the users' /set kv_type q8_0."),
        ("/tmp/a/--temp cannot be read.", "/tmp/a/--temp cannot be read."),
        ("--temp/x, --temp.json and --draft=a: (-c).", "--temp/x, --temp.json and --draft=a: (/set ctx_size N)."),
        ("2 messages are left out, from “gcc -c ` a.c” --temp 0.5” on. Use -c 5.",
         "2 messages are left out, from “gcc -c ` a.c” --temp 0.5” on. Use /set ctx_size 5."),
    ],
)  # fmt: skip
def test_a_flag_that_set_knows_is_said_as_the_command(hint: str, said: str) -> None:
    assert in_chat(hint) == said


@pytest.mark.parametrize("name", ["grammar", "system", "model", "show_thinking", "show-thinking"])
def test_what_another_command_sets_is_told_with_that_command(name: str) -> None:
    with pytest.raises(UsageError, match="/set does not set") as refused:
        field_name(name)
    assert parse_command(refused.value.hint.removeprefix("It is: ").split(", or")[0]).argument


def test_a_setting_is_set_in_a_chat_by_the_name_that_files_have() -> None:
    of_chats = [setting for setting in SETTINGS if setting.owner is not None and setting.field in names()]
    assert len(of_chats) == len(names())
    assert [field_name(setting.key) for setting in of_chats] == [setting.field for setting in of_chats]
