"""What a list of models leaves out, since it may not be read: said, so that nobody takes it for gone."""

from __future__ import annotations

from runner.cli import render
from runner.closed import cannot_read
from runner.inventory import unreadable
from runner.paths import Paths
from runner.registry import Registry


def warn_of_unreadable(registry: Registry, paths: Paths) -> list[str]:
    """Warn of directories of models that may not be read; returns them for JSON."""
    directories = unreadable(registry, paths)
    if directories:
        error = cannot_read(directories)
        render.warn(error.message, error.hint)
    return [str(directory) for directory in directories]
