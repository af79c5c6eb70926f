"""A list of texts as settings files and JSON write it: ["END", "two words"]. It does not know what they are for."""

from __future__ import annotations

import re
import tomllib
from typing import Final

_LISTED: Final = re.compile(r"""\[\s*(["']|\]$)""")  # or []; [INST] is a text


def is_listed(text: str) -> bool:
    """Whether a text is meant as a list, be it a right one or not."""
    return _LISTED.match(text) is not None


def listed(text: str) -> list[str]:
    """The texts of a list. Raises ValueError."""
    texts = tomllib.loads(f"texts = {text}")["texts"]
    if not all(isinstance(one, str) for one in texts):
        raise ValueError("not all of it are texts")
    return list(texts)
