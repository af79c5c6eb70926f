"""Which backend runs a model, and why. Backends are imported when they are asked for, never before."""

from __future__ import annotations

import dataclasses
import importlib
from dataclasses import dataclass
from typing import Final, cast

from runner.backends.base import BackendModule
from runner.config import LoadOptions
from runner.errors import BackendUnavailable, UnsuitedOptions, UnsupportedModel
from runner.types import BackendName, ReadyModel, WeightsFormat

# For each kind of file, the backends that may run it, best first, and why that one is best.
_PREFERENCE: dict[WeightsFormat, tuple[tuple[BackendName, str], ...]] = {
    "gguf": (
        ("llamacpp", "the model is a GGUF file, which llama.cpp runs as it is"),
        ("native", "llama.cpp cannot run it"),
    ),
    "safetensors": (("native", "the weights are safetensors, which the native backend reads as they are"),),
    "packed": (("native", "the weights are packed by runner quantize, for the native backend"),),
    "script": (("fake", "the model is a script for the fake backend"),),
}
WITH_HEADS: Final[tuple[BackendName, ...]] = ("native",)  # those whose models give their hidden states to a drafter
CHECKED_BY: Final = "`runner doctor` checks the backends, `runner verify` the model's files."


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The backend that will run a model. refused: the backends that will not, each with its reason."""

    name: BackendName
    reason: str
    refused: tuple[tuple[BackendName, str], ...]

    @property
    def is_fallback(self) -> bool:
        return bool(self.refused)


def backend_module(name: BackendName) -> BackendModule:
    """The package of that backend: cheap to import, whatever its `load` needs."""
    return cast(BackendModule, importlib.import_module(f"runner.backends.{name}"))


def choose(model: ReadyModel, options: LoadOptions, *, is_emptied: bool = False) -> Choice:
    """The backend for `model`: the one asked for, or for "auto" the best that does not refuse.

    is_emptied: as if all of a GPU's memory were free, which is the most that unloading a model can bring.

    Raises BackendUnavailable when the one asked for refuses (it never falls back), UnsupportedModel when all do, and
    UnsuitedOptions in place of either when the model would run there with no option but --backend.
    """
    try:
        return _chosen(model, options, is_emptied=is_emptied)
    except (BackendUnavailable, UnsupportedModel) as refused:
        is_unsuited = _runs(model, LoadOptions(backend=options.backend))
        has_other = _runs(model, dataclasses.replace(options, backend="auto"))
        hint = "With --backend auto, runner chooses one that can." if has_other else refused.hint
        raise (UnsuitedOptions if is_unsuited else type(refused))(refused.message, hint=hint) from refused


def _runs(model: ReadyModel, options: LoadOptions) -> bool:
    try:
        _chosen(model, options)
    except (BackendUnavailable, UnsupportedModel):
        return False
    return True


def _chosen(model: ReadyModel, options: LoadOptions, *, is_emptied: bool = False) -> Choice:
    if options.backend != "auto":
        refusal = backend_module(options.backend).refusal(model, options)
        if refusal:
            raise BackendUnavailable(
                f"The {options.backend} backend cannot run {model.name}: {refusal}", hint=CHECKED_BY
            )
        return Choice(name=options.backend, reason="it was asked for", refused=())
    refused: list[tuple[BackendName, str]] = []
    for name, reason in _candidates(model, options, is_emptied=is_emptied):
        refusal = backend_module(name).refusal(model, options)
        if refusal is None:
            why = "; ".join(text for _, text in refused)
            return Choice(name=name, reason=f"{reason}: {why}" if why else reason, refused=tuple(refused))
        refused.append((name, refusal))
    reasons = " ".join(f"{name}: {text}" for name, text in refused)
    raise UnsupportedModel(f"No backend can run {model.name}. {reasons}", hint=CHECKED_BY)


def _candidates(model: ReadyModel, options: LoadOptions, *, is_emptied: bool) -> tuple[tuple[BackendName, str], ...]:
    """The backends that may run it, best first, and why each would be."""
    usual = _PREFERENCE[model.format]
    if model.format != "gguf":
        return usual
    from runner.backends.native.preference import advantage

    reason = advantage(model, options, is_emptied=is_emptied)
    return (("native", reason), usual[0]) if reason else usual
