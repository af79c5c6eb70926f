"""Words with colons, such as demo:q8_0, which bash cuts at them for completion: put together again.

Of the word that is being typed bash replaces what stands behind its last colon and nothing else, so what completes it
gets the part before apart (stem). It knows no command and offers nothing.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from typing import Final

_STEM: Final = "_RUNNER_COMPLETE_STEM"


def put_together(environment: MutableMapping[str, str]) -> None:
    """Rewrite what bash says of a line (COMP_WORDS, a word a line, and COMP_CWORD) up to the word that is being typed.

    What it cannot read it leaves as it is.
    """
    place = environment.get("COMP_CWORD", "")
    if not place.isdecimal():
        return
    cut = environment.get("COMP_WORDS", "").split("\n")[: int(place) + 1]
    words: list[str] = []
    for i, word in enumerate(cut):
        if i > 0 and word and (_is_colon(word) or _is_colon(cut[i - 1])):
            words[-1] += word
        else:
            words.append(word)
    if len(words) == len(cut):
        return
    before, colon, rest = words[-1].rpartition(":")
    if _is_colon(cut[-1]) or (cut[-1] and _is_colon(cut[-2])):
        words[-1], environment[_STEM] = rest, before + colon
    environment.update({"COMP_WORDS": "\n".join(words), "COMP_CWORD": str(len(words) - 1)})


def stem() -> str:
    """What stands before the word that is offered, up to a colon; "" where nothing was cut off."""
    return os.environ.get(_STEM, "")


def _is_colon(word: str) -> bool:
    return set(word) == {":"}
