"""What deleting a model takes away, and what it frees; yes deletes. The plan is made on a thread: it walks the disk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from textual import on, work
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.message import Message
from textual.widgets import Button, Static

from runner.deletion import users
from runner.errors import RunnerError
from runner.measures import decimal_size
from runner.removal import Removal, shared_bytes
from runner.safe_text import safe_line
from runner.tui.content import line
from runner.tui.screens.question import Question

_MOST_NAMES = 6
_LOADED = "The chat has this model loaded: it goes on with it until another one is loaded."


class DeleteModel(Question[tuple[Removal, ...] | None]):
    """plan: what deleting means; it may take its time and raise RunnerError. The answer is what to delete, or None.

    is_loaded: the chat has this model loaded. engines: the list of all engines, which other programs' are in too.
    """

    DEFAULT_CSS = """
    DeleteModel > VerticalScroll { border: round $error; }
    DeleteModel.-flat #detail, DeleteModel.-flat Horizontal { margin: 0; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,n", "dismiss(None)", "Cancel"),
        Binding("y", "agree", "Delete"),
    ]

    @dataclass
    class _Planned(Message):
        removals: tuple[Removal, ...]
        users: tuple[str, ...]
        shared_bytes: int
        error: RunnerError | None

    def __init__(
        self, name: str, plan: Callable[[], Sequence[Removal]], engines: Path, *, is_loaded: bool = False
    ) -> None:
        super().__init__(f"Delete {name}?", Content("looking what that means…"), yes="Delete", is_grave=True)
        self._plan, self._engines, self._is_loaded = plan, engines, is_loaded
        self._removals: tuple[Removal, ...] = ()

    def on_mount(self) -> None:
        self.query_one("#yes", Button).disabled = True
        self.query_one("#no").focus()
        self._look()

    @work(thread=True, exclusive=True)
    def _look(self) -> None:
        try:
            removals = tuple(self._plan())
            shared = sum(shared_bytes(removal) for removal in removals)
            self.post_message(self._Planned(removals, users(removals, self._engines), shared, None))
        except RunnerError as error:
            self.post_message(self._Planned((), (), 0, error))

    @on(_Planned)
    def _show(self, message: _Planned) -> None:
        what = self.query_one("#detail", Static)
        if message.error is not None:
            what.update(line(f"✗ {message.error.message} {message.error.hint}", "$text-error"))
            return
        self._removals = message.removals
        said = (_LOADED, *message.users) if self._is_loaded else message.users
        what.update(_words(message.removals, message.shared_bytes, said))
        button = self.query_one("#yes", Button)
        button.disabled = not message.removals
        button.focus()

    def action_agree(self) -> None:
        if self._removals:
            self.dismiss(self._removals)

    @on(Button.Pressed)
    def _pressed(self, event: Button.Pressed) -> None:
        event.stop()
        if event.button.id == "yes":
            self.action_agree()
        else:
            self.dismiss(None)


def _words(removals: Sequence[Removal], shared: int, users: Sequence[str]) -> Content:
    """Who has it loaded, what goes, line by line, and the bytes freed."""
    lines = [line(words, "$text-warning") for words in users]
    lines += [Content("")] if users else []
    for removal in removals:
        lines.append(Content.assemble((safe_line(removal.title), "bold"), f"  {decimal_size(removal.disk_bytes)}"))
        lines.append(line(f"  in {removal.directory}", "$text-muted"))
        names = sorted(removal.names or ())
        lines += [line(f"  {name}", "$text-muted") for name in names[:_MOST_NAMES]]
        if len(names) > _MOST_NAMES:
            lines.append(Content.styled(f"  and {len(names) - _MOST_NAMES} more", "$text-muted"))
        if removal.left.parts:
            lines.append(Content.styled("  with what an interrupted download left", "$text-muted"))
    if shared:
        said = f"{decimal_size(shared)} of that stay: other files of the cache share them."
        lines += [Content(""), Content.styled(said, "$text-warning")]
    freed = max(0, sum(removal.disk_bytes for removal in removals) - shared)
    lines += [Content(""), Content.assemble("This frees ", (decimal_size(freed), "bold"), ".")]
    return Content("\n").join(lines)
