"""--bpw: which matrices become 6-bit, that the budget holds, and that a user's own rules do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from runner.errors import UsageError
from runner.model_config import parse_model_config
from runner.quant.mq.budget import spend
from runner.quant.mq.plan import PackedPlan, make_plan
from runner.quant.mq.recipe import Recipe, Rule, recipe_of

MATRICES = {
    "self_attn.q_proj": (4096, 4096),
    "self_attn.k_proj": (1024, 4096),
    "self_attn.v_proj": (1024, 4096),
    "self_attn.o_proj": (4096, 4096),
    "mlp.gate_proj": (14336, 4096),
    "mlp.up_proj": (14336, 4096),
    "mlp.down_proj": (4096, 14336),
}
NORMS = ("input_layernorm", "post_attention_layernorm")


class Shapes:
    """The tensors of a Llama of 8B parameters, of which nothing is read."""

    where = "llama"
    quantization = "BF16"

    def __init__(self) -> None:
        layers = {f"{matrix}.weight": shape for matrix, shape in MATRICES.items()}
        norms: dict[str, tuple[int, ...]] = {f"{name}.weight": (4096,) for name in NORMS}
        self.shapes: dict[str, tuple[int, ...]] = {
            "model.embed_tokens.weight": (128256, 4096),
            "model.norm.weight": (4096,),
            "lm_head.weight": (128256, 4096),
            **{f"model.layers.{i}.{name}": shape for i in range(32) for name, shape in {**layers, **norms}.items()},
        }
        self.types = dict.fromkeys(self.shapes, "BF16")
        self.bits = dict.fromkeys(self.shapes, 16.0)

    def read(self, _name: str) -> Any:
        raise AssertionError

    def read_rows(self, _name: str, _start: int, _stop: int) -> Any:
        raise AssertionError


def planned(recipe: Recipe) -> PackedPlan:
    config = parse_model_config(
        {
            "model_type": "llama",
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "vocab_size": 128256,
            "tie_word_embeddings": False,
        }
    )
    return make_plan(config, Shapes(), recipe, "online")


def with_rules(**formats: str) -> Recipe:
    """mq4 with a user's rules before its own: the matrices of all layers whose names end so."""
    base = recipe_of("mq4")
    own = [Rule(tensors=f"*.{matrix}.weight", format=form) for matrix, form in formats.items()]
    return replace(base, rules=(*own, *base.rules))


@pytest.mark.parametrize("bpw", [4.25, 4.3, 4.5, 5.0, 6.25, 8.0])
def test_a_budget_is_used_and_never_exceeded(bpw: float) -> None:
    used = planned(spend(planned(recipe_of("mq4")), bpw)).bpw_body
    assert used <= bpw
    # up_proj gains least by more bits and is never raised.
    assert used > min(bpw, 5.7) - 0.02


def test_values_come_first_and_then_down_projections_from_the_edges() -> None:
    recipe = spend(planned(recipe_of("mq4")), 4.4)
    assert recipe.name == "mq4-4.4"
    assert recipe.format_for("model.layers.17.self_attn.v_proj.weight") == "mq6"
    raised = [i for i in range(32) if recipe.format_for(f"model.layers.{i}.mlp.down_proj.weight") == "mq6"]
    assert raised[:1] == [0]
    assert raised[-1:] == [31]
    assert recipe.format_for("model.layers.16.mlp.down_proj.weight") == "mq4"
    assert recipe.format_for("lm_head.weight") == "mq6"
    its_own = recipe_of("mq4").rules
    assert tuple(rule for rule in recipe.rules if rule in its_own) == its_own


@pytest.mark.parametrize("bpw", [4.2, -1.0, float("nan")])
def test_a_budget_below_the_recipe_is_refused(bpw: float) -> None:
    with pytest.raises(UsageError, match=r"4\.25 bits a weight"):
        spend(planned(recipe_of("mq4")), bpw)


def test_what_the_users_own_rules_say_stands() -> None:
    recipe = spend(planned(with_rules(v_proj="mq4", down_proj="mq8", o_proj="keep")), 8.0)
    formats = {
        matrix: recipe.format_for(f"model.layers.5.self_attn.{matrix}.weight") for matrix in ("v_proj", "o_proj")
    }
    assert formats == {"v_proj": "mq4", "o_proj": "keep"}
    assert recipe.format_for("model.layers.5.mlp.down_proj.weight") == "mq8"
    assert recipe.format_for("model.layers.5.mlp.gate_proj.weight") == "mq6"
    assert planned(recipe).bpw_body <= 8.0
    added = [rule.tensors for rule in recipe.rules if rule not in with_rules(v_proj="mq4").rules]
    assert not any(name in tensors for tensors in added for name in ("layers.*.self_attn.v_proj", "5.mlp.down_proj"))


def test_what_the_users_own_rules_keep_small_costs_nothing_of_the_budget() -> None:
    recipe = spend(planned(with_rules(v_proj="mq4")), 4.4)
    assert 4.39 < planned(recipe).bpw_body <= 4.4


def test_a_budget_that_is_just_enough_is_enough() -> None:
    enough = planned(with_rules(v_proj="mq6"))
    assert planned(spend(planned(recipe_of("mq4")), enough.bpw_body)).bpw_body == enough.bpw_body


def test_kept_matrices_count_with_all_their_bits() -> None:
    with pytest.raises(UsageError, match=r"8\.\d+ bits a weight, more than the budget of 5"):
        spend(planned(with_rules(down_proj="keep", o_proj="keep")), 5.0)
