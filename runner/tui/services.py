"""What every screen may ask for: where things are, the user's settings, how models are loaded. No state."""

from __future__ import annotations

from dataclasses import dataclass

from runner.config import LoadOptions
from runner.paths import Paths
from runner.registry import Registry
from runner.settings import Settings
from runner.store import Store


@dataclass(frozen=True, kw_only=True)
class Services:
    """store: None when chats are not kept. model: what the user asked for, or the setting."""

    paths: Paths
    settings: Settings
    load_options: LoadOptions
    store: Store | None
    model: str
    is_offline: bool

    def registry(self) -> Registry:
        """The registry as it is now: models may have been made or fetched since the last time. Reads the disk."""
        return Registry.load_for(self.paths)
