"""The estimate in words, and the commands that show it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hub_server import Hub, Repo, serving
from tiny_files import read_tree

from runner.backends import llamacpp
from runner.cli.app import main
from runner.cli.fit_text import fit_rows, model_rows
from runner.config import LoadOptions
from runner.draft_choice import DraftChoice
from runner.fit import KvPart
from runner.fit.other_models import Alternative
from runner.fit.remedies import Remedy
from runner.preview import Preview, preview
from runner.registry import Registry
from runner.types import Device

GIB = 2**30
GPU = Device(kind="cuda", index=0, name="Big GPU", total_bytes=24 * GIB, free_bytes=20 * GIB)
RAM = Device(kind="cpu", index=0, name="RAM", total_bytes=32 * GIB, free_bytes=16 * GIB)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serving(Hub()) as running:
        monkeypatch.setenv("HF_ENDPOINT", running.url)
        yield running


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> Preview:
    monkeypatch.setattr("runner.preview.devices", lambda: (RAM,))
    return preview(Registry.load_for().resolve("demo"), LoadOptions(ctx_size=1024), offline=True)


def rows(shown: Preview) -> dict[str, str]:
    return dict(fit_rows(shown))


def test_an_estimate_has_a_row_for_each_part(demo: Preview) -> None:
    found = rows(demo)
    assert found["device"] == "RAM: 16.0 GiB free of 32.0 GiB, other processes hold 16.0 GiB"
    assert found["context"] == "1024 tokens (trained for 2048)"
    assert found["weights"] == "18.6 MiB (Q8_0, 8.51 bits a weight in the files)"
    assert found["KV cache"] == "6.0 MiB in f16"
    assert found["in all"].endswith(": it fits")
    assert "draft" not in found
    assert "instead" not in found
    assert dict(model_rows(demo))["parameters"] == "18.4M"


def test_kinds_of_layers_a_draft_and_corrections_are_shown(demo: Preview) -> None:
    parts = (
        KvPart(kind="window", num_layers=5, window=512, size_bytes=5 * 2**20),
        KvPart(kind="full", num_layers=1, window=0, size_bytes=2**20),
    )
    fit = dataclasses.replace(demo.fit, kv_parts=parts, draft_bytes=3 * 2**20, n_loads=2)
    drafting = DraftChoice(drafter="model", reason="tiny drafts", source="tiny")
    found = rows(dataclasses.replace(demo, fit=fit, drafting=drafting, notes=("Only the text model is counted.",)))
    kinds = "5 layers with a window of 512: 5.0 MiB, 1 layer with all tokens: 1.0 MiB"
    assert found["KV cache"] == f"6.0 MiB in f16 ({kinds})"
    assert found["draft"] == "3.0 MiB (tiny)"
    assert found[""] == "corrected by what was used before (2 loads)"
    assert found["note"] == "Only the text model is counted."


def test_active_weights_are_said_where_they_are_known_and_fewer(demo: Preview) -> None:
    def parameters(n_active: int) -> str:
        return dict(model_rows(dataclasses.replace(demo, num_active_parameters=n_active)))["parameters"]

    assert parameters(10_000_000) == "18.4M, 10M of them for a token"
    assert parameters(demo.num_parameters) == parameters(0) == "18.4M"


def test_what_does_not_fit_says_by_how_much_and_what_would(demo: Preview) -> None:
    small = dataclasses.replace(demo.fit, available_bytes=10 * 2**20)
    quant = Alternative(name="m:Q4_0", size_bytes=GIB, is_same=True, is_exact=True)
    found = rows(dataclasses.replace(demo, fit=small, remedy=Remedy(n_ctx=512, quant=quant)))
    assert "it does not fit" in found["in all"]
    assert found["instead"] == "A context of 512 tokens would fit: -c 512. m:Q4_0 (1.00 GiB) would fit."


def test_layers_on_a_gpu_and_the_others_in_ram(demo: Preview) -> None:
    on_gpu = dataclasses.replace(demo.fit, device=GPU, ram_bytes=16 * GIB, n_gpu_layers=6)
    assert "all 6 layers on the GPU" in rows(dataclasses.replace(demo, fit=on_gpu))["in all"]
    some = dataclasses.replace(on_gpu, n_gpu_layers=2)
    assert "2 of 6 layers on the GPU (33 %)" in rows(dataclasses.replace(demo, fit=some))["in all"]


# --- the commands ----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("command", ["chat", "run"])
def test_estimate_only_prints_the_estimate_and_stops(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "demo", "--estimate-only", "-c", "512"]) == 0
    out, err = capsys.readouterr()
    found = dict(line.split("  ", 1) for line in out.splitlines())
    assert found["model"].strip() == "demo"
    assert "it fits" in found["in all"]
    assert err == ""


def test_estimate_only_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "demo", "--estimate-only", "--json", "-c", "60000000"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["schema"] == "runner.estimate/1"
    assert value["fits"] is False
    assert value["fit"]["total_bytes"] > value["fit"]["available_bytes"]
    assert "would fit" in value["instead"]


def test_estimate_only_fetches_headers_and_keeps_nothing(
    server: Hub, capsys: pytest.CaptureFixture[str], demo_directory: Path
) -> None:
    from runner.hub_cache import hub_settings

    server.repos["who/demo"] = Repo(read_tree(demo_directory))
    assert main(["chat", "who/demo", "--estimate-only"]) == 0
    out = capsys.readouterr().out
    assert "from who/demo" in out
    assert server.sent_bytes("demo-q8_0.gguf") == 2 * 2**20
    assert not hub_settings().cache.exists()


def test_explain_needs_no_files(server: Hub, capsys: pytest.CaptureFixture[str], demo_directory: Path) -> None:
    server.repos["who/demo"] = Repo(read_tree(demo_directory))
    assert main(["explain", "who/demo", "--json"]) == 0
    remote = json.loads(capsys.readouterr().out)
    assert main(["explain", "demo", "--json"]) == 0
    local = json.loads(capsys.readouterr().out)
    assert remote["backing"]["name"] == local["backing"]["name"] == "llamacpp"
    assert remote["fit"]["need"] == local["fit"]["need"]
    assert (remote["is_local"], local["is_local"]) == (False, True)


def test_show_of_a_model_on_the_hub_has_its_estimate(
    server: Hub, capsys: pytest.CaptureFixture[str], demo_directory: Path
) -> None:
    server.repos["who/demo"] = Repo(read_tree(demo_directory))
    assert main(["show", "who/demo", "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert (value["parameters"], value["context_length"], value["quantization"]) == (18_357_504, 2048, "Q8_0")
    assert value["download_bytes"] > value["size_bytes"] == 19_799_648
    assert value["fits"] is True
    assert main(["show", "who/demo"]) == 0
    assert "it fits" in capsys.readouterr().out


@pytest.mark.parametrize("command", [["show"], ["explain"], ["pull", "--estimate-only"], ["run", "--estimate-only"]])
def test_what_no_backend_runs_is_told_with_the_estimate(
    command: list[str], server: Hub, capsys: pytest.CaptureFixture[str], demo_directory: Path
) -> None:
    data = (demo_directory / "demo-q8_0.gguf").read_bytes()
    server.repos["who/new"] = Repo({"new-Q8_0.gguf": data.replace(b"qwen3", b"qwen9")})
    assert main([*command, "who/new"]) == 0
    (told,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("backend "))
    assert "none: llamacpp: " in told
    assert "does not know the architecture 'qwen9'" in told


def test_show_without_a_connection_has_the_registrys_word(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["show", "qwen3-8b", "--offline"], ["show", "qwen3-8b"]):
        assert main(arguments) == 0
        out, err = capsys.readouterr()
        assert "8.2B" in out
        assert "No estimate" in err


@pytest.mark.parametrize(
    ("arguments", "code", "remedy"),
    [
        (["no/such"], 2, "Check the name"),
        (["who/new:Q2_K"], 2, "It has: Q8_0."),
        (["no/such", "--offline"], 3, "hint: Leave --offline out.\n"),
    ],
)
def test_show_of_what_the_hub_alone_knows_fails_as_the_hub_does(
    arguments: list[str], code: int, remedy: str, server: Hub, capsys: pytest.CaptureFixture[str]
) -> None:
    server.repos["who/new"] = Repo({"new-Q8_0.gguf": b"GGUF"})
    assert main(["show", *arguments]) == code
    out, err = capsys.readouterr()
    assert (out, remedy in err) == ("", True)


@pytest.mark.parametrize("has_offload", [True, False])
def test_a_gpu_counts_only_when_the_wheel_can_use_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, has_offload: bool
) -> None:
    probe = llamacpp.Probe(version="0.0.0", gpu_offload=has_offload, error=None)
    monkeypatch.setattr("runner.fit.arithmetic.probe", lambda: probe)
    monkeypatch.setattr("runner.preview.devices", lambda: (GPU, RAM))
    assert main(["explain", "demo"]) == 0
    out, err = capsys.readouterr()
    found = dict(line.split("  ", 1) for line in out.splitlines())
    assert found["GPU layers"].strip() == ("6 of 6" if has_offload else "0 of 6")
    assert ("Big GPU" in found["device"]) is has_offload
    assert ("GGML_CUDA=on" in err) is not has_offload
