"""The catalog's rows: where they come from, what fits, how fast, filters, sorts and columns."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import pytest
from live_samples import fit
from model_rows import GIB, rooms, row
from plain_user import python_as_plain_user

from runner.bench.record import BenchRow
from runner.hub import Found
from runner.inventory import LocalModel, local_models
from runner.paths import user_paths
from runner.registry import ModelSpec, Registry
from runner.tui.catalog import (
    RowFit,
    catalog_rows,
    damage,
    deletable_name,
    expected_tok_s,
    filtered,
    found_rows,
    measured_tok_s,
    rough_fit,
    row_fit,
)
from runner.tui.catalog import rooms as rooms_of
from runner.tui.catalog_columns import BY_KEY, COLUMNS, columns_for, empty_columns, fit_text, sorted_rows
from runner.tui.catalog_reading import read_catalog
from runner.tui.model_offers import offers_of
from runner.tui.quantize_choices import (
    bits_a_weight,
    format_choices,
    objection,
    original_bytes,
    source_of,
    suggested_names,
)
from runner.types import Device


def spec(name: str, **changes: object) -> ModelSpec:
    values = {"gguf": f"o/{name}-GGUF", "repo": f"o/{name}", "quants": ("Q4_K_M", "Q8_0"), "quant": "Q4_K_M"}
    return ModelSpec(name=name, parameters=8_000_000_000, **{**values, **changes})  # type: ignore[arg-type]


def local(name: str, **changes: object) -> LocalModel:
    values: dict[str, object] = {
        "kind": "cache",
        "format": "gguf",
        "quantization": "Q4_K_M",
        "size_bytes": 100,
        "path": Path("/x"),
        "repo": "o/r",
        "last_used": 0.0,
        "total_bytes": 100,
        "num_here": 1,
        "num_files": 1,
    }
    return LocalModel(name=name, **{**values, **changes})  # type: ignore[arg-type]


def gpu(free: int = 20 * GIB) -> Device:
    return Device(kind="cuda", index=0, name="GPU", total_bytes=24 * GIB, free_bytes=free)


def memory(free: int = 30 * GIB) -> Device:
    return Device(kind="cpu", index=0, name="CPU", total_bytes=32 * GIB, free_bytes=free)


def test_a_model_of_the_users_file_that_is_gone_has_a_row_that_says_so(tmp_path: Path) -> None:
    file = user_paths().user_models_file
    file.parent.mkdir(parents=True)
    file.write_text(f'[mine]\npath = "{tmp_path}/disk/mine.gguf"\n')
    registry = Registry.load_for(user_paths())
    (gone,) = (row for row in catalog_rows(registry.specs, local_models(registry), rooms(), {}) if row.name == "mine")
    assert (gone.place, gone.state, gone.kind) == ("here", "damaged", "own file")
    assert damage(gone).startswith(f"{tmp_path}/disk/mine.gguf does not exist")


def test_what_is_here_comes_first_and_once() -> None:
    here = [local("b:Q8_0", quantization="Q8_0"), local("b"), local("o/r:Q4_0", state="partial", size_bytes=40)]
    rows = catalog_rows([spec("a"), spec("b")], here, rooms(), {"b": 12.0})
    assert [(one.name, one.place, one.state) for one in rows] == [
        ("b:Q8_0", "here", "complete"),
        ("b", "here", "complete"),
        ("o/r:Q4_0", "here", "partial"),
        ("a", "registry", "absent"),
    ]
    assert rows[0].parameters == 8_000_000_000
    assert rows[1].measured_tok_s == 12.0
    assert rows[2].done_share == 0.4
    assert rows[3].quants == ("Q4_K_M", "Q8_0", "safetensors")


def test_the_hub_adds_what_is_not_known_yet() -> None:
    known = catalog_rows([spec("a")], [], rooms(), {})
    found = [
        Found("o/a-GGUF", 5, 1, "", False, 7, ("gguf",)),
        Found("o/new", 5, 1, "2025-01-01", True, 8_000_000_000, ("gguf", "safetensors")),
        Found("o/odd", 5, 1, "", False, 0, ()),
    ]
    new, odd = found_rows(found, known, rooms())
    assert (new.name, new.place, new.gated, new.fit.verdict) == ("o/new", "hub", "yes", "fits")
    assert not new.is_size_exact
    assert (odd.size_bytes, odd.fit.verdict) == (0, "unknown")


@pytest.mark.parametrize(
    ("held", "free", "ram", "verdict"),
    [
        (5 * GIB, 20 * GIB, 0, "fits"),
        (19 * GIB, 20 * GIB, 0, "no"),
        (19 * GIB, 20 * GIB, 10 * GIB, "partly"),
        (90 * GIB, 20 * GIB, 10 * GIB, "no"),
        (0, 20 * GIB, 0, "unknown"),
    ],
)
def test_a_model_fits_partly_fits_or_does_not(held: int, free: int, ram: int, verdict: str) -> None:
    fit = rough_fit(held, rooms(free, ram=ram).gguf)
    assert fit.verdict == verdict
    assert (0 < fit.gpu_share < 1) == (verdict == "partly")


def test_gguf_goes_to_the_gpu_only_where_llama_cpp_can_use_it() -> None:
    machine = (gpu(), memory())
    with_gpu = rooms_of(machine, {"GPU": 1e12}, gguf_on_gpu=True)
    without = rooms_of(machine, {"GPU": 1e12}, gguf_on_gpu=False)
    assert (with_gpu.gguf.on_gpu, with_gpu.gguf.ram_bytes, with_gpu.gguf.bandwidth_bytes_s) == (True, 30 * GIB, 1e12)
    assert with_gpu.gguf.free_bytes == gpu().free_bytes - 256 * 2**20, "less what drivers take, as of exact rows"
    assert (without.gguf.on_gpu, without.gguf.free_bytes, without.gguf.ram_bytes) == (False, 30 * GIB, 0)
    assert (without.native.on_gpu, without.native.ram_bytes) == (True, 0)
    shared = rooms_of((dataclasses.replace(gpu(), is_in_main_memory=True), memory()), {}, gguf_on_gpu=True)
    assert (shared.gguf.on_gpu, shared.gguf.ram_bytes) == (True, 0)


def test_the_expected_rate_is_bandwidth_over_the_bytes_a_token_reads() -> None:
    room, fits = rooms(bandwidth=1e12).gguf, RowFit(verdict="fits")
    assert expected_tok_s(5 * 10**9, 8 * 10**9, 0, fits, room) == 200
    assert expected_tok_s(20 * 10**9, 30 * 10**9, 3 * 10**9, fits, room) == pytest.approx(500)
    assert expected_tok_s(5 * 10**9, 8 * 10**9, 0, RowFit(verdict="partly"), room) is None
    assert expected_tok_s(5 * 10**9, 8 * 10**9, 0, fits, rooms().gguf) is None


def test_the_newest_benchmark_of_a_model_counts() -> None:
    def run_of(model: str, *rates: float, is_partial: bool = False) -> SimpleNamespace:
        rows = [decoding(rate) for rate in rates]
        rows += [decoding(900.0, n_depth=4096), decoding(5000.0, n_gen=0), decoding(3.0, unit="ms")]
        return SimpleNamespace(model=model, rows=rows, is_partial=is_partial)

    runs = [run_of("a", 10.0), run_of("b", 7.0, 9.0), run_of("a", 20.0)]
    stopped = [run_of("a", 3.0, is_partial=True), run_of("c", 4.0, is_partial=True)]
    assert measured_tok_s([*runs, *stopped]) == {"a": 20.0, "b": 9.0, "c": 4.0}  # type: ignore[arg-type]


def decoding(rate: float, **changes: object) -> BenchRow:
    values: dict[str, object] = {"n_gen": 128, "unit": "tok/s", "samples": (rate,), "segments": (1,)}
    return BenchRow(model="m", backend="llamacpp", test="tg128", **{**values, **changes})  # type: ignore[arg-type]


def test_every_word_of_a_filter_has_to_be_there() -> None:
    rows = [row("qwen3-8b"), row("qwen3-14b"), row("llama-8b", fit=RowFit(verdict="no"))]
    assert [one.name for one in filtered(rows, "8B qwen")] == ["qwen3-8b"]
    assert [one.name for one in filtered(rows, "8b", fits_only=True)] == ["qwen3-8b"]
    assert len(list(filtered(rows, "  "))) == 3


def test_what_is_not_known_stays_at_the_end_of_either_order() -> None:
    rows = [row("a", size_bytes=0), row("b", size_bytes=9), row("c", size_bytes=3)]
    assert [one.name for one in sorted_rows(rows, "size", is_reversed=False)] == ["c", "b", "a"]
    assert [one.name for one in sorted_rows(rows, "size", is_reversed=True)] == ["b", "c", "a"]
    for column in COLUMNS:
        assert len(sorted_rows(rows, column.key, is_reversed=False)) == 3


def test_what_models_take_is_one_order_be_it_estimated_or_read_from_headers() -> None:
    on_cpu, on_gpu = row_fit(dataclasses.replace(fit(), n_gpu_layers=0)), row_fit(fit())
    rows = [row("large", fit=rough_fit(15 * GIB, rooms(20 * GIB).gguf)), row("cpu", fit=on_cpu), row("gpu", fit=on_gpu)]
    assert [one.name for one in sorted_rows(rows, "fit", is_reversed=False)] == ["cpu", "gpu", "large"]


@pytest.mark.parametrize("width", range(1, 220, 7))
def test_columns_never_take_more_than_there_is(width: int) -> None:
    columns = columns_for(width, 40)
    assert columns[0][0].key == "name"
    assert sum(size for _, size in columns) + 2 * (len(columns) - 1) <= max(width, 1)


def test_columns_go_by_worth() -> None:
    keys = [{column.key for column, _ in columns_for(width, 22)} for width in (37, 60, 77, 118, 160)]
    assert keys[0] == {"name", "fit"}
    assert {"name", "fit", "size"} <= keys[1]
    assert {"state", "quant"} <= keys[2]
    assert {"expected", "parameters", "measured"} <= keys[3]
    assert len(keys[4]) == len(COLUMNS)


def test_columns_that_no_row_has_anything_in_make_room_for_others() -> None:
    rows = [row("a", size_bytes=9, context=4096), row("b", licence="mit")]
    empty = empty_columns(rows)
    assert {"expected", "measured"} <= empty
    assert empty.isdisjoint(("name", "size", "context", "licence", "fit", "state"))
    keys = [column.key for column, _ in columns_for(92, 22, empty)]
    assert "context" in keys
    assert "expected" not in keys
    assert "expected" in [
        column.key for column, _ in columns_for(92, 22, empty_columns([*rows, row("c", expected_tok_s=9.0)]))
    ]
    assert len(columns_for(160, 22, empty)) == len(COLUMNS)


@pytest.mark.parametrize(
    ("fit", "text"),
    [
        (RowFit(verdict="fits", need_bytes=int(9.6 * GIB), free_bytes=24 * GIB, is_exact=True), "✓   9.6/24.0 GiB"),
        (RowFit(verdict="fits", need_bytes=46 << 20, free_bytes=24 * GIB, is_exact=True), "✓  0.04/24.0 GiB"),
        (RowFit(verdict="no", need_bytes=130 * GIB, free_bytes=24 * GIB), "✗  ~130/24.0 GiB"),
        (RowFit(verdict="partly", need_bytes=30 * GIB, free_bytes=24 * GIB, gpu_share=0.62), "◐ 62 % of layers"),
        (RowFit(), "·"),
    ],
)
def test_a_fit_is_said_with_a_mark(fit: RowFit, text: str) -> None:
    assert fit_text(fit) == text
    assert len(text) <= BY_KEY["fit"].width


def test_the_real_catalog_has_every_model_of_the_registry() -> None:
    catalog = read_catalog(user_paths())
    names = {one.name for one in catalog.rows}
    assert {spec.name for spec in Registry.load_for().specs} <= names
    assert catalog.problem is None
    assert all(one.fit.verdict != "unknown" for one in catalog.rows)


@pytest.mark.parametrize(("measured", "bytes_s"), [(None, 4e12), (3e12, 3e12)], ids=["no benchmark", "a benchmark"])
def test_what_decoding_could_reach_is_told_before_a_benchmark_too(
    measured: float | None, bytes_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runner.tui.catalog_reading.devices", lambda: (gpu(), memory()))
    monkeypatch.setattr(
        "runner.tui.catalog_reading.rated_bandwidth", lambda device: 4e12 if device.kind == "cuda" else None
    )
    monkeypatch.setattr("runner.tui.catalog_reading.measured_bandwidth", lambda _, __: measured)
    catalog = read_catalog(user_paths(), gguf_on_gpu=True)
    eight = next(one for one in catalog.rows if one.name == "qwen3-8b")
    assert eight.expected_tok_s == pytest.approx(bytes_s / eight.size_bytes, rel=0.02)


def test_a_wrong_file_of_the_users_is_told_and_harms_nothing() -> None:
    path = user_paths().user_models_file
    path.parent.mkdir(parents=True)
    path.write_text("[x]\nnonsense = 1\n")
    catalog = read_catalog(user_paths())
    assert catalog.rows == ()
    assert catalog.problem is not None
    assert "nonsense" in catalog.problem.message


def test_a_mixture_reads_fewer_weights_than_it_has() -> None:
    specs = {one.name: one for one in Registry.load_for().specs}
    for name in ("qwen3-30b-a3b", "gpt-oss-20b", "gemma-4-26b-a4b"):
        assert 0 < specs[name].active < specs[name].parameters / 4


def test_the_offers_of_a_registry_model_are_its_quantizations() -> None:
    catalog = read_catalog(user_paths())
    eight = next(one for one in catalog.rows if one.name == "qwen3-8b")
    offers = offers_of(eight, catalog)
    assert [offer.name for offer in offers][:2] == ["qwen3-8b:Q4_K_M", "qwen3-8b:Q5_0"]
    assert offers[-1].name == "qwen3-8b:safetensors"
    assert [offer.label for offer in offers if offer.is_usual] == ["Q4_K_M"]
    assert all(offer.size_bytes for offer in offers)


def test_formats_have_sizes_and_quantized_files_are_objected_to() -> None:
    from runner.quant.formats import FORMATS
    from runner.quant.mq.recipe import RECIPES

    choices = format_choices(8_000_000_000)
    assert {choice.name for choice in choices} == {*FORMATS, *RECIPES}
    assert all(3 < bits_a_weight(choice.name) <= 32 for choice in choices)
    registry = row("qwen3-8b", quants=("Q4_K_M", "safetensors"))
    assert (source_of(registry), objection(registry)) == ("qwen3-8b:safetensors", "")
    assert original_bytes(registry) == 16_000_000_000
    assert "Q4_K_M already" in objection(row("o/r:Q4_K_M", place="here", kind="cache", state="complete"))
    assert "packed" in objection(row("m", stored_as="packed", kind="made here"))
    assert objection(row("demo", kind="built-in", quant="Q8_0")) == ""


def test_the_name_of_what_is_made_is_that_of_the_original_weights_as_on_the_command_line() -> None:
    catalog = read_catalog(user_paths())
    eight = next(one for one in catalog.rows if one.name == "qwen3-8b")
    assert suggested_names(eight, Registry.load_for())["mq4"] == "Qwen3-8B-mq4"


def test_deleting_one_quantization_names_it_so_that_others_stay() -> None:
    here = row("qwen3-8b", kind="cache", quants=("Q4_K_M", "Q8_0", "safetensors"))
    assert deletable_name(here) == "qwen3-8b:Q4_K_M"
    assert deletable_name(row("qwen3-8b:Q8_0", kind="cache", quant="Q8_0", quants=("Q8_0",))) == "qwen3-8b:Q8_0"
    assert deletable_name(row("mine", kind="made here")) == "mine"


def test_what_may_not_be_read_is_told_beside_the_rows() -> None:
    closed = user_paths().drafts
    closed.mkdir(parents=True)
    program = """
from runner.paths import user_paths
from runner.tui.catalog_reading import read_catalog
found = read_catalog(user_paths(), gguf_on_gpu=False)
print(found.rows[0].name, found.problem.message, found.problem.hint)
"""
    done = python_as_plain_user("-c", program, closed=closed)
    assert done.stdout.startswith(f"demo {closed} cannot be read: permission denied. Give yourself access"), done.stderr
