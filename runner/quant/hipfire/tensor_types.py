"""The types of hipfire's tensors (its "quant_type" numbers) that are read here, and what a block of each decodes to.

Every type is a sequence of blocks along the last dimension; a plain float is a block of one weight. It knows nothing of
the container, and only the encoding of the types that write.py offers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from runner.quant.mq.mq4_hipfire import HIPFIRE_NAME, decode_blocks, nibbles
from runner.quant.mq.rotation import unrotate

F16, F32, Q8_0, HFQ4_G256, HFQ4_G128, HFQ6_G256, MQ4_G256, MQ8_G256, MQ6_G256, BF16 = 1, 2, 3, 6, 7, 8, 13, 14, 15, 16
MQ4_G256_V2, MQ6_G256_V2 = 44, 47
_CHUNK: Final = 2**22  # weights decoded at a time: 16 MB as float32


@dataclass(frozen=True, kw_only=True)
class TensorType:
    """One quant_type. weights and bytes of a block; decode: blocks [M, bytes] uint8 -> [M, weights] float32.

    rotated: the values that `decode` gives are in the basis of the rotation. plain: the name that safetensors have for
    it, of the types that are floats. bits: of a weight, as people name the precision.
    """

    number: int
    name: str
    block_weights: int
    block_bytes: int
    decode: Callable[[Tensor], Tensor]
    bits: int
    rotated: bool = False
    plain: Literal["", "F32", "F16", "BF16"] = ""

    def sizes(self, shape: tuple[int, ...]) -> frozenset[int]:
        """The bytes that a tensor may take: blocks counted through the whole of it, as hipfire does, or row by row."""
        num_values = math.prod(shape)
        rows = num_values // shape[-1] if num_values else 0
        through, by_row = -(-num_values // self.block_weights), rows * -(-shape[-1] // self.block_weights)
        return frozenset((through * self.block_bytes, by_row * self.block_bytes))

    def is_whole(self, shape: tuple[int, ...]) -> bool:
        """Whether rows are whole blocks, so that there is one way alone to read them."""
        return shape[-1] % self.block_weights == 0


def decode_rows(raw: NDArray[np.uint8], kind: TensorType) -> NDArray[np.float32]:
    """Rows [R, bytes of a row] uint8 as the weights [R, K] float32, out of the rotation when they are in it."""
    columns = raw.shape[1] // kind.block_bytes * kind.block_weights
    values = np.empty((raw.shape[0], columns), np.float32)
    step = max(1, _CHUNK // max(1, columns))
    for start in range(0, raw.shape[0], step):
        # A copy: the file is mapped read-only, which torch does not know of.
        blocks = torch.from_numpy(np.array(raw[start : start + step]).reshape(-1, kind.block_bytes))
        decoded = kind.decode(blocks)
        if kind.rotated:
            decoded = unrotate(decoded, kind.block_weights)
        values[start : start + step] = decoded.view(-1, columns).numpy()
    return values


def plain_rows(raw: NDArray[np.uint8], kind: TensorType) -> NDArray[Any]:
    """Rows of a plain type [R, bytes] as they are: float32, float16, or bfloat16 as its bits in uint16."""
    return raw.view({"F32": "<f4", "F16": "<f2", "BF16": "<u2"}[kind.plain])


# --- blocks ----------------------------------------------------------------------------------------------------------


def _typed(blocks: Tensor, stop: int, dtype: torch.dtype) -> Tensor:
    """The first `stop` bytes of each block as numbers, copied, since blocks need not be aligned."""
    return blocks[:, :stop].clone(memory_format=torch.contiguous_format).view(dtype)


def _f32(blocks: Tensor) -> Tensor:
    return _typed(blocks, 4, torch.float32)


def _f16(blocks: Tensor) -> Tensor:
    return _typed(blocks, 2, torch.float16).float()


def _bf16(blocks: Tensor) -> Tensor:
    return _typed(blocks, 2, torch.bfloat16).float()


def _int8(blocks: Tensor) -> Tensor:
    """A float16 scale, then int8."""
    return blocks[:, 2:].clone(memory_format=torch.contiguous_format).view(torch.int8).float().mul_(_f16(blocks))


def _six_bits(packed: Tensor) -> Tensor:
    """Bytes [M, 3B] as [M, 4B] 6-bit numbers, the lowest bits first."""
    first, second, third = packed.reshape(packed.shape[0], -1, 3).unbind(2)
    return torch.stack(
        (first & 63, first >> 6 | (second & 15) << 2, second >> 4 | (third & 3) << 4, third >> 2), 2
    ).flatten(1)


def _mq6(blocks: Tensor) -> Tensor:
    header = _typed(blocks, 8, torch.float32)
    return _six_bits(blocks[:, 8:]).float().mul_(header[:, :1]).add_(header[:, 1:])


def _halves(q: Tensor, blocks: Tensor) -> Tensor:
    """Second version: a float16 scale and zero for each half of a block."""
    header = _typed(blocks, 8, torch.float16).float().view(-1, 2, 2)
    halves = q.float().view(len(q), 2, -1)
    return halves.mul_(header[:, :, :1]).add_(header[:, :, 1:]).flatten(1)


def _mq4_v2(blocks: Tensor) -> Tensor:
    return _halves(nibbles(blocks[:, 8:]), blocks)


def _mq6_v2(blocks: Tensor) -> Tensor:
    return _halves(_six_bits(blocks[:, 8:]), blocks)


def _affine(
    number: int, name: str, block: tuple[int, int], decode: Callable[[Tensor], Tensor], *, bits: int, rotated: bool
) -> TensorType:
    return TensorType(
        number=number,
        name=name,
        block_weights=block[0],
        block_bytes=block[1],
        decode=decode,
        bits=bits,
        rotated=rotated,
    )


TYPES: Final[Mapping[int, TensorType]] = MappingProxyType(
    {
        kind.number: kind
        for kind in (
            TensorType(number=F16, name="F16", block_weights=1, block_bytes=2, decode=_f16, bits=16, plain="F16"),
            TensorType(number=F32, name="F32", block_weights=1, block_bytes=4, decode=_f32, bits=32, plain="F32"),
            TensorType(number=BF16, name="BF16", block_weights=1, block_bytes=2, decode=_bf16, bits=16, plain="BF16"),
            TensorType(number=Q8_0, name="Q8_0", block_weights=32, block_bytes=34, decode=_int8, bits=8),
            _affine(HFQ4_G256, "HFQ4-G256", (256, 136), decode_blocks, bits=4, rotated=False),
            _affine(HFQ4_G128, "HFQ4-G128", (128, 72), decode_blocks, bits=4, rotated=False),
            _affine(HFQ6_G256, "HFQ6-G256", (256, 200), _mq6, bits=6, rotated=False),
            _affine(MQ4_G256, HIPFIRE_NAME, (256, 136), decode_blocks, bits=4, rotated=True),
            _affine(MQ8_G256, "MQ8-G256", (256, 258), _int8, bits=8, rotated=True),
            _affine(MQ6_G256, "MQ6-G256", (256, 200), _mq6, bits=6, rotated=True),
            _affine(MQ4_G256_V2, "MQ4-G256-V2", (256, 136), _mq4_v2, bits=4, rotated=True),
            _affine(MQ6_G256_V2, "MQ6-G256-V2", (256, 200), _mq6_v2, bits=6, rotated=True),
        )
    }
)

# Containers of version 2 come from a fork that gave the numbers from 19 on to formats of its own.
_SHARED: Final = MappingProxyType({number: kind for number, kind in TYPES.items() if number <= BF16})


def types_of(container_version: int) -> Mapping[int, TensorType]:
    """The types, by number, that a container of this version may hold."""
    return TYPES if container_version == 1 else _SHARED
