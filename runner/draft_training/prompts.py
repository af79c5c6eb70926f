"""What the target is asked, so that it writes: the prompts that the project ships, or a user's own file.

They are split into those to train on, to watch training by, and to measure with: no text is in two of them. It knows
no tokens.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from runner.draft_training.shipped_prompts import SHIPPED
from runner.errors import UsageError

_MAX_FILE_BYTES = 2**26
_LEAST = 20  # prompts: two to watch by, two to measure with


@dataclass(frozen=True, kw_only=True)
class Prompts:
    """name: where they are from. sha256: of all of them. train, watch, measure: eight, one and one of ten."""

    name: str
    sha256: str
    train: tuple[str, ...]
    watch: tuple[str, ...]
    measure: tuple[str, ...]


def shipped_prompts() -> Prompts:
    """The prompts of shipped_prompts.py."""
    texts = [
        phrasing.format(subject)
        for groups in SHIPPED.values()
        for group in groups
        for phrasing in group.phrasings
        for subject in group.subjects
    ]
    return split("shipped with runner", texts)


def read_prompts(path: Path) -> Prompts:
    """A file with a prompt a line, or with a JSON object a line that has a "prompt". Raises UsageError."""
    hint = 'Give a UTF-8 text with a prompt a line, or .jsonl with a "prompt" in each line.'
    try:
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise UsageError(f"{path} has more than {_MAX_FILE_BYTES >> 20} MiB.", hint="Give fewer prompts.")
        text = path.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UsageError(f"{path} cannot be read: {reason}.", hint=hint) from error
    is_json = path.suffix in (".jsonl", ".ndjson")
    # JSON may have U+2028 and the like in its strings, at which splitlines would end a line.
    lines = [line.strip() for line in (text.split("\n") if is_json else text.splitlines())]
    texts = [_of_json(path, number, line) if is_json else line for number, line in enumerate(lines, 1) if line]
    texts = list(dict.fromkeys(texts))
    if len(texts) < _LEAST:
        raise UsageError(f"{path} has {len(texts)} different prompts; training needs {_LEAST} at least.", hint=hint)
    return split(path.name, texts)


def split(name: str, texts: Sequence[str]) -> Prompts:
    """`texts` in a random order that is always the same, divided."""
    mixed = list(texts)
    random.Random(0).shuffle(mixed)
    digest = hashlib.sha256(json.dumps(mixed).encode()).hexdigest()
    watch, measure = mixed[8::10], mixed[9::10]
    train = [text for index, text in enumerate(mixed) if index % 10 < 8]
    return Prompts(name=name, sha256=digest, train=tuple(train), watch=tuple(watch), measure=tuple(measure))


def _of_json(path: Path, number: int, line: str) -> str:
    try:
        prompt = json.loads(line)["prompt"]
    except (ValueError, TypeError, KeyError, RecursionError):
        prompt = None
    if not isinstance(prompt, str) or not prompt.strip():
        raise UsageError(
            f'Line {number} of {path} has no "prompt".', hint='Each line must be like {"prompt": "Tell me a story."}.'
        )
    return prompt.strip()
