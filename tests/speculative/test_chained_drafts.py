"""Drafts whose length is settled before any of their tokens is seen, as a device that drafts alone needs it.

On the simulated clock of benchmarks/simulated_machines.py, with the product's loop and controller.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from simulated_machines import RIGHT, WRONG, Machine, Trace, World, answer, play, speculate
from speculation_controller import MODEL, TEXTS

from runner.speculative.drafter import Draft, Gate

HEAD = replace(MODEL, name="flat GPU, head", draft_token=0.08)
N = 300


class Chained(World):
    """Guesses everywhere, as many tokens at once as the gate reaches; where the trace has none, a poor one."""

    def propose(self, history: list[int], gate: Gate) -> Draft:  # type: ignore[override]
        n, first = gate.reach, len(history) - 1
        self.work(n * self._machine.draft_token)
        tokens: list[int] = []
        buckets: list[int] = []
        for position in range(first, min(first + n, len(self._trace.right))):
            bucket = self._trace.buckets[position]
            assert gate.admits(bucket or 0), "what was begun is there"
            tokens.append(RIGHT if bucket is not None and self._trace.right[position] else WRONG)
            buckets.append(bucket or 0)
        return Draft(tuple(tokens), tuple(buckets))


def chained(trace: Trace, machine: Machine, seed: int) -> float:
    """The gain of a first answer."""
    world = Chained(trace, machine, seed)
    return answer(world, machine, speculate(world, machine))


@pytest.mark.parametrize("machine", [MODEL, HEAD], ids=lambda machine: machine.name)
def test_no_text_is_slower_than_plain_decoding(machine: Machine) -> None:
    for text in TEXTS:
        for seed in range(2):
            trace = text(N, seed)
            assert chained(trace, machine, seed) >= 0.97, (trace.name, seed)


@pytest.mark.parametrize("machine", [MODEL, HEAD], ids=lambda machine: machine.name)
@pytest.mark.parametrize("text", [text for text in TEXTS if text(1, 0).name.startswith(("model", "always right"))])
def test_little_is_lost_to_who_stops_at_the_first_doubt(text: Callable[[int, int], Trace], machine: Machine) -> None:
    traces = [text(N, seed) for seed in range(3)]
    at_once = sum(chained(trace, machine, seed) for seed, trace in enumerate(traces))
    one_by_one = sum(play(trace, machine, seed)[0] for seed, trace in enumerate(traces))
    assert at_once > 0.88 * one_by_one
    assert at_once > 1.05 * len(traces)
