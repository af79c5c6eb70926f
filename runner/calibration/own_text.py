"""The text that a model writes for its own calibration: in batches, each kept with the half-made file when it is done.

A run that was stopped goes on with the same text, and does not write it again. It knows nothing of rounding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from runner.backends.base import Tokenizer
from runner.backends.native.blocks import Decoder
from runner.backends.native.writing import batch_size, load_writer, used_ids
from runner.calibration.text import write_text
from runner.model_config import ModelConfig
from runner.quant.mq.packed_file import PackedFile
from runner.quant.mq.producer import OnStage
from runner.quant.weights import Weights


def own_text(
    config: ModelConfig,
    weights: Weights,
    tokenizer: Tokenizer,
    starts: Sequence[Sequence[int]],
    length: int,
    *,
    device: torch.device,
    seed: int,
    written: PackedFile,
    on_stage: OnStage,
) -> Tensor:
    """`starts` continued by the model of `config`: [len(starts), length] int64 on `device`.

    written: where batches are kept and found again. Raises UnsupportedModel for a model that writes nothing, DoesNotFit
    for one that is too large for the memory.
    """
    vocab_size = used_ids(tokenizer)
    size = batch_size(config, length, device)
    found: dict[int, Tensor] = {}
    for start in range(0, len(starts), size):
        kept = _checked(written.kept(_key(start)), (len(starts[start : start + size]), length), vocab_size)
        if kept is not None:
            found[start] = kept.to(device)
    total = len(starts) * length
    decoder: Decoder | None = None
    for start in range(0, len(starts), size):
        if start in found:
            continue
        decoder = decoder or _loaded(config, weights, device, on_stage)
        found[start] = write_text(
            decoder,
            starts[start : start + size],
            length,
            vocab_size=vocab_size,
            seed=seed + start // size,
            on_tokens=lambda done, _, before=start * length: on_stage("writing text", before + done, total),  # type: ignore[misc]
        )
        written.keep(_key(start), found[start].tolist())
    on_stage("writing text", total, total)
    return torch.cat([found[start] for start in sorted(found)])


def _key(start: int) -> str:
    return f"text from {start}"


def _checked(value: Any, shape: tuple[int, int], vocab_size: int) -> Tensor | None:
    """A batch as it was kept; None when it is not there or is damaged."""
    try:
        ids = torch.tensor(value, dtype=torch.int64)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return None
    return ids if tuple(ids.shape) == shape and bool(((ids >= 0) & (ids < vocab_size)).all()) else None


def _loaded(config: ModelConfig, weights: Weights, device: torch.device, on_stage: OnStage) -> Decoder:
    total = round(sum(bits * math.prod(weights.shapes[name]) / 8 for name, bits in weights.bits.items()))
    return load_writer(
        config,
        weights,
        device,
        purpose="To write its own text",
        hint="Give a text with --calibrate FILE, which takes one layer at a time, or --no-calibrate.",
        on_progress=lambda share: on_stage("loading", round(share * total), total),
    )
