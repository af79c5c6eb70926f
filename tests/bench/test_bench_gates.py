"""What makes a measurement no measurement."""

from __future__ import annotations

import dataclasses

import pytest

from runner.bench.gates import check_fault, parting_note, repetition_fault, sample_fault
from runner.bench.plan import BenchTest
from runner.bench.tasks import Sample, SelfCheck

DECODE = BenchTest(kind="decode", n_tokens=3)
PREFILL = BenchTest(kind="prefill", n_tokens=3)
SAMPLE = Sample(seconds=0.5, n_tokens=3, n_prompt=16, token_ids=(5, 6, 7, 8), prompts_md5="a")
CHECK = SelfCheck(perplexity=20.0, n_scored=95, n_ids=24, n_agreeing=24)


def test_a_sound_sample_passes() -> None:
    assert sample_fault(DECODE, SAMPLE, 9) is None
    assert sample_fault(DECODE, dataclasses.replace(SAMPLE, token_ids=(0, 0, 8, 8)), 9) is None
    assert sample_fault(PREFILL, dataclasses.replace(SAMPLE, token_ids=(5,)), 9) is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"n_tokens": 2}, "2 tokens were decoded in place of 3"),
        ({"n_tokens": 4}, "4 tokens were decoded in place of 3"),
        ({"token_ids": (5, 9, 7, 8)}, "token 9 was written, and the vocabulary has 9"),
        ({"token_ids": (5, -1, 7, 8)}, "token -1"),
        ({"token_ids": ()}, "no token was written"),
        ({"seconds": 0.0}, "the clock did not advance"),
        ({"seconds": -1.0}, "the clock did not advance"),
        ({"seconds": float("nan")}, "the clock did not advance"),
    ],
)
def test_a_sample_of_something_else_does_not_count(change: dict[str, object], words: str) -> None:
    fault = sample_fault(DECODE, dataclasses.replace(SAMPLE, **change), 9) or ""
    assert words in fault
    assert "KV cache" not in fault


def test_a_prompt_that_was_in_the_cache_was_not_prefilled() -> None:
    fault = sample_fault(PREFILL, dataclasses.replace(SAMPLE, n_tokens=1), 9)
    assert fault == "1 prompt tokens were computed in place of 3; the rest came from the KV cache"
    for n_tokens in (0, 4):
        fault = sample_fault(PREFILL, dataclasses.replace(SAMPLE, n_tokens=n_tokens), 9)
        assert fault == f"{n_tokens} prompt tokens were computed in place of 3"
    fault = sample_fault(PREFILL, dataclasses.replace(SAMPLE, n_tokens=1, token_ids=()), 9)  # it was stopped
    assert fault == "1 prompt tokens were computed in place of 3"


def test_greedy_repetitions_must_agree() -> None:
    other = dataclasses.replace(SAMPLE, token_ids=(5, 6, 0, 8))
    assert repetition_fault(SAMPLE, SAMPLE, "native") is None
    assert repetition_fault(SAMPLE, other, "native") == "greedy tokens differ between repetitions, from token 3 on"
    assert "with -t 1 or --kv-type bf16 it does not" in (repetition_fault(SAMPLE, other, "llamacpp") or "")
    assert "different ids" in (repetition_fault(SAMPLE, dataclasses.replace(SAMPLE, prompts_md5="b"), "native") or "")


def test_a_model_that_computes_nonsense_does_not_count() -> None:
    assert check_fault(CHECK, 8000, is_random=False) is None
    assert "not numbers" in (check_fault(dataclasses.replace(CHECK, perplexity=None), 8000, is_random=True) or "")
    assert check_fault(dataclasses.replace(CHECK, n_agreeing=12, perplexity=12000.0), 8000, is_random=False) is None
    contradictory = dataclasses.replace(CHECK, n_agreeing=11)
    assert "11 of 24" in (check_fault(contradictory, 8000, is_random=True) or "")
    for wrong in (dataclasses.replace(CHECK, perplexity=None), contradictory):
        assert "`runner verify` finds damaged files" in (check_fault(wrong, 8000, is_random=True) or "")


def test_a_model_that_knows_no_language_counts_only_as_one_with_random_weights() -> None:
    guessing = dataclasses.replace(CHECK, perplexity=13000.0)
    assert "worse than guessing" in (check_fault(guessing, 8000, is_random=False) or "")
    assert check_fault(guessing, 8000, is_random=True) is None


def test_a_model_whose_embeddings_are_zeros_guesses_blindly() -> None:
    blind = dataclasses.replace(CHECK, perplexity=7999.99)
    assert "guesses blindly (`runner verify` finds" in (check_fault(blind, 8000, is_random=True) or "")


def test_backends_that_part_early_are_worth_a_word() -> None:
    assert parting_note(129, 129) == ""
    assert "early" in parting_note(3, 129)
    assert "about as likely" in parting_note(90, 129)
