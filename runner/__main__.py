"""`runner`, and `python -m runner`: the program, with nothing imported yet.

Python shows a traceback for Ctrl-C while it imports; until main() can answer it, it ends the process in silence.
"""

from __future__ import annotations

import signal


def main() -> int:
    is_pythons = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # else it is ignored, or somebody's own
    if is_pythons:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from runner.cli.app import main as run

    if is_pythons:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return run()


if __name__ == "__main__":
    raise SystemExit(main())
