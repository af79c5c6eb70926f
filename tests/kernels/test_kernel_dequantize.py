"""Packed weights become the dense ones of the reference, bit for bit, in every layout and in blocks."""

from __future__ import annotations

import pytest
import torch
from kernel_data import DEVICE, packed
from torch import Tensor

from runner.kernels.dequantize import dequantize
from runner.kernels.fragments import to_fragments
from runner.kernels.grids import FORMATS
from runner.kernels.pack import concatenate, dequantize_ref
from runner.kernels.values import PackedMatrix

# Triton's interpreter truncates where it makes bfloat16; a GPU rounds.
TYPES = (torch.float32, torch.bfloat16 if DEVICE.type == "cuda" else torch.float16)


def decoded(w: PackedMatrix, first: int, count: int, pair: int, dtype: torch.dtype) -> Tensor:
    out = torch.empty(2 * count if pair else count, w.shape[1], dtype=dtype, device=DEVICE)
    dequantize(w, out, first=first, pair=pair)
    return out


def wanted(w: PackedMatrix, first: int, count: int, pair: int, dtype: torch.dtype) -> Tensor:
    starts = (first, pair + first) if pair else (first,)
    return torch.cat([dequantize_ref(w)[start : start + count] for start in starts]).to(dtype)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(("n", "k"), [(37, 96), (16, 1056)])
def test_planes_are_decoded(form: str, n: int, k: int) -> None:
    w = packed(form, n, k)
    w.row_scale[n // 2 :] *= 2.0**-5
    for dtype in TYPES:
        assert torch.equal(decoded(w, 0, n, 0, dtype), wanted(w, 0, n, 0, dtype))


@pytest.mark.parametrize("form", ["mq4", "mq4-uniform", "mq6"])
@pytest.mark.parametrize(("n", "k", "pair"), [(37, 64, 0), (54, 320, 27)])
def test_fragments_are_decoded(form: str, n: int, k: int, pair: int) -> None:
    planes = packed(form, n, k)
    planes.row_scale[n // 3 :] *= 2.0**3
    w = to_fragments(planes, pair)
    assert w.layout == "fragments"
    for dtype in TYPES:
        found = decoded(w, 0, pair or n, pair, dtype)
        assert torch.equal(found, wanted(planes, 0, pair or n, pair, dtype))


@pytest.mark.parametrize("layout", ["planes", "fragments"])
@pytest.mark.parametrize("pair", [0, 50])
def test_blocks_of_columns_are_decoded_alone(layout: str, pair: int) -> None:
    planes = packed("mq4", 100, 64)
    w = planes if layout == "planes" else to_fragments(planes, pair)
    step, width = (8, 50) if pair else (16, 100)
    for first, count in ((0, step), (step, 3 * step), (width // step * step, width % step)):
        assert torch.equal(decoded(w, first, count, pair, TYPES[0]), wanted(planes, first, count, pair, TYPES[0]))


def test_matrices_of_different_exponents_keep_theirs() -> None:
    parts = [packed("mq6", 20, 64, seed=seed) for seed in range(2)]
    parts[1].row_scale.mul_(2.0**-9)
    whole = concatenate(parts)
    assert torch.equal(decoded(whole, 0, 40, 0, TYPES[0]), torch.cat([dequantize_ref(part) for part in parts]))
