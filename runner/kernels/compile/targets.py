"""The GPUs that every kernel is compiled for, and what a program may use there.

It knows no kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_KIB: Final = 1024


@dataclass(frozen=True, kw_only=True)
class Target:
    """A kind of GPU. arch: compute capability times ten, or AMD's name. shared_limit: bytes that a program may have."""

    name: str
    backend: str
    arch: int | str
    warp_size: int
    shared_limit: int

    @property
    def is_nvidia(self) -> bool:
        return self.backend == "cuda"

    @property
    def has_pdl(self) -> bool:
        """Whether a kernel can begin before the one before it has ended (programmatic dependent launch)."""
        return isinstance(self.arch, int) and self.arch >= 90


def _nvidia(capability: int, shared_kib: int) -> Target:
    return Target(
        name=f"sm_{capability}",
        backend="cuda",
        arch=capability,
        warp_size=32,
        shared_limit=shared_kib * _KIB,
    )


def _amd(arch: str, warp_size: int) -> Target:
    return Target(name=arch, backend="hip", arch=arch, warp_size=warp_size, shared_limit=64 * _KIB)


# Shared memory a block may opt in to: CUDA C++ Programming Guide, "Technical specifications per compute capability";
# on AMD the 64 KiB of LDS that a workgroup may have.
TARGETS: Final = {
    target.name: target
    for target in (
        _nvidia(80, 163),  # A100
        _nvidia(89, 99),  # RTX 40, L4, L40
        _nvidia(90, 227),  # H100, H200
        _nvidia(120, 99),  # RTX 50, RTX PRO Blackwell
        _amd("gfx1100", 32),  # RX 7900
        _amd("gfx1201", 32),  # RX 9070
        _amd("gfx942", 64),  # MI300
    )
}
