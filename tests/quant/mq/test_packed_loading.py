"""A packed model is found, checked and loaded like any other."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from packed_models import packed, tiny

from runner.backends import choose, native
from runner.config import LoadOptions
from runner.errors import BadModelFile
from runner.model_files import Choice
from runner.prepare import locate, ready
from runner.quant.mq.packed_weights import PackedWeights
from runner.quant.packed_files import MANIFEST_NAME, WEIGHTS_NAME
from runner.registry import Registry
from runner.types import CancelToken, ReadyModel
from tests.backends.native.tiny_models import load

IDS = list(range(30))


@pytest.fixture(scope="module", params=["online", "folded"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    return packed(tiny(directory / "source", "qwen3"), directory / "out", "mq4", rotation=request.param).path


def prepared(path: Path) -> ReadyModel:
    return ready(Registry([]).resolve(str(path)), offline=True, on_event=lambda _: None, cancel=CancelToken())


def test_a_directory_and_its_weights_file_mean_the_same_model(model: Path) -> None:
    for path in (model, model / WEIGHTS_NAME):
        found = prepared(path)
        assert found.format == "packed"
        assert found.weights == (model / WEIGHTS_NAME,)
        assert found.directory == model
    located = locate(Registry([]).resolve(str(model)))
    assert located is not None
    assert located.choice == Choice(
        "packed",
        (WEIGHTS_NAME,),
        (MANIFEST_NAME, "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"),
    )


def test_the_native_backend_is_chosen_and_says_what_it_runs(model: Path) -> None:
    files = prepared(model)
    choice = choose(files, LoadOptions())
    assert (choice.name, choice.refused) == ("native", ())
    backend = load(files)
    try:
        assert backend.info.quantization == "MQ4"
        assert backend.info.architecture == "qwen3"
        rows = np.array([entry.values for entry in backend.score(IDS)])
        assert np.isfinite(rows).all()
    finally:
        backend.close()


def test_both_rotations_answer_alike(tmp_path: Path) -> None:
    source = tiny(tmp_path / "source", "qwen2")
    found = []
    for rotation in ("online", "folded"):
        backend = load(prepared(packed(source, tmp_path / rotation, "mq8", rotation=rotation).path))
        found.append(np.array([entry.values for entry in backend.score(IDS)]))
        backend.close()
    assert np.square(found[0] - found[1]).mean() < 0.02 * np.square(found[0]).mean()


def test_other_backends_refuse_it_with_the_reason(model: Path) -> None:
    from runner.backends import llamacpp

    assert "packed" in (llamacpp.refusal(prepared(model), LoadOptions()) or "")


@pytest.mark.parametrize("exponent", [-128, -127, 121, 127, 32767])
def test_scales_that_are_no_numbers_are_refused(model: Path, tmp_path: Path, exponent: int) -> None:
    """The largest scale is 31/16 * 2^(exponent + 7): beyond 120 it is no float32, and below -126 the bits mean less."""
    shutil.copytree(model, tmp_path / "model")
    manifest = json.loads((model / MANIFEST_NAME).read_text())
    manifest["tensors"]["model.layers.0.mlp.up_proj.weight"]["parameters"]["scale_exponent"] = exponent
    del manifest["sha256"]
    (tmp_path / "model" / MANIFEST_NAME).write_text(json.dumps(manifest))
    with pytest.raises(BadModelFile, match="up_proj"):
        PackedWeights(tmp_path / "model")


@pytest.mark.parametrize("damage", ["truncated", "manifest", "config"])
def test_damaged_files_are_refused_before_the_load(model: Path, tmp_path: Path, damage: str) -> None:
    for path in model.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    if damage == "truncated":
        (tmp_path / WEIGHTS_NAME).write_bytes((model / WEIGHTS_NAME).read_bytes()[:-1])
    elif damage == "manifest":
        (tmp_path / MANIFEST_NAME).write_text("{}")
    else:
        text = (model / "config.json").read_text()
        (tmp_path / "config.json").write_text(text.replace('"intermediate_size": 96', '"intermediate_size": 128'))
    if damage != "config":
        with pytest.raises(BadModelFile):
            prepared(tmp_path)
        return
    with pytest.raises(
        BadModelFile, match=r"up_proj.* has shape \[96, 64\]|gate_proj.* has shape|down_proj.* has shape"
    ):
        native.load(prepared(tmp_path), LoadOptions(n_gpu_layers=0), lambda _: None, CancelToken())
