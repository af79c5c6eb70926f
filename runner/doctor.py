"""Looks at the machine and the installation, and says what is wrong and how to mend it.

Each check is a value with a remedy; they come one by one, the quick ones first. It asks no server anything, changes
nothing, and does not know how a report looks.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import importlib.util
import json
import os
import platform
import shlex
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TextIO
from urllib.parse import urlsplit

from runner.backends.llamacpp import INSTALL_HINT, Probe, probe
from runner.closed import cannot_read
from runner.errors import RunnerError
from runner.hub_cache import hub_settings
from runner.inventory import unreadable
from runner.machine import CpuInfo, cpu_info, default_threads, devices
from runner.measures import decimal_size
from runner.paths import Paths, builtin
from runner.registry import Registry
from runner.settings import load_settings, misspelt_variables
from runner.types import Device

Status = Literal["ok", "warning", "error"]

_GIB = 2**30
_LITTLE_MEMORY_BYTES = 2 * _GIB
_LITTLE_DISK_BYTES = 10 * 10**9
_TORCH_TIMEOUT_S = 60
_TORCH_QUESTION = (
    "import json, torch; n = torch.cuda.device_count() if torch.cuda.is_available() else 0; "
    "print(json.dumps([n, torch.version.cuda or '', torch.version.hip or '']))"
)
_GPU_FLAGS = {"cuda": "-DGGML_CUDA=on", "rocm": "-DGGML_HIP=on", "metal": "-DGGML_METAL=on"}


@dataclass(frozen=True, kw_only=True)
class Check:
    """One thing that was looked at. detail: what was found. remedy: what to do about it, "" when it is fine."""

    name: str
    status: Status
    detail: str
    remedy: str = ""


def checks(paths: Paths, terminal: TextIO | None = None) -> Iterator[Check]:
    """Every check, as it is done. All but the last few are instant; none raises. terminal: stdout, if not given."""
    found = devices()
    gpus = [device for device in found if device.kind != "cpu"]
    yield python_check(sys.version_info[:3])
    yield platform_check(platform.system(), platform.release(), platform.machine())
    yield processor_check(cpu_info(), default_threads())
    yield memory_check(found[-1])
    yield from gpu_checks(gpus)
    yield from directory_checks(paths)
    yield from disk_checks({"data": paths.data, "cache": paths.cache, "downloads": hub_settings().cache})
    yield kernel_cache_check(Path(os.environ.get("TRITON_CACHE_DIR") or paths.kernels))
    yield settings_check(paths)
    yield models_check(paths)
    yield database_check(paths)
    yield terminal_check(terminal or sys.stdout, os.environ)
    yield demo_check(builtin("models/demo"))
    yield hub_check()
    yield llamacpp_check(probe(), gpus)
    yield triton_check(sys.platform)
    yield torch_check(gpus)
    yield from bytecode_checks("torch")


# --- the machine -----------------------------------------------------------------------------------------------------


def python_check(version: Sequence[int]) -> Check:
    text = ".".join(map(str, version))
    if tuple(version[:2]) < (3, 11):
        return Check(name="Python", status="error", detail=text, remedy="Install Python 3.11 or later.")
    return Check(name="Python", status="ok", detail=f"{text} at {_tilde(Path(sys.executable))}")


def platform_check(system: str, release: str, machine: str) -> Check:
    detail = f"{system} {release}, {machine}"
    if system not in ("Linux", "Darwin"):
        return Check(
            name="Platform", status="warning", detail=detail, remedy="runner is made for Linux and macOS; try WSL 2."
        )
    return Check(name="Platform", status="ok", detail=detail)


def processor_check(cpu: CpuInfo, threads: int) -> Check:
    limit = "" if cpu.cpu_limit is None else f", limited to {cpu.cpu_limit:g} by its container"
    detail = (
        f"{cpu.model}, {cpu.physical_cores} cores "
        f"({cpu.usable_cores} of {cpu.logical_cores} logical ones usable{limit}), "
        f"{threads} threads for models, {' '.join(cpu.features) or 'no known vector instructions'}"
    )
    if not {"avx2", "neon"} & set(cpu.features):
        remedy = (
            "Models run many times slower without AVX2 or NEON. In a virtual machine, pass the host's processor on."
        )
        return Check(name="Processor", status="warning", detail=detail, remedy=remedy)
    return Check(name="Processor", status="ok", detail=detail)


def memory_check(memory: Device) -> Check:
    detail = f"{_gib(memory.free_bytes)} free of {_gib(memory.total_bytes)}"
    if memory.free_bytes < _LITTLE_MEMORY_BYTES:
        remedy = (
            "Close other programs: a model needs as much free memory as its file is large, and more for its context."
        )
        return Check(name="Memory", status="warning", detail=detail, remedy=remedy)
    return Check(name="Memory", status="ok", detail=detail)


def gpu_checks(gpus: Sequence[Device]) -> Iterator[Check]:
    if not gpus:
        yield Check(name="GPU", status="ok", detail="none: models run on the processor")
    for gpu in gpus:
        detail = f"{gpu.name} ({gpu.kind}), {_gib(gpu.free_bytes)} free of {_gib(gpu.total_bytes)}"
        yield Check(name=f"GPU {gpu.index}", status="ok", detail=detail)


# --- the installation ------------------------------------------------------------------------------------------------


def llamacpp_check(found: Probe, gpus: Sequence[Device]) -> Check:
    """llama.cpp can be used, and can use the GPU that is there."""
    name = "llama.cpp"
    if found.error:
        return Check(name=name, status="error", detail=found.error, remedy=INSTALL_HINT)
    detail = f"llama-cpp-python {found.version}, {'with' if found.gpu_offload else 'without'} GPU support"
    if gpus and not found.gpu_offload:
        flag = _GPU_FLAGS[gpus[0].kind]
        command = f'CMAKE_ARGS="{flag}" pip install --force-reinstall --no-cache-dir llama-cpp-python'
        return Check(
            name=name,
            status="error",
            detail=f"{detail}, although there is {gpus[0].name}",
            remedy=f"Reinstall it with GPU support: {command}",
        )
    return Check(name=name, status="ok", detail=detail)


def torch_check(gpus: Sequence[Device]) -> Check:
    """torch is installed and, where there is a GPU for it, sees it. It is asked in a process of its own."""
    version = _version("torch")
    if version is None:
        remedy = "Install it with: pip install torch. Without it there is only the llama.cpp backend."
        return Check(name="torch", status="warning", detail="not installed", remedy=remedy)
    if not any(gpu.kind in ("cuda", "rocm") for gpu in gpus):
        return Check(name="torch", status="ok", detail=version)
    return _torch_answer(version, _ask_torch([sys.executable, "-c", _TORCH_QUESTION], _TORCH_TIMEOUT_S))


def _ask_torch(command: Sequence[str], timeout_s: float) -> tuple[int, str] | str:
    """(GPUs that torch sees, the platform it was built for), or what went wrong."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        return f"no answer within {timeout_s:g} s"
    except OSError as error:
        return str(error)
    try:
        count, cuda, hip = json.loads(done.stdout)
    except ValueError:
        lines = done.stderr.strip().splitlines()
        return lines[-1] if lines else f"it ended with code {done.returncode}"
    return count, f"CUDA {cuda}" if cuda else f"ROCm {hip}" if hip else "the CPU alone"


def _torch_answer(version: str, answer: tuple[int, str] | str) -> Check:
    if isinstance(answer, str):
        remedy = "Reinstall it with: pip install --force-reinstall torch"
        return Check(name="torch", status="warning", detail=f"{version} does not work: {answer}", remedy=remedy)
    count, built_for = answer
    if count == 0:
        remedy = (
            "The native backend would run on the CPU. Install a build of torch for this GPU, and a driver at least as "
            "new as that build needs."
        )
        return Check(name="torch", status="warning", detail=f"{version} (for {built_for}) sees no GPU", remedy=remedy)
    return Check(name="torch", status="ok", detail=f"{version} (for {built_for}) sees {count} GPU{'s' * (count > 1)}")


def bytecode_checks(package: str) -> Iterator[Check]:
    """A large package that has no bytecode is compiled at each start, if none is kept."""
    source = _source(package)
    if source is None:
        return
    if has_bytecode(package):
        yield Check(name="Bytecode", status="ok", detail=f"that of {package} is there: starts do not compile it")
    elif not sys.dont_write_bytecode and os.access(_nearest_existing(_bytecode(source).parent), os.W_OK):
        yield Check(name="Bytecode", status="ok", detail=f"that of {package} is kept from its first import on")
    else:
        detail = (
            f"{package} has none, and none is kept: each start of the native backend takes longer, by a second or two"
        )
        remedy = f"Run: {shlex.join([sys.executable, '-m', 'compileall', '-q', str(source.parent)])}"
        yield Check(name="Bytecode", status="warning", detail=detail, remedy=remedy)


def has_bytecode(package: str) -> bool:
    """Whether an installed package's bytecode lies where Python looks for it."""
    source = _source(package)
    return source is not None and _bytecode(source).is_file()


def _source(package: str) -> Path | None:
    spec = importlib.util.find_spec(package)
    return None if spec is None or spec.origin is None else Path(spec.origin)


def _bytecode(source: Path) -> Path:
    return Path(importlib.util.cache_from_source(str(source)))


def triton_check(system: str) -> Check:
    version = _version("triton")
    if version is None and system == "linux":
        remedy = "Install it with: pip install triton. The native backend's fast kernels need it."
        return Check(name="triton", status="warning", detail="not installed", remedy=remedy)
    return Check(name="triton", status="ok", detail=version or "not available on this system")


def demo_check(directory: Path) -> Check:
    """The model that ships with runner is there, and its header is sound."""
    from runner.quant.gguf_file import read_header

    name, remedy = "Demo model", "Reinstall runner: this file comes with it."
    files = sorted(directory.glob("*.gguf"))
    if not files:
        return Check(name=name, status="error", detail=f"no GGUF file in {_tilde(directory)}", remedy=remedy)
    try:
        header = read_header(files[0])
    except (RunnerError, OSError) as error:
        return Check(name=name, status="error", detail=str(error), remedy=remedy)
    size = files[0].stat().st_size / 1e6
    parameters = header.num_parameters / 1e6
    return Check(name=name, status="ok", detail=f"{header.quantization}, {parameters:.1f}M parameters, {size:.1f} MB")


# --- the user's files ------------------------------------------------------------------------------------------------


def directory_checks(paths: Paths) -> Iterator[Check]:
    """Each directory can be written, and nobody else can read what is in it."""
    private = {
        "Settings directory": (paths.config, [paths.settings_file]),
        "Data directory": (paths.data, [paths.database]),
        "State directory": (paths.state, [paths.log_file, paths.prompt_history]),
    }
    for name, (directory, files) in private.items():
        yield directory_check(name, directory, files)
    yield directory_check("Cache directory", paths.cache, [], is_private=False)
    yield downloads_check(hub_settings().cache)


def downloads_check(directory: Path) -> Check:
    """Where models are fetched to. One that others keep and this user may only read is of use too."""
    found = directory_check("Downloads", directory, [], is_private=False)
    if found.status == "ok":
        return found
    remedy = "What is there runs, if it can be read; to fetch models make it writable, or set HF_HOME to another place."
    return dataclasses.replace(found, status="warning", remedy=remedy)


def directory_check(name: str, directory: Path, files: Sequence[Path], *, is_private: bool = True) -> Check:
    there = _nearest_existing(directory)
    if not os.path.isdir(there) or not os.access(there, os.W_OK | os.X_OK):
        remedy = f"Make {_tilde(there)} a directory that you can write to, or set RUNNER_HOME to one."
        return Check(name=name, status="error", detail=f"{_tilde(directory)} cannot be written", remedy=remedy)
    if there != directory:
        return Check(name=name, status="ok", detail=f"{_tilde(directory)}, made when it is needed")
    if is_private and os.name == "posix":
        open_ones = [path for path in (directory, *files) if path.exists() and _is_open_to_others(path)]
        if open_ones:
            listed = " ".join(f"'{path}'" for path in open_ones)
            detail = f"others can read {', '.join(_tilde(path) for path in open_ones)}"
            return Check(name=name, status="warning", detail=detail, remedy=f"Close it with: chmod go= {listed}")
    return Check(name=name, status="ok", detail=_tilde(directory))


def _is_open_to_others(path: Path) -> bool:
    return bool(path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO))


def disk_checks(directories: Mapping[str, Path]) -> Iterator[Check]:
    for name, directory in directories.items():
        yield disk_check(name, directory, shutil.disk_usage(_nearest_existing(directory)).free)


def disk_check(name: str, directory: Path, free_bytes: int) -> Check:
    detail = f"{decimal_size(free_bytes)} free for {name} at {_tilde(directory)}"
    if free_bytes < _LITTLE_DISK_BYTES:
        remedy = "Models take 1 to 40 GB each: free some space (runner ls shows the models, runner rm deletes one)."
        return Check(name=f"Disk, {name}", status="warning", detail=detail, remedy=remedy)
    return Check(name=f"Disk, {name}", status="ok", detail=detail)


def kernel_cache_check(directory: Path) -> Check:
    """Where the compiled kernels are, and how large they are. They can be deleted: they are compiled again."""
    name = "Kernel cache"
    sizes = []
    for folder, _, files in os.walk(directory):
        for file in files:
            with suppress(OSError):  # an engine that compiles right now renames its files
                sizes.append((Path(folder) / file).lstat().st_size)
    if not sizes:
        return Check(
            name=name, status="ok", detail=f"empty: {_tilde(directory)} is filled when a GPU first runs a model"
        )
    return Check(name=name, status="ok", detail=f"{_tilde(directory)}, {len(sizes)} files, {sum(sizes) / 1e6:.1f} MB")


def settings_check(paths: Paths) -> Check:
    try:
        settings = load_settings(paths)
    except RunnerError as error:
        return Check(name="Settings", status="error", detail=error.message, remedy=error.hint)
    places = sorted({origin for _, origin in settings.given.values()})
    detail = (
        f"{len(settings.given)} set in {', '.join(_tilde(Path(place)) for place in places)}" if places else "defaults"
    )
    if wrong := misspelt_variables():
        detail += f"; runner does not read {', '.join(wrong)}"
        remedy = f"Did you mean {', '.join(wrong.values())}?"
        return Check(name="Settings", status="warning", detail=detail, remedy=remedy)
    return Check(name="Settings", status="ok", detail=detail)


def models_check(paths: Paths) -> Check:
    try:
        registry = Registry.load_for(paths)
    except RunnerError as error:
        return Check(name="Models", status="error", detail=error.message, remedy=error.hint)
    if closed := unreadable(registry, paths):
        problem = cannot_read(closed)
        return Check(name="Models", status="error", detail=problem.message, remedy=problem.hint)
    return Check(name="Models", status="ok", detail=f"{len(registry.specs)} known by name")


def database_check(paths: Paths) -> Check:
    """The chats can be read. A database that is not there yet is not made."""
    from runner.store import Store

    name = "Chats"
    if not paths.database.exists():
        return Check(name=name, status="ok", detail="none kept yet")
    try:
        with closing(Store(paths.database)) as store:
            count = len(store.sessions())
    except RunnerError as error:
        remedy = error.hint or f"Move {_tilde(paths.database)} away; chats start anew then."
        return Check(name=name, status="error", detail=error.message, remedy=remedy)
    size = decimal_size(paths.database.stat().st_size)
    return Check(name=name, status="ok", detail=f"{count} kept in {_tilde(paths.database)}, {size}")


# --- the surroundings ------------------------------------------------------------------------------------------------


def terminal_check(stream: TextIO | None, environ: Mapping[str, str]) -> Check:
    name = "Terminal"
    encoding = (getattr(stream, "encoding", None) or "unknown").lower()
    if stream is None or not stream.isatty():  # None: closed before the program began
        return Check(name=name, status="ok", detail=f"the output is not a terminal; {encoding}")
    columns, lines = shutil.get_terminal_size()
    term = environ.get("TERM", "")
    colours = environ.get("COLORTERM") or ("256 colours" if "256" in term else "colours unknown")
    no_colour = ", NO_COLOR" if environ.get("NO_COLOR") else ""
    detail = f"TERM={term or '(unset)'}, {colours}{no_colour}, {encoding}, {columns} x {lines}"
    remedies = []
    if encoding.replace("-", "") != "utf8":
        remedies.append("Characters outside of it show as ?: choose a UTF-8 locale, such as LANG=C.UTF-8.")
    if term in ("", "dumb"):
        remedies.append("The chat has no colours or line editing here: set TERM to what the terminal is.")
    if columns < 40 or lines < 12:
        remedies.append("Make the window at least 40 columns by 12 lines.")
    return Check(name=name, status="warning" if remedies else "ok", detail=detail, remedy=" ".join(remedies))


def hub_check() -> Check:
    """Which model hub would be asked. It is not."""
    settings = hub_settings()
    remedy = "Set HF_ENDPOINT to an address that begins with https://, or unset it."
    try:
        parts = urlsplit(settings.endpoint)
    except ValueError as error:
        return Check(name="Model hub", status="error", detail=f"HF_ENDPOINT is no address: {error}", remedy=remedy)
    shown = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"  # a password may be in it
    if parts.scheme not in ("http", "https") or not parts.netloc:
        return Check(name="Model hub", status="error", detail=f"HF_ENDPOINT is no address: {shown}", remedy=remedy)
    offline = ", offline (HF_HUB_OFFLINE)" if settings.is_offline else ", not asked"
    return Check(name="Model hub", status="ok", detail=f"{shown}{offline}")


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _nearest_existing(path: Path) -> Path:
    return next((folder for folder in (path, *path.parents) if os.path.exists(folder)), path)


def _tilde(path: Path) -> str:
    """The path with ~ for the home directory, so that a report that is passed on names no user."""
    try:
        return f"~/{path.relative_to(Path.home())}"
    except (ValueError, RuntimeError):
        return str(path)


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / _GIB:.1f} GiB"
