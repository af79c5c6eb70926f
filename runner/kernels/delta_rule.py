"""The gated delta rule (arXiv:2412.06464): a layer that remembers a sequence in one matrix a head, whatever its length.

From the product with a layer's weights to what its heads answer: a short convolution over the rows, its queries and
keys brought to length 1, and then row after row: the state fades, the key's old value in it is replaced by the new one,
and the query reads it. What follows, a norm and a gate, is gates.py's; rows of prompts are delta_chunks.py's. A program
is one warp with a few columns of one head's state, which are independent of all others: it keeps them in registers from
the first row to the last one.

There are S slots, and the state after p tokens lies in slot p % S: so the device finds it by the position alone. Of a
step's rows, which may be guesses, the state after each is kept, so that the last S - 1 positions can be gone back to;
of a pass that is filled up, a prompt's, the last state alone. A step is one kernel, in which a row has the same bits
whatever M is; of a prompt's rows what needs no state is made before, all rows at once. All is float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from runner.kernels.compile import Variant
from runner.kernels.delta_sizes import takes_dims
from runner.kernels.values import OPTIONS, cdiv, has_pdl, is_nvidia, pdl_option

_EPS: Final = 1e-6  # of the queries' and the keys' lengths


@dataclass(frozen=True, kw_only=True)
class DeltaSlots:
    """What a layer keeps of a sequence, in S slots: what was after p tokens in slot p % S; after none no slot is read.

    states: [S, Hv, Dk, Dv] float32, Dk and Dv powers of 2 from 16 to 128. past: [S, T - 1, C], the last inputs of the
    convolution, of which a row sees T.
    """

    states: Tensor
    past: Tensor


@dataclass(frozen=True, kw_only=True)
class DeltaWeights:
    """taps: [T, C] float32, of the convolution, the last for a row itself. fading: [Hv] float32, -exp(A_log).
    bias: [Hv] float32, what is added to a."""

    taps: Tensor
    fading: Tensor
    bias: Tensor


@dataclass(frozen=True, kw_only=True)
class DeltaRows:
    """What M rows of a layer are made of, for Hk key heads of Dk elements and Hv value heads of Dv.

    mixed: [M, C], C = 2 Hk Dk + Hv Dv: queries, keys and values before the convolution. a, b: [M, Hv], how fast a head
    forgets and how much of a new value it takes. Rows may lie further apart than they are long, those of a and b alike.
    """

    mixed: Tensor
    a: Tensor
    b: Tensor
    num_key_heads: int

    def check(self, weights: DeltaWeights, slots: DeltaSlots, start: Tensor, count: Tensor | None) -> None:
        """Assert the shapes that the kernels rely on."""
        n_slots, heads, dk, dv = slots.states.shape
        (n_rows, width), (n_taps, _) = self.mixed.shape, weights.taps.shape
        assert takes_dims(dk, dv), (dk, dv)
        assert heads % self.num_key_heads == 0
        assert width == 2 * self.num_key_heads * dk + heads * dv, (width, self.num_key_heads, heads, dk, dv)
        assert slots.past.shape == (n_slots, n_taps - 1, width)
        assert slots.past.dtype == self.mixed.dtype
        assert n_slots >= n_taps - 1  # see _keep_inputs
        assert self.a.shape == self.b.shape == (n_rows, heads)
        assert self.a.stride() == self.b.stride()
        assert self.a.dtype == self.b.dtype
        assert self.mixed.stride(1) == self.a.stride(1) == 1
        assert weights.taps.shape == (n_taps, width)
        assert weights.fading.shape == weights.bias.shape == (heads,)
        assert all(one.is_contiguous() for one in (slots.states, slots.past, weights.taps))
        for number in (start,) if count is None else (start, count):
            assert number.shape == (1,)
            assert number.dtype == torch.int32


def delta_rows_ref(
    rows: DeltaRows, weights: DeltaWeights, slots: DeltaSlots, start: int, count: int | None = None
) -> Tensor:
    """See delta_step and, with a count, delta_rows; computed in the dtype of mixed, and the numbers are numbers."""
    n_slots, heads, dk, dv = slots.states.shape
    dtype, n = rows.mixed.dtype, len(rows.mixed) if count is None else count
    before = start % n_slots
    past = slots.past[before].to(dtype) if start else rows.mixed.new_zeros(len(weights.taps) - 1, rows.mixed.shape[1])
    held = slots.states[before].to(dtype) if start else rows.mixed.new_zeros(heads, dk, dv)
    inputs = torch.cat((past, rows.mixed[:n]))
    convolved = functional.silu(
        torch.stack([inputs[i : i + n] * weights.taps[i].to(dtype) for i in range(len(weights.taps))]).sum(0)
    )
    of_keys = rows.num_key_heads * dk
    q, k, v = convolved.split([of_keys, of_keys, heads * dv], dim=1)
    q, k = (
        (x * (x.square().sum(2, keepdim=True) + _EPS).rsqrt()).repeat_interleave(heads // rows.num_key_heads, 1)
        for x in (one.unflatten(1, (-1, dk)) for one in (q, k))
    )
    decay = (weights.fading.to(dtype) * functional.softplus(rows.a.to(dtype) + weights.bias.to(dtype))).exp()
    share, v = rows.b.to(dtype).sigmoid(), v.unflatten(1, (-1, dv))
    found = rows.mixed.new_zeros(len(rows.mixed), heads, dv)
    for m in range(n):
        held = held * decay[m, :, None, None]
        change = (v[m] - (k[m, :, :, None] * held).sum(1)) * share[m, :, None]
        held = held + k[m, :, :, None] * change[:, None, :]
        found[m] = (q[m, :, :, None] * held).sum(1) * dk**-0.5
        if count is None or m == n - 1:
            after = (start + m + 1) % n_slots
            slots.states[after] = held.to(slots.states.dtype)
            slots.past[after] = inputs[m + 1 : m + len(weights.taps)].to(slots.past.dtype)
    return found.flatten(1)


# --- what a row is made of -------------------------------------------------------------------------------------------


@triton.jit
def held(states, position, slot, h, at, HV: tl.constexpr, SIZE: tl.constexpr):
    """The state of head h at a position, at its elements `at`; 0 where nothing came before, whatever lies there.

    It is read before the kernel waits, and so are the past inputs: from L2, since L1 may hold older ones.
    """
    state = states + (slot * HV + h).to(tl.int64) * SIZE
    return tl.load(state + at, mask=at < tl.minimum(position, 1) * SIZE, other=0.0, cache_modifier=".cg")


@triton.jit
def _of_past(past, taps, m, c, before, n_past, C: tl.constexpr, PAST: tl.constexpr):
    """What rows before this pass give to the convolution of row m, channels c: it is there before the product is.

    n_past: inputs in the slot, PAST, or 0 where nothing came before.
    """
    total = tl.zeros(c.shape, tl.float32)
    for i in tl.static_range(PAST):
        at = past + (before * PAST + m + i) * C + c
        x = tl.load(at, mask=m + i + 0 * c < n_past, other=0.0, cache_modifier=".cg")
        total += x.to(tl.float32) * tl.load(taps + i * C + c)
    return total


@triton.jit
def _convolved(total, mixed, stride, taps, m, c, C: tl.constexpr, PAST: tl.constexpr):
    """silu of the convolution of row m, channels c; total: _of_past."""
    for i in tl.static_range(PAST + 1):
        r = m - PAST + i
        x = tl.load(mixed + r.to(tl.int64) * stride + c, mask=r + 0 * c >= 0, other=0.0)
        total += x.to(tl.float32) * tl.load(taps + i * C + c)
    return total * tl.sigmoid(total)


@triton.jit
def _sigmoid(x):
    """By two instructions behind the exponential; a division takes ten."""
    root = tl.rsqrt(1.0 + tl.exp(-x))
    return root * root


@triton.jit
def _of_length_1(x):
    return x * tl.rsqrt(tl.sum(x * x, 0) + _EPS_OF_LENGTH)


_EPS_OF_LENGTH = tl.constexpr(_EPS)


@triton.jit
def _log_decay(a, fading, bias):
    """The logarithm of what is left of a head's state: fading * softplus(a + bias)."""
    x = a.to(tl.float32) + bias
    return fading * (tl.maximum(x, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(x))))


@triton.jit
def _updated(state, q, k, v, decay, share):
    """The state [Dk, B] after a row, and what it answers [B]. q, k: [Dk]; v, and decay and share, which are one number
    each: [B].

    Both sums are over the state as it was, so that neither waits for the other: q (d S + k u) = d q S + (q k) u.
    """
    of_key = tl.sum(k[:, None] * state, 0)
    of_query = tl.sum(q[:, None] * state, 0)
    both = tl.sum(q * k, 0)
    change = (v - decay * of_key) * share
    zeros = tl.zeros(state.shape, tl.float32)
    state = tl.fma(k[:, None] + zeros, change[None, :] + zeros, state * decay[None, :])
    return state, decay * of_query + both * change


@triton.jit
def _keep_inputs(mixed, stride, past, before, after, c, n, n_past, C: tl.constexpr, PAST: tl.constexpr):
    """The last inputs of channels c after n rows into their slot. What lies in it is never read here: the slot is
    another one, or there are at least as many rows as slots, and all of the inputs are new ones."""
    for i in tl.static_range(PAST):
        r = n - PAST + i
        is_new = r + 0 * c >= 0
        new = tl.load(mixed + r.to(tl.int64) * stride + c, mask=is_new, other=0.0)
        old = tl.load(past + (before * PAST + n + i) * C + c, mask=n + i + 0 * c < n_past, other=0.0)
        tl.store(past + (after * PAST + i) * C + c, tl.where(is_new, new, old))


@triton.jit
def keep_inputs_of(
    mixed, stride, past, before, after, n, n_past, h, j, HK: tl.constexpr, HV: tl.constexpr, DK: tl.constexpr,
    DV: tl.constexpr, C: tl.constexpr, PAST: tl.constexpr,
):  # fmt: skip
    """Those of a program: of its columns j of values, and of the first program of a key head its queries and keys."""
    _keep_inputs(mixed, stride, past, before, after, 2 * HK * DK + h * DV + j, n, n_past, C, PAST)
    if (tl.program_id(0) == 0) & (h % (HV // HK) == 0):
        c = h // (HV // HK) * DK + tl.arange(0, DK)
        _keep_inputs(mixed, stride, past, before, after, c, n, n_past, C, PAST)
        _keep_inputs(mixed, stride, past, before, after, HK * DK + c, n, n_past, C, PAST)


# --- kernels ---------------------------------------------------------------------------------------------------------


@triton.jit
def _taps(taps, c, C: tl.constexpr, PAST: tl.constexpr):
    """All taps of channels c."""
    found = ()
    for i in tl.static_range(PAST + 1):
        found = found + (tl.load(taps + i * C + c),)  # type: ignore[assignment]  # noqa: RUF005
    return found


@triton.jit
def _inputs(past, c, before, n_past, C: tl.constexpr, PAST: tl.constexpr):
    """The inputs of channels c before one row; 0 where there were none."""
    found = ()
    for i in tl.static_range(PAST):
        at = past + (before * PAST + i) * C + c
        x = tl.load(at, mask=i + 0 * c < n_past, other=0.0, cache_modifier=".cg")
        found = found + (x,)  # type: ignore[assignment]  # noqa: RUF005
    return found


@triton.jit
def _convolved_row(x, inputs, weights, PAST: tl.constexpr):
    """silu of the convolution of one row x."""
    total = x.to(tl.float32) * weights[PAST]
    for i in tl.static_range(PAST):
        total = tl.fma(inputs[i].to(tl.float32), weights[i], total)
    return total * _sigmoid(total)


@triton.jit
def _next_inputs(x, inputs, PAST: tl.constexpr):
    """The inputs before the row that follows x."""
    found = ()
    for i in tl.static_range(1, PAST):
        found = found + (inputs[i],)  # type: ignore[assignment]  # noqa: RUF005
    return found + (x,)  # noqa: RUF005


@triton.jit
def _keep_row(inputs, past, c, is_kept, slot, C: tl.constexpr, PAST: tl.constexpr):
    """The inputs of channels c after a row into its slot."""
    for i in tl.static_range(PAST):
        tl.store(past + (slot * PAST + i) * C + c, inputs[i], mask=0 * c < is_kept)


@triton.jit(do_not_specialize=["first", "n_rows"])
def _delta_step(
    mixed, stride, a, b, gate_stride, taps, fading, bias, states, past, start, out, first, n_rows,
    HK: tl.constexpr, HV: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, SLOTS: tl.constexpr,
    PAST: tl.constexpr, BLOCK: tl.constexpr, SCALE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Fewer rows than slots, one after the other, for BLOCK columns of a head. Each leaves its state and its inputs."""
    C: tl.constexpr = 2 * HK * DK + HV * DV
    h = tl.program_id(1)
    g = h // (HV // HK)
    i = tl.arange(0, DK)
    j = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    of_q, of_k, of_v = g * DK + i, HK * DK + g * DK + i, 2 * HK * DK + h * DV + j
    position = tl.load(start) + first
    end = position + n_rows
    taps_q, taps_k, taps_v = _taps(taps, of_q, C, PAST), _taps(taps, of_k, C, PAST), _taps(taps, of_v, C, PAST)
    head_fading, head_bias = tl.load(fading + h), tl.load(bias + h)
    before, n_past = position % SLOTS, tl.minimum(position, 1) * PAST
    # The position is older than the step, and state and past are of the step before.
    at = i[:, None] * DV + j[None, :]
    state = held(states, position, before, h, at, HV, DK * DV)
    past_q = _inputs(past, of_q, before, n_past, C, PAST)
    past_k = _inputs(past, of_k, before, n_past, C, PAST)
    past_v = _inputs(past, of_v, before, n_past, C, PAST)
    is_first = tl.where((tl.program_id(0) == 0) & (h % (HV // HK) == 0), 1, 0)  # of a key head
    ones = tl.full((BLOCK,), 1.0, tl.float32)
    if PDL:
        gdc_wait()
    # All that the kernel before has made of a row, at once, and while the row before it is computed.
    row_q, row_k, row_v = tl.load(mixed + of_q), tl.load(mixed + of_k), tl.load(mixed + of_v)
    head_a, head_b = tl.load(a + h), tl.load(b + h)
    if PDL:
        gdc_launch_dependents()
    for m in range(n_rows):
        after = position + m + 1
        row, gate = mixed + (m + 1) * stride, (m + 1) * gate_stride + h
        next_q = tl.load(row + of_q, mask=after + 0 * of_q < end)
        next_k = tl.load(row + of_k, mask=after + 0 * of_k < end)
        next_v = tl.load(row + of_v, mask=after + 0 * of_v < end)
        next_a, next_b = tl.load(a + gate, mask=after < end), tl.load(b + gate, mask=after < end)
        q = _of_length_1(_convolved_row(row_q, past_q, taps_q, PAST)) * SCALE
        k = _of_length_1(_convolved_row(row_k, past_k, taps_k, PAST))
        v = _convolved_row(row_v, past_v, taps_v, PAST)
        decay = tl.exp(ones * _log_decay(head_a, head_fading, head_bias))
        share = ones * _sigmoid(head_b.to(tl.float32))
        state, answer = _updated(state, q, k, v, decay, share)
        tl.store(out + (m * HV + h) * DV + j, answer)
        slot = after % SLOTS
        tl.store(states + (slot * HV + h).to(tl.int64) * (DK * DV) + at, state)
        past_q, past_k = _next_inputs(row_q, past_q, PAST), _next_inputs(row_k, past_k, PAST)
        past_v = _next_inputs(row_v, past_v, PAST)
        _keep_row(past_v, past, of_v, 1, slot, C, PAST)
        _keep_row(past_q, past, of_q, is_first, slot, C, PAST)
        _keep_row(past_k, past, of_k, is_first, slot, C, PAST)
        row_q, row_k, row_v, head_a, head_b = next_q, next_k, next_v, next_a, next_b


@triton.jit(do_not_specialize=["n_rows"])
def _prepare(
    mixed, stride, a, b, gate_stride, taps, fading, bias, past, start, q, k, v, gates, n_rows,
    HK: tl.constexpr, HV: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, SLOTS: tl.constexpr,
    PAST: tl.constexpr, ROWS: tl.constexpr, SCALE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """See Prepared. A program is a head of q, of k or of v, of ROWS rows."""
    C: tl.constexpr = 2 * HK * DK + HV * DV
    n = tl.program_id(1)
    position = tl.load(start)
    before, n_past = position % SLOTS, tl.minimum(position, 1) * PAST
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    for offset in tl.static_range(ROWS):
        m = tl.program_id(0) * ROWS + offset
        if m < n_rows:
            if n < 2 * HK:
                c = n * DK + tl.arange(0, DK)
                x = _of_past(past, taps, m, c, before, n_past, C, PAST)
                x = _of_length_1(_convolved(x, mixed, stride, taps, m, c, C, PAST))
                if n < HK:
                    tl.store(q + m.to(tl.int64) * (HK * DK) + c, x * SCALE)
                else:
                    tl.store(k + m.to(tl.int64) * (HK * DK) + c - HK * DK, x)
            else:
                h = n - 2 * HK
                j = h * DV + tl.arange(0, DV)
                of_v = _of_past(past, taps, m, 2 * HK * DK + j, before, n_past, C, PAST)
                of_v = _convolved(of_v, mixed, stride, taps, m, 2 * HK * DK + j, C, PAST)
                tl.store(v + m.to(tl.int64) * (HV * DV) + j, of_v)
                at = m.to(tl.int64) * gate_stride + h
                place = gates + m.to(tl.int64) * (2 * HV) + h
                tl.store(place, _log_decay(tl.load(a + at), tl.load(fading + h), tl.load(bias + h)))
                tl.store(place + HV, tl.sigmoid(tl.load(b + at).to(tl.float32)))


@triton.jit(do_not_specialize=["n_rows"])
def _delta_rows(
    q, k, v, gates, mixed, stride, states, past, start, count, out, n_rows,
    HK: tl.constexpr, HV: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, SLOTS: tl.constexpr,
    PAST: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Prepared rows, one after the other, for BLOCK columns of a head."""
    C: tl.constexpr = 2 * HK * DK + HV * DV
    h = tl.program_id(1)
    g = h // (HV // HK)
    i = tl.arange(0, DK)
    j = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    position, n = tl.load(start), tl.load(count)
    before, after, n_past = position % SLOTS, (position + n) % SLOTS, tl.minimum(position, 1) * PAST
    at = i[:, None] * DV + j[None, :]
    state = held(states, position, before, h, at, HV, DK * DV)
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    q_at, k_at, v_at = q + g * DK + i, k + g * DK + i, v + h * DV + j
    decay_at, share_at, out_at = gates + h + 0 * j, gates + HV + h + 0 * j, out + h * DV + j
    for _ in tl.range(0, n, num_stages=STAGES):
        state, answer = _updated(
            state, tl.load(q_at), tl.load(k_at), tl.load(v_at), tl.exp(tl.load(decay_at)), tl.load(share_at)
        )
        tl.store(out_at, answer)
        q_at += HK * DK
        k_at += HK * DK
        v_at += HV * DV
        decay_at += 2 * HV
        share_at += 2 * HV
        out_at += HV * DV
    for _ in range(n, n_rows):  # what fills a pass up
        tl.store(out_at, tl.zeros((BLOCK,), tl.float32))
        out_at += HV * DV
    tl.store(states + (after * HV + h).to(tl.int64) * (DK * DV) + at, state)
    keep_inputs_of(mixed, stride, past, before, after, n, n_past, h, j, HK, HV, DK, DV, C, PAST)


# --- launchers -------------------------------------------------------------------------------------------------------


def delta_step(rows: DeltaRows, weights: DeltaWeights, slots: DeltaSlots, start: Tensor) -> Tensor:
    """What the heads answer to M rows, [M, Hv * Dv] float32, before their norm and gate; the states are kept.

    start: int32 [1], on the device, the position of the first row: the state before it lies in slot start % S, and
    that after row m goes to slot (start + m + 1) % S.
    """
    rows.check(weights, slots, start, None)
    n_slots, heads, dk, dv = slots.states.shape
    n_rows, mixed, a, b = len(rows.mixed), rows.mixed, rows.a, rows.b
    out, block = torch.empty(n_rows, heads * dv, dtype=torch.float32, device=mixed.device), _step_block(heads)
    for first in range(0, n_rows, n_slots - 1):  # a slot that is read is not written
        pdl = has_pdl(mixed) and first == 0
        _delta_step[(dv // block, heads)](
            mixed[first:], mixed.stride(0), a[first:], b[first:], a.stride(0), weights.taps, weights.fading,
            weights.bias, slots.states, slots.past, start, out[first:], first, min(n_rows - first, n_slots - 1),
            BLOCK=block, SCALE=dk**-0.5, PDL=pdl, num_warps=_WARPS, **sizes_of(rows, slots), **pdl_option(pdl),
            **OPTIONS,
        )  # fmt: skip
    return out


def delta_rows(rows: DeltaRows, weights: DeltaWeights, slots: DeltaSlots, start: Tensor, count: Tensor) -> Tensor:
    """delta_step of a pass that is filled up. count: int32 [1], on the device: only so many rows count, at least one,
    and the state after them alone is kept; those that follow leave it alone and are answered with 0."""
    rows.check(weights, slots, start, count)
    heads, _, dv = slots.states.shape[1:]
    n_rows, mixed, pdl = len(rows.mixed), rows.mixed, has_pdl(rows.mixed)
    out = torch.empty(n_rows, heads * dv, dtype=torch.float32, device=mixed.device)
    made = prepared(rows, weights, slots, start)
    _delta_rows[(dv // _BLOCK, heads)](
        made.q, made.k, made.v, made.gates, mixed, mixed.stride(0), slots.states, slots.past, start, count, out,
        n_rows, BLOCK=_BLOCK, STAGES=_STAGES if is_nvidia(mixed) else 1, PDL=pdl, num_warps=_WARPS,
        **sizes_of(rows, slots), **pdl_option(pdl), **OPTIONS,
    )  # fmt: skip
    return out


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """What M rows need no state for, all float32: q, k [M, Hk * Dk], queries and keys, the ones of length 1 / sqrt(Dk),
    the others of 1; v [M, Hv * Dv], values; gates [M, 2 * Hv], of each head the logarithm of what is left of its state,
    and of each the share of a new value that it takes."""

    q: Tensor
    k: Tensor
    v: Tensor
    gates: Tensor


def prepared(rows: DeltaRows, weights: DeltaWeights, slots: DeltaSlots, start: Tensor) -> Prepared:
    """Of rows from position `start` on."""
    heads, dk, dv = slots.states.shape[1:]
    n_rows, n_keys, mixed, pdl = len(rows.mixed), rows.num_key_heads, rows.mixed, has_pdl(rows.mixed)
    widths = (n_keys * dk, n_keys * dk, heads * dv, 2 * heads)
    q, k, v, gates = (torch.empty(n_rows, width, dtype=torch.float32, device=mixed.device) for width in widths)
    _prepare[(cdiv(n_rows, _ROWS), 2 * n_keys + heads)](
        mixed, mixed.stride(0), rows.a, rows.b, rows.a.stride(0), weights.taps, weights.fading, weights.bias,
        slots.past, start, q, k, v, gates, n_rows, ROWS=_ROWS, SCALE=dk**-0.5, PDL=pdl,
        **sizes_of(rows, slots), num_warps=_WARPS, **pdl_option(pdl), **OPTIONS,
    )  # fmt: skip
    return Prepared(q=q, k=k, v=v, gates=gates)


def sizes_of(rows: DeltaRows, slots: DeltaSlots) -> dict[str, int]:
    """What all kernels of a layer are compiled for."""
    n_slots, heads, dk, dv = slots.states.shape
    return {
        "HK": rows.num_key_heads, "HV": heads, "DK": dk, "DV": dv, "SLOTS": n_slots, "PAST": slots.past.shape[1]
    }  # fmt: skip


# Of prepared rows: a warp with 8 columns has 32 numbers of a head of 128 a lane, and of 32 heads four programs run on a
# multiprocessor, one on each of its schedulers. They are asked for STAGES ahead; Triton 3.6 fails to compile that for
# AMD. One takes 0.67 us (H200), most of which a warp waits for itself.
_BLOCK, _WARPS, _STAGES, _ROWS = 8, 1, 4, 2


def _step_block(heads: int) -> int:
    """Columns of a program of a step, which prepares its rows itself: so fewer programs have less to do.

    H200, a script's, one round of two, heads of 128, us of 1, 2, 4, 8 and 16 rows with 8 | 16 columns. 16 heads 2.47,
    3.16, 4.55, 7.76, 17.4 | 2.34, 3.09, 4.97, 8.28, 19.4; 32 heads 3.40, 4.38, 5.89, 9.67, 21.0 | 3.05, 3.61, 5.67,
    9.29, 21.6; 48 heads 4.31, 5.56, 7.95, 13.0, 27.4 | 3.61, 4.53, 7.02, 11.0, 26.4.
    """
    return 16 if heads >= 32 else 8


def variants() -> Iterator[Variant]:
    for name, hk, hv, dk, dv in (("d128", 16, 32, 128, 128), ("d64 d32", 4, 4, 64, 32)):
        sizes = {"HK": hk, "HV": hv, "DK": dk, "DV": dv, "SLOTS": 12, "PAST": 3}
        read = {
            "mixed": "*bf16", "a": "*fp32", "b": "*fp32", "taps": "*fp32", "fading": "*fp32", "bias": "*fp32",
            "past": "*bf16", "start": "*i32",
        }  # fmt: skip
        made = {"q": "*fp32", "k": "*fp32", "v": "*fp32", "gates": "*fp32", "n_rows": "i32", "stride": "i32:16"}
        state = {"mixed": "*bf16", "states": "*fp32", "past": "*bf16", "start": "*i32", "out": "*fp32"}
        of_rows, block = {"gate_stride": "i32:16", "stride": "i32:16", "n_rows": "i32"}, _step_block(hv)
        for operation, kernel, signature, constants in (
            ("step", _delta_step, {**read, **state, **of_rows, "first": "i32"}, {"BLOCK": block, "SCALE": dk**-0.5}),
            ("prepare", _prepare, {**read, **made, "gate_stride": "i32:16"}, {"ROWS": _ROWS, "SCALE": dk**-0.5}),
            ("rows", _delta_rows, {**made, **state, "count": "*i32"}, {"BLOCK": _BLOCK, "STAGES": 1}),
        ):
            yield Variant(
                name=f"delta_{operation} {name}",
                kernel=kernel,
                signature=signature,
                constants={**sizes, **constants},
                nvidia_constants={"STAGES": _STAGES} if operation == "rows" else {},
                num_warps=_WARPS,
                has_pdl=True,
                is_decode=operation == "step",
            )
