"""How long a user waits: seconds from the command to its end, or to the first prompt of a chat.

    python benchmarks/startup.py [--repeats 15]

Each command runs in fresh processes with its own RUNNER_HOME; the first, which is left out, brings the files into the
page cache, and writes Python's bytecode where an installation has none. `chat` is measured in a pseudo-terminal, up to
its prompt. Beside the seconds that pass there are those of the processor, which other programs disturb less: of the
command with its engine, and of `chat` without it, which starts meanwhile (nan where the system does not say).
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from math import nan
from pathlib import Path
from typing import NamedTuple

import pexpect

RUNNER = str(Path(sys.executable).parent / "runner")
COMMANDS = (["--help"], ["--version"], ["ls"], ["run", "demo", "What is the capital of Peru?", "--temp", "0"])
CHAT = ["chat", "demo"]


class Sample(NamedTuple):
    seconds: float
    processor_s: float


def command(arguments: list[str]) -> Sample:
    started, used = time.monotonic(), children_s()
    subprocess.run([RUNNER, *arguments], check=True, capture_output=True, stdin=subprocess.DEVNULL)
    return Sample(time.monotonic() - started, children_s() - used)


def children_s() -> float:
    """Processor seconds of the children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def prompt() -> Sample:
    started = time.monotonic()
    chat = pexpect.spawn(RUNNER, CHAT, encoding="utf-8", timeout=60, dimensions=(24, 80))
    chat.expect("›")
    sample = Sample(time.monotonic() - started, main_thread_s(chat.pid))
    chat.sendeof()
    chat.expect(pexpect.EOF)
    chat.close()
    return sample


def main_thread_s(pid: int) -> float:
    """Processor seconds of the main thread of a process, which imports and draws; nan where Linux does not say."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9
    except OSError:
        return nan


def show(name: str, samples: list[Sample]) -> None:
    seconds = [sample.seconds for sample in samples]
    processor_s = statistics.median(sample.processor_s for sample in samples)
    print(f"{name:32} {statistics.median(seconds):7.3f} {min(seconds):7.3f} {max(seconds):7.3f} {processor_s:9.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    repeats = parser.parse_args().repeats
    with tempfile.TemporaryDirectory() as home:
        os.environ["RUNNER_HOME"] = home
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # users start what is compiled
        print(f"{'seconds':32} {'median':>7} {'min':>7} {'max':>7} {'processor':>9}")
        for arguments in COMMANDS:
            show("runner " + " ".join(arguments[:2]), [command(arguments) for _ in range(repeats + 1)][1:])
        show("runner chat demo, to the prompt", [prompt() for _ in range(repeats + 1)][1:])


if __name__ == "__main__":
    main()
