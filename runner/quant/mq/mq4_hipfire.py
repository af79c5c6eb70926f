"""hipfire's MQ4-G256, first version: for 256 weights a float32 scale, a float32 minimum and 128 bytes of nibbles.

It is here to import hipfire's files bit for bit and as the baseline that our own formats are measured against. It knows
nothing of the rotation that comes before it, nor of hipfire's container.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from runner.errors import UnsupportedModel
from runner.quant.mq.tensor_format import Encoded, Part

HIPFIRE_NAME: Final = "MQ4-G256"  # what hipfire calls it
BLOCK_WEIGHTS: Final = 256
BLOCK_BYTES: Final = 136
_HEADER_BYTES: Final = 8
_CHUNK: Final = 2**14  # blocks worked on at a time: 16 MB as float32


@dataclass(frozen=True, kw_only=True)
class HipfireFormat:
    """Blocks of 136 bytes as hipfire stores them: [0, 4) scale, [4, 8) min, byte 8 + i weights 2i (low) and 2i + 1."""

    name: str = "mq4-hipfire"

    @property
    def unit(self) -> int:
        return BLOCK_WEIGHTS

    @property
    def parameters(self) -> Mapping[str, range]:
        return {}

    def parts(self, shape: tuple[int, int]) -> Mapping[str, Part]:
        return {"packed": Part(dtype=torch.uint8, shape=(shape[0], shape[1] // BLOCK_WEIGHTS, BLOCK_BYTES))}

    def encode(self, w: Tensor) -> Encoded:
        """Raises UnsupportedModel for weights that are not finite, or so large that a block's range is not."""
        groups = w.float().reshape(-1, BLOCK_WEIGHTS)
        blocks = torch.empty((len(groups), BLOCK_BYTES), dtype=torch.uint8, device=w.device)
        for start in range(0, len(groups), _CHUNK):
            blocks[start : start + _CHUNK] = encode_blocks(groups[start : start + _CHUNK])
        return self.encoded(blocks.view(w.shape[0], -1, BLOCK_BYTES))

    def encoded(self, packed: Tensor) -> Encoded:
        """From blocks [N, K / 256, 136] uint8 as they lie in one of hipfire's files."""
        return Encoded(parts={"packed": packed}, parameters={})

    def decode(self, encoded: Encoded, shape: tuple[int, int]) -> Tensor:
        blocks = encoded.parts["packed"].reshape(-1, BLOCK_BYTES)
        values = torch.empty((len(blocks), BLOCK_WEIGHTS), device=blocks.device)
        for start in range(0, len(blocks), _CHUNK):
            values[start : start + _CHUNK] = decode_blocks(blocks[start : start + _CHUNK])
        return values.view(shape)


MQ4_HIPFIRE: Final = HipfireFormat()


def encode_blocks(groups: Tensor) -> Tensor:
    """Groups of rotated weights [M, G] float32, G even, as blocks [M, 8 + G / 2] uint8, in hipfire's own arithmetic.

    scale = (max - min) / 15, q = min(15, floor((w - min) * (1 / scale) + 0.5)), all in float32; a constant group has
    scale 1 and q 0. A scale that underflows gives infinities on the way, which a saturating conversion makes 15 and
    0 * infinity, which it makes 0. Raises UnsupportedModel.
    """
    low, high = groups.aminmax(dim=1, keepdim=True)
    extent = high - low
    if not torch.isfinite(extent).all():
        raise UnsupportedModel(
            "A matrix has weights that are NaN, infinite, or too large for mq4-hipfire.",
            hint="The file is damaged, or the model needs another format.",
        )
    scale = torch.where(extent > 0, extent / 15, 1.0)
    q = ((groups - low) * (1 / scale) + 0.5).floor_().nan_to_num_(0.0).clamp_(0, 15).to(torch.uint8)
    header = torch.cat((scale, low), 1).view(torch.uint8)
    return torch.cat((header, q[:, 0::2] | q[:, 1::2] << 4), 1)


def decode_blocks(blocks: Tensor) -> Tensor:
    """Blocks [M, 8 + G / 2] uint8 as the values [M, G] float32, still rotated: q * scale + min."""
    header = blocks[:, :_HEADER_BYTES].clone(memory_format=torch.contiguous_format).view(torch.float32)
    return nibbles(blocks[:, _HEADER_BYTES:]).float().mul_(header[:, :1]).add_(header[:, 1:])


def nibbles(packed: Tensor) -> Tensor:
    """Bytes [M, B] uint8 as [M, 2B] uint8: the low nibble of each, then its high one."""
    return torch.stack((packed & 15, packed >> 4), 2).flatten(1)
