"""Which models to offer somebody who has none: three that fit this machine, by arithmetic alone.

Pure functions of the registry and of what the machine has free. Nothing is asked of a server: sizes are the registry's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from runner.fit import rough_bytes, size_of
from runner.registry import ModelSpec
from runner.types import Device

N_OFFERED: Final = 3
# A processor reads some 20 to 60 GB a second, and every token reads all weights: beyond this answers are slower than
# most people read.
_LARGEST_ON_CPU: Final = 6 * 10**9
_STEP: Final = 0.6  # each offer is at most so large as the one before it, so that there is something to choose
_ABOUT: Final = 0.75


@dataclass(frozen=True, kw_only=True)
class Offer:
    """A model that fits. size_bytes: of the download; need_bytes: what it takes, of free_bytes on the device."""

    spec: ModelSpec
    size_bytes: int
    need_bytes: int
    free_bytes: int
    is_on_gpu: bool


def offers(specs: Iterable[ModelSpec], machine: Sequence[Device]) -> tuple[Offer, ...]:
    """Up to three models that fit, the largest first. machine: as `devices` tells it."""
    gpus = [device for device in machine if device.kind != "cpu"]
    device = max(gpus or machine, key=lambda one: one.free_bytes)
    fitting = [offer for spec in specs if (offer := _offer(spec, device, is_on_gpu=bool(gpus))) is not None]
    found: list[Offer] = []
    while fitting and len(found) < N_OFFERED:
        found.append(_best(fitting))
        limit = round(_STEP * found[-1].size_bytes)
        fitting = [offer for offer in fitting if offer.size_bytes <= limit]
    return tuple(found)


def _best(fitting: Sequence[Offer]) -> Offer:
    """Of those about as large as the largest, the one that was trained on the longest context."""
    largest = max(offer.size_bytes for offer in fitting)
    about = [offer for offer in fitting if offer.size_bytes >= _ABOUT * largest]
    return max(about, key=lambda offer: (offer.spec.context, offer.size_bytes))


def _offer(spec: ModelSpec, device: Device, *, is_on_gpu: bool) -> Offer | None:
    size = size_of(spec, spec.chosen_quant)
    if not size or spec.path is not None or (not is_on_gpu and size > _LARGEST_ON_CPU):
        return None
    need = rough_bytes(size)
    if need > device.free_bytes:
        return None
    return Offer(spec=spec, size_bytes=size, need_bytes=need, free_bytes=device.free_bytes, is_on_gpu=is_on_gpu)
