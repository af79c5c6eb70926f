"""What the chat's screen does with the settings panel: opens it, applies what was chosen, saves it as the default.

It knows nothing of fields or their ranges.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from runner.errors import RunnerError
from runner.paths import Paths
from runner.settings import set_value, unset_value
from runner.tui.chat_settings import FIELDS, KEYS, is_changed, texts
from runner.tui.screens.settings_panel import Chosen, SettingsPanel

if TYPE_CHECKING:
    from runner.tui.screens.chat_surface import ChatSurface


class SettingsDesk:
    """One chat screen's settings."""

    def __init__(self, chat: ChatSurface) -> None:
        self._chat = chat

    def open(self) -> None:
        """Show the panel."""
        conversation, model = self._chat.engine.conversation, self._chat.engine.model
        typed, defaults = self._now(), self._defaults()
        panel = SettingsPanel(
            conversation.system or "", typed, defaults, f"the defaults of {model}", is_tinted=self._chat.is_tinted
        )
        self._chat.app.push_screen(panel, self._take)

    def _now(self) -> dict[str, str]:
        engine = self._chat.engine
        return texts(engine.conversation.params, engine.conversation.options, engine.options)

    def _defaults(self) -> dict[str, str]:
        """The fields as they are when nothing is set in this chat: the user's settings over the model's own."""
        engine, services = self._chat.engine, self._chat.services
        sampling = engine.loaded.sampling if engine.loaded is not None else {}
        settings = services.settings
        return texts(settings.sampling_params(sampling), settings.chat_options(), services.load_options)

    def _take(self, chosen: Chosen | None) -> None:
        if chosen is None:
            return
        self._chat.show_tint(chosen.is_tinted)
        try:
            self._chat.refuse_while_answering()
            self._apply(chosen)
        except RunnerError as error:
            self._chat.fail(error)

    def _apply(self, chosen: Chosen) -> None:
        engine, wanted = self._chat.engine, chosen.settings
        if wanted.system != (engine.conversation.system or ""):
            engine.conversation.set_system(wanted.system or None)
        unseen = {name: value for name, value in engine.own_params.items() if name not in FIELDS}
        engine.configure(own_params={**unseen, **wanted.own_params}, options=wanted.options)
        loading = replace(engine.options, **wanted.loading)
        is_loaded_again = loading != engine.options and engine.state != "empty"
        if is_loaded_again:
            engine.open(engine.model, loading)
        else:
            engine.options = loading
        self._chat.recount()
        if chosen.is_default:
            paths, defaults = self._chat.services.paths, self._defaults()
            now = texts(engine.conversation.params, engine.conversation.options, loading)
            self._chat.in_thread(lambda: save(paths, wanted.system, now, defaults), self._say_saved)
        elif is_loaded_again:
            self._chat.tell("The model is loaded again: speculation is a part of how it is loaded.")
        else:
            self._chat.tell("It holds from the next answer on.")

    def _say_saved(self, keys: list[str]) -> None:
        if keys:
            self._chat.tell(f"Saved for chats to come: {', '.join(keys)}.")
        else:
            self._chat.tell("Nothing differs from the defaults: nothing to save.")


def save(paths: Paths, system: str, now: Mapping[str, str], defaults: Mapping[str, str]) -> list[str]:
    """Write what differs from the defaults, and the system prompt, to the user's settings; returns what was written.

    Raises ConfigError.
    """
    written = []
    for name in FIELDS:
        if is_changed(name, now[name], defaults[name]):
            _write(paths, KEYS[name], now[name], is_list=name in ("stop", "draft_file"))
            written.append(KEYS[name])
    _write(paths, "system", system or "none", is_list=False)
    return [*written, *(["system"] if system else [])]


def _write(paths: Paths, key: str, text: str, *, is_list: bool) -> None:
    if text == "none":
        unset_value(paths, key)
    else:
        set_value(paths, key, shlex.split(text) if is_list else [text])
