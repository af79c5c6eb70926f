"""The history of what was typed, shared with the command line's chat.

Its methods use the disk and belong in a thread. It knows no prompt.
"""

from __future__ import annotations

from pathlib import Path


class PromptMemory:
    """file None: nothing is read and nothing is kept."""

    def __init__(self, file: Path | None) -> None:
        self._file = file

    def read(self) -> list[str]:
        """What was typed, the oldest first."""
        from runner.prompt_history import history  # its library takes a tenth of a second to import

        return list(history(self._file).load_history_strings())[::-1]

    def add(self, text: str) -> None:
        """Keep one more, where the disk takes it."""
        from runner.prompt_history import history

        history(self._file).store_string(text)
