"""Speculation on the fused path: rows have the same bits in every step, and the text is that of plain decoding.

Without a GPU the kernels run in Triton's interpreter, so the model is as small as one can be.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_models
import torch
from dictation import Dictation
from test_native_fused import fused, go_on, made
from torch import Tensor

from runner.backends.base import Prefill
from runner.backends.native import kv_cache, stream
from runner.backends.native.backend import NativeBackend, _Cancelled
from runner.backends.native.fused_execution import FusedExecution
from runner.backends.native.graphs import MESSAGE_ROWS, Graphs
from runner.backends.native.model_files import read_config
from runner.config import LONGEST_DRAFT, SamplingParams
from runner.errors import BadModelFile
from runner.kernels.fragments import can_be_fragments, to_fragments
from runner.kernels.moe_blocks import BlocksOfExperts
from runner.kernels.repeats import draft_repeats_ref
from runner.kernels.values import MOST_ROWS
from runner.model_config import ModelConfig
from runner.quant.mq.packed_weights import PackedWeights
from runner.quant.mq.quantize import quantize_packed
from runner.quant.mq.recipe import recipe_of
from runner.quant.weights import Weights, open_weights
from runner.sampling import Constraint, Mask, sample
from runner.speculative.control import EagerController
from runner.speculative.drafter import Draft, Gate
from runner.speculative.speculator import Speculator
from runner.speculative.strides import Wish
from runner.speculative.suffix import SuffixDrafter
from runner.types import CancelToken

PARAMS = {"greedy": SamplingParams(temperature=0.0, seed=0), "sampled": SamplingParams(temperature=1.2, seed=7)}
PROMPT = [5, 2, 3, 30, 11, 9]
N_CTX = 16
TOKENS = [5, 20, 31, 7, 7, 14, 3, 25, 18, 2, 33, 13, 8, 21, 9, 1]
# Launchers go other ways for one row, for few, for 8 and for more; test_kernel_row_bits.py has all numbers up to 16.
STEPS = ([9], [1, 8], [2, 3, 4])
FEWER_STEPS = ([3], [1, 2])  # products with planes take the interpreter seconds a row
SMALLEST = {
    "num_hidden_layers": 1,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "vocab_size": 37,
}
# Two heads of values have one of keys.
SMALLEST_DELTA = {"linear_num_key_heads": 1, "linear_num_value_heads": 2, "linear_value_head_dim": 16}
EXPERTS = {"num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
# As wide as what shares a scale of activations.
WIDTHS = {"planes": 32, "fragments": 64}


def model(directory: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> FusedExecution:
    """The smallest model of a kind: "dense", "experts" with an int8 cache, or a recipe, also "of experts", in planes or
    "in fragments"."""
    recipe, layout, has_experts = kind.split()[0], kind.partition(" in ")[2], "experts" in kind
    is_packed = recipe.startswith("mq")
    sizes = ("hidden_size", "intermediate_size", "head_dim", *(["moe_intermediate_size"] if has_experts else []))
    width = dict.fromkeys(sizes, WIDTHS[layout or "planes"]) if is_packed else {}
    name, shape = ("qwen3-moe", SMALLEST | EXPERTS | width) if has_experts else ("qwen3", SMALLEST | width)
    config, weights = made(directory / "source", name, **shape)
    if is_packed:
        quantize_packed(
            directory / "source", recipe_of(recipe), directory / "packed", device=torch.device("cpu"), on_stage=_quiet
        )
        config, weights = read_config(directory / "packed"), PackedWeights(directory / "packed")
    if layout == "fragments":
        monkeypatch.setattr(stream, "best_layout", lambda w, pair: to_fragments(w, pair) if can_be_fragments(w) else w)
    return fused(config, weights, kv_dtype=torch.int8 if kind == "experts" else torch.float32)


def _quiet(*_: object) -> None:
    pass


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # rows that fill a block hold anything, and sums of it overflow
@pytest.mark.parametrize("kind", ["dense", "experts", "mq4", "mq4 in fragments", "mq4-uniform in fragments"])
def test_a_row_has_the_same_bits_in_every_step(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    execution = model(tmp_path, kind, monkeypatch)

    def logits(sizes: Sequence[int]) -> Tensor:
        execution.cache.truncate(0)
        tokens = iter(TOKENS)
        return torch.cat([execution.extend([next(tokens) for _ in range(n)], "all", go_on) for n in sizes])

    at_once, *others = FEWER_STEPS if kind == "mq4" else STEPS
    together = logits(at_once)
    assert together.isfinite().all()
    assert [sizes for sizes in others if not torch.equal(logits(sizes), together)] == []


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_rows_of_a_step_that_share_experts_are_multiplied_together_with_the_bits_that_they_have_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    execution = model(tmp_path, "mq4 of experts in fragments", monkeypatch)
    together, multiply = [], BlocksOfExperts.pairs
    monkeypatch.setattr(
        BlocksOfExperts, "pairs", lambda self, *args: together.append(self.x.num_rows) or multiply(self, *args)
    )
    alone = torch.cat([execution.extend([token], "all", go_on) for token in TOKENS[:6]])
    assert together == []
    execution.cache.truncate(0)
    assert torch.equal(execution.extend(TOKENS[:6], "all", go_on), alone)
    assert together == [6, 12] * (len(together) // 2) != []


# --- choosing on the device ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def smallest(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ModelConfig, Weights]:
    directory = tmp_path_factory.mktemp("smallest")
    made(directory / "readable", "qwen3", **{**SMALLEST, "vocab_size": tiny_models.VOCAB})
    made(directory, "qwen3", **SMALLEST)
    config = read_config(directory)
    return directory, config, open_weights(tiny_models.ready(directory), config)


Smallest = tuple[Path, ModelConfig, Weights]


@pytest.mark.parametrize("sampling", PARAMS)
def test_a_step_chooses_what_the_host_would_of_its_logits(smallest: Smallest, sampling: str) -> None:
    execution, params = fused(*smallest[1:]), PARAMS[sampling]
    execution.extend(TOKENS[:2], "none", go_on)
    waiting = execution.choices(TOKENS[2:7], params)
    assert execution.cache.length == 7
    chosen = waiting()
    execution.cache.truncate(2)
    rows = execution.extend(TOKENS[2:7], "all", go_on).cpu().numpy()
    assert chosen == [sample(row, params, TOKENS, 3 + m) for m, row in enumerate(rows)]


def test_what_the_device_does_not_choose_is_not_computed_either(smallest: Smallest) -> None:
    execution = fused(*smallest[1:])
    assert execution.choices(TOKENS[:2], SamplingParams(temperature=0.0, repeat_penalty=1.2)) is None
    assert execution.choices([*TOKENS, 1], PARAMS["greedy"]) is None
    assert execution.cache.length == 0


# --- drafts ----------------------------------------------------------------------------------------------------------


Guess = Callable[[Sequence[int]], Sequence[int]]


class Scripted:
    """Drafts what a function of the history says."""

    name = "scripted"
    n_buckets = 1
    is_host_only = True
    is_quoting = False
    n_given = 0
    nbytes = 0

    def __init__(self, guess: Guess) -> None:
        self._guess = guess

    def may_guess(self, _history: Sequence[int]) -> bool:
        return True

    def propose(self, history: Sequence[int], _params: SamplingParams, _gate: Gate) -> Draft:
        tokens = tuple(self._guess(history))
        return Draft(tokens, (0,) * len(tokens))

    def close(self) -> None:
        pass


def speculator(guess: Guess, longest: int = LONGEST_DRAFT) -> Speculator:
    return Speculator(Scripted(guess), longest, control=EagerController(longest))


def opened(smallest: Smallest, n_ctx: int = N_CTX) -> NativeBackend:
    """The backend with an execution as on a GPU, of a vocabulary that is smaller than any tokenizer's."""
    directory, *model = smallest
    backend = tiny_models.load(tiny_models.ready(directory / "readable"), ctx_size=n_ctx, warmup=False)
    backend.info = replace(backend.info, vocab_size=SMALLEST["vocab_size"])
    backend._execution.release()
    backend._execution = fused(*model, n_ctx=n_ctx)
    return backend


def written(
    backend: NativeBackend,
    params: SamplingParams,
    n: int,
    drafting: Speculator | None = None,
    constraint: Constraint | None = None,
    *,
    prompt: Sequence[int] = PROMPT,
    cancel_at: int = 0,
) -> list[int]:
    """The first n tokens after the prompt, or all; cancel_at: the request is cancelled after so many."""
    cancel, tokens = CancelToken(), []
    steps = backend.generate(prompt, params, cancel, drafting, constraint)
    for step in steps:
        if isinstance(step, Prefill):
            continue
        tokens.append(step.token)
        if len(tokens) == cancel_at:
            cancel.cancel()
        if len(tokens) == n:
            break
    steps.close()
    return tokens


@pytest.fixture(scope="module")
def backend(smallest: Smallest) -> Iterator[NativeBackend]:
    backend = opened(smallest)
    yield backend
    backend.close()


@pytest.fixture(scope="module")
def texts(backend: NativeBackend) -> dict[str, list[int]]:
    """What is written without drafts, to the end of the context, and PROMPT before it."""
    found = {name: [*PROMPT, *written(backend, params, N_CTX)] for name, params in PARAMS.items()}
    assert {len(text) for text in found.values()} == {N_CTX}
    return found


def is_in_step(backend: NativeBackend, text: Sequence[int], n_written: int) -> bool:
    """The cache holds what was written, but perhaps for the last token."""
    n = len(PROMPT) + n_written
    held = list(backend.held)
    return n - 1 <= len(held) == backend._execution.cache.length <= n and held == list(text[: len(held)])


def right(text: Sequence[int], n: int) -> Guess:
    return lambda history: text[len(history) : len(history) + n]


def half_right(text: Sequence[int]) -> Guess:
    return lambda history: [*text[len(history) : len(history) + 1], 36, 36]


def now_and_then(text: Sequence[int]) -> Guess:
    """Right drafts of two tokens, with plain stretches between them."""
    return lambda history: text[len(history) : len(history) + 2] if len(history) % 5 in (0, 1) else []


@pytest.mark.parametrize(
    ("drafter", "sampling"),
    [("right", "greedy"), ("half right", "sampled"), ("now and then", "greedy"), ("now and then", "sampled")],
)
def test_the_text_is_that_of_plain_decoding(
    backend: NativeBackend, texts: dict[str, list[int]], drafter: str, sampling: str
) -> None:
    text = texts[sampling]
    guess = {"right": right(text, 4), "half right": half_right(text), "now and then": now_and_then(text)}[drafter]
    tokens = written(backend, PARAMS[sampling], N_CTX, speculator(guess))  # to the end of the context
    assert [*PROMPT, *tokens] == text
    assert is_in_step(backend, text, len(tokens))


def test_of_layers_that_keep_a_state_what_was_taken_is_held_wherever_an_answer_stops(tmp_path: Path) -> None:
    """Though the step after it has run, and most of the one before it was not taken."""
    shape = SMALLEST | SMALLEST_DELTA | {"layer_types": ["linear_attention"]}
    made(tmp_path / "readable", "qwen3-5", **{**shape, "vocab_size": tiny_models.VOCAB})
    made(tmp_path, "qwen3-5", **shape)
    config, n_ctx = read_config(tmp_path), 28
    backend = opened((tmp_path, config, open_weights(tiny_models.ready(tmp_path), config)), n_ctx)
    text = [*PROMPT, *written(backend, PARAMS["sampled"], n_ctx)]
    assert len(text) == n_ctx
    longest = backend.info.longest_draft
    for guess in (right(text, longest), half_right(text)):
        for n in (2, longest + 2, n_ctx):
            tokens = written(backend, PARAMS["sampled"], n, speculator(guess, longest))
            assert [*PROMPT, *tokens] == text[: len(PROMPT) + n]
            assert is_in_step(backend, text, len(tokens))
    backend.give_texts([text])  # so that all stands of what steps draft by themselves
    accepted = set()
    for n in (1, 2, 3, 7, 8):
        drafting = Speculator(Quoting(lambda _: [0]), longest, control=WishingMuch(longest))
        tokens = written(backend, PARAMS["sampled"], n, drafting)
        assert [*PROMPT, *tokens] == text[: len(PROMPT) + n]
        assert is_in_step(backend, text, n)
        accepted.add(drafting.record.n_accepted)
    assert max(accepted) >= longest


class Every(Constraint):
    """Every third token, which ones changes from position to position."""

    def allowed(self, history: Sequence[int]) -> Mask:
        return (np.arange(SMALLEST["vocab_size"]) + len(history)) % 3 == 0


@pytest.mark.parametrize("sampling", PARAMS)
def test_a_constraint_holds_where_the_device_could_choose_by_itself(
    backend: NativeBackend, texts: dict[str, list[int]], sampling: str
) -> None:
    tokens = written(backend, PARAMS[sampling], N_CTX, None, Every())
    assert all((token + len(PROMPT) + i) % 3 == 0 for i, token in enumerate(tokens))
    text = [*PROMPT, *tokens]
    assert len(text) == N_CTX
    for guess in (right(text, 3), half_right(text), now_and_then(texts[sampling])):
        assert written(backend, PARAMS[sampling], N_CTX, speculator(guess), Every()) == tokens
        assert is_in_step(backend, text, len(tokens))
    assert [*PROMPT, *written(backend, PARAMS[sampling], N_CTX)] == texts[sampling], "and nothing of it stays"


class Quoting(Scripted):
    """Has steps draft by themselves where a function of the history gives anything."""

    is_quoting = True

    def may_guess(self, history: Sequence[int]) -> bool:
        return len(self._guess(history)) > 0


class Wishing(EagerController):
    """As many tokens as steps draft at least, and none where nothing is guessed."""

    def wish(self, is_known: bool, lengths: Sequence[int]) -> Wish:
        return Wish(lengths[0] if is_known else 0, 0)


class WishingMuch(Wishing):
    """As many as they draft at most."""

    def wish(self, is_known: bool, lengths: Sequence[int]) -> Wish:
        return super().wish(is_known, lengths[::-1])


def wishing(guess: Guess) -> Speculator:
    return Speculator(Quoting(guess), LONGEST_DRAFT, control=Wishing(LONGEST_DRAFT))


LONG = 40


@pytest.fixture(scope="module")
def longer(smallest: Smallest) -> Iterator[NativeBackend]:
    backend = opened(smallest, n_ctx=LONG)
    yield backend
    backend.close()


@pytest.fixture(scope="module")
def long_texts(longer: NativeBackend) -> dict[str, list[int]]:
    return {name: [*PROMPT, *written(longer, params, LONG)] for name, params in PARAMS.items()}


WISHES: dict[str, Guess] = {
    "always": lambda _: [0] * 3,
    "now and then": lambda history: [0] * 3 if len(history) % 5 in (0, 1, 2) else [],
}


@pytest.mark.parametrize("wish", WISHES)
@pytest.mark.parametrize("sampling", ["greedy", "sampled"])
def test_the_text_is_that_of_plain_decoding_where_steps_draft_by_themselves(
    longer: NativeBackend, long_texts: dict[str, list[int]], sampling: str, wish: str
) -> None:
    text, drafting = long_texts[sampling], wishing(WISHES[wish])
    tokens = written(longer, PARAMS[sampling], LONG, drafting)  # to the end of the context
    assert [*PROMPT, *tokens] == text
    assert is_in_step(longer, text, len(tokens))
    assert drafting.record.rounds > 0
    assert longer._execution._text.ids[: len(text) - 1].tolist() == text[:-1]


def test_what_a_step_drafts_by_itself_is_what_the_text_repeats(
    longer: NativeBackend, long_texts: dict[str, list[int]]
) -> None:
    execution, params = longer._execution, PARAMS["greedy"]
    text = long_texts["greedy"]
    longer.keep(0)
    written(longer, params, 2)  # the prompt, and a token that the host chose
    held = list(longer.held)
    steps = execution.decode(text[len(held)], params, CancelToken())
    steps.draft(7, text[: len(held) + 1])
    history = text[: len(held) + 1]
    for _ in range(3):
        stride = next(steps)
        tokens = torch.zeros(16, dtype=torch.int64)
        known, n_earlier = execution._text, -int(execution._text.begin)
        first = len(known._all) - LONG
        ids = torch.cat((known._all[first - n_earlier : first].cpu(), torch.tensor(history)))
        draft_repeats_ref(ids, known.begin.cpu(), torch.tensor([len(history) - 1]), tokens, 7)
        assert stride.draft == tuple(tokens[1:8].tolist())
        n_right = next((i for i, token in enumerate(stride.draft) if token != text[len(history) + i]), 7)
        assert stride.tokens == tuple(text[len(history) : len(history) + n_right + 1])
        history += stride.tokens
    steps.close()
    assert execution.cache.length == len(history)


def test_steps_draft_from_texts_that_were_given(longer: NativeBackend, long_texts: dict[str, list[int]]) -> None:
    text, accepted = long_texts["sampled"], []  # which hardly repeats itself
    for given in ([], [text[:3], text]):
        longer.give_texts(given)
        longer.keep(0)
        drafting = wishing(WISHES["always"])
        assert [*PROMPT, *written(longer, PARAMS["sampled"], LONG, drafting)] == text
        accepted.append(drafting.record.n_accepted)
    longer.give_texts([])
    assert accepted[0] < 10
    assert accepted[1] > 20


@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_closing_within_what_a_step_drafted_by_itself_cuts_the_cache(
    longer: NativeBackend, long_texts: dict[str, list[int]], n: int
) -> None:
    for sampling in ("greedy", "sampled"):
        text = long_texts[sampling]
        assert written(longer, PARAMS[sampling], n, wishing(WISHES["always"])) == text[len(PROMPT) :][:n]
        assert is_in_step(longer, text, n)


def test_strides_are_timed_and_leave_nothing(longer: NativeBackend, smallest: Smallest) -> None:
    for n_tokens in (1, 2, 4):
        assert 0 < longer.stride_s(n_tokens) < 60
        assert longer.held == []
        assert longer._execution.cache.length == 0
        assert int(longer._execution._text.begin) == 0
        longer._execution._text.put(0, torch.tensor([1]))
        assert int(longer._execution._text.begin) == 0, "what was timed is no earlier text"
    short = opened(smallest, n_ctx=16)
    timed: list[int] = []
    short.step_s = lambda n: (timed.append(n), 1.0)[1]
    assert short.stride_s(16) == 1.0, "by a step of 16 tokens: there is no room for three strides"
    assert timed == [16]
    short.close()


def test_closing_in_the_middle_of_a_round_cuts_the_cache(backend: NativeBackend, texts: dict[str, list[int]]) -> None:
    text = texts["sampled"]
    for n in (3, 4):
        tokens = written(backend, PARAMS["sampled"], n, speculator(right(text, 4)))
        assert tokens == text[len(PROMPT) :][:n]
        assert is_in_step(backend, text, n)


def test_a_cancelled_request_ends_with_its_round(backend: NativeBackend, texts: dict[str, list[int]]) -> None:
    text = texts["greedy"]
    for guess, n in ((right(text, 3), 5), (lambda _: [], 2)):
        tokens = written(backend, PARAMS["greedy"], N_CTX, speculator(guess), cancel_at=2)
        assert tokens == text[len(PROMPT) :][:n]
        assert is_in_step(backend, text, n)


class Watching(Graphs):
    """Replays nothing but looks at each step as a graph would: what it records must still be there at a replay."""

    def __init__(self, execution: FusedExecution) -> None:
        super().__init__(torch.device("cpu"))
        self._execution = execution
        self._seen: dict[Hashable, list[int]] = {}
        self.n_forgotten = 0

    def run(self, key: Hashable, state: Sequence[Tensor], step: Callable[[], Any]) -> Any:
        execution = self._execution
        tensors = [execution._tokens, execution._start, execution._position, execution._count]
        tensors += [execution._guesses._both, *execution.cache.layer(0).values()]
        if execution._choice is not None:
            tensors.append(execution._choice.numbers)
        places = [tensor.data_ptr() for tensor in tensors]
        assert self._seen.setdefault(key, places)[: len(places)] == places[: len(self._seen[key])], key
        return super().run(key, state, step)

    def forget(self) -> None:
        self.n_forgotten += bool(self._seen)
        self._seen.clear()


def test_a_cache_that_grows_in_the_middle_makes_graphs_be_forgotten(
    smallest: Smallest, texts: dict[str, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_cache, "BLOCK", 4)
    grown, text = opened(smallest), texts["sampled"]
    execution = grown._execution
    assert isinstance(execution, FusedExecution)
    watching = execution._graphs = Watching(execution)
    tokens = written(grown, PARAMS["sampled"], N_CTX, speculator(now_and_then(text)))
    assert [*PROMPT, *tokens] == text
    assert watching.n_forgotten >= 2
    grown.close()


def test_logits_that_are_no_numbers_are_an_error_where_they_are_read(smallest: Smallest) -> None:
    broken = opened(smallest)
    execution = broken._execution
    assert isinstance(execution, FusedExecution)
    steps = broken.generate(PROMPT, PARAMS["greedy"], CancelToken(), speculator(lambda _: [1, 1]))
    while isinstance(next(steps), Prefill):
        pass
    execution._opened().norm.gain.fill_(float("nan"))
    with pytest.raises(BadModelFile, match="no token can be chosen"):
        next(steps)
    assert execution.cache.length == len(broken.held)
    broken.close()


class Noting(Graphs):
    """Records nothing; counts what would be."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))
        self.recorded: list[Hashable] = []

    def run_or_note(self, key: Hashable, step: Callable[[], Any], recorded: Callable[[], Any]) -> Any:
        if key not in self.recorded:
            self._noted[key] = recorded
        return step()

    def record_noted(self) -> None:
        self.recorded += self._noted
        self._noted.clear()


def test_who_gets_ready_holds_nothing_of_a_message_that_a_request_comes_in_the_way_of(
    smallest: Smallest, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = opened(smallest)

    def asked(*_arguments: object) -> None:
        assert backend.held == [0]
        raise _Cancelled

    monkeypatch.setattr(backend, "_first_messages", lambda: iter([(1, 32, PARAMS["greedy"])]))
    monkeypatch.setattr(backend._execution, "last_choice", asked)
    assert not list(backend.get_ready(CancelToken()))
    assert not backend.held
    monkeypatch.undo()
    monkeypatch.setattr(backend, "_first_messages", lambda: iter([(0, 8, PARAMS["greedy"])]))
    cancel = CancelToken()
    cancel.cancel()
    assert not list(backend.get_ready(cancel))
    assert backend._execution.cache.length == 0
    backend.close()


def test_who_gets_ready_passes_what_first_messages_would_wait_for_and_holds_nothing_of_it(
    smallest: Smallest, texts: dict[str, list[int]]
) -> None:
    backend = opened(smallest, n_ctx=34)
    execution = backend._execution
    assert isinstance(execution, FusedExecution)
    graphs = execution._graphs = Noting()
    assert not list(backend.get_ready(CancelToken()))  # the cache would move
    execution.cache.reserve(34)
    for _ in backend.get_ready(CancelToken()):
        assert not backend.held
        assert execution.cache.length == 0
    shortest = MESSAGE_ROWS[0]  # the context has room for no other
    ready = [
        ("sampled rows", MOST_ROWS),
        ("greedy rows", MOST_ROWS),
        ("prompt", shortest, 0, False),
        ("prompt", shortest, None, False),
    ]
    assert graphs.recorded == ready
    assert [*PROMPT, *written(backend, PARAMS["sampled"], N_CTX - len(PROMPT))] == texts["sampled"]
    assert not execution._text.begin.item()  # and drafts do not quote it
    graphs.recorded.clear()
    assert not list(backend.get_ready(CancelToken()))  # which would cut what is held
    backend.keep(0)
    assert not list(backend.get_ready(CancelToken()))  # and drafts may quote what was said
    assert not graphs.recorded
    backend.close()
    assert not list(backend.get_ready(CancelToken()))


# --- what benchmarks of real texts count on ---------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", PARAMS)
def test_a_model_writes_what_it_is_told_and_drafts_are_of_that(smallest: Smallest, sampling: str) -> None:
    backend, told = opened(smallest, n_ctx=32), [4, 8, 15, 4, 8, 15] * 4
    dictation = Dictation(backend)
    dictation.put(MOST_ROWS + 1, [6])
    assert written(backend, PARAMS[sampling], 1, prompt=[*TOKENS, 1]) == [6]  # which no step reads
    backend.keep(0)
    dictation.put(len(PROMPT), told)
    assert written(backend, PARAMS[sampling], 20) == told[:20]
    backend.keep(0)
    drafting = Speculator(SuffixDrafter(), LONGEST_DRAFT, control=EagerController(LONGEST_DRAFT))
    assert written(backend, PARAMS[sampling], 20, drafting) == told[:20]
    assert sum(drafting.record.accepted_at) >= 8
    backend.close()
