"""How good each weight format is: `python benchmarks/quality.py --model DIR --text FILE -o OUT` writes OUT/QUALITY.md.

    python benchmarks/quality.py --model DIR [--text FILE ...] [--windows 20] [--formats q4_0 mq4 ...] [-o docs]

Every format of FORMATS is made from the same source, a Hugging Face directory in bf16, by `runner quantize`, and
measured against the source by `runner eval` on every text; the source's logits are computed once. OUT gets QUALITY.md,
quality.json (every number) and plots as SVG and PNG (they take `pip install 'runner[plots]'`). What is made lies in the
work directory, and what is there already with the same inputs is not made again; --again does it all anew.
--weights-alone also runs llama.cpp's formats, decoded to float32, where the source runs: llama.cpp rounds activations
too, and so its formats' divergence is not of the weights alone. Without --text it measures on this project's own
documentation, which is small: the table then says little of other texts.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import dense_weights
import quality_page
import quality_plots
import synthetic_weights
from arguments import existing, positive

import runner
from runner.evaluation.weight_error import layer_matrices, mean_relative_error, relative_error
from runner.model_config import parse_model_config
from runner.quant.json_file import read_json
from runner.quant.packed_files import MANIFEST_NAME, WEIGHTS_NAME
from runner.quant.weights import open_source

CHECKOUT = Path(__file__).parent.parent
RUNNER = (sys.executable, "-c", "import sys; from runner.cli.app import main; sys.exit(main())")
DOCUMENTATION = ("README.md", "CONTRIBUTING.md", "docs/ARCHITECTURE.md", "docs/BENCHMARKS.md", "docs/LOG.md")


@dataclass(frozen=True)
class Format:
    """A row of the table: what it is called, and what `runner quantize` is told. family: its colour in the plots."""

    name: str
    family: str
    arguments: tuple[str, ...]


FORMATS = (
    Format("Q8_0", "llama.cpp", ("--format", "q8_0")),
    Format("Q6_K", "llama.cpp", ("--format", "q6_k")),
    Format("Q4_K_M", "llama.cpp", ("--format", "q4_k_m")),
    Format("Q4_0", "llama.cpp", ("--format", "q4_0")),
    Format("mq4-hipfire", "hipfire", ("--format", "mq4-hipfire")),
    Format("mq4, not calibrated", "runner", ("--format", "mq4", "--no-calibrate")),
    Format("mq4", "runner", ("--format", "mq4")),
    Format("mq4-uniform", "runner", ("--format", "mq4-uniform")),
    Format("mq4 at 4.5 bpw", "runner", ("--format", "mq4", "--bpw", "4.5")),
    Format("mq6", "runner", ("--format", "mq6")),
    Format("mq8", "runner", ("--format", "mq8")),
)


@dataclass(frozen=True)
class Inputs:
    """Everything that the figures follow from, but for the format."""

    model: Path
    texts: tuple[Path, ...]
    window: int
    windows: str
    threads: int | None
    weights_alone: bool
    parse_special: bool

    @property
    def eval_arguments(self) -> list[str]:
        texts = [word for text in self.texts for word in ("--text", str(text))]
        threads = [] if self.threads is None else ["--threads", str(self.threads)]
        special = ["--parse-special"] if self.parse_special else []
        return [*texts, "--window", str(self.window), "--windows", self.windows, *threads, *special]

    def key(self, *more: object) -> str:
        """A name for these inputs: contents of the texts, sizes and times of the source's files."""
        texts = [hashlib.sha256(text.read_bytes()).hexdigest() for text in self.texts]
        files = sorted((path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in self.model.iterdir())
        asked = [
            runner.__version__,
            texts,
            files,
            self.window,
            self.windows,
            self.parse_special,
            *more,
        ]  # not the threads
        return hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:16]


def command(*arguments: str) -> dict[str, Any]:
    """Run one command of runner, quietly; its JSON object is returned. Raises RuntimeError with what it said."""
    done = subprocess.run([*RUNNER, *arguments, "--json", "-q"], capture_output=True, text=True)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.lower().startswith("error: ")]
        raise RuntimeError(lines[-1] if lines else f"runner {arguments[0]} ended with {done.returncode}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def measured(form: Format, inputs: Inputs, work: Path, *, again: bool) -> dict[str, Any]:
    """One row: how the format was made, and its report. Kept in the work directory under the key of its inputs."""
    slug = form.name.lower().replace(",", "").replace(" ", "-")
    built_key, key = inputs_of_build(form, inputs), inputs.key(form.arguments, inputs.weights_alone)
    kept = work / f"{slug}-{key}.json"
    if kept.is_file() and not again:
        row: dict[str, Any] = json.loads(kept.read_text())
        return row
    target, made_file = work / f"{slug}-{built_key}", work / f"{slug}-{built_key}-made.json"
    if again or not (made_file.is_file() and target.exists()):
        made = command("quantize", str(inputs.model), *form.arguments, "-o", str(target), "--force")
        made_file.write_text(json.dumps(made))
    made = json.loads(made_file.read_text())
    row = {
        **asdict(form),
        "made": made,
        "weight_error": weight_error(inputs.model, target),
        "report": report_of(target, inputs, work),
        "weights_alone": None,
    }
    if inputs.weights_alone and (gguf := next(target.glob("*.gguf"), None)):
        with tempfile.TemporaryDirectory(dir=work) as dense:
            row["weights_alone"] = report_of(dense_weights.write_dense(inputs.model, gguf, Path(dense)), inputs, work)
    kept.write_text(json.dumps(row))
    return row


def report_of(model: Path, inputs: Inputs, work: Path) -> dict[str, Any]:
    """The model against the source, whose logits are computed the first time."""
    logits = str(work / f"reference-{inputs.key()}.logits")
    return command("eval", str(model), "--against", str(inputs.model), "--keep-logits", logits, *inputs.eval_arguments)


def inputs_of_build(form: Format, inputs: Inputs) -> str:
    """A name for what a format is made from: not the texts."""
    return Inputs(inputs.model, (), 0, "", None, False, False).key(form.arguments)


def weight_error(source: Path, stored: Path) -> float:
    """The mean relative error of the layers' matrices: as the manifest says, or decoded and compared."""
    config = parse_model_config(read_json(source / "config.json"))
    original = open_source(source, None, config)
    names = layer_matrices(original)
    if (stored / WEIGHTS_NAME).is_file():
        tensors = read_json(stored / MANIFEST_NAME)["tensors"]
        errors = {name: float(tensors[name]["weight_error"] or 0) for name in names}
    else:
        weights = open_source(stored, next(stored.glob("*.gguf")), config)
        errors = {name: relative_error(original, weights, name) for name in names}
    return mean_relative_error(errors, original.shapes)


def documentation(work: Path) -> Path:
    """This project's own documentation as one text."""
    path = work / "documentation.txt"
    path.write_text("\n\n".join((CHECKOUT / name).read_text(encoding="utf-8") for name in DOCUMENTATION))
    return path


def synthetic_rows(work: Path, *, again: bool) -> list[dict[str, Any]]:
    """The table over synthetic matrices, kept in the work directory too."""
    kept = work / f"synthetic-{runner.__version__}.json"
    if again or not kept.is_file():
        kept.write_text(json.dumps(synthetic_weights.measure()))
    rows: list[dict[str, Any]] = json.loads(kept.read_text())
    return rows


def rows_of(wanted: Sequence[Format], inputs: Inputs, work: Path, *, again: bool) -> tuple[list[Any], dict[str, str]]:
    """The rows, and of the formats that cannot be made or measured why."""
    rows, failed = [], {}
    for form in wanted:
        print(f"{form.name} …", end=" ", flush=True)
        try:
            rows.append(measured(form, inputs, work, again=again))
        except RuntimeError as error:
            failed[form.name] = str(error)
            print(f"failed: {error}")
            continue
        klds = (result["against"]["mean_kld"]["value"] for result in rows[-1]["report"]["results"])
        print("mean KLD", ", ".join(f"{kld:.5f}" for kld in klds))
    return rows, failed


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=existing, required=True, help="a Hugging Face directory in bf16 or f16")
    parser.add_argument("--text", type=existing, action="append", help="a UTF-8 text; repeatable")
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--windows", default="20", help="of each text, or all")
    parser.add_argument("--threads", type=positive)
    parser.add_argument("--formats", nargs="+", metavar="NAME", help="only these rows of the table")
    parser.add_argument("--weights-alone", action="store_true", help="also llama.cpp's formats decoded to float32")
    parser.add_argument("--parse-special", action="store_true", help="the texts have control tokens, as chats do")
    parser.add_argument("--work", type=Path, default=Path.home() / ".cache" / "runner-quality")
    parser.add_argument("--again", action="store_true", help="make and measure everything anew")
    parser.add_argument("-o", "--output", type=Path, default=Path("quality"))
    return parser.parse_args()


def main() -> int:
    asked = parse()
    asked.work.mkdir(parents=True, exist_ok=True)
    asked.output.mkdir(parents=True, exist_ok=True)
    texts = tuple(asked.text or [documentation(asked.work)])
    inputs = Inputs(
        asked.model.resolve(),
        texts,
        asked.window,
        asked.windows,
        asked.threads,
        asked.weights_alone,
        asked.parse_special,
    )
    known = {form.name.lower(): form for form in FORMATS}
    if unknown := [name for name in asked.formats or [] if name.lower() not in known]:
        print(f"There is no format {unknown[0]!r}; there are: {', '.join(form.name for form in FORMATS)}.")
        return 2
    wanted = [known[name.lower()] for name in asked.formats] if asked.formats else list(FORMATS)
    rows, failed = rows_of(wanted, inputs, asked.work, again=asked.again)
    synthetic = synthetic_rows(asked.work, again=asked.again)
    data = {
        "model": inputs.model.name,
        "version": runner.__version__,
        "rows": [{**row, "made": {**row["made"], "source": "", "path": "", "weights": ""}} for row in rows],
        "not_made": failed,
        "synthetic": synthetic,
    }
    (asked.output / "quality.json").write_text(json.dumps(data, indent=1) + "\n")
    (asked.output / "QUALITY.md").write_text(quality_page.page(data, own_text=asked.text is None))
    quality_plots.draw(data, asked.output)
    print(f"{asked.output / 'QUALITY.md'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
