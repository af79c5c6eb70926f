"""ModelConfig and RopeScaling, and the numbers that follow from them. Where they come from is parse.py's business."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

RopeKind = Literal["linear", "llama3", "yarn", "longrope", "proportional"]
RopeName = Literal["global", "local", "none"]
Routing = Literal["softmax_topk", "topk_softmax"]
ExpertActivation = Literal["silu", "gelu_tanh", "clamped_swiglu"]
RouterName = Literal["gate", "router", "router.proj"]
Activation = Literal["silu", "gelu_tanh"]
NormPlacement = Literal["before", "after", "around"]
HeadNorm = Literal["none", "head", "row"]


@dataclass(frozen=True, kw_only=True)
class RopeScaling:
    """How rotary frequencies are stretched beyond the context of pretraining.

    linear: all frequencies divided by `factor`. llama3 (Llama 3.1): low ones divided, high ones kept, a ramp between
    original_max_position_embeddings / low_freq_factor and / high_freq_factor. yarn (arXiv:2309.00071): a ramp over the
    dimensions between beta_fast and beta_slow rotations, its ends rounded outwards with truncate; attention_factor
    multiplies cos and sin. longrope (arXiv:2402.13753): each frequency divided by its own factor, of long_factors where
    the context is longer than original_max_position_embeddings, else of short_factors. proportional (Gemma 4): linear,
    and of all frequencies only the first `share` are not 0.
    """

    kind: RopeKind
    factor: float
    original_max_position_embeddings: int
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    attention_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    short_factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()
    share: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Rope:
    """A rotary embedding: its base, its scaling, and how many elements of a head it turns, the first `dim`."""

    theta: float
    scaling: RopeScaling | None
    dim: int

    @property
    def attention_factor(self) -> float:
        return self.scaling.attention_factor if self.scaling else 1.0


@dataclass(frozen=True, kw_only=True)
class QueryGrowth:
    """Queries at position p are multiplied by 1 + beta * ln(1 + floor(p / span)) (Llama 4, Ministral 3)."""

    beta: float
    span: int


@dataclass(frozen=True, kw_only=True)
class ExpertsConfig:
    """The mixture of experts that the layers `layers` have in place of their MLP, or beside it.

    count: experts of a layer, of which each token takes `per_token`; intermediate_size: of one expert. routing: a
    token weighs its experts by their shares of a softmax over all ("softmax_topk"), or over the chosen alone
    ("topk_softmax"), which is what dividing the former by their sum gives. activation: act(gate) * up, or gpt-oss's
    clamped form of it. has_bias: on the router and on the experts' matrices. router: what checkpoints call it.
    shared_size: intermediate_size of one more expert, which every token takes besides, weighed by the sigmoid of a
    score of its own; None where there is none. is_beside: the layers have an MLP too, and what each of both gives is
    normed before they are added; the router has a norm of its own, and a chosen expert's weight a factor (Gemma 4).
    """

    count: int
    per_token: int
    intermediate_size: int
    routing: Routing
    activation: ExpertActivation
    has_bias: bool
    router: RouterName
    layers: tuple[int, ...]
    shared_size: int | None = None
    is_beside: bool = False

    @property
    def width_of_token(self) -> int:
        """intermediate_size of all that one token takes."""
        return self.per_token * self.intermediate_size + (self.shared_size or 0)


@dataclass(frozen=True, kw_only=True)
class DeltaConfig:
    """The gated delta net (arXiv:2412.06464) that the layers `layers` have in place of attention.

    A value head keeps a matrix [key_dim, value_dim]; a key head, with its query, serves value_heads / key_heads of
    them. taps: tokens that the convolution before it sees, the last one included.
    """

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    taps: int
    layers: tuple[int, ...]

    @property
    def keys_size(self) -> int:
        """Keys of a token, and as many elements of queries."""
        return self.key_heads * self.key_dim

    @property
    def values_size(self) -> int:
        return self.value_heads * self.value_dim

    @property
    def channels(self) -> int:
        """What the convolution mixes: queries, keys and values."""
        return 2 * self.keys_size + self.values_size


@dataclass(frozen=True, kw_only=True)
class HeadSizes:
    """The heads of one layer: num_kv_heads of keys and as many of values, of head_dim elements like those of queries.

    shares_projection: values are made of what keys are made of, and there is no v_proj (Gemma 4).
    """

    num_kv_heads: int
    head_dim: int
    shares_projection: bool = False

    @property
    def keys_size(self) -> int:
        """Keys of a token, and as many elements of values."""
        return self.num_kv_heads * self.head_dim

    @property
    def projected_size(self) -> int:
        """Rows of k_proj and v_proj."""
        return self.keys_size * (1 if self.shares_projection else 2)


@dataclass(frozen=True, kw_only=True)
class LayerInputs:
    """What each layer gets of a token beside the stream: `size` elements, made of the token's embedding and of a row of
    a table of `vocab_size` rows, which all layers share (Gemma 4's small models)."""

    size: int
    vocab_size: int


@dataclass(frozen=True, kw_only=True)
class SharedCaches:
    """The layers from `first` on keep no keys and values: each sees those of the last layer before `first` that has a
    window, or none, as it has (Gemma 4's small models). has_wide_mlps: their MLPs have twice the width."""

    first: int
    has_wide_mlps: bool


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A decoder of the Llama family: RMSNorm, rotary positions, grouped-query attention, gated MLPs or experts.

    attention_bias: q, k and v projections; attention_output_bias: the o projection. qk_norm: an RMSNorm on each
    head of q and of k ("head"), or on all heads of q and on all of k ("row"). sliding_window: a token of the layers
    `sliding_layers` sees that many tokens, itself included; None when every layer sees all. has_sinks: each head has a
    learned logit without a value in its softmax (gpt-oss). attention_scale: of the scores; None for 1 / sqrt(head_dim).
    score_cap: c, where scores are c * tanh(scores / c) (Gemma 2).
    rotary_dim: elements of a head that are turned; None for all. local_rope_theta: of the sliding layers where their
    rotary embedding is another one. unrotated_layers: those whose heads are not turned at all (SmolLM3). query_growth:
    of the queries of all layers; None where they have the same size at every position.

    is_gated: q_proj also gives each head a gate, whose sigmoid its mixture of values is multiplied by (Qwen3.5). delta:
    what some layers have in place of attention.

    experts: what some layers have in place of the MLP or beside it; activation: of the MLP. norms: whether a layer's
    branches have an RMSNorm before them, after them or both; norm_offset: what is added to the weights of all norms (1
    in Gemma 2 and 3).
    is_joined: checkpoints have q, k and v in one matrix, and gate and up in another (Phi-3). embedding_factor: what
    embeddings are multiplied by, rounded to the type of the weights where rounds_embedding_factor (Gemma).
    logit_factor: what logits are, in the gain of the last norm. logit_cap: c, where logits are c * tanh(logits / c).
    full_heads: of the layers that are not sliding, where they have their own. has_value_norm: an RMSNorm without
    weights on each head of v. has_layer_scalars: what comes out of a layer is multiplied by a number (Gemma 4).
    layer_inputs: what layers get beside the stream; shared_caches: which layers keep no keys and values of their own.

    Where a family multiplies what branches add (Granite), the residual stream is divided by that, as rms_norm_eps, by
    its square, and embedding_factor are. eos_token_ids: every id that config.json names, in its order.
    """

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    attention_bias: bool
    attention_output_bias: bool
    mlp_bias: bool
    qk_norm: HeadNorm
    sliding_window: int | None
    sliding_layers: tuple[int, ...]
    tie_word_embeddings: bool
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    experts: ExpertsConfig | None = None
    has_sinks: bool = False
    rotary_dim: int | None = None
    local_rope_theta: float | None = None
    unrotated_layers: tuple[int, ...] = ()
    attention_scale: float | None = None
    score_cap: float | None = None
    query_growth: QueryGrowth | None = None
    activation: Activation = "silu"
    norms: NormPlacement = "before"
    norm_offset: float = 0.0
    is_joined: bool = False
    is_gated: bool = False
    delta: DeltaConfig | None = None
    embedding_factor: float = 1.0
    rounds_embedding_factor: bool = False
    logit_factor: float = 1.0
    logit_cap: float | None = None
    full_heads: HeadSizes | None = None
    has_value_norm: bool = False
    has_layer_scalars: bool = False
    layer_inputs: LayerInputs | None = None
    shared_caches: SharedCaches | None = None

    @property
    def num_norms(self) -> int:
        """RMSNorms of hidden_size in a layer."""
        return 4 if self.norms == "around" else 2

    def heads(self, layer: int) -> HeadSizes:
        """Of this layer's attention."""
        if self.full_heads is not None and layer not in self.sliding_layers:
            return self.full_heads
        return HeadSizes(num_kv_heads=self.num_kv_heads, head_dim=self.head_dim)

    def queries_size(self, layer: int) -> int:
        """Rows of q_proj."""
        return self.num_heads * self.heads(layer).head_dim * (2 if self.is_gated else 1)

    def qkv_size(self, layer: int) -> int:
        """Rows of q_proj, k_proj and v_proj."""
        return self.queries_size(layer) + (0 if self.shares_cache(layer) else self.heads(layer).projected_size)

    def mlp_size(self, layer: int) -> int:
        """intermediate_size of this layer's MLP."""
        is_wide = self.shared_caches is not None and self.shared_caches.has_wide_mlps and self.shares_cache(layer)
        return self.intermediate_size * (2 if is_wide else 1)

    @property
    def widest_mlp(self) -> int:
        """The largest intermediate_size of a layer."""
        return max(map(self.mlp_size, range(self.num_layers)))

    @property
    def inputs_size(self) -> int:
        """What all layers get of a token beside the stream, together; 0 where they get nothing."""
        return 0 if self.layer_inputs is None else self.num_layers * self.layer_inputs.size

    @property
    def attention_layers(self) -> tuple[int, ...]:
        """The layers that have attention."""
        return tuple(layer for layer in range(self.num_layers) if not self.has_delta(layer))

    @property
    def caching_layers(self) -> tuple[int, ...]:
        """Those of them that keep keys and values."""
        return tuple(layer for layer in self.attention_layers if not self.shares_cache(layer))

    def shares_cache(self, layer: int) -> bool:
        """Whether this layer has no keys and values of its own."""
        return self.shared_caches is not None and layer >= self.shared_caches.first

    def seen_by(self, layer: int) -> int:
        """The layer whose keys and values this one sees: itself, unless it shares those of another."""
        if self.shared_caches is None or not self.shares_cache(layer):
            return layer
        kind = layer in self.sliding_layers
        return max(one for one in range(self.shared_caches.first) if (one in self.sliding_layers) == kind)

    def has_delta(self, layer: int) -> bool:
        """Whether this layer has a gated delta net in place of attention."""
        return self.delta is not None and layer in self.delta.layers

    def kept_at(self, layer: int) -> int:
        """Where what this layer keeps or sees of the past lies: a number among the layers that keep the same."""
        return sum(self.has_delta(before) == self.has_delta(layer) for before in range(self.seen_by(layer)))

    @property
    def ropes(self) -> dict[RopeName, Rope]:
        """The rotary embeddings of the model: "local" is that of its sliding layers, where they have their own, and
        "none" turns nothing."""
        full = self.head_dim if self.full_heads is None else self.full_heads.head_dim
        dim, local_dim = (full, self.head_dim) if self.rotary_dim is None else (self.rotary_dim, self.rotary_dim)
        found: dict[RopeName, Rope] = {"global": Rope(theta=self.rope_theta, scaling=self.rope_scaling, dim=dim)}
        if self.local_rope_theta is not None:
            found["local"] = Rope(theta=self.local_rope_theta, scaling=None, dim=local_dim)
        if self.unrotated_layers:
            found["none"] = Rope(theta=self.rope_theta, scaling=None, dim=0)
        return found

    def rope(self, layer: int) -> RopeName:
        """Which of `ropes` turns the heads of this layer."""
        if layer in self.unrotated_layers:
            return "none"
        return "local" if self.local_rope_theta is not None and layer in self.sliding_layers else "global"

    def window(self, layer: int) -> int | None:
        """Tokens that a token of this layer sees, itself included; None for all."""
        return self.sliding_window if layer in self.sliding_layers else None


def num_parameters(config: ModelConfig) -> int:
    """Weights of the model, exactly; tied embeddings are counted once, and the scalars of layers are none."""
    hidden = config.hidden_size
    sparse = config.experts.layers if config.experts else ()
    is_beside = config.experts is not None and config.experts.is_beside
    dense = [layer for layer in range(config.num_layers) if is_beside or layer not in sparse]
    mlps = len(sparse) * _mixture(config) + sum(_mlp(config, config.mlp_size(layer)) for layer in dense)
    embeddings = config.vocab_size * hidden * (1 if config.tie_word_embeddings else 2)
    mixers = sum(_attention(config, layer) for layer in config.attention_layers) + _delta_nets(config)
    norms = config.num_layers * config.num_norms * hidden + hidden
    return embeddings + mixers + norms + mlps + _layer_inputs(config)


def _mlp(config: ModelConfig, width: int) -> int:
    """Weights of a gated MLP of that width."""
    return 3 * config.hidden_size * width + (2 * width + config.hidden_size if config.mlp_bias else 0)


def _layer_inputs(config: ModelConfig) -> int:
    """Weights that make the inputs of layers, with their table, and that put them into the stream, with their norms."""
    inputs, hidden = config.layer_inputs, config.hidden_size
    if inputs is None:
        return 0
    of_layer = inputs.size * (inputs.vocab_size + 3 * hidden) + hidden
    return config.num_layers * of_layer + inputs.size


def _attention(config: ModelConfig, layer: int) -> int:
    """Weights of one layer's attention."""
    heads = config.heads(layer)
    q_size, qkv_size = config.num_heads * heads.head_dim, config.qkv_size(layer)
    weights = config.hidden_size * (qkv_size + q_size)
    weights += qkv_size if config.attention_bias else 0
    weights += config.hidden_size if config.attention_output_bias else 0
    of_keys = 0 if config.shares_cache(layer) else 1
    weights += {"none": 0, "head": heads.head_dim, "row": q_size}[config.qk_norm]
    weights += of_keys * {"none": 0, "head": heads.head_dim, "row": heads.keys_size}[config.qk_norm]
    return weights + (config.num_heads if config.has_sinks else 0)


def _delta_nets(config: ModelConfig) -> int:
    """Weights of all gated delta nets: four projections in, one out, the convolution, decays, and the norm."""
    delta, hidden = config.delta, config.hidden_size
    if delta is None:
        return 0
    one = hidden * (delta.channels + 2 * delta.values_size + 2 * delta.value_heads)
    return len(delta.layers) * (one + delta.channels * delta.taps + 2 * delta.value_heads + delta.value_dim)


def _mixture(config: ModelConfig) -> int:
    """Weights of the router and of all experts of a layer, with the shared one's score, or what is beside an MLP."""
    experts, hidden = config.experts, config.hidden_size
    if experts is None:
        return 0
    width, bias = experts.intermediate_size, int(experts.has_bias)
    more = 0 if experts.shared_size is None else hidden + 3 * hidden * experts.shared_size
    more += experts.count + 4 * hidden if experts.is_beside else 0  # factors, the router's scale, three norms
    return more + experts.count * (hidden + bias + 3 * hidden * width + bias * (2 * width + hidden))
