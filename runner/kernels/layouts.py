"""The layout in which a device multiplies a packed matrix fastest: fragments, where their kernels are seen to be right.

They count on which lane has what, which a compiler decides. So before the first matrix of a format is laid out, they
multiply a small one on the device; where that is wrong, matrices stay in planes, which is slower and always works.
"""

from __future__ import annotations

from functools import cache

import torch

from runner.kernels import epilogues
from runner.kernels.add_parts import rotates
from runner.kernels.fragment_products import ZEROS
from runner.kernels.fragments import activation_rows, activations_ref, can_be_fragments, to_fragments
from runner.kernels.gemm_fragments import GemmFragments
from runner.kernels.gemm_int8 import takes_int8
from runner.kernels.gemv_fragments import GemvFragments
from runner.kernels.gemv_tiles import Tiles
from runner.kernels.grids import FORMATS, words_of_group
from runner.kernels.int8_weights import int8_weights_ref
from runner.kernels.lay_out import lay_out
from runner.kernels.pack import dequantize_ref
from runner.kernels.values import (
    FEW_ROWS,
    GROUP,
    ROWS_OF_BLOCKS,
    Int8Blocks,
    PackedMatrix,
    cdiv,
    in_block_order,
    is_nvidia,
    moved,
)


def best_layout(w: PackedMatrix, pair: int = 0) -> PackedMatrix:
    """The same matrix in the layout that its device multiplies fastest; pair: see to_fragments."""
    device = w.packed.device
    if not can_be_fragments(w) or not is_nvidia(w.packed) or not _works(w.format, device):
        return w
    return lay_out(w, pair) if rotates(w.rotation, device) else w


def try_products(form: str, device: torch.device) -> bool:
    """Whether the kernels give what they should, and the first row the same bits in both of those that decode."""
    if torch.cuda.get_device_capability(device) < (8, 0):
        return False
    random = torch.Generator().manual_seed(0)
    n_groups = 38  # of two warps: several steps, the last of which is not full
    w = random_matrix(form, n_groups, random)
    x, tiles = torch.randn(16, GROUP * n_groups, generator=random), Tiles(warps=2, depth=1)
    laid_out = lay_out(moved(w, device))
    are_right, firsts = [_is_in_order(w, laid_out, 0), _is_in_order(w, lay_out(moved(w, device), 24), 24)], []
    for n_rows in (1, 3, 16):
        rows = activations_ref(x[:n_rows], ZEROS[form])
        h, squares = torch.zeros(n_rows, 48, device=device), torch.empty(n_rows, 3, device=device)
        norm = torch.full((n_rows, 3), 0.6, device=device), 0.5, 0.1
        GemvFragments(x=moved(rows, device), w=laid_out, pair=0, tiles=tiles).run(
            epilogues.add_residual, (h, 48, norm, h, squares, 3), (3, 4, False)
        )
        right = activation_rows(rows) @ dequantize_ref(w).T
        are_right.append(bool((h.cpu() - right).norm() < 1e-4 * right.norm()))
        firsts.append(torch.cat((h[0], squares[0])).cpu())
    if takes_int8(laid_out, FEW_ROWS + 1):
        are_right.append(_is_right_in_int8(w, laid_out, random))
    return all(are_right) and all(torch.equal(one, firsts[0]) for one in firsts)


def _is_in_order(w: PackedMatrix, laid_out: PackedMatrix, pair: int) -> bool:
    """Whether a matrix was brought into the order that is meant. w: where it lies in planes, on the CPU."""
    right = to_fragments(w, pair)
    found = moved(laid_out, torch.device("cpu"))
    assert right.largest is not None
    assert found.largest is not None
    pairs = [(right.packed, found.packed), (right.scale, found.scale), (right.largest, found.largest)]
    if right.high is not None and found.high is not None:
        pairs.append((right.high, found.high))
    return all(torch.equal(one, other) for one, other in pairs)


def _is_right_in_int8(w: PackedMatrix, laid_out: PackedMatrix, random: torch.Generator) -> bool:
    """Whether the product of a prompt of few tokens is what it should be. w: where it lies in planes, on the CPU."""
    n_rows, device = 20, laid_out.packed.device
    x = random_rows(n_rows, w.shape[1], random)
    weights, steps = int8_weights_ref(w)
    right = x.values().double() @ (weights.double() * steps.double()[:, None]).T
    found = torch.empty(n_rows, len(weights), device=device)
    GemmFragments(x=moved(x, device), w=laid_out, pair=0).run(
        epilogues.store, (found, len(weights), (found, 0.0, 0.0), found), (0, 0, False)
    )
    return bool((found.cpu() - right).norm() < 1e-5 * right.norm())


_works = cache(try_products)


def random_rows(n_rows: int, k: int, random: torch.Generator) -> Int8Blocks:
    """Any levels and scales, to try kernels with."""
    n_blocks, n_filled = cdiv(k, 256), cdiv(n_rows, ROWS_OF_BLOCKS) * ROWS_OF_BLOCKS
    levels = torch.randint(-127, 128, (n_filled, 256 * n_blocks), dtype=torch.int8, generator=random)
    levels[:, k:] = 0
    scale = torch.rand(n_blocks, n_filled, generator=random)
    return Int8Blocks(levels=in_block_order(levels), scale=scale, num_rows=n_rows, num_columns=k)


def random_matrix(
    form: str, n_groups: int, random: torch.Generator, rotation: int = 1, *, n_rows: int = 48
) -> PackedMatrix:
    """Rows of any bits, to try kernels with."""
    words = words_of_group(FORMATS[form])
    return PackedMatrix(
        format=form,
        packed=torch.randint(-(2**31), 2**31, (n_rows, words, n_groups), dtype=torch.int32, generator=random),
        scale=torch.randint(0, 256, (n_rows, n_groups), dtype=torch.uint8, generator=random),
        row_scale=torch.full((n_rows,), 2.0**-8),
        rotation=rotation,
    )
