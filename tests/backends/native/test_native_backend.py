from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from runner.backends import choose, native
from runner.backends.base import Backend, Began, Prefill, Step
from runner.backends.native import placement
from runner.backends.native.blocks import Decoder
from runner.config import LoadOptions, SamplingParams
from runner.errors import DoesNotFit, RunnerError, UnsuitedOptions, UnsupportedModel
from runner.machine import Limits
from runner.speculative.model_drafter import ModelDrafter
from runner.types import CancelToken
from tests.backends.cancelling import TimedCancel
from tests.backends.conformance import GREEDY, N_CTX, SAMPLED, BackendConformance, eager, prefills, take
from tests.backends.native.tiny_models import VOCAB, load, make, ready, save


class TestNativeDemo(BackendConformance):
    """The GGUF source, and byte-level BPE."""

    @pytest.fixture
    def backend(self, demo_directory: Path) -> Iterator[Backend]:
        backend = load(ready(demo_directory, demo_directory / "demo-q8_0.gguf"), ctx_size=N_CTX)
        yield backend
        backend.close()


class TestNativeStories(BackendConformance):
    """The safetensors source, the llama architecture, and SentencePiece with byte fallback."""

    @pytest.fixture
    def backend(self, shared_data: Path) -> Iterator[Backend]:
        backend = load(ready(shared_data / "stories260K" / "hf"), ctx_size=N_CTX)
        yield backend
        backend.close()


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return save(make("qwen3", max_position_embeddings=2048), tmp_path)


PROMPT = [int(token) for token in np.random.default_rng(9).integers(0, 256, 60)]


def test_what_is_imported_is_not_looked_through_for_garbage_and_the_rest_still_is() -> None:
    program = (
        "import gc, sys\n"
        "from runner.backends import native\n"
        "collections = []\n"
        "gc.callbacks.append(lambda phase, _: collections.append(phase))\n"
        "native.import_torch(for_gpu=True)\n"
        "assert 'torch' in sys.modules and len(collections) <= 2\n"  # one begins and ends behind it
        "assert gc.isenabled()\n"
        "gc.disable(); native.import_torch(for_gpu=True)\n"
        "assert not gc.isenabled()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("given", "spins"), [({}, "20000"), ({"GOMP_SPINCOUNT": "77"}, "77"), ({"OMP_WAIT_POLICY": "PASSIVE"}, "0")]
)
def test_threads_do_not_wait_for_long_on_a_core_unless_the_user_says_so(given: dict[str, str], spins: str) -> None:
    program = "from runner.backends import native; native.import_torch(for_gpu=False)"
    program += "; import sys; assert 'triton' not in sys.modules, 'macOS has none'"
    environ = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    environ |= {"OMP_DISPLAY_ENV": "VERBOSE", **given}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environ, check=True)
    said = [line for line in done.stderr.splitlines() if "GOMP_SPINCOUNT" in line]  # a torch without libgomp says none
    assert all(f"'{spins}'" in line for line in said)
    assert said or not list((Path(torch.__file__).parent / "lib").glob("libgomp*"))


def test_importing_the_package_and_refusing_a_model_load_no_torch(tiny: Path) -> None:
    script = (
        "import sys; from pathlib import Path\n"
        "from runner.backends import native; from runner.config import LoadOptions\n"
        "from runner.types import ReadyModel\n"
        f"d = Path({str(tiny)!r}); w = (d / 'model.safetensors',)\n"
        "m = ReadyModel(name='m', format='safetensors', weights=w, directory=d, size_bytes=1)\n"
        "assert native.refusal(m, LoadOptions()) is None\n"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True, cwd=Path(__file__).parents[3])


def test_safetensors_are_run_by_the_native_backend(tiny: Path) -> None:
    assert choose(ready(tiny), LoadOptions()).name == "native"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (LoadOptions(kv_type="q8_0", n_gpu_layers=0), "--kv-type"),
        (LoadOptions(n_gpu_layers=1), "--backend llamacpp"),
    ],
)
def test_what_it_cannot_do_is_refused_with_the_remedy(options: LoadOptions, words: str, tiny: Path) -> None:
    assert words in (native.refusal(ready(tiny), options) or "")


def test_other_files_are_refused(tiny: Path) -> None:
    assert "script" in (native.refusal(replace(ready(tiny), format="script"), LoadOptions()) or "")


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_gpu_that_is_not_there_is_refused_with_the_remedy(tiny: Path) -> None:
    assert "-ngl 0" in (native.refusal(ready(tiny), LoadOptions(n_gpu_layers="all")) or "")
    with pytest.raises(UnsuitedOptions, match="GPU"):
        load(ready(tiny), n_gpu_layers="all")


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json"])
def test_missing_files_are_named(missing: str, tiny: Path) -> None:
    (tiny / missing).unlink()
    assert missing in (native.refusal(ready(tiny), LoadOptions()) or "")
    with pytest.raises(UnsupportedModel, match=missing):
        load(ready(tiny))


def test_info_says_where_and_how_it_runs(tiny: Path) -> None:
    info = load(ready(tiny), n_threads=2, ctx_size=64).info
    assert (info.backend, info.architecture, info.quantization) == ("native", "qwen3", "F32")
    assert (info.device, info.n_gpu_layers, info.n_ctx, info.context_length) == ("CPU (2 threads)", 0, 64, 2048)
    assert (info.bos_token, info.eos_token, info.chat_template) == ("<|begin|>", "<|end|>", None)
    assert info.vocab_size == VOCAB


def test_the_chat_template_is_the_models_own_unless_overridden(tiny: Path) -> None:
    (tiny / "chat_template.jinja").write_text("{{ messages }}")
    assert load(ready(tiny)).info.chat_template == "{{ messages }}"
    assert load(replace(ready(tiny), chat_template="mine")).info.chat_template == "mine"


def test_load_reports_progress_up_to_the_end(tiny: Path) -> None:
    told: list[object] = []
    native.load(ready(tiny), LoadOptions(n_gpu_layers=0, n_threads=1), told.append, CancelToken())
    seen = [one for one in told if isinstance(one, float)]
    assert seen == sorted(seen)
    assert len(seen) > 10
    assert seen[-1] == 1.0


def test_a_load_that_is_cancelled_at_its_last_stage_stops(tiny: Path) -> None:
    """The first tokens of a large model take a CPU seconds."""
    cancel = CancelToken()

    def stop(progress: object) -> None:
        if progress == Began("warm-up"):
            cancel.cancel()

    with pytest.raises(RunnerError, match="cancelled"):
        native.load(ready(tiny), LoadOptions(n_gpu_layers=0, n_threads=1), stop, cancel)


def test_a_cancelled_load_stops(tiny: Path) -> None:
    cancel = CancelToken()
    seen: list[float] = []

    def stop_at_half(fraction: object) -> None:
        if not isinstance(fraction, float):
            return
        seen.append(fraction)
        if fraction > 0.5:
            cancel.cancel()

    n_before = n_decoders()
    with pytest.raises(RunnerError, match="cancelled") as held:
        native.load(ready(tiny), LoadOptions(n_gpu_layers=0, n_threads=1), stop_at_half, cancel)
    assert seen[-1] < 1.0
    assert n_decoders() == n_before, f"of {held.value!r}"


def n_decoders() -> int:
    """Models in memory, garbage too."""
    return sum(issubclass(type(one), Decoder) for one in gc.get_objects())


def test_prefill_is_yielded_chunk_by_chunk(tiny: Path) -> None:
    backend = load(ready(tiny), batch_size=25)
    assert prefills(backend, PROMPT) == [Prefill(done, 60, 0) for done in (0, 25, 50, 60)]
    assert prefills(backend, [*PROMPT, 1, 2]) == [Prefill(60, 62, 60), Prefill(62, 62, 60)]
    assert prefills(backend, PROMPT) == [Prefill(59, 60, 59), Prefill(60, 60, 59)]
    assert prefills(backend, [*PROMPT[:10], 7, 8]) == [Prefill(10, 12, 10), Prefill(12, 12, 10)]


def test_a_reused_prefix_gives_the_logits_of_a_cold_start(tiny: Path) -> None:
    backend = load(ready(tiny), batch_size=16)
    take(backend, PROMPT, 20)
    other = [*PROMPT[:33], *PROMPT[:10]]
    warm = take(backend, other, 20)
    assert warm == take(load(ready(tiny)), other, 20)
    assert warm != take(backend, [*PROMPT[:32], *PROMPT[:11]], 20), "the test distinguishes prompts"


def test_closing_in_the_middle_of_a_prefill_keeps_what_was_reported(tiny: Path) -> None:
    backend = load(ready(tiny), batch_size=20)
    steps = backend.generate(PROMPT, GREEDY, CancelToken())
    assert [next(steps), next(steps)] == [Prefill(0, 60, 0), Prefill(20, 60, 0)]
    steps.close()
    assert prefills(backend, PROMPT)[0] == Prefill(20, 60, 20)


def test_cancel_in_a_prefill_keeps_whole_chunks_and_continues_as_fresh(tiny: Path) -> None:
    backend = load(ready(tiny), batch_size=20)
    cancel = CancelToken()
    seen = []
    for step in backend.generate(PROMPT, GREEDY, cancel):
        seen.append(step)
        if step == Prefill(40, 60, 0):
            cancel.cancel()
    assert seen[-1] == Prefill(40, 60, 0)
    assert prefills(backend, PROMPT)[0].cached == 40
    assert take(backend, PROMPT, 20) == take(load(ready(tiny)), PROMPT, 20)


def test_cancel_from_another_thread_ends_a_long_prefill_within_200_ms(demo_directory: Path) -> None:
    backend = load(ready(demo_directory, demo_directory / "demo-q8_0.gguf"), batch_size=2048, n_threads=1)
    prompt = [10 + i % 5000 for i in range(2000)]
    cancel = CancelToken()
    timed = TimedCancel(cancel, 0.05)
    timed.start()
    steps = list(backend.generate(prompt, GREEDY, cancel))
    timed.check()
    assert not any(isinstance(step, Step) for step in steps)


def test_the_cache_grows_with_the_conversation_and_not_past_the_context(tiny: Path) -> None:
    backend = load(ready(tiny), ctx_size=700)
    per_token = 2 * 3 * 2 * 18 * 4
    take(backend, PROMPT, 3)
    assert backend.memory().kv_cache_bytes == 256 * per_token
    assert len(take(backend, PROMPT, 1000)) == 640
    assert backend.memory().kv_cache_bytes == 700 * per_token
    assert backend.memory().weights_bytes == backend.info.num_parameters * 4


def test_growing_the_cache_changes_no_token(tiny: Path) -> None:
    backend = load(ready(tiny))
    long = [token for i in range(11) for token in (*PROMPT, i)]
    grown = take(backend, PROMPT, 300)
    take(backend, long, 1)
    assert take(backend, PROMPT, 300) == grown


def test_a_closed_backend_holds_nothing(tiny: Path) -> None:
    backend = load(ready(tiny))
    take(backend, PROMPT, 2)
    backend.close()
    assert backend.memory().total_bytes == 0


def test_a_model_that_does_not_fit_is_refused_with_what_would(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = 4 * load(ready(tiny)).info.num_parameters
    per_token = 2 * 3 * 2 * 18 * 4
    monkeypatch.setattr(placement, "free_bytes", lambda _: weights + 1100 * per_token)
    with pytest.raises(DoesNotFit, match="2048 tokens") as caught:
        load(ready(tiny))
    assert "-c 1024" in caught.value.hint
    assert load(ready(tiny), ctx_size=1024).info.n_ctx == 1024
    assert load(ready(tiny), force=True).info.n_ctx == 2048


def test_an_allocation_that_fails_says_what_was_asked(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = load(ready(tiny))
    expected = take(backend, PROMPT, 5)
    # A real failure of torch's allocator: more than any machine's address space.
    impossible = 2**60
    monkeypatch.setattr(backend._execution.cache, "reserve", lambda _: torch.empty(impossible))
    per_token = 2 * 3 * 2 * 18 * 4
    free = 1100 * per_token - backend.memory().kv_cache_bytes  # beside what it holds
    monkeypatch.setattr("runner.backends.native.backend.free_bytes", lambda _: free)
    with pytest.raises(DoesNotFit, match=r"Out of memory\..*KV cache for 2048 tokens") as caught:
        take(backend, PROMPT, 5)
    assert caught.value.hint == "A context of 1024 tokens would fit: -c 1024."
    monkeypatch.undo()
    assert take(backend, PROMPT, 5) == expected


def test_free_memory_of_the_cpu_is_the_machines(tiny: Path) -> None:
    found = placement.free_bytes(load(ready(tiny))._placement)
    assert 0 < found <= psutil.virtual_memory().total


def test_free_memory_in_a_container_is_what_is_left_to_it(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = Limits(memory_bytes=200_000, memory_left_bytes=100_000)
    monkeypatch.setattr("runner.machine.gpu.cgroup_limits", lambda: limits)
    with pytest.raises(DoesNotFit, match=r"0\.00 GiB free"):
        load(ready(tiny))


def test_sampling_depends_on_the_seed_and_on_nothing_else(tiny: Path) -> None:
    backend = load(ready(tiny))
    hot = SamplingParams(temperature=1.5, top_k=0, top_p=1.0, min_p=0.0, seed=5)
    first = take(backend, PROMPT, 30, hot)
    assert take(backend, PROMPT, 30, hot) == first
    assert take(load(ready(tiny)), PROMPT, 30, hot) == first
    assert take(backend, PROMPT, 30, replace(hot, seed=6)) != first


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_a_second_model_drafts_in_greedy_and_in_sampled_text(tiny: Path, params: SamplingParams) -> None:
    target = load(ready(tiny))
    text = take(target, PROMPT, 40, params)
    speculator = eager(target, ModelDrafter(load(ready(tiny), ctx_size=len(PROMPT) + 30)))
    speculator.begin(PROMPT)
    assert take(target, PROMPT, 40, params, speculator) == text
    record = speculator.record
    assert record.acceptance_rate is not None
    assert record.acceptance_rate > 0.9
    assert 20 <= record.n_drafted <= 31, "its context ends before the target's"
    speculator.close()
    assert take(target, PROMPT, 8, params) == text[:8]


def test_a_cancelled_draft_model_reads_no_further(tiny: Path) -> None:
    backend = load(ready(tiny), batch_size=16)
    cancel = CancelToken()
    assert backend.extend(PROMPT, cancel) is not None
    assert list(backend.held) == PROMPT
    cancel.cancel()
    assert backend.extend(PROMPT, cancel) is None
    assert list(backend.held)[: len(PROMPT)] == PROMPT
