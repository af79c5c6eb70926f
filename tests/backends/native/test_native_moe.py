"""Mixtures of experts against transformers: whole models, routing by itself, and how checkpoints fill the stacks."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel
from transformers.integrations.mxfp4 import convert_moe_packed_tensors
from transformers.models.gemma4.modeling_gemma4 import Gemma4TextConfig, Gemma4TextRouter
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeConfig, Qwen3MoeTopKRouter

from runner.backends import native
from runner.backends.native import stream
from runner.backends.native.fused_moe import FusedMoE
from runner.backends.native.kv_cache import KvCache
from runner.backends.native.loader import load_model
from runner.backends.native.model_files import read_config
from runner.backends.native.moe import MoE, ScaledRouter, clamped_swiglu, route
from runner.backends.native.places import places_of
from runner.config import LoadOptions
from runner.errors import BadModelFile, UnsupportedModel
from runner.kernels.fragments import can_be_fragments, to_fragments
from runner.kernels.values import MOST_ROWS, PackedMatrix
from runner.model_config import parse_model_config
from runner.quant.mq.packed_weights import PackedWeights
from runner.quant.mq.quantize import quantize_packed
from runner.quant.mq.recipe import Rule, recipe_of
from runner.quant.weights import SafetensorsWeights, open_weights
from runner.types import CancelToken
from tests.backends.conformance import take
from tests.backends.native.test_native_fused import PROMPT, difference, fused, plain
from tests.backends.native.test_native_logits import IDS, greedy, reference, relative_error, scores
from tests.backends.native.tiny_models import load, make, ready, save, stack_experts

MOES = ["qwen3-moe", "qwen3-moe-in-some-layers", "qwen3-moe-window", "gpt-oss", "gpt-oss-plain-rope", "qwen3-5-moe"]
MOES += ["gemma4-moe", "mixtral"]


def decoder(directory: Path, dtype: torch.dtype) -> Any:
    """The reference model of a directory, in that type."""
    config = read_config(directory)
    model = load_model(
        config,
        open_weights(ready(directory), config),
        dtype=dtype,
        device=torch.device("cpu"),
        on_progress=lambda _: None,
        cancel=CancelToken(),
    )

    def logits(ids: list[int]) -> np.ndarray[Any, Any]:
        cache = KvCache.of(config, n_ctx=256, dtype=dtype, device=torch.device("cpu"))
        cache.reserve(len(ids))
        with torch.inference_mode():
            rows: np.ndarray[Any, Any] = model.logits(model(torch.tensor(ids), cache, lambda: None)).numpy()
        return rows

    return model, logits


@pytest.mark.parametrize("name", MOES)
@pytest.mark.parametrize("batch_size", [1, 7])
def test_chunked_prefill_of_experts_equals_one_shot(name: str, batch_size: int, tmp_path: Path) -> None:
    directory = save(make(name), tmp_path)
    whole, chunked = load(ready(directory), batch_size=64), load(ready(directory), batch_size=batch_size)
    assert relative_error(scores(chunked, IDS), scores(whole, IDS)) < 5e-5  # what rounds a state stays in all of it
    assert take(chunked, IDS, 8) == take(whole, IDS, 8)


@pytest.mark.parametrize("name", ["qwen3-moe", "gpt-oss", "qwen3-5-moe", "gemma4-moe"])
def test_in_bfloat16_the_greedy_ids_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    """Where the float32 logits of the first and the second differ by 15 % of the largest: bfloat16 has 8 bits, three
    layers of it are off by 2 % mostly, and by 15 % where a token takes another expert, in transformers as here."""
    model = make(name).to(torch.bfloat16)
    directory = save(model, tmp_path)
    exact = type(model).from_pretrained(directory, dtype=torch.float32).eval()
    ids = [*IDS[:20], *greedy(exact, IDS[:20], 12)]
    wanted, found = reference(exact, ids), decoder(directory, torch.bfloat16)[1](ids)
    largest = np.abs(wanted).max()
    assert np.median(np.abs(found - wanted).max(axis=1)) < 0.03 * largest
    first, second = np.sort(wanted)[:, [-1, -2]].T
    is_clear = first - second > 0.15 * largest
    assert is_clear.sum() >= 5
    assert (found.argmax(1) == wanted.argmax(1))[is_clear].all()


# --- routing ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("normalize", [False, True])
def test_routing_is_that_of_transformers(normalize: bool) -> None:
    config = Qwen3MoeConfig(hidden_size=11, num_experts=11, num_experts_per_tok=4, norm_topk_prob=normalize)
    router = Qwen3MoeTopKRouter(config)
    torch.nn.init.eye_(router.weight)
    logits = torch.randn(50, 11, generator=torch.Generator().manual_seed(1)) * 3
    _, wanted, chosen = router(logits)
    weights, experts = route(logits, 4, "topk_softmax" if normalize else "softmax_topk")
    assert torch.equal(experts, chosen)
    torch.testing.assert_close(weights, wanted, atol=1e-6, rtol=1e-5)


def test_of_equal_logits_the_lower_expert_is_taken() -> None:
    weights, experts = route(torch.tensor([[1.0, 2.0, 1.0, 2.0, 1.0]]), 3, "topk_softmax")
    assert experts.tolist() == [[1, 3, 0]]
    assert weights[0, 0] == weights[0, 1] > weights[0, 2]


def test_the_clamped_activation_ends_where_gpt_oss_says() -> None:
    large = torch.tensor([-100.0, 100.0])
    assert clamped_swiglu(large, torch.zeros(2)).tolist() == pytest.approx([0.0, 7.0], abs=1e-4)
    assert clamped_swiglu(torch.tensor([7.0, 7.0]), large).tolist() == pytest.approx([-42.0, 56.0], abs=1e-3)


# --- stacks ----------------------------------------------------------------------------------------------------------


def test_experts_lie_in_the_stacks_as_the_checkpoint_names_them(tmp_path: Path) -> None:
    directory = save(make("qwen3-moe-in-some-layers"), tmp_path)
    tensors = load_file(directory / "model.safetensors")
    model, _ = decoder(directory, torch.float32)
    block = model.model.layers[2].mlp
    assert isinstance(block, MoE)
    experts = block.experts
    assert (experts.config.count, experts.config.per_token, experts.config.routing) == (7, 3, "softmax_topk")
    assert (experts.config.activation, block.router.bias) == ("silu", None)
    assert (experts.gate_up_bias, experts.down_bias) == (None, None)
    for expert in range(7):
        name = f"model.layers.2.mlp.experts.{expert}"
        gate, up = experts.gate_up[expert].chunk(2)
        assert torch.equal(gate, tensors[f"{name}.gate_proj.weight"])
        assert torch.equal(up, tensors[f"{name}.up_proj.weight"])
        assert torch.equal(experts.down[expert], tensors[f"{name}.down_proj.weight"])


@pytest.mark.parametrize("name", MOES)
def test_the_tensors_of_a_checkpoint_fill_every_parameter_once(name: str, tmp_path: Path) -> None:
    model, _ = decoder(save(make(name), tmp_path), torch.float32)
    filled = {parameter: torch.zeros(value.shape) for parameter, value in model.named_parameters()}
    for place in places_of(model).values():
        filled[place.parameter][place.part] += 1
    assert all(torch.equal(count, torch.ones(count.shape)) for count in filled.values())


def edit(directory: Path, changes: dict[str, Tensor | None]) -> None:
    path = directory / "model.safetensors"
    tensors = {**load_file(path), **changes}
    save_file({name: value for name, value in tensors.items() if value is not None}, path)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("2.up_proj.weight", None, r"lacks 'model\.layers\.1\.mlp\.experts\.2\.up_proj\.weight'"),
        ("7.up_proj.weight", torch.zeros(20, 48), r"does not: 'model\.layers\.1\.mlp\.experts\.7\.up_proj\.weight'"),
        ("2.down_proj.weight", torch.zeros(20, 48), r"experts\.2\.down_proj\.weight' of .* has shape \[20, 48\]"),
        ("2.down_proj.bias", torch.zeros(48), r"does not: 'model\.layers\.1\.mlp\.experts\.2\.down_proj\.bias'"),
    ],
)
def test_missing_extra_and_misshapen_experts_are_refused_by_name(
    name: str, value: Tensor | None, words: str, tmp_path: Path
) -> None:
    directory = save(make("qwen3-moe"), tmp_path)
    edit(directory, {f"model.layers.1.mlp.experts.{name}": value})
    with pytest.raises((BadModelFile, UnsupportedModel), match=words):
        load(ready(directory))


# --- Qwen3.5 as it is published --------------------------------------------------------------------------------------


def test_stacked_experts_are_those_that_are_named_one_by_one(tmp_path: Path) -> None:
    model = make("qwen3-5-moe")
    named, stacked = save(model, tmp_path / "named"), save(model, tmp_path / "stacked")
    stack_experts(stacked)
    config = read_config(stacked)
    wanted, found = (open_weights(ready(directory), config) for directory in (named, stacked))
    stored = load_file(stacked / "model.safetensors")
    for index, layer in enumerate(model.model.layers):
        for stack in ("gate_up_proj", "down_proj"):
            assert torch.equal(stored[f"model.layers.{index}.mlp.experts.{stack}"], getattr(layer.mlp.experts, stack))
    assert isinstance(found, SafetensorsWeights)
    assert (found.shapes, found.types, found.bits) == (wanted.shapes, wanted.types, wanted.bits)
    for name, shape in wanted.shapes.items():
        values = wanted.read(name)
        assert np.array_equal(found.read(name), values)
        assert np.array_equal(found.read_rows(name, 1, shape[0]), values[1:])
        place = found.stored(name)
        assert place is not None
        there = np.fromfile(place.path, np.float32, place.nbytes // 4, offset=place.offset)
        assert np.array_equal(there.reshape(place.shape), values)
    assert relative_error(scores(load(ready(stacked)), IDS), reference(model, IDS)) < 1e-4


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("experts.gate_up_proj", torch.zeros(6, 40, 48), "has 6 experts, not 7"),
        ("experts.gate_up_proj", torch.zeros(7, 48, 40), r"gate_proj\.weight' of .* has shape \[24, 40\]"),
        ("experts.down_proj", torch.zeros(7, 48), r"has shape \[7, 48\]"),
        ("experts.2.down_proj.weight", torch.zeros(48, 20), "is in the checkpoint twice"),
        (
            "experts.gate_up_proj_bias",
            torch.zeros(7, 40),
            r"does not: 'model\.layers\.1\.mlp\.experts\.0\.gate_proj\.bias",
        ),
        ("shared_expert.up_proj.weight", None, r"lacks 'model\.layers\.1\.mlp\.shared_expert\.up_proj\.weight'"),
        ("shared_expert_gate.weight", torch.zeros(48), r"shared_expert_gate\.weight' of .* has shape \[48\]"),
    ],
)
def test_damaged_experts_of_qwen_are_refused_by_name(
    name: str, value: Tensor | None, words: str, tmp_path: Path
) -> None:
    directory = save(make("qwen3-5-moe"), tmp_path)
    stack_experts(directory)
    edit(directory, {f"model.layers.1.mlp.{name}": value})
    with pytest.raises((BadModelFile, UnsupportedModel), match=words):
        load(ready(directory))


def test_stacks_in_fp8_are_refused_though_a_scale_is_beside_them(tmp_path: Path) -> None:
    directory = save(make("qwen3-5-moe"), tmp_path)
    stack_experts(directory)
    name = "model.layers.1.mlp.experts.down_proj"
    edit(directory, {name: torch.ones(7, 48, 20).to(torch.float8_e4m3fn), f"{name}_scale_inv": torch.ones(())})
    with pytest.raises(UnsupportedModel, match="is stored as F8_E4M3"):
        load(ready(directory))


# --- Gemma 4, whose experts are beside the MLP -----------------------------------------------------------------------


def test_the_router_of_gemma4_is_that_of_transformers() -> None:
    config = Gemma4TextConfig(
        hidden_size=24, enable_moe_block=True, num_experts=11, top_k_experts=4, moe_intermediate_size=8,
        hidden_size_per_layer_input=0, num_kv_shared_layers=0,
    )  # fmt: skip
    theirs, random = Gemma4TextRouter(config), torch.Generator().manual_seed(1)
    with torch.device("meta"):
        ours = ScaledRouter(parse_model_config(config.to_dict()))
    weights = {name: torch.randn(value.shape, generator=random) for name, value in theirs.state_dict().items()}
    theirs.load_state_dict(weights)
    ours.load_state_dict(weights, assign=True)
    rows = torch.randn(50, 24, generator=random) * 3
    _, wanted, chosen = theirs(rows)
    found, experts = ours(rows)
    assert torch.equal(experts, chosen)
    torch.testing.assert_close(found, wanted, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("experts.gate_up_proj", torch.zeros(6, 40, 48), "has 6 experts, not 7"),
        ("experts.gate_up_proj", torch.zeros(7, 48, 40), r"gate_proj\.weight' of .* has shape \[24, 40\]"),
        ("experts.down_proj", None, r"lacks 'model\.layers\.1\.experts\.0\.down_proj\.weight'"),
        ("router.proj.weight", None, r"lacks 'model\.layers\.1\.router\.proj\.weight'"),
        ("router.per_expert_scale", torch.zeros(6), r"router\.per_expert_scale' of .* has shape \[6\]"),
        ("router.proj.bias", torch.zeros(7), r"does not: 'model\.layers\.1\.router\.proj\.bias'"),
        ("post_feedforward_layernorm_1.weight", None, r"lacks .*post_feedforward_layernorm_1\.weight'"),
        ("mlp.up_proj.weight", None, r"lacks 'model\.layers\.1\.mlp\.up_proj\.weight'"),
    ],
)
def test_damaged_experts_of_gemma4_are_refused_by_name(
    name: str, value: Tensor | None, words: str, tmp_path: Path
) -> None:
    directory = save(make("gemma4-moe"), tmp_path)
    edit(directory, {f"model.layers.1.{name}": value})
    with pytest.raises((BadModelFile, UnsupportedModel), match=words):
        load(ready(directory))


def test_stacks_in_a_model_that_has_no_experts_are_not_passed_over(tmp_path: Path) -> None:
    directory = save(make("gemma4"), tmp_path)
    edit(directory, {"model.layers.1.experts.down_proj": torch.zeros(7, 48, 20)})
    with pytest.raises(UnsupportedModel, match=r"does not: 'model\.layers\.1\.experts\.down_proj'"):
        load(ready(directory))


# --- gpt-oss as it is published --------------------------------------------------------------------------------------


def as_mxfp4(model: PreTrainedModel, directory: Path) -> Path:
    """Save `model` with random MXFP4 experts, which it gets too, decoded by transformers."""
    random = torch.Generator().manual_seed(5)
    stacks: dict[str, Tensor | None] = {}
    with torch.no_grad():
        for index, layer in enumerate(model.model.layers):
            for stack in ("gate_up_proj", "down_proj"):
                values = getattr(layer.mlp.experts, stack)
                count, k, n = values.shape
                blocks = torch.randint(0, 256, (count, n, k // 32, 16), dtype=torch.uint8, generator=random)
                scales = torch.randint(122, 126, (count, n, k // 32), dtype=torch.uint8, generator=random)
                values.copy_(convert_moe_packed_tensors(blocks, scales, dtype=torch.float32))
                name = f"model.layers.{index}.mlp.experts.{stack}"
                stacks |= {name: None, f"{name}_blocks": blocks, f"{name}_scales": scales}
    save(model, directory)
    edit(directory, stacks)
    path = directory / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "quantization_config": {"quant_method": "mxfp4"}}))
    return directory


MXFP4_SHAPE = {"hidden_size": 64, "intermediate_size": 96}


def test_a_checkpoint_in_mxfp4_gives_the_logits_of_its_values(tmp_path: Path) -> None:
    model = make("gpt-oss", **MXFP4_SHAPE)
    backend = load(ready(as_mxfp4(model, tmp_path)))
    assert backend.info.quantization == "MXFP4"
    assert relative_error(scores(backend, IDS), reference(model, IDS)) < 1e-4
    assert take(backend, IDS[:20], 12) == greedy(model, IDS[:20], 12)
    assert backend.info.num_parameters == sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("gate_up_proj_scales", lambda _: None, "has no 'model.layers.1.mlp.experts.gate_up_proj_scales' beside it"),
        ("gate_up_proj_blocks", lambda _: None, "has no blocks beside it"),
        ("down_proj_scales", lambda x: x[..., :1].contiguous(), "and its scales"),
        ("down_proj_blocks", lambda x: x.to(torch.int8), "is stored as I8"),
        ("gate_up_proj_bias", lambda x: x[:4].contiguous(), "has 4 experts, not 7"),
        ("gate_up_proj_bias", lambda x: x[:, :, None].contiguous(), r"has shape \[7, 192, 1\]"),
        ("down_proj", lambda _: torch.zeros(7, 96, 64), "is in the checkpoint twice"),
        ("0.up_proj.bias", lambda _: torch.zeros(96), "is in the checkpoint twice"),
        ("down_proj_bias", lambda x: x[:, :63].contiguous(), r"experts\.0\.down_proj\.bias' of .* has shape \[63\]"),
    ],
)
def test_damaged_stacks_of_experts_are_refused_by_name(name: str, change: Any, words: str, tmp_path: Path) -> None:
    directory = as_mxfp4(make("gpt-oss", **MXFP4_SHAPE), tmp_path)
    full = f"model.layers.1.mlp.experts.{name}"
    edit(directory, {full: change(load_file(directory / "model.safetensors").get(full))})
    with pytest.raises((BadModelFile, UnsupportedModel), match=words):
        load(ready(directory))


def test_stacks_of_a_model_that_names_its_experts_are_refused(tmp_path: Path) -> None:
    directory = save(make("qwen3-moe"), tmp_path)
    edit(directory, {"model.layers.0.mlp.experts.gate_up_proj": torch.zeros(7, 48, 40)})
    assert "config" not in (native.refusal(ready(directory), LoadOptions()) or "")
    with pytest.raises(UnsupportedModel, match=r"model\.layers\.0\.mlp\.experts\.gate_up_proj"):
        load(ready(directory))


# --- as the kernels compute them -------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # rows that fill a block hold anything, and sums of it overflow
@pytest.mark.parametrize("layout", ["planes", "fragments"])
@pytest.mark.parametrize(
    ("name", "format_of_gate"),
    [
        ("qwen3-moe", "mq4"),
        ("gpt-oss", "mq6"),
        ("qwen3-5-moe", "mq4"),
        ("qwen3-5-moe", "mq6"),
        ("gemma4-moe", "mq4"),
        ("gemma4-moe", "mq6"),
    ],
)
def test_packed_experts_stay_packed_and_give_what_their_values_do(
    name: str, format_of_gate: str, layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gate and up are one product where their formats agree, and two where they do not."""
    monkeypatch.setattr(stream, "FEW_ROWS", MOST_ROWS)  # so that the prompt is a long one
    if layout == "fragments":
        monkeypatch.setattr(stream, "best_layout", lambda w, pair: to_fragments(w, pair) if can_be_fragments(w) else w)
    k = 64 if layout == "fragments" else 32
    count = {"num_experts": 3, "moe_intermediate_size": k} if name != "gpt-oss" else {"num_local_experts": 3}
    count |= {"shared_expert_intermediate_size": k} if name == "qwen3-5-moe" else {}
    small = {"hidden_size": k, "intermediate_size": k, "head_dim": 8, "num_hidden_layers": 1, "vocab_size": 61}
    count |= {"top_k_experts": 2, "global_head_dim": 8} if name == "gemma4-moe" else {"num_experts_per_tok": 2}
    save(make(name, **small, **count, bos_token_id=1, eos_token_id=2), tmp_path / "source")
    recipe = recipe_of("mq4")
    rule = Rule(tensors="*.gate_proj.weight", format=format_of_gate)
    recipe = replace(recipe, rules=(*recipe.rules[:-1], rule, recipe.rules[-1]))
    packed, cpu = tmp_path / "packed", torch.device("cpu")
    quantize_packed(tmp_path / "source", recipe, packed, device=cpu, on_stage=lambda *_: None)
    config, weights = read_config(packed), PackedWeights(packed)
    kernels, reference = fused(config, weights), plain(config, weights)
    layer = kernels._opened().layers[0]
    experts = layer.mlp if layer.beside is None else layer.beside.experts
    assert isinstance(experts, FusedMoE)
    stacks = [w for w, _ in (*experts.gate_up, experts.down)]
    assert len(stacks) == (2 if format_of_gate == "mq4" else 3)
    assert {w.layout for w in stacks if isinstance(w, PackedMatrix)} == {layout}
    for tokens, tolerance in ((PROMPT, 1e-4), ([9], 0.05)):  # decoding rounds activations to int8
        wanted = reference.extend(tokens, "all", lambda: None)
        assert difference(kernels.extend(tokens, "all", lambda: None), wanted) < tolerance


@pytest.mark.parametrize(("name", "expert"), [("qwen3-moe", "experts.1"), ("qwen3-5-moe", "shared_expert")])
def test_experts_of_one_layer_in_different_formats_are_refused_with_the_remedy(
    name: str, expert: str, tmp_path: Path
) -> None:
    small = {"hidden_size": 32, "intermediate_size": 32, "head_dim": 8, "num_hidden_layers": 1, "num_experts": 3}
    small |= {"shared_expert_intermediate_size": 32} if name == "qwen3-5-moe" else {}
    save(make(name, **small, moe_intermediate_size=32, num_experts_per_tok=2), tmp_path / "source")
    recipe = recipe_of("mq4")
    rule = Rule(tensors=f"*.{expert}.down_proj.weight", format="mq6")
    recipe = replace(recipe, rules=(*recipe.rules[:-1], rule, recipe.rules[-1]))
    packed, cpu = tmp_path / "packed", torch.device("cpu")
    quantize_packed(tmp_path / "source", recipe, packed, device=cpu, on_stage=lambda *_: None)
    with pytest.raises(UnsupportedModel, match="down_proj in different formats") as caught:
        fused(read_config(packed), PackedWeights(packed))
    assert "-ngl 0" in caught.value.hint


@pytest.mark.parametrize(("width", "is_refused"), [(20, False), (28, True)])
def test_a_shared_expert_of_another_width_is_refused_on_a_gpu_with_a_remedy(
    width: int, is_refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = ready(save(make("qwen3-5-moe", shared_expert_intermediate_size=width), tmp_path))
    assert native.refusal(model, LoadOptions(n_gpu_layers=0)) is None
    monkeypatch.setattr(native, "_has_kernels", lambda: True)
    reason = native.refusal(model, LoadOptions())
    assert (reason is not None) == is_refused
    if reason is not None:
        assert "it has 28 columns and they 20. Use -ngl 0" in reason
