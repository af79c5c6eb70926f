"""Products of many rows with the experts that each takes, as int8: weights decoded on their way to tensor cores.

It is for Hopper. The rows of the pairs are sorted by expert first, so that those of one lie side by side, and a program
multiplies a block of them with tiles of weights as gemm_fragments.py does. Where an expert has fewer pairs than its
last block, the others are the next one's, and nobody stores them. The references are in moe_matmul.py, with
int8_weights.int8_weights_ref.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from runner.kernels import moe_pairs
from runner.kernels.compile import Variant
from runner.kernels.epilogues import columns, streams
from runner.kernels.fragment_products import minus_of_lanes
from runner.kernels.fragments import TILE, to_fragments
from runner.kernels.gemm_fragments import sums_of_blocks
from runner.kernels.grids import half_tables, scale_value, table
from runner.kernels.int8_weights import FORMATS_AS_INT8, int8_weights_ref, longest_level, row_ratio
from runner.kernels.layouts import random_matrix, random_rows
from runner.kernels.moe_fragments import WIDE
from runner.kernels.moe_groups import Groups, block_of, group_pairs
from runner.kernels.values import (
    MOST_ROWS,
    OPTIONS,
    ROWS_OF_BLOCKS,
    Int8Blocks,
    Matrix,
    PackedMatrix,
    cdiv,
    is_hopper,
    is_nvidia,
    moved,
    next_power_of_2,
)


@triton.jit
def _sorted_rows(
    levels, scale, order, out, out_scale, R, R_OUT, sharing,
    WORDS: tl.constexpr, SPAN: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """Place program_id(0) of the order. levels, out: in words of four."""
    place = tl.program_id(0)
    row = tl.load(order + place) // sharing
    for start in tl.static_range(0, WORDS, SPAN):
        i = start + tl.arange(0, SPAN)
        words = tl.load(levels + row.to(tl.int64) * WORDS + i, mask=i < WORDS)
        tl.store(out + place.to(tl.int64) * WORDS + i, words, mask=i < WORDS)
    b = tl.arange(0, BLOCKS)
    is_block = b < WORDS // 64
    tl.store(out_scale + b * R_OUT + place, tl.load(scale + b * R + row, mask=is_block), mask=is_block)


def sorted_rows(x: Int8Blocks, groups: Groups) -> Int8Blocks:
    """The rows of the pairs by expert. x: of M rows, or of pairs. A block may begin at each of them."""
    n_pairs, n_words, n_blocks = len(groups.order), x.levels.shape[1] // 4, len(x.scale)
    n_filled = (cdiv(n_pairs, ROWS_OF_BLOCKS) + 1) * ROWS_OF_BLOCKS
    levels = torch.empty(n_filled, x.levels.shape[1], dtype=torch.int8, device=x.levels.device)
    scale = torch.empty(n_blocks, n_filled, device=x.levels.device)
    _sorted_rows[(n_pairs,)](
        x.levels.view(torch.int32), x.scale, groups.order, levels.view(torch.int32), scale,
        x.scale.shape[1], n_filled, n_pairs // x.num_rows,
        WORDS=n_words, SPAN=_SPAN, BLOCKS=next_power_of_2(n_blocks), num_warps=1, **OPTIONS,
    )  # fmt: skip
    return Int8Blocks(levels=levels, scale=scale, num_rows=n_pairs, num_columns=x.num_columns)


@triton.jit
def _int8_of_experts(
    x, x_scale, packed, scale, largest, row_scale, levels, halves, order, firsts, R, E, N, P, n_tiles, args,
    EPILOGUE: tl.constexpr, CONFIG: tl.constexpr, PAIR: tl.constexpr, EXPERTS: tl.constexpr, FEW: tl.constexpr,
    FORMAT: tl.constexpr, LONGEST: tl.constexpr, BM: tl.constexpr, T: tl.constexpr, NVIDIA: tl.constexpr,
):  # fmt: skip
    """x: sorted_rows, in blocks of [BM, 256]. The rows of expert e are those of the weights from e * N on."""
    tile = tl.program_id(0) % n_tiles
    expert, first, end = block_of(firsts, tl.program_id(0) // n_tiles, E, EXPERTS, BM, FEW)
    if first < end:
        of_tile, _, _, _, _ = columns(tile, N // 16, PAIR // 16, T)
        place = (expert.to(tl.int64) * (N // 16) + tl.minimum(of_tile, N // 16 - 1))[:, None]
        i = tl.arange(0, 128)[None, :]  # g, j, r = 2 e + h
        by = row_ratio(tl.load(largest + place * 16 + (i % 2 * 8 + i // 16)), LONGEST)
        acc = sums_of_blocks(
            x, x_scale, first, R, packed + place * (P * 128), scale + place * (P * 32), by, levels,
            minus_of_lanes(halves, T, FORMAT, NVIDIA), 0, P, FORMAT, BM, T, NVIDIA, False,
        )  # fmt: skip
        w_row, _, n, n2, n_ok = columns(tile, N, PAIR, T * 16)
        row = expert.to(tl.int64) * N + tl.minimum(w_row, N - 1)
        acc *= (scale_value(tl.load(largest + row)) * tl.load(row_scale + row) * (LONGEST / 127.0))[:, None]
        lo, hi = streams(tl.trans(acc), PAIR, BM, T * 16)
        of_block = first + tl.arange(0, BM)
        pairs = tl.load(order + of_block, mask=of_block < end, other=0)
        EPILOGUE(lo, hi, pairs, of_block < end, n, n2, n_ok, tile, args, CONFIG)


@dataclass(frozen=True, kw_only=True)
class Int8OfExperts:
    """A launch of the kernel. x: of rows, or of pairs, rotated as w wants it; w: the matrices of all experts."""

    x: Int8Blocks
    w: PackedMatrix
    groups: Groups

    def __post_init__(self) -> None:
        assert self.x.shape[1] == self.w.shape[1], (self.x.shape, self.w.shape)
        assert self.w.layout == "fragments"
        assert self.w.pair == 0
        assert len(self.groups.order) % self.x.num_rows == 0

    def pairs(
        self, epilogue: Callable[..., Any], args: tuple[Any, ...], config: tuple[Any, ...], pair: int, n_columns: int
    ) -> None:
        """Each pair's product [n_columns] to the epilogue. pair: see epilogues.columns."""
        w, groups, device = self.w, self.groups, self.w.packed.device
        n_experts, all_pairs = groups.num_experts, len(groups.order)
        n = w.shape[0] // n_experts
        assert n % TILE == pair % TILE == 0
        assert w.largest is not None, "the matrix is in fragments"
        rows = rows_of_block(all_pairs / n_experts)
        x = sorted_rows(self.x, groups)
        n_tiles = cdiv(n_columns, _TILES * TILE // (2 if pair else 1))
        _int8_of_experts[(groups.num_blocks(rows) * n_tiles,)](
            TensorDescriptor.from_tensor(x.levels, [rows, 256]), x.scale, w.packed, w.scale, w.largest, w.row_scale,
            table(device), half_tables(device), groups.order, groups.firsts, len(x.levels), n_experts, n,
            w.packed.shape[1], n_tiles, args,
            EPILOGUE=epilogue, CONFIG=config, PAIR=pair, EXPERTS=next_power_of_2(n_experts),
            FEW=groups.are_few(rows), FORMAT=w.format, LONGEST=longest_level(w), BM=rows, T=_TILES,
            NVIDIA=is_nvidia(x.levels), num_warps=_TILES, num_stages=_STAGES[rows], **OPTIONS,
        )  # fmt: skip


def rows_of_block(mean: float) -> int:
    """Rows of a block, where experts have so many pairs on average."""
    return 32 if mean <= 36 else 64 if mean <= 56 else 128


def multiplies_in_int8(w: Matrix) -> bool:
    """Whether the kernel takes these experts' matrices, and is right on the device that they are on: see layouts.py."""
    if isinstance(w, Tensor) or w.layout != "fragments" or w.format not in FORMATS_AS_INT8:
        return False
    return is_hopper(w.packed) and _works(w.format, w.packed.device)


def takes_pairs_in_int8(n_rows: int, n_slots: int, n_experts: int, width: int) -> bool:
    """Whether the kernel is for so many rows: more than decoding's are for, and neither few nor very many pairs an
    expert. width: columns of an expert's down matrix."""
    few = _FEW_PAIRS if width < WIDE else 0
    return n_rows > MOST_ROWS and few * n_experts < n_rows * n_slots <= _MOST_PAIRS * n_experts


def try_int8(form: str, device: torch.device) -> bool:
    """Whether it is, in blocks of each size: lanes are a compiler's to decide."""
    random = torch.Generator().manual_seed(0)
    planes = random_matrix(form, 38, random)
    w = moved(to_fragments(planes), device)
    weights, steps = int8_weights_ref(planes)
    dense = (weights.double() * steps.double()[:, None]).view(3, TILE, -1)  # an expert is a tile
    are_right = []
    for mean in _MEANS_TO_TRY:
        x = random_rows(3 * mean, planes.shape[1], random)
        experts = torch.arange(3 * mean, dtype=torch.int32, device=device)[:, None] % 3
        found = torch.empty(3 * mean, TILE, device=device)
        args = (found, TILE, (found, 0.0, 0.0), found, (experts, 1, TILE))
        Int8OfExperts(x=moved(x, device), w=w, groups=group_pairs(experts, 3)).pairs(
            moe_pairs.store_pairs, args, (0, 0, False), 0, TILE
        )
        right = torch.einsum("mk,mnk->mn", x.values().double(), dense[experts[:, 0].tolist()])
        are_right.append(bool((found.cpu() - right).norm() < 1e-5 * right.norm()))
    return all(are_right)


_works = cache(try_int8)


# H200, mq4, us of both products with what sorts their rows. 128 experts of [1536, 2048] and [2048, 768], for 8, 12, 16,
# 24 and 32 pairs of an expert: 149, 151, 153, 160, 210, in moe_blocks.py 143, 182, 231, 304, -, in moe_gemm.py 262,
# 326, 316, 453, 428; 64 and 128: 318, 473, there 615, 767. 32 experts of [5760, 2880] and [2880, 2880], 8, 16, 32, 64,
# 128 and 256: 180, 181, 248, 349, 512, 916, there 335, 383, 571, 865, 1032, 1652. Products alone in blocks of 32, 64
# and 128 rows: 32 pairs 201, 234, -, 40 pairs 268, 248, -, 48 pairs 284, 259, 295, 64 pairs 349, 359, 305. Blocks of 16
# take 5 % less for 8 pairs alone, eight warps 20 to 40 % more; a third stage for 64 rows and a fourth for 32 gain
# nothing. Wide experts are never for moe_blocks.py: eight layers of Mixtral-8x7B take 2.73, 2.73, 2.71, 2.85 ms of 17,
# 20, 24, 32 tokens there, and 2.29, 2.37, 2.35, 2.44 here.
_FEW_PAIRS: Final = 8  # of an expert, on average, which are for moe_blocks.py
_MOST_PAIRS: Final = 512
_TILES: Final = 4  # of a program, each a warp's
_STAGES: Final = {32: 3, 64: 2, 128: 2}  # by rows of a block
_MEANS_TO_TRY: Final = (16, 48, 64)
assert [rows_of_block(mean) for mean in _MEANS_TO_TRY] == list(_STAGES)
_SPAN: Final = 512


def variants() -> Iterator[Variant]:
    for form, program, rows in (
        ("mq4", moe_pairs.gate_pairs, 128), ("mq4", moe_pairs.gate_pairs, 32), ("mq4", moe_pairs.store_pairs, 64),
        ("mq4-uniform", moe_pairs.gate_pairs, 128),
    ):  # fmt: skip
        is_gate = program is moe_pairs.gate_pairs
        yield Variant(
            name=f"moe_int8 {form} {program.__name__}, {rows} rows",
            kernel=_int8_of_experts,
            signature={
                "x": f"tensordesc<i8[{rows}, 256]>", "x_scale": "*fp32", "packed": "*i32", "scale": "*u8",
                "largest": "*u8", "row_scale": "*fp32", "levels": "*i32", "halves": "*i32", "order": "*i32",
                "firsts": "*i32", "R": "i32:16", "E": "i32:16", "N": "i32:16", "P": "i32:16", "n_tiles": "i32",
                "args": moe_pairs.signature("*bf16"),
            },
            constants={
                "EPILOGUE": program, "CONFIG": (16, 16, False, 0) if is_gate else (0, 0, False),
                "PAIR": 768 if is_gate else 0, "EXPERTS": 128, "FEW": False,
                "FORMAT": form, "LONGEST": 127 if form == "mq4" else 15, "BM": rows, "T": _TILES, "NVIDIA": True,
            },
            num_warps=_TILES,
            num_stages=_STAGES[rows],
            is_decode=False,
            only_target="sm_90",
        )  # fmt: skip
    yield Variant(
        name="moe_int8 sorted_rows",
        kernel=_sorted_rows,
        signature={
            **dict.fromkeys(("levels", "order", "out"), "*i32"), **dict.fromkeys(("scale", "out_scale"), "*fp32"),
            "R": "i32:16", "R_OUT": "i32:16", "sharing": "i32",
        },
        constants={"WORDS": 512, "SPAN": _SPAN, "BLOCKS": 8},
        num_warps=1,
        is_decode=False,
        only_target="sm_90",
    )  # fmt: skip
