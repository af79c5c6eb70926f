"""What the native path's own verify step costs, and what drafts of known length bring: t(M), tokens/s, host share, ids.

    python benchmarks/speculation_gpu.py                              # Llama-3.1-8B's shape, random weights, on a GPU
    python benchmarks/speculation_gpu.py --draft none                 # without a draft model
    python benchmarks/speculation_gpu.py --shape demo --layers 1      # anywhere: in float32 without a GPU

t(M) is Backend.step_s: M rows, a token chosen after each on the device, their ids on the host. Decoding goes through
Backend.generate. "in vain" looks as the suffix drafter does, with the real controller, and finds none: it is to
be as fast as "plain". The others verify every draft of k tokens, of which so many are right, in turn; those of "model"
take the time in which a draft model of another shape writes k tokens. "copy" drafts with the same weights, which must
always be right. The ids of all ways are those of "plain", or the program ends with 1. "host" is the share of the time
in which the device waits.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import timing
from arguments import positive
from generation import device_step_s, prompt
from model_drafts import InItsTime, show_drafts
from random_models import RECIPE_NAMES, about_bytes, ready, write_directory
from records import Report, Table, add_arguments, origin, require_gpu, say
from scripted_drafts import Guess, ScriptedDrafter
from shapes import SHAPES, config_of
from workplace import workplace

from runner.backends.base import Prefill
from runner.backends.native import load
from runner.backends.native.backend import NativeBackend
from runner.backends.native.fused_execution import FusedExecution
from runner.config import LoadOptions, SamplingParams
from runner.kernels.values import MOST_ROWS
from runner.speculative.control import EagerController
from runner.speculative.drafter import NO_DRAFT, Draft, Drafter, Gate
from runner.speculative.model_drafter import ModelDrafter
from runner.speculative.speculator import Speculator
from runner.speculative.suffix import SuffixDrafter
from runner.types import CancelToken

SAMPLINGS = {"greedy": SamplingParams(temperature=0, seed=0), "sampled": SamplingParams(temperature=0.8, seed=7)}
# By name: tokens of a draft, and how many of them are right, in turn.
TRACES = {
    "3, all right": (3, (3,)),
    "7, all right": (7, (7,)),
    "7, some right": (7, (7, 2, 0, 4, 1)),
    "15, all right": (15, (15,)),
    "3, none right": (3, (0,)),
}
MODEL_TRACES = {
    "model: 3, all right": (3, (3,)),
    "model: 5, some right": (5, (5, 2, 0, 4, 3)),
    "model: 3, none right": (3, (0,)),
}
_COPY = "copy: 3"


class InVain(Drafter):
    """Looks for drafts as the suffix drafter does, and finds none."""

    name = "scripted"
    n_buckets = 1
    is_host_only = True
    nbytes = 0

    def __init__(self) -> None:
        self._suffixes = SuffixDrafter()

    def may_guess(self, history: Sequence[int]) -> bool:
        return self._suffixes.may_guess(history)

    def propose(self, history: Sequence[int], params: SamplingParams, gate: Gate) -> Draft:
        self._suffixes.propose(history, params, gate)
        return NO_DRAFT

    def close(self) -> None:
        self._suffixes.close()


@dataclass(kw_only=True)
class Way:
    """One way of decoding. begin: a new speculator for a text that will be `tokens`."""

    name: str
    begin: Callable[[Sequence[int], int], Speculator | None]
    tok_s: list[float] = field(default_factory=list)
    ids: set[tuple[int, ...]] = field(default_factory=set)
    draft_s: float = 0.0
    acceptance_rate: float | None = None


def ways(backend: NativeBackend, draft: NativeBackend | None, copy: NativeBackend | None) -> Iterator[Way]:
    yield Way(name="plain", begin=lambda _tokens, _n_prompt: None)

    in_vain = Speculator(InVain(), backend.info.longest_draft)
    in_vain.calibrate(backend.step_s)
    yield Way(name="in vain", begin=lambda _tokens, _n_prompt: in_vain)
    for name, (k, rights) in TRACES.items():
        if k <= backend.info.longest_draft:
            yield Way(name=name, begin=_scripted(k, rights, backend.info.vocab_size, None))
    for name, (k, rights) in MODEL_TRACES.items() if draft is not None else ():
        yield Way(name=name, begin=_scripted(k, rights, backend.info.vocab_size, ModelDrafter(draft)))
    if copy is not None:
        drafter = ModelDrafter(copy, "self")
        yield Way(name=_COPY, begin=lambda _tokens, _n_prompt: Speculator(drafter, 3, control=EagerController(3)))


def _scripted(
    k: int, rights: tuple[int, ...], vocab_size: int, model: ModelDrafter | None
) -> Callable[[Sequence[int], int], Speculator]:
    """model: in whose time they are drafted; None: in none."""

    def begin(tokens: Sequence[int], n_prompt: int) -> Speculator:
        turns = itertools.cycle(rights)
        script = ScriptedDrafter(lambda _done: Guess((0,) * k, next(turns)), 1, vocab_size)
        script.follow(tokens, n_prompt)
        drafter = script if model is None else InItsTime(model, script)
        return Speculator(drafter, k, control=EagerController(k))

    return begin


def written(
    backend: NativeBackend, ids: Sequence[int], params: SamplingParams, n_tokens: int, speculator: Speculator | None
) -> tuple[tuple[int, ...], float]:
    """n_tokens + 1 tokens after `ids`, and the rate of all but the first."""
    if speculator is not None:
        speculator.begin(ids)
    tokens: list[int] = []
    started = 0.0
    steps = backend.generate(ids, params, CancelToken(), speculator)
    for step in steps:
        if isinstance(step, Prefill):
            continue
        tokens.append(step.token)
        if len(tokens) == 1:
            started = time.perf_counter()
        if len(tokens) == n_tokens + 1:
            break
    elapsed = time.perf_counter() - started
    steps.close()
    return tuple(tokens), n_tokens / elapsed


def measure_ways(
    backend: NativeBackend,
    draft: NativeBackend | None,
    copy: NativeBackend | None,
    params: SamplingParams,
    depth: int,
    n_tokens: int,
    repetitions: int,
) -> list[Way]:
    """All ways in turn, so often; the run before those that count records graphs, and fills the prefix that they
    share."""
    found = list(ways(backend, draft, copy))
    ids = prompt(depth, backend.info.vocab_size, seed=1)
    text, _ = written(backend, ids, params, n_tokens, None)
    text, _ = written(backend, ids, params, n_tokens, None)  # after a prefix that is cached, as all that follow
    for repetition in range(repetitions + 1):
        for way in found:
            speculator = way.begin(text, len(ids))
            tokens, rate = written(backend, ids, params, n_tokens, speculator)
            way.ids.add(tokens)
            if repetition:
                way.tok_s.append(rate)
                if speculator is not None and (record := speculator.record).rounds:
                    way.draft_s, way.acceptance_rate = record.draft_s / record.rounds, record.acceptance_rate
    for way in found:
        way.ids.add(text)
    return found


def show_steps(backend: NativeBackend, repetitions: int, report: Report, about: dict[str, Any]) -> None:
    table = Table(["M ", "t(M) ms ", "t(M)/t(1)"])
    alone = 0.0
    for n_rows in range(1, MOST_ROWS + 1):
        step_ms = 1e3 * statistics.median(backend.step_s(n_rows) for _ in range(2 * repetitions + 1))
        alone = alone or step_ms
        table.print([str(n_rows), f"{step_ms:.3f}", f"{step_ms / alone:.2f}"])
        report.add({**about, "test": f"t({n_rows})", "unit": "ms", "median": step_ms, "ratio": step_ms / alone})
    print(flush=True)


def show_ways(found: list[Way], step_s: float | None, report: Report, about: dict[str, Any]) -> bool:
    """Whether all wrote the same ids, and the copy was right."""
    table = Table(
        ["sampling", "way                 ", "tok/s  ", "of plain", "draft ms", "accepted", "host  ", "ids      "]
    )
    plain = statistics.median(found[0].tok_s)
    for way in found:
        middle, is_equal = statistics.median(way.tok_s), len(way.ids) == 1
        is_one_a_step = way.name in ("plain", "in vain")
        host = max(0.0, 1 - step_s * middle) if step_s is not None and is_one_a_step else None
        table.print(
            [
                about["sampling"],
                way.name,
                f"{middle:.1f}",
                f"{middle / plain:.3f}",
                f"{1e3 * way.draft_s:.2f}" if way.draft_s else "",
                "" if way.acceptance_rate is None else f"{100 * way.acceptance_rate:.0f} %",
                "" if host is None else f"{100 * host:.1f} %",
                "equal" if is_equal else "DIFFERENT",
            ]
        )
        row = {"test": way.name, "unit": "tok/s", "median": middle, "samples": way.tok_s, "host": host}
        row |= {"draft_s": way.draft_s, "acceptance_rate": way.acceptance_rate}
        report.add({**about, **row, "ratio": middle / plain, "is_equal": is_equal})
    print(flush=True)
    return all(len(way.ids) == 1 for way in found)


def opened(directory: Path, options: LoadOptions) -> NativeBackend:
    backend = load(ready(directory), options, lambda _: None, CancelToken())
    assert isinstance(backend, NativeBackend)
    return backend


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=[name for name in SHAPES if name != "tiny"], default="llama-3.1-8b")
    parser.add_argument("--format", choices=RECIPE_NAMES, default="mq4")
    parser.add_argument("--layers", type=positive, help="fewer than the shape has; rows say so")
    parser.add_argument("--draft", choices=[*SHAPES, "none"], help="default: qwen3-0.6b, or the shape itself for demos")
    parser.add_argument("--depth", type=int, default=512, help="tokens of context before those that are decoded")
    parser.add_argument("--tokens", type=positive, default=256)
    parser.add_argument("-r", "--repetitions", type=positive, default=3)
    parser.add_argument("--work", type=Path, help="where the model is made; default: in memory, if there is room")
    add_arguments(parser)
    return parser.parse_args()


def main() -> int:
    asked = parse()
    if not asked.shape.startswith("demo"):
        require_gpu("A model of this size (all but --shape demo and demo-moe)")
    where = origin(asked.commit, timing.device_name())
    say(where)
    report = Report("speculation_gpu", where, asked.json)
    config = config_of(asked.shape, asked.layers)
    is_equal = True
    shape = asked.draft or (asked.shape if asked.shape.startswith("demo") else "qwen3-0.6b")
    draft_config = None if shape == "none" else config_of(shape, asked.layers) | {"vocab_size": config["vocab_size"]}
    room = about_bytes(config) + (0 if draft_config is None else about_bytes(draft_config))
    with workplace(asked.work, room) as work:
        write_directory(work / "model", config, asked.format, is_hashed=False)
        options = LoadOptions(backend="native", ctx_size=asked.depth + asked.tokens + 64, force=True)
        backend = opened(work / "model", options)
        draft = copy = None
        if draft_config is not None:
            write_directory(work / "draft", draft_config, asked.format, is_hashed=False)
            draft, copy = opened(work / "draft", options), opened(work / "model", options)
        about = {"shape": asked.shape, "format": asked.format, "layers": asked.layers, "depth": asked.depth}
        show_steps(backend, asked.repetitions, report, about)
        for name, params in SAMPLINGS.items():
            if draft is not None:
                ids = prompt(asked.depth, config["vocab_size"], seed=1)
                costs = show_drafts(draft, ids, params, 3 * asked.repetitions)
                for test, ms in costs.items():
                    report.add({**about, "sampling": name, "draft": shape, "test": test, "unit": "ms", "median": ms})
            found = measure_ways(backend, draft, copy, params, asked.depth, asked.tokens, asked.repetitions)
            execution = backend._execution
            is_timed = isinstance(execution, FusedExecution) and name == "greedy"
            step_s = device_step_s(execution, asked.depth) if is_timed else None
            backend.keep(0)
            is_equal &= show_ways(found, step_s, report, {**about, "sampling": name, "draft": shape})
        for one in (backend, draft, copy):
            if one is not None:
                one.close()
    if not is_equal:
        print("The ids are not those of plain decoding.", file=sys.stderr)
    return 0 if is_equal else 1


if __name__ == "__main__":
    sys.exit(main())
