"""The gated delta rule of prompts, a chunk of rows at a time: the chunkwise form of arXiv:2412.06464.

What the rows of a chunk change in the state depends on what the rows before them in the chunk have changed: that is a
triangular system, whose solution needs no state. So it is solved for all chunks at once, and what is left for one chunk
after the other is products of matrices. With total_i the sum of the logarithms of decay up to row i of a chunk:

    A[i, j] = share_i exp(total_i - total_j) (k_i k_j) for j < i, 0 elsewhere;  T = (I + A)^-1
    U = T (share v),  W = T (share exp(total) k),  P[i, j] = exp(total_i - total_j) (q_i k_j) for j <= i
    N = U - W S,  answers = exp(total) q S + P N,  S = exp(total_last) S + (exp(total_last - total) k)^T N

What rows are made of, slots and the reference are delta_rule.py's. Rows that only fill a pass up are zeros here.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from runner.kernels.compile import Variant
from runner.kernels.delta_rule import (
    DeltaRows,
    DeltaSlots,
    DeltaWeights,
    delta_rows,
    held,
    keep_inputs_of,
    prepared,
    sizes_of,
)
from runner.kernels.values import OPTIONS, cdiv, has_pdl, is_nvidia, pdl_option


@triton.jit
def _totals(gates, m, ok, HV: tl.constexpr):
    """The logarithms of decay of a chunk's rows m, summed up: a head's, at `gates`."""
    return tl.cumsum(tl.load(gates + m.to(tl.int64) * (2 * HV), mask=ok, other=0.0), 0)


@triton.jit
def _tile(rows, m, ok, WIDTH: tl.constexpr, SIZE: tl.constexpr):
    """SIZE columns from `rows` on of rows m, 0 where they are not ok: [CHUNK, SIZE] float32."""
    at = rows + m.to(tl.int64)[:, None] * WIDTH + tl.arange(0, SIZE)[None, :]
    return tl.load(at, mask=ok[:, None] & (tl.arange(0, SIZE) >= 0)[None, :], other=0.0)


@triton.jit
def _inverse(a, CHUNK: tl.constexpr, PRECISION: tl.constexpr):
    """(I + a)^-1 of a [CHUNK, CHUNK], which has nothing on its diagonal or above.

    Row after row of both halves on the diagonal at once, D; with what is below them, O, the whole is D - D O D.
    """
    HALF: tl.constexpr = CHUNK // 2
    row, column = tl.arange(0, CHUNK)[:, None], tl.arange(0, CHUNK)[None, :]
    is_inside = row // HALF == column // HALF
    inside = tl.where(is_inside, a, 0.0)
    found = tl.where(row == column, 1.0, 0.0)
    for i in range(1, HALF):
        is_row = row % HALF == i
        of_row = tl.sum(tl.where(is_row, inside, 0.0), 0)
        found -= tl.where(is_row & is_inside, tl.sum(of_row[:, None] * found, 0)[None, :], 0.0)
    # As near as float32: an error of TF32's would go into all rows behind.
    THRICE: tl.constexpr = "tf32x3" if PRECISION == "tf32" else PRECISION
    below = tl.dot(found, a - inside, input_precision=THRICE)
    return found - tl.dot(below, found, input_precision=THRICE)


@triton.jit(do_not_specialize=["n_rows"])
def _solve_chunks(
    q, k, v, gates, count, w, p, n_rows,
    HK: tl.constexpr, HV: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, CHUNK: tl.constexpr,
    PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Of a chunk and a head: U in place of v, W [M, Hv, Dk] and P [M, Hv, CHUNK].

    P is done before the system is solved, and k asked for once more behind it: while that goes on, registers have room
    for neither q nor k. (With both, by eight warps, a thread spilled 1 KB: 512 rows of 32 heads took 121 us for 41.)
    """
    h = tl.program_id(1)
    g = h // (HV // HK)
    i = tl.arange(0, CHUNK)
    m = tl.program_id(0) * CHUNK + i
    ok = m < tl.load(count)
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    total = _totals(gates + h, m, ok, HV)
    share = tl.load(gates + HV + h + m.to(tl.int64) * (2 * HV), mask=ok, other=0.0)
    keys = _tile(k + g * DK, m, ok, HK * DK, DK)
    of_keys = tl.trans(keys)
    is_before = i[:, None] >= i[None, :]
    fading = tl.exp(tl.where(is_before, total[:, None] - total[None, :], -float("inf")))
    system = tl.dot(keys, of_keys, input_precision=PRECISION) * fading * share[:, None]
    is_row = (m < n_rows)[:, None]
    row = m.to(tl.int64)[:, None] * HV + h
    of_v, of_k = tl.arange(0, DV)[None, :], tl.arange(0, DK)[None, :]
    within = tl.dot(_tile(q + g * DK, m, ok, HK * DK, DK), of_keys, input_precision=PRECISION) * fading
    tl.store(p + row * CHUNK + i[None, :], within, mask=is_row & (i >= 0)[None, :])
    solved = _inverse(tl.where(i[:, None] > i[None, :], system, 0.0), CHUNK, PRECISION)
    u = tl.dot(solved, _tile(v + h * DV, m, ok, HV * DV, DV) * share[:, None], input_precision=PRECISION)
    tl.store(v + row * DV + of_v, u, mask=is_row & (of_v >= 0))
    keys = _tile(k + g * DK, m, ok, HK * DK, DK)
    of_state = tl.dot(solved, keys * (share * tl.exp(total))[:, None], input_precision=PRECISION)
    tl.store(w + row * DK + of_k, of_state, mask=is_row & (of_k >= 0))


@triton.jit(do_not_specialize=["n_rows"])
def _delta_chunks(
    q, k, u, gates, w, p, mixed, stride, states, past, start, count, out, n_rows,
    HK: tl.constexpr, HV: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, SLOTS: tl.constexpr, PAST: tl.constexpr,
    BLOCK: tl.constexpr, CHUNK: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One chunk after the other, for BLOCK columns of a head."""
    C: tl.constexpr = 2 * HK * DK + HV * DV
    h = tl.program_id(1)
    g = h // (HV // HK)
    first = tl.program_id(0) * BLOCK
    j = first + tl.arange(0, BLOCK)
    position, n = tl.load(start), tl.load(count)
    before, after, n_past = position % SLOTS, (position + n) % SLOTS, tl.minimum(position, 1) * PAST
    at = tl.arange(0, DK)[:, None] * DV + j[None, :]
    state = held(states, position, before, h, at, HV, DK * DV)
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    for begin in range(0, n_rows, CHUNK):
        m = begin + tl.arange(0, CHUNK)
        ok = m < n
        total = _totals(gates + h, m, ok, HV)
        last = tl.min(total, 0)  # of the last row: it only falls
        new = _tile(u + h * DV + first, m, ok, HV * DV, BLOCK)
        new -= tl.dot(_tile(w + h * DK, m, ok, HV * DK, DK), state, input_precision=PRECISION)
        query = _tile(q + g * DK, m, ok, HK * DK, DK) * tl.exp(total)[:, None]
        answer = tl.dot(query, state, input_precision=PRECISION)
        answer += tl.dot(_tile(p + h * CHUNK, m, ok, HV * CHUNK, CHUNK), new, input_precision=PRECISION)
        key = _tile(k + g * DK, m, ok, HK * DK, DK) * tl.exp(last - total)[:, None]
        state = state * tl.exp(last) + tl.dot(tl.trans(key), new, input_precision=PRECISION)
        place = out + m.to(tl.int64)[:, None] * (HV * DV) + h * DV + j[None, :]
        tl.store(place, answer, mask=(m < n_rows)[:, None] & (j >= 0)[None, :])
    tl.store(states + (after * HV + h).to(tl.int64) * (DK * DV) + at, state)
    keep_inputs_of(mixed, stride, past, before, after, n, n_past, h, j, HK, HV, DK, DV, C, PAST)


def delta_prompt(rows: DeltaRows, weights: DeltaWeights, slots: DeltaSlots, start: Tensor, count: Tensor) -> Tensor:
    """What delta_rows gives. That is whom AMD's GPUs are left to: they lack TF32, in which the factors of products are
    here where the rows are not float32 themselves."""
    if torch.version.hip:
        return delta_rows(rows, weights, slots, start, count)
    rows.check(weights, slots, start, count)
    heads, dk, dv = slots.states.shape[1:]
    n_rows, mixed, device = len(rows.mixed), rows.mixed, rows.mixed.device
    made, sizes, pdl = prepared(rows, weights, slots, start), sizes_of(rows, slots), has_pdl(mixed)
    out = torch.empty(n_rows, heads * dv, dtype=torch.float32, device=device)
    w, p = (torch.empty(n_rows, heads * width, dtype=torch.float32, device=device) for width in (dk, _CHUNK))
    block = min(_BLOCK, dv)
    common = {
        "CHUNK": _CHUNK, "PRECISION": "tf32" if is_nvidia(mixed) and mixed.dtype != torch.float32 else "ieee",
        "PDL": pdl, "num_stages": _STAGES, **pdl_option(pdl), **OPTIONS,
    }  # fmt: skip
    _solve_chunks[(cdiv(n_rows, _CHUNK), heads)](
        made.q, made.k, made.v, made.gates, count, w, p, n_rows,
        HK=sizes["HK"], HV=heads, DK=dk, DV=dv, num_warps=_SOLVE_WARPS, **common,
    )  # fmt: skip
    _delta_chunks[(dv // block, heads)](
        made.q, made.k, made.v, made.gates, w, p, mixed, mixed.stride(0), slots.states, slots.past, start, count, out,
        n_rows, BLOCK=block, num_warps=_WARPS, **sizes, **common,
    )  # fmt: skip
    return out


_CHUNK, _BLOCK, _SOLVE_WARPS, _WARPS, _STAGES = 32, 32, 4, 8, 2


def variants() -> Iterator[Variant]:
    made = {"q": "*fp32", "k": "*fp32", "gates": "*fp32", "count": "*i32", "w": "*fp32", "p": "*fp32", "n_rows": "i32"}
    rest = {
        "u": "*fp32", "mixed": "*bf16", "stride": "i32:16", "states": "*fp32", "past": "*bf16", "start": "*i32",
        "out": "*fp32",
    }  # fmt: skip
    for name, hk, hv, dk, dv in (("d128", 16, 32, 128, 128), ("d64 d32", 4, 4, 64, 32)):
        sizes = {"HK": hk, "HV": hv, "DK": dk, "DV": dv, "CHUNK": _CHUNK, "PRECISION": "tf32"}
        more = {"SLOTS": 12, "PAST": 3, "BLOCK": min(_BLOCK, dv)}
        for operation, kernel, signature, constants, num_warps in (
            ("solve", _solve_chunks, {**made, "v": "*fp32"}, sizes, _SOLVE_WARPS),
            ("chunks", _delta_chunks, {**made, **rest}, {**sizes, **more}, _WARPS),
        ):
            yield Variant(
                name=f"delta_{operation} {name}",
                kernel=kernel,
                signature=signature,
                constants=constants,
                num_warps=num_warps,
                num_stages=_STAGES,
                is_nvidia_only=True,
                has_pdl=True,
                is_decode=False,
            )
