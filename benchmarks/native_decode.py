"""How fast the native backend's kernels decode and prefill, on models of real shapes with random weights.

    python benchmarks/native_decode.py                                  # on a GPU: two shapes, mq4
    python benchmarks/native_decode.py --shape llama-3.1-8b --format mq4-uniform
    TRITON_INTERPRET=1 python benchmarks/native_decode.py --shape tiny --prompt 32 --rounds 2   # on a CPU: does it run?

Decoding is the backend's own loop: embedding to greedy token in a CUDA graph, the host one step behind. t(M) is a step
of M rows with the logits of all of them, as verifying a draft takes it. Prefill is one chunk. Random weights do not
change the speed. No other program is measured here.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from runner.backends.native.architectures import build
from runner.backends.native.fused import FusedDecoder
from runner.backends.native.fused_execution import FusedExecution
from runner.backends.native.kv_cache import KvCache
from runner.config import SamplingParams
from runner.kernels.grids import FORMATS, words_of_group
from runner.kernels.values import GROUP, Matrix, PackedMatrix
from runner.model_config import ModelConfig, parse_model_config
from runner.quant.mq.rotation import rotation_size
from runner.types import CancelToken

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
GREEDY = SamplingParams(temperature=0)
_LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "rms_norm_eps": 1e-5}
_QWEN = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "rms_norm_eps": 1e-6, "head_dim": 128}
SHAPES: dict[str, dict[str, Any]] = {
    "llama-3.1-8b": _LLAMA
    | {"vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32}
    | {"num_attention_heads": 32, "num_key_value_heads": 8, "rope_theta": 500000.0, "max_position_embeddings": 131072},
    "qwen3-0.6b": _QWEN
    | {"vocab_size": 151936, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28}
    | {"num_attention_heads": 16, "num_key_value_heads": 8, "rope_theta": 1e6, "max_position_embeddings": 40960}
    | {"tie_word_embeddings": True},
    "tiny": _QWEN
    | {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "head_dim": 32}
    | {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 1024},
}


class RandomWeights:
    """Stands in for MatrixReader: packed matrices of random words, vectors of ones; embedding and output in mq6."""

    dtype = torch.bfloat16 if DEVICE.type == "cuda" else torch.float32
    device = DEVICE

    def __init__(self, config: ModelConfig, form: str) -> None:
        with torch.device("meta"):
            self._shapes = {name: tuple(parameter.shape) for name, parameter in build(config).named_parameters()}
        self._form = form
        self.nbytes = 0

    def has(self, name: str) -> bool:
        return name in self._shapes

    def matrix(self, name: str) -> Matrix:
        n, k = self._shapes[name]
        form = FORMATS["mq6" if name in ("model.embed_tokens.weight", "lm_head.weight") else self._form]
        words, n_groups = words_of_group(form), k // GROUP
        matrix = PackedMatrix(
            format=form.name,
            packed=torch.randint(-(2**31), 2**31 - 1, (n, words, n_groups), dtype=torch.int32, device=DEVICE),
            scale=torch.randint(0, 255, (n, n_groups), dtype=torch.uint8, device=DEVICE),
            row_scale=torch.full((n,), 2.0**-16, device=DEVICE),
            rotation=rotation_size(k),
        )
        self.nbytes += matrix.nbytes
        return matrix

    def vector(self, name: str) -> Tensor:
        return torch.ones(self._shapes[name], device=DEVICE)

    def optional_vector(self, name: str) -> Tensor | None:
        return self.vector(name) if self.has(name) else None

    def require_all_read(self) -> None:
        """Nothing is left over: there is no file."""


def loaded(shape: str, form: str, n_ctx: int) -> FusedExecution:
    config = parse_model_config(SHAPES[shape])
    with torch.device("meta"):
        model = build(config)
    weights = RandomWeights(config, form)
    cache = KvCache(
        num_layers=config.num_layers,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        n_ctx=n_ctx,
        dtype=weights.dtype,
        device=DEVICE,
    )
    return FusedExecution(FusedDecoder(model, weights), cache)  # type: ignore[arg-type]


def wait() -> None:
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


def decode_rates(execution: FusedExecution, depth: int, n_tokens: int, rounds: int) -> list[float]:
    """tokens/s of each round, after `depth` tokens of context."""
    rates = []
    for _ in range(rounds + 1):  # the first one records the graph
        execution.cache.truncate(depth)
        tokens = execution.decode(5, GREEDY, CancelToken())
        assert tokens is not None
        next(tokens)
        wait()
        started = time.perf_counter()
        for _ in range(n_tokens):
            next(tokens)
        wait()
        rates.append(n_tokens / (time.perf_counter() - started))
        tokens.close()
    return rates[1:]


def seconds(work: Callable[[], Any], rounds: int) -> float:
    """The median time of one call, after two that warm up."""
    times = []
    for _ in range(rounds + 2):
        wait()
        started = time.perf_counter()
        work()
        wait()
        times.append(time.perf_counter() - started)
    return statistics.median(times[2:])


def measure(shape: str, form: str, depth: int, n_tokens: int, n_prompt: int, rounds: int) -> None:
    execution = loaded(shape, form, depth + 1024)
    go_on: Callable[[], None] = lambda: None  # noqa: E731
    ids = [token % 60 for token in range(max(depth, n_prompt, 16))]

    def extend(n: int) -> None:
        execution.extend(ids[:n], "all" if n <= 16 else "last", go_on)
        execution.cache.truncate(depth)

    execution.extend(ids[:depth], "none", go_on)
    rates = decode_rates(execution, depth, n_tokens, rounds)
    steps = {m: seconds(lambda m=m: extend(m), 4 * rounds) for m in (1, 2, 4, 8, 16)}  # type: ignore[misc]
    prefill = n_prompt / seconds(lambda: extend(n_prompt), rounds)
    rate, deviation = statistics.mean(rates), statistics.stdev(rates)
    print(
        f"| {shape} | {form} | {execution.weights_bytes / 1e9:.2f} | {depth} | {rate:.0f} ± {deviation:.0f} |", end=""
    )
    print(f" {prefill:.0f} | {' / '.join(f'{1e3 * step:.2f}' for step in steps.values())} |", flush=True)
    execution.release()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=SHAPES, action="append")
    parser.add_argument("--format", choices=FORMATS, default="mq4")
    parser.add_argument("--depth", type=int, default=16, help="tokens of context before the first one that is timed")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--prompt", type=int, default=512, help="tokens of the prompt that is timed")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    name = torch.cuda.get_device_name() if DEVICE.type == "cuda" else "CPU, in the interpreter"
    print(f"{name}, torch {torch.__version__}\n")
    print("| shape | format | weights GB | depth | decode tok/s | prefill tok/s | t(1 / 2 / 4 / 8 / 16) ms |")
    print("|---|---|---|---|---|---|---|")
    for shape in given.shape or ("llama-3.1-8b", "qwen3-0.6b"):
        measure(shape, given.format, given.depth, given.tokens, given.prompt, given.rounds)


if __name__ == "__main__":
    main()
