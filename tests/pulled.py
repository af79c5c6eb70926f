"""What the tests of pull, verify, du and rm share: a hub with two small models, and how they lie in the cache."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from fit_models import write_llama
from hub_server import Hub, Repo, serving
from safetensors.numpy import save_file

from runner import hub
from runner.errors import RunnerError
from runner.hub_cache import repo_directory, snapshots
from runner.types import CancelToken

GGUF, SHARDS = "tiny/llama-GGUF", "tiny/shards"
WEIGHTS = "llama-Q8_0.gguf"
N_SHARDS = 3


def shard(number: int) -> str:
    return f"model-{number:05d}-of-{N_SHARDS:05d}.safetensors"


def write_shards(directory: Path, config: Path) -> Path:
    """Three shards with a tensor each, an index that says which, and the demo's configuration."""
    directory.mkdir(parents=True)
    weight_map = {}
    for number in range(1, N_SHARDS + 1):
        values = np.full((64, 256), number, np.float32)
        save_file({f"model.layers.{number}.weight": values}, directory / shard(number))
        weight_map[f"model.layers.{number}.weight"] = shard(number)
    index = {"metadata": {"total_size": N_SHARDS * 65536}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (directory / name).write_bytes((config / name).read_bytes())
    return directory


@contextmanager
def small_hub(directory: Path, demo: Path) -> Iterator[Hub]:
    """A running hub with a GGUF of 1.3 MB and three shards of 64 kB."""
    directory.mkdir(parents=True, exist_ok=True)
    weights = write_llama(directory / WEIGHTS, demo / "demo-q8_0.gguf", num_layers=1).read_bytes()
    shards = write_shards(directory / "shards", demo)
    files = {path.name: path.read_bytes() for path in shards.iterdir()}
    repos = {
        GGUF: Repo({WEIGHTS: weights, "README.md": b"hello"}, downloads=1234, likes=5, num_parameters=600_000),
        SHARDS: Repo(files, downloads=7),
    }
    with serving(Hub(repos=repos)) as running:
        yield running


@pytest.fixture
def server(tmp_path: Path, demo_directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """This hub, and what fetches asks it."""
    with small_hub(tmp_path / "served", demo_directory) as running:
        monkeypatch.setenv("HF_ENDPOINT", running.url)
        yield running


def fetch_all(repo: str) -> Path:
    """Fetch every file of a repository; returns the snapshot."""
    listing = hub.list_files(repo)
    return hub.fetch(listing, listing.names, on_progress=lambda _: None, cancel=CancelToken())


def begin_fetch(repo: str, name: str, server: Hub, *, bytes_s: int = 2_000_000) -> Path:
    """Fetch the beginning of one file, as an interrupted pull leaves it; returns the part file."""
    cancel, server.bytes_s = CancelToken(), bytes_s

    def stop(state: hub.FetchState) -> None:
        if state.done_bytes:
            cancel.cancel()

    with pytest.MonkeyPatch.context() as patient, pytest.raises(RunnerError, match="cancelled"):
        patient.setattr("runner.hub.download.FAREWELL_S", 60.0)  # what has come is on the disk then
        hub.fetch(hub.list_files(repo), [name], on_progress=stop, cancel=cancel)
    server.bytes_s = 0
    (part,) = (repo_directory(repo) / "blobs").glob("*.runner-part")
    return part


def blob(repo: str, name: str) -> Path:
    """Where the bytes of a cached file are."""
    (snapshot,) = snapshots(repo)
    return (snapshot.directory / name).resolve()
