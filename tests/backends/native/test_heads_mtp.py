"""The multi-token head of a checkpoint: its layouts, what it computes, and drafting by it on the native backend."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tiny_heads import GREEDY, Always, Limit, add_tensors, take
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from runner.backends.native.heads.mtp_files import load_mtp
from runner.backends.native.kv_cache import KvCache
from runner.backends.native.model_files import read_config
from runner.config import SamplingParams
from runner.errors import UnsupportedModel
from runner.quant.mq.quantize import quantize_packed
from runner.quant.mq.recipe import recipe_of
from runner.quant.packed_files import HEAD_NAME
from runner.types import CancelToken, ReadyModel
from tests.backends.native.tiny_models import VOCAB, load, make, ready, save

N_LAYERS, HIDDEN = 3, 48
PROMPT = [int(token) for token in torch.randint(0, 256, (30,), generator=torch.Generator().manual_seed(4))]
SAMPLED = SamplingParams(temperature=1.0, seed=5)
# By layout: the model, what goes before the head's names, and its names of: the norms of embedding and state, the
# projection, the layer, the norm at the end.
LAYOUTS = {
    "nextn": ("qwen3", f"model.layers.{N_LAYERS}.", ("enorm", "hnorm", "eh_proj", "", "shared_head.norm")),
    "nextn-experts": ("qwen3-moe", f"model.layers.{N_LAYERS}.", ("enorm", "hnorm", "eh_proj", "", "shared_head.norm")),
    "mimo": (
        "qwen2",
        "model.mtp_layers.0.",
        ("token_layernorm", "hidden_layernorm", "input_proj", "", "final_layernorm"),
    ),
    "mtp": ("llama-tied", "mtp.", ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "fc", "layers.0.", "norm")),
    "mtp of Qwen3.5": (
        "qwen3-5",
        "mtp.",
        ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "fc", "layers.0.", "norm"),
    ),
}


# A head's layer is one of attention.
LAYERS = {"qwen3-5": {"layer_types": ["linear_attention", "full_attention", "full_attention"]}}


def without_head(directory: Path, layout: str) -> ReadyModel:
    model_name = LAYOUTS[layout][0]
    return ready(save(make(model_name, max_position_embeddings=512, **LAYERS.get(model_name, {})), directory))


def with_head(directory: Path, layout: str, **more: Tensor) -> ReadyModel:
    """A tiny model whose checkpoint has a head in that layout, its layer a copy of the model's last but for noise."""
    _, base, (enorm, hnorm, projection, layer, norm) = LAYOUTS[layout]
    without_head(directory, layout)
    if layout == "mimo":
        edit_config(directory, model_type="mimo", architectures=["MiMoForCausalLM"], use_mrope=False)
    edit_config(directory, num_nextn_predict_layers=1)
    generator = torch.Generator().manual_seed(8)

    def noise(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator) * 0.2

    last = f"model.layers.{N_LAYERS - 1}."
    stored = load_file(directory / "model.safetensors")
    head = {
        f"{base}{layer}{name.removeprefix(last)}": tensor + noise(*tensor.shape)
        for name, tensor in stored.items()
        if name.startswith(last)
    }
    head |= {f"{base}{name}.weight": 1 + noise(HIDDEN) for name in (enorm, hnorm, norm)}
    head[f"{base}{projection}.weight"] = noise(HIDDEN, 2 * HIDDEN)
    add_tensors(directory, head | more)
    return ready(directory)


def edit_config(directory: Path, **changes: Any) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def tensors_of(model: ReadyModel) -> dict[str, Tensor]:
    return load_file(model.weights[0])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_model_runs_as_if_the_head_were_not_there(layout: str, tmp_path: Path) -> None:
    model = with_head(tmp_path / "with", layout)
    assert take(load(model), PROMPT, 12) == take(load(without_head(tmp_path / "without", layout)), PROMPT, 12)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_drafts_do_not_change_the_text(layout: str, tmp_path: Path) -> None:
    backend = load(with_head(tmp_path, layout), batch_size=16)
    for params in (GREEDY, SAMPLED):
        plain = take(backend, PROMPT, 25, params)
        speculator = Always(backend.head_drafter("mtp", None), 3)
        assert take(backend, PROMPT, 25, params, speculator) == plain
        assert speculator.n_drafted >= 40


@pytest.mark.parametrize("layout", LAYOUTS)
def test_it_is_in_step_after_rounds_and_a_cancelled_request(layout: str, tmp_path: Path) -> None:
    model = with_head(tmp_path, layout)
    backend = load(model, batch_size=16)
    drafter = backend.head_drafter("mtp", None)
    steps = backend.generate(PROMPT, GREEDY, CancelToken(), Always(drafter))
    next(steps)
    steps.close()
    history = [*PROMPT, *take(backend, PROMPT, 9, SAMPLED, Always(drafter, 3))]
    other = load(model, batch_size=512)
    fresh = other.head_drafter("mtp", None)
    other.extend(history[:-1], CancelToken())
    wanted = fresh.propose(history, GREEDY, Limit(5))
    assert drafter.propose(history, GREEDY, Limit(5)) == wanted
    assert len(wanted) == 5


# --- what it computes ------------------------------------------------------------------------------------------------


def normed(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * weight


@pytest.mark.parametrize("layout", ["nextn", "mimo", "mtp"])
def test_a_row_is_what_transformers_layer_makes_of_the_joined_parts(layout: str, tmp_path: Path) -> None:
    """The head's layer as the last of a model of transformers, whose embeddings are the joined rows."""
    model = with_head(tmp_path, layout)
    config = read_config(tmp_path)
    head = load_mtp(model, config, dtype=torch.float32, device=torch.device("cpu"))
    model_name, base, (enorm, hnorm, projection, layer, norm) = LAYOUTS[layout]
    stored = tensors_of(model)
    generator = torch.Generator().manual_seed(1)
    states, embeddings = (torch.randn(6, HIDDEN, generator=generator) for _ in range(2))
    seen = embeddings.clone()
    if layout != "mtp":
        seen[0] = 0
    e, h = (normed(x, stored[f"{base}{name}.weight"]) for x, name in ((seen, enorm), (states, hnorm)))
    joined = torch.cat((h, e) if layout == "mimo" else (e, h), -1) @ stored[f"{base}{projection}.weight"].T
    wanted = normed(one_layer(model_name, stored, f"{base}{layer}", joined), stored[f"{base}{norm}.weight"])

    cache = KvCache(
        layers=[config.heads(0)],
        n_ctx=32,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    with torch.inference_mode():
        whole = head.extend(states, embeddings, cache)
        cache.truncate(0)
        in_steps = [head.extend(states[i : i + 1], embeddings[i : i + 1], cache)[0] for i in range(6)]
    torch.testing.assert_close(whole, wanted, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(torch.stack(in_steps), whole, atol=1e-4, rtol=1e-4)


def one_layer(model_name: str, stored: dict[str, Tensor], base: str, x: Tensor) -> Tensor:
    """x [T, hidden] through the layer with these tensors, by transformers."""
    reference = make(model_name, num_hidden_layers=1, max_position_embeddings=512)
    names = reference.model.layers[0].state_dict()
    reference.model.layers[0].load_state_dict({name: stored[base + name] for name in names})
    reference.model.norm = torch.nn.Identity()
    with torch.inference_mode():
        found: Tensor = reference.model(inputs_embeds=x[None]).last_hidden_state[0]
    return found


def test_a_head_may_have_an_output_matrix_of_its_own(tmp_path: Path) -> None:
    own = torch.randn(VOCAB, HIDDEN)
    base = f"model.layers.{N_LAYERS}."
    copies = {f"{base}shared_head.head.weight": own, f"{base}embed_tokens.weight": torch.zeros(VOCAB, HIDDEN)}
    model = with_head(tmp_path, "nextn", **copies)
    head = load_mtp(model, read_config(tmp_path), dtype=torch.float32, device=torch.device("cpu"))
    state = torch.randn(1, HIDDEN)
    torch.testing.assert_close(head.logits(state), state @ own.T)


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layout", "name", "shape", "words"),
    [
        ("nextn", "self_attn.kv_a_proj_with_mqa.weight", (8, HIDDEN), r"latent attention \(MLA\)"),
        ("nextn", "mlp.shared_experts.up_proj.weight", (8, HIDDEN), "shared experts"),
        ("mtp", "layers.0.linear_attn.in_proj.weight", (8, HIDDEN), "linear attention"),
        ("mtp", "layers.0.self_attn.q_proj.weight", (96, HIDDEN), r"has shape \[96, 48\]"),
        ("mtp", "something.weight", (3,), r"mtp\.something\.weight"),
        ("nextn", "self_attn.sinks", (6,), r"self_attn\.sinks"),
    ],
)
def test_a_layer_of_another_kind_is_refused_by_name(
    layout: str, name: str, shape: tuple[int, ...], words: str, tmp_path: Path
) -> None:
    model = with_head(tmp_path, layout, **{LAYOUTS[layout][1] + name: torch.ones(shape)})
    backend = load(model)
    with pytest.raises(UnsupportedModel, match=words) as caught:
        backend.head_drafter("mtp", None)
    assert caught.value.hint
    assert len(take(backend, PROMPT, 2)) == 2, "the model runs without its head"


def test_a_model_without_a_head_says_so(tmp_path: Path) -> None:
    backend = load(ready(save(make("qwen3"), tmp_path)))
    with pytest.raises(UnsupportedModel, match="has no multi-token head"):
        backend.head_drafter("mtp", None)


def test_other_extra_layers_are_still_refused(tmp_path: Path) -> None:
    save(make("qwen3"), tmp_path)
    add_tensors(tmp_path, {f"model.layers.{N_LAYERS}.input_layernorm.weight": torch.ones(HIDDEN)})
    with pytest.raises(UnsupportedModel, match="has tensors that a qwen3 model does not"):
        load(ready(tmp_path))


# --- MiMo ------------------------------------------------------------------------------------------------------------


def test_a_mimo_model_computes_what_a_qwen2_model_does(tmp_path: Path) -> None:
    model = with_head(tmp_path, "mimo")
    reference = AutoModelForCausalLM.from_config(
        AutoConfig.for_model("qwen2", **{k: v for k, v in config_of(tmp_path).items() if k != "model_type"})
    ).eval()
    own = {name: tensor for name, tensor in tensors_of(model).items() if "mtp" not in name}
    reference.load_state_dict(own, strict=False)
    with torch.inference_mode():
        wanted = reference(torch.tensor([PROMPT])).logits[0]
    found = torch.tensor([logits.values.tolist() for logits in load(model).score(PROMPT)])
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)


def config_of(directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((directory / "config.json").read_text())
    return {key: value for key, value in found.items() if key not in ("architectures", "use_mrope")}


def test_mimo_with_three_positions_a_token_is_refused(tmp_path: Path) -> None:
    with_head(tmp_path, "mimo")
    edit_config(tmp_path, use_mrope=True)
    with pytest.raises(UnsupportedModel, match="use_mrope"):
        read_config(tmp_path)


# --- quantized models ------------------------------------------------------------------------------------------------


def packed(source: Path, output: Path, **options: Any) -> ReadyModel:
    quantize_packed(source, recipe_of("mq8"), output, device=torch.device("cpu"), on_stage=lambda *_: None, **options)
    weights = output / "model.safetensors"
    return ReadyModel(name="packed", format="packed", weights=(weights,), directory=output, size_bytes=1)


@pytest.mark.parametrize("layout", ["nextn", "mimo"])
def test_a_quantized_model_keeps_its_head_as_it_was(layout: str, tmp_path: Path) -> None:
    source = with_head(tmp_path / "source", layout)
    model = packed(source.directory, tmp_path / "packed")
    wanted = {name: tensor for name, tensor in tensors_of(source).items() if name.startswith(LAYOUTS[layout][1])}
    found = load_file(model.directory / HEAD_NAME)
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in wanted.items())
    assert int.from_bytes((model.directory / HEAD_NAME).read_bytes()[:8], "little") % 8 == 0  # tensors are aligned
    manifest = json.loads((model.directory / "runner.json").read_text())
    assert manifest["files"][HEAD_NAME]["size_bytes"] == (model.directory / HEAD_NAME).stat().st_size
    backend = load(model)
    plain = take(backend, PROMPT, 15)
    assert take(backend, PROMPT, 15, speculator=Always(backend.head_drafter("mtp", None))) == plain


def test_a_folded_model_has_no_head(tmp_path: Path) -> None:
    source = with_head(tmp_path / "source", "mtp")
    model = packed(source.directory, tmp_path / "packed", rotation="folded")
    assert not (model.directory / HEAD_NAME).exists()
    with pytest.raises(UnsupportedModel, match="rotated basis"):
        load(model).head_drafter("mtp", None)


def test_a_model_without_a_head_has_no_file_of_one(tmp_path: Path) -> None:
    model = packed(save(make("llama-tied"), tmp_path / "source"), tmp_path / "packed")
    assert not (model.directory / HEAD_NAME).exists()
