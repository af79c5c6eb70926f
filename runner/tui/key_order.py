"""Keys that come in one burst, as over a slow line: each is answered before the next one is looked at.

Textual hands a key to what has the focus, and what the key does is decided on its way up from there. Until then the
keys after it would go to the same widget: "/tiny" would be one key for the filter and four for the table.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from textual import events, on
from textual.app import App, ReturnType
from textual.message import Message
from textual.widget import Widget

_ROUNDS: Final = 2  # what the key did, and what a message that it led to did
_PATIENCE_S: Final = 1.0  # a widget that is taken away meanwhile does not answer


class _Passed(Message):
    """Goes the way that a key went, behind it. number: which key; round: how often it came up."""

    def __init__(self, number: int, nth_round: int) -> None:
        super().__init__()
        self.number, self.nth_round = number, nth_round


class KeyOrder(App[ReturnType]):
    """An app whose keys and pastes keep their order, whatever moves the focus between them."""

    def __init__(self, *, ansi_color: bool | None = None) -> None:
        super().__init__(ansi_color=ansi_color)
        self._held: deque[events.Key | events.Paste] = deque()
        self._n_given = 0
        self._is_under_way = False

    async def on_event(self, event: events.Event) -> None:
        if not isinstance(event, (events.Key, events.Paste)) or event.is_forwarded:
            await super().on_event(event)
        elif self._is_under_way:
            self._held.append(event)
        else:
            await self._give(event)

    async def _give(self, event: events.Key | events.Paste) -> None:
        field = self.focused
        await super().on_event(event)
        if isinstance(event, events.Key) and not (field and field.check_consume_key(event.key, event.character)):
            self._n_given += 1
            self._is_under_way = True
            asyncio.get_running_loop().call_later(_PATIENCE_S, self.post_message, _Passed(self._n_given, _ROUNDS))
            self._follow(1)

    def _follow(self, nth_round: int) -> None:
        if self.screen_stack:  # none: the app ends
            nearest: Widget = self.focused or self.screen
            nearest.post_message(_Passed(self._n_given, nth_round))

    @on(_Passed)
    async def _pass(self, message: _Passed) -> None:
        if not self._is_under_way or message.number != self._n_given:
            return
        if message.nth_round < _ROUNDS:
            self._follow(message.nth_round + 1)
            return
        self._is_under_way = False
        while self._held and self.screen_stack and not self._is_under_way:
            await self._give(self._held.popleft())
