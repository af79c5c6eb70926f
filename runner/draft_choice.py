"""Which drafter is to speculate for a model, and why: by the options, the registry and what was made here.

Pure but for the names of the models and heads that were made here. Whether that drafter can be had, and how it is
loaded, is drafting.py's.
"""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from runner.closed import cannot_read, closed
from runner.config import LONGEST_DRAFT, LoadOptions
from runner.errors import UnsuitedOptions, UsageError
from runner.events import Notice
from runner.quant.half_made import finished
from runner.quant.json_file import read_json_if_there
from runner.quant.packed_files import is_packed
from runner.registry import ModelSpec, Registry
from runner.speculative.drafter import DrafterName

NO_WAY_BACK: Final = "this model cannot go back: its recurrent layers keep no earlier state"
NOT_EXACT: Final = "llama.cpp on a GPU rounds several tokens otherwise than one, and drafts might change the text"
SAME_FAMILY: Final = "Choose a smaller model of the same family; --spec suffix needs no draft model."
_COPIES: Final = ("mq4", "mq4-uniform")  # the recipes whose copies draft for a wider one
_ONLY_HEADS_HAVE: Final = ("draft_vocab_size", "speculators_model_type")  # in config.json: see Eagle3Config


@dataclass(frozen=True, kw_only=True)
class DraftChoice:
    """drafter: None for none. source: the model, or the directory of the head, that it is made of, or "".

    suggestion: a model that is known to draft for the target and is not used. files: texts that drafts may quote.
    at_most: tokens of its drafts, where no more can be taken back though more were asked for, else 0. is_refused: what
    was asked for cannot be had, so that a load fails, and the reason says what can.
    """

    drafter: DrafterName | None
    reason: str
    source: str = ""
    suggestion: str = ""
    files: tuple[str, ...] = ()
    at_most: int = 0
    is_refused: bool = False

    @property
    def is_model(self) -> bool:
        """Whether the drafter is a model of its own, which is loaded as any other."""
        return self.drafter in ("model", "self")

    @property
    def is_head(self) -> bool:
        """Whether the drafter reads the model's hidden states, which not every backend gives."""
        return self.drafter in ("mtp", "eagle3")

    @property
    def words(self) -> str:
        """For people: "suffix: it needs no memory"."""
        n = len(self.files)
        files = f", and may quote {'a file' if n == 1 else f'{n} files'}" if n else ""
        limit = f"; drafts have {self.at_most} tokens at most, no more can be taken back" if self.at_most else ""
        return f"{self.drafter or ('refused' if self.is_refused else 'off')}: {self.reason}{files}{limit}"


def choose_drafter(
    options: LoadOptions,
    spec: ModelSpec,
    registry: Registry,
    source: Path,
    heads: Path,
    *,
    can_go_back: bool = True,
) -> DraftChoice:
    """What drafts for the model of `spec`, whose files are in `source`. heads: where `runner draft train` puts them.

    "auto" takes the draft model or the head that the user gave, else the text itself; the registry's own suggestion is
    named, and used only when "model" is asked for. Raises UsageError when what was asked for is made of something that
    is not named or not there, BadModelFile for a config.json that is none, RunnerError for what may not be looked into.
    """
    asked, draft = options.speculation, options.draft or ""
    if asked == "off":
        return DraftChoice(drafter=None, reason="it was turned off", suggestion=spec.draft)
    if not can_go_back:
        return DraftChoice(drafter=None, reason=NO_WAY_BACK)
    if asked == "auto" and draft:
        asked = "eagle3" if _is_head(draft, heads) else "model"
    if asked == "model":
        name = draft or _suggested(spec)
        return DraftChoice(drafter="model", reason=f"{name} drafts", source=name)
    if asked == "self":
        name = draft or _copy(spec, registry, source)
        return DraftChoice(drafter="self", reason=f"its copy {name} drafts", source=name)
    if asked == "eagle3":
        head = _head(draft, heads)
        return DraftChoice(drafter="eagle3", reason=f"the head {head.name} drafts", source=str(head))
    if asked == "mtp":
        return DraftChoice(drafter="mtp", reason="the head that comes with the model drafts")
    reason = "it was asked for" if asked == "suffix" else "it needs no memory"
    return DraftChoice(drafter="suffix", reason=reason, suggestion=spec.draft, files=options.draft_file)


def cannot_draft(name: str) -> UnsuitedOptions:
    """The refusal of a draft model that cannot go back: each draft that is wrong has to be taken back."""
    return UnsuitedOptions(
        f"{name} cannot draft: its recurrent layers keep no earlier state.",
        hint="Choose a model with attention alone; --spec suffix needs no draft model.",
    )


def unless_inexact(choice: DraftChoice, options: LoadOptions, *, is_exact: bool) -> DraftChoice:
    """`choice`, or none where drafts might change the text and nobody asked for any.

    is_exact: the target's ModelInfo.is_batch_exact, or what it would be.
    """
    is_asked = options.speculation != "auto" or bool(options.draft or options.draft_file)
    if is_exact or is_asked or choice.drafter is None:
        return choice
    reason = f"{NOT_EXACT}; --spec suffix drafts all the same"
    return DraftChoice(drafter=None, reason=reason, suggestion=choice.suggestion)


def limited(choice: DraftChoice, asked: int, longest: int) -> DraftChoice:
    """`choice`, where of drafts of `asked` tokens no more than `longest` can be taken back."""
    return replace(choice, at_most=longest) if choice.drafter is not None and longest < asked else choice


def shorter(asked: int, longest: int) -> str:
    """The same for people."""
    return f"Drafts have {longest} tokens at most, not the {asked} of --draft-max: no more can be taken back."


def unused(options: LoadOptions, choice: DraftChoice) -> list[Notice]:
    """What was asked for and the chosen drafter has no use for: a model or a head, files, longer drafts."""
    notices: list[Notice] = []
    if choice.is_refused:  # then nothing is passed over
        return notices
    if options.draft and not choice.source:
        why = choice.reason if choice.drafter is None else f"{choice.drafter} drafts"
        text = f"{options.draft}, given by --draft, is not used: {why}."
        hint = "A model drafts with --spec auto or model, a head with auto or eagle3."
        notices.append(Notice("warning", text, hint))
    if options.draft_file and not choice.files:
        hint = "Only suffix quotes files: --spec suffix." if choice.drafter is not None else ""
        notices.append(Notice("warning", f"No draft quotes the files of --draft-file: {choice.reason}.", hint))
    if choice.at_most and options.draft_max != LONGEST_DRAFT:
        notices.append(Notice("info", shorter(options.draft_max, choice.at_most)))
    return notices


def _is_head(draft: str, heads: Path) -> bool:
    """Whether that names a head that was trained here, or a directory with one. Raises BadModelFile."""
    if draft in finished(heads):
        return True
    try:
        config = read_json_if_there(Path(draft).expanduser() / "config.json")
    except (OSError, RuntimeError):  # closed, too long, no such user: who looks for a model there says so
        return False
    return not config.keys().isdisjoint(_ONLY_HEADS_HAVE)


def _head(draft: str, heads: Path) -> Path:
    """The directory that `draft` means: a path, or the name of a head that was trained here."""
    trained = finished(heads)
    here = f"Trained here: {', '.join(trained)}. " if trained else ""
    hint = f"{here}`runner draft train MODEL` trains one, and --draft names its directory."
    if not draft:
        raise UsageError("--spec eagle3 needs a head.", hint=hint)
    try:
        path = trained.get(draft) or Path(draft).expanduser()
        place = closed(path)
    except (RuntimeError, ValueError):  # no such user, a NUL
        path, place = Path(draft), None
    if place is not None:
        raise cannot_read([place])
    if not os.path.isdir(path):
        raise UsageError(f"{draft} is no directory with an EAGLE-3 head.", hint=hint)
    return path


def _suggested(spec: ModelSpec) -> str:
    if not spec.draft:
        raise UsageError(
            f"No model is known to draft for {spec.name}.",
            hint="Name a smaller one of the same family with --draft, or use --spec suffix, which needs none.",
        )
    return spec.draft


def _copy(spec: ModelSpec, registry: Registry, source: Path) -> str:
    """The packed copy of the model that `runner quantize` made here."""
    from runner.quant.quantize import made_name  # a fifth of a second, which only this needs

    names = [made_name(source, recipe) for recipe in _COPIES]
    made = {one.name for one in registry.made()}
    if (found := next((name for name in names if name in made), None)) is None:
        named = shlex.quote(str(spec.path) if spec.origin == "path" else spec.name)
        way = f"`runner quantize {named} --format mq4` makes one"
        if source.is_dir() and is_packed(os.listdir(source)):
            way = "`runner quantize` makes one of the model that this was made from"
        raise UsageError(
            f"There is no copy of {spec.name} here to draft with.", hint=f"{way}; or name one with --draft."
        )
    return found
