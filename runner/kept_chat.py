"""Keeps the chat in the store equal to the turns of a conversation, also when something goes wrong in between.

It knows which turns are kept and what else is writing; what a turn says and where it came from is not its business.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from runner.config import Grammar, SamplingParams
from runner.errors import RunnerError
from runner.events import Notice
from runner.store import Store
from runner.transcript import Session, Turn
from runner.wire import from_plain

_DESCRIPTION = ("title", "model", "backend", "system", "settings")


class KeptChat:
    """One conversation's chat in `store`; None keeps nothing.

    A write that fails is made up for by the next one: it writes every turn that is not kept yet. When another process
    wrote to the same chat, this one goes on as a new chat, so that neither loses a turn; when the chat was deleted
    elsewhere, it stays deleted and nothing more is kept until `forget`.
    """

    def __init__(self, store: Store | None) -> None:
        self._store = store
        self._is_deleted = False
        self._n_kept = self._n_there = 0  # turns that are the conversation's own; and of the chat in the store
        self.session: Session | None = None

    @property
    def is_on(self) -> bool:
        """Whether what is saved now is kept."""
        return self._store is not None and not self._is_deleted

    @property
    def n_there(self) -> int:
        """How many turns the chat in the store has."""
        return self._n_there

    def is_whole(self, n_turns: int) -> bool:
        """Whether the chat in the store is a conversation of so many turns, as `save` last had it."""
        return self._n_kept == self._n_there == n_turns

    def forget(self) -> None:
        """Leave the chat in the store as it is; the next save makes a new one."""
        self.session = None
        self._n_kept = self._n_there = 0
        self._is_deleted = False

    def open(self, session: Session, n_turns: int) -> None:
        """Go on with a chat of the store, which has `n_turns` turns."""
        self.forget()
        self.session = session
        self._n_kept = self._n_there = n_turns

    def save(self, about: Session, turns: Sequence[Turn], position: int, *, durable: bool = True) -> Notice | None:
        """Make the chat in the store equal to `turns`, of which those from `position` on are new or changed.

        about: the title, model, backend, system prompt and settings of now. Returns what the user should know, if
        anything. Raises StoreError or BusyError.
        """
        if self._store is None or self._is_deleted:
            return None
        self._n_kept = start = min(position, self._n_kept)
        if self.session is None:
            self._create(about, turns)
            return None
        self.describe(about)
        session = self.session
        revision = self._store.write_turns(session.id, start, turns[start:], revision=session.revision, durable=durable)
        if revision is None:
            return self._part_ways(about, turns)
        self.session = dataclasses.replace(session, revision=revision)
        self._n_kept = self._n_there = len(turns)
        if not turns:  # a chat in which nothing is said is none
            self._store.delete([session.id])
            self.forget()
        return None

    def describe(self, about: Session) -> None:
        """Bring what is known of the chat up to date, and only what changed here: another may have renamed it."""
        if self._store is None or self.session is None:
            return
        known = self.session
        changed = {name: getattr(about, name) for name in _DESCRIPTION if getattr(about, name) != getattr(known, name)}
        if changed:
            self._store.update_session(known.id, lambda current: dataclasses.replace(current, **changed))
            self.session = dataclasses.replace(known, **changed)

    def _create(self, about: Session, turns: Sequence[Turn]) -> None:
        if self._store is None or not turns:
            return
        self.session = self._store.create_session(
            title=about.title,
            model=about.model,
            backend=about.backend,
            system=about.system,
            settings=about.settings,
            turns=turns,
        )
        self._n_kept = self._n_there = len(turns)

    def _part_ways(self, about: Session, turns: Sequence[Turn]) -> Notice:
        """The chat in the store is not the one that this process left there."""
        assert self._store is not None
        assert self.session is not None
        old = self.session.id
        if all(summary.id != old for summary in self._store.sessions()):
            self.forget()
            self._is_deleted = True
            return Notice("warning", f"Chat {old} was deleted: this one is no longer kept.", "/clear starts a new one.")
        if turns:
            self._create(about, turns)
        else:
            self.forget()
        return Notice("warning", f"Chat {old} went on in another runner: what is here is kept as a chat of its own.")


def kept_params(session: Session) -> dict[str, Any]:
    """The sampling that a kept chat was held with. Values of another version that are not understood are left out."""
    kept = session.settings.get("params")
    if not isinstance(kept, dict):
        return {}
    names = {field.name for field in dataclasses.fields(SamplingParams)}
    found = {name: _kept_value(name, value) for name, value in kept.items() if name in names}
    return {name: value for name, value in found.items() if value is not None}


def _kept_value(name: str, value: Any) -> Any:
    """A value of SamplingParams as it was before it became JSON; None where nothing was set."""
    if name == "grammar" and isinstance(value, dict):
        try:
            return from_plain(Grammar, value)
        except (TypeError, KeyError, RunnerError):
            return None
    return tuple(value) if isinstance(value, list) else value
