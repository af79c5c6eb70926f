"""What the suffix drafter costs: `python benchmarks/suffix_drafter.py [TEXT...]` prints microseconds a token.

Without files it takes runner's own source as the text, in the demo model's tokens. Times are the processor's: the least
of some runs for a prompt, the median for a step, which is all that the drafter does between two steps of the target.
"""

from __future__ import annotations

import argparse
import statistics
import time
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

from arguments import existing
from tokenizers import Tokenizer

import runner
from runner.config import SamplingParams
from runner.paths import builtin
from runner.speculative.control import Most
from runner.speculative.suffix import SuffixDrafter

PROMPT, STEPS, RUNS = 8192, 4000, 5
PARAMS = SamplingParams()


def read(drafter: SuffixDrafter, tokens: Sequence[int]) -> float:
    """Microseconds a token that a prompt takes."""
    started = time.thread_time()
    drafter.propose(tokens, PARAMS, Most(0))
    return (time.thread_time() - started) / len(tokens) * 1e6


def steps(drafter: SuffixDrafter, tokens: Sequence[int]) -> dict[int, float]:
    """Microseconds of a step after the prompt, by the length of the draft that it gave."""
    history = list(tokens[:PROMPT])
    drafter.propose(history, PARAMS, Most(0))
    found: dict[int, list[float]] = {}
    for token in tokens[PROMPT : PROMPT + STEPS]:
        history.append(token)
        gate = Most(15)
        started = time.thread_time()
        draft = drafter.propose(history, PARAMS, gate)
        found.setdefault(len(draft), []).append((time.thread_time() - started) * 1e6)
    return {n: statistics.median(times) for n, times in sorted(found.items())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=existing, nargs="*")
    files = parser.parse_args().text or sorted(Path(runner.__file__).parent.glob("*.py"))
    tokenizer = Tokenizer.from_file(str(builtin("models/demo") / "tokenizer.json"))
    tokens = tokenizer.encode("".join(path.read_text(encoding="utf-8") for path in files)).ids
    if len(tokens) < PROMPT + STEPS:
        raise SystemExit(f"the text has {len(tokens)} tokens: give at least {PROMPT + STEPS}")
    prompt = min(read(SuffixDrafter(), tokens[:PROMPT]) for _ in range(RUNS))
    print(f"a prompt of {PROMPT}: {prompt:.2f} us a token, {prompt * PROMPT / 1e3:.1f} ms")
    for n, microseconds in steps(SuffixDrafter(), tokens).items():
        print(
            f"a step with a draft of {n:2}: {microseconds:.1f} us"
            if n
            else f"a step without a match: {microseconds:.1f} us"
        )
    tracemalloc.start()
    drafter = SuffixDrafter()
    drafter.propose(tokens[:PROMPT], PARAMS, Most(0))
    print(f"memory: {tracemalloc.get_traced_memory()[0] / PROMPT:.0f} bytes a token")


if __name__ == "__main__":
    main()
