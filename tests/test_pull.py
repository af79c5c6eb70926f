"""What a pull would fetch, and what it says of commits and parts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hub_server import Hub, Repo
from pulled import GGUF, SHARDS, WEIGHTS, begin_fetch, fetch_all, server, shard

from runner.config import LoadOptions
from runner.errors import BadModelFile, UsageError
from runner.hub import FetchOptions, Listing, RemoteFile
from runner.model_files import INDEX, Choice
from runner.prepare import ready
from runner.preview import preview
from runner.pull import SMALL_BYTES, SPARE_FACTOR, PullPlan, at_revision, here_for_good, plan_pull, pull
from runner.registry import Registry
from runner.types import CancelToken

__all__ = ["server"]  # the fixture


def plan(text: str) -> PullPlan:
    return plan_pull(Registry.load_for().resolve(text))


def carry_out(planned: PullPlan) -> tuple[Path, ...]:
    return pull(planned, on_progress=lambda _: None, cancel=CancelToken(), options=FetchOptions()).weights


def test_only_the_files_of_the_model_are_planned_and_fetched(server: Hub) -> None:
    planned = plan(GGUF)
    size = len(server.repos[GGUF].files[WEIGHTS])
    assert [file.name for file in planned.missing] == [WEIGHTS]
    assert (planned.size_bytes, planned.part_bytes, planned.before) == (size, 0, "")
    assert planned.missing == planned.files
    (path,) = carry_out(planned)
    assert path.read_bytes() == server.repos[GGUF].files[WEIGHTS]
    assert server.fetched() == [WEIGHTS]
    again = plan(GGUF)
    assert (again.missing, again.before) == ((), planned.listing.commit)


def test_what_an_interrupted_pull_left_is_not_fetched_again(server: Hub) -> None:
    here = begin_fetch(GGUF, WEIGHTS, server).stat().st_size
    planned = plan(GGUF)
    assert planned.part_bytes == here
    before = server.sent_bytes(WEIGHTS)
    carry_out(planned)
    assert server.sent_bytes(WEIGHTS) - before == planned.size_bytes - here


def test_small_files_come_first(server: Hub) -> None:
    planned = plan(SHARDS)
    pull(planned, on_progress=lambda _: None, cancel=CancelToken(), options=FetchOptions(parallel=1))
    assert server.fetched().index("config.json") < server.fetched().index(shard(1))


def index_with(server: Hub, **more: str) -> bytes:
    """The index of the shards, which names these besides."""
    index = json.loads(server.repos[SHARDS].files[INDEX])
    index["weight_map"] |= more
    return json.dumps(index).encode()


@pytest.mark.parametrize("text", [SHARDS, f"{SHARDS}:safetensors"])
def test_a_shard_that_only_the_index_has_is_missed_before_anything_is_fetched(server: Hub, text: str) -> None:
    server.repos[SHARDS].files[INDEX] = index_with(server, more="more.safetensors", others="others.safetensors")
    spec = Registry.load_for().resolve(text)
    for planned in (
        lambda: plan_pull(spec),
        lambda: ready(spec, offline=False, on_event=lambda _: None, cancel=CancelToken()),
        lambda: preview(spec, LoadOptions(), offline=False),
    ):
        with pytest.raises(BadModelFile, match=f"{SHARDS} has no more.safetensors and 1 more, and its {INDEX}") as said:
            planned()
        assert "Choose another one" in said.value.hint
    assert not [name for name in server.fetched() if name.endswith(".safetensors")]


def test_an_index_of_other_weights_or_none_at_all_is_passed_over(server: Hub) -> None:
    files = server.repos[SHARDS].files
    side = {name: files[name] for name in ("config.json", "tokenizer.json")}
    for index in (files[INDEX], b"no JSON", b"[]", b""):
        server.repos["tiny/whole"] = Repo({"model.safetensors": files[shard(1)], INDEX: index, **side})
        assert plan("tiny/whole").choice.weights == ("model.safetensors",)


def test_the_index_that_is_here_is_not_asked_for_again(server: Hub) -> None:
    carry_out(plan(SHARDS))
    server.requests.clear()
    assert not plan(SHARDS).missing
    assert server.fetched() == []


def test_a_moved_revision_is_seen_and_only_the_new_files_are_missing(server: Hub) -> None:
    carry_out(plan(SHARDS))
    old = server.repos[SHARDS].commit
    server.repos[SHARDS].files["config.json"] += b"\n"
    planned = plan(SHARDS)
    assert (planned.has_moved, planned.before) == (True, old)
    assert [file.name for file in planned.missing] == ["config.json"]
    server.requests.clear()
    carry_out(planned)
    assert server.fetched() == ["config.json"]
    assert not plan(SHARDS).missing


def test_a_pinned_commit_that_is_here_needs_no_question(server: Hub) -> None:
    spec = Registry.load_for().resolve(GGUF)
    pinned = at_revision(spec, server.repos[GGUF].commit)
    assert here_for_good(pinned) is None
    fetch_all(GGUF)
    server.requests.clear()
    located = here_for_good(pinned)
    assert located is not None
    assert [path.name for path in located.weights] == [WEIGHTS]
    assert here_for_good(spec) is None
    assert server.requests == []


def test_a_repository_that_lacks_a_shard_is_not_to_be_fetched_again(server: Hub) -> None:
    del server.repos[SHARDS].files[shard(2)]
    with pytest.raises(BadModelFile, match=r"2 of 3 parts") as caught:
        plan(SHARDS)
    assert "The repository itself lacks that" in caught.value.hint


@pytest.mark.usefixtures("server")
def test_a_revision_that_is_not_there_is_refused() -> None:
    with pytest.raises(UsageError, match="no revision"):
        plan_pull(at_revision(Registry.load_for().resolve(GGUF), "v9"))


LARGE, PLENTY = SMALL_BYTES, 10**15


@pytest.mark.parametrize(
    ("size", "free", "missing", "part_bytes", "is_worth"),
    [
        (LARGE, PLENTY, ("side.json", "w.gguf"), 0, True),
        (LARGE, PLENTY, ("side.json", "w.gguf"), 1, False),
        (LARGE, PLENTY, ("side.json",), 0, False),
        (LARGE, PLENTY, (), 0, False),
        (LARGE - 1, PLENTY, ("w.gguf",), 0, False),
        (LARGE - 1, (LARGE - 1) * SPARE_FACTOR, ("w.gguf",), 0, True),
    ],
    ids=["new", "begun", "its weights are here", "all is here", "small", "small, for a small machine"],
)
def test_headers_are_read_before_a_model_is_fetched_where_that_may_tell_something(
    size: int, free: int, missing: tuple[str, ...], part_bytes: int, is_worth: bool
) -> None:
    files = (RemoteFile("side.json", 0), RemoteFile("w.gguf", size))
    plan = PullPlan(
        name="m",
        listing=Listing("o/m", "main", "c" * 40, False, files),
        choice=Choice("gguf", ("w.gguf",), ("side.json",)),
        before="",
        missing=tuple(file for file in files if file.name in missing),
        part_bytes=part_bytes,
    )
    assert plan.is_worth_an_estimate(free) is is_worth


@pytest.mark.parametrize("text", ["o/m", "o/m:safetensors"])
def test_another_revision_is_that_of_the_weights_that_are_wanted(text: str) -> None:
    assert at_revision(Registry.load_for().resolve(text), "v1").source == ("o/m", "v1")
