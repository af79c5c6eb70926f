"""What each layer gets of a token beside the stream (Gemma 4's small models), from a product and rows of a table.

The product of the token's embedding, of all layers side by side, is normed by layers, and the layers' rows of the table
are added; both have equal shares. A program is one layer of one row. It knows no weights but the norm's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from runner.kernels.compile import Variant
from runner.kernels.values import OPTIONS, has_pdl, next_power_of_2, pdl_option

_SHARE: Final = 0.5**0.5


def layer_inputs_ref(made: Tensor, rows: Tensor, gain: Tensor, eps: float) -> Tensor:
    """See layer_inputs; computed in the dtype of made."""
    of_layers = made.unflatten(1, (-1, len(gain)))
    normed = of_layers * (of_layers.square().mean(-1, keepdim=True) + eps).rsqrt() * gain
    found: Tensor = (normed.flatten(1) + rows) * _SHARE
    return found


@triton.jit
def _layer_inputs(made, rows, gain, out, eps, share, SIZE: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    n_layers = tl.num_programs(0)
    k = tl.arange(0, BLOCK)
    ok = k < SIZE
    at = (tl.program_id(1).to(tl.int64) * n_layers + tl.program_id(0)) * SIZE + k
    g = tl.load(gain + k, mask=ok, other=0.0)
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    value = tl.load(made + at, mask=ok, other=0.0).to(tl.float32)
    value *= tl.rsqrt(tl.sum(value * value, 0) * (1.0 / SIZE) + eps)
    value = (value * g + tl.load(rows + at, mask=ok, other=0.0)) * share
    tl.store(out + at, value.to(out.dtype.element_ty), mask=ok)


def layer_inputs(made: Tensor, rows: Tensor, gain: Tensor, eps: float) -> Tensor:
    """(norm(made) + rows) / sqrt(2) [M, L * P] in the dtype of made, computed in float32.

    made: [M, L * P], L layers of P elements, each of which is normed alone. rows: the same shape, float32. gain: [P]
    float32, and eps: the norm's. All are contiguous.
    """
    (n_rows, width), size = made.shape, len(gain)
    assert rows.shape == made.shape
    assert rows.dtype == gain.dtype == torch.float32
    assert width % size == 0
    assert all(tensor.is_contiguous() for tensor in (made, rows, gain))
    out, pdl = torch.empty_like(made), has_pdl(made)
    _layer_inputs[(width // size, n_rows)](
        made, rows, gain, out, eps, _SHARE, SIZE=size, BLOCK=next_power_of_2(size), PDL=pdl,
        num_warps=_WARPS, **pdl_option(pdl), **OPTIONS,
    )  # fmt: skip
    return out


_WARPS: Final = 1


def variants() -> Iterator[Variant]:
    for form in ("bf16", "fp32"):
        yield Variant(
            name=f"layer_inputs {form}",
            kernel=_layer_inputs,
            signature={
                "made": f"*{form}", "rows": "*fp32", "gain": "*fp32", "out": f"*{form}", "eps": "fp32", "share": "fp32",
            },
            constants={"SIZE": 256, "BLOCK": 256},
            num_warps=_WARPS,
            has_pdl=True,
        )  # fmt: skip
