"""The command palette: every action that does something here, the themes, the models on this machine, recent chats.

Textual's palette asks a Provider; it parses help texts as markup, so that they are escaped here. It knows no screen
but by the rows of ACTIONS.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, cast, get_args

from textual.app import App
from textual.command import DiscoveryHit, Hit, Hits, Provider
from textual.content import Content
from textual.fuzzy import Matcher

from runner.errors import RunnerError
from runner.inventory import local_models
from runner.safe_text import safe_line
from runner.tui import themes
from runner.tui.actions import Action, Where, actions_of
from runner.tui.key_names import key_names
from runner.tui.messages import OpenModel, ResumeChat
from runner.tui.screens.mode import ModeScreen
from runner.tui.services import Services

_RECENT: Final = 15
_THEMES: Final = {
    themes.DARK: "Calm colours on a dark ground.",
    themes.LIGHT: "Calm colours on a light ground.",
    themes.ANSI: "The terminal's own sixteen colours.",
}


@dataclass(frozen=True)
class Entry:
    """A line of the palette. name, keys and help are safe for a terminal."""

    name: str
    help: str
    run: Callable[[], Any]
    keys: str = ""


class RunnerCommands(Provider):
    """What the palette offers over the screen that it was opened on. The app has `services`."""

    async def startup(self) -> None:
        """Begin to read the disk. It is not waited for here: Textual cancels this with a search that waits for it."""
        self._known = [*self._actions(), *self._themes()]
        self._openable = asyncio.create_task(self._read())

    async def _read(self) -> list[Entry]:
        services = getattr(self.app, "services", None)
        if not isinstance(services, Services):
            return []
        return list(self._openings(*await asyncio.to_thread(_on_this_machine, services)))

    async def _entries(self) -> AsyncIterator[Entry]:
        for entry in self._known:
            yield entry
        for entry in await asyncio.shield(self._openable):
            yield entry

    async def discover(self) -> Hits:
        async for entry in self._entries():
            shown = _with_keys(Content(entry.name), entry.keys)
            yield DiscoveryHit(shown, entry.run, text=entry.name, help=_markup(entry.help))

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        async for entry in self._entries():
            score = max(matcher.match(entry.name), 0.5 * matcher.match(entry.help))
            if score > 0:
                shown = _with_keys(_highlighted(entry.name, matcher), entry.keys)
                yield Hit(score, shown, entry.run, text=entry.name, help=_markup(entry.help))

    # --- what there is -----------------------------------------------------------------------------------------------

    def _actions(self) -> Iterator[Entry]:
        screen = self.screen
        if isinstance(screen, ModeScreen) and screen.mode_name in get_args(Where):
            for action in actions_of(cast("Where", screen.mode_name)):
                yield Entry(action.label, action.help, partial(screen.run_action, action.name), _keys(action))
        for action in actions_of("app"):
            if action.name != "command_palette":
                yield Entry(action.label, action.help, partial(self.app.run_action, action.name), _keys(action))

    def _themes(self) -> Iterator[Entry]:
        for name in themes.NAMES:
            if name in self.app.available_themes and not self.app.no_color:
                yield Entry(f"Theme: {name}", _THEMES[name], partial(_use_theme, self.app, name))

    def _openings(self, models: list[tuple[str, str]], chats: list[tuple[str, str]]) -> Iterator[Entry]:
        for model, about in models:
            name = f"Open {safe_line(model)}"
            yield Entry(name, safe_line(about), partial(self.app.post_message, OpenModel(model)))
        for chat, title in chats:
            name = f"Resume {safe_line(title)}"
            yield Entry(name, "A kept chat.", partial(self.app.post_message, ResumeChat(chat)))


def _keys(action: Action) -> str:
    return key_names(",".join(one for one in (action.keys, action.plain) if one))


def _use_theme(app: App[Any], name: str) -> None:
    app.theme = name


def _on_this_machine(services: Services) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Names of the models that are here, each with what it is, and ids of recent chats with their titles. Reads the
    disk; what cannot be read is left out."""
    models: list[tuple[str, str]] = []
    chats: list[tuple[str, str]] = []
    with suppress(RunnerError, OSError):
        whole = [model for model in local_models(services.registry()) if model.state == "complete"]
        models = [(model.name, f"Chat with this model. {model.quantization}, {model.kind}.") for model in whole]
    with suppress(RunnerError):
        kept = services.store.sessions(_RECENT) if services.store is not None else []
        chats = [(one.id, one.title or "a chat without a title") for one in kept]
    return models, chats


# --- text ------------------------------------------------------------------------------------------------------------


def _with_keys(name: Content, keys: str) -> Content:
    return Content.assemble(name, (f"  {keys}", "$option-muted")) if keys else name


def _highlighted(name: str, matcher: Matcher) -> Content:
    """`name` with what was matched in the palette's style: Matcher.highlight would parse it as markup."""
    content = Content(name)
    score, offsets = matcher.fuzzy_search.match(matcher.query, name)
    for offset in offsets if score else ():
        if not name[offset].isspace():
            content = content.stylize(matcher.match_style, offset, offset + 1)
    return content


def _markup(text: str) -> str:
    """Markup that shows `text` as it stands. (textual.markup.escape leaves "[$x]" open and doubles backslashes.)"""
    return text.replace("[", "\\[")
