"""A request as OpenAI's API writes it -> messages, sampling and options of the engine. Pure: values in, values out.

Whatever JSON comes gives a request or a Refusal with status 400. What is not supported is refused by name, and never
left out in silence; fields that change nothing about an answer are passed over. It knows no HTTP and no loaded model.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from runner.config import ChatOptions, Grammar, GrammarKind, SamplingParams, objection
from runner.errors import UsageError, nearest_hint
from runner.grammar_text import ANY_JSON
from runner.server.refusal import Refusal, refusal_of
from runner.types import Message, Role

# They are for the client, or for a service that bills, stores and caches: the text is the same without them.
_IGNORED: Final = frozenset(
    {
        "cache_prompt",
        "keep_alive",
        "metadata",
        "parallel_tool_calls",
        "prompt_cache_key",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
        "verbosity",
    }
)
# The same within a message. Chat templates have no place for a name.
_IGNORED_IN_MESSAGES: Final = frozenset((*_IGNORED, "annotations", "cache_control", "id", "name"))
# What other servers can do and this one cannot, with the values that ask for nothing.
_NOT_SUPPORTED: Final[Mapping[str, tuple[Any, ...]]] = {
    "audio": (),
    "best_of": (1,),
    "echo": (False,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "logit_bias": ({},),
    "logprobs": (False,),
    "modalities": (["text"],),
    "n": (1,),
    "prediction": (),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (0,),
    "web_search_options": (),
}
_NOTHING: Final[tuple[Any, ...]] = ("", [], {})
# Clients send back what an answer of another server had.
_NOT_SUPPORTED_IN_MESSAGES: Final[Mapping[str, tuple[Any, ...]]] = {
    "audio": _NOTHING,
    "function_call": _NOTHING,
    "refusal": _NOTHING,
    "tool_calls": _NOTHING,
}
_SAMPLING: Final[Mapping[str, str]] = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "repeat_penalty": "repeat_penalty",
    "repetition_penalty": "repeat_penalty",
    "penalty_last_n": "penalty_last_n",
    "repeat_last_n": "penalty_last_n",
    "seed": "seed",
    "max_tokens": "max_tokens",
    "max_completion_tokens": "max_tokens",
}
_MINUS_ONE_IS_UNSET: Final = ("seed", "max_tokens")
_MOST_STOPS: Final = 64  # each is looked for after each token
_EFFORTS: Final[Mapping[str, str]] = {
    "none": "off",
    "minimal": "low",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "xhigh": "high",
}
_ROLES: Final[Mapping[str, Role]] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
}
_COMMON: Final = (*_SAMPLING, "model", "stop", "stream", "stream_options", "response_format", "grammar", "json_schema")
_CHAT: Final = frozenset((*_COMMON, "messages", "reasoning_effort", "chat_template_kwargs", "think_budget"))
_COMPLETION: Final = frozenset((*_COMMON, "prompt"))
_MESSAGE: Final = frozenset(("role", "content", "reasoning_content"))


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a client asks for.

    sampling, options: the fields of SamplingParams and ChatOptions that it sets. model: "" for whichever is loaded.
    has_usage: the last chunk of a stream is to count the tokens.
    """

    model: str
    messages: tuple[Message, ...]
    sampling: Mapping[str, Any]
    options: Mapping[str, Any]
    is_chat: bool
    is_streamed: bool
    has_usage: bool


def read(raw: bytes, reader: Callable[[object], Asked]) -> Asked:
    """A body, as `read_chat` or `read_completion` reads it. Raises Refusal."""
    try:
        return reader(parse(raw))
    except RecursionError:  # to write a value, or to show it, takes more of the stack than to parse it
        raise Refusal(400, "The body is no JSON: it is nested too deeply.", code="invalid_json") from None


def parse(raw: bytes) -> object:
    """The JSON of a body. Raises Refusal, and RecursionError."""
    try:
        return json.loads(raw, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        why = f"{error.msg} (line {error.lineno}, column {error.colno})"
    except UnicodeDecodeError:
        why = "it is not UTF-8"
    except ValueError:  # no more than Python reads
        why = "it has a number of thousands of digits"
    raise Refusal(400, f"The body is no JSON: {why}.", code="invalid_json")


def read_chat(body: object) -> Asked:
    """A request to /v1/chat/completions. Raises Refusal."""
    fields = _fields(body, _CHAT)
    if "messages" not in fields:
        raise _wrong("messages", "messages is missing.", 'Such as: [{"role": "user", "content": "Hello"}]')
    options = _thinking(fields)
    if "think_budget" in fields:
        options["think_budget"] = _checked(ChatOptions, "think_budget", fields["think_budget"], "think_budget")
    return _asked(fields, _messages(fields["messages"]), options, is_chat=True)


def read_completion(body: object) -> Asked:
    """A request to /v1/completions: its prompt goes to the model as it stands. Raises Refusal."""
    fields = _fields(body, _COMPLETION)
    if "prompt" not in fields:
        raise _wrong("prompt", "prompt is missing.", 'Such as: "Once upon a time"')
    prompt = fields["prompt"]
    if isinstance(prompt, list) and len(prompt) == 1:
        prompt = prompt[0]
    if not isinstance(prompt, str):
        raise _wrong("prompt", "prompt is not a text.", "Token ids, and several prompts at once, are not supported.")
    return _asked(fields, (Message(role="user", content=_clean(prompt)),), {"raw": True}, is_chat=False)


def _asked(
    fields: Mapping[str, Any], messages: tuple[Message, ...], options: Mapping[str, Any], *, is_chat: bool
) -> Asked:
    stream_options = _object(
        fields.get("stream_options", {}), "stream_options", ("include_usage", "include_obfuscation")
    )
    return Asked(
        model=_typed(fields, "model", str, "It must be a text.", ""),
        messages=messages,
        sampling=_sampling(fields),
        options=options,
        is_chat=is_chat,
        is_streamed=_typed(fields, "stream", bool, "It must be true or false.", False),
        has_usage=_typed(stream_options, "include_usage", bool, "It must be true or false.", False),
    )


# --- fields ----------------------------------------------------------------------------------------------------------


def _fields(body: object, known: frozenset[str]) -> dict[str, Any]:
    """The fields that say something, by their names."""
    if not isinstance(body, dict):
        raise Refusal(400, 'The body is no JSON object. It is such as {"messages": [...]}.', code="invalid_json")
    return _understood(body, known, _IGNORED, _NOT_SUPPORTED)


def _understood(
    plain: Mapping[str, Any],
    known: frozenset[str],
    ignored: frozenset[str],
    not_supported: Mapping[str, tuple[Any, ...]],
    at: str = "",
) -> dict[str, Any]:
    """The `known` fields of an object. null is what a field is that is not there. at: the object, within the body."""
    given = {name: value for name, value in plain.items() if value is not None and name not in ignored}
    for name in [name for name in given if name not in known]:
        value, path = given.pop(name), f"{at}.{name}" if at else name
        if name not in not_supported:
            what = f"Unknown field {_shown(name)}{f' in {at}' if at else ''}."
            raise _wrong(path, what, nearest_hint(name[:80], known), code="unknown_parameter")
        if not any(type(value) is type(neutral) and value == neutral for neutral in not_supported[name]):
            hint = "Ask several times." if name in ("n", "best_of") else "Leave it out."
            raise _wrong(path, f"{path} is not supported by this server.", hint, code="unsupported_parameter")
    return given


def _sampling(fields: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, field in _SAMPLING.items():
        value = fields.get(name)
        if value is None or (field in _MINUS_ONE_IS_UNSET and type(value) is int and value == -1):
            continue
        # Other servers take -1 for all tokens.
        value = 0 if field == "top_k" and type(value) is int and value == -1 else value
        value = _checked(SamplingParams, field, value, name)
        if found.setdefault(field, value) != value:
            raise _wrong(name, f"{name} says another thing than its other name.", "Leave out one of them.")
    if (stop := fields.get("stop")) not in (None, "", []):
        found["stop"] = _stops(stop)
    grammars = [grammar for name, read in _GRAMMARS.items() if name in fields and (grammar := read(fields[name]))]
    if len(grammars) > 1:
        raise _wrong("response_format", "The answer cannot keep to several grammars.", "Leave out all but one.")
    return {**found, "grammar": grammars[0]} if grammars else found


def _stops(value: Any) -> Any:
    stops = [value] if isinstance(value, str) else value
    if not _is_list(stops):
        return _checked(SamplingParams, "stop", stops, "stop")
    if len(stops) > _MOST_STOPS:
        raise _wrong("stop", f"stop has {len(stops)} texts.", f"It may have {_MOST_STOPS}.")
    return _checked(
        SamplingParams, "stop", tuple(_clean(text) if isinstance(text, str) else text for text in stops), "stop"
    )


def _thinking(fields: Mapping[str, Any]) -> dict[str, Any]:
    known = ("enable_thinking", "reasoning_effort")
    kwargs = _object(fields.get("chat_template_kwargs", {}), "chat_template_kwargs", known)
    effort = fields.get("reasoning_effort", kwargs.get("reasoning_effort"))
    if effort is not None and (not isinstance(effort, str) or effort not in _EFFORTS):
        raise _wrong("reasoning_effort", f"reasoning_effort is {_shown(effort)}.", f"One of: {', '.join(_EFFORTS)}.")
    is_wanted = _typed(kwargs, "enable_thinking", bool, "It must be true or false.", None)
    if None not in (is_wanted, effort) and is_wanted == (effort == "none"):
        what = f"enable_thinking is {_shown(is_wanted)}, and reasoning_effort is {_shown(effort)}."
        raise _wrong("reasoning_effort", what, "Use one.")
    if effort is not None:
        return {"think": _EFFORTS[effort]}
    return {} if is_wanted is None else {"think": "on" if is_wanted else "off"}


# --- grammars --------------------------------------------------------------------------------------------------------


def _response_format(value: Any) -> Grammar | None:
    fields = value if isinstance(value, dict) else {}
    given = [name for name in ("schema", "json_schema") if fields.get(name) is not None]
    match fields.get("type"), given:
        case "text", []:
            return None
        case "json_object", []:
            return ANY_JSON
        case "json_object", ["schema"]:
            return _json_schema(fields["schema"])
        case "json_schema", ["json_schema"] if isinstance(named := fields["json_schema"], dict) and "schema" in named:
            return _json_schema(named["schema"])
    hint = 'Such as {"type": "json_schema", "json_schema": {"name": "cat", "schema": {...}}}, or json_object, or text.'
    raise _wrong("response_format", "response_format cannot be read.", hint)


def _json_schema(value: Any) -> Grammar:
    if not isinstance(value, dict):
        raise _wrong("json_schema", "The JSON schema is no object.", 'Such as {"type": "object"}.')
    text: str = json.dumps(value)
    return _grammar("json_schema", text)


def _gbnf(value: Any) -> Grammar:
    if not isinstance(value, str) or not value.strip():
        what = "empty" if isinstance(value, str) else "not a text"
        raise _wrong("grammar", f"grammar is {what}.", 'A GBNF grammar is such as: root ::= "yes" | "no"')
    return _grammar("gbnf", _clean(value))


def grammar_field(kind: GrammarKind) -> str:
    """The field that a grammar of that kind is said to be wrong in."""
    return "grammar" if kind == "gbnf" else "json_schema"


def _grammar(kind: GrammarKind, text: str) -> Grammar:
    try:
        return Grammar(kind=kind, text=text)
    except UsageError as error:
        raise refusal_of(error, grammar_field(kind)) from error


_GRAMMARS: Final[Mapping[str, Callable[[Any], Grammar | None]]] = {
    "response_format": _response_format,
    "json_schema": _json_schema,
    "grammar": _gbnf,
}

# --- messages --------------------------------------------------------------------------------------------------------


def _messages(value: Any) -> tuple[Message, ...]:
    if not _is_list(value) or not value:
        raise _wrong("messages", "messages is not a list of messages.", 'Such as: [{"role": "user", "content": "Hi"}]')
    return tuple(_message(item, f"messages[{position}]") for position, item in enumerate(value))


def _message(value: Any, at: str) -> Message:
    if not isinstance(value, dict):
        raise _wrong(at, f"{at} is no object.", 'Such as {"role": "user", "content": "Hello"}.')
    role = value.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise _wrong(f"{at}.role", f"{at}.role is {_shown(role)}.", f"Supported are: {', '.join(_ROLES)}.")
    fields = _understood(value, _MESSAGE, _IGNORED_IN_MESSAGES, _NOT_SUPPORTED_IN_MESSAGES, at)
    reasoning = fields.get("reasoning_content", "")
    if not isinstance(reasoning, str):
        raise _wrong(f"{at}.reasoning_content", f"{at}.reasoning_content is not a text.", "Leave it out.")
    has_none = role == "assistant" and "content" in value and value["content"] is None
    content = "" if has_none else _content(fields.get("content"), f"{at}.content")
    return Message(role=_ROLES[role], content=content, reasoning=_clean(reasoning))


def _content(value: Any, at: str) -> str:
    if isinstance(value, str):
        return _clean(value)
    if not _is_list(value):
        raise _wrong(
            at, f"{at} is not a text.", 'A text, or a list of parts such as {"type": "text", "text": "Hello"}.'
        )
    return "\n".join(_part(part, f"{at}[{position}]") for position, part in enumerate(value))


def _part(value: Any, at: str) -> str:
    kind = value.get("type") if isinstance(value, dict) else None
    text = value.get("text") if isinstance(value, dict) else None
    if kind != "text" or not isinstance(text, str):
        what = f"of type {_shown(kind)}" if isinstance(kind, str) and kind != "text" else "not a text"
        raise _wrong(at, f"{at} is {what}.", 'Only texts are supported: {"type": "text", "text": "Hello"}.')
    return _clean(text)


# --- values ----------------------------------------------------------------------------------------------------------


def _checked(owner: type[SamplingParams] | type[ChatOptions], field: str, value: Any, param: str) -> Any:
    """`value` as that field takes it; its range is the configuration's to know."""
    if hint := objection(owner, field, value):
        raise _wrong(param, f"{param} is {_shown(value)}.", hint)
    return value


def _typed(fields: Mapping[str, Any], name: str, kind: type, hint: str, default: Any) -> Any:
    value = fields.get(name)
    if value is None:
        return default
    if not isinstance(value, kind):
        raise _wrong(name, f"{name} is {_shown(value)}.", hint)
    return value


def _object(value: Any, name: str, known: Sequence[str]) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise _wrong(name, f"{name} is no object.", f"It may have: {', '.join(known)}.")
    for key in value:
        if key not in known:
            raise _wrong(f"{name}.{key}", f"{name} has an unknown field {_shown(key)}.", nearest_hint(key[:80], known))
    return value


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple))


def _clean(text: str) -> str:
    """`text` without halves of surrogate pairs, which JSON can write and no model can read."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _shown(value: Any) -> str:
    """The beginning of a value, for a message."""
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:80]}…"


def _wrong(param: str, message: str, hint: str, *, code: str = "invalid_value") -> Refusal:
    return Refusal(400, f"{message} {hint}".strip(), code=code, param=param)


def _no_constant(name: str) -> None:
    raise Refusal(400, f"The body is no JSON: {name} is no number of JSON.", code="invalid_json")
