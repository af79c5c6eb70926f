"""Rows times their gate, against float64; in int8 they are what rotate.py makes of the gated rows."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from kernel_data import DEVICE, close, random

from runner.kernels.fragments import activation_rows
from runner.kernels.gates import Gate, GatedRows, gate_blocks, gate_fragments, gate_rows, gated_ref
from runner.kernels.rotate import quantize_blocks, quantize_fragments
from runner.kernels.splits import combine, combine_blocks, combine_fragments, splits_of_whole_rows

# M, K, D: spans of 256 columns that hold heads, a half of one, and more than there are columns.
SHAPES = [(1, 512, 128), (3, 192, 64), (2, 256, 256), (5, 320, 16), (2, 64, None), (3, 448, None)]


def rows_of(m: int, k: int, d: int | None, dtype: torch.dtype = torch.float32) -> GatedRows:
    gate = Gate(
        values=(2 * random(m, k + 80, seed=2)).to(dtype)[:, 32 : 32 + k],
        gain=None if d is None else 1 + 0.3 * random(d, seed=4),
        eps=1e-6,
    )
    return GatedRows(x=random(m, k, seed=1), gate=gate, dtype=dtype)


def part(rows: GatedRows, first: int, last: int) -> GatedRows:
    gate = dataclasses.replace(rows.gate, values=rows.gate.values[first:last])
    return dataclasses.replace(rows, x=rows.x[first:last].contiguous(), gate=gate)


@pytest.mark.parametrize(("m", "k", "d"), SHAPES)
def test_they_are_gated_as_float64_does_it(m: int, k: int, d: int | None) -> None:
    rows = rows_of(m, k, d)
    close(gate_rows(rows), gated_ref(rows.x.double(), rows.gate))


@pytest.mark.parametrize(("m", "k", "d"), SHAPES)
@pytest.mark.parametrize("rotation", [1, 16, 64])
def test_in_int8_they_are_what_the_gated_rows_become(m: int, k: int, d: int | None, rotation: int) -> None:
    rows = rows_of(m, k, d)
    dense = gate_rows(rows)
    found, wanted = gate_fragments(rows, rotation, 8), quantize_fragments(dense, None, rotation, 8)
    assert (found.num_rows, found.zero) == (wanted.num_rows, wanted.zero)
    assert torch.equal(activation_rows(found), activation_rows(wanted))
    blocks, of_dense = gate_blocks(rows, rotation), quantize_blocks(dense, None, rotation)
    assert blocks.shape == (m, k)
    assert torch.equal(blocks.values(), of_dense.values())


@pytest.mark.parametrize("d", [64, None])
def test_a_row_has_the_same_bits_alone(d: int | None) -> None:
    rows = rows_of(11, 320, d)
    together, in_int8 = gate_rows(rows), activation_rows(gate_fragments(rows, 64, 1))
    for m in (0, 5, 10):
        alone = part(rows, m, m + 1)
        assert torch.equal(gate_rows(alone)[0], together[m])
        assert torch.equal(activation_rows(gate_fragments(alone, 64, 1))[0], in_int8[m])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_result_has_the_dtype_of_the_model(dtype: torch.dtype) -> None:
    rows = rows_of(2, 128, 64, dtype)
    found = gate_rows(rows)
    assert found.dtype == dtype
    close(found, gated_ref(rows.x.double(), rows.gate), 1e-2)


@pytest.mark.parametrize(("h", "d"), [(2, 256), (3, 64)])
def test_attention_is_gated_where_its_splits_are_put_together(h: int, d: int) -> None:
    m, n_splits = 3, 4
    gate = rows_of(m, h * d, None).gate
    splits = splits_of_whole_rows(
        4 * random(m, h, n_splits, seed=1), 1 + random(m, h, n_splits, seed=2).abs(),
        random(m, h, n_splits, d, seed=3), torch.float32,
    )  # fmt: skip
    gated = dataclasses.replace(splits, gate=gate)
    found = combine(gated)
    close(found, gated_ref(combine(splits).double(), gate))
    fragments, wanted = combine_fragments(gated, 64, 8), quantize_fragments(found, None, 64, 8)
    assert torch.equal(activation_rows(fragments), activation_rows(wanted))
    assert torch.equal(combine_blocks(gated, 64).values(), quantize_blocks(found, None, 64).values())


def test_gates_of_any_size_stay_finite() -> None:
    rows = rows_of(2, 128, 64)
    rows.gate.values[:] = torch.tensor([-3e38, 3e3], device=DEVICE).repeat(2, 64)
    assert bool(gate_rows(rows).isfinite().all())
