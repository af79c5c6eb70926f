"""An engine process that waits for a disk with Python's lock held, as one does that loads a library from a slow disk.

The disk is the pipe that DISK_CHILD names: who starts a program waits until that has opened its input, and nothing but
an end interrupts that.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from runner.engine import Engine
from runner.engine_child import main

_load = Engine.load


def _slow_load(self: Engine, *arguments: Any, **options: Any) -> Iterator[Any]:
    opened = [(os.POSIX_SPAWN_OPEN, 0, os.environ["DISK_CHILD"], os.O_RDONLY, 0)]
    os.waitpid(os.posix_spawn("/bin/true", ["true"], {}, file_actions=opened), 0)
    return _load(self, *arguments, **options)


if __name__ == "__main__":
    Engine.load = _slow_load  # type: ignore[method-assign]
    main()
