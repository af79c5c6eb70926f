"""What an evaluation is asked and what it answers: frozen values, and how measured arrays become figures.

It knows nothing of backends or of how the values are shown.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from runner.config import LoadOptions
from runner.evaluation.bits import BitsPerWeight
from runner.evaluation.divergence import Divergence, Floats
from runner.evaluation.intervals import Estimate, mean_estimate, quantile_estimate
from runner.evaluation.windows import TextWindows, Windowing


@dataclass(frozen=True, kw_only=True)
class Text:
    """A text to measure on. name: for people; content: the whole of it."""

    name: str
    content: str


@dataclass(frozen=True, kw_only=True)
class Request:
    """model and reference as the user names them; no reference measures perplexity alone.

    options, reference_options: how to run each; their context is that of a window, whatever they say.
    parse_special: control tokens such as "<|im_end|>" in a text are read as such, not as text.
    two_pass: the reference runs first, alone. kept_logits: a file that holds the reference's logits, or will.
    """

    model: str
    reference: str | None
    texts: tuple[Text, ...]
    windowing: Windowing
    options: LoadOptions
    reference_options: LoadOptions
    parse_special: bool = False
    offline: bool = False
    two_pass: bool = False
    kept_logits: Path | None = None


@dataclass(frozen=True)
class Measuring:
    """`done` of `total` tokens are measured; the reference's count beside the model's. total 0: not known yet."""

    done: int
    total: int


@dataclass(frozen=True, kw_only=True)
class MeasuredModel:
    """A model as it was measured. bits: None where there are no weights."""

    name: str
    backend: str
    reason: str
    device: str
    quantization: str
    num_parameters: int
    size_bytes: int
    bits: BitsPerWeight | None


@dataclass(frozen=True, kw_only=True)
class AgainstReference:
    """A model beside its reference, over all scored tokens of one text.

    reference_perplexity: of the reference. perplexity_ratio: the model's over the reference's, from paired windows.
    mean_kld, kld_99, max_kld: mean, 99 % quantile and largest of KL(reference || model), in nats a token.
    same_top: the share of positions where both think the same token likeliest.
    rms_delta_p: root mean square of the difference in the probability of the token that came.
    """

    reference_perplexity: Estimate
    perplexity_ratio: Estimate
    mean_kld: Estimate
    kld_99: Estimate
    max_kld: float
    same_top: Estimate
    rms_delta_p: Estimate


@dataclass(frozen=True, kw_only=True)
class TextResult:
    """One text. n_tokens: of all of it; n_scored: in n_windows."""

    text: str
    n_tokens: int
    n_windows: int
    n_scored: int
    perplexity: Estimate
    against: AgainstReference | None


@dataclass(frozen=True, kw_only=True)
class Report:
    """The whole answer. vocab_size: the ids that both models have. passes: "one" (both models were loaded together),
    "two" (the reference first, alone) or "kept" (its logits were there already); the figures are the same."""

    model: MeasuredModel
    reference: MeasuredModel | None
    windowing: Windowing
    vocab_size: int
    passes: str
    duration_s: float
    results: tuple[TextResult, ...]


def perplexity_result(text: TextWindows, nll: Sequence[Floats]) -> TextResult:
    """From the negative log-likelihoods [tokens] of each window."""
    values = np.stack(nll)
    return _result(text, values, None)


def divergence_result(text: TextWindows, windows: Sequence[Divergence]) -> TextResult:
    """From the divergences of each window."""
    nll = np.stack([window.nll for window in windows])
    reference_nll = np.stack([window.reference_nll for window in windows])
    kld = np.stack([window.kld for window in windows])
    delta_p = np.stack([window.delta_p for window in windows])
    against = AgainstReference(
        reference_perplexity=mean_estimate(reference_nll).through(_exp),
        perplexity_ratio=mean_estimate(nll - reference_nll).through(_exp),
        mean_kld=mean_estimate(kld),
        kld_99=quantile_estimate(kld, 0.99),
        max_kld=float(kld.max()),
        same_top=mean_estimate(np.stack([window.same_top for window in windows])),
        rms_delta_p=mean_estimate(delta_p**2).through(math.sqrt),
    )
    return _result(text, nll, against)


def _result(text: TextWindows, nll: Floats, against: AgainstReference | None) -> TextResult:
    return TextResult(
        text=text.name,
        n_tokens=text.n_tokens,
        n_windows=len(nll),
        n_scored=nll.size,
        perplexity=mean_estimate(nll).through(_exp),
        against=against,
    )


def _exp(value: float) -> float:
    """e^value, infinite where a float ends: a random model's perplexity is no error."""
    return math.exp(value) if value < 700 else math.inf
