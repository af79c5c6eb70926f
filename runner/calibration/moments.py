"""What the matrices of a layer see: second moments of their inputs, in the model and in its rounded copy.

A layer runs as the model runs it, in batches, and stops where the matrices in question read their input. It knows
nothing of rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from runner.backends.native.blocks import Decoder, GatedMlp, Layer
from runner.backends.native.delta_state import DeltaState
from runner.quant.mq.rotation import rotate


@dataclass(frozen=True)
class Group:
    """Matrices of a layer that read one input. before: the norm whose input is the residual stream that their output
    is added to as it is, or "" when it is not."""

    matrices: tuple[str, ...]
    before: str = ""


_QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
_JOINED_QKV = ("self_attn.qkv_proj",)
_O = ("self_attn.o_proj",)
_IN = ("linear_attn.in_proj_qkv", "linear_attn.in_proj_z")  # the other two, a row a head, are kept (recipe.py)
_OUT = ("linear_attn.out_proj",)
_GATE_UP = ("mlp.gate_proj", "mlp.up_proj")
_JOINED_GATE_UP = ("mlp.gate_up_proj",)
_DOWN = ("mlp.down_proj",)
# Whatever the layer, the matrices that it may have.
MATRICES = (*_QKV, *_JOINED_QKV, *_O, *_IN, *_OUT, *_GATE_UP, *_JOINED_GATE_UP, *_DOWN)


def groups_of(layer: Layer) -> tuple[Group, ...]:
    """The groups of a layer without experts, in the order of a forward pass."""
    assert isinstance(layer.mlp, GatedMlp)
    norms, attention = layer.norms, layer.self_attn
    written = _OUT if attention is None else _O
    read: tuple[str, ...] = _IN
    if attention is not None:
        read = _JOINED_QKV if attention.is_joined else _QKV[:2] if attention.shares_projection else _QKV
        read = _QKV[:1] if attention.shares_cache else read
    return (
        Group(read),
        Group(written, before=norms.before_attention or "" if norms.after_attention is None else ""),
        Group(_JOINED_GATE_UP if layer.mlp.is_joined else _GATE_UP),
        Group(_DOWN, before=norms.before_mlp or "" if norms.after_mlp is None else ""),
    )


@dataclass(frozen=True, kw_only=True)
class Moments:
    """Means over all tokens, in the basis that the matrices are stored in.

    own [K, K]: of x x^T, x the input in the rounded copy. cross [K, K]: of y x^T, y the same input in the model.
    drift [N, K] or None: of d x^T, d what the residual stream of the copy lacks to the model's.
    """

    own: Tensor
    cross: Tensor
    drift: Tensor | None


class _Reached(Exception):
    """The input was read: the rest of the layer need not run."""


@dataclass(frozen=True, kw_only=True)
class Side:
    """A layer of the model or of its copy, and what it is given of all sequences.

    x: [B, T, hidden]. own_input: [B, T, size], where layers have inputs. seen: the keys and values [B, G, T, D] of the
    layer whose cache it shares, where it does.
    """

    layer: Layer
    x: Tensor
    own_input: Tensor | None = None
    seen: tuple[Tensor, Tensor] | None = None

    def part(self, span: slice) -> Side:
        """Of some of the sequences."""
        own_input = None if self.own_input is None else self.own_input[span]
        seen = None if self.seen is None else (self.seen[0][span], self.seen[1][span])
        return Side(layer=self.layer, x=self.x[span], own_input=own_input, seen=seen)


class _Stub:
    """A KvCache for passes that begin at position 0 and are not continued: of them it holds the keys and values of one
    layer."""

    length = 0
    n_ctx = 0

    def __init__(self, seen: tuple[Tensor, Tensor] | None) -> None:
        self.seen = seen

    def put(self, _layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        self.seen = keys, values
        return keys, values

    def kept(self, _layer: int, _n_tokens: int) -> tuple[Tensor, Tensor]:
        assert self.seen is not None
        return self.seen

    def state(self, _layer: int) -> None:
        """None came before."""

    def n_states(self, _n_tokens: int) -> int:
        return 0

    def put_states(self, _layer: int, _states: Sequence[DeltaState], _n_tokens: int) -> None:
        pass


def run_layer(decoder: Decoder, side: Side, index: int) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:
    """What the layer makes of side.x, whole sequences, and the keys and values that it made or saw."""
    stub = _Stub(side.seen)
    run = decoder.start_pass(stub, side.x.shape[-2], side.x.device, lambda: None)  # type: ignore[arg-type]
    return side.layer(side.x, index, run, side.own_input), stub.seen


def measure(
    decoder: Decoder, index: int, group: Group, rotation: int, model: Side, rounded: Side, batch: int
) -> Moments:
    """The moments of `group` over all sequences, in the model and in its copy."""
    own = cross = drift = None
    n_tokens = 0
    for start in range(0, len(model.x), batch):
        span = slice(start, start + batch)
        y, residual = _inputs(decoder, model.part(span), index, group)
        x, residual_of_copy = _inputs(decoder, rounded.part(span), index, group)
        x, y = rotate(x, rotation), rotate(y, rotation)
        own = _add(own, x.T @ x)
        cross = _add(cross, y.T @ x)
        if group.before:
            drift = _add(drift, (residual - residual_of_copy).T @ x)
        n_tokens += len(x)
    assert own is not None
    assert cross is not None
    return Moments(own=own / n_tokens, cross=cross / n_tokens, drift=None if drift is None else drift / n_tokens)


def _add(total: Tensor | None, part: Tensor) -> Tensor:
    return part if total is None else total.add_(part)


def _inputs(decoder: Decoder, side: Side, index: int, group: Group) -> tuple[Tensor, Tensor]:
    """The input [tokens, K] of the group's matrices, and the residual stream [tokens, hidden] before them."""
    seen: dict[str, Tensor] = {}

    def keep(name: str, *, stop: bool) -> Callable[[object, tuple[Tensor, ...]], None]:
        def hook(_module: object, arguments: tuple[Tensor, ...]) -> None:
            seen[name] = arguments[0].flatten(0, -2)
            if stop:
                raise _Reached

        return hook

    layer = side.layer
    hooks = [layer.get_submodule(group.matrices[0]).register_forward_pre_hook(keep("input", stop=True))]
    if group.before:
        hooks.append(layer.get_submodule(group.before).register_forward_pre_hook(keep("residual", stop=False)))
    try:
        run_layer(decoder, side, index)
    except _Reached:
        pass
    finally:
        for hook in hooks:
            hook.remove()
    return seen["input"], seen.get("residual", seen["input"])


def target(w: Tensor, moments: Moments, damping: float) -> Tensor:
    """The matrix [N, K] whose output in the rounded copy comes nearest to the model's: W C (H + cI)^-1, and for a
    matrix that writes to the residual stream also what that lacks (least squares with W as the prior).

    w: [N, K] in the stored basis. damping: c over the mean of H's diagonal; the larger, the nearer to w.
    """
    ridge = damping * moments.own.diagonal().mean().clamp(min=1e-30)
    h = moments.own.clone()
    h.diagonal().add_(ridge)
    wanted = w @ moments.cross + ridge * w
    if moments.drift is not None:
        wanted += moments.drift
    return torch.cholesky_solve(wanted.T, torch.linalg.cholesky(h)).T.contiguous()
