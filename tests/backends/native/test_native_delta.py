"""Models whose layers keep a state: what of a text can be gone back to, and that all else is begun anew.

That their logits are transformers' is shown in test_native_logits.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch

from runner.backends import base
from runner.backends.base import Backend, Prefill
from runner.backends.native import opening
from runner.backends.native.backend import NativeBackend
from runner.backends.native.blocks import go_on
from runner.backends.native.decode_loop import DecodeLoop
from runner.backends.native.delta_net import Convolution, delta_rule, normed
from runner.backends.native.delta_state import SAVED, SLOTS, DeltaState, DeltaStates, state_bytes
from runner.backends.native.kv_cache import KvCache
from runner.backends.native.placement import Placement
from runner.backends.native.writing import batch_size, write_batch
from runner.config import LONGEST_DRAFT, LoadOptions
from runner.errors import BadModelFile
from runner.kernels.values import MOST_ROWS
from runner.model_config import DeltaConfig, HeadSizes
from runner.speculative.control import EagerController
from runner.speculative.rounds import Stride
from runner.speculative.speculator import Speculator
from runner.types import CancelToken
from tests.backends.conformance import N_CTX, BackendConformance, Knowing, prefills, take
from tests.backends.native.test_native_logits import relative_error
from tests.backends.native.tiny_models import VOCAB, load, make, ready, save

CPU = torch.device("cpu")
IDS = [int(token) for token in np.random.default_rng(4).integers(0, VOCAB, 60)]
DELTA = DeltaConfig(key_heads=1, value_heads=2, key_dim=2, value_dim=3, taps=4, layers=(0, 2))


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return save(make("qwen3-5"), tmp_path)


@pytest.fixture
def backend(tiny: Path) -> NativeBackend:
    return load(ready(tiny), batch_size=2 * SLOTS)  # the slot that such a pass reads is the one it writes


class TestNativeDelta(BackendConformance):
    @pytest.fixture
    def backend(self, tmp_path: Path) -> Iterator[Backend]:
        backend = load(ready(save(make("qwen3-5", max_position_embeddings=1024), tmp_path)), ctx_size=N_CTX)
        yield backend
        backend.close()


def last(backend: NativeBackend, ids: Sequence[int]) -> np.ndarray:
    found = backend.extend(ids, CancelToken())
    assert found is not None
    return found.copy()


def states(length: int) -> DeltaStates:
    """Of a text that was read token by token."""
    found = DeltaStates(DELTA, dtype=torch.float32, device=CPU)
    for start in range(length):
        step(found, start, 1)
    return found


def step(found: DeltaStates, start: int, n_tokens: int) -> None:
    """A pass that leaves the number of tokens in the states, as far as a test can tell states apart."""
    found.begin(start, n_tokens)
    end = start + n_tokens
    lengths = range(end - found.n_written(n_tokens) + 1, end + 1)
    for layer in range(len(DELTA.layers)):
        kept = [DeltaState(torch.full((2, 2, 3), float(length)), torch.zeros(3, 10)) for length in lengths]
        found.write(layer, end, kept)
    found.hold(end, n_tokens)


def number(found: DeltaStates, length: int) -> float:
    state = found.read(1, length)
    assert state is not None
    return float(state.matrices[0, 0, 0])


@pytest.mark.parametrize("n_last", [1, 5, SLOTS - 1, SLOTS, MOST_ROWS])
def test_the_last_tokens_can_be_taken_back_and_no_more(n_last: int) -> None:
    """However many of them a step had."""

    def read() -> DeltaStates:
        found = states(20)
        step(found, 20, n_last)
        return found

    end = 20 + n_last
    for back in range(SLOTS):
        found = read()
        assert found.keep(end - back) == end - back
        assert number(found, end - back) == end - back
    assert read().keep(end - SLOTS) == 0
    assert read().keep(0) == 0


def test_before_the_first_token_there_is_no_state_to_read() -> None:
    found = states(3)
    assert found.keep(0) == 0
    assert found.read(0, 0) is None
    assert found.positions == [None] * SLOTS


def test_a_pass_over_many_tokens_leaves_the_state_after_the_last_and_those_before_the_first() -> None:
    found = states(14)
    step(found, 14, 18)
    assert [length for length in range(1, 33) if found.has(length)] == [3, 4, 5, 6, 7, 9, 10, 11, 12, 13, 14, 32]


def test_a_key_of_nothing_stands_for_nothing() -> None:
    assert normed(torch.zeros(3, 4)).tolist() == [[0.0] * 4] * 3


def test_a_prompt_can_be_cancelled_at_each_of_its_tokens() -> None:
    seen: list[int] = []
    ones = torch.ones(5, 2, 3)
    delta_rule(ones, ones, ones, torch.ones(5, 2), torch.ones(5, 2), torch.zeros(2, 3, 3), 1, lambda: seen.append(1))
    assert len(seen) == 5


def test_the_inputs_of_a_convolution_are_added_up_in_float32() -> None:
    convolution = Convolution(1, 3)
    convolution.weight.fill_(1.0)
    inputs = torch.tensor([[256.0], [1.0], [1.0]], dtype=torch.bfloat16)  # 257 has no bfloat16
    assert convolution(inputs).tolist() == [[258.0]]


def test_nothing_is_held_of_what_was_given_back() -> None:
    found = states(5)
    found.release()
    assert found.nbytes == 0
    assert [length for length in range(1, 6) if found.has(length)] == []


def test_what_is_saved_can_be_gone_back_to_until_the_text_before_it_changes() -> None:
    found = states(5)
    found.save(5)
    step(found, 5, 25)
    found.save(30)
    found.save(30)  # twice is once
    step(found, 30, 40)
    found.save(70)
    assert found.saved == [70, 30]  # the oldest gave way
    assert (found.keep(69), number(found, 30)) == (30, 30)
    assert found.saved == [None, 30]
    step(found, 30, 3)
    assert (found.keep(31), number(found, 31)) == (31, 31)  # a slot has it
    assert found.keep(30) == 30
    assert found.keep(29) == 0
    assert found.saved == [None, None]


def test_what_was_taken_back_is_no_state_of_what_is_written_in_its_place() -> None:
    found = states(10)
    assert found.keep(8) == 8
    step(found, 8, 18)  # over position 10, whose slot still has what came after 10 other tokens
    assert found.keep(10) == 0


def test_a_pass_that_was_cut_off_spoils_the_state_that_it_would_have_written_alone() -> None:
    found = states(7)
    found.begin(7, 20)
    assert [length for length in range(1, 8) if not found.has(length)] == [27 - 2 * SLOTS]
    assert found.keep(7) == 7
    found = states(7)
    found.begin(7, 2 * SLOTS)  # which would have written where it reads
    assert found.keep(7) == 0


@pytest.mark.parametrize(("n_tokens", "is_kept"), [(3, True), (SLOTS - 1, True), (SLOTS, False)])
def test_a_step_that_was_cut_off_spoils_what_it_would_have_written(n_tokens: int, is_kept: bool) -> None:
    found = states(SLOTS)
    found.begin(SLOTS, n_tokens)
    assert [length for length in range(1, SLOTS) if found.has(length)] == list(range(n_tokens + 1, SLOTS))
    assert found.keep(SLOTS) == is_kept * SLOTS


class Device:
    """Steps that draft by themselves, as a decode loop has them, of which chance says how much stands. slots: which
    state lies in each, as what it comes after, or 0 where that is no text."""

    lengths = (3, 5)

    def __init__(self, cache: KvCache, chance: Random) -> None:
        self.cache, self.chance = cache, chance
        self.slots, self.position = [0] * SLOTS, 0
        self.emitted: list[int] = []  # how many tokens each step that was not taken

    def begin(self, n_rows: int) -> None:
        self.cache.begin(n_rows)
        self.cache.advance(n_rows)
        assert not self.position or self.slots[self.position % SLOTS] == self.position, "what a step reads"
        n_emitted = self.chance.randint(1, n_rows)
        for row in range(n_rows):
            self.slots[(self.position + row + 1) % SLOTS] = self.position + row + 1 if row < n_emitted else 0
        self.position += n_emitted
        self.emitted.append(n_emitted)

    def take(self, _n_rows: int) -> Stride:
        return Stride((1,) * self.emitted.pop(0))

    def forget(self) -> None:
        self.emitted.clear()

    def expect(self) -> None:
        pass

    def fill(self, text: Sequence[int]) -> None:
        pass

    def end(self, n_known: int) -> None:
        pass


@pytest.mark.parametrize("seed", range(40))
def test_what_counts_as_held_is_there_however_far_steps_went_that_drafted_by_themselves(seed: int) -> None:
    chance, found = Random(seed), DeltaStates(DELTA, dtype=torch.float32, device=CPU)
    cache = KvCache(
        layers=[HeadSizes(num_kv_heads=1, head_dim=1)], n_ctx=256, dtype=torch.float32, device=CPU, states=found
    )  # fmt: skip
    cache.reserve(256)
    device = Device(cache, chance)
    while cache.length < 200:
        device.position = known = cache.length
        loop = DecodeLoop(device, device, cache, CancelToken())  # type: ignore[arg-type]
        first = last = known + 1  # tokens before those of the last step that is over, and after them
        for _ in range(chance.randint(1, 6)):
            loop.draft(chance.choice((0, *device.lengths)), [])
            first, last = last, last + len(next(loop).tokens)
        loop.close()
        assert cache.length == last
        held = [length for length in range(1, last + 1) if found.has(length)]
        assert [device.slots[length % SLOTS] for length in held] == held
        assert held[-1 - last + first :] == list(range(first, last + 1)), "an answer may end anywhere in the last step"
        cache.truncate(chance.randint(first, last))


def test_behind_a_token_that_could_not_be_chosen_no_step_begins() -> None:
    """It would begin one position further than there is room for."""
    cache = KvCache(layers=[HeadSizes(num_kv_heads=1, head_dim=1)], n_ctx=64, dtype=torch.float32, device=CPU)
    cache.reserve(64)
    device = Device(cache, Random(0))
    device.take = lambda _: Stride((1, -1))  # type: ignore[method-assign]
    loop = DecodeLoop(device, device, cache, CancelToken())  # type: ignore[arg-type]
    loop.draft(3, [])
    assert next(loop).tokens == (1,)
    with pytest.raises(BadModelFile, match="no token can be chosen"):
        next(loop)
    assert len(device.emitted) == 2
    loop.close()


def test_the_memory_is_what_the_arithmetic_says() -> None:
    found = DeltaStates(DELTA, dtype=torch.bfloat16, device=CPU)
    assert found.nbytes == state_bytes(DELTA, torch.bfloat16) == 2 * (SLOTS + SAVED) * (4 * 12 + 2 * 3 * 10)
    found.release()
    assert found.nbytes == 0


def test_a_text_that_goes_on_after_tokens_were_taken_back_is_that_of_a_cold_start(backend: NativeBackend) -> None:
    cold = load(backend._model)
    last(backend, IDS[:20])
    for token in IDS[20:26]:
        last(backend, [token])
    for length in (26, 24, 22):
        assert backend.keep(length) == length
        more = [7, 8, 9] if length == 22 else []
        if more:
            assert relative_error(last(backend, more), last(cold, [*IDS[:22], *more])) < 1e-5
    assert backend.held == [*IDS[:22], 7, 8, 9]


def test_what_cannot_be_gone_back_to_is_begun_anew_and_says_so(backend: NativeBackend) -> None:
    last(backend, IDS[:30])
    assert backend.keep(20) == 0
    assert backend.held == []
    assert relative_error(last(backend, IDS[:20]), last(load(backend._model), IDS[:20])) < 1e-5


def test_a_chat_goes_on_and_an_edited_message_begins_anew(backend: NativeBackend) -> None:
    answer = take(backend, IDS[:21], 6)
    longer = [*IDS[:21], *answer, *IDS[30:41]]
    assert prefills(backend, longer)[0] == Prefill(26, len(longer), 26)  # all that was computed: not the last token
    edited = [*IDS[:10], *IDS[40:50]]
    assert prefills(backend, edited)[0] == Prefill(0, len(edited), 0)
    assert take(backend, edited, 8) == take(load(backend._model), edited, 8)


def test_a_next_prompt_goes_on_behind_the_last_message_before_an_answer(
    backend: NativeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a template has it that leaves out what an answer thought; and so does another answer to the same prompt."""
    monkeypatch.setattr(base, "FEW_READ_ANEW", 8)
    (stop,) = backend.tokenizer.stop_ids
    first = [*IDS[:20], stop, *IDS[20:24]]
    answer = take(backend, first, 16)  # so many that no slot has a state of the prompt
    assert take(backend, first, 16) == answer
    assert prefills(backend, first)[0].cached == 21
    second = [*first[:23], *answer[4:7], stop, *IDS[30:40], stop, *IDS[20:24]]
    take(backend, first, 16)
    assert [prefill.done for prefill in prefills(backend, second)] == [21, len(second) - 4, len(second)]
    assert take(backend, second, 16) == take(load(backend._model), second, 16)
    third = [*second[:-10], *IDS[41:50]]
    assert prefills(backend, third)[0].cached == 21  # what was edited is before the end of the second
    assert take(backend, third, 8) == take(load(backend._model), third, 8)


def test_an_answer_that_is_made_again_is_the_same(backend: NativeBackend) -> None:
    once = take(backend, IDS[:33], 12)
    assert take(backend, IDS[:33], 12) == once


@pytest.mark.parametrize("n_products", [1, 7, 30])
@pytest.mark.parametrize("n_held", [0, 20, 31])
def test_a_cancelled_prefill_leaves_nothing_that_is_taken_for_a_state(
    backend: NativeBackend, n_products: int, n_held: int
) -> None:
    class After(CancelToken):
        """Is set once that many products were computed."""

        looks = 0

        @property
        def is_cancelled(self) -> bool:
            self.looks += 1
            return self.looks > n_products

    if n_held:
        last(backend, IDS[:n_held])
    assert backend.extend(IDS[n_held : n_held + 2 * SLOTS], After()) is None
    held = len(backend.held)
    assert held in (0, n_held)
    assert relative_error(last(backend, IDS[held:40]), last(load(backend._model), IDS[:40])) < 1e-5
    assert take(backend, IDS[:45], 8) == take(load(backend._model), IDS[:45], 8)


def test_drafts_are_as_long_as_can_be_taken_back(backend: NativeBackend) -> None:
    longest = backend.info.longest_draft
    assert longest < LONGEST_DRAFT
    last(backend, IDS[:20])
    last(backend, IDS[20 : 21 + longest])
    assert backend.keep(20) == 20, "of a draft and the token before it nothing may be wanted"


def test_after_a_draft_that_cannot_be_taken_back_there_is_an_error_and_no_other_text(backend: NativeBackend) -> None:
    text = [*IDS[:20], *take(backend, IDS[:20], 20)]
    wrong = Knowing(text, 20, lambda coming, _at: [(coming[0] + 1) % VOCAB] * LONGEST_DRAFT)
    longer = Speculator(wrong, LONGEST_DRAFT, control=EagerController(LONGEST_DRAFT))
    with pytest.raises(AssertionError, match="the cache lacks more than the last token"):
        take(backend, IDS[:20], 20, speculator=longer)


def test_its_memory_has_the_states(backend: NativeBackend) -> None:
    delta = backend._config.delta
    assert delta is not None
    before = backend.memory().kv_cache_bytes
    last(backend, IDS[:5])
    assert before - backend._execution.cache.capacity * 2 * 2 * 24 * 4 == state_bytes(delta, torch.float32)
    assert backend._need.state_bytes == state_bytes(delta, torch.float32)


def test_on_a_gpu_the_states_are_not_taken_for_memory_of_others(
    backend: NativeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Made(Exception):
        """The cache is there, and takes memory."""

    def made(*_: object, **__: object) -> KvCache:
        raise Made

    looked = list[torch.device]()
    monkeypatch.setattr(torch.cuda, "memory_reserved", looked.append)
    monkeypatch.setattr(KvCache, "of", made)
    gpu = torch.device("cuda")
    placement = Placement(device=gpu, dtype=torch.bfloat16, kv_dtype=torch.bfloat16, name="GPU", has_kernels=True)
    nothing = (LoadOptions(), lambda _: None, CancelToken())
    with pytest.raises(Made):
        opening._execution(backend._config, None, placement, backend._need, *nothing)  # type: ignore[arg-type]
    assert looked == [gpu]


def test_texts_written_at_once_are_those_that_are_written_alone(backend: NativeBackend) -> None:
    decoder = backend._execution._decoder
    starts = [IDS[:9], IDS[20:33], IDS[40:45]]
    with torch.inference_mode():
        greedy = [0.0] * len(starts)
        together = write_batch(decoder, starts, 24, vocab_size=VOCAB, seed=0, temperatures=greedy)
    for row, start in zip(together.tolist(), starts, strict=True):
        assert row == [*start, *take(backend, start, 24 - len(start))]


def test_as_many_texts_are_written_at_once_as_have_room_for_their_states(
    backend: NativeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = backend._config
    of_one = 2 * 2 * 2 * 24 * 64 + state_bytes(config.delta, torch.bfloat16, n_slots=1)  # keys and values of a layer
    for count in (1, 7, 30):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _, count=count: (0, 10 * count * of_one + 9))
        assert batch_size(config, 64, torch.device("cuda")) == count


def test_sequences_of_a_batch_keep_their_states_when_others_are_left_out(backend: NativeBackend) -> None:
    decoder = backend._execution._decoder
    ids = torch.tensor([IDS[:12], IDS[20:32], IDS[40:52]])
    cache = KvCache.of(decoder.config, n_ctx=16, dtype=torch.float32, device=CPU, batch=(3,))
    cache.reserve(16)
    assert cache.states is not None
    assert cache.states.nbytes == 3 * state_bytes(decoder.config.delta, torch.float32, n_slots=1)
    with torch.inference_mode():
        whole = decoder.logits(decoder(ids, cache, go_on))[:, -1]
        cache.truncate(0)
        decoder(ids[:, :8], cache, go_on)
        cache.select(torch.tensor([2, 0]))
        found = decoder.logits(decoder(ids[[2, 0], 8:], cache, go_on))[:, -1]
    assert relative_error(found.numpy(), whole[[2, 0]].numpy()) < 1e-5
