"""What the user wants, from flags over the environment and settings files down to the model's own defaults.

It turns them into the configurations of config.py. Where settings come from is settings.py's business.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from runner.cli.options import gpu_layers
from runner.config import ChatOptions, LoadOptions, SamplingParams, build

if TYPE_CHECKING:
    from runner.paths import Paths


class Preferences:
    """The settings that flags are laid over. None for a flag means that it was not given."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values
        self.model: str | None = values.get("model")

    @classmethod
    def of_user(cls, paths: Paths) -> Preferences:
        """Read from the environment and the settings files. Raises ConfigError."""
        del paths
        return cls({})

    def load_options(
        self,
        *,
        backend: str | None = None,
        ctx_size: int | None = None,
        n_gpu_layers: str | None = None,
        kv_type: str | None = None,
        n_threads: int | None = None,
        force: bool = False,
    ) -> LoadOptions:
        """Raises UsageError for a value that is out of range."""
        flags = {
            "backend": backend,
            "ctx_size": ctx_size,
            "n_gpu_layers": gpu_layers(n_gpu_layers),
            "kv_type": kv_type,
            "n_threads": n_threads,
            "force": force or None,
        }
        return build(LoadOptions, self._of(LoadOptions), flags)

    def chat_options(
        self, *, overflow: str | None, think: str | None, think_budget: int | None, raw: bool = False
    ) -> ChatOptions:
        """Raises UsageError for a value that is out of range."""
        flags = {"overflow": overflow, "think": think, "think_budget": think_budget, "raw": raw or None}
        return build(ChatOptions, self._of(ChatOptions), flags)

    def sampling_params(self, model_defaults: Mapping[str, Any], own: Mapping[str, Any]) -> SamplingParams:
        """The model's own defaults, under the settings, under what was asked for here (`own`). Raises UsageError."""
        return build(SamplingParams, model_defaults, self._of(SamplingParams), own)

    def is_offline(self, flag: bool | None) -> bool:
        return bool(self._values.get("offline")) if flag is None else flag

    def _of(self, cls: type) -> dict[str, Any]:
        """The settings that are fields of a configuration."""
        names = {field.name for field in dataclasses.fields(cls)}
        return {name: value for name, value in self._values.items() if name in names}
