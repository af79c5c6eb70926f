"""What speculation gains and loses where plain steps begin early, on the real clock of this host.

    python benchmarks/speculation_early.py [--step-us 40 80 150] [--answers 7] [--tokens 400]
    python benchmarks/speculation_early.py --genres [--step-us 90 1550] [--answers 4]

The device is a wait: steps of several tokens take as many times as long as one of one token as the demo's do on an H200
or, from 1 ms on, those of Llama-3.1-8B; drafts are the host's, or each step's own (rounds.Stretch), of the text alone.
The decode loop, the speculator and the suffix drafter are the product's, and take the time that they take here; a host
that is n times as slow beside its device is a step that is an nth as long. Each answer is written with and without
speculation, in turn, by one speculator that remembers the answers before: so a text at random is known to the host from
the second answer on. --genres writes the reference answers of the bench's genres instead, each by a drafter that has
not seen it, in the demo's tokens. Run it on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import itertools
import random
import time
from collections import deque
from collections.abc import Iterator, Sequence

import torch
from arguments import positive
from records import Table
from tokenizers import Tokenizer

from runner.backends.native.decode_loop import STRIDES
from runner.bench.genre_texts import genre_prompts
from runner.bench.record import Genre
from runner.bench.request import GENRES
from runner.config import SamplingParams
from runner.kernels.repeats import draft_repeats_ref
from runner.paths import builtin
from runner.speculative.rounds import Stride, decode
from runner.speculative.speculator import Speculator
from runner.speculative.suffix import SuffixDrafter

_SMALL, _LARGE = {1: 1.0, 4: 1.13, 8: 1.17, 16: 1.35}, {1: 1.0, 4: 1.16, 8: 1.22, 16: 1.75}
_LAUNCH, _VERIFYING, _CALLER = 0.15, 0.3, 0.05  # of a step: the host's part of one, of a verifying one, a token's use
_LARGE_S = 1e-3
_N_PROMPT, _VOCABULARY = 100, 50_000
_GREEDY = SamplingParams(temperature=0.0)


def wait(until: float) -> None:
    """Until that time of the clock, without giving up the processor: a device's clock is finer than a sleep."""
    while time.perf_counter() < until:
        pass


class Text:
    """What is written after a prompt, and what a device would draft at each place of it, found beforehand."""

    def __init__(self, ids: Sequence[int], n_prompt: int) -> None:
        self.ids, self.n_prompt = ids, n_prompt
        self._strides = {(at, n): self._found(at, n) for n in (0, *STRIDES) for at in range(n_prompt, len(ids))}

    def stride(self, at: int, n_drafted: int) -> Stride:
        return self._strides[at, n_drafted] if at + n_drafted < len(self.ids) else self._strides[at, 0]

    def _found(self, at: int, n_drafted: int) -> Stride:
        text = torch.tensor(self.ids[:at])
        tokens = torch.zeros(1 + n_drafted, dtype=torch.int64)
        draft_repeats_ref(text, torch.tensor([0]), torch.tensor([at - 1]), tokens, n_drafted)
        draft = tuple(tokens[1:].tolist())
        coming = self.ids[at : at + n_drafted + 1]
        n_right = next((i for i, (a, b) in enumerate(zip(draft, coming, strict=False)) if a != b), n_drafted)
        return Stride(tuple(coming[: n_right + 1]), draft)


class Device:
    """Works on one step after the other. step_s: seconds of one of one token. drafts: its steps can by themselves."""

    def __init__(self, step_s: float, *, drafts: bool) -> None:
        self.step_s = step_s
        self.drafts = drafts
        self._free_at = 0.0

    def seconds(self, n_tokens: int) -> float:
        ratios = _SMALL if self.step_s < _LARGE_S else _LARGE
        return self.step_s * next(ratio for n, ratio in ratios.items() if n >= n_tokens)

    def at_load_s(self, n_tokens: int) -> float:
        """What a step takes as it is measured at load: waited for, but where steps draft by themselves."""
        if self.drafts:
            return self.seconds(n_tokens)
        return self.seconds(n_tokens) + (_LAUNCH if n_tokens == 1 else _VERIFYING) * self.step_s

    def begin(self, n_tokens: int, launch: float) -> float:
        """Launch a step, which takes the host `launch` steps; gives the time at which it will be over."""
        wait(time.perf_counter() + launch * self.step_s)
        self._free_at = max(self._free_at, time.perf_counter()) + self.seconds(n_tokens)
        return self._free_at


class Stretch:
    """See speculative.rounds.Stretch."""

    def __init__(self, device: Device, text: Text, position: int) -> None:
        self._device, self._text, self._position = device, text, position
        self._begun: deque[tuple[float, Stride]] = deque()
        self._n_rows = 1
        self._is_finishing = False

    def __iter__(self) -> Iterator[Stride]:
        return self

    def __next__(self) -> Stride:
        self.begin()
        if not self._begun:
            raise StopIteration
        until, stride = self._begun.popleft()
        wait(until)
        return stride

    def begin(self) -> None:
        while len(self._begun) < 2 and not self._is_finishing and self._position < len(self._text.ids):
            stride = self._text.stride(self._position, self._n_rows - 1)
            self._position += len(stride.tokens)
            self._begun.append((self._device.begin(self._n_rows, _LAUNCH), stride))

    @property
    def lengths(self) -> Sequence[int]:
        return STRIDES if self._device.drafts else ()

    def draft(self, n_tokens: int, _history: Sequence[int]) -> None:
        self._n_rows = 1 + n_tokens

    def finish(self) -> None:
        self._is_finishing = True

    def close(self) -> None:
        while self._begun:
            wait(self._begun.popleft()[0])


class Writer:
    """A target that writes a text whatever is asked of it; see speculative.rounds.Target and Pipelined."""

    overlaps = True

    def __init__(self, device: Device, text: Text) -> None:
        self.n_ctx, self.vocab_size = len(text.ids), _VOCABULARY
        self._device, self._text = device, text

    def choices(self, draft: Sequence[int], _params: SamplingParams, history: Sequence[int]) -> Iterator[int]:
        until = self._device.begin(len(draft) + 1, _VERIFYING)
        return self._read(until, self._text.ids[len(history) : len(history) + len(draft) + 1])

    def _read(self, until: float, tokens: Sequence[int]) -> Iterator[int]:
        wait(until)
        yield from tokens

    def stretch(self, _params: SamplingParams, history: Sequence[int]) -> Stretch:
        return Stretch(self._device, self._text, len(history))

    def keep(self, length: int) -> None:
        pass


def answer_s(device: Device, text: Text, n_tokens: int, speculator: Speculator | None) -> float:
    """Seconds for so many tokens after the text's prompt."""
    history = list(text.ids[: text.n_prompt])
    if speculator is not None:
        speculator.begin(history)
    began = time.perf_counter()
    emitted = decode(Writer(device, text), _GREEDY, history, speculator)
    for _ in itertools.islice(emitted, n_tokens):
        wait(time.perf_counter() + _CALLER * device.step_s)
    elapsed = time.perf_counter() - began
    emitted.close()
    return elapsed


def texts(n_tokens: int) -> dict[str, Text]:
    """One that repeats 40 tokens, one that repeats 20 between 20 others, one at random."""
    draw = random.Random(0)

    def noise(count: int) -> list[int]:
        return [draw.randrange(_VOCABULARY) for _ in range(count)]

    length = 2 * n_tokens + _N_PROMPT
    period, half = noise(40), noise(20)
    return {
        "repeats": Text((period * length)[:length], _N_PROMPT),
        "half of it repeats": Text(
            [token for _ in range(length // 40 + 1) for token in (*half, *noise(20))][:length], _N_PROMPT
        ),
        "random": Text(noise(length), _N_PROMPT),
    }


def genre_texts(genre: Genre) -> list[Text]:
    """The reference answers of a genre behind their prompts."""
    tokenizer = Tokenizer.from_file(str(builtin("models/demo/tokenizer.json")))
    found = []
    for prompt in genre_prompts(genre):
        asked, answer = (tokenizer.encode(part, add_special_tokens=False).ids for part in (prompt.ask, prompt.answer))
        found.append(Text([*asked, *answer], len(asked)))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--genres", action="store_true")
    parser.add_argument("--step-us", type=float, nargs="+")
    parser.add_argument("--answers", type=positive)
    parser.add_argument("--tokens", type=positive, default=400)
    asked = parser.parse_args()
    columns = ["step us", "drafts", "text              ", "gain of each answer               ", "rounds that verified"]
    table = Table(columns)
    if asked.genres:
        written = {genre: genre_texts(genre) for genre in GENRES}
        steps_us, n_answers = asked.step_us or [90.0, 1550.0], asked.answers or 4
    else:
        written = {name: [text] for name, text in texts(asked.tokens).items()}
        steps_us, n_answers = asked.step_us or [40.0, 80.0, 150.0], asked.answers or 7
    for step_us, drafts in itertools.product(steps_us, (True, False)):
        device = Device(step_us * 1e-6, drafts=drafts)
        speculator = Speculator(SuffixDrafter(), 15)
        speculator.calibrate(device.at_load_s)
        for name, members in written.items():
            if not asked.genres:
                speculator = Speculator(SuffixDrafter(), 15)
                speculator.calibrate(device.at_load_s)
            gains, rounds = _both_ways(device, speculator, members, n_answers, None if asked.genres else asked.tokens)
            shown = " ".join(f"{gain:.2f}" for gain in gains)
            table.print([f"{step_us:g}", "device" if drafts else "host", name, shown, " ".join(map(str, rounds))])


def _both_ways(
    device: Device, speculator: Speculator, members: Sequence[Text], n_answers: int, n_tokens: int | None
) -> tuple[list[float], list[int]]:
    """Of each pass over the texts the gain, and the rounds that verified a draft.

    n_tokens: of each text; None for all of it, by a drafter that has not seen it.
    """
    gains, rounds = [], []
    for _ in range(n_answers):
        plain_s = drafted_s = 0.0
        n_rounds = 0
        for text in members:
            count = n_tokens or len(text.ids) - text.n_prompt - 1
            plain_s += answer_s(device, text, count, None)
            if n_tokens is None:
                speculator.drafter.close()
            drafted_s += answer_s(device, text, count, speculator)
            n_rounds += speculator.record.rounds
        gains.append(plain_s / drafted_s)
        rounds.append(n_rounds)
    return gains, rounds


if __name__ == "__main__":
    main()
