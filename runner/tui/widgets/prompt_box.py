"""The prompt with what belongs to it: its mark, the completions over it, and the files that go with the message.

It completes and collects; what is sent, it tells by a message. It knows no engine and no conversation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from textual import on, work
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.message import Message
from textual.widgets import Static

from runner.chat_commands import is_command
from runner.chat_completing import Asked, Offer, asked, offers, path_offers
from runner.measures import decimal_size
from runner.message_files import Attachment, Missing, Refused, mentions, read_mentions
from runner.tui.content import line
from runner.tui.context_parts import n_bytes
from runner.tui.widgets.completions import Completions
from runner.tui.widgets.prompt import Prompt

_PLACEHOLDER = "ask, /command, @file"
_PASTED = Path("pasted.txt")


@dataclass
class _Listed(Message):
    """A directory was listed for the word that was being typed."""

    asked: Asked
    offers: tuple[Offer, ...]


@dataclass
class _Looked(Message):
    """The files that the text mentioned were read."""

    named: tuple[str, ...]
    found: tuple[Attachment | Refused | Missing, ...]


class PromptBox(Vertical):
    """directory: where @paths begin. Its border says what Enter does when that is not plain sending."""

    SCOPED_CSS = False  # its rules ask for classes of the screen, which is outside of it
    DEFAULT_CSS = """
    PromptBox { height: auto; border: round $border-blurred; padding: 0 1; background: $surface; }
    PromptBox:focus-within { border: round $border; }
    PromptBox.-editing { border: round $warning; border-title-color: $warning; }
    PromptBox Horizontal { height: auto; }
    PromptBox #mark { width: 2; height: 1; color: $accent; text-style: bold; }
    PromptBox #files { height: auto; max-height: 2; display: none; color: $text-muted; }
    PromptBox #files.-some { display: block; }
    .-flat PromptBox, .-flat PromptBox:focus-within { border: none; padding: 0; }
    """

    @dataclass
    class Sent(Message):
        """The user sends this. files: what /read and pasting added; mentioned: the files that the text names.

        missing: what it names like files that are none.
        """

        text: str
        files: tuple[Attachment, ...]
        is_edit: bool
        mentioned: tuple[Attachment, ...] = ()
        missing: tuple[Missing, ...] = ()

    @dataclass
    class FileRefused(Message):
        """A file that the message mentions cannot be sent, so nothing was: `sent` belongs back into the prompt."""

        sent: PromptBox.Sent
        file: Refused

    @dataclass
    class Changed(Message):
        """What is typed or attached changed: so many bytes of UTF-8 are."""

        typed: int
        attached: int

    def __init__(self, directory: Path) -> None:
        super().__init__(id="prompt-box")
        self._directory = directory
        self._models: tuple[str, ...] = ()
        self._files: list[Attachment] = []
        self._mentioned: tuple[Attachment | Refused | Missing, ...] = ()
        self._named: tuple[str, ...] = ()
        self._asked: Asked | None = None
        self._offered: Asked | None = None  # what the list is for: of a path it comes later than what is typed
        self._dismissed: Asked | None = None  # what the user closed the list of
        self._typed = ""
        self.is_edit = False

    def compose(self) -> ComposeResult:
        yield Completions()
        with Horizontal():
            yield Static("›", id="mark")
            yield Prompt(_PLACEHOLDER)
        yield Static(id="files")

    # --- what others do --------------------------------------------------------------------------------------------

    @property
    def prompt(self) -> Prompt:
        return self.query_one(Prompt)

    @property
    def files(self) -> tuple[Attachment, ...]:
        """What /read and pasting added."""
        return tuple(self._files)

    def set_models(self, names: Sequence[str]) -> None:
        """What /model offers."""
        self._models = tuple(names)

    def fill(self, text: str, files: Sequence[Attachment] = (), *, is_edit: bool = False) -> None:
        """Put a text there, to be changed and sent. is_edit: it stands for the last message."""
        self._files = list(files)
        self.prompt.put(text)
        self._mark_edit(is_edit)
        self._show_files()

    def give_back(self, sent: PromptBox.Sent) -> None:
        """Put there what could not be sent. A command that is typed at once is not appended to it: see Prompt."""
        self.fill(sent.text, sent.files, is_edit=sent.is_edit)
        self.prompt.put(sent.text, is_given_back=True)

    def attach(self, file: Attachment) -> None:
        """Have a text go with the next message."""
        self._files.append(file)
        self._show_files()

    def drop_files(self) -> None:
        """No text that was added goes with the next message."""
        self._files.clear()
        self._show_files()

    def _mark_edit(self, is_edit: bool) -> None:
        self.is_edit = is_edit
        self.set_class(is_edit, "-editing")
        self.border_title = Content("changing your last message") if is_edit else ""
        self._say_what_follows()
        self.query_one("#mark", Static).update("✎" if is_edit else "›")

    def _say_what_follows(self) -> None:
        said = "your message comes back after it" if self.prompt.has_aside else ""
        if self.is_edit and not said:
            said = "enter replaces it · esc gives up"
        self.border_subtitle = Content(said)

    # --- sending ---------------------------------------------------------------------------------------------------

    @on(Prompt.Sent)
    def _send(self, message: Prompt.Sent) -> None:
        message.stop()
        if is_command(message.text):  # the files wait for a message
            self.post_message(self.Sent(message.text, (), is_edit=False))
            return
        files, is_edit, named = tuple(self._files), self.is_edit, mentions(message.text)
        self.fill("")
        if named:
            self._read_and_send(self.Sent(message.text, files, is_edit), named)
        elif message.text.strip() or files or is_edit:
            self.post_message(self.Sent(message.text, files, is_edit))

    @work(thread=True, group="sending")
    def _read_and_send(self, message: PromptBox.Sent, named: tuple[str, ...]) -> None:
        found = read_mentions(named, self._directory)
        refused = [one for one in found if isinstance(one, Refused)]
        if refused:
            self.post_message(self.FileRefused(message, refused[0]))
        else:
            mentioned = tuple(one for one in found if isinstance(one, Attachment))
            missing = tuple(one for one in found if isinstance(one, Missing))
            self.post_message(self.Sent(message.text, message.files, message.is_edit, mentioned, missing))

    def give_up_edit(self) -> None:
        """The last message is to stay as it is."""
        self.fill("")

    # --- completions -----------------------------------------------------------------------------------------------

    @on(Prompt.Moved)
    def _look(self, message: Prompt.Moved) -> None:
        message.stop()
        self._say_what_follows()
        now = self._asked_now()
        if now != self._asked:
            self._asked = now
            self._offer_for(now)
        if self.prompt.text != self._typed:
            self._typed = self.prompt.text
            self._look_at_mentions()

    def _asked_now(self) -> Asked | None:
        before = self.prompt.before_cursor
        return asked(before) if before else None

    def _offer_for(self, now: Asked | None) -> None:
        if now is None or now == self._dismissed:
            self._show_offers(now, [])
        elif now.kind in ("path", "mention"):
            self._list_paths(now)
        else:
            self._show_offers(now, offers(now, self._models))

    @work(thread=True, exclusive=True, group="paths")
    def _list_paths(self, now: Asked) -> None:
        found = path_offers(now, self._directory)
        self.post_message(_Listed(now, tuple(found)))

    @on(_Listed)
    def _on_listed(self, message: _Listed) -> None:
        message.stop()
        self._show_offers(message.asked, message.offers)

    def _show_offers(self, now: Asked | None, found: Sequence[Offer]) -> None:
        if now != self._asked:  # typing went on meanwhile
            return
        is_only_itself = now is not None and len(found) == 1 and found[0].text.rstrip() == now.typed
        self.query_one(Completions).show([] if is_only_itself else found, self.size.width)
        self._offered = now
        self.prompt.has_list = self.query_one(Completions).is_open

    @on(Prompt.ListKeyPressed)
    def _on_list_key(self, message: Prompt.ListKeyPressed) -> None:
        message.stop()
        listed, now = self.query_one(Completions), self._asked
        if message.key in ("up", "down"):
            listed.move(-1 if message.key == "up" else 1)
        elif message.key == "enter" and self._offered != self._asked_now():  # keys came at once: it is of another word
            self._close_list()
            self.prompt.send()
        elif message.key == "close" or now is None or listed.marked is None:
            self._close_list()
        elif message.key == "take":
            self._take(listed.marked)
        elif not listed.is_moved and (listed.has(now.typed) or not now.last_part):
            self._close_list()
            self.prompt.send()
        else:
            is_whole = listed.marked.is_last
            self._take(listed.marked)
            if is_whole:
                self.prompt.send()

    @on(Completions.Taken)
    def _on_taken(self, message: Completions.Taken) -> None:
        message.stop()
        self._take(message.offer)
        self.prompt.focus()

    def _take(self, offer: Offer) -> None:
        if self._offered is not None and self._offered == self._asked_now():
            self.prompt.replace_before_cursor(self._offered.start, offer.text)

    def _close_list(self) -> None:
        self._dismissed = self._asked
        self._show_offers(self._asked, [])

    # --- files -----------------------------------------------------------------------------------------------------

    @on(Prompt.BigPaste)
    def _attach_pasted(self, message: Prompt.BigPaste) -> None:
        message.stop()
        n_lines = len(message.text.splitlines())
        self.attach(Attachment(f"pasted, {n_lines} line{'' if n_lines == 1 else 's'}", _PASTED, message.text))

    @on(Prompt.BackspaceWhenEmpty)
    def _drop_file(self, message: Prompt.BackspaceWhenEmpty) -> None:
        message.stop()
        if self._files:
            self._files.pop()
            self._show_files()

    def _look_at_mentions(self) -> None:
        """Say of the files that the text mentions whether they can be attached, before it is sent."""
        named = mentions(self._typed)
        if named != self._named:
            self._named = named
            self._read_mentions(named)
        self._tell()

    @work(thread=True, exclusive=True, group="mentions")
    def _read_mentions(self, named: tuple[str, ...]) -> None:
        found = read_mentions(named, self._directory)
        self.post_message(_Looked(named, found))

    @on(_Looked)
    def _on_looked(self, message: _Looked) -> None:
        message.stop()
        if message.named == self._named:
            self._mentioned = message.found
            self._show_files()

    def _show_files(self) -> None:
        shown = [*self._files, *(one for one in self._mentioned if not self._is_being_typed(one))]
        files = self.query_one("#files", Static)
        files.set_class(bool(shown), "-some")
        files.update(Content(" · ").join(_described(one) for one in shown))
        self._tell()

    def _is_being_typed(self, one: Attachment | Refused | Missing) -> bool:
        """Whether that is a name which is not whole yet, and so not to be missed."""
        return isinstance(one, Missing) and self._typed.endswith(one.name)

    def _tell(self) -> None:
        texts = [one.text for one in (*self._files, *self._mentioned) if isinstance(one, Attachment)]
        self.post_message(self.Changed(n_bytes(self._typed), sum(map(n_bytes, texts))))


def _described(one: Attachment | Refused | Missing) -> Content:
    """A file that goes with the message, and what should be known of it; or why it cannot."""
    if isinstance(one, Missing):
        return line(f"? {one.words}", "$warning")
    if isinstance(one, Refused):
        return line(f"✗ {one.error.message} {one.error.hint}".strip(), "$error")
    size = decimal_size(len(one.text.encode("utf-8", "replace")))
    shown = line(f"⊕ {one.name} {size}")
    return shown + line(f" {one.notice}", "$warning") if one.notice else shown
