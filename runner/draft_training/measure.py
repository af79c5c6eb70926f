"""How much of a head's drafts its target accepts: on prompts that it was not trained on, and under changed conditions.

The target answers greedily; a draft is begun at every token of an answer, and counts as far as it is the answer. The
conditions are the chat template as it is, each change of it (chats.py), and a long chat before the question.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import torch

from runner.backends.native.blocks import Decoder
from runner.backends.native.heads.eagle3 import Eagle3Head
from runner.draft_training.batches import batch_of, in_order
from runner.draft_training.chats import CHANGES, Chats
from runner.draft_training.corpus import Text, Writer
from runner.draft_training.states import observe
from runner.draft_training.unrolled import Acceptance, depths
from runner.types import Message

USUAL: Final = "as trained"
LONG: Final = "long chat"


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What came of one condition. texts: answers; tokens: of them; context: mean ids of a prompt.

    accepted: for each depth the share of drafts that were accepted that far. acceptance_length: AL, 1 + their sum.
    """

    condition: str
    texts: int
    tokens: int
    context: float
    accepted: tuple[float, ...]
    acceptance_length: float


@dataclass(frozen=True)
class Condition:
    name: str
    texts: tuple[Text, ...]


@torch.no_grad()
def acceptance(
    head: Eagle3Head, decoder: Decoder, texts: Sequence[Text], n_steps: int, batch_tokens: int
) -> Acceptance:
    """Greedy drafts of `n_steps` tokens at every token of the answers."""
    device = head.d2t.device
    layers = head.config.captured(decoder.config.num_layers)
    counted = Acceptance(n_steps, device)
    for group in in_order(sorted(texts, key=lambda text: len(text.ids)), batch_tokens):
        batch = batch_of(group, device)
        counted.begin()
        seen = observe(decoder, batch.ids, layers, head.fc.weight.dtype)
        for step, found in enumerate(depths(head, seen, batch, n_steps)):
            counted.add(step, found, head, batch)
    return counted


def measured(head: Eagle3Head, decoder: Decoder, condition: Condition, n_steps: int, batch_tokens: int) -> Measured:
    counted = acceptance(head, decoder, condition.texts, n_steps, batch_tokens)
    texts = condition.texts
    return Measured(
        condition=condition.name,
        texts=len(texts),
        tokens=sum(text.n_answer for text in texts),
        context=round(sum(text.n_prompt for text in texts) / len(texts), 1),
        accepted=tuple(round(share, 4) for share in counted.shares),
        acceptance_length=round(counted.length, 4),
    )


def conditions(
    chats: Chats,
    writer: Writer,
    prompts: Sequence[str],
    long_tokens: int,
    n_long: int,
    on_text: Callable[[int, int], None],
) -> Iterator[Condition]:
    """The target's greedy answers to `prompts` under each condition that its template and its context allow.

    long_tokens: of a long chat, at least; 0 for none of them. on_text(done, total) counts conditions.
    """
    questions = [[Message(role="user", content=prompt)] for prompt in prompts]
    total = len(CHANGES) + 2
    on_text(0, total)
    usual = _answers(writer, [ids for chat in questions if (ids := chats.ids(chat))], writer.length)
    if usual:
        yield Condition(USUAL, usual)
    for done, change in enumerate(CHANGES, 1):
        on_text(done, total)
        if texts := _answers(writer, [ids for chat in questions if (ids := chats.ids(chat, change))], writer.length):
            yield Condition(change, texts)
    on_text(total - 1, total)
    if long_tokens and usual and chats.template is not None:
        prompts_of_long = _long_chats(chats, prompts, usual, long_tokens, n_long)
        if texts := _answers(writer, prompts_of_long, long_tokens + 2 * writer.length):
            yield Condition(LONG, texts)
    on_text(total, total)


def _answers(writer: Writer, prompts: Sequence[Sequence[int]], length: int) -> tuple[Text, ...]:
    found: list[Text] = []
    for start in range(0, len(prompts), writer.batch):
        some = prompts[start : start + writer.batch]
        found += replace(writer, length=length).answers(some, [0.0] * len(some), seed=0)
    return tuple(text for text in found if text.n_answer > 2)


def _long_chats(
    chats: Chats, prompts: Sequence[str], answered: Sequence[Text], long_tokens: int, count: int
) -> list[tuple[int, ...]]:
    """Chats of many turns, each of at least `long_tokens` ids: questions, and answers that the target gave to others.

    The answers are the target's own words; that they do not fit their questions is what makes the chats differ.
    """
    answers = [_words(chats, text) for text in answered]
    made = []
    for number in range(min(count, len(prompts))):
        turns: list[Message] = []
        ids: tuple[int, ...] | None = ()
        at = number
        while ids is not None and len(ids) < long_tokens and len(turns) < 2 * long_tokens:
            question = Message(role="user", content=prompts[at % len(prompts)])
            ids = chats.ids([*turns, question])
            turns += [question, Message(role="assistant", content=answers[at % len(answers)])]
            at += 1
        if ids:
            made.append(ids)
    return made


def _words(chats: Chats, text: Text) -> str:
    answer = b"".join(chats.tokenizer.token_bytes(token) for token in text.ids[text.n_prompt :])
    return answer.decode("utf-8", "replace").strip()
