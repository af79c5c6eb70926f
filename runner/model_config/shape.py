"""Shape: what a model is made of as far as memory is concerned, whatever file that was read from.

Counts of weights, and what each layer keeps of the tokens before. It knows no backend, no file and no device: how many
bytes an element takes, and who keeps more than a layer needs, is fit's business.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

CacheKind = Literal["full", "window", "state", "shared"]


@dataclass(frozen=True, kw_only=True)
class LayerCache:
    """What one layer keeps of the past.

    full: K and V of every token. window: K and V of the last `window` tokens. state: a fixed state (linear attention
    and other recurrences). shared: nothing of its own, it reads what the last layer before it keeps that has the same
    window, or none as it has. width: elements of K and V together a token. state_size: elements of the state, which is
    in float32. past_size: of the last inputs of a convolution beside it, which each backend keeps in a type of its own.
    """

    kind: CacheKind
    width: int = 0
    window: int = 0
    state_size: int = 0
    past_size: int = 0

    def elements(self, n_ctx: int, *, is_window_whole: bool = False) -> int:
        """Elements of K and V at `n_ctx` tokens; is_window_whole: as a backend that keeps all tokens anyway."""
        return self.width * (min(n_ctx, self.window) if self.kind == "window" and not is_window_whole else n_ctx)

    def state_bytes(self, past_bytes: int) -> int:
        """Of one state. past_bytes: of an element of the convolution's past."""
        return 4 * self.state_size + past_bytes * self.past_size


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What an estimate needs to know of a model. 0 where something is not known.

    num_parameters: weights of the text model, tied embeddings once. num_active_parameters: those that one token passes
    through: all but the experts that it is not sent to, and the table of inputs by layer, of which it reads a row.
    caches: one entry a layer, in order. notes: sentences for people on what is left out, assumed or unknown.
    """

    architecture: str
    num_parameters: int
    num_active_parameters: int
    context_length: int
    hidden_size: int
    vocab_size: int
    caches: tuple[LayerCache, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def num_layers(self) -> int:
        return len(self.caches)

    @property
    def can_go_back(self) -> bool:
        """Whether tokens can be taken back, by all that files tell: a fixed state cannot be cut."""
        return all(cache.kind != "state" for cache in self.caches)


NO_SHAPE = Shape(
    architecture="", num_parameters=0, num_active_parameters=0, context_length=0, hidden_size=0, vocab_size=0
)
