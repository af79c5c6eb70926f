"""Where everything in a transcript is: entries one below the other, rows of a width, and a window over them.

What the window shows is measured, and a little around it; the heights of the rest are guesses that are put right when
it comes near, without moving what is seen. It knows nothing of widgets, keys or events.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from runner.tui.markdown.lines import Line, text_of
from runner.tui.turns.entries import Entry, Laid, Look
from runner.tui.turns.pieces import Piece

_MAX_MEASURED = 1500  # pieces that keep their rows
_FEW = 32  # pieces that are measured as soon as they are there
_FAR = 30  # entries around the window that keep their pieces
_LINES = 12  # bits of a row's place in its piece, in the number of a row
_PIECES = 20


@dataclass(frozen=True)
class Row:
    """A row of the window. id: names the row as long as it exists, and grows downwards."""

    entry: Entry
    laid: Laid
    line: Line
    id: int


class Document:
    """look: how an entry is to be shown now. width: columns that rows may have."""

    def __init__(self, look: Callable[[Entry], Look], width: int = 80) -> None:
        self.entries: list[Entry] = []
        self.width = width
        self._look = look
        self._measured: OrderedDict[Laid, None] = OrderedDict()

    @property
    def height(self) -> int:
        """Rows of all entries, as far as they are known."""
        return sum(entry.height(self.width) for entry in self.entries)

    def lay(self, entry: Entry) -> None:
        """Make an entry's pieces anew after it changed; where little did, they are measured, so that nothing moves."""
        before = entry.laid
        places = {id(laid) for laid in before or ()}
        fresh = [laid for laid in entry.lay(self._look(entry)) if id(laid) not in places]
        if before is not None and len(fresh) <= _FEW:
            for laid in fresh:
                self._lines(laid)

    def lay_again(self) -> None:
        """How entries are to be shown has changed."""
        for entry in self.entries:
            if entry.laid is not None:
                self.lay(entry)

    def settle(self, top: int, height: int, *, at_end: bool = False) -> int:
        """Measure what a window of `height` rows from row `top` shows; returns its top when all of that is known.

        at_end: the window is at the end, wherever that is.
        """
        for _ in range(100):
            end = max(0, self.height - height)
            top = end if at_end else min(top, end)
            shift = self._measure(top - height // 2, top + height + height // 2, top)
            if shift is None:
                break
            top = max(0, top + shift)
        self._drop_far(top, height)
        return top

    def rows(self, top: int, height: int) -> list[Row]:
        """The rows of the window, fewer when the document ends before it does."""
        rows: list[Row] = []
        for entry, place, laid, y in self._laid_from(top):
            if y >= top + height:
                break
            lines = self._lines(laid)
            shown = range(max(0, top - y), min(len(lines), top + height - y))
            rows += [Row(entry, laid, lines[number], _id(entry, place, number)) for number in shown]
        return rows

    def top_of(self, wanted: Entry, is_wanted: Callable[[Piece], bool] | None = None) -> int:
        """The row where an entry begins, or the first piece of it that is wanted."""
        y = 0
        for entry in self.entries:
            if entry is wanted:
                break
            y += entry.height(self.width)
        if is_wanted is not None:
            for laid in wanted.laid if wanted.laid is not None else wanted.lay(self._look(wanted)):
                if is_wanted(laid.piece):
                    break
                y += laid.height(self.width)
        return y

    def place_of(self, top: int) -> tuple[int, float]:
        """What stands at row `top`, for `row_at` to find again at another width."""
        for entry, place, laid, y in self._laid_from(top):
            height = laid.height(self.width)
            return _id(entry, place, 0), (top - y) / max(1, height)
        return 0, 0.0

    def row_at(self, place: tuple[int, float]) -> int:
        """The row where that stands now."""
        wanted, share = place
        y = 0
        for entry in self.entries:
            if entry.number == wanted >> (_LINES + _PIECES) and entry.laid is not None:
                number = (wanted >> _LINES) & ((1 << _PIECES) - 1)
                y += sum(laid.height(self.width) for laid in entry.laid[:number])
                return y + int(share * entry.laid[number].height(self.width)) if number < len(entry.laid) else y
            y += entry.height(self.width)
        return y

    def text_between(self, start: tuple[int, int] | None, end: tuple[int, int] | None) -> str:
        """The text from a place to another, each the id of a row and a character in it; None: from or to the end."""
        first, last = start or (0, 0), end or (1 << 200, 0)
        lines: list[Line] = []
        begin, stop = 0, None
        for entry in self.entries:
            if not first[0] >> (_LINES + _PIECES) <= entry.number <= last[0] >> (_LINES + _PIECES):
                continue
            for place, laid in enumerate(entry.laid if entry.laid is not None else entry.lay(self._look(entry))):
                if _id(entry, place, (1 << _LINES) - 1) < first[0] or _id(entry, place, 0) > last[0]:
                    continue
                for number, line in enumerate(self._lines(laid)):
                    row = _id(entry, place, number)
                    if first[0] <= row <= last[0]:
                        begin = first[1] if row == first[0] and not lines else begin
                        stop = last[1] if row == last[0] else None
                        lines.append(line)
        return text_of(lines, begin, stop)

    # --- inside ----------------------------------------------------------------------------------------------------

    def _laid_from(self, top: int) -> Iterator[tuple[Entry, int, Laid, int]]:
        """The pieces from the one that row `top` is in, with their places in their entries and their first rows."""
        y = 0
        for entry in self.entries:
            height = entry.height(self.width)
            if y + height <= top:
                y += height
                continue
            for place, laid in enumerate(entry.laid if entry.laid is not None else entry.lay(self._look(entry))):
                height = laid.height(self.width)
                if y + height > top:
                    yield entry, place, laid, y
                y += height

    def _measure(self, first: int, last: int, top: int) -> int | None:
        """Measure the pieces that rows `first` to `last` are in. None: they were; else by how much rows above grew."""
        y, shift, was_known = 0, 0, True
        for entry in self.entries:
            if y >= last + shift:
                break
            height = entry.height(self.width)
            if y + height <= first + shift:
                y += height
                continue
            if entry.laid is None:
                entry.lay(self._look(entry))
                was_known = False
                grown = entry.height(self.width) - height
                shift += grown if y < top + shift else 0
            for laid in entry.laid or ():
                height = laid.height(self.width)
                if not laid.is_measured(self.width) and y + height > first + shift and y < last + shift:
                    was_known = False
                    grown = len(self._lines(laid)) - height
                    shift += grown if y < top + shift else 0
                    height += grown
                y += height
        return None if was_known else shift

    def _lines(self, laid: Laid) -> list[Line]:
        lines = laid.lines(self.width)
        self._measured[laid] = None
        self._measured.move_to_end(laid)
        while len(self._measured) > _MAX_MEASURED:
            self._measured.popitem(last=False)[0].forget()
        return lines

    def _drop_far(self, top: int, height: int) -> None:
        """Give back the pieces of entries that are far from the window; those of the last entry stay."""
        y, seen = 0, []
        for number, entry in enumerate(self.entries):
            size = entry.height(self.width)
            if y < top + height and y + size > top:
                seen.append(number)
            y += size
        if not seen:
            return
        for number, entry in enumerate(self.entries[:-1]):
            if entry.laid is not None and not seen[0] - _FAR <= number <= seen[-1] + _FAR:
                for laid in entry.laid:
                    self._measured.pop(laid, None)
                entry.drop(self.width)


def _id(entry: Entry, place: int, number: int) -> int:
    return (((entry.number << _PIECES) + place) << _LINES) + number
