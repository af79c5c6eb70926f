"""The benchmark of the transcript as anybody runs it, with so little to show that it ends in seconds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).parent.parent.parent / "benchmarks" / "tui_stream.py"


def test_lag_and_opening_are_measured_in_a_terminal(tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl"
    sizes = ["--tokens", "300", "--turns", "20", "--cases", "prose", "open", "--json", str(out)]
    environment = os.environ | {"PYTHONPATH": str(PROGRAM.parent.parent)}
    done = subprocess.run([sys.executable, str(PROGRAM), *sizes], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    prose, opened = [json.loads(line) for line in out.read_text().splitlines()]
    assert 0 <= prose["lag_p50_s"] <= prose["lag_p99_s"] <= prose["lag_max_s"]
    assert prose["tokens"] == 300
    assert 0 < prose["tok_s"] <= 450  # no faster than a model: not as fast as it goes
    assert opened["open_s"] > 0
    assert opened["pages"] > 5
    assert "20 turns in" in done.stdout
