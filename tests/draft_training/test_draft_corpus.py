"""The text that a drafter is trained on: what the target would write, kept batch by batch, and found again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from runner.backends.base import Step
from runner.backends.native.writing import write_batch
from runner.config import SamplingParams
from runner.draft_training.corpus import Corpus, Text, Writer, made_from_of, opened, temperature_of, write_corpus
from runner.errors import UsageError
from runner.types import CancelToken
from tests.backends.native.tiny_models import load, ready
from tests.draft_training.draft_models import opened as target_of
from tests.draft_training.draft_models import tiny_target

MADE_FROM = {"target": "t"}
PROMPTS = [[1, 2, 3], [4, 5, 6, 7, 8, 9, 10], [11], [12, 13]]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_target(tmp_path_factory.mktemp("target") / "model")


@pytest.fixture(scope="module")
def writer(directory: Path) -> Writer:
    decoder = target_of(directory).load(torch.device("cpu"), 0, lambda _: None)
    return Writer(decoder=decoder, length=40, batch=4, used_ids=259, stop_ids=frozenset())


def write(path: Path, writer: Writer, n_tokens: int, seed: int = 0, prompts: list[list[int]] = PROMPTS) -> list[Text]:
    with opened(path, MADE_FROM, 263) as corpus, torch.inference_mode():
        write_corpus(corpus, writer, prompts, n_tokens, seed, on_tokens=lambda _: None)
        return corpus.texts


@torch.inference_mode()
def test_a_batch_answers_each_prompt_as_the_model_alone_does(directory: Path, writer: Writer) -> None:
    backend = load(ready(directory))
    for text in replace(writer, used_ids=263).answers(PROMPTS, [0.0] * 4, seed=0):
        steps = backend.generate(text.ids[: text.n_prompt], SamplingParams(temperature=0, seed=1), CancelToken())
        alone = [event.token for _, event in zip(range(60), steps, strict=False) if isinstance(event, Step)]
        assert list(text.ids[text.n_prompt :]) == alone[: text.n_answer]
    backend.close()


@torch.inference_mode()
def test_a_text_ends_with_its_stop_id_and_the_others_go_on_as_they_would(writer: Writer) -> None:
    """Rows that are over leave the batch on the way: the others must not change."""
    whole = writer.answers(PROMPTS * 3, [0.0] * 12, seed=0)
    stop = whole[0].ids[whole[0].n_prompt + 2]
    ended = replace(writer, stop_ids=frozenset({stop})).answers(PROMPTS * 3, [0.0] * 12, seed=0)
    assert any(text.n_answer < other.n_answer for text, other in zip(ended, whole, strict=True))
    for text, other in zip(ended, whole, strict=True):
        answer = other.ids[other.n_prompt :]
        length = answer.index(stop) + 1 if stop in answer else len(answer)
        assert text.ids == other.ids[: other.n_prompt + length]


@torch.inference_mode()
def test_a_batch_whose_texts_have_all_ended_ends(writer: Writer) -> None:
    told: list[tuple[int, int]] = []
    ids = write_batch(
        writer.decoder,
        [[1], [2]],
        200,
        vocab_size=259,
        seed=0,
        stop_ids=range(259),
        on_tokens=lambda *at: told.append(at),
    )
    assert told[-1][0] < 100
    assert (ids[:, 2:] == -1).all()


@torch.inference_mode()
def test_the_hotter_a_text_the_more_it_depends_on_the_seed(writer: Writer) -> None:
    first, second = (writer.answers(PROMPTS[:1] * 2, [0.0, 1.0], seed) for seed in (1, 2))
    assert first[0] == second[0]
    assert first[1] != second[1]


def test_a_prompt_is_answered_greedily_once_and_at_other_temperatures_as_often_as_it_comes() -> None:
    of_prompt = [[temperature_of(number, 5) for number in range(prompt, 60, 5)] for prompt in range(5)]
    assert all(heats.count(0.0) == 1 for heats in of_prompt)
    assert all({0.7, 1.0} < set(heats) for heats in of_prompt)


def test_writing_stops_when_there_is_enough(tmp_path: Path, writer: Writer) -> None:
    texts = write(tmp_path / "corpus.jsonl", writer, 200)
    assert 200 <= sum(text.n_answer for text in texts) < 200 + 4 * 40
    assert {text.n_prompt for text in texts} == {1, 2, 3, 7}


def test_the_largest_seed_has_batches_after_the_first(tmp_path: Path, writer: Writer) -> None:
    assert len(write(tmp_path / "c", replace(writer, batch=1), 60, seed=2**64 - 1)) > 1


def test_batches_of_another_size_go_on_with_the_next_prompts(tmp_path: Path, writer: Writer) -> None:
    write(tmp_path / "corpus.jsonl", writer, 100)
    texts = write(tmp_path / "corpus.jsonl", replace(writer, batch=3), 300)
    assert [text.ids[: text.n_prompt] for text in texts] == [tuple(PROMPTS[n % 4]) for n in range(len(texts))]
    assert len(texts) % 4


def test_writing_that_has_no_more_time_ends_on_its_way(tmp_path: Path, writer: Writer) -> None:
    with opened(tmp_path / "corpus.jsonl", MADE_FROM, 263) as corpus, torch.inference_mode():
        write_corpus(corpus, replace(writer, is_over=lambda: True), PROMPTS, 10**6, 0, on_tokens=lambda _: None)
        assert corpus.n_batches == 1
        assert 4 * 8 <= corpus.n_tokens < 4 * 12  # of 4 * 40: some of the answers, not all of them


@pytest.mark.parametrize("lost", [0, 1, 7, 400])
def test_a_text_that_was_interrupted_becomes_what_it_would_have_been(tmp_path: Path, writer: Writer, lost: int) -> None:
    """lost: bytes at the end of the file that a kill kept from the disk."""
    whole = write(tmp_path / "whole.jsonl", writer, 500)
    path = tmp_path / "corpus.jsonl"
    write(path, writer, 200)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) - lost])
    assert write(path, writer, 500) == whole
    assert path.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


def test_a_text_that_is_there_is_not_written_again(tmp_path: Path, writer: Writer) -> None:
    path = tmp_path / "corpus.jsonl"
    texts = write(path, writer, 200)
    nobody = replace(writer, decoder=None)  # type: ignore[arg-type]
    assert write(path, nobody, 200) == texts


@pytest.mark.parametrize(
    "line", ["[]", '{"texts": 1}', '{"texts": [[1, [999]]]}', '{"texts": [[5, [1, 2]]]}', "x", "[" * 10**5]
)
def test_a_text_that_is_damaged_is_written_again(tmp_path: Path, writer: Writer, line: str) -> None:
    path = tmp_path / "corpus.jsonl"
    texts = write(path, writer, 200)
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], line, *lines[2:]]) + "\n")
    assert write(path, writer, 200) == texts


def test_a_text_of_something_else_is_written_again(tmp_path: Path, writer: Writer) -> None:
    path = tmp_path / "corpus.jsonl"
    write(path, writer, 200)
    with opened(path, {"target": "another"}, 263) as corpus:
        assert corpus.texts == []


@pytest.mark.parametrize("line", ["", "x", "[]", '{"made_from": 1}', "[" * 10**5])
def test_a_file_that_is_no_text_of_a_targets_is_refused(tmp_path: Path, line: str) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(UsageError, match="no text of a target's"):
        made_from_of(path)


def test_less_of_a_text_is_its_first_answers() -> None:
    texts = [Text((1, 2, 3), 1), Text((4, 5), 1), Text((6, 7), 1)]
    corpus = Corpus(-1, [texts[:2], texts[2:]])
    assert corpus.n_tokens == 4
    assert corpus.first(2) == texts[:1]
    assert corpus.first(3) == texts[:2]
    assert corpus.first(99) == corpus.texts == texts
