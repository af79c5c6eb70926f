"""What a step launches can be compiled before it is launched, and Triton finds it then."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from checkout import python

from runner.kernels.cache_keys import mend
from runner.kernels.compile.launches import build_launcher

KEYS = """
import importlib, json, pkgutil, sys
import runner.kernels
from runner.kernels.cache_keys import hash_callees_first
from triton import JITFunction
hash_callees_first()
names = [found.name for found in pkgutil.iter_modules(runner.kernels.__path__, "runner.kernels.")]
modules = [importlib.import_module(name) for name in names]
found = {
    f"{name} {function.__module__}": function
    for module in modules for name, function in vars(module).items() if isinstance(function, JITFunction)
}
keys = {name: found[name].cache_key for name in sorted(found, reverse="reverse" in sys.argv)}
twice = [
    name for name, function in found.items()
    if len({constant for constant, _ in function.used_global_vals}) < len(function.used_global_vals)
]
print(json.dumps([keys, twice]))
"""


def printed(*arguments: str | Path, **settings: str) -> Any:
    done = python(*arguments, timeout_s=120, **settings)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_kernel_has_one_key_whatever_was_hashed_before_it() -> None:
    found = [printed("-c", KEYS, order) for order in ("forward", "reverse")]
    (keys, twice), (reversed_keys, _) = found
    assert len(keys) > 60
    assert keys == reversed_keys
    assert not twice  # constants of one name are sorted by where they lie in memory


def test_callees_are_hashed_before_their_constants_are_looked_at() -> None:
    class Callee:
        constants: ClassVar[list[str]] = []

        @property
        def cache_key(self) -> str:
            self.constants.append("EIGHT")
            return "key"

    class Finder:
        """Does as Triton's does in 3.6."""

        def __init__(self) -> None:
            self.constants: list[str] = []

        def _update_hash(self, callee: Callee) -> None:
            self.constants += callee.constants

    for _ in range(2):
        mend(Finder)
    finder = Finder()
    finder._update_hash(Callee())
    assert finder.constants == ["EIGHT"]
    mend(None)  # a Triton that has no such class is left alone


def test_launches_that_were_compiled_in_other_processes_are_found_by_triton(tmp_path: Path) -> None:
    found = printed(Path(__file__).with_name("launch_samples.py"), TRITON_CACHE_DIR=str(tmp_path))
    assert found == {
        "names": ["_quantize_rows", "_gemv_dense_16_bits"],
        "before": [False, False],
        "failures": [],
        "after": [True, True],
        "found": [True, True],
    }


@pytest.mark.parametrize("launcher", ["CudaLauncher", "HIPLauncher"])
def test_what_launches_a_kernel_is_built_with_it_where_triton_has_it_written_in_c(launcher: str) -> None:
    built: list[tuple[str, str]] = []
    driver = SimpleNamespace(**{launcher: lambda source, metadata: built.append((source, metadata))})
    kernel = SimpleNamespace(src="source", metadata="metadata")
    build_launcher(driver, kernel)
    assert not built  # Triton 3.9 has one, which is compiled already, for all
    driver.make_launcher = None
    build_launcher(driver, kernel)
    assert built == [("source", "metadata")]


def test_triton_has_the_launchers_that_are_asked_for() -> None:
    from triton.backends.amd.driver import HIPLauncher
    from triton.backends.nvidia.driver import CudaLauncher

    for launcher in (HIPLauncher, CudaLauncher):
        assert launcher.__init__.__code__.co_varnames[:3] == ("self", "src", "metadata")
