"""What makes a measurement no measurement: the gates that a sample and a model must pass before they are numbers.

Pure functions: each returns the reason, a sentence for people, or None. It knows no process and no row.
"""

from __future__ import annotations

from typing import Final

from runner.backends.base import common_prefix
from runner.bench.plan import BenchTest
from runner.bench.tasks import GenreSample, Sample, SelfCheck
from runner.types import BackendName

# Greedy tokens are scored again by other kernels, in another order of sums: where two tokens are about as likely the
# other one may win. More than half of them never are.
_LEAST_AGREEMENT: Final = 0.5
# Random weights guess worse than blindly by some; weights that are read wrongly are confidently wrong, and far beyond.
_GUESSING: Final = 1.5
# Where zeros have taken the place of weights, every token is as likely as any other, to the last digit or nearly.
_BLIND: Final = 1e-4
# What docs/SPECULATION.md says under "Exactness": on other backends a difference is a mistake.
_REMEDY: Final = ", with several threads and more than 256 tokens of context: with -t 1 or --kv-type bf16 it does not)"
_ON_A_GPU: Final = "on a GPU, where --backend native does not"
_ROUNDING: Final = f" (llama.cpp rounds a step of one token otherwise than several {_ON_A_GPU}; and on a CPU{_REMEDY}"
_FEWER_THREADS: Final = f" (on a CPU llama.cpp rounds otherwise where other programs leave one thread to it{_REMEDY}"
_DAMAGED: Final = " (`runner verify` finds damaged files; where there are none, another --backend may compute it)"
_EARLY: Final = 16  # two backends that part before so many tokens are worth a word


def sample_fault(test: BenchTest, sample: Sample, vocab_size: int) -> str | None:
    """Why a sample does not count: it did something else than what was asked, or wrote what is no token."""
    if sample.n_tokens != test.n_tokens:
        noun = "prompt tokens were computed" if test.kind == "prefill" else "tokens were decoded"
        why = "; the rest came from the KV cache" if 0 < sample.n_tokens < test.n_tokens and sample.token_ids else ""
        return f"{sample.n_tokens} {noun} in place of {test.n_tokens}{why if test.kind == 'prefill' else ''}"
    outside = [token for token in sample.token_ids if not 0 <= token < vocab_size]
    if outside:
        return f"token {outside[0]} was written, and the vocabulary has {vocab_size}"
    if not sample.token_ids:
        return "no token was written"
    if not sample.seconds > 0:
        return "the clock did not advance"
    return None


def repetition_fault(first: Sample, sample: Sample, backend: BackendName) -> str | None:
    """Why two repetitions of one decode test contradict each other: greedy text from the same ids is one text."""
    if first.prompts_md5 != sample.prompts_md5:
        return "two processes of the same backend made different ids of the same text"
    same = common_prefix(first.token_ids, sample.token_ids)
    if same < len(first.token_ids):
        return f"greedy tokens differ between repetitions, from token {same + 1} on{_fewer_threads(backend)}"
    return None


def genre_fault(sample: GenreSample, backend: BackendName) -> str | None:
    """Why a sample with speculation does not count: it wrote something else than without, or nothing to be timed."""
    for number, (plain, speculative) in enumerate(zip(sample.plain.ids, sample.speculative.ids, strict=True), 1):
        if plain != speculative:
            same = common_prefix(plain, speculative)
            why = _ROUNDING if backend == "llamacpp" else ""
            return f"prompt {number}: tokens with speculation differ from those without, from token {same + 1} on{why}"
    if not sample.plain.n_tokens:
        return "the answers ended at their first token"
    if not (sample.plain.seconds > 0 and sample.speculative.seconds > 0):
        return "the clock did not advance"
    return None


def genre_repetition_fault(first: GenreSample, sample: GenreSample, backend: BackendName) -> str | None:
    """Why two repetitions contradict each other: the same prompts with the same seeds are answered with one text."""
    if first.prompts_md5 != sample.prompts_md5:
        return "two processes of the same backend made different ids of the same text"
    for number, (one, other) in enumerate(zip(first.plain.ids, sample.plain.ids, strict=False), 1):
        if one != other:
            at, why = common_prefix(one, other) + 1, _fewer_threads(backend)
            return f"prompt {number}: tokens differ between repetitions, from token {at} on{why}"
    return None


def _fewer_threads(backend: BackendName) -> str:
    return _FEWER_THREADS if backend == "llamacpp" else ""


def check_fault(check: SelfCheck, vocab_size: int, *, is_random: bool) -> str | None:
    """Why a model's rows do not count: it computes no numbers, contradicts itself, or knows no language at all."""
    if check.perplexity is None:
        return f"it computes logits that are not numbers{_DAMAGED}"
    if check.n_agreeing < _LEAST_AGREEMENT * check.n_ids:
        agree = f"they agree on {check.n_agreeing} of {check.n_ids} tokens"
        return f"decoding and scoring contradict each other: {agree}{_DAMAGED}"
    if abs(check.perplexity / vocab_size - 1) < _BLIND:
        return (
            f"its perplexity on English is {check.perplexity:.0f}, all of the vocabulary: it guesses blindly{_DAMAGED}"
        )
    if check.perplexity > _GUESSING * vocab_size and not is_random:
        return (
            f"its perplexity on English is {check.perplexity:.3g}, worse than guessing among {vocab_size} tokens "
            "(--random-weights measures such a model)"
        )
    return None


def parting_note(same: int, total: int) -> str:
    """What it means that two backends write the same for `same` of `total` tokens."""
    if same >= total:
        return ""
    if same < _EARLY:
        return "they part early: their weights or arithmetic differ (see the formats), or one of them is wrong"
    return "they part where two tokens are about as likely"
