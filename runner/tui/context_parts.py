"""What fills a chat's context, by part: exact where the engine has counted, estimated ("~") where it has not yet.

Pure functions of values; it knows no widget.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from runner.attachments import own_words
from runner.config import OverflowPolicy
from runner.transcript import Turn

WARN_AT = 0.8
# Until the engine has counted. English prose and code lie between 0.2 and 0.35; a character of Chinese or Japanese has
# three bytes, and is most of a token.
_TOKENS_A_BYTE = 0.28
_TELLING = 400  # bytes of a prompt that tell how many tokens a byte takes: of fewer, most tokens are the template's


@dataclass(frozen=True, kw_only=True)
class ContextParts:
    """Tokens by part. n_ctx 0: not known yet. is_estimate: something in it was not counted by the engine.

    next_message: what of the conversation and the attached is typed and not sent yet.
    """

    system: int = 0
    conversation: int = 0
    attached: int = 0
    answer: int = 0
    next_message: int = 0
    n_ctx: int = 0
    is_estimate: bool = False

    @property
    def used(self) -> int:
        return self.system + self.conversation + self.attached + self.answer

    @property
    def free(self) -> int:
        return max(0, self.n_ctx - self.used)

    @property
    def share(self) -> float:
        """Of the context that is used: 1.0 and above is too much."""
        return self.used / self.n_ctx if self.n_ctx else 0.0

    @property
    def is_droppable(self) -> bool:
        """Whether it would fit without the turns before the next message."""
        return self.system + self.next_message < self.n_ctx

    @property
    def is_tight(self) -> bool:
        return self.share >= WARN_AT


@dataclass(frozen=True)
class Lengths:
    """How long what a prompt is made of is, in bytes of UTF-8."""

    system: int = 0
    conversation: int = 0
    attached: int = 0

    @property
    def total(self) -> int:
        return self.system + self.conversation + self.attached

    def with_pending(self, typed: int, attached: int) -> Lengths:
        """With what is typed and attached and not sent yet."""
        return Lengths(self.system, self.conversation + typed, self.attached + attached)


def n_bytes(text: str) -> int:
    """Of a text in UTF-8."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))


def lengths(system: str | None, turns: Sequence[Turn]) -> Lengths:
    """How long the prompt for these turns is, by part."""
    words = sum(n_bytes(own_words(turn.content) if turn.role == "user" else turn.content) for turn in turns)
    whole = sum(n_bytes(turn.content) for turn in turns)
    return Lengths(n_bytes(system or ""), words, whole - words)


def counted(prompt: Lengths, prompt_tokens: int, answer_tokens: int, n_ctx: int) -> ContextParts:
    """The parts of a prompt whose tokens the engine has counted; the sum is exact, and the parts go by length."""
    each = prompt_tokens / prompt.total if prompt.total else 0.0
    system, attached = round(prompt.system * each), round(prompt.attached * each)
    return ContextParts(
        system=system,
        conversation=max(0, prompt_tokens - system - attached),
        attached=attached,
        answer=answer_tokens,
        n_ctx=n_ctx,
    )


def estimated(prompt: Lengths, n_ctx: int, tokens_a_byte: float = _TOKENS_A_BYTE) -> ContextParts:
    """The parts of a prompt that the engine has not seen."""
    return ContextParts(
        system=round(prompt.system * tokens_a_byte),
        conversation=round(prompt.conversation * tokens_a_byte),
        attached=round(prompt.attached * tokens_a_byte),
        n_ctx=n_ctx,
        is_estimate=prompt.total > 0,
    )


class ContextCount:
    """Follows one chat: what was counted last, and what has come since."""

    def __init__(self) -> None:
        self._prompt = self._since = Lengths()
        self._prompt_tokens = self._answer_tokens = 0

    def begin(self, system: str | None, turns: Sequence[Turn]) -> None:
        """The prompt is now made of these."""
        self._prompt, self._since = lengths(system, turns), Lengths()
        self._prompt_tokens = self._answer_tokens = 0

    def resume(self, system: str | None, turns: Sequence[Turn]) -> None:
        """The chat is now made of these. What its last answer took is known from when it was given, if at all."""
        self.begin(system, turns)
        for place in range(len(turns) - 1, -1, -1):
            timings = turns[place].timings
            if turns[place].role == "assistant" and (n_prompt := _n_tokens(timings, "prompt_tokens")):
                self._prompt, self._since = lengths(system, turns[:place]), lengths(None, turns[place + 1 :])
                self.count(n_prompt, _n_tokens(timings, "completion_tokens"))
                return

    def count(self, prompt_tokens: int, answer_tokens: int) -> None:
        """What the engine has counted of this prompt and its answer."""
        self._prompt_tokens, self._answer_tokens = prompt_tokens, answer_tokens

    def parts(self, n_ctx: int, typed: int = 0, attached: int = 0) -> ContextParts:
        """What fills the context, with so many bytes that are typed and attached and not sent yet."""
        if not self._prompt_tokens:
            pending = estimated(Lengths(0, typed, attached), n_ctx)
            return replace(estimated(self._prompt.with_pending(typed, attached), n_ctx), next_message=pending.used)
        known = counted(self._prompt, self._prompt_tokens, self._answer_tokens, n_ctx)
        if not typed and not attached and not self._since.total:
            return known
        is_telling = self._prompt.total >= _TELLING
        each = min(1.0, self._prompt_tokens / self._prompt.total) if is_telling else _TOKENS_A_BYTE
        more = estimated(self._since.with_pending(typed, attached), n_ctx, each)
        return ContextParts(
            system=known.system,
            conversation=known.conversation + more.conversation,
            attached=known.attached + more.attached,
            answer=known.answer,
            next_message=estimated(Lengths(0, typed, attached), n_ctx, each).used,
            n_ctx=n_ctx,
            is_estimate=True,
        )


def _n_tokens(timings: Mapping[str, Any], name: str) -> int:
    """A number of tokens, 0 when it is not known: a chat file may hold anything there."""
    number = timings.get(name)
    return number if isinstance(number, int) and 0 < number < 2**31 else 0


def when_full(policy: OverflowPolicy, parts: ContextParts) -> str:
    """What happens when the context is full, or what is typed is more than it holds."""
    if policy == "stop":
        return "that does not fit" if parts.share > 1 else "when it is full, answers stop"
    if not parts.is_droppable:
        return "the message alone does not fit"
    return "the oldest turns are left out" if parts.share > 1 else "then the oldest turns are left out"


def cells(parts: ContextParts, width: int) -> tuple[int, int, int, int, int]:
    """A bar of `width` cells: system, conversation, attached, answer, free. What is there at all has a cell."""
    shares = (parts.system, parts.conversation, parts.attached, parts.answer)
    total = max(parts.n_ctx, parts.used, 1)
    wanted = [max(1, round(share * width / total)) if share else 0 for share in shares]
    while sum(wanted) > width:
        largest = wanted.index(max(wanted))
        wanted[largest] -= 1
    system, conversation, attached, answer = wanted
    return system, conversation, attached, answer, width - sum(wanted)
