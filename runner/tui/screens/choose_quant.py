"""Which quantization to fetch: what a model is offered in, with sizes and whether each fits. Enter takes one.

The offers may have to be asked for first, which happens on a thread. It starts no download.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from runner.errors import RunnerError
from runner.measures import decimal_size
from runner.safe_text import safe_line
from runner.tui.catalog_columns import fit_text
from runner.tui.content import line
from runner.tui.model_offers import Offer

_STYLES = {"fits": "$text-success", "partly": "$text-warning", "no": "$text-error", "unknown": "$text-muted"}
_NUMBERS: Final = 2 + 9 + 2 + 18  # columns of size and fit


class ChooseQuant(ModalScreen[Offer | None]):
    """The offers of one model. read: where they come from; it may take its time and raise RunnerError."""

    DEFAULT_CSS = """
    ChooseQuant { align: center middle; }
    ChooseQuant > Vertical { width: 68; max-width: 96%; height: auto; max-height: 92%; padding: 1 2;
        background: $surface; border: round $border; }
    ChooseQuant #question { height: auto; text-style: bold; }
    ChooseQuant #news { height: auto; color: $text-muted; margin-bottom: 1; }
    ChooseQuant OptionList { height: auto; max-height: 16; padding: 0; background: $surface;
        text-wrap: nowrap; text-overflow: ellipsis; scrollbar-size-vertical: 1; }
    ChooseQuant.-low OptionList { max-height: 6; }
    ChooseQuant.-flat OptionList { max-height: 4; }
    ChooseQuant #keys { height: 1; margin-top: 1; color: $text-muted; }
    ChooseQuant.-flat > Vertical { padding: 0 1; }
    ChooseQuant.-flat #question { max-height: 4; }
    ChooseQuant #news.-empty, ChooseQuant.-flat #news.-detail { display: none; }
    ChooseQuant.-flat #keys, ChooseQuant.-flat #news { margin: 0; }
    """
    VERTICAL_BREAKPOINTS = [(0, "-flat"), (24, "-low"), (32, "-tall")]  # noqa: RUF012
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss(None)", "Cancel")]

    @dataclass
    class _Read(Message):
        offers: tuple[Offer, ...]
        error: RunnerError | None

    def __init__(self, question: str, detail: str, read: Callable[[], Sequence[Offer]]) -> None:
        super().__init__()
        self._question, self._detail, self._read = question, detail, read
        self._offers: tuple[Offer, ...] = ()

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Static(line(self._question), id="question")
            yield Static("looking…", id="news")
            yield OptionList(id="offers", compact=True)
            yield Static("esc cancel", id="keys")

    def on_mount(self) -> None:
        self._look()

    @work(thread=True, exclusive=True)
    def _look(self) -> None:
        try:
            self.post_message(self._Read(tuple(self._read()), None))
        except RunnerError as error:
            self.post_message(self._Read((), error))

    @on(_Read)
    def _show(self, message: _Read) -> None:
        news, offers = self.query_one("#news", Static), self.query_one(OptionList)
        if message.error is not None:
            news.update(line(f"✗ {message.error.message} {message.error.hint}", "$text-error"))
            return
        self._offers = message.offers
        if self._offers:
            self.query_one("#keys", Static).update("enter fetch · esc cancel")
        detail = self._detail if self._offers else "There is nothing to fetch in this repository."
        news.update(line(detail))
        news.set_class(not detail, "-empty")
        news.set_class(bool(self._offers), "-detail")
        wide = max((len(safe_line(one.label)) for one in self._offers), default=0)
        is_narrow = wide + _NUMBERS > self.query_one(Vertical).scrollable_content_region.width
        offers.add_options([Option(_words(one, wide, is_narrow=is_narrow)) for one in self._offers])
        offers.highlighted = next((i for i, one in enumerate(self._offers) if one.is_usual), 0)
        offers.focus()

    @on(OptionList.OptionSelected)
    def _take(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.dismiss(self._offers[event.option_index])


def _words(offer: Offer, wide: int, *, is_narrow: bool) -> Content:
    """A line, or two where the numbers have no room beside each other."""
    size = decimal_size(offer.size_bytes) if offer.size_bytes else ""
    about = "" if offer.is_exact or not size else "~"
    return Content.assemble(
        (safe_line(offer.label).ljust(wide), "bold"),
        f"  {about + size:>9}" + ("\n  " if is_narrow else "  "),
        (f"{fit_text(offer.fit):<18}", _STYLES[offer.fit.verdict]),
        (f" {offer.note}", "$option-muted"),
    )
