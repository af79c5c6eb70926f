"""The files that drafts may quote: read when a model is loaded, and made into its ids.

It knows what `--draft-file` takes, and neither how a draft is made of a text nor what it is worth.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from runner.attachments import read_text_file
from runner.backends.base import Tokenizer
from runner.errors import RunnerError
from runner.events import Notice
from runner.speculative.suffix import MOST_GIVEN, ending

_MOST_CHARACTERS: Final = 16 * MOST_GIVEN  # hardly any text makes fewer tokens of them; megabytes would take seconds
_REMEDY: Final = "--draft-file takes text files of 4 MiB at most; of a folder, name the files one by one."


def read_draft_files(paths: Sequence[str], emit: Callable[[Notice], None]) -> list[str]:
    """The texts of files. Raises RunnerError as `-f` does, for what cannot be read, is too large, or is no text."""
    texts = []
    for path in paths:
        try:
            text, notice = read_text_file(Path(path))
        except RunnerError as error:
            raise type(error)(error.message, hint=_REMEDY) from error
        if notice:
            emit(Notice("warning", notice))
        texts.append(text.replace("\r\n", "\n"))  # which is what models write
    return texts


def missing_files(paths: Sequence[str]) -> list[Notice]:
    """What there is to say of files that are not there, before any is read."""
    return [
        Notice("warning", f"{path}, given by --draft-file, is no file here.", _REMEDY)
        for path in paths
        if not Path(path).is_file()
    ]


def quotable(texts: Sequence[str], tokenizer: Tokenizer, emit: Callable[[Notice], None]) -> list[Sequence[int]]:
    """The ids of texts, of the last ones as many as drafts can be made of; says when that is not all."""
    ids: list[Sequence[int]] = []
    room = _MOST_CHARACTERS
    for text in reversed(texts):
        if room > 0:
            ids.insert(0, tokenizer.encode(text[-room:], parse_special=False))
        room -= len(text)
    kept = ending(ids, MOST_GIVEN)
    n_kept = sum(map(len, kept))
    if room < 0 or n_kept < sum(map(len, ids)):
        text = f"Drafts quote the last {n_kept} tokens of the files that were given."
        emit(Notice("warning", text, "Give what an answer is likely to repeat last, or alone."))
    return kept
