"""Parts of split models that lie under each other's names."""

from __future__ import annotations

from pathlib import Path

import pytest
from gguf import GGUFWriter
from pulled import N_SHARDS, shard, write_shards

from runner.shard_order import wrong_shards


def write_part(path: Path, number: int | str | None) -> Path:
    writer = GGUFWriter(path, "llama")
    if isinstance(number, str):
        writer.add_string("split.no", number)
    elif number is not None:
        writer.add_uint16("split.no", number)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_shards_in_their_places_are_fine_and_exchanged_ones_are_named(tmp_path: Path, demo_directory: Path) -> None:
    directory = write_shards(tmp_path / "m", demo_directory)
    files = {shard(number): directory / shard(number) for number in range(1, N_SHARDS + 1)}
    assert wrong_shards(directory, files) == ()
    files[shard(1)], files[shard(3)] = files[shard(3)], files[shard(1)]
    assert [name for name, _ in wrong_shards(directory, files)] == [shard(1), shard(3)]


@pytest.mark.parametrize("index", ["{", "[]", '{"weight_map": 7}', '{"weight_map": {"a": 7, "b": "none.safetensors"}}'])
def test_an_index_that_says_nothing_is_no_evidence(tmp_path: Path, demo_directory: Path, index: str) -> None:
    directory = write_shards(tmp_path / "m", demo_directory)
    (directory / "model.safetensors.index.json").write_text(index)
    assert wrong_shards(directory, {shard(1): directory / shard(1)}) == ()


def test_parts_of_a_gguf_count_themselves(tmp_path: Path) -> None:
    names = [f"x-Q4_0-{number:05d}-of-00004.gguf" for number in (1, 2, 3, 4)]
    files = {
        names[0]: write_part(tmp_path / "a", 0),
        names[1]: write_part(tmp_path / "b", 2),
        names[2]: write_part(tmp_path / "c", None),
        names[3]: write_part(tmp_path / "d", "what"),
    }
    assert wrong_shards(tmp_path, files) == ((names[1], "it is part 3 by its own header"),)


def test_what_is_not_split_or_has_no_header_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "x-00001-of-00002.gguf").write_bytes(b"no header")
    files = {"x-00001-of-00002.gguf": tmp_path / "x-00001-of-00002.gguf", "y.gguf": write_part(tmp_path / "y", 5)}
    assert wrong_shards(tmp_path, files) == ()
