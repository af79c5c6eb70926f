"""The cache as this and other tools leave it: where it is, what is listed, what removing spares."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from disk_limits import file_size_limit
from hub_server import Hub, Repo, serving

from runner import hub, hub_cache, inventory
from runner.errors import ConfigError
from runner.hub_parts import leftovers
from runner.inventory import local_models
from runner.mend import listed_hashes
from runner.registry import Registry
from runner.types import CancelToken
from runner.verify_plan import plan_cached

REPO = "owner/tiny-GGUF"
FILES = {"tiny-Q4_0.gguf": b"4" * 3000, "tiny-Q8_0.gguf": b"8" * 7000, "README.md": b"hello"}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serving(Hub(repos={REPO: Repo(dict(FILES))})) as running:
        monkeypatch.setenv("HF_ENDPOINT", running.url)
        yield running


def fetch(names: Sequence[str], repo: str = REPO) -> Path:
    return hub.fetch(hub.list_files(repo), names, on_progress=lambda _state: None, cancel=CancelToken())


def test_the_places_follow_the_variables_of_huggingface_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert hub_cache.hub_settings().cache == tmp_path / "hf-home" / "hub"
    monkeypatch.setenv("HF_HUB_CACHE", "~/elsewhere")
    assert hub_cache.hub_settings().cache == Path.home() / "elsewhere"
    for name in ("HF_HUB_CACHE", "HF_HOME", "HF_ENDPOINT"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert hub_cache.hub_settings().cache == tmp_path / "xdg" / "huggingface" / "hub"
    assert hub_cache.hub_settings().endpoint == "https://huggingface.co"


def test_a_note_of_a_commit_that_could_not_be_written_leaves_no_revision_behind() -> None:
    with file_size_limit(10), pytest.raises(OSError, match="too large"):
        hub_cache.record_ref(REPO, "main", "c" * 40)
    assert list((hub_cache.repo_directory(REPO) / "refs").iterdir()) == []


def test_a_cache_that_is_not_there_or_has_odd_things_in_it_lists_only_repositories() -> None:
    assert hub_cache.cached_repos() == ()
    cache = hub_cache.hub_settings().cache
    for name in (
        "models--gpt2/snapshots/c/x.gguf",
        "datasets--a--b/snapshots/c/x.gguf",
        "models--a--b/snapshots/c/t.txt",
    ):
        (cache / name).parent.mkdir(parents=True)
        (cache / name).write_bytes(b"x")
    (cache / "models--a--c").write_text("a file")
    broken = cache / "models--a--d" / "snapshots" / "c"
    broken.mkdir(parents=True)
    (broken / "x.gguf").symlink_to("../../blobs/gone")
    assert [repo for repo, _ in hub_cache.cached_repos()] == ["a/b", "a/d"]
    assert [file.name for file in hub_cache.cached_files("a/b")] == ["t.txt"]
    assert hub_cache.cached_files("a/d") == ()
    assert hub_cache.broken_links("a/d") == {"x.gguf": broken / "x.gguf"}


def test_a_home_of_nobody_is_a_configuration_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", "~no-such-user-of-this-machine/hf")
    with pytest.raises(ConfigError, match="no such user"):
        hub_cache.hub_settings()


def test_a_link_that_no_system_follows_is_broken_and_no_crash() -> None:
    directory = hub_cache.repo_directory("a/b")
    snapshot = directory / "snapshots" / "c"
    for folder in (snapshot, directory / "blobs"):
        folder.mkdir(parents=True)
    (snapshot / "x.gguf").symlink_to("y" * 300)  # longer than a file's name can be: not "not found", another error
    (directory / "blobs" / "e.runner-part").symlink_to("y" * 300)
    assert hub_cache.cached_files("a/b") == ()
    assert list(hub_cache.broken_links("a/b")) == ["x.gguf"]
    assert not leftovers(directory)
    assert [model.state for model in local_models(Registry.load_for()) if model.repo] == ["damaged"]
    (target,) = plan_cached("a/b", directory, None, listed_hashes).findings
    assert target.problem == "missing"


def test_other_safetensors_beside_a_whole_model_are_no_model_that_is_begun() -> None:
    """As who fetches all of a repository has them: another layout of the weights, a head that drafts."""
    snapshot = hub_cache.repo_directory("a/b") / "snapshots" / "c"
    snapshot.mkdir(parents=True)
    for name in ("config.json", "tokenizer.json", "model.safetensors", "consolidated.safetensors", "mtp.safetensors"):
        (snapshot / name).write_bytes(b"x")

    def listed() -> list[tuple[str, str]]:
        return [(model.path.name, model.state) for model in local_models(Registry.load_for()) if model.repo]

    assert listed() == [("model.safetensors", "complete")]
    (snapshot / "consolidated.safetensors").unlink()
    (snapshot / "consolidated.safetensors").symlink_to("gone")
    assert listed() == [("model.safetensors", "complete"), ("consolidated.safetensors", "damaged")]


def test_a_file_that_goes_while_it_is_listed_is_no_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when a download ends in the middle of `runner ls`."""
    snapshot = hub_cache.repo_directory("a/b") / "snapshots" / "c"
    snapshot.mkdir(parents=True)
    (snapshot / "x.gguf").write_bytes(b"x")

    def listed_and_gone(repo: str) -> tuple[hub_cache.CachedFile, ...]:
        files = hub_cache.cached_files(repo)
        (snapshot / "x.gguf").unlink()
        return files

    monkeypatch.setattr(inventory, "cached_files", listed_and_gone)
    assert [model.repo for model in local_models(Registry.load_for()) if model.repo] == ["a/b"]


@pytest.mark.usefixtures("server")
def test_one_file_can_be_removed_and_the_rest_stays() -> None:
    snapshot = fetch(["tiny-Q4_0.gguf", "tiny-Q8_0.gguf"])
    ((_, directory),) = hub_cache.cached_repos()
    assert hub_cache.remove_files(directory, {"tiny-Q4_0.gguf"}) == 3000
    assert [path.name for path in snapshot.iterdir()] == ["tiny-Q8_0.gguf"]
    assert (snapshot / "tiny-Q8_0.gguf").read_bytes() == FILES["tiny-Q8_0.gguf"]
    assert len(list((directory / "blobs").iterdir())) == 1


@pytest.mark.usefixtures("server")
def test_a_blob_that_another_name_links_to_stays() -> None:
    snapshot = fetch(["tiny-Q4_0.gguf"])
    (snapshot / "same.gguf").symlink_to((snapshot / "tiny-Q4_0.gguf").readlink())
    assert hub_cache.remove_files(hub_cache.repo_directory(REPO), {"tiny-Q4_0.gguf"}) == 0
    assert (snapshot / "same.gguf").read_bytes() == FILES["tiny-Q4_0.gguf"]


def test_a_whole_repository_can_be_removed_and_its_copy_with_the_same_commit_stays(server: Hub) -> None:
    server.repos["owner/copy"] = Repo(dict(FILES))
    for repo in (REPO, "owner/copy"):
        fetch(["tiny-Q4_0.gguf"], repo)
    directory = hub_cache.repo_directory(REPO)
    assert hub_cache.taken_bytes(directory) == {next((directory / "blobs").iterdir()).resolve(): 3000}
    assert hub_cache.remove_files(directory, None) == 3000
    assert [repo for repo, _ in hub_cache.cached_repos()] == ["owner/copy"]
    assert not directory.exists()
