"""The configurations refuse what they cannot mean, and name what was nearly meant."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, get_args

import pytest

from runner.config import DEFAULT_CTX, BackendChoice, ChatOptions, LoadOptions, SamplingParams, Speculation, build
from runner.errors import UsageError, nearest, nearest_hint
from runner.speculative.drafter import DrafterName
from runner.types import BackendName


def test_every_backend_and_every_drafter_can_be_asked_for() -> None:
    assert set(get_args(BackendChoice)) == {"auto", *get_args(BackendName)}
    assert LoadOptions(backend="fake").backend == "fake"
    assert set(get_args(Speculation)) == {"off", "auto", *get_args(DrafterName)} - {"scripted"}  # benchmarks' alone


def test_who_mistypes_a_backend_is_told_of_those_that_run_models() -> None:
    with pytest.raises(UsageError) as caught:
        LoadOptions(backend="lama")  # type: ignore[arg-type]
    assert caught.value.hint == "It must be one of: auto, native, llamacpp."


@pytest.mark.parametrize(
    ("owner", "values"),
    [
        (SamplingParams, {"temperature": -0.1}),
        (SamplingParams, {"temperature": math.nan}),
        (SamplingParams, {"temperature": math.inf}),
        (SamplingParams, {"temperature": "hot"}),
        (SamplingParams, {"temperature": True}),
        (SamplingParams, {"top_k": -1}),
        (SamplingParams, {"top_k": 40.0}),
        (SamplingParams, {"top_p": 1.01}),
        (SamplingParams, {"min_p": -0.01}),
        (SamplingParams, {"repeat_penalty": 0}),
        (SamplingParams, {"presence_penalty": 101}),
        (SamplingParams, {"frequency_penalty": -101}),
        (SamplingParams, {"penalty_last_n": -2}),
        (SamplingParams, {"seed": -1}),
        (SamplingParams, {"seed": 2**64}),
        (SamplingParams, {"seed": 10**400}),
        (SamplingParams, {"max_tokens": 0}),
        (SamplingParams, {"stop": ("end", "")}),
        (SamplingParams, {"stop": "end"}),
        (SamplingParams, {"stop": (5,)}),
        (SamplingParams, {"grammar": "{}"}),
        (LoadOptions, {"backend": "cuda"}),
        (LoadOptions, {"ctx_size": 15}),
        (LoadOptions, {"ctx_size": 4096.5}),
        (LoadOptions, {"n_gpu_layers": "some"}),
        (LoadOptions, {"n_gpu_layers": -1}),
        (LoadOptions, {"kv_type": "q2"}),
        (LoadOptions, {"n_threads": 0}),
        (LoadOptions, {"batch_size": 0}),
        (LoadOptions, {"draft_file": ("a.txt", "")}),
        (LoadOptions, {"draft_file": "a.txt"}),
        (LoadOptions, {"draft": ""}),
        (LoadOptions, {"draft": " "}),
        (ChatOptions, {"overflow": "truncate"}),
        (ChatOptions, {"think": "hard"}),
        (ChatOptions, {"think_budget": -1}),
    ],
)
def test_a_value_that_cannot_be_meant_is_refused_by_name(owner: type, values: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as caught:
        owner(**values)
    assert next(iter(values)) in caught.value.message
    assert caught.value.hint
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("owner", "values"),
    [
        (SamplingParams, {"temperature": 0, "top_k": 0, "top_p": 1, "min_p": 0, "penalty_last_n": -1}),
        (SamplingParams, {"temperature": 100, "top_p": 0, "min_p": 1, "seed": 2**64 - 1, "max_tokens": 1}),
        (LoadOptions, {"n_gpu_layers": "all", "ctx_size": 16, "n_threads": 1}),
        (LoadOptions, {"n_gpu_layers": 0, "kv_type": "q8_0"}),
        (ChatOptions, {"overflow": "drop", "think": "high", "think_budget": 0}),
    ],
)
def test_the_ends_of_the_ranges_are_allowed(owner: type, values: dict[str, Any]) -> None:
    made = owner(**values)
    assert {name: getattr(made, name) for name in values} == values


@pytest.mark.parametrize("owner", [SamplingParams, LoadOptions, ChatOptions])
def test_configurations_cannot_be_changed_or_given_by_position(owner: type) -> None:
    made = owner()
    field = dataclasses.fields(owner)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(made, field, 1)
    with pytest.raises(TypeError):
        owner(1)


def test_later_layers_win_and_none_is_passed_over() -> None:
    made = build(SamplingParams, {"temperature": 0.1, "top_k": 5}, {"temperature": None, "top_k": 7}, {"seed": 0})
    assert (made.temperature, made.top_k, made.seed) == (0.1, 7, 0)
    assert made.top_p == SamplingParams().top_p


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="temprature") as caught:
        build(SamplingParams, {"temprature": 1.0})
    assert "temperature" in caught.value.hint


def test_a_hint_names_the_nearest_or_all() -> None:
    assert nearest_hint("backnd", ["backend", "model"]) == "Did you mean backend?"
    assert nearest_hint("zzz", ["model", "backend"]) == "Known names: backend, model."


@pytest.mark.parametrize(
    ("typed", "near"),
    [
        ("qwen3-coddr", ["qwen3-Coder"]),
        ("QWEN3-CODER-30b", ["qwen3-Coder"]),
        ("coder", ["qwen3-Coder"]),
        ("llma", ["llama3"]),
        ("qwen", ["qwen3-Coder"]),
        ("od", []),
        ("nodel", []),
        ("xyz", []),
        ("", []),
    ],
)
def test_only_what_is_near_is_proposed(typed: str, near: list[str]) -> None:
    assert nearest(typed, ["llama3", "qwen3-Coder"]) == near


def test_the_context_is_what_was_asked_for_or_the_models_own_up_to_a_default() -> None:
    assert LoadOptions().n_ctx(2048) == 2048
    assert LoadOptions().n_ctx(131_072) == DEFAULT_CTX
    assert LoadOptions(ctx_size=512).n_ctx(2048) == 512
