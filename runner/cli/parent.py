"""Ending with the program that started this one: a child of the TUI must not go on when that was killed.

The parent holds the other end of our standard input, which ends when the parent does, however that happens. It knows
nothing of what this program is doing.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from typing import Final

log = logging.getLogger(__name__)

_GRACE_S: Final = 2.0


def end_with_parent() -> None:
    """From now on, the end of standard input is a Ctrl+C, and after two seconds the end of this process.

    To be called on the main thread. A Ctrl+C is obeyed even where the parent ignored it.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=_watch, name="parent", daemon=True).start()


def _watch() -> None:
    try:
        while os.read(0, 4096):
            pass
    except OSError:
        pass
    log.warning("the program that started this one is gone: this one ends too")
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(_GRACE_S)
    os._exit(130)
