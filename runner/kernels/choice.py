"""How a request's tokens are chosen, as numbers on the device, and what they choose: the reference of sampling.py.

It knows no kernels, and no penalties: those look at what was said, and stay on the host.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from runner.config import SamplingParams

_UNLIMITED = 1e39  # more than any two finite logits differ


@dataclass(frozen=True, kw_only=True)
class Choice:
    """How a request's tokens are chosen, on the device: one tensor, rewritten for the next request.

    numbers: float64 [6]: temperature, top_k, top_p, -log(min_p), the low and the high 32 bits of the seed.
    """

    numbers: Tensor

    @classmethod
    def of(cls, params: SamplingParams, device: torch.device) -> Choice:
        """Those of `params`, which is_supported. Raises ValueError where sampling needs a seed and has none."""
        return cls(numbers=_numbers(params).to(device))

    def rewrite(self, params: SamplingParams) -> None:
        """Choose as `params` says from the next launch on; errors are those of `of`."""
        self.numbers.copy_(_numbers(params))


def is_supported(params: SamplingParams) -> bool:
    """Whether `choose` does all that `params` asks for: it does not penalize."""
    has_penalty = params.repeat_penalty != 1 or params.presence_penalty != 0 or params.frequency_penalty != 0
    return params.penalty_last_n == 0 or not has_penalty


def _numbers(params: SamplingParams) -> Tensor:
    assert is_supported(params)
    if params.seed is None and params.temperature != 0:
        raise ValueError("sampling needs a seed")
    seed = params.seed or 0
    depth = -math.log(params.min_p) if params.min_p > 0 else _UNLIMITED
    numbers = (params.temperature, params.top_k, params.top_p, depth, seed & 0xFFFFFFFF, seed >> 32)
    return torch.tensor(numbers, dtype=torch.float64)


# --- the reference ---------------------------------------------------------------------------------------------------


def choose_ref(logits: Tensor, request: Choice, position: Tensor) -> Tensor:
    """What `choose` gives, by sorting."""
    numbers = request.numbers.tolist()
    rows = [_choose_row_ref(row, numbers, int(position) + m) for m, row in enumerate(logits)]
    return torch.tensor(rows, dtype=torch.int64, device=logits.device)


def _choose_row_ref(row: Tensor, numbers: list[float], position: int) -> int:
    temperature, top_k, top_p, depth, low, high = numbers
    values, ids = row.double().sort(descending=True, stable=True)
    if not values.isfinite().any() or row.isnan().any() or row.isposinf().any():
        return -1
    if temperature == 0:
        return int(ids[0])
    least, mass = values[0] - depth, (values - values[0]).exp()
    if 0 < top_k < len(row):
        mass = mass[: int(top_k)]
    else:
        least = least.float()  # as numpy compares them
    is_kept = (values >= least) & values.isfinite()
    is_kept[len(mass) :] = False
    if top_p < 1:
        reached = mass.cumsum(0)
        n_kept = int((reached < top_p * reached[-1]).sum()) + 1
        is_kept[n_kept:] = False
    ids = ids[is_kept]
    uniform = _uniform_ref(int(low), int(high), position, ids)
    noisy = (values[is_kept] - values[0]) / temperature - (-uniform.double().log()).log()
    return int(ids[noisy == noisy.max()].min())


def _uniform_ref(key_a: int, key_b: int, position: int, ids: Tensor) -> Tensor:
    """runner.sampling.uniform: Philox4x32-10 on (id, position, 0, 0), its first word as a number in (0, 1)."""
    mask = 0xFFFFFFFF
    a, b, c, d = ids, torch.full_like(ids, position & mask), torch.zeros_like(ids), torch.zeros_like(ids)
    for _ in range(10):
        # The bits of a product of two numbers below 2^32 are right, whatever its sign.
        product_a, product_c = a * 0xD2511F53, c * 0xCD9E8D57
        a, b = (product_c >> 32 & mask) ^ b ^ key_a, product_c & mask
        c, d = (product_a >> 32 & mask) ^ d ^ key_b, product_a & mask
        key_a, key_b = (key_a + 0x9E3779B9) & mask, (key_b + 0xBB67AE85) & mask
    word = torch.where(a >> 31 == 1, mask - a, a)
    return (word.float() * 4.6566127342e-10).clamp(min=2.0**-32)
