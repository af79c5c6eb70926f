"""Drafting with a model: it drafts as the target writes, reads each token once, and stops where it should."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from runner.config import LONGEST_DRAFT, SamplingParams
from runner.errors import BadModelFile
from runner.sampling import sample
from runner.speculative.control import EagerController
from runner.speculative.drafter import NO_DRAFT
from runner.speculative.history import common_prefix
from runner.speculative.model_drafter import CONFIDENCES, ModelDrafter, confidence
from runner.speculative.rounds import decode
from runner.speculative.speculator import Speculator
from runner.speculative.verify import choices_of
from runner.types import CancelToken, MemoryUse, ModelInfo

V = 40
GREEDY = SamplingParams(temperature=0, seed=0)
SAMPLED = SamplingParams(temperature=0.9, top_k=12, top_p=0.95, seed=5)


def info(n_ctx: int, vocab_size: int = V) -> ModelInfo:
    return ModelInfo(
        name="toy",
        backend="fake",
        architecture="toy",
        num_parameters=0,
        num_layers=1,
        n_gpu_layers=0,
        vocab_size=vocab_size,
        context_length=n_ctx,
        n_ctx=n_ctx,
        quantization="none",
        size_bytes=0,
        device="none",
        chat_template=None,
        bos_token="",
        eos_token="",
        longest_draft=LONGEST_DRAFT,
    )


def logits_after(history: Sequence[int], vocab_size: int = V) -> np.ndarray:
    return np.random.default_rng(list(history[-3:])).normal(0, 2, vocab_size).astype(np.float32)


class Toy:
    """A model whose logits depend on the last three tokens. blur: what is added to them, as a smaller model differs."""

    def __init__(self, n_ctx: int = 200, vocab_size: int = V, blur: float = 0.0) -> None:
        self.info, self.n_ctx, self.vocab_size = info(n_ctx, vocab_size), n_ctx, vocab_size
        self._held: list[int] = []
        self._blur = blur
        self.n_read = self.n_steps = 0
        self.is_closed = False

    @property
    def held(self) -> Sequence[int]:
        return self._held

    def keep(self, length: int) -> int:
        assert length <= len(self._held)
        del self._held[length:]
        return length

    def extend(self, tokens: Sequence[int], cancel: CancelToken) -> np.ndarray | None:
        assert tokens
        assert all(0 <= token < self.vocab_size for token in tokens)
        if cancel.is_cancelled:
            return None
        self._held.extend(tokens)
        assert len(self._held) <= self.n_ctx
        self.n_read += len(tokens)
        self.n_steps += 1
        noise = np.random.default_rng(len(self._held)).normal(0, 1, self.vocab_size).astype(np.float32)
        return logits_after(self._held, self.vocab_size) + self._blur * noise

    def memory(self) -> MemoryUse:
        return MemoryUse(weights_bytes=5, kv_cache_bytes=6, workspace_bytes=7)

    def close(self) -> None:
        self.is_closed = True


class ChainedToy(Toy):
    """The same, which writes by itself where nothing is penalized.

    chains: how many tokens were asked for at once. begun: the numbers that were read before, by how they are chosen.
    """

    def __init__(self, n_ctx: int = 200, vocab_size: int = V, blur: float = 0.0) -> None:
        super().__init__(n_ctx, vocab_size, blur)
        self.chains: list[int] = []
        self.begun: set[tuple[int, bool]] = set()

    def can_chain(self, params: SamplingParams) -> bool:
        return params.repeat_penalty == 1 and params.frequency_penalty == 0

    def chain(
        self, tokens: Sequence[int], params: SamplingParams, n: int, cancel: CancelToken
    ) -> list[tuple[int, float]]:
        self.chains.append(n)
        self.begun.add((len(tokens), params.temperature == 0))
        found: list[tuple[int, float]] = []
        row = self.extend(tokens, cancel)
        while row is not None:
            token = sample(row, params, (), len(self._held))
            found.append((token, confidence(row, token)))
            row = self.extend([token], cancel) if len(found) < n else None
        return found


class Most:
    def __init__(self, n: int) -> None:
        self.left, self.buckets = n, list[int]()

    @property
    def is_open(self) -> bool:
        return self.left > 0

    @property
    def reach(self) -> int:
        return self.left

    def admits(self, bucket: int) -> bool:
        self.buckets.append(bucket)
        self.left -= 1
        return self.left >= 0


def text_after(prompt: Sequence[int], params: SamplingParams, n: int) -> list[int]:
    history = list(prompt)
    for _ in range(n):
        history.append(sample(logits_after(history), params, history, len(history)))
    return history[len(prompt) :]


both_ways = pytest.mark.parametrize("toy", [Toy, ChainedToy], ids=["host", "device"])


@both_ways
@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_a_model_as_good_as_the_target_drafts_its_text_sampled_or_not(params: SamplingParams, toy: type[Toy]) -> None:
    drafter = ModelDrafter(toy())
    assert drafter.propose([1, 2, 3], params, Most(9)).tokens == tuple(text_after([1, 2, 3], params, 9))


def test_penalties_count_what_was_drafted() -> None:
    params = SamplingParams(temperature=0, repeat_penalty=3.0, frequency_penalty=2.0, seed=0)
    drafter = ModelDrafter(Toy())
    drafted = drafter.propose([1, 2, 3], params, Most(12)).tokens
    assert drafted == tuple(text_after([1, 2, 3], params, 12))
    assert drafted != drafter.propose([1, 2, 3], GREEDY, Most(12)).tokens


@both_ways
def test_each_token_is_read_once_and_what_was_wrong_is_taken_back(toy: type[Toy]) -> None:
    model = toy()
    drafter = ModelDrafter(model)
    first = drafter.propose([1, 2, 3], GREEDY, Most(4)).tokens
    assert model.n_read == 3 + 3  # nothing follows the last guess, so it is not read
    history = [1, 2, 3, *first[:2], 7]  # the third was something else
    second = drafter.propose(history, GREEDY, Most(2)).tokens
    assert model.n_read == 6 + 1 + 1
    assert second == tuple(text_after(history, GREEDY, 2))
    assert drafter.propose([9, 8], GREEDY, Most(3)).tokens == tuple(text_after([9, 8], GREEDY, 3))


@both_ways
def test_the_gate_is_asked_with_the_confidence_and_ends_the_draft(toy: type[Toy]) -> None:
    gate = Most(6)
    drafter = ModelDrafter(toy())
    draft = drafter.propose([4, 5, 6], GREEDY, gate)
    assert draft.buckets == tuple(gate.buckets[:6])
    assert len(draft) == 6
    history = [4, 5, 6]
    for token, bucket in zip(draft.tokens, draft.buckets, strict=True):
        share = confidence(logits_after(history), token)
        assert (0.0, *CONFIDENCES)[bucket] <= share < (*CONFIDENCES, 1.1)[bucket]
        history.append(token)
    assert len(set(draft.buckets)) > 1
    assert max(draft.buckets) < drafter.n_buckets


def test_confidence_is_the_softmax_whatever_the_size_of_the_logits() -> None:
    row = np.array([0, np.log(3), -np.inf], np.float32)
    assert confidence(row, 1) == pytest.approx(0.75)
    assert confidence(row + np.float32(1e4), 0) == pytest.approx(0.25, rel=1e-3)
    assert confidence(np.array([1e38, -1e38], np.float32), 1) == 0.0


@both_ways
def test_a_long_text_is_read_without_drafting_and_the_next_draft_comes_at_once(toy: type[Toy]) -> None:
    model = toy(n_ctx=400)
    drafter = ModelDrafter(model)
    prompt = [i % V for i in range(300)]
    assert drafter.propose(prompt, GREEDY, Most(5)) == NO_DRAFT
    assert model.n_steps == 1
    assert len(drafter.propose([*prompt, 1], GREEDY, Most(5))) == 5
    assert model.n_read == 300 + 1 + 4


@both_ways
def test_it_stops_where_its_own_context_ends(toy: type[Toy]) -> None:
    drafter = ModelDrafter(toy(n_ctx=10))
    assert len(drafter.propose([1] * 6, GREEDY, Most(9))) == 5  # the last one need not be read
    assert len(drafter.propose([1] * 10, GREEDY, Most(9))) == 1
    assert drafter.propose([1] * 11, GREEDY, Most(9)) == NO_DRAFT
    assert len(drafter.propose([1] * 3, GREEDY, Most(2))) == 2


def test_a_chain_is_as_long_as_is_worth_it_before_any_of_it_is_seen() -> None:
    model = ChainedToy()
    drafter = ModelDrafter(model)
    assert len(drafter.propose([1, 2, 3], GREEDY, Most(5))) == 5
    assert drafter.propose([1, 2, 3, 4], GREEDY, Most(0)) == NO_DRAFT
    assert model.held[:4] == [1, 2, 3, 4], "it reads what it was given all the same"
    assert model.chains == [5, 1]


def test_what_a_chain_cannot_choose_is_written_one_by_one() -> None:
    params, model = SamplingParams(temperature=0, repeat_penalty=3.0, seed=0), ChainedToy()
    assert ModelDrafter(model).propose([1, 2, 3], params, Most(5)).tokens == tuple(text_after([1, 2, 3], params, 5))
    assert model.chains == []


def test_a_chain_is_warmed_up_with_what_a_device_records_and_forgets_it() -> None:
    model = ChainedToy()
    drafter = ModelDrafter(model)
    drafter.warm_up()
    assert model.chains == [*[2] * (len(model.chains) - 1), 1], "drafts of each kind, and a prompt that is read"
    assert model.begun >= {(n, is_greedy) for n in range(1, 9) for is_greedy in (True, False)}
    assert len(drafter.propose([1, 2, 3], GREEDY, Most(2))) == 2
    assert list(model.held[:3]) == [1, 2, 3]
    plain = Toy()
    ModelDrafter(plain).warm_up()
    assert plain.n_steps == 1, "whether it can be run"


def test_it_drafts_nothing_after_tokens_that_it_does_not_have() -> None:
    drafter = ModelDrafter(Toy(vocab_size=30))
    assert drafter.propose([1, 2, 35, 3], GREEDY, Most(3)) == NO_DRAFT
    assert len(drafter.propose([1, 2, 3], GREEDY, Most(3))) == 3


def test_a_cancelled_request_drafts_no_further() -> None:
    model = Toy()
    drafter = ModelDrafter(model)
    cancel = CancelToken()
    drafter.attend(cancel)

    class Cancelling(Most):
        def admits(self, bucket: int) -> bool:
            if self.left == 3:
                cancel.cancel()
            return super().admits(bucket)

    assert len(drafter.propose([1, 2, 3], GREEDY, Cancelling(5))) == 3
    assert drafter.propose([1, 2, 3, 4], GREEDY, Most(5)) == NO_DRAFT
    drafter.attend(CancelToken())
    assert len(drafter.propose([1, 2, 3, 4], GREEDY, Most(5))) == 5


def test_it_owns_its_model() -> None:
    model = Toy()
    drafter = ModelDrafter(model, "self")
    assert (drafter.name, drafter.nbytes, drafter.is_host_only) == ("self", 18, False)
    drafter.close()
    assert model.is_closed


class Target(Toy):
    """The same toy as what is drafted for."""

    def choices(self, draft: Sequence[int], params: SamplingParams, history: Sequence[int]):  # type: ignore[no-untyped-def]
        assert self._held == list(history[:-1])
        rows = []
        for token in (history[-1], *draft):
            self._held.append(token)
            rows.append(logits_after(self._held))
        return choices_of(rows, draft, params, history)


@both_ways
@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_the_same_noise_makes_two_near_models_agree_in_sampled_text_too(params: SamplingParams, toy: type[Toy]) -> None:
    target = Target()
    target._held = [1, 2]
    speculator = Speculator(ModelDrafter(toy(blur=0.3)), 4, control=EagerController(4))
    history = [1, 2, 3]
    tokens = [token for token, _, _ in decode(target, params, history, speculator)]
    assert tokens == text_after([1, 2, 3], params, len(tokens))
    record = speculator.record
    assert record.acceptance_rate is not None
    assert record.acceptance_rate > 0.5  # of the few tokens that matter, chance agrees on a tenth


def test_the_common_prefix_of_lists_and_tuples() -> None:
    random = np.random.default_rng(3)
    for _ in range(200):
        n, m, same = (int(value) for value in random.integers(0, 50, 3))
        head = [int(value) for value in random.integers(0, 3, same)]
        a = [*head, *(int(value) for value in random.integers(0, 3, n))]
        b = (*head, *(int(value) for value in random.integers(0, 3, m)))
        slow = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
        assert common_prefix(a, b) == common_prefix(b, a) == slow


class Failing(Toy):
    """Its logits are no numbers from so many held tokens on."""

    def __init__(self, good: int) -> None:
        super().__init__()
        self._good = good

    def extend(self, tokens: Sequence[int], cancel: CancelToken) -> np.ndarray | None:
        row = super().extend(tokens, cancel)
        return row if row is None or len(self._held) < self._good else np.full_like(row, np.nan)


def test_a_model_that_fails_later_on_ends_its_draft_and_not_the_text() -> None:
    drafter = ModelDrafter(Failing(good=8))
    drafter.warm_up()
    assert len(drafter.propose([1, 2, 3], GREEDY, Most(9))) == 5
    assert drafter.propose([1, 2, 3, 4, 5, 6, 7, 8, 9], GREEDY, Most(9)) == NO_DRAFT


def test_a_model_that_fails_at_once_is_told_when_it_is_loaded() -> None:
    with pytest.raises(BadModelFile, match="NaN"):
        ModelDrafter(Failing(good=0)).warm_up()
