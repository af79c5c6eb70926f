"""What is done beside the import of torch: the GPU's context and Triton's hash, where there may be a GPU at all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_BEGIN = """
import os
import sys
from runner.backends.native import ahead

asked = []

class Driver:
    def cuInit(self, flags):
        asked.append(os.environ["CUDA_MODULE_LOADING"])
        return {status}

    def cuDeviceGet(self, device, ordinal):
        device._obj.value = 40 + ordinal
        return 0

    def cuDevicePrimaryCtxRetain(self, context, device):
        asked.append(device.value)
        return 0

ahead._driver = lambda: Driver() if {has_driver} else None
{before}
with ahead.gpu_prepared():
    seen = set(sys.modules)
"""


def _run(asserted: str, *, status: int = 0, has_driver: bool = True, before: str = "") -> None:
    program = _BEGIN.format(status=status, has_driver=has_driver, before=before) + asserted
    environment = {name: value for name, value in os.environ.items() if name != "CUDA_MODULE_LOADING"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_first_gpus_context_is_opened_and_triton_hashed_without_torch() -> None:
    _run(
        "assert asked == ['LAZY', 40], asked\n"
        "assert 'torch' not in sys.modules\n"
        "from triton.runtime.cache import triton_key\n"
        "assert triton_key.cache_info().currsize == 1"
    )


@pytest.mark.parametrize("built_for", ["cuda", "cpu"])
def test_the_driver_is_taken_where_torch_is_built_for_it(built_for: str, tmp_path: Path) -> None:
    (tmp_path / "torch" / "lib").mkdir(parents=True)
    (tmp_path / "torch" / "__init__.py").touch()
    (tmp_path / "torch" / "lib" / f"libtorch_{built_for}.so").touch()
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from runner.backends.native import ahead\n"
        "ahead.ctypes.CDLL = lambda name: name\n"
        f"assert ahead._driver() == ('libcuda.so.1' if {built_for!r} == 'cuda' else None)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_driver_without_a_gpu_is_asked_no_more() -> None:
    _run("assert asked == ['LAZY'], asked", status=100)


@pytest.mark.parametrize("case", [{"has_driver": False}, {"before": "import torch"}])
def test_nothing_is_done_without_a_driver_nor_when_torch_is_there(case: dict[str, object]) -> None:
    _run("assert not asked\nassert 'triton' not in seen", **case)  # type: ignore[arg-type]


def test_a_hash_that_fails_is_left_to_who_needs_it() -> None:
    _run(
        "assert asked == ['LAZY', 40], asked",
        before="def fail(): raise OSError('no such file')\nahead.compiler_hash = lambda: fail",
    )
