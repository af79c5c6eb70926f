"""runner.json: written and read back, and everything that it must not make us believe."""

from __future__ import annotations

import copy
import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from packed_models import packed, tiny

from runner.errors import BadModelFile, UnsupportedModel
from runner.quant.mq.manifest import MAX_BYTES, read_manifest, to_json
from runner.quant.mq.packed_weights import PackedWeights
from runner.quant.packed_files import MANIFEST_NAME, WEIGHTS_NAME

UP = "model.layers.0.mlp.up_proj.weight"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    packed(tiny(directory / "source"), directory / "out", "mq4")
    return directory / "out"


@pytest.fixture
def copied(model: Path, tmp_path: Path) -> Path:
    """With a manifest that has no hash of its own, which would be the first thing to be wrong."""
    (tmp_path / WEIGHTS_NAME).write_bytes((model / WEIGHTS_NAME).read_bytes())
    (tmp_path / MANIFEST_NAME).write_text(json.dumps(plain(model), indent=1))
    return tmp_path


def test_it_is_read_as_it_was_written(model: Path) -> None:
    manifest = read_manifest(model)
    assert to_json(manifest) == (model / MANIFEST_NAME).read_text()
    assert manifest.quantization == "MQ4"
    assert manifest.tensors[UP].format == "mq4"
    assert manifest.tensors[UP].input_rotation == 64
    assert 0 < (manifest.tensors[UP].weight_error or 0) < 0.02
    assert manifest.tensors["model.norm.weight"].format == "bf16"
    assert manifest.tensors["model.norm.weight"].weight_error is None


def test_a_name_that_is_not_utf_8_ends_no_making(model: Path, tmp_path: Path) -> None:
    """That of a recipe's file, of a text or of a directory of the source's: it is written when all else is done."""
    manifest = read_manifest(model)
    odd = dataclasses.replace(manifest, source=dataclasses.replace(manifest.source, repo="a/\udcff"))
    (tmp_path / MANIFEST_NAME).write_text(to_json(odd), encoding="utf-8")
    assert read_manifest(tmp_path).source.repo == "a/?"


def plain(model: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((model / MANIFEST_NAME).read_text())
    value.pop("sha256", None)
    return value


def put(*path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(manifest: dict[str, Any]) -> None:
        inner: Any = manifest
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = value

    return change


@pytest.mark.parametrize(
    "change",
    [
        put("extra", value=1),
        put("schema", value="runner.model/x" * 9),
        put("schema", value=None),
        put("bpw", value=-1),
        put("bpw", value="4"),
        put("rotation", value="sideways"),
        put("format", value="m\x1b[31mq4"),
        put("notes", value=["x" * 5000]),
        put("tensors", UP, "shape", value=[2**39, 2**39]),
        put("tensors", UP, "shape", value=[96, -64]),
        put("tensors", UP, "shape", value=[96, 64.0]),
        put("tensors", UP, "shape", value=[96]),
        put("tensors", UP, "input_rotation", value=3),
        put("tensors", UP, "input_rotation", value=128),
        put("tensors", UP, "input_rotation", value=True),
        put("tensors", UP, "parameters", value={"scale_exponent": 2**40}),
        put("tensors", UP, "sha256", value="0"),
        put("tensors", UP, "weight_error", value=-0.5),
        put("tensors", UP, "other", value=0),
        put("tensors", "", value={}),
        put("files", "../x", value={"size_bytes": 1, "sha256": ""}),
        put("files", value={}),
        put("files", WEIGHTS_NAME, "size_bytes", value=-1),
        put("recipe", "rules", value=[{"tensors": "*"}]),
        put("source", value=[]),
        put("config_changes", value=None),
    ],
)
def test_a_value_that_cannot_be_is_refused(copied: Path, change: Callable[[dict[str, Any]], None]) -> None:
    manifest = plain(copied)
    change(manifest)
    (copied / MANIFEST_NAME).write_text(json.dumps(manifest))
    with pytest.raises(BadModelFile, match=MANIFEST_NAME):
        read_manifest(copied)


@pytest.mark.parametrize(
    "change",
    [
        put("tensors", UP, "format", value="mq8"),
        put("tensors", UP, "format", value="mq9"),
        put("tensors", UP, "format", value="f32"),
        put("tensors", UP, "shape", value=[192, 64]),
        put("tensors", UP, "shape", value=[2**20, 2**20]),
        put("tensors", UP, "parameters", value={}),
        put("tensors", UP, "parameters", value={"scale_exponent": 300}),
        put("tensors", "model.norm.weight", "format", value="f16"),
        put("tensors", "model.norm.weight", "parameters", value={"scale_exponent": 0}),
        put("tensors", UP + "2", value={}),
        lambda manifest: manifest["tensors"].pop(UP),
    ],
)
def test_a_manifest_of_another_file_is_refused_before_weights_are_read(
    copied: Path, change: Callable[[dict[str, Any]], None]
) -> None:
    manifest = plain(copied)
    change(manifest)
    if manifest["tensors"].get(UP + "2") == {}:
        manifest["tensors"][UP + "2"] = copy.deepcopy(manifest["tensors"][UP])
    (copied / MANIFEST_NAME).write_text(json.dumps(manifest))
    with pytest.raises(BadModelFile):
        PackedWeights(copied)


def test_text_that_is_no_manifest_is_refused(copied: Path) -> None:
    path = copied / MANIFEST_NAME
    good = path.read_text()
    for text in ("", "[]", "{", '{"schema": "runner.model/1"}', "[" * 10**5, good.replace("4.25", "NaN"), "\xff"):
        path.write_text(text, encoding="latin-1")
        with pytest.raises(BadModelFile):
            read_manifest(copied)
    path.write_text('{"schema": "runner.model/1", "schema": "runner.model/1"}')
    with pytest.raises(BadModelFile, match="twice"):
        read_manifest(copied)
    with path.open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    with pytest.raises(BadModelFile, match="too large"):
        read_manifest(copied)


def test_a_later_version_asks_for_a_newer_runner(copied: Path) -> None:
    (copied / MANIFEST_NAME).write_text(json.dumps({**plain(copied), "schema": "runner.model/2"}))
    with pytest.raises(UnsupportedModel, match="version 2"):
        read_manifest(copied)


_FUZZ = """
import json, random, resource, sys
from pathlib import Path
from runner.errors import RunnerError
from runner.quant.mq.packed_weights import PackedWeights
directory, seed = Path(sys.argv[1]), int(sys.argv[2])
PackedWeights(directory).read("model.embed_tokens.weight")
with open("/proc/self/statm") as statm:
    size = int(statm.read().split()[0]) * 4096
resource.setrlimit(resource.RLIMIT_AS, (size + 96 * 2**20, size + 96 * 2**20))
random.seed(seed)
names = ["runner.json", "model.safetensors"]
whole = {name: (directory / name).read_bytes() for name in names}
header = int.from_bytes(whole["model.safetensors"][:8], "little")
refused = opened = 0
for _ in range(150):
    name = random.choice(names)
    data = bytearray(whole[name])
    for _ in range(random.choice((1, 1, 3, 20))):
        at = random.randrange(len(data) if name == "runner.json" else header + 8)
        kind = random.random()
        if kind < 0.4:
            data[at] = random.randrange(256)
        elif kind < 0.7:
            data[at : at + 1] = random.choice((b"9999999999", b"-1", b"[", b"{}", b"1e308", b'"', b"null", b"0"))
        else:
            del data[at : at + random.randrange(1, 40)]
    (directory / name).write_bytes(data)
    try:
        weights = PackedWeights(directory)
        for tensor in weights.shapes:
            weights.read(tensor)
        opened += 1
    except RunnerError:
        refused += 1
    (directory / name).write_bytes(whole[name])
print(refused, opened)
"""


def test_damaged_files_are_refused_or_read_and_never_fill_the_memory(copied: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", _FUZZ, str(copied), "11"], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    refused, opened = map(int, done.stdout.split())
    assert refused > 60
    assert refused + opened == 150
