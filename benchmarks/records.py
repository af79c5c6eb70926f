"""What a measurement says about itself, and where it goes: rows of a table on stdout, lines of JSON in a file.

Every line stands alone: date, versions, commit, device and measured bandwidth are in each. page.py makes
docs/BENCHMARKS.md of such lines. It knows nothing of what is measured.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import runner

SCHEMA = "runner.benchmark/1"
CHECKOUT = Path(__file__).parent.parent


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where a measurement comes from. read_bytes_s: the device's read stream, as measured in this run, or None."""

    date: str
    commit: str
    device: str
    runner: str
    python: str
    torch: str
    triton: str
    read_bytes_s: float | None = None
    bf16_flop_s: float | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments that all of them have."""
    parser.add_argument("--json", type=Path, metavar="FILE", help="append a line of JSON for each row")
    parser.add_argument("--commit", help="what the rows say was measured; default: git's HEAD")


def origin(commit: str | None, device: str, **measured: float | None) -> Origin:
    """This machine, now. measured: read_bytes_s, bf16_flop_s."""
    return Origin(
        date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        commit=commit or _head(),
        device=device,
        runner=runner.__version__,
        python=platform.python_version(),
        torch=_version("torch"),
        triton=_version("triton"),
        **measured,
    )


class Report:
    """One benchmark's rows: each is written as soon as it is there, so a run that is stopped keeps what it has."""

    def __init__(self, benchmark: str, where: Origin, path: Path | None) -> None:
        self.rows: list[dict[str, Any]] = []
        self._common = {"schema": SCHEMA, "benchmark": benchmark, "origin": asdict(where)}
        self._path = path

    def add(self, row: Mapping[str, Any]) -> None:
        self.rows.append(dict(row))
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({**self._common, **row}) + "\n")


class Table:
    """A Markdown table that is printed row by row."""

    def __init__(self, columns: Sequence[str]) -> None:
        self._widths = [len(column) for column in columns]
        self.print(columns)
        print("|" + "|".join("-" * (width + 2) for width in self._widths) + "|", flush=True)

    def print(self, cells: Sequence[str]) -> None:
        filled = (cell.ljust(width) for cell, width in zip(cells, self._widths, strict=True))
        print("| " + " | ".join(filled) + " |", flush=True)


def say(where: Origin) -> None:
    """What the rows below it were measured on."""
    stream = "" if where.read_bytes_s is None else f", reads {where.read_bytes_s / 1e12:.2f} TB/s (measured)"
    products = "" if where.bf16_flop_s is None else f", bf16 products {where.bf16_flop_s / 1e12:.0f} TFLOP/s (measured)"
    print(f"{where.device}, torch {where.torch}, Triton {where.triton}{stream}{products}")
    print(f"runner {where.runner}, commit {where.commit}, {where.date}\n")


def require_gpu(what: str) -> None:
    """End the program with a message unless torch finds a CUDA GPU."""
    import torch

    if not torch.cuda.is_available():
        print(f"{what} needs a CUDA GPU, and torch {torch.__version__} finds none here.", file=sys.stderr)
        sys.exit(2)


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "none"


def _head() -> str:
    """git's HEAD, with a "+" where the tree differs from it; "unknown" outside a checkout."""

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", "-C", str(CHECKOUT), *arguments], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        return git("rev-parse", "--short", "HEAD") + ("+" if git("status", "--porcelain") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
