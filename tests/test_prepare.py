"""From specs to files that are ready to load: local ones, models made here, cached ones, and fetched ones."""

from __future__ import annotations

import json
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hub_server import Fault, Hub, Repo, serving
from tiny_files import read_tree, write_gguf, write_safetensors

from runner.errors import BadModelFile, BusyError, RunnerError, UnsupportedModel, UsageError
from runner.events import Notice, Progress
from runner.hub_cache import hub_settings
from runner.paths import user_paths
from runner.prepare import expected_path, ready, sampling_defaults, stop_ids
from runner.quant.quantize import made_name
from runner.registry import Registry
from runner.types import CancelToken, ReadyModel

GGUF, ORIGINAL = "tiny/tiny-GGUF", "tiny/tiny"
USER_FILE = f"""
[tiny]
gguf = "{GGUF}"
file = "tiny-{{quant}}.gguf"
quants = ["Q4_0", "Q8_0"]
quant = "Q4_0"
repo = "{ORIGINAL}"
"""


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    served = tmp_path / "served"
    for quant, hidden in (("Q4_0", 32), ("Q8_0", 64)):
        write_gguf(served / "gguf" / f"tiny-{quant}.gguf", hidden=hidden)
    write_safetensors(served / "hf", shards=2)
    repos = {GGUF: Repo(read_tree(served / "gguf")), ORIGINAL: Repo(read_tree(served / "hf"))}
    user_paths().user_models_file.parent.mkdir(parents=True)
    user_paths().user_models_file.write_text(USER_FILE)
    with serving(Hub(repos=repos)) as running:
        monkeypatch.setenv("HF_ENDPOINT", running.url)
        yield running


def prepare(text: str, *, offline: bool = False) -> tuple[ReadyModel, list[Progress | Notice]]:
    events: list[Progress | Notice] = []
    model = ready(Registry.load_for().resolve(text), offline=offline, on_event=events.append, cancel=CancelToken())
    return model, events


def test_what_is_made_of_a_model_is_called_the_same_before_it_is_fetched(server: Hub) -> None:
    named = {"tiny:safetensors": "tiny-mq4", ORIGINAL: "tiny-mq4", "tiny:Q8_0": "tiny-mq4", "tiny": "tiny-Q4_0-mq4"}
    for text, name in named.items():
        assert made_name(expected_path(Registry.load_for().resolve(text)), "mq4") == name
    assert server.fetched() == []
    for text, name in named.items():
        model = prepare(text)[0]
        source = expected_path(Registry.load_for().resolve(text))
        assert source == (model.weights[0] if model.format == "gguf" else model.directory)
        assert made_name(source, "mq4") == name


# --- what is here ---


def test_the_demo_is_ready_without_the_network(demo_directory: Path) -> None:
    model, events = prepare("demo", offline=True)
    assert model.weights == (demo_directory / "demo-q8_0.gguf",)
    assert (model.name, model.format, model.directory) == ("demo", "gguf", demo_directory)
    assert model.size_bytes == model.weights[0].stat().st_size
    assert model.sampling == {"temperature": 0.7, "top_p": 0.9}
    assert events == []


def test_a_gguf_file_by_its_path(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "x-F16.gguf")
    model, _ = prepare(str(path))
    assert (model.name, model.weights, model.directory) == ("x-F16.gguf", (path,), tmp_path)


def test_any_part_of_a_split_gguf_means_all_of_it(tmp_path: Path) -> None:
    parts = [write_gguf(tmp_path / f"x-F16-{number:05d}-of-00002.gguf") for number in (1, 2)]
    assert prepare(str(parts[1]))[0].weights == tuple(parts)
    parts[0].unlink()
    with pytest.raises(BadModelFile, match="missing"):
        prepare(str(parts[1]))


def test_a_directory_with_one_gguf_prefers_it_to_safetensors(tmp_path: Path) -> None:
    directory = write_safetensors(tmp_path / "m")
    assert prepare(str(directory))[0].format == "safetensors"
    path = write_gguf(directory / "x-F16.gguf")
    assert prepare(str(directory))[0].weights == (path,)


def test_a_directory_with_several_gguf_models_asks_for_one(tmp_path: Path) -> None:
    for quant in ("Q4_0", "Q8_0"):
        write_gguf(tmp_path / "m" / f"x-{quant}.gguf")
    with pytest.raises(UsageError, match=r"x-Q4_0.gguf, x-Q8_0.gguf") as caught:
        prepare(str(tmp_path / "m"))
    assert str(tmp_path / "m" / "x-Q4_0.gguf") in caught.value.hint


def test_safetensors_in_shards_are_ready_in_order(tmp_path: Path) -> None:
    directory = write_safetensors(tmp_path / "m", shards=3)
    model, _ = prepare(str(directory))
    assert [path.name[:11] for path in model.weights] == ["model-00001", "model-00002", "model-00003"]
    assert model.sampling == {"temperature": 0.6, "top_k": 20, "repeat_penalty": 1.1}
    assert model.size_bytes == sum(path.stat().st_size for path in model.weights)


def test_a_safetensors_file_by_its_path_needs_its_configuration(tmp_path: Path) -> None:
    directory = write_safetensors(tmp_path / "m")
    assert prepare(str(directory / "model.safetensors"))[0].directory == directory
    (directory / "config.json").unlink()
    with pytest.raises(BadModelFile, match=r"no config.json"):
        prepare(str(directory / "model.safetensors"))


def test_pickles_are_refused_by_path_and_in_directories(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    for text in (str(tmp_path), str(tmp_path / "pytorch_model.bin")):
        with pytest.raises(UnsupportedModel, match="pickle"):
            prepare(text)


def test_other_files_and_vanished_ones_are_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(UsageError, match="no model file"):
        prepare(str(tmp_path / "notes.txt"))
    (tmp_path / "a tiny.hfq").write_text("")
    with pytest.raises(UnsupportedModel, match="hipfire") as caught:
        prepare(str(tmp_path / "a tiny.hfq"))
    assert f"runner quantize '{tmp_path}/a tiny.hfq'" in caught.value.hint
    user_paths().user_models_file.parent.mkdir(parents=True)
    user_paths().user_models_file.write_text('[gone]\npath = "gone.bin2"\n')
    with pytest.raises(BadModelFile, match="does not exist"):
        prepare("gone")


def test_a_model_made_here_is_found_by_its_name() -> None:
    path = write_gguf(user_paths().models / "mine" / "mine-q4_0.gguf")
    model, _ = prepare("mine", offline=True)
    assert (model.name, model.weights) == ("mine", (path,))


def test_a_model_made_here_without_weights_is_to_be_made_again() -> None:
    path = user_paths().models / "mine"
    path.mkdir(parents=True)
    (path / "config.json").write_text("{}")
    with pytest.raises(BadModelFile, match="mine has no weights") as caught:
        prepare("mine", offline=True)
    assert "runner quantize MODEL -t FORMAT --force" in caught.value.hint


def test_the_fake_model_and_a_script_are_ready(tmp_path: Path) -> None:
    script = tmp_path / "talk.script.json"
    script.write_text(json.dumps({"replies": ["hi"]}))
    assert prepare("fake")[0].format == "script"
    assert prepare(str(script))[0].weights == (script,)


# --- headers ---


@pytest.mark.parametrize("cut", [0, 3, 100])
def test_a_truncated_gguf_is_refused_before_anything_is_loaded(tmp_path: Path, cut: int) -> None:
    path = write_gguf(tmp_path / "x.gguf")
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(BadModelFile):
        prepare(str(path))


def test_the_header_of_every_shard_is_checked(tmp_path: Path) -> None:
    directory = write_safetensors(tmp_path / "m", shards=2)
    second = directory / "model-00002-of-00002.safetensors"
    second.write_bytes((2**60).to_bytes(8, "little") + b"{}")
    with pytest.raises(BadModelFile, match=second.name):
        prepare(str(directory))


# --- sampling ---


@pytest.mark.parametrize(
    ("plain", "values", "ignored"),
    [
        ({"temperature": 1.0, "top_p": 0.8, "min_p": 0.1}, {"temperature": 1.0, "top_p": 0.8, "min_p": 0.1}, ()),
        ({"do_sample": False, "temperature": 0.7}, {"temperature": 0.0}, ()),
        ({"repetition_penalty": 1.05, "top_k": 20.0}, {"repeat_penalty": 1.05, "top_k": 20}, ()),
        ({"temperature": -1, "top_p": 7, "top_k": 5}, {"top_k": 5}, ("temperature", "top_p")),
        ({"temperature": "hot", "top_k": True, "top_p": None, "eos_token_id": [1, 2]}, {}, ()),
        ({"temperature": float("nan"), "min_p": float("inf")}, {}, ()),
    ],
)
def test_generation_config_becomes_sampling_params(
    tmp_path: Path, plain: dict[str, object], values: dict[str, float], ignored: tuple[str, ...]
) -> None:
    path = tmp_path / "generation_config.json"
    path.write_text(json.dumps(plain))
    assert sampling_defaults(path) == (values, ignored)


def test_unusable_sampling_values_are_said_so(tmp_path: Path) -> None:
    directory = write_safetensors(tmp_path / "m", generation={"top_p": 7})
    model, events = prepare(str(directory))
    assert model.sampling == {}
    assert [event.text for event in events if isinstance(event, Notice)] == [
        "generation_config.json has sampling values that cannot be used: top_p."
    ]


def test_a_gguf_brings_its_own_sampling_and_a_file_beside_it_overrules(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "x.gguf", sampling=True)
    assert prepare(str(path))[0].sampling == {"temperature": 0.6, "top_k": 7}
    (tmp_path / "generation_config.json").write_text('{"temperature": 0.2}')
    assert prepare(str(path))[0].sampling == {"temperature": 0.2, "top_k": 7}


@pytest.mark.parametrize("text", ["[]", "{", "\xff", "[" * 100_000])
def test_a_broken_generation_config_is_named(tmp_path: Path, text: str) -> None:
    directory = write_safetensors(tmp_path / "m")
    (directory / "generation_config.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(BadModelFile, match=r"generation_config.json"):
        prepare(str(directory))


# --- fetching ---


def test_a_missing_model_is_fetched_with_progress_and_then_found_offline(server: Hub) -> None:
    model, events = prepare("tiny")
    assert server.fetched() == ["tiny-Q4_0.gguf"]
    assert isinstance(events[0], Notice)
    assert "tiny-Q4_0.gguf" in events[0].text
    size = len(server.repos[GGUF].files["tiny-Q4_0.gguf"])
    assert events[-1] == Progress("download", size, size, "bytes")
    server.requests.clear()
    assert prepare("tiny", offline=True) == (model, [])
    assert prepare("tiny") == (model, [])
    assert server.requests == []


def test_why_nothing_arrives_is_told_once_from_the_second_failure_on(server: Hub) -> None:
    server.faults = [Fault("status", status=500, method="HEAD", name="tiny-Q4_0.gguf", times=2)]
    _, events = prepare("tiny")
    told = [event.text for event in events if isinstance(event, Notice) and event.level == "warning"]
    assert told == [f"The hub answered 500 for {GGUF}. Trying again in 1 s."]


def test_another_quantization_and_the_original_are_fetched_when_asked_for(server: Hub) -> None:
    eight, _ = prepare("tiny:q8_0")
    original, _ = prepare("tiny:safetensors")
    assert (eight.name, eight.weights[0].name) == ("tiny:Q8_0", "tiny-Q8_0.gguf")
    assert (original.format, len(original.weights)) == ("safetensors", 2)
    assert {path.name for path in original.directory.iterdir()} == set(server.repos[ORIGINAL].files)


def test_a_repository_by_its_name_takes_gguf_or_safetensors(server: Hub) -> None:
    server.repos["other/unknown"] = server.repos[ORIGINAL]
    assert prepare("other/unknown")[0].format == "safetensors"
    assert prepare(f"{GGUF}:Q8_0")[0].format == "gguf"
    assert prepare(ORIGINAL, offline=False)[0].format == "safetensors"


def test_offline_says_what_is_missing(server: Hub) -> None:
    with pytest.raises(BusyError, match=r"tiny:Q8_0 is not on this machine") as caught:
        prepare("tiny:Q8_0", offline=True)
    assert caught.value.exit_code == 3
    assert "--offline" in caught.value.hint
    assert server.requests == []


def test_half_fetched_shards_are_completed(server: Hub) -> None:
    first, _ = prepare("tiny:safetensors")
    first.weights[1].unlink()
    with pytest.raises(BusyError):
        prepare("tiny:safetensors", offline=True)
    server.requests.clear()
    again, _ = prepare("tiny:safetensors")
    assert again == first
    # The blob was still there: only the link to it had to be made again.
    assert server.fetched() == []


def test_a_cancelled_download_stops_and_leaves_nothing_half_made(server: Hub) -> None:
    server.bytes_s = 100
    cancel = CancelToken()

    def on_event(event: Progress | Notice) -> None:
        if isinstance(event, Progress) and event.done:
            cancel.cancel()

    spec = Registry.load_for().resolve("tiny:safetensors")
    with pytest.raises(RunnerError, match="cancelled"):
        ready(spec, offline=False, on_event=on_event, cancel=cancel)
    assert len(server.fetched()) < len(server.repos[ORIGINAL].files)
    assert list(hub_settings().cache.rglob("*.incomplete")) == []


def test_a_hub_that_says_nothing_keeps_nobody_waiting_who_cancels(monkeypatch: pytest.MonkeyPatch) -> None:
    cancel, connections = CancelToken(), list[socket.socket]()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")

        def press() -> None:
            connections.append(silent.accept()[0])
            cancel.cancel()

        threading.Thread(target=press).start()
        began = time.monotonic()
        with pytest.raises(RunnerError, match="cancelled"):
            ready(Registry.load_for().resolve(GGUF), offline=False, on_event=lambda _: None, cancel=cancel)
    assert time.monotonic() - began < 5  # the hub is waited for 20 s
    for connection in connections:
        connection.close()


def test_a_pinned_revision_takes_that_commit_alone(server: Hub) -> None:
    prepare("tiny")
    old = server.repos[GGUF].commit
    user_paths().user_models_file.write_text(USER_FILE + f'gguf_revision = "{old}"\n')
    assert prepare("tiny", offline=True)[0].directory.name == old
    user_paths().user_models_file.write_text(USER_FILE + f'gguf_revision = "{"0" * 40}"\n')
    with pytest.raises(BusyError):
        prepare("tiny", offline=True)
    with pytest.raises(UsageError, match="no revision"):
        prepare("tiny")


def test_a_quantization_that_the_repository_lost_lists_what_it_has(server: Hub) -> None:
    del server.repos[GGUF].files["tiny-Q4_0.gguf"]
    with pytest.raises(UsageError, match="no Q4_0") as caught:
        prepare("tiny")
    assert "Q8_0" in caught.value.hint


def test_a_damaged_file_from_the_hub_is_refused(server: Hub) -> None:
    server.repos[GGUF].files["tiny-Q4_0.gguf"] = b"GGUF" + b"\xff" * 100
    with pytest.raises(BadModelFile):
        prepare("tiny")


@pytest.mark.usefixtures("server")
def test_without_links_in_the_cache_files_are_found_too() -> None:
    model, _ = prepare("tiny")
    blob = model.weights[0].resolve()
    model.weights[0].unlink()
    shutil.move(blob, model.weights[0])
    assert prepare("tiny", offline=True)[0] == model


@pytest.mark.parametrize(
    ("value", "expected"), [(2, (2,)), ([2, 0], (2, 0)), (None, ()), ([2, "x", -1, True], (2,)), ("2", ())]
)
def test_stop_ids_are_read_from_every_form(value: object, expected: tuple[int, ...]) -> None:
    assert stop_ids({"eos_token_id": value}) == expected
