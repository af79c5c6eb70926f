"""hipfire's model files (.hfq, .mq4): read, converted, and written. Importing this package alone imports no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Final

SUFFIXES: Final = frozenset({".hfq", ".mq4"})


def is_hipfire_file(path: Path) -> bool:
    """Whether `path` has the name of one of hipfire's containers."""
    return path.suffix.lower() in SUFFIXES and not path.is_dir()
