"""llama.cpp beside runner: llama-bench in a directory of its build, and llama-cpp-python as users have it.

    python benchmarks/peers.py MODEL.gguf [--depth 0 ...]     # llama-cpp-python through runner's backend: JSON

The libraries of a build with CUDA want CUDA's own, which torch brings along. Both run in processes of their own, so
that what they hold is given back. It knows nothing of runner's kernels.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arguments import existing, positive

_LIBRARIES = ("llama", "ggml", "ggml-base", "mtmd")


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One test of another program: its samples in tok/s. test: "tg128", "tg128 @ d4096", "pp512"."""

    test: str
    tok_s: tuple[float, ...]


def test_name(n_prompt: int, n_gen: int, n_depth: int) -> str:
    """As llama-bench calls it."""
    name = f"tg{n_gen}" if n_gen else f"pp{n_prompt}"
    return f"{name} @ d{n_depth}" if n_depth else name


# --- llama-bench -----------------------------------------------------------------------------------------------------


def llama_bench(
    directory: Path,
    gguf: Path,
    *,
    prompts: Sequence[int],
    messages: Sequence[int],
    n_gen: int,
    depths: Sequence[int],
    repetitions: int,
) -> Iterator[Measured]:
    """All prompts at depth 0 in one run, decoding at all depths in another, and messages at those above 0 in a third.
    Raises RuntimeError with what it said.

    One repetition more than asked for, whose sample is left out: the first of a test is up to three times as slow.
    """
    common = ["-m", str(gguf), "-r", str(repetitions + 1), "-fa", "1", "-o", "jsonl"]
    runs = [
        ["-p", _listed(prompts), "-n", "0"],
        ["-p", "0", "-n", str(n_gen), "-d", _listed(depths)],
    ]
    if messages and any(depths):
        runs.append(["-p", _listed(messages), "-n", "0", "-d", _listed([depth for depth in depths if depth])])
    for arguments in runs:
        done = subprocess.run(
            [str(directory / "llama-bench"), *common, *arguments],
            capture_output=True,
            text=True,
            env=os.environ | {"LD_LIBRARY_PATH": library_path(directory)},
        )
        if done.returncode:
            raise RuntimeError(f"llama-bench ended with {done.returncode}: {done.stderr.strip()[-600:]}")
        yield from parse_llama_bench(done.stdout)


def _listed(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))


def parse_llama_bench(text: str) -> Iterator[Measured]:
    """The rows of its JSON lines, without the first sample of several."""
    for line in text.splitlines():
        if not line.startswith("{"):
            continue
        row = json.loads(line)
        samples = row.get("samples_ts") or [row["avg_ts"]]
        samples = samples[1:] or samples
        name = test_name(row["n_prompt"], row["n_gen"], row.get("n_depth", 0))
        yield Measured(test=name, tok_s=tuple(samples))


def library_path(directory: Path) -> str:
    """LD_LIBRARY_PATH: the directory, CUDA's libraries in torch's packages, and what was there."""
    torch = importlib.util.find_spec("torch")
    site = Path(torch.origin).parent.parent if torch and torch.origin else directory
    cuda = sorted(str(path) for path in (*site.glob("nvidia/cu*/lib"), *site.glob("nvidia/*/lib")))
    there = os.environ.get("LD_LIBRARY_PATH")
    return os.pathsep.join([str(directory), *dict.fromkeys(cuda), *([there] if there else [])])


# --- llama-cpp-python ------------------------------------------------------------------------------------------------


def wheel(
    gguf: Path,
    libraries: Path | None,
    *,
    prompts: Sequence[int],
    messages: Sequence[int],
    n_gen: int,
    depths: Sequence[int],
    repetitions: int,
    on_gpu: bool,
) -> list[Measured]:
    """runner's llamacpp backend on that file in a fresh process; libraries: instead of those in the package.

    Raises RuntimeError with what it said, and where it has no GPU and on_gpu wants one.
    """
    lists = [("--prompt", prompts), ("--message", messages), ("--depth", depths)]
    arguments = [word for name, values in lists for word in (name, *map(str, values))]
    with _linked(libraries) as environment:
        done = subprocess.run(
            [sys.executable, __file__, str(gguf), *arguments, "--n-gen", str(n_gen), "-r", str(repetitions)]
            + (["--on-gpu"] if on_gpu else []),
            capture_output=True,
            text=True,
            env=os.environ | environment,
        )
    if done.returncode:
        raise RuntimeError(f"llama-cpp-python ended with {done.returncode}: {done.stderr.strip()[-600:]}")
    return [Measured(test=row["test"], tok_s=tuple(row["tok_s"])) for row in json.loads(done.stdout)]


@contextmanager
def _linked(libraries: Path | None) -> Iterator[dict[str, str]]:
    """The environment in which llama_cpp takes these libraries, under the names without a version that it looks for."""
    if libraries is None:
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="runner-links-") as links:
        for name in _LIBRARIES:
            found = sorted(libraries.glob(f"lib{name}.so*"))
            if found:
                (Path(links) / f"lib{name}.so").symlink_to(found[0].resolve())
        yield {"LLAMA_CPP_LIB_PATH": links, "LD_LIBRARY_PATH": library_path(libraries.resolve())}


def _measure(asked: argparse.Namespace) -> list[dict[str, Any]]:
    from generation import decode, prefill, prefill_after

    from runner.backends.llamacpp import load
    from runner.config import LoadOptions
    from runner.types import CancelToken, ReadyModel

    gguf, repetitions = asked.model, asked.repetitions
    model = ReadyModel(
        name=gguf.stem, format="gguf", weights=(gguf,), directory=gguf.parent, size_bytes=gguf.stat().st_size
    )
    n_ctx = max([*asked.prompt, *asked.depth]) + max([0, *asked.message]) + asked.n_gen + 64
    backend = load(model, LoadOptions(backend="llamacpp", ctx_size=n_ctx), lambda _: None, CancelToken())
    if asked.on_gpu and not backend.info.n_gpu_layers:
        sys.exit("The llama-cpp-python that is installed computes on the CPU alone.")
    found = {test_name(0, asked.n_gen, d): decode(backend, d, asked.n_gen, repetitions).tok_s for d in asked.depth}
    found |= {test_name(n, 0, 0): prefill(backend, n, repetitions) for n in asked.prompt}
    later = [(n, depth) for n in asked.message for depth in asked.depth if depth]
    found |= {test_name(n, 0, depth): prefill_after(backend, depth, n, repetitions) for n, depth in later}
    backend.close()
    return [{"test": test, "tok_s": tok_s} for test, tok_s in found.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=existing)
    parser.add_argument("--prompt", type=int, nargs="*", default=[512])
    parser.add_argument("--message", type=int, nargs="*", default=[])
    parser.add_argument("--depth", type=int, nargs="*", default=[0])
    parser.add_argument("--n-gen", type=positive, default=128)
    parser.add_argument("-r", "--repetitions", type=positive, default=3)
    parser.add_argument("--on-gpu", action="store_true", help="end with a message where no layer is on a GPU")
    asked = parser.parse_args()
    print(json.dumps(_measure(asked)))


if __name__ == "__main__":
    main()
