"""What of the catalog is shown: a filter, a sort, what the hub found, and what was learned of single models since.

Values in, rows out: it asks nobody and knows no widget.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Final

from runner.tui.catalog import CatalogRow, filtered, row_fit
from runner.tui.catalog_columns import BY_KEY, sorted_rows
from runner.tui.catalog_reading import Catalog
from runner.tui.exact_fit import ExactFit

SORTS: Final = ("", "size", "fit", "expected", "measured", "parameters", "context", "name", "state")
_WEIGHTS: Final = (".gguf", ".safetensors")


class CatalogView:
    """The rows as the user wants to see them. catalog None: nothing has been read yet."""

    def __init__(self) -> None:
        self.catalog: Catalog | None = None
        self.query = ""
        self.fits_only = False
        self.sort: tuple[str, bool] = ("", False)
        self._found: tuple[CatalogRow, ...] = ()
        self._found_query = ""
        self._exact: dict[str, ExactFit] = {}
        self._contexts: dict[str, int] = {}

    # --- what comes in ---------------------------------------------------------------------------------------------

    def take_catalog(self, catalog: Catalog) -> None:
        """A new reading; what was known of models whose state has changed is forgotten."""
        before = {row.name: row.state for row in self.catalog.rows} if self.catalog is not None else {}
        for row in catalog.rows:
            if before.get(row.name, "absent") != row.state:  # what the hub found was no row of the catalog
                self._exact.pop(row.name, None)
        self._exact = {name: dataclasses.replace(one, machine=catalog.machine) for name, one in self._exact.items()}
        self.catalog = catalog
        there = {row.repo.lower() for row in catalog.rows}
        self._found = tuple(row for row in self._found if row.repo.lower() not in there)

    def take_found(self, query: str, rows: tuple[CatalogRow, ...]) -> None:
        """What the hub found for `query`."""
        self._found, self._found_query = rows, query

    def take_exact(self, name: str, exact: ExactFit) -> ExactFit:
        """What that model's headers said, judged by the memory that all rows are judged by."""
        if self.catalog is not None:
            exact = dataclasses.replace(exact, machine=self.catalog.machine)
        self._exact[name] = exact
        return exact

    def forget_exact(self, name: str = "") -> None:
        """Forget what was read of that model, or of all of them."""
        if name:
            self._exact.pop(name, None)
        else:
            self._exact.clear()

    def choose_context(self, name: str, n_ctx: int) -> None:
        self._contexts[name] = n_ctx

    def next_sort(self, seen: Collection[str]) -> None:
        """By the next column, of those that are seen."""
        at = SORTS.index(self.sort[0]) if self.sort[0] in SORTS else 0
        self.sort = next(key for key in (*SORTS[at + 1 :], "") if not key or key in seen), False

    def sort_by(self, key: str) -> None:
        """By a column; a second time the other way round."""
        self.sort = key, self.sort[0] == key and not self.sort[1]

    # --- what goes out ---------------------------------------------------------------------------------------------

    def rows(self) -> tuple[CatalogRow, ...]:
        """Those that the filter leaves, sorted. What the hub found for these very words is not filtered by them."""
        if self.catalog is None:
            return ()
        known = filtered(map(self.with_exact, self.catalog.rows), self.query, fits_only=self.fits_only)
        words = "" if self._is_answered else self.query
        found = filtered(map(self.with_exact, self._found), words, fits_only=self.fits_only)
        key, is_reversed = self.sort
        return sorted_rows((*known, *found), key, is_reversed=is_reversed)

    @property
    def _is_answered(self) -> bool:
        return bool(self._found) and self._found_query == self.query.strip()

    @property
    def offer(self) -> str:
        """The line below the rows: to search the hub for the words of the filter, unless that was done."""
        query = self.query.strip()
        return f"⌕ search the hub for “{query}”" if query and not self._is_answered else ""

    def summary(self, n_shown: int) -> str:
        """How many rows are shown, which, and by what they are sorted."""
        n_all = len(self.catalog.rows) + len(self._found) if self.catalog is not None else 0
        parts = [f"{n_shown} of {n_all}" if n_shown < n_all else f"{n_all} models"]
        if self.fits_only:
            parts.append("that fit")
        if self.sort[0]:
            parts.append(f"by {BY_KEY[self.sort[0]].title}")
        return " · ".join(parts)

    def exact(self, name: str) -> ExactFit | None:
        """What that model's headers said, if they were read."""
        return self._exact.get(name)

    def chosen_context(self, name: str) -> int | None:
        """The context that the user chose for that model."""
        return self._contexts.get(name)

    def context(self, name: str, exact: ExactFit) -> int:
        """The context to estimate that model with."""
        return self._contexts.get(name) or exact.usual_ctx

    def with_exact(self, row: CatalogRow) -> CatalogRow:
        """The row with what its headers said."""
        exact = self._exact.get(row.name)
        if exact is None:
            return row
        return dataclasses.replace(
            row,
            fit=row_fit(exact.fit(self.context(row.name, exact))),
            parameters=exact.facts.num_parameters or row.parameters,
            context=exact.context_length or row.context,
            size_bytes=sum(size for name, size in exact.files if name.lower().endswith(_WEIGHTS)) or row.size_bytes,
            is_size_exact=True,
        )
