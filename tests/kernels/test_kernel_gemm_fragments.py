"""Products of tens of rows in int8, weights decoded on their way: against float64, and against decoding them before."""

from __future__ import annotations

import pytest
import torch
from kernel_data import close, packed, random, scrambled
from test_kernel_gemm_int8 import check_what_follows, exact
from torch import Tensor

from runner.kernels import gemm_fragments, matmul
from runner.kernels.fragments import to_fragments
from runner.kernels.gemm_fragments import GemmFragments, blocks_of_part, most_decoded_rows
from runner.kernels.gemm_int8 import GemmInt8
from runner.kernels.heads import put_together_ref
from runner.kernels.int8_weights import FORMATS_AS_INT8
from runner.kernels.matmul import linear, linear_gated, linear_parts, product
from runner.kernels.rotate import quantize_blocks
from runner.kernels.values import Int8Blocks, PackedMatrix, Squares


def decoded_before(x: Int8Blocks, w: PackedMatrix, pair: int = 0) -> Tensor:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(matmul, "most_decoded_rows", lambda *_: 0)
        assert isinstance(product(x, w, pair=pair), GemmInt8)
        return found(x, w, pair)


def found(x: Int8Blocks, w: PackedMatrix, pair: int = 0) -> Tensor:
    return linear_gated(x, w, "silu", dtype=torch.float32) if pair else linear(x, w, dtype=torch.float32)


@pytest.mark.parametrize("form", FORMATS_AS_INT8)
@pytest.mark.parametrize(
    ("n", "k", "pair", "n_rows"),
    [(48, 64, 0, 1), (150, 320, 0, 17), (144, 512, 72, 33), (37, 704, 0, 64), (64, 256, 0, 65), (64, 64, 0, 140)],
)
def test_the_bits_are_those_of_decoding_before(form: str, n: int, k: int, pair: int, n_rows: int) -> None:
    planes = scrambled(form, n, k)
    w, x = to_fragments(planes, pair), quantize_blocks(random(n_rows, k), None, 1)
    assert isinstance(product(x, w, pair=pair), GemmFragments)
    y = found(x, w, pair)
    assert torch.equal(y, decoded_before(x, w, pair))
    if not pair:
        close(y, exact(x, planes), 1e-5)


@pytest.fixture(params=[1, 2, 4])
def n_parts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """In how many parts the columns of 3 programs are summed."""
    count: int = request.param
    monkeypatch.setattr(gemm_fragments, "_AT_ONCE", dict.fromkeys((32, 64, 128), 3 * count))
    monkeypatch.setattr(gemm_fragments, "_LEAST_BLOCKS", 1)
    return count


def test_what_follows_a_product_follows_its_parts(n_parts: int) -> None:
    n, k, n_rows = 150, 1216, 20  # five blocks of 256 columns, the last of which is not full
    planes = packed("mq4", n, k)
    planes.row_scale[n // 2 :] *= 2.0**-3
    w, x = to_fragments(planes), quantize_blocks(random(n_rows, k), None, 1)
    launch = product(x, w)
    assert isinstance(launch, GemmFragments)
    assert launch._n_parts == {1: 1, 2: 2, 4: 3}[n_parts]  # of three blocks each, or two
    assert launch.n_tiles == (3 if n_parts == 1 else 1)
    check_what_follows(x, w, exact(x, planes))


def test_what_is_still_in_parts_is_the_product_with_its_norm_and_bias_when_put_together(n_parts: int) -> None:
    n, k, n_rows = 150, 1216, 20
    w, x = to_fragments(packed("mq4", n, k)), quantize_blocks(random(n_rows, k), None, 1)
    squares = Squares(parts=random(n_rows, 5, seed=2).square(), size=40, eps=1e-3)
    rest = {"bias": random(n, seed=3), "squares": squares, "dtype": torch.float32}
    parts = linear_parts(x, w, **rest)
    assert (parts is None) == (n_parts == 1)
    if parts is not None:
        close(put_together_ref(parts), linear(x, w, **rest))


def test_a_row_has_the_bits_that_it_has_among_as_many() -> None:
    w, rows = to_fragments(packed("mq4", 64, 320)), random(31, 320)
    whole = linear(quantize_blocks(rows, None, 64), w, dtype=torch.float32)
    for first, last in ((0, 1), (3, 30)):
        part = linear(quantize_blocks(rows[first:last].contiguous(), None, 64), w, dtype=torch.float32)
        assert torch.equal(part, whole[first:last])


@pytest.mark.parametrize(
    ("n_tiles", "n_pairs", "n_rows", "n_parts"),
    [
        (256, 224, 128, 4),  # Llama-3.1-8B's down, four programs of 64 columns for each four of these
        (256, 224, 17, 8),
        (256, 224, 384, 1),
        (256, 64, 128, 4),
        (256, 64, 17, 4),  # and no less than four blocks of 256 columns a part
        (128, 32, 32, 4),  # but for where multiprocessors would be idle
        (128, 32, 128, 4),
        (64, 16, 32, 2),
        (384, 64, 128, 2),
        (1792, 64, 128, 1),
    ],
)
def test_columns_are_summed_in_parts_where_programs_are_few(
    n_tiles: int, n_pairs: int, n_rows: int, n_parts: int
) -> None:
    part = blocks_of_part(n_tiles, n_pairs, n_rows)
    assert part == (0 if n_parts == 1 else -(-n_pairs // 4 // n_parts))


def test_more_rows_have_their_weights_decoded_before() -> None:
    w = to_fragments(packed("mq4", 16, 64))
    for n_rows, kind in ((1024, GemmFragments), (1025, GemmInt8)):
        assert isinstance(product(quantize_blocks(random(n_rows, 64), None, 1), w), kind)


def test_of_a_large_matrix_fewer_rows_do() -> None:
    assert most_decoded_rows(6144, 1024) == 1024
    assert most_decoded_rows(4096, 4096) == 512
