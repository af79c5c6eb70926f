"""Hidden states on the way: the kernels capture what the plain modules do, in steps, prompts and decode loops.

Without a GPU the kernels run in Triton's interpreter, which is why models, prompts and answers are so small here.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from test_native_fused import DEVICE, GREEDY, PROMPT, difference, fused, go_on, made, plain

from runner.backends.native.capture import Capture, capture_sequences
from runner.backends.native.fused_execution import FusedExecution
from runner.backends.native.model_files import read_config
from runner.quant.mq.packed_weights import PackedWeights
from runner.quant.mq.quantize import quantize_packed
from runner.quant.mq.recipe import recipe_of
from runner.types import CancelToken

LAYERS = (0, 1)


@pytest.mark.parametrize("name", ["qwen3", "qwen3-moe", "gpt-oss"])
def test_the_kernels_capture_what_the_plain_modules_do(name: str, tmp_path: Path) -> None:
    config, weights = made(tmp_path, name, num_hidden_layers=1)
    reference, kernels = plain(config, weights), fused(config, weights)
    for execution in (reference, kernels):
        execution.capture(LAYERS)
    start = 0
    for tokens in (PROMPT, [9, 12]):
        stop = start + len(tokens)
        wanted, found = (e.extend(tokens, "last", go_on) for e in (reference, kernels))
        assert difference(found, wanted) < 2e-5
        wanted, found = (e.captured(start, stop) for e in (reference, kernels))
        assert found.shape == (len(tokens), len(LAYERS) * config.hidden_size)
        assert difference(found, wanted) < 2e-5
        start = stop


def test_the_parts_that_a_head_shares_are_the_models(tmp_path: Path) -> None:
    config, weights = made(tmp_path, "qwen3")
    reference, kernels = plain(config, weights).interior(), fused(config, weights).interior()
    ids = torch.tensor([5, 0, 44], device=DEVICE)
    embedded = reference.embed(ids)
    assert torch.equal(kernels.embed(ids), embedded)
    assert difference(kernels.norm(embedded), reference.norm(embedded)) < 1e-5
    assert difference(kernels.logits(embedded), reference.logits(embedded)) < 1e-5


def test_the_parts_of_a_packed_model_are_read_packed(tmp_path: Path) -> None:
    source, packed = tmp_path / "source", tmp_path / "packed"
    made(source, "llama-biases", hidden_size=64, intermediate_size=96, num_attention_heads=4, num_hidden_layers=1)
    quantize_packed(source, recipe_of("mq4"), packed, device=torch.device("cpu"), on_stage=lambda *_: None)
    config, weights = read_config(packed), PackedWeights(packed)
    reference, kernels = plain(config, weights).interior(), fused(config, weights).interior()
    ids = torch.tensor([5, 0, 44], device=DEVICE)
    embedded = reference.embed(ids)
    assert difference(kernels.embed(ids), embedded) < 1e-5
    states = reference.norm(embedded)
    assert difference(kernels.logits(states), reference.logits(states)) < 2e-2  # activations are int8


def test_captured_states_give_the_models_logits(tmp_path: Path) -> None:
    config, weights = made(tmp_path, "qwen3")
    execution = plain(config, weights)
    execution.capture((config.num_layers,))
    logits = execution.extend(PROMPT, "all", go_on)
    own = execution.interior()
    assert torch.equal(own.logits(own.norm(execution.captured(0, len(PROMPT)))), logits)


def test_a_decode_loop_leaves_its_states_too(tmp_path: Path) -> None:
    config, weights = made(tmp_path, "qwen3", num_hidden_layers=1)
    reference, kernels = plain(config, weights), fused(config, weights)
    for execution in (reference, kernels):
        execution.capture((1,))
    loop = kernels.decode(5, GREEDY, CancelToken())
    assert loop is not None
    text = [5, *next(loop).tokens]
    loop.close()
    reference.extend(text, "none", go_on)
    assert kernels.cache.length == 2, "the step after the one that was waited for had begun"
    assert difference(kernels.captured(0, 2), reference.captured(0, 2)) < 2e-5


def test_capturing_can_be_ended(tmp_path: Path) -> None:
    config, weights = made(tmp_path, "qwen3", num_hidden_layers=1)
    execution: FusedExecution = fused(config, weights)
    execution.capture((1,))
    assert execution._long_tap(20) is not None
    execution.capture(())
    assert execution._long_tap(20) is None
    with pytest.raises(AssertionError):
        execution.captured(0, 1)


def test_of_many_steps_the_last_are_kept() -> None:
    capture = Capture((1,), 4, dtype=torch.float32, device=torch.device("cpu"))
    for position in range(700):
        tap = capture.step(torch.tensor([position]), 1)
        tap(0, torch.full((1, 4), -1.0))
        tap(1, torch.full((1, 4), float(position)))
    rows = capture.rows(0, 700)
    assert rows[:, 0].tolist() == list(range(700 - len(rows), 700))
    assert len(rows) >= 480
    assert capture.rows(690, 700)[:, 2].tolist() == list(range(690, 700))


def test_batches_are_captured_by_the_plain_modules(tmp_path: Path) -> None:
    config, weights = made(tmp_path, "qwen3")
    alone = plain(config, weights)
    alone.capture(LAYERS)
    sequences = torch.tensor([PROMPT, PROMPT[::-1]], device=DEVICE)
    decoder = alone._decoder
    assert decoder is not None
    cache = type(alone.cache)(
        layers=[config.heads(layer) for layer in range(config.num_layers)],
        n_ctx=64,
        dtype=torch.float32,
        device=sequences.device,
        batch=(2,),
    )
    cache.reserve(len(PROMPT))
    final, captured = capture_sequences(decoder, sequences, cache, LAYERS, go_on)
    assert final.shape == (2, len(PROMPT), config.hidden_size)
    for row, tokens in enumerate(sequences.tolist()):
        alone.cache.truncate(0)
        alone.extend(tokens, "none", go_on)
        assert difference(captured[row], alone.captured(0, len(tokens))) < 1e-5
