"""Packed weights in fragments times 17 to 1024 rows, as int8: decoded on their way to Hopper's tensor cores.

For so few rows (most_decoded_rows) that takes less time than to decode weights before (gemm_int8.py), though it is done
for each 128 rows again. A warp decodes a tile of 16 rows of weights in its registers, where the instruction of a warp
group wants them: a lane of loaded_block has what that lane multiplies, so nothing passes between lanes. x alone goes
through shared memory, and comes there by TMA, which wants no registers for addresses and was measured to be faster than
loads of threads.
Levels, steps and sums are those of gemm_int8.py: the same bits, where the columns are not summed in parts.
Parts are for matrices with too few tiles for the GPU, and follow from the matrix and the number of rows. The reference
is matmul.linear_ref with int8_weights_ref. It knows nothing of what an epilogue does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
from triton.tools.tensor_descriptor import TensorDescriptor

from runner.kernels import epilogues
from runner.kernels.apply_epilogue import apply_epilogue, tile_columns
from runner.kernels.compile import Variant
from runner.kernels.fragment_products import minus_of_lanes
from runner.kernels.gemm_int8 import Int8Product, finish
from runner.kernels.grids import half_tables, table
from runner.kernels.int8_weights import (
    decoders,
    int8_bytes,
    loaded_block,
    longest_level,
    row_ratio,
)
from runner.kernels.values import (
    MULTIPROCESSORS,
    OPTIONS,
    cdiv,
    has_pdl,
    is_nvidia,
    pdl_option,
)


@triton.jit
def _no_later():
    """ptxas puts no load off beyond this, which is over at once.

    It is a gdc_wait that Triton does not know as one: where it does, in 3.9, it brings nothing to shared memory ahead.
    """
    tl.inline_asm_elementwise("griddepcontrol.wait; // $0", "=r", [], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def sums_of_blocks(
    x, x_scale, first_row, R, packed, scale, by, levels, minus, first, end,
    FORMAT: tl.constexpr, BM: tl.constexpr, T: tl.constexpr, NVIDIA: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Tiles times BM rows of x from first_row on: [T * 16, BM] float32, which the tiles' rows' steps are to multiply.

    x: the R rows of Int8Blocks, in blocks of [BM, 256]; x_scale: theirs. packed, scale: where the tiles [T, 1] begin;
    by: row_ratio of their rows; minus: minus_of_lanes. first, end: pairs of groups, from a multiple of four on.
    """
    # A block of 256 columns ahead, in registers: by way of shared memory, also by TMA, they took longer.
    words, codes = loaded_block(packed, scale, first, end)
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    rows = first_row + tl.arange(0, BM)
    acc = tl.zeros((T * 16, BM), tl.float32)
    for start in range(first, end, 4):
        factor = tl.load(x_scale + start // 4 * R + rows)
        if NVIDIA:
            _no_later()
        next_words, next_codes = loaded_block(packed, scale, start + 4, end)
        if NVIDIA:
            _no_later()
        decoder = decoders(codes, by, FORMAT, NVIDIA)
        quads = ()
        for w in tl.static_range(4):
            low, high = int8_bytes(words[w], decoder, levels, minus, FORMAT, NVIDIA)
            quads = quads + (tl.join(low, high),)  # type: ignore[assignment]  # noqa: RUF005
        weights = tl.join(tl.join(quads[0], quads[2]), tl.join(quads[1], quads[3]))  # type: ignore[misc]
        weights = tl.reshape(weights, (T, 8, 4, 2, 2, 4, 2, 4))  # t, g, j, e, h, byte, half, w
        weights = tl.reshape(tl.permute(weights, (0, 4, 1, 7, 3, 6, 2, 5)), (T * 16, 256))
        found = tl.dot(weights, x.load([first_row, start * 64]).T, out_dtype=tl.int32)
        words, codes = next_words, next_codes
        acc = tl.fma(found.to(tl.float32), tl.broadcast_to(factor[None, :], (T * 16, BM)), acc)
    return acc


@triton.jit(do_not_specialize=["M"])
def _gemm_fragments(
    x, x_scale, packed, scale, largest, row_scale, levels, halves, M, R, N, P, n_tiles, args,
    EPILOGUE: tl.constexpr, CONFIG: tl.constexpr, PAIR: tl.constexpr, FORMAT: tl.constexpr, LONGEST: tl.constexpr,
    PART: tl.constexpr, BM: tl.constexpr, T: tl.constexpr, NVIDIA: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """x: the R rows of Int8Blocks, in blocks of [BM, 256]. PART: blocks of 256 columns of a program, 0 for all.

    Programs that share weights come one after the other. Tiles beyond the last one compute what that one does, and
    nobody stores it.
    """
    n_rows = tl.cdiv(M, BM)
    first_tile = tl.program_id(0) // n_rows * T
    part = tl.program_id(1)
    first_row = tl.program_id(0) % n_rows * BM
    rows = first_row + tl.arange(0, BM)
    tile = tl.minimum(first_tile + tl.arange(0, T), n_tiles - 1)[:, None].to(tl.int64)
    i = tl.arange(0, 128)[None, :]  # g, j, r = 2 e + h
    packed += tile * (P * 128)
    scale += tile * (P * 32)
    by = row_ratio(tl.load(largest + tile * 16 + (i % 2 * 8 + i // 16)), LONGEST)
    minus = minus_of_lanes(halves, T, FORMAT, NVIDIA)
    first = part * (PART * 4)
    end = P if PART == 0 else tl.minimum(first + PART * 4, P)
    acc = sums_of_blocks(
        x, x_scale, first_row, R, packed, scale, by, levels, minus, first, end, FORMAT, BM, T, NVIDIA, PDL
    )
    which = first_tile // T if PART == 0 else part
    finish(
        tl.trans(acc), largest, row_scale, rows, M, first_tile * 16, n_tiles * 16, N, which, args,
        EPILOGUE, CONFIG, PAIR, LONGEST, BM, T * 16,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class GemmFragments(Int8Product):
    """One whose weights are decoded on their way."""

    @property
    def n_tiles(self) -> int:
        if self._n_parts > 1:
            return cdiv(self.w.shape[0], tile_columns(self.w.shape[0]))
        return cdiv(len(self.w.packed), _TILES)

    def run(self, epilogue: Callable[..., Any], args: tuple[Any, ...], config: tuple[Any, ...]) -> None:
        """epilogue: a program (epilogues.py) with its arguments and constants."""
        parts = self.parts()
        if parts is None:
            self._launch(epilogue, args, config, 0)
        else:
            apply_epilogue(parts, epilogue, args, config, first=0, pair=0, width=self.w.shape[0])

    def parts(self) -> Tensor | None:
        """The product as sums over parts of the columns of w, [M, parts, N] float32; None where it has one alone."""
        n_parts, width = self._n_parts, self.w.shape[0]
        if n_parts == 1:
            return None
        out = torch.empty(self.num_rows, n_parts, width, dtype=torch.float32, device=self.x.levels.device)
        self._launch(epilogues.store_part, (out, width), (n_parts,), self._blocks_of_part)
        return out

    def _launch(self, epilogue: Callable[..., Any], args: tuple[Any, ...], config: tuple[Any, ...], part: int) -> None:
        x, w, n_rows, block = self.x, self.w, self.num_rows, _rows_of_program(self.num_rows)
        device = x.levels.device
        n_tiles, n_pairs = w.packed.shape[:2]
        assert w.largest is not None, "the matrix is in fragments"
        pdl = has_pdl(x.levels)
        _gemm_fragments[(cdiv(n_rows, block) * cdiv(n_tiles, _TILES), self._n_parts)](
            TensorDescriptor.from_tensor(x.levels, [block, 256]), x.scale, w.packed, w.scale, w.largest, w.row_scale,
            table(device), half_tables(device), n_rows, len(x.levels), w.shape[0], n_pairs, n_tiles, args,
            EPILOGUE=epilogue, CONFIG=config, PAIR=self.pair, FORMAT=w.format, LONGEST=longest_level(w), PART=part,
            BM=block, T=_TILES, NVIDIA=is_nvidia(x.levels), PDL=pdl,
            num_warps=_WARPS, num_stages=_STAGES[block], **pdl_option(pdl), **OPTIONS,
        )  # fmt: skip

    @property
    def _blocks_of_part(self) -> int:
        n_tiles, n_pairs = self.w.packed.shape[:2]
        return 0 if self.pair else blocks_of_part(n_tiles, n_pairs, self.num_rows)

    @property
    def _n_parts(self) -> int:
        part = self._blocks_of_part
        return cdiv(cdiv(self.w.packed.shape[1], 4), part) if part else 1


def blocks_of_part(n_tiles: int, n_pairs: int, n_rows: int) -> int:
    """Blocks of 256 columns of a program where the columns are summed in parts, so that the programs fill the GPU;
    else 0."""
    block = _rows_of_program(n_rows)
    n_programs, n_blocks, n_parts = cdiv(n_tiles, _TILES) * cdiv(n_rows, block), cdiv(n_pairs, 4), 1
    while 2 * n_parts * n_programs <= _AT_ONCE[block]:
        least = _LEAST_BLOCKS if n_parts * n_programs >= MULTIPROCESSORS else _LEAST_BLOCKS // 2
        if n_blocks < 2 * n_parts * least:
            break
        n_parts *= 2
    return cdiv(n_blocks, n_parts) if n_parts > 1 else 0


def _rows_of_program(n_rows: int) -> int:
    return 32 if n_rows <= 32 else 64 if n_rows <= 64 else 128


def most_decoded_rows(n: int, k: int) -> int:
    """Up to how many rows the weights of a matrix [n, k] are decoded for them alone."""
    return 1024 if n * k < _SMALL else 512


# Weights. H200, ms of a prompt of 600, 700, 850 and 1000 tokens, decoded before | on their way, where the matrices have
# 2e6 to 6e6 weights (28 layers of Qwen3-0.6B) 2.86, 3.26, 3.43, 3.80 | 2.41, 2.74, -, -, and with gate and up decoded
# before 2.40, 2.89, 3.04, 3.26; 16e6 to 50e6 (12 of Qwen3-4B) 3.31, 3.72 | 3.23, 3.72; 16e6 to 117e6 (16 of
# Llama-3.1-8B) 8.24, 9.23 | 8.39, 9.75.
_SMALL: Final = 1 << 23
# A warp decodes the tile that it multiplies, so there are as many tiles as warps. H200, 16 layers of Llama-3.1-8B, ms
# of a prompt of 20, 64 and 128 tokens: 1.28, 1.61, 2.07; four stages for 32 rows 1.29, two for 64 1.67, 168 registers
# for 128 rows 3.23. Before x came by TMA eight warps were slower for 64 and 256 rows. docs/LOG.md has more.
_TILES: Final = 4
_WARPS: Final = 4
_STAGES: Final = {32: 3, 64: 3, 128: 2}  # by rows of a program
_AT_ONCE: Final = {32: 4 * MULTIPROCESSORS, 64: 3 * MULTIPROCESSORS, 128: 2 * MULTIPROCESSORS}  # programs
# Blocks of 256 columns of a part; half as many where multiprocessors are idle: [2048, 2048], 32 rows, 12.2 -> 8.7 us.
_LEAST_BLOCKS: Final = 4


def variants() -> Iterator[Variant]:
    for form, program, config, rows, pair, part in (
        ("mq4", epilogues.store, (4, 4, False), 64, 0, 0),
        ("mq4", epilogues.store_part, (4,), 128, 0, 14),
        ("mq4", epilogues.gate, (4, 4, False, 0), 32, 14336, 0),
        ("mq4", epilogues.gate, (4, 4, False, 0), 128, 14336, 0),
        ("mq4-uniform", epilogues.gate, (4, 4, False, 0), 128, 14336, 0),
    ):
        yield Variant(
            name=f"gemm_fragments {form} {program.__name__}, {rows} rows",
            kernel=_gemm_fragments,
            signature={
                "x": f"tensordesc<i8[{rows}, 256]>", "x_scale": "*fp32", "packed": "*i32", "scale": "*u8",
                "largest": "*u8", "row_scale": "*fp32", "levels": "*i32", "halves": "*i32", "M": "i32", "R": "i32:16",
                "N": "i32:16", "P": "i32:16", "n_tiles": "i32:16", "args": epilogues.signature(program, "*bf16"),
            },
            constants={
                "EPILOGUE": program, "CONFIG": config, "PAIR": pair, "FORMAT": form,
                "LONGEST": 127 if form == "mq4" else 15, "PART": part, "BM": rows, "T": _TILES,
                "NVIDIA": False, "PDL": False,
            },
            num_warps=_WARPS,
            num_stages=_STAGES[rows],
            is_decode=False,
            has_pdl=True,
            only_target="sm_90",
            nvidia_constants={"NVIDIA": True},
        )  # fmt: skip
