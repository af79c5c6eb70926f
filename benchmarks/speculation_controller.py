"""How well the controller of speculation decides: played against traces of acceptance and tables of costs, no model.

    python benchmarks/speculation_controller.py [--tokens 128 512 2048] [--seeds 8]

Each row is a text and a machine. The decode loop, the controller and its account are the product's; the target and
the drafter take their time on a simulated clock. `gain` is against plain decoding, the mean over seeds, `worst` the
least of them, both without the noise that the controller sees. `fixed` is the best constant draft length of the same
text, known afterwards, `oracle` the best length before each step for one who knows what will be accepted: no controller
reaches it. `eager` verifies every guess.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from runner.config import SamplingParams
from runner.speculative.control import Control, EagerController
from runner.speculative.drafter import Draft, Drafter, DrafterName, Gate
from runner.speculative.rounds import decode
from runner.speculative.speculator import Speculator

DRAFT_MAX = 15
PLAIN_S = 2e-3
RIGHT, WRONG = 1, 2  # the text is one token again and again: only whether a guess is right matters
N_BUCKETS = 3


@dataclass(frozen=True)
class Machine:
    """t(M) in plain steps of an empty context, and what drafting costs: a call, and each token.

    draft_grows_at: the part of the text after which drafting takes ten times as long. unseen: what a step is longer by
    after the drafter was asked, which no clock around the drafter sees (it left the processor's caches cold). deepens:
    what each token of a step costs more at a position 1000 further on. noise: the relative spread of every duration.
    stall: how often one takes ten times as long. plain_at_load: how many times as long as it is t(1) seems at load.
    """

    name: str
    t: dict[int, float]
    draft_call: float = 0.0
    draft_token: float = 0.0
    draft_grows_at: float = 1.0
    unseen: float = 0.0
    deepens: float = 0.0
    noise: float = 0.0
    stall: float = 0.0
    plain_at_load: float = 1.0

    def step(self, n_tokens: int, position: int = 0) -> float:
        return self._empty(n_tokens) + n_tokens * self.deepens * position / 1000

    def _empty(self, n_tokens: int) -> float:
        low = max(n for n in self.t if n <= n_tokens)
        high = min(n for n in self.t if n >= n_tokens)
        share = (n_tokens - low) / (high - low) if high > low else 0.0
        return self.t[low] + share * (self.t[high] - self.t[low])

    @property
    def is_host_only(self) -> bool:
        return self.draft_token == 0


@dataclass(frozen=True)
class Trace:
    """For each position: is the drafter's guess right if all before it is, and its bucket; None without a guess."""

    name: str
    right: tuple[bool, ...]
    buckets: tuple[int | None, ...]


FLAT = Machine("flat GPU", {1: 1.0, 2: 1.02, 4: 1.06, 8: 1.15, 16: 1.3}, draft_call=0.003)
OURS = Machine("GPU now", {1: 1.0, 2: 1.06, 4: 1.14, 8: 1.3, 16: 1.9}, draft_call=0.003)
CPU = Machine("llama.cpp CPU", {1: 1.0, 2: 2.16, 4: 2.99, 8: 4.23, 16: 6.49}, draft_call=0.006)
MODEL = replace(FLAT, name="flat GPU, model", draft_call=0.0, draft_token=0.3)
MACHINES = (FLAT, OURS, CPU, MODEL)


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


class World:
    """A clock, and a target and a drafter that take their time by it.

    spent: plain steps that went by, without the noise that the clock shows.
    """

    def __init__(self, trace: Trace, machine: Machine, seed: int) -> None:
        self.vocab_size = 3
        self.now = self.spent = 0.0
        self._was_asked = False
        self._machine = machine
        self._draw = random.Random(seed)
        self.begin(trace)

    def begin(self, trace: Trace) -> None:
        """The next text is this one."""
        self._trace = trace
        self.n_ctx = len(trace.right) + 1

    def clock(self) -> float:
        return self.now

    def choices(self, draft: Sequence[int], params: SamplingParams, history: Sequence[int]) -> Iterator[int]:
        del params
        unseen = self._machine.unseen if self._was_asked else 0.0
        self._was_asked = False
        self._pass(self._machine.step(len(draft) + 1, len(history)) + unseen)
        return iter([RIGHT] * (len(draft) + 1))

    def keep(self, length: int) -> None:
        pass

    def step_s(self, n_tokens: int) -> float:
        seems = self._machine.plain_at_load if n_tokens == 1 else 1.0
        return seems * self._seconds(self._machine.step(n_tokens))

    def _pass(self, steps: float) -> None:
        self.spent += steps
        self.now += self._seconds(steps)

    def _seconds(self, steps: float) -> float:
        noise = self._machine.noise
        if self._draw.random() < self._machine.stall:
            steps *= 10
        return PLAIN_S * steps * self._draw.lognormvariate(-noise * noise / 2, noise)

    def propose(self, history: Sequence[int], gate: Gate) -> Draft:
        machine, trace = self._machine, self._trace
        factor = 10 if len(history) > machine.draft_grows_at * len(trace.right) else 1
        began = self.spent
        self._pass(machine.draft_call * factor)
        tokens: list[int] = []
        buckets: list[int] = []
        for position in range(len(history) - 1, len(trace.right)):
            bucket = trace.buckets[position]
            if bucket is None or not gate.is_open:
                break
            self._pass(machine.draft_token * factor)
            if not gate.admits(bucket):
                break
            tokens.append(RIGHT if trace.right[position] else WRONG)
            buckets.append(bucket)
        self._was_asked = self.spent > began
        return Draft(tuple(tokens), tuple(buckets))


class Playing(Drafter):
    """Guesses as the trace says."""

    name: DrafterName = "scripted"
    n_buckets = N_BUCKETS
    nbytes = 0

    def __init__(self, world: World, is_host_only: bool) -> None:
        self.is_host_only = is_host_only
        self._world = world

    def propose(self, history: Sequence[int], params: SamplingParams, gate: Gate) -> Draft:
        del params
        return self._world.propose(history, gate)

    def close(self) -> None:
        pass


def speculate(
    world: World, machine: Machine, control: Control | None = None, *, is_calibrated: bool = True
) -> Speculator:
    """A speculator for the target and the drafter of that world."""
    speculator = Speculator(Playing(world, machine.is_host_only), DRAFT_MAX, control=control, clock=world.clock)
    if is_calibrated:
        speculator.calibrate(world.step_s)
    return speculator


def answer(world: World, machine: Machine, speculator: Speculator) -> float:
    """Decode the text of the world's trace once; gives the gain over plain decoding."""
    speculator.begin()
    began = world.spent
    n = sum(1 for _ in decode(world, SamplingParams(temperature=0), [0], speculator, world.clock))
    return plain(machine, n) / (world.spent - began)


def plain(machine: Machine, n: int) -> float:
    """What n plain steps take."""
    return sum(machine.step(1, position) for position in range(1, n + 1))


def play(trace: Trace, machine: Machine, seed: int = 0, control: Control | None = None) -> tuple[float, Speculator]:
    """The gain of a first answer after the load, and the speculator."""
    world = World(trace, machine, seed)
    speculator = speculate(world, machine, control)
    return answer(world, machine, speculator), speculator


def _runs_right(trace: Trace) -> list[int]:
    """For each position, how many guesses from it on are there and right."""
    n = len(trace.right)
    found = [0] * (n + 1)
    for i in range(n - 1, -1, -1):
        found[i] = found[i + 1] + 1 if trace.buckets[i] is not None and trace.right[i] else 0
    return found


def oracle(trace: Trace, machine: Machine) -> float:
    """The gain of one who knows before each step how many guesses will be accepted."""
    n, right = len(trace.right), _runs_right(trace)
    least = [0.0] * (n + DRAFT_MAX + 2)
    for i in range(n - 1, -1, -1):
        least[i] = min(
            machine.step(k + 1, i + 1) + (machine.draft_call + k * machine.draft_token if k else 0) + least[i + k + 1]
            for k in range(min(right[i], DRAFT_MAX, n - 1 - i) + 1)
        )
    return plain(machine, n) / least[0]


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
            spent += machine.step(there + 1, i + 1) + machine.draft_call + there * machine.draft_token
            i += min(right[i], there) + 1
        best = max(best, (k, plain(machine, n) / spent), key=lambda pair: pair[1])
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[128, 512, 2048])
    parser.add_argument("--seeds", type=int, default=8)
    args = parser.parse_args()
    machines = (*MACHINES, replace(MODEL, name="model, grows tenfold", draft_grows_at=0.5))
    print(f"{'machine':20} {'text':13} {'tokens':>6} {'gain':>6} {'worst':>6} {'fixed':>9} {'oracle':>7} {'eager':>6}")
    for machine in machines:
        for text in TEXTS:
            for n in args.tokens:
                print(row(machine, text, n, args.seeds), flush=True)


def row(machine: Machine, text: Callable[[int, int], Trace], n: int, seeds: int) -> str:
    traces = [text(n, seed) for seed in range(seeds)]
    gains = [play(trace, machine, seed)[0] for seed, trace in enumerate(traces)]
    eager = [play(trace, machine, 0, EagerController(DRAFT_MAX))[0] for trace in traces]
    best = [fixed(trace, machine) for trace in traces]
    k = statistics.median_high(k for k, _ in best)
    return (
        f"{machine.name:20} {traces[0].name:13} {n:6} {statistics.fmean(gains):6.2f} {min(gains):6.3f} "
        f"{statistics.fmean(gain for _, gain in best):5.2f} k{k:<2} "
        f"{statistics.fmean(oracle(trace, machine) for trace in traces):7.2f} {statistics.fmean(eager):6.2f}"
    )


if __name__ == "__main__":
    main()
