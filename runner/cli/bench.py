"""`runner bench MODEL`: how fast a model runs here; `bench history`, `show`, `compare`, `export`: earlier runs.

It reads the options, shows progress and hands the run on; measuring is runner.bench's, reports are bench_reports.py's.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args

import typer

from runner.cli import bench_earlier, bench_reports, options, render
from runner.cli.app import new_app
from runner.cli.command import Command
from runner.cli.help_layout import Context, Group
from runner.config import BACKENDS, BackendChoice
from runner.errors import RunnerError, UnknownModel, UsageError, nearest, nearest_hint

if TYPE_CHECKING:
    from runner.bench.record import BenchRun, Genre
    from runner.bench.request import BenchRequest
    from runner.types import BackendName

_MEASURE = "measure"
_FORMATS_ELSEWHERE = {"--csv": "csv", "--md": "md", "--markdown": "md", "--jsonl": "jsonl"}
_BACKENDS = tuple(name for name in BACKENDS if name != "auto")


class _MeasureUnlessNamed(Group):
    """What is no name of a command is a model to measure, or an option of measuring."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        is_named = bool(args) and args[0] in self.commands
        return super().parse_args(ctx, args if is_named else [_MEASURE, *args])


class _GroupsContext(Context):
    """A context that goes by the group's name."""

    @property
    def command_path(self) -> str:
        return str(self.parent.command_path)


class _AsTheGroup(Command):
    """Shown under the group's name, which is how it is called."""

    context_class = _GroupsContext

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """What other programs take as an option of its own is a value of --format here."""
        for arg in args[: args.index("--") if "--" in args else len(args)]:
            if arg in _FORMATS_ELSEWHERE and not ctx.resilient_parsing:
                raise UsageError(f"No such option: {arg}", hint=f"Give --format {_FORMATS_ELSEWHERE[arg]}.")
        return super().parse_args(ctx, args)


app = new_app(cls=_MeasureUnlessNamed, help="Measure how fast a model runs here, and compare runs.")
_EARLIER: dict[str, Callable[..., None]] = {
    "history": bench_earlier.history,
    "show": bench_earlier.show,
    "compare": bench_earlier.compare,
    "export": bench_earlier.export,
}
for _name, _function in _EARLIER.items():
    app.command(_name)(_function)


@app.command(
    _MEASURE,
    cls=_AsTheGroup,
    hidden=True,
    epilog="runner bench history, show, compare and export look at earlier runs; each has its own --help.",
)
def measure(
    model: options.ModelArgument = None,
    n_prompt: Annotated[
        str | None, typer.Option("-p", "--pp", "--n-prompt", metavar="N,..", help="Prefill so many tokens; 0 is none.")
    ] = None,
    n_gen: Annotated[
        str | None,
        typer.Option(
            "-n",
            "--tg",
            "--n-gen",
            metavar="N,..",
            help="Decode so many tokens; 0 is none. With --speculation, the longest answer.",
        ),
    ] = None,
    depths: Annotated[
        str | None,
        typer.Option("-d", "--depth", "--n-depth", metavar="N,..", help="With so many tokens in the KV cache before."),
    ] = None,
    repetitions: Annotated[
        int | None, typer.Option("-r", "--repetitions", metavar="N", help="How often each test is made, over all.")
    ] = None,
    backend: Annotated[
        str | None,
        typer.Option(
            "--backend",
            metavar="NAME,..",
            help="These alone, in this order: native, llamacpp; every one that can run when left out.",
            autocompletion=lambda: list(_BACKENDS),
        ),
    ] = None,
    ctx_size: options.CtxSize = None,
    n_gpu_layers: options.GpuLayers = None,
    kv_type: options.KvType = None,
    threads: options.Threads = None,
    speculation: Annotated[
        bool,
        typer.Option(
            "--speculation", help="Measure what drafting gains: texts of each genre with speculation and without."
        ),
    ] = False,
    genres: Annotated[
        str | None,
        typer.Option("--genres", metavar="NAME,..", help="With --speculation: of code, prose, instruct, maths these."),
    ] = None,
    temperatures: Annotated[
        str | None,
        typer.Option("--temp", metavar="T,..", help="With --speculation: at these temperatures; 0 when left out."),
    ] = None,
    spec: options.Spec = None,
    draft: options.Draft = None,
    draft_max: options.DraftMax = None,
    draft_file: options.DraftFiles = None,
    is_random: Annotated[
        bool, typer.Option("--random-weights", help="The model's weights are random: do not judge its text.")
    ] = False,
    form: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="table|md|json|jsonl|csv",
            help="How the report is written to stdout. [default: table]",
            autocompletion=lambda: ["table", "md", "json", "jsonl", "csv"],
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
    baseline: Annotated[
        str | None,
        typer.Option(
            "--baseline",
            metavar="last|ID",
            help="Compare with an earlier run.",
            autocompletion=lambda: ["last"],
        ),
    ] = None,
    fail_below: Annotated[
        str | None,
        typer.Option("--fail-below", metavar="P%", help="Exit 1 when a row is slower than the baseline by more."),
    ] = None,
    plot: Annotated[Path | None, typer.Option("--plot", metavar="FILE", help="Draw the rows into FILE (.svg).")] = None,
    no_save: Annotated[bool, typer.Option("--no-save", help="Do not add this run to the history.")] = False,
    force: options.Force = False,
    offline: options.Offline = None,
    quiet: options.Quiet = False,
) -> None:
    """Measure how fast a model runs here: prefill, decode, decode at depth, and the time to the first text.

    Every backend that can run it does, each in a fresh process, there and back (A B B A), five times over, after a
    warm-up that is shown as cold. What would take this machine too long is made smaller, and said.

    With --speculation it writes on texts of each genre instead, with drafts and without, in the backend that chats use.
    """
    from runner.bench.request import token_counts
    from runner.paths import user_paths

    render.configure(quiet=quiet)
    form = bench_reports.form_of(form, as_json=as_json)
    before = bench_reports.check_options(baseline, fail_below, plot)
    request = _request(
        model,
        sizes=tuple(token_counts(name, text) for name, text in (("-p", n_prompt), ("-n", n_gen), ("-d", depths))),
        repetitions=repetitions,
        backends=_backends(backend),
        is_random=is_random,
        offline=offline,
        genres=_genres(speculation, genres, temperatures, (spec, draft, draft_max, draft_file or None)),
        temperatures=temperatures,
        load={
            "ctx_size": ctx_size,
            "n_gpu_layers": options.gpu_layers(n_gpu_layers),
            "kv_type": kv_type,
            "n_threads": threads,
            "speculation": spec,
            "draft": draft,
            "draft_max": draft_max,
            "draft_file": draft_file or None,
            "force": force or None,
        },
    )
    paths = user_paths()
    try:
        run = _measured(request, as_json=form in ("json", "jsonl"))
    except UnknownModel as error:
        raise _perhaps_a_command(error, request.model) from error
    # First of all: showing it may fail.
    is_kept = bool(run.rows) and not no_save and bench_reports.keep_run(run, paths)
    try:
        bench_reports.show_run(run, form)
    except SystemExit:  # whoever read it went away: the exit code still says what was found
        pass
    if not run.rows:
        hint = "What was skipped says why; `runner bench` without --speculation measures the model itself."
        hint = hint if request.genres else "Give other -p, -n, -d or -c."
        raise RunnerError("Nothing was measured: every test was left out.", hint=hint)
    is_slower = baseline is not None and bench_reports.compare_with_baseline(run, before, fail_below, paths)
    if plot is not None:
        bench_reports.write_plot(run, plot, kept_as=run.id if is_kept else "")
    if run.is_partial:
        raise typer.Exit(130)
    if is_slower or run.is_invalid:
        raise typer.Exit(1)


def _perhaps_a_command(error: UnknownModel, name: str) -> UnknownModel:
    """The same for a name that is nearly one of the commands, which it may have been meant for."""
    near = nearest(name, _EARLIER)
    meant = f"`runner bench {near[0]}` looks at earlier runs. " if near else ""
    return UnknownModel(error.message, hint=f"{meant}{error.hint}")


def _request(
    model: str | None,
    *,
    sizes: tuple[tuple[int, ...] | None, ...],
    repetitions: int | None,
    backends: tuple[BackendName, ...],
    is_random: bool,
    offline: bool | None,
    genres: tuple[Genre, ...],
    temperatures: str | None,
    load: dict[str, Any],
) -> BenchRequest:
    from runner.bench.request import BenchRequest, temperature_list
    from runner.paths import user_paths
    from runner.settings import load_settings

    settings = load_settings(user_paths())
    n_prompt, n_gen, depths = sizes
    return BenchRequest(
        model=options.model_name(model, default=settings.model),
        load=settings.load_options(**load),
        n_prompt=n_prompt,
        n_gen=n_gen,
        depths=depths,
        repetitions=repetitions,
        backends=backends,
        is_random=is_random,
        offline=settings.is_offline(offline),
        genres=genres,
        temperatures=temperature_list(temperatures),
        is_kv_chosen=load["kv_type"] is not None or "kv_type" in settings.given,
    )


def _genres(
    is_asked: bool, genres: str | None, temperatures: str | None, drafting: tuple[object, ...]
) -> tuple[Genre, ...]:
    """The genres to be measured; () without --speculation, to which all these flags belong. Raises UsageError."""
    from runner.bench.request import genre_list

    if is_asked:
        return genre_list(genres)
    if any(value is not None for value in (genres, temperatures, *drafting)):
        raise UsageError(
            "--genres, --temp, --spec, --draft, --draft-max and --draft-file have a meaning with --speculation alone.",
            hint="Prefill and decode are measured without drafts, greedily.",
        )
    return ()


def _backends(text: str | None) -> tuple[BackendName, ...]:
    """The value of --backend; () for every one. Raises UsageError."""
    names = ["auto"] if text is None else [part.strip() for part in text.split(",")]
    if names == ["auto"]:
        return ()
    for name in names:
        if name not in get_args(BackendChoice) or name == "auto":
            raise UsageError(f"There is no backend {name!r}.", hint=nearest_hint(name, _BACKENDS))
    return cast("tuple[BackendName, ...]", tuple(dict.fromkeys(names)))


def _measured(request: BenchRequest, *, as_json: bool) -> BenchRun:
    """The run, with its progress on stderr. Ctrl+C ends it: what was measured until then is a partial run."""
    from runner.bench.events import BenchFinished
    from runner.bench.run import run_bench
    from runner.cli.bench_live import Live
    from runner.cli.interrupt import cancelling
    from runner.paths import user_paths

    with Live(as_json) as live, cancelling(live.say_nothing_is_kept, live.stopping) as token:
        for event in run_bench(request, user_paths(), token):
            if isinstance(event, BenchFinished):
                if event.run.is_partial:
                    live.say("Stopped: the report has what was measured until then.")
                return event.run
            live.show(event)
    raise RunnerError("The benchmark ended without a result.")
