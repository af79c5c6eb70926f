"""The fused decoder computes what the plain modules do, and its decode loop what sampling on the host does.

Without a GPU the kernels run in Triton's interpreter, which is why models, prompts and answers are so small here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny_models
import torch

from runner.backends.native import fused_moe, kv_cache, stream
from runner.backends.native.execution import PlainExecution, Wanted
from runner.backends.native.fused import FusedDecoder, FusedLayer, FusedMlp, _last_kept, _products_of
from runner.backends.native.fused_execution import FusedExecution
from runner.backends.native.fused_moe import FusedMoE
from runner.backends.native.graphs import Graphs
from runner.backends.native.kv_cache import KvCache
from runner.backends.native.loader import load_model, unfilled
from runner.backends.native.matrices import MatrixReader
from runner.backends.native.model_files import read_config
from runner.config import SamplingParams
from runner.errors import BadModelFile
from runner.kernels import moe_int8
from runner.kernels.fragments import can_be_fragments, to_fragments
from runner.kernels.grids import FORMATS
from runner.kernels.heads import put_together_ref
from runner.kernels.int8_weights import FORMATS_AS_INT8
from runner.kernels.pack import dequantize_ref, packed_matrix
from runner.kernels.rotate import quantize_fragments
from runner.kernels.splits import only_split
from runner.kernels.values import FEW_ROWS, MOST_ROWS, Int8Blocks, Int8Fragments, Int8Rows, PackedMatrix, Parts, Squares
from runner.model_config import ModelConfig
from runner.quant.mq.packed_weights import PackedWeights
from runner.quant.mq.quantize import quantize_packed
from runner.quant.mq.recipe import recipe_of
from runner.quant.mq.rotation import rotate
from runner.quant.weights import Weights, open_weights
from runner.sampling import sample
from runner.types import CancelToken

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
GREEDY = SamplingParams(temperature=0.0)
PROMPT = [5, 20, 31, 7, 7, 44, 14, 3, 25, 18, 59, 59, 2, 33, 13, 8, 21, 9]  # more than 16: the way of prefill
# The blocks that a fused decoder knows, in as few models as have them all.
MODELS = (
    "llama-biases",
    "mistral-window",
    "qwen3",
    "gemma2",
    "gemma3",
    "gemma4",
    "gemma4-biases-untied-values-apart",
    "gemma4-moe",
    "phi3-partial-rope-and-window",
    "phi3-long-rope",
    "olmo2",
    "olmo3",
    "smollm3",
    "granite",
    "ministral3",
    "mixtral",
    "qwen3-moe",
    "gpt-oss",
)


def cache(config: ModelConfig, dtype: torch.dtype = torch.float32, n_ctx: int = 64) -> KvCache:
    return KvCache.of(config, n_ctx=n_ctx, dtype=torch.float32, device=DEVICE, kv_dtype=dtype)


def plain(config: ModelConfig, weights: Weights, n_ctx: int = 64) -> PlainExecution:
    decoder = load_model(
        config, weights, dtype=torch.float32, device=DEVICE, on_progress=lambda _: None, cancel=CancelToken()
    )
    return PlainExecution(decoder, cache(config, n_ctx=n_ctx), DEVICE, 64)


def fused(
    config: ModelConfig, weights: Weights, kv_dtype: torch.dtype = torch.float32, n_ctx: int = 64
) -> FusedExecution:
    reader = MatrixReader(weights, dtype=torch.float32, device=DEVICE, on_progress=lambda _: None, cancel=CancelToken())
    return FusedExecution(FusedDecoder(unfilled(config, weights), reader), cache(config, kv_dtype, n_ctx))


def made(directory: Path, name: str, **more: object) -> tuple[ModelConfig, Weights]:
    small = {"num_hidden_layers": 2, "vocab_size": 61, "bos_token_id": 1, "eos_token_id": 2}
    tiny_models.save(tiny_models.make(name, **{**small, **more}), directory)
    config = read_config(directory)
    return config, open_weights(tiny_models.ready(directory), config)


def go_on() -> None:
    """A checkpoint that lets everything pass."""


def difference(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found - wanted).abs().max() / wanted.abs().max())


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[ModelConfig, Weights]:
    return made(tmp_path_factory.mktemp("tiny"), "llama-tied", num_hidden_layers=1)


@pytest.mark.parametrize("name", MODELS)
def test_every_architecture_is_what_its_modules_compute(tmp_path: Path, name: str) -> None:
    config, weights = made(tmp_path, name)
    reference, kernels = plain(config, weights), fused(config, weights)
    for tokens in (PROMPT, [9, 12], [33]):
        wanted = reference.extend(tokens, "all", go_on)
        assert difference(kernels.extend(tokens, "all", go_on), wanted) < 2e-5
    assert kernels.cache.length == len(PROMPT) + 3


SMALL_GEMMA4 = "gemma4-inputs-by-layer-and-shared-caches"
# Of layers 2 and 3, which keep nothing, the last row alone is computed; and of a state's layer, were it last, all rows.
NARROWED = {
    "qwen3": {},
    "gpt-oss": {},
    "olmo2": {},
    "qwen3-5-moe": {"layer_types": ["linear_attention", "full_attention"]},
    "qwen3-5": {"layer_types": ["full_attention", "linear_attention"]},
    SMALL_GEMMA4: {"num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2},
}


@pytest.mark.parametrize("name", NARROWED)
def test_the_last_row_alone_keeps_what_all_rows_do(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config, weights = made(tmp_path, name, **NARROWED[name])
    reference, kernels = plain(config, weights), fused(config, weights)
    keep, kept = FusedLayer.keep, []
    monkeypatch.setattr(FusedLayer, "keep", lambda layer, *rest: (kept.append(layer.index), keep(layer, *rest)))
    parts: tuple[tuple[list[int], Wanted], ...] = ((PROMPT, "none"), (PROMPT[::-1], "last"), ([9], "last"))
    for tokens, wanted in parts:
        right, found = (execution.extend(tokens, wanted, go_on) for execution in (reference, kernels))
        assert len(found) == len(right) == (0 if wanted == "none" else 1)
        assert wanted == "none" or difference(found, right) < 2e-5
    assert kept == ([] if config.has_delta(config.num_layers - 1) else [1, 1])  # the last layer that keeps any


@pytest.mark.parametrize("kv_dtype", [torch.float32, torch.int8])
def test_inputs_by_layer_and_shared_caches_are_what_modules_compute(tmp_path: Path, kv_dtype: torch.dtype) -> None:
    layers = {"num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2}
    config, weights = made(tmp_path, SMALL_GEMMA4, **layers, vocab_size_per_layer_input=61)
    reference, kernels = plain(config, weights), fused(config, weights, kv_dtype)
    assert kernels.cache.num_layers == 2
    for tokens in (PROMPT, [9, 12], [33]):
        wanted = reference.extend(tokens, "all", go_on)
        assert difference(kernels.extend(tokens, "all", go_on), wanted) < (2e-5 if kv_dtype.is_floating_point else 0.1)


@pytest.mark.parametrize("recipe", ["mq4", "mq4-uniform"])
def test_packed_weights_stay_packed_and_give_what_their_values_do(
    tmp_path: Path, recipe: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "FEW_ROWS", MOST_ROWS)  # so that the prompt is a long one
    monkeypatch.setattr(stream, "takes_int8", lambda *_: False)  # as a GPU might; the test below has that
    source, packed = tmp_path / "source", tmp_path / "packed"
    made(source, "qwen3", hidden_size=64, intermediate_size=96, head_dim=32)
    quantize_packed(source, recipe_of(recipe), packed, device=torch.device("cpu"), on_stage=lambda *_: None)
    config, weights = read_config(packed), PackedWeights(packed)
    reference, kernels = plain(config, weights), fused(config, weights)
    assert kernels.weights_bytes < reference.weights_bytes / 4
    wanted = reference.extend(PROMPT, "all", go_on)
    assert difference(kernels.extend(PROMPT, "all", go_on), wanted) < 2e-5  # prefill keeps its activations
    wanted = reference.extend([9], "last", go_on)
    assert difference(kernels.extend([9], "last", go_on), wanted) < 0.05  # decoding rounds them to int8


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # rows that fill a block hold anything, and sums of it overflow
@pytest.mark.parametrize("name", ["qwen3", "olmo2"])
def test_weights_in_fragments_give_what_they_give_in_planes(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, packed = tmp_path / "source", tmp_path / "packed"
    # 256: the stream is handed on from product to product.
    made(source, name, hidden_size=256, intermediate_size=64, head_dim=32, num_hidden_layers=1)
    quantize_packed(source, recipe_of("mq4-uniform"), packed, device=torch.device("cpu"), on_stage=lambda *_: None)
    config, weights = read_config(packed), PackedWeights(packed)
    in_planes = fused(config, weights)
    monkeypatch.setattr(stream, "best_layout", lambda w, pair: to_fragments(w, pair) if can_be_fragments(w) else w)
    in_fragments = fused(config, weights)
    for layer in in_fragments._opened().layers:
        assert isinstance(layer.mlp, FusedMlp)
        for product in (layer.attention.qkv, layer.attention.o, layer.mlp.gate_up, layer.mlp.down):
            assert [part.layout for part in product.parts if isinstance(part, PackedMatrix)] == ["fragments"]
    wanted = in_planes.extend(PROMPT[:2], "all", go_on)
    found = in_fragments.extend(PROMPT[:2], "all", go_on)
    assert difference(found, wanted) < 0.05  # activations are rounded in groups of 64 instead of 32
    in_fragments.cache.truncate(0)
    rows = [in_fragments.extend(part, "all", go_on) for part in (PROMPT[:1], PROMPT[1:2])]
    assert torch.equal(torch.cat(rows), found)  # a row has the same bits in every batch
    both = in_fragments._hidden(torch.tensor(PROMPT[:2], device=DEVICE), None, go_on)
    assert both.ready is not None
    decoder = in_fragments._opened()  # what is ready for both is none of the last one alone
    assert difference(decoder.logits(both, slice(1, 2)).values, decoder.logits(both).values[1:]) < 0.01
    made_apart = []
    monkeypatch.setattr(stream, "quantize_fragments", lambda *x: made_apart.append(x) or quantize_fragments(*x))
    in_fragments._hidden(torch.tensor([9], device=DEVICE), None, go_on)
    assert len(made_apart) == 2  # for the first product and for down; other rows are handed on
    monkeypatch.setattr(stream, "FEW_ROWS", 1)  # a long prompt: the library's products
    monkeypatch.setattr(stream, "takes_int8", lambda *_: False)
    in_fragments._graphs.forget()  # on a GPU two rows were recorded with the others
    in_fragments.cache.truncate(0)
    wanted = plain(config, weights).extend(PROMPT[:2], "all", go_on)
    assert difference(in_fragments.extend(PROMPT[:2], "all", go_on), wanted) < 2e-5
    monkeypatch.setattr(stream, "takes_int8", lambda w, _: w.largest is not None and w.format in FORMATS_AS_INT8)
    in_fragments._graphs.forget()
    in_fragments.cache.truncate(0)
    assert 1e-4 < difference(in_fragments.extend(PROMPT[:2], "all", go_on), wanted) < 0.05


# Of the small models a layer of each kind, and one that sees what the first keeps; and inputs of 64 elements.
_OF_SMALL: dict[str, Any] = {
    "layer_types": ["full_attention", "sliding_attention", "full_attention"],
    "num_hidden_layers": 3,
    "num_kv_shared_layers": 1,
    "hidden_size_per_layer_input": 64,
    "vocab_size_per_layer_input": 61,
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    ("name", "more"),
    [("gemma4", {}), ("gemma4-moe", {"moe_intermediate_size": 64, "num_experts": 4}), (SMALL_GEMMA4, _OF_SMALL)],
)
def test_packed_layers_with_heads_of_their_own_give_a_row_the_same_bits_in_every_batch(
    tmp_path: Path, name: str, more: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gemma 4: a layer that slides and one that does not, whose values may be keys; both streams are handed on."""
    source, packed = tmp_path / "source", tmp_path / "packed"
    sizes = {"hidden_size": 256, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
    made(source, name, **sizes, head_dim=32, global_head_dim=64, **more)
    quantize_packed(source, recipe_of("mq4"), packed, device=torch.device("cpu"), on_stage=lambda *_: None)
    config, weights = read_config(packed), PackedWeights(packed)
    assert {heads.head_dim for heads in map(config.heads, range(2))} == {32, 64}
    monkeypatch.setattr(stream, "best_layout", lambda w, pair: to_fragments(w, pair) if can_be_fragments(w) else w)
    kernels = fused(config, weights)
    n_rows = 9 if more and DEVICE.type == "cpu" else 16  # which takes the interpreter long
    together = kernels.extend(PROMPT[:n_rows], "all", go_on)
    assert difference(together, plain(config, weights).extend(PROMPT[:n_rows], "all", go_on)) < 0.05
    assert together.abs().max() < config.logit_cap
    for first, last in ((n_rows - 2, n_rows), (3, n_rows - 2), (0, 1)):
        kernels.cache.truncate(first)
        assert torch.equal(kernels.extend(PROMPT[first:last], "all", go_on), together[first:last])


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("name", "size"), [("qwen3-moe", "moe_intermediate_size"), ("gpt-oss", "intermediate_size")])
def test_prompts_of_experts_in_int8_give_what_their_values_do(
    tmp_path: Path, name: str, size: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, packed = tmp_path / "source", tmp_path / "packed"
    made(source, name, **{"hidden_size": 64, size: 64, "num_hidden_layers": 1})
    quantize_packed(source, recipe_of("mq4-uniform"), packed, device=torch.device("cpu"), on_stage=lambda *_: None)
    config, weights = read_config(packed), PackedWeights(packed)
    wanted = plain(config, weights).extend(PROMPT, "all", go_on)
    monkeypatch.setattr(stream, "best_layout", lambda w, pair: to_fragments(w, pair) if can_be_fragments(w) else w)
    monkeypatch.setattr(moe_int8, "is_hopper", lambda _: True)
    monkeypatch.setattr(fused_moe, "takes_pairs_in_int8", lambda *_: True)
    kernels = fused(config, weights)
    (layer,) = kernels._opened().layers
    assert isinstance(layer.mlp, FusedMoE)
    assert layer.mlp.in_int8
    assert 1e-4 < difference(kernels.extend(PROMPT, "all", go_on), wanted) < 0.05


@pytest.mark.parametrize(
    ("n_rows", "kind"), [(MOST_ROWS, Int8Rows), (FEW_ROWS, Int8Rows), (FEW_ROWS + 1, torch.Tensor)]
)
def test_short_prompts_meet_packed_weights_as_int8_and_long_ones_as_they_are(n_rows: int, kind: type) -> None:
    w = packed_matrix(FORMATS["mq4"].encode(torch.randn(8, 32)), FORMATS["mq4"], 32, DEVICE)
    rows, _ = stream.activations(torch.randn(n_rows, 32, device=DEVICE), None, w, torch.float32)
    assert isinstance(rows, kind)
    assert rows.shape == (n_rows, 32)


@pytest.mark.parametrize("is_int8", [False, True])
def test_a_stream_is_made_ready_as_the_matrix_that_reads_it_takes_it(
    is_int8: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def matrix() -> PackedMatrix:
        weights = FORMATS["mq4-uniform"].encode(torch.randn(256, 256) / 16)
        return to_fragments(packed_matrix(weights, FORMATS["mq4-uniform"], 256, DEVICE))

    w, reader = matrix(), stream.matrix_reader(matrix(), stream.Norm(gain=torch.ones(256, device=DEVICE), eps=1e-6))
    assert reader is not None
    monkeypatch.setattr(stream, "takes_int8", lambda of, _: is_int8 and of is reader.w)
    h, x = torch.randn(2, 256, device=DEVICE), torch.randn(2, 256, device=DEVICE)
    squares = Squares(parts=h.square(), size=256, eps=1e-6)
    before, product = stream.Stream(h=h.clone(), eps=1e-6, squares=squares), stream.Product(parts=(w,), biases=(None,))
    after = stream.add_branch(before, x, product, None, torch.float32, reader)
    assert isinstance(after.ready, Int8Blocks if is_int8 else Int8Fragments)
    torch.testing.assert_close(after.squares.parts.sum(1), after.h.square().sum(1))
    # Who reads it without a norm has it too.
    assert stream.normed(after, None, reader.w, torch.float32) == (after.ready, None)
    assert difference(after.h - h, rotate(x, w.rotation) @ dequantize_ref(w).T) < 0.02


@pytest.mark.parametrize("has_norm", [False, True])
@pytest.mark.parametrize(
    ("n_rows", "reads_int8", "kind"),
    [(2, True, Int8Blocks), (3, True, None), (2, False, Int8Fragments), (3, False, None)],
)
def test_rows_of_a_prompt_are_handed_on_up_to_as_many_as_their_reader_takes_so(
    n_rows: int, reads_int8: bool, kind: type | None, has_norm: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "FEW_ROWS", 2)
    monkeypatch.setattr(stream, "most_decoded_rows", lambda *_: 2)
    form = FORMATS["mq4-uniform"]

    def matrix(n: int, k: int) -> PackedMatrix:
        return to_fragments(packed_matrix(form.encode(torch.randn(n, k) / 16), form, 64, DEVICE))

    w, reader = matrix(64, 1024), stream.matrix_reader(matrix(16, 64), None)
    assert reader is not None
    monkeypatch.setattr(stream, "takes_int8", lambda of, _: reads_int8 or of is w)
    h, x = torch.randn(n_rows, 64, device=DEVICE), torch.randn(n_rows, 1024, device=DEVICE)
    before = stream.Stream(h=h, eps=1e-6, squares=Squares(parts=h.square(), size=64, eps=1e-6))
    after = stream.Norm(gain=torch.ones(64, device=DEVICE), eps=1e-6) if has_norm else None
    found = stream.add_branch(before, x, stream.Product(parts=(w,), biases=(None,)), after, torch.float32, reader)
    assert isinstance(found.ready, kind or type(None))


def test_splits_of_a_prompt_become_int8_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    form = FORMATS["mq4-uniform"]
    w = to_fragments(packed_matrix(form.encode(torch.randn(16, 256) / 16), form, 256, DEVICE))
    x = torch.randn(3, 256, device=DEVICE)
    monkeypatch.setattr(stream, "takes_int8", lambda *_: True)
    wanted, _ = stream.activations(x, None, w, torch.float32)
    monkeypatch.setattr(stream, "quantize_blocks", None)
    found, _ = stream.activations(only_split(x, 128), None, w, torch.float32)
    assert isinstance(found, Int8Blocks)
    assert isinstance(wanted, Int8Blocks)
    assert torch.equal(found.values(), wanted.values())


@pytest.mark.parametrize("is_int8", [False, True])
def test_a_product_of_a_prompt_comes_in_parts_or_whole_with_its_norm_and_bias(
    is_int8: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "takes_int8", lambda *_: is_int8)
    weights = FORMATS["mq4-uniform"].encode(torch.randn(64, 1024) / 16)
    w = to_fragments(packed_matrix(weights, FORMATS["mq4-uniform"], 256, DEVICE))
    product = stream.Product(parts=(w,), biases=(torch.randn(64, device=DEVICE),))
    h = torch.randn(20, 1024, device=DEVICE)
    before = stream.Stream(h=h, eps=1e-6, squares=Squares(parts=h.square(), size=1024, eps=1e-6))
    norm = stream.Norm(gain=torch.rand(1024, device=DEVICE), eps=1e-6)
    found = stream.multiply_in_parts(before, norm, product, torch.float32)
    assert isinstance(found, Parts) == is_int8
    whole = put_together_ref(found) if isinstance(found, Parts) else found
    torch.testing.assert_close(whole, stream.multiply(before, norm, product, torch.float32))


@pytest.mark.parametrize("layout", ["planes", "fragments"])
def test_a_product_of_few_rows_in_fragments_leaves_the_squares_of_what_it_gives(layout: str) -> None:
    weights = FORMATS["mq4-uniform"].encode(torch.randn(64, 256) / 16)
    w = packed_matrix(weights, FORMATS["mq4-uniform"], 256, DEVICE)
    product = stream.Product(parts=(to_fragments(w) if layout == "fragments" else w,), biases=(None,))
    h = torch.randn(3, 256, device=DEVICE)
    before = stream.Stream(h=h, eps=1e-6, squares=Squares(parts=h.square(), size=256, eps=1e-6))
    found, sums = stream.multiply_with_sums(before, None, product, torch.bfloat16)
    assert torch.equal(found, stream.multiply(before, None, product, torch.bfloat16))
    if layout == "planes":
        assert sums is None
    else:
        torch.testing.assert_close(sums, found.float().square().unflatten(1, (-1, 16)).sum(2))


class Replaying(Graphs):
    """Graphs where there is no GPU: a step that was noted is replayed by running it again."""

    def run_or_note(self, key: Hashable, step: Callable[[], Any], recorded: Callable[[], Any]) -> Any:
        if key in self._noted:
            return self._noted[key]()
        self._noted[key] = recorded
        return step()


def test_a_prompt_is_filled_up_and_replayed_and_gives_what_it_gives_alone(tiny: tuple[ModelConfig, Weights]) -> None:
    reference, filled = plain(*tiny), fused(*tiny, n_ctx=100)
    graphs = filled._graphs = Replaying(torch.device("cpu"))
    for first, n_tokens in ((0, 20), (0, 27), (27, 17), (27, 30), (0, 32)):
        prompt = [3 + (7 * i + first + n_tokens) % 50 for i in range(n_tokens)]
        for execution in (reference, filled):
            execution.cache.truncate(first)
        found, wanted = (execution.extend(prompt, "last", go_on) for execution in (filled, reference))
        assert filled.cache.length == first + n_tokens
        assert difference(found, wanted) < 1e-5, (first, n_tokens)
    assert list(graphs._noted) == [("prompt", 32, 0, False), ("prompt", 32, None, False)]


def test_a_prompt_is_as_long_as_it_is_where_there_is_no_room_and_where_the_device_takes_longest(
    tiny: tuple[ModelConfig, Weights], monkeypatch: pytest.MonkeyPatch
) -> None:
    reference, prompt = plain(*tiny), [3 + i % 50 for i in range(20)]
    wanted = reference.extend(prompt, "all", go_on)
    for n_ctx in (20, 100):
        if n_ctx == 100:
            monkeypatch.setattr(FusedDecoder, "waits_for_launches", lambda *_: False)
        exact = fused(*tiny, n_ctx=n_ctx)
        graphs = exact._graphs = Replaying(torch.device("cpu"))
        assert difference(exact.extend(prompt, "last", go_on), wanted[-1:]) < 1e-5
        assert not graphs._noted


@pytest.mark.parametrize(
    ("is_hopper", "waiting", "others"),
    [(True, [(2048, 0), (1536, 8192)], [(2048, 2048), (1792, 8192)]), (False, [(1280, 0)], [(1536, 0), (1024, 8192)])],
)
def test_large_models_and_long_prompts_do_not_wait_for_launches(
    tiny: tuple[ModelConfig, Weights],
    monkeypatch: pytest.MonkeyPatch,
    is_hopper: bool,
    waiting: list[tuple[int, int]],
    others: list[tuple[int, int]],
) -> None:
    monkeypatch.setattr("runner.backends.native.fused.is_hopper", lambda _: is_hopper)
    decoder = fused(*tiny)._opened()
    llama_8b = {
        "hidden_size": 4096, "intermediate_size": 14336, "num_heads": 32, "num_kv_heads": 8, "head_dim": 128,
        "num_layers": 32,
    }  # fmt: skip
    config = dataclasses.replace(decoder.decoder.config, **llama_8b)  # type: ignore[arg-type]
    decoder.layers *= 32
    decoder._token_products, decoder._mixed = _products_of(config, _last_kept(config))
    assert all(decoder.waits_for_launches(*prompt) for prompt in waiting)
    assert not any(decoder.waits_for_launches(*prompt) for prompt in others)


@pytest.mark.parametrize("kv_dtype", [torch.int8, torch.float16])
def test_a_smaller_kv_cache_costs_little(tiny: tuple[ModelConfig, Weights], kv_dtype: torch.dtype) -> None:
    reference, kernels = plain(*tiny), fused(*tiny, kv_dtype=kv_dtype)
    for tokens in (PROMPT, [9]):
        wanted = reference.extend(tokens, "last", go_on)
        assert difference(kernels.extend(tokens, "last", go_on), wanted) < 0.03
    assert kernels.cache.nbytes < reference.cache.nbytes


@pytest.mark.parametrize("params", [GREEDY, SamplingParams(temperature=1.2, seed=7)])
def test_the_token_after_a_prompt_is_chosen_on_the_device_as_the_host_would(
    tiny: tuple[ModelConfig, Weights], params: SamplingParams
) -> None:
    reference, kernels = plain(*tiny), fused(*tiny)
    history: list[int] = []
    for n_tokens in (17, 3):
        part = [3 + (7 * i + n_tokens) % 50 for i in range(n_tokens)]
        history += part
        chosen = kernels.last_choice(part, params, go_on)
        assert chosen is not None
        logits = reference.extend(part, "last", go_on)[0].cpu().numpy()
        assert chosen() == sample(logits, params, history, len(history))
        assert kernels.cache.length == len(history)
    assert kernels.last_choice([1], dataclasses.replace(params, presence_penalty=1.0), go_on) is None


@pytest.mark.parametrize("n_tokens", [1, 17])
def test_an_answer_that_is_written_anew_may_quote_the_one_before(
    tiny: tuple[ModelConfig, Weights], n_tokens: int
) -> None:
    kernels = fused(*tiny)
    said = [3 + i % 50 for i in range(40)]
    kernels.extend(said, "none", go_on)
    kernels.cache.truncate(3)
    assert kernels.last_choice(said[3 : 3 + n_tokens], GREEDY, go_on) is not None
    text = kernels._text
    earlier = text._all[: len(text._all) - len(text.ids)]
    assert earlier[int(text.begin) :].tolist() == said


def test_a_prompt_that_is_given_up_leaves_the_cache_as_it_was(tiny: tuple[ModelConfig, Weights]) -> None:
    kernels = fused(*tiny)

    def give_up() -> None:
        raise InterruptedError

    for n_tokens in (20, 3):
        with pytest.raises(InterruptedError):
            kernels.last_choice([1] * n_tokens, GREEDY, give_up)
        assert kernels.cache.length == 0


@pytest.mark.parametrize(
    "params", [GREEDY, SamplingParams(temperature=1.2, seed=7), SamplingParams(top_k=0, top_p=0.9, min_p=0, seed=2**40)]
)
def test_the_loop_on_the_device_gives_the_tokens_that_the_host_would(
    tiny: tuple[ModelConfig, Weights], params: SamplingParams
) -> None:
    reference, kernels = plain(*tiny), fused(*tiny)
    kernels.extend(PROMPT, "none", go_on)
    logits = reference.extend(PROMPT, "last", go_on)
    history = [*PROMPT, int(logits[0].argmax())]
    decoded = kernels.decode(history[-1], params, CancelToken())
    assert decoded is not None
    for _ in range(3):
        logits = reference.extend(history[-1:], "last", go_on)
        wanted = sample(logits[0].cpu().numpy(), params, history, len(history))
        assert next(decoded) == ((wanted,), ())
        history.append(wanted)
    decoded.close()
    assert kernels.cache.length == len(history)
    # What it left in the cache is the history, and nothing of the step that ran ahead.
    wanted = reference.extend(history[-1:], "last", go_on)
    kernels.cache.truncate(len(history) - 1)
    assert difference(kernels.extend(history[-1:], "last", go_on), wanted) < 2e-5


def test_decoding_that_cannot_be_recorded_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(tmp_path, "llama-tied", num_hidden_layers=1, vocab_size=tiny_models.VOCAB)
    model = tiny_models.ready(tmp_path)
    backend = tiny_models.load(model, ctx_size=64, warmup=False)
    config = read_config(tmp_path)
    backend._execution = kernels = fused(config, open_weights(model, config))
    monkeypatch.setattr(kernels._graphs, "_is_enabled", True)

    def full(*_: object) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(Graphs, "_capture", full)
    assert "recorded" not in backend.info.note
    backend.warm_up(CancelToken())
    assert "could not be recorded" in backend.info.note


def test_the_loop_ends_where_the_context_does(tiny: tuple[ModelConfig, Weights]) -> None:
    kernels = fused(*tiny, n_ctx=len(PROMPT) + 4)
    kernels.extend(PROMPT, "none", go_on)
    decoded = kernels.decode(1, GREEDY, CancelToken())
    assert decoded is not None
    # `token` takes one of the four places, and the last token of all needs none in the cache.
    assert len(list(decoded)) == 3
    assert kernels.cache.length == len(PROMPT) + 3


def test_a_cancelled_loop_keeps_what_it_gave(tiny: tuple[ModelConfig, Weights]) -> None:
    kernels, cancel = fused(*tiny), CancelToken()
    kernels.extend(PROMPT, "none", go_on)
    decoded = kernels.decode(1, GREEDY, cancel)
    assert decoded is not None
    next(decoded)
    cancel.cancel()
    assert list(decoded) == []
    assert kernels.cache.length == len(PROMPT) + 2


def test_penalties_are_left_to_the_host(tiny: tuple[ModelConfig, Weights]) -> None:
    kernels = fused(*tiny)
    assert kernels.decode(1, replace(GREEDY, repeat_penalty=1.1), CancelToken()) is None


def test_logits_that_are_no_numbers_are_an_error(tiny: tuple[ModelConfig, Weights]) -> None:
    kernels = fused(*tiny)
    kernels.extend(PROMPT, "none", go_on)
    kernels._opened().norm.gain.fill_(float("nan"))
    decoded = kernels.decode(1, GREEDY, CancelToken())
    assert decoded is not None
    with pytest.raises(BadModelFile, match="no token can be chosen"):
        next(decoded)


def test_a_cache_that_grows_keeps_what_it_holds(
    tiny: tuple[ModelConfig, Weights], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_cache, "BLOCK", 32)
    reference, kernels = plain(*tiny), fused(*tiny)
    tokens = list(range(30))
    for part, capacity in ((tokens, 32), (tokens[:20], 64)):
        wanted = reference.extend(part, "last", go_on)
        assert difference(kernels.extend(part, "last", go_on), wanted) < 2e-5
        assert kernels.cache.capacity == capacity


def test_a_cache_for_which_memory_runs_out_while_it_grows_goes_on_as_it_was(
    tiny: tuple[ModelConfig, Weights], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_cache, "BLOCK", 32)
    reference, kernels = plain(*tiny), fused(*tiny)
    tokens = list(range(30))
    kernels.extend(tokens, "last", go_on)
    grown, n_grown = kv_cache.KvCache._grown, 0

    def grown_once(cache: kv_cache.KvCache, old: torch.Tensor, capacity: int) -> torch.Tensor:
        nonlocal n_grown
        n_grown += 1
        if n_grown == 2:  # the first layer's values
            raise torch.OutOfMemoryError
        return grown(cache, old, capacity)

    with monkeypatch.context() as patch, pytest.raises(torch.OutOfMemoryError):
        patch.setattr(kv_cache.KvCache, "_grown", grown_once)
        kernels.extend(tokens[:20], "last", go_on)
    assert kernels.cache.capacity == 32
    kernels.cache.truncate(3)
    reference.extend(tokens[:3], "last", go_on)
    assert difference(kernels.extend([5], "last", go_on), reference.extend([5], "last", go_on)) < 2e-5
