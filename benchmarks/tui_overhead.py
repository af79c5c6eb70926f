"""What the terminal interface costs: decode tokens/s of one model through `runner bench`'s measurement and the TUI.

    python benchmarks/tui_overhead.py [MODEL] [--tokens 256] [--rounds 4] [--repeats 3] [--threads N] [--json FILE]

Four ways to write the same number of tokens, greedily, after a prompt of the same length, (n - 1) / (t_last - t_first)
as telemetry defines it. Each way has a fresh process in each round, whose first answer is left out; the ways go there
and back (ABBA). The goal is a TUI at 97 % of bench or more. Run it on a machine that does nothing else.

  bench     what `runner bench` times: a child that decodes, whose tokens nobody reads
  process   the engine's process as every front end has it, its events read and thrown away
  tui       `runner` itself in a terminal of that size, a question typed into it, the timings as the chat keeps them
  drafting  the same, and it looks for drafts as chats do unless told not to (speculation auto); the others do not

engine ms: processor time of the process that holds the model for each token, the prompt's included. It is what a busy
machine leaves comparable. ui cpu: processor time of the front end for each second of decoding.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pexpect
import psutil
import pyte
import records
from arguments import positive

from runner.bench.process import BenchProcess
from runner.bench.tasks import Task
from runner.config import ChatOptions, LoadOptions, SamplingParams, Speculation
from runner.engine_process import EngineProcess
from runner.events import Finished, Loaded
from runner.machine import cpu_info, default_threads, devices
from runner.paths import Paths, user_paths
from runner.running import running
from runner.store import Store
from runner.telemetry import Timings
from runner.types import CancelToken, Message

QUESTION = "Write the story of a king and his three sons."
GOAL = 0.97
_PATIENCE_S = 120.0
_WAYS = ("bench", "process", "tui", "drafting")


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One answer. engine_cpu_s: processor time of the process that holds the model; front_cpu_s: of the front end."""

    timings: Timings
    engine_cpu_s: float
    front_cpu_s: float = 0.0

    @property
    def tok_s(self) -> float:
        assert self.timings.decode_tok_s is not None
        return self.timings.decode_tok_s


class Terminal:
    """`runner` in a pseudo-terminal, whose output is read as fast as it comes."""

    def __init__(self, paths: Paths, size: tuple[int, int]) -> None:
        self._paths = paths
        self._store = Store(paths.database)
        command = [sys.executable, "-P", "-m", "runner"]
        self._child = pexpect.spawn(command[0], command[1:], dimensions=(size[1], size[0]), timeout=_PATIENCE_S)
        self._size = size
        self._output = bytearray()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with suppress(OSError, ValueError):
            while data := os.read(self._child.child_fd, 1 << 16):
                self._output += data

    def wait_until_loaded(self) -> None:
        self._wait(lambda: "Welcome to runner" in self._screen(), "a first run asks which model, and this did not")
        time.sleep(0.5)
        self._child.send("\r")
        self._wait(lambda: any(True for _ in running(self._paths.engines)), "no model was loaded")
        time.sleep(1)

    def ask(self, question: str, n_tokens: int) -> Measured:
        """Start a chat, ask, and wait for the whole answer."""
        before = len(self._store.sessions())
        self._child.send("\x0e")  # Ctrl+N
        time.sleep(0.5)
        self._child.send(question)
        time.sleep(0.5)
        engine = next(iter(running(self._paths.engines))).pid
        engine_s, front_s = _cpu_s(engine), _cpu_s(self._child.pid)
        self._child.send("\r")
        self._wait(lambda: len(self._store.sessions()) > before and self._answer() is not None, "no answer came")
        measured = Measured(
            timings=self._answer() or Timings(),
            engine_cpu_s=_cpu_s(engine) - engine_s,
            front_cpu_s=_cpu_s(self._child.pid) - front_s,
        )
        if measured.timings.completion_tokens != n_tokens:
            raise SystemExit(f"the model stopped after {measured.timings.completion_tokens} tokens: use fewer --tokens")
        time.sleep(0.5)
        return measured

    def _answer(self) -> Timings | None:
        newest = self._store.sessions(1)[0]
        last = self._store.turns(newest.id)[-1]
        return Timings(**last.timings) if last.role == "assistant" and last.state == "complete" else None

    def _wait(self, is_done: Callable[[], bool], complaint: str) -> None:
        """Look four times a second: more would take the processor from what is measured."""
        deadline = time.monotonic() + _PATIENCE_S
        while not is_done():
            if time.monotonic() > deadline:
                raise SystemExit(f"{complaint}; the screen:\n{self._screen()}")
            time.sleep(0.25)

    def _screen(self) -> str:
        screen = pyte.Screen(*self._size)
        pyte.ByteStream(screen).feed(bytes(self._output))
        return "\n".join(screen.display)

    def close(self) -> None:
        self._child.send("\x11")  # Ctrl+Q
        with suppress(SystemExit):
            self._wait(lambda: not self._child.isalive(), "it does not leave")
        self._child.close(force=True)
        self._store.close()


def _cpu_s(pid: int | None) -> float:
    """Processor time of a process, in steps of 10 ms on Linux; None: of this one."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def of_tui(
    model: str, n_tokens: int, n_answers: int, n_threads: int, size: tuple[int, int], speculation: Speculation
) -> list[Measured]:
    with _home() as paths:
        os.environ |= {
            "RUNNER_MODEL": model,
            "RUNNER_TEMPERATURE": "0",
            "RUNNER_MAX_TOKENS": str(n_tokens),
            "RUNNER_N_THREADS": str(n_threads),
            "RUNNER_SPECULATION": speculation,
        }
        terminal = Terminal(paths, size)
        try:
            terminal.wait_until_loaded()
            return [terminal.ask(QUESTION, n_tokens) for _ in range(n_answers)]
        finally:
            terminal.close()


def of_process(model: str, n_tokens: int, n_answers: int, n_threads: int) -> list[Measured]:
    params = SamplingParams(temperature=0, max_tokens=n_tokens)
    found = []
    with _home() as paths, EngineProcess(paths) as engine:
        _load(engine, model, n_threads)
        for _ in range(n_answers):
            engine_s, front_s = _cpu_s(engine.pid), time.process_time()
            *_, last = engine.chat([Message(role="user", content=QUESTION)], params, ChatOptions())
            assert isinstance(last, Finished)
            spent_s = _cpu_s(engine.pid) - engine_s
            found.append(
                Measured(timings=last.timings, engine_cpu_s=spent_s, front_cpu_s=time.process_time() - front_s)
            )
            time.sleep(1)
    return found


def of_bench(model: str, n_tokens: int, n_answers: int, n_threads: int, n_prompt: int) -> list[Measured]:
    task = Task(kind="decode", n_tokens=n_tokens - 1, depth=n_prompt)
    found = []
    with _home() as paths, BenchProcess(paths, CancelToken()) as process:
        _load(process, model, n_threads)
        for _ in range(n_answers):
            before_s = _cpu_s(process.pid)
            sample = process.measure(task)
            timings = Timings(
                prompt_tokens=sample.n_prompt, completion_tokens=sample.n_tokens + 1, decode_s=sample.seconds
            )
            found.append(Measured(timings=timings, engine_cpu_s=_cpu_s(process.pid) - before_s))
            time.sleep(1)
    return found


def _load(engine: EngineProcess, model: str, n_threads: int) -> Loaded:
    *_, loaded = engine.load(model, LoadOptions(n_threads=n_threads, speculation="off"))
    assert isinstance(loaded, Loaded)
    return loaded


@contextmanager
def _home() -> Iterator[Paths]:
    """A home of its own for each process: nothing is remembered from the one before."""
    with tempfile.TemporaryDirectory(prefix="runner-tui-") as home:
        os.environ["RUNNER_HOME"] = home
        yield user_paths(Path(home))


def measure(args: argparse.Namespace) -> dict[str, list[Measured]]:
    """All answers of each way but the first of each process. The prompt's length is taken from the first process."""
    size = (int(args.size.split("x")[0]), int(args.size.split("x")[1]))
    n_prompt = of_process(args.model, args.tokens, 1, args.threads)[0].timings.prompt_tokens
    what = (args.model, args.tokens, args.repeats + 1, args.threads)
    run: dict[str, Callable[[], list[Measured]]] = {
        "bench": lambda: of_bench(*what, n_prompt),
        "process": lambda: of_process(*what),
        "tui": lambda: of_tui(*what, size, "off"),
        "drafting": lambda: of_tui(*what, size, "auto"),
    }
    found: dict[str, list[Measured]] = {way: [] for way in _WAYS}
    for number in range(args.rounds):
        for way in _WAYS if number % 2 == 0 else reversed(_WAYS):
            found[way] += run[way]()[1:]
    return found


def rows_of(found: dict[str, list[Measured]]) -> Iterator[dict[str, object]]:
    """A row for each way. share: of bench's median."""
    base = statistics.median(one.tok_s for one in found["bench"])
    for way, all_of_it in found.items():
        rates = [one.tok_s for one in all_of_it]
        decoding = sum(one.timings.decode_s for one in all_of_it)
        yield {
            "way": way,
            "median_tok_s": statistics.median(rates),
            "stdev_tok_s": statistics.stdev(rates) if len(rates) > 1 else 0.0,
            "share": statistics.median(rates) / base,
            "engine_ms": 1000
            * statistics.median(one.engine_cpu_s / one.timings.completion_tokens for one in all_of_it),
            "ui_cpu": sum(one.front_cpu_s for one in all_of_it) / decoding,
            "samples": rates,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="demo")
    parser.add_argument("--tokens", type=positive, default=256)
    parser.add_argument("--rounds", type=positive, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=positive, default=default_threads(), help="of the engine, on a processor")
    parser.add_argument("--size", default="120x40", help="columns x lines of the terminal")
    records.add_arguments(parser)
    args = parser.parse_args()
    where = records.origin(args.commit, devices()[0].name)
    report = records.Report("tui_overhead", where, args.json)
    records.say(where)
    print(
        f"{args.model}, {args.tokens} tokens, {args.threads} threads on {cpu_info().usable_cores} cores, {args.size}\n"
    )
    table = records.Table(["way     ", "tok/s   ", "sd    ", "of bench", "engine ms", "ui cpu"])
    rows = list(rows_of(measure(args)))
    for row in rows:
        report.add({**row, "model": args.model, "n_tokens": args.tokens, "n_threads": args.threads, "size": args.size})
        rates = [f"{row[key]:.1f}" for key in ("median_tok_s", "stdev_tok_s")]
        table.print([str(row["way"]), *rates, f"{row['share']:.1%}", f"{row['engine_ms']:.3f}", f"{row['ui_cpu']:.1%}"])
    share = next(row["share"] for row in rows if row["way"] == "tui")
    assert isinstance(share, float)
    print(
        f"\nThe TUI decodes at {share:.1%} of bench: {'within' if share >= GOAL else 'below'} the goal of {GOAL:.0%}."
    )


if __name__ == "__main__":
    main()
