"""Python, and the command line, in a process for which modes mean what they say, also where root runs the tests."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

_DROP_FROM_BOUNDING_SET, _DAC_OVERRIDE, _DAC_READ_SEARCH = 24, 1, 2  # <linux/prctl.h>, <linux/capability.h>


def _give_up_privileges() -> None:
    """What is executed from here on may do what modes allow, and nothing more. A plain user has nothing to give up."""
    if os.geteuid() == 0:
        libc = ctypes.CDLL(None)
        for capability in (_DAC_OVERRIDE, _DAC_READ_SEARCH):
            libc.prctl(_DROP_FROM_BOUNDING_SET, capability, 0, 0, 0)


def run_as_plain_user(*arguments: str, closed: Path, mode: int = 0) -> subprocess.CompletedProcess[str]:
    """`runner ARGUMENTS` while that directory has that mode; see below."""
    return python_as_plain_user("-m", "runner", *arguments, closed=closed, mode=mode)


def python_as_plain_user(*arguments: str, closed: Path, mode: int = 0) -> subprocess.CompletedProcess[str]:
    """`python ARGUMENTS` while that directory has that mode, which lets nobody write to it.

    Skips the test where root may not give up its rights.
    """
    before = closed.stat().st_mode
    closed.chmod(mode)
    try:
        program = f"import os, sys; sys.exit(os.access({str(closed)!r}, os.W_OK))"
        probe = subprocess.run([sys.executable, "-c", program], preexec_fn=_give_up_privileges, check=False)
        if probe.returncode:
            pytest.skip("this root may not give up its rights")
        command = [sys.executable, *arguments]
        return subprocess.run(
            command, capture_output=True, text=True, preexec_fn=_give_up_privileges, check=False, timeout=60
        )
    finally:
        closed.chmod(before)
