"""The exception tree: exit codes, messages with remedies, and names that cross a process boundary."""

from __future__ import annotations

import inspect

import pytest

from runner import errors
from runner.errors import RunnerError, error_class

CLASSES = [found for _, found in inspect.getmembers(errors, inspect.isclass) if issubclass(found, RunnerError)]
EXIT_CODES = dict.fromkeys(("UsageError", "BadGrammar", "ConfigError", "UnknownModel", "UnsuitedOptions"), 2) | {
    "BusyError": 3,
    "DoesNotFit": 4,
    "VerificationFailed": 5,
}


@pytest.mark.parametrize("found", CLASSES)
def test_each_class_has_its_exit_code_and_keeps_message_and_hint(found: type[RunnerError]) -> None:
    assert found.exit_code == EXIT_CODES.get(found.__name__, 1)
    error = found("It failed.", hint="Try again.")
    assert (str(error), error.message, error.hint) == ("It failed.", "It failed.", "Try again.")
    assert found("It failed.").hint == ""


@pytest.mark.parametrize("found", CLASSES)
def test_each_class_is_found_by_its_name(found: type[RunnerError]) -> None:
    assert error_class(found.__name__) is found


@pytest.mark.parametrize("name", ["", "ValueError", "annotations", "error_class", "__builtins__", "NoSuchError"])
def test_other_names_are_a_plain_error(name: str) -> None:
    assert error_class(name) is RunnerError


def test_the_docstring_draws_every_class_with_its_exit_code() -> None:
    drawn = [line.strip("│├└─ ").split() for line in (errors.__doc__ or "").splitlines()]
    codes = {words[0]: int(words[1]) for words in drawn if len(words) > 2 and words[1].isdigit()}
    assert codes == {found.__name__: found.exit_code for found in CLASSES}


def test_a_wrong_setting_is_a_wrong_usage() -> None:
    with pytest.raises(errors.UsageError):
        raise errors.ConfigError("x")
