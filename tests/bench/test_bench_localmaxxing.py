"""Submissions: the fields that the board asks for, true figures, and nothing of the person."""

from __future__ import annotations

import getpass
import json
import platform
from dataclasses import replace

import pytest

from runner.bench.localmaxxing import localmaxxing_payload
from runner.bench.record import BenchRun
from runner.errors import UsageError
from tests.bench.bench_records import HOSTILE, backend, full_run, gpu_machine, machine, options, row, run

REQUIRED = {"hfId", "hardware", "engineName", "quantization", "tokSOut"}
ONE_OF = {"tokSPrefill", "tokSTotal", "ttftMs", "peakVramGb"}
KNOWN = REQUIRED | ONE_OF | {
    "engineVersion", "engineCommit", "backend", "promptTokens", "outputTokens", "prefillTokens", "engineFlags", "notes",
}  # fmt: skip
FLAGS = {"commandSnippet", "kvCacheDtype", "gpuLayers", "concurrency", "temperature"}


def payload(one: BenchRun, **given: object) -> dict[str, object]:
    found = localmaxxing_payload(one, **{"hf_id": "Qwen/Qwen3-8B", **given})  # type: ignore[arg-type]
    return json.loads(json.dumps(found))  # type: ignore[no-any-return]


def test_it_has_what_the_board_requires_and_nothing_that_it_does_not_know() -> None:
    found = payload(full_run())
    assert found.keys() >= REQUIRED
    assert found.keys() & ONE_OF
    assert found.keys() <= KNOWN
    assert isinstance(found["engineFlags"], dict)
    assert found["engineFlags"].keys() <= FLAGS
    assert None not in found.values()


def test_its_figures_are_those_of_the_fastest_backend() -> None:
    found = payload(full_run())
    assert (found["engineName"], found["engineCommit"]) == ("runner", "0123456789ab")
    assert (found["tokSOut"], found["tokSPrefill"], found["ttftMs"]) == (142.6, 9886, 84.74)
    assert (found["promptTokens"], found["outputTokens"], found["prefillTokens"]) == (512, 128, 0)
    assert "tg128 142.6 ± 1.2 tok/s (n=5)" in str(found["notes"])


def test_a_backend_can_be_named_and_noise_is_said() -> None:
    found = payload(full_run(), backend="llamacpp")
    assert (found["engineName"], found["engineVersion"]) == ("llama.cpp", "llama-cpp-python 0.3.36")
    assert "engineCommit" not in found
    assert "pp512 8340 ± 963 tok/s (n=5, noisy)" in str(found["notes"])
    assert "--backend llamacpp" in json.dumps(found["engineFlags"])


def test_one_repetition_has_no_spread() -> None:
    notes = str(payload(run(backend(row("pp512", (100.0,)), row("tg128", (50.0,)))))["notes"])
    assert "pp512 100.0 tok/s (n=1, few); tg128 50.00 tok/s (n=1, few)" in notes


def test_a_gpu_is_described_as_one_and_its_memory_counted() -> None:
    whole = backend(row(bandwidth_share=0.7), row("ttft"))
    found = payload(run(whole, machine=gpu_machine(), options=options(n_gpu_layers=20)))
    assert found["hardware"] == {
        "hwClass": "DISCRETE_GPU",
        "gpuName": "NVIDIA H200",
        "gpuCount": 1,
        "vramGb": 141,
        "cpu": "AMD EPYC",
        "ramGb": 8,
        "os": "Linux",
    }
    assert found["peakVramGb"] == 0.03
    assert found["backend"] == "cuda"
    assert "peakVramGb" not in payload(run())
    in_two_memories = run(backend(row("tg128"), row("ttft")), machine=gpu_machine())
    assert "peakVramGb" not in payload(in_two_memories)
    no_bandwidth = replace(gpu_machine(), bandwidth=None)
    assert "peakVramGb" not in payload(run(machine=no_bandwidth))
    assert "peakVramGb" in payload(run(machine=no_bandwidth, options=options(n_gpu_layers="all")))
    hardware = payload(run(machine=machine(kind="metal", device="Apple M3 Max")))["hardware"]
    assert isinstance(hardware, dict)
    assert (hardware["hwClass"], hardware["unifiedMemoryGb"]) == ("UNIFIED", 8)


def test_a_depth_is_a_submission_of_its_own() -> None:
    deep = run(backend(row("tg128"), row("tg128 @ d4096", (60.0, 61.0)), row("pp512", (900.0, 901.0))))
    found = payload(deep, depth=4096)
    assert (found["tokSOut"], found["prefillTokens"]) == (60.5, 4096)
    assert "tokSPrefill" not in found


def test_nothing_personal_is_in_it() -> None:
    one = full_run(model="/home/somebody/secret/model.gguf", notes=("Another process: somebody's game (pid 7).",))
    text = json.dumps(payload(one))
    for private in ("/home", "somebody", "secret", platform.node(), "6.1.0", one.id, "game"):
        assert private not in text
    assert getpass.getuser() == "root" or getpass.getuser() not in text


def test_changed_files_have_no_commit() -> None:
    dirty = machine(versions={"runner": "0.1.0", "commit": "0123456789ab-dirty"})
    assert "engineCommit" not in payload(run(machine=dirty))


@pytest.mark.parametrize(
    ("one", "given", "message"),
    [
        (full_run(is_partial=True), {}, "was interrupted"),
        (full_run(options=options(is_random=True)), {}, "random weights"),
        (full_run(), {"depth": 4096}, "no valid decode speed at depth 4096"),
        (full_run(), {"backend": "fake"}, "There is no backend 'fake'"),
        (run(backend(row("pp512"))), {}, "no valid decode speed"),
        (run(backend(row(), name="fake")), {}, "no valid decode speed"),
        (run(backend(row()), options=options(genres=("code",))), {}, "is of genres"),
        (full_run(), {"hf_id": "../.."}, "not the name of a repository"),
    ],
)
def test_what_a_board_cannot_use_is_refused(one: BenchRun, given: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        payload(one, **given)
    assert caught.value.hint


def test_a_name_that_no_repository_has_is_refused_and_hostile_hardware_is_text() -> None:
    with pytest.raises(UsageError, match="not the name of a repository"):
        localmaxxing_payload(full_run(), hf_id="/home/somebody/model")
    hardware = payload(run(machine=machine(cpu=HOSTILE)))["hardware"]
    assert not set(str(hardware)) & set("\x1b\x07\x9b\u202e")


@pytest.mark.parametrize(
    ("asked", "command"),
    [
        ({}, "runner bench Qwen/Qwen3-8B --backend native"),
        (
            {"n_prompt": (64, 128), "n_gen": (), "depths": (0, 100), "prefill_depths": (0, 100)},
            "runner bench Qwen/Qwen3-8B -p 64,128 -n 0 -d 0,100 --backend native",
        ),
        (
            {"repetitions": 9, "budget_s": None, "n_threads": 4, "n_gpu_layers": 0, "ctx_size": 999, "kv_type": "f32"},
            "runner bench Qwen/Qwen3-8B -r 9 --backend native -c 999 -ngl 0 -t 4 --kv-type f32",
        ),
    ],
)
def test_the_command_names_what_was_asked_for_and_no_default(asked: dict[str, object], command: str) -> None:
    flags = payload(full_run(options=options(**asked)), backend="native")["engineFlags"]
    assert isinstance(flags, dict)
    assert flags["commandSnippet"] == command
