"""What the shell completes: names of models, chats and formats, for every command that takes one.

Completion runs the program for each Tab: what it needs is imported when it is asked for, nothing of torch or the
network, and what goes wrong offers nothing. Each function is an `autocompletion=` of Typer, which keeps what begins
with the word that is being typed.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, TypeAlias

import typer

from runner.cli import bash_words
from runner.errors import RunnerError

if TYPE_CHECKING:
    from runner.registry import Registry

# A word, and what it is.
Offers: TypeAlias = list[tuple[str, str]]

# zsh evaluates what it is offered: names that could be more than a word are left out, and such marks of a description.
_WORD = re.compile(r"[\w.:/@+-]+")
_NO_WORDS = re.compile(r"[^\w .,!?-]+")
_MOST_CHATS = 100
_OF_MODELS = ("model", "draft")  # settings


def _offered(find: Callable[[str], Iterable[tuple[str, str]]]) -> Callable[[str], Offers]:
    """What `find` finds for a word, each once and as plain words; nothing where that fails."""

    @functools.wraps(find)
    def offers(incomplete: str) -> Offers:
        before = bash_words.stem()
        try:
            found = [
                (word.removeprefix(before), what)
                for word, what in find(before + incomplete)
                if word.startswith(before) and _WORD.fullmatch(word)
            ]
        except (OSError, RunnerError):
            return []
        first = dict(reversed(found))
        return [(word, " ".join(_NO_WORDS.sub(" ", first[word]).split())) for word in dict.fromkeys(dict(found))]

    return offers


@_offered
def models(incomplete: str) -> Iterator[tuple[str, str]]:
    """Models by name: those on this machine, then the registry's; after a colon, what of a model can be asked for."""
    registry = _registry()
    if ":" in incomplete:
        yield from _quants(registry, incomplete.partition(":")[0])
    yield from _here(registry)
    yield from ((spec.name, spec.description) for spec in registry.specs)


@_offered
def models_here(incomplete: str) -> Iterator[tuple[str, str]]:  # noqa: ARG001 - Typer compares
    """Models of which there is something on this machine."""
    return _here(_registry())


@_offered
def removable(incomplete: str) -> Iterator[tuple[str, str]]:  # noqa: ARG001
    """Models of which there is something on this machine, drafters made here, and what is half made or half deleted."""
    from runner.paths import user_paths
    from runner.quant.half_made import finished, half_made

    paths = user_paths()
    yield from _here(_registry())
    yield from ((name, "a drafter made here") for name in finished(paths.drafts))
    yield from ((path.name, "unfinished") for place in (paths.models, paths.drafts) for path in half_made(place))


@_offered
def chats(incomplete: str) -> Iterator[tuple[str, str]]:  # noqa: ARG001
    """Kept chats by id, with their titles, the one used last first."""
    from contextlib import closing

    from runner.paths import user_paths
    from runner.store import Store

    with closing(Store(user_paths().database)) as store:
        yield from ((session.id, session.title) for session in store.sessions(_MOST_CHATS))


@_offered
def formats(incomplete: str) -> Iterator[tuple[str, str]]:  # noqa: ARG001
    """What `runner quantize` writes."""
    from runner.quant.formats import FORMATS
    from runner.quant.mq.recipe import RECIPES

    yield from ((name, "packed, for the native backend") for name in RECIPES)
    yield from ((name, "a GGUF") for name in FORMATS)


def setting_values(ctx: typer.Context, incomplete: str) -> Offers:
    """What the setting that is named before can be, where that is one of a few words, or a model."""
    from runner.settings import SETTINGS

    key = ctx.params.get("key")
    if key in _OF_MODELS:
        return models(incomplete)
    return [(word, "") for item in SETTINGS if item.key == key for word in item.words]


def _registry() -> Registry:
    from runner.registry import Registry

    return Registry.load_for()


def _here(registry: Registry) -> Iterator[tuple[str, str]]:
    from runner.inventory import local_models

    for model in local_models(registry):
        state = "on this machine" if model.state == "complete" else f"{model.state}, on this machine"
        yield model.name, f"{model.quantization} {state}"


def _quants(registry: Registry, name: str) -> Iterator[tuple[str, str]]:
    from runner.registry import SAFETENSORS

    for spec in registry.specs:
        if spec.name == name:
            yield from ((f"{name}:{quant}", "a GGUF") for quant in spec.quants)
            if spec.repo:
                yield f"{name}:{SAFETENSORS}", "the original weights"
