"""What logits say of the tokens that came: their negative log-likelihood, and divergence from a reference's logits.

Pure numpy on blocks of positions, in float64: a divergence is a small difference of large sums. It knows nothing of
where logits come from, nor of windows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Divergence:
    """A model against a reference, [R] float64 each, by position.

    nll, reference_nll: -ln of the probability of the token that came (nats).
    kld: the Kullback-Leibler divergence KL(reference || model) over the whole vocabulary (nats).
    same_top: 1 where both think the same token likeliest. delta_p: the token's probability less the reference's.
    """

    nll: Floats
    reference_nll: Floats
    kld: Floats
    same_top: Floats
    delta_p: Floats


def log_softmax(logits: NDArray[Any]) -> Floats:
    """ln of the probabilities, [R, V] float64, of logits [R, V]: finite, or -infinity for what cannot come."""
    shifted = logits.astype(np.float64)
    shifted -= shifted.max(axis=1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return shifted


def negative_log_likelihood(logits: NDArray[Any], tokens: NDArray[np.int64]) -> Floats:
    """[R] nats: how unexpected tokens [R] were after logits [R, V]."""
    return _of_tokens(-log_softmax(logits), tokens)


def compare(reference: NDArray[Any], model: NDArray[Any], tokens: NDArray[np.int64]) -> Divergence:
    """Logits [R, V] of both at the same positions, and the tokens [R] that came there."""
    log_p, log_q = log_softmax(reference), log_softmax(model)
    p_token, q_token = _of_tokens(log_p, tokens), _of_tokens(log_q, tokens)
    p = np.exp(log_p)
    # 0 ln 0 is 0: a token that the reference rules out counts for nothing, however likely the model thinks it.
    gap = np.subtract(log_p, log_q, out=np.zeros_like(log_p), where=p > 0)
    return Divergence(
        nll=-q_token,
        reference_nll=-p_token,
        # Never negative but for rounding.
        kld=np.maximum(np.einsum("rv,rv->r", p, gap), 0.0),
        same_top=(reference.argmax(axis=1) == model.argmax(axis=1)).astype(np.float64),
        delta_p=np.exp(q_token) - np.exp(p_token),
    )


def joined(parts: Iterable[Divergence]) -> Divergence:
    """The divergences of consecutive positions as one."""
    collected = list(parts)
    names = [field.name for field in fields(Divergence)]
    return Divergence(**{name: np.concatenate([getattr(part, name) for part in collected]) for name in names})


def _of_tokens(values: Floats, tokens: NDArray[np.int64]) -> Floats:
    found: Floats = np.take_along_axis(values, tokens[:, None], axis=1)[:, 0]
    return found
