"""How long a user waits: seconds from the command to its end, or to the first prompt of a chat.

    python benchmarks/startup.py [--repeats 10]

Each command runs in fresh processes with its own RUNNER_HOME; the first, which is left out, brings the files into the
page cache, and writes Python's bytecode where an installation has none. `chat` is measured in a pseudo-terminal, up to
its prompt.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pexpect

RUNNER = str(Path(sys.executable).parent / "runner")
COMMANDS = (["--help"], ["--version"], ["ls"], ["run", "demo", "What is the capital of Peru?", "--temp", "0"])
CHAT = ["chat", "demo", "--no-log"]


def command_s(arguments: list[str]) -> float:
    started = time.monotonic()
    subprocess.run([RUNNER, *arguments], check=True, capture_output=True, stdin=subprocess.DEVNULL)
    return time.monotonic() - started


def prompt_s() -> float:
    started = time.monotonic()
    chat = pexpect.spawn(RUNNER, CHAT, encoding="utf-8", timeout=60, dimensions=(24, 80))
    chat.expect("›")
    elapsed = time.monotonic() - started
    chat.sendeof()
    chat.expect(pexpect.EOF)
    chat.close()
    return elapsed


def show(name: str, seconds: list[float]) -> None:
    print(f"{name:32} {statistics.median(seconds):7.3f} {min(seconds):7.3f} {max(seconds):7.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=10)
    repeats = parser.parse_args().repeats
    with tempfile.TemporaryDirectory() as home:
        os.environ["RUNNER_HOME"] = home
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # users start what is compiled
        print(f"{'seconds':32} {'median':>7} {'min':>7} {'max':>7}")
        for arguments in COMMANDS:
            name = "runner " + " ".join(arguments[:2])
            show(name, [command_s(arguments) for _ in range(repeats + 1)][1:])
        show("runner chat demo, to the prompt", [prompt_s() for _ in range(repeats + 1)][1:])


if __name__ == "__main__":
    main()
