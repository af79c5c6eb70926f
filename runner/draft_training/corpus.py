"""The text that a drafter is trained on: answers of the target, at several temperatures, each batch kept when written.

A run that was stopped goes on with the same text. It knows nothing of training.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from torch import Tensor

from runner.backends.native.blocks import Decoder
from runner.backends.native.writing import write_batch
from runner.errors import UsageError
from runner.quant.journal import append_line, lines_of, whole_lines

CORPUS_NAME: Final = "corpus.jsonl"
# Greedy as when a program asks, and as people chat. A greedy answer to the same prompt is the same again.
_FIRST_TEMPERATURES: Final = (0.0, 0.7, 1.0)
_LATER_TEMPERATURES: Final = (0.7, 1.0)
_LEAST_ANSWER: Final = 8  # tokens; less of an answer teaches nothing


@dataclass(frozen=True)
class Text:
    """A prompt's ids and the answer's after them, the id that ends it included. n_prompt: how many are the prompt's."""

    ids: tuple[int, ...]
    n_prompt: int

    @property
    def n_answer(self) -> int:
        return len(self.ids) - self.n_prompt


class Corpus:
    """Batches of texts in a file, which grows by whole batches. Made by `opened`."""

    def __init__(self, file: int, batches: list[list[Text]]) -> None:
        self._file = file
        self._batches = batches

    @property
    def texts(self) -> list[Text]:
        return [text for batch in self._batches for text in batch]

    @property
    def n_batches(self) -> int:
        return len(self._batches)

    @property
    def n_tokens(self) -> int:
        """Of answers."""
        return sum(text.n_answer for text in self.texts)

    def first(self, n_tokens: int) -> list[Text]:
        """As many texts as make up that many tokens of answers, or all."""
        found: list[Text] = []
        n_found = 0
        for text in self.texts:
            if n_found >= n_tokens:
                break
            found.append(text)
            n_found += text.n_answer
        return found

    def add(self, batch: Sequence[Text]) -> None:
        """Keep a batch; it is on the disk when this returns. Raises OSError."""
        append_line(self._file, {"texts": [[text.n_prompt, list(text.ids)] for text in batch]})
        self._batches.append(list(batch))


@contextmanager
def opened(path: Path, made_from: Mapping[str, Any], vocab_size: int) -> Iterator[Corpus]:
    """The corpus in that file, emptied where it was made from something else or is damaged.

    made_from: what the texts depend on, as JSON.
    """
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        lines = whole_lines(file)
        batches = _batches(lines, made_from, vocab_size)
        if batches is None:
            os.ftruncate(file, 0)
            append_line(file, {"made_from": made_from})
        yield Corpus(file, batches or [])
    finally:
        os.close(file)


def made_from_of(path: Path) -> Mapping[str, Any]:
    """What the texts in that file were made from. Raises UsageError."""
    try:
        with path.open(encoding="utf-8") as file:
            made_from = json.loads(file.readline())["made_from"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        made_from = None
    if not isinstance(made_from, dict):
        raise UsageError(
            f"{path} is no text of a target's.", hint="Give --corpus the directory of a head that was trained before."
        )
    return made_from


def has_text(path: Path, made_from: Mapping[str, Any], vocab_size: int) -> bool:
    """Whether there is a whole batch in that file, and no damage. Nothing is written. Raises OSError."""
    with path.open("rb") as file:
        return bool(_batches(lines_of(file.read()), made_from, vocab_size))


def would_lose(path: Path, made_from: Mapping[str, Any], copied: Path | None) -> bool:
    """Whether whole batches in that file would go in a run whose text is made from that, or copied from `copied`.

    A copy that a kill ended, which is its beginning, is no loss. Raises OSError.
    """
    there = path.read_bytes() if path.is_file() else b""
    if there.count(b"\n") < 2:  # no batch after what it was made from
        return False
    if copied is not None:
        return not copied.read_bytes().startswith(there)
    return lines_of(there[: there.index(b"\n") + 1]) != [{"made_from": made_from}]


def _batches(lines: list[dict[str, Any]], made_from: Mapping[str, Any], vocab_size: int) -> list[list[Text]] | None:
    if not lines or lines[0] != {"made_from": made_from}:
        return None
    found = [_texts(line, vocab_size) for line in lines[1:]]
    return None if None in found else [batch for batch in found if batch is not None]


def _texts(line: dict[str, Any], vocab_size: int) -> list[Text] | None:
    """A line's texts; None for a line that is damaged."""
    try:
        texts = [Text(tuple(map(int, ids)), int(n_prompt)) for n_prompt, ids in line["texts"]]
    except (KeyError, TypeError, ValueError):
        return None
    is_sound = all(0 < text.n_prompt <= len(text.ids) and _in(text.ids, vocab_size) for text in texts)
    return texts if is_sound else None


def _in(ids: Sequence[int], vocab_size: int) -> bool:
    return not ids or (min(ids) >= 0 and max(ids) < vocab_size)


@dataclass(frozen=True, kw_only=True)
class Writer:
    """How texts are written. length: of prompt and answer at most. batch: texts at once.

    is_over: whether time is up, which ends answers on their way, once they have some tokens.
    """

    decoder: Decoder
    length: int
    batch: int
    used_ids: int
    stop_ids: frozenset[int]
    is_over: Callable[[], bool] = lambda: False

    def answers(
        self,
        prompts: Sequence[Sequence[int]],
        temperatures: Sequence[float],
        seed: int,
        on_tokens: Callable[[int], None] = lambda _: None,
    ) -> list[Text]:
        """An answer to each prompt that leaves room for one, in one batch; on_tokens hears how many tokens, about."""
        asked = zip(prompts, temperatures, strict=True)
        fitting = [(tuple(ids), heat) for ids, heat in asked if len(ids) < self.length]
        if not fitting:
            return []
        n_prompt = sum(len(ids) for ids, _ in fitting)
        n_written = 0

        def heard(done: int, _total: int) -> None:
            nonlocal n_written
            n_written = max(0, done - n_prompt)
            on_tokens(n_written)

        rows = write_batch(
            self.decoder,
            [ids for ids, _ in fitting],
            self.length,
            vocab_size=self.used_ids,
            seed=seed,
            temperatures=[heat for _, heat in fitting],
            stop_ids=self.stop_ids,
            on_tokens=heard,
            is_enough=lambda: n_written >= _LEAST_ANSWER * len(fitting) and self.is_over(),
        )
        return [_text(row, len(ids)) for row, (ids, _) in zip(rows.cpu(), fitting, strict=True)]


def _text(row: Tensor, n_prompt: int) -> Text:
    return Text(tuple(row[row >= 0].tolist()), n_prompt)


def write_corpus(
    corpus: Corpus,
    writer: Writer,
    prompts: Sequence[Sequence[int]],
    n_tokens: int,
    seed: int,
    *,
    on_tokens: Callable[[int], None],
) -> None:
    """Write answers to `prompts`, over and over, until there are `n_tokens` of them, or the writer's time is over.

    prompts: each leaves room for an answer. The texts depend on the arguments and on how many there are already, not on
    when a run was stopped.
    """
    while corpus.n_tokens < n_tokens and not (corpus.n_batches and writer.is_over()):
        first = len(corpus.texts)  # earlier batches may have been larger
        chosen = range(first, first + writer.batch)
        before = corpus.n_tokens
        batch = writer.answers(
            [prompts[number % len(prompts)] for number in chosen],
            [temperature_of(number, len(prompts)) for number in chosen],
            (seed + corpus.n_batches) % 2**64,
            lambda done, before=before: on_tokens(before + done),  # type: ignore[misc]
        )
        assert batch, "no prompt leaves room for an answer"
        corpus.add(batch)
        on_tokens(corpus.n_tokens)


def temperature_of(number: int, n_prompts: int) -> float:
    """The temperature of the numbered answer: all of them in turns, greedy no more than once a prompt."""
    again, index = divmod(number, n_prompts)
    if again < len(_FIRST_TEMPERATURES):
        return _FIRST_TEMPERATURES[(index + again) % len(_FIRST_TEMPERATURES)]
    return _LATER_TEMPERATURES[(index + again) % len(_LATER_TEMPERATURES)]
