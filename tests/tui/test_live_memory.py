"""Whose the memory of the model's device is."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from live_samples import ENGINE, GIB, GPU, MEMORY, RAM, fit, gpu_sample, loaded, machine

from runner.machine import DeviceReadings
from runner.tui.machine_watch import DeviceSample, MachineSample
from runner.tui.memory_parts import MemoryView, cells, memory_view, model_device


def view_of(sample: MachineSample, **about: object) -> MemoryView:
    view = memory_view(sample, loaded(**about), fit())  # type: ignore[arg-type]
    assert view is not None
    return view


def sizes(view: MemoryView) -> dict[str, int]:
    return {part.name: part.size_bytes for part in view.parts}


def test_on_a_gpu_every_byte_has_an_owner() -> None:
    view = view_of(machine(gpu_sample()))
    assert view.title == "VRAM"
    assert sizes(view) == {
        "weights": 5 * GIB,
        "KV cache": 2 * GIB,
        "workspace": GIB,
        "graphs": GIB // 4,
        "runtime": 9 * GIB - MEMORY.total_bytes,
        "others": 2 * GIB,
    }
    assert sum(sizes(view).values()) + view.free_bytes == view.total_bytes == 24 * GIB
    assert view.used_bytes == 11 * GIB
    assert (view.estimated_bytes, view.actual_bytes, view.held_bytes) == (
        fit().total_bytes,
        MEMORY.total_bytes,
        9 * GIB,
    )
    assert view.note == ""


def test_in_a_container_nothing_is_guessed() -> None:
    view = view_of(machine(gpu_sample([(31_337, "", 9 * GIB)]), has_host_pids=False))
    assert sizes(view)["others and runtime"] == 11 * GIB - MEMORY.total_bytes
    assert "runtime" not in sizes(view)
    assert view.held_bytes is None
    assert "container" in view.note


def test_a_driver_that_tells_no_sizes_is_said_to_tell_none() -> None:
    view = view_of(machine(gpu_sample([(ENGINE, "python", None)])))
    assert view.held_bytes is None
    assert view.note.endswith("the driver does not say")


def test_without_a_gpu_it_is_main_memory_and_says_so() -> None:
    view = view_of(machine(), n_gpu_layers=0, device="CPU (2 threads)")
    assert view.title == "RAM"
    assert view.device == RAM.name
    assert view.note == "no GPU: main memory"
    assert sizes(view)["others"] == 20 * GIB - (4 * GIB + GIB // 8)  # mapped weights are not in what is used
    assert sum(sizes(view).values()) + view.free_bytes == 64 * GIB


def test_a_model_in_main_memory_beside_a_gpu_shows_main_memory() -> None:
    view = view_of(machine(gpu_sample([])), n_gpu_layers=0, device="CPU (2 threads)")
    assert view.title == "RAM"
    assert view.note == "the model is in main memory"


def test_a_model_in_two_memories_has_no_parts_on_one_of_them() -> None:
    view = view_of(machine(gpu_sample()), n_gpu_layers=18, device="GPU (18 of 36 layers)")
    assert sizes(view) == {"model": 9 * GIB, "others": 2 * GIB}
    assert view.note == "18 of 36 layers; the others are in RAM"


def test_before_a_model_is_loaded_others_and_free_are_shown() -> None:
    view = memory_view(machine(gpu_sample([(99, "Xorg", 11 * GIB)])), None, None)
    assert view is not None
    assert sizes(view) == {"others": 11 * GIB}
    assert view.actual_bytes is None


def test_a_device_that_says_nothing_has_no_view() -> None:
    silent = DeviceSample(device=replace(GPU, kind="rocm"), now=DeviceReadings())
    assert memory_view(machine(silent), None, None) is None


def test_an_amd_gpu_says_how_much_is_held_and_not_by_whom() -> None:
    amd = DeviceSample(
        device=replace(GPU, kind="rocm", name="AMD Radeon"),
        now=DeviceReadings(used_bytes=11 * GIB, total_bytes=24 * GIB),
    )
    view = view_of(machine(amd), device="AMD Radeon")
    assert sizes(view)["others and runtime"] == 11 * GIB - MEMORY.total_bytes


def test_of_several_gpus_the_one_that_holds_the_model_is_shown() -> None:
    empty = gpu_sample([(99, "Xorg", GIB)], used_bytes=GIB)
    second = gpu_sample(device=replace(GPU, index=1))
    assert model_device(machine(empty, second), loaded()).device.index == 1
    other_name = gpu_sample([], device=replace(GPU, index=1, name="NVIDIA T4"))
    assert model_device(machine(empty, other_name), loaded(device="NVIDIA T4")).device.index == 1
    assert model_device(machine(empty, other_name), None).device.index == 0


def test_a_model_on_two_gpus_is_one_part_of_each() -> None:
    second = gpu_sample([(ENGINE, "python", 3 * GIB)], device=replace(GPU, index=1))
    view = view_of(machine(gpu_sample(), second))
    assert sizes(view)["model"] == 9 * GIB


def test_readings_that_contradict_each_other_never_exceed_what_there_is() -> None:
    tiny = gpu_sample(device=replace(GPU, total_bytes=6 * GIB), used_bytes=5 * GIB)
    view = view_of(machine(tiny))
    assert sum(sizes(view).values()) + view.free_bytes == 6 * GIB
    assert view.free_bytes >= 0


@pytest.mark.parametrize(
    ("parts", "free", "width", "expected"),
    [
        ([50, 25], 25, 8, (4, 2, 2)),
        ([1, 1000], 0, 10, (1, 9, 0)),
        ([1, 1, 1, 1], 10**9, 10, (1, 1, 1, 1, 6)),
        ([], 5, 4, (4,)),
        ([3], 1, 0, (0, 0)),
        ([0], 0, 4, (0, 0)),
    ],
)
def test_cells_are_shared_by_size(parts: list[int], free: int, width: int, expected: tuple[int, ...]) -> None:
    assert cells(parts, free, width) == expected


@given(st.lists(st.integers(0, 2**45), max_size=7), st.integers(0, 2**45), st.integers(1, 200))
def test_cells_fill_the_bar_and_hide_no_part(parts: list[int], free: int, width: int) -> None:
    counts = cells(parts, free, width)
    every = [*parts, free]
    assert sum(counts) == (width if sum(every) else 0)
    assert all(count >= 0 for count in counts)
    if sum(size > 0 for size in every) <= width:
        assert all((count > 0) == (size > 0) for count, size in zip(counts, every, strict=True))
