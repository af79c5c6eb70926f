"""The tensor rules that dense decoder architectures share, under the names of Hugging Face and of GGUF.

An architecture's file puts these together; nothing here knows which model uses what.
"""

from __future__ import annotations

from typing import Final

from runner.quant.tensor_rules import (
    TensorRule,
    attention_bias,
    attention_output_bias,
    has_layer_inputs,
    has_layer_scalars,
    has_sinks,
    mlp_bias,
    untied,
)

_LAYER: Final = "model.layers.{layer}."
_BLOCK: Final = "blk.{layer}."

EMBEDDINGS: Final = (
    TensorRule(source="model.embed_tokens.weight", target="token_embd.weight", shape=("vocab", "hidden")),
    TensorRule(source="model.norm.weight", target="output_norm.weight", shape=("hidden",), changed="norm"),
    TensorRule(source="lm_head.weight", target="output.weight", shape=("vocab", "hidden"), when=untied),
)

NORMS: Final = (
    TensorRule(
        source=_LAYER + "input_layernorm.weight", target=_BLOCK + "attn_norm.weight", shape=("hidden",), changed="norm"
    ),
    TensorRule(
        source=_LAYER + "post_attention_layernorm.weight",
        target=_BLOCK + "ffn_norm.weight",
        shape=("hidden",),
        changed="norm",
    ),
)

_POST_ATTENTION: Final = TensorRule(
    source=_LAYER + "post_attention_layernorm.weight",
    target=_BLOCK + "post_attention_norm.weight",
    shape=("hidden",),
    changed="norm",
)
_POST_MLP: Final = TensorRule(
    source=_LAYER + "post_feedforward_layernorm.weight",
    target=_BLOCK + "post_ffw_norm.weight",
    shape=("hidden",),
    changed="norm",
)

NORMS_AFTER: Final = (_POST_ATTENTION, _POST_MLP)

# Where the second norm of a layer, which is the MLP's, has the name that it has in checkpoints.
NORMS_AS_CALLED: Final = (NORMS[0], _POST_ATTENTION)

NORMS_AROUND: Final = (
    NORMS[0],
    _POST_ATTENTION,
    TensorRule(
        source=_LAYER + "pre_feedforward_layernorm.weight",
        target=_BLOCK + "ffn_norm.weight",
        shape=("hidden",),
        changed="norm",
    ),
    _POST_MLP,
)

ATTENTION: Final = (
    TensorRule(
        source=_LAYER + "self_attn.q_proj.weight",
        target=_BLOCK + "attn_q.weight",
        shape=("query_rows", "hidden"),
        rotary=True,
    ),
    TensorRule(
        source=_LAYER + "self_attn.k_proj.weight",
        target=_BLOCK + "attn_k.weight",
        shape=("keys", "hidden"),
        rotary=True,
    ),
    TensorRule(source=_LAYER + "self_attn.v_proj.weight", target=_BLOCK + "attn_v.weight", shape=("keys", "hidden")),
    TensorRule(
        source=_LAYER + "self_attn.o_proj.weight", target=_BLOCK + "attn_output.weight", shape=("hidden", "queries")
    ),
)

JOINED_ATTENTION: Final = (
    TensorRule(source=_LAYER + "self_attn.qkv_proj.weight", target=_BLOCK + "attn_qkv.weight", shape=("qkv", "hidden")),
    ATTENTION[3],
)

QKV_BIASES: Final = (
    TensorRule(
        source=_LAYER + "self_attn.q_proj.bias",
        target=_BLOCK + "attn_q.bias",
        shape=("query_rows",),
        rotary=True,
        when=attention_bias,
    ),
    TensorRule(
        source=_LAYER + "self_attn.k_proj.bias",
        target=_BLOCK + "attn_k.bias",
        shape=("keys",),
        rotary=True,
        when=attention_bias,
    ),
    TensorRule(
        source=_LAYER + "self_attn.v_proj.bias", target=_BLOCK + "attn_v.bias", shape=("keys",), when=attention_bias
    ),
)

OUTPUT_BIAS: Final = (
    TensorRule(
        source=_LAYER + "self_attn.o_proj.bias",
        target=_BLOCK + "attn_output.bias",
        shape=("hidden",),
        when=attention_output_bias,
    ),
)

QK_NORMS: Final = (
    TensorRule(
        source=_LAYER + "self_attn.q_norm.weight",
        target=_BLOCK + "attn_q_norm.weight",
        shape=("head",),
        changed="norm",
    ),
    TensorRule(
        source=_LAYER + "self_attn.k_norm.weight",
        target=_BLOCK + "attn_k_norm.weight",
        shape=("head",),
        changed="norm",
    ),
)

QK_ROW_NORMS: Final = (
    TensorRule(
        source=_LAYER + "self_attn.q_norm.weight",
        target=_BLOCK + "attn_q_norm.weight",
        shape=("queries",),
        changed="norm",
    ),
    TensorRule(
        source=_LAYER + "self_attn.k_norm.weight",
        target=_BLOCK + "attn_k_norm.weight",
        shape=("keys",),
        changed="norm",
    ),
)

SINKS: Final = (
    TensorRule(
        source=_LAYER + "self_attn.sinks", target=_BLOCK + "attn_sinks.weight", shape=("heads",), when=has_sinks
    ),
)

LAYER_SCALARS: Final = (
    TensorRule(
        source=_LAYER + "layer_scalar",
        target=_BLOCK + "layer_output_scale.weight",
        shape=("number",),
        when=has_layer_scalars,
    ),
)

LAYER_INPUTS: Final = (
    TensorRule(
        source="model.embed_tokens_per_layer.weight",
        target="per_layer_token_embd.weight",
        shape=("layer_vocab", "layer_inputs"),
        when=has_layer_inputs,
    ),
    TensorRule(
        source="model.per_layer_model_projection.weight",
        target="per_layer_model_proj.weight",
        shape=("layer_inputs", "hidden"),
        when=has_layer_inputs,
    ),
    TensorRule(
        source="model.per_layer_projection_norm.weight",
        target="per_layer_proj_norm.weight",
        shape=("layer_input",),
        when=has_layer_inputs,
    ),
    TensorRule(
        source=_LAYER + "per_layer_input_gate.weight",
        target=_BLOCK + "inp_gate.weight",
        shape=("layer_input", "hidden"),
        when=has_layer_inputs,
    ),
    TensorRule(
        source=_LAYER + "per_layer_projection.weight",
        target=_BLOCK + "proj.weight",
        shape=("hidden", "layer_input"),
        when=has_layer_inputs,
    ),
    TensorRule(
        source=_LAYER + "post_per_layer_input_norm.weight",
        target=_BLOCK + "post_norm.weight",
        shape=("hidden",),
        when=has_layer_inputs,
    ),
)

_DELTA: Final = _LAYER + "linear_attn."

DELTA_NET: Final = (
    TensorRule(
        source=_DELTA + "in_proj_qkv.weight",
        target=_BLOCK + "attn_qkv.weight",
        shape=("channels", "hidden"),
        value_heads="rows",
    ),
    TensorRule(
        source=_DELTA + "in_proj_z.weight",
        target=_BLOCK + "attn_gate.weight",
        shape=("values", "hidden"),
        value_heads="rows",
    ),
    TensorRule(
        source=_DELTA + "in_proj_b.weight",
        target=_BLOCK + "ssm_beta.weight",
        shape=("value_heads", "hidden"),
        value_heads="rows",
    ),
    TensorRule(
        source=_DELTA + "in_proj_a.weight",
        target=_BLOCK + "ssm_alpha.weight",
        shape=("value_heads", "hidden"),
        value_heads="rows",
    ),
    TensorRule(
        source=_DELTA + "conv1d.weight",
        target=_BLOCK + "ssm_conv1d.weight",
        shape=("channels", "one", "taps"),
        value_heads="rows",
    ),
    TensorRule(
        source=_DELTA + "A_log", target=_BLOCK + "ssm_a", shape=("value_heads",), value_heads="rows", changed="decay"
    ),
    TensorRule(source=_DELTA + "dt_bias", target=_BLOCK + "ssm_dt.bias", shape=("value_heads",), value_heads="rows"),
    # Of one head, which all share, and without the offset of the other norms.
    TensorRule(source=_DELTA + "norm.weight", target=_BLOCK + "ssm_norm.weight", shape=("value_head",)),
    TensorRule(
        source=_DELTA + "out_proj.weight",
        target=_BLOCK + "ssm_out.weight",
        shape=("hidden", "values"),
        value_heads="columns",
    ),
)

GATED_MLP: Final = (
    TensorRule(
        source=_LAYER + "mlp.gate_proj.weight", target=_BLOCK + "ffn_gate.weight", shape=("intermediate", "hidden")
    ),
    TensorRule(source=_LAYER + "mlp.up_proj.weight", target=_BLOCK + "ffn_up.weight", shape=("intermediate", "hidden")),
    TensorRule(
        source=_LAYER + "mlp.down_proj.weight", target=_BLOCK + "ffn_down.weight", shape=("hidden", "intermediate")
    ),
)

JOINED_MLP: Final = (
    TensorRule(source=_LAYER + "mlp.gate_up_proj.weight", target=_BLOCK + "ffn_up.weight", shape=("gate_up", "hidden")),
    GATED_MLP[2],
)

MLP_BIASES: Final = (
    TensorRule(
        source=_LAYER + "mlp.gate_proj.bias", target=_BLOCK + "ffn_gate.bias", shape=("intermediate",), when=mlp_bias
    ),
    TensorRule(
        source=_LAYER + "mlp.up_proj.bias", target=_BLOCK + "ffn_up.bias", shape=("intermediate",), when=mlp_bias
    ),
    TensorRule(source=_LAYER + "mlp.down_proj.bias", target=_BLOCK + "ffn_down.bias", shape=("hidden",), when=mlp_bias),
)
