"""Every type of tensor decodes to what its definition says, written out here a second time in plain numpy."""

from __future__ import annotations

import struct

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray

from runner.quant.hipfire.tensor_types import TYPES, decode_rows, plain_rows, types_of
from runner.quant.hipfire.write import encode
from runner.quant.mq.rotation import rotate

AFFINE = {6: (4, 256, False), 7: (4, 128, False), 8: (6, 256, False), 13: (4, 256, True), 15: (6, 256, True)}
HALVES = {44: 4, 47: 6}


def packed(q: NDArray[np.integer], bits: int) -> bytes:
    """Numbers of `bits` bits, the first in the lowest bits: what nibbles and hipfire's 6-bit triples both are."""
    value = 0
    for place, number in enumerate(q.tolist()):
        value |= number << place * bits
    return value.to_bytes(len(q) * bits // 8, "little")


def random_q(seed: int, bits: int, count: int) -> NDArray[np.integer]:
    return np.random.default_rng(seed).integers(0, 2**bits, count)


def decoded(number: int, blocks: bytes, rows: int) -> NDArray[np.float32]:
    return decode_rows(np.frombuffer(blocks, np.uint8).reshape(rows, -1), TYPES[number])


def stored(values: NDArray[np.float32], *, rotated: bool) -> NDArray[np.float32]:
    """`values` in the basis that they were stored in."""
    return rotate(torch.from_numpy(values), 256).numpy() if rotated else values


@pytest.mark.parametrize("number", AFFINE)
def test_a_scale_and_a_minimum_for_each_block(number: int) -> None:
    bits, group, rotated = AFFINE[number]
    expected, blocks = [], b""
    for block in range(6):
        q, scale, low = random_q(block, bits, group), np.float32(0.37 + block), np.float32(-3.1 * block)
        expected.append(q.astype(np.float32) * scale + low)
        blocks += struct.pack("<ff", scale, low) + packed(q, bits)
    values = decoded(number, blocks, rows=3)
    assert values.shape == (3, 2 * group)
    found = stored(values, rotated=rotated).reshape(-1)
    np.testing.assert_allclose(found, np.concatenate(expected), rtol=2e-5, atol=2e-4 if rotated else 0)


@pytest.mark.parametrize("number", HALVES)
def test_the_second_version_has_a_scale_and_a_zero_for_each_half(number: int) -> None:
    bits = HALVES[number]
    expected, blocks = [], b""
    for block in range(4):
        q = random_q(block, bits, 256)
        numbers = np.array([0.5, -2.0, 0.25, 1.5 + block], np.float16)
        expected += [q[:128] * np.float32(numbers[0]) + numbers[1], q[128:] * np.float32(numbers[2]) + numbers[3]]
        blocks += numbers.tobytes() + packed(q, bits)
    values = decoded(number, blocks, rows=2)
    found = stored(values, rotated=True).reshape(-1)
    np.testing.assert_allclose(found, np.concatenate(expected), rtol=2e-5, atol=1e-4)


def test_equal_halves_of_the_second_version_are_the_first() -> None:
    q = packed(random_q(1, 4, 256), 4)
    half = np.array([0.5, -2.0], np.float16).tobytes()
    first = decoded(13, struct.pack("<ff", 0.5, -2.0) + q, rows=1)
    assert np.array_equal(first, decoded(44, half + half + q, rows=1))


def test_mq8_is_a_scale_and_256_signed_bytes() -> None:
    q = np.random.default_rng(0).integers(-128, 128, 512).astype(np.int8)
    blocks = np.float16(0.5).tobytes() + q[:256].tobytes() + np.float16(2.0).tobytes() + q[256:].tobytes()
    found = stored(decoded(14, blocks, rows=1), rotated=True)[0]
    np.testing.assert_allclose(found, np.concatenate((q[:256] * 0.5, q[256:] * 2.0)), rtol=2e-5, atol=1e-4)


def test_q8_0_is_llama_cpps() -> None:
    q = np.random.default_rng(0).integers(-128, 128, (3, 2, 32)).astype(np.int8)
    scales = np.array([0.25, 1e-7, 3.0, 65504, -0.5, 0.1], np.float16).reshape(3, 2, 1)
    blocks = np.concatenate((scales.view(np.uint8), q.view(np.uint8)), 2).reshape(3, -1)
    assert np.array_equal(decode_rows(blocks, TYPES[3]), dequantize(blocks, GGMLQuantizationType.Q8_0))


@pytest.mark.parametrize(("number", "dtype"), [(1, "<f2"), (2, "<f4"), (16, "<u2")])
def test_plain_floats_are_read_as_they_are(number: int, dtype: str) -> None:
    raw = np.array([[0x3F80, 0xC000, 0x0001]], "<u2") if number == 16 else np.array([[1.0, -2.0, 6e-8]], dtype)
    as_bytes = raw.view(np.uint8)
    assert np.array_equal(plain_rows(as_bytes, TYPES[number]), raw)
    values = decode_rows(as_bytes, TYPES[number])[0]
    assert values[:2].tolist() == [1.0, -2.0]
    assert values[2] == (np.uint32(0x10000).view(np.float32) if number == 16 else np.float32(raw[0, 2]))


@pytest.mark.parametrize("number", [1, 2, 3, 7, 13])
def test_what_is_written_is_read_back(number: int) -> None:
    kind = TYPES[number]
    rows = np.random.default_rng(number).normal(size=(6, 512)).astype(np.float32)
    raw = encode(rows, kind)
    assert len(raw) == max(kind.sizes(rows.shape))
    values = decode_rows(raw.reshape(6, -1), kind)
    error = float(np.square(values - rows).mean())
    assert error <= {1: 1e-7, 2: 0, 3: 1e-4, 7: 0.011, 13: 0.013}[number]


def test_q8_0_is_encoded_as_hipfire_does_half_steps_away_from_zero() -> None:
    values = np.zeros((1, 32), np.float32)
    values[0, :4] = [127.0, 0.5, -0.5, 2.5]
    assert encode(values, TYPES[3])[2:6].view(np.int8).tolist() == [127, 1, -1, 3]


def test_many_rows_are_decoded_as_few_are() -> None:
    raw = encode(np.random.default_rng(0).normal(size=(9000, 512)).astype(np.float32), TYPES[13]).reshape(9000, -1)
    whole = decode_rows(raw, TYPES[13])
    for rows in (slice(0, 5), slice(8190, 8195), slice(8990, None)):
        # Not bit for bit: the order of the sums in a matrix product depends on its size.
        np.testing.assert_allclose(whole[rows], decode_rows(raw[rows], TYPES[13]), atol=1e-5)


def test_sizes_are_whole_blocks() -> None:
    assert TYPES[13].sizes((3, 512)) == {3 * 2 * 136}
    assert TYPES[3].sizes((3, 16)) == {2 * 34, 3 * 34}  # through the tensor, and row by row
    assert not TYPES[3].is_whole((3, 16))
    assert TYPES[13].sizes((0, 256)) == {0}


def test_only_the_types_that_both_lines_of_hipfire_share_are_read_from_the_second_version() -> None:
    assert set(types_of(1)) == set(TYPES)
    assert set(types_of(2)) == {1, 2, 3, 6, 7, 8, 13, 14, 15, 16}
