from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import pytest
from fit_models import write_gemma3, write_llama, write_qwen35
from gguf import GGUFWriter
from safetensors.numpy import save_file

from runner import __version__
from runner.backends import llamacpp
from runner.backends.llamacpp.saved_states import MOST_SAVED
from runner.backends.native.delta_state import SAVED, SLOTS
from runner.config import DEFAULT_CTX, KvType, LoadOptions
from runner.errors import BadModelFile, DoesNotFit
from runner.events import Notice
from runner.fit import (
    Alternative,
    Fit,
    ModelFacts,
    alternatives,
    check_fit,
    estimate,
    gguf_facts,
    gpu_layers_that_fit,
    plan,
    read_facts,
    record_of,
    remedy,
    safetensors_facts,
)
from runner.fit.facts import NO_FACTS, default_context
from runner.kernels import gemm
from runner.model_config.shape import NO_SHAPE, LayerCache, Shape
from runner.paths import builtin
from runner.quant.gguf_file import read_header
from runner.quant.safetensors_file import StoredTensor
from runner.registry import Registry
from runner.types import BackendName, CancelToken, Device, MemoryUse, ReadyModel

GIB = 2**30
# Qwen3-8B: 36 layers, 8 KV heads of 128; Q4_K_M is 5.03 GB.
QWEN3_8B = Shape(
    architecture="qwen3",
    num_parameters=8_190_735_360,
    num_active_parameters=8_190_735_360,
    context_length=40960,
    hidden_size=4096,
    vocab_size=151936,
    caches=(LayerCache(kind="full", width=2 * 8 * 128),) * 36,
)
Q4 = ModelFacts(
    format="gguf",
    shape=QWEN3_8B,
    weights_bytes=5_030_000_000,
    num_parameters=8_190_735_360,
    quantization="Q4_K_M",
)


def machine(ram_gib: float, gpu_gib: float | None = None) -> tuple[Device, ...]:
    ram = Device(kind="cpu", index=0, name="RAM", total_bytes=64 * GIB, free_bytes=round(ram_gib * GIB))
    if gpu_gib is None:
        return (ram,)
    gpu = Device(kind="cuda", index=0, name="GPU", total_bytes=80 * GIB, free_bytes=round(gpu_gib * GIB))
    return (gpu, ram)


def gguf(path: Path) -> ReadyModel:
    size = path.stat().st_size
    return ReadyModel(name="m", format="gguf", weights=(path,), directory=path.parent, size_bytes=size)


@pytest.fixture
def demo(demo_directory: Path) -> ReadyModel:
    return gguf(demo_directory / "demo-q8_0.gguf")


def used_by_llama_cpp(model: ReadyModel, options: LoadOptions) -> MemoryUse:
    backend = llamacpp.load(model, options, lambda _: None, CancelToken())
    used = backend.memory()
    backend.close()
    return used


# --- the arithmetic --------------------------------------------------------------------------------------------------


def test_kv_cache_of_a_known_model() -> None:
    fit = estimate(Q4, LoadOptions(ctx_size=32768), machine(64))
    assert fit.need.kv_cache_bytes == 32768 * 147456  # 144 KiB a token in f16
    half = estimate(Q4, LoadOptions(ctx_size=32768, kv_type="q8_0"), machine(64))
    assert half.need.kv_cache_bytes == pytest.approx(fit.need.kv_cache_bytes * 0.53, rel=0.01)


def test_kv_cache_by_kind_of_layer() -> None:
    caches = (
        LayerCache(kind="full", width=100),
        LayerCache(kind="window", width=100, window=512),
        LayerCache(kind="state", state_size=1000, past_size=30),
        LayerCache(kind="shared"),
    )
    facts = dataclasses.replace(Q4, shape=dataclasses.replace(QWEN3_8B, caches=caches))
    parts = {part.kind: part for part in estimate(facts, LoadOptions(ctx_size=4096), machine(64)).kv_parts}
    assert parts["full"].size_bytes == 2 * 100 * 4096
    assert parts["window"].size_bytes == parts["full"].size_bytes  # llama.cpp keeps windows whole
    assert parts["window"].window == 512
    assert parts["state"].size_bytes == (1 + MOST_SAVED) * 4 * 1030  # float32, whatever the KV type
    on_gpu = {part.kind: part for part in estimate(facts, LoadOptions(ctx_size=4096), machine(64, 40)).kv_parts}
    assert on_gpu["state"].size_bytes == 4 * 1030  # those put aside are in main memory
    gpu, ram = machine(64, 40)
    shared = (dataclasses.replace(gpu, is_in_main_memory=True), ram)
    there = {part.kind: part for part in estimate(facts, LoadOptions(ctx_size=4096), shared).kv_parts}
    assert there["state"].size_bytes == parts["state"].size_bytes
    for devices, of_past in ((machine(64), 4), (machine(64, 40), 2)):  # in the type that it computes in
        ours = {part.kind: part for part in estimate(facts, LoadOptions(), devices, "native").kv_parts}
        assert ours["state"].size_bytes == (SLOTS + SAVED) * (4 * 1000 + of_past * 30)
        assert ours["window"].size_bytes == ours["full"].size_bytes  # and so does native
    assert parts["shared"].size_bytes == 0


def test_what_others_hold_and_what_a_draft_takes_count() -> None:
    fit = estimate(Q4, LoadOptions(), machine(16))
    assert fit.others_bytes == 48 * GIB
    draft = dataclasses.replace(Q4, weights_bytes=GIB, shape=dataclasses.replace(QWEN3_8B, caches=QWEN3_8B.caches[:4]))
    with_draft = estimate(Q4, LoadOptions(), machine(16), draft=draft)
    assert with_draft.draft_bytes == GIB + fit.need.kv_cache_bytes * 4 // 36 + fit.need.workspace_bytes
    assert with_draft.total_bytes == fit.total_bytes + with_draft.draft_bytes


def test_a_gpu_takes_all_layers_some_or_none() -> None:
    def layers(gpu_gib: float) -> int:
        return estimate(Q4, LoadOptions(), machine(32, gpu_gib)).n_gpu_layers

    assert layers(24) == 36
    assert 8 < layers(4) < 28
    assert layers(0.3) == 0
    assert estimate(Q4, LoadOptions(), machine(32)).n_gpu_layers == 0


def test_the_gpu_with_most_free_memory_is_taken() -> None:
    gpus = [dataclasses.replace(machine(8, gib)[0], index=index) for index, gib in enumerate((4, 24, 8))]
    fit = estimate(Q4, LoadOptions(ctx_size=4096), (*gpus, *machine(8)))
    assert fit.device.index == 1
    assert fit.available_bytes == 24 * GIB - 256 * 2**20  # less what drivers take
    assert fit.others_bytes == (80 - 24) * GIB
    assert fit.room_bytes == fit.available_bytes + 8 * GIB
    assert estimate(Q4, LoadOptions(n_gpu_layers=0), (*gpus, *machine(8))).room_bytes == 8 * GIB


def test_a_draft_has_no_longer_context_than_its_own_and_takes_room_for_layers() -> None:
    draft = dataclasses.replace(Q4, weights_bytes=GIB, shape=dataclasses.replace(QWEN3_8B, context_length=512))
    alone = estimate(Q4, LoadOptions(ctx_size=4096), machine(32, 5))
    beside = estimate(Q4, LoadOptions(ctx_size=4096), machine(32, 5), draft=draft)
    assert beside.draft_bytes == estimate(draft, LoadOptions(ctx_size=512), machine(32, 5)).total_bytes
    assert 0 < beside.n_gpu_layers < alone.n_gpu_layers < 36


def test_layers_go_to_a_gpu_as_far_as_it_has_room_beside_the_workspace() -> None:
    fit = estimate(Q4, LoadOptions(ctx_size=4096), machine(32, 5))
    each = (fit.need.weights_bytes + fit.need.kv_cache_bytes) / 36
    free = fit.available_bytes - fit.need.workspace_bytes
    assert fit.n_gpu_layers * each <= free < (fit.n_gpu_layers + 1) * each
    gpu = machine(32, 5)[:1]
    assert gpu_layers_that_fit(Q4, LoadOptions(ctx_size=4096), gpu) == fit.n_gpu_layers
    whole = fit.total_bytes / GIB + 0.25  # what drivers take
    assert gpu_layers_that_fit(Q4, LoadOptions(ctx_size=4096), machine(1, whole)[:1]) == 37
    assert gpu_layers_that_fit(Q4, LoadOptions(ctx_size=4096), machine(1, whole - 0.01)[:1]) < 36


@pytest.mark.parametrize(
    ("batch_size", "more"), [(128, gemm.BLOCK_BYTES + 4 * 128 * 51326), (2048, 2 * gemm.BLOCK_BYTES)]
)
def test_on_a_gpu_native_needs_room_for_a_matrix_and_its_product_as_far_as_they_are_not_cut(
    batch_size: int, more: int
) -> None:
    """A layer of this model has 210 million weights, 51326 for each of 4096 inputs."""
    options = LoadOptions(ctx_size=4096, batch_size=batch_size)
    on_cpu, on_gpu = (estimate(Q4, options, machine(64, *gpu), "native").need for gpu in ((), (40,)))
    assert on_cpu.workspace_bytes == 4 * (batch_size * 14 * 4096 + 151936)
    assert on_gpu.workspace_bytes - on_cpu.workspace_bytes == more


def test_prompts_are_cut_as_the_backend_cuts_them_here() -> None:
    for devices, backend, is_native_gpu in (
        (machine(64), "native", False),
        (machine(64, 40), "native", True),
        (machine(64, 40), "llamacpp", False),
    ):
        by_default, said = LoadOptions(), LoadOptions(batch_size=LoadOptions().chunk(is_native_gpu=is_native_gpu))
        needs = [estimate(Q4, options, devices, backend).need.workspace_bytes for options in (by_default, said)]
        assert needs[0] == needs[1]


def test_what_a_header_does_not_tell_is_taken_as_the_files_have_it() -> None:
    unknown = dataclasses.replace(Q4, shape=NO_SHAPE, num_parameters=0)
    for backend in ("native", "llamacpp"):
        fit = estimate(unknown, LoadOptions(), machine(64, 40), backend)
        assert fit.need.weights_bytes == Q4.weights_bytes
        assert fit.n_gpu_layers == fit.num_layers == 0


@pytest.mark.parametrize(("kv_type", "on_cpu", "on_gpu"), [("f16", "f32", "bf16"), ("q8_0", "q8_0", "q8_0")])
def test_native_keeps_f16_in_the_type_that_it_computes_in(kv_type: KvType, on_cpu: KvType, on_gpu: KvType) -> None:
    for devices, expected in ((machine(64), on_cpu), (machine(64, 40), on_gpu)):
        assert estimate(Q4, LoadOptions(kv_type=kv_type), devices, "native").kv_type == expected
        assert estimate(Q4, LoadOptions(kv_type=kv_type), devices).kv_type == kv_type


def test_native_holds_weights_in_its_own_types() -> None:
    on_cpu = estimate(Q4, LoadOptions(), machine(64), "native").need
    on_gpu = estimate(Q4, LoadOptions(), machine(64, 40), "native").need
    assert on_cpu.weights_bytes == 4 * QWEN3_8B.num_parameters == 2 * on_gpu.weights_bytes
    assert on_cpu.kv_cache_bytes == 2 * on_gpu.kv_cache_bytes
    assert estimate(Q4, LoadOptions(), machine(64), "native").kv_type == "f32"
    packed = dataclasses.replace(Q4, format="packed")  # stays so on a GPU, and is unpacked as it is read on a CPU
    assert estimate(packed, LoadOptions(), machine(64, 40), "native").need.weights_bytes == packed.weights_bytes
    assert estimate(packed, LoadOptions(), machine(64), "native").need.weights_bytes == on_cpu.weights_bytes


@pytest.mark.parametrize("backend", ["llamacpp", "native"])
@pytest.mark.parametrize("gpus", [(), (40,)])
def test_a_prompt_is_no_longer_than_the_context(backend: BackendName, gpus: tuple[int, ...]) -> None:
    """Else loads with a small context would teach that a large one takes little."""
    small = estimate(Q4, LoadOptions(ctx_size=128), machine(64, *gpus), backend).need.workspace_bytes
    same = estimate(Q4, LoadOptions(ctx_size=128, batch_size=128), machine(64, *gpus), backend).need.workspace_bytes
    assert small == same


def test_gpu_layers_of_a_file(demo: ReadyModel) -> None:
    assert gpu_layers_that_fit(read_facts(demo), LoadOptions(), machine(8, 8)[:1]) == 7


# --- against what is really allocated --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["demo", "llama", "gemma3", "qwen35"])
@pytest.mark.parametrize(
    "options", [LoadOptions(ctx_size=200), LoadOptions(ctx_size=1000), LoadOptions(ctx_size=8192, kv_type="q8_0")]
)
def test_the_estimate_agrees_with_what_llama_cpp_allocates(
    name: str, options: LoadOptions, demo: ReadyModel, tmp_path: Path
) -> None:
    writers = {"llama": write_llama, "gemma3": write_gemma3, "qwen35": write_qwen35}
    model = gguf(writers[name](tmp_path / "m.gguf", demo.weights[0])) if name in writers else demo
    options = dataclasses.replace(options, n_threads=1, warmup=False)
    need = estimate(read_facts(model), options, machine(8)).need
    used = used_by_llama_cpp(model, options)
    assert need.weights_bytes == pytest.approx(used.weights_bytes, rel=0.01)
    n_logged = 1 + 1 + MOST_SAVED if name == "qwen35" else 2  # its two decimals count once for keys and for each state
    assert need.kv_cache_bytes == pytest.approx(used.kv_cache_bytes, rel=0.01, abs=0.005 * 2**20 * n_logged)
    assert used.workspace_bytes <= need.workspace_bytes < 2 * used.workspace_bytes  # a bound


def test_plans_beside_a_load_make_a_record(demo: ReadyModel) -> None:
    made = plan(read_facts(demo), LoadOptions(), machine(8), "native", (), lambda _: None)
    used = MemoryUse(weights_bytes=7, kv_cache_bytes=8, workspace_bytes=9)
    record = record_of(made, used)
    assert record.actual == MemoryUse(weights_bytes=7, kv_cache_bytes=0, workspace_bytes=9)  # its cache has yet to grow
    assert record.estimated == made.fit.estimated
    assert (record.key.backend, record.key.device, record.key.architecture) == ("native", "cpu", "qwen3")
    assert (record.key.quantization, record.key.version) == ("Q8_0", __version__)
    made = plan(read_facts(demo), LoadOptions(n_gpu_layers=0), machine(8), "llamacpp", (), lambda _: None)
    assert record_of(made, used).actual == used


# --- what does not fit -----------------------------------------------------------------------------------------------


def refusal(facts: ModelFacts, options: LoadOptions, devices: tuple[Device, ...], *others: Alternative) -> DoesNotFit:
    made = plan(facts, options, devices, "llamacpp", (), lambda _: None)
    with pytest.raises(DoesNotFit) as refused:
        check_fit("m", facts, made, devices, lambda: others)
    return refused.value


def fitting(facts: ModelFacts, options: LoadOptions, devices: tuple[Device, ...]) -> Fit:
    made = plan(facts, options, devices, "llamacpp", (), lambda _: None)
    check_fit("m", facts, made, devices)
    return made.fit


def test_a_context_that_is_too_large_names_the_largest_that_fits(demo: ReadyModel) -> None:
    facts, big = read_facts(demo), LoadOptions(ctx_size=2**20)
    error = refusal(facts, big, machine(1))
    assert "KV cache for 1048576 tokens" in error.message
    suggested = int(error.hint.split("-c ")[1].split(".")[0])
    fitting(facts, dataclasses.replace(big, ctx_size=suggested), machine(1))
    refusal(facts, dataclasses.replace(big, ctx_size=suggested + 256), machine(1))


def test_weights_that_are_too_large_name_another_quantization_or_another_model() -> None:
    others = (
        Alternative(name="m:Q2_K", size_bytes=3 * GIB, is_same=True, is_exact=True),
        Alternative(name="m:Q3_K_M", size_bytes=int(3.5 * GIB), is_same=True, is_exact=False),
        Alternative(name="m:Q8_0", size_bytes=9 * GIB, is_same=True, is_exact=True),
        Alternative(name="small", size_bytes=GIB, is_same=False, is_exact=True),
        Alternative(name="tiny", size_bytes=GIB // 2, is_same=False, is_exact=True),
    )
    options = LoadOptions(ctx_size=2048)
    assert "m:Q3_K_M (about 3.50 GiB) would fit" in refusal(Q4, options, machine(4.5), *others).hint
    assert "small (1.00 GiB) would fit" in refusal(Q4, options, machine(2), *others).hint
    assert "smaller model" in refusal(Q4, options, machine(0.2), *others).hint


def test_another_model_is_named_only_where_nothing_else_helps_and_with_room_for_its_cache() -> None:
    small = Alternative(name="small", size_bytes=GIB, is_same=False, is_exact=True)
    others = (
        small,
        dataclasses.replace(small, name="larger", size_bytes=int(3.6 * GIB)),
        dataclasses.replace(small, name="m:Q6_K", size_bytes=int(4.3 * GIB), is_same=True),
        dataclasses.replace(small, name="m:Q2_K", size_bytes=3 * GIB, is_same=True),
    )
    long, short = LoadOptions(ctx_size=40960), LoadOptions(ctx_size=2048)
    only_small = refusal(Q4, long, machine(2.5), *others).hint  # m:Q2_K would not with any context
    assert only_small.startswith("small (1.00 GiB) would fit. --force")
    assert refusal(Q4, short, machine(4.5), *others).hint.startswith("m:Q2_K (3.00 GiB) would fit. --force")
    assert "small" not in refusal(Q4, long, machine(7), small).hint  # a smaller context would
    assert "draft" not in refusal(Q4, long, machine(7)).message
    original = dataclasses.replace(Q4, format="safetensors")
    made = plan(original, LoadOptions(ctx_size=512), machine(60, 8), "native", (), lambda _: None)
    assert str(remedy(original, made, machine(60, 8), (small,))) == "It would fit on the CPU: -ngl 0."


@pytest.mark.parametrize(
    ("room_gib", "quant", "n_ctx"),
    [
        (5.6, "m:Q3_K_M", 1024),  # it leaves half, and m:Q2_K would leave more
        (4.6, "m:Q2_K", 1024),
        (4.1, "m:Q3_K_M", 768),  # none leaves half: of those that leave most the finest
        (3.6, "m:Q2_K", 768),
        (2.1, "", 0),
    ],
)
def test_a_smaller_quantization_and_a_smaller_context_are_named_where_both_are_needed(
    room_gib: float, quant: str, n_ctx: int
) -> None:
    """256 tokens take a GiB here, and the weights eight."""
    shape = dataclasses.replace(
        QWEN3_8B, hidden_size=1, vocab_size=1, caches=(LayerCache(kind="full", width=2 * 2**20),)
    )
    facts, options = dataclasses.replace(Q4, shape=shape, weights_bytes=8 * GIB), LoadOptions(ctx_size=2048)
    others = tuple(
        Alternative(name=name, size_bytes=size, is_same=name.startswith("m:"), is_exact=True)
        for name, size in (("m:Q4_K_S", 4 * GIB), ("m:Q3_K_M", GIB), ("m:Q2_K", GIB // 2), ("small", GIB // 4))
    )
    made = plan(facts, options, machine(room_gib), "llamacpp", (), lambda _: None)
    found = remedy(facts, made, machine(room_gib), others)
    assert (found.quant.name if found.quant else "", found.quant_ctx) == (quant, n_ctx)
    if found.quant:
        assert str(found).endswith(f"would fit with a context of {n_ctx} tokens: -c {n_ctx}.")
        smaller = dataclasses.replace(facts, weights_bytes=found.quant.size_bytes)
        fitting(smaller, LoadOptions(ctx_size=n_ctx), machine(room_gib))
        refusal(smaller, LoadOptions(ctx_size=n_ctx + 256), machine(room_gib))
        refusal(facts, LoadOptions(ctx_size=n_ctx), machine(room_gib))


@pytest.mark.parametrize(
    ("asked", "room_gib", "found"), [(1024, 4.1, 768), (768, 3.1, 512), (600, 3.1, 512), (512, 2.9, 0), (768, 2.9, 0)]
)
def test_the_context_that_is_named_is_the_largest_that_fits_below_what_was_asked(
    asked: int, room_gib: float, found: int
) -> None:
    """256 tokens take a GiB here, and so do the weights."""
    shape = dataclasses.replace(
        QWEN3_8B, hidden_size=1, vocab_size=1, caches=(LayerCache(kind="full", width=2 * 2**20),)
    )
    facts = dataclasses.replace(Q4, shape=shape, weights_bytes=GIB)
    made = plan(facts, LoadOptions(ctx_size=asked), machine(room_gib), "llamacpp", (), lambda _: None)
    assert not made.fit.is_fitting
    assert remedy(facts, made, machine(room_gib)).n_ctx == found


def test_what_earlier_loads_took_is_no_reason_to_go_to_the_cpu_where_the_model_is_there_already() -> None:
    devices, options = machine(7), LoadOptions(ctx_size=2048)
    before = plan(Q4, options, devices, "llamacpp", (), lambda _: None)
    assert before.fit.is_fitting
    twice = dataclasses.replace(before.fit.estimated, weights_bytes=2 * before.fit.estimated.weights_bytes)
    made = plan(Q4, options, devices, "llamacpp", (record_of(before, twice),) * 5, lambda _: None)
    assert not made.fit.is_fitting
    assert not remedy(Q4, made, devices).is_for_cpu


def test_a_full_gpu_has_nothing_free() -> None:
    fit = estimate(Q4, LoadOptions(), machine(64, 0.1))
    assert (fit.available_bytes, fit.n_gpu_layers) == (0, 0)


def test_a_gpu_and_ram_hold_a_model_together() -> None:
    huge = dataclasses.replace(Q4, weights_bytes=40 * GIB)
    refusal(huge, LoadOptions(n_gpu_layers=20), machine(8, 16))
    assert 0 < fitting(huge, LoadOptions(n_gpu_layers=20), machine(30, 16)).n_gpu_layers < 36


def test_memory_that_a_gpu_shares_with_the_machine_counts_once() -> None:
    """Where a GPU works in main memory, what has no room on it has none in RAM either."""
    gpu, ram = machine(8, 8)
    shared, options = (
        (dataclasses.replace(gpu, is_in_main_memory=True), ram),
        LoadOptions(ctx_size=4096, n_gpu_layers=20),
    )
    assert fitting(Q4, options, shared).ram_bytes == 0
    error = refusal(dataclasses.replace(Q4, weights_bytes=10 * GIB), options, shared)
    assert "7.75 GiB are free" in error.message


def test_what_a_gpu_has_no_room_for_may_fit_on_the_cpu() -> None:
    original, devices = dataclasses.replace(Q4, format="safetensors"), machine(60, 8)
    made = plan(original, LoadOptions(ctx_size=512), devices, "native", (), lambda _: None)
    assert not made.fit.is_fitting
    found = remedy(original, made, devices)
    assert str(found) == "It would fit on the CPU: -ngl 0."
    on_cpu = LoadOptions(ctx_size=512, n_gpu_layers=0)
    check_fit("m", original, plan(original, on_cpu, devices, "native", (), lambda _: None), devices)
    assert not remedy(original, made, machine(8, 8)).is_for_cpu


def test_a_draft_model_is_left_out_where_the_model_alone_fits() -> None:
    devices, options = machine(7), LoadOptions(ctx_size=2048)
    for draft_bytes, is_enough in ((3 * GIB, True), (GIB // 4, False)):
        model = Q4 if is_enough else dataclasses.replace(Q4, weights_bytes=8 * GIB)
        draft = dataclasses.replace(Q4, weights_bytes=draft_bytes)
        made = plan(model, options, devices, "llamacpp", (), lambda _: None, draft=draft)
        assert not made.fit.is_fitting
        found = remedy(model, made, devices)
        assert found.is_without_draft == is_enough
        assert ("It would fit without a draft model: --spec suffix." in str(found)) == is_enough
        with pytest.raises(DoesNotFit, match=rf"workspace .* GiB, draft {made.fit.draft_bytes / GIB:.2f} GiB\)"):
            check_fit("m", model, made, devices)
    made = plan(model, options, devices, "llamacpp", (), lambda _: None)
    assert not remedy(model, made, devices).is_without_draft


def test_nothing_is_suggested_that_needs_more_than_there_is() -> None:
    made = plan(Q4, LoadOptions(ctx_size=40960), machine(7), "llamacpp", (), lambda _: None)
    found = remedy(Q4, made, machine(7))
    assert 512 <= found.n_ctx < 40960
    assert found.quant is None
    assert found.model is None


def test_alternatives_come_from_the_listing_else_from_the_registry() -> None:
    registry = Registry.load(builtin("models.toml"))
    spec = registry.resolve("qwen3-8b")
    by_name = {one.name: one for one in alternatives(spec, registry)}
    assert by_name["qwen3-8b:Q8_0"] == Alternative(
        name="qwen3-8b:Q8_0", size_bytes=spec.sizes["Q8_0"], is_same=True, is_exact=True
    )
    assert "qwen3-8b:Q4_K_M" not in by_name  # the one that was chosen
    assert by_name["qwen3-0.6b"].size_bytes == pytest.approx(0.63e9, rel=0.05)  # Q8_0, by the usual bits a weight
    assert not by_name["qwen3-0.6b"].is_exact
    half = alternatives(spec, registry, {"a-Q2_K-00001-of-00002.gguf": 2, "x.json": 1})
    assert half == alternatives(spec, registry)  # half of a split file is no model
    whole = alternatives(spec, registry, {"a-Q2_K-00001-of-00002.gguf": 2, "a-Q2_K-00002-of-00002.gguf": 3})
    assert whole[0] == Alternative(name="Qwen/Qwen3-8B-GGUF:Q2_K", size_bytes=5, is_same=True, is_exact=True)
    assert alternatives(spec, registry, {"a-Q8_0.gguf": 9})[0].name == "qwen3-8b:Q8_0"
    every = {registry.resolve(one.name).name for one in alternatives(spec, registry)}  # each name is understood
    assert len(every) > 20


def test_a_gpu_that_llama_cpp_cannot_use_is_said(monkeypatch: pytest.MonkeyPatch, demo: ReadyModel) -> None:
    probe = llamacpp.Probe(version="0.0.0", gpu_offload=False, error=None)
    monkeypatch.setattr("runner.fit.arithmetic.probe", lambda: probe)
    notices: list[Notice] = []
    made = plan(read_facts(demo), LoadOptions(), machine(8, 8), "llamacpp", (), notices.append)
    assert made.fit.device.kind == made.key.device == "cpu"  # whose earlier loads count
    assert made.options.n_gpu_layers == 0
    assert "GGML_CUDA=on" in notices[0].hint


def test_layers_of_a_gguf_go_to_a_gpu_that_llama_cpp_can_use(monkeypatch: pytest.MonkeyPatch) -> None:
    probe = llamacpp.Probe(version="0.0.0", gpu_offload=True, error=None)
    monkeypatch.setattr("runner.fit.arithmetic.probe", lambda: probe)

    def layers(options: LoadOptions, devices: tuple[Device, ...]) -> object:
        made = plan(Q4, options, devices, "llamacpp", (), lambda _: None)
        assert made.fit.device.kind == ("cuda" if made.options.n_gpu_layers else "cpu")
        return made.options.n_gpu_layers

    auto = LoadOptions(ctx_size=4096)
    assert layers(auto, machine(32, 24)) == 37
    assert 0 < layers(auto, machine(32, 5)) < 36
    assert layers(auto, machine(32, 0.5)) == layers(auto, machine(32)) == 0
    assert layers(dataclasses.replace(auto, n_gpu_layers=7), machine(32, 24)) == 7


# --- facts -----------------------------------------------------------------------------------------------------------


LLAMA: dict[str, object] = {  # 504 weights
    "model_type": "llama",
    "hidden_size": 8,
    "num_attention_heads": 1,
    "intermediate_size": 4,
    "vocab_size": 8,
    "num_hidden_layers": 1,
}


def hf_directory(directory: Path, config: dict[str, object]) -> ReadyModel:
    import numpy as np

    path = directory / "model.safetensors"
    save_file({"a": np.ones((8, 64), np.float16), "b": np.ones((4,), np.float32)}, path)
    (directory / "config.json").write_text(json.dumps(config))
    size = path.stat().st_size
    return ReadyModel(name="m", format="safetensors", weights=(path,), directory=directory, size_bytes=size)


def test_facts_of_a_hugging_face_directory(shared_data: Path, tmp_path: Path) -> None:
    config = json.loads((shared_data / "configs" / "Qwen--Qwen3-8B_config.json").read_text())
    facts = read_facts(hf_directory(tmp_path, config))
    assert dataclasses.replace(facts.shape, notes=()) == QWEN3_8B
    assert (facts.weights_bytes, facts.quantization, facts.format) == (8 * 64 * 2 + 16, "F16", "safetensors")


def test_files_with_less_than_their_config_describes_are_said_to_be_doubtful(tmp_path: Path) -> None:
    assert read_facts(hf_directory(tmp_path, LLAMA)).shape.notes == ()
    config = LLAMA | {"vocab_size": 16}  # 632 weights, or 504 where the embeddings are tied: the files hold 516
    assert read_facts(hf_directory(tmp_path, config)).shape.notes == ()
    facts = read_facts(hf_directory(tmp_path, config | {"num_hidden_layers": 9}))
    assert facts.num_parameters == 516
    (note,) = facts.shape.notes
    assert note.startswith("The files hold 516 weights and config.json describes 3,576: ")


def stored(**shapes: tuple[int, ...]) -> list[StoredTensor]:
    """Tensors of the types that they are named after: F16_a is one of F16."""
    return [
        StoredTensor(
            name=name,
            dtype=name[:3],
            shape=shape,
            path=Path(),
            offset=0,
            nbytes=math.prod(shape) * int(name[1:3]) // 8,
        )
        for name, shape in shapes.items()
    ]


def test_weights_of_other_parts_count_for_bits_a_weight_and_not_for_the_text_model() -> None:
    tensors = stored(F32_a=(5, 40), F16_a=(300,), F16_b=(350,))
    facts = safetensors_facts(LLAMA, tensors)
    assert (facts.num_parameters, facts.stored_parameters, facts.shape.notes) == (504, 850, ())
    assert facts.weights_bytes == 800 + 600 + 700
    assert facts.bpw == 8 * 2100 / 850
    assert facts.quantization == "F16"  # of most bytes, though no tensor of it is the largest
    of_first_shard = safetensors_facts(LLAMA, tensors, size_bytes=10**6)
    assert (of_first_shard.num_parameters, of_first_shard.stored_parameters) == (504, 0)
    assert (of_first_shard.weights_bytes, of_first_shard.bpw) == (10**6, 8 * 10**6 / 504)


@pytest.mark.parametrize(
    "quantizer", [None, {"quant_method": "gptq"}, {"quant_method": 5}, {"quant_method": ""}, {"bits": 4}, "gptq"]
)
def test_codes_are_no_weights_to_count(quantizer: object) -> None:
    config = LLAMA | {"num_hidden_layers": 9}
    for tensors in (stored(I32_codes=(40,), F16_scales=(8,)), stored(F16_codes=(88,))):
        facts = safetensors_facts(config | {"quantization_config": quantizer}, tensors)
        assert facts.quantization == ("GPTQ" if quantizer == {"quant_method": "gptq"} else tensors[0].dtype)
        if quantizer or len(tensors) > 1:
            assert (facts.num_parameters, facts.shape.notes) == (facts.shape.num_parameters, ())


def test_a_gguf_with_a_vocabulary_alone_is_no_model(tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "vocab.gguf", "llama")
    for key, value in {"block_count": 2, "context_length": 64, "embedding_length": 64}.items():
        writer.add_uint32(f"llama.{key}", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(BadModelFile, match=r"vocab\.gguf has no weights"):
        read_facts(gguf(tmp_path / "vocab.gguf"))


def test_a_part_without_weights_is_the_beginning_of_those_with_some(demo: ReadyModel) -> None:
    (header,) = [read_header(path) for path in demo.weights]
    first = dataclasses.replace(header, tensors=())
    assert gguf_facts([first, header]) == read_facts(demo)


@pytest.mark.parametrize("form", [None, 5, ""])
def test_a_manifest_that_names_no_format_leaves_the_type_of_the_tensors(form: object) -> None:
    assert safetensors_facts(LLAMA, stored(F16_a=(8,)), {"format": form, "schema": "x"}).quantization == "F16"


def test_weights_of_an_unknown_family_are_counted_in_the_headers(tmp_path: Path) -> None:
    facts = read_facts(hf_directory(tmp_path, {"model_type": "brand_new"}))
    assert facts.num_parameters == 8 * 64 + 4
    assert facts.bpw == pytest.approx(8 * (8 * 64 * 2 + 16) / (8 * 64 + 4))


def test_packed_weights_are_known_by_their_manifest(tmp_path: Path) -> None:
    model = hf_directory(tmp_path, {"model_type": "llama"})
    (tmp_path / "runner.json").write_text(json.dumps({"format": "mq4"}))
    facts = read_facts(model)
    assert facts.format == "packed"
    assert facts.quantization == "MQ4"
    assert (
        facts.num_parameters == facts.shape.num_parameters > 10**9
    )  # config.json's word: tensors are codes and scales


def test_a_script_takes_nothing() -> None:
    model = ReadyModel(name="x", format="script", weights=(), directory=Path(), size_bytes=0)
    assert read_facts(model) == NO_FACTS
    assert NO_FACTS.bpw == 0
    assert default_context(NO_FACTS.shape) == DEFAULT_CTX
    assert estimate(NO_FACTS, LoadOptions(), machine(1), "fake").total_bytes == 0
