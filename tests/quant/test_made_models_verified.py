"""`runner verify` of models made here, GGUFs and packed ones: each file has its hash, and runner.json its own."""

from __future__ import annotations

import io
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hf_directories import random_model
from tiny_files import write_gguf
from verified import found, nobody, problems, repaired

from runner.cli.app import main
from runner.errors import BadModelFile, UsageError
from runner.inventory import local_models
from runner.paths import user_paths
from runner.quant import quantize
from runner.quant.file_records import FileRecord, files_json, record_of
from runner.quant.formats import format_of
from runner.quant.gguf_file import read_header
from runner.quant.half_made import finished
from runner.quant.mq import manifest
from runner.quant.mq.manifest import read_files, read_manifest
from runner.quant.quantize import quantize_model
from runner.registry import Registry
from runner.verify import Finding, Plan
from runner.verify_plan import plan_everything, plan_of
from tests.quant.mq.packed_models import packed, tiny

KINDS = ("f16", "q4_k_m", "mq4")  # written and hashed here; by llama.cpp; packed


def make(source: Path, form: str, output: Path, *, force: bool = False) -> None:
    quantize_model(source, format_of(form), output, force=force, on_stage=lambda _name, _done, _total: None)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, demo_directory: Path) -> Path:
    """A directory with one model of each kind, and the source of the GGUFs."""
    place = tmp_path_factory.mktemp("made")
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    rope = {"rope_theta": 10000.0, "original_max_position_embeddings": 64, **scaling}
    random_model(place / "source", demo_directory, "llama", rope_parameters=rope, head_dim=12)  # 24 bytes of divisors
    for form in ("f16", "q4_k_m"):
        make(place / "source", form, place / form)
    packed(tiny(place / "tiny"), place / "mq4", "mq4")
    return place


@pytest.fixture(params=KINDS)
def model(made: Path, request: pytest.FixtureRequest) -> Path:
    """One of them, among the user's own models."""
    return shutil.copytree(made / request.param, user_paths().models / "mine")


@pytest.fixture
def gguf(made: Path) -> Path:
    return shutil.copytree(made / "f16", user_paths().models / "mine")


@pytest.fixture(autouse=True)
def no_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO()))


def plan(name: object = "mine") -> Plan:
    return plan_of(Registry.load_for().resolve(str(name)), nobody)


def verified(name: object = "mine") -> tuple[Finding, ...]:
    return found(plan(name))


def weights_of(directory: Path) -> Path:
    (weights,) = [path for path in directory.iterdir() if path.suffix in (".gguf", ".safetensors")]
    return weights


def flip(path: Path, at: int) -> None:
    """One bit of the file, which is another one at each place."""
    with path.open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 1 << at % 8]))


def test_what_was_made_is_sound_and_stays_so_wherever_it_is_put(model: Path, tmp_path: Path) -> None:
    assert {target.name for target in plan().targets} == set(os.listdir(model)) - {"runner.json"}
    assert verified() == ()
    assert found(plan_everything(Registry.load_for(), user_paths().drafts, nobody)) == ()
    copied = shutil.copytree(model, tmp_path / "copied")
    for path in (copied, weights_of(copied)):
        assert plan(path).targets
        assert verified(path) == ()
    model.rename(model.with_name("another name"))
    assert plan("another name").targets
    assert verified("another name") == ()


def test_a_flipped_bit_in_any_file_is_found_in_that_file(model: Path) -> None:
    for path in sorted(model.iterdir()):
        size = path.stat().st_size
        for at in {*range(0, min(size, 32), 3), *range(0, size, size // 6 + 1), size - 1}:  # all fields of a header
            flip(path, at)
            expected = "unreadable" if path.name == "runner.json" else "wrong contents"
            assert problems(verified()) == {path.name: expected}, at
            flip(path, at)
    assert verified() == ()


def test_a_flipped_bit_in_any_tensor_of_a_gguf_is_found(gguf: Path) -> None:
    header = read_header(weights_of(gguf))
    assert "rope_freqs.weight" in {tensor.name for tensor in header.tensors}
    for tensor in header.tensors:
        flip(header.path, tensor.offset + tensor.size_bytes // 2)
        assert problems(verified()) == {header.path.name: "wrong contents"}, tensor.name
        flip(header.path, tensor.offset + tensor.size_bytes // 2)
    assert verified() == ()


@pytest.mark.parametrize(
    ("hurt", "problem"),
    [
        (lambda data: data[:-1], "truncated"),
        (lambda _: b"", "truncated"),
        (lambda data: data + b"\0", "wrong contents"),
        (None, "missing"),
    ],
)
def test_weights_of_another_length_are_found(model: Path, hurt: Callable[[bytes], bytes] | None, problem: str) -> None:
    weights = weights_of(model)
    if hurt is None:
        weights.unlink()
    else:
        weights.write_bytes(hurt(weights.read_bytes()))
    assert problems(verified()) == {weights.name: problem}


@pytest.mark.parametrize("kind", KINDS)
def test_no_bit_of_a_manifest_can_be_flipped_unseen(made: Path, tmp_path: Path, kind: str) -> None:
    """Of a long one only some bits of each line are tried."""
    good = (made / kind / "runner.json").read_bytes()
    path = tmp_path / "runner.json"
    for at in range(0, len(good), 1 if kind == "f16" else 29):
        data = bytearray(good)
        data[at] ^= 1 << at % 8
        path.write_bytes(data)
        with pytest.raises(BadModelFile):
            read_files(path)
    path.write_bytes(good)
    assert read_files(path)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        '{"schema": "runner.files/1"}',
        '{"schema": "runner.files/1", "files": {"a": {"size_bytes": 1, "sha256": "zz"}}}',
        '{"schema": "runner.files/1", "files": {"a": {"size_bytes": true, "sha256": "' + "0" * 64 + '"}}}',
        '{"schema": "runner.files/1", "files": {"a": 7}}',
        '{"schema": "runner.files/1", "files": {"/a": {"size_bytes": 1, "sha256": "' + "0" * 64 + '"}}}',
        '{"schema": "runner.files/1", "files": {"../a": {"size_bytes": 1, "sha256": "' + "0" * 64 + '"}}}',
        '{"schema": "runner.files/1", "files": {}, "more": 1}',
        '{"schema": "runner.files/2", "files": {}}',
    ],
)
def test_a_manifest_that_cannot_be_is_damage_and_leads_nowhere(gguf: Path, text: str) -> None:
    (gguf / "runner.json").write_text(text)
    assert problems(verified()) == {"runner.json": "unreadable"}


def test_behind_a_damaged_manifest_weights_are_checked_by_their_headers(model: Path) -> None:
    flip(model / "runner.json", 40)
    assert problems(verified()) == {"runner.json": "unreadable"}
    weights = weights_of(model)
    weights.write_bytes(weights.read_bytes()[:-1])
    assert problems(verified()) == {"runner.json": "unreadable", weights.name: "wrong contents"}
    assert problems(verified(weights)) == {"runner.json": "unreadable", "": "wrong contents"}


def test_a_manifest_of_other_weights_is_told_from_theirs(made: Path, gguf: Path) -> None:
    shutil.copy(made / "q4_k_m" / "runner.json", gguf)
    assert problems(verified()) == {"source-q4_k_m.gguf": "missing", "source-f16.gguf": "not checked"}
    weights_of(gguf).rename(gguf / "source-q4_k_m.gguf")
    assert problems(verified()) == {"source-q4_k_m.gguf": "wrong contents"}


def test_models_of_earlier_versions_are_checked_as_far_as_they_have_hashes(made: Path, gguf: Path) -> None:
    (gguf / "runner.json").unlink()
    (finding,) = verified()
    assert (finding.name, finding.problem, finding.is_damage) == ("", "not checked", False)
    earlier = shutil.copytree(made / "mq4", user_paths().models / "earlier")
    manifest = json.loads((earlier / "runner.json").read_text())
    del manifest["sha256"]
    (earlier / "runner.json").write_text(json.dumps(manifest))
    assert read_manifest(earlier) == read_manifest(made / "mq4")
    assert verified("earlier") == ()
    flip(weights_of(earlier), 5000)
    assert problems(verified("earlier")) == {"model.safetensors": "wrong contents"}


def test_a_file_whose_hash_is_not_in_the_manifest_is_said_to_be_unchecked(gguf: Path) -> None:
    records = dict(read_files(gguf / "runner.json"))
    records["config.json"] = FileRecord(size_bytes=1, sha256="")
    (gguf / "runner.json").write_text(files_json(records))
    assert problems(verified()) == {"config.json": "not checked"}


def test_a_file_alone_has_no_hash_and_that_is_said(made: Path, tmp_path: Path) -> None:
    make(made / "source", "q8_0", tmp_path / "alone.gguf")
    assert os.listdir(tmp_path) == ["alone.gguf"]
    (finding,) = verified(tmp_path / "alone.gguf")
    assert (finding.problem, finding.is_damage) == ("not checked", False)
    assert "a file alone" in finding.detail


def test_a_file_that_a_manifest_beside_it_does_not_list_is_not_judged_by_it(gguf: Path) -> None:
    own = write_gguf(gguf / "own.gguf")
    assert [finding.problem for finding in verified(own)] == ["not checked"]


def test_weights_that_a_manifest_does_not_list_are_checked_by_their_headers(gguf: Path) -> None:
    own = write_gguf(gguf / "own.gguf")
    assert [(one.name, one.problem, one.is_damage) for one in verified()] == [("own.gguf", "not checked", False)]
    own.write_bytes(own.read_bytes()[:-1])
    assert problems(verified()) == {"own.gguf": "wrong contents"}
    assert verified(gguf / "source-f16.gguf") == ()


@pytest.mark.parametrize("text", ["{}", '{"version": 3, "name": "theirs"}'])
def test_a_file_of_somebody_elses_that_is_called_as_a_manifest_is_no_damage_to_a_gguf(gguf: Path, text: str) -> None:
    (gguf / "runner.json").write_text(text)
    for place in (gguf, weights_of(gguf)):
        assert [(one.problem, one.is_damage) for one in verified(place)] == [("not checked", False)]


def test_a_file_of_somebody_elses_in_the_place_of_a_packed_models_manifest_is_damage(made: Path) -> None:
    directory = shutil.copytree(made / "mq4", user_paths().models / "mine")
    (directory / "runner.json").write_text('{"version": 3}')
    assert problems(verified()) == {"runner.json": "unreadable"}


# --- making ---


@pytest.mark.parametrize("name", [b"we\xffird", b"new\nline", b"back\\slash", b"C:", "é (v2)".encode()])
@pytest.mark.parametrize("form", ["q8_0", "mq6"])
def test_a_name_that_other_systems_cannot_have_leaves_no_manifest_that_cannot_be_read(
    made: Path, tmp_path: Path, name: bytes, form: str
) -> None:
    source = tmp_path / os.fsdecode(name)
    shutil.copytree(made / "f16", source, ignore=shutil.ignore_patterns("runner.json"))
    weights_of(source).rename(source / os.fsdecode(name + b".gguf"))
    arguments = ["quantize", str(weights_of(source)), "-t", form, "-o", str(tmp_path / "out"), "-q"]
    assert main([*arguments, "--no-calibrate"] if form == "mq6" else arguments) == 0
    assert plan(tmp_path / "out").targets
    assert verified(tmp_path / "out") == ()


def test_what_is_stopped_before_its_manifest_is_there_leaves_nothing(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def press(*_arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(quantize, "record_of", press)
    with pytest.raises(KeyboardInterrupt):
        make(made / "source", "q4_k_m", tmp_path / "out")
    assert os.listdir(tmp_path) == []


def test_what_was_killed_with_its_manifest_written_is_no_model_and_is_made_again(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made / "f16", tmp_path / "out.partial")
    assert finished(tmp_path) == {}
    make(made / "source", "q8_0", tmp_path / "out")
    assert os.listdir(tmp_path) == ["out"]
    assert verified(tmp_path / "out") == ()


def test_making_it_again_replaces_its_manifest_too(made: Path, gguf: Path) -> None:
    make(made / "source", "q8_0", gguf, force=True)
    assert plan().targets
    assert verified() == ()


@pytest.mark.parametrize(("form", "output"), [("q8_0", "out"), ("mq6", "out"), ("mq4-hipfire", "out.hfq")])
def test_a_packed_model_is_no_source_of_any_format_and_a_gguf_with_hashes_is_one(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str, output: str
) -> None:
    arguments = ["-t", form, "-q", "-o", str(tmp_path / output)]
    arguments += ["--no-calibrate"] if form == "mq6" else []
    (tmp_path / output).mkdir()  # which --force would replace: no remedy where nothing can be made
    assert main(["quantize", str(made / "mq4"), *arguments]) == 2
    assert "is a packed model already" in capsys.readouterr().err
    (tmp_path / output).rmdir()
    assert main(["quantize", str(made / "f16"), *arguments]) == 0


def test_weights_that_somebody_put_beside_a_gguf_are_not_deleted_with_it(made: Path, gguf: Path) -> None:
    (gguf / "model.safetensors").write_bytes(b"mine")
    with pytest.raises(UsageError, match=r"'model\.safetensors'"):
        make(made / "source", "q8_0", gguf, force=True)
    assert (gguf / "model.safetensors").read_bytes() == b"mine"


@pytest.mark.parametrize("form", ["q8_0", "mq6"])
def test_a_file_of_somebody_elses_that_is_called_as_a_manifest_is_not_deleted(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    output = tmp_path / "out"
    arguments = ["quantize", str(made / "source"), "-t", form, "-o", str(output), "-q", "--force"]
    arguments += ["--no-calibrate"] if form == "mq6" else []
    assert main(arguments) == 0
    (output / "runner.json").write_text(text := '{"version": 3}')
    assert main(arguments) == 2
    assert "such as " in capsys.readouterr().err
    assert (output / "runner.json").read_text() == text
    (output / "runner.json").write_text("{")  # what is damaged may be replaced
    assert main(arguments) == 0
    assert verified(output) == ()


# --- as a user ---


def test_a_damaged_gguf_is_told_with_its_remedy(gguf: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify"]) == 0
    assert capsys.readouterr().err.endswith(": none is damaged.\n")
    flip(weights_of(gguf), 100_000)
    for arguments in (["verify"], ["verify", "mine"], ["verify", str(gguf)], ["verify", "--repair"]):
        assert main(arguments) == 5
        said = capsys.readouterr()
        assert f": {weights_of(gguf).name}: wrong contents: " in said.out
        assert "make it again with `runner quantize MODEL -t FORMAT --force`" in said.out + said.err
    (mended,) = repaired(verified())
    assert (mended.is_mended, mended.set_aside) == (False, None)


def test_the_manifest_is_one_of_the_files_that_ls_du_and_rm_know(
    gguf: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(*arguments: str) -> str:
        assert main(list(arguments)) == 0
        return capsys.readouterr().out

    def listed() -> tuple[str, str]:
        (model,) = [model for model in json.loads(said("ls", "--json"))["models"] if model["name"] == "mine"]
        return model["format"], model["state"]

    assert listed() == ("gguf", "complete")
    total = sum(path.stat().st_size for path in gguf.iterdir())
    assert [one["disk_bytes"] for one in json.loads(said("du", "--json"))["uses"]] == [total]
    weights_of(gguf).unlink()
    assert listed() == ("gguf", "damaged")
    said("rm", "-y", "mine")
    assert not gguf.exists()


def test_a_packed_model_without_weights_is_called_packed(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = shutil.copytree(made / "mq4", user_paths().models / "mine")
    weights_of(directory).unlink()
    assert main(["ls", "--json"]) == 0
    (model,) = [one for one in json.loads(capsys.readouterr().out)["models"] if one["name"] == "mine"]
    assert (model["format"], model["state"]) == ("packed", "damaged")


def test_a_list_of_models_reads_each_manifest_once(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = shutil.copytree(made / "mq4", user_paths().models / "mine")
    read: list[Path] = []
    text_of = manifest._read_text
    monkeypatch.setattr(manifest, "_read_text", lambda path: read.append(path) or text_of(path))
    assert {model.name: model.state for model in local_models(Registry.load_for())}["mine"] == "complete"
    assert read == [directory / "runner.json"]


def test_packed_weights_without_their_manifest_are_said_to_be_that(
    made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = shutil.copytree(made / "mq4", user_paths().models / "mine")
    (directory / "runner.json").unlink()
    for place in ("mine", directory, directory / "model.safetensors"):
        assert [(one.path, one.problem) for one in verified(place)] == [(directory / "runner.json", "missing")]
    assert main(["ls", "--json"]) == 0
    assert [one["state"] for one in json.loads(capsys.readouterr().out)["models"]] == ["complete", "damaged"]
    for arguments, status in ((["show", "mine"], 0), (["explain", "mine"], 1), (["run", "mine", "hi"], 1)):
        assert main(arguments) == status
        assert "model.safetensors has packed weights, and runner.json is not beside it." in capsys.readouterr().err


@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "tokenizer_config.json", "runner.json"])
def test_every_command_tells_the_remedy_of_a_damaged_file_beside_packed_weights(
    made: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = shutil.copytree(made / "mq4", user_paths().models / "mine")
    shutil.copy(made / "source" / "tokenizer_config.json", directory)
    (directory / name).write_text((directory / name).read_text()[:-3] if (directory / name).exists() else "{")
    for arguments in (["show", "mine"], ["explain", "mine"], ["run", "mine", "hi"]):
        assert main(arguments) == 1
        said = capsys.readouterr().err
        assert name in said
        assert said.endswith(
            "\nhint: It was made here: make it again with `runner quantize MODEL -t FORMAT --force`.\n"
        )


def test_a_damaged_tokenizer_is_told_when_it_is_read_and_by_what_finds_its_remedy(
    made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = shutil.copytree(made / "mq4", user_paths().models / "mine")
    (directory / "tokenizer.json").write_bytes((directory / "tokenizer.json").read_bytes()[:-9])
    assert main(["run", "mine", "hi"]) == 1
    assert "`runner verify --repair`" in capsys.readouterr().err


def test_a_damaged_manifest_keeps_a_packed_model_from_running_and_no_gguf(
    made: Path, gguf: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = shutil.copytree(made / "mq4", user_paths().models / "packed")
    for path in (directory / "runner.json", gguf / "runner.json"):
        flip(path, 200)
    assert main(["ls", "--json"]) == 0
    states = {one["name"]: one["state"] for one in json.loads(capsys.readouterr().out)["models"]}
    assert (states["mine"], states["packed"]) == ("complete", "damaged")
    assert main(["show", "mine"]) == 0
    assert main(["show", "packed"]) == 1
    assert "make it again" in capsys.readouterr().err


def test_a_record_says_what_a_file_has(tmp_path: Path) -> None:
    """Against known values, since all else compares hashes that come from here."""
    (tmp_path / "a").write_bytes(b"abc")
    record = record_of(tmp_path / "a")
    assert record.size_bytes == 3
    assert record.sha256 == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    (tmp_path / "runner.json").write_text(files_json({"a": record}))
    assert read_files(tmp_path / "runner.json") == {"a": record}
