"""The prompts that the project ships for training a drafter, in four genres: phrasings, and what they are asked about.

Every phrasing is combined with every subject of its group. Tables of words alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

Genre = Literal["code", "prose", "instruct", "maths"]


class Group(NamedTuple):
    phrasings: tuple[str, ...]
    subjects: tuple[str, ...]


_FUNCTIONS: Final = (
    "reverses a string",
    "checks whether a number is prime",
    "counts the words of a text",
    "merges two sorted lists",
    "finds the largest value of a list",
    "removes duplicates and keeps the order",
    "computes the nth Fibonacci number",
    "reads a CSV file and sums a column",
    "flattens a nested list",
    "tells whether two words are anagrams",
    "converts Celsius to Fahrenheit",
    "groups dictionaries by a key",
    "parses an ISO date",
    "does a binary search",
    "validates an e-mail address",
    "rotates a matrix by ninety degrees",
    "retries a call three times",
    "prints a multiplication table",
    "computes a moving average",
    "splits a list into chunks of n",
)
_PIECES: Final = (
    "a stack with push, pop and peek",
    "a bank account with deposits and withdrawals",
    "a queue made of two stacks",
    "a linked list with insert and delete",
    "a counter that can be reset",
    "a small cache that forgets the oldest entry",
    "a timer with start and stop",
    "a shopping cart with a total",
    "a binary tree with insert and search",
    "a deck of cards that can be shuffled",
)
_SCENES: Final = (
    "a lighthouse keeper",
    "an old clock",
    "a fox and a river",
    "a girl who finds a map",
    "two brothers on a farm",
    "a train that is late",
    "the last day of summer",
    "a letter that comes too late",
    "a baker who cannot sleep",
    "a storm at sea",
    "a market in the morning",
    "a dog that waits",
    "a house on a hill",
    "a journey through snow",
    "a teacher and her pupil",
    "a lost ring",
    "a village without a name",
    "the oldest tree of the forest",
    "a stranger at the inn",
    "a king who wants to be a gardener",
)
_THINGS: Final = (
    "photosynthesis",
    "how a bicycle stays upright",
    "why the sky is blue",
    "compound interest",
    "how vaccines work",
    "the water cycle",
    "what an operating system does",
    "how bread rises",
    "the seasons",
    "how a compass works",
    "black holes",
    "recycling",
    "the difference between weather and climate",
    "how to read a map",
    "what inflation is",
    "how bees make honey",
    "the rules of chess",
    "why we sleep",
    "how a dam makes electricity",
    "what a database index is",
)
_TASKS: Final = (
    "a birthday party for ten guests",
    "a weekend in the mountains",
    "moving to another town",
    "a job interview",
    "a week of simple dinners",
    "learning a language in a year",
    "a small vegetable garden",
    "a talk of ten minutes",
    "cleaning a flat in two hours",
    "a road trip with children",
)
_COUNTRIES: Final = (
    "France", "Peru", "Japan", "Kenya", "Canada", "Norway", "India", "Egypt", "Brazil", "Poland", "Spain", "Greece",
    "Chile", "Turkey", "Ghana", "Italy", "Mexico", "Sweden", "Vietnam", "Portugal",
)  # fmt: skip
_WISHES: Final = (
    "a table for two at an Italian restaurant tonight",
    "a flight to Madrid next Friday",
    "a hotel with a pool for three nights",
    "two tickets for a concert on Saturday",
    "a haircut tomorrow afternoon",
    "a taxi to the airport at six in the morning",
    "a house with two bedrooms to rent",
    "a dentist who has time this week",
    "the weather for the weekend",
    "a bus from Fresno to Sacramento",
)
_SUMS: Final = (
    "17 + 26", "94 - 58", "12 * 13", "144 / 12", "3 * (8 + 5)", "25 % of 80", "2 to the power of 9", "7 * 8 - 6",
    "the square root of 196", "1/2 + 1/3", "1001 - 999", "15 * 15", "the sum of the first ten odd numbers",
    "360 / 24", "0.25 * 64",
)  # fmt: skip
_STORIES: Final = (
    "A train travels 180 km in 2 hours. How fast is it?",
    "A shirt costs 40 euros and is reduced by 15 percent. What does it cost now?",
    "Anna has three times as many apples as Ben, and together they have 24. How many has Anna?",
    "A tank holds 600 litres and a tap fills 12 litres a minute. How long does it take to fill it?",
    "The sides of a rectangle are 7 m and 9 m. What are its area and perimeter?",
    "Five workers build a wall in 12 days. How long do ten workers take?",
    "A number doubled and increased by 7 is 31. What is the number?",
    "A recipe for four needs 300 g of flour. How much is needed for ten?",
    "The mean of 4, 8, 15 and x is 10. What is x?",
    "A car loses a fifth of its value every year. It cost 20000. What is it worth after two years?",
)

SHIPPED: Final[Mapping[Genre, tuple[Group, ...]]] = {
    "code": (
        Group(
            (
                "Write a Python function that {}.",
                "Write a JavaScript function that {}.",
                "Give me a C function that {}, with a comment on each step.",
                "Write a Rust function that {} and a test for it.",
                "How do I write a short program that {}?",
            ),
            _FUNCTIONS,
        ),
        Group(("Write a Python class for {}.", "Write a Java class for {}.", "Show me a Go type for {}."), _PIECES),
    ),
    "prose": (
        Group(
            (
                "Tell me a story about {}.",
                "Write the first paragraph of a novel about {}.",
                "Describe {} in three sentences.",
                "Write a short poem about {}.",
                "Write a dialogue that has to do with {}.",
            ),
            _SCENES,
        ),
    ),
    "instruct": (
        Group(("Explain {} to a child.", "Explain {} in one paragraph.", "Give me three facts about {}."), _THINGS),
        Group(("Help me plan {}.", "Make a checklist for {}.", "What should I think of before {}?"), _TASKS),
        Group(("What is the capital of {}?", "What is {} known for?"), _COUNTRIES),
        Group(("I need {}.", "Can you help me find {}?", "Hello! I would like {}, please."), _WISHES),
    ),
    "maths": (
        Group(("What is {}?", "Compute {} step by step.", "Explain how to work out {}."), _SUMS),
        Group(("{}", "Solve this and show every step. {}"), _STORIES),
    ),
}
