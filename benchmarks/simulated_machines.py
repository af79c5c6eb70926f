"""Machines on a simulated clock: a target and a drafter that take their time, under the product's loop and controller.

What a text is and how well it is guessed comes as a trace. It measures nothing by itself: see speculation_controller.py
and speculation_adversity.py.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from runner.config import SamplingParams
from runner.speculative.control import Control
from runner.speculative.controller import Controller
from runner.speculative.drafter import Draft, Drafter, DrafterName, Gate
from runner.speculative.record import Round
from runner.speculative.rounds import Stride, decode
from runner.speculative.speculator import Speculator

DRAFT_MAX = 15
PLAIN_S = 2e-3
_HELD_UP_S = 0.4
RIGHT, WRONG = 1, 2  # the text is one token again and again: only whether a guess is right matters
N_BUCKETS = 3


@dataclass(frozen=True)
class Machine:
    """t(M) in plain steps of an empty context that are waited for, and what drafting costs: a call, and each token.

    draft_grows_at: the part of the text after which drafting takes ten times as long. unseen: what a step is longer by
    after the drafter was asked, which no clock around the drafter sees (it left the processor's caches cold). deciding:
    what learning of an asked round takes. deepens: what each token of a step costs more at a position 1000 further on.
    noise: the relative spread of every duration. stall: how often one takes ten times as long. plain_at_load: how many
    times as long as it is t(1) seems at load. held_up_at_load: for how many tokens a step takes 0.4 s there.

    host: what of t(M) is the host's, where plain steps begin before the one before them is over: its work is hidden
    behind the device then. None: every step is waited for. caller: what is done with each token that is emitted.
    """

    name: str
    t: dict[int, float]
    draft_call: float = 0.0
    draft_token: float = 0.0
    draft_grows_at: float = 1.0
    unseen: float = 0.0
    deciding: float = 0.0
    deepens: float = 0.0
    noise: float = 0.0
    stall: float = 0.0
    plain_at_load: float = 1.0
    held_up_at_load: int = 0
    host: float | None = None
    caller: float = 0.0

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


class World:
    """A clock, and a target and a drafter that take their time by it.

    spent: plain steps that went by, without the noise that the clock shows.
    """

    def __init__(self, trace: Trace, machine: Machine, seed: int) -> None:
        self.vocab_size = 3
        self.now = self.spent = 0.0
        self._busy_until = (0.0, 0.0)  # the device, as now and as spent
        self._was_asked = False
        self._timed: list[int] = []
        self._machine = machine
        self._draw = random.Random(seed)
        self.begin(trace)

    def begin(self, trace: Trace) -> None:
        """The next text is this one."""
        self._trace = trace
        self.n_ctx = len(trace.right) + 1

    def clock(self) -> float:
        return self.now

    # --- time --------------------------------------------------------------------------------------------------------

    def work(self, steps: float) -> None:
        """The host works so long."""
        self.spent += steps
        self.now += self._seconds(steps)

    def start(self, steps: float) -> tuple[float, float]:
        """The device goes on for so long after what it does; gives when it is done."""
        now, spent = self._busy_until
        self._busy_until = (max(now, self.now) + self._seconds(steps), max(spent, self.spent) + steps)
        return self._busy_until

    def wait(self, until: tuple[float, float]) -> None:
        self.now, self.spent = max(self.now, until[0]), max(self.spent, until[1])

    def _seconds(self, steps: float) -> float:
        noise = self._machine.noise
        if self._draw.random() < self._machine.stall:
            steps *= 10
        return PLAIN_S * steps * self._draw.lognormvariate(-noise * noise / 2, noise)

    # --- the target --------------------------------------------------------------------------------------------------

    def choices(self, draft: Sequence[int], params: SamplingParams, history: Sequence[int]) -> Iterator[int]:
        del params
        step = self.step(len(draft) + 1, len(history))
        if self._machine.host is None:
            self.work(step)
            return iter([RIGHT] * (len(draft) + 1))
        self.work(self._machine.host)
        return self._read(self.start(step - self._machine.host), len(draft) + 1)

    def _read(self, until: tuple[float, float], n_tokens: int) -> Iterator[int]:
        self.wait(until)
        yield from [RIGHT] * n_tokens

    @property
    def overlaps(self) -> bool:
        return self._machine.host is not None

    def stretch(self, params: SamplingParams, history: Sequence[int]) -> _Ahead | None:
        del params
        return None if self._machine.host is None else _Ahead(self, self._machine.host, len(history))

    def step(self, n_tokens: int, position: int) -> float:
        """What one takes now."""
        unseen = self._machine.unseen if self._was_asked else 0.0
        self._was_asked = False
        return self._machine.step(n_tokens, position) + unseen

    def keep(self, length: int) -> None:
        pass

    def step_s(self, n_tokens: int) -> float:
        seems = self._machine.plain_at_load if n_tokens == 1 else 1.0
        self._timed.append(n_tokens)
        if n_tokens == self._machine.held_up_at_load and self._timed.count(n_tokens) == 2:  # the first only warms up
            return _HELD_UP_S
        return seems * self._seconds(self._machine.step(n_tokens))

    # --- the drafter -------------------------------------------------------------------------------------------------

    def propose(self, history: Sequence[int], gate: Gate) -> Draft:
        machine, trace = self._machine, self._trace
        factor = 10 if len(history) > machine.draft_grows_at * len(trace.right) else 1
        if not machine.is_host_only:
            self.wait(self._busy_until)  # for the device that it shares
        began = self.spent
        self.work(machine.draft_call * factor)
        tokens: list[int] = []
        buckets: list[int] = []
        for position in range(len(history) - 1, len(trace.right)):
            bucket = trace.buckets[position]
            if bucket is None or not gate.is_open:
                break
            self.work(machine.draft_token * factor)
            if not gate.admits(bucket):
                break
            tokens.append(RIGHT if trace.right[position] else WRONG)
            buckets.append(bucket)
        self._was_asked = self.spent > began
        return Draft(tuple(tokens), tuple(buckets))


class _Ahead:
    """Plain tokens, each step begun before the token before it is taken; see speculative.rounds.Stretch."""

    def __init__(self, world: World, host: float, position: int) -> None:
        self._world, self._host, self._position = world, host, position
        self._begun: deque[tuple[float, float]] = deque()
        self._is_finishing = False

    lengths = ()  # who plays it does not quote

    def __iter__(self) -> _Ahead:
        return self

    def __next__(self) -> Stride:
        self.begin()
        if not self._begun:
            raise StopIteration
        self._world.wait(self._begun.popleft())
        return Stride((RIGHT,))

    def begin(self) -> None:
        world = self._world
        while len(self._begun) < 2 and not self._is_finishing and self._position < world.n_ctx:
            world.work(self._host)
            self._begun.append(world.start(world.step(1, self._position) - self._host))
            self._position += 1

    def draft(self, n_tokens: int, _history: Sequence[int]) -> None:
        assert not n_tokens

    def finish(self) -> None:
        self._is_finishing = True

    def close(self) -> None:
        self._begun.clear()


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


class Deciding(Controller):
    """The controller, which takes the world's time for what it learns."""

    def __init__(self, drafter: Drafter, world: World, deciding: float) -> None:
        super().__init__(drafter, DRAFT_MAX, world.clock)
        self._world, self._deciding = world, deciding

    def learn(self, done: Round) -> Callable[[float], None]:
        learn = super().learn(done)

        def work(own_s: float) -> None:
            learn(own_s)
            self._world.work(self._deciding)

        return work if self._deciding else learn


def speculate(
    world: World, machine: Machine, control: Control | None = None, *, is_calibrated: bool = True
) -> Speculator:
    """A speculator for the target and the drafter of that world."""
    drafter = Playing(world, machine.is_host_only)
    control = control or Deciding(drafter, world, machine.deciding)
    speculator = Speculator(drafter, DRAFT_MAX, control=control, clock=world.clock)
    if is_calibrated:
        speculator.calibrate(world.step_s)
    return speculator


def answer(world: World, machine: Machine, speculator: Speculator) -> float:
    """Decode the text of the world's trace once; gives the gain over plain decoding."""
    speculator.begin()
    began = world.spent
    n = _decode(world, machine, speculator)
    return plain(machine, n) / (world.spent - began)


def plain(machine: Machine, n: int) -> float:
    """What n plain steps take."""
    world = World(Trace("plain", (False,) * n, (None,) * n), machine, 0)
    _decode(world, machine, None)
    return world.spent


def _decode(world: World, machine: Machine, speculator: Speculator | None) -> int:
    n = 0
    for _ in decode(world, SamplingParams(temperature=0), [0], speculator, world.clock):
        n += 1
        if machine.caller:
            world.work(machine.caller)
    return n


def play(trace: Trace, machine: Machine, seed: int = 0, control: Control | None = None) -> tuple[float, Speculator]:
    """The gain of a first answer after the load, and the speculator."""
    world = World(trace, machine, seed)
    speculator = speculate(world, machine, control)
    return answer(world, machine, speculator), speculator
