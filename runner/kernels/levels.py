"""Floats as int8 levels from -127 to 127 times a scale, max|v| / 127: what rows and caches are rounded by.

A level is what the quotient rounds to, halves to even, bit for bit as torch has it, with one division for all elements
of a scale. A scale of 0 has levels of 0; where an element is NaN or infinite its scale is, and levels mean nothing.
Which elements share a scale is for who calls this.
"""

from __future__ import annotations

import triton
import triton.language as tl

_ROUNDING = tl.constexpr(12582912.0)  # 1.5 * 2^23: adding it leaves no bits behind the point, halves rounded to even
_LARGEST = tl.constexpr(127.0)
_SMALL, _MUCH = tl.constexpr(2.0**-60), tl.constexpr(2.0**64)


@triton.jit
def magnitude(v):
    """|v| as a whole number, since of these NaN is the largest: a maximum of floats would pass it over."""
    return v.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def scale_of(largest):
    """The scale of elements of which the largest has this magnitude, and what level_of wants of it."""
    unit = tl.div_rn(largest.to(tl.float32, bitcast=True), _LARGEST)
    # From the nearest float to 1 / unit one correction leads to v / unit as a division rounds it (Markstein). What is
    # very small is first made larger, which is exact.
    grow = tl.where(unit < _SMALL, _MUCH, 1.0)
    by = tl.where(unit > 0.0, unit * grow, 1.0)
    return unit, grow, by, tl.div_rn(1.0, by)


@triton.jit
def level_of(v, grow, by, inverse):
    """The nearest level, int32; see scale_of."""
    value = v * grow
    near = value * inverse
    quotient = tl.fma(tl.fma(-near, by, value), inverse, near)
    return ((quotient + _ROUNDING) - _ROUNDING).to(tl.int32)
