"""What the native backend's tests have in common."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def fewer_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's interpreter takes milliseconds a program, however little it computes. What is computed is the same."""
    if os.environ.get("TRITON_INTERPRET"):
        for columns in ("gemv_dense._BN", "moe_gemv._BN_DENSE", "moe_gemv._BN_SUM"):
            monkeypatch.setattr(f"runner.kernels.{columns}", 32)
