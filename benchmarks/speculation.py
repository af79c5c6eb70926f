"""What speculation gains, what it costs at worst, and whether the text stays the same: on real engines, by the clock.

    python benchmarks/speculation.py gain [MODEL] [--spec suffix ...] [--draft MODEL] [--temp 0 0.7]
    python benchmarks/speculation.py worst [MODEL]                        # drafters that are wrong, slow, treacherous
    python benchmarks/speculation.py texts [--shape llama-3.1-8b] [--layers N]  # random weights, real texts, dictated
    python benchmarks/speculation.py trace [--shape llama-3.1-8b] [--layers N]  # random weights, real texts' acceptance
    python benchmarks/speculation.py prompts PATH [MODEL]                 # prompts of your own, as lines of JSON

Every figure is of answers that were written both ways, one after the other and in turn first, in one process; the real
controller decides what is drafted. `gain` is the median over repetitions, of the time from the first token to the last;
`processor` is the same by the processor's time of the thread (`worst -t 1`), `accounted` by the speculator's account.
Token ids must be the same both ways: those that differ are counted, and the program ends with 1 if any do.
`texts` and `trace` want a GPU for the shapes of real models; --shape demo runs on any machine, in float32 without one.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from arguments import existing, positive
from both_ways import Found, Rows, eager, followed, show_steps
from prompt_files import FilePrompt, read_prompts
from records import Report, add_arguments, origin, require_gpu, say
from scripted_drafts import ScriptedDrafter, adversaries, suffix_script
from shapes import SHAPES, config_of

from runner.backends.base import Backend
from runner.bench.genre_meter import GenreMeter, Pair, PairMeter
from runner.bench.genre_texts import genre_prompts, message_ids, prompt_ids
from runner.bench.record import Genre
from runner.bench.request import GENRES
from runner.bench.tasks import GenreTask
from runner.config import LONGEST_DRAFT, LoadOptions, SamplingParams
from runner.draft_choice import DraftChoice
from runner.drafting import open_drafting
from runner.engine import Engine
from runner.errors import ContextOverflow, RunnerError
from runner.events import Notice
from runner.machine import cpu_info, devices
from runner.paths import user_paths
from runner.types import CancelToken

# --- what is loaded --------------------------------------------------------------------------------------------------


@contextmanager
def loaded(asked: argparse.Namespace, spec: str) -> Iterator[Engine]:
    """The model in this process, with that drafter."""
    engine = Engine(user_paths())
    options = LoadOptions(
        backend=asked.backend,
        n_threads=asked.threads,
        ctx_size=asked.ctx_size,
        speculation=spec,  # type: ignore[arg-type]  # argparse knows the choices
        draft=asked.draft if spec not in ("suffix", "off") else None,
        draft_max=asked.draft_max,
    )
    for event in engine.load(asked.model, options, offline=True):
        if isinstance(event, Notice) and event.level == "warning":
            print(event.text, file=sys.stderr)
    try:
        yield engine
    finally:
        engine.close()


# --- the five questions ----------------------------------------------------------------------------------------------


def gain(asked: argparse.Namespace, report: Report) -> int:
    """Each drafter on each genre at each temperature."""
    rows: Rows | None = None
    for spec in asked.spec:
        with loaded(asked, spec) as engine:
            if rows is None:
                show_steps(engine.backend, asked.model, report)
                rows = Rows(report, "genre", "temperature", "drafter")
            meter = GenreMeter(engine.backend, engine.drafting)
            for temperature in asked.temp:
                for genre in GENRES:
                    rows.add(_genre_row(meter, genre, temperature, asked, spec, engine.backend))
    return rows.n_different if rows else 0


def _genre_row(
    meter: GenreMeter, genre: Genre, temperature: float, asked: argparse.Namespace, spec: str, backend: Backend
) -> dict[str, Any]:
    found = Found()
    for number in range(asked.repetitions + 1):
        task = GenreTask(genre=genre, n_tokens=asked.tokens, temperature=temperature, number=number)
        pairs = meter.pairs(task, CancelToken())
        if number:
            found.add(pairs)
    about = {"kind": "gain", "model": asked.model, "backend": backend.info.backend, "drafter": spec}
    return found.row(**about, genre=genre, temperature=temperature)


def worst(asked: argparse.Namespace, report: Report) -> int:
    """Adversaries on two texts of the model: what the controller lets them cost."""
    with loaded(asked, "off") as engine:
        backend = engine.backend
        plain_s = show_steps(backend, asked.model, report)
        prompts = [prompt_ids(genre_prompts(genre)[0], backend.info, backend.tokenizer) for genre in ("code", "prose")]
        rows = Rows(report, "adversary", "temperature")
        for one in adversaries():
            for temperature in asked.temp:
                vocab_size = backend.info.vocab_size
                drafter = ScriptedDrafter(one.script, one.n_buckets, vocab_size, one.token_share * plain_s)
                found = followed(
                    backend,
                    drafter,
                    prompts,
                    temperature,
                    n_tokens=asked.tokens,
                    repetitions=asked.repetitions,
                    is_one_thread=asked.threads == 1 and devices()[0].kind == "cpu",
                )
                about = {"kind": "worst", "model": asked.model, "backend": backend.info.backend}
                rows.add(found.row(**about, adversary=one.name, temperature=temperature))
    return rows.n_different


@contextmanager
def random_model(asked: argparse.Namespace) -> Iterator[Backend]:
    """A model of the shape, with random weights, in this process."""
    from random_models import about_bytes, ready, write_directory
    from workplace import workplace

    from runner.backends.native import load

    if not asked.shape.startswith("demo"):
        require_gpu("A model of this size (all but --shape demo)")
    config = config_of(asked.shape, asked.layers)
    options = LoadOptions(backend="native", ctx_size=2048, n_threads=asked.threads, force=True)
    with workplace(asked.work, about_bytes(config)) as work:
        write_directory(work / "model", config, asked.recipe, is_hashed=False)
        backend = load(ready(work / "model"), options, lambda _: None, CancelToken())
        try:
            yield backend
        finally:
            backend.close()


def texts(asked: argparse.Namespace, report: Report) -> int:
    """Random weights of a real shape that write every genre's reference answers: the suffix drafter as it is."""
    from dictation import Dictation

    with random_model(asked) as backend:
        drafting = open_drafting(_SUFFIX, backend, LoadOptions(), _no_model)
        dictation, meter = Dictation(backend), PairMeter(backend, drafting, stop_ids=frozenset())
        show_steps(backend, asked.shape, report)
        rows = Rows(report, "genre", "temperature")
        for temperature in asked.temp:
            for genre in GENRES:
                found = Found()
                for number in range(asked.repetitions + 1):
                    pairs = []
                    for index, prompt in enumerate(genre_prompts(genre)):
                        ids = prompt_ids(prompt, backend.info, backend.tokenizer)
                        answer = backend.tokenizer.encode(prompt.answer, parse_special=False)[: asked.tokens]
                        dictation.put(len(ids), answer)
                        params = SamplingParams(temperature=temperature, seed=index)
                        is_plain_first = (index + number) % 2 == 0
                        pairs.append(
                            meter.pair(ids, params, len(answer) - 1, CancelToken(), is_plain_first=is_plain_first)
                        )
                        assert pairs[-1].plain[1] == tuple(answer), "the model did not write what it was told"
                    if number:
                        found.add(pairs)
                rows.add(found.row(**_about(asked, backend, "texts"), genre=genre, temperature=temperature))
    return rows.n_different


def trace(asked: argparse.Namespace, report: Report) -> int:
    """Random weights of a real shape: every genre's reference answers, guessed as the suffix drafter guesses them."""
    with random_model(asked) as backend:
        show_steps(backend, asked.shape, report)
        rows = Rows(report, "genre", "temperature")
        prompt = random.Random(0).choices(range(1000), k=64)
        for temperature in asked.temp:
            for genre in GENRES:
                script, n_tokens = suffix_script(genre, backend.info, backend.tokenizer)
                drafter = ScriptedDrafter(script, 7, backend.info.vocab_size)
                found = followed(
                    backend,
                    drafter,
                    [prompt],
                    temperature,
                    n_tokens=min(n_tokens, asked.tokens),
                    repetitions=asked.repetitions,
                )
                rows.add(found.row(**_about(asked, backend, "trace"), genre=genre, temperature=temperature))
    return rows.n_different


def _about(asked: argparse.Namespace, backend: Backend, kind: str) -> dict[str, Any]:
    model = {"model": f"{asked.shape} {asked.recipe}", "layers": asked.layers}
    return {"kind": kind, **model, "backend": "native", "device": backend.info.device}


def prompts(asked: argparse.Namespace, report: Report) -> int:
    """Prompts of a file or directory: each once both ways, by category."""
    by_category: dict[str, list[FilePrompt]] = {}
    try:
        for prompt in read_prompts(asked.path):
            by_category.setdefault(prompt.category, []).append(prompt)
    except ValueError as error:
        sys.exit(f"speculation.py: error: {error}")
    if not by_category:
        sys.exit(f"speculation.py: error: there is no prompt in {asked.path}")
    with loaded(asked, asked.spec[0]) as engine:
        backend = engine.backend
        drafting = eager(engine.drafting) if asked.eager else engine.drafting
        meter = PairMeter(backend, drafting)
        rows, n_pairs = Rows(report, "category", "temperature", "drafter"), 0
        for temperature in asked.temp:
            for category, members in by_category.items():
                found = Found()
                pairs = list(_pairs_of(members[: asked.limit], backend, meter, temperature, asked.tokens))
                n_pairs += len(pairs)
                if not pairs:  # all were left out
                    continue
                found.add(pairs)
                about = {"kind": "prompts", "model": asked.model, "backend": backend.info.backend}
                drafter = f"{asked.spec[0]}{', eager' if asked.eager else ''}"
                rows.add(found.row(**about, drafter=drafter, category=category, temperature=temperature))
    if not n_pairs:
        sys.exit("speculation.py: error: there is no prompt that fits the context: nothing was compared")
    return rows.n_different


def _pairs_of(
    members: Sequence[FilePrompt], backend: Backend, meter: PairMeter, temperature: float, n_tokens: int
) -> Iterator[Pair]:
    for index, one in enumerate(members):
        try:
            ids = message_ids(one.text, backend.info, backend.tokenizer, is_raw=one.continues)
        except ContextOverflow as error:
            print(f"left out: {error.message}", file=sys.stderr)
            continue
        params = SamplingParams(temperature=temperature, seed=index)
        yield meter.pair(ids, params, n_tokens, CancelToken(), is_plain_first=index % 2 == 0)


def _no_model() -> Backend:
    raise AssertionError("no model drafts here")


_SUFFIX = DraftChoice(drafter="suffix", reason="it was asked for")
_TOKENS = {"gain": 128, "worst": 256, "texts": 512, "trace": 512, "prompts": 64}
QUESTIONS = {"gain": gain, "worst": worst, "texts": texts, "trace": trace, "prompts": prompts}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    questions = parser.add_subparsers(dest="question", required=True)
    for name, question in QUESTIONS.items():
        one = questions.add_parser(name, help=question.__doc__)
        if name == "prompts":
            one.add_argument("path", type=existing, help="a file of JSON lines, or a directory of them")
            one.add_argument("--limit", type=positive, help="so many prompts of each category")
            one.add_argument("--eager", action="store_true", help="verify every guess, though it may not pay")
        if name in ("texts", "trace"):
            one.add_argument("--shape", choices=[name for name in SHAPES if name != "tiny"], default="llama-3.1-8b")
            one.add_argument("--layers", type=positive, help="fewer than the shape has; rows say so")
            one.add_argument("--recipe", default="mq4")
            one.add_argument("--work", type=Path, help="where the model is made; default: in memory, if there is room")
        else:
            one.add_argument("model", nargs="?", default="demo")
            one.add_argument("--backend", default="auto")
            one.add_argument("--spec", nargs="+", default=["suffix"])
            one.add_argument("--draft", help="the model that drafts, for --spec model")
            one.add_argument("--draft-max", type=int, default=LONGEST_DRAFT)
            one.add_argument("-c", "--ctx-size", type=positive)
        one.add_argument("--temp", type=float, nargs="+", default=[0.0, 0.7])
        one.add_argument("--tokens", type=positive, default=_TOKENS[name])
        one.add_argument("-r", "--repetitions", type=positive, default=5)
        one.add_argument("-t", "--threads", type=positive)
        add_arguments(one)
    return parser.parse_args()


def main() -> None:
    asked = parse()
    where = origin(asked.commit, _device())
    say(where)
    try:
        n_different = QUESTIONS[asked.question](asked, Report("speculation", where, asked.json))
    except RunnerError as error:
        sys.exit(f"speculation.py: error: {error.message} {error.hint}".rstrip())
    if n_different:
        sys.exit(f"{n_different} answers differ: speculation changed a text.")


def _device() -> str:
    found = devices()[0]
    return found.name if found.kind != "cpu" else f"{cpu_info().model}, {cpu_info().usable_cores} cores"


if __name__ == "__main__":
    main()
