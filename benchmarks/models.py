"""Whole models of real shapes with random weights: runner's native backend, and llama.cpp on the same GPU beside it.

    python benchmarks/models.py [--shape llama-3.1-8b ...] [--format mq4 ...] [--layers N] [--json FILE]
    python benchmarks/models.py --llama-bench DIR [--mix q4_k_m q4_0] [--wheel [DIR]]     # DIR: a build of llama.cpp
    python benchmarks/models.py --shape gpt-oss-20b --llama-bench DIR --mix mxfp4_moe     # as it is published
    python benchmarks/models.py --shape demo --prompts 32 --depths 0 64 --tokens 16       # on a CPU: does it run?

Where a peer is given the order is ours, peer, ours, in one call. tg128 is greedy decoding of 128 tokens through
Backend.generate, choosing tokens and the host's loop included, pp512 a prompt up to its first token; "@ d4096" is after
4096 tokens, where prompts are those of --messages. t(M) is a step of M rows with the logits of all, as verifying a
draft takes it, queued without waiting. Host: the share of a decode step's time in which the device had nothing to do.
Random weights do not change the speed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import timing
import torch
from arguments import positive
from generation import decode, device_step_s, prefill, prefill_after, rows_step
from peers import Measured, llama_bench, test_name, wheel
from random_models import RECIPE_NAMES, about_bytes, ready, write_directory
from records import Report, Table, add_arguments, origin, require_gpu, say
from shapes import SHAPES, config_of
from workplace import workplace

from runner.backends.native import load
from runner.backends.native.backend import NativeBackend
from runner.backends.native.fused_execution import FusedExecution
from runner.config import LoadOptions
from runner.types import CancelToken

ROWS = (1, 2, 4, 8, 16)


@dataclass(frozen=True, kw_only=True)
class Tests:
    """What is measured of each model."""

    prompts: tuple[int, ...]
    messages: tuple[int, ...]
    depths: tuple[int, ...]
    n_gen: int
    repetitions: int

    @property
    def n_ctx(self) -> int:
        return max([*self.prompts, *self.depths]) + max([0, *self.messages]) + self.n_gen + 64


@dataclass(kw_only=True)
class Found:
    """Samples by test, in its unit; "t(1)" and the like are milliseconds, "host" a share, the others tokens/s."""

    samples: dict[str, list[float]] = field(default_factory=dict)
    wrote: dict[str, set[tuple[int, ...]]] = field(default_factory=dict)

    def add(self, test: str, values: Sequence[float]) -> None:
        self.samples.setdefault(test, []).extend(values)

    @property
    def unequal(self) -> list[str]:
        """Tests whose repetitions did not all write the same ids."""
        return [test for test, ids in self.wrote.items() if len(ids) > 1]


def unit(test: str) -> str:
    return "ms" if test.startswith("t(") else "share" if test == "host" else "tok/s"


# --- ours ------------------------------------------------------------------------------------------------------------


def measure_ours(directory: Path, tests: Tests, found: Found) -> None:
    """One pass over all tests, of a model that is loaded for it."""
    options = LoadOptions(
        backend="native",
        ctx_size=tests.n_ctx,
        n_gpu_layers="all" if torch.cuda.is_available() else 0,
        n_threads=torch.get_num_threads(),
        force=True,
    )
    backend = load(ready(directory), options, lambda _: None, CancelToken())
    assert isinstance(backend, NativeBackend)
    for depth in sorted(tests.depths):
        decoded = decode(backend, depth, tests.n_gen, tests.repetitions)
        name = test_name(0, tests.n_gen, depth)
        found.add(name, decoded.tok_s)
        found.wrote.setdefault(name, set()).update(decoded.ids)
        if depth == min(tests.depths):
            _measure_steps(backend, depth, tests.n_gen, statistics.median(decoded.tok_s), found)
    for n_prompt in tests.prompts:
        found.add(test_name(n_prompt, 0, 0), prefill(backend, n_prompt, tests.repetitions))
    for depth in filter(None, tests.depths):
        for n_prompt in tests.messages:
            rates = prefill_after(backend, depth, n_prompt, tests.repetitions)
            found.add(test_name(n_prompt, 0, depth), rates)
    backend.close()
    timing.wait()
    torch.cuda.empty_cache()


def _measure_steps(backend: NativeBackend, depth: int, n_gen: int, tok_s: float, found: Found) -> None:
    execution = backend._execution
    for n_rows in ROWS:
        found.add(f"t({n_rows})", [1e3 * rows_step(execution, n_rows)])
    if isinstance(execution, FusedExecution):
        # As many steps as were timed: later ones see more tokens.
        on_device = device_step_s(execution, max(1, depth), queued=n_gen)
        found.add("host", [max(0.0, 1 - on_device * tok_s)])
    backend.keep(0)


# --- both ------------------------------------------------------------------------------------------------------------


def measure_peer(measured: Iterator[Measured] | Sequence[Measured], tests: Tests, found: Found) -> None:
    """Its prompts of few tokens are what t(M) is compared with."""
    few = {test_name(n_rows, 0, 0): n_rows for n_rows in ROWS if n_rows not in tests.prompts}
    for one in measured:
        if one.test in few:
            n_rows = few[one.test]
            found.add(f"t({n_rows})", [1e3 * n_rows / rate for rate in one.tok_s])
        else:
            found.add(one.test, one.tok_s)


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The command line, but for what each shape is measured with."""

    tests: Tests
    layers: int | None
    mixes: tuple[str, ...]
    build: Path | None
    has_wheel: bool
    wheel_libraries: Path | None
    work: Path | None


def measure(shape: str, recipe: str, asked: Asked) -> dict[str, Found]:
    """All engines on one shape, ours before and after the others."""
    tests, config = asked.tests, config_of(shape, asked.layers)
    ours = Found()
    found = {f"runner {recipe}": ours}
    with workplace(asked.work, 2 * about_bytes(config)) as work:
        _say(f"{shape}: making {recipe}")
        write_directory(work / "ours", config, recipe, is_hashed=False)
        _say(f"{shape}: measuring {recipe}")
        measure_ours(work / "ours", tests, ours)
        for mix in asked.mixes if asked.build or asked.has_wheel else ():
            _say(f"{shape}: making and measuring {mix}")
            _measure_peers(shape, mix, work / f"{mix}.gguf", asked, found)
        if len(found) > 1:
            _say(f"{shape}: measuring {recipe} again")
            measure_ours(work / "ours", tests, ours)
    return found


def _say(what: str) -> None:
    """What begins now: a large model takes minutes, most of them to be made."""
    print(f"{datetime.now(UTC):%H:%M:%S} {what}", file=sys.stderr, flush=True)


def _measure_peers(shape: str, mix: str, gguf: Path, asked: Asked, found: dict[str, Found]) -> None:
    from random_gguf import write_gguf

    tests = asked.tests
    write_gguf(gguf, config_of(shape, asked.layers), mix)
    common = {
        "messages": tests.messages,
        "n_gen": tests.n_gen,
        "depths": tests.depths,
        "repetitions": tests.repetitions,
    }
    try:
        if asked.build is not None:
            peer = found.setdefault(f"llama.cpp {mix}", Found())
            measure_peer(llama_bench(asked.build, gguf, prompts=(*ROWS, *tests.prompts), **common), tests, peer)  # type: ignore[arg-type]
        if asked.has_wheel:
            peer = found.setdefault(f"llama-cpp-python {mix}", Found())
            rows = wheel(gguf, asked.wheel_libraries, prompts=tests.prompts, on_gpu=torch.cuda.is_available(), **common)  # type: ignore[arg-type]
            measure_peer(rows, tests, peer)
    except RuntimeError as error:
        print(error, file=sys.stderr)
    finally:
        gguf.unlink()


def show(shape: str, found: dict[str, Found], report: Report, asked: Asked) -> None:
    """One line a test, and ours over each peer; a time is compared the other way round, so that above 1 is faster."""
    ours = next(iter(found))
    peers = [name for name in found if name != ours]
    table = Table(
        [f"{shape:14}", "test             ", f"{ours:24}"]
        + [word for peer in peers for word in (f"{peer:24}", "ratio")]
    )
    for test, samples in found[ours].samples.items():
        cells = [shape, test, _cell(test, samples, test in found[ours].unequal)]
        for peer in peers:
            theirs = found[peer].samples.get(test, [])
            cells += [_cell(test, theirs), f"{_ratio(test, samples, theirs):.2f}" if theirs else ""]
        table.print(cells)
    for engine, one in found.items():
        for test, samples in one.samples.items():
            report.add(
                {
                    "shape": shape,
                    "layers": asked.layers,
                    "engine": engine,
                    "test": test,
                    "unit": unit(test),
                    "median": statistics.median(samples),
                    "samples": samples,
                    "is_repeatable": test not in one.unequal,
                }
            )
    print(flush=True)


def _cell(test: str, samples: Sequence[float], is_unequal: bool = False) -> str:
    if not samples:
        return ""
    middle = statistics.median(samples)
    if test == "host":
        return f"{100 * middle:.1f} %"
    deviation = statistics.stdev(samples) if len(samples) > 1 else None
    spread = "" if deviation is None else f" ± {deviation:{'.0f' if deviation >= 10 else '.2g'}}"
    mark = " IDS DIFFER" if is_unequal else ""
    return (f"{middle:.3f}{spread} ms" if unit(test) == "ms" else f"{middle:.0f}{spread} tok/s") + mark


def _ratio(test: str, ours: Sequence[float], theirs: Sequence[float]) -> float:
    ratio = statistics.median(ours) / statistics.median(theirs)
    return 1 / ratio if unit(test) == "ms" else ratio


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", nargs="+", choices=[name for name in SHAPES if name != "tiny"])
    parser.add_argument("--format", nargs="+", choices=RECIPE_NAMES, default=["mq4"])
    parser.add_argument("--layers", type=positive, help="fewer than the shape has; rows say so")
    parser.add_argument("--prompts", type=int, nargs="+", default=[512, 2048])
    parser.add_argument("--messages", type=int, nargs="*", default=[], help="prompts after each of --depths above 0")
    parser.add_argument("--depths", type=int, nargs="+", default=[0, 4096, 32768])
    parser.add_argument("--tokens", type=positive, default=128)
    parser.add_argument("-r", "--repetitions", type=positive, default=3, help="of each test in each pass")
    parser.add_argument("--llama-bench", type=Path, metavar="DIR", help="a build of llama.cpp with its libraries")
    parser.add_argument("--mix", nargs="+", choices=["q4_k_m", "q4_0", "mxfp4_moe"], default=["q4_k_m"])
    parser.add_argument("--wheel", nargs="?", const="", metavar="DIR", help="llama-cpp-python; DIR: other libraries")
    parser.add_argument("--work", type=Path, help="where models are made; default: in memory, if there is room")
    add_arguments(parser)
    asked = parser.parse_args()
    if asked.llama_bench is not None and not (asked.llama_bench / "llama-bench").is_file():
        parser.error(f"there is no llama-bench in {asked.llama_bench}")
    if min([1, *asked.messages]) < 1:
        parser.error("--messages are of 1 token or more")
    if asked.messages and not any(asked.depths):
        parser.error("--messages come after --depths above 0: name one")
    for shape in asked.shape or ():
        context = SHAPES[shape]["max_position_embeddings"]
        if max([*asked.prompts, *asked.depths]) + max([0, *asked.messages]) + asked.tokens + 64 > context:
            parser.error(f"{shape} has a context of {context} tokens: ask for smaller --prompts and --depths")
    return asked


def main() -> None:
    given = parse()
    if any(not shape.startswith("demo") for shape in given.shape or SHAPES):
        require_gpu("A model of this size (all but --shape demo and demo-moe)")
    where = origin(given.commit, timing.device_name(), read_bytes_s=timing.read_bytes_s())
    say(where)
    report = Report("models", where, given.json)
    asked = Asked(
        tests=Tests(
            prompts=tuple(given.prompts),
            messages=tuple(given.messages),
            depths=tuple(given.depths),
            n_gen=given.tokens,
            repetitions=given.repetitions,
        ),
        layers=given.layers,
        mixes=tuple(given.mix),
        build=given.llama_bench,
        has_wheel=given.wheel is not None,
        wheel_libraries=Path(given.wheel) if given.wheel else None,
        work=given.work,
    )
    for shape in given.shape or ("llama-3.1-8b", "qwen3-0.6b"):
        for recipe in given.format:
            show(shape, measure(shape, recipe, asked), report, asked)


if __name__ == "__main__":
    main()
