"""Every example runs as a user would run it, says what it should, and stays short."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
SAYS = {
    "chat.py": "Lima",
    "compare.py": "mq4: KL divergence 0.",
    "convert.py": "Lima",
    "fusion.py": "mq4: largest difference",
    "perplexity.py": "perplexity",
    "stop_and_think.py": "thought: 2 and 2\nanswer: Four.",
    "survive_a_crash.py": "loaded again: demo",
}


def test_every_example_is_listed_and_short() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(SAYS)
    for path in EXAMPLES.glob("*.py"):
        assert len(path.read_text().splitlines()) <= 40, path.name


@pytest.mark.parametrize("name", sorted(SAYS))
def test_example_runs(name: str) -> None:
    done = subprocess.run([sys.executable, str(EXAMPLES / name)], capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    assert SAYS[name] in done.stdout
