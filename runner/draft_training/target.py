"""The model that a drafter is trained for: its files opened, and then loaded whole to write and to be watched.

It knows nothing of what is trained.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import torch

from runner.backends.base import Tokenizer
from runner.backends.native.blocks import Decoder
from runner.backends.native.model_files import chat_template, read_config, tokenizer_path
from runner.backends.native.tokenizer import HuggingFaceTokenizer
from runner.backends.native.writing import load_writer, used_ids
from runner.draft_training.chats import Chats
from runner.errors import UnsupportedModel
from runner.model_config import ModelConfig
from runner.quant.mq.packed_weights import PackedWeights
from runner.quant.weights import Weights, open_weights
from runner.types import ReadyModel


@dataclass(frozen=True, kw_only=True)
class TargetFiles:
    """A target before it is loaded. fingerprint: changes when its files do. stop_ids: what ends its answers."""

    name: str
    config: ModelConfig
    weights: Weights
    tokenizer: Tokenizer
    chats: Chats
    stop_ids: frozenset[int]
    fingerprint: str

    @property
    def used_ids(self) -> int:
        return used_ids(self.tokenizer)

    def load(self, device: torch.device, spare_bytes: int, on_progress: Callable[[float], None]) -> Decoder:
        """Raises DoesNotFit, BadModelFile."""
        decoder = load_writer(
            self.config,
            self.weights,
            device,
            purpose="To train a drafter for it",
            hint="Use a smaller model, a machine with more memory, or the model in a smaller format.",
            spare_bytes=spare_bytes,
            on_progress=on_progress,
        )
        return decoder.eval()


def open_target(model: ReadyModel) -> TargetFiles:
    """Read the headers of a model's files.

    Raises UnsupportedModel for one that the native backend does not run.
    """
    if model.format not in ("safetensors", "gguf", "packed"):
        raise UnsupportedModel(
            f"{model.name} is {model.format}, and a drafter is trained on the native backend's models.",
            hint="Give a model in safetensors, a packed one, or a GGUF with its Hugging Face files beside it.",
        )
    config = read_config(model.directory)
    try:
        weights = PackedWeights(model.directory) if model.format == "packed" else open_weights(model, config)
    except UnsupportedModel as error:
        raise UnsupportedModel(
            error.message, hint=f"Train on the original weights: {model.name}:safetensors, or their directory."
        ) from error
    tokenizer = HuggingFaceTokenizer(tokenizer_path(model.directory), config.vocab_size)

    def text_of(token: int | None) -> str:
        return "" if token is None else tokenizer.token_bytes(token, special=True).decode("utf-8", "replace")

    chats = Chats(
        tokenizer=tokenizer,
        template=chat_template(model.directory) if model.chat_template is None else model.chat_template,
        bos=text_of(tokenizer.bos_id),
        eos=text_of(tokenizer.eos_id),
    )
    return TargetFiles(
        name=model.name,
        config=config,
        weights=weights,
        tokenizer=tokenizer,
        chats=chats,
        stop_ids=tokenizer.stop_ids | frozenset(model.stop_ids),
        fingerprint=_fingerprint(model),
    )


def _fingerprint(model: ReadyModel) -> str:
    """Of the config's contents, and the sizes and times of the weights, which are not read."""
    digest = hashlib.sha256((model.directory / "config.json").read_bytes())
    for path in model.weights:
        stat = path.stat()
        digest.update(f"{path.name} {stat.st_size} {stat.st_mtime_ns}".encode())
    return digest.hexdigest()
