"""Teaches a head: batches of the target's text, the loss at every depth, AdamW on a cosine schedule, the best kept.

The order of the texts and the head's first weights follow from the seed, and a run that was stopped goes on as if it
had not been, unless a limit of time ends it. It knows nothing of files beyond the checkpoint that it is given.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from statistics import fmean
from typing import Final

import torch
from torch import Tensor

from runner.backends.native.blocks import Decoder
from runner.backends.native.heads.eagle3 import Eagle3Head
from runner.draft_training.batches import batch_of, endless
from runner.draft_training.checkpoint import Checkpoint, Watched
from runner.draft_training.corpus import Text
from runner.draft_training.measure import acceptance
from runner.draft_training.settings import TrainingSettings
from runner.draft_training.states import observe, output_rows
from runner.draft_training.unrolled import depths, lesson_of, loss_of
from runner.errors import UnsupportedModel
from runner.types import CancelToken

_DEPTH_DECAY: Final = 0.8  # of a depth's weight in the loss to the one before
_WARM_UP: Final = 0.05  # of all steps
_LAST_RATE: Final = 0.05  # of the highest
_MAX_GRADIENT: Final = 1.0
_BETAS: Final = (0.9, 0.95)
_WATCHES: Final = 20  # times that the watched texts are drafted on
_PATIENCE: Final = 6  # of them without a better one
_NO_BETTER: Final = 1e-4


@dataclass(frozen=True)
class Trained:
    """A step is done. acceptance_length: of the watched texts when they were last drafted on; None before."""

    step: int
    loss: float
    acceptance_length: float | None


@dataclass(frozen=True)
class Material:
    """What training is given. train, watch: texts. time_share: how much of the time is over, from 0 to 1."""

    decoder: Decoder
    settings: TrainingSettings
    train: Sequence[Text]
    watch: Sequence[Text]
    time_share: Callable[[], float] = lambda: 0.0


def rate_at(share: float) -> float:
    """The learning rate over its highest, when that share of the steps is done."""
    if share < _WARM_UP:
        return max(share, 1e-3) / _WARM_UP
    through = min(1.0, (share - _WARM_UP) / (1 - _WARM_UP))
    return _LAST_RATE + (1 - _LAST_RATE) * 0.5 * (1 + math.cos(math.pi * through))


class Training:
    """One head in training. `checkpoint` is valid between steps."""

    def __init__(self, head: Eagle3Head, material: Material, begun: Checkpoint | None = None) -> None:
        settings = material.settings
        self.head = head.requires_grad_(True)
        self._parameters = dict(head.named_parameters())
        self._masters = {name: parameter.detach().float().clone() for name, parameter in self._parameters.items()}
        self._material = material
        self._layers = head.config.captured(material.decoder.config.num_layers)
        self._optimizer = torch.optim.AdamW(
            self._masters.values(), lr=settings.rate(head.config.hidden_size), betas=_BETAS, weight_decay=0.0
        )
        self.step = 0
        self.curve: list[Watched] = []
        self._best, self.best_step = self._copied(), 0
        self._losses: list[float] = []  # of the steps since the watched texts were drafted on
        if begun is not None:
            self._go_on(begun)

    @property
    def is_over(self) -> bool:
        return self.step >= self._material.settings.steps or self._material.time_share() >= 1 or self.is_stuck

    def run(self, on_step: Callable[[Trained], None], on_watched: Callable[[], None], cancel: CancelToken) -> bool:
        """Train until it is over; False when it was cancelled before. on_watched: a good time to save."""
        settings = self._material.settings
        every = max(1, settings.steps // _WATCHES)
        batches = endless(self._material.train, settings.batch_tokens, settings.seed)
        for texts in islice(batches, self.step, None):
            if cancel.is_cancelled:
                return False
            if self.is_over:
                break
            loss = self._one_step(texts)
            self.step += 1
            if self.step % every == 0:
                self._watch()
                on_watched()
            on_step(Trained(self.step, loss, self.curve[-1].acceptance_length if self.curve else None))
        if self.step and (not self.curve or self.curve[-1].step < self.step):
            self._watch()
            on_watched()
        return True

    def finish(self) -> None:
        """The head becomes the best that it was."""
        self._set(self._best)
        self.head.requires_grad_(False)

    def checkpoint(self) -> Checkpoint:
        moments = {}
        for name, master in self._masters.items():
            state = self._optimizer.state.get(master) or {"exp_avg": torch.zeros_like(master)}
            first = state["exp_avg"]
            moments[name] = (first, state.get("exp_avg_sq", torch.zeros_like(first)))
        return Checkpoint(
            step=self.step,
            best_step=self.best_step,
            curve=tuple(self.curve),
            losses=tuple(self._losses),
            head=self._copied(),
            best=self._best,
            moments=moments,
        )

    def _one_step(self, texts: Sequence[Text]) -> float:
        settings, decoder = self._material.settings, self._material.decoder
        device = self.head.d2t.device
        batch = batch_of(texts, device)
        seen = observe(decoder, batch.ids, self._layers, self.head.fc.weight.dtype)
        lesson = lesson_of(decoder, self.head, seen, batch)
        total, weight, weights = torch.zeros((), device=device), 1.0, 0.0
        for found in depths(self.head, seen, batch, settings.depth):
            total = total + weight * loss_of(found, self.head, lesson)
            weight, weights = weight * _DEPTH_DECAY, weights + weight
        loss = total / max(weights, 1e-9)
        if loss.requires_grad:  # not for texts that are all too short
            loss.backward()  # type: ignore[no-untyped-call]
            self._update()
        value = loss.item()
        if not math.isfinite(value):
            raise UnsupportedModel(
                f"The loss is {value} after {self.step} steps: the model's hidden states are no numbers, or too large.",
                hint="Try the other --variant; where both fail, the model's files may be damaged.",
            )
        self._losses.append(value)
        return value

    def _update(self) -> None:
        """A step of the optimizer on the float32 masters, whose rounded copy the head computes with."""
        settings = self._material.settings
        for name, parameter in self._parameters.items():
            grad, parameter.grad = parameter.grad, None
            self._masters[name].grad = torch.zeros_like(self._masters[name]) if grad is None else grad.float()
        torch.nn.utils.clip_grad_norm_(self._masters.values(), _MAX_GRADIENT)
        share = max(self.step / settings.steps, self._material.time_share())
        for group in self._optimizer.param_groups:
            group["lr"] = settings.rate(self.head.config.hidden_size) * rate_at(share)
        self._optimizer.step()
        self._set(self._masters)

    def _set(self, values: Mapping[str, Tensor]) -> None:
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                parameter.copy_(values[name])

    def _watch(self) -> None:
        settings = self._material.settings
        found = acceptance(
            self.head, self._material.decoder, self._material.watch, settings.depth, settings.batch_tokens
        )
        if found.length > max((watched.acceptance_length for watched in self.curve), default=0.0) + _NO_BETTER:
            self._best, self.best_step = self._copied(), self.step
        self.curve.append(Watched(self.step, fmean(self._losses), found.length))
        self._losses.clear()

    @property
    def is_stuck(self) -> bool:
        lengths = [watched.acceptance_length for watched in self.curve]
        return len(lengths) > _PATIENCE and max(lengths[-_PATIENCE:]) <= max(lengths[:-_PATIENCE]) + _NO_BETTER

    def _copied(self) -> dict[str, Tensor]:
        return {name: master.detach().clone() for name, master in self._masters.items()}

    def _go_on(self, begun: Checkpoint) -> None:
        self.step, self.curve, self._losses = begun.step, list(begun.curve), list(begun.losses)
        device = self.head.d2t.device
        self._best, self.best_step = {name: tensor.to(device) for name, tensor in begun.best.items()}, begun.best_step
        for name, master in self._masters.items():
            master.copy_(begun.head[name])
            first, second = (moment.to(device) for moment in begun.moments[name])
            self._optimizer.state[master] = {
                "step": torch.tensor(float(begun.step)),
                "exp_avg": first,
                "exp_avg_sq": second,
            }
        self._set(self._masters)


def commonest(texts: Sequence[Text], count: int, vocab_size: int) -> Tensor:
    """The `count` ids that answers have most often, ascending; the lowest where they have fewer different ones."""
    ids = torch.tensor([token for text in texts for token in text.ids[text.n_prompt :]], dtype=torch.int64)
    counts = torch.bincount(ids, minlength=vocab_size)
    ranked = torch.argsort(counts, descending=True, stable=True)
    return ranked[:count].sort().values


def new_head(head: Eagle3Head, decoder: Decoder, ids: Tensor, seed: int) -> Eagle3Head:
    """`head` with the weights that training begins with: random, but the target's own output and the norm before it."""
    head.initialize(torch.Generator().manual_seed(seed))
    head.set_vocabulary(ids)
    with torch.no_grad():
        head.lm_head.weight.copy_(output_rows(decoder, ids.to(decoder.model.norm.weight.device)))
        head.norm.weight.copy_(decoder.model.norm.gain)
    return head
