"""A list of texts as settings files write it: ["END", "two words"]. It does not know what they are for."""

from __future__ import annotations

import re
import tomllib
from typing import Final

_LISTED: Final = re.compile(r"""\s*\[\s*(["']|\]\s*$)""")  # or []; [INST] is a text
LIST_HINT: Final = 'Write it as ["END", "two words"]; a text that begins with [" goes into such a list.'


def is_listed(text: str) -> bool:
    """Whether a text is meant as a list, be it a right one or not."""
    return _LISTED.match(text) is not None


def listed(text: str) -> list[str]:
    """The texts of a list. Raises ValueError."""
    try:
        found = tomllib.loads(f"texts = {text.strip()}")
    except tomllib.TOMLDecodeError as error:  # which tells a place in what was made of the text
        said = str(error).partition(" (at ")[0]
        raise ValueError(said[:1].lower() + said[1:]) from None
    if set(found) != {"texts"} or not all(isinstance(one, str) for one in found["texts"]):
        raise ValueError("not all of it are texts")
    return list(found["texts"])
