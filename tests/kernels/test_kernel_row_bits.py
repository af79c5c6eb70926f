"""A row has the same bits in a step of any number of rows, 1 to 16, in every operation of the decode path.

Speculation rests on this: a draft is verified by a step of many rows, and the text is to be that of single ones. The
operations are small here, so that many numbers of rows can be tried; their own tests have larger ones. Those of
attention are in test_kernel_attention_decode.py alone, with the heads that it puts into the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
import torch
from kernel_data import DEVICE, packed, random
from torch import Tensor

from runner.config import SamplingParams
from runner.kernels.add_norm import add_normed, sum_normed
from runner.kernels.add_parts import Reader
from runner.kernels.embedding import embed
from runner.kernels.fragments import FORMATS_IN_FRAGMENTS, activation_rows, to_fragments
from runner.kernels.gemv_fragments import ZEROS
from runner.kernels.greedy import greedy_from_tiles
from runner.kernels.matmul import Rows, linear_logits, linear_residual_for, linear_squares
from runner.kernels.moe_route import route
from runner.kernels.rotate import quantize_fragments, quantize_rows, rotate_rows
from runner.kernels.sampling import Choice, choose
from runner.kernels.values import MOST_ROWS, Matrix, Squares

Operation = Callable[[int, int], list[Tensor]]
"""What comes of the rows from the first to the last one, row by row."""


def check(run: Operation, counts: Iterable[int] = range(1, MOST_ROWS)) -> None:
    """counts: of rows in a step, with which those that are left of 16 are another one."""
    together = run(0, MOST_ROWS)
    different = []
    for m in counts:
        for first, last in ((0, m), (m, MOST_ROWS)):
            if any(
                not torch.equal(part, whole[first:last]) for part, whole in zip(run(first, last), together, strict=True)
            ):
                different.append((first, last))
    assert different == []


def at(position: int) -> Tensor:
    return torch.tensor([position], dtype=torch.int32, device=DEVICE)


@pytest.mark.parametrize("kind", ["dense", "mq4", "mq6 in fragments"])
def test_embedding(kind: str) -> None:
    form, _, is_fragments = kind.partition(" in ")
    w: Matrix = random(20, 64) if form == "dense" else packed(form, 20, 64, 32)
    if is_fragments:
        w = to_fragments(w)  # type: ignore[arg-type]
    tokens = torch.arange(3, 3 + MOST_ROWS, device=DEVICE)

    def run(first: int, last: int) -> list[Tensor]:
        h, of_h = embed(tokens[first:last], w, 1.5, 1e-5)
        return [h, of_h.parts]

    check(run)


def test_activations() -> None:
    x, gain, parts = random(MOST_ROWS, 128), random(128, seed=2), random(MOST_ROWS, 4, seed=3).square()

    def run(first: int, last: int) -> list[Tensor]:
        rows = x[first:last].contiguous()
        of_rows = Squares(parts=parts[first:last].contiguous(), size=128, eps=1e-5)
        planes = quantize_rows(rows, gain, 32)
        fragments = quantize_fragments(rows, gain, 32, 8, of_rows)
        dense = rotate_rows(rows, gain, 1, torch.bfloat16)
        return [planes.words, planes.scale, activation_rows(fragments), dense]

    check(run)


def test_norms_after_a_branch() -> None:
    h, y, gain = random(MOST_ROWS, 70), random(MOST_ROWS, 70, seed=2), random(70, seed=3)

    def run(first: int, last: int) -> list[Tensor]:
        new, branch = h[first:last].clone(), y[first:last].contiguous()
        of_branch = Squares(parts=branch.square(), size=70, eps=1e-5)
        after = add_normed(new, branch, of_branch, gain)
        both = h[first:last].clone()
        of_both = sum_normed(both, Squares(parts=both.square(), size=70, eps=1e-5), gain, branch, of_branch, gain)
        return [new, after.parts, both, of_both.parts]

    check(run)


def rows_for(w: Matrix, x: Tensor) -> Rows:
    if isinstance(w, Tensor):
        return x.contiguous()
    return quantize_fragments(x, None, 1, ZEROS[w.format]) if w.layout == "fragments" else quantize_rows(x, None, 1)


KINDS = ("dense", *(f"{form} in fragments" for form in FORMATS_IN_FRAGMENTS))  # planes: test_kernel_matmul.py


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # rows that fill a block hold anything, and sums of it overflow
@pytest.mark.parametrize("kind", KINDS)
def test_products_and_what_follows_them(kind: str) -> None:
    form, _, is_fragments = kind.partition(" in ")
    n, k = 4, 64
    w: Matrix = random(n, k) * 0.3 if form == "dense" else packed(form, n, k)
    if is_fragments:
        w = to_fragments(w)  # type: ignore[arg-type]
    x, parts = random(MOST_ROWS, k), random(MOST_ROWS, 3, seed=2).square()

    def run(first: int, last: int) -> list[Tensor]:
        rows = rows_for(w, x[first:last].contiguous())
        of_rows = Squares(parts=parts[first:last].contiguous(), size=k, eps=1e-5)
        y, of_y = linear_squares(rows, w, squares=of_rows, eps=1e-5, dtype=torch.float32)
        logits = linear_logits(rows, w, squares=of_rows)
        return [y, of_y.parts, logits.values, logits.maxima, logits.arguments]

    check(run, (1, 2, 3, 8))  # and so 15, 14, 13 and 8; the products' own tests have the other programs


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_stream_that_is_handed_on_from_product_to_product() -> None:
    w = to_fragments(packed("mq4", 256, 64))
    reader = Reader(gain=random(256, seed=4), w=to_fragments(packed("mq4", 16, 256, 256)), zero=ZEROS["mq4"])
    x, h = random(MOST_ROWS, 64), random(MOST_ROWS, 256, seed=8)

    def run(first: int, last: int) -> list[Tensor]:
        stream = h[first:last].clone()
        of_h, ready = linear_residual_for(rows_for(w, x[first:last].contiguous()), w, stream, reader, eps=1e-5)
        assert ready is not None
        return [stream, of_h.parts, activation_rows(ready)]

    check(run, (1,))


def test_experts_of_a_row() -> None:
    logits = random(MOST_ROWS, 5)
    check(lambda first, last: list(route(logits[first:last].contiguous(), 2, "softmax_topk")))


def test_the_largest_logit() -> None:
    maxima = random(MOST_ROWS, 9)
    ids = torch.arange(9, device=DEVICE).repeat(MOST_ROWS, 1).int()
    check(lambda first, last: [greedy_from_tiles(maxima[first:last].contiguous(), ids[first:last].contiguous())])


@pytest.mark.parametrize("values", [{}, {"top_k": 0, "top_p": 1.0, "min_p": 0.0}])
def test_sampled_tokens(values: dict[str, float]) -> None:
    logits, request = 2 * random(MOST_ROWS, 1030), Choice.of(SamplingParams(seed=5, **values), DEVICE)  # type: ignore[arg-type]

    def run(first: int, last: int) -> list[Tensor]:
        return [choose(logits[first:last].contiguous(), request, at(20 + first).long())]

    assert len(run(0, MOST_ROWS)[0].unique()) > 1
    check(run, (1, 8))
