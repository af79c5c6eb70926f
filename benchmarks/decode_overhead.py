"""What runner's engine costs over llama.cpp itself: decode tokens/s on one GGUF file, in one run.

    python benchmarks/decode_overhead.py [MODEL.gguf] [--tokens 200] [--rounds 24] [--threads N]

Four ways to decode the same number of tokens after the same prompt, with the same threads and context, in ABBA order.
The overhead is the median over rounds of the time a token takes, compared within the round; its 95 % interval is
bootstrapped. Run it on a machine that does nothing else.

  bare      llama_decode and llama.cpp's own samplers, called from the shortest loop that Python can write
  generate  llama-cpp-python's own loop, Llama.generate
  engine    runner's Engine in this process, with its events, text and sampling
  process   runner's Engine in a child process, as `runner chat` and `runner run` use it
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import llama_cpp
from arguments import existing, positive

import runner
from runner.backends.llamacpp.library import model_params
from runner.config import ChatOptions, LoadOptions, SamplingParams
from runner.engine import Engine
from runner.engine_process import EngineProcess
from runner.events import Finished
from runner.machine import default_threads
from runner.paths import builtin, user_paths
from runner.types import Message

PROMPT = "It was a dark and stormy night, and the old house by the river"
N_CTX = 1024
SAMPLED = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}


class Bare:
    """llama.cpp's C functions in the shortest loop."""

    def __init__(self, path: Path, threads: int, is_greedy: bool) -> None:
        self._llama = quiet_llama(path, threads)
        self._context = self._llama._ctx.ctx
        params = llama_cpp.llama_sampler_chain_default_params()
        self._sampler = llama_cpp.llama_sampler_chain_init(params)
        add: Callable[[Any], None] = lambda part: llama_cpp.llama_sampler_chain_add(self._sampler, part)  # noqa: E731
        if is_greedy:
            add(llama_cpp.llama_sampler_init_greedy())
        else:
            add(llama_cpp.llama_sampler_init_top_k(40))
            add(llama_cpp.llama_sampler_init_top_p(0.95, 1))
            add(llama_cpp.llama_sampler_init_min_p(0.05, 1))
            add(llama_cpp.llama_sampler_init_temp(0.8))
            add(llama_cpp.llama_sampler_init_dist(1))
        self._prompt = self._llama.tokenize(PROMPT.encode(), add_bos=False)

    def decode_tok_s(self, n: int) -> float:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._context), True)
        tokens = (llama_cpp.llama_token * len(self._prompt))(*self._prompt)
        llama_cpp.llama_decode(self._context, llama_cpp.llama_batch_get_one(tokens, len(self._prompt)))
        one = (llama_cpp.llama_token * 1)()
        batch = llama_cpp.llama_batch_get_one(one, 1)
        one[0] = llama_cpp.llama_sampler_sample(self._sampler, self._context, -1)
        started = time.monotonic()
        for _ in range(n - 1):
            llama_cpp.llama_decode(self._context, batch)
            one[0] = llama_cpp.llama_sampler_sample(self._sampler, self._context, -1)
        return (n - 1) / (time.monotonic() - started)


class Generate:
    """llama-cpp-python's own loop."""

    def __init__(self, path: Path, threads: int, is_greedy: bool) -> None:
        self._llama = quiet_llama(path, threads)
        self._params = {"temp": 0.0} if is_greedy else {"temp": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}
        self._prompt = self._llama.tokenize(PROMPT.encode(), add_bos=False)

    def decode_tok_s(self, n: int) -> float:
        self._llama.reset()
        tokens = self._llama.generate(self._prompt, **self._params)
        next(tokens)
        started = time.monotonic()
        for _ in range(n - 1):
            next(tokens)
        return (n - 1) / (time.monotonic() - started)


class Ours:
    """runner's engine; decode tokens/s as its own telemetry defines it, checked by the seconds that passed here."""

    def __init__(self, engine: Engine | EngineProcess, path: Path, threads: int, is_greedy: bool) -> None:
        self._engine = engine
        for _ in engine.load(str(path), LoadOptions(ctx_size=N_CTX, n_threads=threads, n_gpu_layers=0)):
            pass
        self._params = {"temperature": 0.0} if is_greedy else SAMPLED

    def decode_tok_s(self, n: int) -> float:
        params = SamplingParams(**self._params, seed=1, max_tokens=n)  # type: ignore[arg-type]
        message = Message(role="user", content=PROMPT)
        started = time.monotonic()
        last = list(self._engine.chat([message], params, ChatOptions(raw=True)))[-1]
        elapsed = time.monotonic() - started
        assert isinstance(last, Finished)
        timings = last.timings
        if timings.completion_tokens != n or timings.decode_tok_s is None:
            raise SystemExit(f"the model stopped after {timings.completion_tokens} tokens: choose fewer --tokens")
        assert timings.total_s <= elapsed
        return timings.decode_tok_s


def quiet_llama(path: Path, threads: int) -> llama_cpp.Llama:
    with patch.object(llama_cpp.llama_cpp, "llama_model_default_params", model_params):
        return llama_cpp.Llama(
            str(path),
            n_ctx=N_CTX,
            n_threads=threads,
            n_threads_batch=threads,
            n_gpu_layers=0,
            flash_attn=True,
            verbose=False,
            seed=1,
        )


def measure(path: Path, n: int, rounds: int, threads: int, is_greedy: bool) -> dict[str, list[float]]:
    with tempfile.TemporaryDirectory() as home, EngineProcess(user_paths(Path(home))) as process:
        ways = {
            "bare": Bare(path, threads, is_greedy),
            "generate": Generate(path, threads, is_greedy),
            "engine": Ours(Engine(user_paths(Path(home))), path, threads, is_greedy),
            "process": Ours(process, path, threads, is_greedy),
        }
        found: dict[str, list[float]] = {name: [] for name in ways}
        for way in ways.values():
            way.decode_tok_s(n)
        for i in range(rounds):
            for name in ways if i % 2 == 0 else reversed(ways):
                found[name].append(ways[name].decode_tok_s(n))
        return found


def overhead(ours: list[float], theirs: list[float]) -> tuple[float, float, float]:
    """Median of theirs / ours - 1 over rounds (tokens/s), and its bootstrapped 95 % interval."""
    ratios = [their / our - 1 for our, their in zip(ours, theirs, strict=True)]
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(2000))
    return statistics.median(ratios), medians[50], medians[-51]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=existing, nargs="?", default=builtin("models/demo") / "demo-q8_0.gguf")
    parser.add_argument("--tokens", type=positive, default=200)
    parser.add_argument("--rounds", type=positive, default=24)
    parser.add_argument("--threads", type=positive, default=default_threads())
    args = parser.parse_args()
    print(f"{args.model.name}, {args.tokens} tokens, {args.rounds} rounds, {args.threads} threads")
    print(f"llama-cpp-python {llama_cpp.__version__}, runner {runner.__version__}")
    print(
        f"{'sampling':9} {'way':9} {'tok/s':>8} {'sd':>6} {'over generate':>14} {'95 % interval':>18} {'over bare':>10}"
    )
    for is_greedy in (True, False):
        found = measure(args.model, args.tokens, args.rounds, args.threads, is_greedy)
        for name, values in found.items():
            middle, low, high = overhead(values, found["generate"])
            over_bare = overhead(values, found["bare"])[0]
            print(
                f"{'greedy' if is_greedy else 'sampled':9} {name:9} {statistics.median(values):8.1f} "
                f"{statistics.stdev(values):6.1f} {middle:14.1%} {low:8.1%} .. {high:6.1%} {over_bare:10.1%}"
            )


if __name__ == "__main__":
    main()
