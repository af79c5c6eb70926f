"""The seam between the engine and a backend: the protocols, and the values that cross them.

A backend turns token ids into token ids. It knows nothing of text, templates, stop strings or conversations; the
engine knows nothing of weights, devices or batches. Every backend passes tests/backends/conformance.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from runner.config import LoadOptions, SamplingParams
from runner.errors import ContextOverflow, UnsuitedOptions, UsageError
from runner.sampling import Constraint
from runner.speculative.drafter import Drafter
from runner.speculative.history import common_prefix as common_prefix  # for those who know backends
from runner.speculative.record import Round
from runner.speculative.speculator import Speculator
from runner.types import BackendName, CancelToken, MemoryUse, ModelInfo, ReadyModel


@dataclass(frozen=True, slots=True)
class Compiling:
    """`done` of `total` kernels are compiled: what a machine does once for a kind of model."""

    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Began:
    """The next stage of a load begins: for who asks where its time goes."""

    stage: str


LoadProgress = Callable[[float | Compiling | Began], None]
"""Hears how far a load is: the fraction of the weights, from 0 to 1, and what else there is to tell."""


@dataclass(frozen=True, slots=True)
class Prefill:
    """`done` of `total` prompt tokens are in the KV cache; `cached` of them were there before this request."""

    done: int
    total: int
    cached: int


@dataclass(frozen=True, slots=True)
class Step:
    """One token of the completion. is_drafted: a drafter guessed it, and the target agreed.

    n_drafted and n_accepted count the draft tokens of the round that began with it, which may be cut short.
    """

    token: int
    n_drafted: int = 0
    n_accepted: int = 0
    is_drafted: bool = False


@dataclass(frozen=True, slots=True)
class Logits:
    """The logits [V] float32 at one position: they predict the token at position + 1."""

    position: int
    values: NDArray[np.float32]


class Tokenizer(Protocol):
    """Text to token ids and back.

    add_bos: the model wants its BOS token first. stop_ids: the tokens that end an answer.
    control_tokens: the texts that `encode` turns into control tokens, such as "<|im_end|>".
    strips_leading_space: the first token's leading space is not part of the text (SentencePiece).
    """

    vocab_size: int
    bos_id: int | None
    add_bos: bool
    stop_ids: frozenset[int]
    control_tokens: frozenset[str]
    strips_leading_space: bool

    def encode(self, text: str, *, parse_special: bool = True) -> list[int]:
        """Token ids of `text`, without BOS or EOS added.

        parse_special: text such as "<|im_end|>" becomes the control token; else it is ordinary text.
        """
        ...

    def token_bytes(self, token: int, *, special: bool = False) -> bytes:
        """The UTF-8 bytes that a token adds to the text, possibly part of a character.

        A control token gives b"", or its name when `special`. Raises IndexError outside the vocabulary.
        """
        ...


class Backend(Protocol):
    """One loaded model. Not thread-safe, except that a CancelToken may be set from anywhere."""

    info: ModelInfo
    tokenizer: Tokenizer

    def generate(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        cancel: CancelToken,
        speculator: Speculator | None = None,
        constraint: Constraint | None = None,
    ) -> Generator[Prefill | Step, None, None]:
        """Prefill `prompt` (its longest prefix already in the KV cache is reused), then decode token by token.

        Yields Prefill at least once, before the first Step, and Step until the iterator is closed, `cancel` is set
        (it then ends within 200 ms, in prefill too) or the context is full: n_ctx tokens in all. Stop ids and
        max_tokens are the engine's: the backend goes on past them. Closing truncates the KV cache to what was
        yielded. params.seed is a number here, never None; params.grammar is the engine's too, which makes `constraint`
        of it: every token of the completion keeps to that. Token i of the completion is sampled at position
        len(prompt) + i, so that the same seed gives the same text; a speculator changes how fast it comes, not what
        it is. Raises ContextOverflow when the prompt has n_ctx tokens or more, UsageError for an empty prompt or an
        id outside the vocabulary, and what the constraint raises.
        """
        ...

    def score(self, tokens: Sequence[int]) -> Iterator[Logits]:
        """The logits at every position of `tokens`, in order; forgets what the KV cache held."""
        ...

    @property
    def held(self) -> Sequence[int]:
        """The ids in the KV cache, by position."""
        ...

    def keep(self, length: int) -> int:
        """Cut the KV cache to its first `length` positions; returns how many are left: fewer where it cannot be cut
        there, and states of recurrent layers were kept of an earlier position (end_of_messages), or of none."""
        ...

    def extend(self, tokens: Sequence[int], cancel: CancelToken) -> NDArray[np.float32] | None:
        """Compute `tokens`, at least one, after what the KV cache holds.

        Returns the logits [V] float32 after the last, valid until the next call, or None when `cancel` was set: it then
        ends within 200 ms, and the cache holds some of `tokens`. The caller sees to it that they fit the context.
        """
        ...

    def step_s(self, n_tokens: int) -> float:
        """Seconds that a step of `n_tokens` takes now, their logits included; forgets what the KV cache held."""
        ...

    def stride_s(self, n_tokens: int) -> float:
        """Seconds of a step among others that drafts n_tokens - 1 by itself or a few more (speculative.rounds.Stretch).

        Where no step does, see step_s. Forgets what the KV cache held.
        """
        return self.step_s(n_tokens)

    def give_texts(self, texts: Sequence[Sequence[int]]) -> None:
        """Steps that draft by themselves know `texts` from here on, in place of those given before.

        texts: ids of this model; tokens and ends of texts are speculative.suffix.MOST_GIVEN at most. What else such
        steps know they forget.
        """
        del texts

    def forget_texts(self) -> None:
        """Steps that draft by themselves know no text from here on but those given and the one that they go on with."""
        return

    def head_drafter(self, name: Literal["mtp", "eagle3"], directory: Path | None) -> Drafter:
        """The drafter over this model's hidden states whose head is in `directory`, or among the model's own weights.

        Raises UnsupportedModel where there is none for this model, UnsuitedOptions where this backend has none at all.
        """
        raise without_heads(self.info.backend, name, str(directory or ""))

    def get_ready(self, cancel: CancelToken) -> Iterator[None]:
        """Do what first answers would wait for, a piece of some 0.1 s at a time, while nobody asks for one.

        What is loaded and held is the same after each piece, and the iterator may be left at any; once `cancel` is set
        it ends within 200 ms. Raises as generate.
        """
        del cancel
        return iter(())

    def memory(self) -> MemoryUse: ...

    def close(self) -> None:
        """Give everything back. The object cannot be used again; calling close twice is harmless."""
        ...


def without_heads(backend: BackendName, drafter: str, source: str) -> UnsuitedOptions:
    """The refusal of a drafter over hidden states by a backend that gives none. source: its directory, or ""."""
    return UnsuitedOptions(
        f"The {backend} backend has no {drafter} drafter (asked for: {source or 'the model itself'}).",
        hint="--backend native has; --spec suffix works with every backend.",
    )


class BackendModule(Protocol):
    """What each backend package offers at module level. Importing it must be cheap: no torch, no llama_cpp."""

    def refusal(self, model: ReadyModel, options: LoadOptions) -> str | None:
        """Why this backend cannot run that model here, with the remedy, or None if it can."""
        ...

    def load(self, model: ReadyModel, options: LoadOptions, on_progress: LoadProgress, cancel: CancelToken) -> Backend:
        """Load it; see LoadProgress. A set cancel token raises RunnerError("cancelled")."""
        ...

    def vocabulary(self, model: ReadyModel) -> tuple[str, ...]:
        """What its token ids stand for (vocabulary.py has `pieces`, control tokens left out), without its weights."""
        ...


def step_of(token: int, index: int, done: Round) -> Step:
    """The step that emits token `index` of a round."""
    is_first = index == 0
    return Step(
        token,
        n_drafted=len(done.draft) if is_first else 0,
        n_accepted=done.n_accepted if is_first else 0,
        is_drafted=index < done.n_accepted,
    )


_STRIDE = 7919  # a prime, so that they lie far apart


def tokens_to_time(n_tokens: int, vocab_size: int) -> list[int]:
    """The tokens of a step that is only timed: different ones, as in a draft; equal ones go to the same experts."""
    return [i * _STRIDE % vocab_size for i in range(1, n_tokens + 1)]


def check_prompt(prompt: Sequence[int], info: ModelInfo, *, room: int = 1) -> None:
    """Raise UsageError or ContextOverflow for a prompt that a backend must not compute; `room`: tokens to come."""
    if not prompt:
        raise UsageError("The prompt is empty.", hint="Give at least one token.")
    outside = [token for token in prompt if not 0 <= token < info.vocab_size]
    if outside:
        raise UsageError(
            f"Token {outside[0]} is outside the vocabulary of {info.vocab_size} tokens.",
            hint="The ids must come from this model's own tokenizer.",
        )
    if len(prompt) + room > info.n_ctx:
        raise ContextOverflow(
            f"The prompt has {len(prompt)} tokens and the context holds {info.n_ctx}.",
            hint="Shorten it, or load the model with a larger context (-c).",
        )


def end_of_messages(prompt: Sequence[int], cached: int, stop_ids: Collection[int]) -> int:
    """Where the last message of `prompt` ends, some tokens behind what is cached and behind its beginning; 0: nowhere.

    The next prompt may go on from there in another way, without what the answer thought or with another answer. A cache
    that cannot be cut keeps its state there: worth a pass of its own, unless there are few tokens to read anew.
    """
    first = max(cached + _FEW_OF_A_PASS, FEW_READ_ANEW) + 1
    return next((at for at in range(len(prompt) - 1, first - 1, -1) if prompt[at - 1] in stop_ids), 0)


FEW_READ_ANEW: Final = 128
"""Reckoned: about as many tokens as a GPU reads in the time of two passes more."""
_FEW_OF_A_PASS: Final = 16  # which for the native engine are a step, recorded before it runs
