"""The decoder in bfloat16, as a GPU computes it, against transformers in bfloat16 and in float32."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from runner.backends.native.blocks import Embedding
from runner.backends.native.kv_cache import KvCache
from runner.backends.native.loader import load_model
from runner.model_config import ModelConfig, parse_model_config
from runner.quant.json_file import read_json
from runner.quant.weights import open_source
from runner.types import CancelToken
from tests.backends.native.tiny_models import TINY, VOCAB, make, save

IDS = [int(token) for token in np.random.default_rng(3).integers(0, VOCAB, 41)]
CPU = torch.device("cpu")


def theirs(model: type[PreTrainedModel], directory: Path, dtype: torch.dtype) -> Tensor:
    """Logits [T, V] float32 by transformers. Experts one by one: its grouped products want rows of 16 bytes."""
    loaded = model.from_pretrained(directory, dtype=dtype, experts_implementation="eager").eval()
    logits: Tensor = loaded(torch.tensor([IDS])).logits[0].float()
    return logits


def ours(directory: Path, config: ModelConfig) -> Tensor:
    """Logits [T, V] float32 by the decoder in bfloat16, with a bfloat16 KV cache."""
    weights = open_source(directory, None, config)
    decoder = load_model(
        config, weights, dtype=torch.bfloat16, device=CPU, on_progress=lambda _: None, cancel=CancelToken()
    )
    cache = KvCache.of(config, n_ctx=64, dtype=torch.bfloat16, device=CPU)
    cache.reserve(len(IDS))
    return decoder.logits(decoder(torch.tensor(IDS), cache, lambda: None))


# In these, bfloat16 sends tokens to other experts, in transformers as here: test_native_moe.py compares the others.
OF_OTHER_EXPERTS = {"gemma4-moe", "mixtral", *(name for name in TINY if name.startswith("qwen3-5-moe"))}


@pytest.mark.parametrize("name", [name for name in TINY if name not in OF_OTHER_EXPERTS])
@torch.inference_mode()
def test_bfloat16_is_as_near_to_float32_as_transformers_is_and_chooses_the_same_ids(name: str, tmp_path: Path) -> None:
    """Both round to 8 bits after every product, in different places, so errors are of one size and not equal.

    An id is the same wherever it leads the second by more than 3 % of the largest logit, which is what the largest
    errors come to in models of three layers whose weights are as large as these.
    """
    model = make(name).to(torch.bfloat16)
    save(model, tmp_path)
    exact = theirs(type(model), tmp_path, torch.float32)
    half = theirs(type(model), tmp_path, torch.bfloat16)
    found = ours(tmp_path, parse_model_config(read_json(tmp_path / "config.json")))
    largest = exact.abs().max()
    assert (found - exact).abs().max() < 0.08 * largest
    assert (found - exact).pow(2).mean() < 2 * (half - exact).pow(2).mean()
    first, second = half.topk(2, dim=-1).values.unbind(-1)
    is_clear = first - second > 0.03 * largest
    assert is_clear.sum() > len(IDS) / 4
    assert torch.equal(found.argmax(-1)[is_clear], half.argmax(-1)[is_clear])


@pytest.mark.parametrize(("name", "is_rounded"), [("granite", False), ("gemma3", True)])
def test_what_embeddings_are_multiplied_by_is_rounded_where_gemmas_code_rounds_it(
    name: str, is_rounded: bool, tmp_path: Path
) -> None:
    save(make(name), tmp_path)
    exact = 12 / 0.22  # as Granite 3 has it
    rounded = float(torch.tensor(exact, dtype=torch.bfloat16))
    assert rounded != exact
    config = replace(parse_model_config(read_json(tmp_path / "config.json")), embedding_factor=exact)
    embedding = Embedding.of(config).to(torch.bfloat16)
    embedding.weight.fill_(1.0)
    assert embedding.factor(torch.bfloat16) == (rounded if is_rounded else exact)
    assert embedding.factor(torch.float32) == pytest.approx(exact, rel=1e-7)
    assert float(embedding(torch.tensor([0]))[0, 0]) == rounded  # of either
