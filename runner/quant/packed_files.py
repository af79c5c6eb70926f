"""What a packed model and its files are called, finished or half made. It imports nothing and opens nothing."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

MANIFEST_NAME: Final = "runner.json"
WEIGHTS_NAME: Final = "model.safetensors"
HEAD_NAME: Final = "mtp.safetensors"  # the head that drafts, as its model had it
FILE_SUFFIXES: Final = frozenset({".gguf", ".hfq", ".mq4"})  # of a model that is one file
PARTIAL_SUFFIX: Final = ".partial"  # of the name of what is being made
JOURNAL_NAME: Final = "journal.jsonl"  # which tensors are done, while the model is made


def is_packed(names: Collection[str]) -> bool:
    """Whether files of these names, side by side, are a packed model."""
    return MANIFEST_NAME in names and WEIGHTS_NAME in names
