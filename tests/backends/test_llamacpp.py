from __future__ import annotations

import dataclasses
import json
import logging
import os
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gguf
import llama_cpp
import numpy as np
import pytest
from random_gguf import write_gguf
from shapes import config_of

from runner.backends import base, choose, llamacpp
from runner.backends.base import Backend, Prefill, Step
from runner.backends.llamacpp import backend as backend_module
from runner.backends.llamacpp.backend import LlamaCppBackend
from runner.backends.llamacpp.library import open_model
from runner.backends.llamacpp.tokenizer import LlamaCppTokenizer
from runner.config import LONGEST_DRAFT, LoadOptions, SamplingParams
from runner.errors import (
    BackendUnavailable,
    BadModelFile,
    ContextOverflow,
    DoesNotFit,
    RunnerError,
    UnsuitedOptions,
    UnsupportedModel,
)
from runner.quant.gguf_file import read_header
from runner.speculative.model_drafter import ModelDrafter
from runner.speculative.suffix import SuffixDrafter
from runner.types import CancelToken, Device, ReadyModel
from tests.backends.cache_gguf import WINDOW, write_gemma3, write_mamba
from tests.backends.cancelling import TimedCancel
from tests.backends.conformance import (
    GREEDY,
    GUESSES,
    N_CTX,
    SAMPLED,
    BackendConformance,
    Knowing,
    eager,
    prefills,
    take,
)


def gguf_model(path: Path) -> ReadyModel:
    return ReadyModel(
        name=path.stem, format="gguf", weights=(path,), directory=path.parent, size_bytes=path.stat().st_size
    )


def load(path: Path, **options: object) -> Backend:
    settings = LoadOptions(**{"ctx_size": N_CTX, "n_threads": 1, **options})  # type: ignore[arg-type]
    return llamacpp.load(gguf_model(path), settings, lambda _: None, CancelToken())


@pytest.fixture(scope="module")
def demo(demo_directory: Path) -> Iterator[Backend]:
    backend = load(demo_directory / "demo-q8_0.gguf")
    yield backend
    backend.close()


class TestLlamaCppDemo(BackendConformance):
    @pytest.fixture
    def backend(self, demo_directory: Path) -> Iterator[Backend]:
        backend = load(demo_directory / "demo-q8_0.gguf")
        yield backend
        backend.close()


class TestLlamaCppStories(BackendConformance):
    """A SentencePiece vocabulary and the llama architecture."""

    @pytest.fixture
    def backend(self, shared_data: Path) -> Iterator[Backend]:
        backend = load(shared_data / "stories260K" / "gguf" / "stories260K-f32.gguf", kv_type="f32")
        yield backend
        backend.close()


def test_a_bf16_cache_gives_the_same_bits_alone_and_in_a_batch_with_several_threads(demo_directory: Path) -> None:
    """As docs/SPECULATION.md promises where other caches are split over the threads: from 256 tokens on."""
    backend = load(demo_directory / "demo-q8_0.gguf", kv_type="bf16", n_threads=2, ctx_size=1024)
    assert isinstance(backend, LlamaCppBackend)
    ids = [5 + 37 * i % 8000 for i in range(620)]
    for start in range(0, 600, 200):
        assert backend._decode(ids[start : start + 200], start)
    assert backend._decode(ids[600:616], 600, all_logits=True)
    batch = [backend._logits_at(i).copy() for i in range(16)]
    assert backend.keep(600) == 600
    for i in range(16):
        assert backend._decode([ids[600 + i]], 600 + i)
        assert np.array_equal(backend._logits_at(0), batch[i])
    backend.close()


def test_stories_continue_as_their_golden_ids(shared_data: Path) -> None:
    golden = json.loads((shared_data / "stories260K" / "golden_greedy_200.json").read_text())
    backend = load(shared_data / "stories260K" / "gguf" / "stories260K-f32.gguf", kv_type="f32")
    expected = golden["greedy_ids"][1:]
    assert take(backend, golden["prompt_ids"], len(expected)) == expected


def test_stories_have_their_golden_logits(shared_data: Path) -> None:
    golden = np.load(shared_data / "stories260K" / "golden_logits_64x512_f32.npy")
    ids = json.loads((shared_data / "stories260K" / "golden_greedy_200.json").read_text())["greedy_ids"][:64]
    backend = load(shared_data / "stories260K" / "gguf" / "stories260K-f32.gguf", kv_type="f32")
    logits = np.stack([entry.values for entry in backend.score(ids)])
    assert np.abs(logits - golden).max() < 2e-3 * np.abs(golden).max()


def test_cancel_ends_a_long_prefill_within_200_ms(demo_directory: Path) -> None:
    backend = load(demo_directory / "demo-q8_0.gguf", ctx_size=2048, batch_size=2048)
    prompt = [10 + i % 5000 for i in range(2000)]
    started = time.monotonic()
    for step in backend.generate(prompt, GREEDY, CancelToken()):
        if isinstance(step, Step):
            break
    whole = time.monotonic() - started
    list(backend.score(prompt[:1]))
    cancel = CancelToken()
    timed = TimedCancel(cancel, min(0.05, whole / 4))
    timed.start()
    steps = list(backend.generate(prompt, GREEDY, cancel))
    timed.check()
    assert all(isinstance(step, Prefill) and step.done < len(prompt) for step in steps)
    assert len(take(backend, prompt[:20], 4)) == 4


@pytest.mark.parametrize(("n_tokens", "n_more"), [(39, 0), (812, 0), (935, 1), (1015, 2)])
def test_a_slow_machine_reads_a_prompt_in_more_parts_and_to_the_same_bits(
    demo_directory: Path, monkeypatch: pytest.MonkeyPatch, n_tokens: int, n_more: int
) -> None:
    backend = load(demo_directory / "demo-q8_0.gguf", ctx_size=1024)
    assert isinstance(backend, LlamaCppBackend)
    prompt = [5 + 37 * i % 8000 for i in range(n_tokens)]

    def read(goal_s: float) -> tuple[int, bytes]:
        monkeypatch.setattr("runner.backends.llamacpp.backend._CHUNK_GOAL_S", goal_s)
        backend.keep(0)
        n_parts = len(list(backend._prefill(prompt, CancelToken()))) - 1
        return n_parts, backend._logits_at(-1).tobytes()

    n_parts, logits = read(1e9)
    n_slow, logits_of_slow = read(-1.0)
    assert (n_slow - n_parts, logits_of_slow == logits) == (n_more, True)
    backend.close()


@pytest.mark.parametrize("batch_size", [3, 20])
def test_parts_are_never_longer_than_was_asked_for(
    demo_directory: Path, monkeypatch: pytest.MonkeyPatch, batch_size: int
) -> None:
    monkeypatch.setattr("runner.backends.llamacpp.backend._CHUNK_GOAL_S", -1.0)
    backend = load(demo_directory / "demo-q8_0.gguf", batch_size=batch_size)
    steps = backend.generate([10 + i for i in range(70)], GREEDY, CancelToken())
    done = [step.done for step in steps if isinstance(step, Prefill)]
    assert done == [*range(0, 70, batch_size), 70]
    backend.close()


def test_a_cancel_says_nothing_on_the_terminal_of_a_program_without_logging(
    demo: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    cancel = CancelToken()
    cancel.cancel()
    with caplog.at_level(logging.DEBUG, "runner"), demo._stopped_by(cancel):  # type: ignore[attr-defined]
        assert not demo._decode([1, 2, 3], 0)  # type: ignore[attr-defined]
    said = [record for record in caplog.records if "decode" in record.message]
    assert said
    assert all(record.levelno < logging.WARNING for record in said)


def test_memory_agrees_with_the_shape_of_the_cache(demo: Backend) -> None:
    memory = demo.memory()
    assert memory.kv_cache_bytes == pytest.approx(2 * 6 * 4 * 64 * N_CTX * 2, rel=0.01)
    assert 19.5e6 <= memory.weights_bytes < 25e6  # a GPU keeps tied embeddings twice


@pytest.mark.parametrize("kv_type", ["f16", "f32", "q8_0"])
def test_every_kv_type_answers(demo_directory: Path, kv_type: str) -> None:
    backend = load(demo_directory / "demo-q8_0.gguf", kv_type=kv_type)
    assert len(take(backend, [10, 11, 12], 4)) == 4
    backend.close()


def test_stop_ids_of_the_generation_config_count_too(demo: Backend, demo_directory: Path) -> None:
    assert demo.tokenizer.stop_ids == {0, 2}
    model = dataclasses.replace(gguf_model(demo_directory / "demo-q8_0.gguf"), stop_ids=(2, 77, 10**6))
    backend = llamacpp.load(model, LoadOptions(ctx_size=N_CTX, n_threads=1), lambda _: None, CancelToken())
    assert backend.tokenizer.stop_ids == {0, 2, 77}
    backend.close()


def test_a_file_that_names_no_bos_has_none(demo: Backend) -> None:
    assert demo.tokenizer.bos_id is None
    assert not demo.tokenizer.add_bos
    assert demo.info.bos_token == ""
    assert demo.info.eos_token == "<|im_end|>"


def test_a_file_that_names_an_eos_beyond_its_tokens_has_none(tmp_path: Path, demo_directory: Path) -> None:
    """llama.cpp warns of it, and takes another."""
    data = (demo_directory / "demo-q8_0.gguf").read_bytes()
    at = data.index(key := b"tokenizer.ggml.eos_token_id") + len(key) + 4
    path = tmp_path / "demo.gguf"
    path.write_bytes(data[:at] + b"\xff" * 4 + data[at + 4 :])
    backend = load(path)
    assert backend.info.eos_token == ""
    backend.close()


def test_a_damaged_file_is_refused_with_its_name(tmp_path: Path, demo_directory: Path) -> None:
    data = (demo_directory / "demo-q8_0.gguf").read_bytes()
    for name, damaged in {"empty": b"", "cut": data[: len(data) // 2], "other": b"PK\x03\x04" + data[4:]}.items():
        path = tmp_path / f"{name}.gguf"
        path.write_bytes(damaged)
        with pytest.raises(BadModelFile, match=name):
            load(path)


@pytest.mark.parametrize(("architecture", "is_known"), [("qwen3", True), ("mamba", True), ("brand-new", False)])
def test_an_architecture_that_llama_cpp_does_not_know_is_refused_before_a_load(
    architecture: str, is_known: bool, demo_directory: Path
) -> None:
    model = dataclasses.replace(gguf_model(demo_directory / "demo-q8_0.gguf"), architecture=architecture)
    refused = llamacpp.refusal(model, LoadOptions())
    assert refused is None if is_known else f"does not know the architecture '{architecture}'" in (refused or "")


def test_what_is_no_gguf_is_refused_with_what_makes_one(demo_directory: Path) -> None:
    model = dataclasses.replace(gguf_model(demo_directory / "demo-q8_0.gguf"), directory=Path("/my models/a"))
    refused = llamacpp.refusal(dataclasses.replace(model, format="safetensors"), LoadOptions())
    assert (refused or "").endswith("`runner quantize '/my models/a' --format q8_0` makes one of it.")
    refused = llamacpp.refusal(dataclasses.replace(model, format="packed"), LoadOptions())
    assert "a GGUF of the model that it was made from" in (refused or "")  # quantize takes no packed model


def test_an_architecture_with_an_endless_name_is_refused_at_once(demo_directory: Path) -> None:
    """llama.cpp logs the name, and what it logs is searched for the sizes of buffers."""
    model = dataclasses.replace(gguf_model(demo_directory / "demo-q8_0.gguf"), architecture="x" * 2**15)
    started = time.monotonic()
    assert "does not know the architecture" in (llamacpp.refusal(model, LoadOptions()) or "")
    assert time.monotonic() - started < 5


def test_what_other_threads_ask_of_llama_cpp_makes_no_architecture_unknown() -> None:
    from runner.backends.llamacpp.library import knows

    def ask(name: str) -> bool:
        return knows.__wrapped__(name)

    names = ["qwen3", "brand-newest"] * 100
    with ThreadPoolExecutor(6) as threads:
        answers = dict.fromkeys(zip(names, threads.map(ask, names), strict=True))
    assert ("qwen3", False) not in answers


def test_where_llama_cpp_cannot_be_asked_an_architecture_is_left_to_the_load(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, demo_directory: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    model = dataclasses.replace(gguf_model(demo_directory / "demo-q8_0.gguf"), architecture="brand-newer")
    assert llamacpp.refusal(model, LoadOptions()) is None


def test_a_file_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bare.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_block_count(1)
    writer.add_feed_forward_length(32)
    writer.add_head_count(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(16)
    writer.add_tokenizer_model("none")
    matrices = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    for name in (*matrices, "attn_norm", "ffn_norm"):
        shape = (32, 32) if name in matrices else (32,)
        writer.add_tensor(f"blk.0.{name}.weight", np.zeros(shape, np.float32))
    writer.add_tensor("token_embd.weight", np.zeros((16, 32), np.float32))
    writer.add_tensor("output_norm.weight", np.zeros(32, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UnsupportedModel, match="no tokenizer"):
        load(path)


def test_a_cancelled_load_stops(demo_directory: Path) -> None:
    cancel = CancelToken()
    cancel.cancel()
    with pytest.raises(RunnerError, match="cancelled"):
        llamacpp.load(
            gguf_model(demo_directory / "demo-q8_0.gguf"), LoadOptions(n_gpu_layers=0), lambda _: None, cancel
        )


def test_a_load_that_is_cancelled_while_its_weights_are_read_stops(
    demo_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancel, decode, is_whole = CancelToken(), LlamaCppBackend._decode, []

    def cancelled(*step: Any) -> bool:
        cancel.cancel()
        is_whole.append(decode(*step))
        return is_whole[-1]

    monkeypatch.setattr(LlamaCppBackend, "_decode", cancelled)
    with pytest.raises(RunnerError, match="cancelled"):
        llamacpp.load(
            gguf_model(demo_directory / "demo-q8_0.gguf"), LoadOptions(n_gpu_layers=0), lambda _: None, cancel
        )
    assert is_whole == [False]


@pytest.mark.parametrize("has_amx", [False, True])
def test_nothing_is_repacked_for_amx_whose_products_end_the_process(
    demo_directory: Path, monkeypatch: pytest.MonkeyPatch, has_amx: bool
) -> None:
    features = b"CPU : AVX2 = 1 | AMX_INT8 = 1 | REPACK = 1" if has_amx else b"CPU : AVX2 = 1 | REPACK = 1"
    monkeypatch.setattr(llama_cpp, "llama_print_system_info", lambda: features)
    opened = []
    monkeypatch.setattr(
        llama_cpp, "llama_model_load_from_file", lambda _, params: opened.append(params.use_extra_bufts)
    )
    with pytest.raises(BadModelFile):  # nothing was loaded
        load(demo_directory / "demo-q8_0.gguf")
    assert opened == [not has_amx]


def test_a_context_that_cannot_be_had_is_reported(demo_directory: Path) -> None:
    with pytest.raises(DoesNotFit):
        load(demo_directory / "demo-q8_0.gguf", ctx_size=2**25, kv_type="f32")


def test_gpu_layers_without_gpu_support_name_the_remedy(demo_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cpu_only = llamacpp.Probe(version="0.0.0", gpu_offload=False, error=None)
    monkeypatch.setattr(llamacpp, "probe", lambda: cpu_only)
    model = gguf_model(demo_directory / "demo-q8_0.gguf")
    with pytest.raises(UnsuitedOptions, match="GGML_CUDA=on"):
        choose(model, LoadOptions(backend="llamacpp", n_gpu_layers="all"))
    assert choose(model, LoadOptions()).name == "llamacpp"


def test_auto_says_why_and_falls_back_with_the_reason(demo_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = gguf_model(demo_directory / "demo-q8_0.gguf")
    assert "GGUF" in choose(model, LoadOptions()).reason
    broken = llamacpp.Probe(version="", gpu_offload=False, error="llama-cpp-python cannot be imported: gone")
    monkeypatch.setattr(llamacpp, "probe", lambda: broken)
    choice = choose(model, LoadOptions())
    assert (choice.name, choice.is_fallback) == ("native", True)
    assert "gone" in choice.reason
    with pytest.raises(BackendUnavailable, match="gone"):
        choose(model, LoadOptions(backend="llamacpp"))


def test_the_context_is_what_was_asked_for_though_llama_cpp_rounds_it_up(demo_directory: Path) -> None:
    backend = load(demo_directory / "demo-q8_0.gguf", ctx_size=100)
    assert backend.info.n_ctx == 100
    assert len(take(backend, list(range(10, 100)), 50)) == 10
    with pytest.raises(ContextOverflow):
        take(backend, [10] * 100, 1)


def test_the_name_of_the_unknown_token_is_a_control_token(shared_data: Path) -> None:
    tokenizer = load(shared_data / "stories260K" / "gguf" / "stories260K-f32.gguf").tokenizer
    assert "<unk>" in tokenizer.control_tokens  # with parse_special llama.cpp finds it in a text as it does <s>
    assert tokenizer.encode("<unk>", parse_special=True) == [0]


def test_control_tokens_that_llama_cpp_takes_for_text_are_control_tokens(tmp_path: Path) -> None:
    """It finds those of gpt-oss's messages in every text, and shows them."""
    names = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>")
    octets = sorted(set("abcdefghijklmnopqrstuvwxyz<|>"))
    path = tmp_path / "harmony.gguf"
    writer = gguf.GGUFWriter(path, "gpt-oss")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([*octets, *names])
    writer.add_token_types([gguf.TokenType.NORMAL] * len(octets) + [gguf.TokenType.CONTROL] * len(names))
    writer.add_token_merges(["a b"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    model = open_model(path, LoadOptions(n_gpu_layers=0), lambda _: None, CancelToken(), vocab_only=True)
    tokenizer = LlamaCppTokenizer(llama_cpp.llama_model_get_vocab(model), read_header(path).metadata)
    assert tokenizer.control_tokens == set(names)
    text = "a<|end|><|start|>assistant<|channel|>final<|message|>"
    kept_plain = tokenizer.encode(text, parse_special=False)
    assert b"".join(map(tokenizer.token_bytes, kept_plain)) == text.encode()
    assert b"".join(map(tokenizer.token_bytes, tokenizer.encode(text))) == b"aassistantfinal"
    assert [tokenizer.token_bytes(len(octets) + i, special=True).decode() for i in range(6)] == [*names]
    llama_cpp.llama_model_free(model)


@pytest.mark.parametrize("marks", [("<|im_start|>", "<|im_end|>"), ("<s>", "</s>")])
def test_a_long_text_is_tokenized_in_parts_to_the_same_ids(
    demo: Backend, shared_data: Path, monkeypatch: pytest.MonkeyPatch, marks: tuple[str, str]
) -> None:
    stories = shared_data / "stories260K" / "gguf" / "stories260K-f32.gguf"
    backend = demo if marks[0] in demo.tokenizer.control_tokens else load(stories)
    begin, end = marks
    odd = f"{begin}{begin}user\nHi {end} \n {begin} a{end[:-1]}{end}<{begin[:4]}{begin}<unk>🐈\n\n{end}\n"
    text = "".join(f"{begin}user\nturn {i} {end * (i % 3)}{odd}" for i in range(30))
    whole = backend.tokenizer.encode(text)
    for size in (1, 7, 100):
        monkeypatch.setattr("runner.backends.llamacpp.tokenizer._PART", size)
        assert backend.tokenizer.encode(text) == whole
    assert len(list(backend.tokenizer._parts(text))) > 10  # type: ignore[attr-defined]


def test_a_text_of_many_messages_is_tokenized_in_time(demo: Backend) -> None:
    message = "<|im_start|>user\nHello there<|im_end|>\n"
    began = time.process_time()
    assert demo.tokenizer.encode(message * 5000) == demo.tokenizer.encode(message) * 5000
    assert time.process_time() - began < 0.7  # in one part it takes more than a second


def test_a_file_name_that_is_not_utf_8_is_loaded(demo_directory: Path, tmp_path: Path) -> None:
    named = tmp_path / os.fsdecode(b"caf\xe9.gguf")
    named.symlink_to(demo_directory / "demo-q8_0.gguf")
    backend = load(named, warmup=False)
    assert backend.info.num_layers > 0
    backend.close()


# --- speculation -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_a_second_copy_in_this_process_drafts_every_token(demo_directory: Path, params: SamplingParams) -> None:
    target = load(demo_directory / "demo-q8_0.gguf", ctx_size=512)
    prompt = target.tokenizer.encode("Once upon a time there was a small boat.")
    text = take(target, prompt, 40, params)
    before = target.memory()
    draft = load(demo_directory / "demo-q8_0.gguf", ctx_size=256)
    assert target.memory() == before, "llama.cpp has one log for both"
    assert draft.memory().kv_cache_bytes == before.kv_cache_bytes // 2
    speculator = eager(target, ModelDrafter(draft))
    speculator.begin(prompt)
    assert take(target, prompt, 40, params, speculator) == text
    assert speculator.record.acceptance_rate == 1
    speculator.close()
    assert take(target, prompt, 8, params) == text[:8]


def test_a_draft_is_longer_than_the_chunks_of_a_prompt(demo_directory: Path) -> None:
    backend = load(demo_directory / "demo-q8_0.gguf", batch_size=3)
    prompt = backend.tokenizer.encode("Once upon a time there was a small boat.")
    text = take(backend, prompt, 40)
    speculator = eager(backend, Knowing(text, len(prompt), lambda coming, _at: coming[:15]))
    assert take(backend, prompt, 33, speculator=speculator) == text[:33]
    assert speculator.record.acceptance_length == 16


def test_recurrent_layers_cannot_go_back(tmp_path: Path, demo_directory: Path) -> None:
    backend = load(write_mamba(tmp_path / "mamba.gguf", demo_directory))
    assert not backend.info.longest_draft
    text = take(backend, [10, 11, 12], 8)
    assert backend.keep(5) == 0
    assert take(backend, [10, 11, 12], 8) == text


@pytest.fixture(params=["mamba", "hybrid"])
def recurrent(request: pytest.FixtureRequest, tmp_path: Path, demo_directory: Path) -> Path:
    """A random model all of whose layers keep a state, or all but one."""
    path = tmp_path / "recurrent.gguf"
    if request.param == "mamba":
        return write_mamba(path, demo_directory)
    small = {"hidden_size": 256, "intermediate_size": 256, "vocab_size": 8192, "num_attention_heads": 2}
    write_gguf(path, config_of("qwen3.5-0.8b", 2) | small | {"full_attention_interval": 2}, "q4_0")
    return path


def test_recurrent_layers_go_on_after_a_pass_that_was_cut_off(recurrent: Path) -> None:
    backend, ids = load(recurrent), [10 + 7 * i for i in range(100)]
    take(backend, ids[:40], 4)
    longer = [*backend.held, *ids[90:95]]
    cancel = CancelToken()
    cancel.cancel()
    with backend._stopped_by(cancel):
        assert not backend._decode(ids[50:90], len(backend.held))  # the state may be one of some of these now
    assert take(backend, longer, 8) == take(load(recurrent), longer, 8)


def test_recurrent_layers_go_back_to_where_the_last_messages_end(
    recurrent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next prompt of a template that leaves out what an answer thought; and another answer to the same prompt."""
    monkeypatch.setattr(base, "FEW_READ_ANEW", 8)
    backend = load(recurrent)
    told = backend.memory().kv_cache_bytes - backend._buffers.get("KV", 0)
    with monkeypatch.context() as on_gpu:
        on_gpu.setattr(backend, "info", dataclasses.replace(backend.info, n_gpu_layers=1))
        for in_ram, n_states in ((False, 1), (True, 3)):
            gpu = Device(kind="metal", index=0, name="GPU", total_bytes=1, free_bytes=1, is_in_main_memory=in_ram)
            on_gpu.setattr(backend_module, "devices", lambda gpu=gpu: (gpu,))
            assert backend.memory().kv_cache_bytes - backend._buffers.get("KV", 0) == told * n_states // 3
    stop = min(backend.tokenizer.stop_ids)
    ids = [10 + 7 * i for i in range(100)]
    first = [*ids[:20], stop, *ids[20:24]]
    answer = take(backend, first, 16)
    assert [prefill.done for prefill in prefills(backend, first)] == [21, 25]
    assert take(backend, first, 16) == answer
    second = [*first[:23], *answer[4:7], stop, *ids[30:40], stop, *ids[20:24]]
    assert [prefill.done for prefill in prefills(backend, second)] == [21, len(second) - 4, len(second)]
    assert take(backend, second, 16) == take(load(recurrent), second, 16)
    third = [*second[:-10], *ids[41:50]]
    assert backend._saved.nbytes == pytest.approx(told * 2 / 3, rel=0.01, abs=0.02 * 2**20)  # the log has two decimals
    assert prefills(backend, third)[0].cached == 21  # what was edited is before the end of the second
    assert backend.keep(20) == 0
    take(backend, first, 1)
    assert backend._saved.nbytes
    backend.close()
    assert not backend._saved.nbytes


def test_a_window_is_kept_whole_so_that_drafts_can_be_taken_back(tmp_path: Path, demo_directory: Path) -> None:
    backend = load(write_gemma3(tmp_path / "gemma.gguf", demo_directory))
    assert backend.info.longest_draft == LONGEST_DRAFT
    prompt = [10 + 7 * i for i in range(3 * WINDOW)]
    text = take(backend, prompt, 3 * WINDOW, SAMPLED)
    assert len(set(text)) > WINDOW
    for name, guess in GUESSES.items():
        speculator = eager(backend, Knowing(text, len(prompt), guess))
        assert take(backend, prompt, 2 * WINDOW, SAMPLED, speculator) == text[: 2 * WINDOW], name


def test_cancel_ends_drafting_within_200_ms(demo_directory: Path) -> None:
    target = load(demo_directory / "demo-q8_0.gguf", ctx_size=2048)
    drafter = ModelDrafter(load(demo_directory / "demo-q8_0.gguf", ctx_size=2048, batch_size=2048))
    prompt = [10 + i % 5000 for i in range(1900)]
    cancel = CancelToken()
    drafter.attend(cancel)
    timed = TimedCancel(cancel, 0.05)
    timed.start()
    speculator = eager(target, drafter)
    speculator.begin(prompt)  # the draft model reads the prompt, which takes longer than that
    assert len(drafter._model.held) < len(prompt)
    assert not [step for step in target.generate(prompt, GREEDY, cancel, speculator) if isinstance(step, Step)]
    timed.check()
    speculator.close()


def test_a_suffix_found_in_the_prompt_saves_steps(demo: Backend) -> None:
    prompt = demo.tokenizer.encode("the cat sat on the mat and the dog sat on the rug. " * 4)
    text = take(demo, prompt, 40)
    speculator = eager(demo, SuffixDrafter())
    assert take(demo, prompt, 40, speculator=speculator) == text
    assert speculator.record.n_accepted > 0
