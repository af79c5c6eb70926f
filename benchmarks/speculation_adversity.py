"""What speculation costs at worst: random texts on random machines that are not what they seemed when it was loaded.

    python benchmarks/speculation_adversity.py [--machines 500]

Played as in speculation_controller.py, on a simulated clock. Each machine writes one to three answers of 128 or 300
tokens, one after the other with one speculator; a row says how many there were, the least gain over plain decoding,
how many of them were slower than 0.97x, and the mean. Gains are without the noise that the controller sees. All rows
are played twice: where the host waits for each step, and where plain steps begin early and hide what it does.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from dataclasses import replace
from random import Random

from arguments import positive
from simulated_machines import Machine, Trace, World, answer, speculate

PROMISED = 0.97
Spoil = Callable[[Machine, Random], Machine]

SPOILS: dict[str, Spoil] = {
    "nothing": lambda machine, _: machine,
    "t(1) at load wrong by 0.4 to 3": lambda machine, draw: replace(
        machine, plain_at_load=draw.choice([0.4, 0.6, 0.8, 1.25, 1.5, 2, 2.5, 3])
    ),
    "a step at load was held up for 0.4 s": lambda machine, draw: replace(
        machine, held_up_at_load=draw.choice([2, 4, 8])
    ),
    "asking takes 5 % of a step, the step after it 0 or 5 %": lambda machine, draw: replace(
        machine, draft_call=0.05, draft_token=0.0, unseen=draw.choice([0, 0.05])
    ),
    "a token costs 0.3 to 2 steps more, 1000 positions on": lambda machine, draw: replace(
        machine, deepens=draw.choice([0.3, 1, 2])
    ),
    "steps scatter by 5 to 20 %, 1 in 100 ten times as long": lambda machine, draw: replace(
        machine, noise=draw.choice([0.05, 0.1, 0.2]), stall=draw.choice([0, 0.01])
    ),
    "all of it": lambda machine, draw: replace(
        machine,
        draft_call=0.05,
        plain_at_load=draw.choice([0.4, 1, 1, 2, 3]),
        unseen=draw.choice([0, 0.02, 0.05]),
        deepens=draw.choice([0, 0.5, 1]),
        noise=draw.choice([0, 0.1, 0.2]),
        stall=draw.choice([0, 0.01]),
    ),
}


def any_machine(draw: Random) -> Machine:
    """Any costs that rise with M, evenly or in jumps; guessing is free or takes up to 0.6 plain steps a token."""
    steps = [1.0]
    for _ in range(15):
        steps.append(steps[-1] + draw.choice([0.0, 0.02, 0.1, 0.5, 1.5]))
    return Machine(
        "any",
        dict(enumerate(steps, 1)),
        draft_call=draw.choice([0.0, 0.003, 0.03]),
        draft_token=draw.choice([0.0, 0.0, 0.05, 0.3, 0.6]),
        draft_grows_at=draw.choice([0.1, 0.5, 0.8, 1.0]),
    )


def begins_early(machine: Machine, draw: Random) -> Machine:
    """The same machine, the plain steps of which begin early: asking, deciding and the caller may be hidden by them."""
    return replace(
        machine,
        draft_call=draw.choice([machine.draft_call, 0.03, 0.1]),
        deciding=draw.choice([0.0, 0.03, 0.1]),
        host=draw.choice([0.02, 0.1, 0.3]),
        caller=draw.choice([0.0, 0.05, 0.3, 1.5]),
    )


def any_trace(draw: Random) -> Trace:
    """Stretches, each with its own acceptance, bucket and share of positions with a guess."""
    n = draw.choice([128, 128, 300])
    right: list[bool] = []
    buckets: list[int | None] = []
    while len(right) < n:
        p, bucket = draw.choice([0, 0.2, 0.5, 0.8, 0.95, 1]), draw.randrange(3)
        share = draw.choice([0, 0.2, 1])
        for _ in range(draw.choice([5, 30, 100])):
            right.append(draw.random() < p)
            buckets.append(bucket if draw.random() < share else None)
    # The first guess is what the drafter is timed by: one that cannot be timed may surprise once.
    return Trace("any", tuple(right[:n]), (0, *buckets[1:n]))


def gains_of(seed: int, spoil: Spoil, *, is_early: bool = False) -> list[float]:
    """The gains of the answers of one machine."""
    draw = Random(seed)
    machine = spoil(any_machine(draw), draw)
    if is_early:
        machine = begins_early(machine, Random(f"early {seed}"))
    world = World(any_trace(draw), machine, seed)
    speculator = speculate(world, machine)
    found = []
    for _ in range(draw.choice([1, 2, 3])):
        world.begin(any_trace(draw))
        found.append(answer(world, machine, speculator))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machines", type=positive, default=500)
    asked = parser.parse_args()
    for is_early in (False, True):
        print("\nplain steps that begin early:" if is_early else "steps that are waited for:")
        print(f"{'what is not as it seemed':56} {'answers':>7} {'worst':>6} {f'below {PROMISED}':>10} {'mean':>6}")
        for name, spoil in SPOILS.items():
            gains = [gain for seed in range(asked.machines) for gain in gains_of(seed, spoil, is_early=is_early)]
            n_below = sum(gain < PROMISED for gain in gains)
            print(f"{name:56} {len(gains):7} {min(gains):6.3f} {n_below:10} {statistics.fmean(gains):6.3f}", flush=True)


if __name__ == "__main__":
    main()
