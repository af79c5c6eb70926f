"""`runner`, and `python -m runner`: the program, with nothing imported yet.

Python shows a traceback for Ctrl-C while it imports; until main() can answer it, it ends the process in silence.
"""

from __future__ import annotations

import signal


def main() -> int:
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:  # else it is ignored, or somebody's own
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from runner.cli.app import main as run

    signal.signal(signal.SIGINT, handler)
    return run()


if __name__ == "__main__":
    raise SystemExit(main())
