"""Packed matrices for the kernels, from encoded tensors: one of several, and back to float32.

It knows no files and no models.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from runner.kernels.fragments import to_planes
from runner.kernels.grids import FORMATS
from runner.kernels.values import GROUP, Matrix, PackedMatrix
from runner.quant.mq.grid import GridFormat, scale_values, unpack
from runner.quant.mq.tensor_format import Encoded


def packed_matrix(encoded: Encoded, form: GridFormat, rotation: int, device: torch.device) -> PackedMatrix:
    """An encoded matrix [N, K] on the device. rotation: the blocks that its input must be rotated in, 1 for none."""
    assert form.group_size == GROUP
    packed = encoded.parts["packed"].to(device)
    factor = 2.0 ** encoded.parameters["scale_exponent"]
    return PackedMatrix(
        format=form.name,
        packed=packed.contiguous(),
        scale=encoded.parts["scale"].to(device).contiguous(),
        row_scale=torch.full((len(packed),), factor, dtype=torch.float32, device=device),
        rotation=rotation,
    )


def empty_matrix(form: GridFormat, shape: tuple[int, int], rotation: int, device: torch.device) -> PackedMatrix:
    """Room for a matrix [N, K] in planes."""
    parts = form.parts(shape)
    return PackedMatrix(
        format=form.name,
        packed=torch.empty(parts["packed"].shape, dtype=parts["packed"].dtype, device=device),
        scale=torch.empty(parts["scale"].shape, dtype=parts["scale"].dtype, device=device),
        row_scale=torch.empty(shape[0], dtype=torch.float32, device=device),
        rotation=rotation,
    )


def chosen_rows(w: Matrix, rows: Tensor) -> Matrix:
    """These rows of a matrix [N, K], packed ones in planes, by their numbers on its device."""
    if isinstance(w, Tensor):
        return w[rows]
    assert w.layout == "planes"
    return dataclasses.replace(w, packed=w.packed[rows], scale=w.scale[rows], row_scale=w.row_scale[rows])


def concatenate(matrices: Sequence[PackedMatrix]) -> PackedMatrix:
    """The rows of all of them as one matrix; they have one format, one rotation and one K."""
    first = matrices[0]
    assert {(one.format, one.rotation, one.shape[1]) for one in matrices} == {
        (first.format, first.rotation, first.shape[1])
    }
    return PackedMatrix(
        format=first.format,
        packed=torch.cat([one.packed for one in matrices]),
        scale=torch.cat([one.scale for one in matrices]),
        row_scale=torch.cat([one.row_scale for one in matrices]),
        rotation=first.rotation,
    )


def dequantize_ref(w: PackedMatrix) -> Tensor:
    """The weights [N, K] float32 in the basis that they are stored in."""
    w = to_planes(w) if w.layout == "fragments" else w
    form = FORMATS[w.format]
    levels = form.values(unpack(w.packed, form.bits, GROUP)).view(*w.scale.shape, GROUP)
    scale = scale_values(0, w.scale.device)[w.scale.int()] * w.row_scale[:, None]
    return (levels * scale[:, :, None]).flatten(1)
