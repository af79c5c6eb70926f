"""EAGLE-3 heads on disk: config.json and safetensors under the names of public checkpoints, read and written.

Every tensor is matched by its exact name before one is read. It knows nothing of what a head computes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from runner.backends.native.heads.eagle3 import Eagle3Head
from runner.backends.native.heads.eagle3_config import eagle3_json, parse_eagle3_config
from runner.backends.native.loader import to_tensor
from runner.errors import BadModelFile, UnsupportedModel, UsageError
from runner.quant.json_file import read_json
from runner.quant.safetensors_file import FLOAT_TYPES, SINGLE_NAME, Checkpoint

_MAPS: Final = ("d2t", "t2d")
_EMBEDDINGS: Final = "embed_tokens.weight"
# What others call the same tensors: what goes before all names, the layer, and the norms of the captured states.
_PREFIX: Final = "model."
_RENAMED: Final = (
    ("layers.0.", "midlayer."),
    ("aux_norm_low.", "fc_norm.0."),
    ("aux_norm_mid.", "fc_norm.1."),
    ("aux_norm_high.", "fc_norm.2."),
)
_MAP_NAMES: Final = {"draft_id_to_target_id": "d2t"}
# Copies of the target's own parts that some checkpoints carry for training: no head reads them.
_UNREAD: Final = frozenset({"verifier_lm_head.weight", "verifier_norm.weight", "mask_hidden"})


def load_eagle3(
    directory: Path, *, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
) -> Eagle3Head:
    """The head in `directory`.

    Raises BadModelFile for files that are malformed or do not belong together, UnsupportedModel for a head that is no
    EAGLE-3 head, or one with parts that are not supported, by their names.
    """
    if not (directory / "config.json").is_file():
        raise UsageError(
            f"{directory} has no config.json: it is no EAGLE-3 head.",
            hint="`runner draft train MODEL` trains one; else give the directory of a head that was fetched.",
        )
    config = parse_eagle3_config(read_json(directory / "config.json"))
    checkpoint = Checkpoint.open(directory)
    names = _our_names(checkpoint)
    with torch.device("meta"):
        head = Eagle3Head(config, has_embeddings=_EMBEDDINGS in names)
    _check(head, names, checkpoint, directory.name)
    for ours, theirs in names.items():
        tensor = _read(checkpoint, theirs)
        if ours not in _MAPS:
            _put(head, ours, nn.Parameter(tensor.to(device=device, dtype=dtype), requires_grad=False))
    _put_maps(head, {ours: _read(checkpoint, names[ours]) for ours in _MAPS if ours in names}, device)
    return head


def save_eagle3(head: Eagle3Head, directory: Path, *, dtype: torch.dtype = torch.bfloat16) -> None:
    """Write the head into `directory`, which is made. Raises UnsupportedModel for what cannot be written, OSError."""
    text = json.dumps(eagle3_json(head.config), indent=2) + "\n"
    tensors = {
        name: tensor.detach().to(device="cpu", dtype=tensor.dtype if name in _MAPS else dtype).contiguous()
        for name, tensor in head.state_dict().items()
    }
    directory.mkdir(parents=True, exist_ok=True)
    save_file(tensors, directory / SINGLE_NAME, metadata={"format": "pt"})
    (directory / "config.json").write_text(text, encoding="utf-8")


def _our_names(checkpoint: Checkpoint) -> dict[str, str]:
    """The checkpoint's names by those of Eagle3Head. Raises BadModelFile when two mean the same."""
    found: dict[str, str] = {}
    for theirs in checkpoint.tensors:
        ours = theirs.removeprefix(_PREFIX)
        for other, name in _RENAMED:
            if ours.startswith(other):
                ours = name + ours.removeprefix(other)
        ours = _MAP_NAMES.get(ours, ours)
        if ours in _UNREAD or ours.endswith("rotary_emb.inv_freq"):
            continue
        if ours in found:
            raise BadModelFile(
                f"Tensor {ours!r} is there twice, as {found[ours]!r} and as {theirs!r}.", hint="Fetch the head again."
            )
        found[ours] = theirs
    return found


def _check(head: Eagle3Head, names: Mapping[str, str], checkpoint: Checkpoint, where: str) -> None:
    """Every parameter has its tensor, of its shape and of a float type, and no tensor is left over."""
    wanted = {name: tuple(parameter.shape) for name, parameter in head.named_parameters()}
    vocab_size, draft_size = head.config.layer.vocab_size, head.config.draft_vocab_size
    maps = {"d2t": (draft_size,), "t2d": (vocab_size,)}
    needed = wanted.keys() | ({"d2t"} if draft_size < vocab_size else set())
    if missing := sorted(needed - names.keys()):
        raise BadModelFile(
            f"{where} lacks {_some(missing)}.",
            hint="It is no EAGLE-3 head (those of EAGLE and EAGLE-2 have other parts), or it is incomplete.",
        )
    if extra := sorted(names[name] for name in names.keys() - wanted.keys() - maps.keys()):
        raise UnsupportedModel(
            f"{where} has tensors that an EAGLE-3 head of its config.json does not: {_some(extra)}.",
            hint="It is a variant that is not supported; --spec suffix needs no head.",
        )
    for ours, theirs in names.items():
        tensor, shape = checkpoint.tensors[theirs], (wanted | maps)[ours]
        if tensor.shape != shape:
            raise BadModelFile(
                f"Tensor {theirs!r} of {where} has shape {list(tensor.shape)}, not {list(shape)}.",
                hint="config.json and the weights do not belong together.",
            )
        if ours not in _MAPS and tensor.dtype not in FLOAT_TYPES:
            raise UnsupportedModel(
                f"Tensor {theirs!r} of {where} is stored as {tensor.dtype}.",
                hint="Use the head's F32, F16 or BF16 version.",
            )


def _some(names: list[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"


def _read(checkpoint: Checkpoint, name: str) -> Tensor:
    try:
        return to_tensor(checkpoint.raw(name))
    except OSError as error:
        raise BadModelFile(f"Tensor {name!r} cannot be read: {error}.", hint="Fetch the head again.") from error


def _put(head: Eagle3Head, name: str, parameter: nn.Parameter) -> None:
    path, _, leaf = name.rpartition(".")
    setattr(head.get_submodule(path), leaf, parameter)


def _put_maps(head: Eagle3Head, maps: Mapping[str, Tensor], device: torch.device | str) -> None:
    """The draft vocabulary: d2t alone decides; t2d is remade from it. Raises BadModelFile for ids outside."""
    config = head.config
    size, vocab_size = config.draft_vocab_size, config.layer.vocab_size
    offsets = maps["d2t"].to(torch.int64) if "d2t" in maps else torch.zeros(size, dtype=torch.int64)
    ids = torch.arange(size) + offsets
    if len(ids) and (int(ids.min()) < 0 or int(ids.max()) >= vocab_size or len(torch.unique(ids)) < size):
        raise BadModelFile(
            f"d2t maps the head's {size} tokens to others than {size} of the model's {vocab_size}.",
            hint="The head is damaged, or it belongs to another model.",
        )
    known = torch.zeros(vocab_size, dtype=torch.bool)
    known[ids] = True
    head.d2t, head.t2d = offsets.to(device), known.to(device)
