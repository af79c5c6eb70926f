"""Which tokens of a text are read together, and which of them are scored. Pure; it knows nothing of models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from runner.errors import UsageError

SMALLEST, LARGEST = 16, 2**24


@dataclass(frozen=True, kw_only=True)
class Windowing:
    """How token ids are cut into windows. The defaults are those of llama.cpp's perplexity tool, for windows of 512.

    size: tokens of a window. stride: from one window's start to the next one's; None is `size`, one after the other.
    context: tokens at the start of each window that are read and not scored; None is half the window and one more.
    limit: the first so many windows of each text; None takes all. Raises UsageError for what cannot be measured.
    """

    size: int = 512
    stride: int | None = None
    context: int | None = None
    limit: int | None = None

    def __post_init__(self) -> None:
        if not SMALLEST <= self.size <= LARGEST:
            raise UsageError(
                f"A window of {self.size} tokens cannot be measured.", hint=f"Give --window {SMALLEST} to {LARGEST}."
            )
        if not 1 <= self.n_context < self.size:
            raise UsageError(
                f"--context {self.context} leaves nothing to score in a window of {self.size} tokens.",
                hint=f"It must be from 1 to {self.size - 1}: a first token has nothing before it to be told from.",
            )
        if self.step < self.n_scored:
            raise UsageError(
                f"A stride of {self.step} would score tokens twice.",
                hint=f"Give --stride {self.n_scored} or more, or score less of each window with a larger --context.",
            )
        if self.limit is not None and self.limit < 1:
            raise UsageError(f"--windows is {self.limit}.", hint="Give 1 or more, or all.")

    @property
    def step(self) -> int:
        return self.size if self.stride is None else self.stride

    @property
    def n_context(self) -> int:
        return self.size // 2 + 1 if self.context is None else self.context

    @property
    def n_scored(self) -> int:
        """Tokens scored in each window."""
        return self.size - self.n_context


@dataclass(frozen=True, kw_only=True)
class TextWindows:
    """One text, tokenized and cut. n_tokens: of the whole text, BOS not counted."""

    name: str
    n_tokens: int
    windows: tuple[tuple[int, ...], ...]


def cut(name: str, ids: Sequence[int], windowing: Windowing, bos: int | None) -> TextWindows:
    """The windows of a text's ids, each whole; what is left at the end is not measured.

    bos: put before the text and in the place of every window's first token, for models that want it; None for others.
    Raises UsageError when the text is shorter than one window.
    """
    sequence = list(ids) if bos is None else [bos, *ids]
    size = windowing.size
    starts = range(0, len(sequence) - size + 1, windowing.step)[: windowing.limit]
    if not starts:
        raise UsageError(
            f"{name} has {len(ids)} tokens, and a window has {size}.",
            hint="Give a longer text or a smaller --window." if len(sequence) >= SMALLEST else "Give a longer text.",
        )
    windows = (sequence[start : start + size] for start in starts)
    return TextWindows(
        name=name,
        n_tokens=len(ids),
        windows=tuple(tuple(w) if bos is None else (bos, *w[1:]) for w in windows),
    )
