"""`runner eval MODEL --against REFERENCE --text FILE`: perplexity, and how far a model is from its reference.

It reads the texts, shows progress and the figures; measuring is runner.evaluation's.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from runner.cli import completing, options, render
from runner.cli.interrupt import stopping
from runner.config import BACKENDS
from runner.errors import UsageError

if TYPE_CHECKING:
    from runner.evaluation.bits import BitsPerWeight
    from runner.evaluation.intervals import Estimate
    from runner.evaluation.report import MeasuredModel, Measuring, Report, Text, TextResult
    from runner.events import LoadEvent

_STDIN = Path("-")


def evaluate(
    model: options.ModelArgument = None,
    texts: Annotated[
        list[Path] | None,
        typer.Option("--text", metavar="FILE", help="A UTF-8 text to measure on; repeatable; - is stdin."),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            "--against",
            metavar="REFERENCE",
            help="The model to compare with; same vocabulary.",
            autocompletion=completing.models,
        ),
    ] = None,
    window: Annotated[int, typer.Option("--window", metavar="N", help="Tokens that are read together.")] = 512,
    windows: Annotated[
        str, typer.Option("--windows", metavar="N|all", help="The first N windows of each text, or all.")
    ] = "all",
    stride: Annotated[
        int | None,
        typer.Option(
            "--stride", metavar="N", help="From one window's start to the next one's; the window when left out."
        ),
    ] = None,
    context: Annotated[
        int | None,
        typer.Option(
            "--context",
            metavar="N",
            help="Tokens read and not scored in each window; one more than half when left out.",
        ),
    ] = None,
    parse_special: Annotated[
        bool, typer.Option("--parse-special", help='Read control tokens such as "<|im_end|>" in the text as such.')
    ] = False,
    backend: options.Backend = None,
    reference_backend: Annotated[
        str | None,
        typer.Option(
            "--reference-backend",
            metavar="|".join(BACKENDS),
            help="What runs the reference.",
            autocompletion=lambda: list(BACKENDS),
        ),
    ] = None,
    n_gpu_layers: options.GpuLayers = None,
    kv_type: options.KvType = None,
    threads: options.Threads = None,
    two_pass: Annotated[
        bool, typer.Option("--two-pass", help="Run the reference first, alone, even when both models fit.")
    ] = False,
    keep_logits: Annotated[
        Path | None,
        typer.Option("--keep-logits", metavar="FILE", help="Keep the reference's logits, for the next models."),
    ] = None,
    force: options.Force = False,
    offline: options.Offline = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Measure perplexity on a text, and with --against how far the model's answers are from another's.

    Each window of 512 tokens is read afresh, and its last 255 tokens are scored, as llama.cpp's perplexity tool does.
    Figures come with 95 % confidence intervals for texts like the one given.
    """
    from runner.evaluation.process import evaluate_apart
    from runner.evaluation.report import Request
    from runner.evaluation.windows import Windowing
    from runner.paths import user_paths
    from runner.settings import load_settings

    render.configure(quiet=quiet)
    paths = user_paths()
    settings = load_settings(paths)
    of_reference = {"--reference-backend": reference_backend, "--two-pass": two_pass, "--keep-logits": keep_logits}
    if against is None and (flag := next((flag for flag, given in of_reference.items() if given), "")):
        raise UsageError(f"{flag} is about a reference.", hint="Name the reference with --against.")
    shared = {
        "n_gpu_layers": options.gpu_layers(n_gpu_layers),
        "kv_type": kv_type,
        "n_threads": threads,
        "force": force or None,
    }
    request = Request(
        model=options.model_name(model, default=settings.model),
        reference=against,
        windowing=Windowing(size=window, stride=stride, context=context, limit=_limit(windows)),
        texts=_read_texts(texts or []),
        options=settings.load_options(backend=backend, **shared),
        reference_options=settings.load_options(backend=reference_backend, **shared),
        parse_special=parse_special,
        offline=settings.is_offline(offline),
        two_pass=two_pass,
        kept_logits=keep_logits and keep_logits.absolute(),
    )
    display = _Display(as_json=as_json)
    with stopping(lambda: _say_stopped(display, request.kept_logits)), display:
        report = evaluate_apart(request, paths, display)
    if as_json:
        from runner.wire import to_plain

        render.emit_json("runner.eval/1", to_plain(report))
    else:
        _show(report)


def _limit(text: str) -> int | None:
    """The value of --windows. Raises UsageError."""
    if text == "all":
        return None
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"--windows is {text!r}.", hint="It must be a number of windows, or all.") from None


# --- texts -----------------------------------------------------------------------------------------------------------


def _read_texts(files: list[Path]) -> tuple[Text, ...]:
    from runner.evaluation.report import Text

    if not files:
        raise UsageError(
            "There is no text to measure on.", hint="Give one: --text FILE, or --text - for what is piped in."
        )
    if files.count(_STDIN) > 1:
        raise UsageError("--text - is given twice.", hint="stdin can be read once.")
    return tuple(Text(name=_name(file), content=_read(file)) for file in files)


def _name(file: Path) -> str:
    return "stdin" if file == _STDIN else file.name


def _read(file: Path) -> str:
    """The text of a file. Raises UsageError for what cannot be read, or is not UTF-8: replaced characters would be
    measured as well."""
    try:
        raw = sys.stdin.buffer.read() if file == _STDIN else file.read_bytes()
    except (OSError, RuntimeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        hint = "Give the name of a text file, or - for what is piped in."
        raise UsageError(f"{file} cannot be read: {reason}.", hint=hint) from error
    try:
        if b"\0" not in raw:
            return raw.decode("utf-8-sig")
        what = "it has zero bytes"
    except UnicodeDecodeError as error:
        what = f"byte {error.start} is not UTF-8"
    raise UsageError(f"{_name(file)} is not plain text: {what}.", hint="Convert it to UTF-8 text first.")


# --- showing ---------------------------------------------------------------------------------------------------------


class _Display:
    """Shows events of the evaluation as they come: getting models ready, then one bar for all that is measured."""

    def __init__(self, *, as_json: bool) -> None:
        from runner.cli.loading import Narrator

        self._as_json = as_json
        self._narrator = Narrator(as_json=as_json)
        self._bar: render.Progress | None = None

    @property
    def is_measuring(self) -> bool:
        return self._bar is not None

    def __enter__(self) -> _Display:
        return self

    def __exit__(self, *_: object) -> None:
        self._narrator.__exit__()
        if self._bar is not None:
            self._bar.close()

    def __call__(self, event: LoadEvent | Measuring) -> None:
        from runner.cli.loading import show_notice
        from runner.evaluation.report import Measuring
        from runner.events import Notice

        if not isinstance(event, Measuring):
            if self._bar is None:
                self._narrator(event)
            elif isinstance(event, Notice):  # loading the second model is a small part of the bar that is there
                self._bar.close()
                show_notice(event)
            return
        if self._bar is None:
            self._narrator.__exit__()
            self._bar = render.Progress("Measuring", event.total, unit="tokens", as_json=self._as_json)
        self._bar.update(event.done, event.total)


def _say_stopped(display: _Display, kept_logits: Path | None) -> None:
    if not display.is_measuring:
        render.narrate("Stopped before anything was measured. What was fetched is kept.")
    elif kept_logits is not None and kept_logits.is_file():
        render.narrate(
            f"Stopped. The reference's logits are kept in {kept_logits}: the same command goes on with them."
        )
    else:
        render.narrate(
            "Stopped. Nothing is kept of what was measured: the same command starts over. --windows N measures less."
        )


def _show(report: Report) -> None:
    reference = report.reference
    for role, measured in (("model", report.model), *((("reference", reference),) if reference else ())):
        render.data(f"{role:<9}  {_described(measured)}")
    windowing = report.windowing
    scored = f"{windowing.n_scored} tokens scored in each window of {windowing.size}"
    render.data(f"{'measured':<9}  {scored}, {render.duration(report.duration_s)}")
    for result in report.results:
        render.data("")
        render.table(["", "VALUE", "95 % INTERVAL"], _rows(result), right=[1])
    if any(result.perplexity.low is None for result in report.results):
        render.narrate("So few windows give no confidence interval: measure more of them, or a longer text.")


def _described(measured: MeasuredModel) -> str:
    bits = measured.bits
    parts = [measured.name, measured.quantization, *([_bits(bits)] if bits else []), measured.backend, measured.device]
    return " · ".join(part for part in parts if part)


def _bits(bits: BitsPerWeight) -> str:
    return f"{bits.total:.2f} bits a weight ({bits.body:.2f} without embeddings and output)"


def _rows(result: TextResult) -> list[list[str]]:
    against = result.against
    windows = "1 window" if result.n_windows == 1 else f"{result.n_windows} windows"
    heading = [f"{result.text}: {windows}, {result.n_scored} tokens", "", ""]
    rows = [heading, _row("perplexity", result.perplexity, "{:.4f}")]
    if against is not None:
        rows += [
            _row("perplexity of the reference", against.reference_perplexity, "{:.4f}"),
            _row("ratio of perplexities", against.perplexity_ratio, "{:.5f}"),
            _row("mean KL divergence", against.mean_kld, "{:.6f}"),
            _row("99 % KL divergence", against.kld_99, "{:.5f}"),
            ["largest KL divergence", f"{against.max_kld:.5f}", ""],
            _row("same likeliest token", against.same_top, "{:.2%}"),
            _row("RMS difference in probability", against.rms_delta_p, "{:.3%}"),
        ]
    return rows


def _row(name: str, estimate: Estimate, form: str) -> list[str]:
    low, high = estimate.low, estimate.high
    interval = "" if low is None or high is None else f"{form.format(low)} .. {form.format(high)}"
    return [name, form.format(estimate.value).replace("%", " %"), interval.replace("%", " %")]
