"""One model in torch: the Backend protocol over an Execution and its KvCache.

It keeps track of which ids the KV cache holds, cuts prompts into chunks, and hands logits to runner's own sampling
where the execution does not sample itself. Text, templates, stop strings and stop ids are the engine's.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from runner.backends.base import (
    Backend,
    Logits,
    Prefill,
    Step,
    check_prompt,
    common_prefix,
    end_of_messages,
    step_of,
    tokens_to_time,
)
from runner.backends.native.capture import Follower
from runner.backends.native.execution import Execution, Wanted
from runner.backends.native.heads.drafter import HeadDrafter
from runner.backends.native.heads.open import HeadName, open_head
from runner.backends.native.pacing import paced
from runner.backends.native.placement import Needs, Placement, free_bytes, memory_errors, prefill_chunk
from runner.backends.native.tokenizer import HuggingFaceTokenizer
from runner.config import LoadOptions, SamplingParams
from runner.errors import loading_cancelled
from runner.kernels.values import MOST_ROWS
from runner.model_config import ModelConfig
from runner.sampling import Constraint, bad_logits
from runner.speculative.rounds import Stretch, Stride, decode
from runner.speculative.speculator import Speculator
from runner.speculative.verify import choice_after, choices_of
from runner.types import CancelToken, MemoryUse, ModelInfo, ReadyModel

_NO_GRAPHS = (
    "Decoding could not be recorded as a CUDA graph, most likely for want of memory, and is slower: "
    "a smaller context (-c) leaves more."
)
_TIMED_STRIDES = 3
_GREEDY = SamplingParams(temperature=0.0)
_STEPS_ON_THE_DEVICE = (SamplingParams(temperature=1.0, seed=0), _GREEDY)


class _Cancelled(Exception):
    """Ends a forward pass between two products; never leaves this file."""


class NativeBackend(Backend):
    """See Backend in backends/base.py."""

    def __init__(
        self,
        model: ReadyModel,
        info: ModelInfo,
        tokenizer: HuggingFaceTokenizer,
        execution: Execution,
        config: ModelConfig,
        placement: Placement,
        need: Needs,
        options: LoadOptions,
    ) -> None:
        self.info = info
        self.tokenizer = tokenizer
        self._model = model
        self._config = config
        self._execution = execution
        self._placement = placement
        self._need = need
        self._chunk = prefill_chunk(config, placement, options)
        self._held: list[int] = []  # the ids in the KV cache, by position
        self._follower: Follower | None = None
        self._recorded: set[int] = set()  # how many tokens those steps draft by themselves that were recorded at load
        self._verified: set[int] = set()  # how many tokens those steps have that were: of drafts of the host's
        self._is_asked = False  # whether an answer was ever asked for
        self._is_open = True

    def warm_up(self, cancel: CancelToken) -> None:
        """Run one token, so that pages, threads, kernels and graphs are ready, and forget it. On a CPU a second one is
        timed: what is slow is to say how slow. Raises RunnerError when cancelled."""
        try:
            self._warm_up(cancel)
        except _Cancelled:
            raise loading_cancelled() from None

    def _warm_up(self, cancel: CancelToken) -> None:
        self._last([0], cancel)
        self._record_steps()
        if self._execution.lacks_graphs:
            self.info = dataclasses.replace(self.info, note=f"{self.info.note} {_NO_GRAPHS}".strip())
        if not self._placement.is_gpu:
            started = time.perf_counter()
            self._last([0], cancel)
            rate = 1 / (time.perf_counter() - started)
            self.keep(0)
            self.info = dataclasses.replace(
                self.info, note=f"{self.info.note} Here: about {rate:.{0 if rate >= 10 else 1}f} tokens/s."
            )

    def get_ready(self, cancel: CancelToken) -> Iterator[None]:
        """See Backend: pass prompts of the lengths that messages have, so that they are recorded. They are forgotten,
        and it ends where a text is held or was asked for, or is heard by a head that drafts."""
        for n_before, n_tokens, params in self._first_messages():
            if not self._is_open or self._held or self._is_asked or self._follower is not None:
                return
            try:
                self._read([0] * n_before, cancel)
                self._last_choice([0] * n_tokens, params, cancel)
            except _Cancelled:
                return
            finally:
                self.keep(0)
                self.forget_texts()
            yield
            self._execution.after_answer()
            yield

    def _first_messages(self) -> Iterator[tuple[int, int, SamplingParams]]:
        """Tokens before a message, which is computed in another way after some, those of it, and how one is chosen.

        All have room in the cache as it is: one that grows loses what was recorded.
        """
        room = min(self.info.n_ctx - 1, self._execution.cache.capacity)
        lengths = [n_tokens for n_tokens in self._execution.message_lengths if n_tokens + 1 <= room]
        for n_before in (0, 1):
            for n_tokens in lengths:
                if n_tokens > MOST_ROWS:
                    yield n_before, n_tokens, _GREEDY
                elif n_before == 0:  # steps are the same after others, and choose as they go
                    yield from ((0, n_tokens, params) for params in _STEPS_ON_THE_DEVICE)

    def give_texts(self, texts: Sequence[Sequence[int]]) -> None:
        self._execution.give_texts(texts)

    def forget_texts(self) -> None:
        self._execution.forget_texts()

    def _record_steps(self, n_drafted: int = 0) -> None:
        """Decode in each way that a device records, and forget all: the first answer would wait for it.

        n_drafted: tokens that the steps draft by themselves.
        """
        for params in _STEPS_ON_THE_DEVICE:
            if (tokens := self._execution.decode(0, params, CancelToken())) is not None:
                tokens.draft(n_drafted, [0])
                next(tokens, None)
                tokens.close()
        self._recorded.add(n_drafted)
        self.keep(0)

    def generate(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        cancel: CancelToken,
        speculator: Speculator | None = None,
        constraint: Constraint | None = None,
    ) -> Generator[Prefill | Step, None, None]:
        check_prompt(prompt, self.info)
        self._is_asked = True
        try:
            choose = yield from self._prefill(prompt, params, cancel, constraint)
            if cancel.is_cancelled:
                return
            history = [*prompt, choose()]
            yield Step(history[-1])
            with closing(decode(_Steps(self, params, cancel, constraint), params, history, speculator)) as emitted:
                for token, index, done in emitted:
                    yield step_of(token, index, done)
        except _Cancelled:
            return
        finally:
            if self._is_open and not cancel.is_cancelled:
                self._execution.after_answer()

    def _prefill(
        self, prompt: Sequence[int], params: SamplingParams, cancel: CancelToken, constraint: Constraint | None
    ) -> Generator[Prefill, None, Callable[[], int]]:
        """Compute what of `prompt` the cache lacks; returns what gives the token after it, or raises bad_logits."""
        # The last token is computed in any case: its logits are not kept.
        cached = self.keep(min(common_prefix(self._held, prompt), len(prompt) - 1))
        yield Prefill(cached, len(prompt), cached)
        keeps_states = self._execution.cache.states is not None
        done, turn = cached, end_of_messages(prompt, cached, self.tokenizer.stop_ids) if keeps_states else 0
        while done < turn or len(prompt) - done > self._chunk:
            end = min(done + self._chunk, turn if done < turn else len(prompt))
            self._extend(prompt[done:end], "none", cancel)
            if end == turn:
                self._execution.cache.save()
            done = end
            yield Prefill(done, len(prompt), cached)
        choose = self._choice_after(prompt, done, params, cancel, constraint)
        yield Prefill(len(prompt), len(prompt), cached)
        return choose

    def _choice_after(
        self,
        prompt: Sequence[int],
        done: int,
        params: SamplingParams,
        cancel: CancelToken,
        constraint: Constraint | None,
    ) -> Callable[[], int]:
        """Compute the rest of `prompt`; what is returned chooses the token after it, or has it from the device."""
        rest = prompt[done:]
        token = None if constraint is not None else self._last_choice(rest, params, cancel)
        if token is not None:
            return partial(_checked, token)
        return partial(choice_after, list(prompt), self._last(rest, cancel), params, constraint)

    def _last_choice(self, tokens: Sequence[int], params: SamplingParams, cancel: CancelToken) -> int | None:
        """See Execution.last_choice; waits for it. Raises _Cancelled, DoesNotFit."""
        assert self._is_open, "the backend is closed"
        with self._passing():
            chosen = self._execution.last_choice(tokens, params, self._checkpoint(cancel, len(tokens)))
            if chosen is None:
                return None
            token = chosen()
            self._hold(tokens)
        return token

    def score(self, tokens: Sequence[int]) -> Iterator[Logits]:
        check_prompt(tokens, self.info, room=0)
        self.keep(0)
        never = CancelToken()
        size = min(self._execution.score_rows, self._chunk)
        for start in range(0, len(tokens), size):
            rows = self._extend(tokens[start : start + size], "all", never)
            for i in range(len(rows)):
                yield Logits(start + i, rows[i].copy())

    @property
    def held(self) -> Sequence[int]:
        return self._held

    def keep(self, length: int) -> int:
        kept = self._execution.cache.truncate(length)
        self._forget(kept)
        return kept

    def _forget(self, length: int) -> None:
        """No ids from position `length` on are in the KV cache."""
        del self._held[length:]
        if self._follower is not None:
            self._follower.keep(length)

    def extend(self, tokens: Sequence[int], cancel: CancelToken) -> NDArray[np.float32] | None:
        try:
            whole = (len(tokens) - 1) // self._chunk * self._chunk
            self._read(tokens[:whole], cancel)
            if cancel.is_cancelled:
                return None
            logits = self._last(tokens[whole:], cancel)
            self._execution.after_answer()  # who drafts is asked for no answers
            return logits
        except _Cancelled:
            return None

    def can_chain(self, params: SamplingParams) -> bool:
        """See ChainedModel in speculative.model_drafter."""
        return self._execution.can_chain(params)

    def chain(
        self, tokens: Sequence[int], params: SamplingParams, n: int, cancel: CancelToken
    ) -> Sequence[tuple[int, float]]:
        """See ChainedModel in speculative.model_drafter. Raises DoesNotFit too."""
        assert self._is_open, "the backend is closed"
        if len(tokens) > MOST_ROWS:
            try:
                self._read(tokens[:-1], cancel)
            except _Cancelled:
                return ()
            tokens = tokens[-1:]
        if cancel.is_cancelled:
            return ()
        with self._passing():
            guesses = self._execution.chain(tokens, params, n)
            self._hold([*tokens, *(token for token, _ in guesses[:-1])])
        if any(token < 0 for token, _ in guesses):
            raise bad_logits()
        return guesses

    def step_s(self, n_tokens: int) -> float:
        tokens = tokens_to_time(n_tokens, self.info.vocab_size)
        self.keep(0)
        if self._execution.is_exact:  # shorter drafts have graphs of their own, for which an answer would wait
            for count in sorted(set(range(2, n_tokens)) - self._verified):
                self._record_choices(tokens[:count])
        self._record_choices(tokens)  # what is recorded at its first step is no part of a step
        started = time.perf_counter()
        if (chosen := self._choices(tokens, _GREEDY)) is None:
            self._extend(tokens, "all", CancelToken())
        else:
            chosen()
        elapsed = time.perf_counter() - started
        self.keep(0)
        return elapsed

    def _record_choices(self, tokens: Sequence[int]) -> None:
        """Choose after each of these tokens in each way that a device records, and forget all."""
        for params in _STEPS_ON_THE_DEVICE:
            if (chosen := self._choices(tokens, params)) is not None:
                chosen()
                self.keep(0)
        self._verified.add(len(tokens))

    def stride_s(self, n_tokens: int) -> float:
        """See Backend. Of 9 to 15 tokens it is the step of 16, though none drafts 8 to 14 by itself: where penalties or
        a grammar leave drafts to the host, such a one is verified by a step that is filled up to as many rows. (With
        experts it is not filled up, and taken for dearer than it is.)"""
        strides = self._execution.strides
        if not strides:
            return self.step_s(n_tokens)
        n_drafted = 0 if n_tokens == 1 else next((n for n in strides if n >= n_tokens - 1), strides[-1])
        with self._memory_errors():
            if n_drafted not in self._recorded:
                self._record_steps(n_drafted)
            found = self._timed_stride_s(n_drafted)
        self.forget_texts()  # that was none
        return found or self.step_s(n_tokens)

    def _timed_stride_s(self, n_drafted: int) -> float:
        """0.0 where the context is too small to tell."""
        steps = self._execution.decode(0, _GREEDY, CancelToken())
        assert steps is not None
        steps.draft(n_drafted, [0])
        next(steps, None)
        started = time.perf_counter()
        drafted = [len(stride.draft) for stride in islice(steps, _TIMED_STRIDES)]
        elapsed = time.perf_counter() - started
        steps.close()
        self.keep(0)
        return elapsed / _TIMED_STRIDES if drafted == [n_drafted] * _TIMED_STRIDES else 0.0

    def head_drafter(self, name: HeadName, directory: Path | None) -> HeadDrafter:
        """See Backend. It replaces the one before. Raises BadModelFile and DoesNotFit too."""
        assert self._is_open, "the backend is closed"
        self._leave()
        self.keep(0)  # the drafter is to hear all that the cache holds
        with self._memory_errors():
            drafter = open_head(name, directory, self._model, self._config, self._execution, self._leave)
            self._record_steps()  # with what they leave for the head
        self._follower = drafter
        return drafter

    def _leave(self) -> None:
        """Nobody reads hidden states any more, and what was recorded is recorded anew."""
        self._follower = None
        self._recorded.clear()
        self._verified.clear()
        if self._is_open:
            self._execution.capture(())

    def memory(self) -> MemoryUse:
        """Weights, KV cache and graphs as allocated; the workspace is all else (see Execution)."""
        if not self._is_open:
            return MemoryUse(weights_bytes=0, kv_cache_bytes=0, workspace_bytes=0)
        execution = self._execution
        return MemoryUse(
            weights_bytes=execution.weights_bytes,
            kv_cache_bytes=execution.cache.nbytes,
            graphs_bytes=execution.graphs_bytes,
            workspace_bytes=execution.workspace_bytes,
        )

    def close(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        self._follower = None
        self._execution.release()
        self._held = []
        if self._placement.is_gpu:
            torch.cuda.empty_cache()

    def _choices(self, tokens: Sequence[int], params: SamplingParams) -> Callable[[], list[int]] | None:
        """See Execution.choices. Raises DoesNotFit."""
        assert self._is_open, "the backend is closed"
        with self._passing():
            chosen = self._execution.choices(tokens, params)
            if chosen is not None:
                self._hold(tokens)
        return chosen

    def _stretch(self, params: SamplingParams, history: Sequence[int], cancel: CancelToken) -> _Stretch | None:
        assert self._is_open, "the backend is closed"
        tokens = self._execution.decode(history[-1], params, cancel)
        return None if tokens is None else _Stretch(self, tokens, history)

    @contextmanager
    def _passing(self) -> Iterator[None]:
        """A pass that may be cut off: what it has spoilt of what is held is forgotten then."""
        try:
            with self._memory_errors():
                yield
        except BaseException:
            self.keep(len(self._held))
            raise

    def _memory_errors(self) -> AbstractContextManager[None]:
        return memory_errors(self._need, self._placement, self._room)

    def _room(self) -> int:
        """Bytes that there are for the model: what is free, and what its weights and its cache take already."""
        held = self.memory()
        return free_bytes(self._placement) + held.weights_bytes + held.kv_cache_bytes

    def _extend(self, tokens: Sequence[int], wanted: Wanted, cancel: CancelToken) -> NDArray[np.float32]:
        """The logits [n, V] that are wanted of `tokens`; the cache holds them then. Raises _Cancelled, DoesNotFit."""
        assert self._is_open, "the backend is closed"
        with self._passing():
            logits = self._execution.extend(tokens, wanted, self._checkpoint(cancel, len(tokens)))
            rows: NDArray[np.float32] = logits.cpu().numpy()
            self._hold(tokens)
        return rows

    def _read(self, tokens: Sequence[int], cancel: CancelToken) -> None:
        """The cache holds `tokens` then too. Raises _Cancelled, DoesNotFit."""
        for start in range(0, len(tokens), self._chunk):
            self._extend(tokens[start : start + self._chunk], "none", cancel)

    def _hold(self, tokens: Sequence[int]) -> None:
        """`tokens` are in the KV cache, after what was there."""
        start = len(self._held)
        self._held.extend(tokens)
        if self._follower is not None and tokens:
            captured = self._execution.captured(start, len(self._held))
            first = len(self._held) - len(captured)
            self._follower.extend(first, self._held[first:], captured)

    def _last(self, tokens: Sequence[int], cancel: CancelToken) -> NDArray[np.float32]:
        """The logits [V] after the last of `tokens`."""
        last: NDArray[np.float32] = self._extend(tokens, "last", cancel)[0]
        return last

    def _checkpoint(self, cancel: CancelToken, n_tokens: int) -> Callable[[], None]:
        """What the layers call between products: raises _Cancelled once `cancel` is set.

        A prefill on a GPU is paced: a set flag then means that little is left to finish. A single token is little in
        any case.
        """
        pacing = paced(self._placement.device) if self._placement.is_gpu and n_tokens > 1 else None

        def check() -> None:
            if pacing is not None:
                pacing.checkpoint()
            if cancel.is_cancelled:
                raise _Cancelled

        return check


def _checked(token: int) -> int:
    """A token that the device chose. Raises BadModelFile when it could not."""
    if token < 0:
        raise bad_logits()
    return token


class _Steps:
    """A request's steps, as the decode loop asks for them: see Target and Pipelined in speculative.rounds.

    Under a constraint every token is chosen on the host, whatever the execution could choose by itself.
    """

    def __init__(
        self, backend: NativeBackend, params: SamplingParams, cancel: CancelToken, constraint: Constraint | None
    ) -> None:
        self.n_ctx, self.vocab_size = backend.info.n_ctx, backend.info.vocab_size
        # The host waits for a step that it chooses from.
        self.overlaps = backend._execution.overlaps and constraint is None and backend.can_chain(params)
        self._backend = backend
        self._cancel = cancel
        self._constraint = constraint

    def choices(self, draft: Sequence[int], params: SamplingParams, history: Sequence[int]) -> Iterator[int] | None:
        if self._cancel.is_cancelled:
            return None
        tokens = [history[-1], *draft]
        # Not where a longer draft was verified than can be taken back (ModelInfo.longest_draft).
        assert len(self._backend.held) == len(history) - 1, "the cache lacks more than the last token"
        chosen = self._backend._choices(tokens, params) if self._constraint is None else None
        if chosen is not None:
            return self._numbers(chosen)
        rows = self._backend._extend(tokens, "all", self._cancel)
        return choices_of(rows, draft, params, history, self._constraint)

    def _numbers(self, chosen: Callable[[], list[int]]) -> Iterator[int]:
        """Waits for the step first. Raises BadModelFile when a token is read that could not be chosen."""
        if self._cancel.is_cancelled:
            return
        with self._backend._memory_errors():
            tokens = chosen()
        yield from map(_checked, tokens)

    def stretch(self, params: SamplingParams, history: Sequence[int]) -> Stretch | None:
        return self._backend._stretch(params, history, self._cancel) if self._constraint is None else None

    def keep(self, length: int) -> None:
        self._backend.keep(length)


class _Stretch:
    """What an execution decodes by itself; the backend's ids are those of its cache again once it is closed."""

    def __init__(self, backend: NativeBackend, tokens: Stretch, history: Sequence[int]) -> None:
        self._backend = backend
        self._tokens = tokens
        self._history = history

    def __iter__(self) -> Iterator[Stride]:
        return self

    def __next__(self) -> Stride:
        with self._backend._memory_errors():
            stride = next(self._tokens)
            self._hold(len(self._history))  # a head that is to draft after this token must have heard of those before
        return stride

    @property
    def lengths(self) -> Sequence[int]:
        return self._tokens.lengths

    def draft(self, n_tokens: int, history: Sequence[int]) -> None:
        self._tokens.draft(n_tokens, history)

    def begin(self) -> None:
        with self._backend._memory_errors():
            self._tokens.begin()

    def finish(self) -> None:
        self._tokens.finish()

    def close(self) -> None:
        self._tokens.close()
        cache = self._backend._execution.cache
        kept = cache.truncate(min(cache.length, len(self._history)))  # not all that a step emitted may have been taken
        self._backend._forget(kept)
        self._hold(kept)

    def _hold(self, length: int) -> None:
        """The first `length` tokens of the history are in the cache."""
        self._backend._hold(self._history[len(self._backend.held) : length])
