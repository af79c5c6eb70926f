"""Weights in shards whose names are not the usual ones: the index says which files are the model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hub_server import Hub, Repo, serving
from pulled import begin_fetch
from safetensors.numpy import load_file, save

from runner import hub
from runner.config import LoadOptions
from runner.deletion import delete
from runner.errors import BadModelFile, BusyError, UsageError
from runner.hub import FetchOptions
from runner.hub_cache import repo_directory, snapshots
from runner.inventory import LocalModel, known_names, local_models
from runner.mend import mend
from runner.model_config import parse_model_config
from runner.model_files import INDEX, choose, needs_index
from runner.paths import user_paths
from runner.prepare import ready
from runner.preview import preview
from runner.pull import plan_pull, pull
from runner.quant.json_file import read_json
from runner.quant.weights import open_weights
from runner.registry import ModelSpec, Registry
from runner.removal import plan_removal
from runner.shard_order import names_in, tensors_of_shards
from runner.types import CancelToken, ReadyModel
from runner.verify import Finding, check
from runner.verify_plan import plan_of
from tests.quant.mq.packed_models import packed, tiny

TOP = ("model-1.safetensors", "model-2.safetensors")
BELOW = ("weights/a.safetensors", "weights/b.safetensors")
OTHER = b"\x02\0\0\0\0\0\0\0{}"  # a safetensors file without tensors
REPO = "tiny/indexed"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny(tmp_path_factory.mktemp("source") / "tiny", "llama-tied", dtype=torch.float32)


def in_shards(source: Path, names: tuple[str, ...]) -> dict[str, bytes]:
    """The files of the model with its tensors dealt out to shards of those names."""
    files = {path.name: path.read_bytes() for path in source.iterdir() if path.suffix != ".safetensors"}
    tensors = load_file(source / "model.safetensors")
    shard_of = {tensor: names[i % len(names)] for i, tensor in enumerate(sorted(tensors))}
    for name in names:
        files[name] = save({tensor: tensors[tensor] for tensor, shard in shard_of.items() if shard == name})
    return {**files, INDEX: json.dumps({"metadata": {}, "weight_map": shard_of}).encode()}


@pytest.fixture(params=[TOP, BELOW], ids=["top", "below"])
def names(request: pytest.FixtureRequest) -> tuple[str, ...]:
    found: tuple[str, ...] = request.param
    return found


@pytest.fixture
def server(source: Path, names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """What else is in the repository is not of the model."""
    files = {**in_shards(source, names), "adapter.safetensors": OTHER, "weights/other.safetensors": OTHER}
    with serving(Hub(repos={REPO: Repo(files)})) as running:
        monkeypatch.setenv("HF_ENDPOINT", running.url)
        yield running


def spec() -> ModelSpec:
    return Registry.load_for().resolve(REPO)


def fetch() -> None:
    pull(plan_pull(spec()), on_progress=lambda _: None, cancel=CancelToken(), options=FetchOptions())


def ready_at(model: ModelSpec) -> ReadyModel:
    return ready(model, offline=True, on_event=lambda _: None, cancel=CancelToken())


def listed() -> list[LocalModel]:
    return [model for model in local_models(Registry.load_for()) if model.name == REPO]


def findings() -> tuple[Finding, ...]:
    return check(plan_of(spec(), lambda _repo, _commit: {}), lambda *_: None, CancelToken())


def assert_loads_as(model: ReadyModel, source: Path) -> None:
    weights = open_weights(model, parse_model_config(read_json(model.directory / "config.json")))
    expected = load_file(source / "model.safetensors")
    assert weights.shapes.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(weights.read(name), values)


def test_they_are_fetched_listed_checked_and_loaded(server: Hub, names: tuple[str, ...], source: Path) -> None:
    assert plan_pull(spec()).choice.weights == names
    assert preview(spec(), LoadOptions(), offline=False).facts.num_parameters > 0
    fetch()
    assert not [name for name in server.fetched() if name.endswith(("adapter.safetensors", "other.safetensors"))]
    (model,) = listed()
    assert (model.state, model.format, model.num_files) == ("complete", "safetensors", 2)
    assert findings() == ()
    assert_loads_as(ready_at(spec()), source)


@pytest.mark.usefixtures("server")
def test_one_that_is_gone_is_missed_by_all_and_the_model_goes_as_one(names: tuple[str, ...]) -> None:
    fetch()
    (snapshot,) = snapshots(REPO)
    (snapshot.directory / names[1]).unlink()
    (model,) = listed()
    assert (model.state, model.num_here, model.num_files) == ("partial", 1, 2)
    (finding,) = findings()
    assert (finding.name, finding.problem) == (names[1], "missing")
    with pytest.raises(BusyError, match="not whole on this machine"):
        ready_at(spec())
    assert [file.name for file in plan_pull(spec()).missing] == []  # its blob is here
    removals = plan_removal(
        Registry.load_for().resolve(f"{REPO}:safetensors"), user_paths().models, user_paths().drafts
    )
    assert sum(map(delete, removals)) > 0
    assert known_names(REPO).isdisjoint(names)


def test_one_that_is_begun_is_a_model_that_is_begun(server: Hub, names: tuple[str, ...]) -> None:
    listing = hub.list_files(REPO)
    hub.fetch(listing, ["config.json", INDEX], on_progress=lambda _: None, cancel=CancelToken())
    begin_fetch(REPO, names[0], server, bytes_s=20_000)
    (model,) = listed()
    assert (model.state, model.num_here, model.num_files) == ("partial", 0, 2)
    fetch()
    assert [model.state for model in listed()] == ["complete"]
    assert repo_directory(REPO).is_dir()


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize("is_gone", [False, True], ids=["torn", "gone"])
def test_where_the_index_is_damaged_the_model_is(names: tuple[str, ...], is_gone: bool) -> None:
    fetch()
    (snapshot,) = snapshots(REPO)
    index = (snapshot.directory / INDEX).resolve()
    index.unlink() if is_gone else index.write_bytes(index.read_bytes()[:40])
    (model,) = listed()
    assert (model.state, model.num_files) == ("damaged", 2)
    for text in (REPO, f"{REPO}:safetensors"):
        found = check(plan_of(Registry.load_for().resolve(text), lambda _r, _c: {}), lambda *_: None, CancelToken())
        assert [one.name for one in found] == [INDEX]
    mend(found, on_progress=lambda _: None, cancel=CancelToken(), options=FetchOptions())
    assert [model.state for model in listed()] == ["complete"]
    assert known_names(REPO).issuperset(names)


def test_a_directory_of_them_runs_and_is_quantized(source: Path, names: tuple[str, ...], tmp_path: Path) -> None:
    directory = tmp_path / "model"
    for name, contents in in_shards(source, names).items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(contents)
    assert_loads_as(ready_at(Registry.load_for().resolve(f"{directory}/")), source)
    made, same = packed(directory, tmp_path / "one"), packed(source, tmp_path / "other")
    assert made.weights.read_bytes() == same.weights.read_bytes()


def test_an_index_leads_nowhere_but_down(tmp_path: Path) -> None:
    outside = ["../up.safetensors", "/etc/passwd.safetensors", "a/../../b.safetensors", "x\\..\\y.safetensors", "c.bin"]
    weight_map = {str(number): name for number, name in enumerate([*outside, "below/d.safetensors"])}
    assert list(tensors_of_shards({"weight_map": weight_map})) == ["below/d.safetensors"]
    directory = tmp_path / "model"
    (directory / "below").mkdir(parents=True)
    for place in (tmp_path / "up.safetensors", directory / "below" / "d.safetensors"):
        place.write_bytes(OTHER)
    (directory / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    assert names_in(directory) == [INDEX, "below/d.safetensors"]


def test_names_alone_tell_where_they_are_the_usual_ones() -> None:
    usual = ["model-00001-of-00002.safetensors", INDEX]
    assert [needs_index(names) for names in (usual, [*TOP, INDEX], TOP, ["model.safetensors", INDEX])] == [
        False,
        True,
        False,
        True,
    ]
    side = ["config.json", "tokenizer.json", INDEX]
    model = ModelSpec(name=REPO, origin="hub", gguf=REPO, repo=REPO)
    assert choose(model, [*TOP, *side], REPO, TOP).weights == TOP
    with pytest.raises(BadModelFile, match=r"missing: model-2\.safetensors"):
        choose(model, [TOP[0], *side], REPO, TOP, are_all=True)
    with pytest.raises(UsageError, match="several sets"):
        choose(model, [*TOP, *side], REPO, ("gone.safetensors",))
    old = ["model.safetensors", "old-1.safetensors", *side]
    assert choose(model, old, REPO, ("old-1.safetensors", "old-2.safetensors")).weights == ("model.safetensors",)
