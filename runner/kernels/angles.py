"""The rotary angles of rows at a position that lies on the device: one launch, where torch's operators take eight.

It knows frequencies and not which scaling they come from.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from runner.kernels.compile import Variant
from runner.kernels.values import OPTIONS, has_pdl, next_power_of_2, pdl_option


def angles_ref(start: Tensor, n_rows: int, frequencies: Tensor, factor: float) -> tuple[Tensor, Tensor]:
    """See angles."""
    positions = start + torch.arange(n_rows, device=start.device)
    turned = torch.outer(positions.to(frequencies.dtype), frequencies)
    return turned.cos() * factor, turned.sin() * factor


@triton.jit
def _angles(start, frequencies, cos, sin, factor, HALF: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    m = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    ok = i < HALF
    turn = tl.load(frequencies + i, mask=ok, other=0.0)
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    angle = (tl.load(start) + m).to(tl.float32) * turn
    at = m.to(tl.int64) * HALF + i
    tl.store(cos + at, tl.cos(angle) * factor, mask=ok)
    tl.store(sin + at, tl.sin(angle) * factor, mask=ok)


def angles(start: Tensor, n_rows: int, frequencies: Tensor, factor: float) -> tuple[Tensor, Tensor]:
    """cos and sin, [n_rows, R/2] float32 each, of (start + m) * frequencies, times `factor`.

    start: int32 or int64 [1], on the device. frequencies: [R/2] float32, radians a position.
    """
    assert start.shape == (1,)
    assert frequencies.dtype == torch.float32
    assert frequencies.is_contiguous()
    half, pdl = len(frequencies), has_pdl(start)
    cos, sin = (torch.empty(n_rows, half, dtype=torch.float32, device=start.device) for _ in range(2))
    if half:
        _angles[(n_rows,)](
            start, frequencies, cos, sin, factor,
            HALF=half, BLOCK=next_power_of_2(half), PDL=pdl, num_warps=_WARPS, **pdl_option(pdl), **OPTIONS,
        )  # fmt: skip
    return cos, sin


_WARPS = 1


def variants() -> Iterator[Variant]:
    yield Variant(
        name="angles d128",
        kernel=_angles,
        signature={"start": "*i32", "frequencies": "*fp32", "cos": "*fp32", "sin": "*fp32", "factor": "fp32"},
        constants={"HALF": 64, "BLOCK": 64},
        num_warps=_WARPS,
        has_pdl=True,
    )
