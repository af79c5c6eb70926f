"""What a native model takes, and what would fit where it does not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from runner.backends.native.kv_cache import KvCache
from runner.backends.native.placement import (
    Needs,
    Placement,
    check_fit,
    first_capacity,
    is_out_of_memory,
    memory_errors,
    needs,
    place,
    what_would_fit,
)
from runner.config import LoadOptions
from runner.errors import DoesNotFit
from runner.model_config import parse_model_config
from runner.quant.json_file import read_json
from runner.quant.weights import open_weights
from tests.backends.native.tiny_models import make, ready, save

GIB = 2**30
CPU = Placement(
    device=torch.device("cpu"), dtype=torch.float32, kv_dtype=torch.float32, name="CPU (2 threads)", has_kernels=False
)
NEED = Needs(weights_bytes=4 * GIB, kv_bytes_per_token=GIB // 1024, n_ctx=8192, state_bytes=GIB // 2)


def test_all_is_needed_that_the_whole_context_takes() -> None:
    assert NEED.cache_bytes == 8.5 * GIB
    assert NEED.total_bytes == 12.5 * GIB


@pytest.mark.parametrize("kv_dtype", [torch.float32, torch.bfloat16, torch.int8])
@pytest.mark.parametrize("name", ["qwen3-5", "gemma4", "gemma4-inputs-by-layer-and-shared-caches"])
def test_what_is_needed_is_what_weights_and_cache_take(name: str, kv_dtype: torch.dtype, tmp_path: Path) -> None:
    model = make(name)
    directory = save(model, tmp_path)
    config = parse_model_config(read_json(directory / "config.json"))
    for dtype in (torch.float32, torch.bfloat16):
        placement = replace(CPU, dtype=dtype, kv_dtype=kv_dtype)
        need = needs(config, open_weights(ready(directory), config), placement, 300)
        cache = KvCache.of(config, n_ctx=512, dtype=dtype, kv_dtype=kv_dtype, device=CPU.device)
        assert need.state_bytes == cache.nbytes
        assert (need.state_bytes > 0) == (config.delta is not None)
        cache.reserve(256)
        assert need.kv_bytes_per_token * 256 == cache.nbytes - need.state_bytes
        assert need.cache_bytes == need.kv_bytes_per_token * 300 + need.state_bytes
        stored = {*model.parameters(), *(one for _, one in model.named_buffers() if "layer_scalar" in _)}
        assert need.weights_bytes == sum(dtype.itemsize * weight.numel() for weight in stored)


@pytest.mark.parametrize(
    ("room_gib", "n_ctx"), [(0.0, None), (4.99, None), (5.0, 512), (5.49, 768), (12.0, 7680), (99.0, 8192)]
)
def test_the_context_that_would_fit_is_what_weights_and_states_leave_room_for(
    room_gib: float, n_ctx: int | None
) -> None:
    said = what_would_fit(NEED, round(room_gib * GIB))
    assert said == (
        "Use a smaller model, or a quantized GGUF of this one with --backend llamacpp."
        if n_ctx is None
        else f"A context of {n_ctx} tokens would fit: -c {n_ctx}."
    )


@pytest.mark.parametrize(("free_gib", "n_ctx", "capacity"), [(1.0, 8192, 102), (100.0, 8192, 4096), (100.0, 512, 512)])
def test_a_cache_has_room_from_the_start_for_what_a_tenth_of_the_free_memory_holds(
    free_gib: float, n_ctx: int, capacity: int
) -> None:
    need = Needs(weights_bytes=0, kv_bytes_per_token=GIB // 1024, n_ctx=n_ctx)
    assert first_capacity(need, round(free_gib * GIB)) == capacity


@pytest.mark.parametrize("free_gib", [12.5, 12.49])
def test_what_fits_exactly_is_loaded(free_gib: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.backends.native.placement.free_bytes", lambda _: round(free_gib * GIB))
    if free_gib >= 12.5:
        check_fit(NEED, CPU)
        return
    with pytest.raises(DoesNotFit) as refused:
        check_fit(NEED, CPU)
    assert refused.value.message == (
        "The weights as float32 take 4.00 GiB and the KV cache for 8192 tokens 8.50 GiB; "
        "CPU (2 threads) has 12.49 GiB free."
    )
    assert refused.value.hint == "A context of 7936 tokens would fit: -c 7936. --force tries anyway."


def too_much() -> None:
    torch.empty(2**60)


def other() -> None:
    raise RuntimeError("of another kind")


@pytest.mark.parametrize(("fails", "told"), [(too_much, DoesNotFit), (other, RuntimeError)])
def test_an_allocation_that_fails_is_told_with_the_room_that_there_is_and_nothing_else_is(
    fails: Callable[[], None], told: type[Exception]
) -> None:
    with pytest.raises(told) as raised, memory_errors(NEED, CPU, lambda: 6 * GIB):
        fails()
    if isinstance(raised.value, DoesNotFit):
        assert raised.value.message.endswith("CPU (2 threads) has 6.00 GiB for them.")
        assert raised.value.hint == "A context of 1536 tokens would fit: -c 1536."


@pytest.mark.parametrize(
    ("n_ctx", "hint"),
    [(8192, "-c 4096"), (1024, "-c 512"), (1023, "Use a smaller model")],
)
def test_where_an_allocation_fails_though_all_that_is_counted_has_room_half_the_context_is_proposed(
    n_ctx: int, hint: str
) -> None:
    """What fails is not counted, such as a pass over a prompt: the same context would fail again."""
    with pytest.raises(DoesNotFit) as raised, memory_errors(replace(NEED, n_ctx=n_ctx), CPU, lambda: 99 * GIB):
        too_much()
    assert hint in raised.value.hint


def test_failed_allocations_are_known_by_their_class_or_by_torchs_words() -> None:
    assert is_out_of_memory(MemoryError())
    assert is_out_of_memory(torch.OutOfMemoryError())
    assert is_out_of_memory(RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"))
    assert is_out_of_memory(RuntimeError("CUDA error: out of memory"))
    assert is_out_of_memory(RuntimeError("Triton Error [CUDA]: out of memory"))
    assert is_out_of_memory(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"))
    assert not is_out_of_memory(ValueError("DefaultCPUAllocator"))
    assert not is_out_of_memory(RuntimeError("shapes do not match"))


@pytest.mark.parametrize(("words", "kind"), [("out of memory", DoesNotFit), ("unknown error", RuntimeError)])
def test_a_gpu_that_others_have_filled_is_told_with_what_to_do(
    words: str, kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def filled(*_: object) -> None:
        raise RuntimeError(f"CUDA error: {words}")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "mem_get_info", filled)
    with pytest.raises(kind) as raised:
        place(LoadOptions())
    if kind is DoesNotFit:
        assert "-ngl 0" in str(getattr(raised.value, "hint", ""))
