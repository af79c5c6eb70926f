"""Attention of prompts against float64, by the kernel and by torch's; what is not seen is not read."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from attention_cases import FLOATS, check_attention, filled, random
from torch import Tensor

from runner.kernels import attention_prefill
from runner.kernels.attention import attend_ref
from runner.kernels.attention_prefill import attend_prompt
from runner.kernels.kv_layer import LayerCache
from runner.kernels.splits import Splits, combine

# H, G, D, M, start, window: a program has 64 rows, and 32 of float32 with heads of 256, 16 with heads of 512.
SHAPES = [
    (6, 2, 18, 1, 0, None),
    (4, 4, 12, 70, 0, None),
    (3, 1, 64, 33, 200, None),
    (9, 3, 80, 17, 5, None),
    (2, 2, 128, 65, 100, 30),
    (6, 2, 18, 130, 0, 70),
    (6, 2, 18, 20, 37, 1000),
    (2, 1, 16, 90, 10, 1),
    (3, 1, 16, 70, 1100, None),  # splits of two tiles, six of them empty
    (2, 2, 16, 20, 1200, 1100),
    (2, 1, 256, 40, 10, None),
    (2, 1, 512, 20, 10, None),
]
KINDS = [
    ("float32", "float32"),
    ("float16", "float16"),
    ("bfloat16", "bfloat16"),
    ("float32", "bfloat16"),
    ("float32", "int8"),
    ("float16", "int8"),
    ("bfloat16", "int8"),
]
# Weights of values are rounded to 8 or 11 bits for the product; they sum to 1, and no value is above 5.
SUMS = {"float32": 4e-6, "float16": 5 * 2.0**-12, "bfloat16": 5 * 2.0**-9}


def attend(q: Tensor, cache: LayerCache, start: int, *, is_known: bool = True, **how: Any) -> Tensor:
    """attend_prompt at a position that the host knows too, or the device alone; its splits put together."""
    on_device = torch.tensor([start], dtype=torch.int32, device=q.device)
    found = attend_prompt(q, cache, on_device, first=start if is_known else None, **how)
    return combine(found) if isinstance(found, Splits) else found


def check(
    cache: LayerCache, q: Tensor, start: int, window: int | None, sinks: Tensor | None, sums: float, *, is_known: bool
) -> None:
    scale = cache.head_dim**-0.5
    found = attend(q, cache, start, is_known=is_known, window=window, sinks=sinks, scale=scale)
    wanted = attend_ref(q.double(), cache, start, window=window, sinks=sinks, scale=scale)
    check_attention(found, wanted, sums=sums)


@pytest.mark.parametrize("is_known", [True, False], ids=["whole", "in splits"])
@pytest.mark.parametrize(
    ("kind", "kept", "h", "g", "d", "m", "start", "window"),
    [("float32", "float32", *shape) for shape in SHAPES] + [(*kind, *SHAPES[4]) for kind in KINDS[1:]],
)
def test_it_equals_float64(
    kind: str, kept: str, h: int, g: int, d: int, m: int, start: int, window: int | None, is_known: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    if start < 1000:
        monkeypatch.setattr(
            attention_prefill, "_MOST_SPLITS", 4
        )  # programs without a position take the interpreter's time
    cache = filled(kept, g, start + m, start + m + 50, d)
    check(cache, random(m, h, d, dtype=FLOATS[kind]), start, window, None, SUMS[kind], is_known=is_known)


@pytest.mark.parametrize("is_known", [True, False], ids=["whole", "in splits"])
@pytest.mark.parametrize(
    ("kept", "start", "window"), [("float32", 0, None), ("float32", 0, 2), ("bfloat16", 90, None), ("int8", 90, 20)]
)
def test_sinks_take_part_in_the_softmax_and_have_no_value(
    kept: str, start: int, window: int | None, is_known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention_prefill, "_MOST_SPLITS", 4)
    cache, q = filled(kept, 2, start + 70, 200, 18), random(70, 6, 18)
    check(cache, q, start, window, 3 * random(6, seed=9), 4e-6, is_known=is_known)


@pytest.mark.parametrize("is_known", [True, False], ids=["whole", "in splits"])
@pytest.mark.parametrize(("kept", "start", "window"), [("float32", 0, None), ("bfloat16", 90, None), ("int8", 90, 20)])
def test_scores_stay_below_a_cap(
    kept: str, start: int, window: int | None, is_known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention_prefill, "_MOST_SPLITS", 4)
    cache, q = filled(kept, 2, start + 70, 200, 18), random(70, 6, 18)
    how = {"window": window, "sinks": None, "scale": 0.7}
    capped, free = (attend_ref(q.double(), cache, start, cap=cap, **how) for cap in (2.0, None))
    check_attention(attend(q, cache, start, is_known=is_known, cap=2.0, **how), capped, sums=4e-6)
    assert (capped - free).abs().max() > 0.1  # of these scores some are far above it


@pytest.mark.parametrize(
    ("n_programs", "n_positions", "n_splits"),
    [(32, None, 8), (256, 512, 1), (32, 632, 8), (128, None, 2), (256, None, 1), (2, None, 16)],
)
def test_positions_are_split_where_rows_and_heads_are_too_few_for_the_gpu(
    n_programs: int, n_positions: int | None, n_splits: int
) -> None:
    assert attention_prefill._n_splits(n_programs, n_positions) == n_splits


@pytest.mark.gpu  # the interpreter takes long for so many
@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize(
    ("h", "g", "d", "m", "start", "window"),
    [(16, 8, 128, 40, 3000, None), (9, 3, 80, 17, 1500, None), (8, 8, 64, 70, 5000, 1000), (4, 1, 256, 600, 700, None)],
)
def test_long_texts_on_a_gpu(h: int, g: int, d: int, m: int, start: int, window: int | None, is_known: bool) -> None:
    cache, q = filled("bfloat16", g, start + m, start + m + 50, d), random(m, h, d, dtype=torch.bfloat16)
    check(cache, q, start, window, None, SUMS["bfloat16"], is_known=is_known)


def test_the_kernel_does_not_read_what_lies_before_the_window() -> None:
    seen, unseen = filled("float32", 2, 120, 120, 18), filled("float32", 2, 120, 120, 18, first=81)
    q = random(20, 4, 18)
    results = [attend(q, cache, 100, window=20, sinks=None, scale=0.3) for cache in (seen, unseen)]
    assert torch.equal(*results)


def test_a_prompt_in_chunks_gives_what_it_gives_at_once() -> None:
    cache, q = filled("float32", 2, 100, 128, 18), random(100, 6, 18)
    at_once = attend(q, cache, 0, window=30, sinks=None, scale=0.3)
    chunks = [attend(q[i : i + 40], cache, i, window=30, sinks=None, scale=0.3) for i in (0, 40, 80)]
    torch.testing.assert_close(torch.cat(chunks), at_once, rtol=0, atol=4e-6)
