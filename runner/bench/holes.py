"""Whether parts of a model's files are zeros, as downloads leave them that took the room first and then ended.

Looks at a few places of each file, which takes milliseconds where it was read before; that all of it is right only a
hash can say. It knows no format.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from runner.errors import FETCH_AGAIN

_N_PLACES: Final = 256
_PLACE_BYTES: Final = 4096
_LEAST_BYTES: Final = 2**20  # of a file in which so many places are worth looking at
_MOST: Final = 0.05  # rows that no token uses, and what was pruned, are zeros too


def holes_fault(paths: Iterable[Path]) -> str | None:
    """Why weights cannot be believed: the first file with zeros where weights should be. Raises OSError."""
    for path in paths:
        share = _share_of_zeros(path)
        if share > _MOST:
            zeros = f"about {100 * share:.0f} % of {path.name} is zeros"
            return f"{zeros}, as a download leaves it that ended early: {FETCH_AGAIN}"
    return None


def _share_of_zeros(path: Path) -> float:
    size = path.stat().st_size
    if size < _LEAST_BYTES:
        return 0.0
    with path.open("rb", buffering=0) as file:
        n_zeros = 0
        for place in range(_N_PLACES):
            file.seek(place * (size - _PLACE_BYTES) // (_N_PLACES - 1))
            n_zeros += not any(file.read(_PLACE_BYTES))
    return n_zeros / _N_PLACES
