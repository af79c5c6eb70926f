"""The reference of both attentions against the native backend's blocks and against transformers' gpt-oss."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from attention_cases import DEVICE, filled, random

from runner.backends.native.attend import attend
from runner.kernels.attention import attend_ref
from runner.kernels.kv_layer import read_ref


@pytest.mark.parametrize(("start", "window"), [(0, None), (9, None), (0, 3), (9, 3), (9, 40)])
@pytest.mark.parametrize(("h", "g"), [(6, 2), (3, 3), (4, 1)])
def test_it_is_the_attention_of_the_blocks(h: int, g: int, start: int, window: int | None) -> None:
    cache = filled("float32", g, start + 5, 20, 18)
    q = random(5, h, 18).double()
    keys, values = read_ref(cache, start + 5, torch.float64)
    wanted = attend(q.transpose(0, 1), keys, values, start, window).transpose(0, 1).flatten(1)
    found = attend_ref(q, cache, start, window=window, sinks=None, scale=18**-0.5)
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("window", [None, 3])
def test_a_cap_is_that_of_the_blocks(window: int | None) -> None:
    cache, q = filled("float32", 2, 14, 20, 18), random(5, 6, 18).double()
    keys, values = read_ref(cache, 14, torch.float64)
    wanted = attend(q.transpose(0, 1), keys, values, 9, window, 0.7, None, 2.0).transpose(0, 1).flatten(1)
    found = attend_ref(q, cache, 9, window=window, sinks=None, scale=0.7, cap=2.0)
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


def test_sinks_are_those_of_gpt_oss() -> None:
    from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward

    cache = filled("float32", 2, 12, 12, 16)
    q, sinks = random(4, 6, 16).double(), random(6, seed=3).double()
    keys, values = read_ref(cache, 12, torch.float64)
    mask = torch.full((4, 12), -torch.inf, dtype=torch.float64, device=DEVICE).triu(9)
    module = SimpleNamespace(sinks=sinks, num_key_value_groups=3, training=False)
    wanted, _ = eager_attention_forward(module, q.transpose(0, 1)[None], keys[None], values[None], mask, 0.25)
    found = attend_ref(q, cache, 8, window=None, sinks=sinks, scale=0.25)
    torch.testing.assert_close(found, wanted[0].flatten(1), rtol=1e-12, atol=1e-12)


def test_an_int8_cache_is_read_within_half_a_level() -> None:
    dense, packed = filled("float32", 2, 30, 30, 18), filled("int8", 2, 30, 30, 18)
    assert packed.key_scale is not None
    keys, _ = read_ref(packed, 30, torch.float64)
    assert bool(((keys - dense.keys.double()).abs() <= packed.key_scale[..., None] * 0.5001).all())
