"""What benchmarks' arguments must be, so that a wrong one is answered before anything is made or measured."""

from __future__ import annotations

from argparse import ArgumentTypeError
from pathlib import Path


def positive(text: str) -> int:
    """A whole number from 1 on, for argparse."""
    value = int(text)
    if value < 1:
        raise ArgumentTypeError(f"it is {value}, and must be 1 or more")
    return value


positive.__name__ = "whole number"  # argparse says "invalid whole number value"


def existing(text: str) -> Path:
    """A file or directory that is there."""
    path = Path(text)
    if not path.exists():
        raise ArgumentTypeError(f"there is no {path}")
    return path


def new_file(text: str) -> Path:
    """A file whose directory is there."""
    path = Path(text)
    if not path.parent.is_dir() or path.is_dir():
        raise ArgumentTypeError(f"{path} cannot be written: " + ("a directory" if path.is_dir() else "no directory"))
    return path
