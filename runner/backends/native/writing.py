"""A model that writes many texts at once: loaded whole into plain modules, then sampled in one batch.

What calibration and the training of drafters work on. It knows token ids, and neither chats nor files.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence

import torch
from torch import Tensor

from runner.backends.base import Tokenizer
from runner.backends.native.blocks import Decoder, go_on
from runner.backends.native.delta_state import state_bytes
from runner.backends.native.kv_cache import KvCache, bytes_of_token
from runner.backends.native.loader import load_model
from runner.errors import DoesNotFit, UnsupportedModel
from runner.machine import main_memory
from runner.model_config import ModelConfig
from runner.quant.weights import Weights
from runner.types import CancelToken

OnTokens = Callable[[int, int], None]
_STEPS_BETWEEN_LOOKS = 16  # whether all texts have ended: a look makes a GPU wait


def load_writer(
    config: ModelConfig,
    weights: Weights,
    device: torch.device,
    *,
    purpose: str,
    hint: str,
    spare_bytes: int = 0,
    on_progress: Callable[[float], None] = lambda _: None,
) -> Decoder:
    """The whole model: float32 on a CPU, bfloat16 on a GPU.

    spare_bytes: what is needed besides. Raises DoesNotFit, with `purpose` ("To write its own text") and `hint`, where
    it is larger than the free memory: a system that runs out may kill any process. Else as load_model does.
    """
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    needed = sum(math.prod(shape) for shape in weights.shapes.values()) * dtype.itemsize + spare_bytes
    free = main_memory().free_bytes if device.type == "cpu" else torch.cuda.mem_get_info(device)[0]
    if needed > free:
        raise DoesNotFit(
            f"{purpose} the whole model is loaded, which takes {needed / 2**30:.1f} GiB; "
            f"{free / 2**30:.1f} GiB of memory are free.",
            hint=hint,
        )
    return load_model(config, weights, dtype=dtype, device=device, on_progress=on_progress, cancel=CancelToken())


def used_ids(tokenizer: Tokenizer) -> int:
    """The ids that the tokenizer has, without the padding of the model's vocabulary at its end."""
    return 1 + max(token for token in range(tokenizer.vocab_size) if tokenizer.token_bytes(token, special=True))


def batch_size(config: ModelConfig, length: int, device: torch.device) -> int:
    """How many texts are written at once: those whose KV cache takes a tenth of the GPU's memory.

    Of all of it, not of what is free: a run that was stopped goes on with the same batches.
    """
    if device.type == "cpu":
        return 64
    per_sequence = length * bytes_of_token([config.heads(layer) for layer in config.caching_layers], torch.bfloat16)
    per_sequence += state_bytes(config.delta, torch.bfloat16, n_slots=1)
    return max(1, min(256, int(torch.cuda.mem_get_info(device)[1] / 10 / per_sequence)))


def write_batch(
    decoder: Decoder,
    starts: Sequence[Sequence[int]],
    length: int,
    *,
    vocab_size: int,
    seed: int,
    temperatures: Sequence[float] | None = None,
    stop_ids: Collection[int] = (),
    on_tokens: OnTokens = lambda _done, _total: None,
    is_enough: Callable[[], bool] = lambda: False,
) -> Tensor:
    """Continue each of `starts` to `length` ids, all in one batch: [len(starts), length] int64 on the decoder's device.

    vocab_size: ids from there on are padding of the vocabulary and are not sampled. temperatures: one a text, 0 is
    greedy; 1 for all where none is given. stop_ids: a text ends with the first of them that it samples, and is filled
    up with -1. on_tokens(done, total). is_enough is asked after each position: once it is so, all texts end there. Of a
    start that is longer than `length` the first ids are all there is.
    Raises UnsupportedModel for a model whose probabilities are no numbers.
    """
    weight = decoder.model.norm.weight
    ids, known = _laid_out(starts, length, weight.device)
    cache = _cache(decoder, len(starts), length, weight)
    generator = torch.Generator(weight.device).manual_seed(seed)
    heat = torch.tensor([1.0] * len(starts) if temperatures is None else temperatures, device=weight.device)
    stops = torch.tensor(sorted(stop_ids), dtype=torch.int64, device=weight.device)
    rows = torch.arange(len(starts), device=weight.device)  # of the texts that are not over, and some that are
    is_over = torch.zeros(len(starts), dtype=torch.bool, device=weight.device)
    shortest = min(map(len, starts), default=0)
    for position in range(max(1, min(shortest, length - 1)), length):
        hidden = decoder(ids[rows, cache.length : position].clamp(min=0), cache, go_on)[:, -1:]
        sampled = _sampled(decoder.logits(hidden[:, 0])[:, :vocab_size], heat[rows], generator)
        is_own = ~known[rows, position]
        ids[rows, position] = torch.where(is_own, sampled.masked_fill(is_over[rows], -1), ids[rows, position])
        is_over[rows] |= is_own & torch.isin(sampled, stops)
        on_tokens(position * len(starts), length * len(starts))
        if is_enough():
            break
        if stop_ids and position % _STEPS_BETWEEN_LOOKS == 0:
            going = (~is_over[rows]).nonzero()[:, 0]
            if not len(going):
                break
            if len(going) <= len(rows) // 2:
                cache.select(going)
                rows = rows[going]
    return ids


def _laid_out(starts: Sequence[Sequence[int]], length: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The ids that are given, [B, length], -1 where none is, and where they are."""
    ids = torch.full((len(starts), length), -1, dtype=torch.int64, device=device)
    known = torch.zeros_like(ids, dtype=torch.bool)
    for row, start in enumerate(starts):
        ids[row, : len(start)] = torch.tensor(start[:length])
        known[row, : len(start)] = True
    return ids, known


def _cache(decoder: Decoder, batch: int, length: int, like: Tensor) -> KvCache:
    cache = KvCache.of(decoder.config, n_ctx=length, dtype=like.dtype, device=like.device, batch=(batch,))
    cache.reserve(length)
    return cache


def _sampled(logits: Tensor, heat: Tensor, generator: torch.Generator) -> Tensor:
    """One id a row of `logits` [B, V]; heat: temperatures [B]."""
    # A temperature of 0 is the limit that argmax is; what is sampled there is not used.
    probs = (logits / heat.masked_fill(heat == 0, 1)[:, None]).softmax(-1)
    if not probs.isfinite().all():
        raise UnsupportedModel("The model gives probabilities that are NaN: it cannot write its own text.")
    sampled = torch.multinomial(probs, 1, generator=generator)[:, 0]
    return torch.where(heat == 0, logits.argmax(-1), sampled)
