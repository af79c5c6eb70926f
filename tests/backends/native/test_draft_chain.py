"""A draft model on a device writes by itself: what the host would choose, in step with what its target writes.

Without a GPU the kernels run in Triton's interpreter, half a second a row: models and texts are as small as can be.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny_models
import torch
from test_fused_speculation import PARAMS, SMALLEST, SMALLEST_DELTA, TOKENS, Smallest, Watching, opened
from test_native_fused import fused, go_on, made
from tiny_heads import take

from runner.backends.native import kv_cache
from runner.backends.native.backend import NativeBackend
from runner.backends.native.fused_execution import FusedExecution
from runner.backends.native.graphs import Graphs
from runner.backends.native.model_files import read_config
from runner.config import SamplingParams
from runner.errors import BadModelFile
from runner.kernels.values import MOST_ROWS
from runner.quant.weights import open_weights
from runner.sampling import sample
from runner.speculative.control import EagerController, Most
from runner.speculative.model_drafter import ModelDrafter, confidence
from runner.speculative.speculator import Speculator
from runner.types import CancelToken

SHORT = [5, 2]


@pytest.fixture(scope="module")
def smallest(tmp_path_factory: pytest.TempPathFactory) -> Smallest:
    directory = tmp_path_factory.mktemp("smallest")
    made(directory / "readable", "qwen3", **{**SMALLEST, "vocab_size": tiny_models.VOCAB})
    made(directory, "qwen3", **SMALLEST)
    config = read_config(directory)
    return directory, config, open_weights(tiny_models.ready(directory), config)


def execution_of(backend: NativeBackend) -> FusedExecution:
    assert isinstance(backend._execution, FusedExecution)
    return backend._execution


def written(backend: NativeBackend, params: SamplingParams, n: int, speculator: Speculator | None = None) -> list[int]:
    """The first n tokens after SHORT."""
    return take(backend, SHORT, n, params, speculator)


# --- the chain itself ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("sampling", "n_read", "n"), [("greedy", 1, 3), ("sampled", 3, 2)])
def test_a_chain_is_what_the_host_chooses_step_by_step(smallest: Smallest, sampling: str, n_read: int, n: int) -> None:
    execution, params = fused(*smallest[1:]), PARAMS[sampling]
    execution.extend(TOKENS[:1], "none", go_on)
    history = TOKENS[: 1 + n_read]
    chain = execution.chain(history[1:], params, n)
    assert len(chain) == n
    assert execution.cache.length == len(history) + n - 1
    execution.cache.truncate(1)
    row = execution.extend(history[1:], "last", go_on)[0].cpu().numpy()
    for index, (token, share) in enumerate(chain):
        assert token == sample(row, params, history, len(history))
        assert share == pytest.approx(confidence(row, token), rel=1e-4)
        history.append(token)
        row = execution.extend([token], "last", go_on)[0].cpu().numpy() if index < n - 1 else row


def test_a_chain_may_end_with_the_context(smallest: Smallest) -> None:
    execution = fused(*smallest[1:], n_ctx=3)
    assert len(execution.chain(TOKENS[:3], PARAMS["greedy"], 1)) == 1
    assert execution.cache.length == 3


def test_what_a_step_cannot_take_is_read_before(smallest: Smallest, monkeypatch: pytest.MonkeyPatch) -> None:
    draft, calls = opened(smallest, n_ctx=64), list[tuple[str, int]]()
    execution = execution_of(draft)

    def extend(tokens: Sequence[int], wanted: str, _checkpoint: object) -> torch.Tensor:
        calls.append((wanted, len(tokens)))
        execution.cache.reserve(len(tokens))
        execution.cache.advance(len(tokens))
        return torch.zeros(0, SMALLEST["vocab_size"])

    def chain(tokens: Sequence[int], _params: SamplingParams, n: int) -> list[tuple[int, float]]:
        calls.append(("chain", len(tokens)))
        return [(4, 0.5)] * n

    monkeypatch.setattr(execution, "extend", extend)
    monkeypatch.setattr(execution, "chain", chain)
    assert len(draft.chain([1] * MOST_ROWS, PARAMS["greedy"], 2, CancelToken())) == 2
    assert list(draft.held) == [*[1] * MOST_ROWS, 4]
    assert len(draft.chain([3] * (MOST_ROWS + 1), PARAMS["greedy"], 2, CancelToken())) == 2
    assert list(draft.held) == [*[1] * MOST_ROWS, 4, *[3] * (MOST_ROWS + 1), 4]
    cancelled = CancelToken()
    cancelled.cancel()
    assert len(draft.chain([3], PARAMS["greedy"], 2, cancelled)) == 0
    assert calls == [("chain", MOST_ROWS), ("none", MOST_ROWS), ("chain", 1)]
    draft.close()


# --- a model that drafts ---------------------------------------------------------------------------------------------


def test_the_same_model_is_always_right_and_waited_for_once_a_draft(
    smallest: Smallest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_cache, "BLOCK", 4)  # so that the cache grows
    target, draft, params = opened(smallest), opened(smallest), PARAMS["sampled"]
    plain = written(target, params, 6)
    execution, reads = execution_of(draft), list[int]()
    watching = execution._graphs = Watching(execution)
    read = execution._guesses.read
    monkeypatch.setattr(execution._guesses, "read", lambda first, n: (reads.append(n), read(first, n))[1])
    monkeypatch.setattr(execution, "extend", None)  # logits do not go to the host
    speculator = Speculator(ModelDrafter(draft), 2, control=EagerController(2))
    assert written(target, params, 6, speculator) == plain
    record = speculator.record
    assert record.acceptance_rate == 1
    # The last draft was on its way when the last token was taken that anybody wanted.
    assert reads == [2] * (record.rounds + 1)
    assert record.rounds >= 2
    assert watching.n_forgotten >= 1
    assert len(target.held) == target._execution.cache.length
    for backend in (target, draft):
        backend.close()


def test_after_a_wrong_guess_it_is_where_one_is_that_never_made_it(smallest: Smallest) -> None:
    draft, params = opened(smallest), PARAMS["greedy"]
    drafter = ModelDrafter(draft)
    first = drafter.propose(SHORT, params, Most(2)).tokens
    history = [*SHORT, (first[0] + 1) % SMALLEST["vocab_size"]]
    found = drafter.propose(history, params, Most(2))
    assert list(draft.held) == [*history, found.tokens[0]]
    draft.keep(0)
    assert drafter.propose(history, params, Most(2)) == found
    draft.close()


class Recording(Graphs):
    """Replays nothing, and knows which steps would have been recorded."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))
        self.keys: set[Hashable] = set()

    def run(self, key: Hashable, state: Sequence[torch.Tensor], step: Callable[[], Any]) -> Any:
        self.keys.add(key)
        return super().run(key, state, step)


@pytest.mark.parametrize("layer", ["full_attention", "linear_attention"])
def test_what_is_read_between_drafts_is_recorded_at_load(tmp_path: Path, layer: str) -> None:
    """Steps of layers that keep a state are not filled up: each number of tokens has a graph of its own."""
    shape = SMALLEST | SMALLEST_DELTA | {"layer_types": [layer]}
    made(tmp_path / "readable", "qwen3-5", **{**shape, "vocab_size": tiny_models.VOCAB})
    made(tmp_path, "qwen3-5", **shape)
    config = read_config(tmp_path)
    draft = opened((tmp_path, config, open_weights(tiny_models.ready(tmp_path), config)), n_ctx=80)
    recording = execution_of(draft)._graphs = Recording()
    drafter = ModelDrafter(draft)
    drafter.warm_up()
    recorded = set(recording.keys)
    for params in PARAMS.values():
        for n in (3, 5, 6, 8):
            draft.keep(0)
            assert drafter.propose([1] * n, params, Most(2)).tokens
            assert recording.keys == recorded, n
    draft.close()


def test_drafts_of_any_length_are_verified_by_steps_that_were_recorded_at_load(tmp_path: Path) -> None:
    shape = SMALLEST | SMALLEST_DELTA | {"layer_types": ["linear_attention"]}
    made(tmp_path / "readable", "qwen3-5", **{**shape, "vocab_size": tiny_models.VOCAB})
    made(tmp_path, "qwen3-5", **shape)
    config = read_config(tmp_path)
    target = opened((tmp_path, config, open_weights(tiny_models.ready(tmp_path), config)), n_ctx=24)
    recording = execution_of(target)._graphs = Recording()
    target.step_s(target.info.longest_draft + 1)
    recorded = set(recording.keys)
    for params in PARAMS.values():
        for n in range(2, target.info.longest_draft + 2):
            target.keep(0)
            chosen = target._choices([1] * n, params)
            assert chosen is not None
            assert len(chosen()) == n
    assert recording.keys == recorded
    target.close()


def test_what_the_device_cannot_choose_is_left_to_the_host(smallest: Smallest) -> None:
    draft = opened(smallest)
    assert draft.can_chain(PARAMS["sampled"])
    assert not draft.can_chain(replace(PARAMS["greedy"], repeat_penalty=1.5))
    draft.close()


def test_a_draft_model_whose_logits_are_no_numbers_is_an_error(smallest: Smallest) -> None:
    draft = opened(smallest)
    execution_of(draft)._opened().norm.gain.fill_(float("nan"))
    with pytest.raises(BadModelFile, match="no token can be chosen"):
        ModelDrafter(draft).propose(SHORT, PARAMS["greedy"], Most(2))
    assert len(draft.held) == execution_of(draft).cache.length
    draft.close()
