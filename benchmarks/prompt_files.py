"""Prompts from files of JSON lines, as public test sets have them, by category. It knows no model.

A line has its text under "prompt" (a text that goes on), "question", or "turns" (the first is taken), and perhaps a
"category"; without one the file's name is it.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class FilePrompt:
    category: str
    text: str
    continues: bool


def read_prompts(path: Path) -> Iterator[FilePrompt]:
    """Every prompt of a file, or of all files of a directory that end in .jsonl or .jsonl.gz. Raises ValueError."""
    files = sorted([*path.glob("*.jsonl"), *path.glob("*.jsonl.gz")]) if path.is_dir() else [path]
    if not files:
        raise ValueError(f"{path} has no file that ends in .jsonl or .jsonl.gz")
    for file in files:
        try:
            data = file.read_bytes()
            text = (gzip.decompress(data) if file.suffix == ".gz" else data).decode("utf-8-sig")
        except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
            raise ValueError(f"{file} cannot be read: {error}") from error
        # Not splitlines: strings of JSON may have U+2028 and the like in them.
        for number, line in enumerate(text.split("\n"), 1):
            if line.strip():
                yield _prompt(line, file, number)


def _prompt(line: str, file: Path, number: int) -> FilePrompt:
    try:
        plain: Any = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{file}, line {number}: no JSON: {error}") from error
    if not isinstance(plain, dict):
        raise ValueError(f"{file}, line {number}: no JSON object")
    category = str(plain.get("category", file.name.split(".")[0]))
    turns = plain.get("turns")
    first = turns[0] if isinstance(turns, list) and turns else None
    text = plain["prompt"] if "prompt" in plain else plain.get("question") or first
    if not isinstance(text, str) or not text:
        raise ValueError(f"{file}, line {number}: no prompt, question or turns that is text")
    return FilePrompt(category=category, text=text, continues="prompt" in plain)
