"""The specializations that kernel files name, and where to find them all.

It knows neither targets nor how anything is compiled.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import runner.kernels


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One specialization of a kernel, as its launcher makes it.

    name: unique among all kernels, such as "attention_decode bf16 d128". kernel: the @triton.jit function.
    signature: the Triton type of each runtime argument, "*bf16", "i32", "fp32"; for a tuple, a tuple of them. "i32:16"
    is a number known to be a multiple of 16, as Triton sees for itself at a launch; pointers always are, since tensors
    start at multiples of 16 bytes. What is no string is the argument's value: None for an absent tensor.
    constants: the value of each constexpr argument. nvidia_constants: those that replace some of them on NVIDIA.
    has_pdl: it has another one, PDL: whether it can begin before the kernel before it has ended (see Target).
    is_nvidia_only: elsewhere no launcher takes it. only_target: the one target on which a launcher takes it.
    is_decode: it runs for every token, and must hardly spill registers.
    most_registers: of a thread, as the launcher says on NVIDIA (values.register_option).
    """

    name: str
    kernel: Any
    signature: Mapping[str, Any]
    constants: Mapping[str, object]
    num_warps: int = 4
    num_stages: int = 3
    is_decode: bool = True
    nvidia_constants: Mapping[str, object] = field(default_factory=dict)
    has_pdl: bool = False
    is_nvidia_only: bool = False
    only_target: str | None = None
    most_registers: int | None = None


def kernel_modules() -> list[str]:
    """The names of the modules of runner.kernels, packages (such as this one) left out."""
    return [module.name for module in pkgutil.iter_modules(runner.kernels.__path__) if not module.ispkg]


def variants_of(module_name: str) -> list[Variant]:
    """The variants of one module of runner.kernels; none if it has no `variants()`."""
    module = importlib.import_module(f"runner.kernels.{module_name}")
    return list(module.variants()) if hasattr(module, "variants") else []


def all_variants() -> dict[str, Variant]:
    """The variants of every kernel file by name, in the order of the files."""
    found: dict[str, Variant] = {}
    for module_name in kernel_modules():
        for variant in variants_of(module_name):
            assert variant.name not in found, f"two variants have the name {variant.name!r}"
            found[variant.name] = variant
    return found
