"""`runner verify` and `runner du`, as a user and as a program call them."""

from __future__ import annotations

import io
import json
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hub_server import Fault, Hub
from pulled import GGUF, SHARDS, WEIGHTS, begin_fetch, blob, fetch_all, server, shard
from tiny_files import write_gguf, write_safetensors

from runner.cli import completing
from runner.cli.app import main
from runner.errors import RunnerError
from runner.model_files import weight_bytes
from runner.paths import user_paths

__all__ = ["server"]  # the fixture


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(arguments)
    out, err = capsys.readouterr()
    return code, out, err


def damage(repo: str, name: str) -> None:
    blob(repo, name).write_bytes(b"damaged")


@pytest.mark.parametrize("arguments", [[], ["--all"], [SHARDS], [SHARDS, SHARDS]])
def test_sound_models_exit_0_offline_with_an_empty_output(
    capsys: pytest.CaptureFixture[str], server: Hub, arguments: list[str]
) -> None:
    fetch_all(SHARDS)
    server.requests.clear()
    code, out, err = run(capsys, "verify", *arguments, "--offline")
    assert (code, out) == (0, "")
    assert "none is damaged" in err
    assert server.requests == []


def test_damage_exits_5_and_names_file_and_remedy(capsys: pytest.CaptureFixture[str], server: Hub) -> None:
    fetch_all(SHARDS)
    damage(SHARDS, "config.json")
    code, out, err = run(capsys, "verify")
    assert code == 5
    assert out.startswith(f"{SHARDS}: config.json: wrong contents: ")
    assert f"runner verify {SHARDS} --repair" in err
    assert run(capsys, "verify", SHARDS, "--quiet")[0] == 5
    assert server.fetched()


def test_repair_says_what_it_did_and_exits_0(capsys: pytest.CaptureFixture[str], server: Hub) -> None:
    fetch_all(SHARDS)
    damage(SHARDS, "config.json")
    server.faults = [Fault("status", status=500, name="config.json", times=2)]
    code, out, err = run(capsys, "verify", "--repair")
    assert code == 0
    assert "fetched again" in out
    assert ".corrupt-1" in err
    assert f"The hub answered 500 for {SHARDS}. Trying again in 1 s.\n" in err
    assert blob(SHARDS, "config.json").read_bytes() == server.repos[SHARDS].files["config.json"]
    code, out, _ = run(capsys, "verify")
    assert (code, "set aside" in out) == (0, True)


def test_an_absent_file_exits_5_and_repair_fetches_it(capsys: pytest.CaptureFixture[str], server: Hub) -> None:
    snapshot = fetch_all(SHARDS)
    (snapshot / shard(2)).unlink()
    code, out, err = run(capsys, "verify", "--offline")
    assert (code, out) == (5, f"{SHARDS}: {shard(2)}: missing: the model needs it, and it is not here\n")
    assert f"1 file is missing.\nhint: `runner verify {SHARDS} --repair` fetches it again." in err
    assert run(capsys, "verify", "--repair")[0] == 0
    assert (snapshot / shard(2)).read_bytes() == server.repos[SHARDS].files[shard(2)]
    damage(SHARDS, shard(1))
    (snapshot / shard(2)).unlink()
    assert "2 files are damaged or missing." in run(capsys, "verify")[2]


def test_a_repair_that_fails_exits_5_and_says_why(capsys: pytest.CaptureFixture[str], server: Hub) -> None:
    fetch_all(SHARDS)
    damage(SHARDS, "config.json")
    del server.repos[SHARDS]
    code, out, err = run(capsys, "verify", "--repair")
    assert code == 5
    assert "not repaired: There is no repository" in out
    assert "1 file is damaged" in err
    assert blob(SHARDS, "config.json").read_bytes() == b"damaged"


def test_a_repair_that_is_stopped_says_what_is_kept_and_the_next_one_ends_its_download(
    capsys: pytest.CaptureFixture[str], server: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch_all(GGUF)
    damage(GGUF, WEIGHTS)

    def press(*_arguments: Any, **_options: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        raise RunnerError("The download was cancelled.")

    with monkeypatch.context() as patch:
        patch.setattr("runner.mend.mend", press)
        code, _, err = run(capsys, "verify", "--repair")
    assert (code, err) == (130, "Stopped. What has arrived is kept: the same command goes on from there.\n")
    blob(GGUF, WEIGHTS).unlink()
    begin_fetch(GGUF, WEIGHTS, server)
    code, out, err = run(capsys, "verify", "--repair")
    assert code == 0
    assert "fetched again" in out
    assert "partial download" not in out + err


def test_json_lists_findings_with_what_became_of_them(capsys: pytest.CaptureFixture[str], server: Hub) -> None:
    fetch_all(SHARDS)
    begin_fetch(GGUF, WEIGHTS, server)
    damage(SHARDS, "config.json")
    code, out, _ = run(capsys, "verify", "--json")
    answer = json.loads(out)
    assert (code, answer["schema"]) == (5, "runner.verify/1")
    assert [(one["file"], one["problem"], one["is_damage"], one["is_repaired"]) for one in answer["findings"]] == [
        (WEIGHTS, "partial download", False, False),
        ("config.json", "wrong contents", True, False),
    ]
    code, out, _ = run(capsys, "verify", "--json", "--repair")
    assert code == 0
    repaired = [one for one in json.loads(out)["findings"] if one["is_damage"]]
    assert [(one["is_repaired"], Path(one["set_aside"]).read_bytes()) for one in repaired] == [(True, b"damaged")]


@pytest.mark.parametrize(
    "arguments",
    [["nobody/nothing"], ["qwen3-8b"], ["fake"], ["--all", "demo"], ["--repair", "--offline"], ["nonsense"]],
)
def test_wrong_usage_exits_2(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    code, out, err = run(capsys, "verify", *arguments)
    assert (code, out) == (2, "")
    assert "hint" in err


def test_a_model_without_hashes_is_said_to_be_unchecked(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "verify", "demo")
    assert (code, err) == (0, "There was nothing to check.\n")
    assert out.startswith("demo: not checked: there are no hashes")


def test_a_model_made_here_whose_weights_are_gone_is_damaged_to_all(capsys: pytest.CaptureFixture[str]) -> None:
    directory = user_paths().models / "my model"
    directory.mkdir(parents=True)
    (directory / "config.json").write_text("{}")
    _, out, err = run(capsys, "ls")
    assert any(line.startswith("my model ") and "damaged" in line for line in out.splitlines())
    assert "Damaged: make it again with `runner quantize MODEL -t FORMAT --force`" in err
    assert "or delete it with `runner rm 'my model'`." in err
    code, out, err = run(capsys, "verify", "my model")
    assert (code, out) == (5, "my model: missing: it has no weights\n")
    assert "runner quantize" in err
    assert "my model" in run(capsys, "du")[1]
    assert run(capsys, "rm", "-y", "my model")[0] == 0
    assert not directory.exists()


@pytest.mark.parametrize(
    "hurt", [lambda data: data[:-1], lambda data: data[:100], lambda data: data[:0], lambda data: b"x" + data[1:]]
)
@pytest.mark.parametrize("form", ["gguf", "safetensors"])
def test_weights_made_here_that_their_header_tells_to_be_damaged_are_so_to_all(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, form: str, hurt: Callable[[bytes], bytes]
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO()))
    directory = write_safetensors(user_paths().models / "mine")
    if form == "gguf":
        write_gguf(directory / "mine.gguf")
        (directory / "model.safetensors").unlink()
    (weights,) = [path for path in directory.iterdir() if path.suffix == f".{form}"]
    assert [one["state"] for one in json.loads(run(capsys, "ls", "--json")[1])["models"]] == ["complete", "complete"]
    assert run(capsys, "verify", "mine")[0] == 0
    weights.write_bytes(hurt(weights.read_bytes()))
    assert [one["state"] for one in json.loads(run(capsys, "ls", "--json")[1])["models"]] == ["complete", "damaged"]
    assert run(capsys, "ls")[2].startswith("Damaged: make it again with `runner quantize MODEL -t FORMAT --force`")
    for arguments in (["verify", "mine"], ["verify"]):
        code, out, err = run(capsys, *arguments)
        assert (code, out.partition(" contents: ")[0]) == (5, f"mine: {weights.name}: wrong")
        assert "make it again with `runner quantize MODEL -t FORMAT --force`" in err
    for command in ("run mine hi", "show mine", "explain mine", "quantize mine -t q8_0"):
        code, out, err = run(capsys, *command.split())
        assert (code, out) == (1, "")
        assert "\nhint: It was made here: make it again with `runner quantize MODEL -t FORMAT --force`.\n" in err


@pytest.mark.usefixtures("server")
def test_the_remedy_that_damaged_weights_of_the_hub_are_told_with_mends_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    fetch_all(GGUF)
    damaged = blob(GGUF, WEIGHTS)
    damaged.write_bytes(b"XXXX" + damaged.read_bytes()[4:])
    assert run(capsys, "pull", GGUF)[0] == 0  # it goes by sizes
    code, _, err = run(capsys, "show", GGUF)
    assert (code, "`runner verify --repair`" in err) == (1, True)
    assert run(capsys, "verify", "--repair")[0] == 0
    assert run(capsys, "show", GGUF)[0] == 0


def test_damaged_weights_that_were_not_made_here_are_not_said_to_be(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    own = write_gguf(tmp_path / "own.gguf")
    own.write_bytes(own.read_bytes()[:-1])
    code, out, err = run(capsys, "verify", str(own))
    assert (code, out.partition(" contents: ")[0]) == (5, "own.gguf: wrong")
    assert err.startswith("error: 1 file is damaged.\n")  # and no "Checked 0 files": none was hashed
    assert "fetch it again" in run(capsys, "show", str(own))[2]


def test_hostile_names_in_the_cache_do_not_act_on_the_terminal(capsys: pytest.CaptureFixture[str], server: Hub) -> None:
    snapshot = fetch_all(SHARDS)
    (snapshot / "a\x1b]0;owned\x07\nb.gguf").symlink_to("../../blobs/gone\x1b[2J")
    code, out, _ = run(capsys, "verify")
    assert code == 5
    assert len(out.splitlines()) == 1
    assert "\x1b" not in out
    assert "\x1b" not in run(capsys, "ls")[1]
    assert server.fetched()


@pytest.mark.parametrize("name", [GGUF, f"{GGUF}:q8_0"])
def test_show_of_a_download_that_was_interrupted_says_how_far_it_is_and_how_to_go_on(
    capsys: pytest.CaptureFixture[str], server: Hub, name: str
) -> None:
    assert "not on this machine" in run(capsys, "show", name)[1]
    begin_fetch(GGUF, WEIGHTS, server)
    _, out, _ = run(capsys, "show", name)
    assert "not on this machine" not in out
    assert re.search(r"state +partial \d+ %\n", out)
    assert f"`runner pull {GGUF}:Q8_0` goes on with it" in out
    code, out, err = run(capsys, "show", name, "--template")
    assert (code, out) == (2, "")
    assert re.search(r"is not whole on this machine \(partial \d+ %\), and its template is in its files", err)
    assert f"hint: `runner pull {GGUF}:Q8_0` goes on with it" in err
    assert json.loads(run(capsys, "show", name, "--json")[1])["state"] == "partial"
    code, _, err = run(capsys, "show", f"{GGUF}:Q4_0", "--json")
    assert (code, "It has: Q8_0." in err) == (2, True)


def test_du_sums_up_and_says_what_could_be_freed(capsys: pytest.CaptureFixture[str], server: Hub) -> None:
    fetch_all(SHARDS)
    part = begin_fetch(GGUF, WEIGHTS, server).stat().st_size
    code, out, err = run(capsys, "du")
    assert code == 0
    lines = out.splitlines()
    assert lines[0].split() == ["ON", "DISK", "PARTIAL", "SET", "ASIDE", "KIND", "MODEL"]
    assert {line.split()[-1] for line in lines[1:3]} == {SHARDS, GGUF}
    assert lines[3].endswith("in all")
    assert "are free on the disk of" in lines[4]
    assert "rm --partial" in err
    answer = json.loads(run(capsys, "du", "--json")[1])
    assert answer["schema"] == "runner.du/1"
    assert answer["disk_bytes"] == sum(use["disk_bytes"] for use in answer["uses"])
    assert [use["partial_bytes"] for use in answer["uses"] if use["name"] == GGUF] == [part]


def test_the_size_of_a_model_is_that_of_its_weights_and_what_all_files_take_is_called_on_disk(
    capsys: pytest.CaptureFixture[str], server: Hub
) -> None:
    files = {name: len(data) for name, data in server.repos[SHARDS].files.items()}
    fetch_all(SHARDS)
    (model,) = [one for one in json.loads(run(capsys, "ls", "--json")[1])["models"] if one["repo"] == SHARDS]
    (use,) = json.loads(run(capsys, "du", "--json")[1])["uses"]
    assert model["size_bytes"] == weight_bytes(files.items()) < sum(files.values()) <= use["disk_bytes"]
    assert run(capsys, "ls")[1].splitlines()[0].split()[:3] == ["MODEL", "QUANT", "SIZE"]
    assert " on the disk\n" in run(capsys, "rm", "-y", SHARDS)[2]


def test_du_on_a_fresh_machine_has_nothing_but_the_disk(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "du")
    assert (code, err) == (0, "")
    assert "0 B" in out.splitlines()[1]


def test_du_shows_what_was_half_made_and_rm_partial_deletes_it(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("one-mq4", "two-mq4"):
        partial = user_paths().models / f"{name}.partial"
        partial.mkdir(parents=True)
        (partial / "journal.jsonl").write_bytes(bytes(1000))
    assert "`runner rm --partial` deletes what is unfinished." in run(capsys, "du")[2]
    (user_paths().models / "three-mq4.partial").mkdir()
    assert run(capsys, "rm", "-y", "three-mq4.partial")[0] == 0  # as du names it
    assert run(capsys, "rm", "-y", "three-mq4")[0] == 2
    assert run(capsys, "rm", "-y", "--partial", "one-mq4", "--json")[0] == 0
    assert [path.name for path in user_paths().models.iterdir()] == ["two-mq4.partial"]
    code, _, err = run(capsys, "rm", "-y", "--partial")
    assert (code, err) == (0, "two-mq4, unfinished: 1.0 kB on the disk\nFreed 1.0 kB.\n")
    assert list(user_paths().models.iterdir()) == []


def test_du_shows_drafters_and_rm_deletes_one(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("demo-eagle3", "demo-normed"):
        head = user_paths().drafts / name
        head.mkdir(parents=True)
        (head / "model.safetensors").write_bytes(bytes(1000))
    lines = run(capsys, "du")[1].splitlines()[1:3]
    assert [line.split() for line in lines] == [
        ["1.0", "kB", "drafter", "demo-eagle3"],
        ["1.0", "kB", "drafter", "demo-normed"],
    ]
    assert ("demo-normed", "a drafter made here") in completing.removable("demo")
    code, _, err = run(capsys, "rm", "-y", "demo-normed")
    assert (code, err) == (0, "demo-normed, drafter: 1.0 kB on the disk\nFreed 1.0 kB.\n")
    assert [path.name for path in user_paths().drafts.iterdir()] == ["demo-eagle3"]
    model = user_paths().models / "demo-eagle3"
    model.mkdir(parents=True)
    assert run(capsys, "rm", "-y", "demo-eagle3", str(user_paths().drafts / "demo-eagle3"))[0] == 0
    assert not [place for place in (model, user_paths().drafts / "demo-eagle3") if place.exists()]
