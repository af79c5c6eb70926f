"""What a step of a model launches, without launching it; and each launch compiled in advance, in other processes.

The specialization is the one that Triton itself makes of a launch's arguments, so that what is compiled of it here is
found by the launch later, in Triton's cache on the disk. It knows neither models nor kernels.
"""

from __future__ import annotations

import hashlib
import importlib
import logging
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from runner.errors import RunnerError
from runner.kernels.cache_keys import hash_callees_first
from runner.kernels.compile.spread import Failure, spread

log = logging.getLogger(__name__)

_LIMIT_S: Final = 120.0
_DRIVERS: Final = {"cuda": "nvidia", "hip": "amd"}  # Triton's packages by its backends
_ONE_AT_A_TIME: Final = threading.Lock()  # what is changed of Triton is changed for the whole process


@dataclass(frozen=True, kw_only=True)
class KernelName:
    """A @triton.jit function by its place, as which it goes to another process."""

    module: str
    name: str


@dataclass(frozen=True, kw_only=True)
class Launch:
    """A kernel with what Triton compiles it for. All fields as triton.compile wants them, kernels by their names.

    constants and attributes: by the place of an argument, or of a part of a tuple. target: backend, arch, warp size.
    """

    kernel: KernelName
    signature: dict[str, Any]
    constants: dict[tuple[int, ...], Any]
    attributes: dict[tuple[int, ...], Any]
    options: dict[str, Any]
    target: tuple[str, int | str, int]


def launches_of(step: Callable[[], object]) -> list[Launch]:
    """What step() launches, each once, in order. Nothing is launched: what kernels would have written is undefined.

    Raises RunnerError when the kernels are for the interpreter.
    """
    from triton import knobs

    if knobs.runtime.interpret:
        raise RunnerError(
            "The kernels were imported for Triton's interpreter, which compiles nothing.",
            hint="Unset TRITON_INTERPRET.",
        )
    hash_callees_first()
    found: dict[Hashable, Launch] = {}
    with _ONE_AT_A_TIME, _noting(found):
        step()
    return list(found.values())


@contextmanager
def _noting(found: dict[Hashable, Launch]) -> Iterator[None]:
    """Triton compiles nothing and launches nothing; what it would have compiled is put into `found`.

    Kernels that were compiled before are not launched either: what they read was never written. There is a hook for
    this, knobs.runtime.jit_cache_hook, but before Triton 3.7 it fails for kernels that take kernels as constants.
    """
    from triton.runtime.jit import JITFunction

    kept: Any = {name: getattr(JITFunction, name) for name in ("run", "_do_compile")}
    target = _target()

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        del warmup
        return kept["run"](self, *args, grid=grid, warmup=True, **kwargs)

    def do_compile(
        self: Any, key: Any, signature: Any, device: Any, constants: Any, options: Any, attributes: Any, warmup: Any
    ) -> None:
        del device, warmup
        name = _name_of(self)
        if (name, key) not in found:
            found[name, key] = Launch(
                kernel=name,
                signature=dict(signature),
                constants={place: _portable(value) for place, value in constants.items()},
                attributes=dict(attributes),
                options=dict(options.__dict__),
                target=target,
            )

    untyped: Any = JITFunction
    untyped.run, untyped._do_compile = run, do_compile
    try:
        yield
    finally:
        for name, method in kept.items():
            setattr(JITFunction, name, method)


def _target() -> tuple[str, int | str, int]:
    from triton.runtime import driver

    target = driver.active.get_current_target()
    return target.backend, target.arch, target.warp_size


def _name_of(kernel: Any) -> KernelName:
    return KernelName(module=kernel.__module__, name=kernel.__qualname__)


def _portable(value: Any) -> Any:
    """A constant with kernels by name."""
    from triton import JITFunction

    if isinstance(value, JITFunction):
        return _name_of(value)
    if type(value) is tuple:
        return tuple(_portable(part) for part in value)
    return value


def _restored(value: Any) -> Any:
    if isinstance(value, KernelName):
        found: Any = importlib.import_module(value.module)
        for part in value.name.split("."):
            found = getattr(found, part)
        return found
    if type(value) is tuple:
        return tuple(_restored(part) for part in value)
    return value


def _source_and_target(launch: Launch) -> tuple[Any, Any]:
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    constants = {place: _restored(value) for place, value in launch.constants.items()}
    source = ASTSource(_restored(launch.kernel), launch.signature, constants, launch.attributes)
    return source, GPUTarget(*launch.target)


def compile_launch(launch: Launch) -> float:
    """Compile it into Triton's cache, if it is not there; returns the seconds it took. Raises what Triton raises."""
    import triton

    hash_callees_first()
    started = time.perf_counter()
    source, target = _source_and_target(launch)
    kernel = triton.compile(source, target=target, options=launch.options)
    driver = importlib.import_module(f"triton.backends.{_DRIVERS[target.backend]}.driver")
    try:
        build_launcher(driver, kernel)
    except Exception:  # no driver, no compiler: whoever launches it will say so
        log.debug("no launcher for %s", launch.kernel.name, exc_info=True)
    return time.perf_counter() - started


def build_launcher(driver: Any, kernel: Any) -> None:
    """Have the C that launches a compiled kernel put into Triton's cache too, where its version has such C.

    Triton 3.6 writes a module in C for each signature (3.9 does not) and has it compiled where a kernel of that one is
    first launched: one after the other, and in the middle of an answer. driver: Triton's module for the GPU's maker.
    """
    if hasattr(driver, "make_launcher"):
        launcher = driver.HIPLauncher if hasattr(driver, "HIPLauncher") else driver.CudaLauncher
        launcher(kernel.src, kernel.metadata)


def is_compiled(launch: Launch) -> bool:
    """Whether Triton will find it in its cache."""
    from triton._C.libtriton import get_cache_invalidating_env_vars
    from triton.compiler import make_backend
    from triton.runtime.cache import get_cache_key, get_cache_manager

    source, target = _source_and_target(launch)
    backend = make_backend(target)
    options = backend.parse_options(dict(launch.options))
    key = get_cache_key(source, backend, options, env_vars=get_cache_invalidating_env_vars())
    files = get_cache_manager(hashlib.sha256(key.encode()).hexdigest())
    return bool(files.get_group(f"{source.name[:150]}.json"))


def compile_all(
    launches: Sequence[Launch], *, processes: int, is_stopped: Callable[[], bool]
) -> Iterator[tuple[Launch, float | Failure]]:
    """Compile them in so many processes; each as it comes, with the seconds it took or what went wrong.

    Ends early once is_stopped says so.
    """
    return spread(compile_launch, launches, processes=processes, limit_s=_LIMIT_S, is_stopped=is_stopped)


def compiler_hash() -> Callable[[], object] | None:
    """What Triton does once in a process before it looks for a kernel: the hash of all its files, which it keeps.

    Triton is imported here, and needs no import where the hash is made: of two threads that import each may wait for
    the other. None where there is no Triton, or another version of it: whoever needs it will say so.
    """
    try:
        from triton.runtime.cache import triton_key
    except ImportError:
        return None
    return triton_key  # type: ignore[no-any-return]


def cache_directory() -> Path:
    """Where Triton keeps what it has compiled."""
    from triton import knobs

    return Path(knobs.cache.dir)
