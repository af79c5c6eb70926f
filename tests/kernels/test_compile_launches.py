"""What a step launches can be compiled before it is launched, and Triton finds it then."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path


def test_launches_that_were_compiled_in_other_processes_are_found_by_triton(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[2])}
    found = json.loads(
        subprocess.run(
            [sys.executable, Path(__file__).with_name("launch_samples.py")],
            env=environment,
            check=True,
            capture_output=True,
            timeout=120,
        ).stdout
    )
    assert found == {
        "names": ["_quantize_rows", "_gemv_dense_16_bits"],
        "before": [False, False],
        "failures": [],
        "after": [True, True],
        "found": [True, True],
    }
