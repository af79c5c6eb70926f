"""Two of runner's three configurations: LoadOptions (how to run a model here) and SamplingParams (this request).

The third, ModelConfig (what the model is), is in model_config.py. All are frozen and keyword-only; values are
checked when they are made, and unknown names are refused with the nearest known one. Where a value comes from
(flag, environment, file) is settings.py's business, not this file's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, get_args

from runner.errors import UsageError, nearest_hint

BackendChoice = Literal["auto", "native", "llamacpp", "fake"]
KvType = Literal["f16", "bf16", "f32", "q8_0"]
OverflowPolicy = Literal["stop", "drop"]
GrammarKind = Literal["json_schema", "gbnf", "lark"]
Speculation = Literal["off", "auto", "suffix", "model", "self", "mtp", "eagle3"]
Think = Literal["auto", "on", "off", "low", "medium", "high"]

T = TypeVar("T")

DEFAULT_CTX = 8192
BACKENDS = ("auto", "native", "llamacpp")  # that users are told of; "fake", whose answers are a script's, is for tests
LONGEST_DRAFT = 15  # a step takes 16 tokens at once
LONGEST_STATE_DRAFT = 5  # where layers keep states, in the native engine: each token takes two more (delta_state.py)
LARGEST_GRAMMAR = 1024 * 1024  # characters
GRAMMAR_NAMES: Mapping[GrammarKind, str] = {
    "json_schema": "JSON schema",
    "gbnf": "GBNF grammar",
    "lark": "Lark grammar",
}


def _one_of(
    owner: str, name: str, value: object, allowed: tuple[object, ...], told: tuple[object, ...] | None = None
) -> None:
    """told: what of `allowed` a user is to be told of, where that is not all."""
    if value not in allowed:
        hint = f"It must be one of: {', '.join(map(str, told or allowed))}."
        raise UsageError(f"{owner}: {name} is {value!r}.", hint=hint)


def _in_range(owner: str, name: str, value: float, low: float, high: float) -> None:
    # NaN is in no range, and bool is an int to Python but no number to a user.
    if isinstance(value, bool) or not (isinstance(value, (int, float)) and low <= value <= high):
        raise UsageError(f"{owner}: {name} is {value!r}.", hint=f"It must be from {low:g} to {high:g}.")


def _whole(owner: str, name: str, value: int, low: int, high: int) -> None:
    if isinstance(value, bool) or not (isinstance(value, int) and low <= value <= high):
        raise UsageError(f"{owner}: {name} is {value!r}.", hint=f"It must be a whole number from {low} to {high}.")


def _texts(owner: str, name: str, value: object, hint: str) -> None:
    if not isinstance(value, (tuple, list)) or not all(isinstance(text, str) and text for text in value):
        raise UsageError(f"{owner}: {name} is {value!r}.", hint=hint)


@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """How to run a model on this machine.

    ctx_size: tokens of context to allocate; None takes the smaller of the model's own and DEFAULT_CTX.
    n_gpu_layers: "auto" (as many as the backend puts there), "all", or a number; 0 is the CPU alone.
    kv_type: the type of the KV cache. n_threads: CPU threads; None takes the physical cores,
    or fewer where other programs keep those busy.
    batch_size: prompt tokens per prefill chunk; None takes what the backend is fast with. warmup: run one token at
    load, so that the first answer is not slow.
    force: load even what is not expected to fit.
    speculation: what drafts tokens for the model to verify; "auto" takes `draft` if given, else what needs no memory.
    draft: the drafting model, a name or path as for the model itself. draft_max: tokens of a draft at most.
    draft_file: paths of texts that drafts may quote, absolute ones where another process is to read them.
    """

    backend: BackendChoice = "auto"
    ctx_size: int | None = None
    n_gpu_layers: int | Literal["auto", "all"] = "auto"
    kv_type: KvType = "f16"
    n_threads: int | None = None
    batch_size: int | None = None
    warmup: bool = True
    force: bool = False
    speculation: Speculation = "auto"
    draft: str | None = None
    draft_max: int = LONGEST_DRAFT
    draft_file: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _one_of("load options", "speculation", self.speculation, get_args(Speculation))
        if self.draft is not None and not self.draft.strip():
            raise UsageError("load options: draft is empty.", hint="Name the model or the head that drafts.")
        _whole("load options", "draft_max", self.draft_max, 1, LONGEST_DRAFT)
        _texts("load options", "draft_file", self.draft_file, "Give the paths of text files, none of them empty.")
        _one_of("load options", "backend", self.backend, get_args(BackendChoice), BACKENDS)
        _one_of("load options", "kv_type", self.kv_type, get_args(KvType))
        if self.ctx_size is not None:
            _whole("load options", "ctx_size", self.ctx_size, 16, 2**26)
        if self.n_gpu_layers not in ("auto", "all"):
            _whole("load options", "n_gpu_layers", self.n_gpu_layers, 0, 2**16)  # type: ignore[arg-type]
        if self.n_threads is not None:
            _whole("load options", "n_threads", self.n_threads, 1, 1024)
        if self.batch_size is not None:
            _whole("load options", "batch_size", self.batch_size, 1, 2**15)

    def chunk(self, *, is_native_gpu: bool = False) -> int:
        """Prompt tokens per prefill chunk. The native engine decodes its weights anew for each on a GPU."""
        if self.batch_size is not None:
            return self.batch_size
        return 2048 if is_native_gpu else 512

    def n_ctx(self, context_length: int) -> int:
        """Tokens of context to allocate for a model trained on `context_length`."""
        return self.ctx_size or min(context_length, DEFAULT_CTX)


@dataclass(frozen=True, kw_only=True)
class Grammar:
    """What an answer has to be: JSON of a schema, or a text of a grammar as llama.cpp (GBNF) or Lark has it.

    text: the schema, as JSON, or the grammar. Whether it means something is found when it is compiled (grammar.py).
    """

    kind: GrammarKind
    text: str

    def __post_init__(self) -> None:
        _one_of("grammar", "kind", self.kind, get_args(GrammarKind))
        if not self.text.strip():
            raise UsageError("The grammar is empty.", hint="Any JSON object is: --json-schema json.")
        if len(self.text) > LARGEST_GRAMMAR:
            raise UsageError(
                f"The grammar has {len(self.text)} characters.", hint=f"At most {LARGEST_GRAMMAR} can be used."
            )


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How tokens are chosen for one request, and where the answer ends.

    Filters apply in llama.cpp's order: penalties, top_k, top_p, min_p, temperature. temperature 0 is greedy.
    top_k 0, top_p 1, min_p 0, repeat_penalty 1, presence_penalty 0 and frequency_penalty 0 each mean off.
    Penalties look at the last `penalty_last_n` tokens of prompt and answer (0 off, -1 the whole context).
    seed None draws a new one for the request; it is reported, so that the answer can be repeated.
    max_tokens None is until the model stops or the context is full. stop: strings that end the answer, left out of it.
    grammar: what the answer has to be; tokens that it forbids are taken out before all filters.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    penalty_last_n: int = 64
    seed: int | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    grammar: Grammar | None = None

    def __post_init__(self) -> None:
        _in_range("sampling", "temperature", self.temperature, 0, 100)
        _whole("sampling", "top_k", self.top_k, 0, 2**31)
        _in_range("sampling", "top_p", self.top_p, 0, 1)
        _in_range("sampling", "min_p", self.min_p, 0, 1)
        _in_range("sampling", "repeat_penalty", self.repeat_penalty, 0.01, 100)
        _in_range("sampling", "presence_penalty", self.presence_penalty, -100, 100)
        _in_range("sampling", "frequency_penalty", self.frequency_penalty, -100, 100)
        _whole("sampling", "penalty_last_n", self.penalty_last_n, -1, 2**31)
        if self.seed is not None:
            _whole("sampling", "seed", self.seed, 0, 2**64 - 1)
        if self.max_tokens is not None:
            _whole("sampling", "max_tokens", self.max_tokens, 1, 2**31)
        _texts("sampling", "stop", self.stop, "Give the texts that should end the answer, none of them empty.")
        grammar: object = self.grammar
        if grammar is not None and not isinstance(grammar, Grammar):
            raise UsageError(f"sampling: grammar is {grammar!r}.", hint="It must be a Grammar.")


@dataclass(frozen=True, kw_only=True)
class ChatOptions:
    """What one chat request asks of the engine beside sampling.

    overflow: "stop" refuses a conversation that does not fit the context, "drop" leaves out the oldest turns and
    says which. think: passed to templates that know thinking; "auto" leaves the template's own default.
    think_budget: tokens after which the thought is closed for the model. raw: no chat template, the last message
    is the prompt as it stands.
    """

    overflow: OverflowPolicy = "stop"
    think: Think = "auto"
    think_budget: int | None = None
    raw: bool = False

    def __post_init__(self) -> None:
        _one_of("chat options", "overflow", self.overflow, get_args(OverflowPolicy))
        _one_of("chat options", "think", self.think, get_args(Think))
        if self.think_budget is not None:
            _whole("chat options", "think_budget", self.think_budget, 0, 2**31)


def objection(owner: type[Any], field: str, value: Any) -> str:
    """What there is against `value` for that field of a configuration, as a hint; "" when it is taken.

    Who was given the value knows under which name, and says so: a flag, a setting, a field of JSON.
    """
    try:
        owner(**{field: value})
    except UsageError as error:
        return error.hint
    return ""


def build(cls: type[T], *layers: Mapping[str, Any]) -> T:
    """Make a configuration from layers of values, the later layer winning; None means "not set" and is passed over.

    Raises UsageError for a name that `cls` does not have, with the nearest one, and for a value of the wrong type.
    """
    names = [f.name for f in dataclasses.fields(cls)]  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for layer in layers:
        for name, value in layer.items():
            if name not in names:
                raise UsageError(f"Unknown option {name!r}.", hint=nearest_hint(name, names))
            if value is not None:
                values[name] = value
    try:
        return cls(**values)
    except TypeError as error:
        raise UsageError(f"A value has the wrong type: {error}.") from error
