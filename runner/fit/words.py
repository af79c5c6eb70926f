"""An estimate in words, for the command line and the screens alike. It turns values into text and computes nothing."""

from __future__ import annotations

from runner.fit.arithmetic import Fit, KvPart
from runner.measures import binary_size


def free_text(fit: Fit) -> str:
    """What the device has free, and what other processes hold of it."""
    others = f", other processes hold {binary_size(fit.others_bytes)}" if fit.others_bytes else ""
    return f"{binary_size(fit.available_bytes)} free of {binary_size(fit.device.total_bytes)}{others}"


def trained_text(fit: Fit, context_length: int) -> str:
    """What the model was trained for, where that is another context than the estimate's; else ""."""
    return f" (trained for {context_length})" if context_length and context_length != fit.n_ctx else ""


def kinds_text(parts: tuple[KvPart, ...]) -> str:
    """Which layers keep what, where they are not all alike."""
    if len(parts) < 2:
        return ""
    words = {
        "full": "with all tokens",
        "window": "with a window of {}",
        "state": "with a fixed state",
        "shared": "without a cache of their own",
    }
    said = []
    for part in parts:
        count = "1 layer" if part.num_layers == 1 else f"{part.num_layers} layers"
        said.append(f"{count} {words[part.kind].format(part.window)}: {binary_size(part.size_bytes)}")
    return f" ({', '.join(said)})"


def verdict_text(fit: Fit) -> str:
    """Whether it fits, and how."""
    if not fit.is_fitting:
        return f"it does not fit, {binary_size(fit.total_bytes - fit.room_bytes)} too much"
    if not fit.ram_bytes or not fit.num_layers:
        return "it fits"
    if fit.n_gpu_layers >= fit.num_layers:
        return f"it fits, all {fit.num_layers} layers on the GPU"
    share = round(100 * fit.n_gpu_layers / fit.num_layers)
    return f"it fits with {fit.n_gpu_layers} of {fit.num_layers} layers on the GPU ({share} %), the others in RAM"
