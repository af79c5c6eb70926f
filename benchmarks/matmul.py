"""The products of a decoder, one by one: runner's on packed weights, cuBLAS in bf16, torch's int4, and the roofline.

    python benchmarks/matmul.py [--shape llama-3.1-8b qwen3-0.6b] [--format mq4 mq4-uniform] [--rows 1 2 4 ...]
    TRITON_INTERPRET=1 python benchmarks/matmul.py --shape tiny --rows 1 2     # on a CPU: does it run, is it right?

Each product is a CUDA graph over copies of its weights that together are several times the L2 cache; times are
medians. Ours are the public operations, with what follows the product in a decoder: 1/rms, the gate, the residual.
`floor` is the larger of bytes over the measured read stream and operations over the measured bf16 product; `share` is
the weights' bytes over the time, of the measured stream. `error` compares ours with the reference in float32: nothing
is timed that is wrong.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import timing
import torch
from arguments import positive
from random_models import RECIPE_NAMES, random_matrix
from records import Origin, Report, Table, add_arguments, origin, require_gpu, say
from shapes import SHAPES
from torch import Tensor
from torch.nn import functional

from runner.backends.native.stream import activations
from runner.kernels.grids import FORMATS
from runner.kernels.matmul import (
    Rows,
    linear,
    linear_gated,
    linear_gated_ref,
    linear_logits,
    linear_ref,
    linear_residual,
)
from runner.kernels.pack import packed_matrix
from runner.kernels.values import MOST_ROWS, PackedMatrix, Squares
from runner.model_config import parse_model_config
from runner.quant.mq.rotation import rotate, rotation_size

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
# The interpreter multiplies no bfloat16, and rounds to it by cutting.
DTYPE = torch.bfloat16 if DEVICE.type == "cuda" else torch.float32
EPS = 1e-6
_MOST_ERROR = 0.03  # int8 activations cost 0.7 %, bf16 results 0.4 %
_L2_TIMES = 4
_INT4_GROUP = 128
Kind = Literal["linear", "gated", "residual", "logits"]


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """One product of a decoder, [N, K]; kind: what follows it."""

    name: str
    n: int
    k: int
    kind: Kind


@dataclass(frozen=True, kw_only=True)
class Timed:
    """seconds: of one product. nbytes: of its weights as they are stored. error: relative, None where not compared."""

    seconds: float
    nbytes: int
    error: float | None = None


def matrices(shape: str) -> list[Matrix]:
    """The products of one layer of a dense model, and of its output."""
    config = parse_model_config(dict(SHAPES[shape]))
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    hidden, middle = config.hidden_size, config.intermediate_size
    return [
        Matrix(name="qkv", n=queries + 2 * keys, k=hidden, kind="linear"),
        Matrix(name="o", n=hidden, k=queries, kind="residual"),
        Matrix(name="gate+up", n=2 * middle, k=hidden, kind="gated"),
        Matrix(name="down", n=hidden, k=middle, kind="residual"),
        Matrix(name="head", n=config.vocab_size, k=hidden, kind="logits"),
    ]


def copies(nbytes: int) -> int:
    """How many matrices of that size are several times the L2 cache, which one alone would be read from."""
    if DEVICE.type == "cpu":
        return 1
    cache: int = torch.cuda.get_device_properties(DEVICE).L2_cache_size
    return max(2, -(-_L2_TIMES * cache // nbytes))


# --- ours ------------------------------------------------------------------------------------------------------------


def packed(matrix: Matrix, form: str, seed: int) -> PackedMatrix:
    generator = torch.Generator(DEVICE).manual_seed(seed)
    encoded = random_matrix(FORMATS[form], (matrix.n, matrix.k), generator, DEVICE)
    return packed_matrix(encoded, FORMATS[form], rotation_size(matrix.k), DEVICE)


def in_layout(w: PackedMatrix, matrix: Matrix, layout: str) -> PackedMatrix:
    if layout == "planes":
        return w
    from runner.kernels.lay_out import lay_out

    return lay_out(w, matrix.n // 2 if matrix.kind == "gated" else 0)


def layouts() -> list[str]:
    """Those that this device has, the one it prefers first."""
    has_fragments = DEVICE.type == "cuda" and torch.version.hip is None
    has_fragments = has_fragments and importlib.util.find_spec("runner.kernels.fragments") is not None
    return ["fragments", "planes"] if has_fragments else ["planes"]


def ours(matrix: Matrix, n_rows: int, form: str, layout: str) -> Timed:
    """runner's operation; its error is that of the first copy. Activations are prepared outside of what is timed."""
    stored = [packed(matrix, form, 0)]
    stored += [packed(matrix, form, seed) for seed in range(1, copies(stored[0].nbytes))]
    h = torch.randn(n_rows, matrix.k, device=DEVICE)
    reference = stored[0]
    weights = [in_layout(w, matrix, layout) for w in stored]
    x, _ = activations(h, None, weights[0], DTYPE)
    norm = Squares(parts=h.square().sum(1, keepdim=True), size=matrix.k, eps=EPS)
    residual = torch.randn(n_rows, matrix.n, device=DEVICE) if matrix.kind == "residual" else h
    error = _error(matrix, x, weights[0], reference, h, norm)
    calls = [_call(matrix, x, w, residual, norm) for w in weights]
    return Timed(seconds=timing.graph_s(calls), nbytes=weights[0].nbytes, error=error)


def _call(matrix: Matrix, x: Rows, w: PackedMatrix, h: Tensor, norm: Squares) -> Callable[[], Any]:
    if matrix.kind == "linear":
        return lambda: linear(x, w, squares=norm, dtype=DTYPE)
    if matrix.kind == "gated":
        return lambda: linear_gated(x, w, "silu", squares=norm, dtype=DTYPE)
    if matrix.kind == "residual":
        return lambda: linear_residual(x, w, h, eps=EPS)
    return lambda: linear_logits(x, w, squares=norm)


def _error(matrix: Matrix, x: Rows, w: PackedMatrix, reference: PackedMatrix, h: Tensor, norm: Squares) -> float:
    """||out - reference|| / ||reference||, the reference on the unrounded activations in float32."""
    exact = rotate(h, w.rotation)
    scale = None if matrix.kind == "residual" else norm
    if matrix.kind == "gated":
        wanted = linear_gated_ref(exact, reference, "silu", bias=None, squares=scale, dtype=torch.float32)
    else:
        wanted = linear_ref(exact, reference, bias=None, squares=scale, dtype=torch.float32)
    zero = torch.zeros(len(h), matrix.n, device=DEVICE)
    found = _call(matrix, x, w, zero, norm)()
    out = zero if matrix.kind == "residual" else found.values if matrix.kind == "logits" else found.float()
    return float((out - wanted).norm() / wanted.norm())


# --- others ----------------------------------------------------------------------------------------------------------


def cublas(matrix: Matrix, n_rows: int) -> Timed:
    """torch's product of bf16 matrices, nothing after it."""
    nbytes = 2 * matrix.n * matrix.k
    weights = [torch.randn(matrix.n, matrix.k, dtype=torch.bfloat16, device=DEVICE) for _ in range(copies(nbytes))]
    x = torch.randn(n_rows, matrix.k, dtype=torch.bfloat16, device=DEVICE)
    calls = [lambda w=w: functional.linear(x, w) for w in weights]  # type: ignore[misc]
    return Timed(seconds=timing.graph_s(calls), nbytes=nbytes)


def torch_int4(matrix: Matrix, n_rows: int) -> Timed | None:
    """torch's own int4 product (tinygemm), groups of 128; None where its kernel does not take the shape."""
    if DEVICE.type != "cuda" or matrix.k % _INT4_GROUP or matrix.n % 8:
        return None
    nbytes = matrix.n * matrix.k // 2 + 4 * matrix.n * matrix.k // _INT4_GROUP
    shape = (matrix.n, matrix.k // 2)
    weights = [
        torch.ops.aten._convert_weight_to_int4pack(torch.randint(0, 256, shape, dtype=torch.uint8, device=DEVICE), 8)
        for _ in range(copies(nbytes))
    ]
    scales = torch.randn(matrix.k // _INT4_GROUP, matrix.n, 2, dtype=torch.bfloat16, device=DEVICE)
    x = torch.randn(n_rows, matrix.k, dtype=torch.bfloat16, device=DEVICE)
    multiply = torch.ops.aten._weight_int4pack_mm
    calls = [lambda w=w: multiply(x, w, _INT4_GROUP, scales) for w in weights]  # type: ignore[misc]
    return Timed(seconds=timing.graph_s(calls), nbytes=nbytes)


# --- the table -------------------------------------------------------------------------------------------------------


def floor_s(matrix: Matrix, n_rows: int, nbytes: int, where: Origin) -> float:
    """The least time: the weights, x and y once through memory, or the operations on the bf16 units."""
    assert where.read_bytes_s is not None
    assert where.bf16_flop_s is not None
    moved = nbytes + 2 * n_rows * (matrix.n + matrix.k)
    return max(moved / where.read_bytes_s, 2 * n_rows * matrix.n * matrix.k / where.bf16_flop_s)


def measure(shape: str, matrix: Matrix, n_rows: int, forms: list[str], chosen: list[str], where: Origin) -> list[Any]:
    """The rows of one product for that number of rows, ours first."""
    found: list[tuple[str, Timed]] = []
    for form in dict.fromkeys("mq6" if matrix.kind == "logits" else form for form in forms):
        for layout in chosen:
            name = f"{form} {layout}" if len(chosen) > 1 else form
            timed = ours(matrix, n_rows, form, layout)
            if timed.error is None or not timed.error < _MOST_ERROR:
                sys.exit(f"{matrix.name} of {n_rows} rows in {name} is wrong: error {timed.error}")
            found.append((name, timed))
    found.append(("cuBLAS bf16", cublas(matrix, n_rows)))
    if (int4 := torch_int4(matrix, n_rows)) is not None:
        found.append(("torch int4", int4))
    least = floor_s(matrix, n_rows, found[0][1].nbytes, where)
    return [
        {
            "shape": shape,
            "matrix": matrix.name,
            "n": matrix.n,
            "k": matrix.k,
            "m": n_rows,
            "way": way,
            "us": 1e6 * timed.seconds,
            "floor_us": 1e6 * least,
            "bytes_s": timed.nbytes / timed.seconds,
            "flop_s": 2 * n_rows * matrix.n * matrix.k / timed.seconds,
            "error": timed.error,
        }
        for way, timed in found
    ]


def show(table: Table, rows: list[Any], where: Origin) -> None:
    assert where.read_bytes_s is not None
    for row in rows:
        cells = [row["matrix"], f"{row['n']} x {row['k']}", str(row["m"]), row["way"], f"{row['us']:.1f}"]
        cells += [f"{row['floor_us']:.1f}", f"{row['us'] / row['floor_us']:.2f}"]
        cells += [f"{100 * row['bytes_s'] / where.read_bytes_s:.0f} %", f"{row['flop_s'] / 1e12:.1f}"]
        cells += [f"{rows[-1]['us'] / row['us']:.2f}" if row is not rows[-1] else ""]
        cells += ["" if row["error"] is None else f"{100 * row['error']:.2f} %"]
        table.print(cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    dense = [name for name, shape in SHAPES.items() if "num_experts" not in shape]
    parser.add_argument("--shape", nargs="+", choices=dense, default=["llama-3.1-8b", "qwen3-0.6b"])
    parser.add_argument("--format", nargs="+", choices=RECIPE_NAMES, default=["mq4"])
    parser.add_argument("--layout", nargs="+", choices=["fragments", "planes"], help="default: the device's own")
    parser.add_argument("--rows", type=positive, nargs="+", default=[1, 2, 4, 8, 16, 512, 2048])
    parser.add_argument("--matrix", nargs="+", help="only these of qkv, o, gate+up, down, head")
    add_arguments(parser)
    asked = parser.parse_args()
    if asked.shape != ["tiny"]:
        require_gpu("Timing products (all shapes but --shape tiny)")
    where = origin(
        asked.commit, timing.device_name(), read_bytes_s=timing.read_bytes_s(), bf16_flop_s=timing.bf16_flop_s()
    )
    say(where)
    report = Report("matmul", where, asked.json)
    chosen = asked.layout or layouts()[:1]
    for shape in asked.shape:
        print(f"{shape}\n")
        columns = [
            "matrix ",
            "N x K        ",
            "M   ",
            "way          ",
            "us     ",
            "floor  ",
            "us/floor",
            "share",
            "TFLOP/s",
        ]
        table = Table([*columns, "torch int4 / it" if DEVICE.type == "cuda" else "bf16 / it", "error "])
        for matrix in matrices(shape):
            if asked.matrix and matrix.name not in asked.matrix:
                continue
            for n_rows in asked.rows:
                if matrix.kind == "logits" and n_rows > MOST_ROWS:
                    continue  # a prompt wants the logits of its last token alone
                rows = measure(shape, matrix, n_rows, asked.format, chosen, where)
                show(table, rows, where)
                for row in rows:
                    report.add(row)
        print(flush=True)


if __name__ == "__main__":
    main()
