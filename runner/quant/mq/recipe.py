"""Recipes: which tensor of a packed model gets which weight format, as an ordered list of patterns.

A recipe has a name (`--format mq4`), and the user's own rules may come before its own (`--recipe FILE.toml`). It knows
names alone: whether a format can hold a matrix is plan.py's business. Reading this imports no torch.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from runner.errors import UsageError, nearest_hint

KEEP: Final = "keep"  # instead of a format: as in the source
LAYER_INPUTS: Final = "*per_layer*"  # what Gemma 4's small models have beside the stream
_MAX_FILE_BYTES: Final = 2**20
_MAX_PATTERN: Final = 512  # as long as the names of tensors: a manifest takes no text without end
_FILE_HINT: Final = 'Write rules = [{tensors = "model.layers.*.mlp.down_proj.weight", format = "mq6"}, ...].'


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Tensors whose name matches the shell pattern `tensors` ("*" stands for dots too) get `format`, or are kept."""

    tensors: str
    format: str

    def matches(self, name: str) -> bool:
        return fnmatchcase(name, self.tensors)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Ordered rules: the first that matches decides. Vectors (norms, biases) are kept whatever the rules say."""

    name: str
    rules: tuple[Rule, ...]

    def format_for(self, name: str) -> str:
        """The format of the matrix of that name, or KEEP."""
        return next((rule.format for rule in self.rules if rule.matches(name)), KEEP)


def recipe(name: str, linear: str, *, embedding: str, output: str) -> Recipe:
    """All linear layers in one format, the embedding and the output matrix, which quantize worse, in others."""
    return Recipe(
        name=name,
        rules=(
            Rule(tensors="model.embed_tokens.weight", format=embedding),
            Rule(tensors="lm_head.weight", format=output),
            Rule(tensors="*.mlp.gate.weight", format=KEEP),  # routers of mixtures of experts, under three names
            Rule(tensors="*.mlp.router.weight", format=KEEP),
            Rule(tensors="*.router.proj.weight", format=KEEP),
            Rule(tensors="*.mlp.shared_expert_gate.weight", format=KEEP),  # how much of it a token takes
            # A row a head: how fast a state fades, how far it is corrected. Small, and all later tokens see it.
            Rule(tensors="*.linear_attn.in_proj_a.weight", format=KEEP),
            Rule(tensors="*.linear_attn.in_proj_b.weight", format=KEEP),
            # Inputs by layer: their table is an embedding, and their matrices are a hundredth of the others.
            Rule(tensors=LAYER_INPUTS, format=embedding),
            Rule(tensors="*", format=linear),
        ),
    )


RECIPES: Final[Mapping[str, Recipe]] = MappingProxyType(
    {
        one.name: one
        for one in (
            recipe("mq4", "mq4", embedding="mq6", output="mq6"),
            recipe("mq4-uniform", "mq4-uniform", embedding="mq6", output="mq6"),
            recipe("mq6", "mq6", embedding="mq8", output="mq8"),
            recipe("mq8", "mq8", embedding="mq8", output="mq8"),
            recipe("mq4-hipfire", "mq4-hipfire", embedding="mq8", output="mq8"),
        )
    }
)


# Where calibration is worth its time unless the user says otherwise.
CALIBRATED: Final = frozenset({"mq4", "mq4-uniform", "mq6"})


def recipe_of(name: str) -> Recipe:
    """The recipe of that name, in either case. Raises UsageError with the nearest names."""
    found = RECIPES.get(name.lower())
    if found is None:
        raise UsageError(f"Unknown recipe {name!r}.", hint=nearest_hint(name.lower(), RECIPES))
    return found


def with_own_rules(base: Recipe, path: Path) -> Recipe:
    """`base` with the rules of the TOML file `path` before its own. Raises UsageError, naming what is wrong."""
    if not path.is_file():
        raise UsageError(
            f"{path} is no file here.", hint="--recipe takes a TOML file of your own rules; --format names a recipe."
        )
    try:
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise UsageError(f"{path} is too large for a recipe.", hint=_FILE_HINT)
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise UsageError(f"{path} cannot be read: {reason}.", hint=_FILE_HINT) from error
    for key in table:
        if key != "rules":
            raise UsageError(f"{path} has the unknown key {key!r}.", hint=_FILE_HINT)
    rules = table.get("rules")
    if not isinstance(rules, list) or not rules:
        raise UsageError(f"{path} has no list of rules.", hint=_FILE_HINT)
    own = tuple(_rule(path, entry) for entry in rules)
    return replace(base, name=f"{base.name}+{path.stem}", rules=(*own, *base.rules))


def _rule(path: Path, entry: Any) -> Rule:
    if not isinstance(entry, dict) or entry.keys() != {"tensors", "format"}:
        raise UsageError(f"{path}: a rule is {entry!r}.", hint=_FILE_HINT)
    if not all(isinstance(value, str) and value for value in entry.values()):
        raise UsageError(f"{path}: a rule is {entry!r}.", hint="A pattern and a format, both as text.")
    if len(entry["tensors"]) > _MAX_PATTERN:
        raise UsageError(f"{path}: a pattern has {len(entry['tensors'])} letters.", hint=f"At most {_MAX_PATTERN}.")
    return Rule(tensors=entry["tensors"], format=entry["format"])
