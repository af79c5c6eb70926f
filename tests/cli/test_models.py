"""`runner ls`, `show` and `rm`, as a user types them, over the demo, the cache and models made here."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from tiny_files import TEMPLATE, read_tree, write_gguf, write_safetensors

from runner.cli import render
from runner.cli.app import main
from runner.hub_cache import hub_settings
from runner.inventory import local_models
from runner.paths import user_paths
from runner.registry import Registry
from runner.running import announce

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class FakeTerminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def cached(repo: str, source: Path) -> Path:
    """Put the files of `source` into the cache, the way that the hub's library does; returns the snapshot."""
    directory = hub_settings().cache / f"models--{repo.replace('/', '--')}"
    snapshot = directory / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (directory / "blobs").mkdir()
    for number, (name, data) in enumerate(sorted(read_tree(source).items())):
        (directory / "blobs" / f"{number:040x}").write_bytes(data)
        (snapshot / name).symlink_to(f"../../blobs/{number:040x}")
    (directory / "refs").mkdir()
    (directory / "refs" / "main").write_text(COMMIT)
    return snapshot


@pytest.fixture
def qwen(tmp_path: Path) -> Path:
    """Two quantizations of a registry model in the cache."""
    write_gguf(tmp_path / "q" / "Qwen3-8B-Q4_K_M.gguf")
    write_gguf(tmp_path / "q" / "Qwen3-8B-Q8_0.gguf", hidden=64)
    return cached("Qwen/Qwen3-8B-GGUF", tmp_path / "q")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(arguments)
    out, err = capsys.readouterr()
    return code, out, err


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    code, out, _ = run(capsys, *arguments, "--json")
    assert code == 0
    plain: dict[str, Any] = json.loads(out)
    return plain


# --- ls ---


def test_ls_on_a_fresh_machine_has_the_demo_and_says_where_more_is(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "ls")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == ["MODEL", "demo"]
    assert "19.8 MB" in out
    assert "ls --all" in err


@pytest.mark.usefixtures("qwen")
def test_ls_names_what_can_be_run_and_how_to_call_it(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    write_gguf(user_paths().models / "mine" / "mine-q4_0.gguf")
    write_gguf(user_paths().models / "half.partial" / "x-q4_0.gguf")
    cached("Qwen/Qwen3-8B", write_safetensors(tmp_path / "hf", shards=2))
    cached("who/ever", write_gguf(tmp_path / "w" / "thing-Q6_K.gguf").parent)
    answer = run_json(capsys, "ls")
    models = answer["models"]
    assert answer["schema"] == "runner.ls/1"
    listed = {model["name"]: (model["kind"], model["format"], model["quantization"]) for model in models}
    assert listed == {
        "demo": ("built-in", "gguf", "Q8_0"),
        "mine": ("made here", "gguf", "Q4_0"),
        "qwen3-8b": ("cache", "gguf", "Q4_K_M"),
        "qwen3-8b:Q8_0": ("cache", "gguf", "Q8_0"),
        "qwen3-8b:safetensors": ("cache", "safetensors", ""),
        "who/ever:Q6_K": ("cache", "gguf", "Q6_K"),
    }
    assert all(Path(model["path"]).stat().st_size <= model["size_bytes"] for model in models)
    assert all(model["last_used"] > 10**9 for model in models)


@pytest.mark.usefixtures("qwen")
def test_every_name_that_ls_gives_is_understood_by_show(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    write_gguf(user_paths().models / "mine" / "mine-q4_0.gguf")
    cached("who/ever", write_gguf(tmp_path / "w" / "thing-Q6_K.gguf").parent)
    for model in run_json(capsys, "ls")["models"]:
        assert model["state"] == "complete"
        shown = run_json(capsys, "show", model["name"])
        assert shown["is_local"], model["name"]
        assert shown["files"][0]["path"] == model["path"]


def test_ls_has_a_model_of_one_s_own_that_is_named_by_one_of_its_files(tmp_path: Path) -> None:
    for name in ("split-00001-of-00002.gguf", "split-00002-of-00002.gguf", "other.gguf", "packed/model.safetensors"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"1234")
    for name in ("runner.json", "config.json"):
        (tmp_path / "packed" / name).write_text("{}")
    paths = user_paths()
    paths.user_models_file.parent.mkdir(parents=True)
    files = {"one": "split-00002-of-00002.gguf", "two": "packed/model.safetensors"}
    paths.user_models_file.write_text(
        "".join(f'[{name}]\npath = "{tmp_path / file}"\n' for name, file in files.items())
    )
    found = {model.name: model for model in local_models(Registry.load_for(paths)) if model.kind == "own file"}
    assert (found["one"].path.name, found["one"].size_bytes) == ("split-00001-of-00002.gguf", 8)
    assert found["two"].format == "packed"


@pytest.mark.parametrize("name", ["moved.gguf", "moved"])
def test_a_model_of_one_s_own_whose_path_is_gone_is_told(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str
) -> None:
    path = tmp_path / "disk" / name
    file = user_paths().user_models_file
    file.parent.mkdir(parents=True)
    file.write_text(f'[mine]\npath = "{path}"\n')
    for command in (["show", "mine"], ["explain", "mine"]):
        code, out, err = run(capsys, *command)
        assert (code, out) == (1, "")
        assert err.startswith(
            f"error: {path} does not exist.\nhint: The models.toml that names it is wrong, or it was moved"
        )
    code, out, _ = run(capsys, "verify", "mine")
    assert code == 5
    assert out == f"mine: missing: {path} does not exist: it was moved or deleted, or its disk is not mounted\n"


@pytest.mark.usefixtures("qwen")
def test_what_is_cached_of_a_model_whose_name_one_made_here_has_goes_by_its_repository(
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_gguf(user_paths().models / "qwen3-8b" / "x-q4_0.gguf")
    listed = {model["name"]: model["path"] for model in run_json(capsys, "ls")["models"]}
    names = ["Qwen/Qwen3-8B-GGUF:Q4_K_M", "Qwen/Qwen3-8B-GGUF:Q8_0", "demo", "qwen3-8b"]
    assert sorted(listed) == names
    assert [run_json(capsys, "show", name)["files"][0]["path"] for name in names] == [listed[name] for name in names]


def test_show_cuts_no_path_and_no_figure_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    with redirect_stdout(FakeTerminal()) as terminal:
        assert main(["show", "demo"]) == 0
    shown = terminal.getvalue()
    assert "…" not in shown
    assert "/models/demo/demo-q8_0.gguf\n" in shown


@pytest.mark.parametrize("columns", [40, 60, 80])
def test_ls_all_cuts_no_name_that_a_model_goes_by(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    with redirect_stdout(FakeTerminal()) as terminal:
        assert main(["ls", "--all"]) == 0
    lines = {line.split()[0]: line for line in terminal.getvalue().splitlines()}
    assert lines["qwen3-30b-a3b-instruct"].endswith("not here")
    assert all(render.text_width(line) < columns for line in lines.values())
    assert ("PARAMS" in lines["MODEL"]) == (columns >= 60)


@pytest.mark.usefixtures("qwen")
def test_ls_all_adds_the_registry_with_its_state(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "ls", "--all")
    lines = {line.split()[0]: line for line in out.splitlines()}
    assert "here: Q4_K_M, Q8_0" in lines["qwen3-8b"]
    assert "not here" in lines["llama-3.1-8b"]
    assert "gated" in lines["llama-3.1-8b"]
    registry = {one["name"]: one for one in run_json(capsys, "ls", "--all")["registry"]}
    assert registry["qwen3-8b"]["here"] == ["qwen3-8b", "qwen3-8b:Q8_0"]
    assert registry["gpt-oss-20b"]["here"] == []


def test_a_split_model_is_one_line_and_an_incomplete_one_is_partial(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for number in (1, 2, 3):
        write_gguf(tmp_path / "o" / f"gpt-oss-120b-mxfp4-{number:05d}-of-00003.gguf")
    snapshot = cached("ggml-org/gpt-oss-120b-GGUF", tmp_path / "o")
    assert [model["name"] for model in run_json(capsys, "ls")["models"]] == ["demo", "gpt-oss-120b"]
    next(snapshot.iterdir()).unlink()
    model = run_json(capsys, "ls")["models"][1]
    assert (model["name"], model["state"], model["num_here"], model["num_files"]) == ("gpt-oss-120b", "partial", 2, 3)
    assert "partial, 2 of 3 files" in run(capsys, "ls")[1]


def test_weights_without_their_configuration_are_partial(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    snapshot = cached("Qwen/Qwen3-8B", write_safetensors(tmp_path / "hf", shards=2))
    (snapshot / "config.json").unlink()
    assert "partial, no configuration or tokenizer" in run(capsys, "ls")[1]


def test_names_with_escape_sequences_do_not_reach_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    write_gguf(user_paths().models / "a\x1b]0;owned\x07b" / "x-q4_0.gguf")
    _, out, _ = run(capsys, "ls")
    assert "\x1b" not in out
    assert "\x07" not in out


def test_ls_loads_nothing_heavy() -> None:
    code = "import sys; from runner.cli.app import main; main(['ls', '--all']); "
    code += "bad = {'torch', 'triton', 'llama_cpp', 'textual', 'huggingface_hub', 'transformers', 'numpy'}; "
    code += "sys.exit(', '.join(bad & set(sys.modules)) or 0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# --- show ---


def test_show_of_a_model_that_is_here_reads_its_header(capsys: pytest.CaptureFixture[str], qwen: Path) -> None:
    shown = run_json(capsys, "show", "qwen3-8b:q8_0")
    assert (shown["architecture"], shown["context_length"], shown["licence"]) == ("llama", 128, "mit")
    assert (shown["parameters"], shown["quantization"]) == (16 * 64, "F16")
    assert shown["chat_template"] == TEMPLATE
    assert shown["chat_template_hash"] == hashlib.sha256(TEMPLATE.encode()).hexdigest()[:12]
    assert shown["files"] == [{"path": str(qwen / "Qwen3-8B-Q8_0.gguf"), "size_bytes": shown["size_bytes"]}]


def test_show_of_safetensors_reads_headers_and_configuration(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    shown = run_json(capsys, "show", str(write_safetensors(tmp_path / "m", shards=2)))
    assert (shown["architecture"], shown["parameters"], shown["quantization"]) == ("llama", 64, "F32")
    assert (shown["context_length"], shown["chat_template"]) == (64, TEMPLATE)
    (tmp_path / "m" / "tokenizer_config.json").write_text("{}")
    (tmp_path / "m" / "chat_template.json").write_text('{"chat_template": "as older models have it"}')
    assert run_json(capsys, "show", str(tmp_path / "m"))["chat_template"] == "as older models have it"
    assert shown["sampling"] == {"temperature": 0.6, "top_k": 20, "repeat_penalty": 1.1}


def test_show_of_a_registry_model_needs_no_network(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "show", "llama-3.1-8b")
    assert code == 0
    assert out.split("parameters")[1].split()[0].startswith("8")
    for said in ("131072 tokens", "meta-llama/Llama-3.1-8B-Instruct", "not on this machine", "llama-3.2-1b"):
        assert said in out


def test_show_prints_the_template_alone(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "show", "demo", "--template")
    assert code == 0
    assert out.startswith("{%- for message in messages %}")
    assert "<|im_start|>" in out


def test_show_template_says_what_is_missing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, _, err = run(capsys, "show", "qwen3-8b", "--template")
    assert code == 2
    assert "not on this machine" in err
    directory = write_safetensors(tmp_path / "m")
    (directory / "tokenizer_config.json").unlink()
    code, _, err = run(capsys, "show", str(directory), "--template")
    assert code == 1
    assert "no chat template" in err


def test_show_of_an_unknown_name_hints_at_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "show", "qwen3-8")
    assert (code, out) == (2, "")
    assert "qwen3-8b" in err


def test_a_model_of_the_users_file_that_is_gone_is_in_the_lists_and_told(capsys: pytest.CaptureFixture[str]) -> None:
    file = user_paths().user_models_file
    file.parent.mkdir(parents=True)
    path = file.parent / "disk" / "mine.gguf"
    file.write_text(f'[mine]\npath = "{path}"\n')
    code, out, err = run(capsys, "ls")
    assert code == 0
    assert f"{path} does not exist" in err
    assert out.splitlines()[-1].split()[0] == "mine"
    model = next(model for model in run_json(capsys, "ls")["models"] if model["name"] == "mine")
    assert (model["kind"], model["state"], model["format"]) == ("own file", "damaged", "gguf")


def test_show_of_the_scripted_model_works(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_json(capsys, "show", "fake")["is_local"] is True


# --- rm ---


def test_rm_deletes_one_quantization_and_says_what_it_freed(capsys: pytest.CaptureFixture[str], qwen: Path) -> None:
    size = (qwen / "Qwen3-8B-Q8_0.gguf").stat().st_size
    answer = run_json(capsys, "rm", "-y", "qwen3-8b:Q8_0")
    assert answer["freed_bytes"] == size
    assert [path.name for path in qwen.iterdir()] == ["Qwen3-8B-Q4_K_M.gguf"]


def test_rm_says_which_process_has_the_model_loaded(capsys: pytest.CaptureFixture[str], qwen: Path) -> None:
    announce(
        user_paths().engines,
        model="qwen3-8b:Q8_0",
        backend="llamacpp",
        quantization="Q8_0",
        device="CPU",
        n_ctx=1,
        memory_bytes=0,
        path=str(qwen / "Qwen3-8B-Q8_0.gguf"),
    )
    code, _, err = run(capsys, "rm", "qwen3-8b:Q8_0")
    assert code == 2
    assert f"Process {os.getpid()} has qwen3-8b:Q8_0 loaded" in err
    assert "loaded" not in run(capsys, "rm", "-y", "qwen3-8b:Q4_K_M")[2]
    assert "loaded" in run(capsys, "rm", "-y", "qwen3-8b")[2]
    assert not qwen.exists()


def test_rm_of_the_last_weights_deletes_the_whole_repository(capsys: pytest.CaptureFixture[str], qwen: Path) -> None:
    assert run(capsys, "rm", "-y", "qwen3-8b:Q8_0", "qwen3-8b:Q4_K_M")[0] == 0
    assert [model["name"] for model in run_json(capsys, "ls")["models"]] == ["demo"]
    assert not qwen.parent.parent.exists()


def test_rm_of_a_name_alone_deletes_all_of_its_files(
    capsys: pytest.CaptureFixture[str], qwen: Path, tmp_path: Path
) -> None:
    original = cached("Qwen/Qwen3-8B", write_safetensors(tmp_path / "hf"))
    code, _, err = run(capsys, "rm", "-y", "qwen3-8b")
    assert code == 0, err
    assert "Freed" in err
    assert not qwen.exists()
    assert not original.exists()


def test_rm_asks_first_and_without_a_terminal_wants_yes(capsys: pytest.CaptureFixture[str], qwen: Path) -> None:
    code, _, err = run(capsys, "rm", "qwen3-8b")
    assert code == 2
    assert "-y" in err
    assert len(list(qwen.iterdir())) == 2


def test_rm_deletes_a_model_made_here(capsys: pytest.CaptureFixture[str]) -> None:
    path = write_gguf(user_paths().models / "mine" / "mine-q4_0.gguf")
    size = path.stat().st_size
    assert run_json(capsys, "rm", "-y", "mine")["freed_bytes"] == size
    assert not path.parent.exists()


def test_rm_names_on_one_line_what_has_line_ends_in_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    write_gguf(user_paths().models / "odd\nname" / "x-q4_0.gguf")
    code, _, err = run(capsys, "rm", "-y", "odd\nname")
    assert code == 0
    assert err.startswith("odd name: ")


def test_rm_of_a_linked_directory_deletes_the_link_alone(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "elsewhere" / "x-q4_0.gguf")
    user_paths().models.mkdir(parents=True)
    (user_paths().models / "linked").symlink_to(path.parent)
    assert run(capsys, "rm", "-y", "linked")[0] == 0
    assert path.is_file()
    assert list(user_paths().models.iterdir()) == []


def test_a_link_to_a_model_whose_disk_is_not_mounted_is_told_by_all_and_goes_by_rm(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Also of a drafter, which `ls` does not list; and what is made in such a place is refused."""
    paths, disk = user_paths(), tmp_path / "disk"
    for place, name in ((paths.models, "my link"), (paths.drafts, "head")):
        place.mkdir(parents=True)
        (place / name).symlink_to(disk / name)
    (model,) = [one for one in run_json(capsys, "ls")["models"] if one["kind"] == "made here"]
    assert (model["name"], model["state"], model["lost_target"]) == ("my link", "damaged", str(disk / "my link"))
    assert {"my link", "head"} <= {use["name"] for use in run_json(capsys, "du")["uses"]}
    told = f"{disk / 'my link'}, which cannot be found"
    err = run(capsys, "ls")[2]
    remedy = "mount the disk that it is on, or delete the link"
    assert err.startswith(f"Damaged: my link is a link to {told}: {remedy} with `runner rm 'my link'`.\n")
    assert "quantize" not in err
    code, out, err = run(capsys, "verify", "my link")
    assert (code, out) == (5, f"my link: missing: it is a link to {told}\n")
    assert remedy in err
    assert f"not repaired: {remedy}" in run(capsys, "verify", "--repair")[1]
    (paths.models / "empty").mkdir()
    hint = run(capsys, "verify")[2].splitlines()[-1]
    assert remedy in hint
    assert "make it again" in hint
    (paths.models / "empty").rmdir()
    own = str(paths.models / "my link")
    for arguments in (["show", "my link"], ["explain", "my link"], ["quantize", "demo", "--force", "-o", own]):
        code, _, err = run(capsys, *arguments)
        assert (code, err) == (1, f"error: {own} is a link to {told}.\nhint: M{remedy[1:]}.\n")
    assert run(capsys, "rm", "-y", "my link", "head")[0] == 0
    assert [*paths.models.iterdir(), *paths.drafts.iterdir()] == []


def test_rm_refuses_the_demo_own_files_and_what_is_not_here(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, demo_directory: Path
) -> None:
    own = write_gguf(tmp_path / "own.gguf")
    for model, said in (
        ("demo", "ships with runner"),
        (str(demo_directory), "ships with runner"),
        (str(own), "not among the models that runner keeps"),
        ("fake", "not among the models that runner keeps"),
        ("qwen3-8b", "not on this machine"),
        ("nobody/nothing", "not on this machine"),
    ):
        code, _, err = run(capsys, "rm", "-y", model)
        assert code == 2, model
        assert said in err
    assert own.is_file()
    assert (demo_directory / "demo-q8_0.gguf").is_file()


def test_rm_deletes_nothing_when_one_of_the_names_is_wrong(capsys: pytest.CaptureFixture[str], qwen: Path) -> None:
    code, _, _ = run(capsys, "rm", "-y", "qwen3-8b", "no-such-model")
    assert code == 2
    assert len(list(qwen.iterdir())) == 2
