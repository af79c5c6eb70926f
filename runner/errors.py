"""The one exception tree of runner, and the exit code of each class.

This file knows nothing of how an error is shown: front ends print `message`, then `hint`. A hint that names what was
probably meant is made here too.

    RunnerError                 1   something failed
    ├── UsageError              2   wrong flag, value, model name or configuration
    │   ├── BadGrammar          2   a grammar or JSON schema that means nothing, or that no text matches
    │   ├── ConfigError         2   a settings file or RUNNER_* variable is wrong
    │   ├── UnknownModel        2   no such model; the hint names the nearest ones
    │   └── UnsuitedOptions     2   layers, a cache or a drafter that are not to be had here: the model runs without
    ├── BusyError               3   busy, locked, or no connection: trying again helps
    ├── DoesNotFit              4   needs more memory or disk than there is (--force overrides)
    ├── VerificationFailed      5   a file does not have the contents that it should have
    ├── BadModelFile            1   a model file is malformed, truncated or unsafe
    ├── UnsupportedModel        1   a well-formed model that this version cannot run
    ├── BackendUnavailable      1   a backend is missing or cannot run here
    ├── TemplateError           1   the chat template is missing, broken, or refuses the messages
    ├── ContextOverflow         1   the conversation does not fit the context
    ├── EngineDied              1   the engine process crashed, hung, or was killed
    └── StoreError              1   the chat database cannot be read or written
        └── StoreUnwritable     1   by its place: a disk that is full or read-only, a directory of somebody else
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

# What to do about a damaged file of weights. `runner pull` would not do: it goes by sizes.
FETCH_AGAIN: Final = "fetch it again, or let `runner verify --repair` do it for a model of the hub"


class RunnerError(Exception):
    """An error with a message for the user and, where there is one, the remedy.

    message: one sentence, no trailing newline. hint: what to do about it, or "".
    """

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


def loading_cancelled() -> RunnerError:
    """What ends a load that somebody cancelled."""
    return RunnerError("Loading was cancelled.")


class UsageError(RunnerError):
    exit_code = 2


class BadGrammar(UsageError):
    pass


class ConfigError(UsageError):
    pass


class UnknownModel(UsageError):
    pass


class UnsuitedOptions(UsageError):
    pass


class BusyError(RunnerError):
    exit_code = 3


class DoesNotFit(RunnerError):
    exit_code = 4


class VerificationFailed(RunnerError):
    exit_code = 5


class BadModelFile(RunnerError):
    pass


class UnsupportedModel(RunnerError):
    pass


class BackendUnavailable(RunnerError):
    pass


class TemplateError(RunnerError):
    pass


class ContextOverflow(RunnerError):
    pass


class EngineDied(RunnerError):
    pass


class StoreError(RunnerError):
    pass


class StoreUnwritable(StoreError):
    pass


def error_class(name: str) -> type[RunnerError]:
    """The class of that name in the tree above, or RunnerError: how an error crosses a process boundary."""
    found = globals().get(name)
    return found if isinstance(found, type) and issubclass(found, RunnerError) else RunnerError


_NEAR: Final = 0.6  # of difflib: two typos in five letters; at 0.5 "nodel" was near to "qwen3-coder"
_LEAST_PART, _MOST_NEAR = 3, 3


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """Up to three known names that somebody may have meant who wrote `name`: mistyped, in another case, or in part."""
    import difflib

    wanted, by_lower = name.lower(), {one.lower(): one for one in sorted(known)}
    near = difflib.get_close_matches(wanted, by_lower, n=_MOST_NEAR, cutoff=_NEAR)
    if not near and len(wanted) >= _LEAST_PART:
        near = [one for one in by_lower if wanted in one][:_MOST_NEAR]
    return [by_lower[one] for one in near]


def nearest_hint(name: str, known: Iterable[str]) -> str:
    """A hint that names the nearest known names, or lists all of them when none is near."""
    names = sorted(known)
    if near := nearest(name, names):
        return "Did you mean " + " or ".join(near) + "?"
    return "Known names: " + ", ".join(names) + "."
