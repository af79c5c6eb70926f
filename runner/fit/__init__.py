"""Does a model fit this machine? An estimate from headers alone, and what would fit where it does not.

facts.py reads what the headers say, arithmetic.py computes, planning.py decides, remedies.py names what would fit of
other_models.py. Nothing is loaded, and nothing here reaches the network.
"""

from runner.fit.arithmetic import (
    Fit,
    KvPart,
    estimate,
    gpu_layers_that_fit,
    held_bytes,
    kv_type_of,
    usable_bytes,
    with_gpu_layers,
)
from runner.fit.facts import ModelFacts, gguf_facts, read_facts, safetensors_facts
from runner.fit.other_models import USUAL_BPW, Alternative, alternatives, size_of
from runner.fit.planning import Plan, plan, record_of
from runner.fit.remedies import Remedy, check_fit, remedy, rough_bytes

__all__ = [
    "USUAL_BPW",
    "Alternative",
    "Fit",
    "KvPart",
    "ModelFacts",
    "Plan",
    "Remedy",
    "alternatives",
    "check_fit",
    "estimate",
    "gguf_facts",
    "gpu_layers_that_fit",
    "held_bytes",
    "kv_type_of",
    "plan",
    "read_facts",
    "record_of",
    "remedy",
    "rough_bytes",
    "safetensors_facts",
    "size_of",
    "usable_bytes",
    "with_gpu_layers",
]
