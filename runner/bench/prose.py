"""English text of any length that is the same everywhere, and hardly repeats itself: what benchmarks read and continue.

Sentences are drawn from patterns and words by a small generator of its own. It knows nothing of tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

# A passage to be scored: whoever knows English finds most of its words likely.
PASSAGE: Final = (
    "The sun had gone down behind the hills, and the little town by the sea was quiet. In the last house of the "
    "street an old man sat at his window and looked out at the water. He had been a sailor when he was young, and he "
    "had seen many places in the world, but he had always come back to this house, where he was born. Every evening "
    "his granddaughter came to see him. She brought him bread and milk, and he told her a story about the sea."
)

_WHO: Final = (
    "the old sailor", "a young doctor", "my neighbour", "the teacher", "an engineer from the north", "the baker",
    "her brother", "the farmer", "a student of history", "the woman at the station", "his grandmother", "the painter",
    "a friend of mine", "the captain", "the librarian", "a tired traveller", "the mayor", "our guide",
)  # fmt: skip
_DID: Final = (
    "opened", "looked for", "remembered", "carried", "repaired", "described", "lost", "found", "painted", "measured",
    "sold", "asked about", "wrote down", "dreamed of", "returned to", "walked around", "paid for", "waited beside",
)  # fmt: skip
_WHAT: Final = (
    "the blue door", "a small wooden boat", "the letter from the capital", "an empty house", "the broken clock",
    "a bridge over the river", "the garden behind the church", "a map of the islands", "the last train", "a bag of "
    "apples", "the light in the tower", "an unfinished song", "the road to the mountains", "a box of old photographs",
    "the market square", "a pair of warm shoes", "the well in the courtyard", "a book without a title",
)  # fmt: skip
_WHEN: Final = (
    "before sunrise", "on the first day of spring", "after a long winter", "late in the evening", "every other week",
    "when the rain had stopped", "in the year of the great storm", "at the end of the summer", "without a word",
    "for the third time", "while the others were asleep", "as soon as the snow was gone", "many years later",
)  # fmt: skip
_WHY: Final = (
    "nobody else wanted to do it", "there was no other way", "it was cheaper than expected", "the weather had changed",
    "the children were hungry", "a promise is a promise", "the bridge was closed", "everything had to be ready",
    "the news had come too late", "it was the right thing to do", "someone had left the gate open", "time was short",
)  # fmt: skip
_NUMBERS: Final = ("two", "three", "seven", "eleven", "forty", "sixty-five", "a hundred", "one thousand two hundred")
_PATTERNS: Final = (
    "{When}, {who} {did} {what}, because {why}.",
    "{Who} {did} {what} {when}.",
    "It is said that {who} once {did} {what} and {did2} {what2} {when}.",
    "“Why?” asked {who}. “Because {why},” answered {who2}, and {did} {what}.",
    "{Number} people saw how {who} {did} {what}; only {who2} knew that {why}.",
    "Between {what} and {what2} there were {number} steps, and {who} counted them {when}.",
    "If {who} had not {did} {what} {when}, {who2} would never have {did2} {what2}.",
    "{Who} said nothing. {When}, however, {who2} {did} {what}, although {why}.",
)
# Knuth's MMIX generator, of which the high half is used: the low bits of such generators repeat early.
_FACTOR, _ADD, _MODULUS = 6364136223846793005, 1442695040888963407, 2**64


def prose(n_characters: int) -> str:
    """At least so many characters of text; a longer one begins with the shorter ones, to the last whole sentence."""
    sentences: list[str] = []
    length = 0
    for sentence in _sentences():
        sentences.append(sentence)
        length += len(sentence) + 1
        if length > n_characters:
            return " ".join(sentences)
    raise AssertionError("sentences never end")


def _sentences() -> Iterator[str]:
    draw = _Draw(2024)
    while True:
        words = {
            "who": draw.one_of(_WHO),
            "who2": draw.one_of(_WHO),
            "did": draw.one_of(_DID),
            "did2": draw.one_of(_DID),
            "what": draw.one_of(_WHAT),
            "what2": draw.one_of(_WHAT),
            "when": draw.one_of(_WHEN),
            "why": draw.one_of(_WHY),
            "number": draw.one_of(_NUMBERS),
        }
        capital = {name.capitalize(): text[0].upper() + text[1:] for name, text in words.items()}
        yield draw.one_of(_PATTERNS).format(**words, **capital)


class _Draw:
    """Draws by a linear congruential generator: the same on every machine and in every version of Python."""

    def __init__(self, seed: int) -> None:
        self._state = seed

    def one_of(self, choices: Sequence[str]) -> str:
        self._state = (self._state * _FACTOR + _ADD) % _MODULUS
        return choices[(self._state >> 33) % len(choices)]
