"""Fixtures that every test may use: the demo model, the shared real data, a private home directory."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from quick_interpreter import quicken

# A test run in the background of a shell inherits an ignored SIGINT, and would hand it on to the programs it starts.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Without a GPU the kernels run in Triton's interpreter. It must be chosen before the first of them is imported.
if not Path("/dev/nvidia0").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# Properties are no stopwatches: other programs run too.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")

CHECKOUT = Path(__file__).parent.parent


def pytest_configure() -> None:
    """Nothing that is imported for the tests is garbage: looking for some took a quarter of their time."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Garbage is looked for among what tests make from here on; Triton's interpreter, if they use it, is made quick."""
    gc.freeze()
    gc.set_threshold(10_000, 50, 20)
    gc.enable()
    if "triton.runtime.interpreter" in sys.modules:
        quicken(sys.modules["triton.runtime.interpreter"])


@pytest.fixture(autouse=True)
def runner_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test has its own RUNNER_HOME and Hugging Face cache, and reaches no model hub."""
    home = tmp_path / "runner-home"
    monkeypatch.setenv("RUNNER_HOME", str(home))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf-home"))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    # llama.cpp's threads spin at barriers: two of them on cores that others use too are ten times slower than one.
    monkeypatch.setenv("RUNNER_N_THREADS", "1")
    # Where there is a GPU the demo would be the native backend's, here too.
    monkeypatch.setattr("runner.backends.native.preference.devices", tuple)
    for name in ("COLUMNS", "LINES"):  # that tests run in several processes is no terminal's size
        monkeypatch.delenv(name, raising=False)
    return home


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine's GPUs are hidden: llama.cpp is mostly compiled without them, of which each load would warn."""
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
        monkeypatch.setenv(name, "")


@pytest.fixture(autouse=True)
def torch_threads() -> Iterator[None]:
    """A model that is loaded sets the number of torch's threads for the whole process: not for the tests after it."""
    if "torch" not in sys.modules:
        yield
        return
    torch = sys.modules["torch"]
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def demo_directory() -> Path:
    """models/demo of this checkout: the GGUF with its tokenizer and configuration."""
    return CHECKOUT / "models" / "demo"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real test data that is not part of the project, beside the checkout as ../shared/data."""
    path = CHECKOUT.parent / "shared" / "data"
    if not path.is_dir():
        pytest.skip("needs the real test data in ../shared/data")
    return path
