"""Where the tensors of a checkpoint go in a model: each is a parameter of its own name, or a part of a stacked one.

It knows names and shapes; who reads and who fills is the loader's business.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from torch import nn


@dataclass(frozen=True, kw_only=True)
class Place:
    """All of a parameter, or the part of it that `part` indexes."""

    parameter: str
    part: tuple[int | slice, ...] = ()


@runtime_checkable
class HasStacks(Protocol):
    """A module some of whose parameters are made of several tensors of a checkpoint each."""

    def places(self) -> Mapping[str, Place]:
        """The places of those tensors, by their names in the checkpoint; both names from this module on."""
        ...


def places_of(model: nn.Module) -> dict[str, Place]:
    """The place of every tensor that a checkpoint of `model` has, by name."""
    found: dict[str, Place] = {}
    for path, module in model.named_modules():
        if isinstance(module, HasStacks):
            for name, place in module.places().items():
                found[f"{path}.{name}"] = replace(place, parameter=f"{path}.{place.parameter}")
    stacked = {place.parameter for place in found.values()}
    whole = {name: Place(parameter=name) for name, _ in model.named_parameters() if name not in stacked}
    return {**whole, **found}
