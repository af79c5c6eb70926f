"""Weights come onto the device as they are stored, one or several in one place, and what goes wrong is said."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
import test_native_fused
import torch

from runner.backends.native.loader import to_tensor
from runner.backends.native.matrices import MatrixReader, reading_order
from runner.backends.native.upload import Stopped, Upload
from runner.errors import BadModelFile, RunnerError
from runner.kernels.grids import FORMATS
from runner.kernels.pack import concatenate, packed_matrix
from runner.kernels.values import PackedMatrix
from runner.quant.mq.packed_weights import PackedWeights
from runner.quant.mq.quantize import quantize_packed
from runner.quant.mq.recipe import recipe_of
from runner.quant.packed_files import WEIGHTS_NAME
from runner.quant.weights import Weights
from runner.types import CancelToken

CPU = torch.device("cpu")
ATTENTION = "model.layers.1.self_attn"
QKV = [f"{ATTENTION}.{member}_proj.weight" for member in "qkv"]
BIASES = [f"{ATTENTION}.{member}_proj.bias" for member in "qkv"]


def reader(weights: Weights, told: Callable[[float], None] = lambda _: None) -> MatrixReader:
    return MatrixReader(weights, dtype=torch.bfloat16, device=CPU, on_progress=told, cancel=CancelToken())


@pytest.fixture
def packed(tmp_path: Path) -> PackedWeights:
    test_native_fused.made(tmp_path / "source", "llama-biases", hidden_size=96, intermediate_size=96, head_dim=32)
    quantize_packed(tmp_path / "source", recipe_of("mq4"), tmp_path / "packed", on_stage=lambda *_: None)
    return PackedWeights(tmp_path / "packed")


def test_packed_matrices_are_joined_as_they_are_stored(packed: PackedWeights) -> None:
    with reader(packed) as found:
        product = found.product(QKV, BIASES)
    (joined,) = product.parts
    assert isinstance(joined, PackedMatrix)
    alone = [
        packed_matrix(packed.read_encoded(name), FORMATS[record.format], record.input_rotation, CPU)
        for name in QKV
        for record in [packed.manifest.tensors[name]]
    ]
    wanted = concatenate(alone)
    for attribute in ("packed", "scale", "row_scale"):
        assert torch.equal(getattr(joined, attribute), getattr(wanted, attribute))
    assert (joined.format, joined.rotation, joined.shape) == (wanted.format, wanted.rotation, wanted.shape)
    (bias,) = product.biases
    assert bias is not None
    assert torch.equal(bias, torch.cat([to_tensor(packed.read(name)).float() for name in BIASES]))


def test_products_that_are_read_at_once_are_read_in_the_order_that_was_foretold(
    packed: PackedWeights, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[str] = []
    real = Upload.take

    def noted(upload: Upload, wanted: Iterable[tuple[str, torch.Tensor]]) -> Iterator[None]:
        listed = list(wanted)
        taken.extend(key.split()[0] for key, _ in listed)
        return real(upload, listed)

    monkeypatch.setattr(Upload, "take", noted)
    names = [QKV[0], QKV[2]], [QKV[1]]
    foretold = reading_order(packed.shapes)
    with MatrixReader(
        packed, dtype=torch.bfloat16, device=CPU, on_progress=lambda _: None, cancel=CancelToken(), order=foretold
    ) as found:
        outer, inner = found.products(*((one, []) for one in names))
    assert list(dict.fromkeys(taken)) == sorted(QKV, key=foretold.index)
    for product, wanted in ((outer, names[0]), (inner, names[1])):
        with reader(packed) as found:
            alone = found.product(wanted, [])
        for attribute in ("packed", "scale", "row_scale"):
            assert torch.equal(getattr(product.parts[0], attribute), getattr(alone.parts[0], attribute))


def test_dense_weights_are_converted_on_the_device(tmp_path: Path) -> None:
    _, weights = test_native_fused.made(tmp_path, "qwen3")
    told: list[float] = []
    with reader(weights, told.append) as found:
        matrix = found.matrix(QKV[0])
        gain = found.vector("model.norm.weight")
    assert isinstance(matrix, torch.Tensor)
    assert torch.equal(matrix, to_tensor(weights.read(QKV[0])).bfloat16())
    assert (matrix.dtype, gain.dtype) == (torch.bfloat16, torch.float32)
    assert told == sorted(told)
    assert 0 < told[0] < told[1] < 1


def test_a_file_that_was_cut_off_is_named_with_its_tensor(packed: PackedWeights, tmp_path: Path) -> None:
    file = tmp_path / "packed" / WEIGHTS_NAME
    with file.open("r+b") as cut:
        cut.truncate(file.stat().st_size // 2)
    with pytest.raises(BadModelFile, match="cannot be read: the file ends at byte"), reader(packed) as found:
        for name in packed.shapes:
            found.matrix(name) if len(packed.shapes[name]) == 2 else found.vector(name)


def test_a_load_that_is_cancelled_while_it_waits_says_so(
    packed: PackedWeights, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancel = CancelToken()

    def never(_: Upload, _block: object) -> torch.Tensor:
        cancel.cancel()
        raise Stopped

    monkeypatch.setattr(Upload, "_arrived", never)
    found = MatrixReader(packed, dtype=torch.bfloat16, device=CPU, on_progress=lambda _: None, cancel=cancel)
    with found, pytest.raises(RunnerError, match=r"Loading was cancelled\."):
        found.matrix(QKV[0])


def test_layers_are_read_one_after_another() -> None:
    names = ["embed", "model.layers.1.b", "model.layers.0.a", "norm", "model.layers.1.experts.0", "head"]
    assert reading_order(names) == [
        "embed",
        "model.layers.0.a",
        "model.layers.1.b",
        "model.layers.1.experts.0",
        "norm",
        "head",
    ]
