"""How well the controller of speculation decides: played against traces of acceptance and tables of costs, no model.

    python benchmarks/speculation_controller.py [--tokens 128 512 2048] [--seeds 8]

Each row is a text and a machine. The decode loop, the controller and its account are the product's; the target and
the drafter take their time on a simulated clock (simulated_machines.py). `gain` is against plain decoding, the mean
over seeds, `worst` the least of them, both without the noise that the controller sees. `later` is that of the third
answer of one speculator, when it knows the machine. `fixed` is the best constant draft length of the same text, known
afterwards, `oracle` the best length before each step for one who knows what will be accepted: no controller reaches
it. `eager` verifies every guess.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace

from arguments import positive
from simulated_machines import DRAFT_MAX, N_BUCKETS, Machine, Trace, World, answer, plain, play, speculate

from runner.speculative.control import EagerController

FLAT = Machine("flat GPU", {1: 1.0, 2: 1.02, 4: 1.06, 8: 1.15, 16: 1.3}, draft_call=0.003)
OURS = Machine("GPU now", {1: 1.0, 2: 1.06, 4: 1.14, 8: 1.3, 16: 1.9}, draft_call=0.003)
CPU = Machine("llama.cpp CPU", {1: 1.0, 2: 2.16, 4: 2.99, 8: 4.23, 16: 6.49}, draft_call=0.006)
MODEL = replace(FLAT, name="flat GPU, model", draft_call=0.0, draft_token=0.3)
# Plain steps of 0.16 ms that begin early: what the host does meanwhile is hidden, and a tenth of them or more.
FAST = Machine(
    "demo on an H200",
    {1: 1.0, 2: 1.21, 4: 1.36, 8: 1.74, 16: 2.22},
    draft_call=0.09,
    deciding=0.03,
    host=0.07,
    caller=0.05,
)
SLOW_HOST = replace(FAST, name="the same, slow host", draft_call=0.2, deciding=0.1, caller=0.1)
MACHINES = (FLAT, OURS, CPU, MODEL, FAST, SLOW_HOST)


def runs(name: str, n: int, seed: int, *, mean_run: float, mean_gap: float, p_run: float, p_gap: float) -> Trace:
    """Stretches that repeat something, between others where a guess is rare and mostly wrong."""
    draw = random.Random(seed)
    right: list[bool] = []
    buckets: list[int | None] = []
    while len(right) < n:
        for i in range(1 + int(draw.expovariate(1 / mean_run))):
            right.append(draw.random() < p_run)
            buckets.append(min(N_BUCKETS - 1, i // 4))
        for _ in range(int(draw.expovariate(1 / mean_gap))):
            right.append(draw.random() < p_gap)
            buckets.append(0 if draw.random() < 0.15 else None)
    return Trace(name, tuple(right[:n]), tuple(buckets[:n]))


def steady(name: str, n: int, seed: int, p: float) -> Trace:
    """A guess everywhere, right so often."""
    draw = random.Random(seed)
    return Trace(name, tuple(draw.random() < p for _ in range(n)), (1,) * n)


def confident(name: str, n: int, seed: int, shares: Sequence[float]) -> Trace:
    """A guess everywhere, with a confidence that says how often it is right: shares of each bucket."""
    draw = random.Random(seed)
    buckets = draw.choices(range(N_BUCKETS), shares, k=n)
    return Trace(name, tuple(draw.random() < (0.35, 0.7, 0.95)[bucket] for bucket in buckets), tuple(buckets))


def code(n: int, seed: int) -> Trace:
    return runs("code", n, seed, mean_run=24, mean_gap=4, p_run=0.97, p_gap=0.35)


def prose(n: int, seed: int) -> Trace:
    return runs("prose", n, seed, mean_run=0.8, mean_gap=20, p_run=0.55, p_gap=0.25)


def switching(n: int, seed: int) -> Trace:
    """Code and prose, 200 tokens each."""
    one, other = code(n, seed), prose(n, seed + 1)
    is_code = [i // 200 % 2 == 0 for i in range(n)]
    right = tuple(a if first else b for first, a, b in zip(is_code, one.right, other.right, strict=True))
    buckets = tuple(a if first else b for first, a, b in zip(is_code, one.buckets, other.buckets, strict=True))
    return Trace("switching", right, buckets)


def turning(n: int, seed: int) -> Trace:
    """Right until the middle, wrong from there on."""
    del seed
    return Trace("turns wrong", tuple(i < n // 2 for i in range(n)), (1,) * n)


TEXTS: tuple[Callable[[int, int], Trace], ...] = (
    code,
    prose,
    switching,
    turning,
    lambda n, seed: confident("model, code", n, seed, (0.1, 0.15, 0.75)),
    lambda n, seed: confident("model, prose", n, seed, (0.45, 0.3, 0.25)),
    lambda n, seed: steady("half right", n, seed, 0.5),
    lambda n, seed: steady("always right", n, seed, 1.0),
    lambda n, seed: steady("always wrong", n, seed, 0.0),
)


def _runs_right(trace: Trace) -> list[int]:
    """For each position, how many guesses from it on are there and right."""
    n = len(trace.right)
    found = [0] * (n + 1)
    for i in range(n - 1, -1, -1):
        found[i] = found[i + 1] + 1 if trace.buckets[i] is not None and trace.right[i] else 0
    return found


def oracle(trace: Trace, machine: Machine) -> float:
    """The gain of one who knows before each step how many guesses will be accepted; where steps overlap, the caller's
    work costs it nothing after a draft."""
    n, right = len(trace.right), _runs_right(trace)
    least = [0.0] * (n + DRAFT_MAX + 2)
    for i in range(n - 1, -1, -1):
        drafted = (
            _round(machine, k, i + 1, 0 if machine.host is not None else k + 1) + least[i + k + 1]
            for k in range(1, min(right[i], DRAFT_MAX, n - 1 - i) + 1)
        )
        least[i] = min([_next_plain(machine, i + 1) + least[i + 1], *drafted])
    return plain(machine, n) / least[0]


def _next_plain(machine: Machine, position: int) -> float:
    """A plain step among others."""
    step = machine.step(1, position)
    return step + machine.caller if machine.host is None else max(step - machine.host, machine.host + machine.caller)


def _round(machine: Machine, n_drafted: int, position: int, n_taken: int) -> float:
    """A round while, or after, the caller takes so many tokens."""
    step, taking = machine.step(n_drafted + 1, position), n_taken * machine.caller
    together = step + taking if machine.host is None else max(step, machine.host + taking)
    return together + machine.draft_call + n_drafted * machine.draft_token


def fixed(trace: Trace, machine: Machine) -> tuple[int, float]:
    """The best constant draft length, and its gain."""
    n, right = len(trace.right), _runs_right(trace)
    best = (0, 1.0)
    for k in range(1, DRAFT_MAX + 1):
        i, spent = 0, 0.0
        while i < n:
            there = 0
            while there < k and i + there < n - 1 and trace.buckets[i + there] is not None:
                there += 1
            emitted = min(right[i], there) + 1
            spent += _round(machine, there, i + 1, emitted)
            i += emitted
        best = max(best, (k, plain(machine, n) / spent), key=lambda pair: pair[1])
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=positive, nargs="+", default=[128, 512, 2048])
    parser.add_argument("--seeds", type=positive, default=8)
    args = parser.parse_args()
    machines = (*MACHINES, replace(MODEL, name="model, grows tenfold", draft_grows_at=0.5))
    heads = f"{'gain':>6} {'worst':>6} {'later':>6} {'fixed':>9} {'oracle':>7} {'eager':>6}"
    print(f"{'machine':20} {'text':13} {'tokens':>6} {heads}")
    for machine in machines:
        for text in TEXTS:
            for n in args.tokens:
                print(row(machine, text, n, args.seeds), flush=True)


def row(machine: Machine, text: Callable[[int, int], Trace], n: int, seeds: int) -> str:
    traces = [text(n, seed) for seed in range(seeds)]
    gains = [play(trace, machine, seed)[0] for seed, trace in enumerate(traces)]
    later = [_third(text, machine, n, seed) for seed in range(seeds)]
    eager = [play(trace, machine, 0, EagerController(DRAFT_MAX))[0] for trace in traces]
    best = [fixed(trace, machine) for trace in traces]
    k = statistics.median_high(k for k, _ in best)
    return (
        f"{machine.name:20} {traces[0].name:13} {n:6} {statistics.fmean(gains):6.2f} {min(gains):6.3f} "
        f"{statistics.fmean(later):6.2f} "
        f"{statistics.fmean(gain for _, gain in best):5.2f} k{k:<2} "
        f"{statistics.fmean(oracle(trace, machine) for trace in traces):7.2f} {statistics.fmean(eager):6.2f}"
    )


def _third(text: Callable[[int, int], Trace], machine: Machine, n: int, seed: int) -> float:
    """The gain of the last of three texts, one after the other."""
    world = World(text(n, seed), machine, seed)
    speculator = speculate(world, machine)
    gain = 0.0
    for number in range(3):
        world.begin(text(n, seed + number))
        gain = answer(world, machine, speculator)
    return gain


if __name__ == "__main__":
    main()
