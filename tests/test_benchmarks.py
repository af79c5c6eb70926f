"""What the benchmarks compute around their measurements: models that are made, profiles, peers' output, the page."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import decode_layer
import generation
import page
import peers
import pytest
import random_gguf
import random_models
import records
import speed_plots
import tiles
import torch
from decode_layer import Kernel
from gguf import GGMLQuantizationType as Type
from gguf.quants import dequantize
from shapes import SHAPES, config_of
from triton.runtime.errors import OutOfResources

import models
from runner.backends import llamacpp
from runner.backends.native.fused_execution import FusedExecution
from runner.config import LoadOptions, SamplingParams
from runner.kernels import gemv_fragments, gemv_tiles
from runner.kernels.values import MOST_ROWS
from runner.model_config import parse_model_config
from runner.quant.formats import FORMATS
from runner.quant.gguf_file import read_header
from runner.quant.mq.formats import TENSOR_FORMATS
from runner.quant.mq.manifest import read_manifest
from runner.quant.mq.packed_weights import PackedWeights
from runner.quant.quantize import quantize_model
from runner.types import CancelToken, ReadyModel
from tests.backends.native import tiny_models

SMALL = config_of("tiny", 1) | {"vocab_size": 16, "hidden_size": 32, "intermediate_size": 32}
SMALL |= {"num_attention_heads": 1, "num_key_value_heads": 1}

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.mark.parametrize("name", sorted(path.stem for path in BENCHMARKS.glob("*.py")))
def test_every_benchmark_finds_what_it_takes_from_the_program(name: str) -> None:
    """No type checker reads them."""
    importlib.import_module(name)


# --- models that are made --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_is_a_model_that_the_native_backend_has(shape: str) -> None:
    plan = random_models.plan_of(parse_model_config(config_of(shape, 1)), "mq4")
    assert plan.main_format == "mq4"


@pytest.mark.parametrize("name", ["mq4", "mq4-uniform", "mq6", "mq8"])
def test_random_matrices_give_outputs_of_the_size_of_their_inputs(name: str) -> None:
    form, shape = TENSOR_FORMATS[name], (128, 1024)
    generator = torch.Generator().manual_seed(0)
    encoded = random_models.random_matrix(form, shape, generator, torch.device("cpu"))  # type: ignore[arg-type]
    weights = form.decode(encoded, shape)
    assert 0.7 < float(weights.std()) * 1024**0.5 < 1.45
    assert abs(float(weights.mean())) < 0.05 * float(weights.std())


def test_a_made_directory_is_whole_and_the_same_each_time(tmp_path: Path) -> None:
    for name in ("one", "two"):
        random_models.write_directory(tmp_path / name, SMALL, "mq4-uniform", is_hashed=True)
    weights = PackedWeights(tmp_path / "one")  # compares the manifest with the file
    assert weights.shapes["model.layers.0.mlp.down_proj.weight"] == (32, 32)
    assert (weights.read("model.norm.weight") == 0x3F80).all()  # ones, as bits of bfloat16
    first, second = (read_manifest(tmp_path / name) for name in ("one", "two"))
    assert first.tensors == second.tensors
    assert first.files["model.safetensors"] == second.files["model.safetensors"]
    assert first.files["model.safetensors"].sha256


def test_gguf_types_are_those_of_llama_cpps_own_quantizer() -> None:
    """4.92 GB is the size of everybody's Llama-3.1-8B in Q4_K_M, 4.66 GB in Q4_0."""
    config = parse_model_config(SHAPES["llama-3.1-8b"])
    mixed = random_gguf.planned(config, "q4_k_m")
    assert sum(tensor.nbytes for tensor in mixed) == pytest.approx(4.92e9, rel=0.003)
    assert sum(tensor.nbytes for tensor in random_gguf.planned(config, "q4_0")) == pytest.approx(4.66e9, rel=0.003)
    six = [tensor.name for tensor in mixed if tensor.type == Type.Q6_K]
    assert "output.weight" in six
    assert sum(name.endswith("ffn_down.weight") for name in six) == 16
    tied = random_gguf.planned(parse_model_config(SHAPES["qwen3-0.6b"]), "q4_k_m")
    assert [tensor.type for tensor in tied if tensor.name == "token_embd.weight"] == [Type.Q6_K]


def test_gpt_oss_has_as_many_tensors_of_each_type_as_the_file_that_is_published() -> None:
    """Of 459 tensors 72 in MXFP4, in 12.1 GB."""
    tensors = random_gguf.planned(parse_model_config(SHAPES["gpt-oss-20b"]), "mxfp4_moe")
    assert Counter(tensor.type for tensor in tensors) == {Type.F32: 289, Type.Q8_0: 98, Type.MXFP4: 72}
    assert sum(tensor.nbytes for tensor in tensors) == pytest.approx(12.1e9, rel=0.003)


# Qwen3.5 as a shape of its own, so small that a test can make it.
DELTA_NETS = {"model_type": "qwen3_5_text", "num_hidden_layers": 8, "head_dim": 256}
DELTA_NETS |= {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "max_position_embeddings": 4096}
SHARED_EXPERT = DELTA_NETS | {"model_type": "qwen3_5_moe_text", "num_experts": 4, "num_experts_per_tok": 2}
SHARED_EXPERT |= {"moe_intermediate_size": 256, "shared_expert_intermediate_size": 256}
# Gemma 4 with as many heads everywhere as SMALL_SIZES say, of two sizes.
GEMMA4 = config_of("gemma-4-31b", 12) | {"num_global_key_value_heads": 1, "max_position_embeddings": 4096}
EXPERTS_BESIDE = config_of("gemma-4-26b-a4b", 12) | {"num_global_key_value_heads": 1, "max_position_embeddings": 4096}
EXPERTS_BESIDE |= {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 192}
# Of the small ones half of the layers see what others keep, and all have inputs.
GEMMA4_E2B = config_of("gemma-4-e2b", 10) | {"vocab_size_per_layer_input": 8192, "max_position_embeddings": 4096}
SMALL_SIZES = {"vocab_size": 8192, "hidden_size": 256, "intermediate_size": 256}
SMALL_SIZES |= {"num_attention_heads": 2, "num_key_value_heads": 1}


@pytest.mark.parametrize("mix", ["q4_k_m", "q4_0"])
@pytest.mark.parametrize(
    "shape",
    [
        config_of("llama-3.1-8b", 16),
        config_of("phi-3-mini", 16),
        config_of("mixtral-8x7b", 12),
        GEMMA4,
        EXPERTS_BESIDE,
        GEMMA4_E2B,
        DELTA_NETS,
        SHARED_EXPERT,
    ],
    ids=["llama", "phi", "mixtral", "gemma4", "gemma4 with experts", "gemma4 e2b", "qwen3.5", "qwen3.5 with experts"],
)
def test_llama_cpps_own_quantizer_gives_every_tensor_the_type_that_is_planned(
    tmp_path: Path, shape: dict[str, Any], mix: str
) -> None:
    shape = shape | SMALL_SIZES
    random_gguf.write_gguf(tmp_path / "source.gguf", shape, "q8_0")
    quantize_model(
        tmp_path / "source.gguf", FORMATS[mix], tmp_path / "made.gguf", force=False, on_stage=lambda *_: None
    )
    made = {tensor.name: tensor.type.name for tensor in read_header(tmp_path / "made.gguf").tensors}
    planned = random_gguf.planned(parse_model_config(shape), mix)
    assert made == {tensor.name: tensor.type.name for tensor in planned}


def test_rows_that_no_blocks_of_256_fill_have_the_types_that_llama_cpp_falls_back_to() -> None:
    odd = {
        tensor.name: tensor.type for tensor in random_gguf.planned(parse_model_config(SHAPES["qwen2.5-0.5b"]), "q4_k_m")
    }
    assert odd["token_embd.weight"] == Type.Q8_0  # 896 columns, for Q6_K
    assert odd["blk.4.attn_q.weight"] == Type.Q5_0  # for Q4_K
    assert odd["blk.4.ffn_down.weight"] == Type.Q4_K  # 4864 columns


@pytest.mark.parametrize(
    "shape",
    [
        *(
            config_of(name, 6)
            for name in ("gemma-2-9b", "gemma-3-4b", "mistral-7b", "olmo-2-1b", "olmo-3-7b", "phi-3-mini")
        ),
        config_of("mixtral-8x7b", 2),
        *(config_of(name, 6) for name in ("smollm3-3b", "granite-3.3-2b", "ministral-3-3b", "gpt-oss-20b")),
        GEMMA4,
        EXPERTS_BESIDE,
        GEMMA4_E2B,
        DELTA_NETS,
        SHARED_EXPERT,
    ],
    ids=lambda shape: shape["model_type"],
)
def test_a_shape_that_is_not_quite_llamas_is_one_that_llama_cpp_runs(tmp_path: Path, shape: dict[str, Any]) -> None:
    shape = shape | SMALL_SIZES | ({"sliding_window": 16} if "sliding_window" in shape else {})
    path = tmp_path / "random.gguf"
    random_gguf.write_gguf(path, shape, "mxfp4_moe" if shape["model_type"] == "gpt_oss" else "q4_k_m")
    assert read_header(path).of_architecture("context_length") == shape["max_position_embeddings"]
    model = ReadyModel(
        name="random", format="gguf", weights=(path,), directory=tmp_path, size_bytes=path.stat().st_size
    )
    options = LoadOptions(ctx_size=64, n_threads=1, n_gpu_layers=0, force=True)
    backend = llamacpp.load(model, options, lambda _: None, CancelToken())
    tokens, _ = generation.generated(backend, list(range(3, 40)), 8)
    backend.close()
    assert len(tokens) == 8


def test_states_of_random_delta_nets_decay() -> None:
    """Else they grow with every token, and are infinite after some hundred."""
    tensors = random_gguf.planned(parse_model_config(DELTA_NETS), "q8_0")
    rates = [piece for tensor in tensors if tensor.name.endswith("ssm_a") for piece in random_gguf._data(tensor)]
    assert len(rates) == 6
    assert all((rate < 0).all() for rate in rates)


@pytest.mark.parametrize("kind", [Type.Q4_0, Type.Q5_0, Type.Q4_K, Type.Q5_K, Type.Q6_K, Type.MXFP4])
def test_random_blocks_give_outputs_of_the_size_of_their_inputs(kind: Type) -> None:
    _, size = random_gguf.GGML_QUANT_SIZES[kind]
    weights = dequantize(random_gguf._pool(kind, 4096)[: 2000 * int(size)].reshape(-1, int(size)), kind)
    nearest = 2**0.5 - 1 if kind == Type.MXFP4 else 0  # its scales are powers of two
    assert weights.std() * 64 == pytest.approx(1, rel=0.05 + nearest)
    assert abs(weights.mean()) < 0.15 * weights.std()


# --- steps -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def execution(tmp_path_factory: pytest.TempPathFactory) -> FusedExecution:
    directory = tmp_path_factory.mktemp("made") / "small"
    random_models.write_directory(directory, SMALL, "mq4", is_hashed=False)
    return random_models.fused_execution(directory, 3)


def test_steps_that_nobody_reads_leave_the_execution_as_it_was(execution: FusedExecution) -> None:
    def next_token() -> int:
        tokens = execution.decode(3, SamplingParams(temperature=0), CancelToken())
        assert tokens is not None
        (found,) = next(tokens).tokens
        tokens.close()
        execution.cache.truncate(1)
        return found

    generation.fill(execution, 1)
    before = next_token()
    assert generation.run_ahead(execution, depth=1, count=1) > 0
    assert execution.cache.length == 1
    assert next_token() == before


# --- profiles --------------------------------------------------------------------------------------------------------


def step_kernels(start: float, layers: int) -> list[Kernel]:
    """embed; qkv, attention, and an output product that begins 1 us before attention has ended; head."""
    kernels = [Kernel(name="embed", start_us=start, end_us=start + 2)]
    at = start + 3
    for _ in range(layers):
        kernels.append(Kernel(name="gemv", start_us=at, end_us=at + 10))
        kernels.append(Kernel(name="attend", start_us=at + 12, end_us=at + 16))
        kernels.append(Kernel(name="gemv", start_us=at + 15, end_us=at + 20))
        at += 21
    kernels.append(Kernel(name="head", start_us=at, end_us=at + 30))
    return kernels


def test_passes_are_timed_after_what_the_cache_holds_and_leave_it(execution: FusedExecution) -> None:
    generation.fill(execution, 1)
    assert 0 < generation.pass_s(execution, 2, rounds=1, queued=1) < 10
    assert execution.cache.length == 1


def test_steps_of_a_delta_net_are_timed_after_what_the_cache_holds_though_its_states_are_gone(tmp_path: Path) -> None:
    backend = tiny_models.load(tiny_models.ready(tiny_models.save(tiny_models.make("qwen3-5"), tmp_path)), warmup=False)
    cache = backend._execution.cache
    generation.fill(backend._execution, 20)
    assert 0 < generation.rows_step(backend._execution, MOST_ROWS, rounds=1, queued=2) < 10
    assert cache.length == 20
    backend.close()


def test_a_profile_becomes_the_kernels_of_a_layer_and_those_outside() -> None:
    kernels = [kernel for i in range(4) for kernel in step_kernels(200.0 * i, layers=3)]
    step = decode_layer.analyse(kernels[::-1], n_steps=4, num_layers=3)
    assert [(row.place, row.name, row.calls, row.us) for row in step.rows] == [
        ("layer", "gemv", 3, 10),
        ("layer", "attend", 3, 4),
        ("layer", "gemv", 3, 5),
        ("once", "embed", 1, 2),
        ("once", "head", 1, 30),
    ]
    assert [row.gap_us for row in step.rows] == [1, 2, -1, 104, 1]
    assert (step.us, step.kernels) == (200, 11)
    assert step.busy_us == 2 + 3 * 18 + 30
    assert step.rows[0].share == pytest.approx(30 / 200)


@pytest.mark.parametrize("groups", [[3, 3], [3, 3, 3], [1, 1]])
def test_of_all_groups_of_layers_those_are_told_that_leave_least_out(groups: list[int]) -> None:
    names = ["embed", *[name for n in groups for name in [*["gemv", "delta"] * n, "gemv", "attend"]], "head"]
    size = groups[0] + 1
    assert decode_layer.layers_of(names, size * len(groups)) == (1, 2 * size, len(groups))


def test_layers_of_two_kinds_are_told_by_the_group() -> None:
    names = ["embed", *["gemv", "delta", "gemv", "delta", "gemv", "attend"] * 4, "head"]
    kernels = [
        Kernel(name=name, start_us=100 * s + i, end_us=100 * s + i + 0.5)
        for s in range(3)
        for i, name in enumerate(names)
    ]
    step = decode_layer.analyse(kernels, n_steps=3, num_layers=12)
    assert [(row.place, row.name, row.calls) for row in step.rows] == [
        *[("layer", name, 4) for name in names[1:7]], ("once", "embed", 1), ("once", "head", 1)
    ]  # fmt: skip


def test_what_ran_before_the_steps_is_left_out() -> None:
    prelude = [Kernel(name="fill", start_us=-99, end_us=-98), *step_kernels(-90, layers=2)[:3]]
    steps = [kernel for i in range(3) for kernel in step_kernels(300.0 * i, layers=2)]
    assert decode_layer.last_steps([*prelude, *steps], 3) == steps


def test_steps_that_differ_are_no_steps() -> None:
    kernels = [*step_kernels(0, layers=2), *step_kernels(200, layers=3)]
    with pytest.raises(ValueError, match="not 2 steps"):
        decode_layer.analyse(kernels, n_steps=2, num_layers=2)
    with pytest.raises(ValueError, match="do not end"):
        decode_layer.last_steps(kernels, 2)


# --- peers -----------------------------------------------------------------------------------------------------------

LLAMA_BENCH = """ggml_cuda_init: found 1 CUDA devices
{"n_prompt": 4, "n_gen": 0, "n_depth": 0, "avg_ts": 500.0, "samples_ts": [400.0, 600.0]}
{"n_prompt": 512, "n_gen": 0, "n_depth": 0, "avg_ts": 9000.0}
{"n_prompt": 0, "n_gen": 128, "n_depth": 4096, "avg_ts": 250.0, "samples_ts": [249.0, 251.0]}
{"n_prompt": 64, "n_gen": 0, "n_depth": 4096, "avg_ts": 7000.0, "samples_ts": [6000.0, 8000.0]}
"""


def test_llama_benchs_lines_are_read_without_cold_samples_and_short_prompts_are_steps_of_rows() -> None:
    tests = models.Tests(prompts=(512,), messages=(64,), depths=(4096,), n_gen=128, repetitions=2)
    found = models.Found()
    models.measure_peer(list(peers.parse_llama_bench(LLAMA_BENCH)), tests, found)
    assert found.samples == {
        "t(4)": [pytest.approx(1000 * 4 / 600)],
        "pp512": [9000.0],
        "tg128 @ d4096": [251.0],
        "pp64 @ d4096": [8000.0],
    }


def test_llama_bench_is_run_with_its_own_libraries_and_what_it_says_on_failing_is_told(tmp_path: Path) -> None:
    """A script in its place: the real one needs a GPU."""
    program = tmp_path / "llama-bench"
    program.write_text(
        "#!/bin/sh\n"
        f"case $LD_LIBRARY_PATH in {tmp_path}*) ;; *) echo no libraries >&2; exit 3;; esac\n"
        'case "$*" in *"-n 0"*) echo "{\\"n_prompt\\": 8, \\"n_gen\\": 0, \\"avg_ts\\": 80.0}";;\n'
        "*) echo out of memory >&2; exit 1;; esac\n"
    )
    program.chmod(0o755)
    run = peers.llama_bench(tmp_path, tmp_path / "m.gguf", prompts=[8], messages=[], n_gen=4, depths=[0], repetitions=1)
    assert next(run) == peers.Measured(test="pp8", tok_s=(80.0,))
    with pytest.raises(RuntimeError, match="ended with 1: out of memory"):
        next(run)


# --- records and the page --------------------------------------------------------------------------------------------


def line(benchmark: str, date: str = "2026-11-21 10:00 UTC", **row: object) -> page.Row:
    origin = {"date": date, "commit": "abc", "device": "a GPU", "runner": "1", "python": "3", "torch": "2"}
    origin |= {"triton": "3", "read_bytes_s": 4e12}
    return {"schema": records.SCHEMA, "benchmark": benchmark, "origin": origin, **row}


def decoding(engine: str, test: str, median: float, unit: str = "tok/s", **more: str) -> page.Row:
    values = {"engine": engine, "test": test, "median": median, "samples": [median], "unit": unit}
    return line("models", shape="8b", layers=None, is_repeatable=True, **values, **more)


def test_rows_are_written_one_by_one_each_with_its_origin(tmp_path: Path) -> None:
    where = records.origin("abc", "a device", read_bytes_s=1e12)
    report = records.Report("matmul", where, tmp_path / "rows.jsonl")
    report.add({"us": 1.5})
    report.add({"us": 2.5})
    first, second = page.read_rows(tmp_path / "rows.jsonl")
    assert (first["us"], second["us"]) == (1.5, 2.5)
    assert first["origin"] == second["origin"]
    assert first["origin"]["commit"] == "abc"
    assert first["origin"]["torch"] == importlib.metadata.version("torch")


def test_lines_of_benchmarks_without_a_section_are_passed_over(tmp_path: Path) -> None:
    where = records.origin("abc", "a device")
    records.Report("tiles", where, tmp_path / "rows.jsonl").add({"ms": {"1": 1.5}})
    records.Report("matmul", where, tmp_path / "rows.jsonl").add({"us": 2.5})
    assert [row["us"] for row in page.read_rows(tmp_path / "rows.jsonl")] == [2.5]


def test_models_are_compared_so_that_above_one_is_faster() -> None:
    rows = [
        decoding("runner mq4", "tg128", 800.0),
        decoding("runner mq4", "t(8)", 2.0, unit="ms"),
        decoding("llama.cpp q4_k_m", "tg128", 320.0),
        decoding("llama.cpp q4_k_m", "t(8)", 9.0, unit="ms"),
    ]
    text = page.section("models", rows)
    assert "| tg128 | 800 tok/s | 320 tok/s | 2.50 |" in text
    assert "| t(8) | 2.000 ms | 9.000 ms | 4.50 |" in text
    assert "- a GPU, runner 1, torch 2, Triton 3, Python 3; it reads 4.00 TB/s" in text
    assert "Commits: abc (2026-11-21)." in text


def test_all_shapes_stand_in_one_table_at_first() -> None:
    rows = [
        decoding("runner mq4", "tg128", 800.0),
        decoding("runner mq4", "tg128 @ d4096", 600.0, date="2026-11-22 09:00 UTC"),
        decoding("runner mq4", "tg128 @ d9000", 500.0),
        decoding("runner mq4", "pp512", 30000.0),
        decoding("llama.cpp q4_k_m", "tg128", 320.0),
        decoding("llama.cpp q4_k_m", "tg128", 400.0),
        decoding("llama.cpp q4_k_m", "tg128 @ d4096", 200.0),
        decoding("llama.cpp q4_k_m", "pp512", 10000.0),
    ]
    rows[1]["origin"] |= {"commit": "def", "read_bytes_s": 4.5e12}
    text = page.section("models", rows)
    assert "| 8b | 800 | 2.00 | 4096 | 600 | 3.00 * | 3.00 |  |" in text
    assert "it reads 4.00 to 4.50 TB/s, measured in the same runs. Commits: abc (2026-11-21), def (2026-11-22)." in text


def test_a_shape_that_is_published_in_mxfp4_stands_beside_that_and_says_so() -> None:
    rows = [decoding("runner mq4", "tg128", 800.0), decoding("llama.cpp mxfp4_moe", "tg128", 320.0)]
    assert "| 8b, beside llama.cpp mxfp4_moe | 800 | 2.50 |  |  |  |  |  |" in page.section("models", rows)
    rows.append(decoding("llama.cpp q4_k_m", "tg128", 400.0))
    assert "| 8b | 800 | 2.00 |  |  |  |  |  |" in page.section("models", rows)


def test_in_short_a_shape_is_what_its_last_run_had() -> None:
    rows = [
        decoding(engine, test, median, date=date)
        for date, factor in (("2026-11-21 10:00 UTC", 1.0), ("2026-11-22 09:00 UTC", 2.0))
        for engine, test, median in (
            ("runner mq4", "tg128" if factor == 1 else "tg128 @ d16", 800.0 * factor),
            ("runner mq4", "tg128 @ d9000" if factor == 1 else "tg128 @ d3000", 300.0 * factor),
            ("llama.cpp q4_k_m", "tg128" if factor == 1 else "tg128 @ d16", 400.0),
            ("llama.cpp q4_k_m", "tg128 @ d9000" if factor == 1 else "tg128 @ d3000", 200.0),
        )
    ]
    assert "| 8b | 800 | 2.00 | 9000 | 300 | 1.50 |  |  |" in page.section("models", rows[:4])
    assert "| 8b | 1600 | 4.00 | 3000 | 600 | 3.00 |  |  |" in page.section("models", rows)


def test_a_peer_that_was_measured_after_each_format_counts_as_the_best_of_these() -> None:
    rows = [
        decoding("runner mq4-uniform", "tg128", 900.0, date="2026-11-22 09:00 UTC"),
        decoding("runner mq4", "tg128", 800.0),
        decoding("llama.cpp q4_k_m", "tg128", 400.0),
        decoding("llama.cpp q4_k_m", "tg128", 320.0),
        decoding("runner mq4", "t(8)", 2.0, unit="ms"),
        decoding("llama.cpp q4_k_m", "t(8)", 8.0, unit="ms"),
        decoding("llama.cpp q4_k_m", "t(8)", 9.0, unit="ms"),
    ]
    text = page.section("models", rows)
    assert "| runner mq4 / llama.cpp q4_k_m |" in text  # the default, though another format is newer
    assert "| tg128 | 800 tok/s | 900 tok/s | 400 tok/s | 2.00 |" in text
    assert "| t(8) | 2.000 ms |  | 8.000 ms | 4.00 |" in text


def test_of_two_runs_the_last_one_counts() -> None:
    rows = [decoding("runner mq4", "tg128", 1.0), decoding("runner mq4", "tg128", 2.0, date="2026-11-22 09:00 UTC")]
    text = page.section("models", rows)
    assert "2 tok/s" in text
    assert "| 1 tok/s" not in text
    assert "2026-11-21" not in text


def test_each_device_has_its_tables() -> None:
    rows = [decoding("runner mq4", "tg128", 648.0), decoding("runner mq4", "tg128", 547.0)]
    rows[1]["origin"]["device"] = "another GPU"
    text = page.section("models", rows)
    first, second = text.split("On another GPU:\n")
    assert "On a GPU:" in first
    assert "| tg128 | 648 tok/s |" in first
    assert "| tg128 | 547 tok/s |" in second
    assert "648" not in second


def test_products_and_steps_and_loads_have_their_tables() -> None:
    product = {
        "shape": "8b",
        "matrix": "qkv",
        "n": 6144,
        "k": 4096,
        "m": 1,
        "us": 5.0,
        "floor_us": 4.0,
        "bytes_s": 3e12,
    }
    text = page.section("matmul", [line("matmul", way="mq4", **product), line("matmul", way="torch int4", **product)])
    assert "| qkv | 6144 x 4096 | 1 | 4.0 | 5.0 | 5.0 | 75 % |" in text
    common = {"shape": "8b", "layers": None, "format": "mq4", "rows": 1, "depth": 16}
    kernel = line("decode_layer", place="layer", kernel="gemv", calls=32, us=5.0, gap_us=0.5, share=0.4, **common)
    total = line(
        "decode_layer", place="step", kernel="", calls=99, us=400.0, busy_us=380.0, unprofiled_us=390.0, **common
    )
    text = page.section("decode_layer", [kernel, total])
    assert "| layer | `gemv` | 32 | 5.00 | 0.50 | 40.0 % |" in text
    assert "99 kernels a step of 400 us, 380 of which" in text
    seconds = {"imports": 1.0, "weights": 0.5}
    loaded = line("load_time", model="8b-mq4", size_bytes=4e9, n_prompt=16, cache="warm", stages_s=seconds)
    assert "| 8b-mq4 | 4.00 | 16 | warm | 1.00 | 0.50 | 1.50 |" in page.section("load_time", [loaded])


def test_a_section_without_lines_says_so_and_the_rest_of_the_page_stays(tmp_path: Path) -> None:
    before = "".join(f"a {name}\n{page.BEGIN.format(name)}\nold\n{page.END.format(name)}\n" for name in page.SECTIONS)
    text = page.replaced(before, "matmul", page.section("matmul", []))
    assert "No figures are here yet" in text
    assert text.count("old") == len(page.SECTIONS) - 1
    assert page.replaced(text, "matmul", page.section("matmul", [])) == text
    with pytest.raises(ValueError, match="lacks the markers"):
        page.replaced("# Benchmarks", "matmul", "")
    (tmp_path / "rows.jsonl").write_text(json.dumps({"schema": "other/1"}) + "\n")
    with pytest.raises(ValueError, match="line 1"):
        page.read_rows(tmp_path / "rows.jsonl")


def test_the_page_of_the_documentation_is_what_its_lines_say() -> None:
    docs = records.CHECKOUT / "docs"
    text = (docs / "BENCHMARKS.md").read_text(encoding="utf-8")
    rows = page.read_rows(docs / "benchmarks.jsonl")
    for name in page.SECTIONS:
        assert page.BEGIN.format(name) in text
        assert page.section(name, rows) in text


def test_plots_are_drawn_of_what_there_is(tmp_path: Path) -> None:
    rows = [decoding("runner mq4", f"tg128 @ d{depth}", 800.0 - depth / 100) for depth in (4096, 32768)]
    assert speed_plots.draw(rows, tmp_path) == ["decode"]
    assert (tmp_path / "decode.svg").stat().st_size > 5000
    rows.append(decoding("runner mq4", "t(2)", 2.0, unit="ms"))
    assert speed_plots.draw(rows, tmp_path) == ["decode"]  # a point is no line
    rows.append(decoding("runner mq4", "t(4)", 2.1, unit="ms"))
    assert speed_plots.draw(rows, tmp_path) == ["decode", "rows"]
    one_row = panel_heights(tmp_path / "decode.svg")
    rows += [row | {"shape": f"shape {n}"} for row in rows[:2] for n in range(4)]
    assert speed_plots.draw(rows, tmp_path) == ["decode", "rows"]
    assert panel_heights(tmp_path / "decode.svg") == 2 * one_row  # of five panels, three and two side by side


def panel_heights(svg: Path) -> float:
    """The height of a plot, in points."""
    found = re.search(r'<svg [^>]*height="([0-9.]+)pt"', svg.read_text(encoding="utf-8"))
    assert found
    return float(found[1])


def test_models_that_cannot_be_measured_are_refused_before_anything_is_made(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for arguments, reason in (
        (["--llama-bench", str(tmp_path)], "no llama-bench in"),
        (["--shape", "demo"], "a context of 2048 tokens"),
    ):
        monkeypatch.setattr("sys.argv", ["models.py", *arguments])
        with pytest.raises(SystemExit):
            models.parse()
        assert reason in capsys.readouterr().err


def test_without_a_gpu_a_benchmark_that_needs_one_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit) as ended:
        records.require_gpu("Timing products")
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("Timing products needs a CUDA GPU, and torch ")


def test_tiles_that_there_is_no_room_for_cost_no_other_choice(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tried: list[int] = []

    def measured(_directory: Path, counts: list[int]) -> list[float]:
        tried.append(gemv_fragments.tiles_of_branch(32, 16).warps)
        if tried[-1] == 16:
            raise OutOfResources(512, 384, "threads")
        return [1.0 + n for n in range(1 + len(counts))]

    monkeypatch.setattr(tiles, "require_gpu", lambda _: None)
    monkeypatch.setattr(tiles, "write_directory", lambda *_, **__: 0)
    monkeypatch.setattr(tiles, "measured", measured)
    argv = ["tiles.py", "--shape", "demo", "--rows", "8", "--work", str(tmp_path), "down:warps=16", "down:warps=2"]
    monkeypatch.setattr(sys, "argv", argv)
    tiles.main()
    out = capsys.readouterr().out
    assert tried[1:3] == [16, 2]
    assert len(tried) == 4
    assert "down:warps=16: out of resource: threads" in out
    assert "| down:warps=2  | 1.0000  | 2.0000  |" in out


def test_tiles_to_try_are_read_and_given_to_the_matrices_they_name() -> None:
    choice = tiles.read_choice("gate:warps=4,depth=1 o:part=32")
    assert choice == {"gate": {"warps": 4, "depth": 1}, "o": {"part": 32}}
    assert tiles.read_choice("down:registers=168") == {"down": {"registers": 168}}
    sizes = tiles.sizes_of(parse_model_config(config_of("qwen3-4b")))
    assert sizes == {(384, 40): "qkv", (160, 64): "o", (1216, 40): "gate", (160, 152): "down"}
    launched = vars(gemv_fragments)
    with tiles.chosen(choice, sizes):
        expected = dataclasses.replace(gemv_tiles.tiles_of(1216, 40), warps=4, depth=1)
        assert launched["tiles_of"](1216, 40) == expected
        assert launched["tiles_of"](1792, 64) == gemv_tiles.tiles_of(1792, 64)
        assert launched["tiles_of_branch"](160, 152) == gemv_tiles.tiles_of_branch(160, 152)
        assert launched["tiles_of_branch"](160, 64) == dataclasses.replace(gemv_tiles.tiles_of_branch(160, 64), part=32)
    assert launched["tiles_of"] is gemv_tiles.tiles_of
    for wrong, named in (
        ("up:warps=2", "'up'"),
        ("gate:warps", "'warps'"),
        ("gate:wraps=2", "'wraps=2'"),
        ("o", "''"),
        ("o:warps=3", "is one of"),
        ("o:registers=100", "is one of"),
        ("qkv:part=8", "only o and down"),
    ):
        with pytest.raises(ValueError, match=named):
            tiles.read_choice(wrong)
