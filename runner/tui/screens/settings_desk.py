"""What the chat's screen does with the settings panel: opens it, applies what was chosen, saves it as the default.

It knows nothing of fields or their ranges.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from runner.config import LoadOptions
from runner.errors import RunnerError
from runner.paths import Paths
from runner.settings import Settings, load_settings, set_meant, set_value, unset_value
from runner.tui.chat_settings import FIELDS, KEYS, is_changed, texts
from runner.tui.messages import EngineMessage, LoadEnded
from runner.tui.screens.settings_panel import Chosen, SettingsPanel

if TYPE_CHECKING:
    from runner.tui.screens.chat_surface import ChatSurface


@dataclass(frozen=True)
class Saved:
    """What saving changed in the user's file: keys that were written, and keys that were taken out."""

    written: tuple[str, ...]
    unset: tuple[str, ...]


class SettingsDesk:
    """One chat screen's settings."""

    def __init__(self, chat: ChatSurface) -> None:
        self._chat = chat
        self._loading: LoadOptions | None = None  # what the model is loaded again with, until it is or is not

    def on_engine(self, message: EngineMessage) -> None:
        """Say that the model was loaded again, once it was."""
        if isinstance(message, LoadEnded):
            wanted, self._loading = self._loading, None
            if (
                wanted is not None
                and message.error is None
                and message.options == wanted
                and message.loaded is not None
            ):
                self._chat.tell("The model was loaded again: speculation is a part of how it is loaded.")

    def open(self) -> None:
        """Show the panel."""
        conversation, model = self._chat.engine.conversation, self._chat.engine.model
        typed, defaults = self._now(), self._defaults()
        is_known = self._chat.engine.loaded is not None
        default_of = f"the defaults of {model}" if is_known else "the general defaults"
        panel = SettingsPanel(conversation.system or "", typed, defaults, default_of, is_tinted=self._chat.is_tinted)
        self._chat.app.push_screen(panel, self._take)

    def _now(self) -> dict[str, str]:
        engine = self._chat.engine
        return texts(engine.conversation.params, engine.conversation.options, engine.options)

    def _defaults(self) -> dict[str, str]:
        """The fields as they are when nothing is set in this chat: the user's settings over the model's own."""
        services = self._chat.services
        return _texts(services.settings, self._sampling(), services.load_options)

    def _sampling(self) -> Mapping[str, Any]:
        """What the model itself wants."""
        loaded = self._chat.engine.loaded
        return {} if loaded is None else loaded.sampling

    def _not_from_flags(self, now: Mapping[str, str]) -> dict[str, str]:
        """Without what a flag of this start said and nobody changed since: that is not for chats to come."""
        started, settings = self._defaults(), _texts(self._chat.services.settings, self._sampling())
        return {name: text for name, text in now.items() if text != started[name] or text == settings[name]}

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
            self._loading = None if chosen.is_default else loading
        else:
            engine.options = loading
        self._chat.recount()
        if chosen.is_default:
            paths, sampling = self._chat.services.paths, self._sampling()
            now = self._not_from_flags(texts(engine.conversation.params, engine.conversation.options, loading))
            self._chat.in_thread(lambda: save(paths, wanted.system, now, sampling), self._say_saved)
        elif not is_loaded_again:
            self._chat.tell("It holds from the next answer on.")

    def _say_saved(self, saved: Saved) -> None:
        told = [f"Saved for chats to come: {', '.join(saved.written)}."] if saved.written else []
        told += [f"No longer set: {', '.join(saved.unset)}."] if saved.unset else []
        self._chat.tell(" ".join(told) or "Nothing differs from the defaults: nothing to save.")


def save(paths: Paths, system: str, now: Mapping[str, str], sampling: Mapping[str, Any]) -> Saved:
    """Write what differs from the settings as they are by now to the user's file.

    What holds without that file is taken out of it. sampling: what the model itself wants. Raises ConfigError.
    """
    settings = load_settings(paths)
    others = _without(settings, str(paths.settings_file))
    kept, bare = _texts(settings, sampling), _texts(others, sampling)
    wanted = {KEYS[name]: now[name] for name in FIELDS if name in now and is_changed(name, now[name], kept[name])}
    unset = {KEYS[name] for name in now if not is_changed(name, now[name], bare[name])}
    if system != settings.system:
        wanted["system"] = system or "none"
        unset |= {"system"} if system == others.system else set()
    taken = {key for key, text in wanted.items() if text == "none" or key in unset}
    for key, text in wanted.items():
        if key in taken:
            unset_value(paths, key)
        elif key in ("stop", "draft_file"):
            set_meant(paths, key, tuple(shlex.split(text)))
        else:
            set_value(paths, key, [text])
    return Saved(tuple(key for key in wanted if key not in taken), tuple(key for key in wanted if key in taken))


def _without(settings: Settings, origin: str) -> Settings:
    """The settings as they are without what comes from one place."""
    return Settings({key: given for key, given in settings.given.items() if given[1] != origin})


def _texts(settings: Settings, sampling: Mapping[str, Any], loading: LoadOptions | None = None) -> dict[str, str]:
    """The fields of the panel as settings have them, over what the model itself wants."""
    return texts(settings.sampling_params(sampling), settings.chat_options(), loading or settings.load_options())
