"""The resumable file: where things lie, what survives a kill, and what is believed of what was left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from disk_limits import file_size_limit
from packed_models import opened, tiny
from safetensors import safe_open

from runner.errors import DoesNotFit
from runner.quant.mq import packed_file
from runner.quant.mq.packed_file import ALIGNMENT, PADDING, PackedFile, lay_out
from runner.quant.mq.plain import PlainProducer
from runner.quant.mq.plan import PackedPlan, make_plan
from runner.quant.mq.recipe import recipe_of
from runner.quant.mq.tensor_format import Encoded
from runner.quant.packed_files import JOURNAL_NAME, WEIGHTS_NAME
from runner.quant.safetensors_file import read_header
from runner.quant.weights import Weights


def quiet(*_: Any) -> None:
    pass


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> tuple[PackedPlan, Weights]:
    weights, config = opened(tiny(tmp_path_factory.mktemp("source"), "qwen2"))
    return make_plan(config, weights, recipe_of("mq4"), "online"), weights


def encoded(source: tuple[PackedPlan, Weights], file: PackedFile) -> Iterator[tuple[str, Encoded]]:
    plan, weights = source
    return PlainProducer(device=torch.device("cpu")).produce(plan, weights, file, quiet)


def fill(directory: Path, source: tuple[PackedPlan, Weights], count: int | None = None, **made_from: Any) -> list[str]:
    """Write `count` tensors more, or all; returns their names."""
    with packed_file.opened(directory, source[0], made_from, quiet) as (file, _):
        written = []
        for name, tensor in encoded(source, file):
            if len(written) == count:
                break
            file.write(name, tensor, 0.5)
            written.append(name)
    return written


def test_every_part_is_aligned_and_the_safetensors_library_reads_it(
    tmp_path: Path, source: tuple[PackedPlan, Weights]
) -> None:
    fill(tmp_path, source)
    stored = read_header(tmp_path / WEIGHTS_NAME)
    parts = {name for name in stored if not name.startswith(PADDING)}
    assert all(stored[name].offset % ALIGNMENT == 0 for name in parts)
    assert any(name.startswith(PADDING) for name in stored), "a tiny model has sizes that need it"
    plan, weights = source
    with safe_open(tmp_path / WEIGHTS_NAME, "pt") as library:
        name = "model.layers.1.self_attn.k_proj.bias"
        assert library.get_tensor(name).view(torch.uint16).tolist() == weights.read(name).tolist()
        packed = library.get_tensor("model.layers.0.mlp.up_proj.weight.packed")
        assert packed.shape == plan.by_name["model.layers.0.mlp.up_proj.weight"].parts["packed"].shape


def test_order_does_not_matter(tmp_path: Path, source: tuple[PackedPlan, Weights]) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    fill(tmp_path / "a", source)
    with packed_file.opened(tmp_path / "b", source[0], {}, quiet) as (file, _):
        for name, tensor in reversed(list(encoded(source, file))):
            file.write(name, tensor)
    assert (tmp_path / "a" / WEIGHTS_NAME).read_bytes() == (tmp_path / "b" / WEIGHTS_NAME).read_bytes()


def test_it_is_written_also_where_the_system_has_less_to_offer(
    tmp_path: Path, source: tuple[PackedPlan, Weights], monkeypatch: pytest.MonkeyPatch
) -> None:
    """macOS has neither of these."""
    monkeypatch.delattr(os, "fdatasync")
    monkeypatch.delattr(os, "posix_fallocate")
    fill(tmp_path, source, 3)
    assert len(fill(tmp_path, source)) == len(source[0].tensors) - 3


def test_what_was_written_can_be_read_back_in_a_later_run(tmp_path: Path, source: tuple[PackedPlan, Weights]) -> None:
    first = fill(tmp_path, source, 9)
    with packed_file.opened(tmp_path, source[0], {}, quiet) as (file, is_new):
        assert not is_new
        assert file.done == set(first)
        wanted = dict(encoded(source, PackedFile(tmp_path, source[0], lay_out(source[0].tensors), -1, -1)))
        for name in first:
            found = file.read(name)
            assert found.parameters == wanted[name].parameters
            assert all(torch.equal(found.parts[suffix], part) for suffix, part in wanted[name].parts.items())
        with pytest.raises(KeyError):
            file.read("model.norm.weight")
    assert set(fill(tmp_path, source)) == {tensor.name for tensor in source[0].tensors} - set(first)


def test_a_torn_line_of_the_journal_costs_one_tensor(tmp_path: Path, source: tuple[PackedPlan, Weights]) -> None:
    written = fill(tmp_path, source, 6)
    journal = tmp_path / JOURNAL_NAME
    journal.write_bytes(journal.read_bytes()[:-7])
    assert fill(tmp_path, source)[0] == written[-1]
    assert len(journal.read_text().splitlines()) == 1 + len(source[0].tensors)


@pytest.mark.parametrize("damage", ["bytes", "header", "cut", "journal", "line", "sha256"])
def test_damage_to_what_was_left_is_made_again(tmp_path: Path, source: tuple[PackedPlan, Weights], damage: str) -> None:
    fill(tmp_path, source)
    good = (tmp_path / WEIGHTS_NAME).read_bytes()
    path, journal = tmp_path / WEIGHTS_NAME, tmp_path / JOURNAL_NAME
    if damage == "bytes":
        path.write_bytes(good[:-5000] + bytes(10) + good[-4990:])
    elif damage == "header":
        path.write_bytes(good[:100] + b"x" + good[101:])
    elif damage == "cut":
        path.write_bytes(good[:-1])
    elif damage == "journal":
        journal.write_bytes(b"\x00" * 50 + b"\n" + journal.read_bytes())
    elif damage == "line":
        lines = journal.read_text().splitlines()
        journal.write_text("\n".join([*lines[:-1], json.dumps({"tensor": "model.norm.weight"})]) + "\n")
    else:
        lines = journal.read_text().splitlines()
        journal.write_text("\n".join([*lines[:-1], json.dumps({**json.loads(lines[-1]), "sha256": "0" * 64})]) + "\n")
    again = fill(tmp_path, source)
    assert (len(again) == len(source[0].tensors)) == (damage in ("header", "cut", "journal"))
    assert again
    assert path.read_bytes() == good


@pytest.mark.parametrize("other", ["another source", "another plan"])
def test_the_leftovers_of_other_settings_are_not_continued(
    tmp_path: Path, source: tuple[PackedPlan, Weights], other: str
) -> None:
    fill(tmp_path, source, 5, origin="a")
    plan, weights = source
    if other == "another plan":
        plan = make_plan(plan.config, weights, recipe_of("mq6"), "online")
    made_from = {"origin": "b" if other == "another source" else "a"}
    with packed_file.opened(tmp_path, plan, made_from, quiet) as (file, is_new):
        assert is_new
        assert not file.done
    with packed_file.opened(tmp_path, plan, made_from, quiet) as (_, is_new):
        assert not is_new


def test_what_is_kept_beside_the_tensors_is_there_for_a_later_run(
    tmp_path: Path, source: tuple[PackedPlan, Weights]
) -> None:
    with packed_file.opened(tmp_path, source[0], {}, quiet) as (file, _):
        assert file.kept("text") is None
        file.keep("text", [1, 2])
        file.keep("text", [3])
    with packed_file.opened(tmp_path, source[0], {}, quiet) as (file, _):
        assert file.kept("text") == [3]


def test_what_is_done_is_kept_where_a_file_may_not_become_larger(
    tmp_path: Path, source: tuple[PackedPlan, Weights]
) -> None:
    """It gives out in the middle of the journal."""
    with packed_file.opened(tmp_path, source[0], {}, quiet) as (file, _):
        made = encoded(source, file)
        for _ in range(4):
            file.write(*next(made))
        done = f"4 of {len(source[0].tensors)} tensors are done"
        with file_size_limit(os.path.getsize(tmp_path / JOURNAL_NAME) + 20), pytest.raises(DoesNotFit, match=done):
            file.write(*next(made))
    assert len(fill(tmp_path, source)) == len(source[0].tensors) - 4


def test_a_file_that_may_not_become_so_large_is_said(tmp_path: Path, source: tuple[PackedPlan, Weights]) -> None:
    with file_size_limit(40_000), pytest.raises(DoesNotFit, match="may not become as large as this one has to: 0 of"):
        fill(tmp_path, source)


def test_the_room_is_taken_at_the_start(tmp_path: Path, source: tuple[PackedPlan, Weights]) -> None:
    """Another program that fills the disk later takes nothing away."""
    fill(tmp_path, source, 0)
    stat = (tmp_path / WEIGHTS_NAME).stat()
    assert stat.st_size == lay_out(source[0].tensors).total_bytes
    assert stat.st_blocks * 512 >= stat.st_size


def test_a_tensor_of_another_shape_or_type_is_a_mistake_of_ours(
    tmp_path: Path, source: tuple[PackedPlan, Weights]
) -> None:
    with packed_file.opened(tmp_path, source[0], {}, quiet) as (file, _), pytest.raises(AssertionError):
        file.write("model.norm.weight", Encoded(parts={"": torch.zeros(64)}, parameters={}))


def test_peak_memory_follows_the_largest_tensor(tmp_path: Path) -> None:
    """A model whose embedding is 64 MB as float32, packed in a process of its own, once what it needs is imported.

    It took 94 to 138 MB, more where other programs run, and once 199, whose cause is not known.
    """
    directory = tiny(tmp_path / "source", "llama-tied", vocab_size=2**14, hidden_size=1024, head_dim=256)
    program = f"""
import os, sys
from dataclasses import replace
from pathlib import Path
from runner.machine import peak_bytes
from runner.quant.mq.quantize import quantize_packed
from runner.quant.mq.recipe import Rule, recipe_of
def pack(source, output, rotation, embedding):
    mq8 = recipe_of("mq8")
    own = [Rule(tensors="model.embed_tokens.weight", format=embedding)]
    recipe = replace(mq8, rules=(*own, *mq8.rules))
    quantize_packed(Path(source), recipe, Path(output), rotation=rotation, on_stage=lambda *_: None)
for case in (argument.split() for argument in sys.argv[1:]):
    if os.fork() == 0:
        pack({str(tiny(tmp_path / "small"))!r}, {str(tmp_path / "warm")!r} + "".join(case), *case)
        before = peak_bytes()
        pack({str(directory)!r}, {str(tmp_path / "out")!r} + "".join(case), *case)
        print(peak_bytes() - before, flush=True)
        os._exit(0)
    os.wait()
"""
    cases = ("online mq8", "folded mq8", "folded keep")
    done = subprocess.run(
        [sys.executable, "-c", program, *cases],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "2"},
    )
    peaks = done.stdout.split()
    assert len(peaks) == len(cases), done.stderr
    for case, peak in zip(cases, peaks, strict=True):
        assert 32 * 2**20 < int(peak) < 4 * 64 * 2**20, case
