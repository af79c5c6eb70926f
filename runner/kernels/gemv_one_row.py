"""Packed weights times one row of int8 activations on tensor cores: decoding on NVIDIA.

What gemv_fragments.py computes, in the same order, for the one row that decoding has, as gemv_steps.py says. A
program computes a tile of 16 columns, or a part of its pairs of groups. DEPTH steps' weights, and what else does not
depend on x, are on their way before the kernel before this one has ended. The last sums are those of
fragment_products.sum_by_halves.

The reference is matmul.linear_ref. Who launches it is gemv_fragments.GemvFragments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from runner.kernels import epilogues
from runner.kernels.compile import Variant
from runner.kernels.epilogues import columns, p_parts, p_rstd_of, streams
from runner.kernels.fragment_products import half_tables_of_lanes
from runner.kernels.gemv_steps import all_steps, begun_steps, begun_x, row_sums
from runner.kernels.gemv_tiles import (
    FEW_REGISTERS,
    MANY_REGISTERS,
    Tiles,
    tiles_of,
    tiles_of_branch,
    tiles_of_normed_branch,
    waves,
)
from runner.kernels.grids import half_tables, table
from runner.kernels.values import (
    OPTIONS,
    Int8Fragments,
    PackedMatrix,
    cdiv,
    has_pdl,
    is_nvidia,
    next_power_of_2,
    pdl_option,
    register_option,
)


@triton.jit
def _gemv_one_row(
    packed, high, scale, row_scale, levels, halves, x, notes, N, norm, stream, args,
    EPILOGUE: tl.constexpr, CONFIG: tl.constexpr, NORM: tl.constexpr, ADDS: tl.constexpr, PAIR: tl.constexpr,
    FORMAT: tl.constexpr, P: tl.constexpr, PART: tl.constexpr, W: tl.constexpr, DEPTH: tl.constexpr,
    NVIDIA: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    LENGTH: tl.constexpr = P if PART == 0 else PART
    STEPS: tl.constexpr = (LENGTH + 4 * W - 1) // (4 * W)
    MASKED: tl.constexpr = LENGTH % (4 * W) != 0 or P % LENGTH != 0
    tile = tl.program_id(0)
    part = tl.program_id(2)
    first = part * LENGTH
    end = tl.minimum(first + LENGTH, P)
    packed += tile.to(tl.int64) * (P * 128)
    high += tile.to(tl.int64) * (P * 128)
    scale += tile.to(tl.int64) * (P * 32)
    p = first + 4 * tl.arange(0, W)[:, None]
    waiting = begun_steps(packed, high, scale, p, end, FORMAT, W, DEPTH, STEPS, NVIDIA, MASKED)
    tables = half_tables_of_lanes(halves, W, FORMAT, NVIDIA)
    w_row, w_ok, n, n2, n_ok = columns(tile, N, PAIR, 16)
    factor = 0.5 * tl.load(row_scale + w_row, mask=w_ok, other=0.0)
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    rows = tl.arange(0, 8)
    if NORM[0] > 0:  # asked for now, while weights come, and used at the end
        squares = p_parts(norm[0], rows, rows < 1, NORM[0], NORM[1])
    if ADDS:
        before = tl.load(stream + n, mask=n_ok, other=0.0)
    asked = begun_x(x, notes, p, end, FORMAT, W, DEPTH, STEPS, NVIDIA, PDL, MASKED)
    acc = all_steps(
        waiting, asked, packed, high, scale, levels, tables, x, notes, p, first, end,
        FORMAT, W, W, DEPTH, STEPS, NVIDIA, PDL, MASKED,
    )  # fmt: skip
    total = tl.broadcast_to((row_sums(acc, W, W) * factor)[None, :], (8, 16))
    lo, hi = streams(total, PAIR, 8, 16)
    if NORM[0] > 0:
        rstd = p_rstd_of(squares, norm[1], norm[2])
        lo = lo * rstd[:, None]
        hi = hi * rstd[:, None]
    if ADDS:
        lo = lo + before[None, :]
    EPILOGUE(lo, hi, rows, rows < 1, n, n2, n_ok, tile if PART == 0 else part, args, CONFIG)


def multiply_one_row(
    x: Int8Fragments,
    w: PackedMatrix,
    tiles: Tiles,
    epilogue: Callable[..., Any],
    args: tuple[Any, ...],
    config: tuple[Any, ...],
) -> None:
    """The product of one row with w, and the program `epilogue` with its arguments and constants; see Tiles."""
    assert x.num_rows == 1
    n_tiles, n_pairs = w.packed.shape[:2]
    nvidia, pdl, device = is_nvidia(w.packed), has_pdl(w.packed), w.packed.device
    norm, is_normed, args, config = epilogues.norm_apart(epilogue, args, config, x.notes)
    is_branch = epilogue in (epilogues.add_stream, epilogues.store_squares)
    stream, adds, epilogue = epilogues.stream_apart(epilogue, args, config, x.notes)
    _gemv_one_row[(n_tiles, 1, cdiv(n_pairs, tiles.part or n_pairs))](
        w.packed, w.packed if w.high is None else w.high, w.scale, w.row_scale, table(device), half_tables(device),
        x.words, x.notes, w.shape[0], norm, stream, args,
        EPILOGUE=epilogue, CONFIG=config, NORM=is_normed, ADDS=adds, PAIR=w.pair, FORMAT=w.format, P=n_pairs,
        PART=tiles.part, W=tiles.warps, DEPTH=tiles.depth, NVIDIA=nvidia, PDL=pdl, num_warps=tiles.warps, num_stages=1,
        **register_option(_most_registers(w.format, tiles, n_tiles, is_branch=is_branch) if nvidia else None),
        **pdl_option(pdl), **OPTIONS,
    )  # fmt: skip


def _most_registers(form: str, tiles: Tiles, n_programs: int, *, is_branch: bool) -> int | None:
    """Of eight warps two programs are to run at once; of two with one step under way 14, as gemv_tiles wants.

    The latter take no more anyway where the norm has 16 parts; K = 5120 has 20, and five registers more made two waves
    of one: 1792 tiles took 30.5 us for 23.5 (H200). Elsewhere as many as leave it at one wave: with fewer, as ptxas
    chooses by itself, less is asked for at once (H200, a step of 20 layers of Qwen3-14B 1.540 -> 1.464 ms, of
    Mistral-Nemo-12B 1.279 -> 1.216, Llama-3.2-3B 0.968 -> 0.945). Where there is more than one wave, for the output,
    and for q, k and v in mq4, what is faster alone is slower within a step.
    """
    if tiles.registers:
        return tiles.registers
    if (form, tiles.warps, tiles.depth) == ("mq4", 2, 1):
        return 72
    if tiles.warps == 8:
        return 128
    if tiles.warps == 1 or tiles.part or (form == "mq4" and tiles.warps == 4 and not is_branch):
        return None
    fitting = (r for r in (MANY_REGISTERS, FEW_REGISTERS) if waves(n_programs, tiles.warps, r).number == 1)
    return next(fitting, None)


def variants() -> Iterator[Variant]:
    for form, program, pair, n_tiles, n_pairs in (
        ("mq4", epilogues.store, 0, 384, 64),
        ("mq4", epilogues.add_stream, 0, 256, 64),
        ("mq4", epilogues.add_stream, 0, 256, 224),
        ("mq4", epilogues.store_part, 0, 96, 140),
        ("mq4", epilogues.add_stream, 0, 320, 272),
        ("mq4", epilogues.store_squares, 0, 160, 160),
        ("mq4", epilogues.gate, 14336, 1792, 64),
        ("mq4", epilogues.gate, 14336, 1792, 80),
        ("mq4", epilogues.gate, 9728, 1216, 40),
        ("mq4", epilogues.add_stream, 0, 64, 48),
        ("mq4", epilogues.add_residual, 0, 20, 5),
        ("mq4-uniform", epilogues.add_residual, 0, 20, 5),
        ("mq4-uniform", epilogues.add_stream, 0, 256, 64),
        ("mq4-uniform", epilogues.gate, 14336, 1792, 64),
        ("mq6", epilogues.logits, 0, 8016, 64),
        ("mq6", epilogues.capped_logits, 0, 16384, 84),
        ("mq6", epilogues.gate_by, 0, 16, 24),
        ("mq6", epilogues.store_squares, 0, 96, 4),
    ):
        is_part = program is epilogues.store_part
        is_branch = program in (epilogues.store_part, epilogues.add_stream, epilogues.store_squares)
        if program is epilogues.store_squares:
            tiles = tiles_of_normed_branch(n_tiles, n_pairs)
        else:
            tiles = tiles_of_branch(n_tiles, n_pairs) if is_branch else tiles_of(n_tiles, n_pairs)
        assert is_part == (tiles.part > 0)
        of_gate = {epilogues.gate: (0,), epilogues.gate_by: (1,)}.get(program, ())  # silu, gelu
        config = (-(-n_pairs // tiles.part),) if is_part else (0, 0, False, *of_gate)
        adds = program is epilogues.add_stream
        n_parts = cdiv(n_pairs, 4)  # of the squares, each of 256 columns
        norm = (0, 1) if is_branch else (n_parts, next_power_of_2(n_parts))
        yield Variant(
            name=f"gemv_one_row {form} {program.__name__} K={64 * n_pairs}",
            kernel=_gemv_one_row,
            signature={
                "packed": "*i32", "high": "*i16" if form == "mq6" else "*i32", "scale": "*u8", "row_scale": "*fp32",
                "levels": "*i32", "halves": "*i32", "x": "*i32", "notes": "*fp32", "N": "i32:16",
                "norm": ("*fp32", "fp32", "fp32"), "stream": "*fp32",
                "args": epilogues.signature(program, "*bf16"),
            },
            constants={
                "EPILOGUE": epilogues.store if adds else program, "CONFIG": config,
                "NORM": norm, "ADDS": adds, "PAIR": pair, "FORMAT": form, "P": n_pairs,
                "PART": tiles.part, "W": tiles.warps, "DEPTH": tiles.depth, "NVIDIA": True,
            },
            num_warps=tiles.warps,
            num_stages=1,
            has_pdl=True,
            is_nvidia_only=True,
            most_registers=_most_registers(form, tiles, n_tiles, is_branch=is_branch),
        )  # fmt: skip
