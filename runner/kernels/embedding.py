"""Token ids to rows of the embedding, dense or packed, as the float32 stream that a decoder begins with.

Packed rows are decoded and rotated back, since what follows wants the model's own basis; the same packed matrix serves
the output product of a model with tied embeddings. A program is a span of one row. It knows no layers.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from runner.kernels.butterflies import rotated
from runner.kernels.compile import Variant
from runner.kernels.grids import fragment_level, load_level, scale_value, table
from runner.kernels.pack import dequantize_ref
from runner.kernels.values import OPTIONS, Matrix, Squares, cdiv, has_pdl, pdl_option
from runner.quant.mq.rotation import first_and_second_signs, unrotate


def embed_ref(tokens: Tensor, w: Matrix, factor: float) -> Tensor:
    """The stream [M, K] float32; see embed."""
    is_known = (tokens >= 0) & (tokens < w.shape[0])
    if isinstance(w, Tensor):
        rows = w
    else:
        rows = dequantize_ref(w) if w.rotation == 1 else unrotate(dequantize_ref(w), w.rotation)
    return torch.where(is_known[:, None], rows[tokens * is_known].float() * factor, torch.nan)


@triton.jit
def _width(token, V, K):
    """The elements that a row of the embedding has: none if the token is not one of V."""
    return tl.where((token >= 0) & (token < V), K, 0)


@triton.jit
def _finish(value, row, span, k, K, factor, h, parts, n_spans):
    value = tl.where(k < K, value * factor, 0.0)
    tl.store(h + row.to(tl.int64) * K + k, value, mask=k < K)
    tl.store(parts + row * n_spans + span, tl.sum(value * value, 0))


@triton.jit
def _embed_dense(tokens, w, h, parts, V, K, n_spans, factor, SPAN: tl.constexpr, PDL: tl.constexpr):
    span, row = tl.program_id(0), tl.program_id(1)
    k = span * SPAN + tl.arange(0, SPAN)
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    token = tl.load(tokens + row)
    ok = k < _width(token, V, K)
    value = tl.load(w + token * K + k, mask=ok, other=float("nan")).to(tl.float32)
    _finish(value, row, span, k, K, factor, h, parts, n_spans)


@triton.jit
def _embed_packed(
    tokens, packed, high, scale, row_scale, levels, signs, h, parts, V, K, n_spans, factor,
    FORMAT: tl.constexpr, WORDS: tl.constexpr, SIZE: tl.constexpr, SPAN: tl.constexpr, FRAGMENTS: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    span, row = tl.program_id(0), tl.program_id(1)
    i = tl.arange(0, SPAN)
    k = span * SPAN + i
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    token = tl.load(tokens + row)
    ok = k < _width(token, V, K)
    if FRAGMENTS:
        # See fragments.py: tile, pair, row of the tile, word of the group; the group and half of the tile last.
        at = token.to(tl.uint32)  # what is none is not loaded
        pair = (at // 16).to(tl.int64) * (K // 64) + span * (SPAN // 64)
        half = at % 16 // 8
        word = pair * 128 + (at % 8 * 16 + half)
        of_span = i // 64 * 128 + i % 16 // 4 * 4 + i // 32 % 2 * 2
        level = fragment_level(
            packed + word + of_span, high + word + of_span, ok, levels, i % 32 // 16, i % 4, FORMAT
        )  # fmt: skip
        place = pair * 32 + (at % 8 * 4 + half)
        code = tl.load(scale + place + (i // 64 * 32 + i // 32 % 2 * 2), mask=ok, other=0)
    else:
        n_groups = K // 32
        group = packed + token * (WORDS * n_groups) + k // 32
        level = load_level(group, n_groups, ok, levels, k % 32 // 4, k % 4, FORMAT)
        code = tl.load(scale + token * n_groups + k // 32, mask=ok, other=0)
    unit = scale_value(code) * tl.load(row_scale + token, mask=_width(token, V, K) > 0, other=0.0)
    # No block has elements on both sides of K, so the NaNs beyond it go no further.
    value = rotated(tl.where(ok, level.to(tl.float32) * unit, float("nan")), signs, SIZE, SPAN)
    _finish(value, row, span, k, K, factor, h, parts, n_spans)


def embed(tokens: Tensor, w: Matrix, factor: float, eps: float) -> tuple[Tensor, Squares]:
    """Rows of w [V, K] times `factor`, [M, K] float32 in the model's own basis, and their sums of squares.

    tokens: [M] int64. One that is none, such as the -1 for logits that are NaN, gives a row of NaN: the device feeds
    tokens back before the host has seen them. eps: of the norm that reads the squares.
    """
    n_rows, (vocabulary, k) = len(tokens), w.shape
    assert tokens.dtype == torch.int64
    assert tokens.is_contiguous()
    assert isinstance(w, Tensor) or not w.pair
    n_spans = cdiv(k, _SPAN)
    h = torch.empty(n_rows, k, dtype=torch.float32, device=tokens.device)
    parts = torch.empty(n_rows, n_spans, dtype=torch.float32, device=tokens.device)
    pdl = has_pdl(tokens)
    options = {"SPAN": _SPAN, "PDL": pdl, "num_warps": _WARPS, **pdl_option(pdl), **OPTIONS}
    if isinstance(w, Tensor):
        assert w.is_contiguous()
        _embed_dense[(n_spans, n_rows)](tokens, w, h, parts, vocabulary, k, n_spans, factor, **options)
    else:
        _embed_packed[(n_spans, n_rows)](
            tokens, w.packed, w.packed if w.high is None else w.high, w.scale, w.row_scale, table(tokens.device),
            _inverse_signs(w.rotation, tokens.device),
            h, parts, vocabulary, k, n_spans, factor,
            FORMAT=w.format, WORDS=w.packed.shape[1], SIZE=w.rotation, FRAGMENTS=w.layout == "fragments", **options,
        )  # fmt: skip
    return h, Squares(parts=parts, size=k, eps=eps)


_SPAN, _WARPS = 256, 1


@cache
def _inverse_signs(size: int, device: torch.device) -> Tensor:
    """The signs of R^T: those of R in the other order, [2, 256] float32, 1 / sqrt(size) with the last."""
    first, second = first_and_second_signs()
    return torch.stack((second, first / size**0.5)).to(device)


def variants() -> Iterator[Variant]:
    rows = {"h": "*fp32", "parts": "*fp32", "V": "i32:16", "K": "i32:16", "n_spans": "i32", "factor": "fp32"}
    yield Variant(
        name="embed_dense",
        kernel=_embed_dense,
        signature={"tokens": "*i64", "w": "*bf16", **rows},
        constants={"SPAN": _SPAN},
        num_warps=_WARPS,
        has_pdl=True,
    )
    for layout in ("planes", "fragments"):
        yield Variant(
            name=f"embed_packed mq6 r256 {layout}",
            kernel=_embed_packed,
            signature={
                "tokens": "*i64", "packed": "*i32", "high": "*i32" if layout == "planes" else "*i16", "scale": "*u8",
                "row_scale": "*fp32", "levels": "*i32", "signs": "*fp32", **rows,
            },
            constants={"FORMAT": "mq6", "WORDS": 6, "SIZE": 256, "SPAN": _SPAN, "FRAGMENTS": layout == "fragments"},
            num_warps=_WARPS,
            has_pdl=True,
        )  # fmt: skip
