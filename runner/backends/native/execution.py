"""How a model is computed: what the backend asks of the plain modules and of the fused kernels alike, and the former.

An Execution owns the weights and the KV cache and turns token ids into logits. Which ids the cache holds, prompts,
chunks and sampling on the host are the backend's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, Protocol

import torch
from torch import Tensor

from runner.backends.native.blocks import Decoder
from runner.backends.native.capture import Capture, Interior
from runner.backends.native.kv_cache import KvCache
from runner.config import SamplingParams
from runner.speculative.rounds import Stretch
from runner.types import CancelToken

Wanted = Literal["none", "last", "all"]


class Execution(Protocol):
    """cache: its length is what was computed. score_rows: positions that `score` computes at once. strides: how many
    tokens the steps of `decode` can draft by themselves, smallest first; none where they cannot. overlaps: a step goes
    on while the host does something else. is_exact: a step has as many rows as tokens, each number of which is recorded
    apart. message_lengths: tokens of prompts of which each kind is recorded after the first one of it, up to a message
    of a chat.

    lacks_graphs: a step that was to be recorded could not be, and runs more slowly.
    weights_bytes, graphs_bytes: as allocated. workspace_bytes: all else that the device holds for it.
    """

    cache: KvCache
    score_rows: int
    strides: Sequence[int]
    overlaps: bool
    is_exact: bool
    message_lengths: Sequence[int]

    @property
    def weights_bytes(self) -> int: ...

    @property
    def lacks_graphs(self) -> bool: ...

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

    def last_choice(
        self, tokens: Sequence[int], params: SamplingParams, checkpoint: Callable[[], None], /
    ) -> Callable[[], int] | None:
        """Compute `tokens` as `extend` does, and choose the token after the last of them, at its position.

        What is returned waits for that token, until another step begins; it is -1 where the logits are no numbers.
        None, and nothing is computed, where the host is to sample.
        """
        ...

    def after_answer(self) -> None:
        """Do what serves later answers, now that nobody waits."""
        ...

    def choices(self, tokens: Sequence[int], params: SamplingParams, /) -> Callable[[], list[int]] | None:
        """Compute `tokens` after what the cache holds, in one step, and choose a token after each, at its position.

        The cache then holds them all. What is returned waits for the step and gives the tokens, until another begins;
        one is -1 where the logits are no numbers. None, and nothing is computed, where the host is to sample. Raises as
        torch does when memory is short.
        """
        ...

    def decode(self, token: int, params: SamplingParams, cancel: CancelToken, /) -> Stretch | None:
        """The tokens after `token`, which the cache lacks. None where the host is to sample.

        What it gives raises BadModelFile where the logits are no numbers, and as torch does when memory is short.
        """
        ...

    def can_chain(self, params: SamplingParams, /) -> bool:
        """Whether `chain` chooses as `params` says."""
        ...

    def chain(self, tokens: Sequence[int], params: SamplingParams, n: int, /) -> list[tuple[int, float]]:
        """Compute `tokens`, 16 at most, after what the cache holds, and n tokens after them, each chosen and fed back.

        Gives each token and its probability before temperature and filters; a token is -1 where the logits are no
        numbers. The device waits for nobody between two tokens, and the host for the last alone. The cache then holds
        all but that one. Raises as torch does when memory is short.
        """
        ...

    def capture(self, layers: Sequence[int]) -> None:
        """Capture the residual stream after so many layers in all that is computed from now on; () for none."""
        ...

    def captured(self, start: int, stop: int) -> Tensor:
        """What was captured at the positions from `start` to `stop`, [n, len(layers) * hidden].

        start: where the last call began, or in a `decode` any later position. Of a long `decode` there are the last
        positions alone. Good until the next.
        """
        ...

    def interior(self) -> Interior:
        """What a drafting head shares with the model."""
        ...

    def give_texts(self, texts: Sequence[Sequence[int]], /) -> None:
        """See Backend.give_texts."""
        ...

    def forget_texts(self) -> None:
        """See Backend.forget_texts."""
        ...

    def release(self) -> None:
        """Give everything back."""
        ...


class PlainExecution:
    """The modules of blocks.py as they stand: the reference, and the way on a CPU."""

    def __init__(self, decoder: Decoder, cache: KvCache, device: torch.device, chunk: int) -> None:
        self.cache = cache
        self.score_rows = 64
        self.strides: Sequence[int] = ()
        self.overlaps = self.is_exact = self.lacks_graphs = False
        self.message_lengths: Sequence[int] = ()
        self._decoder: Decoder | None = decoder
        self._device = device
        self._chunk = chunk
        self._capture: Capture | None = None

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
        qkv = max(map(config.qkv_size, config.attention_layers), default=0)
        mixed = 0 if config.delta is None else 2 * config.delta.channels + 2 * config.delta.values_size
        row = 4 * config.hidden_size + 2 * config.widest_mlp + 2 * max(qkv, mixed) + 3 * config.inputs_size
        return 4 * (self._chunk * row + config.vocab_size)

    def extend(self, tokens: Sequence[int], wanted: Wanted, checkpoint: Callable[[], None]) -> Tensor:
        assert self._decoder is not None, "the backend is closed"
        with torch.inference_mode():
            self.cache.reserve(self.cache.length + len(tokens))
            ids = torch.tensor(tokens, dtype=torch.int64, device=self._device)
            tap = None if self._capture is None else self._capture.long_pass(len(tokens))
            hidden = self._decoder(ids, self.cache, checkpoint, tap)
            rows = {"none": hidden[:0], "last": hidden[-1:], "all": hidden}[wanted]
            return self._decoder.logits(rows) if len(rows) else rows

    def last_choice(self, _tokens: Sequence[int], _params: SamplingParams, _checkpoint: Callable[[], None]) -> None:
        return None

    def after_answer(self) -> None:
        pass

    def choices(self, _tokens: Sequence[int], _params: SamplingParams) -> None:
        return None

    def decode(self, _token: int, _params: SamplingParams, _cancel: CancelToken) -> None:
        return None

    def can_chain(self, _params: SamplingParams) -> bool:
        return False

    def chain(self, _tokens: Sequence[int], _params: SamplingParams, _n: int) -> list[tuple[int, float]]:
        raise AssertionError("every token needs the host")

    def capture(self, layers: Sequence[int]) -> None:
        assert self._decoder is not None, "the backend is closed"
        config, dtype = self._decoder.config, self._decoder.model.norm.weight.dtype
        self._capture = Capture(layers, config.hidden_size, dtype=dtype, device=self._device) if layers else None

    def captured(self, start: int, stop: int) -> Tensor:
        assert self._capture is not None
        return self._capture.rows(start, stop)

    def interior(self) -> Interior:
        assert self._decoder is not None, "the backend is closed"
        model = self._decoder.model
        return Interior(
            embed=model.embed_tokens,
            norm=model.norm,
            logits=self._decoder.logits,
            dtype=model.norm.weight.dtype,
            device=self._device,
        )

    def give_texts(self, _texts: Sequence[Sequence[int]]) -> None:
        pass

    def forget_texts(self) -> None:
        pass

    def release(self) -> None:
        self._decoder = None
        self.cache.release()
