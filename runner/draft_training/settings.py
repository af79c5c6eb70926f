"""How a drafter is trained: every choice, with the defaults of a CPU and of a GPU. Values alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

from runner.errors import UsageError

Variant = Literal["eagle3", "normed"]
VARIANTS: Final[tuple[Variant, ...]] = get_args(Variant)
DEFAULT_VARIANT: Final[Variant] = "normed"


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """variant: "eagle3" as published, "normed" with norm_output and fc_norm of "Attention Drift" (arXiv:2605.09992).

    n_tokens: of answers that the target writes. length: ids of a text at most, prompt and answer. steps: of the
    optimizer. batch_tokens: ids in a batch at most. depth: how many tokens deep the head is unrolled. draft_vocab_size:
    the ids that it can draft, the commonest of the text. learning_rate: at its highest; None follows from the width.
    """

    variant: Variant
    n_tokens: int
    length: int
    steps: int
    batch_tokens: int
    depth: int
    draft_vocab_size: int
    seed: int = 0
    learning_rate: float | None = None

    def rate(self, hidden_size: int) -> float:
        return self.learning_rate or min(1e-3, 0.5 / hidden_size)


def training_settings(
    *,
    is_gpu: bool,
    context: int,
    vocab_size: int,
    variant: str,
    n_tokens: int | None,
    steps: int | None,
    depth: int | None,
    draft_vocab_size: int | None,
    seed: int,
) -> TrainingSettings:
    """What was asked for over the defaults of the device. Raises UsageError for what makes no sense.

    context: of the target, in tokens.
    """
    for kind in VARIANTS:
        if kind == variant:
            break
    else:
        raise UsageError(f"--variant is {variant!r}.", hint=f"It must be one of {', '.join(VARIANTS)}.")
    asked = {
        "--tokens": n_tokens,
        "--steps": steps,
        "--depth": depth,
        "--draft-vocab": draft_vocab_size,
    }
    for flag, value in asked.items():
        if value is not None and value < 1:
            raise UsageError(f"{flag} is {value}.", hint="It must be 1 or more.")
    if not 0 <= seed < 2**64:
        raise UsageError(f"--seed is {seed}.", hint="It must be a number from 0 to 2^64 - 1.")
    if depth is not None and depth > 16:
        raise UsageError(f"--depth is {depth}.", hint="It must be 16 or less: longer drafts do not pay.")
    if context < 8:
        raise UsageError(f"The model's context is {context} tokens.", hint="There is no room to learn from.")
    return TrainingSettings(
        variant=kind,
        n_tokens=n_tokens or (2_000_000 if is_gpu else 50_000),
        length=min(context, 512 if is_gpu else 192),
        steps=steps or (4000 if is_gpu else 400),
        batch_tokens=8192 if is_gpu else 512,
        depth=depth or 6,
        draft_vocab_size=min(vocab_size, draft_vocab_size or (32_000 if is_gpu else 2048)),
        seed=seed,
    )
