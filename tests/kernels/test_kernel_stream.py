"""The residual stream: embeddings in every format, and norms that follow a branch."""

from __future__ import annotations

import pytest
import torch
from kernel_data import DEVICE, close, packed, random, scrambled

from runner.kernels.add_norm import add_normed, add_normed_ref, sum_normed, sum_normed_ref
from runner.kernels.embedding import embed, embed_ref
from runner.kernels.fragments import FORMATS_IN_FRAGMENTS, to_fragments
from runner.kernels.grids import FORMATS
from runner.kernels.pack import concatenate, dequantize_ref, packed_matrix
from runner.kernels.values import Squares
from runner.quant.mq.rotation import unrotate


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(("k", "rotation"), [(512, 256), (96, 32), (64, 1)])
def test_packed_rows_are_decoded_and_rotated_back(form: str, k: int, rotation: int) -> None:
    w = packed(form, 40, k, rotation)
    tokens = torch.tensor([3, 39, 0, 3], device=DEVICE)
    h, of_h = embed(tokens, w, 1.5, 1e-5)
    rows = dequantize_ref(w).double()[tokens]
    wanted = 1.5 * (rows if rotation == 1 else unrotate(rows, rotation))
    close(h, wanted)
    close(of_h.parts.sum(1), wanted.square().sum(1))
    assert (of_h.size, of_h.eps) == (k, 1e-5)
    close(embed_ref(tokens, w, 1.5), wanted)


@pytest.mark.parametrize("form", FORMATS_IN_FRAGMENTS)
@pytest.mark.parametrize(("n", "k", "rotation"), [(37, 256, 256), (16, 192, 32), (3, 64, 1)])
def test_rows_in_fragments_have_the_bits_that_they_have_in_planes(form: str, n: int, k: int, rotation: int) -> None:
    w = scrambled(form, n, k, rotation)
    tokens = torch.tensor([0, n - 1, n // 2, -1, n, n // 3], device=DEVICE)
    for found, wanted in zip(embed(tokens, to_fragments(w), 1.5, 1e-5), embed(tokens, w, 1.5, 1e-5), strict=True):
        one, other = (x.parts if isinstance(x, Squares) else x for x in (found, wanted))
        assert torch.equal(one.isnan(), other.isnan())
        assert torch.equal(one.nan_to_num(), other.nan_to_num())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("k", [45, 300])
def test_dense_rows_are_looked_up(dtype: torch.dtype, k: int) -> None:
    w, tokens = random(20, k).to(dtype), torch.tensor([19, 0], device=DEVICE)
    h, of_h = embed(tokens, w, 2.0, 1e-6)
    assert torch.equal(h, embed_ref(tokens, w, 2.0))
    close(of_h.parts.sum(1), h.double().square().sum(1))


@pytest.mark.parametrize("kind", ["dense", "mq4", "mq8"])
def test_a_token_that_is_none_gives_a_row_of_nan_and_reads_nothing(kind: str) -> None:
    w = random(20, 96) if kind == "dense" else packed(kind, 20, 96, 32)
    tokens = torch.tensor([5, -1, 20, 2**40, 19], device=DEVICE)
    h, of_h = embed(tokens, w, 1.5, 1e-5)
    is_known = torch.tensor([True, False, False, False, True], device=DEVICE)
    assert torch.equal(h.isnan().all(1), ~is_known)
    assert torch.equal(of_h.parts.isnan().all(1), ~is_known)
    close(h[is_known], embed_ref(tokens[is_known], w, 1.5))
    assert torch.equal(embed_ref(tokens, w, 1.5).isnan(), h.isnan())


@pytest.mark.parametrize("form", FORMATS)
def test_what_is_stored_is_decoded_as_the_format_says(form: str) -> None:
    w = torch.randn(9, 64, generator=torch.Generator().manual_seed(3))
    encoded = FORMATS[form].encode(w)
    stored = packed_matrix(encoded, FORMATS[form], 1, torch.device("cpu"))
    assert stored.shape == (9, 64)
    assert torch.equal(dequantize_ref(stored), FORMATS[form].decode(encoded, (9, 64)))


def test_joined_matrices_keep_their_own_exponents() -> None:
    parts = [packed("mq4", 5, 64, seed=seed) for seed in range(2)]
    parts[1].row_scale.mul_(4096)
    assert torch.equal(dequantize_ref(concatenate(parts)), torch.cat([dequantize_ref(one) for one in parts]))


@pytest.mark.parametrize(("k", "scale"), [(45, 1.0), (1100, 1.0), (45, 0.3)])
def test_a_branch_is_normed_and_added(k: int, scale: float) -> None:
    h, y, gain = random(4, k), random(4, k, seed=2) * 3, random(k, seed=3)
    squares = Squares(parts=torch.stack([part.square().sum(1) for part in y.chunk(3, 1)], 1), size=k, eps=1e-5)
    exact = Squares(parts=y.double().square(), size=k, eps=1e-5)
    wanted = add_normed_ref(h.double(), y.double(), exact, gain.double(), scale)
    after = add_normed(h, y, squares, gain, scale)
    close(h, wanted)
    close(after.parts.sum(1), wanted.square().sum(1))


@pytest.mark.parametrize("k", [45, 1100])
def test_two_parts_of_a_branch_are_normed_apart_and_added(k: int) -> None:
    parts = [random(4, k, seed=seed) * seed for seed in (1, 3)]
    gains = [random(k, seed=seed) for seed in (5, 6)]
    # Each product leaves sums of squares in its own number of parts.
    squares = [
        Squares(parts=torch.stack([one.square().sum(1) for one in part.chunk(n, 1)], 1), size=k, eps=1e-5)
        for part, n in zip(parts, (3, 5), strict=True)
    ]
    exact = [Squares(parts=part.double().square(), size=k, eps=1e-5) for part in parts]
    (y, z), (y_gain, z_gain) = parts, gains
    wanted = sum_normed_ref(y.double(), exact[0], y_gain.double(), z.double(), exact[1], z_gain.double())
    before = z.clone()
    after = sum_normed(y, squares[0], y_gain, z, squares[1], z_gain)
    close(y, wanted)
    close(after.parts.sum(1), wanted.square().sum(1))
    assert (after.size, after.eps) == (k, 1e-5)
    assert torch.equal(z, before)


def test_rows_of_a_stream_do_not_depend_on_the_others() -> None:
    gain = random(600, seed=3)

    def run(first: int, last: int) -> tuple[torch.Tensor, torch.Tensor]:
        h, y = (random(16, 600, seed=seed)[first:last].contiguous() for seed in (1, 2))
        after = add_normed(h, y, Squares(parts=y.square(), size=600, eps=1e-5), gain)
        return h, after.parts

    together = run(0, 16)
    for m in (0, 9, 15):
        for alone, all_rows in zip(run(m, m + 1), together, strict=True):
            assert torch.equal(alone[0], all_rows[m])
