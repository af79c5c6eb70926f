"""The blocks that architectures are composed of: norm, attention, gated MLP, layer, decoder. What some layers have in
place of attention is in delta_net.py, and in place of the MLP, or beside it, in moe.py.

Each is a module whose parameters have the names of Hugging Face checkpoints. Which model uses which block, and with
what, is said in architectures/; where the weights come from is the loader's business.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from runner.backends.native.attend import attend
from runner.backends.native.delta_net import DeltaNet
from runner.backends.native.kv_cache import KvCache
from runner.backends.native.linear import Linear
from runner.backends.native.rope import grown, inverse_frequencies, rotate, rotations
from runner.model_config import Activation, HeadNorm, HeadSizes, ModelConfig, NormPlacement, QueryGrowth, RopeName

Tap = Callable[[int, Tensor], None]
"""Hears the residual stream [..., T, hidden] before each layer and after the last, and how many layers it has passed.
What it keeps of it, it must copy: the stream goes on changing."""


def go_on() -> None:
    """A checkpoint that lets everything pass."""


class Checkpointed(Protocol):
    """What a block that reads no cache needs of a pass; see Pass."""

    @property
    def checkpoint(self) -> Callable[[], None]: ...


class Mixing(Checkpointed, Protocol):
    """What attention needs of a pass: that it keeps keys and values, and lets queries see them.

    start: the position of the first of the T new tokens, a number or [1] on the device.
    """

    @property
    def start(self) -> int | Tensor: ...

    def mix(self, attention: Attention, x: Tensor, layer: int) -> Tensor:
        """The heads' mixtures of values [..., T, H * D] for x [..., T, in_features], whose keys and values it keeps,
        unless the attention shares those of another layer.

        They are gated, where the attention is. layer: see ModelConfig.kept_at.
        """
        ...


@dataclass(frozen=True)
class Pass:
    """What the layers of one forward pass share.

    rotations: by RopeName, cos and sin [T, R/2] of the T new positions, the first of which is `start`. checkpoint:
    called between the large products; it may raise to end the pass, which leaves the cache's length as it was.
    """

    cache: KvCache
    start: int
    rotations: Mapping[RopeName, tuple[Tensor, Tensor]]
    checkpoint: Callable[[], None]

    def mix(self, attention: Attention, x: Tensor, layer: int) -> Tensor:
        """See Mixing."""
        gate = None
        if attention.shares_cache:
            q = attention.queries(x, *self.rotations[attention.rope])
            keys, values = self.cache.kept(layer, x.shape[-2])
        else:
            q, k, v, gate = attention.heads(x, *self.rotations[attention.rope])
            keys, values = self.cache.put(layer, k, v)
        if attention.growth is not None:
            q = grown(q, self.start, attention.growth)
        scale, window = attention.scale, attention.window
        keys, values = keys.to(q.dtype), values.to(q.dtype)
        mixed = attend(q, keys, values, self.start, window, scale, attention.sinks, attention.cap)
        mixed = mixed.transpose(-3, -2).flatten(-2)
        return mixed if gate is None else mixed * gate.sigmoid()

    def recur(self, net: DeltaNet, x: Tensor, layer: int) -> Tensor:
        """See Recurring."""
        n_tokens = x.shape[-2]
        found, states = net.outputs(x, self.cache.state(layer), self.cache.n_states(n_tokens), self.checkpoint)
        self.cache.put_states(layer, states, n_tokens)
        return found


class RmsNorm(nn.Module):
    """x / rms(x) * (weight + offset) * factor over the last dimension, computed in float32 (arXiv:1910.07467)."""

    def __init__(self, size: int, eps: float, offset: float = 0.0, factor: float = 1.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size), requires_grad=False)
        self.eps = eps
        self.offset = offset
        self.factor = factor

    def gain_of(self, weight: Tensor) -> Tensor:
        """What x / rms(x) is multiplied by where `weight` is the checkpoint's."""
        return (weight + self.offset) * self.factor

    @property
    def gain(self) -> Tensor:
        """What kernels multiply by, float32."""
        return self.gain_of(self.weight.float())

    def forward(self, x: Tensor) -> Tensor:
        if not self.offset and self.factor == 1:
            return functional.rms_norm(x, self.weight.shape, self.weight, self.eps)
        # What Gemma's models round is the product, not its factors.
        wide = torch.promote_types(x.dtype, torch.float32)
        gain = self.gain_of(self.weight.to(wide))
        return functional.rms_norm(x.to(wide), gain.shape, gain, self.eps).to(x.dtype)


class Attention(nn.Module):
    """Causal grouped-query attention with rotary positions.

    bias: on q, k and v; output_bias: on o. norm: an RmsNorm before the rotation, on each head of q and of k ("head"),
    or on all heads of q and on all of k ("row"). window: tokens that a token sees, itself included; None for all.
    sinks: a logit of each head, [H], that takes part in its softmax and has no value. scale: of the scores,
    1 / sqrt(head_dim) unless it is given. growth: of queries with their position. rope: which of the model's rotations
    it turns by. is_joined: q, k and v are the rows of one matrix, qkv_proj. is_gated: q_proj gives [H, 2, D], of each
    head the query and a gate, whose sigmoid its mixture of values is multiplied by. in_features: of what q, k and v
    read; hidden_size unless it is given. heads: of this layer, the config's own unless they are given.
    has_value_norm: an RMSNorm without weights on each head of v. shares_cache: it has queries alone, which see the keys
    and values that a layer before it keeps.
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        bias: bool = False,
        output_bias: bool = False,
        norm: HeadNorm = "none",
        window: int | None = None,
        sinks: bool = False,
        scale: float | None = None,
        cap: float | None = None,
        growth: QueryGrowth | None = None,
        rope: RopeName = "global",
        is_joined: bool = False,
        is_gated: bool = False,
        in_features: int | None = None,
        heads: HeadSizes | None = None,
        has_value_norm: bool = False,
        shares_cache: bool = False,
    ) -> None:
        super().__init__()
        heads = heads or HeadSizes(num_kv_heads=config.num_kv_heads, head_dim=config.head_dim)
        assert is_joined + is_gated + heads.shares_projection <= 1
        assert not shares_cache or (norm == "head" and not is_joined and not is_gated)
        q_size, kv_size = config.num_heads * heads.head_dim, heads.keys_size
        width = config.hidden_size if in_features is None else in_features
        self.is_joined = is_joined
        self.is_gated = is_gated
        if is_joined:
            self.qkv_proj = Linear(width, q_size + 2 * kv_size, bias=bias)
        else:
            self.q_proj = Linear(width, 2 * q_size if is_gated else q_size, bias=bias)
            self.k_proj = None if shares_cache else Linear(width, kv_size, bias=bias)
            has_values = not (shares_cache or heads.shares_projection)
            self.v_proj = Linear(width, kv_size, bias=bias) if has_values else None
        self.o_proj = Linear(q_size, config.hidden_size, bias=output_bias)
        of_q, of_k = (heads.head_dim, heads.head_dim) if norm == "head" else (q_size, kv_size)
        self.q_norm = RmsNorm(of_q, config.rms_norm_eps, config.norm_offset) if norm != "none" else None
        has_keys_norm = norm != "none" and not shares_cache
        self.k_norm = RmsNorm(of_k, config.rms_norm_eps, config.norm_offset) if has_keys_norm else None
        self.sinks = nn.Parameter(torch.empty(config.num_heads), requires_grad=False) if sinks else None
        self.norm = norm
        self.num_heads = config.num_heads
        self.num_kv_heads = heads.num_kv_heads
        self.head_dim = heads.head_dim
        self.shares_projection = heads.shares_projection
        self.shares_cache = shares_cache
        self.has_value_norm = has_value_norm
        self.eps = config.rms_norm_eps
        self.window = window
        self.scale = heads.head_dim**-0.5 if scale is None else scale
        self.cap = cap
        self.growth = growth
        self.rope = rope

    def forward(self, x: Tensor, layer: int, run: Mixing) -> Tensor:
        """x: [..., T, in_features] -> [..., T, hidden]; K and V of the T tokens go into the cache, unless it
        sees those of another layer."""
        return self.o_proj(run.mix(self, x, layer))  # type: ignore[no-any-return]

    def heads(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """q [..., H, T, D], k and v [..., G, T, D] of x, normed, q and k turned by cos and sin [T, R/2]; the gate
        [..., T, H * D], or None. Values that share the keys' projection are neither normed with them nor turned."""
        q, k, v, gate = self.projections(x)
        if self.norm == "row":
            q, k = self._normed(q, k)
        q, k, v = (part.view(*part.shape[:-1], -1, self.head_dim).transpose(-3, -2) for part in (q, k, v))
        if self.norm == "head":
            q, k = self._normed(q, k)
        if self.has_value_norm:
            v = functional.rms_norm(v, v.shape[-1:], None, self.eps)
        return rotate(q, cos, sin), rotate(k, cos, sin), v, gate

    def queries(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """q [..., H, T, D] of x, normed by heads and turned: all that an attention has which shares a cache."""
        assert self.q_norm is not None
        q = self.q_proj(x)
        return rotate(self.q_norm(q.view(*q.shape[:-1], -1, self.head_dim).transpose(-3, -2)), cos, sin)

    def output(self, mixed: Tensor) -> Tensor:
        """The heads' mixtures of values [..., H, T, D] through the output projection: [..., T, hidden]."""
        return self.o_proj(mixed.transpose(-3, -2).flatten(-2))  # type: ignore[no-any-return]

    def projections(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """q [..., T, H * D], k and v [..., T, G * D], and the gate [..., T, H * D], or None."""
        if self.is_joined:
            kv_size = self.num_kv_heads * self.head_dim
            q, k, v = self.qkv_proj(x).split([self.num_heads * self.head_dim, kv_size, kv_size], dim=-1)
            return q, k, v, None
        assert self.k_proj is not None
        q, k = self.q_proj(x), self.k_proj(x)
        v = k if self.v_proj is None else self.v_proj(x)
        if not self.is_gated:
            return q, k, v, None
        q, gate = (part.flatten(-2) for part in q.view(*q.shape[:-1], self.num_heads, 2, -1).unbind(-2))
        return q, k, v, gate

    def _normed(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        assert self.q_norm is not None
        assert self.k_norm is not None
        return self.q_norm(q), self.k_norm(k)


def activated(x: Tensor, activation: Activation) -> Tensor:
    return functional.silu(x) if activation == "silu" else functional.gelu(x, approximate="tanh")


class GatedMlp(nn.Module):
    """down(act(gate(x)) * up(x)) (SwiGLU and GEGLU, arXiv:2002.05202).

    activation: "silu", or "gelu_tanh", gelu by its tanh formula. is_joined: gate and up are the rows of one matrix,
    gate_up_proj. width: intermediate_size unless it is given.
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        bias: bool = False,
        activation: Activation = "silu",
        is_joined: bool = False,
        width: int | None = None,
    ) -> None:
        super().__init__()
        self.activation = activation
        self.is_joined = is_joined
        hidden, width = config.hidden_size, config.intermediate_size if width is None else width
        if is_joined:
            self.gate_up_proj = Linear(hidden, 2 * width, bias=bias)
        else:
            self.gate_proj = Linear(hidden, width, bias=bias)
            self.up_proj = Linear(hidden, width, bias=bias)
        self.down_proj = Linear(width, hidden, bias=bias)

    def forward(self, x: Tensor, run: Checkpointed) -> Tensor:
        gate, up = self.gate_up_proj(x).chunk(2, dim=-1) if self.is_joined else (self.gate_proj(x), None)
        gate = activated(gate, self.activation)
        run.checkpoint()
        gate *= self.up_proj(x) if up is None else up
        run.checkpoint()
        return self.down_proj(gate)  # type: ignore[no-any-return]


@dataclass(frozen=True, kw_only=True)
class LayerNorms:
    """What checkpoints call the norms of a layer: of what a branch reads, and of what it adds; None where none is."""

    before_attention: str | None = "input_layernorm"
    after_attention: str | None = None
    before_mlp: str | None = "post_attention_layernorm"
    after_mlp: str | None = None


LAYER_NORMS: Final[Mapping[NormPlacement, LayerNorms]] = {
    "before": LayerNorms(),
    "after": LayerNorms(
        before_attention=None,
        after_attention="post_attention_layernorm",
        before_mlp=None,
        after_mlp="post_feedforward_layernorm",
    ),
    "around": LayerNorms(
        after_attention="post_attention_layernorm",
        before_mlp="pre_feedforward_layernorm",
        after_mlp="post_feedforward_layernorm",
    ),
}


class Layer(nn.Module):
    """x + after(attention(before(x))), then the same with the MLP: the layer of every architecture here.

    attention: checkpoints call it self_attn, and a delta net in its place linear_attn. mlp: a GatedMlp, or a module
    with its forward. Which norms there are, and their offset, is in `config`, and whether all that comes out is
    multiplied by a number of the layer's own, layer_scalar [1]. Where the config has inputs for layers, a third branch
    follows: norm(projection(act(gate(x)) * input)), and x + that.
    """

    def __init__(self, config: ModelConfig, *, attention: Attention | DeltaNet, mlp: nn.Module) -> None:
        super().__init__()
        self.norms = LAYER_NORMS[config.norms]
        self.self_attn = attention if isinstance(attention, Attention) else None
        self.linear_attn = attention if isinstance(attention, DeltaNet) else None
        self.mlp = mlp
        self.layer_scalar = nn.Parameter(torch.empty(1), requires_grad=False) if config.has_layer_scalars else None
        for name in dataclasses.astuple(self.norms):
            if name is not None:
                self.add_module(name, RmsNorm(config.hidden_size, config.rms_norm_eps, config.norm_offset))
        self.has_input = config.layer_inputs is not None
        if (inputs := config.layer_inputs) is not None:
            self.activation = config.activation
            self.per_layer_input_gate = Linear(config.hidden_size, inputs.size, bias=False)
            self.per_layer_projection = Linear(inputs.size, config.hidden_size, bias=False)
            self.post_per_layer_input_norm = RmsNorm(config.hidden_size, config.rms_norm_eps, config.norm_offset)

    def forward(self, x: Tensor, layer: int, run: Mixing, own_input: Tensor | None = None) -> Tensor:
        """layer: where it keeps or sees what is kept of the past (ModelConfig.kept_at). own_input: [..., T, size],
        where the config has inputs for layers."""
        norms = self.norms
        attention = self.linear_attn if self.self_attn is None else self.self_attn
        assert attention is not None
        run.checkpoint()
        x = x + self._normed(norms.after_attention, attention(self._normed(norms.before_attention, x), layer, run))
        run.checkpoint()
        x = x + self._normed(norms.after_mlp, self.branch(x, run))
        if self.has_input:
            assert own_input is not None
            gated = activated(self.per_layer_input_gate(x), self.activation) * own_input
            x = x + self.post_per_layer_input_norm(self.per_layer_projection(gated))
        return x if self.layer_scalar is None else x * self.layer_scalar

    def branch(self, x: Tensor, run: Mixing) -> Tensor:
        """What comes of the stream x between attention and the layer's last norm."""
        return self.mlp(self._normed(self.norms.before_mlp, x), run)  # type: ignore[no-any-return]

    def _normed(self, name: str | None, x: Tensor) -> Tensor:
        return x if name is None else self.get_submodule(name)(x)


class Embedding(nn.Module):
    """Rows of `weight` [V, size] by token id, times a factor, rounded to the type of the weights or as it is."""

    def __init__(self, vocab_size: int, size: int, factor: float, *, rounds_factor: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab_size, size), requires_grad=False)
        self._factor = factor
        self._rounds_factor = rounds_factor

    @classmethod
    def of(cls, config: ModelConfig) -> Embedding:
        """The model's own."""
        factor, rounds = config.embedding_factor, config.rounds_embedding_factor
        return cls(config.vocab_size, config.hidden_size, factor, rounds_factor=rounds)

    def factor(self, dtype: torch.dtype) -> float:
        """What weights of that type are multiplied by."""
        return float(torch.tensor(self._factor, dtype=dtype)) if self._rounds_factor else self._factor

    def forward(self, tokens: Tensor) -> Tensor:
        rows = functional.embedding(tokens, self.weight)
        factor = self.factor(rows.dtype)
        return rows if factor == 1 else rows * factor


class Trunk(nn.Module):
    """Embeddings, layers, final norm: what checkpoints keep under "model.". Where layers have inputs, these are made
    here of the token's row of a table and of its embedding, both in equal shares."""

    def __init__(self, config: ModelConfig, layers: Sequence[Layer]) -> None:
        super().__init__()
        self.embed_tokens = Embedding.of(config)
        self._inputs = inputs = config.layer_inputs
        if inputs is not None:
            width, factor = len(layers) * inputs.size, inputs.size**0.5
            self.embed_tokens_per_layer = Embedding(inputs.vocab_size, width, factor, rounds_factor=True)
            self.per_layer_model_projection = Linear(config.hidden_size, width, bias=False)
            # What it norms is divided by the root of hidden_size; the norm of what is not has an eps that much larger.
            eps = config.rms_norm_eps * config.hidden_size
            self.per_layer_projection_norm = RmsNorm(inputs.size, eps, config.norm_offset)
        self.layers = nn.ModuleList(layers)
        self.norm = RmsNorm(config.hidden_size, config.rms_norm_eps, config.norm_offset, config.logit_factor)

    def layer_inputs(self, tokens: Tensor, x: Tensor) -> Sequence[Tensor] | None:
        """What each layer gets of tokens [..., T] whose embeddings are x [..., T, hidden]: [..., T, size] each; None
        where layers get nothing."""
        if self._inputs is None:
            return None
        made = self.per_layer_model_projection(x).unflatten(-1, (-1, self._inputs.size))
        rows = self.embed_tokens_per_layer(tokens).view(made.shape)
        mixed: Tensor = (self.per_layer_projection_norm(made) + rows) * 0.5**0.5
        return mixed.unbind(-2)


class Decoder(nn.Module):
    """A whole model: token ids and a KvCache in, hidden states or logits out."""

    def __init__(self, config: ModelConfig, layers: Sequence[Layer]) -> None:
        super().__init__()
        self.config = config
        self.model = Trunk(config, layers)
        self.lm_head = None if config.tie_word_embeddings else Linear(config.hidden_size, config.vocab_size)
        self._frequencies: dict[RopeName, Tensor] = {}
        self._kept_at = [config.kept_at(index) for index in range(len(layers))]

    @property
    def layers(self) -> list[Layer]:
        return [layer for layer in self.model.layers if isinstance(layer, Layer)]

    def forward(self, tokens: Tensor, cache: KvCache, checkpoint: Callable[[], None], tap: Tap | None = None) -> Tensor:
        """The final hidden states [T, hidden] of `tokens` [T] int64, placed after what the cache holds.

        The cache must have room for them (`reserve`), and holds them afterwards. Sequences of one length may come as a
        batch: [B, T] gives [B, T, hidden], with a cache made for B. tap: see Tap.
        """
        run = self.start_pass(cache, tokens.shape[-1], tokens.device, checkpoint)
        cache.begin(tokens.shape[-1])
        x = self.model.embed_tokens(tokens)
        inputs = self.model.layer_inputs(tokens, x)
        for index, layer in enumerate(self.model.layers):
            if tap is not None:
                tap(index, x)
            x = layer(x, self._kept_at[index], run, None if inputs is None else inputs[index])
        if tap is not None:
            tap(len(self.model.layers), x)
        cache.advance(tokens.shape[-1])
        return self.model.norm(x)  # type: ignore[no-any-return]

    def logits(self, hidden: Tensor) -> Tensor:
        """The logits [..., V] float32 of final hidden states [..., hidden]."""
        weight = self.model.embed_tokens.weight if self.lm_head is None else self.lm_head.weight
        found, cap = functional.linear(hidden, weight).float(), self.config.logit_cap
        return found if cap is None else cap * torch.tanh(found / cap)

    def start_pass(self, cache: KvCache, n_tokens: int, device: torch.device, checkpoint: Callable[[], None]) -> Pass:
        """What the layers share for `n_tokens` tokens after those that the cache holds."""
        positions = torch.arange(cache.length, cache.length + n_tokens, dtype=torch.float32, device=device)
        return Pass(cache, cache.length, self.rotations(positions, cache.n_ctx), checkpoint)

    def rotations(self, positions: Tensor, n_ctx: int) -> dict[RopeName, tuple[Tensor, Tensor]]:
        """cos and sin [T, R/2] float32 of `positions` [T] float32, for each of the model's rotary embeddings.

        n_ctx: the context that the model is loaded for, the same in every call.
        """
        frequencies = self.frequencies(n_ctx, positions.device)
        return {
            name: rotations(positions, frequencies[name], rope.attention_factor)
            for name, rope in self.config.ropes.items()
        }

    def frequencies(self, n_ctx: int, device: torch.device) -> dict[RopeName, Tensor]:
        """What positions are multiplied by, [R/2] float32 for each of the model's rotary embeddings; see rotations."""
        if not self._frequencies:
            self._frequencies = {
                name: inverse_frequencies(rope, n_ctx).to(device) for name, rope in self.config.ropes.items()
            }
        return self._frequencies
