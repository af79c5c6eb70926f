"""What would fit where a model does not: a smaller context, another quantization, a smaller model; and the refusal.

It compares sizes with an estimate. It knows no file and asks nobody.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from runner.errors import DoesNotFit
from runner.fit.arithmetic import estimate
from runner.fit.facts import ModelFacts
from runner.fit.other_models import Alternative
from runner.fit.planning import Plan
from runner.types import Device

_STEP: Final = 256
_LEAST_CTX: Final = 512
# Another model's KV cache and workspace are not known from its size: a share of its weights and some bytes are added.
_MORE_SHARE: Final = 1.15
_MORE_BYTES: Final = 512 * 2**20


@dataclass(frozen=True, kw_only=True)
class Remedy:
    """What would fit: the model without its draft, a context in tokens (0: none does), main memory, another one.

    quant_ctx: tokens of context with which `quant` does, where nothing of these is enough by itself, else 0.
    """

    is_without_draft: bool = False
    n_ctx: int = 0
    is_for_cpu: bool = False
    quant: Alternative | None = None
    quant_ctx: int = 0
    model: Alternative | None = None

    def __str__(self) -> str:
        """Sentences for people."""
        found = []
        if self.is_without_draft:
            found.append("It would fit without a draft model: --spec suffix.")
        if self.n_ctx:
            found.append(f"A context of {self.n_ctx} tokens would fit: -c {self.n_ctx}.")
        if self.is_for_cpu:
            found.append("It would fit on the CPU: -ngl 0.")
        if self.quant:
            context = f" with a context of {self.quant_ctx} tokens: -c {self.quant_ctx}" if self.quant_ctx else ""
            found.append(f"{_named(self.quant)} would fit{context}.")
        if self.model and not (self.n_ctx or self.is_for_cpu or self.quant):
            found.append(f"{_named(self.model)} would fit.")
        return " ".join(found) or "Choose a smaller quantization or a smaller model."


def _named(alternative: Alternative) -> str:
    about = "" if alternative.is_exact else "about "
    return f"{alternative.name} ({about}{alternative.size_bytes / 2**30:.2f} GiB)"


def remedy(facts: ModelFacts, made: Plan, machine: Sequence[Device], others: Iterable[Alternative] = ()) -> Remedy:
    """What would fit instead of the plan that was made for `facts`. The largest that fits is named."""
    fit = made.fit

    def largest_with(weights_bytes: int) -> int:
        """The largest context that fits beside so many bytes of weights."""
        return _largest(lambda n_ctx: _room_for_weights(facts, made, machine, n_ctx) >= weights_bytes, fit.n_ctx)

    on_cpu = dataclasses.replace(made.options, n_gpu_layers=0)
    has_cpu = fit.device.kind != "cpu" and any(device.kind == "cpu" for device in machine)
    beside = fit.total_bytes - fit.need.weights_bytes
    others = tuple(others)
    quants = [one for one in others if one.is_same and one.size_bytes + beside <= fit.room_bytes]
    models = [one for one in others if not one.is_same and rough_bytes(one.size_bytes) <= fit.room_bytes]
    alone = Remedy(
        is_without_draft=made.draft is not None and fit.total_bytes - fit.draft_bytes <= fit.room_bytes,
        n_ctx=largest_with(fit.need.weights_bytes),
        is_for_cpu=has_cpu and estimate(facts, on_cpu, machine, fit.backend, draft=made.draft).is_fitting,
        quant=max(quants, key=lambda one: one.size_bytes, default=None),
        model=max(models, key=lambda one: one.size_bytes, default=None),
    )
    if alone.is_without_draft or alone.n_ctx or alone.is_for_cpu or alone.quant:
        return alone
    contexts = {one: n_ctx for one in others if one.is_same and (n_ctx := largest_with(one.size_bytes))}
    # The finest that leaves half of what was asked for; where none does, what leaves most.
    best = max(contexts, key=lambda one: (min(contexts[one], fit.n_ctx // 2), one.size_bytes), default=None)
    return alone if best is None else dataclasses.replace(alone, quant=best, quant_ctx=contexts[best])


def _room_for_weights(facts: ModelFacts, made: Plan, machine: Sequence[Device], n_ctx: int) -> int:
    """Bytes that a context of so many tokens would leave for the weights."""
    options = dataclasses.replace(made.options, ctx_size=n_ctx)
    fit = estimate(facts, options, machine, made.fit.backend, draft=made.draft, correction=made.learned)
    return fit.room_bytes - (fit.total_bytes - fit.need.weights_bytes)


def rough_bytes(size_bytes: int) -> int:
    """What a model takes in memory, as far as the size of its weights alone tells: with KV cache and workspace."""
    return round(size_bytes * _MORE_SHARE) + _MORE_BYTES


def _largest(fits_with: Callable[[int], bool], n_ctx: int) -> int:
    """The largest multiple of _STEP below n_ctx that fits, or 0 when not even _LEAST_CTX does."""
    low, high = _LEAST_CTX // _STEP, -(-n_ctx // _STEP) - 1
    if high < low or not fits_with(low * _STEP):
        return 0
    while low < high:
        middle = (low + high + 1) // 2
        if fits_with(middle * _STEP):
            low = middle
        else:
            high = middle - 1
    return low * _STEP


def check_fit(
    name: str,
    facts: ModelFacts,
    made: Plan,
    machine: Sequence[Device],
    others: Callable[[], Iterable[Alternative]] = tuple,
) -> None:
    """Raise DoesNotFit when the plan needs more than GPU and RAM together have, naming what of `others` would fit."""
    fit = made.fit
    if not fit.is_fitting:
        draft = f", draft {_gib(fit.draft_bytes)}" if fit.draft_bytes else ""
        raise DoesNotFit(
            f"{name} needs {_gib(fit.total_bytes)} (weights {_gib(fit.need.weights_bytes)}, "
            f"KV cache for {fit.n_ctx} tokens {_gib(fit.need.kv_cache_bytes)}, "
            f"workspace {_gib(fit.need.workspace_bytes)}{draft}); "
            f"{_gib(fit.room_bytes)} are free.",
            hint=f"{remedy(facts, made, machine, others())} --force tries anyway.",
        )


def _gib(n_bytes: int) -> str:
    return f"{n_bytes / 2**30:.2f} GiB"
