"""Messages to token ids: template, tokenizer, BOS, and what happens when they do not fit the context.

It computes nothing with the ids and knows no backend beyond its tokenizer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from runner.backends.base import Tokenizer
from runner.config import ChatOptions
from runner.errors import ContextOverflow, TemplateError, UsageError
from runner.templates import ReasoningMarkers, reasoning_markers, render, starts_in_reasoning
from runner.templates.budget import MAX_CHARS
from runner.types import Message, ModelInfo

_MAX_CONTENT_CHARS = MAX_CHARS * 9 // 10  # the rest is for what templates write around the messages


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """ids: what the backend computes. dropped: messages left out so that the rest fits, oldest first.

    is_in_reasoning: the template has already opened the model's thought.
    """

    ids: tuple[int, ...]
    dropped: tuple[Message, ...]
    markers: ReasoningMarkers | None
    is_in_reasoning: bool


def build_prompt(
    messages: Sequence[Message], options: ChatOptions, info: ModelInfo, tokenizer: Tokenizer, room: int
) -> Prompt:
    """Render and tokenize `messages`, leaving `room` tokens of the context for the answer if turns may be dropped.

    Raises ContextOverflow (policy "stop", or when even the last message is too long), TemplateError, UsageError.
    """
    if not messages:
        raise UsageError("There is no message to answer.")
    if options.raw:
        return _checked(_raw_prompt(messages, tokenizer), info, len(messages))
    markers = reasoning_markers(info.chat_template)

    def build(kept: Sequence[Message]) -> Prompt:
        return _template_prompt(kept, options, info, tokenizer, markers)

    if options.overflow == "stop":
        _refuse_without_rendering(messages, info)
        prompt, head = build(messages), [message for message in messages[:1] if message.role == "system"]
        if len(prompt.ids) >= info.n_ctx and messages[-1].role == "user":
            _checked(build([*head, messages[-1]]), info, 1)  # no turn that goes would make room for it
        return _checked(prompt, info, sum(message.role != "system" for message in messages))
    return _with_dropped_turns(messages, build, info, room)


def _raw_prompt(messages: Sequence[Message], tokenizer: Tokenizer) -> Prompt:
    ids = _with_bos(tokenizer.encode(messages[-1].content, parse_special=True), tokenizer)
    return Prompt(ids=tuple(ids), dropped=(), markers=None, is_in_reasoning=False)


def _template_prompt(
    messages: Sequence[Message],
    options: ChatOptions,
    info: ModelInfo,
    tokenizer: Tokenizer,
    markers: ReasoningMarkers | None,
) -> Prompt:
    if info.chat_template is None:
        raise TemplateError(
            f"{info.name} has no chat template: it is a base model, made to continue a text.",
            hint="Give it a text to continue with --raw, or use the instruct version of the model.",
        )
    rendered = render(
        info.chat_template,
        messages,
        bos_token=info.bos_token,
        eos_token=info.eos_token,
        think=options.think,
        control_tokens=tokenizer.control_tokens,
    )
    ids: list[int] = []
    for piece in rendered.pieces:
        ids.extend(tokenizer.encode(piece.text, parse_special=not piece.is_content))
    return Prompt(
        ids=tuple(_with_bos(ids, tokenizer)),
        dropped=(),
        markers=markers,
        is_in_reasoning=markers is not None and starts_in_reasoning(rendered.text, markers),
    )


def _with_bos(ids: list[int], tokenizer: Tokenizer) -> list[int]:
    """`ids` with exactly one BOS in front where the model wants one: most templates write it, some do not."""
    if tokenizer.add_bos and tokenizer.bos_id is not None and ids[:1] != [tokenizer.bos_id]:
        return [tokenizer.bos_id, *ids]
    return ids


def _n_chars(messages: Sequence[Message]) -> int:
    return sum(len(message.content) for message in messages)


def _is_hopeless(n_messages: int, n_chars: int, info: ModelInfo) -> bool:
    """Whether so much cannot fit: each message takes a token at least, and templates may write only so much."""
    return n_messages >= info.n_ctx or n_chars > _MAX_CONTENT_CHARS


def _refuse_without_rendering(messages: Sequence[Message], info: ModelInfo) -> None:
    """Raise ContextOverflow for messages of which rendering would take long, or be stopped: it is no template's fault.

    To render and to tokenize ten thousand messages takes seconds.
    """
    n_chars = _n_chars(messages)
    if len(messages) >= info.n_ctx:
        raise _overflow(f"{len(messages)} messages", info, len(messages), unit=" tokens")
    if _is_hopeless(len(messages), n_chars, info):
        raise ContextOverflow(
            f"The conversation has {n_chars / 1e6:.1f} million characters and the context holds {info.n_ctx} tokens.",
            hint="Shorten the longest message, or start afresh with /clear.",
        )


def _sentence(remedies: Sequence[str]) -> str:
    """What can be done, as one sentence: "Shorten it, or load ..."."""
    text = ", or ".join(remedies)
    return f"{text[0].upper()}{text[1:]}."


def _checked(prompt: Prompt, info: ModelInfo, n_messages: int) -> Prompt:
    if len(prompt.ids) >= info.n_ctx:
        raise _overflow(f"{len(prompt.ids)} tokens", info, n_messages)
    return prompt


def _overflow(size: str, info: ModelInfo, n_messages: int, *, unit: str = "") -> ContextOverflow:
    has_turns = n_messages > 1
    what, remedies = ("The conversation", ["start afresh"]) if has_turns else ("The message", ["shorten it"])
    if has_turns:
        remedies.append("let the oldest turns go (--overflow drop)")
    if info.context_length > info.n_ctx:
        remedies.append(f"load the model with a larger context (-c, up to {info.context_length})")
    return ContextOverflow(
        f"{what} has {size} and the context holds {info.n_ctx}{unit}.",
        hint=_sentence(remedies),
    )


def _with_dropped_turns(
    messages: Sequence[Message], build: Callable[[Sequence[Message]], Prompt], info: ModelInfo, room: int
) -> Prompt:
    """Leave out the oldest turns, question and answer together, until `room` tokens are free; system stays.

    What is kept is searched from the newest turn on, so that a long conversation costs one rendering of what may fit
    and a few of about a context's length, not one of all of it for each turn.
    """
    n_head = 1 if messages[0].role == "system" else 0
    head, turns = messages[:n_head], messages[n_head:]
    starts = [0, *(i for i, message in enumerate(turns) if i > 0 and message.role == "user")]

    def without(n: int) -> Prompt:
        return dataclasses.replace(build([*head, *turns[starts[n] :]]), dropped=tuple(turns[: starts[n]]))

    def is_fitting(prompt: Prompt) -> bool:
        return len(prompt.ids) + room <= info.n_ctx

    def may_fit(start: int) -> bool:
        return not _is_hopeless(n_head + len(turns) - start, n_chars_from[start], info)

    n_chars_from = [*accumulate((len(turn.content) for turn in reversed(turns)), initial=_n_chars(head))][::-1]
    too_few = next((n for n, start in enumerate(starts) if may_fit(start)), len(starts) - 1)
    _refuse_without_rendering([*head, *turns[starts[too_few] :]], info)
    best = without(too_few)
    n, step = len(starts) - 1, 1
    if n > too_few and not is_fitting(best):
        best = without(n)
        while is_fitting(best) and n - too_few > 1:
            fewer = max(n - step, (n + too_few) // 2)
            if is_fitting(longer := without(fewer)):
                best, n, step = longer, fewer, 2 * step
            else:
                too_few = fewer
    return _checked(best, info, len(turns) - len(best.dropped))
