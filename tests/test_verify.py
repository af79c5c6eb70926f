"""Checking files against their hashes: what is found, of the cache and of models made here, and mending it."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import filelock
import pytest
from hub_server import Fault, Hub, Repo
from pulled import GGUF, SHARDS, WEIGHTS, begin_fetch, blob, fetch_all, server, shard
from verified import found, nobody, problems, repaired

from runner import hub
from runner.closed import MOUNT
from runner.errors import RunnerError, UsageError
from runner.hub_cache import repo_directory, snapshots
from runner.hub_parts import lock_directory
from runner.mend import NOT_FETCHED, listed_hashes, mend
from runner.paths import user_paths
from runner.registry import Registry
from runner.types import CancelToken
from runner.verify import Finding, check
from runner.verify_plan import plan_cached, plan_everything, plan_of

__all__ = ["server"]  # the fixture


def cached(repo: str) -> tuple[Finding, ...]:
    return found(plan_cached(repo, repo_directory(repo), None, nobody))


# --- the cache ---


def test_sound_files_have_no_findings_and_every_byte_is_counted(server: Hub) -> None:
    fetch_all(GGUF)
    fetch_all(SHARDS)
    server.requests.clear()
    plan = plan_everything(Registry.load_for(), user_paths().drafts, nobody)
    seen: list[tuple[int, int]] = []
    assert check(plan, lambda done, total: seen.append((done, total)), CancelToken()) == ()
    size = sum(len(data) for repo in server.repos.values() for data in repo.files.values())
    assert seen[-1] == (size, size)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert server.requests == []


@pytest.mark.parametrize("at", [0, 700_000, -1])
def test_one_flipped_bit_is_found_and_mended(server: Hub, at: int) -> None:
    fetch_all(GGUF)
    path, right = blob(GGUF, WEIGHTS), server.repos[GGUF].files[WEIGHTS]
    wrong = bytearray(right)
    wrong[at] ^= 1
    path.write_bytes(wrong)
    findings = cached(GGUF)
    assert problems(findings) == {WEIGHTS: "wrong contents"}
    (mended,) = repaired(findings)
    assert mended.is_mended
    assert mended.set_aside is not None
    assert mended.set_aside.read_bytes() == wrong
    assert path.read_bytes() == right
    assert problems(cached(GGUF)) == {mended.set_aside.name: "set aside"}


def test_small_files_are_checked_by_gits_hash(server: Hub) -> None:
    fetch_all(SHARDS)
    assert len(blob(SHARDS, "config.json").name) == 40
    blob(SHARDS, "config.json").write_text("{}")
    assert problems(cached(SHARDS)) == {"config.json": "wrong contents"}
    assert repaired(cached(SHARDS))[0].is_mended
    assert blob(SHARDS, "config.json").read_bytes() == server.repos[SHARDS].files["config.json"]


def test_truncated_empty_and_missing_files_are_found_and_mended(server: Hub) -> None:
    fetch_all(SHARDS)
    os.truncate(blob(SHARDS, shard(1)), 1000)
    os.truncate(blob(SHARDS, shard(2)), 0)
    blob(SHARDS, shard(3)).unlink()
    findings = cached(SHARDS)
    assert problems(findings) == {shard(1): "wrong contents", shard(2): "truncated", shard(3): "missing"}
    assert all(one.is_mended for one in repaired(findings))
    for number in (1, 2, 3):
        assert blob(SHARDS, shard(number)).read_bytes() == server.repos[SHARDS].files[shard(number)]


def test_whole_files_that_are_absent_are_found_without_network_and_fetched(server: Hub) -> None:
    snapshot = fetch_all(SHARDS)
    gone = (shard(2), "tokenizer.json")
    for name in gone:
        (snapshot / name).unlink()
    server.requests.clear()
    findings = cached(SHARDS)
    assert problems(findings) == dict.fromkeys(gone, "missing")
    assert server.requests == []
    assert problems(found(plan_of(Registry.load_for().resolve(f"{SHARDS}:safetensors"), nobody))) == problems(findings)
    assert all(one.is_mended for one in repaired(findings))
    for name in gone:
        assert (snapshot / name).read_bytes() == server.repos[SHARDS].files[name]
    assert cached(SHARDS) == ()


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize("damage", [b"", b"{", None])
def test_what_else_is_wrong_is_told_beside_a_damaged_or_missing_configuration(damage: bytes | None) -> None:
    snapshot = fetch_all(SHARDS)
    (snapshot / "tokenizer.json").unlink()
    if damage is None:
        (snapshot / "config.json").unlink()
    else:
        (snapshot / "config.json").resolve().write_bytes(damage)
    findings = cached(SHARDS)
    assert problems(findings)["tokenizer.json"] == "missing"
    assert set(problems(findings)) == {"config.json", "tokenizer.json"}
    assert all(one.is_mended for one in repaired(findings))
    assert not [finding for finding in cached(SHARDS) if finding.is_damage]


@pytest.mark.parametrize(("said", "is_missed"), [(b"qwen3", True), (b"vit", False)])
def test_a_damaged_configuration_may_still_say_what_the_model_is(server: Hub, said: bytes, is_missed: bool) -> None:
    files = server.repos[SHARDS].files
    config = b'{"model_type": "' + said + b'", "hidden_size": 8}'
    server.repos["tiny/other"] = Repo({"model.safetensors": files[shard(1)], "config.json": config})
    snapshot = fetch_all("tiny/other")
    (snapshot / "config.json").resolve().write_bytes(config[:-1])
    expected = {"config.json": "wrong contents", **({"tokenizer.json": "missing"} if is_missed else {})}
    assert problems(cached("tiny/other")) == expected


def test_shards_are_missed_by_the_index_where_their_names_have_no_numbers(server: Hub) -> None:
    files = server.repos[SHARDS].files
    index = json.loads(files["model.safetensors.index.json"])
    index["weight_map"] = {tensor: name.replace("-of-", "_") for tensor, name in index["weight_map"].items()}
    others = {name.replace("-of-", "_"): data for name, data in files.items()}
    server.repos["tiny/odd"] = Repo(others | {"model.safetensors.index.json": json.dumps(index).encode()})
    snapshot = fetch_all("tiny/odd")
    assert cached("tiny/odd") == ()
    (snapshot / "model-00003_00003.safetensors").unlink()
    assert problems(cached("tiny/odd")) == {"model-00003_00003.safetensors": "missing"}


def test_a_tokenizer_is_fetched_by_the_names_that_the_repository_has(server: Hub) -> None:
    files = server.repos[SHARDS].files
    files["tokenizer.model"] = files.pop("tokenizer.json")
    snapshot = fetch_all(SHARDS)
    (snapshot / "tokenizer.model").unlink()
    assert [one.is_mended for one in repaired(cached(SHARDS))] == [True]
    assert (snapshot / "tokenizer.model").exists()
    assert cached(SHARDS) == ()


def test_only_what_a_model_here_needs_is_missed(server: Hub) -> None:
    """Not other quantizations, nor the rest of a download that has not ended, nor what another commit has whole."""
    files = server.repos[GGUF].files
    files |= {f"llama-Q4_0-0000{n}-of-00002.gguf": files[WEIGHTS] for n in (1, 2)}
    listing = hub.list_files(GGUF)
    hub.fetch(listing, [WEIGHTS], on_progress=lambda _: None, cancel=CancelToken())
    assert cached(GGUF) == ()
    hub.fetch(listing, ["llama-Q4_0-00001-of-00002.gguf"], on_progress=lambda _: None, cancel=CancelToken())
    absent = {"llama-Q4_0-00002-of-00002.gguf": "missing"}
    assert problems(cached(GGUF)) == absent
    q8, q4 = (Registry.load_for().resolve(f"{GGUF}:{quant}") for quant in ("Q8_0", "Q4_0"))
    assert (found(plan_of(q8, nobody)), problems(found(plan_of(q4, nobody)))) == ((), absent)

    snapshot = fetch_all(SHARDS)
    later = snapshot.with_name("f" * 40)
    later.mkdir()
    (later / shard(1)).symlink_to(os.readlink(snapshot / shard(1)))
    assert cached(SHARDS) == ()


def test_the_rest_of_a_download_that_has_not_ended_is_not_missed(server: Hub) -> None:
    names = ("config.json", "tokenizer.json", shard(1))
    hub.fetch(hub.list_files(SHARDS), names, on_progress=lambda _: None, cancel=CancelToken())
    assert problems(cached(SHARDS)) == {shard(2): "missing", shard(3): "missing"}
    begin_fetch(SHARDS, shard(2), server, bytes_s=50_000)
    assert problems(cached(SHARDS)) == {shard(2): "partial download"}


@pytest.mark.parametrize("there", [{"config.json": b'{"model_type": "vit"}'}, {"adapter_config.json": b"{}"}, {}])
def test_what_other_tools_keep_in_the_cache_is_not_taken_for_a_language_model(
    server: Hub, there: dict[str, bytes]
) -> None:
    files = server.repos[SHARDS].files
    own = {"tokenizer.json": files["tokenizer.json"]} if "adapter_config.json" in there else {}
    server.repos["tiny/other"] = Repo({"model.safetensors": files[shard(1)], **own, **there})
    fetch_all("tiny/other")
    assert cached("tiny/other") == ()


def test_a_multimodal_model_whose_text_model_runs_is_taken_for_a_language_model(server: Hub) -> None:
    weights = server.repos[SHARDS].files[shard(1)]
    server.repos["tiny/seeing"] = Repo({"model.safetensors": weights, "config.json": b'{"model_type": "qwen3_5"}'})
    fetch_all("tiny/seeing")
    assert problems(cached("tiny/seeing")) == {"tokenizer.json": "missing"}


def without_weights(snapshot: Path) -> None:
    for path in snapshot.glob("*.safetensors"):
        path.resolve().unlink()
        path.unlink()


def test_weights_that_are_all_gone_are_missed_by_the_index_and_fetched(server: Hub) -> None:
    snapshot = fetch_all(SHARDS)
    without_weights(snapshot)
    server.requests.clear()
    findings = found(plan_everything(Registry.load_for(), user_paths().drafts, nobody))
    assert problems(findings) == {shard(number): "missing" for number in (1, 2, 3)}
    assert server.requests == []
    assert all(one.is_mended for one in repaired(findings))
    assert cached(SHARDS) == ()


def test_an_index_without_weights_is_no_damage_where_other_weights_are_here(server: Hub) -> None:
    server.repos[SHARDS].files["model.safetensors"] = b"what the index does not name"
    without_weights(snapshot := fetch_all(SHARDS))
    hub.fetch(hub.list_files(SHARDS), ["model.safetensors"], on_progress=lambda _: None, cancel=CancelToken())
    assert (snapshot / "model.safetensors").is_file()
    assert cached(SHARDS) == ()


def test_weights_that_no_index_names_are_missed_of_a_model_that_is_asked_for(server: Hub) -> None:
    """Of others it is told, but no damage: another tool may have fetched a tokenizer alone, to count tokens."""
    files = server.repos[SHARDS].files
    side = {name: files[name] for name in ("config.json", "tokenizer.json")}
    server.repos["tiny/whole"] = Repo({"model.safetensors": files[shard(1)], **side})
    snapshot = fetch_all("tiny/whole")
    without_weights(snapshot)
    (noted,) = found(plan_everything(Registry.load_for(), user_paths().drafts, nobody))
    assert (noted.model, noted.name, noted.problem, noted.is_damage) == ("tiny/whole", "", "no weights", False)
    findings = found(plan_of(Registry.load_for().resolve("tiny/whole"), nobody))
    assert problems(findings) == {"": "missing"}
    assert [one.is_mended for one in repaired(findings)] == [True]
    assert (snapshot / "model.safetensors").read_bytes() == files[shard(1)]
    assert cached("tiny/whole") == ()


def test_weights_that_runner_would_not_fetch_are_said_to_be_that(server: Hub) -> None:
    server.repos["tiny/pickle"] = Repo({"config.json": b"{}", "pytorch_model.bin": b"pickle"})
    listing = hub.list_files("tiny/pickle")
    hub.fetch(listing, ["config.json"], on_progress=lambda _: None, cancel=CancelToken())
    assert cached("tiny/pickle") == ()
    (mended,) = repaired(found(plan_of(Registry.load_for().resolve("tiny/pickle"), nobody)))
    assert not mended.is_mended
    assert "pickled weights only" in mended.detail


@pytest.mark.usefixtures("server")
def test_exchanged_contents_are_named_after_each_other() -> None:
    fetch_all(SHARDS)
    one, two = blob(SHARDS, shard(1)), blob(SHARDS, shard(2))
    kept = one.read_bytes()
    one.write_bytes(two.read_bytes())
    two.write_bytes(kept)
    findings = cached(SHARDS)
    assert [finding.detail for finding in findings] == [
        f"it holds what {shard(2)} should hold",
        f"it holds what {shard(1)} should hold",
    ]


def test_exchanged_links_to_sound_files_are_found_and_mended_without_a_download(server: Hub) -> None:
    snapshot = fetch_all(SHARDS)
    links = [os.readlink(snapshot / shard(number)) for number in (1, 2)]
    for number, link in ((1, links[1]), (2, links[0])):
        (snapshot / shard(number)).unlink()
        (snapshot / shard(number)).symlink_to(link)
    findings = cached(SHARDS)
    assert problems(findings) == {shard(1): "swapped", shard(2): "swapped"}
    sent = server.sent_bytes()
    assert all(one.is_mended and one.set_aside is None for one in repaired(findings))
    assert [os.readlink(snapshot / shard(number)) for number in (1, 2)] == links
    assert server.sent_bytes() == sent
    assert cached(SHARDS) == ()


@pytest.mark.usefixtures("server")
def test_a_blob_that_no_commit_needs_is_checked_and_only_set_aside() -> None:
    fetch_all(GGUF)
    unused = blob(GGUF, WEIGHTS).with_name("0" * 64)
    unused.write_bytes(b"what a later pull would take for the real one")
    findings = cached(GGUF)
    assert problems(findings) == {"0" * 64: "wrong contents"}
    (mended,) = repaired(findings)
    assert (mended.is_mended, unused.exists()) == (True, False)


def test_a_partial_download_is_a_note_and_no_damage(server: Hub) -> None:
    begin_fetch(GGUF, WEIGHTS, server)
    (finding,) = cached(GGUF)
    assert (finding.name, finding.problem, finding.is_damage) == (WEIGHTS, "partial download", False)
    assert repaired((finding,)) == ()


@pytest.mark.usefixtures("server")
def test_a_blob_shared_by_two_commits_is_hashed_once() -> None:
    snapshot = fetch_all(GGUF)
    shutil.copytree(snapshot, snapshot.with_name("f" * 40), symlinks=True)
    plan = plan_cached(GGUF, repo_directory(GGUF), None, nobody)
    assert len(plan.targets) == 2
    assert {len(target.links) for target in plan.targets} == {2}


def test_without_links_the_hub_says_what_files_should_be(server: Hub) -> None:
    snapshot = fetch_all(GGUF)
    for name in (WEIGHTS, "README.md"):
        kept = (snapshot / name).read_bytes()
        (snapshot / name).resolve().unlink()
        (snapshot / name).unlink()
        (snapshot / name).write_bytes(kept)
    directory = repo_directory(GGUF)
    assert found(plan_cached(GGUF, directory, None, listed_hashes)) == ()
    assert problems(cached(GGUF)) == {WEIGHTS: "not checked", "README.md": "not checked"}
    os.truncate(snapshot / WEIGHTS, 100)
    findings = found(plan_cached(GGUF, directory, None, listed_hashes))
    assert problems(findings) == {WEIGHTS: "truncated"}
    assert repaired(findings)[0].is_mended
    assert (snapshot / WEIGHTS).read_bytes() == server.repos[GGUF].files[WEIGHTS]


def test_nothing_is_set_aside_when_the_hub_cannot_be_asked(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    fetch_all(GGUF)
    blob(GGUF, WEIGHTS).write_bytes(b"damaged")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    (mended,) = repaired(cached(GGUF))
    assert (mended.is_mended, mended.set_aside) == (False, None)
    assert "no connection" in mended.detail
    assert blob(GGUF, WEIGHTS).read_bytes() == b"damaged"
    assert server.fetched()


def test_a_file_that_the_hub_no_longer_has_is_left_as_it_is(server: Hub) -> None:
    fetch_all(GGUF)
    blob(GGUF, "README.md").write_bytes(b"damaged")
    server.repos[GGUF] = Repo({WEIGHTS: server.repos[GGUF].files[WEIGHTS]}, revisions=(snapshots(GGUF)[0].commit,))
    (mended,) = repaired(cached(GGUF))
    assert not mended.is_mended
    assert "no longer" in mended.detail
    assert blob(GGUF, "README.md").read_bytes() == b"damaged"


def test_each_file_is_reported_by_its_own_outcome(server: Hub) -> None:
    fetch_all(SHARDS)
    names = ("config.json", shard(1), shard(3))
    for name in names:
        blob(SHARDS, name).write_bytes(b"damaged")
    server.faults = [Fault("status", status=404, name=shard(3), times=None)]
    mended = {one.finding.name: one for one in repaired(cached(SHARDS))}
    assert {name: one.is_mended for name, one in mended.items()} == {names[0]: True, names[1]: True, names[2]: False}
    assert f"has no {shard(3)}" in mended[shard(3)].detail
    assert all(one.set_aside is not None for one in mended.values())
    for name in names[:2]:
        assert blob(SHARDS, name).read_bytes() == server.repos[SHARDS].files[name]


@pytest.mark.usefixtures("server")
def test_a_file_that_cannot_be_set_aside_keeps_no_other_from_being_mended(monkeypatch: pytest.MonkeyPatch) -> None:
    fetch_all(SHARDS)
    first, second = blob(SHARDS, shard(1)), blob(SHARDS, shard(2))
    for path in (first, second):
        path.write_bytes(b"damaged")
    move = os.replace

    def refuse(source: Path, target: Path) -> None:
        if source == first:
            raise PermissionError(13, "Permission denied")
        move(source, target)

    monkeypatch.setattr(os, "replace", refuse)
    mended = {one.finding.name: one for one in repaired(cached(SHARDS))}
    assert (mended[shard(1)].is_mended, mended[shard(2)].is_mended) == (False, True)
    assert "cannot be set aside: Permission denied" in mended[shard(1)].detail


@pytest.mark.parametrize("is_unused", [False, True])
def test_a_damaged_file_that_another_process_fetches_is_left_to_it(server: Hub, is_unused: bool) -> None:
    fetch_all(GGUF)
    path = blob(GGUF, WEIGHTS)
    path.write_bytes(b"damaged")
    if is_unused:
        (repo_directory(GGUF) / "snapshots" / server.repos[GGUF].commit / WEIGHTS).unlink()
    with filelock.FileLock(lock_directory(repo_directory(GGUF)) / f"{path.name}.lock"):
        left = repaired(cached(GGUF))
    assert {one.detail for one in left if one.finding.path == path} == {
        f"Another process is fetching files of {GGUF}. Wait for it to end, or stop it."
    }
    assert not any(one.is_mended or one.set_aside for one in left)
    assert path.read_bytes() == b"damaged"


def test_what_is_not_the_hubs_is_left_with_what_can_be_done(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "away")
    (tmp_path / "file").write_bytes(b"damaged")
    lost, own = repaired(
        tuple(
            Finding(model="m", repo="", name=name, path=tmp_path / name, problem="wrong contents", detail="")
            for name in ("link", "file")
        )
    )
    assert (lost.is_mended, lost.detail) == (False, MOUNT)
    assert (own.is_mended, own.detail) == (False, f"it is not the hub's and cannot be fetched: {NOT_FETCHED}")
    assert (tmp_path / "file").read_bytes() == b"damaged"


def test_mending_that_is_cancelled_says_so_and_what_was_set_aside_stays(server: Hub) -> None:
    fetch_all(GGUF)
    path = blob(GGUF, WEIGHTS)
    path.write_bytes(b"damaged")
    server.faults = [Fault("stall", at=1000)]
    cancel = CancelToken()

    def press(state: hub.FetchState) -> None:
        if state.fetched_bytes:
            cancel.cancel()

    with pytest.raises(RunnerError, match="cancelled"):
        mend(cached(GGUF), on_progress=press, cancel=cancel, options=hub.FetchOptions())
    assert path.with_name(f"{path.name}.corrupt-1").read_bytes() == b"damaged"


def test_mending_that_is_cancelled_before_it_begins_leaves_the_damaged_file_where_it_is(server: Hub) -> None:
    fetch_all(GGUF)
    path = blob(GGUF, WEIGHTS)
    path.write_bytes(b"damaged")
    findings, cancel = cached(GGUF), CancelToken()
    cancel.cancel()
    server.requests.clear()
    with pytest.raises(RunnerError, match="cancelled"):
        mend(findings, on_progress=lambda _: None, cancel=cancel, options=hub.FetchOptions())
    assert path.read_bytes() == b"damaged"
    assert server.fetched() == []


@pytest.mark.usefixtures("server")
def test_where_there_is_no_room_to_fetch_it_is_said_where_the_damaged_file_is(monkeypatch: pytest.MonkeyPatch) -> None:
    fetch_all(GGUF)
    path = blob(GGUF, WEIGHTS)
    path.write_bytes(b"damaged")
    findings = cached(GGUF)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=0))
    (mended,) = repaired(findings)
    assert (mended.is_mended, mended.set_aside) == (False, path.with_name(f"{path.name}.corrupt-1"))
    assert "free" in mended.detail


@pytest.mark.usefixtures("server")
def test_checking_can_be_cancelled() -> None:
    fetch_all(GGUF)
    cancel = CancelToken()
    cancel.cancel()
    with pytest.raises(RunnerError, match="cancelled"):
        check(plan_cached(GGUF, repo_directory(GGUF), None, nobody), lambda _done, _total: None, cancel)


# --- by name ---


def test_a_quantization_means_its_files_alone(server: Hub) -> None:
    server.repos[GGUF].files["llama-Q4_0.gguf"] = b"other"
    fetch_all(GGUF)
    blob(GGUF, "llama-Q4_0.gguf").write_bytes(b"OTHER")
    registry = Registry.load_for()
    assert found(plan_of(registry.resolve(f"{GGUF}:Q8_0"), nobody)) == ()
    assert len(found(plan_of(registry.resolve(f"{GGUF}:Q4_0"), nobody))) == 1
    assert len(found(plan_of(registry.resolve(GGUF), nobody))) == 1


@pytest.mark.parametrize("name", ["fake", "nobody/nothing", "qwen3-8b", "qwen3-8b:Q8_0"])
def test_what_is_not_here_cannot_be_checked(name: str) -> None:
    with pytest.raises(UsageError):
        plan_of(Registry.load_for().resolve(name), nobody)
