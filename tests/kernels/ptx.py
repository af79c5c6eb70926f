"""PTX programs of inline assembly run by hand: what only an NVIDIA GPU computes, checked where there is none.

Registers hold 32 bits. Of a name that blocks declare more than once the innermost counts, as in PTX.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np

_WORD: Final = 0xFFFFFFFF


def run(program: str, operands: Sequence[int], n_results: int) -> list[int]:
    """What the program leaves in $0, $1, ... $n_results - 1, of its operands $n_results, $n_results + 1, ...

    Raises KeyError for an instruction that is not known here, and for a register that nothing was written to.
    """
    blocks: list[dict[str, int | None]] = [{f"${n_results + i}": value & _WORD for i, value in enumerate(operands)}]
    blocks[0] |= dict.fromkeys(f"${i}" for i in range(n_results))
    for statement in re.findall(r"[{}]|[^{};]*[^{};\s][^{};]*(?=;)", program):
        name, _, rest = statement.strip().partition(" ")
        if name == "{":
            blocks.append({})
        elif name == "}":
            blocks.pop()
        elif name == ".reg":
            blocks[-1] |= dict.fromkeys(re.findall(r"\w+", rest.partition(" ")[2]))
        else:
            target, *sources = (word.strip() for word in rest.split(","))
            result = _INSTRUCTIONS[name](*(_value(blocks, source) for source in sources))
            _block_of(blocks, target)[target] = result & _WORD
    return [_value(blocks, f"${i}") for i in range(n_results)]


def _block_of(blocks: Sequence[dict[str, int | None]], register: str) -> dict[str, int | None]:
    return next(block for block in reversed(blocks) if register in block)


def _value(blocks: Sequence[dict[str, int | None]], source: str) -> int:
    if source[0].isdigit():
        return int(source, 0)
    value = _block_of(blocks, source)[source]
    if value is None:
        raise KeyError(f"{source} is read before it is written")
    return value


def prmt(low: int, high: int, picks: int) -> int:
    """Four bytes of eight; with the top bit of a pick, the byte's sign eight times."""
    found = 0
    for i in range(4):
        pick = picks >> 4 * i & 15
        byte = (high << 32 | low) >> 8 * (pick & 7) & 255
        found |= ((255 if byte & 128 else 0) if pick & 8 else byte) << 8 * i
    return found


def _of_halves(compute: Callable[..., float]) -> Callable[..., int]:
    """An instruction on two float16 at once. float64 holds the sum of a product exactly, so it is rounded once."""

    def both(*words: int) -> int:
        halves = [np.array([word], dtype=np.uint32).view(np.float16).astype(np.float64) for word in words]
        found = [compute(*(float(half[i]) for half in halves)) for i in range(2)]
        return int(np.array(found).astype(np.float16).view(np.uint32)[0])

    return both


_INSTRUCTIONS: Final[Mapping[str, Callable[..., int]]] = {
    "mov.b32": lambda a: a,
    "and.b32": lambda a, b: a & b,
    "or.b32": lambda a, b: a | b,
    "shl.b32": lambda a, b: a << b,
    "xor.b32": lambda a, b: a ^ b,
    "shr.u32": lambda a, b: a >> b,
    "shr.s32": lambda a, b: (a - (a >> 31 << 32)) >> b,
    "add.u32": lambda a, b: a + b,
    "mad.lo.s32": lambda a, b, c: a * b + c,
    "mad.lo.u32": lambda a, b, c: a * b + c,
    "prmt.b32": prmt,
    "add.rn.f16x2": _of_halves(lambda a, b: a + b),
    "mul.rn.f16x2": _of_halves(lambda a, b: a * b),
    "fma.rn.f16x2": _of_halves(lambda a, b, c: a * b + c),
}
