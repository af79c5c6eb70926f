"""What speculation gains and loses where plain steps begin early, on the real clock of this host.

    python benchmarks/speculation_early.py [--step-us 40 80 150] [--answers 7] [--tokens 400]

The device is a wait: steps of 2, 4, 8 and 16 tokens take 1.16, 1.35, 1.8 and 2.17 times as long as one of one token, as
the demo's do on an H200. The decode loop, the speculator and the suffix drafter are the product's, and take the time
that they take here; a host that is n times as slow beside its device is a step that is an nth as long. Each answer is
written with and without speculation, in turn, by one speculator that remembers the answers before: so a text at random
is known from the second answer on. Run it on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import itertools
import random
import time
from collections import deque
from collections.abc import Iterator, Sequence

from records import Table

from runner.config import SamplingParams
from runner.speculative.rounds import decode
from runner.speculative.speculator import Speculator
from runner.speculative.suffix import SuffixDrafter

_RATIOS = {1: 1.0, 2: 1.16, 4: 1.35, 8: 1.8, 16: 2.17}
_LAUNCH, _VERIFYING, _CALLER = 0.15, 0.3, 0.05  # of a step: the host's part of one, of a verifying one, a token's use
_N_PROMPT, _VOCABULARY = 100, 50_000
_GREEDY = SamplingParams(temperature=0.0)


def wait(until: float) -> None:
    """Until that time of the clock, without giving up the processor: a device's clock is finer than a sleep."""
    while time.perf_counter() < until:
        pass


class Device:
    """Works on one step after the other. step_s: seconds of one of one token."""

    def __init__(self, step_s: float) -> None:
        self.step_s = step_s
        self._free_at = 0.0

    def seconds(self, n_tokens: int) -> float:
        return self.step_s * next(ratio for n, ratio in _RATIOS.items() if n >= n_tokens)

    def begin(self, n_tokens: int, launch: float) -> float:
        """Launch a step, which takes the host `launch` steps; gives the time at which it will be over."""
        wait(time.perf_counter() + launch * self.step_s)
        self._free_at = max(self._free_at, time.perf_counter()) + self.seconds(n_tokens)
        return self._free_at


class Stretch:
    """See speculative.rounds.Stretch."""

    def __init__(self, device: Device, text: Sequence[int], position: int) -> None:
        self._device, self._text, self._position = device, text, position
        self._begun: deque[float] = deque()
        self._is_finishing = False

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        while len(self._begun) < 2 and not self._is_finishing:
            self._begun.append(self._device.begin(1, _LAUNCH))
        if not self._begun:
            raise StopIteration
        wait(self._begun.popleft())
        self._position += 1
        return self._text[self._position - 1]

    def finish(self) -> None:
        self._is_finishing = True

    def close(self) -> None:
        while self._begun:
            wait(self._begun.popleft())


class Writer:
    """A target that writes a text whatever is asked of it; see speculative.rounds.Target and Pipelined."""

    def __init__(self, device: Device, text: Sequence[int]) -> None:
        self.n_ctx, self.vocab_size = len(text), _VOCABULARY
        self._device, self._text = device, text

    def choices(self, draft: Sequence[int], _params: SamplingParams, history: Sequence[int]) -> Iterator[int]:
        wait(self._device.begin(len(draft) + 1, _VERIFYING))
        return iter(self._text[len(history) : len(history) + len(draft) + 1])

    def stretch(self, _params: SamplingParams, history: Sequence[int]) -> Stretch:
        return Stretch(self._device, self._text, len(history))

    def keep(self, length: int) -> None:
        pass


def answer_s(device: Device, text: Sequence[int], n_tokens: int, speculator: Speculator | None) -> float:
    """Seconds for so many tokens after the text's first hundred."""
    history = list(text[:_N_PROMPT])
    if speculator is not None:
        speculator.begin(history)
    began = time.perf_counter()
    emitted = decode(Writer(device, text), _GREEDY, history, speculator)
    for _ in itertools.islice(emitted, n_tokens):
        wait(time.perf_counter() + _CALLER * device.step_s)
    elapsed = time.perf_counter() - began
    emitted.close()
    return elapsed


def texts(n_tokens: int) -> dict[str, list[int]]:
    """One that repeats 40 tokens, one that repeats 20 between 20 others, one at random."""
    draw = random.Random(0)

    def noise(count: int) -> list[int]:
        return [draw.randrange(_VOCABULARY) for _ in range(count)]

    length = 2 * n_tokens + _N_PROMPT
    period, half = noise(40), noise(20)
    return {
        "repeats": (period * length)[:length],
        "half of it repeats": [token for _ in range(length // 40 + 1) for token in (*half, *noise(20))][:length],
        "random": noise(length),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--step-us", type=float, nargs="+", default=[40.0, 80.0, 150.0])
    parser.add_argument("--answers", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=400)
    asked = parser.parse_args()
    table = Table(["step us", "text              ", "gain of each answer               ", "rounds that verified"])
    for step_us in asked.step_us:
        for name, text in texts(asked.tokens).items():
            device = Device(step_us * 1e-6)
            speculator = Speculator(SuffixDrafter(), 15)
            speculator.calibrate(device.seconds)
            gains, rounds = [], []
            for _ in range(asked.answers):
                plain_s = answer_s(device, text, asked.tokens, None)
                gains.append(plain_s / answer_s(device, text, asked.tokens, speculator))
                rounds.append(speculator.record.rounds)
            shown = " ".join(f"{gain:.2f}" for gain in gains)
            table.print([f"{step_us:g}", name, shown, " ".join(map(str, rounds))])


if __name__ == "__main__":
    main()
