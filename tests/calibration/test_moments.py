"""Second moments of what the matrices of a layer read, and the target that follows from them."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch

from runner.backends.native.architectures import build
from runner.backends.native.blocks import Decoder
from runner.backends.native.kv_cache import KvCache
from runner.backends.native.loader import load_model
from runner.calibration.inputs import LayerInputs
from runner.calibration.moments import Moments, Side, groups_of, measure, run_layer, target
from runner.quant.mq.rotation import rotate
from runner.types import CancelToken
from tests.quant.mq.packed_models import opened, tiny


@pytest.fixture(params=["qwen3", "gemma3", "gemma4", "phi3", "olmo2"])
def decoder(request: pytest.FixtureRequest, tmp_path: Path) -> Decoder:
    weights, config = opened(tiny(tmp_path / "model", request.param))
    return load_model(
        config,
        weights,
        dtype=torch.float32,
        device=torch.device("cpu"),
        on_progress=lambda _: None,
        cancel=CancelToken(),
    )


def seen(decoder: Decoder, layer: torch.nn.Module, name: str, x: torch.Tensor) -> torch.Tensor:
    """What the submodule `name` is given in one run over all sequences, [tokens, K]."""
    found: list[torch.Tensor] = []
    hook = layer.get_submodule(name).register_forward_pre_hook(lambda _module, given: found.append(given[0]))
    run_layer(decoder, Side(layer=layer, x=x), 1)  # type: ignore[arg-type]
    hook.remove()
    return found[0].flatten(0, -2)


@pytest.mark.parametrize("number", range(4))
@torch.inference_mode()
def test_they_are_the_means_of_what_the_matrices_read(decoder: Decoder, number: int) -> None:
    model = decoder.model.layers[1]
    group = groups_of(model)[number]  # type: ignore[arg-type]
    rounded = copy.deepcopy(model)
    for parameter in rounded.parameters():
        parameter.data *= 1.05
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(5, 12, 64, generator=generator)
    x_of_copy = x + 0.1 * torch.randn(5, 12, 64, generator=generator)
    sides = [Side(layer=layer, x=given) for layer, given in ((model, x), (rounded, x_of_copy))]  # type: ignore[arg-type]
    found = measure(decoder, 1, group, 32, *sides, batch=2)
    read = rotate(seen(decoder, rounded, group.matrices[-1], x_of_copy), 32)
    read_by_model = rotate(seen(decoder, model, group.matrices[-1], x), 32)
    assert torch.allclose(found.own, read.T @ read / 60, rtol=1e-4, atol=1e-5)
    assert torch.allclose(found.cross, read_by_model.T @ read / 60, rtol=1e-4, atol=1e-5)
    if not group.before:
        assert found.drift is None
        return
    lacking = seen(decoder, model, group.before, x) - seen(decoder, rounded, group.before, x_of_copy)
    assert found.drift is not None
    assert torch.allclose(found.drift, lacking.T @ read / 60, rtol=1e-4, atol=1e-5)


def test_the_target_makes_up_for_inputs_and_for_the_stream() -> None:
    generator = torch.Generator().manual_seed(0)
    w, y = torch.randn(4, 8, generator=generator), torch.randn(4000, 8, generator=generator)
    x = y @ (torch.eye(8) + 0.3 * torch.randn(8, 8, generator=generator))
    d = 0.2 * torch.randn(4000, 4, generator=generator) + x[:, :4] * 0.1
    moments = Moments(own=x.T @ x / 4000, cross=y.T @ x / 4000, drift=d.T @ x / 4000)
    wanted = torch.linalg.lstsq(x, y @ w.T + d).solution.T
    assert torch.allclose(target(w, moments, 1e-6), wanted, atol=1e-3)


def test_much_damping_leaves_the_matrix_as_it_is() -> None:
    generator = torch.Generator().manual_seed(0)
    w, own = torch.randn(4, 8, generator=generator), torch.eye(8)
    moments = Moments(own=own, cross=0.5 * own, drift=None)
    assert torch.allclose(target(w, moments, 1e6), w, atol=1e-4)
    assert torch.allclose(target(w, moments, 1e-6), 0.5 * w, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "before"),
    [("qwen3", ["input_layernorm", "post_attention_layernorm"]), ("gemma3", ["", ""]), ("olmo2", ["", ""])],
)
def test_the_stream_is_made_up_for_where_no_norm_lies_between(name: str, before: list[str], tmp_path: Path) -> None:
    _, config = opened(tiny(tmp_path / "model", name))
    with torch.device("meta"):
        layer = build(config).model.layers[0]
    groups = groups_of(layer)  # type: ignore[arg-type]
    assert [group.before for group in groups[1::2]] == before
    assert [group.before for group in groups[::2]] == ["", ""]


@torch.inference_mode()
def test_layer_after_layer_is_the_whole_model_where_layers_get_inputs_and_share_caches(tmp_path: Path) -> None:
    weights, config = opened(tiny(tmp_path / "model", "gemma4-inputs-by-layer-and-shared-caches", dtype=torch.float32))
    device = torch.device("cpu")
    decoder = load_model(
        config, weights, dtype=torch.float32, device=device, on_progress=lambda _: None, cancel=CancelToken()
    )
    ids = torch.randint(0, 256, (2, 9), generator=torch.Generator().manual_seed(1))
    cache = KvCache.of(config, n_ctx=9, dtype=torch.float32, device=device, batch=(2,))
    cache.reserve(9)
    wanted = decoder(ids, cache, lambda: None)
    x = decoder.model.embed_tokens(ids)
    inputs, kept = LayerInputs(decoder.model, weights, ids, x.clone()), {}
    for index, layer in enumerate(decoder.layers):
        seen = kept[config.seen_by(index)] if config.shares_cache(index) else None
        x, kept[index] = run_layer(decoder, Side(layer=layer, x=x, own_input=inputs.of(index), seen=seen), index)
    torch.testing.assert_close(decoder.model.norm(x), wanted, rtol=1e-4, atol=1e-4)
