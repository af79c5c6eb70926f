"""Gated delta nets and gated attention by the kernels: what the plain modules compute, and the same however it is cut.

Without a GPU the kernels run in Triton's interpreter.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
import torch
from test_native_fused import GREEDY, PROMPT, Replaying, difference, fused, go_on, made, plain
from tiny_models import make, ready, save
from torch import Tensor

from runner.backends import native
from runner.backends.native import stream
from runner.backends.native.delta_state import SLOTS
from runner.backends.native.fused import FusedAttention, FusedLayer
from runner.backends.native.fused_delta import FusedDeltaNet
from runner.backends.native.fused_execution import FusedExecution
from runner.backends.native.graphs import Graphs
from runner.backends.native.model_files import read_config
from runner.config import LoadOptions, SamplingParams
from runner.kernels.fragments import can_be_fragments, to_fragments
from runner.kernels.int8_weights import FORMATS_AS_INT8
from runner.kernels.values import MOST_ROWS, PackedMatrix
from runner.model_config import ModelConfig
from runner.quant.mq.packed_weights import PackedWeights
from runner.quant.mq.quantize import quantize_packed
from runner.quant.mq.recipe import recipe_of
from runner.quant.weights import Weights
from runner.sampling import sample
from runner.types import CancelToken

LAYERS = {"layer_types": ["linear_attention", "full_attention"]}
# Where one way through the kernels is compared with another. Queries and values have two heads of keys' one.
FEW_HEADS = {
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 2,
    "linear_value_head_dim": 16,
    "intermediate_size": 20,
}
FEW = PROMPT[:6]
MORE = [17, 4, 40, 22, 8, 31, 6, 50, 2, 12, 9, 3, 28, 5]


WITH_EXPERTS_TOO = pytest.mark.parametrize("tiny", ["qwen3-5", "qwen3-5-moe"], indirect=True)


@pytest.fixture(scope="module")
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[ModelConfig, Weights]:
    name = getattr(request, "param", "qwen3-5")
    return made(tmp_path_factory.mktemp("tiny"), name, **LAYERS, **FEW_HEADS)


def packed(directory: Path, recipe: str, **more: object) -> tuple[ModelConfig, Weights]:
    source, target = directory / "source", directory / "packed"
    made(source, "qwen3-5", **{**LAYERS, "hidden_size": 64, "intermediate_size": 96, "head_dim": 32, **more})
    quantize_packed(source, recipe_of(recipe), target, device=torch.device("cpu"), on_stage=lambda *_: None)
    return read_config(target), PackedWeights(target)


def extended(execution: Any, *parts: Sequence[int]) -> Tensor:
    return torch.cat([execution.extend(part, "all", go_on) for part in parts])


@pytest.mark.parametrize("name", ["qwen3-5", "qwen3-5-biases-untied-wide-rope", "qwen3-5-moe"])
def test_they_are_what_their_modules_compute(tmp_path: Path, name: str) -> None:
    config, weights = made(tmp_path, name, **LAYERS)
    reference, kernels = plain(config, weights), fused(config, weights)
    for tokens in (PROMPT, [9, 12], [33], MORE[:SLOTS], MORE[:1]):
        wanted = reference.extend(tokens, "all", go_on)
        assert difference(kernels.extend(tokens, "all", go_on), wanted) < 2e-5
    assert kernels.cache.length == len(PROMPT) + 4 + SLOTS


@pytest.mark.parametrize("recipe", ["mq4", "mq8"])
def test_packed_weights_stay_packed_and_give_what_their_values_do(
    tmp_path: Path, recipe: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "FEW_ROWS", MOST_ROWS)  # so that the prompt is a long one
    monkeypatch.setattr(stream, "takes_int8", lambda *_: False)
    config, weights = packed(tmp_path, recipe)
    reference, kernels = plain(config, weights), fused(config, weights)
    assert kernels.weights_bytes < reference.weights_bytes / 2
    wanted = reference.extend(PROMPT, "all", go_on)
    assert difference(kernels.extend(PROMPT, "all", go_on), wanted) < 2e-5  # prefill keeps its activations
    wanted = reference.extend([9], "last", go_on)
    assert difference(kernels.extend([9], "last", go_on), wanted) < 0.05  # decoding rounds them to int8


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # rows that fill a block hold anything, and sums of it overflow
def test_weights_in_fragments_give_what_they_give_in_planes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # 256: the stream is handed on from product to product. 80 rows of values and gates: 16 times what there is.
    config, weights = packed(
        tmp_path, "mq4-uniform", hidden_size=256, intermediate_size=64, linear_num_value_heads=8, num_key_value_heads=6
    )
    in_planes = fused(config, weights)
    monkeypatch.setattr(stream, "best_layout", lambda w, pair: to_fragments(w, pair) if can_be_fragments(w) else w)
    in_fragments = fused(config, weights)
    for layer in in_fragments._opened().layers:
        parts = (*layer.attention.qkv.parts, *layer.attention.o.parts)
        assert [part.layout for part in parts if isinstance(part, PackedMatrix)] == ["fragments"] * 2
    wanted, found = (extended(execution, PROMPT[:2]) for execution in (in_planes, in_fragments))
    assert difference(found, wanted) < 0.05  # activations are rounded in groups of 64 instead of 32
    in_fragments.cache.truncate(0)
    rows = extended(in_fragments, PROMPT[:1], PROMPT[1:2])
    assert torch.equal(rows, found)  # a row has the same bits in every batch
    monkeypatch.setattr(stream, "takes_int8", lambda w, _: w.largest is not None and w.format in FORMATS_AS_INT8)
    in_fragments._graphs.forget()
    in_fragments.cache.truncate(0)
    wanted = extended(plain(config, weights), PROMPT[:2])
    assert 1e-4 < difference(extended(in_fragments, PROMPT[:2]), wanted) < 0.05


def test_rows_of_q_proj_are_put_apart_into_queries_and_gates(tmp_path: Path) -> None:
    config, weights = packed(tmp_path, "mq8")
    layers = fused(config, weights)._opened().layers
    assert isinstance(layers[0].attention, FusedDeltaNet)
    attention = layers[1].attention
    assert isinstance(attention, FusedAttention)
    heads, kv_heads, d = config.num_heads, config.num_kv_heads, config.head_dim
    assert [part.shape for part in attention.qkv.parts] == [((2 * heads + 2 * kv_heads) * d, config.hidden_size)]


@WITH_EXPERTS_TOO
def test_a_text_has_the_same_bits_however_it_is_cut(tiny: tuple[ModelConfig, Weights]) -> None:
    wanted = extended(fused(*tiny), FEW, MORE)[len(FEW) :]
    for cuts in ([1] * 10, [7, 7], [4, 1, 9]):
        parts = cut(MORE, cuts)
        found = extended(fused(*tiny), FEW, *parts)[len(FEW) :]
        assert torch.equal(found, wanted[: len(found)]), cuts


def cut(tokens: Sequence[int], sizes: Sequence[int]) -> list[Sequence[int]]:
    ends = list(accumulate(sizes))
    return [tokens[end - size : end] for end, size in zip(ends, sizes, strict=True)]


@pytest.mark.parametrize(("cuts", "back"), [([1] * 6, 5), ([3, 8], SLOTS - 1)])
def test_going_back_a_few_tokens_leaves_what_was_before_them(
    tiny: tuple[ModelConfig, Weights], cuts: list[int], back: int
) -> None:
    kernels, fresh, n = fused(*tiny), fused(*tiny), sum(cuts)
    extended(kernels, FEW, *cut(MORE, cuts))
    kept = len(FEW) + n - back
    assert kernels.cache.truncate(kept) == kept
    extended(fresh, FEW, *([token] for token in MORE[: n - back]))
    for tokens in ([44], [3, 20, 9]):
        assert torch.equal(extended(kernels, tokens), extended(fresh, tokens))


def test_going_back_further_begins_anew(tiny: tuple[ModelConfig, Weights]) -> None:
    kernels = fused(*tiny)
    first = extended(kernels, PROMPT)
    extended(kernels, MORE)
    assert kernels.cache.truncate(3) == 0
    assert torch.equal(extended(kernels, PROMPT), first)


def test_what_was_saved_is_gone_back_to_with_the_same_bits(tiny: tuple[ModelConfig, Weights]) -> None:
    kernels = fused(*tiny)
    extended(kernels, PROMPT)
    kernels.cache.save()
    first = extended(kernels, FEW)
    extended(kernels, MORE, MORE)
    assert kernels.cache.truncate(len(PROMPT) + 1) == len(PROMPT)
    assert torch.equal(extended(kernels, FEW), first)


@WITH_EXPERTS_TOO
@pytest.mark.parametrize("n_tokens", [2 * SLOTS, 21])  # one leaves its state where it began with one
def test_a_prompt_is_filled_up_and_replayed_and_gives_what_it_gives_alone(
    tiny: tuple[ModelConfig, Weights], n_tokens: int
) -> None:
    reference, filled = plain(*tiny, n_ctx=128), fused(*tiny, n_ctx=128)
    graphs = filled._graphs = Replaying(torch.device("cpu"))
    for part in (PROMPT, [3 + i % 50 for i in range(n_tokens)], [40 - i for i in range(n_tokens)], [7], [8, 9]):
        found, wanted = (execution.extend(part, "last", go_on) for execution in (filled, reference))
        assert difference(found, wanted) < 2e-5
    assert list(graphs._noted) == [("prompt", 32, 0, False), ("prompt", 32, None, False)]


@WITH_EXPERTS_TOO
@pytest.mark.parametrize("params", [GREEDY, SamplingParams(temperature=1.2, seed=7)])
def test_the_loop_on_the_device_gives_the_tokens_that_the_host_would_and_leaves_their_state(
    tiny: tuple[ModelConfig, Weights], params: SamplingParams
) -> None:
    reference, kernels = plain(*tiny), fused(*tiny)
    kernels.extend(FEW, "none", go_on)
    logits = reference.extend(FEW, "last", go_on)
    history = [*FEW, int(logits[0].argmax())]
    decoded = kernels.decode(history[-1], params, CancelToken())
    assert decoded is not None
    for _ in range(3):
        logits = reference.extend(history[-1:], "last", go_on)
        wanted = sample(logits[0].cpu().numpy(), params, history, len(history))
        assert next(decoded) == ((wanted,), ())
        history.append(wanted)
    decoded.close()
    assert kernels.cache.length == len(history)  # and none of the steps that ran ahead
    reference.extend(history[-1:], "none", go_on)
    wanted = reference.extend(MORE, "all", go_on)
    assert difference(kernels.extend(MORE, "all", go_on), wanted) < 2e-5


@pytest.mark.parametrize("n_drafted", [3, 5])
def test_steps_that_draft_by_themselves_write_what_plain_ones_do_and_leave_their_states(
    tiny: tuple[ModelConfig, Weights], n_drafted: int
) -> None:
    drafting, alone = fused(*tiny), fused(*tiny)
    for execution in (drafting, alone):
        execution.extend(FEW, "none", go_on)
    text = [*FEW, 9]
    plain = alone.decode(text[-1], GREEDY, CancelToken())
    assert plain is not None
    while len(text) < len(FEW) + 16:
        text += next(plain).tokens
    plain.close()
    n = len(FEW) + 3
    drafting.give_texts([[*text[:n], 60, 59, 58, *text[n:]]])  # some of it stands, and some does not
    decoded = drafting.decode(text[len(FEW)], GREEDY, CancelToken())
    assert decoded is not None
    assert tuple(decoded.lengths) == (3, 5)
    known, stood = len(FEW) + 1, set()
    decoded.draft(n_drafted, text[:known])
    while known < len(FEW) + 9:
        stride = next(decoded)
        assert list(stride.tokens) == text[known : known + len(stride.tokens)]
        known += len(stride.tokens)
        stood.add(len(stride.tokens))
    decoded.close()
    assert len(stood) > 1
    assert drafting.cache.length == known
    for kept in (known, known - 1):
        assert drafting.cache.truncate(kept) == kept
        fresh = fused(*tiny)
        extended(fresh, FEW, text[len(FEW) : kept])
        assert torch.equal(extended(drafting, MORE[:2]), extended(fresh, MORE[:2]))
        drafting.cache.truncate(kept)


def test_a_chain_of_guesses_is_what_steps_write_and_can_be_taken_back(tiny: tuple[ModelConfig, Weights]) -> None:
    kernels, fresh = fused(*tiny), fused(*tiny)
    for execution in (kernels, fresh):
        execution.extend(FEW, "none", go_on)
    guessed = [token for token, _ in kernels.chain(MORE[:3], GREEDY, 4)]
    choose, wanted = fresh.choices(MORE[:3], GREEDY), list[int]()
    while choose is not None:
        wanted.append(choose()[-1])
        choose = fresh.choices(wanted[-1:], GREEDY) if len(wanted) < 4 else None
    assert guessed == wanted
    kept = len(FEW) + 4
    assert kernels.cache.truncate(kept) == fresh.cache.truncate(kept) == kept
    assert torch.equal(extended(kernels, [7, 9]), extended(fresh, [7, 9]))


class Recording(Graphs):
    """Graphs where there is no GPU: what is recorded has run before, as there."""

    def run(self, _key: Hashable, state: Sequence[Tensor], step: Callable[[], Any]) -> Any:
        with torch.inference_mode():
            kept = [tensor.clone() for tensor in state]
            step()
            for tensor, value in zip(state, kept, strict=True):
                tensor.copy_(value)
            return step()


@pytest.mark.parametrize("n_tokens", [1, SLOTS])  # a kernel of its own, and a state that is written over
def test_a_step_that_is_recorded_leaves_the_state_of_one_run(tiny: tuple[ModelConfig, Weights], n_tokens: int) -> None:
    recorded, once = fused(*tiny), fused(*tiny)
    recorded._graphs = Recording(torch.device("cpu"))
    for execution in (recorded, once):
        execution.extend(FEW, "none", go_on)
    assert torch.equal(extended(recorded, MORE[:n_tokens]), extended(once, MORE[:n_tokens]))
    assert all(execution.choices(MORE[:n_tokens], GREEDY) is not None for execution in (recorded, once))
    assert torch.equal(extended(recorded, [9]), extended(once, [9]))


def failing_once(execution: FusedExecution, monkeypatch: pytest.MonkeyPatch) -> None:
    """In its second layer the memory runs out, once; graphs hold some."""
    called, n_calls = FusedLayer.__call__, 0

    def call(layer: FusedLayer, *arguments: Any) -> Any:
        nonlocal n_calls
        n_calls += 1
        if n_calls == 2:
            raise torch.OutOfMemoryError
        return called(layer, *arguments)

    monkeypatch.setattr(FusedLayer, "__call__", call)
    execution._graphs.nbytes = 1


def test_a_prompt_for_which_memory_ran_out_is_tried_again_with_the_state_that_it_began_with(
    tiny: tuple[ModelConfig, Weights], monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels, fresh = fused(*tiny), fused(*tiny)
    for execution in (kernels, fresh):
        execution.extend(PROMPT, "none", go_on)
    prompt = [3 + i % 50 for i in range(18)]
    wanted = extended(fresh, prompt)
    with monkeypatch.context() as patch:
        failing_once(kernels, patch)
        assert torch.equal(extended(kernels, prompt), wanted)


def test_and_is_not_where_it_has_written_over_that_one(
    tiny: tuple[ModelConfig, Weights], monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = fused(*tiny)
    first = extended(kernels, PROMPT)
    with monkeypatch.context() as patch, pytest.raises(torch.OutOfMemoryError):
        failing_once(kernels, patch)
        extended(kernels, [3 + i % 50 for i in range(2 * SLOTS)])
    assert not kernels.graphs_bytes
    assert kernels.cache.truncate(len(PROMPT)) == 0
    assert torch.equal(extended(kernels, PROMPT), first)


@pytest.mark.parametrize(("dim", "is_refused"), [(16, False), (24, True), (128, False), (256, True)])
def test_heads_that_no_kernel_takes_are_refused_on_a_gpu_with_a_remedy(
    tmp_path: Path, dim: int, is_refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = ready(save(make("qwen3-5", linear_key_head_dim=dim), tmp_path))
    assert native.refusal(model, LoadOptions(n_gpu_layers=0)) is None
    monkeypatch.setattr(native, "_has_kernels", lambda: True)
    reason = native.refusal(model, LoadOptions())
    assert (reason is not None) == is_refused
    if reason is not None:
        assert f"this model's keys have {dim} and its values 32. Use -ngl 0" in reason
