"""A run for programs and documents: llama-bench's names and units, and nothing made up."""

from __future__ import annotations

import csv
import dataclasses
import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.bench.figures import kv_types
from runner.bench.formats import LLAMA_BENCH_COLUMNS, OWN_COLUMNS, csv_text, flat_rows, markdown, run_json
from runner.bench.record import BenchMachine, BenchRun, run_to_json
from runner.safe_text import safe_line
from tests.bench.bench_records import HOSTILE, backend, full_run, gpu_machine, machine, options, refused, row, run

# The first line of `llama-bench -o csv`, from its README.
THEIRS = """
    build_commit,build_number,cpu_info,gpu_info,backends,model_filename,model_type,model_size,model_n_params,n_batch,
    n_ubatch,n_threads,cpu_mask,cpu_strict,poll,type_k,type_v,n_gpu_layers,n_cpu_moe,split_mode,main_gpu,
    no_kv_offload,flash_attn,devices,tensor_split,tensor_buft_overrides,use_mmap,use_direct_io,embeddings,
    no_op_offload,no_host,repack,fit_target,fit_min_ctx,n_prompt,n_gen,n_depth,test_time,avg_ns,stddev_ns,avg_ts,
    stddev_ts
""".replace(",", " ").split()


def parsed(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline="")))


def test_columns_have_llama_benchs_names_and_order() -> None:
    assert list(LLAMA_BENCH_COLUMNS) == [name for name in THEIRS if name in LLAMA_BENCH_COLUMNS]
    assert set(LLAMA_BENCH_COLUMNS) < set(THEIRS)
    assert not set(OWN_COLUMNS) & set(THEIRS)
    header = csv_text(full_run()).splitlines()[0]
    assert header.split(",") == [*LLAMA_BENCH_COLUMNS, *OWN_COLUMNS]


def test_times_are_of_the_whole_test_and_rates_of_tokens() -> None:
    (found,) = flat_rows(run(backend(row("pp512", (1000.0, 2000.0)))))
    assert (found["n_prompt"], found["n_gen"], found["n_depth"]) == (512, 0, 0)
    assert found["samples_ns"] == [512_000_000, 256_000_000]
    assert found["avg_ns"] == 384_000_000
    assert found["stddev_ns"] == pytest.approx(181_019_336, abs=1)
    assert (found["avg_ts"], found["samples_ts"]) == (1500.0, [1000.0, 2000.0])
    (at_depth,) = flat_rows(run(backend(row("tg128 @ d4096", (64.0, 64.0)))))
    assert (at_depth["n_gen"], at_depth["n_depth"], at_depth["avg_ns"]) == (128, 4096, 2_000_000_000)
    assert at_depth["stddev_ns"] == 0


@pytest.mark.parametrize(
    ("place", "layers", "held"),
    [(machine(), "auto", "f32"), (gpu_machine(), "auto", "bf16"), (gpu_machine(), 0, "f32")],
)
def test_the_type_of_the_kv_cache_is_the_one_that_the_backend_had(
    place: BenchMachine, layers: int | str, held: str
) -> None:
    rows = backend(row("tg128", (64.0,))), backend(row("tg128", (64.0,)), name="llamacpp")
    both = run(*rows, machine=place, options=options(n_gpu_layers=layers))
    assert [(found["type_k"], found["type_v"]) for found in flat_rows(both)] == [(held, held), ("f16", "f16")]
    assert kv_types(both) == f"f16 (native: {held})"
    assert f"KV cache f16 (native: {held})" in markdown(both)
    chosen = run(*rows, machine=place, options=options(n_gpu_layers=layers, kv_type="f32"))
    assert (flat_rows(chosen)[0]["type_k"], kv_types(chosen)) == ("f32", "f32")


def test_a_time_to_the_first_token_is_no_rate() -> None:
    (found,) = flat_rows(run(backend(row("ttft", (80.0, 90.0)))))
    assert (found["avg_ns"], found["mean"], found["unit"]) == (85_000_000, 85.0, "ms")
    assert not {"avg_ts", "stddev_ts", "samples_ts"} & found.keys()


def test_what_is_not_known_is_left_out() -> None:
    (found,) = flat_rows(run())
    assert not {"gpu_info", "n_threads", "n_gpu_layers", "cold", "bandwidth_share", "invalid", "note"} & found.keys()
    given = options(n_threads=4, n_gpu_layers=20)
    (found,) = flat_rows(run(machine=gpu_machine(), options=given))
    assert (found["gpu_info"], found["backends"], found["n_threads"], found["n_gpu_layers"]) == (
        "NVIDIA H200",
        "CUDA",
        4,
        20,
    )


def test_an_invalid_row_has_its_reason_and_no_number_in_any_format() -> None:
    bad = run(backend(row("tg128", (), segments=(), invalid="tokens differ")))
    (found,) = flat_rows(bad)
    assert (found["invalid"], found["label"]) == ("tokens differ", "INVALID")
    assert not {"avg_ns", "avg_ts", "mean", "median", "cold", "samples_ns"} & found.keys()
    (line,) = parsed(csv_text(bad))
    assert (line["avg_ts"], line["mean"], line["invalid"]) == ("", "", "tokens differ")
    assert run_json(bad)["backends"][0]["rows"][0]["mean"] is None
    assert "INVALID" in markdown(bad)
    assert "tokens differ" in markdown(bad)


def test_a_refused_backend_is_in_every_format() -> None:
    both = run(backend(row()), refused("llamacpp", "The file is no GGUF."))
    assert flat_rows(both)[-1]["refused"] == "The file is no GGUF."
    assert parsed(csv_text(both))[-1]["backend"] == "llamacpp"
    assert "llamacpp was refused: The file is no GGUF." in markdown(both)
    assert run_json(both)["backends"][1]["refused"] == "The file is no GGUF."


def test_json_is_the_whole_run_and_its_rows_as_llama_bench_has_them() -> None:
    plain = json.loads(json.dumps(run_json(full_run())))
    assert plain.pop("results") == json.loads(json.dumps(flat_rows(full_run())))
    assert plain == json.loads(json.dumps(run_to_json(full_run())))


def test_markdown_is_llama_benchs_table() -> None:
    lines = markdown(full_run()).splitlines()
    assert [cell.strip() for cell in lines[0].strip("|").split("|")] == [
        "model", "size", "params", "backend", "test", "t/s", "cold", "cv", "",
    ]  # fmt: skip
    assert set(lines[1]) == set("|-: ")
    decode = next(line for line in lines if "tg128 |" in line and "native" in line)
    assert [cell.strip() for cell in decode.strip("|").split("|")][:6] == [
        "demo Q8\\_0", "18.88 MiB", "18.36 M", "native (CPU)", "tg128", "142.62 ± 1.18",
    ]  # fmt: skip
    assert any("**noisy**" in line and "pp512" in line for line in lines)
    assert any(line.startswith("- **INVALID** native tg128 @ d4096") for line in lines)
    assert len({len(line) for line in lines[:9]}) == 1


def test_markdown_of_hostile_names_is_one_table_of_one_width() -> None:
    text = markdown(run(backend(row(HOSTILE)), refused("llamacpp", HOSTILE), model=HOSTILE, notes=(f"**{HOSTILE}**",)))
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert len(table) == 3
    assert not set(text) & set("\x1b\x07\x9b\u202e")
    assert "<b>" not in text.replace("\\<b\\>", "")
    assert "- \\*\\*" in text


names = st.text(st.characters(codec="utf-8"), max_size=30)


@given(names, names, names, st.lists(st.floats(0.01, 1e6), min_size=1, max_size=5).map(tuple))
def test_csv_is_read_back_as_it_was_written(model: str, note: str, cpu: str, samples: tuple[float, ...]) -> None:
    one = run(backend(row(samples=samples, note=note)), model=model, machine=machine(cpu=cpu))
    (line,) = parsed(csv_text(one))
    assert (line["model"], line["note"], line["cpu_info"]) == (safe_line(model), safe_line(note), safe_line(cpu))
    assert float(line["avg_ts"]) == pytest.approx(one.rows[0].mean)
    assert int(line["avg_ns"]) == flat_rows(one)[0]["avg_ns"]
    assert line["n_gen"] == "128"


def test_runs_of_a_history_are_one_table() -> None:
    runs: list[BenchRun] = [run(id="a"), dataclasses.replace(full_run(), id="b")]
    lines = parsed(csv_text(*runs))
    assert [line["run_id"] for line in lines] == ["a"] + ["b"] * 8
    assert csv_text().count("\n") == 1
