"""Splits of a cache that attention goes over apart, and their sums put together: the second half of flash decoding.

Where those of decoding begin and which of them a row sees follows from positions alone, and a row's are added up one
after the other: so a row has the same bits whatever M and the capacity are. Those of prompts are as
attention_prefill.py cuts them. A program is a span of 256 columns of one row, as in rotate.py: for packed weights it
rotates and rounds what it has put together, which so is no kernel of its own; where attention is gated (gates.py), it
multiplies it by that first. It knows nothing of queries and keys. The reference is attention.attend_ref, and for int8
quantize_fragments_ref or quantize_blocks_ref after it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from runner.kernels.butterflies import rotated_span, rotation_signs, signs_of_span, span_places
from runner.kernels.compile import Variant
from runner.kernels.gates import Gate, gate_of_span
from runner.kernels.rotate import SPAN, empty_blocks, empty_fragments, store_blocks, store_fragments
from runner.kernels.values import (
    MOST_ROWS,
    MULTIPROCESSORS,
    OPTIONS,
    Int8Blocks,
    Int8Fragments,
    cdiv,
    has_pdl,
    is_nvidia,
    next_power_of_2,
    pdl_option,
)

_LOWEST = tl.constexpr(-3.4028234663852886e38)  # and not -inf, from which the top of a split that nobody sees is NaN
LOG2_E = tl.constexpr(1.4426950408889634)  # scores are multiplied by it, so that the softmax is of powers of 2


@dataclass(frozen=True, kw_only=True)
class Splits:
    """What attention of M rows leaves of S splits: of each head the largest score times log2(e) `tops` [M, H, S], the
    sums `totals` [M, H, S] of 2^(score - top), and `mixes` [M, H, S, D], the values weighted by them, all float32.

    The first place is that of split 0, or of the first one that the first row sees (first_split). What a row does not
    see is undefined (but see splits_of_whole_rows). start: int32 [1], the first row's position. window: how many
    positions a row sees, NO_WINDOW for all. length: of a window's splits (length_of_splits), or WHOLE_ROWS: each row
    has all of them, and start, window and capacity say nothing. capacity: of the cache. sinks: [H] logits without a
    value, or None. dtype: of the model's activations. gate: what they are multiplied by once put together, by sigmoid.
    """

    tops: Tensor
    totals: Tensor
    mixes: Tensor
    start: Tensor | None
    window: int
    length: int
    capacity: int
    sinks: Tensor | None
    dtype: torch.dtype
    gate: Gate | None = None

    def __len__(self) -> int:
        return len(self.tops)

    @property
    def width(self) -> int:
        """H * D."""
        return self.mixes.shape[1] * self.mixes.shape[3]


def splits_of_whole_rows(tops: Tensor, totals: Tensor, mixes: Tensor, dtype: torch.dtype) -> Splits:
    """Splits of which each row has all: of one that it does not see a top of -inf, a total of 0 and a mixture of 0."""
    return Splits(
        tops=tops, totals=totals, mixes=mixes, start=None, window=NO_WINDOW, length=WHOLE_ROWS, capacity=0, sinks=None,
        dtype=dtype,
    )  # fmt: skip


def only_split(x: Tensor, head_dim: int) -> Splits:
    """One split whose mixture are rows x [M, H * D] float32: to try kernels with."""
    mixes = x.view(len(x), -1, 1, head_dim)
    ones = torch.ones(mixes.shape[:3], device=x.device)
    start = torch.zeros(1, dtype=torch.int32, device=x.device)
    return Splits(
        tops=ones, totals=ones, mixes=mixes, start=start, window=NO_WINDOW, length=0, capacity=len(x), sinks=None,
        dtype=x.dtype,
    )  # fmt: skip


# --- geometry --------------------------------------------------------------------------------------------------------

# Splits are of 64 positions up to 256, of 128 up to 4096, of 256 up to 8192, of 512 up to 16384, and then of 1024: one
# choice for every M and every capacity, since the order of summation follows from it. Where there are more programs
# than fit at once, fewer and longer ones do less before their first tile. With a window, which would end in few of
# these, all are of LENGTH positions, and of a step only those have a place that its rows see. docs/LOG.md has what
# others take.

NO_WINDOW: Final = 1 << 30
WHOLE_ROWS: Final = -1
_LONGEST_WINDOW: Final = 8192  # that has splits of its own
_MOST_OF_WINDOW: Final = 32  # splits, each of which takes its time to be put together with the others


def length_of_splits(window: int, num_kv_heads: int) -> int:
    """LENGTH: of as many splits of a window as run at once, two programs a multiprocessor. 0 for splits that grow."""
    if window > _LONGEST_WINDOW:
        return 0
    most = max(1, min(_MOST_OF_WINDOW, 2 * MULTIPROCESSORS // num_kv_heads))
    return max(64, next_power_of_2(cdiv(window, most)))


@triton.jit
def seen_range(start, m, window, capacity):
    """The first and the last position that row m sees; nothing is read beyond the capacity."""
    position = tl.load(start) + m
    return tl.maximum(position - window + 1, 0), tl.minimum(position, capacity - 1)


@triton.jit
def begin_of_split(split, LENGTH: tl.constexpr):
    """The first position of a split."""
    if LENGTH > 0:
        return split * LENGTH
    doubled = tl.minimum(tl.maximum((split - 18) // 16 - 1, 0), 2)  # how often, from 256 on
    later = tl.where(split < 34, (split - 2) * 128, (split - 18 - 16 * doubled) << (8 + doubled))
    return tl.where(split < 4, split * 64, later)


@triton.jit
def split_of(position, LENGTH: tl.constexpr):
    """Which split a position is in."""
    if LENGTH > 0:
        return position // LENGTH
    doubled = (position >= 8192).to(tl.int32) + (position >= 16384).to(tl.int32)
    later = tl.where(position < 4096, 2 + position // 128, 18 + 16 * doubled + (position >> (8 + doubled)))
    return tl.where(position < 256, position // 64, later)


@triton.jit
def first_split(start, window, capacity, LENGTH: tl.constexpr):
    """Which split has the first place of a step."""
    if LENGTH > 0:
        first, _ = seen_range(start, 0, window, capacity)
        return first // LENGTH
    return 0


def n_splits_of(capacity: int, window: int, length: int) -> int:
    """How many places for splits there are, of so many positions. length: see LENGTH."""
    if length:
        return min(cdiv(capacity, length), cdiv(window + MOST_ROWS - 2, length) + 1)
    last = capacity - 1
    if last < 256:
        return 1 + last // 64
    doubled = (last >= 8192) + (last >= 16384)
    return 3 + (last // 128 if last < 4096 else 16 + 16 * doubled + (last >> (8 + doubled)))


# --- kernels ---------------------------------------------------------------------------------------------------------


@triton.jit
def power_of_2(x, NVIDIA: tl.constexpr):
    """2^x; on NVIDIA 0 where that is subnormal, which is what most of the instructions of tl.exp2 are for."""
    if NVIDIA:
        return tl.inline_asm_elementwise(
            "ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        return tl.exp2(x)


@triton.jit
def _for_elements(v):
    """What neighbours of a span share, [256 / E] for each E of them, for each [2, 128]."""
    return tl.reshape(tl.broadcast_to(v[:, None], (v.shape[0], 256 // v.shape[0])), (2, 128))


@triton.jit
def _with_splits(
    top, total, mixed, tops, totals, mixes, place, at, is_column, first, last,
    D: tl.constexpr, COUNT: tl.constexpr, NVIDIA: tl.constexpr,
):  # fmt: skip
    """The sums with COUNT splits more, from `first` on; those behind `last` change nothing.

    All are asked for before the first is waited for: other loads than volatile ones ptxas puts off, one behind the
    other, to save registers.

    top, total: of a row's heads [256 / E]; place: where theirs begin. mixed: [2, 128]; at: where its elements begin;
    is_column: which there are.
    """
    place += first
    at += first * D
    more = last - first + tl.zeros(place.shape, tl.int32)  # splits behind the first
    more_of_columns = tl.where(is_column, last - first, -1)
    found = ()
    new_top = top
    for j in tl.static_range(COUNT):
        mix_of_split = tl.load(mixes + at + j * D, mask=more_of_columns >= j, other=0.0, volatile=True)
        of_split = tl.load(tops + place + j, mask=more >= j, other=-float("inf"), volatile=True)
        total_of_split = tl.load(totals + place + j, mask=more >= j, other=0.0, volatile=True)
        found = found + ((of_split, total_of_split, mix_of_split),)  # type: ignore[assignment]  # noqa: RUF005
    for j in tl.static_range(COUNT):
        new_top = tl.maximum(new_top, found[j][0])
    keep = power_of_2(top - new_top, NVIDIA)
    total *= keep
    mixed *= _for_elements(keep)
    for j in tl.static_range(COUNT):
        weight = power_of_2(found[j][0] - new_top, NVIDIA)
        total += weight * found[j][1]
        mixed += _for_elements(weight) * found[j][2]
    return new_top, total, mixed


@triton.jit
def _combined_span(
    tops, totals, mixes, sinks, row, first, last, n_splits,
    H: tl.constexpr, D: tl.constexpr, FEW: tl.constexpr, MANY: tl.constexpr, NVIDIA: tl.constexpr,
):  # fmt: skip
    """A span of all heads' mixtures [2, 128], from the splits at places first to last; 0 beyond the last head.

    FEW splits are asked for at once if there are no more, else MANY at a time: a row alone says which.
    """
    E: tl.constexpr = 4 if D % 4 == 0 else 1  # so many elements of a lane (span_places) are of one head
    begin = tl.program_id(0) * 256
    head = tl.minimum((begin + E * tl.arange(0, 256 // E)) // D, H - 1)
    place = (row * H + head).to(tl.int64) * n_splits
    # Written so that Triton sees that E lie side by side.
    i = tl.arange(0, 128)[None, :]
    k = begin + tl.arange(0, 2)[:, None] * 128 + i // E * E
    at = (row * H + k // D).to(tl.int64) * n_splits * D + k % D + i % E
    is_column = k < H * D
    top = tl.full(head.shape, _LOWEST, tl.float32)
    total = tl.zeros(head.shape, tl.float32)
    if sinks is not None:
        top = tl.load(sinks + head).to(tl.float32) * LOG2_E
        total += 1.0
    mixed = tl.zeros((2, 128), tl.float32)
    if last - first < FEW:
        top, total, mixed = _with_splits(
            top, total, mixed, tops, totals, mixes, place, at, is_column, first, last, D, FEW, NVIDIA
        )
    else:
        for split in range(first, last + 1, MANY):
            top, total, mixed = _with_splits(
                top, total, mixed, tops, totals, mixes, place, at, is_column, split, last, D, MANY, NVIDIA
            )
    return mixed * _for_elements(1.0 / total)


@triton.jit
def _places_of(start, row, window, capacity, n_splits, LENGTH: tl.constexpr):
    """Those of the first and the last split that a row sees: of positions, which the kernel before does not write."""
    if LENGTH < 0:
        return 0, n_splits - 1
    else:
        first, last = seen_range(start, row, window, capacity)
        at_first = first_split(start, window, capacity, LENGTH)
        return split_of(first, LENGTH) - at_first, split_of(last, LENGTH) - at_first


@triton.jit
def _gates_of(gate, stride, row, k, K: tl.constexpr):
    """What a span is multiplied by; the gates are older than attention, which let this kernel begin."""
    if gate is None:
        return 1.0
    else:
        return tl.sigmoid(gate_of_span(gate, stride, row, k, k < K))


@triton.jit(do_not_specialize=["window", "capacity", "n_splits"])
def _combine(
    tops, totals, mixes, sinks, start, gate, out, window, capacity, n_splits, gate_stride,
    H: tl.constexpr, D: tl.constexpr, LENGTH: tl.constexpr, FEW: tl.constexpr, MANY: tl.constexpr,
    NVIDIA: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    span, row = tl.program_id(0), tl.program_id(1)
    first, last = _places_of(start, row, window, capacity, n_splits, LENGTH)
    k = span * 256 + span_places()
    gates = _gates_of(gate, gate_stride, row, k, H * D)
    if PDL:
        gdc_launch_dependents()  # at once: see docs/KERNELS.md, "When the next kernel begins"
        gdc_wait()
    v = _combined_span(tops, totals, mixes, sinks, row, first, last, n_splits, H, D, FEW, MANY, NVIDIA)
    if gate is not None:
        v *= gates
    tl.store(out + row.to(tl.int64) * (H * D) + k, v.to(out.dtype.element_ty), mask=k < H * D)


@triton.jit(do_not_specialize=["window", "capacity", "n_splits", "n_scales"])
def _combine_int8(
    tops, totals, mixes, sinks, start, gate, signs, words, notes, window, capacity, n_splits, n_scales, gate_stride,
    H: tl.constexpr, D: tl.constexpr, LENGTH: tl.constexpr, FEW: tl.constexpr, MANY: tl.constexpr,
    SIZE: tl.constexpr, ZERO: tl.constexpr, COLUMNS: tl.constexpr, NVIDIA: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """words, notes: those of Int8Fragments; or, with COLUMNS of 0, the levels and the scales of Int8Blocks, which has
    n_scales rows."""
    span, row = tl.program_id(0), tl.program_id(1)
    first, last = _places_of(start, row, window, capacity, n_splits, LENGTH)
    places = span_places()
    signs_there = signs_of_span(signs, places, SIZE, NVIDIA)
    gates = _gates_of(gate, gate_stride, row, span * 256 + places, H * D)
    if PDL:
        gdc_launch_dependents()  # at once: see docs/KERNELS.md, "When the next kernel begins"
        gdc_wait()
    v = _combined_span(tops, totals, mixes, sinks, row, first, last, n_splits, H, D, FEW, MANY, NVIDIA)
    if gate is not None:
        v *= gates
    v = rotated_span(v, signs, signs_there, places, SIZE, NVIDIA)
    if COLUMNS > 0:
        store_fragments(v, places, span, row, H * D, 1.0, words, notes, ZERO, COLUMNS)
    else:
        of_row = (row + tl.arange(0, 1)).to(tl.int64)[:, None]
        store_blocks(v, span, of_row, words, notes, n_scales, of_row >= 0, H * D)


# --- launchers -------------------------------------------------------------------------------------------------------


def combine(splits: Splits) -> Tensor:
    """The heads' mixtures [M, H * D] in the model's dtype."""
    n_rows, heads, n_splits, d = splits.mixes.shape
    out = torch.empty(n_rows, splits.width, dtype=splits.dtype, device=splits.mixes.device)
    gate, gate_stride = _gate_of(splits)
    n_spans, pdl = cdiv(splits.width, SPAN), has_pdl(out)
    _combine[(n_spans, n_rows)](
        splits.tops, splits.totals, splits.mixes, splits.sinks, splits.start, gate, out,
        splits.window, splits.capacity, n_splits, gate_stride, H=heads, D=d, LENGTH=splits.length,
        **_at_once(out), NVIDIA=is_nvidia(out), PDL=pdl,
        num_warps=_warps(n_spans * n_rows), **pdl_option(pdl), **OPTIONS,
    )  # fmt: skip
    return out


def combine_fragments(splits: Splits, rotation: int, zero: int) -> Int8Fragments:
    """The same, rotated and rounded to int8 as rotate.quantize_fragments does it, without rounding to dtype before."""
    words, notes = empty_fragments(len(splits), splits.width, splits.mixes.device)
    _launch_combine_int8(splits, rotation, words, notes, zero=zero, columns=words.shape[2], n_scales=0)
    return Int8Fragments(words=words, notes=notes, num_rows=len(splits), zero=zero)


def combine_blocks(splits: Splits, rotation: int) -> Int8Blocks:
    """The same as rotate.quantize_blocks does it."""
    levels, scale = empty_blocks(len(splits), splits.width, splits.mixes.device)
    _launch_combine_int8(splits, rotation, levels, scale, zero=0, columns=0, n_scales=scale.shape[1])
    return Int8Blocks(levels=levels, scale=scale, num_rows=len(splits), num_columns=splits.width)


def _launch_combine_int8(
    splits: Splits, rotation: int, words: Tensor, notes: Tensor, *, zero: int, columns: int, n_scales: int
) -> None:
    n_rows, heads, n_splits, d = splits.mixes.shape
    assert splits.width % rotation == 0, (splits.width, rotation)
    gate, gate_stride = _gate_of(splits)
    n_spans, pdl = cdiv(splits.width, SPAN), has_pdl(notes)
    _combine_int8[(n_spans, n_rows)](
        splits.tops, splits.totals, splits.mixes, splits.sinks, splits.start, gate,
        rotation_signs(rotation, notes.device), words.view(torch.int8), notes,
        splits.window, splits.capacity, n_splits, n_scales, gate_stride, H=heads, D=d, LENGTH=splits.length,
        **_at_once(notes), SIZE=rotation, ZERO=zero,
        COLUMNS=columns, NVIDIA=is_nvidia(notes), PDL=pdl, num_warps=_warps(n_spans * n_rows),
        **pdl_option(pdl), **OPTIONS,
    )  # fmt: skip


def _gate_of(splits: Splits) -> tuple[Tensor | None, int]:
    """The gates, and how far apart their rows lie."""
    if splits.gate is None:
        return None, 0
    assert splits.gate.gain is None
    splits.gate.check(len(splits), splits.width)
    return splits.gate.values, splits.gate.values.stride(0)


# H100, mq4, us of a step after 16, 200, 1000 and 4096 tokens, with one warp and with two: 16 layers of Llama-3.1-8B
# 951, 956, 990, 1104 and 954, 948, 981, 1083; after 16, 1000 and 4096, before there were splits of 64, eight rows of it
# 1105, 1143, 1282 and 1173, 1196, 1312, Qwen3-0.6B 546, 622, 772 and 541, 610, 750. Sixteen splits at a time are no
# better up to 4096 tokens.
_FEW, _MANY = 2, 10
_PROGRAMS_OF_TWO_WARPS: Final = 16


def _warps(n_programs: int) -> int:
    """Of a program: two pass halves of a span through shared memory, and each has half of the splits' work."""
    return 2 if n_programs <= _PROGRAMS_OF_TWO_WARPS else 1


def _at_once(tensor: Tensor) -> dict[str, int]:
    """How many splits; in the interpreter, where each operation takes its time, few."""
    return {"FEW": _FEW, "MANY": _MANY} if tensor.is_cuda else {"FEW": 1, "MANY": 2}


def variants() -> Iterator[Variant]:
    partial = {"tops": "*fp32", "totals": "*fp32", "mixes": "*fp32"}
    sizes = {"window": "i32", "capacity": "i32", "n_splits": "i32", "gate_stride": "i32:16"}
    out = {"out": "*bf16"}
    rows = {"signs": "*fp32", "words": "*i8", "notes": "*fp32", "n_scales": "i32"}
    for name, kernel, (h, d), sinks, length, ends, more in (
        ("combine d128", _combine, (32, 128), None, 0, out, {}),
        ("combine d64 with sinks", _combine, (64, 64), "*bf16", 0, out, {}),
        ("combine d128, whole rows", _combine, (32, 128), None, WHOLE_ROWS, out, {}),
        ("combine d512", _combine, (32, 512), None, 0, out, {}),
        ("combine d256, gated", _combine, (16, 256), None, 0, out, {}),
        ("combine_fragments d128", _combine_int8, (32, 128), None, 0, rows, {"ZERO": 0, "COLUMNS": 1}),
        ("combine_fragments d128 M=8", _combine_int8, (32, 128), None, 0, rows, {"ZERO": 0, "COLUMNS": 8}),
        ("combine_fragments d64 M=8", _combine_int8, (32, 64), None, 0, rows, {"ZERO": 8, "COLUMNS": 8}),
        ("combine_fragments d512 M=8", _combine_int8, (32, 512), None, 0, rows, {"ZERO": 0, "COLUMNS": 8}),
        ("combine_fragments d256, gated", _combine_int8, (16, 256), None, 0, rows, {"ZERO": 0, "COLUMNS": 1}),
        (
            "combine_blocks d128, whole rows",
            _combine_int8,
            (32, 128),
            None,
            WHOLE_ROWS,
            rows,
            {"ZERO": 0, "COLUMNS": 0},
        ),
    ):
        size = {"SIZE": 256} if kernel is _combine_int8 else {}
        is_decode = length != WHOLE_ROWS
        yield Variant(
            name=name,
            kernel=kernel,
            signature={
                "sinks": sinks, "start": "*i32" if is_decode else None, "gate": "*bf16" if "gated" in name else None,
                **partial, **sizes, **ends,
            },
            constants={"H": h, "D": d, "LENGTH": length, "FEW": _FEW, "MANY": _MANY, "NVIDIA": False, **size, **more},
            nvidia_constants={"NVIDIA": True},
            has_pdl=True,
            is_decode=is_decode,
            num_warps=_warps(h * d // SPAN * more.get("COLUMNS", 1)) if is_decode else 1,
        )  # fmt: skip
