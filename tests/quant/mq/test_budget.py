"""--bpw: which matrices become 6-bit, and that the budget holds."""

from __future__ import annotations

import pytest

from runner.errors import UsageError
from runner.model_config import ModelConfig, parse_model_config
from runner.quant.mq.budget import spend
from runner.quant.mq.recipe import recipe_of


def llama_8b() -> ModelConfig:
    return parse_model_config(
        {
            "model_type": "llama",
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "vocab_size": 128256,
        }
    )


def bits(config: ModelConfig, bpw: float) -> float:
    """Bits a weight of the layers that the recipe for that budget spends."""
    recipe = spend(recipe_of("mq4"), config, bpw)
    kv = config.num_kv_heads * config.head_dim
    sizes = {"self_attn.q_proj": 4096 * 4096, "self_attn.o_proj": 4096 * 4096, "self_attn.k_proj": 4096 * kv}
    sizes |= {"self_attn.v_proj": 4096 * kv, **{f"mlp.{name}_proj": 4096 * 14336 for name in ("gate", "up", "down")}}
    used = 0.0
    for layer in range(config.num_layers):
        for matrix, size in sizes.items():
            used += size * {"mq4": 4.25, "mq6": 6.25}[recipe.format_for(f"model.layers.{layer}.{matrix}.weight")]
    return used / config.num_layers / sum(sizes.values())


@pytest.mark.parametrize("bpw", [4.25, 4.3, 4.5, 5.0, 6.25, 8.0])
def test_a_budget_is_used_and_never_exceeded(bpw: float) -> None:
    used = bits(llama_8b(), bpw)
    assert used <= bpw
    # up_proj gains least by more bits and is never raised.
    assert used > min(bpw, 5.7) - 0.02


def test_values_come_first_and_then_down_projections_from_the_edges() -> None:
    recipe = spend(recipe_of("mq4"), llama_8b(), 4.4)
    assert recipe.name == "mq4-4.4"
    assert recipe.format_for("model.layers.17.self_attn.v_proj.weight") == "mq6"
    raised = [i for i in range(32) if recipe.format_for(f"model.layers.{i}.mlp.down_proj.weight") == "mq6"]
    assert raised[:1] == [0]
    assert raised[-1:] == [31]
    assert recipe.format_for("model.layers.16.mlp.down_proj.weight") == "mq4"
    assert recipe.format_for("lm_head.weight") == "mq6"


def test_a_budget_below_the_recipe_is_refused() -> None:
    with pytest.raises(UsageError, match=r"4\.25 bits a weight"):
        spend(recipe_of("mq4"), llama_8b(), 4.2)
