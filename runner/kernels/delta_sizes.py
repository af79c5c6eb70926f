"""Which heads of a gated delta net there are kernels for: asking for it imports neither torch nor Triton."""

from __future__ import annotations


def takes_dims(key_dim: int, value_dim: int) -> bool:
    """Whether there are kernels for heads of these sizes; of more than 128, chunks want more shared memory than many
    GPUs have."""
    return all(d & (d - 1) == 0 and 16 <= d <= 128 for d in (key_dim, value_dim))
