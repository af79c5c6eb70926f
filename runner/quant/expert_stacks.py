"""Checkpoints that stack a layer's experts, as if they named each expert's matrices, the way all others do.

There gate and up of all experts are one tensor, [E, 2 I, hidden], and down is another; here they are
`experts.{e}.gate_proj.weight` and so on. gpt-oss has the rows of gate and up in turn, as MXFP4 blocks and scales as
published, or plain and transposed as transformers saves them; Qwen3.5 and Gemma 4 have those of gate before those of
up. It knows nothing of torch or of the model's modules.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from runner.errors import BadModelFile
from runner.quant import mxfp4
from runner.quant.safetensors_file import Checkpoint, StoredTensor

_STACKS: Final = ("gate_up_proj", "down_proj")
_EXPERTS: Final = ".experts."
MXFP4: Final = "MXFP4"


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How a family's stacks lie. in_turn: a row of gate, then one of up, and so on; else all of gate, then all of up.
    is_transposed: plain ones are [E, hidden, 2 I] and [E, I, hidden]."""

    in_turn: bool
    is_transposed: bool


# By model_type. A checkpoint of these may name its experts one by one, too.
LAYOUTS: Final[Mapping[str, Layout]] = MappingProxyType(
    {
        "gemma4_text": Layout(in_turn=False, is_transposed=False),
        "gpt_oss": Layout(in_turn=True, is_transposed=True),
        "qwen3_5_moe_text": Layout(in_turn=False, is_transposed=False),
    }
)


@dataclass(frozen=True, kw_only=True)
class Part:
    """One expert's matrix or bias: `rows` of entry `expert` of the tensor `stack`, or columns where is_transposed.

    scales: MXFP4's, else "". dtype: how it is stored; nbytes: what it takes there.
    """

    stack: str
    scales: str
    expert: int
    rows: slice
    is_transposed: bool
    shape: tuple[int, ...]
    dtype: str
    nbytes: int


def expert_parts(checkpoint: Checkpoint, count: int, layout: Layout) -> dict[str, Part]:
    """The matrices and biases of `count` experts a layer by the names that they have here. Raises BadModelFile."""
    found: dict[str, Part] = {}
    for own_name, tensor in checkpoint.tensors.items():
        stored = replace(tensor, name=own_name)  # the file of a multimodal model calls it otherwise
        for name, part in _parts(checkpoint, stored, count, layout):
            if name in found or name in checkpoint.tensors:
                raise _bad(stored, f"holds {name!r}, which is in the checkpoint twice")
            found[name] = part
    return found


def is_stack(name: str) -> bool:
    """Whether a checkpoint's tensor is a stack of experts, or the scales of one."""
    _, found, rest = name.partition(_EXPERTS)
    return bool(found) and _stack_of(rest) in _STACKS


def read_part(checkpoint: Checkpoint, part: Part, start: int, stop: int) -> NDArray[Any]:
    """Rows start to stop - 1 of one: float32 of MXFP4, else as they are stored. Raises OSError."""
    step, first = part.rows.step, part.rows.start
    rows = slice(first + step * start, first + step * stop, step)
    stack = checkpoint.raw(part.stack)[part.expert]
    if part.scales:
        return mxfp4.decode(np.array(stack[rows]), np.array(checkpoint.raw(part.scales)[part.expert, rows]))
    values = np.array(stack[:, rows].T if part.is_transposed else stack[rows], order="C")
    return values.astype(np.float32) if values.dtype == np.float64 else values


def stored_part(checkpoint: Checkpoint, name: str, part: Part) -> StoredTensor | None:
    """Where one lies by itself, as it is read; None where it does not."""
    if part.scales or part.is_transposed or part.rows.step != 1 or part.dtype == "F64":
        return None
    stack = checkpoint.tensors[part.stack]
    row = stack.nbytes // math.prod(stack.shape[:2])
    offset = stack.offset + row * (part.expert * stack.shape[1] + part.rows.start)
    return StoredTensor(
        name=name, dtype=part.dtype, shape=part.shape, path=stack.path, offset=offset, nbytes=row * part.shape[0]
    )


def _parts(checkpoint: Checkpoint, stored: StoredTensor, count: int, layout: Layout) -> Iterator[tuple[str, Part]]:
    """What one tensor of the checkpoint holds of the experts; nothing for one of another kind, or for scales."""
    layer, _, name = stored.name.partition(_EXPERTS)
    if not is_stack(stored.name) or _are_scales(checkpoint, stored):
        return
    scales = stored.name.removesuffix("_blocks") + "_scales" if name.endswith("_blocks") else ""
    shape = _mxfp4_shape(checkpoint, stored, scales) if scales else _plain_shape(stored, layout)
    if shape[0] != count:
        raise _bad(stored, f"has {shape[0]} experts, not {count}")
    nbytes = stored.nbytes + (checkpoint.tensors[scales].nbytes if scales else 0)
    parts = _rows(_stack_of(name), shape[1], layout)
    kind = "bias" if name.endswith("_bias") else "weight"
    for projection, rows in parts.items():
        for expert in range(count):
            yield (
                f"{layer}{_EXPERTS}{expert}.{projection}.{kind}",
                Part(
                    stack=stored.name,
                    scales=scales,
                    expert=expert,
                    rows=rows,
                    is_transposed=layout.is_transposed and not scales and len(shape) == 3,
                    shape=(len(range(*rows.indices(shape[1]))), *shape[2:]),
                    dtype=MXFP4 if scales else stored.dtype,
                    nbytes=nbytes // (count * len(parts)),
                ),
            )


def _rows(stack: str, count: int, layout: Layout) -> Mapping[str, slice]:
    """The matrices of a stack, and which of its `count` rows each has."""
    if stack == "down_proj":
        return {"down_proj": slice(0, count, 1)}
    if layout.in_turn:
        return {"gate_proj": slice(0, count, 2), "up_proj": slice(1, count, 2)}
    return {"gate_proj": slice(0, count // 2, 1), "up_proj": slice(count // 2, count, 1)}


def _stack_of(name: str) -> str:
    for suffix in ("_scales", "_blocks", "_bias"):
        name = name.removesuffix(suffix)
    return name


def _are_scales(checkpoint: Checkpoint, stored: StoredTensor) -> bool:
    if not stored.name.endswith("_scales"):
        return False
    if stored.name.removesuffix("_scales") + "_blocks" not in checkpoint.tensors:
        raise _bad(stored, "has no blocks beside it")
    return True


def _plain_shape(stored: StoredTensor, layout: Layout) -> tuple[int, ...]:
    """[E, N, K] of a stack, which may be stored as [E, K, N]; [E, N] of one of biases."""
    if len(stored.shape) != (2 if stored.name.endswith("_bias") else 3):
        raise _bad(stored, f"has shape {list(stored.shape)}")
    return (stored.shape[0], *(reversed(stored.shape[1:]) if layout.is_transposed else stored.shape[1:]))


def _mxfp4_shape(checkpoint: Checkpoint, blocks: StoredTensor, scales: str) -> tuple[int, ...]:
    """[E, N, K] of a stack in MXFP4."""
    found = checkpoint.tensors.get(scales)
    if found is None:
        raise _bad(blocks, f"has no {scales!r} beside it")
    if len(blocks.shape) != 4 or blocks.shape != (*found.shape, mxfp4.GROUP // 2):
        raise _bad(blocks, f"has shape {list(blocks.shape)} and its scales {list(found.shape)}")
    if (blocks.dtype, found.dtype) != ("U8", "U8"):
        raise _bad(blocks, f"is stored as {blocks.dtype} and its scales as {found.dtype}")
    count, rows, groups = found.shape
    return count, rows, mxfp4.GROUP * groups


def _bad(stored: StoredTensor, what: str) -> BadModelFile:
    return BadModelFile(f"Tensor {stored.name!r} {what}.", hint="The checkpoint is damaged: fetch the model again.")
