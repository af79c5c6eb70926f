"""The EAGLE-3 head: what it computes, in both forms, and its files."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_heads import eagle3_head
from torch import Tensor

from runner.backends.native.heads.eagle3 import Eagle3Head
from runner.backends.native.heads.eagle3_config import default_capture, eagle3_for, parse_eagle3_config
from runner.backends.native.heads.eagle3_files import load_eagle3, save_eagle3
from runner.backends.native.kv_cache import KvCache
from runner.errors import BadModelFile, UnsupportedModel
from runner.model_config import HeadSizes, ModelConfig, parse_model_config

TARGET: ModelConfig = parse_model_config(
    {
        "model_type": "qwen3",
        "vocab_size": 61,
        "hidden_size": 32,
        "intermediate_size": 44,
        "num_hidden_layers": 8,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 10,
        "rope_theta": 700.0,
    }
)
VARIANTS = {
    "eagle3": {},
    "norm_output": {"norm_output": True},
    "fc_norm": {"fc_norm": True},
    "both": {"norm_output": True, "fc_norm": True},
    "norm_before_fc": {"norm_before_fc": True},
    "norm_before_residual": {"norm_before_residual": True},
}
N_ROWS, N_STEPS = 9, 4


def made(**changes: bool) -> Eagle3Head:
    return eagle3_head(TARGET, draft_vocab_size=23, **changes)


def inputs(batch: int = 2, length: int = N_ROWS + N_STEPS) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    return (
        torch.randn(batch, length, 3 * TARGET.hidden_size, generator=generator),
        torch.randn(batch, length, TARGET.hidden_size, generator=generator),
    )


def one_layer_cache() -> KvCache:
    return KvCache(
        layers=[HeadSizes(num_kv_heads=2, head_dim=10)], n_ctx=64, dtype=torch.float32, device=torch.device("cpu")
    )


# --- what it computes ------------------------------------------------------------------------------------------------


class Published:
    """The head as the EAGLE-3 paper and its checkpoints describe it, a row at a time, with nothing of ours."""

    def __init__(self, tensors: dict[str, Tensor], flags: dict[str, bool]) -> None:
        self.w, self.flags = tensors, flags
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []

    def norm(self, x: Tensor, name: str) -> Tensor:
        return x / torch.sqrt((x * x).mean() + TARGET.rms_norm_eps) * self.w[f"{name}.weight"]

    def turned(self, head: Tensor, position: int) -> Tensor:
        half = len(head) // 2
        angles = torch.tensor([position * 700.0 ** (-2 * i / len(head)) for i in range(half)])
        pairs = torch.complex(head[:half], head[half:]) * torch.exp(1j * angles)
        return torch.cat((pairs.real, pairs.imag))

    def fused(self, captured: Tensor) -> Tensor:
        if self.flags.get("fc_norm"):
            captured = torch.cat([self.norm(part, f"fc_norm.{i}") for i, part in enumerate(captured.chunk(3))])
        if self.flags.get("norm_before_fc"):
            captured = self.norm(captured, "input_norm")
        return self.w["fc.weight"] @ captured

    def row(self, state: Tensor, embedding: Tensor) -> tuple[Tensor, Tensor]:
        """What is fed back, and the logits of the next row; its keys and values are appended."""
        layer = "midlayer."
        normed = self.norm(state, layer + "hidden_norm")
        joined = torch.cat((self.norm(embedding, layer + "input_layernorm"), normed))
        q, k, v = ((self.w[f"{layer}self_attn.{name}_proj.weight"] @ joined).view(-1, 10) for name in "qkv")
        position = len(self.keys)
        self.keys.append(torch.stack([self.turned(head, position) for head in k]))
        self.values.append(v)
        mixed = []
        for index, head in enumerate(q):
            group = index // 3
            query = self.turned(head, position)
            weights = torch.stack([query @ keys[group] / math.sqrt(10) for keys in self.keys]).softmax(0)
            mixed.append(sum(weight * values[group] for weight, values in zip(weights, self.values, strict=True)))
        x = (normed if self.flags.get("norm_before_residual") else state) + self.w[
            f"{layer}self_attn.o_proj.weight"
        ] @ torch.cat(mixed)
        y = self.norm(x, layer + "post_attention_layernorm")
        gate, up = (self.w[f"{layer}mlp.{name}_proj.weight"] @ y for name in ("gate", "up"))
        x = x + self.w[f"{layer}mlp.down_proj.weight"] @ (gate * torch.sigmoid(gate) * up)
        logits = self.w["lm_head.weight"] @ self.norm(x, "norm")
        return (self.norm(x, "norm") if self.flags.get("norm_output") else x), logits


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_head_is_what_the_paper_and_its_checkpoints_describe(variant: str) -> None:
    head = made(**VARIANTS[variant])
    captured, embeddings = (part[0] for part in inputs())
    published = Published(dict(head.named_parameters()), VARIANTS[variant])
    cache = one_layer_cache()
    with torch.inference_mode():
        states = head.extend(head.fuse(captured[:N_ROWS]), embeddings[1 : N_ROWS + 1], cache)
        for i in range(N_ROWS):
            wanted, logits = published.row(published.fused(captured[i]), embeddings[i + 1])
            torch.testing.assert_close(states[i], wanted, atol=2e-5, rtol=2e-5)
            torch.testing.assert_close(head.logits(states[i]), logits, atol=2e-5, rtol=2e-5)
        state = states[-1:]
        for step in range(N_STEPS - 1):  # it goes on from its own states
            embedding = embeddings[N_ROWS + 1 + step]
            state = head.extend(state, embedding[None], cache)
            wanted, logits = published.row(wanted, embedding)
            torch.testing.assert_close(state[0], wanted, atol=5e-5, rtol=5e-5)
            torch.testing.assert_close(head.logits(state)[0], logits, atol=5e-5, rtol=5e-5)


@pytest.mark.parametrize("variant", VARIANTS)
def test_training_sees_in_every_row_what_drafting_sees(variant: str) -> None:
    head = made(**VARIANTS[variant])
    captured, embeddings = inputs()
    with torch.inference_mode():
        unrolled = list(head.unroll(captured, embeddings, N_STEPS))
        for sequence in range(2):
            for row in (0, 1, N_ROWS - 1):
                cache = one_layer_cache()
                own = embeddings[sequence]
                state = head.extend(head.fuse(captured[sequence, : row + 1]), own[1 : row + 2], cache)[-1:]
                for step in range(N_STEPS):
                    torch.testing.assert_close(unrolled[step][sequence, row], state[0], atol=5e-5, rtol=5e-5)
                    if step + 1 < N_STEPS:
                        state = head.extend(state, own[row + 2 + step][None], cache)


def test_a_row_less_is_there_in_every_step_of_training() -> None:
    lengths = [states.shape[1] for states in made().unroll(*inputs(length=5), 9)]
    assert lengths == [4, 3, 2, 1]


def test_training_reaches_every_parameter() -> None:
    head = made(norm_output=True, fc_norm=True).requires_grad_(True)
    loss = sum(head.logits(states).square().mean() for states in head.unroll(*inputs(), 2))
    loss.backward()  # type: ignore[union-attr]
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in head.parameters())


def test_the_draft_vocabulary_is_kept_as_distances() -> None:
    head = made()
    ids = torch.arange(0, 46, 2)
    head.set_vocabulary(ids)
    assert head.d2t.tolist() == list(range(23))
    assert torch.equal(head.target_ids, ids)
    assert head.t2d.nonzero().flatten().tolist() == ids.tolist()


# --- its configuration -----------------------------------------------------------------------------------------------

PUBLIC: dict[str, Any] = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 32,
    "intermediate_size": 44,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "max_position_embeddings": 2048,
    "max_window_layers": 36,
    "use_sliding_window": False,
    "sliding_window": None,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 61,
    "draft_vocab_size": 23,
}
SPECULATORS: dict[str, Any] = {
    "architectures": ["Eagle3Speculator"],
    "speculators_model_type": "eagle3",
    "speculators_version": "0.3.0",
    "speculators_config": {"algorithm": "eagle3"},
    "draft_vocab_size": 23,
    "norm_before_residual": True,
    "target_hidden_size": None,
    "eagle_aux_hidden_state_layer_ids": [2, 18, 33],
    "transformer_layer_config": {
        key: value
        for key, value in PUBLIC.items()
        if key not in ("architectures", "draft_vocab_size", "num_hidden_layers", "max_window_layers")
    },
}


def test_the_config_of_a_public_checkpoint_is_read() -> None:
    config = parse_eagle3_config(PUBLIC)
    assert (config.hidden_size, config.target_hidden_size, config.draft_vocab_size) == (32, 32, 23)
    assert (config.layer.head_dim, config.layer.rope_theta, config.num_captured) == (10, 10000.0, 3)
    assert not any((config.norm_output, config.fc_norm, config.norm_before_fc, config.norm_before_residual))
    assert config.captured(36) == (2, 18, 33)


def test_how_many_states_are_captured_may_be_left_open() -> None:
    assert parse_eagle3_config({**PUBLIC, "num_aux_hidden_states": None}).num_captured == 3


def test_the_config_of_the_speculators_library_is_read() -> None:
    config = parse_eagle3_config(SPECULATORS)
    assert (config.layer.num_layers, config.draft_vocab_size, config.norm_before_residual) == (1, 23, True)
    assert config.captured(40) == (2, 18, 33)


def test_layers_are_counted_or_named_by_where_they_are_said() -> None:
    named = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 17, 32]}}
    counted = {"eagle_aux_hidden_state_layer_ids": [2, 18, 33]}
    for said in (named, counted, {**named, **counted}):
        assert parse_eagle3_config({**PUBLIC, **said}).capture_layers == (2, 18, 33)


def test_the_states_of_a_target_of_another_width_are_read() -> None:
    config = parse_eagle3_config({**PUBLIC, "target_hidden_size": 64, "fc_norm": True})
    head = Eagle3Head(config, has_embeddings=True)
    assert head.fc.weight.shape == (32, 192)
    assert [len(norm.weight) for norm in head.fc_norm or ()] == [64, 64, 64]


def test_a_small_target_gives_three_different_layers() -> None:
    assert [default_capture(n) for n in (36, 8, 6, 3)] == [(2, 18, 33), (2, 4, 5), (1, 3, 5), (1, 1, 2)]
    config = eagle3_for(TARGET, draft_vocab_size=23, norm_output=True, fc_norm=False)
    assert (config.capture_layers, config.layer.rope_theta, config.layer.qk_norm) == ((2, 4, 5), 700.0, "none")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"architectures": ["Eagle3DeepseekV2ForCausalLM"]}, "Eagle3DeepseekV2ForCausalLM"),
        ({"model_type": "deepseek_v3"}, "deepseek_v3"),
        ({"num_hidden_layers": 2}, "num_hidden_layers"),
        ({"parallel_drafting": True}, "parallel_drafting"),
        ({"eagle_config": {"use_aux_hidden_state": False}}, "use_aux_hidden_state"),
        ({"speculators_model_type": "dflash"}, "dflash"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings"),
    ],
)
def test_another_kind_of_head_is_refused_by_name(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UnsupportedModel, match=words) as caught:
        parse_eagle3_config({**PUBLIC, **changes})
    assert caught.value.hint


def test_layers_that_the_model_lacks_are_refused() -> None:
    config = parse_eagle3_config({**PUBLIC, "eagle_aux_hidden_state_layer_ids": [2, 18, 33]})
    with pytest.raises(UnsupportedModel, match="the model has 24 layers"):
        config.captured(24)


# --- its files -------------------------------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    save_eagle3(made(fc_norm=True, norm_output=True), tmp_path / "head", dtype=torch.float32)
    return tmp_path / "head"


def rewrite(directory: Path, **changes: Tensor | None) -> None:
    """Add, replace or (None) remove tensors; "__" in a name stands for "."."""
    tensors = load_file(directory / "model.safetensors")
    for name, value in changes.items():
        tensors.pop(name.replace("__", "."), None)
        if value is not None:
            tensors[name.replace("__", ".")] = value
    save_file(tensors, directory / "model.safetensors")


def rename(directory: Path, old: str, new: str) -> None:
    tensors = load_file(directory / "model.safetensors")
    save_file({name.replace(old, new): value for name, value in tensors.items()}, directory / "model.safetensors")


def assert_same(found: Eagle3Head, wanted: Eagle3Head) -> None:
    assert found.config == wanted.config
    assert found.state_dict().keys() == wanted.state_dict().keys()
    for name, tensor in wanted.state_dict().items():
        assert torch.equal(found.state_dict()[name], tensor), name


def test_a_head_comes_back_as_it_was_saved(saved: Path) -> None:
    assert_same(load_eagle3(saved), made(fc_norm=True, norm_output=True))


def test_the_files_have_the_names_of_public_checkpoints(saved: Path) -> None:
    layer = [f"midlayer.{name}.weight" for name in ("hidden_norm", "input_layernorm", "post_attention_layernorm")]
    layer += [f"midlayer.self_attn.{name}_proj.weight" for name in "qkvo"]
    layer += [f"midlayer.mlp.{name}_proj.weight" for name in ("gate", "up", "down")]
    rest = ["fc.weight", "norm.weight", "lm_head.weight", "d2t", "t2d", *(f"fc_norm.{i}.weight" for i in range(3))]
    assert sorted(load_file(saved / "model.safetensors")) == sorted([*layer, *rest])
    config = json.loads((saved / "config.json").read_text())
    assert (config["norm_output"], config["fc_norm"], config["draft_vocab_size"]) == (True, True, 23)
    assert config["eagle_aux_hidden_state_layer_ids"] == [2, 4, 5]
    assert config["eagle_config"] == {"eagle_aux_hidden_state_layer_ids": [1, 3, 4]}


@pytest.mark.parametrize(
    ("old", "new"),
    [("midlayer.", "layers.0."), ("fc_norm.", "model.fc_norm."), ("d2t", "draft_id_to_target_id")],
)
def test_other_spellings_are_read(old: str, new: str, saved: Path) -> None:
    rename(saved, old, new)
    assert_same(load_eagle3(saved), made(fc_norm=True, norm_output=True))


def test_a_head_may_have_embeddings_of_its_own(saved: Path) -> None:
    rewrite(saved, embed_tokens__weight=torch.ones(61, 32))
    head = load_eagle3(saved, dtype=torch.bfloat16)
    assert head.embed_tokens is not None
    assert head.embed_tokens.weight.dtype == torch.bfloat16


def test_without_a_map_the_vocabulary_is_the_targets(tmp_path: Path) -> None:
    save_eagle3(eagle3_head(TARGET, draft_vocab_size=61), tmp_path)
    rewrite(tmp_path, d2t=None, t2d=None)
    head = load_eagle3(tmp_path)
    assert torch.equal(head.target_ids, torch.arange(61))
    assert head.t2d.all()


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"norm__weight": None}, BadModelFile, r"lacks 'norm\.weight'"),
        ({"d2t": None}, BadModelFile, "lacks 'd2t'"),
        ({"midlayer__self_attn__q_norm__weight": torch.ones(10)}, UnsupportedModel, r"self_attn\.q_norm"),
        ({"lm_head__weight": torch.ones(24, 32)}, BadModelFile, r"has shape \[24, 32\], not \[23, 32\]"),
        ({"fc__weight": torch.ones(32, 96, dtype=torch.int8)}, UnsupportedModel, "stored as I8"),
        ({"d2t": torch.full((23,), 50)}, BadModelFile, "d2t maps"),
        ({"d2t": -torch.arange(23)}, BadModelFile, "d2t maps"),
        ({"layers__0__hidden_norm__weight": torch.ones(32)}, BadModelFile, "twice"),
    ],
)
def test_tensors_that_do_not_belong_are_refused_by_name(
    changes: dict[str, Tensor | None], error: type[Exception], words: str, saved: Path
) -> None:
    rewrite(saved, **changes)
    with pytest.raises(error, match=words) as caught:
        load_eagle3(saved)
    assert caught.value.hint  # type: ignore[attr-defined]


def test_pickled_heads_are_refused(saved: Path) -> None:
    (saved / "model.safetensors").rename(saved / "pytorch_model.bin")
    with pytest.raises(UnsupportedModel, match="pickled"):
        load_eagle3(saved)
