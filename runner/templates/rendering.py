"""Messages and a template to the prompt's text, in pieces: what a user wrote can never become a control token.

It runs templates through sandbox.py and turns whatever goes wrong there into a TemplateError. It knows no tokenizer:
which texts are control tokens is passed in.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from jinja2.exceptions import SecurityError, TemplateSyntaxError

from runner.config import Think
from runner.errors import TemplateError
from runner.templates.budget import MAX_CHARS, Budget, LimitExceeded
from runner.templates.sandbox import Refused, compile_template
from runner.templates.thinking import think_variables
from runner.types import Message

_NO_TEMPLATE_HINT = (
    "It is probably a base model, made to continue a text: `runner run --raw` gives it the text as it stands."
)
_BROKEN_HINT = "The fault is in the model's template: try another version of the model, or --raw to do without it."
_HOSTILE_HINT = "A template that does this is broken or hostile: do not use it, or use --raw to do without it."

# The supplementary private use areas: no writing system, no whitespace, no case; nothing that templates do alters them.
_PRIVATE = (range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE))


@dataclass(frozen=True)
class Piece:
    """A part of the prompt. is_content: a control token's name that came from a message and must stay plain text."""

    text: str
    is_content: bool


@dataclass(frozen=True)
class Rendered:
    """The prompt, to be tokenized piece by piece: content pieces without control tokens, the others with them."""

    pieces: tuple[Piece, ...]

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces)


def render(
    template: str | None,
    messages: Sequence[Message],
    *,
    bos_token: str,
    eos_token: str,
    think: Think = "auto",
    control_tokens: Collection[str] = (),
    add_generation_prompt: bool = True,
    tools: Sequence[Mapping[str, Any]] | None = None,
    now: datetime | None = None,
) -> Rendered:
    """The prompt for `messages`, as transformers' apply_chat_template has it.

    control_tokens: the texts that the tokenizer turns into control tokens. now: the time that the template may print,
    None for the clock. Raises TemplateError: no template, a broken or hostile one, or one that refuses the messages.
    """
    if template is None or not template.strip():
        raise TemplateError("The model has no chat template.", hint=_NO_TEMPLATE_HINT)
    guard = _ControlTokenGuard(control_tokens, template, messages)
    variables: dict[str, Any] = {
        "messages": [guard.message(message) for message in messages],
        "tools": None if tools is None else json.loads(json.dumps(list(tools))),
        "documents": None,
        "add_generation_prompt": add_generation_prompt,
        **{name: token for name, token in (("bos_token", bos_token), ("eos_token", eos_token)) if token},
        **think_variables(think, template),
    }
    return Rendered(guard.pieces(_run(template, variables, now)))


class _ControlTokenGuard:
    """Replaces the names of control tokens in messages by one private character each, and finds them again.

    The characters are drawn anew for each rendering from 131,000, among those that nothing in it uses. A single
    character cannot be cut in two, trimmed or recased by the template.
    """

    def __init__(self, control_tokens: Collection[str], template: str, messages: Sequence[Message]) -> None:
        contents = "\0".join(text for message in messages for text in (message.content, message.reasoning))
        found = sorted((token for token in control_tokens if token and token in contents), key=len)
        used = {char for text in (template, contents) if not text.isascii() for char in text if char >= "\U000f0000"}
        self._token_of: dict[str, str] = {}
        for token in reversed(found):  # the longest first: a token may contain another
            mark = _draw(used)
            used.add(mark)
            self._token_of[mark] = token
        self._mark_of = {token: mark for mark, token in self._token_of.items()}
        self._names = re.compile("|".join(map(re.escape, self._mark_of)) or "(?!)")

    def _hide(self, text: str) -> str:
        return self._names.sub(lambda match: self._mark_of[match[0]], text)

    def message(self, message: Message) -> dict[str, str]:
        """`message` as templates want it, its control tokens hidden."""
        plain = {"role": str(message.role), "content": self._hide(message.content)}
        if message.reasoning:
            plain["reasoning_content"] = plain["thinking"] = self._hide(message.reasoning)
        return plain

    def pieces(self, text: str) -> tuple[Piece, ...]:
        """The rendered `text` with the hidden tokens as pieces of their own. TemplateError if one was altered."""
        if not self._token_of:
            return (Piece(text, False),)
        lowered = text.lower()
        for mark in self._token_of:
            if any(form in lowered for form in (json.dumps(mark)[1:-1].lower(), f"\\u{ord(mark):08x}")):
                raise TemplateError(
                    f"The chat template writes messages in escapes, and one has {self._token_of[mark]!r} in it.",
                    hint="Leave that text out of the message: with this template it cannot be kept plain text.",
                )
        parts = re.split("([" + "".join(self._token_of) + "])", text)
        pieces = (
            Piece(self._token_of[part], True) if part in self._token_of else Piece(part, False)
            for part in parts
            if part
        )
        return tuple(pieces)


def _draw(used: Collection[str]) -> str:
    while True:
        area = secrets.choice(_PRIVATE)
        mark = chr(area[secrets.randbelow(len(area))])
        if mark not in used:
            return mark


def _run(template: str, variables: Mapping[str, Any], now: datetime | None) -> str:
    """Render in the sandbox; every failure is a TemplateError that says where and why."""
    try:
        text = compile_template(template).render(variables, now, Budget())
        if len(text) > MAX_CHARS:
            raise LimitExceeded(f"it makes a text of more than {MAX_CHARS} characters")
        return text
    except Refused as error:
        raise TemplateError(
            f"The model's chat template refuses these messages: {error.message or 'it does not say why'}",
            hint="Change the conversation as it says, or use --raw to do without the template.",
        ) from error
    except LimitExceeded as error:
        raise TemplateError(f"The model's chat template was stopped: {error}.", hint=_HOSTILE_HINT) from error
    except RecursionError as error:
        raise TemplateError(
            "The model's chat template was stopped: it calls itself, or nests, too deeply.", hint=_HOSTILE_HINT
        ) from error
    except (SecurityError, MemoryError) as error:
        raise TemplateError(
            f"The model's chat template was stopped{_where(error)}: {_reason(error)}", hint=_HOSTILE_HINT
        ) from error
    except Exception as error:  # whatever a template makes Python raise
        raise TemplateError(
            f"The model's chat template is broken{_where(error)}: {_reason(error)}", hint=_BROKEN_HINT
        ) from error


def _where(error: BaseException) -> str:
    """ " (line 3)" of the template, as far as the error knows."""
    if isinstance(error, TemplateSyntaxError):
        return f" (line {error.lineno})"
    line, trace = 0, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "<template>":
            line = trace.tb_lineno
        trace = trace.tb_next
    return f" (line {line})" if line else ""


def _reason(error: BaseException) -> str:
    text = " ".join(str(error).split())[:500]
    return f"{text or type(error).__name__}"
