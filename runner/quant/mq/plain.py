"""Rounds every matrix by itself, without calibration, a few rows at a time on the CPU or a GPU.

Peak memory is the stored form of one tensor and a bounded number of rows as float32. It knows nothing of files.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, TypeVar

import torch
from torch import Tensor

from runner.errors import FETCH_AGAIN, BadModelFile
from runner.quant.mq.basis import stored_rows
from runner.quant.mq.formats import TENSOR_FORMATS
from runner.quant.mq.packed_file import PackedFile
from runner.quant.mq.plan import PLAIN_TYPES, PackedPlan, TensorPlan
from runner.quant.mq.producer import OnStage
from runner.quant.mq.tensor_format import Encoded
from runner.quant.weights import Weights

T = TypeVar("T")
Span = tuple[int, int]  # rows from the first to before the second

_CHUNK_WEIGHTS: Final = {"cpu": 2**20, "gpu": 2**26}  # worked on at a time
_LEAST: Final = 2.0**-64
_LARGEST: Final = 2.0**126  # what is rounded up from there may be infinite
_ERROR_WEIGHTS: Final = 2**21  # looked at for a matrix's error: enough for three digits


@dataclass(frozen=True, kw_only=True)
class PlainProducer:
    """device: where rows are rotated and rounded."""

    device: torch.device

    def calibration(self, _plan: PackedPlan) -> None:
        return None

    def produce(
        self, plan: PackedPlan, weights: Weights, written: PackedFile, on_stage: OnStage
    ) -> Iterator[tuple[str, Encoded]]:
        """See Producer."""
        done = sum(tensor.source_bytes for tensor in plan.tensors if tensor.name in written.done)
        on_stage("quantizing", done, plan.source_bytes)
        for tensor in plan.tensors:
            if tensor.name in written.done:
                continue
            yield tensor.name, encode(tensor, weights, self.device, plan.largest_f32_bytes // 2)
            done += tensor.source_bytes
            on_stage("quantizing", done, plan.source_bytes)


def encode(tensor: TensorPlan, weights: Weights, device: torch.device, held_bytes: int) -> Encoded:
    """One tensor, as the plan wants it. held_bytes: a matrix that is smaller as float32 is held while it is encoded;
    a larger one is read twice. Raises BadModelFile for weights that are NaN or infinite."""
    if tensor.is_kept:
        return _kept(tensor, weights)
    n_rows, n_columns = tensor.matrix_shape
    spans = row_spans(n_rows, n_columns, device)
    holds = 4 * n_rows * n_columns <= held_bytes or len(spans) == 1
    parts = {suffix: torch.empty(part.shape, dtype=part.dtype) for suffix, part in tensor.parts.items()}
    held: dict[Span, Tensor] = {}

    def read(span: Span) -> Tensor:
        return stored_rows(weights, tensor.name, tensor.input_rotation, *span, device)

    def measure(span: Span) -> float:
        rows = read(span)
        if holds:
            held[span] = rows
        return float(rows.abs().max())

    with row_workers(device) as workers:
        # NaN has to win: max() of Python would pass over it.
        largest = float(torch.tensor(list(workers(measure, spans))).max())
        if not largest < _LARGEST:
            raise not_finite(tensor.name)

        def round_rows(span: Span) -> Mapping[str, int]:
            encoded = _encode_rows(tensor.format, held.pop(span) if holds else read(span), largest)
            for suffix, target in parts.items():
                target[span[0] : span[1]] = encoded.parts[suffix][:-1].cpu()
            return encoded.parameters

        parameters = list(workers(round_rows, spans))
    assert all(one == parameters[0] for one in parameters)
    return Encoded(parts=parts, parameters=parameters[0])


@contextmanager
def row_workers(device: torch.device) -> Iterator[Callable[[Callable[[Span], T], Sequence[Span]], Iterable[T]]]:
    """A `map` over spans of rows. On a CPU each core takes spans of its own, which needs none of the barriers that
    torch's own threads have after every operation; on a GPU one span comes after the other."""
    if device.type != "cpu":
        yield map
        return
    count = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(count) as pool:
            yield pool.map
    finally:
        torch.set_num_threads(count)


def _encode_rows(form: str, rows: Tensor, largest: float) -> Encoded:
    """Some rows of a matrix whose largest weight is `largest`, and one row more.

    A format rounds each row by itself, but for parameters that follow from the largest weight of the matrix: a last row
    that has it gives all chunks the parameters of the whole.
    """
    last = torch.zeros(1, rows.shape[1], device=rows.device)
    last[0, 0] = max(largest, _LEAST)  # a matrix of zeros has scales too
    return TENSOR_FORMATS[form].encode(torch.cat((rows, last)))


def row_spans(n_rows: int, n_columns: int, device: torch.device) -> list[Span]:
    """Spans of rows that are worked on at a time, in whole blocks of 256 rows (an output rotation mixes those)."""
    step = max(256, _CHUNK_WEIGHTS["cpu" if device.type == "cpu" else "gpu"] // n_columns // 256 * 256)
    return [(start, min(start + step, n_rows)) for start in range(0, n_rows, step)]


def _kept(tensor: TensorPlan, weights: Weights) -> Encoded:
    stored = torch.empty(tensor.shape, dtype=PLAIN_TYPES[tensor.format])
    for start, stop in row_spans(tensor.shape[0], math.prod(tensor.shape[1:]), torch.device("cpu")):
        stored[start:stop] = stored_rows(weights, tensor.name, 1, start, stop, torch.device("cpu"))
        # Checked as stored: folding can carry a float16 beyond its range.
        if not stored[start:stop].isfinite().all():
            raise not_finite(tensor.name)
    return Encoded(parts={"": stored}, parameters={})


def not_finite(name: str) -> BadModelFile:
    """The error for a tensor that nothing can be made from."""
    return BadModelFile(
        f"Tensor {name!r} has weights that are NaN or infinite, or nearly so.",
        hint=f"The file is damaged: {FETCH_AGAIN}.",
    )


def weight_error(tensor: TensorPlan, encoded: Encoded, weights: Weights, device: torch.device) -> float | None:
    """Squared error over squared weights in the stored basis, over evenly spaced rows; None for a kept tensor.

    weights: of the plan's basis. It is measured on what is stored, whoever made it.
    """
    if tensor.is_kept:
        return None
    n_rows, n_columns = tensor.matrix_shape
    spans = _sampled(n_rows, max(1, _ERROR_WEIGHTS // n_columns))

    def measure(span: Span) -> tuple[float, float]:
        # In float64: squares of float32 need not be finite.
        wanted = stored_rows(weights, tensor.name, tensor.input_rotation, *span, device).double()
        found = decode_rows(tensor.format, encoded, *span, n_columns, device)
        return float((found - wanted).square().sum()), float(wanted.square().sum())

    with row_workers(device) as workers:
        measured = list(workers(measure, spans))
    power = sum(one for _, one in measured)
    return sum(one for one, _ in measured) / power if power else 0.0


def _sampled(n_rows: int, budget: int) -> list[Span]:
    """Up to 8 evenly spaced spans of `budget` rows together, or all rows in one."""
    if n_rows <= budget:
        return [(0, n_rows)]
    count = min(8, budget)
    size = budget // count
    starts = [index * (n_rows - size) // max(1, count - 1) for index in range(count)]
    return [(start, start + size) for start in starts]


def decode_rows(
    form: str, encoded: Encoded, start: int, stop: int, n_columns: int, device: torch.device | None = None
) -> Tensor:
    """The values [stop - start, K] float32 of some rows of an encoded matrix, in the stored basis."""
    where = device or torch.device("cpu")
    parts = {suffix: part[start:stop].to(where) for suffix, part in encoded.parts.items()}
    some = Encoded(parts=parts, parameters=encoded.parameters)
    return TENSOR_FORMATS[form].decode(some, (stop - start, n_columns))
