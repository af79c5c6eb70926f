"""Reads the mixture of experts from config.json: which layers have one, how large it is, how it routes.

How each family spells it is in families.py; the mathematics is computed by whoever runs the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from runner.model_config.families import ExpertKeys, Family
from runner.model_config.fields import flag, integer_or_none, invalid, unsupported
from runner.model_config.values import ExpertsConfig

_MOST_EXPERTS: Final = 2**14


def parse_experts(config: Mapping[str, Any], family: Family, num_layers: int) -> ExpertsConfig | None:
    """The experts of a config.json's contents; None for a model, or a family, without them.

    Raises UnsupportedModel, naming the key, for what we do not compute, and BadModelFile for values that make no sense.
    """
    keys = family.experts
    if keys is None or (keys.switch and not flag(config, keys.switch)):
        return None
    for key, value in keys.fixed.items():
        if config.get(key, value) != value:
            raise unsupported(key, config[key])
    count = _count(config, family, keys)
    layers = _layers(config, num_layers)
    if not count or not layers:
        return None
    per_token = integer_or_none(config, keys.per_token, family.defaults[keys.per_token], 1, _MOST_EXPERTS)
    if per_token is None or per_token > count:
        raise invalid(keys.per_token, per_token, f"It must be a whole number from 1 to {keys.count[0]} = {count}.")
    is_over_chosen = keys.routing == "topk_softmax" or flag(config, "norm_topk_prob")
    return ExpertsConfig(
        count=count,
        per_token=per_token,
        intermediate_size=_width(config, family, keys.width),
        routing="topk_softmax" if is_over_chosen else "softmax_topk",
        activation=keys.activation,
        has_bias=keys.has_bias,
        router=keys.router,
        layers=layers,
        shared_size=_width(config, family, keys.shared_width) if keys.shared_width else None,
        is_beside=keys.is_beside,
    )


def _width(config: Mapping[str, Any], family: Family, key: str) -> int:
    value = integer_or_none(config, key, family.defaults[key], 1, 2**20)
    if value is None:
        raise invalid(key, value, "It must be a whole number.")
    return value


def _count(config: Mapping[str, Any], family: Family, keys: ExpertKeys) -> int:
    """The number of experts; what has two names must have one value."""
    found = {key: integer_or_none(config, key, None, keys.least, _MOST_EXPERTS) for key in keys.count if key in config}
    if len(set(found.values())) > 1:
        first, second = keys.count
        raise invalid(second, found[second], f"It must be {first} = {found[first]}: both are the number of experts.")
    value = next(iter(found.values()), family.defaults[keys.count[0]])
    if value is None:
        raise invalid(keys.count[0], value, "It must be a whole number.")
    return value


def _layers(config: Mapping[str, Any], num_layers: int) -> tuple[int, ...]:
    """The layers that have experts: every decoder_sparse_step-th, but for those of mlp_only_layers."""
    step = integer_or_none(config, "decoder_sparse_step", 1, 1, 2**12) or 1
    dense = config.get("mlp_only_layers") or []
    if not isinstance(dense, list) or not all(type(layer) is int for layer in dense):
        raise invalid("mlp_only_layers", dense, "It must be a list of layer numbers.")
    return tuple(layer for layer in range(num_layers) if (layer + 1) % step == 0 and layer not in dense)
