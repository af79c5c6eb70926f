"""What the chat's screen does with kept chats: list, search, resume, rename, delete, begin a new one.

The store is read in threads, and what it says arrives in the UI's thread. It knows nothing of how chats are shown.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import date, datetime
from typing import TYPE_CHECKING, Any

from textual.timer import Timer

from runner.errors import RunnerError, UsageError
from runner.kept_chat import kept_params
from runner.measures import decimal_size
from runner.message_files import Attachment
from runner.store import Deleted, Match, Store
from runner.transcript import Session, SessionSummary
from runner.tui.screens.ask_text import AskText
from runner.tui.screens.confirm import Confirm
from runner.tui.widgets.prompt_box import PromptBox
from runner.tui.widgets.sessions_rail import SessionsRail

if TYPE_CHECKING:
    from runner.tui.screens.chat_surface import ChatSurface

_SEARCH_AFTER_S = 0.2  # a search reads every kept turn: not for each letter of a word


class SessionDesk:
    """One chat screen's dealings with its store. store None: chats are not kept."""

    def __init__(self, chat: ChatSurface, store: Store | None) -> None:
        self._chat = chat
        self._store = store
        self._drafts: dict[str | None, tuple[str, tuple[Attachment, ...]]] = {}
        self._search_timer: Timer | None = None

    @property
    def _rail(self) -> SessionsRail:
        return self._chat.query_one(SessionsRail)

    # --- the list --------------------------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Read the list, or what is searched for, anew."""
        store, text = self._store, self._rail.searched
        if store is None:
            self._rail.show_nothing_kept()
        elif text:
            self._chat.in_thread(lambda: store.search(text), self._show_matches, group="sessions")
        else:
            self._chat.in_thread(store.sessions, self._show, group="sessions")

    def search_soon(self) -> None:
        """The searched text changed."""
        if self._search_timer is not None:
            self._search_timer.stop()
        self._search_timer = self._chat.set_timer(_SEARCH_AFTER_S, self.refresh)

    def _show(self, sessions: list[SessionSummary]) -> None:
        if not self._rail.searched:
            self._rail.show(sessions, self._chat.engine.conversation.session_id, date.today())

    def _show_matches(self, matches: list[Match]) -> None:
        if self._rail.searched:
            self._rail.show_matches(matches, self._chat.engine.conversation.session_id)

    # --- another chat ----------------------------------------------------------------------------------------------

    def leave(self) -> None:
        """Keep what is typed in the chat that is left."""
        self._chat.box.prompt.bring_back()
        draft = (self._chat.box.prompt.text, self._chat.box.files)
        current = self._chat.engine.conversation.session_id
        self._drafts.pop(current, None)
        if any(draft) and not self._chat.box.is_edit:
            self._drafts[current] = draft

    def arrive(self) -> None:
        """Bring back what was typed in the chat that is there now."""
        self._chat.box.fill(*self._drafts.pop(self._chat.engine.conversation.session_id, ("", ())))

    def begin(self) -> None:
        """A new chat; where nothing was said yet, this one without what was noted in it."""
        if not self._chat.engine.conversation.turns:
            if not self._chat.engine.is_busy:
                self._chat.answers.show()
                self._chat.answers.show_model()
            self._chat.focus_prompt()
            return
        self._after_answer("begin a new chat", self._begin)

    def _begin(self) -> None:
        box = self._chat.box
        had_no_room = box.prompt.is_as_given_back
        unsent = PromptBox.Sent(box.prompt.text, box.files, is_edit=False)
        if not had_no_room:
            self.leave()
        self._chat.engine.conversation.clear()
        self._chat.show_conversation()
        if had_no_room:
            box.give_back(unsent)

    def resume(self, session_id: str, position: int | None = None) -> None:
        """Go on with a kept chat. position: of a turn to look at first."""
        if session_id == self._chat.engine.conversation.session_id:
            self._chat.focus_prompt()
            self._look_at(position)
            return
        self._after_answer("open another chat", lambda: self._resume(session_id, position))

    def _look_at(self, position: int | None) -> None:
        if position is not None:  # once the transcript has its place on the screen
            self._chat.transcript.call_after_refresh(self._chat.transcript.choose, position)

    def _resume(self, session_id: str, position: int | None) -> None:
        self.leave()
        engine = self._chat.engine
        try:
            session = engine.conversation.resume(session_id)
        except RunnerError:  # another program has deleted it
            self.refresh()
            raise
        try:
            engine.configure(own_params=self._own_params(session))
        except UsageError as error:  # kept by another version, with other ranges
            self._chat.fail(error)
        self._chat.show_conversation()
        self._look_at(position)
        if session.model and session.model != engine.model:
            self._chat.tell(f"This chat was held with {session.model}: /model {session.model} goes on with it.")

    def _own_params(self, session: Session) -> dict[str, Any]:
        """The sampling that a chat was held with, where it is not what this model has anyway."""
        loaded, settings = self._chat.engine.loaded, self._chat.services.settings
        usual = settings.sampling_params({} if loaded is None else loaded.sampling)
        return {name: value for name, value in kept_params(session).items() if value != getattr(usual, name)}

    def _after_answer(self, doing: str, act: Callable[[], None]) -> None:
        """Do it now; while an answer is being written, ask whether to stop that, and do it after."""
        if not self._chat.engine.is_busy:
            act()
            return
        question = Confirm("An answer is being written.", f"Stop it, keep what has come, and {doing}?", yes="Stop it")
        self._chat.app.push_screen(question, lambda is_sure: self._chat.stop_and(act) if is_sure else None)

    # --- titles and ends -------------------------------------------------------------------------------------------

    def rename(self, session: SessionSummary) -> None:
        """Ask for another title."""
        self._chat.app.push_screen(
            AskText("Title of the chat", session.title), lambda title: self._rename(session, title)
        )

    def _rename(self, session: SessionSummary, title: str | None) -> None:
        if title is None or self._store is None:
            return
        store, conversation = self._store, self._chat.engine.conversation
        title = " ".join(title.split())
        if session.id == conversation.session_id:
            conversation.rename(title)
            self.refresh()
        elif title:
            self._chat.in_thread(
                lambda: store.update_session(session.id, lambda kept: replace(kept, title=title)),
                lambda _: self.refresh(),
            )

    def current(self) -> SessionSummary:
        """The chat that is open. Raises UsageError when it is not kept yet."""
        about = self._chat.engine.conversation.about()
        if not about.id:
            raise UsageError("This chat is not kept yet.", hint="Ask something first.")
        return SessionSummary(
            id=about.id,
            title=about.title,
            model=about.model,
            backend=about.backend,
            n_turns=len(self._chat.engine.conversation.turns),
            created_at=about.created_at,
            updated_at=about.updated_at,
        )

    def delete(self, session: SessionSummary) -> None:
        """Ask, and delete for good."""
        since = datetime.fromtimestamp(session.created_at)
        messages = f"{session.n_turns} message{'' if session.n_turns == 1 else 's'}"
        detail = f"{session.title}\n\n{messages}, since {since:%d %B %Y}. Nothing of it stays on the disk."
        self._chat.app.push_screen(
            Confirm("Delete this chat?", detail, yes="Delete", is_grave=True),
            lambda is_sure: self._delete(session.id) if is_sure else None,
        )

    def _delete(self, session_id: str) -> None:
        if session_id == self._chat.engine.conversation.session_id:
            self._chat.stop_and(lambda: self._forget(session_id))
        else:
            self._remove(session_id)

    def _forget(self, session_id: str) -> None:
        self._chat.engine.conversation.clear()
        self._chat.show_conversation()
        self._remove(session_id)

    def _remove(self, session_id: str) -> None:
        store = self._store
        if store is not None:
            self._drafts.pop(session_id, None)
            self._chat.in_thread(lambda: store.delete([session_id]), self._say_deleted)

    def _say_deleted(self, deleted: Deleted) -> None:
        freed = f", {decimal_size(deleted.freed_bytes)} freed" if deleted.freed_bytes else ""
        self._chat.tell(f"Deleted{freed}.")
        self.refresh()
