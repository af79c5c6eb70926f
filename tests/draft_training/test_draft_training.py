"""Heads that are trained: what they learn, that they are the same again, and what a run says that cannot go on."""

from __future__ import annotations

import itertools
import json
import math
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from runner.backends.native.heads.eagle3 import Eagle3Head
from runner.backends.native.heads.eagle3_config import eagle3_for
from runner.backends.native.heads.eagle3_files import load_eagle3
from runner.backends.native.kv_cache import KvCache
from runner.draft_training import make as making
from runner.draft_training.checkpoint import CHECKPOINT_NAME
from runner.draft_training.corpus import CORPUS_NAME, Text, Writer
from runner.draft_training.job import Stage
from runner.draft_training.make import train_draft
from runner.draft_training.measure import Measured, acceptance, conditions
from runner.draft_training.prompts import split
from runner.draft_training.report import Report, TextFacts, read_report, report_json
from runner.draft_training.settings import VARIANTS, TrainingSettings, training_settings
from runner.draft_training.states import observe
from runner.draft_training.train import commonest, new_head, rate_at
from runner.errors import BadModelFile, DoesNotFit, RunnerError, UnsupportedModel, UsageError
from runner.model_config import HeadSizes
from runner.types import CancelToken, Message
from runner.wire import to_plain
from tests.backends.native.tiny_models import make, ready, save
from tests.draft_training.draft_models import SETTINGS, job, opened, prompts, tiny_target, trained

LESS = replace(SETTINGS, n_tokens=300, steps=4, depth=2, length=32)
CPU = torch.device("cpu")
MEASURED = Measured(condition="as trained", texts=1, tokens=9, context=4.0, accepted=(0.5, 0.2), acceptance_length=1.7)
REPORT = Report(
    target="tiny",
    fingerprint="0",
    settings=LESS,
    text=TextFacts(prompts="numbers", answers=1, tokens=9, coverage=0.9),
    steps=4,
    best_step=2,
    ended="all steps",
    curve=(),
    measured=(MEASURED,),
    num_parameters=10,
    size_bytes=20,
    device="CPU",
    write_s=0.1,
    training_s=0.2,
)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_target(tmp_path_factory.mktemp("target") / "model")


@pytest.fixture(scope="module")
def heads(tmp_path_factory: pytest.TempPathFactory, directory: Path) -> Mapping[str, tuple[Path, Report]]:
    """A head of each variant, trained on one text."""
    place = tmp_path_factory.mktemp("heads")
    first, second = ((name, place / name) for name in VARIANTS)
    made = {first[0]: (first[1], trained(job(directory, first[1], variant=first[0])))}
    again = job(directory, second[1], variant=second[0], text_from=first[1])
    return {**made, second[0]: (second[1], trained(again))}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, directory: Path) -> tuple[Path, list[Stage]]:
    """A head of few steps, made at once, and what was told on the way."""
    stages: list[Stage] = []
    output = tmp_path_factory.mktemp("whole") / "out"
    trained(job(directory, output, settings=LESS), stages)
    return output, stages


def weights(output: Path) -> bytes:
    return (output / "model.safetensors").read_bytes()


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_head_learns_what_the_target_writes(heads: Mapping[str, tuple[Path, Report]], variant: str) -> None:
    report = heads[variant][1]
    first, last = report.curve[0], report.curve[-1]
    assert last.loss < 0.5 * first.loss
    assert last.acceptance_length > first.acceptance_length + 0.1
    usual = report.measured[0]
    assert usual.condition == "as trained"
    assert usual.accepted[0] > 0.3  # of 259 tokens
    assert list(usual.accepted) == sorted(usual.accepted, reverse=True)
    assert usual.acceptance_length == pytest.approx(1 + sum(usual.accepted), abs=1e-3)


def test_a_variant_is_what_its_config_says(heads: Mapping[str, tuple[Path, Report]]) -> None:
    published, normed = (load_eagle3(heads[name][0]) for name in ("eagle3", "normed"))
    assert (published.config.norm_output, published.config.fc_norm) == (False, False)
    assert (normed.config.norm_output, normed.config.fc_norm) == (True, True)
    assert normed.fc_norm is not None
    assert any(float((norm.weight - 1).abs().max()) > 0 for norm in normed.fc_norm)  # they were trained too


def test_both_were_trained_on_the_same_text(heads: Mapping[str, tuple[Path, Report]]) -> None:
    (first, one), (second, two) = heads.values()
    assert (first / "corpus.jsonl").read_bytes() == (second / "corpus.jsonl").read_bytes()
    assert one.text == two.text


@pytest.mark.parametrize("variant", VARIANTS)
def test_what_was_measured_is_what_the_saved_head_does(
    directory: Path, heads: Mapping[str, tuple[Path, Report]], variant: str
) -> None:
    path, report = heads[variant]
    target = opened(directory)
    decoder = target.load(CPU, 0, lambda _: None)
    writer = Writer(decoder=decoder, length=48, batch=64, used_ids=target.used_ids, stop_ids=target.stop_ids)
    head = load_eagle3(path, dtype=torch.bfloat16)
    with torch.inference_mode():
        usual = next(conditions(target.chats, writer, prompts().measure, 0, 0, lambda *_: None))
    found = acceptance(head, decoder, usual.texts, 3, 400)
    wanted = report.measured[0]
    assert [round(share, 4) for share in found.shares] == list(wanted.accepted)


@torch.inference_mode()
@pytest.mark.parametrize("name", ["qwen3", "gemma3", "gemma4", "granite", "smollm3", "ministral3"])
def test_a_head_begins_with_its_targets_output(tmp_path: Path, name: str) -> None:
    """And with the norm before it, whatever that adds to its weights or multiplies them by."""
    decoder = opened(tiny_target(tmp_path / "model", name)).load(CPU, 0, lambda _: None)
    ids = torch.arange(3, 259, 2)
    config = eagle3_for(decoder.config, draft_vocab_size=len(ids), norm_output=True, fc_norm=True)
    head = new_head(Eagle3Head(config), decoder, ids, 0)
    states = torch.randn(5, decoder.config.hidden_size, generator=torch.Generator().manual_seed(1))
    wanted = decoder.logits(decoder.model.norm(states))[:, ids]
    found, cap = head.lm_head(head.norm(states)), decoder.config.logit_cap
    if cap is not None:  # a head has none, and needs none: the likeliest id stays the likeliest
        found = cap * torch.tanh(found / cap)
    assert torch.allclose(found, wanted, rtol=1e-4, atol=1e-4)


@torch.inference_mode()
def test_acceptance_is_what_drafting_token_by_token_comes_to(
    directory: Path, heads: Mapping[str, tuple[Path, Report]]
) -> None:
    """At each token of an answer the head drafts by itself, on its own tokens, as it does in use."""
    target = opened(directory)
    decoder = target.load(CPU, 0, lambda _: None)
    prompt = target.chats.ids([Message(role="user", content="say 7")])
    assert prompt is not None
    writer = Writer(decoder=decoder, length=44, batch=1, used_ids=259, stop_ids=frozenset())
    text = writer.answers([prompt], [0.0], 0)[0]
    head = load_eagle3(heads["normed"][0])
    seen = observe(decoder, torch.tensor([text.ids]), head.config.captured(4), torch.float32)
    counts = [[0, 0], [0, 0], [0, 0]]
    for known in range(text.n_prompt + 1, len(text.ids)):  # tokens of the text that are there when a draft begins
        cache = KvCache(layers=[HeadSizes(num_kv_heads=2, head_dim=32)], n_ctx=64, dtype=torch.float32, device=CPU)
        states = head.fuse(seen.captured[0, : known - 1])
        tokens, drafted = list(text.ids[1:known]), []
        for _ in range(3):
            embeddings = decoder.model.embed_tokens(torch.tensor(tokens))
            states = head.extend(states, embeddings, cache)[-1:]
            tokens = [int(head.target_ids[head.logits(states).argmax()])]
            drafted += tokens
        for depth, count in enumerate(counts):
            if known + depth < len(text.ids):
                count[0] += drafted[: depth + 1] == list(text.ids[known : known + depth + 1])
                count[1] += 1
    found = acceptance(head, decoder, [text], 3, 400)
    assert found.shares == tuple(accepted / places for accepted, places in counts)
    assert found.shares[0] > 0


def test_the_same_seed_gives_the_same_head_and_another_another(
    tmp_path: Path, directory: Path, whole: tuple[Path, list[Stage]]
) -> None:
    for name, seed in (("same", 0), ("other", 1)):
        trained(job(directory, tmp_path / name, settings=LESS, seed=seed))
    assert weights(tmp_path / "same") == weights(whole[0]) != weights(tmp_path / "other")


class _Stop(CancelToken):
    """Cancels itself after it was asked so often."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self._left = after

    @property
    def is_cancelled(self) -> bool:
        self._left -= 1
        return self._left < 0


def training_begins(stages: list[Stage]) -> int:
    """How often a run asks whether it is cancelled before its first step."""
    return sum(stage.name.startswith("writing") for stage in stages)


def killing_at(step: int) -> Callable[[Stage], None]:
    def told(stage: Stage) -> None:
        if stage.name == "training" and stage.done == step:
            raise KeyboardInterrupt

    return told


def test_a_run_that_was_stopped_ends_as_one_that_was_not(
    tmp_path: Path, directory: Path, whole: tuple[Path, list[Stage]]
) -> None:
    """Stopped while it writes, twice while it trains, and while it measures."""
    for at in (("writing text", 200), ("training", 1), ("training", 3), ("measuring", 2)):
        cancel = CancelToken()

        def told(stage: Stage, at: tuple[str, int] = at, cancel: CancelToken = cancel) -> None:
            if stage.name == at[0] and stage.done >= at[1]:
                cancel.cancel()

        with pytest.raises(RunnerError, match="stopped"):
            train_draft(job(directory, tmp_path / "out", settings=LESS), told, lambda _: None, cancel)
    assert (tmp_path / "out.partial").is_dir()
    trained(job(directory, tmp_path / "out", settings=LESS))
    assert weights(tmp_path / "out") == weights(whole[0])
    assert not (tmp_path / "out.partial").exists()
    assert not (tmp_path / "out" / CHECKPOINT_NAME).exists()


def test_the_curve_has_the_losses_of_before_a_stop_too(tmp_path: Path, directory: Path) -> None:
    """Stopped between two looks, once to go on with more steps and once to end there."""
    settings, stages = replace(LESS, steps=40), list[Stage]()  # a look after each two
    whole = trained(job(directory, tmp_path / "whole", settings=settings), stages)
    for name in ("on", "over"):
        with pytest.raises(RunnerError, match="stopped"):
            trained(job(directory, tmp_path / name, settings=settings), cancel=_Stop(training_begins(stages) + 3))
    assert trained(job(directory, tmp_path / "on", settings=settings)).curve == whole.curve
    ended = trained(job(directory, tmp_path / "over", settings=settings, time_limit_s=1e-6))
    assert (ended.steps, len(ended.curve)) == (3, 2)
    assert math.isfinite(ended.curve[-1].loss)


def test_a_kill_costs_the_steps_since_the_last_checkpoint_and_no_text(
    tmp_path: Path, directory: Path, whole: tuple[Path, list[Stage]]
) -> None:
    asked = job(directory, tmp_path / "out", settings=LESS)
    with pytest.raises(KeyboardInterrupt):
        train_draft(asked, killing_at(3), lambda _: None, CancelToken())
    notes: list[str] = []
    stages: list[Stage] = []
    train_draft(asked, stages.append, notes.append, CancelToken())
    assert notes == ["Going on after step 3 of 4."]
    assert [stage.done for stage in stages if stage.name == "writing text"] == [LESS.n_tokens]
    assert weights(tmp_path / "out") == weights(whole[0])


@pytest.mark.parametrize("damage", [b"nothing", None])
def test_a_checkpoint_that_is_damaged_is_left_alone(
    tmp_path: Path, directory: Path, whole: tuple[Path, list[Stage]], damage: bytes | None
) -> None:
    """None: one whose tensors have another shape."""
    shutil.copytree(whole[0], tmp_path / "out.partial")
    path = tmp_path / "out.partial" / CHECKPOINT_NAME
    if damage is None:
        save_file({"head.fc.weight": torch.zeros(2)}, path, {"identity": "x", "state": "{}"})
    else:
        path.write_bytes(damage)
    trained(job(directory, tmp_path / "out", settings=LESS))
    assert weights(tmp_path / "out") == weights(whole[0])


def test_a_small_trial_writes_little_more_than_it_asks_for(tmp_path: Path, directory: Path) -> None:
    stages: list[Stage] = []
    trained(job(directory, tmp_path / "out", settings=LESS, n_tokens=40, steps=1), stages)
    written = (tmp_path / "out" / CORPUS_NAME).read_text().splitlines()[1:]
    texts = [ids[n_prompt:] for line in written for n_prompt, ids in json.loads(line)["texts"]]
    assert 40 <= sum(map(len, texts)) < 40 + 2 * LESS.length  # two at once, which have 64 tokens at most
    told = {stage.done for stage in stages if stage.name == "writing text"}
    assert len(told) > 10, "it was all told at once"


def test_other_settings_keep_the_text_and_start_the_steps_over(
    tmp_path: Path, directory: Path, whole: tuple[Path, list[Stage]]
) -> None:
    with pytest.raises(RunnerError, match="stopped"):
        trained(job(directory, tmp_path / "out", settings=LESS), cancel=_Stop(training_begins(whole[1]) + 2))
    notes: list[str] = []
    asked = job(directory, tmp_path / "out", settings=LESS, depth=3)
    train_draft(asked, lambda _: None, notes.append, CancelToken())
    assert len(notes) == 1
    assert "its text serves again" in notes[0]
    assert read_report(tmp_path / "out").settings.depth == 3


def test_a_limit_of_time_ends_training_with_a_whole_head(
    tmp_path: Path, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = itertools.count()  # at the clock: each takes a twentieth of a second
    monkeypatch.setattr(making, "time", SimpleNamespace(monotonic=lambda: next(looks) / 20))
    report = trained(job(directory, tmp_path / "out", settings=LESS, steps=10**6, time_limit_s=2.5))
    assert 0 < report.steps < 10**6
    assert report.ended == "time limit"
    assert report.measured
    assert load_eagle3(tmp_path / "out").config.draft_vocab_size == LESS.draft_vocab_size


def test_a_run_with_a_limit_of_time_goes_on_with_its_text_and_its_steps(
    tmp_path: Path, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The text of the first run was cut short; the second one has time for more of it, and does not write it."""
    monkeypatch.setattr(making, "_WRITING_SHARE", 0.0)
    asked = job(directory, tmp_path / "out", settings=LESS, n_tokens=3000, time_limit_s=10**6)
    with pytest.raises(KeyboardInterrupt):
        train_draft(asked, killing_at(3), lambda _: None, CancelToken())
    text = (tmp_path / "out.partial" / CORPUS_NAME).read_bytes()
    monkeypatch.undo()
    notes: list[str] = []
    train_draft(asked, lambda _: None, notes.append, CancelToken())
    assert notes == ["Going on after step 3 of 4."]
    assert (tmp_path / "out" / CORPUS_NAME).read_bytes() == text


def test_prompts_that_are_too_long_are_left_out(tmp_path: Path, directory: Path) -> None:
    long = split("long", [f"say {number} " + "word " * LESS.length * (number % 4 > 0) for number in range(80)])
    report = trained(job(directory, tmp_path / "out", settings=LESS, prompts=long))
    assert report.text.answers


def test_prompts_none_of_which_can_be_asked_are_told_before_the_model_is_loaded(
    tmp_path: Path, directory: Path
) -> None:
    never = split("never", ["word " * LESS.length] * 20)
    stages: list[Stage] = []
    for given in (never, replace(prompts(), watch=never.watch)):
        with pytest.raises(UsageError, match="No prompt leaves room for an answer in 32 tokens"):
            trained(job(directory, tmp_path / "out", settings=LESS, prompts=given), stages)
    with pytest.raises(UsageError, match="takes none of the prompts"):
        trained(job(directory, tmp_path / "out", settings=LESS, prompts=split("ends", ["<|end|>"] * 20)), stages)
    assert not stages
    assert not list(tmp_path.iterdir())


def test_a_text_that_was_torn_before_its_first_answers_is_none(
    tmp_path: Path, directory: Path, whole: tuple[Path, list[Stage]]
) -> None:
    torn = tmp_path / "torn"
    shutil.copytree(whole[0], torn)
    lines = (torn / CORPUS_NAME).read_bytes().splitlines(keepends=True)
    for rest in (lines[1][:20], b'{"texts": 1}\n'):
        (torn / CORPUS_NAME).write_bytes(lines[0] + rest)
        with pytest.raises(UsageError, match="torn has no whole text"):
            trained(job(directory, tmp_path / "out", settings=LESS, text_from=torn))
        assert (torn / CORPUS_NAME).read_bytes() == lines[0] + rest
        assert not (tmp_path / "out.partial").exists()


def test_a_limit_that_leaves_no_time_says_so_and_keeps_the_text(tmp_path: Path, directory: Path) -> None:
    with pytest.raises(UsageError, match="no time") as caught:
        trained(job(directory, tmp_path / "out", settings=LESS, time_limit_s=1e-6))
    assert "--time-limit" in caught.value.hint
    text = (tmp_path / "out.partial" / CORPUS_NAME).read_bytes()
    assert len(text) > 100
    trained(job(directory, tmp_path / "out", settings=LESS, text_from=tmp_path / "out.partial"))  # and it may be named
    assert (tmp_path / "out" / CORPUS_NAME).read_bytes() == text


def test_the_text_of_a_run_that_was_stopped_is_never_replaced_unasked(
    tmp_path: Path, directory: Path, heads: Mapping[str, tuple[Path, Report]]
) -> None:
    """By that of another head, or by one from another seed; a copy that was killed in the middle is made again."""
    text, mine = tmp_path / "out.partial" / CORPUS_NAME, job(directory, tmp_path / "out", settings=LESS, seed=7)
    with pytest.raises(UsageError, match="no time"):
        trained(replace(mine, time_limit_s=1e-6))
    written, other = text.read_bytes(), heads["normed"][0]
    for another, said in (
        (replace(mine, text_from=other), "--corpus would replace"),
        (replace(mine, settings=replace(mine.settings, seed=8)), "another model, --prompts, --seed or --corpus"),
    ):
        with pytest.raises(UsageError, match=said) as caught:
            trained(another)
        assert "goes on with it" in caught.value.hint
        assert text.read_bytes() == written
    text.write_bytes((other / CORPUS_NAME).read_bytes()[:-9])
    trained(replace(mine, text_from=other))
    assert (tmp_path / "out" / CORPUS_NAME).read_bytes() == (other / CORPUS_NAME).read_bytes()


def test_training_that_gets_no_better_ends(tmp_path: Path, directory: Path) -> None:
    report = trained(job(directory, tmp_path / "out", settings=LESS, steps=20, learning_rate=1e-9))
    assert report.ended == "no better any more"
    assert report.steps < 20


def test_a_head_that_is_there_is_replaced_only_when_asked(
    tmp_path: Path, directory: Path, whole: tuple[Path, list[Stage]]
) -> None:
    shutil.copytree(whole[0], tmp_path / "out")
    with pytest.raises(UsageError, match="exists already"):
        trained(job(directory, tmp_path / "out", settings=LESS))
    trained(job(directory, tmp_path / "out", settings=LESS, seed=5, force=True))
    assert read_report(tmp_path / "out").settings.seed == 5


def test_somebody_elses_directory_is_never_replaced(directory: Path) -> None:
    with pytest.raises(UsageError, match="do not belong"):
        trained(job(directory, directory, settings=LESS, force=True))
    assert (directory / "model.safetensors").is_file()


def test_the_text_of_another_model_does_not_serve(
    tmp_path: Path, directory: Path, heads: Mapping[str, tuple[Path, Report]]
) -> None:
    other = tiny_target(tmp_path / "other", "llama-tied")
    with pytest.raises(UsageError, match="another model"):
        trained(job(other, tmp_path / "out", settings=LESS, text_from=heads["normed"][0]))
    with pytest.raises(UsageError, match="no text"):
        trained(job(directory, tmp_path / "out", settings=LESS, text_from=tmp_path))


def test_a_model_whose_numbers_are_none_is_refused(tmp_path: Path) -> None:
    broken = tiny_target(tmp_path / "model")
    tensors = load_file(broken / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"][0, 0] = float("inf")
    save_file(tensors, broken / "model.safetensors", {"format": "pt"})
    with pytest.raises(UnsupportedModel, match="NaN"):
        trained(job(broken, tmp_path / "out", settings=LESS))
    assert not (tmp_path / "out.partial").exists()


@pytest.mark.parametrize("name", ["qwen3", "qwen3-5"])  # attention alone, and layers that keep a state
def test_a_model_without_a_chat_template_is_given_the_prompts_as_they_stand(tmp_path: Path, name: str) -> None:
    base = save(make(name), tmp_path / "base")
    report = trained(job(base, tmp_path / "out", settings=LESS))
    assert [found.condition for found in report.measured] == ["as trained"]


def test_a_script_is_no_target(tmp_path: Path) -> None:
    from runner.draft_training.target import open_target

    script = replace(ready(tiny_target(tmp_path / "model")), format="script")
    with pytest.raises(UnsupportedModel, match="native"):
        open_target(script)


def test_memory_that_is_short_is_told_before_the_model_is_loaded(
    tmp_path: Path, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(total=200_000, available=100_000))
    with pytest.raises(DoesNotFit, match="To train a drafter"):
        trained(job(directory, tmp_path / "out", settings=LESS))


def test_memory_that_runs_out_on_the_way_is_told(
    tmp_path: Path, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runner.draft_training.train.observe", lambda *_: torch.empty(2**58))
    with pytest.raises(DoesNotFit, match="out of memory"):
        trained(job(directory, tmp_path / "out", settings=LESS))
    assert (tmp_path / "out.partial" / "corpus.jsonl").is_file()


def test_a_report_of_another_kind_is_no_report(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no training\.json"):
        read_report(tmp_path)
    with pytest.raises(UsageError, match="no directory"):
        read_report(tmp_path / ("a" * 300))
    for text in ("{}", '{"schema": "runner.draft/1"}', '{"schema": "runner.draft/1", "target": 1, "more": 2}'):
        (tmp_path / "training.json").write_text(text)
        with pytest.raises(BadModelFile):
            read_report(tmp_path)


@pytest.mark.parametrize(
    "damage",
    [
        {"measured": [replace(MEASURED, accepted=(0.5,))]},  # the table has a column for each depth
        {"settings": replace(LESS, depth=3)},
        {"settings": "none"},
        {"num_parameters": "x"},
        {"measured": [replace(MEASURED, accepted=("a", *MEASURED.accepted[1:]))]},
    ],
)
def test_a_report_that_was_changed_is_told_as_one_that_cannot_be_read(tmp_path: Path, damage: dict[str, Any]) -> None:
    plain = report_json(REPORT)
    (tmp_path / "training.json").write_text(json.dumps(plain))
    assert read_report(tmp_path) == REPORT
    (tmp_path / "training.json").write_text(json.dumps(plain | {key: to_plain(one) for key, one in damage.items()}))
    with pytest.raises(BadModelFile, match="cannot be read"):
        read_report(tmp_path)


@pytest.mark.parametrize(
    ("flag", "asked"),
    [
        ("--variant", {"variant": "eagle4"}),
        ("--tokens", {"n_tokens": 0}),
        ("--steps", {"steps": -1}),
        ("--depth", {"depth": 17}),
        ("--draft-vocab", {"draft_vocab_size": 0}),
        ("--seed", {"seed": 2**64}),
        ("--seed", {"seed": -1}),
    ],
)
def test_settings_that_make_no_sense_are_refused(flag: str, asked: dict[str, object]) -> None:
    with pytest.raises(UsageError, match=flag):
        settings_of(**asked)


def settings_of(**asked: object) -> TrainingSettings:
    given = {"variant": "normed", "n_tokens": None, "steps": None, "depth": None, "draft_vocab_size": None, "seed": 0}
    return training_settings(is_gpu=False, context=2048, vocab_size=8192, **{**given, **asked})  # type: ignore[arg-type]


def test_the_rate_rises_and_falls() -> None:
    rates = [rate_at(share / 100) for share in range(101)]
    assert max(rates) == pytest.approx(1, abs=0.01)
    assert rates.index(max(rates)) == 5
    assert rates[5:] == sorted(rates[5:], reverse=True)
    assert 0 < rates[0] < rates[-1] <= 0.05 + 1e-9


def test_the_draft_vocabulary_is_the_commonest_of_the_answers() -> None:
    texts = [Text((9, 9, 9, 5, 5, 3), 3), Text((1, 7, 5, 3), 1)]
    assert commonest(texts, 3, 10).tolist() == [3, 5, 7]
    assert commonest(texts, 5, 10).tolist() == [0, 1, 3, 5, 7]
