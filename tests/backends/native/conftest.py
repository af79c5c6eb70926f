"""What the native backend's tests have in common."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def fewer_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's interpreter takes milliseconds a program, however little it computes. What is computed is the same."""
    if os.environ.get("TRITON_INTERPRET"):
        monkeypatch.setattr("runner.kernels.gemv_dense._BN", 16)
