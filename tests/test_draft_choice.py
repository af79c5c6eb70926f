"""Which drafter is chosen for a model, and why, by options, registry and what was made here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runner.config import LoadOptions
from runner.draft_choice import DraftChoice, choose_drafter, unless_inexact, unused
from runner.errors import UsageError
from runner.paths import user_paths
from runner.registry import ModelSpec, Registry


def choose(
    spec: ModelSpec, source: Path = Path("hub/model"), *, can_go_back: bool = True, **options: object
) -> DraftChoice:
    paths = user_paths()
    asked = LoadOptions(**options)  # type: ignore[arg-type]
    return choose_drafter(asked, spec, Registry.load_for(paths), source, paths.drafts, can_go_back=can_go_back)


QWEN = Registry.load_for().resolve("qwen3-8b")
ALONE = Registry.load_for().resolve("demo")


def test_auto_takes_what_needs_no_memory_and_names_the_registry_s_suggestion() -> None:
    choice = choose(QWEN)
    assert (choice.drafter, choice.source, choice.suggestion) == ("suffix", "", QWEN.draft)
    assert choice.words == "suffix: it needs no memory"
    assert not choice.is_model
    assert choose(ALONE).suggestion == ""


def test_a_draft_model_that_was_given_is_taken() -> None:
    for speculation in ("auto", "model"):
        choice = choose(QWEN, speculation=speculation, draft="qwen3-1.7b")
        assert (choice.drafter, choice.source, choice.is_model) == ("model", "qwen3-1.7b", True)
    assert choose(QWEN, speculation="suffix", draft="qwen3-1.7b").drafter == "suffix"


def test_the_suggestion_is_used_when_a_model_is_asked_for() -> None:
    assert choose(QWEN, speculation="model").source == QWEN.draft
    with pytest.raises(UsageError, match="No model is known to draft for demo") as caught:
        choose(ALONE, speculation="model")
    assert "--draft" in caught.value.hint


def test_files_are_quoted_by_suffixes_alone() -> None:
    for speculation in ("auto", "suffix"):
        choice = choose(QWEN, speculation=speculation, draft_file=("/a", "/b"))
        assert choice.files == ("/a", "/b")
        assert choice.words.endswith(", and may quote 2 files")
        assert unused(LoadOptions(draft_file=choice.files), choice) == []
    for others in ({"speculation": "off"}, {"draft": "qwen3-1.7b"}, {"can_go_back": False}):
        choice = choose(QWEN, **{"draft_file": ("/a",), **others})  # type: ignore[arg-type]
        assert choice.files == ()
        (notice,) = unused(LoadOptions(draft_file=("/a",)), choice)
        assert choice.reason in notice.text
        assert bool(notice.hint) == (choice.drafter is not None)
        assert unused(LoadOptions(), choice) == []


def test_a_draft_model_that_has_no_part_in_it_is_named() -> None:
    for speculation in ("off", "suffix", "mtp"):
        choice = choose(QWEN, speculation=speculation, draft="qwen3-1.7b")
        (notice,) = unused(LoadOptions(draft="qwen3-1.7b"), choice)
        assert "qwen3-1.7b, given by --draft, is not used: " in notice.text
        assert (choice.drafter or choice.reason) in notice.text
        assert "--spec auto" in notice.hint
    refused = DraftChoice(drafter=None, reason="It cannot. Choose another.", is_refused=True)
    assert refused.words == "refused: It cannot. Choose another."
    assert unused(LoadOptions(draft="big", draft_file=("/a",)), refused) == []
    for speculation in ("auto", "model"):
        assert unused(LoadOptions(draft="qwen3-1.7b"), choose(QWEN, speculation=speculation, draft="qwen3-1.7b")) == []


def test_off_is_off() -> None:
    assert choose(QWEN, speculation="off", draft="qwen3-1.7b").words == "off: it was turned off"


def test_a_model_that_cannot_go_back_has_none_whatever_was_asked_for() -> None:
    for speculation in ("auto", "suffix", "model"):
        assert choose(QWEN, speculation=speculation, can_go_back=False).words.startswith(
            "off: this model cannot go back"
        )


def test_a_copy_that_quantize_made_here_drafts_for_the_model() -> None:
    with pytest.raises(UsageError, match="no copy") as caught:
        choose(QWEN, Path("a/models--Qwen--Qwen3-8B/snapshots/abc"), speculation="self")
    assert "`runner quantize qwen3-8b --format mq4` makes one" in caught.value.hint
    (user_paths().models / "Qwen3-8B-mq4").mkdir(parents=True)
    choice = choose(QWEN, Path("a/models--Qwen--Qwen3-8B/snapshots/abc"), speculation="self")
    assert (choice.drafter, choice.source, choice.is_model) == ("self", "Qwen3-8B-mq4", True)
    assert choose(QWEN, speculation="self", draft="other").source == "other"
    assert choose(QWEN, Path("models/Qwen3-8B-mq8"), speculation="self").source == "Qwen3-8B-mq4"


def test_the_remedy_for_a_missing_copy_is_a_command_that_makes_one(tmp_path: Path) -> None:
    directory = tmp_path / "my model"
    directory.mkdir()
    spec = Registry.load_for().resolve(str(directory))
    with pytest.raises(UsageError) as caught:
        choose(spec, directory, speculation="self")
    assert f"`runner quantize '{directory}' --format mq4` makes one;" in caught.value.hint
    for name in ("runner.json", "model.safetensors"):
        (directory / name).touch()
    with pytest.raises(UsageError) as caught:
        choose(spec, directory, speculation="self")
    assert "makes one of the model that this was made from" in caught.value.hint


def test_a_head_is_named_by_its_directory_or_as_it_was_trained_here(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="needs a head"):
        choose(QWEN, speculation="eagle3")
    trained = user_paths().drafts / "qwen3-8b-normed"
    trained.mkdir(parents=True)
    with pytest.raises(UsageError, match="elsewhere is no directory") as caught:
        choose(QWEN, speculation="eagle3", draft="elsewhere")
    assert "qwen3-8b-normed" in caught.value.hint
    assert choose(QWEN, speculation="eagle3", draft="qwen3-8b-normed").source == str(trained)
    assert choose(QWEN, speculation="eagle3", draft=str(tmp_path)).source == str(tmp_path)


@pytest.mark.parametrize("key", ["draft_vocab_size", "speculators_model_type"])
def test_a_head_that_is_named_drafts_without_a_word_that_it_is_one(tmp_path: Path, key: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["Llama"], key: 1}))
    choice = choose(QWEN, draft=str(tmp_path))
    assert (choice.drafter, choice.source) == ("eagle3", str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["Llama"]}))
    assert choose(QWEN, draft=str(tmp_path)).drafter == "model"
    trained = user_paths().drafts / "qwen3-8b-normed"
    trained.mkdir(parents=True)
    assert choose(QWEN, draft="qwen3-8b-normed").source == str(trained)
    assert choose(QWEN, speculation="model", draft="qwen3-8b-normed").drafter == "model"


@pytest.mark.parametrize("name", ["~no-such-user/head", "a" * 300, "a\0b"])
def test_what_can_be_no_directory_is_left_to_who_looks_for_a_model_of_that_name(name: str) -> None:
    assert choose(QWEN, draft=name).source == name
    with pytest.raises(UsageError, match="is no directory with an EAGLE-3 head"):
        choose(QWEN, speculation="eagle3", draft=name)


def test_the_head_that_comes_with_a_model_needs_no_name() -> None:
    choice = choose(QWEN, speculation="mtp")
    assert (choice.drafter, choice.source, choice.is_model) == ("mtp", "", False)


def test_where_drafts_might_change_the_text_they_are_asked_for_or_not_made() -> None:
    choice = choose(QWEN)
    assert unless_inexact(choice, LoadOptions(), is_exact=True) is choice
    off = unless_inexact(choice, LoadOptions(), is_exact=False)
    assert (off.drafter, off.suggestion) == (None, QWEN.draft)
    assert off.words.startswith("off: llama.cpp on a GPU rounds")
    assert "--spec suffix" in off.reason
    for asked in (
        LoadOptions(speculation="suffix"),
        LoadOptions(draft="qwen3-0.6b"),
        LoadOptions(draft_file=("/a",)),
        LoadOptions(speculation="model", draft="qwen3-0.6b"),
    ):
        assert unless_inexact(choice, asked, is_exact=False) is choice
