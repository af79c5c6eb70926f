"""What the user wants of a bench: sizes, genres, repetitions and how to load, every default in one place.

It reads options as they are written and knows no test, no process and no clock.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar, cast, get_args

from runner.bench.record import BenchOptions, Genre
from runner.config import LoadOptions, SamplingParams, objection
from runner.errors import UsageError, nearest_hint
from runner.types import BackendName

T = TypeVar("T")

GENRES: Final = cast("tuple[Genre, ...]", get_args(Genre))
DEFAULT_PROMPTS: Final = (512,)
DEFAULT_GEN: Final = (128,)
DEFAULT_DEPTHS: Final = (0, 4096)
DEFAULT_ANSWERS: Final = (128,)
DEFAULT_REPETITIONS: Final = 5
DEFAULT_BUDGET_S: Final = 40.0  # of a run: with its loads the demo's takes less than a minute, beside other work too
_LARGEST: Final = 2**20


@dataclass(frozen=True, kw_only=True)
class BenchRequest:
    """What the user wants. None: not said, so that the defaults hold, and give way where a machine is too slow.

    backends: () is every one that can run; with genres it is the one that chats use. is_random: the model's weights
    are, so that its text is not judged. genres: what to write with speculation on and off, at those temperatures, in
    place of prefill and decode; n_gen is then the length of an answer. is_kv_chosen: somebody said load.kv_type.
    """

    model: str
    load: LoadOptions
    n_prompt: tuple[int, ...] | None = None
    n_gen: tuple[int, ...] | None = None
    depths: tuple[int, ...] | None = None
    repetitions: int | None = None
    backends: tuple[BackendName, ...] = ()
    is_random: bool = False
    offline: bool = False
    genres: tuple[Genre, ...] = ()
    temperatures: tuple[float, ...] = (0.0,)
    is_kv_chosen: bool = True

    def __post_init__(self) -> None:
        if self.genres:
            self._check_genres()
        for option, values, least in (("-p", self.n_prompt, 0), ("-n", self.n_gen, 0), ("-d", self.depths, 0)):
            for value in values or ():
                if not least <= value <= _LARGEST:
                    raise UsageError(f"{option} is {value}.", hint=f"It must be from {least} to {_LARGEST} tokens.")
        if self.repetitions is not None and not 1 <= self.repetitions <= 1000:
            raise UsageError(f"-r is {self.repetitions}.", hint="It must be from 1 to 1000 repetitions.")
        if not any((*self.prompts, *self.generations)):
            raise UsageError("There is nothing to measure.", hint="Give sizes above 0, such as -p 512 -n 128.")

    def _check_genres(self) -> None:
        if self.n_prompt is not None or self.depths is not None:
            raise UsageError("-p and -d have no meaning for speculation.", hint="Give the length of answers: -n 128.")
        if self.load.speculation == "off":
            raise UsageError("Speculation is off.", hint="Choose what drafts: --spec auto.")
        for name in self.genres:
            if name not in GENRES:
                raise UsageError(f"There is no genre {name!r}.", hint=nearest_hint(name, GENRES))
        for value in self.temperatures:
            if hint := objection(SamplingParams, "temperature", value):
                raise UsageError(f"--temp is {value:g}.", hint=hint)

    @property
    def prompts(self) -> tuple[int, ...]:
        default = () if self.genres else DEFAULT_PROMPTS
        return _without_repeats(default if self.n_prompt is None else self.n_prompt)

    @property
    def generations(self) -> tuple[int, ...]:
        default = DEFAULT_ANSWERS if self.genres else DEFAULT_GEN
        return _without_repeats(default if self.n_gen is None else self.n_gen)

    def options(self) -> BenchOptions:
        """As they are recorded, every default filled in."""
        return BenchOptions(
            n_prompt=tuple(n for n in self.prompts if n),
            n_gen=tuple(n for n in self.generations if n),
            depths=(0,) if self.genres else _without_repeats(DEFAULT_DEPTHS if self.depths is None else self.depths),
            prefill_depths=(0,) if self.depths is None else _without_repeats(self.depths),
            repetitions=self.repetitions or DEFAULT_REPETITIONS,
            backends=self.backends or ("auto",),
            kv_type=self.load.kv_type,
            ctx_size=self.load.ctx_size,
            n_gpu_layers=self.load.n_gpu_layers,
            n_threads=self.load.n_threads,
            batch_size=self.load.batch_size,
            budget_s=DEFAULT_BUDGET_S if self.repetitions is None else None,
            is_random=self.is_random,
            genres=self.genres,
            temperatures=_without_repeats(self.temperatures) if self.genres else (),
            speculation=self.load.speculation if self.genres else "off",
            draft=self.load.draft if self.genres else None,
            draft_max=self.load.draft_max if self.genres else None,
            draft_file=self.load.draft_file if self.genres else (),
        )


def temperature_list(text: str | None) -> tuple[float, ...]:
    """The value of --temp: numbers; 0 when not said. Raises UsageError."""
    try:
        return tuple(float(part) for part in (text or "0").split(","))
    except ValueError:
        raise UsageError(f"--temp is {text!r}.", hint="Give temperatures, such as --temp 0,0.7.") from None


def genre_list(text: str | None) -> tuple[Genre, ...]:
    """The value of --genres; every genre when not said. BenchRequest checks the names."""
    names = [part.strip() for part in text.split(",")] if text is not None else GENRES
    return cast("tuple[Genre, ...]", tuple(dict.fromkeys(names)))


def token_counts(option: str, text: str | None) -> tuple[int, ...] | None:
    """The value of -p, -n or -d, as `option` is called: numbers of tokens; None when not said. Raises UsageError."""
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"{option} is {text!r}.", hint=f"Give numbers of tokens, such as {option} 128,512.") from None


def request_like(options: BenchOptions, model: str, load: LoadOptions, *, offline: bool = False) -> BenchRequest:
    """The request for `model` that is recorded as `options`; what they do not say of loading is taken from `load`."""
    is_default_depth = (options.depths, options.prefill_depths) == (DEFAULT_DEPTHS, (0,))
    default_gen = DEFAULT_ANSWERS if options.genres else DEFAULT_GEN
    drafting: dict[str, Any] = {}
    if options.genres:
        drafting = {name: getattr(options, name) for name in ("speculation", "draft", "draft_max", "draft_file")}
    return BenchRequest(
        model=model,
        load=dataclasses.replace(
            load,
            kv_type=options.kv_type,
            ctx_size=options.ctx_size,
            n_gpu_layers=cast("int | Literal['auto', 'all']", options.n_gpu_layers),
            n_threads=options.n_threads,
            batch_size=options.batch_size,
            **drafting,
        ),
        n_prompt=None if options.genres or options.n_prompt == DEFAULT_PROMPTS else options.n_prompt or (0,),
        n_gen=None if options.n_gen == default_gen else options.n_gen or (0,),
        depths=None if options.genres or is_default_depth else options.depths,
        repetitions=None if options.budget_s is not None else options.repetitions,
        backends=() if options.backends == ("auto",) else cast("tuple[BackendName, ...]", options.backends),
        is_random=options.is_random,
        offline=offline,
        genres=options.genres,
        temperatures=options.temperatures or (0.0,),
    )


def _without_repeats(values: Sequence[T]) -> tuple[T, ...]:
    return tuple(dict.fromkeys(values))
