"""Values that the tests of the live rail share: a loaded model, a machine with and without a GPU, timings."""

from __future__ import annotations

from collections.abc import Sequence

from runner.config import LONGEST_DRAFT
from runner.events import Loaded
from runner.fit import Fit
from runner.machine import DeviceReadings, GpuActivity, GpuProcess
from runner.speculative.record import SpeculationRecord
from runner.telemetry import Timings
from runner.tui.machine_watch import DeviceSample, MachineSample, OwnProcess
from runner.types import Device, MemoryUse, ModelInfo

GIB = 2**30
UI, ENGINE = 10, 20
HOSTILE = "a[/]b [@click=app.quit]x[/] \x1b]52;c;eA==\x07 \x9b31m"

MEMORY = MemoryUse(
    weights_bytes=5 * GIB, kv_cache_bytes=2 * GIB, workspace_bytes=1 * GIB, graphs_bytes=GIB // 4
)  # fmt: skip
GPU = Device(kind="cuda", index=0, name="NVIDIA H200", total_bytes=24 * GIB, free_bytes=12 * GIB)
RAM = Device(kind="cpu", index=0, name="AMD EPYC", total_bytes=64 * GIB, free_bytes=40 * GIB)
RAM_SAMPLE = DeviceSample(
    device=RAM, now=DeviceReadings(used_bytes=20 * GIB, total_bytes=64 * GIB, utilization=0.25)
)  # fmt: skip
SPECULATION = SpeculationRecord(
    drafter="suffix",
    state="on",
    draft_length=4,
    rounds=100,
    drafted_at=(100, 90, 60, 50),
    reached_at=(100, 85, 55, 40),
    accepted_at=(90, 60, 40, 20),
    lengths=(10, 30, 20, 20, 20),
    draft_s=0.02,
    verify_s=0.46,
    sample_s=0.02,
    plain_s=1.83,
    spent_s=1.0,
)
OWN = (
    OwnProcess(pid=UI, resident_bytes=GIB // 4, private_bytes=GIB // 8),
    OwnProcess(pid=ENGINE, resident_bytes=9 * GIB, private_bytes=4 * GIB),
)


def loaded(
    *,
    n_gpu_layers: int = 36,
    device: str = GPU.name,
    memory: MemoryUse = MEMORY,
    reason: str = "the one for packed files",
    note: str = "",
) -> Loaded:
    info = ModelInfo(
        name="Qwen3-8B",
        backend="native",
        architecture="qwen3",
        num_parameters=8_000_000_000,
        num_layers=36,
        n_gpu_layers=n_gpu_layers,
        vocab_size=151_936,
        context_length=32_768,
        n_ctx=8192,
        quantization="MQ4",
        size_bytes=5 * GIB,
        device=device,
        chat_template=None,
        bos_token="",
        eos_token="",
        longest_draft=LONGEST_DRAFT,
        note=note,
    )
    return Loaded(info=info, memory=memory, reason=reason, load_s=3.2, sampling={})


def gpu_sample(
    processes: Sequence[tuple[int, str, int | None]] = ((ENGINE, "python", 9 * GIB), (99, "Xorg", GIB)),
    *,
    device: Device = GPU,
    used_bytes: int = 11 * GIB,
    throttled: tuple[str, ...] = (),
) -> DeviceSample:
    return DeviceSample(
        device=device,
        now=DeviceReadings(
            used_bytes=used_bytes,
            total_bytes=device.total_bytes,
            utilization=0.87,
            power_w=312.4,
            temperature_c=61.0,
            clock_mhz=1980,
        ),
        activity=GpuActivity(
            memory_clock_mhz=3201,
            throttled=throttled,
            processes=tuple(GpuProcess(pid=pid, name=name, used_bytes=size) for pid, name, size in processes),
        ),
    )


def machine(*gpus: DeviceSample, has_host_pids: bool = True, time_s: float = 0.0) -> MachineSample:
    return MachineSample(devices=(*gpus, RAM_SAMPLE), own=OWN, has_host_pids=has_host_pids, time_s=time_s)


def timings(
    n: int, decode_s: float, *, prompt: int = 600, cached: int = 100, drafted: int = 0, accepted: int = 0
) -> Timings:
    return Timings(
        prompt_tokens=prompt,
        cached_tokens=cached,
        completion_tokens=n,
        n_drafted=drafted,
        n_accepted=accepted,
        ttft_s=0.084,
        prefill_s=0.08,
        decode_s=decode_s,
        total_s=decode_s + 0.084,
    )


def fit(total: MemoryUse = MEMORY) -> Fit:
    return Fit(
        device=GPU,
        backend="native",
        n_ctx=8192,
        kv_type="f16",
        need=total,
        estimated=total,
        kv_parts=(),
        draft_bytes=0,
        available_bytes=20 * GIB,
        others_bytes=GIB,
        ram_bytes=0,
        n_gpu_layers=36,
        num_layers=36,
        n_loads=0,
    )
