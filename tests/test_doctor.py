"""The checks: on this machine as it is, and on what other machines would show."""

from __future__ import annotations

import io
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from runner.backends.llamacpp import Probe
from runner.doctor import (
    Check,
    _ask_torch,
    _torch_answer,
    bytecode_checks,
    checks,
    database_check,
    demo_check,
    directory_check,
    directory_checks,
    disk_check,
    gpu_checks,
    hub_check,
    kernel_cache_check,
    llamacpp_check,
    memory_check,
    models_check,
    platform_check,
    processor_check,
    python_check,
    settings_check,
    terminal_check,
    torch_check,
)
from runner.doctor_report import check_rest
from runner.machine import CpuInfo
from runner.measures import decimal_size
from runner.paths import Paths, user_paths
from runner.store import Store
from runner.types import Device

GIB = 2**30
H200 = Device(kind="cuda", index=0, name="NVIDIA H200", total_bytes=139 * GIB, free_bytes=138 * GIB)
RADEON = Device(kind="rocm", index=1, name="Radeon", total_bytes=24 * GIB, free_bytes=24 * GIB)
APPLE = Device(kind="metal", index=0, name="Apple M2", total_bytes=16 * GIB, free_bytes=8 * GIB)


@pytest.fixture
def paths(runner_home: Path) -> Paths:
    return user_paths(runner_home)


def assert_bad(check: Check, status: str, *words: str) -> None:
    assert check.status == status
    assert check.remedy
    for word in words:
        assert word in f"{check.detail} {check.remedy}"


def assert_fine(check: Check, *words: str) -> None:
    assert (check.status, check.remedy) == ("ok", "")
    for word in words:
        assert word in check.detail


def test_every_check_runs_here_changes_nothing_and_has_a_remedy_when_it_is_not_fine(paths: Paths) -> None:
    found = list(checks(paths))
    names = [check.name for check in found]
    assert len(set(names)) == len(names)
    assert {"Python", "Memory", "llama.cpp", "torch", "Chats", "Settings", "Demo model", "Model hub"} <= set(names)
    for check in found:
        assert check.detail
        assert bool(check.remedy) == (check.status != "ok"), check
    assert not paths.config.parent.exists()


# --- the machine -----------------------------------------------------------------------------------------------------


def test_an_old_python_is_an_error() -> None:
    assert_bad(python_check((3, 10, 4)), "error", "3.10.4", "3.11")
    assert_fine(python_check((3, 11, 0)), "3.11.0", Path(sys.executable).name)


def test_other_systems_are_a_warning() -> None:
    assert_bad(platform_check("Windows", "11", "AMD64"), "warning", "Windows")
    assert_fine(platform_check("Darwin", "24.1", "arm64"), "arm64")


def test_a_processor_without_vector_instructions_is_a_warning() -> None:
    cpu = CpuInfo(
        model="Old", physical_cores=4, logical_cores=8, usable_cores=2, cpu_limit=1.5, features=("sse4.2", "avx")
    )
    assert_bad(processor_check(cpu, 1), "warning", "AVX2", "limited to 1.5", "2 of 8")
    arm = CpuInfo(model="Arm", physical_cores=4, logical_cores=4, usable_cores=4, cpu_limit=None, features=("neon",))
    assert_fine(processor_check(arm, 4), "neon", "4 threads")


def test_little_free_memory_is_a_warning() -> None:
    little = Device(kind="cpu", index=0, name="x", total_bytes=8 * GIB, free_bytes=GIB)
    assert_bad(memory_check(little), "warning", "1.0 GiB free of 8.0 GiB")
    enough = Device(kind="cpu", index=0, name="x", total_bytes=8 * GIB, free_bytes=6 * GIB)
    assert_fine(memory_check(enough), "6.0 GiB")


def test_each_gpu_is_named_and_none_is_no_fault() -> None:
    both = list(gpu_checks([H200, RADEON]))
    assert [check.name for check in both] == ["GPU 0", "GPU 1"]
    assert_fine(both[0], "NVIDIA H200", "139.0 GiB")
    (none,) = gpu_checks([])
    assert_fine(none, "none")


# --- the installation ------------------------------------------------------------------------------------------------


def test_a_cpu_only_llama_cpp_beside_a_gpu_is_an_error_with_the_command_that_mends_it() -> None:
    cpu_only = Probe(version="0.3.36", gpu_offload=False, error=None)
    command = "pip install --force-reinstall --no-cache-dir llama-cpp-python"
    assert_bad(llamacpp_check(cpu_only, [H200]), "error", f'CMAKE_ARGS="-DGGML_CUDA=on" {command}', "NVIDIA H200")
    assert_bad(llamacpp_check(cpu_only, [RADEON]), "error", f'CMAKE_ARGS="-DGGML_HIP=on" {command}')
    assert_bad(llamacpp_check(cpu_only, [APPLE]), "error", f'CMAKE_ARGS="-DGGML_METAL=on" {command}')
    assert_fine(llamacpp_check(cpu_only, []), "without GPU support")
    assert_fine(llamacpp_check(Probe(version="0.3.36", gpu_offload=True, error=None), [H200]), "with GPU support")


def test_a_llama_cpp_that_cannot_be_imported_is_an_error() -> None:
    broken = Probe(version="", gpu_offload=False, error="llama-cpp-python cannot be imported: libgomp.so.1")
    assert_bad(llamacpp_check(broken, []), "error", "libgomp.so.1", "pip install")


def test_torch_is_asked_in_a_process_only_where_there_is_a_gpu_for_it() -> None:
    assert_fine(torch_check([]))
    assert_fine(torch_check([APPLE]))
    assert "torch" not in vars(sys.modules["runner.doctor"])


def test_a_package_without_bytecode_that_keeps_none_is_a_warning_with_the_command_that_mends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "large_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    (check,) = bytecode_checks("large_package")
    assert_fine(check, "first import")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (check,) = bytecode_checks("large_package")
    assert_bad(check, "warning", "large_package has none", "a second or two")
    subprocess.run(shlex.split(check.remedy.removeprefix("Run: ")), check=True)
    (check,) = bytecode_checks("large_package")
    assert_fine(check, "is there")
    assert not list(bytecode_checks("no_such_package"))


@pytest.mark.parametrize(
    ("code", "answer"),
    [
        ('print(\'[2, "12.8", ""]\')', (2, "CUDA 12.8")),
        ('print(\'[1, "", "6.4"]\')', (1, "ROCm 6.4")),
        ('print(\'[0, "", ""]\')', (0, "the CPU alone")),
        ("raise ImportError('libcudart.so.12: cannot open')", "ImportError: libcudart.so.12: cannot open"),
        ("import os; os._exit(7)", "it ended with code 7"),
        ("import time; time.sleep(30)", "no answer within 0.5 s"),
    ],
)
def test_whatever_the_process_does_there_is_an_answer(code: str, answer: object) -> None:
    assert _ask_torch([sys.executable, "-S", "-c", code], 0.5 if "sleep" in code else 20) == answer


def test_a_process_that_cannot_start_is_an_answer(tmp_path: Path) -> None:
    assert "No such file" in _ask_torch([str(tmp_path / "none")], 5)


def test_a_torch_that_sees_no_gpu_is_a_warning() -> None:
    assert_bad(_torch_answer("2.13.0+cpu", (0, "the CPU alone")), "warning", "the CPU alone", "driver")
    assert_bad(_torch_answer("2.13.0", "ImportError: x"), "warning", "ImportError: x", "Reinstall")
    assert_fine(_torch_answer("2.13.0", (2, "CUDA 12.8")), "CUDA 12.8", "2 GPUs")


def test_the_demo_model_is_looked_at(demo_directory: Path, tmp_path: Path) -> None:
    assert_fine(demo_check(demo_directory), "Q8_0", "18.4M")
    assert_bad(demo_check(tmp_path), "error", "no GGUF", "Reinstall")
    weights = next(demo_directory.glob("*.gguf"))
    with weights.open("rb") as file:
        (tmp_path / "demo.gguf").write_bytes(file.read(1000))
    assert_bad(demo_check(tmp_path), "error", "demo.gguf", "Reinstall")


# --- the user's files ------------------------------------------------------------------------------------------------


def test_directories_that_are_not_there_yet_are_fine(paths: Paths) -> None:
    for check in directory_checks(paths):
        assert_fine(check, "made when it is needed")


def test_directories_and_files_that_others_can_read_are_a_warning_with_the_command(paths: Paths) -> None:
    paths.data.mkdir(parents=True)
    paths.data.chmod(0o755)
    paths.database.touch(mode=0o600)
    assert_bad(directory_check("Data", paths.data, [paths.database]), "warning", f"chmod go= '{paths.data}'")
    paths.data.chmod(0o700)
    paths.database.chmod(0o644)
    assert_bad(directory_check("Data", paths.data, [paths.database]), "warning", f"chmod go= '{paths.database}'")
    paths.database.chmod(0o600)
    assert_fine(directory_check("Data", paths.data, [paths.database]))
    paths.data.chmod(0o755)
    assert_fine(directory_check("Cache", paths.data, [], is_private=False))


def test_a_directory_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert_bad(directory_check("Data", tmp_path / "file" / "data", []), "error", "cannot be written", "RUNNER_HOME")
    assert_bad(directory_check("Data", tmp_path / "file", []), "error", "cannot be written")


def test_little_disk_space_is_a_warning(tmp_path: Path) -> None:
    assert_bad(disk_check("downloads", tmp_path, 3 * 10**9), "warning", "3.0 GB free", "runner rm")
    assert_fine(disk_check("downloads", tmp_path, 300 * 10**9), "300 GB free")


def test_settings_are_read(paths: Paths, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RUNNER_N_THREADS")
    assert_fine(settings_check(paths), "defaults")
    paths.config.mkdir(parents=True)
    paths.settings_file.write_text("top_k = 3\n")
    monkeypatch.setenv("RUNNER_SEED", "4")
    assert_fine(settings_check(paths), "2 set in", "RUNNER_SEED", "config.toml")
    monkeypatch.setenv("RUNNER_TEMPRATURE", "1")
    assert_bad(settings_check(paths), "warning", "does not read RUNNER_TEMPRATURE", "RUNNER_TEMPERATURE?")
    paths.settings_file.write_text("topk = 3\n")
    assert_bad(settings_check(paths), "error", "config.toml:1", "top_k")


def test_the_users_models_file_is_read(paths: Paths) -> None:
    assert_fine(models_check(paths), "known by name")
    paths.config.mkdir(parents=True)
    paths.user_models_file.write_text("[mine\n")
    assert_bad(models_check(paths), "error", "models.toml")


def test_the_chat_database_is_opened_and_never_made(paths: Paths) -> None:
    assert_fine(database_check(paths), "none kept yet")
    assert not paths.data.exists()
    store = Store(paths.database)
    store.create_session(model="demo")
    store.close()
    assert_fine(database_check(paths), "1 kept in")
    assert database_check(paths).detail.endswith(decimal_size(paths.database.stat().st_size))
    paths.database.write_bytes(b"not a database at all, but long enough to be read as one" * 20)
    assert_bad(database_check(paths), "error")


# --- the surroundings ------------------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    """A stream that says it is a terminal of that encoding."""

    def __init__(self, encoding: str = "utf-8") -> None:
        super().__init__()
        self._name = encoding

    @property
    def encoding(self) -> str:
        return self._name

    def isatty(self) -> bool:
        return True


@pytest.fixture
def window(monkeypatch: pytest.MonkeyPatch):
    def resize(columns: int, lines: int) -> None:
        monkeypatch.setattr(shutil, "get_terminal_size", lambda **_: os.terminal_size((columns, lines)))

    resize(120, 40)
    return resize


@pytest.mark.usefixtures("window")
def test_a_good_terminal_is_described() -> None:
    environ = {"TERM": "xterm-256color", "COLORTERM": "truecolor"}
    assert_fine(terminal_check(Terminal(), environ), "xterm-256color", "truecolor", "utf-8", "120 x 40")
    assert_fine(terminal_check(io.StringIO(), {}), "not a terminal")


def test_what_a_poor_terminal_lacks_is_said(window) -> None:
    window(30, 8)
    check = terminal_check(Terminal("ascii"), {"TERM": "dumb", "NO_COLOR": "1"})
    assert_bad(check, "warning", "30 x 8", "NO_COLOR", "UTF-8 locale", "set TERM", "40 columns")


def test_the_hub_is_named_and_its_password_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "https://me:secret@mirror.example/hub")
    assert_fine(hub_check(), "https://mirror.example/hub", "not asked")
    assert "secret" not in hub_check().detail
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert_fine(hub_check(), "offline")
    monkeypatch.setenv("HF_ENDPOINT", "mirror.example")
    assert_bad(hub_check(), "error", "HF_ENDPOINT")


def test_the_home_directory_is_not_spelled_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    check = directory_check("Data", tmp_path / "data", [])
    assert "~/data" in check.detail
    assert str(tmp_path) not in check.detail


def test_an_address_that_cannot_be_parsed_is_an_error_of_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://[mirror.example")
    assert_bad(hub_check(), "error", "HF_ENDPOINT")


def test_the_kernel_cache_is_named_with_its_size(tmp_path: Path) -> None:
    directory = tmp_path / "kernels"
    empty = kernel_cache_check(directory)
    assert (empty.status, str(directory) in empty.detail, "empty" in empty.detail) == ("ok", True, True)
    (directory / "a").mkdir(parents=True)
    (directory / "a" / "k.cubin").write_bytes(bytes(1_500_000))
    (directory / "a" / "k.json").write_bytes(bytes(500_000))
    assert kernel_cache_check(directory).detail == f"{directory}, 2 files, 2.0 MB"


def test_the_kernel_cache_that_triton_is_told_to_use_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "elsewhere"))
    found = next(check for check in checks(user_paths()) if check.name == "Kernel cache")
    assert "elsewhere" in found.detail


@pytest.mark.parametrize(("width", "n_lines"), [(None, 2), (80, 2), (60, 3), (40, 4)])
def test_a_check_breaks_no_word_in_a_narrow_terminal(width: int | None, n_lines: int) -> None:
    check = Check(name="Data directory", status="error", detail="/home/somebody cannot be written", remedy="Mend it.")
    lines = ("error  " + check_rest(check, width)).split("\n")
    assert len(lines) == n_lines
    assert all(len(line) <= (width or 999) for line in lines)
    assert " ".join(" ".join(lines).split()) == "error Data directory /home/somebody cannot be written -> Mend it."
