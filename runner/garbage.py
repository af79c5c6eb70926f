"""Python's search for garbage in cycles, put off: for work that makes many objects and lets go of few.

Behind every few hundred new objects some are looked through, and now and then all. It knows nothing of the work.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """None is looked for meanwhile, in the whole process. What is in no cycle goes at once, as ever."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
