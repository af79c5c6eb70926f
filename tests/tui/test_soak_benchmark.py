"""The soak of the interface as anybody runs it, so short that it ends in seconds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).parent.parent.parent / "benchmarks" / "tui_soak.py"


def test_a_short_soak_says_what_the_interface_and_the_engine_hold(tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl"
    environment = os.environ | {"PYTHONPATH": str(PROGRAM.parent.parent)}
    command = [sys.executable, str(PROGRAM), "--chats", "2", "--every", "1", "--json", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["chats"] for row in rows] == [0, 1, 2]
    assert all(row["ui_bytes"] > row["engine_bytes"] > 2**20 for row in rows)
    assert all(0 <= row["lag_p99_s"] <= row["lag_max_s"] for row in rows)
    assert "For 1000 chats: interface" in done.stdout
