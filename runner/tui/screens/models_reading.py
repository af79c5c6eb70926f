"""What the models screen asks for on threads: the catalog, a model's headers, the hub, a deletion; and the answers.

Every question is a worker of the screen whose answer is a message, so that one that comes too late harms nobody. It
knows no widget.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from textual import work
from textual.message import Message
from textual.worker import get_current_worker

from runner.deletion import delete
from runner.errors import RunnerError
from runner.removal import Removal
from runner.tui.catalog import CatalogRow
from runner.tui.catalog_reading import Catalog, read_catalog, search_hub
from runner.tui.exact_fit import ExactFit, ask
from runner.tui.screens.mode import ModeScreen
from runner.tui.services import Services


@dataclass
class CatalogRead(Message):
    catalog: Catalog


@dataclass
class HubAnswered(Message):
    query: str
    rows: tuple[CatalogRow, ...]
    error: RunnerError | None


@dataclass
class ExactRead(Message):
    name: str
    exact: ExactFit | None
    error: RunnerError | None


@dataclass
class Deleted(Message):
    name: str
    freed_bytes: int
    error: RunnerError | None


class ModelsReading(ModeScreen):
    """The questions. Each of a kind cancels the one before, but for deletions."""

    def __init__(self, services: Services) -> None:
        super().__init__()
        self.services = services

    @work(thread=True, exclusive=True, group="catalog")
    def read_catalog(self, *, gguf_on_gpu: bool | None) -> None:
        self.post_message(CatalogRead(read_catalog(self.services.paths, gguf_on_gpu=gguf_on_gpu)))

    @work(thread=True, exclusive=True, group="exact")
    def ask_exact(self, name: str) -> None:
        services, worker = self.services, get_current_worker()
        try:
            exact = ask(
                name,
                services.paths,
                services.load_options,
                offline=services.is_offline,
                is_cancelled=lambda: worker.is_cancelled,
            )
            self.post_message(ExactRead(name, exact, None))
        except RunnerError as error:
            self.post_message(ExactRead(name, None, error))

    def ask_no_more(self) -> None:
        """Whatever model's headers are being read, nobody waits for them."""
        self.workers.cancel_group(self, "exact")

    @work(thread=True, exclusive=True, group="hub")
    def search(self, query: str, catalog: Catalog) -> None:
        try:
            self.post_message(HubAnswered(query, search_hub(query, catalog), None))
        except RunnerError as error:
            self.post_message(HubAnswered(query, (), error))

    @work(thread=True, group="delete")
    def delete(self, name: str, removals: Sequence[Removal]) -> None:
        freed, failed = 0, None
        try:
            for removal in removals:
                freed += delete(removal)
        except RunnerError as error:
            failed = error
        self.post_message(Deleted(name, freed, failed))
