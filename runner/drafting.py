"""A loaded model's speculation: the drafter that was chosen, made and checked against the model, or why there is none.

It turns a DraftChoice and a loaded Backend into a Speculator. It knows no prompt and no text, and which drafter is to
be used is draft_choice.py's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Literal

from runner.backends.base import Backend
from runner.backends.vocabulary import mismatch, pieces
from runner.config import LoadOptions
from runner.draft_choice import NO_WAY_BACK, SAME_FAMILY, DraftChoice, cannot_draft, limited, unless_inexact
from runner.errors import BadModelFile, DoesNotFit, UnsuitedOptions, UnsupportedModel
from runner.fit.facts import ModelFacts, default_context
from runner.speculative.drafter import Drafter
from runner.speculative.model_drafter import ModelDrafter
from runner.speculative.record import SpeculationRecord
from runner.speculative.speculator import Speculator
from runner.speculative.suffix import SuffixDrafter
from runner.types import CancelToken, ModelInfo


class Drafting:
    """What drafts for one loaded model: the drafter that was chosen, at work, or none and why."""

    def __init__(self, choice: DraftChoice, speculator: Speculator | None = None) -> None:
        self.choice = choice
        self.speculator = speculator

    @property
    def nbytes(self) -> int:
        """Memory that the drafter holds."""
        return self.speculator.drafter.nbytes if self.speculator else 0

    @property
    def draft_max(self) -> int:
        """Tokens of a draft at most: what was asked for, or what can be taken back; 0 where nothing drafts."""
        return self.speculator.draft_max if self.speculator else 0

    @property
    def record(self) -> SpeculationRecord | None:
        """What it did since `begin`."""
        return self.speculator.record if self.speculator else None

    def begin(self, cancel: CancelToken, prompt: Sequence[int] = ()) -> Speculator | None:
        """An answer begins, which `cancel` ends; the drafter reads the prompt that it will follow."""
        if self.speculator is not None:
            if isinstance(self.speculator.drafter, ModelDrafter):
                self.speculator.drafter.attend(cancel)
            self.speculator.begin(prompt)
        return self.speculator

    def close(self) -> None:
        if self.speculator is not None:
            self.speculator.close()


NO_DRAFTING: Final = Drafting(DraftChoice(drafter=None, reason="no model is loaded"))


def open_drafting(
    choice: DraftChoice,
    target: Backend,
    options: LoadOptions,
    load_model: Callable[[], Backend],
    load_texts: Callable[[], Sequence[Sequence[int]]] = tuple,
) -> Drafting:
    """The speculation of a loaded model. load_model: loads the model of `choice`, where it has one.

    load_texts: gives the ids of the files of `choice`, as draft_files.quotable does. Raises UnsuitedOptions when the
    drafter that was asked for cannot draft for this model, and what loading raises.
    """
    if choice.drafter is not None and not target.info.longest_draft:
        return Drafting(DraftChoice(drafter=None, reason=NO_WAY_BACK))
    choice = unless_inexact(choice, options, is_exact=target.info.is_batch_exact)
    try:
        drafter = _drafter(choice, target, load_model, load_texts)
    except UnsupportedModel as error:  # the model itself is loaded, and runs without
        raise UnsuitedOptions(error.message, hint=error.hint) from error
    if drafter is None:
        return Drafting(choice)
    longest = min(target.info.longest_draft, drafter.longest_draft)
    speculator = Speculator(drafter, min(options.draft_max, longest))
    try:
        speculator.calibrate(target.stride_s if drafter.is_quoting else target.step_s)
    except BaseException:
        speculator.close()
        raise
    return Drafting(limited(choice, options.draft_max, longest), speculator)


def _drafter(
    choice: DraftChoice,
    target: Backend,
    load_model: Callable[[], Backend],
    load_texts: Callable[[], Sequence[Sequence[int]]],
) -> Drafter | None:
    match choice.drafter:
        case None:
            return None
        case "suffix":
            texts = load_texts()
            target.give_texts(texts)
            return SuffixDrafter(texts)
        case "mtp" | "eagle3":
            return target.head_drafter(choice.drafter, Path(choice.source) if choice.source else None)
        case "model" | "self":
            return _model_drafter(choice.drafter, target, load_model)
    raise ValueError(f"nothing makes the drafter {choice.drafter}")


def _model_drafter(name: Literal["model", "self"], target: Backend, load_model: Callable[[], Backend]) -> ModelDrafter:
    try:
        draft = load_model()
    except DoesNotFit as error:
        raise DoesNotFit(
            f"The draft model does not fit beside {target.info.name}. {error.message}",
            hint="Choose a smaller draft model; --spec suffix needs no draft model.",
        ) from error
    drafter = ModelDrafter(draft, name)
    try:
        _check(draft, target, is_copy=name == "self")
        drafter.warm_up()
    except BadModelFile as error:
        drafter.close()
        raise BadModelFile(f"The draft model {draft.info.name}: {error.message}", hint=error.hint) from error
    except BaseException:
        drafter.close()
        raise
    return drafter


def draft_options(options: LoadOptions, target: ModelInfo, draft: ModelFacts) -> LoadOptions:
    """How a draft model is loaded: as its target, with as much of the target's context as it was trained for."""
    n_ctx = min(target.n_ctx, default_context(draft.shape))
    return dataclasses.replace(options, ctx_size=n_ctx, speculation="off", draft=None, draft_file=())


def _check(draft: Backend, target: Backend, *, is_copy: bool) -> None:
    """Raise UnsupportedModel or UnsuitedOptions when a loaded model cannot draft for another.

    That it cannot go back is mostly seen before, in its files (engine.py); not of every architecture do they say it.
    """
    ours, theirs = draft.info, target.info
    if not ours.longest_draft:
        raise cannot_draft(ours.name)
    if is_copy and (ours.architecture, ours.num_layers) != (theirs.architecture, theirs.num_layers):
        raise UnsupportedModel(
            f"{ours.name} is no copy of {theirs.name}: they have {ours.num_layers} and {theirs.num_layers} layers.",
            hint="For another model of the same vocabulary use --spec model.",
        )
    if found := mismatch(pieces(draft.tokenizer, special=False), pieces(target.tokenizer, special=False)):
        raise UnsupportedModel(
            f"{ours.name} cannot draft for {theirs.name}: {found}",
            hint=SAME_FAMILY,
        )
