"""The device edge: real answers of this machine, and kernel files as other machines have them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from runner.machine import (
    cgroup_limits,
    cpu_info,
    default_threads,
    devices,
    peak_bytes,
    process_memory_bytes,
    rated_bandwidth,
    readings,
)
from runner.machine.cgroup import Limits
from runner.machine.cpu import _cpu_list, _largest_caches, _physical_cores, _threads, parse_cpuinfo
from runner.machine.gpu import is_visible, nvml
from runner.types import Device


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


# --- this machine ----------------------------------------------------------------------------------------------------


def test_the_peak_of_a_process_is_its_own_and_not_its_makers() -> None:
    held = b"x" * (400 * 2**20)
    assert peak_bytes() > len(held)
    program = "from runner.machine import peak_bytes; print(peak_bytes())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert 2**22 < int(done.stdout) < len(held)


def test_main_memory_is_the_last_device_and_within_what_the_machine_has() -> None:
    found = devices()
    memory = found[-1]
    assert memory.kind == "cpu"
    assert [device.kind for device in found].count("cpu") == 1
    assert 0 < memory.free_bytes <= memory.total_bytes <= psutil.virtual_memory().total
    assert memory.name


def test_readings_of_main_memory_add_up() -> None:
    now = readings(devices()[-1])
    assert now.used_bytes is not None
    assert now.total_bytes is not None
    assert 0 < now.used_bytes < now.total_bytes
    assert now.utilization is not None
    assert 0 <= now.utilization <= 1


def test_the_memory_of_a_process_is_known_until_it_ends() -> None:
    mine = process_memory_bytes(os.getpid())
    assert mine is not None
    assert mine > 5_000_000
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert process_memory_bytes(child.pid) is None


def test_default_threads_stay_within_what_this_process_may_use() -> None:
    info = cpu_info()
    assert info.model
    assert 1 <= info.usable_cores <= info.logical_cores
    assert 1 <= default_threads() <= info.usable_cores


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no affinity")
def test_default_threads_respect_affinity() -> None:
    code = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "from runner.machine import cpu_info, default_threads; print(default_threads(), cpu_info().usable_cores)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "1"]


def test_importing_machine_opens_no_driver_and_imports_nothing_heavy() -> None:
    code = "import sys, runner.machine; print(sorted({'pynvml', 'torch', 'numpy', 'triton'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_machine_without_the_drivers_library_imports_no_binding() -> None:
    code = (
        "import sys; from runner.machine import devices, gpu; gpu._NVML_LIBRARY = 'libnone.so.1'\n"
        "print([device.kind for device in devices() if device.kind == 'cuda'], 'pynvml' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[] False"


# --- processors ------------------------------------------------------------------------------------------------------


def test_cpu_lists_are_read_as_the_kernel_writes_them() -> None:
    assert _cpu_list("0-3,8,10-11\n") == {0, 1, 2, 3, 8, 10, 11}
    assert _cpu_list("") == frozenset()


def test_two_threads_of_a_core_count_once(tmp_path: Path) -> None:
    cpus = write(tmp_path, {f"cpu{n}/topology/thread_siblings_list": f"{n % 4},{n % 4 + 4}" for n in range(8)})
    nothing = tmp_path / "none"
    assert _physical_cores(frozenset(range(8)), cpus, nothing) == 4
    assert _physical_cores(frozenset({0, 4}), cpus, nothing) == 1
    assert _physical_cores(frozenset({4, 5}), cpus, nothing) == 2


def test_slow_cores_of_a_hybrid_processor_are_left_out_unless_there_are_no_others(tmp_path: Path) -> None:
    write(tmp_path, {f"cpu{n}/topology/thread_siblings_list": f"{n // 2 * 2}-{n // 2 * 2 + 1}" for n in range(4)})
    cpus = write(tmp_path, {f"cpu{n}/topology/thread_siblings_list": str(n) for n in range(4, 12)})
    fast = write(tmp_path, {"fast": "0-3"}) / "fast"
    assert _physical_cores(frozenset(range(12)), cpus, fast) == 2
    assert _physical_cores(frozenset(range(4, 12)), cpus, fast) == 8


def test_the_largest_caches_are_counted_once_each(tmp_path: Path) -> None:
    of_cpu = {
        "index0/level": "1", "index0/size": "48K", "index0/shared_cpu_list": "{own}",
        "index3/level": "3", "index3/size": "32768K", "index3/shared_cpu_list": "{shared}",
    }  # fmt: skip
    files = {
        f"cpu{n}/cache/{name}": text.format(own=n, shared=f"{n // 4 * 4}-{n // 4 * 4 + 3}")
        for n in range(8)
        for name, text in of_cpu.items()
    }
    cpus = write(tmp_path, files)
    assert _largest_caches(frozenset(range(8)), cpus) == 2 * 32 * 2**20
    assert _largest_caches(frozenset({5}), cpus) == 32 * 2**20
    assert _largest_caches(frozenset({9}), cpus) is None


def test_processors_without_topology_files_count_one_by_one(tmp_path: Path) -> None:
    assert _physical_cores(frozenset({0, 1, 2}), tmp_path, tmp_path / "none") == 3


@pytest.mark.parametrize(("limit", "expected"), [(None, 8), (2.0, 2), (2.9, 2), (0.5, 1), (100.0, 8)])
def test_threads_fit_the_processor_time_that_is_granted(limit: float | None, expected: int) -> None:
    assert _threads(8, limit) == expected


def test_cpuinfo_of_x86_and_arm() -> None:
    x86 = "processor : 0\nmodel name\t: Intel(R) Xeon(R)\nflags\t: fpu avx avx2 avx512f fma\n\nprocessor : 1\n"
    assert parse_cpuinfo(x86, "?") == ("Intel(R) Xeon(R)", ("avx", "fma", "avx2", "avx512"))
    arm = "processor\t: 0\nBogoMIPS\t: 243.75\nFeatures\t: fp asimd asimddp sve\n"
    assert parse_cpuinfo(arm, "aarch64") == ("aarch64", ("neon", "dotprod", "sve"))
    assert parse_cpuinfo("", "unknown") == ("unknown", ())


# --- control groups --------------------------------------------------------------------------------------------------


def test_limits_of_cgroup_version_2_are_the_tightest_up_to_the_root(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "self": "0::/outer/inner",
            "fs/outer/cpu.max": "150000 100000",
            "fs/outer/memory.max": "max",
            "fs/outer/inner/cpu.max": "max 100000",
            "fs/outer/inner/memory.max": "1000",
            "fs/outer/inner/memory.current": "700",
            "fs/outer/inner/memory.stat": "anon 500\ninactive_file 200",
        },
    )
    assert cgroup_limits(tmp_path / "self", tmp_path / "fs") == Limits(
        cpus=1.5, memory_bytes=1000, memory_left_bytes=500
    )


def test_limits_of_cgroup_version_1(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "self": "5:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc\n1:name=systemd:/x",
            # Inside the container the host's path does not exist: the limits are at the mount's root.
            "fs/cpu/cpu.cfs_quota_us": "200000",
            "fs/cpu/cpu.cfs_period_us": "100000",
            "fs/memory/memory.limit_in_bytes": "4096",
            "fs/memory/memory.usage_in_bytes": "1096",
        },
    )
    assert cgroup_limits(tmp_path / "self", tmp_path / "fs") == Limits(
        cpus=2.0, memory_bytes=4096, memory_left_bytes=3000
    )


def test_no_limit_is_none(tmp_path: Path) -> None:
    files = {"self": "4:memory:/\n3:cpu:/", "fs/memory/memory.limit_in_bytes": str(2**63 - 4096)}
    write(tmp_path, {**files, "fs/cpu/cpu.cfs_quota_us": "-1", "fs/cpu/cpu.cfs_period_us": "100000"})
    assert cgroup_limits(tmp_path / "self", tmp_path / "fs") == Limits()
    assert cgroup_limits(tmp_path / "missing", tmp_path / "fs") == Limits()


# --- GPUs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("visible", "shown"),
    [(None, [0, 1, 2]), ("", []), ("-1", []), ("1", [1]), ("0,2", [0, 2]), ("2, -1, 0", [2]), ("GPU-b", [1])],
)
def test_gpus_can_be_hidden_as_cuda_does(visible: str | None, shown: list[int]) -> None:
    uuids = ["GPU-aaa", "GPU-bbb", "GPU-ccc"]
    assert [index for index, uuid in enumerate(uuids) if is_visible(index, uuid, visible)] == shown


def amd_card(total: int, used: int, **more: str) -> dict[str, str]:
    return {
        "vendor": "0x1002",
        "device": "0x744c",
        "mem_info_vram_total": str(total),
        "mem_info_vram_used": str(used),
    } | more


def test_amd_gpus_are_read_from_sysfs(tmp_path: Path) -> None:
    first = amd_card(24_000, 1_000, product_name="Radeon RX 7900 XTX", gpu_busy_percent="37", unique_id="ab12")
    sensors = {"power1_average": "212000000", "temp1_input": "61000", "freq1_input": "2371000000"}
    write(tmp_path, {f"card1/device/{name}": text for name, text in first.items()})
    write(tmp_path, {f"card1/device/hwmon/hwmon3/{name}": text for name, text in sensors.items()})
    write(tmp_path, {f"card10/device/{name}": text for name, text in amd_card(8_000, 0).items()})
    write(tmp_path, {"card0/device/vendor": "0x8086", "card1-DP-1/device/vendor": "0x1002"})
    found = [device for device in devices({}, tmp_path) if device.kind == "rocm"]
    assert found == [
        Device(kind="rocm", index=0, name="Radeon RX 7900 XTX", total_bytes=24_000, free_bytes=23_000),
        Device(kind="rocm", index=1, name="AMD GPU 0x744c", total_bytes=8_000, free_bytes=8_000),
    ]
    now = readings(found[0], tmp_path)
    assert (now.used_bytes, now.total_bytes, now.utilization) == (1_000, 24_000, 0.37)
    assert (now.power_w, now.temperature_c, now.clock_mhz) == (212.0, 61.0, 2371)
    assert readings(found[1], tmp_path).power_w is None
    hidden = devices({"HIP_VISIBLE_DEVICES": "1"}, tmp_path)
    assert [device.index for device in hidden if device.kind == "rocm"] == [1]


def test_readings_of_a_gpu_that_is_gone_are_unknown(tmp_path: Path) -> None:
    gone = Device(kind="rocm", index=3, name="x", total_bytes=1, free_bytes=1)
    assert readings(gone, tmp_path).used_bytes is None


class NoAnswer(Exception):
    """What the stand-in driver raises where a GPU has no sensor."""


def no_answer(*_: object) -> None:
    raise NoAnswer


@pytest.fixture
def nvidia_driver(monkeypatch: pytest.MonkeyPatch):
    """A stand-in for NVML with two GPUs: one with every sensor, one that works in main memory and has none."""
    driver = SimpleNamespace(
        NVMLError=NoAnswer,
        NVML_TEMPERATURE_GPU=0,
        NVML_CLOCK_SM=1,
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetUUID=lambda handle: f"GPU-{handle}",
        nvmlDeviceGetName=lambda handle: ["NVIDIA L4", "NVIDIA GB10"][handle],
        nvmlDeviceGetMemoryInfo=lambda handle: (
            SimpleNamespace(total=100, free=60, used=40) if handle == 0 else no_answer()
        ),
        nvmlDeviceGetUtilizationRates=lambda handle: SimpleNamespace(gpu=25) if handle == 0 else no_answer(),
        nvmlDeviceGetPowerUsage=lambda handle: 71_500 if handle == 0 else no_answer(),
        nvmlDeviceGetTemperature=lambda handle, _: 55 if handle == 0 else no_answer(),
        nvmlDeviceGetClockInfo=lambda handle, _: 1755 if handle == 0 else no_answer(),
        NVML_CLOCK_MEM=2,
        nvmlDeviceGetMemoryBusWidth=lambda _: 192,
        nvmlDeviceGetMaxClockInfo=lambda handle, kind: {2: 6251}[kind] if handle == 0 else no_answer(),
    )
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    monkeypatch.setattr("runner.machine.gpu._NVML_LIBRARY", None)  # this program, which can always be opened
    nvml.cache_clear()
    yield driver
    nvml.cache_clear()


@pytest.mark.usefixtures("nvidia_driver")
def test_nvidia_gpus_are_read_through_nvml(tmp_path: Path) -> None:
    discrete, shared, memory = devices({}, tmp_path)
    assert discrete == Device(kind="cuda", index=0, name="NVIDIA L4", total_bytes=100, free_bytes=60)
    assert (shared.name, shared.total_bytes) == ("NVIDIA GB10", psutil.virtual_memory().total)
    assert (discrete.is_in_main_memory, shared.is_in_main_memory) == (False, True)
    assert memory.kind == "cpu"
    now = readings(discrete)
    assert (now.used_bytes, now.total_bytes, now.utilization) == (40, 100, 0.25)
    assert (now.power_w, now.temperature_c, now.clock_mhz) == (71.5, 55.0, 1755)
    assert readings(shared).power_w is None
    assert [rated_bandwidth(device) for device in (discrete, shared, memory)] == [pytest.approx(300.048e9), None, None]
    assert [device.kind for device in devices({"CUDA_VISIBLE_DEVICES": ""}, tmp_path)] == ["cpu"]


def test_a_broken_nvidia_driver_is_no_gpu(nvidia_driver: SimpleNamespace, tmp_path: Path) -> None:
    nvidia_driver.nvmlInit = no_answer
    assert [device.kind for device in devices({}, tmp_path)] == ["cpu"]
