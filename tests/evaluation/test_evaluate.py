"""Models measured alone and against each other, with real backends."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from runner.backends.base import Backend
from runner.config import LoadOptions
from runner.errors import DoesNotFit, RunnerError, UnknownModel, UsageError
from runner.evaluation import evaluate as evaluate_module
from runner.evaluation.evaluate import evaluate
from runner.evaluation.report import AgainstReference, Measuring, Report, Request, Text
from runner.evaluation.windows import Windowing
from runner.events import Notice
from runner.paths import user_paths
from runner.quant.formats import format_of
from runner.quant.quantize import quantize_model
from runner.types import Device, ReadyModel
from tests.backends.native import tiny_models

TEXT = Text(
    name="story", content="The old house by the river had been empty for years. One night a light was seen. " * 40
)
OPTIONS = LoadOptions(n_threads=1, n_gpu_layers=0, kv_type="f32")
SMALL = Windowing(size=64, limit=6)


def request(model: Path | str, reference: Path | str | None = None, **changes: Any) -> Request:
    plain = Request(
        model=str(model),
        reference=None if reference is None else str(reference),
        texts=(TEXT,),
        windowing=SMALL,
        options=OPTIONS,
        reference_options=OPTIONS,
        offline=True,
    )
    return replace(plain, **changes)


def run(asked: Request) -> Report:
    return evaluate(asked, user_paths(), lambda _: None)


def against(report: Report, text: int = 0) -> AgainstReference:
    found = report.results[text].against
    assert found is not None
    return found


@pytest.fixture(scope="module")
def demo(demo_directory: Path) -> Path:
    return demo_directory / "demo-q8_0.gguf"


@pytest.fixture(scope="module")
def demo_q4_0(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("formats") / "demo-q4_0"
    return quantize_model(demo, format_of("q4_0"), output, force=False, on_stage=lambda *_: None).path


@pytest.mark.parametrize("files", ["gguf/stories260K-f32.gguf", "hf"])
@pytest.mark.parametrize("name", ["valid_wikipedia"])
def test_perplexity_is_the_golden_one(shared_data: Path, files: str, name: str) -> None:
    golden = json.loads((shared_data / "stories260K" / "golden_perplexity.json").read_text())[name]
    text = (shared_data / "text" / f"{name}.txt").read_text(encoding="utf-8")[: golden["first_chars"]]
    report = run(
        request(
            shared_data / "stories260K" / files,
            texts=(Text(name=name, content=text),),
            windowing=Windowing(size=256, stride=255, context=1, limit=64),
        )
    )
    result = report.results[0]
    assert (result.n_windows, result.n_scored) == (64, golden["tokens"])
    assert math.log(result.perplexity.value) == pytest.approx(golden["mean_nll_nats"], abs=1e-4)
    assert result.perplexity.low is not None
    assert result.perplexity.high is not None
    assert result.perplexity.low < golden["ppl"] < result.perplexity.high


def test_figures_equal_those_of_transformers(tmp_path: Path) -> None:
    reference, model = tiny_models.make("qwen3"), tiny_models.make("qwen3")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.01)
    tiny_models.save(reference, tmp_path / "reference")
    tiny_models.save(model, tmp_path / "model")
    report = run(request(tmp_path / "model", tmp_path / "reference", windowing=Windowing(size=32, limit=3)))
    ids = torch.tensor(tiny_models.byte_tokenizer().encode(TEXT.content).ids[:96]).view(3, 32)
    with torch.no_grad():
        log_p, log_q = (m(ids).logits[:, 16:-1].double().log_softmax(-1) for m in (reference, model))
    chosen = ids[:, 17:, None]
    kld = (log_p.exp() * (log_p - log_q)).sum(-1)
    delta = (log_q.gather(2, chosen).exp() - log_p.gather(2, chosen).exp()).square().mean().sqrt()
    found = against(report)
    assert report.results[0].n_scored == 3 * 15
    assert report.results[0].perplexity.value == pytest.approx(float((-log_q.gather(2, chosen)).mean().exp()), rel=1e-4)
    assert found.reference_perplexity.value == pytest.approx(float((-log_p.gather(2, chosen)).mean().exp()), rel=1e-4)
    assert found.mean_kld.value == pytest.approx(float(kld.mean()), rel=1e-3)
    assert found.kld_99.value == pytest.approx(float(np.quantile(kld.numpy(), 0.99)), rel=1e-3)
    assert found.max_kld == pytest.approx(float(kld.max()), rel=1e-3)
    assert found.same_top.value == pytest.approx(float((log_p.argmax(-1) == log_q.argmax(-1)).double().mean()))
    assert found.rms_delta_p.value == pytest.approx(float(delta), rel=1e-3)
    assert found.perplexity_ratio.value == pytest.approx(
        report.results[0].perplexity.value / found.reference_perplexity.value
    )


def test_a_model_does_not_diverge_from_itself(demo: Path) -> None:
    found = against(run(request(demo, demo)))
    assert found.mean_kld.value == found.max_kld == found.kld_99.value == found.rms_delta_p.value == 0
    assert found.same_top.value == found.perplexity_ratio.value == 1


def test_two_backends_agree_about_the_same_file(demo: Path) -> None:
    native = replace(OPTIONS, backend="native")
    report = run(request(demo, demo, reference_options=native))
    assert report.reference is not None
    assert (report.model.backend, report.reference.backend) == ("llamacpp", "native")
    # llama.cpp rounds activations to 8 bits, so the two are near and not the same
    assert 0 < against(report).mean_kld.value < 0.01


def test_four_bits_cost_what_four_bits_cost(demo: Path, demo_q4_0: Path) -> None:
    report = run(request(demo_q4_0, demo, windowing=Windowing(size=256, limit=3)))
    found = against(report)
    assert report.model.bits is not None
    assert 4.5 < report.model.bits.body < 4.6 < report.model.bits.total < 6
    assert 0.02 < found.mean_kld.value < 0.3
    assert found.mean_kld.value < found.kld_99.value <= found.max_kld
    assert 0.7 < found.same_top.value < 0.99
    assert found.perplexity_ratio.value != 1


def test_one_pass_two_passes_and_kept_logits_give_the_same_figures(demo: Path, demo_q4_0: Path, tmp_path: Path) -> None:
    kept = tmp_path / "demo.logits"
    asked = request(demo_q4_0, demo)
    reports = [
        run(each)
        for each in (
            asked,
            replace(asked, two_pass=True),
            replace(asked, kept_logits=kept),
            replace(asked, kept_logits=kept),
        )
    ]
    assert [report.passes for report in reports] == ["one", "two", "two", "kept"]
    assert all(report.results == reports[0].results for report in reports)
    assert all(report.reference == reports[0].reference for report in reports)
    assert not list(user_paths().cache.iterdir())
    assert list(tmp_path.glob("demo.logits*")) == [kept]


def test_the_size_of_blocks_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_models.make("qwen3")
    reference = tiny_models.save(model, tmp_path / "reference")
    with torch.no_grad():
        model.model.norm.weight.mul_(2)
    against = request(tiny_models.save(model, tmp_path / "model"), reference, windowing=Windowing(size=32, limit=2))
    alone = replace(against, reference=None)
    whole = [run(asked).results for asked in (against, alone)]
    monkeypatch.setattr(evaluate_module, "_n_rows", lambda _: 4)
    assert [run(asked).results for asked in (against, alone)] == whole
    assert run(replace(against, two_pass=True)).results == whole[0]


def test_a_window_longer_than_the_model_was_trained_on_is_said(tmp_path: Path) -> None:
    directory = tiny_models.save(tiny_models.make("qwen3", max_position_embeddings=32), tmp_path / "short")
    for size, n_said in ((32, 0), (33, 1)):
        seen: list[object] = []
        evaluate(request(directory, windowing=Windowing(size=size, limit=1)), user_paths(), seen.append)
        said = [event.text for event in seen if isinstance(event, Notice) and "was trained on" in event.text]
        assert len(said) == n_said


def test_models_that_do_not_fit_at_once_are_measured_one_after_the_other(
    demo: Path, demo_q4_0: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = request(demo_q4_0, demo)
    together = run(asked)
    opened: list[str] = []
    real = evaluate_module.load_backend

    def one_at_a_time(files: ReadyModel, *rest: Any) -> tuple[Backend, str]:
        opened.append(files.name)
        if len(opened) == 2:
            raise DoesNotFit("both are too much")
        return real(files, *rest)

    monkeypatch.setattr(evaluate_module, "load_backend", one_at_a_time)
    events: list[object] = []
    apart = evaluate(asked, user_paths(), events.append)
    assert opened == [demo.name, demo_q4_0.name, demo_q4_0.name]
    assert any(isinstance(event, Notice) and "do not fit at once" in event.text for event in events)
    assert (together.passes, apart.passes) == ("one", "two")
    assert apart.results == together.results


def test_main_memory_is_not_lent_twice(demo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    little = Device(kind="cpu", index=0, name="CPU", total_bytes=2**33, free_bytes=30 * 10**6)
    monkeypatch.setattr(evaluate_module, "devices", lambda: [little])
    assert run(request(demo, demo)).passes == "two"


def test_kept_logits_of_something_else_are_refused_and_left_alone(demo: Path, tmp_path: Path) -> None:
    kept = tmp_path / "demo.logits"
    asked = request(demo, demo, kept_logits=kept, windowing=Windowing(size=32, limit=1))
    run(asked)
    before = kept.read_bytes()
    other = Text(name="other", content=TEXT.content[5:])
    for changed in (
        replace(asked, texts=(other,)),
        replace(asked, windowing=Windowing(size=32, limit=2)),
        replace(asked, reference_options=replace(OPTIONS, kv_type="f16")),
        replace(asked, parse_special=True),
    ):
        with pytest.raises(UsageError, match=r"demo\.logits holds the logits of demo-q8_0.gguf on story"):
            run(changed)
    assert kept.read_bytes() == before
    assert run(replace(asked, options=replace(OPTIONS, n_threads=2))).passes == "kept"


def test_texts_are_measured_apart(demo: Path) -> None:
    other = Text(name="numbers", content=" ".join(map(str, range(2000))))
    both = run(request(demo, texts=(TEXT, other)))
    alone = run(request(demo, texts=(other,)))
    assert [result.text for result in both.results] == ["story", "numbers"]
    assert both.results[1] == alone.results[0]


def test_progress_counts_every_token_of_both_models(demo: Path) -> None:
    for changes in ({}, {"two_pass": True}):
        seen: list[Measuring] = []
        evaluate(
            request(demo, demo, **changes),
            user_paths(),
            lambda event: seen.append(event) if isinstance(event, Measuring) else None,  # noqa: B023
        )
        total = 2 * 6 * 63
        assert {event.total for event in seen} == {total}
        assert [event.done for event in seen] == sorted(event.done for event in seen)
        assert seen[-1].done == total


def test_control_tokens_are_read_as_such_when_asked(demo: Path) -> None:
    chat = Text(name="chat", content="<|im_start|>user\nHello there!<|im_end|>\n" * 60)
    plain, special = (run(request(demo, texts=(chat,), parse_special=flag)) for flag in (False, True))
    assert special.results[0].n_tokens < plain.results[0].n_tokens


def test_control_tokens_that_are_read_as_text_are_said(demo: Path) -> None:
    chat = Text(name="chat", content="Hello there!<|im_end|>\n" * 60)

    def hints(text: Text, *, parse_special: bool) -> list[str]:
        seen: list[object] = []
        evaluate(request(demo, texts=(text,), parse_special=parse_special), user_paths(), seen.append)
        return [event.hint for event in seen if isinstance(event, Notice)]

    assert hints(chat, parse_special=False) == ["--parse-special reads them as control tokens."]
    assert hints(chat, parse_special=True) == hints(TEXT, parse_special=False) == []


def test_another_vocabulary_is_refused_before_anything_is_measured(demo: Path, tmp_path: Path) -> None:
    tiny = tiny_models.save(tiny_models.make("qwen3"), tmp_path / "tiny")
    seen: list[object] = []
    with pytest.raises(UsageError, match="different vocabularies"):
        evaluate(request(tiny, demo), user_paths(), seen.append)
    assert not any(isinstance(event, Measuring) for event in seen)


def test_padded_embeddings_are_compared_on_the_tokens_that_both_have(tmp_path: Path) -> None:
    # the tokenizer has 259 tokens; one model pads its embeddings to 263 rows, the other to 280
    small, large = tiny_models.make("qwen3"), tiny_models.make("qwen3", vocab_size=280)
    with torch.no_grad():
        source = small.state_dict()
        for name, tensor in large.state_dict().items():
            tensor.copy_(source[name]) if tensor.shape == source[name].shape else tensor[:263].copy_(source[name])
    tiny_models.save(small, tmp_path / "small")
    tiny_models.save(large, tmp_path / "large")
    report = run(request(tmp_path / "large", tmp_path / "small", windowing=Windowing(size=32, limit=2)))
    assert report.vocab_size == 263
    assert against(report).mean_kld.value < 1e-9
    assert against(report).same_top.value == 1


def test_errors_say_which_of_the_two_models_they_are_of(demo: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(UnknownModel, match="The reference nosuch: "):
        run(request(demo, "nosuch"))
    with pytest.raises(UnknownModel, match="The model nosuch: "):
        run(request("nosuch", demo))
    with pytest.raises(Exception, match=f"The reference {broken}: "):
        run(request(demo, broken))


def test_weights_that_are_not_numbers_are_said_to_be_damaged(tmp_path: Path) -> None:
    model = tiny_models.make("qwen3")
    with torch.no_grad():
        model.model.norm.weight[3] = math.nan
    directory = tiny_models.save(model, tmp_path / "damaged")
    with pytest.raises(Exception, match="The model damaged: It computed logits that are not numbers"):
        run(request(directory, windowing=Windowing(size=32, limit=1)))


def test_a_row_of_which_nothing_can_come_is_seen_among_others() -> None:
    with pytest.raises(RunnerError, match="not numbers"):
        evaluate_module._checked(np.array([[0, 1], [-np.inf, -np.inf]], np.float32))


def test_a_scripted_model_can_be_measured_too() -> None:
    report = run(request("fake", options=replace(OPTIONS, backend="fake")))
    assert report.model.bits is None
    # one token has a logit of 1 and 257 have 0: the text is not the script
    assert report.results[0].perplexity.value == pytest.approx(257 + math.e, rel=0.01)
