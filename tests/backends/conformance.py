"""What every backend must do, whatever computes its tokens. Each backend's test file subclasses BackendConformance.

The subclass gives a fixture `backend`: a loaded Backend with n_ctx of 256 tokens whose prompts are made by `prompt`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

import numpy as np
import pytest

from runner.backends.base import Backend, Prefill, Step
from runner.config import LONGEST_DRAFT, Grammar, SamplingParams
from runner.constraint import AnswerConstraint
from runner.errors import ContextOverflow, UsageError
from runner.grammar import Grammars
from runner.sampling import Constraint
from runner.speculative.control import EagerController
from runner.speculative.drafter import Draft, Drafter, DrafterName, Gate
from runner.speculative.speculator import Speculator
from runner.speculative.suffix import SuffixDrafter
from runner.types import CancelToken
from tests.backends.cancelling import TimedCancel

N_CTX = 256
GREEDY = SamplingParams(temperature=0, seed=0)
SAMPLED = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=1234)
PENALIZED = SamplingParams(temperature=0.8, top_k=20, repeat_penalty=1.3, frequency_penalty=0.2, seed=99)


def take(
    backend: Backend,
    prompt: Sequence[int],
    n: int,
    params: SamplingParams = GREEDY,
    speculator: Speculator | None = None,
    constraint: Constraint | None = None,
) -> list[int]:
    """The first n tokens after `prompt`; the iterator is closed then."""
    return [step.token for step in first_steps(backend, prompt, n, params, speculator, constraint)]


def first_steps(
    backend: Backend,
    prompt: Sequence[int],
    n: int,
    params: SamplingParams,
    speculator: Speculator | None,
    constraint: Constraint | None = None,
) -> list[Step]:
    found: list[Step] = []
    with closing(backend.generate(prompt, params, CancelToken(), speculator, constraint)) as steps:
        for step in steps:
            if isinstance(step, Step):
                found.append(step)
                if len(found) == n:
                    break
    return found


def prefills(backend: Backend, prompt: Sequence[int]) -> list[Prefill]:
    """The Prefill values of a request that is closed at its first token."""
    found: list[Prefill] = []
    steps = backend.generate(prompt, GREEDY, CancelToken())
    for step in steps:
        if isinstance(step, Step):
            break
        found.append(step)
    steps.close()
    return found


# It ends by itself: every string, list and number in it is short, and so is the space between its parts.
SHORT = Grammar(
    kind="json_schema",
    text=json.dumps(
        {
            "type": "object",
            "properties": {
                "name": {"type": "string", "maxLength": 5},
                "ok": {"type": "boolean"},
                "of": {"type": "array", "items": {"enum": ["red", "blue", 7]}, "minItems": 1, "maxItems": 2},
            },
            "required": ["name", "ok", "of"],
            "additionalProperties": False,
            "x-guidance": {"whitespace_pattern": "( |\n)"},
        }
    ),
)


def keeping_to(grammar: Grammar, backend: Backend, prompt: Sequence[int]) -> AnswerConstraint:
    return AnswerConstraint(Grammars(backend.tokenizer).matcher(grammar), backend.tokenizer, len(prompt))


def answer_text(backend: Backend, tokens: Sequence[int]) -> str:
    """The text up to the first token that ends an answer, which must be among them."""
    end = next(i for i, token in enumerate(tokens) if token in backend.tokenizer.stop_ids)
    return b"".join(map(backend.tokenizer.token_bytes, tokens[:end])).decode()


def forget(backend: Backend) -> None:
    """Empty the KV cache: what is computed again is then computed in the same portions, and has the same bits."""
    backend.keep(0)


class Knowing(Drafter):
    """Knows the text to come, and makes of it what a test wants. The text goes on after `n_prompt` tokens."""

    name: DrafterName = "scripted"
    n_buckets = 1
    is_host_only = True
    nbytes = 0

    def __init__(self, text: Sequence[int], n_prompt: int, guess: Guess) -> None:
        self._text, self._n_prompt, self._guess = text, n_prompt, guess

    def propose(self, history: Sequence[int], params: SamplingParams, gate: Gate) -> Draft:
        del params
        at = len(history) - self._n_prompt
        tokens: list[int] = []
        for token in self._guess(list(self._text[at:]), at):
            if not gate.admits(0):
                break
            tokens.append(token)
        return Draft(tuple(tokens), (0,) * len(tokens))

    def close(self) -> None:
        pass


class Heedless(Knowing):
    """Drafts what is right and then anything, of a length and of buckets that nobody asked for."""

    def __init__(self, text: Sequence[int], n_prompt: int, n_drafted: int, buckets: tuple[int, ...]) -> None:
        super().__init__(text, n_prompt, lambda coming, _at: coming)
        self._n_drafted, self._buckets = n_drafted, buckets

    def propose(self, history: Sequence[int], params: SamplingParams, gate: Gate) -> Draft:
        del params, gate
        coming = self._text[len(history) - self._n_prompt :]
        return Draft((*coming, *[1] * self._n_drafted)[: self._n_drafted], self._buckets)


class Broken(Knowing):
    """Drafts well at first, and then fails: `fail` is given the text to come and the history, and gives a draft."""

    def __init__(self, text: Sequence[int], n_prompt: int, fail: Callable[[list[int], Any], Any]) -> None:
        super().__init__(text, n_prompt, lambda coming, _at: coming[:3])
        self._fail = fail

    def propose(self, history: Sequence[int], params: SamplingParams, gate: Gate) -> Draft:
        at = len(history) - self._n_prompt
        if at > 4:
            draft: Draft = self._fail(list(self._text[at:]), history)
            return draft
        return super().propose(history, params, gate)


def removes(coming: list[int], history: Any) -> Draft:
    del history[-1]
    return Draft(tuple(coming[:3]), (0,) * 3)


# What a drafter raises or gives, and what is said of it.
FAILURES: list[tuple[str, Callable[[list[int], Any], Any]]] = [
    ("ZeroDivisionError", lambda _coming, _history: 1 // 0),
    ("TypeError", removes),
    ("AttributeError", lambda coming, history: history.append(coming[0])),
    ("AttributeError", lambda _coming, _history: None),
    ("AttributeError", lambda coming, _history: coming[:3]),
    ("AttributeError", lambda coming, _history: (token for token in coming)),
    ("TypeError", lambda coming, _history: Draft((coming[0], float(coming[1])), (0, 0))),  # type: ignore[arg-type]
]


Guess = Callable[[list[int], int], list[int]]
"""From the tokens to come and how many came, what is drafted."""

GUESSES: dict[str, Guess] = {
    "nothing": lambda _coming, _at: [],
    "right, of every length": lambda coming, at: coming[: at % 16],
    "right for a while": lambda coming, at: [*coming[: at % 5], *[1] * 6],
    "wrong": lambda coming, _at: [token ^ 1 for token in coming[:7]],
    "random": lambda _coming, at: [int(token) for token in np.random.default_rng(at).integers(0, 256, 9)],
    "out of the vocabulary": lambda coming, at: [*coming[: at % 3], 10**9, -1, *coming[:4]],
    "too long": lambda coming, _at: coming * 9,
}


def eager(backend: Backend, drafter: Drafter) -> Speculator:
    """A speculator that verifies whatever it is given."""
    longest = backend.info.longest_draft
    return Speculator(drafter, longest, control=EagerController(longest))


class ConformanceWithoutDrafts:
    """What a backend must do for a model that cannot go back too (ModelInfo.longest_draft is 0)."""

    text = "Once upon a time there was a small boat."
    rounding = 2e-2  # how far two rows' logits may lie apart that were computed in passes of other lengths

    @pytest.fixture
    def prompt(self, backend: Backend) -> list[int]:
        ids = backend.tokenizer.encode(self.text)
        bos = backend.tokenizer.bos_id
        return [bos, *ids] if backend.tokenizer.add_bos and bos is not None else ids

    def test_info_describes_the_loaded_model(self, backend: Backend) -> None:
        info = backend.info
        assert info.n_ctx == N_CTX
        assert info.vocab_size == backend.tokenizer.vocab_size
        assert info.device

    def test_tokenizer_gives_back_the_text(self, backend: Backend) -> None:
        tokenizer = backend.tokenizer
        for text in (self.text, "naïve café, 東京, 🙂👩‍👩‍👧", " two  spaces\n\nand lines\t"):
            data = b"".join(tokenizer.token_bytes(token) for token in tokenizer.encode(text))
            if tokenizer.strips_leading_space:
                data = data.removeprefix(b" ")
            assert data.decode() == text

    def test_tokenizer_refuses_ids_outside_the_vocabulary(self, backend: Backend) -> None:
        for token in (-1, backend.tokenizer.vocab_size):
            with pytest.raises(IndexError):
                backend.tokenizer.token_bytes(token)

    def test_control_tokens_are_parsed_only_when_asked_for(self, backend: Backend) -> None:
        tokenizer = backend.tokenizer
        for text in sorted(tokenizer.control_tokens)[:8]:
            assert len(tokenizer.encode(text)) == 1, text
            (token,) = tokenizer.encode(text)
            assert tokenizer.token_bytes(token) == b""
            assert tokenizer.token_bytes(token, special=True) == text.encode()
            plain = tokenizer.encode(text, parse_special=False)
            assert token not in plain
            assert b"".join(map(tokenizer.token_bytes, plain)).strip() == text.encode()

    def test_prefill_is_reported_up_to_the_whole_prompt_before_the_first_token(
        self, backend: Backend, prompt: list[int]
    ) -> None:
        found = prefills(backend, prompt)
        assert found
        assert [p.done for p in found] == sorted(p.done for p in found)
        assert found[-1].done == found[-1].total == len(prompt)

    def test_greedy_is_the_argmax_of_the_scores(self, backend: Backend, prompt: list[int]) -> None:
        tokens = take(backend, prompt, 12)
        logits = {entry.position: entry.values for entry in backend.score([*prompt, *tokens])}
        assert sorted(logits) == list(range(len(prompt) + len(tokens)))
        for i, token in enumerate(tokens):
            values = logits[len(prompt) + i - 1]
            assert values[token] >= values.max() - self.rounding

    def test_greedy_repeats_itself(self, backend: Backend, prompt: list[int]) -> None:
        assert take(backend, prompt, 16) == take(backend, prompt, 16)

    def test_a_seed_repeats_its_answer(self, backend: Backend, prompt: list[int]) -> None:
        assert take(backend, prompt, 16, SAMPLED) == take(backend, prompt, 16, SAMPLED)

    def test_prefix_is_reused_and_changes_nothing(self, backend: Backend, prompt: list[int]) -> None:
        cold = take(backend, prompt, 16)
        longer = [*prompt, *cold]
        first = prefills(backend, longer)[0]
        assert len(prompt) <= first.cached < len(longer)
        assert first.done == first.cached
        warm = take(backend, longer, 8)
        for _ in backend.score(prompt[:2]):  # forgets the cache
            pass
        assert take(backend, longer, 8) == warm

    def test_a_changed_prompt_is_not_answered_from_the_cache(self, backend: Backend, prompt: list[int]) -> None:
        other = [prompt[0], *reversed(prompt[1:])]
        expected = take(backend, other, 8)
        take(backend, prompt, 8)
        assert take(backend, other, 8) == expected

    def test_closing_keeps_only_what_was_yielded(self, backend: Backend, prompt: list[int]) -> None:
        tokens = take(backend, prompt, 6)
        first = prefills(backend, [*prompt, *tokens, tokens[-1], tokens[-1]])[0]
        assert first.cached <= len(prompt) + len(tokens)

    def test_generation_ends_when_the_context_is_full(self, backend: Backend, prompt: list[int]) -> None:
        long = (prompt * N_CTX)[: N_CTX - 3]
        assert len(take(backend, long, 100)) == 3

    def test_a_prompt_that_leaves_no_room_is_refused(self, backend: Backend, prompt: list[int]) -> None:
        with pytest.raises(ContextOverflow):
            take(backend, (prompt * N_CTX)[:N_CTX], 1)
        assert len(take(backend, prompt, 2)) == 2

    @pytest.mark.parametrize("bad", [[], [-1], [10**9]])
    def test_a_prompt_that_is_none_is_refused(self, backend: Backend, bad: list[int]) -> None:
        with pytest.raises(UsageError):
            take(backend, bad, 1)

    def test_cancel_from_another_thread_ends_generation_within_200_ms(
        self, backend: Backend, prompt: list[int]
    ) -> None:
        cancel = CancelToken()
        timed = TimedCancel(cancel, 0.02)
        seen = 0
        for step in backend.generate(prompt, GREEDY, cancel):
            if isinstance(step, Step):
                if not seen:
                    timed.start()
                seen += 1
                time.sleep(0.001)
        timed.check()
        assert seen < N_CTX - len(prompt)

    def test_a_cancelled_request_yields_no_token(self, backend: Backend, prompt: list[int]) -> None:
        cancel = CancelToken()
        cancel.cancel()
        assert not [step for step in backend.generate(prompt, GREEDY, cancel) if isinstance(step, Step)]

    def test_cancel_then_continue_equals_fresh(self, backend: Backend, prompt: list[int]) -> None:
        for _ in backend.score(prompt[:2]):
            pass
        fresh = take(backend, prompt, 12)
        cancel = CancelToken()
        for step in backend.generate([*prompt, *prompt], GREEDY, cancel):
            if isinstance(step, Step):
                cancel.cancel()
        assert take(backend, prompt, 12) == fresh

    def test_scores_are_finite_and_their_own(self, backend: Backend, prompt: list[int]) -> None:
        entries = list(backend.score(prompt))
        assert all(entry.values.shape == (backend.info.vocab_size,) for entry in entries)
        assert all(entry.values.dtype == np.float32 and np.isfinite(entry.values).all() for entry in entries)
        kept = entries[0].values.copy()
        take(backend, prompt, 2)
        assert np.array_equal(entries[0].values, kept)

    def test_memory_is_counted_by_part(self, backend: Backend, prompt: list[int]) -> None:
        take(backend, prompt, 1)
        memory = backend.memory()
        parts = (memory.weights_bytes, memory.kv_cache_bytes, memory.workspace_bytes, memory.graphs_bytes)
        assert memory.total_bytes == sum(parts)
        assert memory.total_bytes > 0

    def test_close_may_be_called_twice(self, backend: Backend) -> None:
        backend.close()
        backend.close()

    # --- grammars --------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("params", [GREEDY, SAMPLED, PENALIZED], ids=["greedy", "sampled", "penalized"])
    def test_an_answer_keeps_to_its_grammar_and_ends_with_it(
        self, backend: Backend, prompt: list[int], params: SamplingParams
    ) -> None:
        free = take(backend, prompt, 12, params)
        forget(backend)
        tokens = take(backend, prompt, 120, params, constraint=keeping_to(SHORT, backend, prompt))
        value = json.loads(answer_text(backend, tokens))
        assert list(value) == ["name", "ok", "of"]
        assert isinstance(value["ok"], bool)
        assert len(value["name"]) <= 5
        assert 1 <= len(value["of"]) <= 2
        assert set(value["of"]) <= {"red", "blue", 7}
        forget(backend)
        assert take(backend, prompt, 12, params) == free, "nothing of it stays"

    def test_a_cancelled_answer_by_a_grammar_goes_on_where_it_stopped(
        self, backend: Backend, prompt: list[int]
    ) -> None:
        constraint = keeping_to(SHORT, backend, prompt)
        text = take(backend, prompt, 24, constraint=constraint)
        forget(backend)
        cancel, written = CancelToken(), list[int]()
        for step in backend.generate(prompt, GREEDY, cancel, None, constraint):
            if isinstance(step, Step):
                written.append(step.token)
                if len(written) == 5:
                    cancel.cancel()
        assert 5 <= len(written) <= 7
        assert written == text[: len(written)]
        again = [*prompt, *written]
        resumed = take(backend, again, 8, constraint=constraint)
        forget(backend)
        assert take(backend, prompt, len(written), constraint=constraint) == written
        assert resumed == take(backend, again, 8, constraint=constraint)

    def test_the_cache_can_be_cut_and_gone_on_from_as_a_draft_model_is(
        self, backend: Backend, prompt: list[int]
    ) -> None:
        cancel = CancelToken()
        rows = {entry.position: entry.values.copy() for entry in backend.score(prompt)}
        backend.keep(0)
        for cut in (1, 3, len(prompt) - 1):
            assert backend.keep(min(cut, len(backend.held))) == len(backend.held)
            row = backend.extend(prompt[len(backend.held) : cut + 1], cancel)
            assert row is not None
            assert list(backend.held) == prompt[: cut + 1]
            assert np.abs(row - rows[cut]).max() <= self.rounding
        cancel.cancel()
        assert backend.extend(prompt[:2], cancel) is None

    def test_a_step_is_timed_for_every_number_of_tokens_and_leaves_nothing(
        self, backend: Backend, prompt: list[int]
    ) -> None:
        text = take(backend, prompt, 6)
        assert all(backend.step_s(n) > 0 for n in (1, 2, LONGEST_DRAFT + 1))
        assert not backend.held
        assert take(backend, prompt, 6) == text


class BackendConformance(ConformanceWithoutDrafts):
    """Subclass it, name the class Test..., and define the fixture `backend`."""

    @pytest.mark.parametrize("params", [GREEDY, SAMPLED, PENALIZED], ids=["greedy", "sampled", "penalized"])
    def test_the_text_does_not_depend_on_the_drafter(
        self, backend: Backend, prompt: list[int], params: SamplingParams
    ) -> None:
        text = take(backend, prompt, 40, params)
        for name, guess in GUESSES.items():
            forget(backend)
            speculator = eager(backend, Knowing(text, len(prompt), guess))
            assert take(backend, prompt, 24, params, speculator) == text[:24], name

    @pytest.mark.parametrize("n_drafted", [16, 40])
    def test_a_drafter_that_heeds_no_limit_changes_nothing(
        self, backend: Backend, prompt: list[int], n_drafted: int
    ) -> None:
        text = take(backend, prompt, 40)
        for buckets in ((0,) * n_drafted, (0, 5, *(0,) * (n_drafted - 2)), (0,), ()):
            forget(backend)
            speculator = eager(backend, Heedless(text, len(prompt), n_drafted, buckets))
            assert take(backend, prompt, 24, speculator=speculator) == text[:24], buckets

    def test_drafts_of_other_integers_and_beside_the_vocabulary_change_nothing(
        self, backend: Backend, prompt: list[int]
    ) -> None:
        text, size = take(backend, prompt, 40), backend.info.vocab_size
        guesses: list[Guess] = [
            lambda coming, _at: list(np.array(coming[:5])),
            lambda coming, at: [*coming[: at % 3], (size, -size, 2**31, 2**64 + coming[0])[at % 4], *coming[:2]],
        ]
        for guess in guesses:
            forget(backend)
            assert take(backend, prompt, 24, speculator=eager(backend, Knowing(text, len(prompt), guess))) == text[:24]

    def test_a_drafter_that_fails_ends_its_drafts_and_not_the_text(
        self, backend: Backend, prompt: list[int], caplog: pytest.LogCaptureFixture
    ) -> None:
        text = take(backend, prompt, 40)
        for error, fail in FAILURES:
            forget(backend)
            caplog.clear()
            speculator = eager(backend, Broken(text, len(prompt), fail))
            assert take(backend, prompt, 24, speculator=speculator) == text[:24], error
            record = speculator.record
            assert (record.n_accepted, record.state) == (3, "off"), error
            assert f"the drafter failed ({error}: " in record.reason
            assert "runner logs" in record.reason
            assert caplog.messages.count("the scripted drafter failed: this answer goes on without drafts") == 1, error
            speculator.begin(prompt)
            assert speculator.record.state == "on"

    def test_right_drafts_are_accepted_and_say_so(self, backend: Backend, prompt: list[int]) -> None:
        text = take(backend, prompt, 40)
        forget(backend)
        speculator = eager(backend, Knowing(text, len(prompt), lambda coming, _at: coming[:4]))
        steps = first_steps(backend, prompt, 16, GREEDY, speculator)
        assert [step.token for step in steps] == text[:16]
        assert [step.is_drafted for step in steps] == [False, *[True, True, True, True, False] * 3]
        assert [step.n_drafted for step in steps] == [0, *[4, 0, 0, 0, 0] * 3]
        assert [step.n_accepted for step in steps] == [0, *[4, 0, 0, 0, 0] * 3]
        record = speculator.record
        assert record.acceptance_rate == 1
        assert record.acceptance_length == 5

    @pytest.mark.parametrize("guess", ["right, of every length", "wrong", "too long"])
    def test_speculation_ends_with_the_context(self, backend: Backend, prompt: list[int], guess: str) -> None:
        long = (prompt * N_CTX)[: N_CTX - 21]
        text = take(backend, long, 100)
        assert len(text) == 21
        forget(backend)
        speculator = eager(backend, Knowing([*text, *text], len(long), GUESSES[guess]))
        assert take(backend, long, 100, speculator=speculator) == text

    def test_what_was_drafted_does_not_stay_in_the_cache(self, backend: Backend, prompt: list[int]) -> None:
        text = take(backend, prompt, 40, SAMPLED)
        for n, name in enumerate(GUESSES, 2):
            longer = [*prompt, *text[:n], *prompt[:3]]
            forget(backend)
            assert take(backend, prompt, n, SAMPLED) == text[:n], name
            expected = take(backend, longer, 8, SAMPLED)
            forget(backend)
            speculator = eager(backend, Knowing(text, len(prompt), GUESSES[name]))
            assert take(backend, prompt, n, SAMPLED, speculator) == text[:n], name
            # A step that had begun before the last token was taken may have computed that.
            assert list(backend.held) in ([*prompt, *text[: n - 1]], [*prompt, *text[:n]]), name
            assert take(backend, longer, 8, SAMPLED) == expected, name

    def test_a_cancelled_speculation_goes_on_where_it_stopped(self, backend: Backend, prompt: list[int]) -> None:
        text = take(backend, prompt, 40)
        for name, guess in GUESSES.items():
            cancel, written = CancelToken(), list[int]()
            forget(backend)
            for step in backend.generate(prompt, GREEDY, cancel, eager(backend, Knowing(text, len(prompt), guess))):
                if isinstance(step, Step):
                    written.append(step.token)
                    if len(written) >= 7:
                        cancel.cancel()
            assert 7 <= len(written) < 7 + 16, name
            assert written == text[: len(written)], name
            again = [*prompt, *written]
            resumed = take(
                backend, again, 8, speculator=eager(backend, Knowing(text[len(written) :], len(again), guess))
            )
            forget(backend)
            assert take(backend, prompt, len(written)) == written, name
            assert resumed == take(backend, again, 8), name

    @pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
    def test_drafts_from_the_text_itself_change_nothing(
        self, backend: Backend, prompt: list[int], params: SamplingParams
    ) -> None:
        repeating = (prompt * 4)[:60]
        text = take(backend, repeating, 40, params)
        forget(backend)
        speculator = eager(backend, SuffixDrafter())
        assert take(backend, repeating, 40, params, speculator) == text

    @pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
    def test_drafts_from_a_text_that_was_given_stand_and_change_nothing(
        self, backend: Backend, prompt: list[int], params: SamplingParams
    ) -> None:
        text = take(backend, prompt, 40, params)
        given = [prompt[:3], text]
        backend.give_texts(given)
        for _ in range(2):
            forget(backend)
            backend.forget_texts()  # but those
            speculator = eager(backend, SuffixDrafter(given))
            assert take(backend, prompt, 40, params, speculator) == text
            assert speculator.record.n_accepted > 20

    @pytest.mark.parametrize("params", [GREEDY, SAMPLED, PENALIZED], ids=["greedy", "sampled", "penalized"])
    def test_by_a_grammar_too_the_text_does_not_depend_on_the_drafter(
        self, backend: Backend, prompt: list[int], params: SamplingParams
    ) -> None:
        constraint = keeping_to(SHORT, backend, prompt)
        text = take(backend, prompt, 120, params, constraint=constraint)
        n = text.index(next(token for token in text if token in backend.tokenizer.stop_ids)) + 1
        for name, guess in GUESSES.items():
            forget(backend)
            speculator = eager(backend, Knowing(text, len(prompt), guess))
            assert take(backend, prompt, n, params, speculator, constraint) == text[:n], name

    def test_what_a_grammar_forbids_is_not_accepted_from_a_drafter(self, backend: Backend, prompt: list[int]) -> None:
        free = take(backend, prompt, 40)
        constraint = keeping_to(SHORT, backend, prompt)
        forget(backend)
        kept = take(backend, prompt, 24, constraint=constraint)
        forget(backend)
        speculator = eager(backend, Knowing(free, len(prompt), lambda coming, _at: coming[:4]))
        steps = first_steps(backend, prompt, 24, GREEDY, speculator, constraint)
        assert [step.token for step in steps] == kept
        sequence = list(prompt)
        for step in steps:
            assert constraint.allowed(sequence)[step.token]
            sequence.append(step.token)
