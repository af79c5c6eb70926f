"""`runner pull`, as a user and as a program call it, against a hub on this machine."""

from __future__ import annotations

import io
import json
import time
from pathlib import Path

import filelock
import pytest
from hub_server import Fault, Hub
from pulled import GGUF, SHARDS, WEIGHTS, begin_fetch, blob, fetch_all, server, shard

from runner.cli import options
from runner.cli.app import main
from runner.errors import UsageError
from runner.hub_cache import repo_directory
from runner.hub_parts import lock_directory
from runner.paths import user_paths
from runner.types import Device

__all__ = ["server"]  # the fixture


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["pull", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


def test_a_model_is_fetched_and_its_path_is_the_output(capsys: pytest.CaptureFixture[str], server: Hub) -> None:
    code, out, err = run(capsys, GGUF)
    assert code == 0
    assert Path(out.strip()).read_bytes() == server.repos[GGUF].files[WEIGHTS]
    assert f"Fetching {GGUF}: {WEIGHTS}, 1." in err
    assert f"runner chat {GGUF}" in err
    assert server.sent_bytes(WEIGHTS) == len(server.repos[GGUF].files[WEIGHTS])


def test_a_large_model_is_estimated_before_it_is_fetched_and_not_when_it_goes_on(
    capsys: pytest.CaptureFixture[str], server: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runner.pull.SMALL_BYTES", 0)
    assert "it fits" in run(capsys, GGUF)[2]
    blob(GGUF, WEIGHTS).unlink()
    begin_fetch(GGUF, WEIGHTS, server)
    assert "it fits" not in run(capsys, GGUF)[2]


def test_what_is_no_model_is_fetched_with_a_warning(
    capsys: pytest.CaptureFixture[str], server: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runner.pull.SMALL_BYTES", 0)
    server.repos[GGUF].files[WEIGHTS] = b"no GGUF at all" * 100
    code, out, err = run(capsys, GGUF)
    assert code == 0
    assert "warning" in err
    assert Path(out.strip()).read_bytes() == server.repos[GGUF].files[WEIGHTS]


def test_a_complete_model_says_so_and_nothing_is_fetched(capsys: pytest.CaptureFixture[str], server: Hub) -> None:
    _, first, _ = run(capsys, GGUF)
    server.requests.clear()
    code, out, err = run(capsys, GGUF)
    assert (code, out) == (0, first)
    assert f"{GGUF} is complete" in err
    assert server.fetched() == []


def test_offline_and_pinned_models_are_complete_without_a_question(
    capsys: pytest.CaptureFixture[str], server: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(capsys, GGUF, "--offline")[0] == 3
    run(capsys, GGUF)
    server.requests.clear()
    for arguments in ([GGUF, "--offline"], [GGUF, "--revision", server.repos[GGUF].commit]):
        code, out, err = run(capsys, *arguments)
        assert (code, Path(out.strip()).name) == (0, WEIGHTS)
        assert "is complete" in err
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert run(capsys, GGUF)[0] == 0
    assert run(capsys, SHARDS)[0] == 3
    assert server.requests == []


def test_what_is_on_this_machine_anyway_needs_no_pull(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "demo", "fake")
    assert code == 0
    assert "demo is on this machine: there is nothing to fetch." in err
    assert run(capsys, "demo", "--revision", "main")[0] == 2


def test_a_directory_without_a_model_is_no_model_that_is_here(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, _, err = run(capsys, str(tmp_path))
    assert code == 1
    assert "has no GGUF and no safetensors weights." in err


def test_an_interrupted_pull_goes_on(capsys: pytest.CaptureFixture[str], server: Hub) -> None:
    here = begin_fetch(GGUF, WEIGHTS, server).stat().st_size
    answer = json.loads(run(capsys, GGUF, "--json")[1])["models"][0]
    assert answer["fetched_bytes"] == len(server.repos[GGUF].files[WEIGHTS]) - here
    assert blob(GGUF, WEIGHTS).read_bytes() == server.repos[GGUF].files[WEIGHTS]


def test_json_is_one_object_on_stdout_and_progress_as_ndjson(capsys: pytest.CaptureFixture[str], server: Hub) -> None:
    server.bytes_s = 2_000_000
    code, out, err = run(capsys, SHARDS, GGUF, "--json", "-j", "2")
    assert code == 0
    answer = json.loads(out)
    assert answer["schema"] == "runner.pull/1"
    shards, gguf = answer["models"]
    assert (shards["repo"], shards["commit"]) == (SHARDS, server.repos[SHARDS].commit)
    assert len(shards["weights"]) == 3
    assert all(Path(path).is_file() for path in shards["weights"] + gguf["weights"])
    assert gguf["files"][0]["size_bytes"] == len(server.repos[GGUF].files[WEIGHTS])
    states = [json.loads(line) for line in err.splitlines() if line.startswith("{")]
    assert {state["schema"] for state in states} == {"runner.progress/1"}
    last = [state for state in states if state["label"] == GGUF][-1]
    assert last["done"] == last["total"] == len(server.repos[GGUF].files[WEIGHTS])


def test_quiet_leaves_only_the_path(capsys: pytest.CaptureFixture[str], server: Hub) -> None:
    code, out, err = run(capsys, GGUF, "-q")
    assert (code, err) == (0, "")
    assert out.strip().endswith(WEIGHTS)
    assert server.fetched()


def test_a_newer_commit_is_fetched_and_said_so(capsys: pytest.CaptureFixture[str], server: Hub) -> None:
    run(capsys, SHARDS)
    old = server.repos[SHARDS].commit
    server.repos[SHARDS].files["config.json"] += b"\n"
    new = server.repos[SHARDS].commit
    code, _, err = run(capsys, SHARDS)
    assert code == 0
    assert f"main of {SHARDS} has moved from {old[:7]} to {new[:7]}: 1 of 7 files are new." in " ".join(err.split())


def test_an_estimate_fetches_no_weights(capsys: pytest.CaptureFixture[str], server: Hub) -> None:
    code, out, _ = run(capsys, GGUF, "--estimate-only")
    assert code == 0
    assert "to fetch" in out
    assert "weights" in out
    code, out, _ = run(capsys, GGUF, SHARDS, "--estimate-only", "--json")
    assert [json.loads(line)["schema"] for line in out.splitlines()] == ["runner.estimate/1"] * 2
    assert not repo_directory(GGUF).exists()
    assert server.sent_bytes(WEIGHTS) <= 2 * len(server.repos[GGUF].files[WEIGHTS])


def test_a_model_that_does_not_fit_is_refused_before_anything_is_fetched(
    capsys: pytest.CaptureFixture[str], server: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = Device(kind="cpu", index=0, name="a small machine", total_bytes=2**20, free_bytes=2**20)
    for place in ("runner.preview.devices", "runner.machine.devices"):
        monkeypatch.setattr(place, lambda: (tiny,))
    code, out, err = run(capsys, GGUF)
    assert (code, out) == (4, "")
    assert "--force" in err
    assert not repo_directory(GGUF).exists()
    code, out, err = run(capsys, GGUF, "--force")
    assert code == 0
    assert "warning" in err
    assert Path(out.strip()).stat().st_size == len(server.repos[GGUF].files[WEIGHTS])


def test_contents_that_are_wrong_twice_exit_5(capsys: pytest.CaptureFixture[str], server: Hub) -> None:
    size = len(server.repos[GGUF].files[WEIGHTS])
    server.faults = [Fault("flip", at=size - 1, name=WEIGHTS, times=None)]
    code, out, err = run(capsys, GGUF)
    assert (code, out) == (5, "")
    assert "hint" in err


def test_why_nothing_arrives_is_said_once_for_all_files(capsys: pytest.CaptureFixture[str], server: Hub) -> None:
    names = [shard(1), shard(2)]
    server.faults = [Fault("status", status=500, method="HEAD", name=name, times=2) for name in names]
    code, _, err = run(capsys, SHARDS)
    assert code == 0
    assert err.count("Trying again in ") == 1
    assert f"The hub answered 500 for {SHARDS}. Trying again in 1 s.\n" in err


def test_every_name_is_understood_before_anything_is_fetched(capsys: pytest.CaptureFixture[str], server: Hub) -> None:
    assert run(capsys, GGUF, "no-such-model")[0] == 2
    assert server.requests == []


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["nobody/nothing"], 2, "no repository"),
        ([f"{GGUF}:Q2_K"], 2, "Q8_0"),
        ([GGUF, "--revision", "v9"], 2, "no revision"),
        ([GGUF, "--limit-rate", "fast"], 2, "10M"),
        ([GGUF, "-j", "0"], 2, "--parallel is 0.\nhint: It must be a whole number from 1 to 64."),
        ([], 2, "MODEL"),
    ],
)
@pytest.mark.usefixtures("server")
def test_what_is_wrong_is_said_with_a_remedy(
    capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, words: str
) -> None:
    found, out, err = run(capsys, *arguments)
    assert (found, out) == (code, "")
    assert words in err


def test_file_names_of_a_repository_do_not_act_on_the_terminal(capsys: pytest.CaptureFixture[str], server: Hub) -> None:
    server.repos[GGUF].files["\x1b]0;owned\x07-Q4_0.gguf"] = b"x"
    code, _, err = run(capsys, GGUF)
    assert code == 1
    assert "unsafe name" in err
    assert "\x1b" not in err


def test_a_limited_rate_is_kept(capsys: pytest.CaptureFixture[str], server: Hub) -> None:
    began = time.monotonic()
    assert run(capsys, SHARDS, "--limit-rate", "500k", "-q")[0] == 0
    size = sum(len(data) for data in server.repos[SHARDS].files.values())
    assert time.monotonic() - began > 0.6 * size / 500_000


@pytest.mark.parametrize(
    ("text", "rate"), [("500", 500), ("500k", 500_000), ("10M", 10**7), ("1.5G", 1_500_000_000), ("2 MB/s", 2 * 10**6)]
)
def test_rates_are_read_as_people_write_them(text: str, rate: int) -> None:
    assert options.rate_bytes_s(text) == rate


@pytest.mark.parametrize("text", ["", "0", "-1", "1T", "k", "0.0001", "1e9", "ten", "9" * 400])
def test_other_rates_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--limit-rate"):
        options.rate_bytes_s(text)


# --- what ls and rm make of it ---


def test_ls_shows_partial_and_damaged_models_and_what_to_do(capsys: pytest.CaptureFixture[str], server: Hub) -> None:
    part = begin_fetch(GGUF, WEIGHTS, server).stat().st_size
    fetch_all(SHARDS)
    for number in (1, 2, 3):
        blob(SHARDS, f"model-{number:05d}-of-00003.safetensors").unlink()
    assert main(["ls"]) == 0
    out, err = capsys.readouterr()
    states = {line.split()[0]: line for line in out.splitlines()}
    assert f"partial {100 * part // len(server.repos[GGUF].files[WEIGHTS])} %" in states[f"{GGUF}:Q8_0"]
    assert "damaged" in states[SHARDS]
    assert "complete" in states["demo"]
    assert f"runner pull {GGUF}:Q8_0" in err
    assert f"runner verify {SHARDS} --repair" in err
    main(["ls", "--json"])
    models = {one["name"]: one for one in json.loads(capsys.readouterr().out)["models"]}
    assert models[f"{GGUF}:Q8_0"]["state"] == "partial"
    assert (models[SHARDS]["num_here"], models[SHARDS]["num_files"]) == (0, 3)


def test_the_names_that_ls_gives_to_partial_models_can_be_pulled_and_removed(
    capsys: pytest.CaptureFixture[str], server: Hub
) -> None:
    begin_fetch(GGUF, WEIGHTS, server)
    main(["ls", "--json"])
    name = next(one["name"] for one in json.loads(capsys.readouterr().out)["models"] if one["state"] == "partial")
    assert run(capsys, name)[0] == 0
    assert main(["rm", "-y", name]) == 0
    assert not repo_directory(GGUF).exists()


@pytest.mark.parametrize("command", ["pull", "explain", "show", "run"])
def test_offline_what_was_begun_is_not_said_to_be_absent(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, server: Hub, command: str
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO()))

    def told(name: str) -> str:
        main([command, name, *(["hi"] if command == "run" else []), "--offline"])
        return capsys.readouterr().err

    begin_fetch(GGUF, WEIGHTS, server)
    assert f"{GGUF} is not whole on this machine" in told(GGUF)
    assert f"{SHARDS} is not on this machine" in told(SHARDS)


def test_rm_partial_frees_what_was_begun_and_keeps_models(capsys: pytest.CaptureFixture[str], server: Hub) -> None:
    fetch_all(SHARDS)
    size = begin_fetch(GGUF, WEIGHTS, server).stat().st_size
    assert main(["rm", "--partial", "-y", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["freed_bytes"] == size
    assert main(["rm", "--partial", "-y"]) == 0
    assert "nothing unfinished" in capsys.readouterr().err
    assert main(["du"]) == 0
    assert GGUF not in capsys.readouterr().out
    assert main(["rm", "-y"]) == 2
    assert blob(SHARDS, "config.json").is_file()
    assert not user_paths().models.exists()


def test_rm_partial_passes_over_what_is_being_fetched_and_says_so(
    capsys: pytest.CaptureFixture[str], server: Hub
) -> None:
    """The first of two: the other is deleted all the same, and what that freed is told."""
    busy = begin_fetch(GGUF, WEIGHTS, server)
    other = repo_directory("z/other") / "blobs" / "abc.incomplete"
    other.parent.mkdir(parents=True)
    other.write_bytes(bytes(1000))
    locks = lock_directory(repo_directory(GGUF))
    with filelock.FileLock(locks / f"{busy.name.partition('.')[0]}.lock"):
        assert main(["rm", "--partial", "-y"]) == 3
        err = capsys.readouterr().err
        assert f"{GGUF}, 1 partial download was not deleted: Another process is fetching" in err
        assert "Freed 1.0 kB" in err
        assert busy.is_file()
        assert not repo_directory("z/other").exists()
        other.parent.mkdir(parents=True)
        other.write_bytes(bytes(1000))
        assert main(["rm", "--partial", "-y", "--json"]) == 3
    answer = json.loads(capsys.readouterr().out)
    assert [one["name"] for one in answer["removed"]] == ["z/other, 1 partial download"]
    assert [one["name"] for one in answer["skipped"]] == [f"{GGUF}, 1 partial download"]
    assert "is fetching" in answer["skipped"][0]["reason"]
    assert answer["freed_bytes"] == 1000
