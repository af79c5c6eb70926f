"""Which tensor gets which format, and what a user's own file may say."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.errors import UsageError
from runner.quant.mq.recipe import KEEP, RECIPES, recipe_of, with_own_rules

_DOWN = "model.layers.3.mlp.down_proj.weight"


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_the_first_rule_that_matches_decides() -> None:
    recipe = recipe_of("MQ4")
    assert recipe.format_for(_DOWN) == "mq4"
    assert recipe.format_for("model.embed_tokens.weight") == "mq6"
    assert recipe.format_for("lm_head.weight") == "mq6"
    assert recipe.format_for("model.layers.0.mlp.gate.weight") == KEEP
    assert recipe.format_for("model.layers.0.mlp.gate_proj.weight") == "mq4"


def test_own_rules_come_first_and_the_rest_is_the_recipes(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.toml", 'rules = [{tensors = "model.layers.[0-3].mlp.down_proj.*", format = "mq6"}]')
    recipe = with_own_rules(recipe_of("mq4"), path)
    assert recipe.name == "mq4+mine"
    assert recipe.format_for(_DOWN) == "mq6"
    assert recipe.format_for(_DOWN.replace(".3.", ".4.")) == "mq4"
    assert recipe.format_for("lm_head.weight") == "mq6"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rules = [", "cannot be read"),
        ("rules = []", "no list of rules"),
        ('rule = [{tensors = "*", format = "mq4"}]', "unknown key 'rule'"),
        ('rules = [{tensor = "*", format = "mq4"}]', "a rule is"),
        ('rules = [{tensors = "*", format = 4}]', "a rule is"),
        ('rules = ["mq4"]', "a rule is"),
        (f'rules = [{{tensors = "{"q" * 5000}", format = "mq4"}}]', "5000 letters"),  # no manifest takes that
        ("x = " + "[" * 4000, "cannot be read"),
        ("#" * (2**20 + 1), "too large"),
    ],
)
def test_a_wrong_recipe_file_says_what_is_wrong(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(UsageError, match=r"mine\.toml") as raised:
        with_own_rules(recipe_of("mq4"), write(tmp_path / "mine.toml", text))
    assert words in raised.value.message


def test_a_recipe_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.toml"):
        with_own_rules(recipe_of("mq4"), tmp_path / "none.toml")


def test_unknown_recipes_get_the_nearest_names() -> None:
    with pytest.raises(UsageError) as raised:
        recipe_of("mq5")
    assert any(name in raised.value.hint for name in RECIPES)
