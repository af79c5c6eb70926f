"""The first thing a new user sees: the demo by Enter, or one of three models that fit this machine by 1, 2, 3.

Who begins to write instead has chosen to chat. What fits is arithmetic over the registry: no server is asked. It
fetches and loads nothing; its result is a name.
"""

from __future__ import annotations

from typing import ClassVar, Final

from textual import events, on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from runner.errors import RunnerError
from runner.inventory import local_models
from runner.machine import devices
from runner.measures import binary_size, decimal_size
from runner.tui.content import line
from runner.tui.first_models import N_OFFERED, Offer, offers
from runner.tui.messages import GoTo, Write
from runner.tui.services import Services

DEMO: Final = "demo"
_NUMBERS: Final = tuple(str(number) for number in range(1, N_OFFERED + 1))
_ROOM: Final = 70  # columns of the widest dialog, before it is laid out


def is_first_run(services: Services) -> bool:
    """Whether the demo is all there is, nothing else was asked for, and no chat was ever kept. Reads the disk."""
    if services.model != DEMO:
        return False
    try:
        if services.store is not None and services.store.sessions(1):
            return False
        return all(model.kind == "built-in" for model in local_models(services.registry()))
    except (RunnerError, OSError):
        return False


class FirstRun(ModalScreen[str | None]):
    """The result is the name of the model to open; None when the user wants none of them now."""

    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(number, f"take({number})", show=False) for number in _NUMBERS),
        Binding("f2", "browse", "Models", show=False),
        Binding("escape", "leave", "Later", show=False),
    ]
    DEFAULT_CSS = """
    FirstRun { align: center middle; }
    FirstRun > Vertical {
        width: 76; max-width: 100%; height: auto; max-height: 100%; background: $surface; border: round $primary;
        padding: 1 2; border-subtitle-color: $text-muted;
    }
    FirstRun #welcome { height: auto; margin-bottom: 1; }
    FirstRun OptionList { height: auto; border: none; background: $surface; padding: 0; text-wrap: nowrap;
        text-overflow: ellipsis; }
    FirstRun OptionList:focus { border: none; background-tint: transparent 0%; }
    FirstRun #first-note { height: auto; color: $text-muted; margin-top: 1; }
    FirstRun.-tiny > Vertical, FirstRun.-flat > Vertical { padding: 0 1; }
    FirstRun.-flat #welcome, FirstRun.-flat #first-note { margin: 0; }
    """
    HORIZONTAL_BREAKPOINTS = [(0, "-tiny"), (60, "-narrow")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-flat"), (20, "-low")]  # noqa: RUF012

    def __init__(self, services: Services) -> None:
        super().__init__()
        self._services = services
        self._offers: tuple[Offer, ...] = ()
        self._note = "Looking at what fits this machine …"

    def compose(self) -> ComposeResult:
        with Vertical() as frame:
            frame.border_title = "Welcome to runner"
            frame.border_subtitle = "Enter open · Esc later · F2 all models"
            yield Static(Content("Language models on your own machine. Choose one to talk to:"), id="welcome")
            yield OptionList()
            yield Static(id="first-note")

    def on_mount(self) -> None:
        self.query_one(OptionList).focus()
        self._show()
        self._find()

    def on_resize(self) -> None:
        self.call_after_refresh(self._show)

    @work(thread=True, exclusive=True, group="first-run", exit_on_error=False)
    def _find(self) -> None:
        try:
            found, note = offers(self._services.registry().specs, devices()), ""
        except (RunnerError, OSError) as error:
            found, note = (), str(error)
        if self.is_running:
            self.app.call_from_thread(self._found, found, note)

    def _found(self, found: tuple[Offer, ...], note: str) -> None:
        self._offers = found
        if note:
            self._note = note
        elif self._services.is_offline:
            self._note = "Offline: the demo works without a network; the others are fetched when there is one."
        elif found:
            where = "the GPU" if found[0].is_on_gpu else "main memory: no GPU was found"
            self._note = f"They fit: {binary_size(found[0].free_bytes)} are free in {where}. F2 has more models."
        else:
            self._note = "No larger model fits the memory that is free now. F2 has all models."
        self._show()

    def _show(self) -> None:
        if not self.is_attached:
            return
        choices = self.query_one(OptionList)
        highlighted = choices.highlighted or 0
        is_tiny = self.has_class("-tiny") or self.has_class("-flat")
        name_width = max(len(DEMO), *(len(offer.spec.name) for offer in self._offers), 0)
        room = choices.scrollable_content_region.width or _ROOM
        demo = Option(_cut(_demo_text(name_width, is_tiny), room), id=DEMO)
        choices.set_options([demo, *self._offered(name_width, room, is_tiny)])
        choices.highlighted = min(highlighted, choices.option_count - 1)
        self.query_one("#first-note", Static).update(line(self._note))

    def _offered(self, name_width: int, room: int, is_tiny: bool) -> list[Option]:
        is_off = self._services.is_offline
        texts = [_offer_text(number, offer, name_width, is_tiny) for number, offer in enumerate(self._offers, 1)]
        return [
            Option(_cut(text, room), id=offer.spec.name, disabled=is_off)
            for text, offer in zip(texts, self._offers, strict=True)
        ]

    @on(OptionList.OptionSelected)
    def _selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.dismiss(event.option.id)

    def on_key(self, event: events.Key) -> None:
        is_choice = event.key in _NUMBERS and self.is_current
        if event.is_printable and event.character is not None and not is_choice:
            event.stop()
            self._write(event.character)

    def on_paste(self, event: events.Paste) -> None:
        event.stop()
        self._write(event.text)

    def _write(self, text: str) -> None:
        self.app.post_message(Write(text))
        if self.is_current:  # what is written at once comes here to its end
            self.dismiss(None)

    def action_take(self, number: int) -> None:
        if number > len(self._offers):
            return
        if self._services.is_offline:
            self._note = "It cannot be fetched without a network."
            self._show()
            return
        self.dismiss(self._offers[number - 1].spec.name)

    def action_browse(self) -> None:
        self.app.post_message(GoTo("models"))
        self.dismiss(None)

    def action_leave(self) -> None:
        self.dismiss(None)


def _demo_text(name_width: int, is_tiny: bool) -> Content:
    about = "here now" if is_tiny else "tiny, here already, works offline"
    return _row("Enter", DEMO, name_width, about, "", is_tiny)


def _offer_text(number: int, offer: Offer, name_width: int, is_tiny: bool) -> Content:
    spec = offer.spec
    about = decimal_size(offer.size_bytes)
    if not is_tiny:
        about = f"{about} to fetch · takes {binary_size(offer.need_bytes)} of memory"
    return _row(str(number), spec.name, name_width, about, spec.description, is_tiny)


def _row(key: str, name: str, name_width: int, about: str, description: str, is_tiny: bool) -> Content:
    """A choice: its key, its name, what it is; and under that a description where there is room."""
    indent = 7
    text = Content.assemble(
        (f"{key:<{indent}}", "bold $accent"), line(f"{name:<{name_width}}", "bold"), "  ", line(about, "$option-muted")
    )
    if description and not is_tiny:
        text = Content.assemble(text, "\n", " " * indent, line(description))
    return text


def _cut(text: Content, width: int) -> Content:
    """Every line cut to so many columns."""
    return Content("\n").join(part.truncate(width, ellipsis=True) for part in text.split("\n"))
