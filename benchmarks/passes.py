"""What a prompt's pass takes on the device, by its number of tokens, without what the host does before and after it.

    python benchmarks/passes.py [--shape llama-3.1-8b] [--layers 16] [--tokens 20 64 128 512 1024] [--depth 0]
    python benchmarks/passes.py --model DIR ...   # of random_models.py, or of `runner quantize`

To compare two versions of a kernel: the least of six times twenty passes by their graph differs by half a percent from
run to run, where the time to a first token (models.py) differs by several.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import timing
from arguments import existing, positive
from generation import fill, pass_s
from random_models import RECIPE_NAMES, about_bytes, fused_execution, write_directory
from records import Report, Table, add_arguments, origin, require_gpu, say
from shapes import SHAPES, config_of
from workplace import workplace


def measure(directory: Path, tokens: list[int], depth: int, report: Report, common: dict[str, object]) -> None:
    execution = fused_execution(directory, depth + 2 * max(tokens))
    table = Table(["tokens", "ms      ", "tok/s   "])
    for n_tokens in tokens:
        fill(execution, depth)
        seconds = pass_s(execution, n_tokens)
        table.print([str(n_tokens), f"{1e3 * seconds:.3f}", f"{n_tokens / seconds:.0f}"])
        report.add({**common, "depth": depth, "tokens": n_tokens, "ms": 1e3 * seconds})
    execution.release()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="llama-3.1-8b")
    parser.add_argument("--format", choices=RECIPE_NAMES, default="mq4")
    parser.add_argument("--layers", type=positive, help="fewer than the shape has")
    parser.add_argument("--model", type=existing, help="a packed model that is there, in place of a shape")
    parser.add_argument("--tokens", type=positive, nargs="+", default=[20, 64, 128, 256, 512, 1024, 2048])
    parser.add_argument("--depth", type=int, default=0, help="tokens before them")
    parser.add_argument("--work", type=Path)
    add_arguments(parser)
    asked = parser.parse_args()
    if min(asked.tokens) < 17:
        parser.error("--tokens are 17 or more: up to 16 are a step of decoding (models.py)")
    require_gpu("Timing a prompt's pass")
    where = origin(asked.commit, timing.device_name())
    say(where)
    report = Report("passes", where, asked.json)
    if asked.model is not None:
        measure(asked.model, asked.tokens, asked.depth, report, {"model": asked.model.name})
        return
    config = config_of(asked.shape, asked.layers)
    with workplace(asked.work, about_bytes(config)) as work:
        write_directory(work / "model", config, asked.format, is_hashed=False)
        common = {"shape": asked.shape, "layers": asked.layers, "format": asked.format}
        measure(work / "model", asked.tokens, asked.depth, report, common)


if __name__ == "__main__":
    main()
