"""A head's draft as a chain on the device: what it guesses is its own next input, and the host waits once.

Positions, counts and a request's numbers lie on the device, where kernels read them, so every step is one CUDA graph.
The text's own rows come first, up to 16 at once; then guesses, a row each. Which rows those are is drafter.py's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from runner.backends.native.blocks import Attention, Mixing
from runner.backends.native.capture import Interior
from runner.backends.native.graphs import Graphs, filled_up
from runner.backends.native.guesses import Guesses
from runner.backends.native.kv_cache import KvCache
from runner.backends.native.moe import Experts
from runner.config import SamplingParams
from runner.kernels.attention_decode import attend_rows
from runner.kernels.heads import Heads
from runner.kernels.kv_layer import LayerCache
from runner.kernels.sampling import Choice, choose, is_supported
from runner.kernels.splits import combine
from runner.kernels.values import MOST_ROWS
from runner.model_config import RopeName

Rotations = dict[RopeName, tuple[Tensor, Tensor]]


class ChainedHead(Protocol):
    """What of a head its chain asks for; see drafter.Head and eagle3.Eagle3Head."""

    @property
    def target_ids(self) -> Tensor: ...

    def fuse(self, captured: Tensor) -> Tensor: ...

    def rotations(self, start: Tensor, n_rows: int) -> Rotations: ...

    def computed(self, states: Tensor, embeddings: Tensor, run: Mixing) -> Tensor: ...

    def logits(self, states: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class DevicePass:
    """As blocks.Pass, for 16 rows at most of which the device knows where they begin: `start` int32 [1]."""

    cache: LayerCache
    start: Tensor
    rotations: Rotations
    checkpoint: Callable[[], None]

    def mix(self, attention: Attention, x: Tensor, _layer: int) -> Tensor:
        cos, sin = self.rotations[attention.rope]
        q, k, v, gate = attention.projections(x)
        heads = Heads(
            qkv=torch.cat((q, k, v), -1),
            num_heads=attention.num_heads,
            cos=cos,
            sin=sin,
            q_gain=None if attention.q_norm is None else attention.q_norm.gain,
            k_gain=None if attention.k_norm is None else attention.k_norm.gain,
            norm=attention.norm,
            eps=0.0 if attention.q_norm is None else attention.q_norm.eps,
        )
        mixed = combine(
            attend_rows(
                heads,
                self.cache,
                self.start,
                window=attention.window,
                sinks=attention.sinks,
                scale=attention.scale,
                cap=attention.cap,
            )
        )
        return mixed if gate is None else mixed * gate.sigmoid()


def can_be_chained(head: torch.nn.Module) -> bool:
    """Whether its steps have one shape: plain experts are chosen by the host."""
    return not any(isinstance(module, Experts) for module in head.modules())


class HeadChain:
    """waiting: [at least 16, n_captured], captured states, which the next rows are made of: it stays where it is.

    last: [1, hidden], what the head gave for the last row of the text.
    """

    def __init__(
        self, head: ChainedHead, interior: Interior, cache: KvCache, waiting: Tensor, vocab_size: int, hidden_size: int
    ) -> None:
        device = interior.device
        self._head, self._interior, self._cache, self._waiting = head, interior, cache, waiting
        self._graphs = Graphs(device)
        self._guesses = Guesses(device)
        self._choice: Choice | None = None
        self._chosen_by: SamplingParams | None = None
        self._ids = head.target_ids.to(device)
        is_whole = torch.equal(self._ids, torch.arange(vocab_size, device=device))
        # The noise is that of the target's ids, so a part of the vocabulary is chosen from among all of it.
        self._whole = None if is_whole else torch.full((1, vocab_size), -torch.inf, device=device)
        self._tokens = torch.zeros(MOST_ROWS, dtype=torch.int64, device=device)
        self._start = torch.zeros(1, dtype=torch.int32, device=device)
        self._count = torch.ones(1, dtype=torch.int64, device=device)
        self._position = torch.zeros(1, dtype=torch.int64, device=device)
        self._state = torch.zeros(1, hidden_size, dtype=interior.dtype, device=device)
        self.last = torch.zeros_like(self._state)

    @property
    def nbytes(self) -> int:
        return self._graphs.nbytes + (0 if self._whole is None else self._whole.nbytes)

    def can_choose(self, params: SamplingParams) -> bool:
        return is_supported(params)

    def forget(self) -> None:
        """The cache is about to move."""
        self._graphs.forget()

    def draft(self, ids: Sequence[int], params: SamplingParams, position: int, n: int) -> list[tuple[int, float]]:
        """Rows of the first states that wait, with `ids` one position further on, and n guesses from `position` on.

        Gives tokens of the target's and the probabilities that the head gives them, NaN where its logits are no
        numbers. The cache has room for all; its length stays, and rows of guesses are overwritten by later ones.
        """
        n_rows = filled_up(len(ids), self._cache.capacity - self._cache.length)
        is_greedy = params.temperature == 0
        if not is_greedy:
            self._request(params)
        self._tokens[:n_rows].copy_(torch.tensor([*ids, *[0] * (n_rows - len(ids))]), non_blocking=True)
        self._start.fill_(self._cache.length)
        self._count.fill_(len(ids))
        self._position.fill_(position)
        self._run(("text", n_rows, is_greedy), functools.partial(self._read, n_rows, is_greedy))
        for _ in range(n - 1):
            self._run(("guess", is_greedy), functools.partial(self._go_on, is_greedy))
        return self._guesses.read(position, n)

    def _request(self, params: SamplingParams) -> None:
        if params == self._chosen_by:
            return
        if self._choice is None:
            self._choice = Choice.of(params, self._start.device)
        else:
            self._choice.rewrite(params)
        self._chosen_by = params

    def _run(self, key: tuple[object, ...], step: Callable[[], None]) -> None:
        self._graphs.run(key, (self._tokens, self._start, self._position, self._state), step)

    def _read(self, n_rows: int, is_greedy: bool) -> None:
        """Rows of the text, and the guess after them."""
        states = self._computed(self._head.fuse(self._waiting[:n_rows]), n_rows)
        self._state.copy_(states.index_select(0, self._count - 1))
        self.last.copy_(self._state)
        self._start.add_(self._count)
        self._guess(is_greedy)

    def _go_on(self, is_greedy: bool) -> None:
        """The row of the last guess, and the guess after it."""
        self._state.copy_(self._computed(self._state, 1))
        self._start.add_(1)
        self._guess(is_greedy)

    def _computed(self, states: Tensor, n_rows: int) -> Tensor:
        cache = LayerCache(**self._cache.layer(0))
        rotations = self._head.rotations(self._start, n_rows)
        run = DevicePass(cache, self._start, rotations, lambda: None)
        return self._head.computed(states, self._interior.embed(self._tokens[:n_rows]), run)

    def _guess(self, is_greedy: bool) -> None:
        logits = self._head.logits(self._state)
        if is_greedy:
            token = self._ids[logits.argmax(-1)]
            share = 1 / (logits - logits.amax(-1)).exp().sum(-1)
        else:
            token, share = self._sampled(logits)
        self._guesses.put(self._position, token, share)
        self._tokens[:1].copy_(token)
        self._position.add_(1)

    def _sampled(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        assert self._choice is not None
        if self._whole is not None:
            self._whole.index_copy_(1, self._ids, logits)
            logits = self._whole
        # What is no number ends the draft by its share: the token behind it need only be one.
        token = choose(logits, self._choice, self._position).clamp(min=0)
        scaled = logits / self._choice.numbers[0].float()
        return token, (scaled.gather(1, token[:, None])[:, 0] - scaled.logsumexp(-1)).exp()
