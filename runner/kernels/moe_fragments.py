"""Products of up to 16 rows with the few experts that each takes, of weights in fragments: decoding on NVIDIA.

What moe_gemv.py computes, on tensor cores: one row of activations a pair of a row and an expert, in the steps and the
order of gemv_steps.py. Nothing is shared between rows, so a row has the same bits in every batch. A program of `_pairs`
computes 16 columns of one pair, of gate and up beside each other, and hands them to an epilogue; one of `_sum` 16
columns of all slots of a row, each times its weight, and adds their sum to the residual stream or leaves it by itself;
its weights, which depend on the experts alone, are on their way before the kernel before it has ended. Where rows share
enough experts, moe_blocks.py multiplies them, and where a row has more slots than `_sum` takes at once, `_pairs` does
of several rows: both in the same order of summation, and moe_slots.py does what is left of `_sum`.

The rows of expert e are those of the weights from e * N on, N a multiple of 16, and none of them are in pairs. The
references are in moe_matmul.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from runner.kernels import moe_pairs
from runner.kernels.compile import Variant
from runner.kernels.epilogues import ACTIVATIONS
from runner.kernels.fragment_products import ZEROS, half_tables_of_lanes
from runner.kernels.fragments import TILE, activation_rows, activations_ref, to_fragments
from runner.kernels.gemv_steps import all_steps, begun_steps, begun_x, row_sums
from runner.kernels.grids import half_tables, table
from runner.kernels.layouts import random_matrix
from runner.kernels.moe_slots import add_slots, added_slots, row_before, slots_at_once, slots_of_round, store_row
from runner.kernels.pack import dequantize_ref
from runner.kernels.values import (
    GROUP,
    MOST_ROWS,
    OPTIONS,
    Int8Fragments,
    PackedMatrix,
    has_pdl,
    is_nvidia,
    moved,
    pdl_option,
    register_option,
)


@triton.jit
def _pairs_of_fragments(
    packed, high, scale, row_scale, levels, halves, x, notes, experts, N, k, args,
    EPILOGUE: tl.constexpr, CONFIG: tl.constexpr, PAIR: tl.constexpr, FORMAT: tl.constexpr, P: tl.constexpr,
    W: tl.constexpr, DEPTH: tl.constexpr, EARLY: tl.constexpr, NVIDIA: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """PAIR: how many rows lie between gate and up, 0 without pairs. k: pairs of a row of x. EARLY: the experts were
    there before the kernel before began, so weights are asked for at once, as in _sum_of_fragments."""
    S: tl.constexpr = 2 if PAIR > 0 else 1
    STEPS: tl.constexpr = (P + 4 * W - 1) // (4 * W)
    MASKED: tl.constexpr = P % (4 * W) != 0
    pair, tile = tl.program_id(0), tl.program_id(1)
    v = tl.arange(0, S * W)[:, None]
    tables = half_tables_of_lanes(halves, S * W, FORMAT, NVIDIA)
    row = (pair // k).to(tl.int64)
    x += row * (P * 16)
    notes += row * (P * 4)
    p = 4 * (v % W)
    if EARLY:
        expert = tl.load(experts + pair, cache_modifier=".cg").to(tl.int64)
    else:
        if PDL:
            gdc_wait()
        expert = tl.load(experts + pair).to(tl.int64)
        # x before the weights, whose addresses wait for the expert: else it would come behind all of them.
        asked = begun_x(x, notes, p, P, FORMAT, W, DEPTH, STEPS, NVIDIA, PDL, MASKED)
    place = expert * (N // 16) + (tile + v // W * (PAIR // 16))
    packed += place * (P * 128)
    high += place * (P * 128)
    scale += place * (P * 32)
    waiting = begun_steps(packed, high, scale, p, P, FORMAT, W, DEPTH, STEPS, NVIDIA, MASKED)
    if PDL:
        gdc_wait()  # unless EARLY again, and at once over: behind it ptxas would put off what was asked for
        gdc_launch_dependents()
    if EARLY:
        asked = begun_x(x, notes, p, P, FORMAT, W, DEPTH, STEPS, NVIDIA, PDL, MASKED)
    i = tl.arange(0, S * 16)
    factor = 0.5 * tl.load(row_scale + expert * N + (tile * 16 + i // 16 * PAIR + i % 16))
    acc = all_steps(
        waiting, asked, packed, high, scale, levels, tables, x, notes, p, 0, P,
        FORMAT, S * W, W, DEPTH, STEPS, NVIDIA, PDL, MASKED,
    )  # fmt: skip
    total = row_sums(acc, S * W, W) * factor
    n = tile * 16 + tl.arange(0, 16)
    lo = total
    hi = total
    if PAIR > 0:
        lo, hi = tl.split(tl.permute(tl.reshape(total, (2, 16)), (1, 0)))
    pairs = pair + tl.arange(0, 1)
    EPILOGUE(lo[None, :], hi[None, :], pairs, pairs >= 0, n, n + PAIR, n >= 0, tile, args, CONFIG)


@triton.jit
def _sum_of_fragments(
    packed, high, scale, row_scale, levels, halves, x, notes, experts, weights, h, bias, parts, N, n_tiles,
    HAS_BIAS: tl.constexpr, ADDS: tl.constexpr, FORMAT: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    P: tl.constexpr, W: tl.constexpr, DEPTH: tl.constexpr, NVIDIA: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """A slot of K is W warps, V slots at a time; warps that have none in the last round ask for nothing."""
    ROUNDS: tl.constexpr = (K + V - 1) // V
    STEPS: tl.constexpr = (P + 4 * W - 1) // (4 * W)
    MASKED: tl.constexpr = P % (4 * W) != 0 or K % V != 0
    row, tile = tl.program_id(0), tl.program_id(1)
    # Experts were there before the product with gate and up began: from L2, since L1 may hold what was there before.
    # Every warp asks for its own and nothing else, since all programs ask one slice of that cache.
    begun = ()
    for r in tl.static_range(ROUNDS):
        is_there, pair = slots_of_round(row, r, K, V, W)
        place = tl.load(experts + pair, cache_modifier=".cg").to(tl.int64)[:, None] * (N // 16) + tile
        of_warp = 4 * (tl.arange(0, V * W) % W)
        p = (tl.where(is_there, of_warp, P) if K % V else of_warp)[:, None]
        of_words, of_tops, of_codes = packed + place * (P * 128), high + place * (P * 128), scale + place * (P * 32)
        waiting = begun_steps(of_words, of_tops, of_codes, p, P, FORMAT, W, DEPTH, STEPS, NVIDIA, MASKED)
        begun = begun + ((of_words, of_tops, of_codes, p, waiting),)  # type: ignore[assignment]  # noqa: RUF005
    tables = half_tables_of_lanes(halves, V * W, FORMAT, NVIDIA)
    n = tile * 16 + tl.arange(0, 16)
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    total = row_before(h, row, n, N, ADDS)
    found = ()
    for r in tl.static_range(ROUNDS):
        of_words, of_tops, of_codes, p, waiting = begun[r]
        _, of_slot = slots_of_round(row, r, K, V, 16)
        at = tl.load(experts + of_slot).to(tl.int64) * N + (tile * 16 + tl.arange(0, V * 16) % 16)
        factor = 0.5 * tl.load(row_scale + at)
        share = tl.load(weights + of_slot)
        _, pair = slots_of_round(row, r, K, V, W)
        of_x, of_notes = x + pair[:, None].to(tl.int64) * (P * 16), notes + pair[:, None].to(tl.int64) * (P * 4)
        asked = begun_x(of_x, of_notes, p, P, FORMAT, W, DEPTH, STEPS, NVIDIA, PDL, MASKED)
        acc = all_steps(
            waiting, asked, of_words, of_tops, of_codes, levels, tables, of_x, of_notes, p, 0, P,
            FORMAT, V * W, W, DEPTH, STEPS, NVIDIA, PDL, MASKED,
        )  # fmt: skip
        found = found + ((acc, factor, share, at),)  # type: ignore[assignment]  # noqa: RUF005
    for r in tl.static_range(ROUNDS):
        acc, factor, share, at = found[r]
        y = row_sums(acc, V * W, W) * factor
        if HAS_BIAS:
            y += tl.load(bias + at).to(tl.float32)
        is_there, _ = slots_of_round(row, r, K, V, 16)
        total = added_slots(total, y, share, is_there, V)
    store_row(total, h, parts, row, tile, N, n_tiles)


def check_apart(x: Int8Fragments, w: PackedMatrix) -> None:
    """That x is rows apart for the matrices of all experts in fragments."""
    assert w.layout == "fragments"
    assert w.pair == 0
    assert x.shape[1] == w.shape[1], (x.shape, w.shape)
    assert x.words.shape[2] == 1
    assert x.zero == ZEROS[w.format]


@dataclass(frozen=True, kw_only=True)
class GemvFragmentsOfExperts:
    """Launches of the kernels. x: each row apart (C = 1), of the rows for `pairs`, of the pairs for the others.

    w: the matrices of all experts, [E * N, K]; experts: int32 [M, k]; num_rows: N. warps: of a slot in `sum` and
    `products`, and so their order of summation; None: as many as are fastest.
    """

    x: Int8Fragments
    w: PackedMatrix
    experts: Tensor
    num_rows: int
    warps: int | None = None

    def __post_init__(self) -> None:
        check_apart(self.x, self.w)
        assert self.num_rows % TILE == 0
        assert self.experts.shape[1] <= _MOST_SLOTS

    def pairs(
        self, epilogue: Callable[..., Any], args: tuple[Any, ...], config: tuple[Any, ...], pair: int, n_columns: int
    ) -> None:
        """Each pair's product [n_columns] to the epilogue. pair: see epilogues.columns."""
        k = self.experts.shape[1]
        assert self.x.num_rows * k == self.experts.numel()
        self._pairs(epilogue, args, config, pair, n_columns, k=k, warps=PAIRS_WARPS, depth=_PAIRS_DEPTH, early=False)

    def products(self, epilogue: Callable[..., Any], args: tuple[Any, ...], config: tuple[Any, ...]) -> None:
        """Each pair's product [N] to the epilogue, with the bits that `sum` adds up."""
        assert self.x.num_rows == self.experts.numel()
        depth, warps = _sum_depth(self.w.format, self.experts.shape[1]), self._warps_of_slot()
        self._pairs(epilogue, args, config, 0, self.num_rows, k=1, warps=warps, depth=depth, early=True)

    def _pairs(
        self, epilogue: Callable[..., Any], args: tuple[Any, ...], config: tuple[Any, ...], pair: int, n_columns: int,
        *, k: int, warps: int, depth: int, early: bool,
    ) -> None:  # fmt: skip
        """warps: of a tile."""
        pdl = has_pdl(self.experts)
        assert pair % TILE == 0
        _pairs_of_fragments[(self.experts.numel(), n_columns // TILE)](
            *self._operands(), self.experts, self.num_rows, k, args,
            EPILOGUE=epilogue, CONFIG=config, PAIR=pair, FORMAT=self.w.format, P=self.w.packed.shape[1], W=warps,
            DEPTH=depth, EARLY=early, NVIDIA=is_nvidia(self.experts), PDL=pdl,
            num_warps=(2 if pair else 1) * warps, num_stages=1, **pdl_option(pdl), **OPTIONS,
        )  # fmt: skip

    @property
    def n_sum_tiles(self) -> int:
        return self.num_rows // TILE

    def sum(self, weights: Tensor, h: Tensor, bias: Tensor | None, parts: Tensor, *, adds: bool = True) -> None:
        """h [M, N] += the sum over slots of weight * (product + bias); parts [M, n_sum_tiles]: of the new squares.

        adds: else h holds nothing, and is that sum.
        """
        n_rows, k = self.experts.shape
        assert self.x.num_rows == n_rows * k
        at_once, warps, pdl, n_pairs = slots_at_once(k), self._warps_of_slot(), has_pdl(h), self.w.packed.shape[1]
        _sum_of_fragments[(n_rows, self.n_sum_tiles)](
            *self._operands(), self.experts, weights, h, h if bias is None else bias, parts,
            self.num_rows, self.n_sum_tiles,
            HAS_BIAS=bias is not None, ADDS=adds, FORMAT=self.w.format, K=k, V=at_once, P=n_pairs, W=warps,
            DEPTH=_sum_depth(self.w.format, k), NVIDIA=is_nvidia(h), PDL=pdl, num_warps=at_once * warps, num_stages=1,
            **register_option(_MOST_REGISTERS if is_nvidia(h) else None), **pdl_option(pdl), **OPTIONS,
        )  # fmt: skip

    def _warps_of_slot(self) -> int:
        return self.warps or warps_of_slot(self.w.shape[1], self.experts.shape[1])

    def _operands(self) -> tuple[Any, ...]:
        w, device = self.w, self.w.packed.device
        high = w.packed if w.high is None else w.high
        return w.packed, high, w.scale, w.row_scale, table(device), half_tables(device), self.x.words, self.x.notes


def multiplies_one_by_one(n_rows: int, k: int) -> bool:
    """Whether `products` and moe_slots.py are faster than `sum`, whose second round has its warps wait for the first.

    H200, Qwen3.5-35B-A3B, nine slots: steps of 4 and 8 rows take 5 and 6 % less. Of eight, Qwen3-30B-A3B's of 2 rows
    4 % more.
    """
    return n_rows > 1 and k > slots_at_once(k)


def multiplies_experts(w: PackedMatrix, k: int) -> bool:
    """Whether the kernels take k experts a row, and are right on the device that w is on: see layouts.py."""
    if k > _MOST_SLOTS or not is_nvidia(w.packed):
        return k <= _MOST_SLOTS
    asked = (w.format, w.packed.device)
    return _works(*asked) and (not multiplies_one_by_one(MOST_ROWS, k) or _adds_alike(*asked))


def operands_to_try(
    form: str, device: torch.device, n_rows: int = 3
) -> tuple[PackedMatrix, Tensor, Int8Fragments, Tensor]:
    """Four tiles of weights in fragments on the device, and dense on the CPU; some rows, apart; the same."""
    random = torch.Generator().manual_seed(0)
    n_groups = 38  # several steps, the last of which is not full
    planes = random_matrix(form, n_groups, random, n_rows=4 * TILE)
    x = activations_ref(0.002 * torch.randn(n_rows, GROUP * n_groups, generator=random), ZEROS[form], apart=True)
    return moved(to_fragments(planes), device), dequantize_ref(planes), moved(x, device), activation_rows(x)


def try_experts(form: str, device: torch.device) -> bool:
    """Whether all launches but `products` are right: lanes are a compiler's to decide."""
    if torch.cuda.get_device_capability(device) < (8, 0):
        return False
    w, dense, x, rows = operands_to_try(form, device)
    gated, h = torch.empty(3, TILE, device=device), torch.zeros(2, TILE, device=device)
    weights, parts = torch.tensor([[0.5, 0.3, 0.2]], device=device), torch.empty(1, 1, device=device)
    first = torch.zeros(3, 1, dtype=torch.int32, device=device)
    args = (gated, TILE, (gated, 0.0, 0.0), gated, (first, 1, 2 * TILE))
    GemvFragmentsOfExperts(x=x, w=w, experts=first, num_rows=2 * TILE).pairs(
        moe_pairs.gate_pairs, args, (0, 0, False, ACTIVATIONS["silu"]), TILE, TILE
    )
    experts = torch.tensor([[2, 0, 1]], dtype=torch.int32, device=device)
    for warps, total in zip(WARPS_TO_TRY, h, strict=True):
        launches = GemvFragmentsOfExperts(x=x, w=w, experts=experts, num_rows=TILE, warps=warps)
        launches.sum(weights, total[None], None, parts)
    gate, up = (rows @ dense[: 2 * TILE].T).chunk(2, 1)
    by_slot = torch.einsum("sk,snk->sn", rows, dense.view(4, TILE, -1)[experts[0].tolist()])
    wanted = ((gated, gate.sigmoid() * gate * up), (h, (weights.cpu() @ by_slot).expand(2, -1)))
    return all(bool((found.cpu() - right).norm() < 1e-4 * right.norm()) for found, right in wanted)


def try_sums(form: str, device: torch.device) -> bool:
    """Whether two rows of as many slots as `products` is for have the same sums and squares by it and by `sum`."""
    n_rows, n_slots = 2, 9
    assert multiplies_one_by_one(n_rows, n_slots)
    w, _, x, _ = operands_to_try(form, device, n_rows * n_slots)
    experts = (torch.arange(n_rows * n_slots, dtype=torch.int32, device=device) % 3).view(n_rows, n_slots)
    weights = torch.linspace(0.3, 0.1, n_rows * n_slots, device=device).view(n_rows, n_slots)
    h, parts = torch.zeros(2, n_rows, TILE, device=device), torch.empty(2, n_rows, 1, device=device)
    launches = GemvFragmentsOfExperts(x=x, w=w, experts=experts, num_rows=TILE)
    launches.sum(weights, h[0], None, parts[0])
    y = h.new_empty(n_rows * n_slots, TILE)
    launches.products(moe_pairs.store_pairs, (y, TILE, (y, 0.0, 0.0), y, (experts, n_slots, TILE)), (0, 0, False))
    add_slots(y, weights, h[1], parts[1])
    return torch.equal(*h) and torch.equal(*parts)


_works, _adds_alike = cache(try_experts), cache(try_sums)


# One choice whatever M is, since the order of summation follows from the warps. H200, mq4, 8 of 128 experts, in us for
# 1, 2, 4, 8 and 16 rows. [1536, 2048], one step on its way: 6.6, 9.1, 15.2, 26.0, 47.1; one warp a tile 7.6, 10.9,
# 16.2, 25.8, 43.8; from planes 7.7, 12.8, 22.6, 42.4, 82.0. More steps are better only with x asked for before them:
# whole steps of Qwen3-30B-A3B take 2.5, 0, 5, 5 and 4 % less with four, of mq6 2 %. [2048, 768]: 3.5, 5.6, 10.1, 17.4,
# 31.4; two warps a slot 5.2, 9.7, 18.1, 34.2, 65.5; two steps 3.7, 5.0, 9.2, 17.0, 30.9; from planes 9.0, 14.2, 22.5,
# 38.7, 72.7.
PAIRS_WARPS: Final = 2  # of a tile; of a slot it is one, but for wide experts
WARPS_TO_TRY: Final = (1, 2)
"""Warps of a slot: one, and several."""
_PAIRS_DEPTH: Final = 4
_MOST_REGISTERS, _MOST_SLOTS = 128, 16
WIDE: Final = 8192
"""Columns of an expert's down matrix from which on it is wide; Mixtral's has 14336, those of all others up to 2880."""


def warps_of_slot(width: int, k: int) -> int:
    """Warps that share one of a row's k slots in `sum`, and so the order of summation, whatever M is.

    width: columns of an expert's down matrix. Of wide ones as many as make eight of a program.
    """
    return 8 // slots_at_once(k) if width >= WIDE else 1


def _sum_depth(form: str, k: int) -> int:
    """Steps on their way; a third would spill, of mq6 or where those of two rounds are."""
    return 2 if form == "mq6" or k > slots_at_once(k) else 3


def variants() -> Iterator[Variant]:
    for form, k, n_pairs in (
        ("mq4", 0, 32), ("mq4-uniform", 0, 32), ("mq4", 8, 12), ("mq4", 4, 45), ("mq4", 9, 8), ("mq4", 16, 8),
        ("mq4-uniform", 8, 12),
        ("mq6", 0, 32), ("mq6", 4, 45),
        ("mq4", 1, 8), ("mq4-uniform", 1, 8), ("mq6", 1, 8),
        ("mq4", 2, 224), ("mq4-uniform", 2, 224), ("mq6", 2, 224),  # Mixtral
        ("mq4", 0, 44), ("mq4", 8, 11), ("mq6", 8, 11),  # Gemma 4: gelu, and a sum by itself
    ):  # fmt: skip
        is_gemma4 = n_pairs in (44, 11)
        operands = {
            "packed": "*i32", "high": "*i16" if form == "mq6" else "*i32", "scale": "*u8", "row_scale": "*fp32",
            "levels": "*i32", "halves": "*i32", "x": "*i32", "notes": "*fp32", "experts": "*i32",
        }  # fmt: skip
        common = {"FORMAT": form, "P": n_pairs, "NVIDIA": True}
        if k > 1:
            warps = warps_of_slot(2 * GROUP * n_pairs, k)
            yield Variant(
                name=f"moe_fragments {form} sum of {k}{', no stream' if is_gemma4 else ''}",
                kernel=_sum_of_fragments,
                signature={
                    **operands, "weights": "*fp32", "h": "*fp32", "bias": "*fp32", "parts": "*fp32", "N": "i32:16",
                    "n_tiles": "i32",
                },
                constants={
                    **common, "HAS_BIAS": k == 4, "ADDS": not is_gemma4, "K": k, "V": slots_at_once(k), "W": warps,
                    "DEPTH": _sum_depth(form, k),
                },
                num_warps=slots_at_once(k) * warps,
                num_stages=1,
                has_pdl=True,
                is_nvidia_only=True,
                most_registers=_MOST_REGISTERS,
            )  # fmt: skip
        else:
            warps, depth = (1, _sum_depth(form, 9)) if k else (PAIRS_WARPS, _PAIRS_DEPTH)
            yield Variant(
                name=f"moe_fragments {form} {'one by one' if k else 'gate'}{', gelu' if is_gemma4 else ''}",
                kernel=_pairs_of_fragments,
                signature={
                    **operands, "N": "i32:16", "k": "i32", "args": moe_pairs.signature("*fp32" if k else "*bf16")
                },
                constants={
                    **common, "EPILOGUE": moe_pairs.store_pairs if k else moe_pairs.gate_pairs,
                    "CONFIG": (0, 0, False) if k else (0, 0, False, int(is_gemma4)),
                    "PAIR": 0 if k else 704 if is_gemma4 else 768,
                    "W": warps, "DEPTH": depth, "EARLY": k == 1,
                },
                num_warps=1 if k else 2 * warps,
                num_stages=1,
                has_pdl=True,
                is_nvidia_only=True,
            )  # fmt: skip
