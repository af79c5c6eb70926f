"""Groups of flags that several commands share: a command takes a group as one parameter, and Typer sees its flags.

A group is a dataclass whose fields are flags of options.py, with their defaults, and a method that says what was given
as the settings want it. A new flag is a field of its group. It knows no command.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any, get_type_hints

from runner.cli import options


def with_groups(command: Callable[..., None]) -> Callable[..., None]:
    """The command as Typer is to see it: where a parameter is a group, the group's flags stand."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, type[Any]] = {}
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        kind = hints[parameter.name]
        if dataclasses.is_dataclass(kind):
            groups[parameter.name] = kind  # type: ignore[assignment]
            flags = get_type_hints(kind, include_extras=True)
            parameters += [
                inspect.Parameter(
                    field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=flags[field.name]
                )
                for field in dataclasses.fields(kind)
            ]
        else:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=kind))

    @functools.wraps(command)
    def seen(**given: Any) -> None:
        for name, kind in groups.items():
            given[name] = kind(**{field.name: given.pop(field.name) for field in dataclasses.fields(kind)})
        command(**given)

    seen.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    seen.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return seen


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sampling:
    """How tokens are chosen."""

    max_tokens: options.MaxTokens = None
    temperature: options.Temperature = None
    top_k: options.TopK = None
    top_p: options.TopP = None
    min_p: options.MinP = None
    repeat_penalty: options.RepeatPenalty = None
    presence_penalty: options.PresencePenalty = None
    frequency_penalty: options.FrequencyPenalty = None
    seed: options.Seed = None
    stop: options.Stop = None

    def given(self) -> dict[str, Any]:
        """The flags that were given, by field of SamplingParams."""
        flags = {field.name: getattr(self, field.name) for field in dataclasses.fields(Sampling)}
        flags["stop"] = tuple(self.stop) if self.stop else None
        return {name: value for name, value in flags.items() if value is not None}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answer(Sampling):
    """That, and what the answer has to be."""

    json_schema: options.JsonSchema = None
    grammar: options.GrammarFile = None

    def given(self) -> dict[str, Any]:
        """The same. Raises UsageError for a wrong grammar."""
        grammar = options.grammar(self.json_schema, self.grammar)
        return super().given() | ({} if grammar is None else {"grammar": grammar})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """What runs a model, and how."""

    ctx_size: options.CtxSize = None
    backend: options.Backend = None
    n_gpu_layers: options.GpuLayers = None
    kv_type: options.KvType = None
    spec: options.Spec = None
    draft: options.Draft = None
    draft_max: options.DraftMax = None
    draft_file: options.DraftFiles = None
    threads: options.Threads = None

    def given(self) -> dict[str, Any]:
        """By field of LoadOptions; None for what was not given. Raises UsageError."""
        return {
            "ctx_size": self.ctx_size,
            "backend": self.backend,
            "n_gpu_layers": options.gpu_layers(self.n_gpu_layers),
            "kv_type": self.kv_type,
            "speculation": self.spec,
            "draft": self.draft,
            "draft_max": self.draft_max,
            "draft_file": self.draft_file or None,
            "n_threads": self.threads,
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class Load(Run):
    """That, and whether it is loaded whatever is expected."""

    force: options.Force = False

    def given(self) -> dict[str, Any]:
        return {**super().given(), "force": self.force or None}
