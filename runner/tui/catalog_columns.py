"""The columns of the catalog: their words, their order by worth, how they sort, and which have room.

Pure functions of rows and widths. They know no widget and no theme: a cell names the kind of its colour.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from runner.measures import decimal_size, short_count
from runner.tui.catalog import CatalogRow, RowFit

Tone = Literal["plain", "muted", "good", "fair", "bad", "accent"]
MARKS: Final = {"fits": "✓", "partly": "◐", "no": "✗", "unknown": "·"}
_TONES: Final[dict[str, Tone]] = {"fits": "good", "partly": "fair", "no": "bad", "unknown": "muted"}
NOTHING: Final = "–"
_GAP: Final = 2
_LEAST_NAME, _LEAST_NARROW_NAME, _NARROW = 18, 16, 60
_MOST_LICENCE: Final = 20
_GIB: Final = 2**30


@dataclass(frozen=True)
class Cell:
    """Text is raw."""

    text: str
    tone: Tone = "plain"


@dataclass(frozen=True, kw_only=True)
class Column:
    """worth: the lower, the sooner it goes where there is no room. order: what to sort by, None at the end always."""

    key: str
    title: str
    width: int
    worth: int
    cell: Callable[[CatalogRow], Cell]
    order: Callable[[CatalogRow], Any]
    is_right: bool = False
    is_descending: bool = False


def fit_text(fit: RowFit) -> str:
    """ "✓   9.6/24.0 GiB", "◐ 62 % of layers", "✗  61.2/24.0 GiB", "·" when nothing is known."""
    mark = MARKS[fit.verdict]
    if fit.verdict == "unknown":
        return mark
    if fit.verdict == "partly":
        return f"{mark} {100 * fit.gpu_share:.0f} % of layers"
    about = "" if fit.is_exact else "~"
    return f"{mark} {about + _gib(fit.need_bytes):>5}/{_gib(fit.free_bytes)} GiB"


def _gib(size_bytes: int) -> str:
    value = size_bytes / _GIB
    digits = 0 if value >= 99.5 else 1 if value >= 0.05 else 2  # a small model does not take 0.0
    return f"{value:.{digits}f}"


def _size(row: CatalogRow) -> Cell:
    if not row.size_bytes:
        return Cell(NOTHING, "muted")
    return Cell(decimal_size(row.size_bytes) if row.is_size_exact else f"~{decimal_size(row.size_bytes)}")


def _state(row: CatalogRow) -> Cell:
    if row.state == "complete":
        return Cell(f"● {'here' if row.kind in ('cache', '') else row.kind}", "good")
    if row.state == "partial":
        share = f" {100 * row.done_share:.0f} %" if row.done_share is not None else ""
        return Cell(f"◐ partial{share}", "fair")
    if row.state == "damaged":
        return Cell("✗ damaged", "bad")
    if row.place == "hub":
        return Cell(f"○ hub {short_count(row.downloads)}↓", "muted")
    return Cell("○", "muted")


def _rate(value: float | None, about: str = "") -> Cell:
    if value is None:
        return Cell(NOTHING, "muted")
    return Cell(f"{about}{value:.0f}" if value >= 9.95 else f"{about}{value:.1f}")


def _count(value: int) -> Cell:
    return Cell(short_count(value)) if value else Cell(NOTHING, "muted")


_STATES: Final = ("complete", "partial", "damaged", "absent")

COLUMNS: Final[tuple[Column, ...]] = (
    Column(
        key="name",
        title="model",
        width=0,
        worth=100,
        cell=lambda row: Cell(row.name),
        order=lambda row: row.name.lower(),
    ),
    Column(
        key="parameters",
        title="params",
        width=6,
        worth=50,
        is_right=True,
        is_descending=True,
        cell=lambda row: _count(row.parameters),
        order=lambda row: row.parameters or None,
    ),
    Column(
        key="quant",
        title="quant",
        width=9,
        worth=70,
        cell=lambda row: Cell(row.quant) if row.quant else Cell(NOTHING, "muted"),
        order=lambda row: row.quant.lower() or None,
    ),
    Column(
        key="size",
        title="size",
        width=8,
        worth=80,
        is_right=True,
        cell=_size,
        order=lambda row: row.size_bytes or None,
    ),
    Column(
        key="fit",
        title="fit",
        width=16,
        worth=90,
        cell=lambda row: Cell(fit_text(row.fit), _TONES[row.fit.verdict]),
        order=lambda row: (tuple(MARKS).index(row.fit.verdict), -row.fit.gpu_share, row.fit.need_bytes),
    ),
    Column(
        key="expected",
        title="est. tok/s",
        width=10,
        worth=60,
        is_right=True,
        is_descending=True,
        cell=lambda row: _rate(row.expected_tok_s, "~"),
        order=lambda row: row.expected_tok_s,
    ),
    Column(
        key="measured",
        title="measured",
        width=8,
        worth=40,
        is_right=True,
        is_descending=True,
        cell=lambda row: _rate(row.measured_tok_s),
        order=lambda row: row.measured_tok_s,
    ),
    Column(
        key="context",
        title="context",
        width=7,
        worth=30,
        is_right=True,
        is_descending=True,
        cell=lambda row: _count(row.context),
        order=lambda row: row.context or None,
    ),
    Column(
        key="licence",
        title="licence",
        width=13,
        worth=20,
        cell=lambda row: Cell(row.licence or NOTHING, "plain" if row.licence else "muted"),
        order=lambda row: row.licence.lower() or None,
    ),
    Column(
        key="gated",
        title="gated",
        width=8,
        worth=10,
        cell=lambda row: Cell(row.gated, "fair" if row.gated == "yes" else "muted"),
        order=lambda row: row.gated == "",
    ),
    Column(
        key="state",
        title="state",
        width=13,
        worth=75,
        cell=_state,
        order=lambda row: (_STATES.index(row.state), -row.downloads),
    ),
)
BY_KEY: Final = {column.key: column for column in COLUMNS}


def empty_columns(rows: Sequence[CatalogRow]) -> frozenset[str]:
    """The keys of the columns that no row has anything in, as speeds have not before the first benchmark."""
    return frozenset(column.key for column in COLUMNS if all(column.order(row) is None for row in rows))


def columns_for(width: int, longest_name: int, empty: Collection[str] = frozenset()) -> tuple[tuple[Column, int], ...]:
    """The columns that have room in `width`, in their order, each with its width; the name takes what it needs.

    empty: keys of columns that go before all others.
    """
    least = _LEAST_NARROW_NAME if width < _NARROW else _LEAST_NAME
    kept, left = [BY_KEY["name"]], width - min(longest_name, least)
    for column in sorted(COLUMNS[1:], key=lambda column: (column.key in empty, -column.worth)):
        if left >= column.width + _GAP:
            kept.append(column)
            left -= column.width + _GAP
        else:
            break
    others = sum(column.width + _GAP for column in kept if column.key != "name")
    name = max(1, min(longest_name, width - others))
    spare = {"licence": min(_MOST_LICENCE - BY_KEY["licence"].width, width - others - name)}
    return tuple((column, (column.width or name) + spare.get(column.key, 0)) for column in COLUMNS if column in kept)


def sorted_rows(rows: Sequence[CatalogRow], key: str, *, is_reversed: bool) -> tuple[CatalogRow, ...]:
    """By a column; "" leaves the catalog's own order. What is not known stays at the end."""
    if not key:
        return tuple(reversed(rows)) if is_reversed else tuple(rows)
    column = BY_KEY[key]
    known = [row for row in rows if column.order(row) is not None]
    unknown = [row for row in rows if column.order(row) is None]
    known.sort(key=column.order, reverse=column.is_descending != is_reversed)
    return (*known, *unknown)
