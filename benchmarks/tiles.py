"""A decode step with other tiles than gemv_tiles.py has: what a choice for a shape or for a GPU follows from.

    python benchmarks/tiles.py --shape qwen3-4b --layers 18 gate:warps=2 "down:warps=8,part=0 o:warps=8,part=0"
    python benchmarks/tiles.py --shape qwen3-14b --rows 8 16 down:registers=128 qkv:registers=168

Each argument is a choice to try, on one model with random weights, between two measurements of the choices as they are,
which show how much the same thing differs. A choice names matrices (qkv, o, down, and gate, which is gate and up), and
for each the fields of Tiles that are to be others. A step is one of many that are queued without waiting, after 16
tokens. A choice that the GPU has no room for says so, and the next one is tried. It measures, and knows nothing of what
is right: products have tests.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from unittest.mock import patch

import timing
from arguments import positive
from generation import device_step_s, fill, rows_step
from random_models import RECIPE_NAMES, about_bytes, fused_execution, write_directory
from records import Report, Table, add_arguments, origin, require_gpu, say
from shapes import SHAPES, config_of
from triton.runtime.errors import OutOfResources, PTXASError
from workplace import workplace

from runner.kernels import gemv_fragments
from runner.kernels.fragments import TILE
from runner.kernels.gemv_tiles import Tiles, tiles_of, tiles_of_branch, tiles_of_normed_branch
from runner.kernels.values import GROUP
from runner.model_config import ModelConfig, parse_model_config

_DEPTH: Final = 16
_N_CTX: Final = 2048
_AS_IT_IS: Final = "as it is"
_POSSIBLE: Final = {
    "warps": (1, 2, 4, 8, 16),
    "depth": (1, 2, 3, 4),
    "turns": (1, 4),
    "registers": tuple(range(32, 256, 8)),
}

Choice = Mapping[str, Mapping[str, int]]
"""By matrix, the fields of Tiles that are to be others."""


def read_choice(text: str) -> Choice:
    """Raises ValueError, saying what is wrong."""
    known = [field.name for field in dataclasses.fields(Tiles)]
    choice: dict[str, dict[str, int]] = {}
    for part in text.split():
        matrix, _, fields = part.partition(":")
        if matrix not in ("qkv", "o", "gate", "down"):
            raise ValueError(f"{matrix!r} in {text!r} is none of qkv, o, gate and down")
        choice[matrix] = {}
        for field in fields.split(","):
            name, _, value = field.partition("=")
            if name not in known or not value.isdecimal():
                raise ValueError(f"{field!r} in {text!r} is not one of {', '.join(known)}, = and a number")
            if int(value) not in _POSSIBLE.get(name, (int(value),)):
                raise ValueError(f"{field!r} in {text!r}: {name} is one of {_POSSIBLE[name]}")
            if name == "part" and int(value) and matrix not in ("o", "down"):
                raise ValueError(f"{field!r} in {text!r}: only o and down are summed in parts")
            choice[matrix][name] = int(value)
    return choice


def sizes_of(config: ModelConfig) -> dict[tuple[int, int], str]:
    """The matrices of a layer by their tiles and pairs of groups."""
    attention, kv = (n * config.head_dim for n in (config.num_heads, config.num_kv_heads))
    hidden, middle = config.hidden_size, config.intermediate_size
    matrices = {
        "qkv": (attention + 2 * kv, hidden),
        "o": (hidden, attention),
        "gate": (2 * middle, hidden),
        "down": (hidden, middle),
    }
    return {(-(-n // TILE), k // (2 * GROUP)): name for name, (n, k) in matrices.items()}


@contextmanager
def chosen(choice: Choice, sizes: Mapping[tuple[int, int], str]) -> Iterator[None]:
    """Within it products are cut so."""

    def changed(tiles: Tiles, size: tuple[int, int]) -> Tiles:
        return dataclasses.replace(tiles, **choice.get(sizes.get(size, ""), {}))

    def normed(*size: int) -> Tiles:
        return changed(tiles_of_normed_branch(*size), size)

    with (
        patch.object(gemv_fragments, "tiles_of", lambda *size: changed(tiles_of(*size), size)),
        patch.object(gemv_fragments, "tiles_of_branch", lambda *size: changed(tiles_of_branch(*size), size)),
        patch.object(gemv_fragments, "tiles_of_normed_branch", normed),
    ):
        yield


def measured(directory: Path, row_counts: Sequence[int]) -> list[float]:
    """Milliseconds of a step of one row with the choice of its token, and of steps of several with all logits."""
    execution = fused_execution(directory, _N_CTX)
    try:
        found = [1e3 * device_step_s(execution, _DEPTH)]
        for count in row_counts:
            fill(execution, _DEPTH)
            found.append(1e3 * rows_step(execution, count))
        return found
    finally:
        execution.release()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    dense = [name for name, shape in SHAPES.items() if "num_experts" not in shape]
    parser.add_argument("choices", nargs="*", metavar="CHOICE", help='like "gate:warps=2,depth=3 qkv:warps=4"')
    parser.add_argument("--shape", choices=dense, default="llama-3.1-8b")
    parser.add_argument("--format", choices=RECIPE_NAMES, default="mq4")
    parser.add_argument("--layers", type=positive, help="fewer than the shape has; rows say so")
    parser.add_argument("--rows", type=positive, nargs="*", default=[2, 8, 16], help="of the steps of several")
    parser.add_argument("--work", type=Path, help="where the model is made; default: in memory, if there is room")
    add_arguments(parser)
    asked = parser.parse_args()
    try:
        asked.choices = {text: read_choice(text) for text in asked.choices}
    except ValueError as error:
        parser.error(str(error))
    return asked


def main() -> None:
    asked = parse()
    require_gpu("A step with other tiles")
    where = origin(asked.commit, timing.device_name())
    say(where)
    report = Report("tiles", where, asked.json)
    config = config_of(asked.shape, asked.layers)
    sizes = sizes_of(parse_model_config(config))
    tried = [(_AS_IT_IS, {}), *asked.choices.items(), (_AS_IT_IS, {})]
    columns = ["t(1) ms", *(f"t({count}) ms" for count in asked.rows)]
    with workplace(asked.work, about_bytes(config)) as work:
        write_directory(work / "model", config, asked.format, is_hashed=False)
        table = Table(["choice".ljust(max(len(name) for name, _ in tried)), *columns])
        for name, choice in tried:
            try:
                with chosen(choice, sizes):
                    found = measured(work / "model", asked.rows)
            except (OutOfResources, PTXASError) as error:
                print(f"{name}: {error}", flush=True)
                continue
            table.print([name, *(f"{ms:.4f}" for ms in found)])
            common = {"shape": asked.shape, "layers": asked.layers, "format": asked.format, "choice": name}
            report.add(common | {"ms": dict(zip([1, *asked.rows], found, strict=True))})


if __name__ == "__main__":
    main()
