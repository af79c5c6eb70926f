"""Products of many rows in int8: weights and rows against their references, products against float64, rows alone."""

from __future__ import annotations

from dataclasses import replace

import ptx
import pytest
import torch
from kernel_data import DEVICE, close, packed, random, scrambled
from torch import Tensor

from runner.backends.native.stream import activations
from runner.kernels import gemm_int8, matmul
from runner.kernels import int8_weights as int8_weights_file
from runner.kernels.fragments import to_fragments
from runner.kernels.gemm_int8 import GemmInt8, takes_int8
from runner.kernels.grids import FORMATS, half_tables
from runner.kernels.int8_weights import FORMATS_AS_INT8, int8_weights, int8_weights_ref
from runner.kernels.matmul import linear, linear_gated, linear_logits, linear_residual, linear_squares, product
from runner.kernels.pack import dequantize_ref
from runner.kernels.rotate import quantize_blocks, quantize_blocks_ref
from runner.kernels.values import FEW_ROWS, MOST_ROWS, ROWS_OF_BLOCKS, Int8Blocks, PackedMatrix, Squares, in_block_order
from runner.quant.mq.grid import scale_values


@pytest.fixture(params=["one block", "blocks"])
def _in_blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoded before, one tile of 64 places after the other, or all at once."""
    monkeypatch.setattr(matmul, "most_decoded_rows", lambda *_: 0)
    if request.param == "blocks":
        monkeypatch.setattr(gemm_int8, "BLOCK_BYTES", 1)


def exact(x: Int8Blocks, planes: PackedMatrix) -> Tensor:
    levels, steps = int8_weights_ref(planes)
    return x.values().double() @ (levels.double() * steps.double()[:, None]).T


def decoded(w: PackedMatrix) -> Tensor:
    """In the order of the columns."""
    out = torch.empty(16 * len(w.packed), -(-w.shape[1] // 256) * 256, dtype=torch.int8, device=DEVICE)
    int8_weights(w, out, first_tile=0)
    return in_block_order(out)[:, : w.shape[1]]


def places(n: int, pair: int) -> Tensor:
    """The rows of the places of a matrix of n rows, in their order."""
    if not pair:
        return torch.arange(n)
    assert pair % 8 == 0
    return torch.cat([torch.arange(i, i + 8) + side for i in range(0, pair, 8) for side in (0, pair)])


@pytest.mark.parametrize("form", FORMATS_AS_INT8)
@pytest.mark.parametrize(("n", "k", "pair"), [(48, 64, 0), (48, 320, 24), (37, 640, 0)])
def test_weights_become_the_nearest_int8_of_their_row(form: str, n: int, k: int, pair: int) -> None:
    planes = scrambled(form, n, k)
    w = to_fragments(planes, pair)
    out = decoded(w)
    levels, steps = int8_weights_ref(planes)
    order = places(n, pair)
    found = out[: len(order)]
    assert torch.equal(found, levels[order])
    assert found.int().abs().max() <= 127
    off = dequantize_ref(planes)[order] - found.float() * steps[order, None]
    assert (off.abs() / steps[order, None]).max() < 0.57  # the ratios are float16
    if len(w.packed) > 1:
        last = torch.empty(16, -(-k // 256) * 256, dtype=torch.int8, device=DEVICE)
        int8_weights(w, last, first_tile=len(w.packed) - 1)
        assert torch.equal(in_block_order(last)[:, :k], out[-16:])


def words(n: int) -> list[int]:
    return torch.randint(0, 2**32, (n,), generator=torch.Generator().manual_seed(1)).tolist()


def twice(value: float) -> int:
    """Two float16 of that value."""
    return 0x10001 * int(torch.tensor(value).half().view(torch.int16).item() & 0xFFFF)


@pytest.mark.parametrize("form", FORMATS_AS_INT8)
def test_nvidias_program_rounds_a_level_times_the_ratio(form: str) -> None:
    program = int8_weights_file._QUADS if form == "mq4" else int8_weights_file._QUADS_UNIFORM
    minus = half_tables(DEVICE)[2, 0].item()
    for i, word in enumerate(words(300)):
        ratio = float(torch.tensor(0.05 + i / 320).half()) * (-1) ** i
        decoder = [twice(ratio)]
        if form == "mq4":
            decoder = [*ptx.run(int8_weights_file._SCALED_LEVELS.value, decoder, 5), minus]
        found = ptx.run(program.value, [word, *decoder], 2)
        for half in (0, 1):
            bits = [word >> (4 * j + 16 * half if form == "mq4" else 8 * j + 4 * half) & 15 for j in range(4)]
            assert [(found[half] >> 8 * j & 255 ^ 128) - 128 for j in range(4)] == [
                round(FORMATS[form].levels[n] * ratio) for n in bits
            ]


def test_nvidias_program_multiplies_scales_with_the_factors_of_two_rows() -> None:
    values = scale_values(0, torch.device("cpu")).float()
    for i, codes in enumerate(words(200)):
        factors = torch.tensor([0.04 + i / 300, 0.9 - i / 300]).half()
        both = int(factors.view(torch.int32).item())
        wanted = [twice(float(values[codes >> 8 * j & 255] * factors[j % 2])) for j in range(4)]
        assert ptx.run(int8_weights_file._RATIOS.value, [codes, both], 4) == wanted


@pytest.mark.parametrize(("k", "rotation"), [(256, 256), (320, 64), (64, 1), (832, 32)])
@pytest.mark.parametrize("has_gain", [False, True])
def test_rows_become_int8_with_a_scale_for_each_256_columns(k: int, rotation: int, has_gain: bool) -> None:
    x, gain = random(7, k), random(k, seed=2) if has_gain else None
    x[2] = 0
    x[3, :50] *= 1000
    found, wanted = quantize_blocks(x, gain, rotation), quantize_blocks_ref(x, gain, rotation)
    assert found.shape == wanted.shape == (7, k)
    assert len(found.levels) == found.scale.shape[1] == ROWS_OF_BLOCKS
    levels, scale = found.levels[:7], found.scale[:, :7]
    close(scale, wanted.scale, 1e-6)
    assert (levels.int() - wanted.levels.int()).abs().max() <= 1
    assert (levels == wanted.levels).float().mean() > 0.99
    assert not in_block_order(levels)[:, k:].any()
    if rotation == 1:
        assert torch.equal(levels, wanted.levels)
    in_lanes = quantize_blocks(x, gain, rotation, in_lanes=True)
    assert torch.equal(in_lanes.levels[:7], levels)
    assert torch.equal(in_lanes.scale[:, :7], scale)


def squares_of(n_rows: int, k: int) -> tuple[Squares, Tensor]:
    """Some rows' squares, and 1 / rms [M, 1] float64."""
    squares = Squares(parts=random(n_rows, 5, seed=2).square(), size=k, eps=1e-5)
    return squares, (squares.parts.double().sum(1) / k + 1e-5).rsqrt()[:, None]


def check_what_follows(x: Int8Blocks, w: PackedMatrix, wanted: Tensor) -> None:
    """A bias, a norm, a stream and squares after x @ w.T, which is `wanted` [M, N] float64."""
    (n_rows, k), n = x.shape, w.shape[0]
    h, bias = random(n_rows, n, seed=3), random(n, seed=4)
    of_x, rstd = squares_of(n_rows, k)
    y, of_y = linear_squares(x, w, bias=bias, squares=of_x, eps=1e-6, dtype=torch.float32)
    close(y, wanted * rstd + bias, 1e-4)
    close(of_y.parts.sum(1), y.double().square().sum(1), 1e-5)
    assert torch.equal(linear(x, w, bias=bias, squares=of_x, dtype=torch.float32), y)
    added = h.double() + wanted + bias
    of_h = linear_residual(x, w, h, bias=bias, eps=1e-5)
    close(h, added, 1e-4)
    close(of_h.parts.sum(1), h.double().square().sum(1), 1e-5)


@pytest.mark.parametrize("form", FORMATS_AS_INT8)
@pytest.mark.usefixtures("_in_blocks")
def test_rows_are_multiplied_in_blocks_of_places(form: str) -> None:
    n, k, m = 150, 320, 70
    planes = packed(form, n, k)
    planes.row_scale[n // 2 :] *= 2.0**-3
    w, x = to_fragments(planes), quantize_blocks(random(m, k), None, 1)
    launch = product(x, w)
    assert isinstance(launch, GemmInt8)
    assert launch.n_tiles == 3
    check_what_follows(x, w, exact(x, planes))
    of_x, rstd = squares_of(m, k)
    logits = linear_logits(x, w, squares=of_x)
    close(logits.values, exact(x, planes) * rstd, 1e-4)
    best = logits.maxima.argmax(1)
    assert torch.equal(logits.arguments.gather(1, best[:, None])[:, 0].long(), logits.values.argmax(1))


@pytest.mark.usefixtures("_in_blocks")
def test_pairs_are_gated_in_blocks_of_places() -> None:
    pair, k, m = 72, 256, 66
    planes = packed("mq4", 2 * pair, k)
    w, x, bias = to_fragments(planes, pair), quantize_blocks(random(m, k), None, 1), random(2 * pair, seed=6)
    gate, up = (exact(x, planes) + bias).chunk(2, 1)
    found = linear_gated(x, w, "silu", bias=bias, dtype=torch.float32)
    close(found, matmul.gate_ref(gate, up, "silu"), 1e-4)


def test_large_tiles_give_the_bits_of_small_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matmul, "most_decoded_rows", lambda *_: 0)
    w, x = to_fragments(packed("mq4", 144, 512)), quantize_blocks(random(130, 512), None, 1)
    small = linear(x, w, dtype=torch.float32)
    monkeypatch.setattr(gemm_int8, "_ENOUGH", 1)
    assert torch.equal(linear(x, w, dtype=torch.float32), small)


def test_a_row_has_the_bits_that_it_has_among_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matmul, "most_decoded_rows", lambda *_: 0)
    w, rows = to_fragments(packed("mq4", 64, 320)), random(70, 320)
    whole = linear(quantize_blocks(rows, None, 64), w, dtype=torch.float32)
    for first, last in ((0, 1), (3, 40), (65, 70)):
        part = linear(quantize_blocks(rows[first:last].contiguous(), None, 64), w, dtype=torch.float32)
        assert torch.equal(part, whole[first:last])


@pytest.mark.parametrize("form", FORMATS_AS_INT8)
def test_what_int8_rounds_off_is_a_hundredth(form: str) -> None:
    planes, x = packed(form, 256, 1024), random(65, 1024)
    found = linear(quantize_blocks(x, None, 1), to_fragments(planes), dtype=torch.float32)
    wanted = x.double() @ dequantize_ref(planes).double().T
    assert (found - wanted).norm() < 0.013 * wanted.norm()


@pytest.mark.parametrize("takes", [True, False])
@pytest.mark.parametrize(
    ("n", "k", "most"), [(16, 64, FEW_ROWS), (1024, 2048, FEW_ROWS), (2048, 2048, MOST_ROWS), (1552, 4096, MOST_ROWS)]
)
def test_a_device_that_takes_int8_is_given_it_from_17_rows_on_or_of_short_matrices_from_65(
    n: int, k: int, most: int, takes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gemm_int8, "is_hopper", lambda _: takes)
    for form, is_taken in (("mq4", True), ("mq4-uniform", True), ("mq6", False)):
        planes = scrambled(form, 16, 64)
        assert not takes_int8(planes, most + 1)
        w = to_fragments(planes)
        w = replace(w, packed=w.packed[:1, :1].expand(n // 16, k // 64, *w.packed.shape[2:]))  # of n rows and k columns
        for n_rows in (most, most + 1):
            assert takes_int8(w, n_rows) == (is_taken and takes and n_rows > most)
    assert not takes_int8(random(n, k), most + 1)


@pytest.mark.parametrize("form", ["mq4", "mq4-uniform", "mq6"])
@pytest.mark.parametrize("n_rows", [FEW_ROWS, FEW_ROWS + 1])
def test_rows_become_int8_for_a_device_that_takes_it(n_rows: int, form: str) -> None:
    w = to_fragments(scrambled(form, 16, 64))
    x, _ = activations(random(n_rows, 64), None, w, torch.float32)
    is_hopper = DEVICE.type == "cuda" and torch.cuda.get_device_capability() == (9, 0)
    assert isinstance(x, Int8Blocks) == takes_int8(w, n_rows)
    assert takes_int8(w, n_rows) == (is_hopper and n_rows > FEW_ROWS and form in FORMATS_AS_INT8)
