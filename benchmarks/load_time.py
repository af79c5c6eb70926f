"""From the start of a process to the first token of a packed model, stage by stage.

    python benchmarks/load_time.py MODEL_DIRECTORY [--repeats 3] [--json FILE]
    python benchmarks/load_time.py --make llama-3.1-8b [--format mq4] [--keep DIR]

Each run is a fresh process, the file being in the page cache. "warm" runs find compiled kernels; "empty" ones, the
first ever on a machine, begin with an empty TRITON_CACHE_DIR. All find the bytecode of packages, which pip writes when
it installs them; where it is missing, as on images that set PYTHONDONTWRITEBYTECODE, it is made before the first run.
A longer prompt (--prompts 16 40) goes through kernels of which loading launches none. In runs that are "ready"
(--ready) the model gets ready after loading, as it does in a chat as long as nothing is asked; how long that takes, and
what graphs hold then, is told apart.
--make writes a model of that shape with random weights first (in memory where that has room); --keep DIR leaves it
there, whole, for `runner run`, `chat` and `bench`.

Stages: interpreter (until its first line runs), imports (the packages of the native backend, beside which the device
itself starts and the tokenizer is opened), files (config, headers, and compiling what layouts are tried with), weights
(until the last one is read), kernels (until loading is done: compiling or reading them, the first token of a warm-up,
graphs), prefill of 16 tokens, first token.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import pairwise, product
from pathlib import Path

from arguments import positive
from workplace import workplace

STAGES = ("interpreter", "imports", "files", "weights", "kernels", "prefill", "first token")
N_PROMPT = 16  # tokens, where nothing else is said


@dataclass(frozen=True)
class Load:
    """What a process tells of its load: seconds of each stage and of getting ready, and what graphs hold behind it."""

    stages_s: dict[str, float]
    ready_s: float
    graphs_bytes: int


def child(directory: Path, n_ctx: int, n_prompt: int, moments: Sequence[float], *, gets_ready: bool) -> Load:
    """What a fresh process does. moments: on the wall clock, when it was started and when its first line ran."""
    from runner.backends.base import Prefill
    from runner.backends.native import load
    from runner.config import LoadOptions, SamplingParams
    from runner.types import CancelToken, ReadyModel

    ended: dict[str, float] = {}

    def on_progress(progress: object) -> None:
        now = time.time()
        ended.setdefault("imports", now)
        if isinstance(progress, (int, float)):  # else it says what begins, or how many kernels are compiled
            ended.setdefault("files", now)
            if progress >= 1:
                ended.setdefault("weights", now)

    weights = directory / "model.safetensors"
    model = ReadyModel(
        name=directory.name,
        format="packed",
        weights=(weights,),
        directory=directory,
        size_bytes=weights.stat().st_size,
    )
    backend = load(model, LoadOptions(backend="native", ctx_size=n_ctx), on_progress, CancelToken())
    ended["kernels"] = time.time()
    for _ in backend.get_ready(CancelToken()) if gets_ready else ():
        pass
    ready_s, graphs_bytes = time.time() - ended["kernels"], backend.memory().graphs_bytes
    steps = backend.generate(list(range(n_prompt)), SamplingParams(temperature=0, seed=0), CancelToken())
    for step in steps:
        ended["prefill" if isinstance(step, Prefill) else "first token"] = time.time() - ready_s
        if not isinstance(step, Prefill):
            break
    steps.close()
    backend.close()
    all_moments = [*moments, *(ended[stage] for stage in STAGES[1:])]
    stages_s = {stage: after - before for stage, (before, after) in zip(STAGES, pairwise(all_moments), strict=True)}
    return Load(stages_s=stages_s, ready_s=ready_s, graphs_bytes=graphs_bytes)


def run(directory: Path, asked: argparse.Namespace, n_prompt: int, environment: Mapping[str, str], kind: str) -> Load:
    """A fresh process."""
    options = ["--ctx-size", str(asked.ctx_size), "--prompts", str(n_prompt), *(["--ready"] if kind == "ready" else [])]
    done = subprocess.run(
        [sys.executable, __file__, str(directory), *options, "--child", str(time.time())],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    if done.returncode:
        sys.exit(f"the process that loads the model ended with {done.returncode}")
    return Load(**json.loads(done.stdout.splitlines()[-1]))


def with_bytecode(folder: Path) -> dict[str, str]:
    """An environment in which all that a run imports has its bytecode, in `folder`."""
    found = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    found["PYTHONPYCACHEPREFIX"] = str(folder)
    imports = "import load_time, runner.backends.native as n; n.import_torch(for_gpu=False)"
    program = f"{imports}; import runner.backends.native.fused_execution"
    subprocess.run([sys.executable, "-c", program], env=found, cwd=Path(__file__).parent, check=True)
    return found


def read_once(directory: Path) -> None:
    """Have the file in the page cache."""
    with (directory / "model.safetensors").open("rb", buffering=0) as file:
        while file.read(2**24):
            pass


@contextmanager
def _model(asked: argparse.Namespace) -> Iterator[Path]:
    """The directory that was given, or one that is made."""
    if asked.model is not None:
        yield asked.model
        return
    from random_models import about_bytes, write_directory
    from shapes import config_of

    config = config_of(asked.make, asked.layers)
    with workplace(None, about_bytes(config)) as work:
        target = asked.keep or work / f"{asked.make}-{asked.format}"
        started = time.perf_counter()
        size = write_directory(target, config, asked.format, is_hashed=asked.keep is not None)
        print(f"{target}: {size / 1e9:.2f} GB in {time.perf_counter() - started:.1f} s", flush=True)
        yield target


def measure(directory: Path, asked: argparse.Namespace) -> None:
    """All runs, and the table."""
    import timing
    from records import Report, Table, origin, say

    from runner.doctor import has_bytecode

    where = origin(asked.commit, timing.device_name())
    say(where)
    report = Report("load_time", where, asked.json)
    read_once(directory)
    size = (directory / "model.safetensors").stat().st_size
    table = Table(
        [
            "model               ",
            "prompt",
            "kernels",
            *(f"{stage:11}" for stage in STAGES),
            "all s  ",
            "ready s",
            "graphs MB",
        ]
    )
    with tempfile.TemporaryDirectory(prefix="runner-load-") as work:
        environment = (
            dict(os.environ) if (is_there := has_bytecode("torch")) else with_bytecode(Path(work) / "bytecode")
        )
        kinds = ("empty", *["warm"] * asked.repeats, *["ready"] * (asked.repeats if asked.ready else 0))
        for n_prompt, kind in product(asked.prompts, kinds):
            if kind == "empty":
                environment["TRITON_CACHE_DIR"] = str(Path(work) / f"kernels-{n_prompt}")
            load = run(directory, asked, n_prompt, environment, kind)
            cells = [f"{load.stages_s[stage]:.3f}" for stage in STAGES]
            told = [f"{sum(load.stages_s.values()):.2f}", f"{load.ready_s:.2f}", f"{load.graphs_bytes / 1e6:.0f}"]
            table.print([directory.name, str(n_prompt), kind, *cells, *told])
            row = {"model": directory.name, "size_bytes": size, "n_prompt": n_prompt, "cache": kind}
            report.add(row | asdict(load) | {"bytecode": "installed" if is_there else "made before"})
    print()
    for n_prompt in asked.prompts:
        mine = [row for row in report.rows if row["cache"] == "warm" and row["n_prompt"] == n_prompt]
        if warm := [sum(row["stages_s"].values()) for row in mine]:
            print(f"warm, {n_prompt} tokens, to the first: {statistics.median(warm):.2f} s (median of {len(warm)})")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?", help="a packed model's directory")
    parser.add_argument("--make", metavar="SHAPE", help="make one of that shape (shapes.py)")
    parser.add_argument("--format", choices=["mq4", "mq4-uniform"], default="mq4")
    parser.add_argument("--layers", type=positive, help="fewer than the shape has")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="where the made model stays")
    parser.add_argument("--ctx-size", type=positive, default=2048)
    parser.add_argument("--prompts", type=int, nargs="+", default=[N_PROMPT], metavar="N", help="tokens of the prompt")
    parser.add_argument("--repeats", type=int, default=3, help="with compiled kernels")
    parser.add_argument("--ready", action="store_true", help="as many runs that get ready before the prompt")
    parser.add_argument("--json", type=Path, metavar="FILE", help="append a line of JSON for each run")
    parser.add_argument("--commit", help="what the rows say was measured; default: git's HEAD")
    parser.add_argument("--child", type=float, help=argparse.SUPPRESS)  # when it was started
    asked = parser.parse_args()
    if (asked.model is None) == (asked.make is None):
        parser.error("give a packed model's directory, or --make SHAPE")
    if asked.model is not None and not (asked.model / "model.safetensors").is_file():
        parser.error(f"{asked.model} is no packed model: it has no model.safetensors")
    if asked.make is not None:
        from shapes import SHAPES

        if asked.make not in SHAPES or asked.make == "tiny":
            parser.error(f"there is no shape {asked.make!r}; there are: {', '.join(SHAPES)}")
        if asked.keep is not None and asked.keep.exists():
            parser.error(f"{asked.keep} is there already: give it as MODEL_DIRECTORY, or another path")
    return asked


def main() -> None:
    entered = time.time()
    asked = parse()
    if asked.child is not None:
        moments = (asked.child, entered)
        load = child(asked.model, asked.ctx_size, asked.prompts[0], moments, gets_ready=asked.ready)
        print(json.dumps(asdict(load)))
        return
    with _model(asked) as directory:
        measure(directory, asked)


if __name__ == "__main__":
    main()
