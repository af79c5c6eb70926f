"""All tries of kernels on the device, one after the other: warm_up.py notes what they launch, and compiles it.

A try multiplies something small and looks whether the compiler has put into the lanes what a kernel counts on. Their
answers are not used here: layouts.py, add_parts.py, moe_fragments.py, moe_blocks.py, moe_int8.py and moe_route.py
ask for them later, and keep them.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from runner.kernels.add_parts import try_rotation
from runner.kernels.int8_weights import FORMATS_AS_INT8
from runner.kernels.layouts import try_products
from runner.kernels.moe_blocks import try_bits, try_blocks
from runner.kernels.moe_fragments import try_experts, try_sums
from runner.kernels.moe_int8 import try_int8
from runner.kernels.moe_route import try_rounding
from runner.kernels.values import is_hopper


def go_through(kinds: Iterable[tuple[str, int]], device: torch.device, *, has_experts: bool) -> None:
    """kinds: of the packed matrices, the format and the rotation of each. On AMD nothing is tried."""
    found = list(kinds) if torch.version.hip is None else []
    for form in sorted({form for form, _ in found}):
        try_products(form, device)
        if has_experts:
            try_experts(form, device)
            try_sums(form, device)
            try_blocks(form, device)
            try_bits(form, device)
            if form in FORMATS_AS_INT8 and is_hopper(torch.empty(0, device=device)):
                try_int8(form, device)
    for rotation in sorted({rotation for _, rotation in found}):
        try_rotation(rotation, device)
        if has_experts:
            try_rounding(rotation, device)
