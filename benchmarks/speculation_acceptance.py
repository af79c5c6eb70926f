"""How often drafts are accepted by the two exact ways to verify: `python benchmarks/speculation_acceptance.py`.

For pairs of distributions, target p and drafter q, at several total variation distances. `optimum` is 1 - TV =
sum(min(p, q)), which rejection sampling reaches. `match` is sample-and-match with the drafter sampling by the same
noise as the target (the product: the text then depends on neither drafter nor draft); `match, own noise` is the same
with noise of the drafter's own; `match, greedy` with a drafter that always takes its most probable token. The bound of
shared noise is sum over x of 1 / sum over y of max(p(y)/p(x), q(y)/q(x)), at least (1 - TV) / (1 + TV).
"""

from __future__ import annotations

import argparse

import numpy as np
from arguments import positive

from runner.sampling import gumbel
from runner.speculative.rejection import Probabilities, drafted, optimum, verified


def softmax(logits: Probabilities) -> Probabilities:
    weights = np.exp(logits - logits.max())
    return np.asarray(weights / weights.sum())


def pair(spread: float, shift: float, vocab_size: int, seed: int) -> tuple[Probabilities, Probabilities]:
    """A target with logits of standard deviation `spread`, and a drafter whose logits differ by `shift`."""
    draw = np.random.default_rng(seed)
    logits = draw.normal(0, spread, vocab_size)
    return softmax(logits), softmax(logits + draw.normal(0, shift, vocab_size))


def shared_noise(p: Probabilities, q: Probabilities) -> float:
    """The probability that argmax(log p + G) and argmax(log q + G) are one token, exactly."""
    return float(sum(1 / np.maximum(p / p[x], q / q[x]).sum() for x in range(len(p))))


def accepted_by_match(p: Probabilities, q: Probabilities, n: int, is_shared: bool) -> float:
    ids = np.arange(len(p))
    own = 0 if is_shared else 1 << 30
    with np.errstate(divide="ignore"):
        log_p, log_q = np.log(p), np.log(q)
    same = 0
    for position in range(n):
        noise = gumbel(1, position, ids)
        other = noise if is_shared else gumbel(1, position, ids + own)
        same += int((log_p + noise).argmax() == (log_q + other).argmax())
    return same / n


def accepted_by_rejection(p: Probabilities, q: Probabilities, n: int) -> float:
    rows = [verified([drafted(q, 1, i)], [p, p], [q], 1, i).n_accepted for i in range(n)]
    return sum(rows) / n


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", type=positive, default=4000, help="samples of each pair")
    parser.add_argument("--vocab", type=positive, default=200)
    args = parser.parse_args()
    columns = ("TV", "optimum", "rejection", "match", "its bound", "own noise", "greedy")
    print(f"{'target':>7} {'drafter':>8} " + " ".join(f"{name:>9}" for name in columns))
    for spread in (1.0, 3.0, 6.0):
        for shift in (0.0, 0.25, 0.5, 1.0, 2.0, 4.0):
            p, q = pair(spread, shift, args.vocab, 3)
            best = optimum(p, q)
            values = (
                1 - best,
                best,
                accepted_by_rejection(p, q, args.n),
                accepted_by_match(p, q, args.n, True),
                shared_noise(p, q),
                accepted_by_match(p, q, args.n, False),
                float(p[q.argmax()]),
            )
            print(f"{spread:7} {shift:8} " + " ".join(f"{value:9.3f}" for value in values), flush=True)


if __name__ == "__main__":
    main()
