"""Progress of long work in stages, one display after the other.

It knows how a stage is shown, and nothing of what is done in it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from runner.cli import render

_NO_FIGURES: Mapping[str, float] = MappingProxyType({})


class Stages:
    """One progress display a stage, each opened when its stage begins.

    units: what the progress of a stage counts; `unit` where it is not named.
    """

    def __init__(self, units: Mapping[str, str], unit: str, *, as_json: bool) -> None:
        self._units, self._unit = units, unit
        self._as_json = as_json
        self._name = ""
        self._progress: render.Progress | None = None

    def show(self, name: str, done: int, total: int, figures: Mapping[str, float] = _NO_FIGURES) -> None:
        """figures: numbers to be shown besides, by their names."""
        if name != self._name or self._progress is None:
            self.close()
            unit = self._units.get(name, self._unit)
            self._name, self._progress = name, render.Progress(name, total, unit=unit, as_json=self._as_json)
        self._progress.figures = figures
        self._progress.update(done, total)

    def outside(self, say: Callable[[str], None]) -> Callable[[str], None]:
        """`say`, with the progress that is shown ended first."""

        def said(text: str) -> None:
            self.close()
            say(text)

        return said

    def close(self) -> None:
        if self._progress is not None:
            self._progress.close()
            self._progress = None
