"""Help for where the user is: the keys of the mode and of the focused widget, the app's, and the slash commands.

What it lists comes from ACTIONS, from the widget's own bindings, and from the table of slash commands. It does nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.events import Click
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import Input, Static

from runner.chat_commands import COMMANDS
from runner.measures import text_width, wrap
from runner.tui.actions import Where, actions_of
from runner.tui.key_names import key_names

_LONGEST_KEYS: Final = 18
_DULL: Final = ("scroll_left", "scroll_right", "page_left", "page_right")  # nothing here is wider than the screen
# What is called otherwise on the screen than in the program.
_SEEN_AS: Final = {
    "BackendReason": "reason for the backend",
    "Input": "text field",
    "JobRow": "download or quantization",
    "LiveRail": "column of numbers",
    "OptionList": "list",
    "OtherPrograms": "list of other programs",
    "Select": "choice",
    "SessionList": "list of chats",
    "Size": "number",
    "SpeculationSection": "section on speculation",
    "Tick": "checkbox",
    "VerticalScroll": "pane",
}


@dataclass(frozen=True)
class HelpRow:
    keys: str
    text: str


@dataclass(frozen=True)
class HelpGroup:
    title: str
    rows: tuple[HelpRow, ...]


_PROMPT: Final = (
    HelpRow("Enter", "Send the message."),
    HelpRow("^j, Alt+Enter", 'Begin a new line; so does Enter after a \\ at the end, and between """ and """.'),
    HelpRow("↑, ↓", "Go through earlier messages."),
    HelpRow("@file", "Attach the text of a file; Tab takes what is offered."),
    HelpRow("/", "Begin a command, of those below."),
    HelpRow("Backspace", "In an empty prompt: leave out the file that was attached last."),
    HelpRow("^c", "Copy what is selected; else stop what runs; else empty the prompt; when it is empty, twice leaves."),
)


def help_groups(where: Where, focused: Widget | None, commands: Sequence[tuple[str, str]]) -> tuple[HelpGroup, ...]:
    """What can be done here, the nearest first. commands: slash commands and what they do."""
    groups = [
        HelpGroup("Prompt", _PROMPT) if where == "chat" else None,
        HelpGroup(where.capitalize(), tuple(_of_actions(where))) if where != "app" else None,
        HelpGroup(f"The {_kind(focused)} that has the focus", tuple(_of_widget(focused))) if focused else None,
        HelpGroup("Slash commands", tuple(HelpRow(name, text) for name, text in commands)),
        HelpGroup("Everywhere", tuple(_of_actions("app"))),
    ]
    return tuple(group for group in groups if group is not None and group.rows)


def matching(groups: Sequence[HelpGroup], query: str) -> tuple[HelpGroup, ...]:
    """The rows that have every word of `query` in their keys or text."""
    words = query.lower().split()

    def has_all(row: HelpRow) -> bool:
        text = f"{row.keys} {row.text}".lower()
        return all(word in text for word in words)

    found = (HelpGroup(group.title, tuple(row for row in group.rows if has_all(row))) for group in groups)
    return tuple(group for group in found if group.rows)


def _of_actions(where: Where) -> Iterator[HelpRow]:
    for action in actions_of(where):
        keys = ", ".join(key_names(one) for one in (action.keys, action.plain) if one)
        yield HelpRow(keys or f"^p {action.label}", action.help)


def _of_widget(widget: Widget) -> Iterator[HelpRow]:
    """What its keys do now, its classes' included; keys that do the same stand together."""
    described: dict[str, list[str]] = {}
    for key, active in widget.screen.active_bindings.items():
        binding = active.binding
        if active.node is widget and binding.description and not binding.system and binding.action not in _DULL:
            described.setdefault(active.tooltip or binding.description, []).append(key)
    for text, keys in described.items():
        yield HelpRow(key_names(",".join(keys)), text if text.endswith(".") else f"{text}.")


def _kind(widget: Widget) -> str:
    """What the user sees there: "pane “Result”", "list", and a ModelTable as "model table"."""
    name = type(widget).__name__
    words = "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in name.lstrip("_")).strip()
    title = Content.from_markup(str(widget.border_title)).plain if widget.border_title else ""
    return _SEEN_AS.get(name, words) + (f" “{title}”" if title else "")


def help_content(groups: Sequence[HelpGroup], width: int) -> Content:
    """The groups as text for so many columns: keys beside what they do, or above it where that is too narrow."""
    longest = max((text_width(row.keys) for group in groups for row in group.rows), default=0)
    indent = min(longest, _LONGEST_KEYS if width >= 60 else 10) + 2
    lines: list[Content] = []
    for group in groups:
        lines += [Content("")] if lines else []
        lines.append(Content.styled(group.title, "bold $primary"))
        for row in group.rows:
            lines += _row_lines(row, indent, width)
    return Content("\n").join(lines)


def _row_lines(row: HelpRow, indent: int, width: int) -> Iterator[Content]:
    keys = Content.styled(row.keys, "bold $accent")
    texts = wrap(row.text, max(10, width - indent)).split("\n")
    if text_width(row.keys) > indent - 2:
        yield keys
        keys, first = Content(""), 0
    else:
        first = text_width(row.keys)
    for text in texts:
        yield Content.assemble(keys, " " * (indent - first), text)
        keys, first = Content(""), 0


class HelpScreen(ModalScreen[None]):
    """where: the mode; focused: the widget that had the focus there."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,f1,enter", "leave", "Back", show=False),
        Binding("down", "scroll(1)", show=False),
        Binding("up", "scroll(-1)", show=False),
        Binding("pagedown", "page(1)", show=False),
        Binding("pageup", "page(-1)", show=False),
    ]
    DEFAULT_CSS = """
    HelpScreen { align: center middle; }
    HelpScreen > Vertical {
        width: 90%; max-width: 88; height: 90%; background: $surface; border: round $primary; padding: 0 1;
        border-title-color: $text; border-subtitle-color: $text-muted;
    }
    HelpScreen Input { border: none; height: 1; padding: 0; background: $surface; margin-bottom: 1; }
    HelpScreen Input:focus { border: none; background-tint: transparent 0%; }
    HelpScreen VerticalScroll { scrollbar-size-vertical: 1; scrollbar-gutter: stable; }
    HelpScreen #help-text { width: 100%; height: auto; padding-right: 1; }
    HelpScreen.-tiny > Vertical { width: 100%; height: 100%; padding: 0; }
    HelpScreen.-flat > Vertical { height: 100%; }
    HelpScreen.-flat Input { margin-bottom: 0; }
    """
    HORIZONTAL_BREAKPOINTS = [(0, "-tiny"), (60, "-narrow")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-flat"), (20, "-low")]  # noqa: RUF012

    def __init__(self, where: Where, focused: Widget | None = None) -> None:
        super().__init__()
        self._groups = help_groups(where, focused, slash_commands() if where == "chat" else ())

    def compose(self) -> ComposeResult:
        with Vertical() as frame:
            frame.border_title = "Help"
            frame.border_subtitle = "type to search · Esc back · ↑↓ scroll"
            yield Input(placeholder="Search the keys and commands", id="help-search")
            with VerticalScroll(can_focus=False):
                yield Static(id="help-text")

    def on_mount(self) -> None:
        self.query_one(Input).focus()

    def on_resize(self) -> None:
        self.call_after_refresh(self._show)

    @on(Input.Changed)
    def _search(self) -> None:
        self._show()
        self.query_one(VerticalScroll).scroll_home(animate=False)

    def _show(self) -> None:
        groups = matching(self._groups, self.query_one(Input).value)
        text = self.query_one("#help-text", Static)
        width = self.query_one(VerticalScroll).scrollable_content_region.width - 1
        text.update(help_content(groups, width) if groups else Content.styled("Nothing here is called that.", "italic"))

    def on_click(self, event: Click) -> None:
        if event.widget is self:
            self.dismiss(None)

    def action_leave(self) -> None:
        self.dismiss(None)

    @on(Input.Submitted)
    def _submitted(self) -> None:
        self.dismiss(None)

    def action_scroll(self, step: int) -> None:
        self.query_one(VerticalScroll).scroll_relative(y=step, animate=False)

    def action_page(self, step: int) -> None:
        scroll = self.query_one(VerticalScroll)
        scroll.scroll_relative(y=step * max(1, scroll.size.height - 1), animate=False)


def slash_commands() -> tuple[tuple[str, str], ...]:
    """The chat's commands with their arguments, and what they do."""
    return tuple((f"/{command.name} {command.argument}".rstrip(), command.help) for command in COMMANDS)
