"""Makes a head's drafter for a loaded model: reads the head, checks that the two belong together, and joins them.

It knows no layout of files; those are eagle3_files.py's and mtp_files.py's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from torch import Tensor

from runner.backends.native.capture import Interior
from runner.backends.native.execution import Execution
from runner.backends.native.heads.drafter import HeadDrafter
from runner.backends.native.heads.eagle3 import Eagle3Head
from runner.backends.native.heads.eagle3_config import Eagle3Config
from runner.backends.native.heads.eagle3_files import load_eagle3
from runner.backends.native.heads.mtp import MtpHead
from runner.backends.native.heads.mtp_files import load_mtp
from runner.backends.native.kv_cache import KvCache
from runner.errors import UnsupportedModel
from runner.model_config import ModelConfig
from runner.quant.mq.manifest import read_manifest
from runner.types import ReadyModel

if TYPE_CHECKING:  # it imports Triton, which a CPU may do without
    from runner.backends.native.heads.chain import HeadChain

HeadName = Literal["mtp", "eagle3"]


def open_head(
    name: HeadName,
    directory: Path | None,
    model: ReadyModel,
    target: ModelConfig,
    execution: Execution,
    on_close: Callable[[], None],
) -> HeadDrafter:
    """A drafter with the EAGLE-3 head in `directory`, or with the multi-token head of `model`'s own files.

    target: the configuration of the model, which `execution` runs; it captures what the head reads from now on.
    on_close: called when the drafter is closed. Raises BadModelFile, UnsupportedModel where there is no head or it is
    not the model's, and as torch does when memory is short.
    """
    if model.format == "packed" and read_manifest(model.directory).rotation == "folded":
        raise UnsupportedModel(
            f"{model.name} computes in a rotated basis, in which no head can read its hidden states.",
            hint="Quantize it with --rotation online.",
        )
    if name == "eagle3" and directory is None:
        raise UnsupportedModel(
            "An EAGLE-3 head lies in a directory of its own, and none was named.",
            hint="Name it with --draft; `runner draft train` makes one.",
        )
    if name == "mtp" or directory is None:
        drafter = _open_mtp(model, target, execution, on_close)
    else:
        drafter = _open_eagle3(directory, target, execution, on_close)
    try:
        drafter.warm_up()
    except BaseException:
        drafter.close()
        raise
    return drafter


def _open_mtp(
    model: ReadyModel, target: ModelConfig, execution: Execution, on_close: Callable[[], None]
) -> HeadDrafter:
    interior = execution.interior()
    head = load_mtp(model, target, dtype=interior.dtype, device=interior.device)
    head.join(interior)
    execution.capture((target.num_layers,))
    cache = _cache(target, interior, execution.cache.n_ctx)
    return HeadDrafter(
        "mtp",
        head,
        interior,
        cache,
        n_captured=target.hidden_size,
        vocab_size=target.vocab_size,
        on_close=on_close,
        make_chain=_chain(head, interior, cache, target.vocab_size, target.hidden_size),
    )


def _chain(
    head: Eagle3Head | MtpHead, interior: Interior, cache: KvCache, vocab_size: int, hidden_size: int
) -> Callable[[Tensor], HeadChain] | None:
    """What makes the chain of a head whose device has the kernels."""
    if not interior.has_kernels:
        return None
    from runner.backends.native.heads.chain import HeadChain, can_be_chained

    if not can_be_chained(head):
        return None
    return lambda waiting: HeadChain(head, interior, cache, waiting, vocab_size, hidden_size)


def _cache(layer: ModelConfig, interior: Interior, n_ctx: int) -> KvCache:
    """Of one layer."""
    return KvCache(
        layers=[layer.heads(0)],
        n_ctx=n_ctx,
        dtype=interior.dtype,
        device=interior.device,
    )


def _open_eagle3(
    directory: Path, target: ModelConfig, execution: Execution, on_close: Callable[[], None]
) -> HeadDrafter:
    interior = execution.interior()
    head = load_eagle3(directory, dtype=interior.dtype, device=interior.device)
    _check(head.config, target, has_embeddings=head.embed_tokens is not None)
    if head.embed_tokens is not None:
        interior = dataclasses.replace(interior, embed=head.embed_tokens)
    execution.capture(head.config.captured(target.num_layers))
    cache = _cache(head.config.layer, interior, execution.cache.n_ctx)
    return HeadDrafter(
        "eagle3",
        head,
        interior,
        cache,
        n_captured=head.config.num_captured * head.config.target_hidden_size,
        vocab_size=target.vocab_size,
        on_close=on_close,
        make_chain=_chain(head, interior, cache, target.vocab_size, head.config.hidden_size),
    )


def _check(head: Eagle3Config, target: ModelConfig, *, has_embeddings: bool) -> None:
    """Raise UnsupportedModel where the head cannot read this model's states or guess its tokens."""
    sizes = [
        ("vocabulary", head.layer.vocab_size, target.vocab_size),
        ("hidden states", head.target_hidden_size, target.hidden_size),
    ]
    if not has_embeddings:
        sizes.append(("embeddings", head.hidden_size, target.hidden_size))
    for what, of_head, of_target in sizes:
        if of_head != of_target:
            raise UnsupportedModel(
                f"The EAGLE-3 head is for {what} of {of_head}, and the model has {of_target}.",
                hint="Use the head that was trained for this model.",
            )
