"""An epilogue program over a product that lies in memory: the library's, or one that is there in parts.

Other products carry the program with them; where torch multiplies, or parts are to be added first, it runs afterwards,
over tiles of one row. The programs are the same, so a fusion is written once. It knows no weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from runner.kernels import epilogues
from runner.kernels.compile import Variant
from runner.kernels.values import OPTIONS, cdiv, has_pdl, next_power_of_2, pdl_option


@triton.jit(do_not_specialize=["M"])
def _apply_epilogue(
    product, M, first, count, args,
    EPILOGUE: tl.constexpr, CONFIG: tl.constexpr, PAIR: tl.constexpr, PARTS: tl.constexpr, TILE: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """The program for columns first ... first + count of the output, and for the pairs of these."""
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    n_tiles = tl.cdiv(count, TILE)
    tile = tl.program_id(0) % n_tiles
    rows = tl.program_id(0) // n_tiles + tl.arange(0, 1)
    c = tile * TILE + tl.arange(0, TILE)
    ok = c < count
    at = product + rows[:, None].to(tl.int64) * ((2 if PAIR else PARTS) * count) + c[None, :]
    lo = tl.load(at, mask=ok[None, :], other=0.0).to(tl.float32)
    for i in tl.static_range(1, PARTS):
        lo += tl.load(at + i * count, mask=ok[None, :], other=0.0).to(tl.float32)
    hi = lo
    if PAIR:
        hi = tl.load(at + count, mask=ok[None, :], other=0.0).to(tl.float32)
    n = first + c
    EPILOGUE(lo, hi, rows, rows < M, n, n + PAIR, ok, first // TILE + tile, args, CONFIG)


def tile_columns(width: int) -> int:
    """Columns of a tile, a power of two, where the output has `width` of them: each tile has a part of every row."""
    return _TILE if width >= _TILE else next_power_of_2(width)


def apply_epilogue(
    product: Tensor,
    epilogue: Callable[..., Any],
    args: tuple[Any, ...],
    config: tuple[Any, ...],
    *,
    first: int,
    pair: int,
    width: int,
) -> None:
    """Run a program (epilogues.py) over columns first ... first + count of `width`.

    product: [M, count], any float type, contiguous; with pairs [M, 2 count], the columns n and then all n + pair, see
    epilogues.columns; or, without pairs, [M, parts, count], whose sum over the parts is meant. first: a multiple of
    tile_columns(width), and count too unless these are the last columns.
    """
    tile, pdl = tile_columns(width), has_pdl(product)
    n_rows, count = len(product), product.shape[-1] // (2 if pair else 1)
    n_parts = 1 if product.dim() == 2 else product.shape[1]
    assert product.is_contiguous()
    assert n_parts == 1 or not pair
    assert first % tile == 0
    assert count % tile == 0 or first + count == width, (first, count, width)
    _apply_epilogue[(n_rows * cdiv(count, tile),)](
        product, n_rows, first, count, args,
        EPILOGUE=epilogue, CONFIG=config, PAIR=pair, PARTS=n_parts, TILE=tile, PDL=pdl,
        num_warps=_WARPS, **pdl_option(pdl), **OPTIONS,
    )  # fmt: skip


_TILE, _WARPS = 1024, 4


def variants() -> Iterator[Variant]:
    for program, config, pair, dtype, parts in (
        (epilogues.store, (4, 4, False), 0, "*fp32", 1),
        (epilogues.add_residual, (0, 0, False), 0, "*fp32", 1),
        (epilogues.add_residual, (0, 0, False), 0, "*fp32", 4),
        (epilogues.gate, (4, 4, False, 0), 14336, "*fp32", 1),
        (epilogues.gate, (4, 4, False, 0), 14336, "*bf16", 1),
        (epilogues.gate_by, (0, 0, False, 1), 0, "*fp32", 1),
    ):
        out, _, *others = epilogues.signature(program, "*bf16")
        of_parts = f" in {parts} parts" if parts > 1 else ""
        yield Variant(
            name=f"apply_epilogue {program.__name__} of {dtype.removeprefix('*')}{of_parts}",
            kernel=_apply_epilogue,
            signature={
                "product": dtype, "M": "i32", "first": "i32:16", "count": "i32:16",
                "args": (out, "i32:16", *others),
            },
            constants={"EPILOGUE": program, "CONFIG": config, "PAIR": pair, "PARTS": parts, "TILE": _TILE},
            num_warps=_WARPS,
            has_pdl=True,
            is_decode=False,
        )  # fmt: skip
