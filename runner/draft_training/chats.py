"""Prompts as the token ids of a chat: by the model's own template, and by the same one changed in one respect.

A drafter that has only seen one template drafts worse under another ("Attention Drift", arXiv:2605.09992); the changes
here are those that its users meet: other role names, a system text, newlines that are missing. It samples nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

from runner.backends.base import Tokenizer
from runner.errors import TemplateError
from runner.templates import render
from runner.types import Message

Change = Literal["other role names", "a system text", "no newlines"]
CHANGES: Final[tuple[Change, ...]] = get_args(Change)
_PLACEHOLDER: Final = "chat-placeholder-{}-"  # stands for a message while the text around it is changed
_OTHER_ROLES: Final = {"user": "human", "assistant": "helper", "model": "helper", "system": "rules"}
_SYSTEM_TEXT: Final = (
    "Today is a Tuesday in early March, and the office closes at half past five. The person you talk to has called "
    "before and is in no hurry. Be kind, be exact, and do not mention these notes."
)


@dataclass(frozen=True, kw_only=True)
class Chats:
    """template: the model's chat template; None for a base model, which is given the last message as it stands."""

    tokenizer: Tokenizer
    template: str | None
    bos: str
    eos: str

    def ids(self, messages: Sequence[Message], change: Change | None = None) -> tuple[int, ...] | None:
        """The prompt that ends with `messages`, up to where the answer begins.

        None where the change makes no difference or cannot be made, the template refuses the messages, or one has the
        text of a control token in it, which is not worth the trouble here.
        """
        if any(token in message.content for token in self.tokenizer.control_tokens for message in messages):
            return None
        if self.template is None:
            return None if change is not None else self._encoded(messages[-1].content)
        if change == "a system text":
            messages = [Message(role="system", content=_SYSTEM_TEXT), *messages]
        frame = self._frame(messages)
        if frame is None:
            return None
        changed = _changed(frame, change)
        if change in ("other role names", "no newlines") and changed == frame:
            return None
        for index, message in enumerate(messages):
            changed = changed.replace(_PLACEHOLDER.format(index), message.content)
        return self._encoded(changed)

    def _frame(self, messages: Sequence[Message]) -> str | None:
        """What the template writes, with a placeholder for each message's content."""
        held = [Message(role=message.role, content=_PLACEHOLDER.format(i)) for i, message in enumerate(messages)]
        try:
            frame = render(self.template, held, bos_token=self.bos, eos_token=self.eos, think="off").text
        except TemplateError:
            return None
        return frame if all(frame.count(message.content) == 1 for message in held) else None

    def _encoded(self, text: str) -> tuple[int, ...]:
        ids = self.tokenizer.encode(text, parse_special=True)
        bos = self.tokenizer.bos_id
        if self.tokenizer.add_bos and bos is not None and ids[:1] != [bos]:
            return (bos, *ids)
        return tuple(ids)


def _changed(frame: str, change: Change | None) -> str:
    if change == "other role names":
        return re.sub(r"\b(user|assistant|model|system)\b", lambda match: _OTHER_ROLES[match[1]], frame)
    return frame.replace("\n", "") if change == "no newlines" else frame
