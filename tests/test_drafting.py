"""A loaded model's speculation, as the engine makes it: drafters checked against their targets, or why none is."""

from __future__ import annotations

import gc
import json
import random
import string
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from both_ways import eager
from hub_server import Fault, Hub, Repo, serving
from tiny_files import read_tree
from waiting import wait_for

from runner.backends import llamacpp
from runner.backends.native.backend import NativeBackend
from runner.config import LoadOptions, SamplingParams
from runner.draft_choice import DraftChoice, unused
from runner.draft_files import quotable, read_draft_files
from runner.drafting import open_drafting
from runner.engine import Engine
from runner.errors import DoesNotFit, RunnerError, UnsuitedOptions, UsageError
from runner.events import Finished, Loaded, Notice, TextDelta
from runner.hub_cache import snapshots
from runner.paths import user_paths
from runner.preview import preview, remote_draft
from runner.registry import Registry
from runner.remote_headers import GGUF_START_BYTES
from runner.speculative.rounds import decode
from runner.speculative.suffix import MOST_GIVEN
from runner.status_text import speculation_summary
from runner.types import CancelToken, Device, Message
from tests.backends.cache_gguf import write_mamba
from tests.backends.native import tiny_models

GREEDY = SamplingParams(temperature=0, max_tokens=60)
CATS = "Tell me about cats, and again about cats."


def load(engine: Engine, model: str | Path, **options: object) -> tuple[Loaded, list[Notice]]:
    events = list(engine.load(str(model), LoadOptions(**{"n_threads": 1, **options})))  # type: ignore[arg-type]
    assert isinstance(events[-1], Loaded)
    return events[-1], [event for event in events if isinstance(event, Notice)]


def asked(question: str) -> list[Message]:
    return [Message(role="user", content=question)]


def answer(engine: Engine, params: SamplingParams = GREEDY, question: str = CATS) -> tuple[str, Finished]:
    events = list(engine.chat(asked(question), params))
    assert isinstance(events[-1], Finished)
    return "".join(event.text for event in events if isinstance(event, TextDelta)), events[-1]


@pytest.fixture
def engine() -> Engine:
    return Engine(user_paths())


def test_llama_cpp_on_a_gpu_drafts_when_it_is_asked_to(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("runner.backends.llamacpp.backend._n_gpu_layers", lambda *_: 6)
    demo: dict[str, object] = {"backend": "llamacpp", "ctx_size": 512}
    loaded, notices = load(engine, "demo", **demo)
    assert loaded.speculation.startswith("off: llama.cpp on a GPU rounds")
    assert not [notice for notice in notices if notice.level == "warning"]
    assert answer(engine)[1].speculation is None
    (tmp_path / "said").write_text("Cats are animals.")
    for asking in ({"speculation": "suffix"}, {"draft_file": (str(tmp_path / "said"),)}):
        assert load(engine, "demo", **demo, **asking)[0].speculation.startswith("suffix:")
    engine.close()


@pytest.mark.parametrize("temperature", [0, 0.8])
def test_the_text_is_the_same_with_every_drafter(engine: Engine, temperature: float) -> None:
    params = SamplingParams(temperature=temperature, seed=5, max_tokens=40)
    texts = []
    for options in (
        {"speculation": "off"},
        {"speculation": "suffix"},
        {"draft": "demo"},
        {"draft_max": 2, "draft": "demo"},
    ):
        load(engine, "demo", ctx_size=512, **options)
        texts.append(answer(engine, params)[0])
    assert texts[0]
    assert texts == [texts[0]] * 4
    engine.close()


def test_what_drafts_is_told_with_the_memory_it_takes(engine: Engine) -> None:
    llamacpp = {"backend": "llamacpp"}  # what a GPU's allocator keeps depends on what was loaded before
    loaded, _ = load(engine, "demo", speculation="off", **llamacpp)
    assert loaded.speculation == "off: it was turned off"
    assert answer(engine)[1].speculation is None
    plain = loaded.memory
    loaded, _ = load(engine, "demo", **llamacpp)
    assert loaded.speculation == "suffix: it needs no memory"
    assert loaded.memory == plain
    loaded, _ = load(engine, "demo", draft="demo", **llamacpp)
    assert loaded.speculation == "model: demo drafts"
    assert loaded.memory.draft_bytes > plain.weights_bytes
    assert loaded.memory.total_bytes == plain.total_bytes + loaded.memory.draft_bytes
    record = answer(engine)[1].speculation
    assert record is not None
    assert (record.drafter, record.drafter_bytes) == ("model", loaded.memory.draft_bytes)
    engine.close()


def test_each_answer_has_a_record_of_its_own(engine: Engine) -> None:
    load(engine, "demo", backend="llamacpp")  # whose steps take much longer than the first, which begins an answer
    first, second = answer(engine)[1], answer(engine)[1]
    assert first.speculation is not None
    assert second.speculation is not None
    for finished in (first, second):
        assert finished.speculation is not None
        assert finished.timings.n_drafted == finished.speculation.n_drafted
        assert finished.speculation.spent_s == pytest.approx(finished.timings.decode_s, rel=0.5)
    engine.close()


def test_the_ends_of_lines_of_files_are_those_that_models_write(tmp_path: Path) -> None:
    (tmp_path / "dos.py").write_bytes(b"def f():\r\n    return 1\r\n")
    assert read_draft_files([str(tmp_path / "dos.py")], lambda _: None) == ["def f():\n    return 1\n"]


def test_of_megabytes_only_the_end_is_made_into_tokens() -> None:
    encoded: list[str] = []

    class Letters:
        def encode(self, text: str, *, parse_special: bool) -> list[int]:
            assert not parse_special
            encoded.append(text)
            return [ord(letter) for letter in text]

    notices: list[Notice] = []
    kept = quotable(["a" * 2**22, "b" * 100], Letters(), notices.append)  # type: ignore[arg-type]
    assert sum(map(len, encoded)) == 16 * MOST_GIVEN
    assert [len(ids) for ids in kept] == [MOST_GIVEN - 102, 100]
    assert "the last 16382 tokens" in notices[0].text


def test_another_vocabulary_is_refused_with_the_token_that_differs(engine: Engine, shared_data: Path) -> None:
    stories = shared_data / "stories260K" / "gguf" / "stories260K-f32.gguf"
    with pytest.raises(UnsuitedOptions, match=r"vocabularies differ\. Token \d+ is") as caught:
        load(engine, "demo", draft=str(stories))
    assert "--spec suffix" in caught.value.hint
    assert engine.loaded is None


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serving(Hub()) as running:
        monkeypatch.setenv("HF_ENDPOINT", running.url)
        yield running


def with_weights(path: Path) -> bytes:
    """A GGUF with some megabytes behind all that it needs."""
    return path.read_bytes() + bytes(8 * 2**20)


@pytest.mark.usefixtures("no_gpu")
def test_a_draft_model_on_the_hub_is_refused_by_its_headers_before_it_is_fetched(
    server: Hub, engine: Engine, tmp_path: Path, shared_data: Path, demo_directory: Path
) -> None:
    stories = shared_data / "stories260K" / "gguf" / "stories260K-f32.gguf"
    mamba = write_mamba(tmp_path / "mamba.gguf", demo_directory)
    server.repos["who/stories"] = Repo({"stories-f32.gguf": with_weights(stories)})
    server.repos["who/mamba"] = Repo({"mamba-f32.gguf": with_weights(mamba)})
    server.repos["who/new"] = Repo({"new-f32.gguf": with_weights(stories).replace(b"llama", b"llemo")})
    loaded, _ = load(engine, "demo", backend="llamacpp", ctx_size=512)
    for name, words in (
        ("who/stories", r"who/stories cannot draft for demo: their vocabularies differ\. Token \d+ is"),
        ("who/mamba", "who/mamba cannot draft: its recurrent layers"),
        ("who/new", "who/new cannot draft: llamacpp: .* does not know the architecture 'llemo'"),
    ):
        with pytest.raises(UnsuitedOptions, match=words) as caught:
            load(engine, "demo", draft=name)
        assert "--spec suffix" in caught.value.hint
        seen = preview(Registry.load_for().resolve("demo"), LoadOptions(draft=name), offline=False)
        assert seen.drafting.reason == f"{caught.value.message} {caught.value.hint}"
    assert engine.loaded == loaded
    assert max(body.sent_bytes for body in server.bodies) <= GGUF_START_BYTES
    assert not snapshots("who/stories", "main")
    engine.close()


@pytest.mark.usefixtures("no_gpu")
def test_safetensors_on_the_hub_are_refused_by_their_tokenizer(server: Hub, engine: Engine, tmp_path: Path) -> None:
    model = tiny_models.save(tiny_models.make("qwen3"), tmp_path / "model")
    other = read_tree(model)
    other["tokenizer.json"] = other["tokenizer.json"].replace(b'"a":', b'"\xc3\xbf\xc3\xbf":')
    assert other["tokenizer.json"] != (model / "tokenizer.json").read_bytes()
    server.repos["who/same"], server.repos["who/other"] = Repo(read_tree(model)), Repo(other)
    with pytest.raises(UnsuitedOptions, match=r"who/other:safetensors cannot draft for .*vocabularies differ"):
        load(engine, model, n_gpu_layers=0, draft="who/other:safetensors")
    assert not snapshots("who/other", "main")
    loaded, _ = load(engine, model, n_gpu_layers=0, draft="who/same:safetensors")
    assert loaded.speculation == "model: who/same:safetensors drafts"
    engine.close()


@pytest.mark.usefixtures("no_gpu")
def test_a_load_that_is_cancelled_while_a_draft_model_is_looked_at_ends_at_once(
    server: Hub, engine: Engine, tmp_path: Path
) -> None:
    model = tiny_models.save(tiny_models.make("qwen3"), tmp_path / "model")
    files = read_tree(model)
    files["tokenizer.json"] += b" " * 2**20
    server.repos["who/slow"] = Repo(files)
    server.bytes_s = 2**18
    loading = engine.load(str(model), LoadOptions(n_gpu_layers=0, draft="who/slow:safetensors"))

    def cancel() -> None:
        wait_for(lambda: server.sent_bytes("tokenizer.json"))
        engine.cancel()

    canceller = threading.Thread(target=cancel)
    canceller.start()
    with pytest.raises(RunnerError, match="cancelled"):
        list(loading)
    canceller.join()
    assert server.sent_bytes("tokenizer.json") < 2**20 / 2


@pytest.mark.usefixtures("no_gpu")
def test_a_draft_model_on_the_hub_that_does_not_fit_is_not_fetched(
    server: Hub, engine: Engine, demo_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.repos["who/demo"] = Repo({"demo-q8_0.gguf": with_weights(demo_directory / "demo-q8_0.gguf")})
    monkeypatch.setattr("runner.engine.devices", lambda: [small_machine()])
    with pytest.raises(DoesNotFit, match=r"draft 0\.06 GiB"):
        load(engine, "demo", draft="who/demo")
    assert not snapshots("who/demo", "main")
    load(engine, "demo")
    with pytest.raises(DoesNotFit, match=r"draft 0\.06 GiB"):
        load(engine, "demo", draft="who/demo")
    assert snapshots("who/demo", "main"), "what the model before it holds is free once it is let go"
    engine.close()


@pytest.mark.usefixtures("no_gpu")
def test_a_draft_model_that_the_native_backend_may_take_is_not_refused_for_what_llama_cpp_cannot(
    server: Hub, tmp_path: Path, demo_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mamba = write_mamba(tmp_path / "mamba.gguf", demo_directory).read_bytes()
    server.repos["who/alone"] = Repo({"mamba-f32.gguf": mamba})
    server.repos["who/both"] = Repo({"mamba-f32.gguf": mamba, "config.json": b"{}"})
    resolve, gpu = Registry.load_for().resolve, Device(kind="cuda", index=0, name="a", total_bytes=9, free_bytes=9)
    for name, found, is_refused in (("alone", gpu, True), ("both", None, True), ("both", gpu, False)):
        monkeypatch.setattr("runner.preview.gpu_for_kernels", lambda found=found: found)
        with pytest.raises(UnsuitedOptions) if is_refused else nullcontext():
            remote_draft(resolve(f"who/{name}"), resolve("demo"), LoadOptions(), CancelToken())


@pytest.mark.usefixtures("no_gpu")
def test_what_the_hub_does_not_tell_of_a_draft_model_is_left_to_the_load(
    server: Hub, engine: Engine, demo_directory: Path
) -> None:
    server.repos["who/demo"] = Repo({"demo-q8_0.gguf": (demo_directory / "demo-q8_0.gguf").read_bytes()})
    server.faults = [Fault("gzip", name="demo-q8_0.gguf")]
    loaded, _ = load(engine, "demo", ctx_size=512, draft="who/demo")
    assert server.faults[0].times == 0, "its header was asked for"
    assert loaded.speculation == "model: who/demo drafts"
    n_asked = len(server.requests)
    load(engine, "demo", ctx_size=512, draft="who/demo")
    assert len(server.requests) == n_asked, "of a model that is here nobody is asked"
    engine.close()


def test_a_copy_must_be_one(engine: Engine, tmp_path: Path) -> None:
    wide = tiny_models.save(tiny_models.make("qwen3", num_hidden_layers=3), tmp_path / "wide")
    narrow = tiny_models.save(tiny_models.make("qwen3", num_hidden_layers=2), tmp_path / "narrow")
    with pytest.raises(UnsuitedOptions, match="no copy") as caught:
        load(engine, wide, draft=str(narrow), speculation="self", n_gpu_layers=0)
    assert "--spec model" in caught.value.hint
    loaded, _ = load(engine, wide, draft=str(narrow), n_gpu_layers=0)
    assert loaded.speculation == f"model: {narrow} drafts"
    loaded, _ = load(engine, wide, draft=str(wide), speculation="self", n_gpu_layers=0)
    assert loaded.speculation == f"self: its copy {wide} drafts"
    engine.close()


def test_a_padded_vocabulary_drafts_for_one_that_is_not(engine: Engine, tmp_path: Path) -> None:
    size = tiny_models.VOCAB
    plain = tiny_models.save(tiny_models.make("qwen3"), tmp_path / "plain")
    padded = tiny_models.save(tiny_models.make("qwen3", vocab_size=size + 61), tmp_path / "padded")
    for target, draft in ((plain, padded), (padded, plain)):
        loaded, _ = load(engine, target, draft=str(draft), n_gpu_layers=0)
        assert loaded.speculation.startswith("model: ")
    engine.close()


@pytest.mark.usefixtures("no_gpu")
def test_a_model_that_cannot_go_back_is_run_without_and_says_so(
    engine: Engine, tmp_path: Path, demo_directory: Path
) -> None:
    mamba = write_mamba(tmp_path / "mamba.gguf", demo_directory)
    loaded, notices = load(engine, mamba)
    assert loaded.speculation.startswith("off: this model cannot go back")
    assert not notices
    assert answer(engine, SamplingParams(temperature=0, max_tokens=4))[1].speculation is None
    for asked in ("suffix", "mtp", "eagle3", "model", "self"):
        loaded, notices = load(engine, mamba, speculation=asked, draft="nowhere")
        assert loaded.speculation.startswith("off: this model cannot go back"), asked
        # And nothing else is said: of a drafter that would be of no use it does not matter that it is not there.
        assert ["cannot go back" in notice.text for notice in notices] == [True], asked
    engine.close()


@pytest.mark.usefixtures("no_gpu")
def test_a_draft_model_that_cannot_go_back_is_refused_before_anything_is_loaded(
    engine: Engine, tmp_path: Path, demo_directory: Path
) -> None:
    mamba = write_mamba(tmp_path / "mamba.gguf", demo_directory)
    loaded, _ = load(engine, "demo", backend="llamacpp", ctx_size=512)
    for asked in ("auto", "model", "self"):
        with pytest.raises(UnsuitedOptions, match="cannot draft: its recurrent layers") as caught:
            load(engine, "demo", draft=str(mamba), speculation=asked)
        assert "--spec suffix" in caught.value.hint
    assert engine.loaded == loaded, "the model before it was let go"
    with pytest.raises(UnsuitedOptions, match="cannot draft: its recurrent layers"):
        # As of an architecture whose files do not say it.
        open_drafting(
            DraftChoice(drafter="model", reason="", source=str(mamba)),
            engine.backend,
            LoadOptions(),
            lambda: llamacpp.load(tiny_models.ready(tmp_path, mamba), LoadOptions(), lambda _: None, CancelToken()),
        )
    engine.close()


def test_drafts_for_and_by_a_model_with_delta_nets_are_as_long_as_it_can_go_back(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed: list[int] = []
    step_s = NativeBackend.step_s
    monkeypatch.setattr(NativeBackend, "step_s", lambda self, n: timed.append(n) or step_s(self, n))
    model = str(tiny_models.save(tiny_models.make("qwen3-5"), tmp_path / "qwen"))
    for asked in ({}, {"speculation": "model", "draft": model}):
        loaded, _ = load(engine, model, n_gpu_layers=0, **asked)
        assert loaded.speculation.startswith(asked.get("speculation", "suffix")), asked
        speculator = engine.drafting.speculator
        assert speculator is not None
        assert speculator.draft_max == loaded.info.longest_draft == 5
        assert set(timed) <= {1, 2, 4, 6}, "of steps that no draft needs nobody wants to know the time"
        timed.clear()
    other = str(tiny_models.save(tiny_models.make("qwen3"), tmp_path / "other"))
    loaded, _ = load(engine, other, n_gpu_layers=0, speculation="model", draft=model)
    assert engine.drafting.speculator is not None
    assert engine.drafting.speculator.draft_max == 5
    assert loaded.speculation.endswith("drafts have 5 tokens at most, no more can be taken back")
    engine.close()


@pytest.mark.parametrize(("asked", "is_told", "is_noticed"), [(10, True, True), (15, True, False), (5, False, False)])
def test_drafts_that_are_shorter_than_asked_for_are_told(
    engine: Engine, tmp_path: Path, asked: int, is_told: bool, is_noticed: bool
) -> None:
    """By what a chat shows; and at once where somebody chose a length."""
    model = str(tiny_models.save(tiny_models.make("qwen3-5"), tmp_path / "qwen"))
    loaded, notices = load(engine, model, n_gpu_layers=0, draft_max=asked)
    engine.close()
    told = [notice.text for notice in notices if "--draft-max" in notice.text]
    assert loaded.speculation == "suffix: it needs no memory" + (
        "; drafts have 5 tokens at most, no more can be taken back" if is_told else ""
    )
    assert told == (
        ["Drafts have 5 tokens at most, not the 10 of --draft-max: no more can be taken back."] * is_noticed
    )
    seen = preview(Registry.load_for().resolve(model), LoadOptions(n_gpu_layers=0, draft_max=asked), offline=True)
    assert seen.drafting.words == loaded.speculation
    assert [notice.text for notice in seen.notices] == told


@pytest.mark.parametrize("backend", ["llamacpp", "native"])
def test_an_answer_that_quotes_a_file_is_drafted_from_it(engine: Engine, tmp_path: Path, backend: str) -> None:
    params = SamplingParams(temperature=0.8, seed=5, max_tokens=80)
    question = "Write a Python function that sorts a list."
    path, accepted = tmp_path / "answer.txt", []
    load(engine, "demo", ctx_size=512, backend=backend, n_gpu_layers=0, speculation="off")
    text = answer(engine, params, question)[0]
    path.write_text(text)
    for files in ((), (str(path),)):
        load(engine, "demo", ctx_size=512, backend=backend, n_gpu_layers=0, draft_file=files)
        engine._drafting = eager(engine.drafting)
        told, finished = answer(engine, params, question)
        assert told == text
        record = finished.speculation
        assert record is not None
        accepted.append(record.n_accepted)
        assert bool(record.file_tokens) == bool(files)
    assert accepted[0] < 10
    assert accepted[1] > 40
    engine.close()


def test_files_that_cannot_be_quoted_end_the_load_with_the_reason(engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"a\0b")
    (tmp_path / "large").write_bytes(b"a" * (4 * 2**20 + 1))
    for name, words in (
        ("missing", "No such file"),
        ("binary", "is not text"),
        ("large", "larger than 4 MiB"),
        (".", "Is a directory"),
    ):
        with pytest.raises(RunnerError, match=words) as caught:
            load(engine, "demo", draft_file=(str(tmp_path / name),))
        assert "--draft-file takes text files" in caught.value.hint
        assert engine.loaded is None


@pytest.mark.usefixtures("no_gpu")
def test_what_of_files_is_not_quoted_is_told(engine: Engine, tmp_path: Path) -> None:
    one, other = tmp_path / "one.txt", tmp_path / "other.txt"
    one.write_bytes(b"caf\xe9 au lait")
    loaded, notices = load(engine, "demo", backend="llamacpp", draft_file=(str(one),))
    assert loaded.speculation == "suffix: it needs no memory, and may quote a file"
    assert ["is not UTF-8" in notice.text for notice in notices] == [True]
    one.write_text("A b c.")
    for options, reason in (({"speculation": "off"}, "it was turned off"), ({"draft": "demo"}, "demo drafts")):
        loaded, (notice,) = load(engine, "demo", backend="llamacpp", draft_file=(str(one),), **options)
        assert [notice] == unused(LoadOptions(draft_file=(str(one),)), engine.drafting.choice)
        assert reason in notice.text
        assert "file" not in loaded.speculation
    other.write_text("word " * 40_000)
    loaded, (notice,) = load(engine, "demo", backend="llamacpp", draft_file=(str(one), str(other)))
    assert loaded.speculation.endswith("and may quote 2 files")
    assert "the last 16383 tokens" in notice.text
    assert engine.drafting.record is not None
    assert engine.drafting.record.file_tokens == 16383
    _, notices = load(engine, "demo", backend="llamacpp", draft_file=(str(other), str(one)))
    assert [notice.level for notice in notices] == ["warning"]
    engine.close()


@pytest.mark.parametrize("layers_on_gpu", [0, 6])
@pytest.mark.parametrize(
    ("name", "why", "hint"),
    [
        ("eagle3", "llamacpp backend has no eagle3", "--backend native"),
        ("mtp", "demo has no multi-token head", "--spec suffix"),  # nor would the native backend find one in a GGUF
    ],
)
def test_a_head_that_cannot_be_had_is_refused_before_anything_is_loaded(
    engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    name: str,
    why: str,
    hint: str,
    layers_on_gpu: int,
) -> None:
    """layers_on_gpu: of the model that is loaded, whose memory comes free with it: that changes nothing here."""
    monkeypatch.setattr("runner.backends.llamacpp.backend._n_gpu_layers", lambda *_: layers_on_gpu)
    loaded, _ = load(engine, "demo", backend="llamacpp", ctx_size=512)
    assert loaded.info.n_gpu_layers == layers_on_gpu
    for backend in ("llamacpp", "auto"):
        with pytest.raises(UnsuitedOptions, match=why) as caught:
            load(engine, "demo", backend=backend, n_gpu_layers=0, speculation=name, draft=str(tmp_path))
        assert hint in caught.value.hint
        assert engine.loaded is loaded  # nothing was loaded to find out, nor given up


def small_machine() -> Device:
    """One for the demo, which takes 54 MiB, and for no other one to draft, with which it takes 110."""
    return Device(kind="cpu", index=0, name="small", total_bytes=2**30, free_bytes=80 * 2**20)


def test_a_draft_model_that_does_not_fit_is_refused_before_anything_is_loaded(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runner.engine.devices", lambda: [small_machine()])
    load(engine, "demo")
    with pytest.raises(DoesNotFit, match="draft") as caught:
        load(engine, "demo", draft="demo")
    assert "--spec suffix" in caught.value.hint
    assert load(engine, "demo", draft="demo", force=True)[0].speculation == "model: demo drafts"
    engine.close()


def test_a_draft_model_that_is_not_there_is_refused(engine: Engine) -> None:
    with pytest.raises(UsageError, match="no-such-model"):
        load(engine, "demo", draft="no-such-model")


def test_a_load_that_is_cancelled_while_the_draft_model_comes_leaves_nothing(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    import runner.engine as module

    real, n_loads = module.load_backend, 0

    def counted(*arguments: object, **named: object) -> object:
        nonlocal n_loads
        n_loads += 1
        if n_loads == 2:
            engine.cancel()
        return real(*arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "load_backend", counted)
    with pytest.raises(RunnerError, match="cancelled"):
        load(engine, "demo", draft="demo")
    assert n_loads == 2
    assert engine.loaded is None
    with pytest.raises(UsageError, match="No model"):
        _ = engine.backend


# --- what a front end sees, on the scripted backend ------------------------------------------------------------------


@pytest.fixture
def script(tmp_path: Path) -> Callable[..., str]:
    def write(**content: object) -> str:
        path = tmp_path / "a.script.json"
        path.write_text(json.dumps(content))
        return str(path)

    return write


REPEATING = "the quick brown fox jumps over the lazy dog; " * 9


@pytest.fixture
def exact_engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    """One by whose clock a step of a script takes what the script says, and nothing else takes any time."""
    now = 0.0

    def clock() -> float:
        return now

    def sleep(seconds: float, _cancel: CancelToken) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr("runner.backends.fake._sleep", sleep)
    monkeypatch.setattr("runner.backends.fake.time", SimpleNamespace(perf_counter=clock, sleep=time.sleep))
    monkeypatch.setattr("runner.backends.fake.decode", partial(decode, clock=clock))
    return Engine(user_paths(), clock=clock)


def test_a_repeating_script_is_speculated_and_comes_faster(exact_engine: Engine, script: Callable[..., str]) -> None:
    engine = exact_engine
    load(engine, script(replies=[REPEATING], step_s=0.05), speculation="off")
    text, plain = answer(engine, SamplingParams(temperature=0))
    load(engine, script(replies=[REPEATING], step_s=0.05))
    events = list(engine.chat(asked(CATS), SamplingParams(temperature=0)))
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == text == REPEATING
    finished = events[-1]
    assert isinstance(finished, Finished)
    record = finished.speculation
    assert record is not None
    assert record.gain is not None
    assert record.gain > 1.2
    assert record.state == "on"
    assert finished.timings.decode_s < plain.timings.decode_s
    drafted = sum(end - start for event in events if isinstance(event, TextDelta) for start, end in event.drafted)
    assert record.n_accepted == finished.timings.n_accepted > 60
    assert record.n_accepted - 15 <= drafted <= record.n_accepted, "the last draft may go on behind the answer's end"
    engine.close()


def test_a_script_that_says_what_a_file_does_comes_faster(
    exact_engine: Engine, script: Callable[..., str], tmp_path: Path
) -> None:
    engine = exact_engine
    draw = random.Random(1)
    text = "".join(draw.choices(string.ascii_letters, k=300))  # which repeats nothing
    path = tmp_path / "a.txt"
    path.write_text(f"{text} and more")
    records = []
    for files in ((), (str(path),)):
        load(engine, script(replies=[text], step_s=0.05), draft_file=files)
        told, finished = answer(engine, SamplingParams(temperature=0))
        assert told == text
        assert finished.speculation is not None
        records.append(finished.speculation)
    assert records[0].n_accepted == 0
    assert records[1].n_accepted > 200
    assert (records[1].state, records[1].file_tokens) == ("on", 309)
    assert "309 tokens of files to quote" in speculation_summary(records[1])
    engine.close()


def test_a_stop_string_inside_a_draft_ends_the_answer_there(engine: Engine, script: Callable[..., str]) -> None:
    load(engine, script(replies=[REPEATING + "and then nothing"], step_s=0.001))
    expected = REPEATING + "and th"
    events = list(engine.chat(asked(CATS), SamplingParams(temperature=0, stop=("en no",))))
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == expected
    events = list(engine.chat(asked(CATS), SamplingParams(temperature=0, stop=("lazy dog; the quick",))))
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == REPEATING[:35]
    assert isinstance(events[-1], Finished)
    assert events[-1].reason == "stop"
    engine.close()


def test_max_tokens_end_an_answer_in_the_middle_of_a_draft(engine: Engine, script: Callable[..., str]) -> None:
    load(engine, script(replies=[REPEATING], step_s=0.001))
    for n in (300, 301, 307):
        text, finished = answer(engine, SamplingParams(temperature=0, max_tokens=n))
        assert (text, finished.reason, finished.timings.completion_tokens) == (REPEATING[:n], "length", n)
    engine.close()


def test_what_a_failed_load_left_is_given_back_by_the_next(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[weakref.ref[object]] = []

    def fail(backend: NativeBackend, _cancel: CancelToken) -> None:
        left.append(weakref.ref(backend._execution))
        raise RunnerError("It broke.")

    model = tiny_models.save(tiny_models.make("qwen3"), tmp_path / "model")
    monkeypatch.setattr(NativeBackend, "warm_up", fail)
    gc.disable()
    try:
        with pytest.raises(RunnerError, match="It broke"):
            load(engine, model, n_gpu_layers=0)
        load(engine, "demo", backend="llamacpp")
    finally:
        gc.enable()
    assert [one() for one in left] == [None]
    engine.close()
