"""Values that cross layers: messages, model files ready to load, devices, memory, cancellation.

Frozen dataclasses without behaviour beyond small derived numbers. This file does no I/O and knows no backend.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Role = Literal["system", "user", "assistant", "tool"]
BackendName = Literal["native", "llamacpp", "fake"]
WeightsFormat = Literal["gguf", "safetensors", "packed", "script"]


@dataclass(frozen=True, kw_only=True)
class Message:
    """One turn of a conversation. `reasoning` is the model's thinking, kept apart from its answer."""

    role: Role
    content: str
    reasoning: str = ""


@dataclass(frozen=True, kw_only=True)
class ChannelMarkers:
    """How a model writes messages on named channels (harmony): `turn` role `channel` name `body` text `end`.

    thoughts: the channels that are thinking. answer: the channel that goes on to the end of the completion. What comes
    on any other before it is a part of the answer too, or a thought if is_answer_alone.
    """

    turn: str
    channel: str
    body: str
    end: str
    thoughts: frozenset[str]
    answer: str
    is_answer_alone: bool = False


@dataclass(frozen=True, kw_only=True)
class ReasoningMarkers:
    """The texts that set a model's thinking apart from its answer.

    open and close stand around a thought. closing_text: what to write for the model when its thought is cut short, so
    that the answer comes next. channels: set for models whose thoughts are messages on a channel of their own.
    """

    open: str
    close: str
    closing_text: str
    channels: ChannelMarkers | None = None


@dataclass(frozen=True, kw_only=True)
class ReadyModel:
    """A model on disk that can be loaded now: what `prepare` returns and a backend's `load` takes.

    weights: one GGUF (the first part of a split one), one or more safetensors shards, the model.safetensors of a packed
    model, whose runner.json is beside it, or a fake script.
    architecture: what the header of a GGUF names, "" where that is not known.
    directory: where config.json, tokenizer.json, tokenizer_config.json and generation_config.json are, if anywhere.
    sampling: the model's own sampling defaults, by SamplingParams field name.
    stop_ids: tokens that end an answer, as generation_config.json lists them; a GGUF has room for three.
    chat_template: overrides the one inside the model's files when not None.
    """

    name: str
    format: WeightsFormat
    weights: tuple[Path, ...]
    directory: Path
    size_bytes: int
    architecture: str = ""
    sampling: Mapping[str, float | int] = field(default_factory=dict)
    stop_ids: tuple[int, ...] = ()
    chat_template: str | None = None


@dataclass(frozen=True, kw_only=True)
class ModelInfo:
    """What a loaded model is, as its backend reports it.

    context_length: what the model was trained for; n_ctx: what is allocated now (tokens).
    quantization: the name of the weight format, e.g. "Q8_0", "BF16", "MQ4".
    device: where it runs, for people: "CPU (2 threads)", "NVIDIA H200". note: what its user should know of that, a
    sentence or two, or nothing. longest_draft: tokens that its cache can give up again, 0 where it cannot go back.
    is_batch_exact: a step of several tokens rounds each as a step of that token alone does, so that drafts change no
    text. (llama.cpp on a CPU with several threads counts as such, though long texts may differ there.)
    """

    name: str
    backend: BackendName
    architecture: str
    num_parameters: int
    num_layers: int
    n_gpu_layers: int
    vocab_size: int
    context_length: int
    n_ctx: int
    quantization: str
    size_bytes: int
    device: str
    chat_template: str | None
    bos_token: str
    eos_token: str
    longest_draft: int
    note: str = ""
    is_batch_exact: bool = True


@dataclass(frozen=True, kw_only=True)
class MemoryUse:
    """Bytes held by a loaded model, by part. On a CPU backend they are RAM, on a GPU backend device memory.

    draft_bytes: all that its drafter holds, which the engine adds to what the backend reports.
    """

    weights_bytes: int
    kv_cache_bytes: int
    workspace_bytes: int
    graphs_bytes: int = 0
    draft_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        parts = (self.weights_bytes, self.kv_cache_bytes, self.workspace_bytes, self.graphs_bytes, self.draft_bytes)
        return sum(parts)


@dataclass(frozen=True, kw_only=True)
class Device:
    """A GPU, or the machine's main memory as kind "cpu". Bytes and names as the driver reports them.

    is_in_main_memory: a GPU that works there, so that its bytes and those of main memory are the same ones.
    """

    kind: Literal["cpu", "cuda", "rocm", "metal"]
    index: int
    name: str
    total_bytes: int
    free_bytes: int
    is_in_main_memory: bool = False


class CancelToken:
    """Asks a running generation to stop. Set once, from any thread; never reset: one token a request.

    The flag is two bytes of C memory, a string that is empty until cancelled, so that native code can poll it
    at `address` without taking the GIL.
    """

    def __init__(self) -> None:
        self._flag = ctypes.create_string_buffer(2)

    def cancel(self) -> None:
        self._flag[0] = b"\x01"

    @property
    def is_cancelled(self) -> bool:
        return self._flag[0] != b"\x00"

    @property
    def address(self) -> int:
        return ctypes.addressof(self._flag)
