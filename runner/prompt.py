"""Messages to token ids: template, tokenizer, BOS, and what happens when they do not fit the context.

It computes nothing with the ids and knows no backend beyond its tokenizer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from runner.backends.base import Tokenizer
from runner.config import ChatOptions
from runner.errors import ContextOverflow, TemplateError, UsageError
from runner.templates import ReasoningMarkers, reasoning_markers, render, starts_in_reasoning
from runner.types import Message, ModelInfo


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
        return _checked(build(messages), info, len(messages))
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


def _checked(prompt: Prompt, info: ModelInfo, n_messages: int) -> Prompt:
    if len(prompt.ids) >= info.n_ctx:
        what = "The conversation" if n_messages > 1 else "The message"
        larger = f"load the model with a larger context (-c, up to {info.context_length})"
        raise ContextOverflow(
            f"{what} has {len(prompt.ids)} tokens and the context holds {info.n_ctx}.",
            hint="Start afresh with /clear, let old turns go with --overflow drop"
            + (f", or {larger}." if info.context_length > info.n_ctx else "."),
        )
    return prompt


def _with_dropped_turns(
    messages: Sequence[Message], build: Callable[[Sequence[Message]], Prompt], info: ModelInfo, room: int
) -> Prompt:
    """Leave out the oldest turns, question and answer together, until `room` tokens are free; system stays."""
    head = [message for message in messages[:1] if message.role == "system"]
    turns = list(messages[len(head) :])
    dropped: list[Message] = []
    while True:
        prompt = build([*head, *turns])
        next_turn = next((i for i, message in enumerate(turns) if i > 0 and message.role == "user"), None)
        if len(prompt.ids) + room <= info.n_ctx or next_turn is None:
            checked = _checked(prompt, info, len(turns))
            return Prompt(
                ids=checked.ids,
                dropped=tuple(dropped),
                markers=checked.markers,
                is_in_reasoning=checked.is_in_reasoning,
            )
        dropped += turns[:next_turn]
        del turns[:next_turn]
