"""Random tiny multimodal models, made by transformers; tiny_models.save saves them."""

from __future__ import annotations

from typing import Any

import torch
from transformers import (
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    Gemma4Config,
    Gemma4ForConditionalGeneration,
    Mistral3Config,
    Mistral3ForConditionalGeneration,
    PreTrainedModel,
    Qwen3_5Config,
    Qwen3_5ForConditionalGeneration,
    Qwen3_5MoeConfig,
    Qwen3_5MoeForConditionalGeneration,
)

from tests.backends.native.tiny_models import VOCAB

WHOLES = (
    "gemma3", "gemma4", "gemma4-moe", "gemma4-small", "mistral3-mistral", "mistral3-ministral3",
    "mistral3-ministral3-tied",
)  # fmt: skip
TEXT = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 128,
    "initializer_range": 0.2,
    "pad_token_id": 0,
}
GEMMA3 = {
    "sliding_window": 6,
    "sliding_window_pattern": 2,
    "rope_scaling": {"rope_type": "linear", "factor": 8.0},
}
GEMMA4 = {
    "global_head_dim": 48,
    "num_global_key_value_heads": 1,
    "attention_k_eq_v": True,
    "sliding_window": 6,
    "hidden_size_per_layer_input": 0,
    "final_logit_softcapping": 9.0,
    "use_bidirectional_attention": "vision",
}
GEMMA4_MOE = {"enable_moe_block": True, "num_experts": 7, "top_k_experts": 3, "moe_intermediate_size": 32}
GEMMA4_SMALL = GEMMA4 | {
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "num_kv_shared_layers": 2,
    "use_double_wide_mlp": True,
    "attention_k_eq_v": False,
    "hidden_size_per_layer_input": 32,
    "vocab_size_per_layer_input": VOCAB,
    "use_bidirectional_attention": None,
}
GEMMA4_VISION = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
GEMMA4_VISION |= {"num_key_value_heads": 2, "head_dim": 8, "position_embedding_size": 16}
MISTRAL = {"model_type": "mistral", "sliding_window": None, "rope_theta": 99.0}
MINISTRAL3 = {
    "model_type": "ministral3",
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 100.0,
        "factor": 4.0,
        "original_max_position_embeddings": 8,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "llama_4_scaling_beta": 0.2,
    },
}
QWEN3_5 = {
    "hidden_size": 48,
    "num_attention_heads": 6,
    "head_dim": 24,
    "full_attention_interval": 2,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 32,
    "eos_token_id": 258,
    "rope_parameters": {"rope_type": "default", "rope_theta": 99.0, "mrope_section": [1, 1, 1]},
}
QWEN3_5_MOE = QWEN3_5 | {"num_experts": 7, "num_experts_per_tok": 3}
QWEN3_5_MOE |= {"moe_intermediate_size": 20, "shared_expert_intermediate_size": 20}
QWEN3_5_VISION = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2}
QWEN3_5_VISION |= {"patch_size": 4, "num_position_embeddings": 16}
VISION = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
VISION |= {"image_size": 28, "patch_size": 14}


def make_whole(name: str, **more: Any) -> PreTrainedModel:
    """The one of WHOLES of that name, "qwen3_5" or "qwen3_5_moe", in float32, all its weights random.

    more: of its text model.
    """
    torch.manual_seed(7)
    model = _whole(name, more).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def _whole(name: str, more: dict[str, Any]) -> PreTrainedModel:
    if name == "gemma3":
        text = TEXT | GEMMA3 | more
        own = {"mm_tokens_per_image": 4, "eos_token_id": [258, 256]}
        return Gemma3ForConditionalGeneration(Gemma3Config(text_config=text, vision_config=VISION, **own))
    if name.startswith("gemma4"):
        of_text = {"gemma4-moe": GEMMA4 | GEMMA4_MOE, "gemma4-small": GEMMA4_SMALL}.get(name, GEMMA4)
        text, audio = TEXT | of_text | more, {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
        audio |= {"output_proj_dims": 16}
        own = {"text_config": text, "vision_config": GEMMA4_VISION, "audio_config": audio, "eos_token_id": [258, 256]}
        return Gemma4ForConditionalGeneration(Gemma4Config(**own))
    if name.startswith("qwen3_5"):
        text = TEXT | (QWEN3_5_MOE if name == "qwen3_5_moe" else QWEN3_5) | more
        vision, tied = QWEN3_5_VISION | {"out_hidden_size": text["hidden_size"]}, bool(text.get("tie_word_embeddings"))
        of_whole = {"text_config": text, "vision_config": vision, "tie_word_embeddings": tied}
        if name == "qwen3_5_moe":
            return Qwen3_5MoeForConditionalGeneration(Qwen3_5MoeConfig(**of_whole))
        return Qwen3_5ForConditionalGeneration(Qwen3_5Config(**of_whole))
    text = TEXT | (MISTRAL if name == "mistral3-mistral" else MINISTRAL3) | more
    text["tie_word_embeddings"] = tied = name.endswith("tied")
    config = Mistral3Config(text_config=text, vision_config=VISION | {"head_dim": 8}, tie_word_embeddings=tied)
    return Mistral3ForConditionalGeneration(config)
