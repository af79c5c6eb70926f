"""A fused decoder at work: its KV cache, its graphs, and a decode loop that the host follows one step behind.

A step reads its token, its position and the request's numbers from the device and leaves the next token there, so the
next step can begin before the host has seen anything; the host reads a token while the step after it runs. Up to 16
rows go through one graph for each number of rows, longer prompts through none. It knows nothing of prompts or texts.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence

import torch
from torch import Tensor

from runner.backends.native.execution import Wanted
from runner.backends.native.fused import FusedDecoder
from runner.backends.native.graphs import Graphs
from runner.backends.native.kv_cache import KvCache
from runner.backends.native.stream import Stream
from runner.config import SamplingParams
from runner.kernels.kv_layer import LayerCache
from runner.kernels.sampling import Choice, choose, greedy_from_tiles, is_supported
from runner.kernels.values import MOST_ROWS
from runner.sampling import bad_logits
from runner.types import CancelToken


class FusedExecution:
    """See Execution. reserved_before: what torch held on the device before the model was loaded."""

    def __init__(
        self, decoder: FusedDecoder, cache: KvCache, *, use_graphs: bool = True, reserved_before: int = 0
    ) -> None:
        device = decoder.device
        self.cache = cache
        # As many rows as a step may have: scoring then measures the arithmetic of decoding.
        self.score_rows = MOST_ROWS
        self._reserved_before = reserved_before
        self._decoder: FusedDecoder | None = decoder
        self._graphs = Graphs(device, is_enabled=use_graphs)
        self._tokens = torch.zeros(MOST_ROWS, dtype=torch.int64, device=device)
        self._start = torch.zeros(1, dtype=torch.int32, device=device)
        self._position = torch.zeros(1, dtype=torch.int64, device=device)
        self._choice: Choice | None = None
        self._mailbox = _Mailbox(device)

    @property
    def weights_bytes(self) -> int:
        return 0 if self._decoder is None else self._decoder.nbytes

    @property
    def graphs_bytes(self) -> int:
        return self._graphs.nbytes

    @property
    def workspace_bytes(self) -> int:
        """What torch holds besides."""
        if self._decoder is None or self._decoder.device.type == "cpu":
            return 0
        held = torch.cuda.memory_reserved(self._decoder.device) - self._reserved_before
        return max(0, held - self.weights_bytes - self.cache.nbytes - self.graphs_bytes)

    def extend(self, tokens: Sequence[int], wanted: Wanted, checkpoint: Callable[[], None]) -> Tensor:
        decoder = self._opened()
        n_tokens, first = len(tokens), self.cache.length
        with torch.inference_mode():
            self._reserve(first + n_tokens)
            ids = torch.tensor(tokens, dtype=torch.int64).to(decoder.device, non_blocking=True)
            self._start.fill_(first)
            if n_tokens <= MOST_ROWS:
                checkpoint()
                self._tokens[:n_tokens].copy_(ids)
                logits: Tensor = self._graphs.run(("rows", n_tokens), (), lambda: self._rows(n_tokens)).clone()
                rows = {"none": logits[:0], "last": logits[-1:], "all": logits}[wanted]
            else:
                stream = self._hidden(ids, first, checkpoint)
                part = {"none": slice(0, 0), "last": slice(n_tokens - 1, None), "all": slice(None)}[wanted]
                rows = stream.h[:0] if wanted == "none" else decoder.logits(stream, part).values
        self.cache.advance(n_tokens)
        return rows

    def decode(self, token: int, params: SamplingParams, cancel: CancelToken, /) -> Generator[int, None, None] | None:
        return self._decoded(token, params, cancel) if is_supported(params) else None

    def _decoded(self, token: int, params: SamplingParams, cancel: CancelToken) -> Generator[int, None, None]:
        is_greedy = params.temperature == 0
        with torch.inference_mode():
            if not is_greedy:
                self._request(params)
            self._tokens[:1].fill_(token)
            self._start.fill_(self.cache.length)
            self._position.fill_(self.cache.length + 1)
        held = self.cache.length + 1  # positions that the cache is to hold: `token`, and what was yielded
        n_pending = 0
        try:
            while True:
                # The step that the next token is waited for, and one ahead of it where there is room for one.
                while n_pending < 2 and self.cache.length + 1 < self.cache.n_ctx:
                    self._launch(is_greedy)
                    n_pending += 1
                if not n_pending or cancel.is_cancelled:
                    return
                found = self._mailbox.take()
                n_pending -= 1
                if found < 0:
                    raise bad_logits()
                held += 1
                yield found
        finally:
            self._mailbox.forget()
            self.cache.truncate(min(held, self.cache.length))

    def rehearse(self, row_counts: Sequence[int]) -> None:
        """Go through the steps of decoding, and of prompts of so many tokens, without graphs: for warm_up.py, which
        notes the launches and lets none happen. Nothing is kept of it."""
        decoder, counts = self._opened(), [count for count in row_counts if count <= self.cache.n_ctx]
        with torch.inference_mode():
            self._reserve(max(counts))
            self._request(SamplingParams(seed=0))
            self._step(is_greedy=True)
            self._step(is_greedy=False)
            for n_rows in counts:
                if n_rows <= MOST_ROWS:
                    self._rows(n_rows)
                else:
                    ids = torch.zeros(n_rows, dtype=torch.int64, device=decoder.device)
                    decoder.logits(self._hidden(ids, 0, _go_on), slice(n_rows - 1, None))

    def release(self) -> None:
        self._graphs.forget()
        self._decoder = None
        self.cache.release()

    def _opened(self) -> FusedDecoder:
        assert self._decoder is not None, "the backend is closed"
        return self._decoder

    def _reserve(self, length: int) -> None:
        if length > self.cache.capacity:
            self._graphs.forget()  # the cache moves, or parts of it if there is no memory for the rest
            self.cache.reserve(length)

    def _request(self, params: SamplingParams) -> None:
        """The request's numbers, in a tensor that graphs have recorded: it is made once and rewritten."""
        if self._choice is None:
            self._choice = Choice.of(params, self._tokens.device)
        else:
            self._choice.rewrite(params)

    def _launch(self, is_greedy: bool) -> None:
        """Begin the step of the token that lies on the device; what it leaves there goes to the mailbox."""
        with torch.inference_mode():
            self._reserve(self.cache.length + 1)
            state = (self._tokens, self._start, self._position)
            key = "greedy" if is_greedy else "sampled"
            self._graphs.run(key, state, lambda: self._step(is_greedy))
            self.cache.advance(1)
            self._mailbox.put(self._tokens[:1])

    def _step(self, is_greedy: bool) -> None:
        decoder = self._opened()
        stream = self._hidden(self._tokens[:1], 0, _go_on)
        logits = decoder.logits(stream)
        if is_greedy:
            token = greedy_from_tiles(logits.maxima, logits.arguments)
        else:
            assert self._choice is not None
            token = choose(logits.values, self._choice, self._position)
        self._tokens[:1].copy_(token)
        self._start.add_(1)
        self._position.add_(1)

    def _rows(self, n_rows: int) -> Tensor:
        decoder = self._opened()
        stream = self._hidden(self._tokens[:n_rows], 0, _go_on)
        return decoder.logits(stream).values

    def _hidden(self, tokens: Tensor, first: int, checkpoint: Callable[[], None]) -> Stream:
        caches = [LayerCache(**self.cache.layer(index)) for index in range(self.cache.num_layers)]
        return self._opened().hidden(
            tokens, caches, self._start, first=first, n_ctx=self.cache.n_ctx, checkpoint=checkpoint
        )


def _go_on() -> None:
    """A checkpoint that lets everything pass: a step of few rows is short."""


class _Mailbox:
    """Tokens on their way to the host, in order: copies that nobody waits for until they are taken."""

    def __init__(self, device: torch.device) -> None:
        self._is_gpu = device.type == "cuda"
        self._slots = [torch.zeros(1, dtype=torch.int64, pin_memory=self._is_gpu) for _ in range(2)]
        self._events = [torch.cuda.Event() for _ in self._slots] if self._is_gpu else []  # type: ignore[no-untyped-call]
        self._n_put = self._n_taken = 0

    def put(self, token: Tensor) -> None:
        slot = self._n_put % len(self._slots)
        self._slots[slot].copy_(token, non_blocking=True)
        if self._is_gpu:
            self._events[slot].record()
        self._n_put += 1

    def take(self) -> int:
        slot = self._n_taken % len(self._slots)
        if self._is_gpu:
            self._events[slot].synchronize()
        self._n_taken += 1
        return int(self._slots[slot])

    def forget(self) -> None:
        """Drop what was not taken, once it has arrived."""
        while self._n_taken < self._n_put:
            self.take()
