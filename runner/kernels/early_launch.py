"""A launch of a kernel that may begin early, for its own sake: the steps that follow, by a graph, run faster.

On an H200 (driver 580) a decode step whose kernels may begin early has two speeds by its graph, 3 % apart, and keeps
the one that it has: in the slower each kernel that is not hidden behind another begins 0.9 us later. One launch of any
such kernel outside of a graph, while the device is idle and before the step's inputs are copied, puts it into the
faster; where the device is busy it may do the opposite, and one that may not begin early does nothing. Why is not
known (docs/LOG.md, 2026-11-25 and 2026-11-29). There is nothing to compute, and so no reference.
"""

from __future__ import annotations

from collections.abc import Iterator

import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from runner.kernels.compile import Variant
from runner.kernels.values import OPTIONS, has_pdl, pdl_option


@triton.jit
def _launch_early(place, PDL: tl.constexpr):
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    tl.store(place, 0)


def launch_early(place: Tensor) -> None:
    """Set place [1] int32 to 0 by such a launch; nothing where kernels cannot begin early."""
    if has_pdl(place):
        _launch_early[(1,)](place, PDL=True, num_warps=1, **pdl_option(True), **OPTIONS)


def variants() -> Iterator[Variant]:
    yield Variant(
        name="launch_early",
        kernel=_launch_early,
        signature={"place": "*i32"},
        constants={},
        num_warps=1,
        has_pdl=True,
    )
