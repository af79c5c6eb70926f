"""Messages to token ids: template, tokenizer, BOS, and what happens when they do not fit the context.

It computes nothing with the ids and knows no backend beyond its tokenizer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from runner.backends.base import Tokenizer
from runner.config import ChatOptions
from runner.errors import ContextOverflow, TemplateError, UsageError
from runner.templates import ReasoningMarkers, reasoning_markers, render, starts_in_reasoning
from runner.templates.budget import MAX_CHARS
from runner.types import Message, ModelInfo

_MAX_CONTENT_CHARS = MAX_CHARS * 9 // 10  # the rest is for what templates write around the messages

# To encode 4 MB takes seconds in which the engine hears nothing, and is ended for it. A text that may be too long for
# the context is read in parts, until it certainly is.
_LONG: Final = 6  # characters a token: few texts have so many that fit
_LEAST_LONG: Final = 2**19  # characters: fewer take less than a second, and the error says how many tokens they are
_PART: Final = 2**16  # characters
_SLACK: Final = 256  # tokens that a cut may add: no more than the token that it cuts has bytes


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """ids: what the backend computes. dropped: messages left out so that the rest fits, oldest first.

    is_in_reasoning: the template has already opened the model's thought. is_whole: else the ids are of its beginning,
    which is too long for the context by itself.
    """

    ids: tuple[int, ...]
    dropped: tuple[Message, ...]
    markers: ReasoningMarkers | None
    is_in_reasoning: bool
    is_whole: bool = True


def build_prompt(
    messages: Sequence[Message], options: ChatOptions, info: ModelInfo, tokenizer: Tokenizer, room: int
) -> Prompt:
    """Render and tokenize `messages`, leaving `room` tokens of the context for the answer if turns may be dropped.

    Raises ContextOverflow (policy "stop", or when even the last message is too long), TemplateError, UsageError.
    """
    if not messages:
        raise UsageError("There is no message to answer.")
    if options.raw:
        return _checked(_raw_prompt(messages, info, tokenizer), info, len(messages))
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


def _raw_prompt(messages: Sequence[Message], info: ModelInfo, tokenizer: Tokenizer) -> Prompt:
    ids, is_whole = _encoded([(messages[-1].content, True)], info, tokenizer)
    return Prompt(
        ids=tuple(_with_bos(ids, tokenizer)), dropped=(), markers=None, is_in_reasoning=False, is_whole=is_whole
    )


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
    ids, is_whole = _encoded([(piece.text, not piece.is_content) for piece in rendered.pieces], info, tokenizer)
    return Prompt(
        ids=tuple(_with_bos(ids, tokenizer)),
        dropped=(),
        markers=markers,
        is_in_reasoning=markers is not None and starts_in_reasoning(rendered.text, markers),
        is_whole=is_whole,
    )


def _encoded(texts: Sequence[tuple[str, bool]], info: ModelInfo, tokenizer: Tokenizer) -> tuple[list[int], bool]:
    """The ids of texts, each with whether it may hold control tokens, and whether these are all of them.

    They are not where already so many are more than the context holds.
    """
    if sum(len(text) for text, _ in texts) > max(_LEAST_LONG, _LONG * info.n_ctx):
        ids: list[int] = []
        n_cuts = 0
        for text, parse_special in texts:
            for begin in range(0, len(text), _PART):
                ids += tokenizer.encode(text[begin : begin + _PART], parse_special=parse_special)
                n_cuts += begin > 0
                if len(ids) - n_cuts * _SLACK > info.n_ctx:
                    return ids, False
    return [
        token for text, parse_special in texts for token in tokenizer.encode(text, parse_special=parse_special)
    ], True


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
        size = f"{len(prompt.ids)} tokens" if prompt.is_whole else f"more than {info.n_ctx} tokens"
        raise _overflow(size, info, n_messages)
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
