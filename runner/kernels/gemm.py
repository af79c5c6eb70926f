"""Dense or packed weights times many rows: the products of prefill, by the library that torch has for them.

Packed weights are decoded for it, a block of columns at a time, into a dense matrix of the type of the activations;
torch's allocator hands the same memory to one block after the other. What follows the product runs over it as a kernel
of its own. The reference is matmul.linear_ref. It knows nothing of what an epilogue does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from runner.kernels.apply_epilogue import apply_epilogue, tile_columns
from runner.kernels.dequantize import dequantize
from runner.kernels.fragments import TILE
from runner.kernels.values import Matrix, is_nvidia

# Bytes that the decoded weights of a block may take, and its product: the largest matrix of an 8B model is one block.
BLOCK_BYTES: Final = 256 * 2**20


@dataclass(frozen=True, kw_only=True)
class Gemm:
    """A product to be run. x: [M, K], of the type that is multiplied in, rotated for packed weights.

    n_tiles: parts of a row that the epilogue sees apart.
    """

    x: Tensor
    w: Matrix
    pair: int

    def __post_init__(self) -> None:
        assert self.x.is_contiguous()
        assert self.x.shape[1] == self.w.shape[1], (self.x.shape, self.w.shape)
        assert self.x.is_floating_point()

    @property
    def num_rows(self) -> int:
        return len(self.x)

    @property
    def n_tiles(self) -> int:
        return -(-self._width // tile_columns(self._width))

    def run(self, epilogue: Callable[..., Any], args: tuple[Any, ...], config: tuple[Any, ...]) -> None:
        """epilogue: a program (epilogues.py) with its arguments and constants."""
        width = self._width
        step = block_columns(width, len(self.x), self.x.shape[1], self.x.element_size(), is_paired=self.pair > 0)
        for first in range(0, width, step):
            apply_epilogue(
                multiply(self.x, self._weights(first, min(step, width - first))),
                epilogue,
                args,
                config,
                first=first,
                pair=self.pair,
                width=width,
            )

    @property
    def _width(self) -> int:
        return self.pair or self.w.shape[0]

    def _weights(self, first: int, count: int) -> Tensor:
        """The rows of these columns, with pairs all n and then all n + pair, dense in the type of x."""
        w, pair = self.w, self.pair
        if isinstance(w, Tensor):
            assert w.dtype == self.x.dtype, (w.dtype, self.x.dtype)
            if not pair or count == pair:
                return w[first : first + (2 * count if pair else count)]
            return torch.cat((w[first : first + count], w[pair + first : pair + first + count]))
        rows = 2 * count if pair else count
        dense = torch.empty(rows, w.shape[1], dtype=self.x.dtype, device=self.x.device)
        dequantize(w, dense, first=first, pair=pair)
        return dense


def block_columns(width: int, n_rows: int, k: int, itemsize: int, *, is_paired: bool) -> int:
    """How many of `width` columns of the output are computed at a time, for M rows: whole tiles, or all of them."""
    of_column = (2 if is_paired else 1) * max(k * itemsize, n_rows * _PRODUCT_ITEMSIZE)
    tile = max(tile_columns(width), TILE)
    return max(tile, BLOCK_BYTES // of_column // tile * tile)


def multiply(x: Tensor, w: Tensor) -> Tensor:
    """x @ w.T [M, N]: float32 where the library gives the sums as they are, else of the type of x.

    Rounded to bfloat16 in between, a product loses as much again as its activations did when they were rounded (KL
    divergence of the demo model to float32: 0.00048 against 0.00025).
    """
    if x.dtype in (torch.bfloat16, torch.float16) and is_nvidia(x):
        return torch.mm(x, w.T, out_dtype=torch.float32)
    return x @ w.T


_PRODUCT_ITEMSIZE: Final = 4
