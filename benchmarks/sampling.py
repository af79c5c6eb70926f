"""What choosing one token costs on the CPU: `python benchmarks/sampling.py` prints a table of microseconds a token.

Each row is the median of 15 runs of 200 tokens at successive positions. "peaked" logits put most of the mass on few
tokens, as models mostly do; "flat" ones are normally distributed with a standard deviation of 2, the worst case.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np
from arguments import positive
from numpy.typing import NDArray

from runner.config import SamplingParams
from runner.sampling import sample

RUNS, TOKENS = 15, 200
SETTINGS = {
    "greedy": SamplingParams(temperature=0),
    "top_k 40, top_p 0.95, min_p 0.05": SamplingParams(seed=1),
    "the same, repeat_penalty 1.1": SamplingParams(seed=1, repeat_penalty=1.1),
    "top_k 40": SamplingParams(seed=1, top_p=1, min_p=0),
    "top_p 0.95": SamplingParams(seed=1, top_k=0, min_p=0),
    "min_p 0.05": SamplingParams(seed=1, top_k=0, top_p=1),
    "temperature alone": SamplingParams(seed=1, top_k=0, top_p=1, min_p=0),
}


def make_logits(kind: str, vocab_size: int) -> NDArray[np.float32]:
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 2, vocab_size).astype(np.float32)
    if kind == "peaked":
        logits[rng.integers(0, vocab_size, 300)] += rng.exponential(4, 300).astype(np.float32) + 2
    return logits


def microseconds(logits: NDArray[np.float32], params: SamplingParams) -> float:
    history = np.random.default_rng(1).integers(0, logits.size, 500).tolist()
    sample(logits, params, history, 0)
    runs = []
    for _ in range(RUNS):
        started = time.perf_counter()
        for position in range(TOKENS):
            sample(logits, params, history, position)
        runs.append((time.perf_counter() - started) / TOKENS * 1e6)
    return statistics.median(runs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vocab", type=positive, nargs="+", default=[8192, 151_936], help="vocabulary sizes")
    sizes = parser.parse_args().vocab
    columns = [(size, kind) for size in sizes for kind in ("peaked", "flat")]
    print(f"{'us a token':34s}" + "".join(f"{f'{size} {kind}':>16s}" for size, kind in columns))
    for name, params in SETTINGS.items():
        cells = (f"{microseconds(make_logits(kind, size), params):16.1f}" for size, kind in columns)
        print(f"{name:34s}" + "".join(cells), flush=True)


if __name__ == "__main__":
    main()
