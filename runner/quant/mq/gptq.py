"""Rounding a matrix with error feedback against the inputs that it will see (GPTQ, arXiv:2210.17323; LDLQ, 2307.13304).

The error is that of the layer's output, tr((W - Q) H (W - Q)^T), with H the second moment of the inputs. Columns are
rounded in order, and each one's error is passed on to those still to come. H and W must be in the basis that the matrix
is stored in. It knows nothing of models or of where H comes from.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from runner.quant.mq.grid import GridFormat, scale_values
from runner.quant.mq.tensor_format import Encoded

_BLOCK = 128  # columns whose errors are passed on together
_HEADROOM = 1.5  # how far error feedback may carry a weight beyond the largest one


def round_with_feedback(w: Tensor, hessian: Tensor, form: GridFormat, *, damping: float) -> Encoded:
    """w [N, K] float32 and hessian [K, K] float32 (mean of x x^T), both in the stored basis; K whole groups.

    damping: the share of the mean of H's diagonal that is added to it. Scales are chosen, and weights rounded, against
    the scales as they are stored.
    """
    exponent = form.scale_exponent(w, _HEADROOM)
    # Both by powers of two, which changes no rounding, so that no product of large ones overflows.
    h = damped(hessian, damping)
    h *= 2.0 ** -math.frexp(float(h.diagonal().mean()))[1]
    index, scale = _feedback(w * 2.0**-exponent, h, form)
    return form.encoded(index, scale, exponent)


def damped(hessian: Tensor, damping: float) -> Tensor:
    """H with its diagonal raised; inputs that were never seen count as the mean does."""
    h = hessian.clone()
    diagonal = h.diagonal()
    mean = diagonal.mean().clamp(min=1e-30)
    diagonal[diagonal <= 0] = mean
    diagonal += damping * mean
    return h


def _feedback(w: Tensor, h: Tensor, form: GridFormat) -> tuple[Tensor, Tensor]:
    """Level indices [N, K] uint8 and scale codes [N, K / group_size] uint8, column by column; w over 2^exponent."""
    size = form.group_size
    upper = torch.linalg.cholesky(torch.cholesky_inverse(torch.linalg.cholesky(h)), upper=True)
    rest = w.clone()
    index = torch.empty(w.shape, dtype=torch.uint8, device=w.device)
    scale = torch.empty(w.shape[0], w.shape[1] // size, dtype=torch.uint8, device=w.device)
    values = scale_values(0, w.device)
    importance = upper.diagonal().square().reciprocal()
    block = max(_BLOCK, size)
    for start in range(0, w.shape[1], block):
        end = min(start + block, w.shape[1])
        columns = rest[:, start:end].T.contiguous()  # one after the other, each in one piece
        errors, chosen = torch.empty_like(columns), torch.empty_like(columns, dtype=torch.uint8)
        for column, place in enumerate(range(start, end)):
            if place % size == 0:
                group = columns[column : column + size].T.contiguous()
                codes = form.choose_scales(group, 0, importance[place : place + size])
                scale[:, place // size] = codes
                step = values[codes.int()]
            nearest = form.index(columns[column] / step)
            chosen[column] = nearest
            torch.div(columns[column] - form.values(nearest) * step, upper[place, place], out=errors[column])
            columns[column + 1 :] -= errors[column] * upper[place, place + 1 : end, None]
        index[:, start:end] = chosen.T
        rest[:, end:] -= errors.T @ upper[start:end, end:]
    return index, scale
