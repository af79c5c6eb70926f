"""How a model is computed: what the backend asks of the plain modules and of the fused kernels alike, and the former.

An Execution owns the weights and the KV cache and turns token ids into logits. Which ids the cache holds, prompts,
chunks and sampling on the host are the backend's.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Literal, Protocol

import torch
from torch import Tensor

from runner.backends.native.blocks import Decoder
from runner.backends.native.kv_cache import KvCache
from runner.config import SamplingParams
from runner.types import CancelToken

Wanted = Literal["none", "last", "all"]


class Execution(Protocol):
    """cache: its length is what was computed. score_rows: positions that `score` computes at once.

    weights_bytes, graphs_bytes: as allocated. workspace_bytes: all else that the device holds for it.
    """

    cache: KvCache
    score_rows: int

    @property
    def weights_bytes(self) -> int: ...

    @property
    def graphs_bytes(self) -> int: ...

    @property
    def workspace_bytes(self) -> int: ...

    def extend(self, tokens: Sequence[int], wanted: Wanted, checkpoint: Callable[[], None]) -> Tensor:
        """Compute `tokens` after what the cache holds; the logits [n, V] float32 of none, the last or all of them.

        checkpoint is called between the large products and may raise: the cache's length is then what it was. Raises as
        torch does when memory is short.
        """
        ...

    def decode(self, token: int, params: SamplingParams, cancel: CancelToken, /) -> Generator[int, None, None] | None:
        """The tokens after `token`, which the cache lacks, until it is closed, cancelled, or the cache is full.

        The cache then holds `token` and those that were yielded, if any was. None where the host is to sample.
        """
        ...

    def release(self) -> None:
        """Give everything back."""
        ...


class PlainExecution:
    """The modules of blocks.py as they stand: the reference, and the way on a CPU."""

    def __init__(self, decoder: Decoder, cache: KvCache, device: torch.device, chunk: int) -> None:
        self.cache = cache
        self.score_rows = 64
        self._decoder: Decoder | None = decoder
        self._device = device
        self._chunk = chunk

    @property
    def weights_bytes(self) -> int:
        return 0 if self._decoder is None else sum(parameter.nbytes for parameter in self._decoder.parameters())

    @property
    def graphs_bytes(self) -> int:
        return 0

    @property
    def workspace_bytes(self) -> int:
        """torch's rest on a GPU, a bound from shapes on a CPU."""
        if self._decoder is None:
            return 0
        if self._device.type != "cpu":
            return max(0, torch.cuda.memory_reserved(self._device) - self.weights_bytes - self.cache.nbytes)
        config = self._decoder.config
        q_size = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
        row = 4 * config.hidden_size + 2 * config.intermediate_size + 2 * q_size
        return 4 * (self._chunk * row + config.vocab_size)

    def extend(self, tokens: Sequence[int], wanted: Wanted, checkpoint: Callable[[], None]) -> Tensor:
        assert self._decoder is not None, "the backend is closed"
        with torch.inference_mode():
            self.cache.reserve(self.cache.length + len(tokens))
            ids = torch.tensor(tokens, dtype=torch.int64, device=self._device)
            hidden = self._decoder(ids, self.cache, checkpoint)
            rows = {"none": hidden[:0], "last": hidden[-1:], "all": hidden}[wanted]
            return self._decoder.logits(rows) if len(rows) else rows

    def decode(self, _token: int, _params: SamplingParams, _cancel: CancelToken) -> None:
        return None

    def release(self) -> None:
        self._decoder = None
        self.cache.release()
