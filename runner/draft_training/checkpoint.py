"""Training as it stands, on the disk: the head, its best form so far, and the optimizer's moments, in one safetensors.

Written beside and renamed, so that a kill leaves the last one whole. It knows nothing of how training goes on.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from runner.quant.work_directory import sync

CHECKPOINT_NAME: Final = "checkpoint.safetensors"
WRITING_NAME: Final = "checkpoint.safetensors.writing"


@dataclass(frozen=True)
class Watched:
    """step: after which the watched texts were drafted on. loss: the mean of the steps since the last time."""

    step: int
    loss: float
    acceptance_length: float


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """step: steps done. best_step: when the head was best. curve: what was watched so far. losses: of the steps since.
    head, best: parameters by name. moments: the optimizer's, by name, first and second."""

    step: int
    best_step: int
    curve: tuple[Watched, ...]
    losses: tuple[float, ...]
    head: Mapping[str, Tensor]
    best: Mapping[str, Tensor]
    moments: Mapping[str, tuple[Tensor, Tensor]]


def save_checkpoint(directory: Path, checkpoint: Checkpoint, identity: str) -> None:
    """identity: of everything that the checkpoint depends on. Raises OSError."""
    tensors = {f"head.{name}": tensor for name, tensor in checkpoint.head.items()}
    tensors |= {f"best.{name}": tensor for name, tensor in checkpoint.best.items()}
    for name, (first, second) in checkpoint.moments.items():
        tensors |= {f"first.{name}": first, f"second.{name}": second}
    state = {
        "step": checkpoint.step,
        "best_step": checkpoint.best_step,
        "curve": [asdict(watched) for watched in checkpoint.curve],
        "losses": checkpoint.losses,
    }
    metadata = {"identity": identity, "state": json.dumps(state)}
    whole = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    try:
        save_file(whole, directory / WRITING_NAME, metadata)
    except SafetensorError as error:
        raise OSError(f"the checkpoint cannot be written: {error}") from error
    sync(directory / WRITING_NAME)
    os.replace(directory / WRITING_NAME, directory / CHECKPOINT_NAME)


def checkpoint_identity(directory: Path) -> str | None:
    """What the checkpoint of an earlier run says that it depends on; None where there is none."""
    try:
        with safe_open(directory / CHECKPOINT_NAME, framework="pt") as file:
            return (file.metadata() or {}).get("identity")
    except (OSError, SafetensorError):
        return None


def load_checkpoint(directory: Path, identity: str, shapes: Mapping[str, torch.Size]) -> Checkpoint | None:
    """What an earlier run with that identity left, with parameters of those shapes; None where there is none."""
    try:
        with safe_open(directory / CHECKPOINT_NAME, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("identity") != identity:
                return None
            state = json.loads(metadata["state"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
    except (OSError, SafetensorError, ValueError, KeyError, RecursionError):
        return None
    return _checkpoint(state, tensors, shapes)


def _checkpoint(
    state: Mapping[str, Any], tensors: Mapping[str, Tensor], shapes: Mapping[str, torch.Size]
) -> Checkpoint | None:
    """None where a part is missing or has another shape."""
    parts = {
        part: {name: tensors.get(f"{part}.{name}") for name in shapes} for part in ("head", "best", "first", "second")
    }
    whole = {
        part: {name: tensor for name, tensor in found.items() if tensor is not None and tensor.shape == shapes[name]}
        for part, found in parts.items()
    }
    if any(len(found) != len(shapes) for found in whole.values()):
        return None
    try:
        curve = tuple(Watched(**watched) for watched in state["curve"])
        step, best_step = int(state["step"]), int(state["best_step"])
        losses = tuple(map(float, state["losses"]))
    except (KeyError, TypeError, ValueError):
        return None
    moments = {name: (whole["first"][name], whole["second"][name]) for name in shapes}
    return Checkpoint(
        step=step,
        best_step=best_step,
        curve=curve,
        losses=losses,
        head=whole["head"],
        best=whole["best"],
        moments=moments,
    )
