"""Python in the checkout, in a process of its own, whose kernels are not for Triton's interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

CHECKOUT = Path(__file__).parents[1]


def compiling(**settings: str) -> dict[str, str]:
    """The environment of such a process; PYTHONPATH may name another Triton."""
    paths = [str(CHECKOUT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return environment | {"PYTHONPATH": os.pathsep.join(paths), **settings}


def python(*arguments: str | Path, timeout_s: float | None = None, **settings: str) -> subprocess.CompletedProcess[str]:
    """What became of it; settings: environment variables. Raises subprocess.TimeoutExpired."""
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=CHECKOUT,
        env=compiling(**settings),
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
    )
