"""What a model is: ModelConfig, read from the config.json that Hugging Face models carry.

Every key that changes the mathematics is read, has the default that transformers gives to it, or is refused by its
name. Nothing here reads a file or knows of tensors, devices or backends.
"""

from __future__ import annotations

from runner.model_config.families import SUPPORTED_MODEL_TYPES
from runner.model_config.multimodal import PARTS_OF_WHOLES, text_model_type
from runner.model_config.parse import parse_model_config
from runner.model_config.values import (
    Activation,
    DeltaConfig,
    ExpertsConfig,
    HeadNorm,
    HeadSizes,
    LayerInputs,
    ModelConfig,
    NormPlacement,
    QueryGrowth,
    Rope,
    RopeKind,
    RopeName,
    RopeScaling,
    Routing,
    SharedCaches,
    num_parameters,
)

__all__ = [
    "PARTS_OF_WHOLES",
    "SUPPORTED_MODEL_TYPES",
    "Activation",
    "DeltaConfig",
    "ExpertsConfig",
    "HeadNorm",
    "HeadSizes",
    "LayerInputs",
    "ModelConfig",
    "NormPlacement",
    "QueryGrowth",
    "Rope",
    "RopeKind",
    "RopeName",
    "RopeScaling",
    "Routing",
    "SharedCaches",
    "num_parameters",
    "parse_model_config",
    "text_model_type",
]
