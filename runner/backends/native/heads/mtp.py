"""The multi-token head that a checkpoint ships (DeepSeek-V3, arXiv:2412.19437, 2.2): a decoder layer of the model's
own kind that guesses the token after the next.

Row i joins the model's final state at position i with the embedding of the token at i + 1. Guessing on, the head takes
its own normed state in place of the model's: such a head is trained for one token, and the further guesses are as good
as they are. It knows no names of checkpoints.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from runner.backends.native.blocks import Layer, Mixing, Pass, RmsNorm, go_on
from runner.backends.native.capture import Interior
from runner.backends.native.heads.rotary import RotaryRows
from runner.backends.native.kv_cache import KvCache
from runner.backends.native.linear import Linear
from runner.model_config import ModelConfig, RopeName


class MtpHead(nn.Module):
    """See drafter.Head. Parameters are uninitialized until the loader fills them.

    layer: of the model's own kind. head: the head's own output matrix; None where it takes the model's.
    is_hidden_first, masks_first: see MtpLayout.
    """

    def __init__(
        self, config: ModelConfig, layer: Layer, *, has_own_head: bool, is_hidden_first: bool, masks_first: bool
    ) -> None:
        super().__init__()
        size, eps, offset = config.hidden_size, config.rms_norm_eps, config.norm_offset
        self.enorm = RmsNorm(size, eps, offset)
        self.hnorm = RmsNorm(size, eps, offset)
        self.eh_proj = Linear(2 * size, size)
        self.layer = layer
        self.norm = RmsNorm(size, eps, offset)
        self.head = Linear(size, config.vocab_size) if has_own_head else None
        self.is_hidden_first = is_hidden_first
        self.masks_first = masks_first
        self._vocab_size = config.vocab_size
        assert layer.self_attn is not None  # a layer after the last is no delta net: see mtp_files
        self._rope = layer.self_attn.rope
        self._rotary = RotaryRows(config.ropes[self._rope], config.max_position_embeddings)
        self._interior: Interior | None = None

    def join(self, interior: Interior) -> None:
        """Read the states of that model, whose final norm and output matrix the head shares."""
        self._interior = interior

    @property
    def nbytes(self) -> int:
        return sum(parameter.nbytes for parameter in self.parameters())

    @property
    def target_ids(self) -> Tensor:
        return torch.arange(self._vocab_size)

    def fuse(self, captured: Tensor) -> Tensor:
        """The model's final states, normed, of its residual stream after the last layer [T, hidden]."""
        return self._joined().norm(captured)

    def extend(self, states: Tensor, embeddings: Tensor, cache: KvCache) -> Tensor:
        """See Eagle3Head.extend."""
        n_rows, start = len(states), cache.length
        cache.reserve(start + n_rows)
        given = self.computed(states, embeddings, Pass(cache, start, self.rotations(start, n_rows), go_on))
        cache.advance(n_rows)
        return given

    def rotations(self, start: int | Tensor, n_rows: int) -> dict[RopeName, tuple[Tensor, Tensor]]:
        """Those of rows from `start` on; see RotaryRows."""
        return {self._rope: self._rotary(start, n_rows, self.norm.weight.device)}

    def computed(self, states: Tensor, embeddings: Tensor, run: Mixing) -> Tensor:
        """What `extend` gives, in a pass that keeps the rows."""
        if self.masks_first:
            rows = torch.arange(len(states), device=states.device) + run.start
            embeddings = embeddings.masked_fill((rows == 0)[:, None], 0)
        parts = (self.enorm(embeddings), self.hnorm(states))
        x = self.eh_proj(torch.cat(parts[::-1] if self.is_hidden_first else parts, dim=-1))
        return self.norm(self.layer(x, 0, run))  # type: ignore[no-any-return]

    def logits(self, states: Tensor) -> Tensor:
        """[T, V] float32 of states that `extend` gave."""
        if self.head is not None:
            return self.head(states).float()  # type: ignore[no-any-return]
        return self._joined().logits(states)

    def _joined(self) -> Interior:
        assert self._interior is not None
        return self._interior
