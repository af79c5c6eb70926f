"""Settings from every place they come from, each value with its origin, and the configurations made of them.

It decides which place wins, and knows nothing of models or commands beyond the names of flags.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from runner.attachments import absolute
from runner.config import ChatOptions, LoadOptions, SamplingParams, build
from runner.errors import ConfigError
from runner.paths import Paths
from runner.settings.files import project_file, read_file
from runner.settings.table import SETTINGS, setting

DEFAULT_ORIGIN = "default"

T = TypeVar("T", LoadOptions, SamplingParams, ChatOptions)


@dataclass(frozen=True)
class Settings:
    """Every setting that something other than its default gives a value: {key: (value, origin)}.

    Flags that are None were not given and are passed over everywhere.
    """

    given: Mapping[str, tuple[Any, str]]

    def value(self, key: str) -> Any:
        """The value of a setting. Raises ConfigError for an unknown name."""
        default = setting(key).default
        return self.given.get(key, (default, DEFAULT_ORIGIN))[0]

    def origin(self, key: str) -> str:
        """Where the value comes from: "RUNNER_TEMPERATURE", a file's path, or "default"."""
        setting(key)
        return self.given.get(key, (None, DEFAULT_ORIGIN))[1]

    @property
    def model(self) -> str:
        return str(self.value("model"))

    @property
    def system(self) -> str:
        return str(self.value("system"))

    @property
    def save_chats(self) -> bool:
        return bool(self.value("save_chats"))

    @property
    def show_thinking(self) -> bool:
        return bool(self.value("show_thinking"))

    def is_offline(self, flag: bool | None = None) -> bool:
        """Whether the network must not be used; `flag` is --offline, if it was given."""
        return bool(self.value("offline")) if flag is None else flag

    def load_options(self, **flags: Any) -> LoadOptions:
        """How to run a model: these settings, and fields of LoadOptions over them. Raises UsageError.

        Paths are absolute: where no file says them, they are meant from the working directory.
        """
        options = self._built(LoadOptions, {}, flags)
        return dataclasses.replace(options, draft_file=tuple(map(absolute, options.draft_file)))

    def chat_options(self, **flags: Any) -> ChatOptions:
        """What a request asks beside sampling: these settings, and fields of ChatOptions over them."""
        return self._built(ChatOptions, {}, flags)

    def sampling_params(self, model: Mapping[str, Any], flags: Mapping[str, Any] | None = None) -> SamplingParams:
        """How tokens are chosen: the model's own values, these settings over them, and fields of SamplingParams."""
        return self._built(SamplingParams, model, flags or {})

    def _built(self, owner: type[T], model: Mapping[str, Any], flags: Mapping[str, Any]) -> T:
        """Settings were checked by their names where they were read; flags are here, by theirs."""
        own = [item for item in SETTINGS if item.owner is owner]
        for item in own:
            if flags.get(item.field) is not None:
                item.check_flag(flags[item.field])
        settings = {item.field: self.given[item.key][0] for item in own if item.key in self.given}
        return build(owner, model, settings, flags)


def load_settings(
    paths: Paths, environ: Mapping[str, str] | None = None, cwd: Path | None = None, home: Path | None = None
) -> Settings:
    """The settings of this user, in this directory, with these variables. Raises ConfigError.

    environ, cwd and home are the process's own when not given.
    """
    given: dict[str, tuple[Any, str]] = {}
    project = _project(cwd, home)
    for path in (paths.settings_file, project):
        if path is not None:
            given.update({key: (_meant(key, value, path), str(path)) for key, value in read_file(path).items()})
    environ = os.environ if environ is None else environ
    for item in SETTINGS:
        # Other programs use RUNNER_* too (RUNNER_OS, RUNNER_TEMP on build machines), so unknown ones are left alone;
        # what looks like a misspelt one is told by who shows settings (variables.py).
        if text := environ.get(item.variable):
            try:
                given[item.key] = (item.parse(text), item.variable)
            except ConfigError as error:
                raise ConfigError(f"{item.variable} is {text!r}.", hint=error.hint) from error
    return Settings(given)


def _meant(key: str, value: Any, file: Path) -> Any:
    """Paths in a file are meant from where it lies."""
    return tuple(absolute(path, file.parent) for path in value) if key == "draft_file" else value


def _project(cwd: Path | None, home: Path | None) -> Path | None:
    try:
        return project_file(cwd or Path.cwd(), home or Path.home())
    except (OSError, RuntimeError):  # the directory was deleted under us; a user without a home
        return None
