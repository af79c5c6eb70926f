"""How checkpoints name the parts of their multi-token head: three layouts, and what else they differ in.

It knows names and no tensor; what the parts compute is mtp.py's.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from runner.errors import UnsupportedModel

LAYER: Final = "layer."  # what MtpHead calls its decoder layer
_HINT: Final = "The model runs without it; --spec suffix needs no head."
# Parts of decoder layers that no block here computes, by what checkpoints call them, and what they are.
_OTHER_LAYERS: Final[Mapping[str, str]] = {
    "self_attn.kv_a_proj_with_mqa.": "latent attention (MLA)",
    "self_attn.indexer.": "sparse attention",
    "linear_attn.": "linear attention",
    "mlp.shared_experts.": "shared experts",
    "mlp.shared_expert.": "a shared expert",
    "mlp.gate.e_score_correction_bias": "experts chosen by corrected scores",
}


@dataclass(frozen=True, kw_only=True)
class MtpLayout:
    """names: of the head's tensors, by those of MtpHead. is_hidden_first: the projection reads the hidden state before
    the embedding. masks_first: the embedding of the first row counts as 0."""

    names: Mapping[str, str]
    is_hidden_first: bool
    masks_first: bool


@dataclass(frozen=True, kw_only=True)
class _Style:
    """One way of naming. base: before all names. parts: by those of MtpHead; layer: before those of the layer.
    unread: copies of the model's own tensors."""

    parts: Mapping[str, str]
    layer: str
    unread: frozenset[str] = frozenset()
    is_hidden_first: bool = False
    masks_first: bool = True


# DeepSeek-V3, GLM-4.5: the layer after the model's last.
_NEXTN: Final = _Style(
    parts={
        "enorm.weight": "enorm.weight",
        "hnorm.weight": "hnorm.weight",
        "eh_proj.weight": "eh_proj.weight",
        "norm.weight": "shared_head.norm.weight",
        "head.weight": "shared_head.head.weight",
    },
    layer="",
    unread=frozenset({"embed_tokens.weight"}),
)
_MIMO: Final = _Style(
    parts={
        "enorm.weight": "token_layernorm.weight",
        "hnorm.weight": "hidden_layernorm.weight",
        "eh_proj.weight": "input_proj.weight",
        "norm.weight": "final_layernorm.weight",
    },
    layer="",
    is_hidden_first=True,
)
# Qwen3-Next and its successors.
_MTP: Final = _Style(
    parts={
        "enorm.weight": "pre_fc_norm_embedding.weight",
        "hnorm.weight": "pre_fc_norm_hidden.weight",
        "eh_proj.weight": "fc.weight",
        "norm.weight": "norm.weight",
    },
    layer="layers.0.",
    masks_first=False,
)


def layout_of(names: Collection[str], num_layers: int) -> MtpLayout:
    """The layout of a head with tensors of these names, in a model of so many layers: of the first of several heads.

    Raises UnsupportedModel, by name, for a head whose layer is of another kind than those that are run here.
    """
    bases = (
        (f"model.layers.{num_layers}.", f"model.layers.{num_layers}.eh_proj.weight", _NEXTN),
        ("model.mtp_layers.0.", "model.mtp_layers.0.input_proj.weight", _MIMO),
        ("mtp.", "mtp.fc.weight", _MTP),
    )
    for base, sign, style in bases:
        if sign in names:
            return _named(base, style, names)
    raise UnsupportedModel(
        f"The checkpoint's multi-token head has an unknown layout: it has {min(names)!r}.", hint=_HINT
    )


def _named(base: str, style: _Style, names: Collection[str]) -> MtpLayout:
    own = {theirs: ours for ours, theirs in style.parts.items()}
    found: dict[str, str] = {}
    for name in names:
        if not name.startswith(base):
            continue  # a second head, which would guess the token after
        rest = name.removeprefix(base)
        if rest in own:
            found[own[rest]] = name
        elif rest.startswith(style.layer) and rest not in style.unread:
            inner = rest.removeprefix(style.layer)
            _refuse_other_layers(inner, name)
            found[f"{LAYER}{inner}"] = name
        elif rest not in style.unread:
            raise UnsupportedModel(f"The checkpoint's multi-token head has {name!r}, which is not known.", hint=_HINT)
    return MtpLayout(names=found, is_hidden_first=style.is_hidden_first, masks_first=style.masks_first)


def _refuse_other_layers(inner: str, name: str) -> None:
    for part, what in _OTHER_LAYERS.items():
        if inner.startswith(part):
            raise UnsupportedModel(
                f"The layer of the checkpoint's multi-token head has {what}, which is not supported ({name}).",
                hint=_HINT,
            )
