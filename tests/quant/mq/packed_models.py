"""Tiny source models for the tests of packed models, whose rows are whole groups."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from runner.backends.native.kv_cache import KvCache
from runner.backends.native.loader import load_model
from runner.model_config import ModelConfig, parse_model_config
from runner.quant.json_file import read_json
from runner.quant.mq.quantize import Packed, quantize_packed
from runner.quant.mq.recipe import Recipe, recipe_of
from runner.quant.weights import Weights, open_source
from runner.types import CancelToken
from tests.backends.native.tiny_models import make, save

SHAPE: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "head_dim": 32}
IDS = list(range(0, 80, 2))


def tiny(directory: Path, name: str = "qwen3", **more: Any) -> Path:
    """A tiny model of that name whose matrices can be packed, as bfloat16 or what `dtype` says."""
    dtype = more.pop("dtype", torch.bfloat16)
    heads = {"num_key_value_heads": 2} if name != "llama-no-gqa" else {"num_key_value_heads": 4}
    shape = {**SHAPE, **heads, **more}
    if name.startswith("phi3"):  # whose heads share hidden_size
        del shape["head_dim"]
    return save(make(name, **shape).to(dtype), directory)


def opened(directory: Path) -> tuple[Weights, ModelConfig]:
    config = parse_model_config(read_json(directory / "config.json"))
    return open_source(directory, None, config), config


def packed(source: Path, output: Path, form: str | Recipe = "mq8", **more: Any) -> Packed:
    recipe = recipe_of(form) if isinstance(form, str) else form
    more = {"device": torch.device("cpu"), "on_stage": lambda *_: None, **more}
    return quantize_packed(source, recipe, output, **more)


def logits(config: ModelConfig, weights: Weights) -> NDArray[np.float64]:
    """The logits of IDS in float64, by the native decoder."""
    model = load_model(
        config,
        weights,
        dtype=torch.float64,
        device=torch.device("cpu"),
        on_progress=lambda _: None,
        cancel=CancelToken(),
    )
    cache = KvCache.of(config, n_ctx=128, dtype=torch.float64, device=torch.device("cpu"))
    cache.reserve(len(IDS))
    with torch.inference_mode():
        hidden = model(torch.tensor(IDS), cache, lambda: None)
        weight = model.model.embed_tokens.weight if model.lm_head is None else model.lm_head.weight
        values: NDArray[np.float64] = (hidden @ weight.T).numpy()
    return values
