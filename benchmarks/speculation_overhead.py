"""What a look for drafts costs the host: `python benchmarks/speculation_overhead.py` prints microseconds a plain token.

The controller and the drafters are the product's, the target is none: its steps are said to take --step-ms each. A row
is a drafter and a length of history. `look` is a token for which the drafter was asked: asking and learning of it, the
median. `other` is one for which it was not, `all` the mean of all tokens, `asked` the share that it was asked for: a
long step pays for a look at each token, a short one does not. `nothing` is a drafter that never guesses, `suffix` the
suffix drafter on text at random, where it says itself that there is nothing to ask for, and `suffix, wrong` on text of
which two tokens of five repeat something that never goes on as it did. `stride` is for steps that draft by themselves,
one in three of which does: `look` of one that drafted, learning of it and the wish for a later one, `other` of one that
did not. `loop` is what the decode loop takes for a token that begins early, without a speculator and with the first.
Times are by the clock; behind a real step caches are cold, and all takes several times as long.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from random import Random

from arguments import positive

from runner.backends.native.decode_loop import STRIDES
from runner.config import LONGEST_DRAFT, SamplingParams
from runner.speculative.drafter import NO_DRAFT, Draft, Drafter, DrafterName, Gate
from runner.speculative.history import ReadOnly
from runner.speculative.record import Round
from runner.speculative.rounds import Stride, decode
from runner.speculative.speculator import Speculator
from runner.speculative.suffix import SuffixDrafter

PARAMS = SamplingParams(temperature=0)
VOCABULARY = 30_000


class Nothing(Drafter):
    """Guesses nothing."""

    name: DrafterName = "scripted"
    n_buckets = 1
    is_host_only = True
    nbytes = 0

    def propose(self, history: Sequence[int], params: SamplingParams, gate: Gate) -> Draft:
        del history, params, gate
        return NO_DRAFT

    def close(self) -> None:
        pass


def noise(n: int) -> list[int]:
    draw = Random(0)
    return [draw.randrange(VOCABULARY) for _ in range(n)]


def wrong(n: int) -> list[int]:
    """Four tokens of one phrase, then another one each time: matches of four that never go on as they did."""
    return [8 + i % 5 if i % 5 < 4 else 100 + i for i in range(n)]


TEXTS: dict[str, tuple[Callable[[], Drafter], Callable[[int], list[int]]]] = {
    "nothing": (Nothing, noise),
    "suffix": (SuffixDrafter, noise),
    "suffix, wrong": (SuffixDrafter, wrong),
}


class Asked(Drafter):
    """Notes that a drafter was asked."""

    is_host_only = True
    nbytes = 0

    def __init__(self, drafter: Drafter) -> None:
        self.name, self.n_buckets = drafter.name, drafter.n_buckets
        self._drafter = drafter
        self.is_asked = False

    def may_guess(self, history: Sequence[int]) -> bool:
        return self._drafter.may_guess(history)

    def propose(self, history: Sequence[int], params: SamplingParams, gate: Gate) -> Draft:
        self.is_asked = True
        return self._drafter.propose(history, params, gate)

    def close(self) -> None:
        self._drafter.close()


def looks(name: str, n_history: int, n_tokens: int, step_s: float) -> tuple[list[float], list[float]]:
    """Microseconds of tokens that the drafter was asked for, and of the others; drafts are dropped as if too late."""
    drafter, text = TEXTS[name]
    asked = Asked(drafter())
    tokens = text(n_history + n_tokens)
    history = tokens[:n_history]
    shown = ReadOnly(history)
    speculator = Speculator(asked, LONGEST_DRAFT)
    speculator.calibrate(lambda n: step_s * (1 + 0.05 * (n - 1)))
    speculator.begin(history)
    with_look: list[float] = []
    without: list[float] = []
    for token in tokens[n_history:]:
        asked.is_asked = False
        began = time.perf_counter()
        speculator.draft(shown, PARAMS, LONGEST_DRAFT, 10**6)
        speculator.learn(Round(NO_DRAFT, 0, (token,), 0.0, step_s, 0.0))
        elapsed = 1e6 * (time.perf_counter() - began)
        (with_look if asked.is_asked else without).append(elapsed)
        history.append(token)
    return with_look, without


def strides(n_history: int, n_tokens: int, step_s: float) -> tuple[list[float], list[float]]:
    """Microseconds of steps that drafted seven tokens by themselves, and of such as did not."""
    text, draw = noise(n_history + 8 * n_tokens), Random(1)
    history = text[:n_history]
    speculator = Speculator(SuffixDrafter(), LONGEST_DRAFT)
    speculator.calibrate(lambda n: step_s * (1 + 0.05 * (n - 1)))
    shown = ReadOnly(history)
    speculator.begin(history)
    kind = speculator.wish(shown, STRIDES).kind
    drafted: list[float] = []
    plain: list[float] = []
    for n in range(n_tokens):
        n_right = draw.choice((0, 0, 1, 2, 7)) if n % 3 == 0 else 0
        tokens = tuple(text[len(history) : len(history) + n_right + 1])
        draft = Draft((*tokens[:n_right], *[0] * (7 - n_right)), (kind,) * 7) if n % 3 == 0 else NO_DRAFT
        done = Round(draft, n_right, tokens, 0.0, step_s * (1.35 if draft else 1), 0.0, is_ahead=True, overlaps=True)
        began = time.perf_counter()
        speculator.learn_stride(done)
        elapsed = time.perf_counter() - began
        history += tokens
        began = time.perf_counter()
        kind = speculator.wish(shown, STRIDES).kind
        (drafted if draft else plain).append(1e6 * (elapsed + time.perf_counter() - began))
    return drafted, plain


class Instant:
    """A target of which every token is there at once, and each step is said to have taken a while."""

    vocab_size = VOCABULARY
    overlaps = True

    def __init__(self, n_ctx: int, step_s: float) -> None:
        self.n_ctx = n_ctx
        self._step_s = step_s
        self._passed_s = 0.0

    def clock(self) -> float:
        return time.perf_counter() + self._passed_s

    def choices(self, draft: Sequence[int], params: SamplingParams, history: Sequence[int]) -> Iterator[int]:
        del draft, params, history
        raise AssertionError("nothing is drafted")

    def stretch(self, params: SamplingParams, history: Sequence[int]) -> Tokens:
        del params
        return Tokens(self, self.n_ctx - len(history))

    def keep(self, length: int) -> None:
        pass

    def pass_step(self) -> None:
        self._passed_s += self._step_s


class Tokens:
    """So many, one after the other."""

    def __init__(self, target: Instant, n: int) -> None:
        self._target = target
        self._left = iter(range(n))

    lengths = ()

    def __iter__(self) -> Tokens:
        return self

    def __next__(self) -> Stride:
        self._target.pass_step()
        return Stride((next(self._left),))

    def draft(self, n_tokens: int, _history: Sequence[int]) -> None:
        assert not n_tokens

    def begin(self) -> None:
        pass

    def finish(self) -> None:
        pass

    def close(self) -> None:
        pass


def loop_us(n_tokens: int, step_s: float, speculator: Speculator | None) -> float:
    """Microseconds a token of the whole loop."""
    target = Instant(n_tokens + 1, step_s)
    if speculator is not None:
        speculator.calibrate(lambda n: step_s * (1 + 0.05 * (n - 1)))
        speculator.begin()
    began = time.perf_counter()
    for _ in zip(decode(target, PARAMS, [0], speculator, target.clock), count(), strict=False):
        pass
    return 1e6 * (time.perf_counter() - began) / n_tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--history", type=int, nargs="+", default=[512, 2048, 8192])
    parser.add_argument("--step-ms", type=float, nargs="+", default=[0.16, 10.0])
    parser.add_argument("--tokens", type=positive, default=4096)
    asked = parser.parse_args()
    print(f"{'step ms':>8} {'drafter':14} {'history':>8} {'look':>7} {'other':>7} {'all':>7} {'asked':>7}")
    for step_ms in asked.step_ms:
        for name in TEXTS:
            for n_history in asked.history:
                with_look, without = looks(name, n_history, asked.tokens, 1e-3 * step_ms)
                every = statistics.fmean(with_look + without)
                print(
                    f"{step_ms:8g} {name:14} {n_history:8} {_median(with_look)} {_median(without)} {every:7.2f} "
                    f"{len(with_look) / asked.tokens:7.1%}",
                    flush=True,
                )
        for n_history in asked.history:
            drafted, plain = strides(n_history, asked.tokens, 1e-3 * step_ms)
            every = statistics.fmean(drafted + plain)
            print(
                f"{step_ms:8g} {'stride':14} {n_history:8} {_median(drafted)} {_median(plain)} {every:7.2f}", flush=True
            )
        for name, speculator in (("loop alone", None), ("loop, nothing", Speculator(Nothing(), LONGEST_DRAFT))):
            least = min(loop_us(asked.tokens, 1e-3 * step_ms, speculator) for _ in range(5))
            print(f"{step_ms:8g} {name:14} {'':8} {'':7} {'':7} {least:7.2f}", flush=True)


def _median(microseconds: Sequence[float]) -> str:
    return f"{statistics.median(microseconds):7.2f}" if microseconds else f"{'':7}"


if __name__ == "__main__":
    main()
