"""The native backend on a GPU, by `pytest -m gpu`: conformance, graphs, bits and memory, with the real kernels."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch

from runner.backends import native
from runner.backends.base import Backend
from runner.backends.native import kv_cache, placement
from runner.backends.native.backend import NativeBackend
from runner.backends.native.fused_execution import FusedExecution
from runner.backends.native.graphs import Graphs
from runner.config import LoadOptions, SamplingParams
from runner.errors import DoesNotFit
from runner.quant.mq.quantize import quantize_packed
from runner.quant.mq.recipe import recipe_of
from runner.types import CancelToken, ReadyModel
from tests.backends.conformance import GREEDY, N_CTX, BackendConformance, prefills, take
from tests.backends.native.tiny_models import make, ready, save

pytestmark = pytest.mark.gpu
WIDE = {"num_hidden_layers": 4, "sliding_window": 40, "vocab_size": 8192, "max_position_embeddings": 2048}
WIDE |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 256, "global_head_dim": 512}
WIDE |= {"hidden_size": 256, "intermediate_size": 512}
PROMPT = [int(token) for token in np.random.default_rng(9).integers(300, 8000, 60)]


def opened(model: ReadyModel, **options: object) -> NativeBackend:
    settings = LoadOptions(**{"n_gpu_layers": "all", "ctx_size": N_CTX, **options})  # type: ignore[arg-type]
    backend = native.load(model, settings, lambda _: None, CancelToken())
    assert isinstance(backend, NativeBackend)
    return backend


@pytest.fixture(scope="module")
def demo() -> ReadyModel:
    directory = Path(__file__).parents[3] / "models" / "demo"
    return ready(directory, directory / "demo-q8_0.gguf")


@pytest.fixture(scope="module")
def packed(demo: ReadyModel, tmp_path_factory: pytest.TempPathFactory) -> ReadyModel:
    """The demo model as MQ4."""
    return as_mq4(demo.directory, tmp_path_factory.mktemp("packed"))


@pytest.fixture(scope="module")
def delta(tmp_path_factory: pytest.TempPathFactory) -> ReadyModel:
    """A model as large whose layers have gated delta nets and gated attention, as MQ4: noise."""
    directory = tmp_path_factory.mktemp("delta")
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64}
    heads |= {"linear_num_key_heads": 2, "linear_key_head_dim": 64, "linear_value_head_dim": 64}
    sizes = {"hidden_size": 256, "intermediate_size": 512, "vocab_size": 8192, "max_position_embeddings": 2048}
    source = save(make("qwen3-5", num_hidden_layers=4, **heads, **sizes), directory / "source")
    return as_mq4(source, directory)


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> ReadyModel:
    """A model as large with Gemma 4's heads, of 256 and of 512, as MQ4: noise."""
    directory = tmp_path_factory.mktemp("wide")
    return as_mq4(save(make("gemma4", **WIDE), directory / "source"), directory)


@pytest.fixture(scope="module")
def beside(tmp_path_factory: pytest.TempPathFactory) -> ReadyModel:
    """The same with experts beside its MLPs. Tokens take them all: of noise, what is rounded otherwise takes others."""
    directory, experts = tmp_path_factory.mktemp("beside"), {"num_experts": 4, "top_k_experts": 4}
    model = make("gemma4-moe", **WIDE, **experts, moe_intermediate_size=256)
    return as_mq4(save(model, directory / "source"), directory)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> ReadyModel:
    """A model as large whose layers have inputs, two of which see what others keep, as MQ4: noise."""
    directory = tmp_path_factory.mktemp("shared")
    heads = {"num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 256, "global_head_dim": 512}
    sizes = {"hidden_size": 256, "intermediate_size": 512, "vocab_size": 8192, "max_position_embeddings": 2048}
    layers = {"num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": 40}
    inputs = {"hidden_size_per_layer_input": 256, "vocab_size_per_layer_input": 8192}
    model = make("gemma4-inputs-by-layer-and-shared-caches", **heads, **sizes, **layers, **inputs)
    return as_mq4(save(model, directory / "source"), directory)


def as_mq4(source: Path, parent: Path) -> ReadyModel:
    directory = parent / "mq4"
    quantize_packed(source, recipe_of("mq4"), directory, on_stage=lambda *_: None)
    (weights,) = directory.glob("*.safetensors")
    return ReadyModel(
        name="mq4", format="packed", weights=(weights,), directory=directory, size_bytes=weights.stat().st_size
    )


class ConformanceOnAGpu(BackendConformance):
    """model_name: a fixture above. options: of its load. Most models are noise: a text that is a prompt is rounded
    otherwise than in steps, by 0.4 of logits up to 15 (H200)."""

    model_name: ClassVar[str]
    options: ClassVar[dict[str, object]] = {}

    @pytest.fixture
    def backend(self, request: pytest.FixtureRequest) -> Iterator[Backend]:
        backend = opened(request.getfixturevalue(self.model_name), **self.options)
        yield backend
        backend.close()

    def test_prefix_is_reused_and_changes_nothing(self, backend: Backend, prompt: list[int]) -> None:
        """But for the last bits: steps and prompts are other kernels, and with packed weights round otherwise, which
        keys remember."""
        cold = take(backend, prompt, 16)
        longer = [*prompt, *cold]
        assert len(prompt) <= prefills(backend, longer)[0].cached < len(longer)
        (warm,) = take(backend, longer, 1)
        for _ in backend.score(prompt[:2]):  # forgets the cache
            pass
        assert take(backend, longer, 1) == [warm]


class TestNativeDemoOnAGpu(ConformanceOnAGpu):
    """Dense weights."""

    model_name = "demo"


class TestNativePackedOnAGpu(ConformanceOnAGpu):
    """MQ4 weights and an int8 KV cache."""

    model_name = "packed"
    options: ClassVar[dict[str, object]] = {"kv_type": "q8_0"}


class TestNativeDeltaOnAGpu(ConformanceOnAGpu):
    """Gated delta nets, whose states after drafts are found again."""

    model_name = "delta"
    rounding = 1.0

    def test_a_chat_goes_on_from_the_state_where_its_last_message_ended(self, backend: Backend) -> None:
        messages = [*PROMPT, *PROMPT[::-1], *PROMPT[:30], min(backend.tokenizer.stop_ids)]
        answered, again = ([*messages, *part] for part in (PROMPT[:20], PROMPT[20:]))
        cold = take(backend, again, 16)
        take(backend, answered, 40)  # more steps than there are slots
        assert prefills(backend, again)[0].cached == len(messages)
        assert take(backend, again, 16) == cold


class TestNativeWideHeadsOnAGpu(ConformanceOnAGpu):
    """Heads by layer, values that are keys, capped logits."""

    model_name = "wide"
    rounding = 1.0


class TestNativeExpertsBesideOnAGpu(ConformanceOnAGpu):
    """Experts beside an MLP."""

    model_name = "beside"
    rounding = 1.0


class TestNativeSharedOnAGpu(ConformanceOnAGpu):
    """Inputs by layer, and layers that see what others keep."""

    model_name = "shared"
    rounding = 1.0


@pytest.fixture(params=["demo", "packed", "delta", "wide", "beside", "shared"])
def model(request: pytest.FixtureRequest) -> ReadyModel:
    found: ReadyModel = request.getfixturevalue(request.param)
    return found


@pytest.mark.parametrize("params", [GREEDY, SamplingParams(seed=3)])
def test_ten_thousand_tokens_are_the_same_with_graphs_and_without(
    model: ReadyModel, params: SamplingParams, monkeypatch: pytest.MonkeyPatch
) -> None:
    n_each, answers = 2000, []
    monkeypatch.setattr(placement, "_FIRST_CAPACITY", kv_cache.BLOCK)  # so that it moves
    for is_enabled in (True, False):
        with monkeypatch.context() as patch:
            if not is_enabled:
                patch.setattr(Graphs, "run", lambda _self, _key, _state, step: step())
                patch.setattr(Graphs, "run_or_note", lambda _self, _key, step, _recorded: step())
            backend = opened(model, ctx_size=2048)
            prompts = [PROMPT[start : start + 20] for start in range(0, 30, 6)]
            answers.append([take(backend, prompt, n_each, params) for prompt in prompts])
            backend.close()
    assert [len(answer) for answer in answers[0]] == 5 * [n_each]
    assert answers[0] == answers[1]


@pytest.mark.parametrize("n_tokens", [17, 40, 129, 200])
def test_a_prompt_that_a_graph_replays_gives_the_bits_that_it_gave_before(model: ReadyModel, n_tokens: int) -> None:
    backend = opened(model, ctx_size=1024)
    execution = backend._execution
    assert isinstance(execution, FusedExecution)
    prompt = (4 * PROMPT)[:n_tokens]

    def logits() -> list[torch.Tensor]:
        execution.cache.truncate(0)
        return [execution.extend(prompt, "last", lambda: None).clone() for _ in range(2)]  # at 0, and after it

    n_before = len(execution._graphs._graphs)
    before = logits()
    execution.after_answer()
    n_graphs = len(execution._graphs._graphs)
    assert n_graphs == n_before + 2
    execution.extend(prompt[::-1], "none", lambda: None)  # other tokens where the graphs read theirs
    assert all(torch.equal(*pair) for pair in zip(logits(), before, strict=True))
    assert len(execution._graphs._graphs) == n_graphs
    backend.close()


def test_first_messages_find_their_graphs_once_the_backend_has_got_ready(model: ReadyModel) -> None:
    def answers(backend: NativeBackend) -> list[list[int]]:
        found = []
        for n_tokens in (14, 20, 40):
            found.append(take(backend, PROMPT[:n_tokens], 12))
            backend.keep(0)
        return found

    backend = opened(model, ctx_size=512)
    expected = answers(backend)
    backend.close()
    backend = opened(model, ctx_size=512)
    execution = backend._execution
    assert isinstance(execution, FusedExecution)
    for _ in backend.get_ready(CancelToken()):
        assert not backend.held
    ready = prompts_recorded(execution)
    assert answers(backend) == expected
    new = prompts_recorded(execution) - ready
    assert new == ({("greedy rows", 14)} if execution.is_exact else set())
    backend.close()


def prompts_recorded(execution: FusedExecution) -> set[object]:
    return {key for key in execution._graphs._graphs if isinstance(key, tuple) and key[0] in ("prompt", "greedy rows")}


def test_a_row_has_the_same_bits_in_every_batch_of_up_to_16(model: ReadyModel) -> None:
    backend = opened(model)
    execution = backend._execution
    assert isinstance(execution, FusedExecution)
    tokens = PROMPT[:48]

    def logits(n_rows: int) -> torch.Tensor:
        execution.cache.truncate(0)
        parts = [tokens[start : start + n_rows] for start in range(0, len(tokens), n_rows)]
        return torch.cat([execution.extend(part, "all", lambda: None) for part in parts])

    alone = logits(1)
    assert alone.isfinite().all()
    assert [n for n in range(2, 17) if not torch.equal(logits(n), alone)] == []
    backend.close()


def test_what_is_held_is_what_the_device_lacks(model: ReadyModel) -> None:
    gc.collect()  # what tests before it left in cycles
    torch.cuda.empty_cache()
    torch.zeros(1, device="cuda")  # the context, and the libraries that the first product loads, are not the model's
    warm = opened(model)
    take(warm, PROMPT, 1, GREEDY)
    warm.close()
    torch.cuda.empty_cache()
    free = torch.cuda.mem_get_info()[0]
    room = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()  # beside what tests before it left
    backend = opened(model, ctx_size=2048)
    take(backend, PROMPT, 100, GREEDY)
    used = backend.memory()
    assert min(used.weights_bytes, used.kv_cache_bytes) > 0
    taken = free - torch.cuda.mem_get_info()[0]
    # The driver gives memory out in pieces of 2 MiB.
    assert abs(used.total_bytes - taken) <= 0.03 * taken + 2**21 + room
    backend.close()
    assert backend.memory().total_bytes == 0


def test_an_allocation_that_fails_is_an_error_and_nothing_is_lost(
    demo: ReadyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DoesNotFit, match="KV cache"):
        opened(demo, ctx_size=2**25)
    monkeypatch.setattr(placement, "_FIRST_CAPACITY", kv_cache.BLOCK)
    backend = opened(demo, ctx_size=2048)
    expected = take(backend, PROMPT, 5)
    cache = backend._execution.cache
    monkeypatch.setattr(cache, "reserve", lambda _: torch.empty(2**50, device="cuda"))
    with pytest.raises(DoesNotFit, match="Out of memory"):  # a first load of its kind rehearses, and leaves more room
        take(backend, PROMPT[::-1] * (1 + cache.capacity // len(PROMPT)), 5)
    monkeypatch.undo()
    assert take(backend, PROMPT, 5) == expected
    backend.close()


def test_it_answers_as_the_cpu_does(demo: ReadyModel) -> None:
    backend = opened(demo)
    text = "<|im_start|>user\nWhat is the capital of Peru?<|im_end|>\n<|im_start|>assistant\n"
    prompt = backend.tokenizer.encode(text)
    cpu = np.stack([entry.values for entry in opened(demo, n_gpu_layers=0).score(prompt)])
    gpu = np.stack([entry.values for entry in backend.score(prompt)])
    assert np.abs(gpu - cpu).max() < 0.05 * np.abs(cpu).max()
    assert b"Lima" in b"".join(map(backend.tokenizer.token_bytes, take(backend, prompt, 10)))
    assert backend.info.n_gpu_layers == backend.info.num_layers
    assert backend.info.device == torch.cuda.get_device_name()
    assert backend.info.note == ""
