"""The rotation of quant/mq/rotation.py inside a kernel: signs, butterflies, signs, in blocks of up to 256.

`rotated` takes a row of numbers in any layout, and any GPU's compiler finds its way of passing them between lanes.
`rotated_span` takes 256 of them as one warp of NVIDIA's loads them, so that five of the eight stages are one exchange
between two lanes each and the others pass nothing: no shared memory and no barrier, unless two warps have a half each:
then the last stage passes through it. Both add the same numbers in the same order, so their results have the same bits.
All is float32. It knows neither norms nor rounding.
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from runner.quant.mq.rotation import first_and_second_signs


@cache
def rotation_signs(size: int, device: torch.device) -> Tensor:
    """The signs before and after the butterflies, [2, 256] float32; the second ones divided by sqrt(size)."""
    first, second = first_and_second_signs()
    return torch.stack((first, second / size**0.5)).to(device)


@triton.jit
def rotated(v, signs, SIZE: tl.constexpr, SPAN: tl.constexpr):
    """R v of v [SPAN] in blocks of SIZE: signs, butterflies of neighbours (all sums before all differences), signs."""
    if SIZE == 1:
        return v
    else:
        i = tl.arange(0, SIZE)
        block = tl.reshape(v, (SPAN // SIZE, SIZE)) * tl.load(signs + i)[None, :]
        HALVINGS: tl.constexpr = tl.constexpr(SIZE.bit_length() - 1)
        for _ in tl.static_range(HALVINGS):
            a, b = tl.split(tl.reshape(block, (SPAN // SIZE, SIZE // 2, 2)))
            block = tl.reshape(tl.permute(tl.join(a + b, a - b), (0, 2, 1)), (SPAN // SIZE, SIZE))
        block = block * tl.load(signs + 256 + i)[None, :]
        return tl.reshape(block, (SPAN,))


# --- one span in one warp --------------------------------------------------------------------------------------------


def _exchange(distance: int) -> str:
    """PTX: $1 times its sign $2, plus what the lane `distance` away has: here a sum, there a difference."""
    return f"{{ .reg .f32 t; shfl.sync.bfly.b32 t, $1, {distance}, 31, -1; fma.rn.f32 $0, $1, $2, t; }}"


_EXCHANGE_1 = tl.constexpr(_exchange(1))
_EXCHANGE_2 = tl.constexpr(_exchange(2))
_EXCHANGE_4 = tl.constexpr(_exchange(4))
_EXCHANGE_8 = tl.constexpr(_exchange(8))
_EXCHANGE_16 = tl.constexpr(_exchange(16))


@triton.jit
def span_places():
    """[2, 128]: 0 to 255. Lane l of a warp has 4 l to 4 l + 3 of each half: bits 0, 1 and 7 of a place are its own.

    Written with // 4 and % 4 so that Triton sees that they come in fours.
    """
    i = tl.arange(0, 128)
    return tl.arange(0, 2)[:, None] * 128 + (i // 4 * 4 + i % 4)[None, :]


@triton.jit
def signs_of_span(signs, places, SIZE: tl.constexpr, NVIDIA: tl.constexpr):
    """What rotated_span wants of the signs, to be loaded before anything has to wait: those before and those after."""
    if SIZE == 1 or not NVIDIA:
        return 1.0, 1.0
    else:
        at = _places_of_signs(places, SIZE)
        return tl.load(signs + at), tl.load(signs + 256 + at)


@triton.jit
def rotated_span(v, signs, signs_there, places, SIZE: tl.constexpr, NVIDIA: tl.constexpr):
    """R v of v [2, 128] in blocks of SIZE, the 256 numbers lying as span_places says; for a program of one warp, or of
    two with a half each.

    signs_there: signs_of_span.
    """
    if SIZE == 1:
        return v
    elif not NVIDIA:
        return tl.reshape(rotated(tl.reshape(v, (256,)), signs, SIZE, 256), (2, 128))
    else:
        v = _rotated_halves(v * signs_there[0], places, SIZE)
        if SIZE > 128:
            a, b = tl.split(tl.permute(v, (1, 0)))  # bit 7
            v = tl.permute(tl.join(a + b, a - b), (1, 0))
        return v * signs_there[1]


@triton.jit
def _places_of_signs(places, SIZE: tl.constexpr):
    """Where the signs of elements lie that are at `places` [R, 128] of a span."""
    if SIZE == 256:
        return places
    elif SIZE >= 4:  # written so that Triton sees that they come in fours: else it loads them in another layout
        i = tl.arange(0, 128)[None, :]
        return i // 4 % (SIZE // 4) * 4 + i % 4 + 0 * places
    else:
        return places % SIZE


@triton.jit
def _rotated_halves(v, places, SIZE: tl.constexpr):
    """The butterflies inside of halves of spans v [R, 128]: all stages but the last one of a block of 256."""
    R: tl.constexpr = v.shape[0]
    a, b = tl.split(tl.reshape(v, (R, 32, 2, 2)))  # bit 0
    v = tl.join(a + b, a - b)
    if SIZE > 2:
        a, b = tl.split(tl.permute(v, (0, 1, 3, 2)))  # bit 1
        v = tl.permute(tl.join(a + b, a - b), (0, 1, 3, 2))
    return _between_lanes(tl.reshape(v, (R, 128)), places, SIZE)


@triton.jit
def _between_lanes(v, places, SIZE: tl.constexpr):
    """The stages of bits 2 to 6, of elements that lie four places a lane; places: theirs."""
    if SIZE > 4:
        v = _exchanged(v, places, 4, _EXCHANGE_1)
    if SIZE > 8:
        v = _exchanged(v, places, 8, _EXCHANGE_2)
    if SIZE > 16:
        v = _exchanged(v, places, 16, _EXCHANGE_4)
    if SIZE > 32:
        v = _exchanged(v, places, 32, _EXCHANGE_8)
    if SIZE > 64:
        v = _exchanged(v, places, 64, _EXCHANGE_16)
    return v


@triton.jit
def _exchanged(v, places, DISTANCE: tl.constexpr, EXCHANGE: tl.constexpr):
    """A stage of butterflies between places that are DISTANCE apart, which are in two lanes."""
    sign = (1 - 2 * (places // DISTANCE % 2)).to(tl.float32)
    return tl.inline_asm_elementwise(EXCHANGE, "=f,f,f", [v, sign], dtype=tl.float32, is_pure=True, pack=1)
